"""Keys that must be fetched, of PayPal and Plaid: from their own hosts alone, over TLS, and no fetch is a verdict."""

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
from oncehook.providers.certificates import CACHE_SECONDS, MOST_A_MINUTE, Certificates, KeyRequest, fetch
from oncehook.providers.families import paypal, plaid
from oncehook.providers.source import Source
from oncehook.web.app import Service
from tests.providers.test_certificates import FAULTS, Moving
from tests.support.providers import NOW, OPTIONS, changed, pem_of, sender
from tests.support.tls_server import Behaviour, Issued, TlsServer, issue, ok, pem

PAYPAL_PATH = "/v1/notifications/certs/CERT-360caa42-fca2a594-1d93a270"
SANDBOX = "https://api.sandbox.paypal.com" + PAYPAL_PATH
LIVE = "https://api.paypal.com" + PAYPAL_PATH
HOSTILE = [
    LIVE.replace("https", "http"), LIVE + "?x=1", LIVE + "#x", LIVE + "/..", LIVE + "\n", " " + LIVE, LIVE + "%2e",
    LIVE.replace("api.paypal.com", "api.paypal.com:443"), LIVE.replace("api.paypal.com", "api.paypal.com@evil.example"),
    LIVE.replace("api.paypal.com", "evil.example"), LIVE.replace("api.paypal.com", "api.paypal.com.evil.example"),
    LIVE.replace("api.paypal.com", "evilpaypal.com"), LIVE.replace("api.paypal.com", "www.paypal.com"),
    LIVE.replace("api.paypal.com", "user:pw@api.paypal.com"), LIVE.replace("api.paypal.com", "api.paypal.com\\@evil"),
    LIVE.replace("api.paypal.com", "API.PAYPAL.COM"), LIVE.replace("api.paypal.com", "api.paypaI.com"),
    LIVE.replace("/v1/notifications/certs", "/v1/redirect"), LIVE.replace("CERT-", "OTHER-"), LIVE + "x" * 200, "", "x",
    LIVE.replace("/certs/", "/certs/../"), LIVE.replace("api.paypal.com", "api.paypal.com."),
    "//api.paypal.com" + PAYPAL_PATH,
]  # fmt: skip


@pytest.mark.parametrize("url", HOSTILE)
def test_no_certificate_is_fetched_but_from_paypal(url: str) -> None:
    for sandbox in (False, True):
        assert paypal.certificate_url({paypal.CERTIFICATE: url.encode()}, sandbox=sandbox) is None


def test_live_and_sandbox_have_certificates_of_their_own() -> None:
    for url, sandbox in ((LIVE, False), (SANDBOX, True)):
        assert paypal.certificate_url({paypal.CERTIFICATE: url.encode()}, sandbox=sandbox) == url
        assert paypal.certificate_url({paypal.CERTIFICATE: url.encode()}, sandbox=not sandbox) is None


def test_a_header_of_paypal_cannot_be_read_as_two() -> None:
    headers = {paypal.ID: b"a", paypal.TIME: b"b"}
    assert paypal.signed_message(headers, b"", "w") == b"a|b|w|0"
    for odd in ({paypal.ID: b"a|b"}, {paypal.TIME: b"b|w"}, {paypal.ID: b""}, {paypal.TIME: b""}):
        assert paypal.signed_message({**headers, **odd}, b"", "w") is None


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
    """What the hosts would serve, and what was asked of them."""

    def __init__(self, answer: bytes | OSError) -> None:
        self.answer = answer
        self.asked: list[tuple[str, bytes]] = []

    async def __call__(self, url: str, content: bytes = b"") -> bytes:
        self.asked.append((url, content))
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


ANSWERS = {"paypal": pem_of, "plaid": jwk}
both = pytest.mark.parametrize("name", ANSWERS)


@pytest.mark.anyio
@both
async def test_a_key_is_fetched_once_and_then_kept(name: str) -> None:
    served = Served(ANSWERS[name]())
    source = source_of(name, Certificates(fetch=served))
    for _ in range(3):
        assert await verify(source, sender(name).compose()) == 0
    assert len(served.asked) == 1


def test_plaid_is_asked_with_the_credentials_for_the_key_that_the_token_names() -> None:
    for sandbox, host in ((False, "production.plaid.com"), (True, "sandbox.plaid.com")):
        source = source_of("plaid", Certificates(), sandbox=sandbox)
        assert source.verifier is not None
        wanted = source.verifier.key_to_fetch(sender("plaid").compose())
        assert isinstance(wanted, KeyRequest) and wanted.address == f"https://{host}/webhook_verification_key/get"
        expected = {"client_id": "5f3c1a", "secret": "0123456789abcdef", "key_id": plaid.EXAMPLE_KEY}
        assert json.loads(wanted.content) == expected and "0123456789" not in repr(wanted)


def test_paypal_is_asked_for_the_certificate_that_its_header_names() -> None:
    source = source_of("paypal", Certificates())
    assert source.verifier is not None
    delivery = sender("paypal").compose()
    assert source.verifier.key_to_fetch(delivery) == paypal.EXAMPLE_CERTIFICATE
    elsewhere = changed(delivery, {**delivery.headers, paypal.CERTIFICATE: b"https://evil.example/x.pem"})
    assert source.verifier.key_to_fetch(elsewhere) is None
    with pytest.raises(Rejected):
        source.verifier.verify(elsewhere, NOW)


