"""The address that a sender used, as reported by a listed proxy."""

import asyncio
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from oncehook import Inbox
from oncehook.config.configuration import load, read_source
from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.model.values import networks
from oncehook.operations.doctor import diagnose
from oncehook.providers.definition import built_in
from oncehook.providers.forwarded_address import Proxies
from oncehook.providers.sample import Sample, compose
from oncehook.providers.source import Source
from oncehook.testing import deliver
from tests.support.events import Rows
from tests.support.mounting import uvicorn_client
from tests.support.providers import NOW, sender
from tests.support.rejections import SIGN_THE_ADDRESS

PROXY, STRANGER = "10.1.2.3", "203.0.113.9"
PROXIES = Proxies(networks(["10.0.0.0/8", "2001:db8::7"]))
PATH = "/webhooks/here"
PROXY_HEADERS = {"x-forwarded-proto": "https", "x-forwarded-host": "hooks.example.com"}
ADDRESS = "https://hooks.example.com" + PATH


def scope(peer: str | None = PROXY, path: str = PATH, **more: Any) -> dict[str, Any]:
    client = None if peer is None else (peer, 40000)
    return {"scheme": "http", "path": path, "raw_path": path.encode(), "client": client, **more}


def address(headers: dict[str, str], **more: Any) -> str:
    return PROXIES.address(scope(**more), Delivery.of(b"", headers))


# -- listed and unlisted peers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7", "2001:DB8:0::7"])
def test_address_of_a_listed_proxy_is_used(peer: str) -> None:
    assert address(PROXY_HEADERS, peer=peer) == ADDRESS


@pytest.mark.parametrize("peer", [None, "", "203.0.113.9", "::ffff:203.0.113.9", "2001:db8::8", "testclient", "10.1.2"])
def test_address_of_an_unlisted_peer_is_ignored(peer: str | None) -> None:
    headers_of_proxy = {
        **PROXY_HEADERS,
        "forwarded": "proto=https;host=hooks.example.com",
        "x-forwarded-for": "10.1.2.3",
        "host": "x.example",
    }
    assert address(headers_of_proxy, peer=peer) == ""


# -- headers of proxies ---------------------------------------------------------------------------------------------

SCHEMES = ["http", "https"]
HOSTS = {
    "by the proxy": {"x-forwarded-host": "hooks.example.com", "host": "10.0.0.2:8000"},
    "passed on": {"host": "hooks.example.com"},
}
PORTS = {"none": (None, ""), "usual": ("usual", ""), "other": ("8443", ":8443")}
PREFIXES = {
    "none": ({}, ""),
    "headers_of_proxy": ({"x-forwarded-prefix": "/api/v1"}, "/api/v1"),
    "bare": ({"x-forwarded-prefix": "/"}, ""),
}
QUERIES = ["", "b=2&a=1", "a=1&b=2", "x=%2Fa%3Ab&y"]
MATRIX = list(product(SCHEMES, HOSTS, PORTS, PREFIXES, QUERIES))


def through_proxy(scheme: str, host: str, port: str, prefix: str) -> tuple[dict[str, str], str]:
    """The headers of the proxy, and the address that they describe."""
    number, shown = PORTS[port]
    headers = {**HOSTS[host], "x-forwarded-proto": scheme, **PREFIXES[prefix][0]}
    if number is not None:
        headers["x-forwarded-port"] = {"http": "80", "https": "443"}[scheme] if number == "usual" else number
    return headers, f"{scheme}://hooks.example.com{shown}{PREFIXES[prefix][1]}{PATH}"


def signed(provider: str, url: str, *, now: float = NOW) -> Sample:
    one = sender(provider)
    return compose(one.provider, one.types[0], one.pair().signing, now=now, settings=SourceSettings(public_url=url))


def make_source(provider: str, proxies: Proxies | None = PROXIES, **settings: Any) -> Source:
    values = {"provider": provider, "secrets": [sender(provider).pair().verifying], **settings}
    return Source("here", read_source("here", values), max_body=2**20, proxies=proxies)


def accepts(
    source: Source, sample: Sample, headers_of_proxy: dict[str, str], query: str = "", peer: str = PROXY
) -> bool:
    delivery = Delivery.of(sample.body, {**sample.headers, **headers_of_proxy})
    delivery.query = query.encode()
    if source.proxies is not None:
        delivery.address = source.proxies.address(scope(peer), delivery)
    assert source.verifier is not None
    try:
        return source.verifier.verify(delivery, NOW) == 0
    except Rejected as error:
        assert error.reason == "bad_signature"
        return False


