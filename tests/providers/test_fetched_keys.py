"""Fetched keys of PayPal and Plaid: only from their own hosts, over TLS, and a failed fetch rejects nothing."""

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from oncehook import Inbox
from oncehook.concurrency.clock import Clock
from oncehook.config.configuration import read_source
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.model.receipt import Filter
from oncehook.providers import jwt
from oncehook.providers.certificates import CACHE_SECONDS, MAX_FETCHES_PER_MINUTE, Certificates, KeyRequest, fetch
from oncehook.providers.families import paypal, plaid
from oncehook.providers.source import Source
from oncehook.web.app import Service
from tests.providers.test_certificates import FAULTS, Moving
from tests.support.providers import NOW, OPTIONS, changed, pem_of, sender
from tests.support.tls_server import Behavior, Issued, TlsServer, issue, ok, pem

# -- sources that fetch ---------------------------------------------------------------------------------------------

CREDENTIALS = "5f3c1a:0123456789abcdef"


def jwk(**changes: Any) -> bytes:
    key = load_pem_private_key(sender("plaid").pair().signing.encode(), None)
    numbers = key.public_key().public_numbers()  # type: ignore[union-attr]
    x, y = (jwt.encode(number.to_bytes(32)).decode() for number in (numbers.x, numbers.y))  # type: ignore[union-attr]
    table = {
        "alg": "ES256",
        "crv": "P-256",
        "kty": "EC",
        "use": "sig",
        "kid": plaid.EXAMPLE_KEY,
        "x": x,
        "y": y,
        **changes,
    }
    return json.dumps({"key": {**table, "created_at": 1, "expired_at": None, **changes}, "request_id": "r"}).encode()


def source_of(name: str, certificates: Certificates, **changes: Any) -> Source:
    settings: dict[str, Any] = {"provider": name, "secrets": [CREDENTIALS] if name == "plaid" else [], **changes}
    settings |= {option: OPTIONS[option] for option in sender(name).provider.options}
    return Source("here", read_source("here", settings), max_body=2**20, certificates=certificates)


async def verify(source: Source, delivery: Delivery, now: float = NOW) -> int:
    assert source.verifier is not None and source.fetches_certificates
    wanted = source.verifier.key_to_fetch(delivery)
    if wanted is not None:
        await source.certificates.ensure(wanted)
    return source.verifier.verify(delivery, now)


class Served:
    """The hosts of the providers: they return one answer and record the requests."""

    def __init__(self, answer: bytes | OSError) -> None:
        self.answer = answer
        self.requests: list[tuple[str, bytes]] = []

    async def __call__(self, url: str, content: bytes = b"") -> bytes:
        self.requests.append((url, content))
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


ANSWERS: dict[str, Callable[[], bytes]] = {"paypal": pem_of, "plaid": jwk}
both = pytest.mark.parametrize("name", ANSWERS)


@pytest.mark.anyio
@both
async def test_key_is_fetched_once_and_then_cached(name: str) -> None:
    served = Served(ANSWERS[name]())
    source = source_of(name, Certificates(fetch=served))
    for _ in range(3):
        assert await verify(source, sender(name).compose()) == 0
    assert len(served.requests) == 1


def test_plaid_key_request_has_the_credentials_and_the_key_name_of_the_token() -> None:
    for sandbox, host in ((False, "production.plaid.com"), (True, "sandbox.plaid.com")):
        source = source_of("plaid", Certificates(), sandbox=sandbox)
        assert source.verifier is not None
        wanted = source.verifier.key_to_fetch(sender("plaid").compose())
        assert isinstance(wanted, KeyRequest) and wanted.address == f"https://{host}/webhook_verification_key/get"
        expected = {"client_id": "5f3c1a", "secret": "0123456789abcdef", "key_id": plaid.EXAMPLE_KEY}
        assert json.loads(wanted.content) == expected and "0123456789" not in repr(wanted)


