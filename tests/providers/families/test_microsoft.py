"""Microsoft Graph tokens: their issuer, audience, sender, validity and key."""

import json
import time
from functools import cache
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from oncehook.config.configuration import read_source
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.providers.certificates import Certificates
from oncehook.providers.families import microsoft as graph
from oncehook.providers.jwt import encode
from oncehook.providers.source import Source
from tests.support.providers import body_of, sender

pytestmark = pytest.mark.anyio
APP = "11111111-2222-3333-4444-555555555555"
TENANT = "84bd8158-6d4d-4958-8b9f-9d6445542f95"
STATE = sender("microsoft-graph").pair().verifying


@cache
def key(number: int = 0) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def published(*numbers: int) -> bytes:
    tables = []
    for number in numbers:
        public = key(number).public_key().public_numbers()
        n, e = (encode(value.to_bytes((value.bit_length() + 7) // 8)).decode() for value in (public.n, public.e))
        tables.append({"kid": f"k{number}", "kty": "RSA", "use": "sig", "n": n, "e": e})
    return json.dumps({"keys": tables}).encode()


def token(number: int = 0, named: str | None = None, algorithm: str = "RS256", **changes: Any) -> str:
    now = int(time.time())
    claims = {"aud": APP, "azp": graph.SENDER, "nbf": now - 60, "exp": now + 3600}
    claims |= {"iss": f"https://login.microsoftonline.com/{TENANT}/v2.0", **changes}
    claims = {name: value for name, value in claims.items() if value is not None}
    headers = {"kid": f"k{number}" if named is None else named}
    return jwt.encode(claims, key(number), algorithm=algorithm, headers=headers)


def element(*, state: str = STATE, rich: bool = True) -> dict[str, Any]:
    """One of the notifications of a delivery. A rich one has the data of the resource."""
    facts = {"id": "1", "clientState": state, "changeType": "created", "resource": "r", "resourceData": {"id": "m"}}
    return {**facts, "encryptedContent": {"data": "x"}} if rich else facts


def notification(*tokens: Any, state: str = STATE, rich: bool = True) -> Delivery:
    return delivery_of([element(state=state, rich=rich)], *tokens)


def delivery_of(elements: list[dict[str, Any]], *tokens: Any) -> Delivery:
    body: dict[str, Any] = {"value": elements}
    if tokens:
        body["validationTokens"] = list(tokens)
    return Delivery.of(json.dumps(body).encode(), {"Content-Type": "application/json"})


class Served:
    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.requests: list[str] = []

    async def __call__(self, url: str) -> bytes:
        self.requests.append(url)
        return self.answer


def source(served: Served | None = None, **settings: Any) -> Source:
    certificates = Certificates(fetch=served or Served(published(0, 1)))
    values = {"provider": "microsoft-graph", "secrets": [STATE], "app_id": APP, **settings}
    return Source("here", read_source("here", values), max_body=2**20, certificates=certificates)


async def is_accepted(source: Source, delivery: Delivery) -> bool:
    assert source.verifier is not None and source.fetches_certificates
    for _ in range(4):
        wanted = source.verifier.key_to_fetch(delivery)
        if wanted is None or not await source.certificates.ensure(wanted):
            break
    try:
        return source.verifier.verify(delivery, time.time()) == 0
    except Rejected:
        return False


async def test_every_token_is_verified_with_a_key_that_is_fetched_once() -> None:
    served = Served(published(0, 1))
    here = source(served)
    for _ in range(2):
        assert await is_accepted(here, notification(token(0), token(1)))
    assert served.requests == [graph.KEYS] * 2


async def test_version_1_token_names_its_sender_in_appid() -> None:
    issuer = f"https://sts.windows.net/{TENANT}/"
    assert await is_accepted(source(), notification(token(azp=None, appid=graph.SENDER, iss=issuer)))


FORGED: dict[str, dict[str, Any]] = {
    "for another application": {"aud": TENANT},
    "from another application": {"azp": TENANT},
    "without a sender": {"azp": None},
    "expired": {"exp": int(time.time()) - 3600},
    "not yet": {"nbf": int(time.time()) + 3600},
    "another issuer": {"iss": f"https://evil.example/{TENANT}/v2.0"},
    "an issuer like it": {"iss": f"https://login.microsoftonline.com.evil.example/{TENANT}/v2.0"},
    "no audience": {"aud": None},
    "two audiences": {"aud": [APP, "x"]},
    "under another key": {"number": 1, "named": "k0"},
    "another algorithm": {"algorithm": "RS512"},
    "a name that is no name": {"named": "../keys"},
}


@pytest.mark.parametrize("kind", FORGED)
async def test_token_for_another_application_or_time_is_rejected(kind: str) -> None:
    forged = token(**FORGED[kind])
    assert not await is_accepted(source(), notification(forged))
    assert not await is_accepted(source(), notification(token(), forged))
    assert not await is_accepted(source(), notification(forged, token()))


@pytest.mark.parametrize("odd", [None, 1, "", "a.b.c", "..", "é", {}, ["a"], "a" * 20_000])
async def test_malformed_token_is_rejected(odd: Any) -> None:
    assert not await is_accepted(source(), notification(odd))
    cut = token()
    assert not await is_accepted(source(), notification(cut[: len(cut) // 2]))


async def test_unsigned_token_is_rejected() -> None:
    claims = jwt.decode(token(), options={"verify_signature": False})
    for forged in (
        jwt.encode(claims, None, algorithm="none", headers={"kid": "k0"}),  # type: ignore[arg-type]
        jwt.encode(claims, "k" * 64, algorithm="HS256", headers={"kid": "k0"}),
        token().rpartition(".")[0] + ".",
    ):
        assert not await is_accepted(source(), notification(forged))


async def test_resource_data_without_a_token_is_rejected() -> None:
    assert not await is_accepted(source(), notification())
    assert await is_accepted(source(), notification(rich=False))


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_resource_data_in_any_notification_of_a_delivery_needs_a_token(position: int) -> None:
    elements = [element(rich=number == position) for number in range(3)]
    assert not await is_accepted(source(), delivery_of(elements))
    assert await is_accepted(source(), delivery_of(elements, token()))


async def test_nothing_is_fetched_for_a_wrong_client_state() -> None:
    served = Served(published(0))
    here = source(served)
    assert not await is_accepted(here, notification(token(), state="wrong"))
    assert not await is_accepted(here, notification(token(aud=TENANT)))
    assert served.requests == []


async def test_key_that_is_not_published_is_unavailable() -> None:
    for answer in (published(1), b"{}", b"[]", b'{"keys":[1]}', b'{"keys":[{"kid":"k0","kty":"RSA"}]}', b"<html>"):
        with pytest.raises(Unavailable):
            await is_accepted(source(Served(answer)), notification(token()))


async def test_only_client_state_is_checked_without_an_app_id() -> None:
    plain = sender("microsoft-graph").source()
    assert plain.verifier is not None and not plain.fetches_certificates
    assert plain.verifier.verify(notification("not looked at"), time.time()) == 0


async def test_tokens_that_are_not_an_array_or_too_many_are_rejected() -> None:
    malformed: list[object] = ["text", {}, [token()] * 33]
    for tokens in malformed:
        body = json.loads(notification(token()).body)
        forged = Delivery.of(json.dumps({**body, "validationTokens": tokens}).encode())
        assert not await is_accepted(source(), forged)


def test_delivery_has_no_timestamp_to_check_before_the_fetch() -> None:
    verifier = source().verifier
    assert verifier is not None
    (check,) = verifier.fetching
    delivery = notification(token())
    assert check.stamp(delivery, body_of(delivery)) is None and not check.stamped