@pytest.mark.parametrize("provider", SIGN_THE_ADDRESS)
def test_delivery_is_accepted_only_if_its_signature_covers_the_address_that_the_proxy_reports(provider: str) -> None:
    source = make_source(provider)
    for scheme, host, port, prefix, query in MATRIX:
        headers_of_proxy, meant = through_proxy(scheme, host, port, prefix)
        url = meant + (f"?{query}" if query else "")
        assert accepts(source, signed(provider, url), headers_of_proxy, query), (headers_of_proxy, url)
        assert not accepts(source, signed(provider, url), headers_of_proxy, query, peer=STRANGER)
        others = [
            url.replace("://", "s://" if scheme == "http" else "://www.", 1),
            url.replace(PATH, PATH + "/"),
            url.replace("hooks.example.com", "hooks.example.com:1"),
            url + ("&z=1" if query else "?z=1"),
        ]
        for other in others:
            assert not accepts(source, signed(provider, other), headers_of_proxy, query), (headers_of_proxy, other)


def test_query_keeps_the_order_of_the_request() -> None:
    source = make_source("square")
    assert not accepts(source, signed("square", f"{ADDRESS}?a=1&b=2"), PROXY_HEADERS, "b=2&a=1")


@pytest.mark.parametrize("provider", SIGN_THE_ADDRESS)
def test_public_url_takes_precedence_over_the_address_of_a_listed_proxy(provider: str) -> None:
    source = make_source(provider, public_url="https://registered.example/hook")
    assert source.proxies is None
    assert accepts(source, signed(provider, "https://registered.example/hook"), PROXY_HEADERS)
    assert not accepts(source, signed(provider, ADDRESS), PROXY_HEADERS)


SAYINGS = {
    "the standard header": ({"forwarded": "for=1.2.3.4;proto=https;host=a.example"}, "https://a.example"),
    "quoted": ({"forwarded": 'Host="a.example:8443"; Proto=HTTPS'}, "https://a.example:8443"),
    "the last element is the peer's own": (
        {"forwarded": "proto=http;host=evil.example, for=1.2.3.4;proto=https;host=a.example"},
        "https://a.example",
    ),
    "the last value is the peer's own": (
        {"x-forwarded-host": "evil.example, a.example", "x-forwarded-proto": "http, https"},
        "https://a.example",
    ),
    "both agree": ({"forwarded": "proto=https;host=hooks.example.com", **PROXY_HEADERS}, "https://hooks.example.com"),
    "the standard one names only the sender": (
        {"forwarded": "for=1.2.3.4", **PROXY_HEADERS},
        "https://hooks.example.com",
    ),
    "nothing but Host": ({"host": "a.example"}, "http://a.example"),
    "IPv6": ({"x-forwarded-host": "[2001:db8::1]:8443", "x-forwarded-proto": "https"}, "https://[2001:db8::1]:8443"),
    "the port apart": ({"host": "a.example:8000", "x-forwarded-port": "8443"}, "http://a.example:8443"),
}


@pytest.mark.parametrize("case", SAYINGS)
def test_address_is_read_from_every_header_that_proxies_use(case: str) -> None:
    headers, origin = SAYINGS[case]
    assert address(headers) == origin + PATH