def test_paypal_certificate_is_requested_from_the_address_in_the_header() -> None:
    source = source_of("paypal", Certificates())
    assert source.verifier is not None
    delivery = sender("paypal").compose()
    assert source.verifier.key_to_fetch(delivery) == paypal.EXAMPLE_CERTIFICATE
    elsewhere = changed(delivery, {**delivery.headers, paypal.CERTIFICATE: b"https://evil.example/x.pem"})
    assert source.verifier.key_to_fetch(elsewhere) is None
    with pytest.raises(Rejected):
        source.verifier.verify(elsewhere, NOW)


@both
def test_nothing_is_fetched_for_a_delivery_that_could_never_verify(name: str) -> None:
    source = source_of(name, Certificates())
    assert source.verifier is not None
    delivery = sender(name).compose()
    header = (sender(name).header or "").lower().encode()
    hopeless = [changed(delivery, {**delivery.headers, header: b""}) if name == "plaid" else changed(delivery, {})]
    if name == "plaid":  # the token covers another body
        hopeless.append(changed(delivery, body=delivery.body + b" "))
    else:
        hopeless.append(changed(delivery, {**delivery.headers, paypal.ALGORITHM: b"SHA1withRSA"}))
    for one in hopeless:
        assert source.verifier.key_to_fetch(one) is None


@pytest.mark.anyio
@both
async def test_delivery_signed_with_another_key_does_not_verify(name: str) -> None:
    source = source_of(name, Certificates(fetch=Served(ANSWERS[name]())))
    with pytest.raises(Rejected):
        await verify(source, sender(name).compose(number=1))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answer",
    [
        jwk(kty="RSA"), jwk(crv="P-384"), jwk(alg="HS256"), jwk(expired_at=5), jwk(x="AAAA"), jwk(x="!"), jwk(y=7), b"",
        b"[]", b"null", b'{"key":null}', b'{"key":[]}', b"<html>", b"\xff",
    ],
    ids=lambda answer: None if len(answer) < 20 else "jwk",  # the key is random, and each process collects the tests
)  # fmt: skip
async def test_response_that_is_not_a_valid_jwk_makes_the_key_unavailable(answer: bytes) -> None:
    source = source_of("plaid", Certificates(fetch=Served(answer)))
    with pytest.raises(Unavailable):
        await verify(source, sender("plaid").compose())


@pytest.mark.anyio
@both
async def test_key_is_fetched_again_after_a_day(name: str) -> None:
    clock, served = Moving(), Served(ANSWERS[name]())
    source = source_of(name, Certificates(fetch=served, clock=clock))
    await verify(source, sender(name).compose())
    clock.at += CACHE_SECONDS - 1
    await verify(source, sender(name).compose())
    assert len(served.requests) == 1
    clock.at += 2
    await verify(source, sender(name).compose())
    assert len(served.requests) == 2


@pytest.mark.anyio
async def test_fetches_per_minute_are_limited() -> None:
    clock, served = Moving(), Served(b"x")
    known = Certificates(fetch=served, clock=clock)
    for _ in range(MAX_FETCHES_PER_MINUTE):
        await known.fetch_counted(paypal.EXAMPLE_CERTIFICATE)
    with pytest.raises(Unavailable, match="last minute"):
        await known.fetch_counted(paypal.EXAMPLE_CERTIFICATE)
    clock.at += 61
    await known.fetch_counted(paypal.EXAMPLE_CERTIFICATE)
    assert len(served.requests) == MAX_FETCHES_PER_MINUTE + 1


# -- over TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[TlsServer, ssl.SSLContext]]]:
    servers: list[TlsServer] = []
    authority: Issued = issue("an authority of this test")

    def start(behavior: Behavior | bytes, host: str) -> tuple[TlsServer, ssl.SSLContext]:
        chain = tmp_path / "chain.pem"
        chain.write_bytes(pem(*issue(host, authority)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        servers.append(TlsServer(context, behavior))
        return servers[-1], ssl.create_default_context(cadata=pem(authority[0]).decode())

    yield start
    for server in servers:
        server.stop()


HOSTS = {"paypal": "api.paypal.com", "plaid": "production.plaid.com"}


class Then(Clock):
    def now(self) -> float:
        return NOW


async def deliver(folder: Path, name: str, certificates: Certificates) -> tuple[int, int]:
    """The receiver's status for a delivery, and the number of receipts afterwards."""
    inbox = Inbox(f"sqlite:///{folder / 'inbox.db'}", worker=False, clock=Then(), certificates=certificates)
    settings = {option: OPTIONS[option] for option in sender(name).provider.options}
    inbox.source("here", provider=name, secrets=[CREDENTIALS] if name == "plaid" else [], **settings)
    delivery = sender(name).compose()
    async with (
        inbox.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=Service(inbox)), base_url="http://test") as client,
    ):
        answer = await client.post("/webhooks/here", content=delivery.body, headers=list(delivery.headers.items()))
        return answer.status_code, len(await inbox._runtime.store.receipts.find(Filter(), limit=10))