@both
def test_nothing_is_fetched_for_what_could_never_verify(name: str) -> None:
    source = source_of(name, Certificates())
    assert source.verifier is not None
    delivery = sender(name).compose()
    header = (sender(name).header or "").lower().encode()
    hopeless = [changed(delivery, {**delivery.headers, header: b""}) if name == "plaid" else changed(delivery, {})]
    if name == "plaid":  # the token is not of this body
        hopeless.append(changed(delivery, body=delivery.body + b" "))
    else:
        hopeless.append(changed(delivery, {**delivery.headers, paypal.ALGORITHM: b"SHA1withRSA"}))
    for one in hopeless:
        assert source.verifier.key_to_fetch(one) is None


@pytest.mark.anyio
@both
async def test_another_key_than_the_one_that_signed_does_not_verify(name: str) -> None:
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
)  # fmt: skip
async def test_what_is_not_a_key_of_plaid_is_unavailable(answer: bytes) -> None:
    source = source_of("plaid", Certificates(fetch=Served(answer)))
    with pytest.raises(Unavailable):
        await verify(source, sender("plaid").compose())


@pytest.mark.anyio
@both
async def test_a_key_is_fetched_anew_after_a_day(name: str) -> None:
    clock, served = Moving(), Served(ANSWERS[name]())
    source = source_of(name, Certificates(fetch=served, clock=clock))
    await verify(source, sender(name).compose())
    clock.at += CACHE_SECONDS - 1
    await verify(source, sender(name).compose())
    assert len(served.asked) == 1
    clock.at += 2
    await verify(source, sender(name).compose())
    assert len(served.asked) == 2


@pytest.mark.anyio
async def test_so_much_a_minute_is_fetched_and_no_more() -> None:
    clock, served = Moving(), Served(b"x")
    known = Certificates(fetch=served, clock=clock)
    for _ in range(MOST_A_MINUTE):
        await known.fetch_counted(LIVE)
    with pytest.raises(Unavailable, match="last minute"):
        await known.fetch_counted(LIVE)
    clock.at += 61
    await known.fetch_counted(LIVE)
    assert len(served.asked) == MOST_A_MINUTE + 1


# -- over TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[TlsServer, ssl.SSLContext]]]:
    servers: list[TlsServer] = []
    authority: Issued = issue("an authority of this test")

    def start(behaviour: Behaviour | bytes, host: str) -> tuple[TlsServer, ssl.SSLContext]:
        chain = tmp_path / "chain.pem"
        chain.write_bytes(pem(*issue(host, authority)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        servers.append(TlsServer(context, behaviour))
        return servers[-1], ssl.create_default_context(cadata=pem(authority[0]).decode())

    yield start
    for server in servers:
        server.stop()


HOSTS = {"paypal": "api.paypal.com", "plaid": "production.plaid.com"}


class Then(Clock):
    def now(self) -> float:
        return NOW


async def deliver(folder: Path, name: str, certificates: Certificates) -> tuple[int, int]:
    """The status of a delivery at the door, and how many receipts there are then."""
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
async def test_a_delivery_is_accepted_with_the_key_of_a_real_server(
    name: str, tmp_path: Path, serve: Callable[..., tuple[TlsServer, ssl.SSLContext]]
) -> None:
    server, trusting = serve(ok(ANSWERS[name]()), HOSTS[name])
    certificates = Certificates(fetch=partial(fetch, context=trusting, dial=server.address))
    assert await deliver(tmp_path, name, certificates) == (202, 1)
    line = server.asked[0].split(b"\r\n")[0]
    if name == "plaid":
        head, _, content = server.asked[0].partition(b"\r\n\r\n")
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
async def test_a_server_that_fails_is_503_and_no_verdict(
    name: str, fault: str, tmp_path: Path, serve: Callable[..., tuple[TlsServer, ssl.SSLContext]]
) -> None:
    server, trusting = serve(FAULTS[fault], HOSTS[name])
    certificates = Certificates(fetch=partial(fetch, context=trusting, dial=server.address))
    assert await deliver(tmp_path, name, certificates) == (503, 0)


@pytest.mark.anyio
@both
async def test_a_server_of_another_name_or_one_that_sends_us_on_is_503(
    name: str, tmp_path: Path, serve: Callable[..., tuple[TlsServer, ssl.SSLContext]]
) -> None:
    server, trusting = serve(ok(ANSWERS[name]()), "evil.example")
    certificates = Certificates(fetch=partial(fetch, context=trusting, dial=server.address))
    assert await deliver(tmp_path, name, certificates) == (503, 0) and server.asked == []
    onward = b"HTTP/1.1 302 Found\r\nLocation: https://evil.example/\r\nContent-Length: 0\r\n\r\n"
    server, trusting = serve(onward, HOSTS[name])
    certificates = Certificates(fetch=partial(fetch, context=trusting, dial=server.address))
    (tmp_path / "again").mkdir()
    assert await deliver(tmp_path / "again", name, certificates) == (503, 0)


def test_a_key_that_is_given_is_for_the_tokens_of_its_name() -> None:
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