DOUBTFUL = {
    "two headers that disagree": {"forwarded": "proto=https;host=evil.example", **PROXY_HEADERS},
    "an unknown scheme": {**PROXY_HEADERS, "x-forwarded-proto": "javascript"},
    "a host with a path": {**PROXY_HEADERS, "x-forwarded-host": "hooks.example.com/x"},
    "a host with a password": {**PROXY_HEADERS, "x-forwarded-host": "a:b@hooks.example.com"},
    "a host with a blank": {**PROXY_HEADERS, "x-forwarded-host": "hooks.example.com x"},
    "a long host": {**PROXY_HEADERS, "x-forwarded-host": "a" * 254},
    "no host": {"x-forwarded-proto": "https"},
    "port 0": {**PROXY_HEADERS, "x-forwarded-port": "0"},
    "port 65536": {**PROXY_HEADERS, "x-forwarded-port": "65536"},
    "a port of other digits": {**PROXY_HEADERS, "x-forwarded-port": "²"},
    "a port in the host that is none": {**PROXY_HEADERS, "x-forwarded-host": "hooks.example.com:99999"},
    "a prefix without a slash": {**PROXY_HEADERS, "x-forwarded-prefix": "api"},
    "a prefix that climbs": {**PROXY_HEADERS, "x-forwarded-prefix": "/a/.."},
    "a prefix with a query": {**PROXY_HEADERS, "x-forwarded-prefix": "/a?b"},
    "a prefix of another host": {**PROXY_HEADERS, "x-forwarded-prefix": "//evil.example"},
    "a standard header that is none": {"forwarded": "host=a.example;;=", "host": "a.example"},
    "a host twice in one element": {"forwarded": "host=a.example;host=b.example"},
    "an open quote": {"forwarded": 'host="a.example'},
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_ambiguous_or_malformed_headers_give_no_address(case: str) -> None:
    assert address(DOUBTFUL[case]) == ""


def test_repeated_host_header_gives_no_address() -> None:
    delivery = Delivery(b"", [(b"host", b"a.example"), (b"host", b"b.example")])
    assert PROXIES.address(scope(), delivery) == ""


@pytest.mark.parametrize("name", ["x-forwarded-host", "x-forwarded-proto", "forwarded"])
def test_repeated_forwarded_header_gives_no_address(name: str) -> None:
    pairs = [(one.encode(), text.encode()) for one, text in PROXY_HEADERS.items()]
    assert PROXIES.address(scope(), Delivery(b"", pairs)) != ""
    assert PROXIES.address(scope(), Delivery(b"", [*pairs, (name.encode(), b"a"), (name.encode(), b"a")])) == ""


def test_path_is_the_one_that_the_sender_sent() -> None:
    assert address(PROXY_HEADERS, path="/a", raw_path=b"/%61?x=1") == "https://hooks.example.com/%61"
    assert address(PROXY_HEADERS, path="/ä b", raw_path=None) == "https://hooks.example.com/%C3%A4%20b"
    assert address(PROXY_HEADERS, path="/a", raw_path=b"/a b") == ""


def test_prefix_that_the_server_also_knows_is_added_once() -> None:
    headers_of_proxy = {**PROXY_HEADERS, "x-forwarded-prefix": "/api"}
    assert (
        address(headers_of_proxy, path="/api/hooks/here", root_path="/api")
        == "https://hooks.example.com/api/hooks/here"
    )
    mounted = {"root_path": "/api/hooks", "app_root_path": "/api"}
    assert address(headers_of_proxy, path="/api/hooks/here", **mounted) == "https://hooks.example.com/api/hooks/here"
    of_that_name = {"root_path": "/api", "app_root_path": ""}
    assert address(headers_of_proxy, path="/api/here", **of_that_name) == "https://hooks.example.com/api/api/here"


# -- the settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "headers_of_proxy"),
    [
        (["10.0.0.0/33"], "'10.0.0.0/33' is not an address such as 10.0.0.5"),
        (["10.0.0.1/8"], "is not an address such as 10.0.0.5 or a network such as 10.0.0.0/8"),
        (["proxy.internal"], "'proxy.internal' is not an address"),
        (["*"], "is not an address"),
        (["0.0.0.0/0"], "'0.0.0.0/0' contains every address: list your own machines"),
        (["::/0"], "contains every address"),
        ("10.0.0.1", "expected a list of strings"),
        ([1], "expected a list of strings"),
    ],
)
def test_invalid_list_of_proxies_is_a_configuration_error(value: Any, headers_of_proxy: str) -> None:
    with pytest.raises(ConfigurationError, match=f"trusted_proxies is .*{headers_of_proxy}"):
        Inbox("sqlite:///:memory:", trusted_proxies=value)


def test_environment_variable_holds_a_list_with_commas() -> None:
    found = load(
        None, {"ONCEHOOK_TRUSTED_PROXIES": "10.0.0.1, 192.168.0.0/16,", "ONCEHOOK_EMAIL_SUPPRESS": "complaint"}
    )
    assert found.settings.trusted_proxies == networks(["10.0.0.1", "192.168.0.0/16"])
    assert found.settings.email_suppress == ("complaint",)


@pytest.mark.parametrize("provider", SIGN_THE_ADDRESS)
def test_public_url_is_required_without_trusted_proxies(provider: str) -> None:
    with pytest.raises(ConfigurationError, match=r"public_url is missing: .* trusted_proxies"):
        make_source(provider, Proxies(()))
    with pytest.raises(ConfigurationError, match="public_url is missing"):
        make_source(provider, None)


def test_address_is_not_determined_if_the_signature_does_not_cover_it() -> None:
    for name in ("stripe", "github"):
        assert make_source(name).proxies is None
    assert make_source("square", verify="none").proxies is None


# -- through the receiver -------------------------------------------------------------------------------------------


@pytest.fixture
def make_proxied(make_inbox: Callable[..., Inbox]) -> Callable[..., Inbox]:
    def make(*proxies: str) -> Inbox:
        inbox = make_inbox(trusted_proxies=list(proxies))
        for name in ("square", "mandrill"):
            inbox.source(name, secrets=["a secret"])
        return inbox

    return make