@pytest.mark.anyio
@both
async def test_delivery_is_accepted_with_the_key_of_a_real_server(
    name: str, tmp_path: Path, serve: Callable[..., tuple[TlsServer, ssl.SSLContext]]
) -> None:
    server, trusting = serve(ok(ANSWERS[name]()), HOSTS[name])
    certificates = Certificates(fetch=partial(fetch, context=trusting, dial=server.address))
    assert await deliver(tmp_path, name, certificates) == (202, 1)
    line = server.requests[0].split(b"\r\n")[0]
    if name == "plaid":
        head, _, content = server.requests[0].partition(b"\r\n\r\n")
        assert line == b"POST /webhook_verification_key/get HTTP/1.1"
        assert (
            f"content-length: {len(content)}".encode() in head.lower()
            and json.loads(content)["key_id"] == plaid.EXAMPLE_KEY
        )
    else:
        assert (
            line == b"GET " + paypal.EXAMPLE_CERTIFICATE.removeprefix("https://api.paypal.com").encode() + b" HTTP/1.1"
        )


@pytest.mark.anyio
@both
@pytest.mark.parametrize("fault", ["not found", "an error", "nothing", "not HTTP", "cut short", "a byte too much"])
async def test_failing_key_server_makes_the_receiver_answer_503(
    name: str, fault: str, tmp_path: Path, serve: Callable[..., tuple[TlsServer, ssl.SSLContext]]
) -> None:
    server, trusting = serve(FAULTS[fault], HOSTS[name])
    certificates = Certificates(fetch=partial(fetch, context=trusting, dial=server.address))
    assert await deliver(tmp_path, name, certificates) == (503, 0)


@pytest.mark.anyio
@both
async def test_key_server_with_a_wrong_certificate_or_a_redirect_makes_the_receiver_answer_503(
    name: str, tmp_path: Path, serve: Callable[..., tuple[TlsServer, ssl.SSLContext]]
) -> None:
    server, trusting = serve(ok(ANSWERS[name]()), "evil.example")
    certificates = Certificates(fetch=partial(fetch, context=trusting, dial=server.address))
    assert await deliver(tmp_path, name, certificates) == (503, 0) and server.requests == []
    onward = b"HTTP/1.1 302 Found\r\nLocation: https://evil.example/\r\nContent-Length: 0\r\n\r\n"
    server, trusting = serve(onward, HOSTS[name])
    certificates = Certificates(fetch=partial(fetch, context=trusting, dial=server.address))
    (tmp_path / "again").mkdir()
    assert await deliver(tmp_path / "again", name, certificates) == (503, 0)


def test_pinned_key_verifies_only_tokens_that_name_it() -> None:
    one = sender("plaid")
    named = json.dumps(json.loads(jwk())["key"])
    other = json.dumps(json.loads(jwk(kid="another"))["key"])
    nameless = json.dumps({k: v for k, v in json.loads(jwk())["key"].items() if k != "kid"})
    for secret, accepted in ((named, True), (nameless, True), (other, False)):
        source = one.source(secret)
        assert source.verifier is not None and not source.fetches_certificates
        if accepted:
            assert source.verifier.verify(one.compose(), NOW) == 0
        else:
            with pytest.raises(Rejected):
                source.verifier.verify(one.compose(), NOW)
    assert base64.b64decode(one.pair().verifying)
