"""Handshakes with a signed response: no definition reads a signed challenge as an event."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urlencode

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncehook import Inbox
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.providers.certificates import Certificates
from oncehook.providers.definition import Handshake, Provider, built_in, built_in_names, read_provider
from oncehook.providers.handshake import HandshakeHost, answer
from oncehook.providers.source import Source
from oncehook.providers.template import Body
from tests.support.events import Rows
from tests.support.mounting import uvicorn_client
from tests.support.providers import sender
from tests.support.serve import served

KEYED = [name for name in built_in_names() if any(one.is_keyed for one in built_in(name).handshakes)]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
JSON_WORDS = ["null", "true", "false", "0", "-0", "1e999", "7e999999", "-1E-400"]
numbers = st.from_regex(r"-?[0-9]{1,20}([eE]-?[0-9]{1,8})?", fullmatch=True)
words = (
    st.text(LETTERS, min_size=1, max_size=100)
    | st.text("0123456789abcdef", min_size=20, max_size=32)
    | st.sampled_from([*JSON_WORDS, "NaN", "Infinity", "-Infinity"])
    | numbers
)


def keyed_of(provider: Provider) -> Handshake:
    return next(one for one in provider.handshakes if one.is_keyed)


def challenge(handshake: Handshake, word: str) -> Delivery:
    """The request of a handshake with this challenge."""
    kind, _, name = handshake.echo.partition(":")
    if kind == "query":
        return Delivery(b"", method=handshake.method, query=urlencode({name: word}).encode())
    body = f'{{"event":"endpoint.url_validation","payload":{{"plainToken":"{word}"}}}}'
    return Delivery(body.encode(), method=handshake.method)


def is_answered(source: Source, word: str) -> bool:
    handshake = keyed_of(source.provider)
    delivery = challenge(handshake, word)
    host = source.handshake_host(lambda secret: None)
    body = Body(delivery, source.provider.sends_form)
    try:
        asyncio.run(answer(handshake, delivery, body, HandshakeHost(Certificates(), host.keys)))
    except Rejected:
        return False
    return True


def events_that_are(source: Source, word: str) -> list[Delivery]:
    """Every delivery whose signed message is this text."""
    json = {b"content-type": b"application/json"}
    plain = [Delivery(word.encode(), headers.items()) for headers in ({}, json)]
    if source.provider.form_field is None:
        return plain
    form = [(b"content-type", b"application/x-www-form-urlencoded")]
    return [*plain, Delivery(urlencode({source.provider.form_field: word}).encode(), form)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", KEYED)
@settings(max_examples=300, deadline=None, database=None)
@example(word="1e999")
@given(word=words)
def test_signed_challenge_is_never_readable_as_an_event(name: str, word: str) -> None:
    source = sender(name).source()
    if is_answered(source, word):
        for delivery in events_that_are(source, word):
            with pytest.raises(Rejected, match="malformed"):
                source.parse(delivery)


@pytest.mark.parametrize("name", KEYED)
@pytest.mark.parametrize("word", [*JSON_WORDS, "12345", "3e400", "[]", "{}", '"a"', "1.5"])
def test_json_scalar_is_neither_signed_nor_read(name: str, word: str) -> None:
    source = sender(name).source()
    assert not is_answered(source, word)
    if not re.fullmatch(r"\[\]|\{\}", word):
        for delivery in events_that_are(source, word):
            with pytest.raises(Rejected, match="malformed"):
                source.parse(delivery)


def test_every_provider_with_a_keyed_handshake_is_tested() -> None:
    assert KEYED == ["braintree", "x", "zoom"]


TEMPLATES = ["{body:id}", "{timestamp}{body}", "{header:x-id}{body}", "v0{body}"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_definition_whose_signed_message_could_be_a_challenge_is_an_error(template: str) -> None:
    signature = {"algorithm": "hmac-sha256", "header": "x-signature", "template": template}
    handshake = {"kind": "crc", "method": "GET", "when": {"query:crc": "*"}, "echo": "query:crc"}
    table = {
        "signatures": [signature],
        "handshakes": [handshake],
        "event": {"id": "id", "type": "type"},
        "timestamp": {"header": "x-time"},
    }
    if "{timestamp}" not in template:
        del table["timestamp"]
    with pytest.raises(ConfigurationError, match="`template` must be"):
        read_provider("ours", table, "providers.ours")
    read_provider("ours", {**table, "handshakes": []}, "providers.ours")


# -- over HTTP ------------------------------------------------------------------------------------------------------

Running = Callable[[Inbox], AbstractAsyncContextManager[httpx.AsyncClient]]


@asynccontextmanager
async def by_serve(inbox: Inbox) -> AsyncIterator[httpx.AsyncClient]:
    async with served(inbox) as port, httpx.AsyncClient(verify=False, base_url=f"http://127.0.0.1:{port}") as client:
        yield client


@asynccontextmanager
async def mounted(inbox: Inbox) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI(lifespan=inbox.lifespan)
    app.mount("/webhooks", inbox)
    async with uvicorn_client(app) as client:
        yield client


@pytest.mark.anyio
@pytest.mark.parametrize("start", [by_serve, mounted])
async def test_challenge_that_is_a_huge_number_makes_no_event(
    make_inbox: Callable[..., Inbox], rows: Rows, start: Running
) -> None:
    inbox = make_inbox()
    inbox.source("x", secrets=[sender("x").pair().verifying])
    async with start(inbox) as client:
        for word in ("1e999", "7e400", "1e5", "null", "word"):
            response = await client.get("/webhooks/x", params={"crc_token": word})
            token = response.json().get("response_token", "sha256=")
            assert response.status_code == (200 if word == "word" else 400)
            headers = {"Content-Type": "application/json", "x-twitter-webhooks-signature": token}
            forged = await client.post("/webhooks/x", content=word, headers=headers)
            assert forged.status_code == (400 if word == "word" else 401)
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]