def signed_now(provider: str, url: str) -> Sample:
    definition = built_in(provider)
    type_, settings = definition.examples[0].type.replace("*", "paid"), SourceSettings(public_url=url)
    return compose(definition, type_, "a secret", now=time.time(), settings=settings)


@pytest.mark.anyio
async def test_delivery_is_accepted_by_an_inbox_mounted_in_fastapi_behind_a_listed_proxy(
    make_proxied: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_proxied("127.0.0.1")
    app = FastAPI(lifespan=inbox.lifespan)
    app.mount("/deep/webhooks", inbox)
    headers_of_proxy = {**PROXY_HEADERS, "X-Forwarded-Prefix": "/api"}
    url = "https://hooks.example.com/api/deep/webhooks/square?a=1"
    sent = signed_now("square", url)

    async def post(client: httpx.AsyncClient, headers: dict[str, str], **more: str) -> int:
        given = {**sent.headers, **headers, **more}
        return (await client.post("/deep/webhooks/square?a=1", content=sent.body, headers=given)).status_code

    async with uvicorn_client(app, proxy_headers=False) as client:
        assert await post(client, headers_of_proxy) == 202
        assert await post(client, headers_of_proxy) == 200
        assert await post(client, headers_of_proxy, **{"X-Forwarded-Host": "other.example"}) == 401
        assert await post(client, PROXY_HEADERS) == 401
        assert (await client.head("/deep/webhooks/mandrill")).status_code == 200  # no address is needed for that
    assert rows("SELECT source FROM webhook_receipts") == [("square",)]


@pytest.mark.anyio
async def test_prefix_that_the_server_adds_to_the_path_is_not_repeated(make_proxied: Callable[..., Inbox]) -> None:
    inbox = make_proxied("127.0.0.1")
    app = FastAPI(lifespan=inbox.lifespan)
    app.mount("/webhooks", inbox)
    sent = signed_now("square", "https://hooks.example.com/api/webhooks/square")
    async with uvicorn_client(app, proxy_headers=False, root_path="/api") as client:
        for more in ({}, {"X-Forwarded-Prefix": "/api"}):
            given = {**sent.headers, **PROXY_HEADERS, **more}
            assert (await client.post("/webhooks/square", content=sent.body, headers=given)).is_success


@pytest.mark.anyio
async def test_doctor_explains_the_rejection_of_a_spoofed_address(
    make_proxied: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_proxied("10.0.0.0/8")
    sent = signed_now("square", "https://hooks.example.com/square")
    spoofed = {
        **PROXY_HEADERS,
        "X-Forwarded-For": "10.0.0.1",
        "Forwarded": "for=10.0.0.1;proto=https;host=hooks.example.com",
    }
    async with uvicorn_client(inbox, proxy_headers=False) as client:
        answer = await client.post("/square", content=sent.body, headers={**sent.headers, **spoofed})
        assert answer.status_code == 401 and "trusted_proxies" not in answer.text
        direct = signed_now("square", f"{client.base_url}/square")
        assert (await client.post("/square", content=direct.body, headers=direct.headers)).status_code == 401
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]
    source = inbox._runtime.sources["square"]
    (finding,) = await diagnosed(inbox, source)
    assert finding.cause == "no address" and "trusted_proxies" in finding.remedy


async def diagnosed(inbox: Inbox, source: Source) -> list[Any]:
    async with inbox.lifespan():
        (newest, *_) = await inbox._runtime.store.rejections.find(source.name, limit=1)
        return diagnose(newest, source)


@pytest.mark.anyio
async def test_doctor_names_the_wrong_address_that_a_proxy_reports(make_proxied: Callable[..., Inbox]) -> None:
    inbox = make_proxied("127.0.0.1")
    sent = signed_now("square", "https://hooks.example.com/square")
    async with uvicorn_client(inbox, proxy_headers=False) as client:
        headers_of_proxy = {**PROXY_HEADERS, "x-forwarded-proto": "http"}
        answer = await client.post("/square", content=sent.body, headers={**sent.headers, **headers_of_proxy})
        assert answer.status_code == 401
    (finding,) = await diagnosed(inbox, inbox._runtime.sources["square"])
    assert finding.cause == "address" and "with https in place of http" in finding.shows


@pytest.mark.anyio
async def test_deliver_signs_for_a_source_behind_a_proxy(make_proxied: Callable[..., Inbox]) -> None:
    inbox = make_proxied("10.0.0.0/8")
    async with inbox.lifespan():
        answers = await asyncio.gather(*(deliver(inbox, name) for name in ("square", "mandrill")))
        assert [answer.status for answer in answers] == [202, 202]
        assert (await deliver(inbox, "square", tampered=True)).status == 401
