"""The handshakes of each provider: exact responses, no receipt, and no way to obtain a signature or a secret."""

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Unavailable
from oncehook.providers.certificates import Certificates
from oncehook.providers.handshake import HandshakeHost, kind_of, locate
from oncehook.providers.handshake import answer as respond
from oncehook.providers.sign import sign
from oncehook.providers.source import MAX_OFFERS_PER_MINUTE
from tests.support.providers import NOW, OPTIONS, body_of, sender
from tests.support.receiver import serving_handshakes

pytestmark = pytest.mark.anyio


def settings(name: str, **changes: Any) -> dict[str, Any]:
    one = sender(name)
    given = {option: OPTIONS[option] for option in one.provider.options}
    return {"provider": name, "secrets": [one.pair().verifying], **given, **changes}


def signed(name: str, body: Any, **headers: str) -> dict[str, Any]:
    """A signed request of this provider with this body."""
    one = sender(name)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **headers}
    found, content = sign(one.provider, content, one.pair().signing, headers=given, now=NOW, settings=one.settings())
    return {"content": content, "headers": found}


def key(name: str) -> bytes:
    return sender(name).pair().signing.encode()


# -- challenges that are sent back ----------------------------------------------------------------------------------

HUB = {"hub.mode": "subscribe", "hub.challenge": "1158201444", "hub.verify_token": "a token of the test"}


async def test_meta_challenge_is_sent_back_if_it_repeats_the_verify_token(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, here=settings("meta")) as client:
        answer = await client.get("/webhooks/here", params=HUB)
        assert (answer.status_code, answer.text) == (200, "1158201444")
        assert answer.headers["content-type"].startswith("text/plain")
        for token in ("", "a token of the tes", "a token of the test ", "ä"):
            rejected = await client.get("/webhooks/here", params={**HUB, "hub.verify_token": token})
            assert rejected.status_code == 401 and "1158201444" not in rejected.text
        twice = urlencode([*HUB.items(), ("hub.verify_token", "a token of the test")])
        assert (await client.get(f"/webhooks/here?{twice}")).status_code == 401
        for mode in ("unsubscribe", ""):
            assert (await client.get("/webhooks/here", params={**HUB, "hub.mode": mode})).status_code == 405


async def test_meta_verify_token_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_TEST", "from the environment")
    async with serving_handshakes(tmp_path, here=settings("meta", verify_token="env:OF_A_TEST")) as client:
        answer = await client.get("/webhooks/here", params={**HUB, "hub.verify_token": "from the environment"})
        assert answer.text == "1158201444"


async def test_dropbox_challenge_is_sent_back_as_plain_text(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, here=settings("dropbox")) as client:
        answer = await client.get("/webhooks/here", params={"challenge": "abc123"})
        assert (answer.status_code, answer.text) == (200, "abc123")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"].startswith("text/plain")


async def test_graph_validation_token_is_sent_back_decoded(tmp_path: Path) -> None:
    query = "validationToken=Validation%3A+Testing+client+application+reachability"
    async with serving_handshakes(tmp_path, here=settings("microsoft-graph")) as client:
        answer = await client.post(f"/webhooks/here?{query}")
        assert (answer.status_code, answer.text) == (200, "Validation: Testing client application reachability")
        assert answer.headers["content-type"].startswith("text/plain")


async def test_okta_challenge_is_sent_back_as_json(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, here=settings("okta")) as client:
        answer = await client.get("/webhooks/here", headers={"X-Okta-Verification-Challenge": "Zm9v-bar_1"})
        assert (answer.status_code, answer.json()) == (200, {"verification": "Zm9v-bar_1"})


HOSTILE = ["<script>alert(1)</script>", "a\r\nSet-Cookie: x", "é", "", "a" * 600, '{"id":1}', "a%00b", "a\x00b"]


@pytest.mark.parametrize("challenge", HOSTILE)
async def test_challenge_with_other_characters_is_not_sent_back(tmp_path: Path, challenge: str) -> None:
    sources: dict[str, Any] = {
        name: settings(name) for name in ("dropbox", "meta", "microsoft-graph", "x", "braintree")
    }
    async with serving_handshakes(tmp_path, **sources) as client:
        answers = [
            await client.get("/webhooks/dropbox", params={"challenge": challenge}),
            await client.get("/webhooks/meta", params={**HUB, "hub.challenge": challenge}),
            await client.post("/webhooks/microsoft-graph", params={"validationToken": challenge}),
            await client.get("/webhooks/x", params={"crc_token": challenge}),
            await client.get("/webhooks/braintree", params={"bt_challenge": challenge}),
        ]
    for answer in answers:
        assert answer.status_code == 400
        assert "script" not in answer.text and "set-cookie" not in answer.headers


async def test_twitch_challenge_is_sent_back_only_if_it_is_signed(tmp_path: Path) -> None:
    headers = {
        "Twitch-Eventsub-Message-Id": "m1",
        "Twitch-Eventsub-Message-Type": "webhook_callback_verification",
        "Twitch-Eventsub-Subscription-Type": "channel.follow",
    }
    request = signed("twitch", {"challenge": "pogchamp-kappa-360noscope", "subscription": {"id": "s"}}, **headers)
    async with serving_handshakes(tmp_path, here=settings("twitch")) as client:
        answer = await client.post("/webhooks/here", **request)
        assert (answer.status_code, answer.text) == (200, "pogchamp-kappa-360noscope")
        forged = {**request, "content": request["content"].replace(b"kappa", b"other")}
        assert (await client.post("/webhooks/here", **forged)).status_code == 401


# -- signed responses -----------------------------------------------------------------------------------------------


async def test_zoom_token_is_sent_back_signed(tmp_path: Path) -> None:
    request = signed("zoom", {"event": "endpoint.url_validation", "payload": {"plainToken": "qgg8vlvZRS6UYooatFL8Aw"}})
    expected = hmac.new(key("zoom"), b"qgg8vlvZRS6UYooatFL8Aw", hashlib.sha256).hexdigest()
    async with serving_handshakes(tmp_path, here=settings("zoom")) as client:
        answer = await client.post("/webhooks/here", **request)
        assert (answer.status_code, answer.json()) == (
            200,
            {"plainToken": "qgg8vlvZRS6UYooatFL8Aw", "encryptedToken": expected},
        )
        unsigned = await client.post("/webhooks/here", content=request["content"])
        assert unsigned.status_code == 401 and expected not in unsigned.text


async def test_zoom_token_is_signed_with_the_secret_that_verified_the_request(tmp_path: Path) -> None:
    request = signed("zoom", {"event": "endpoint.url_validation", "payload": {"plainToken": "plain"}})
    expected = hmac.new(key("zoom"), b"plain", hashlib.sha256).hexdigest()
    secrets = [sender("zoom").pair(number).verifying for number in (1, 2, 0)]
    async with serving_handshakes(tmp_path, here=settings("zoom", secrets=secrets)) as client:
        assert (await client.post("/webhooks/here", **request)).json()["encryptedToken"] == expected


async def test_zoom_token_that_could_be_an_event_is_not_signed(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, here=settings("zoom")) as client:
        for token in (f"v0:{int(NOW)}:" + "{}", "", "a" * 101, 7, None, ["a"], {"a": 1}, "ä"):
            body = {"event": "endpoint.url_validation", "payload": {"plainToken": token}}
            assert (await client.post("/webhooks/here", **signed("zoom", body))).status_code == 400


async def test_x_token_is_sent_back_signed(tmp_path: Path) -> None:
    token = "9b4507b3-9040-4669-9ca3-6b94edb50553"
    digest = base64.b64encode(hmac.digest(key("x"), token.encode(), "sha256")).decode()
    async with serving_handshakes(tmp_path, here=settings("x")) as client:
        answer = await client.get("/webhooks/here", params={"crc_token": token, "nonce": "n"})
        assert (answer.status_code, answer.json()) == (200, {"response_token": f"sha256={digest}"})


EVENTS = ['{"for_user_id":"1"}', "[]", "1", "-1", "12345", "true", "null", "0", '"a"', "1e5", "-0"]


@pytest.mark.parametrize("token", EVENTS)
async def test_x_token_that_is_json_is_not_signed(tmp_path: Path, token: str) -> None:
    async with serving_handshakes(tmp_path, here=settings("x")) as client:
        answer = await client.get("/webhooks/here", params={"crc_token": token})
        assert answer.status_code == 400 and "sha256" not in answer.text


@pytest.mark.parametrize("token", ["foo", "true1", "nul", "1a", "_", "a" * 100, "-", "e5"])
async def test_signed_x_token_is_never_accepted_as_an_event(tmp_path: Path, token: str) -> None:
    """An attacker requests the signature of a word, and sends the word as a body."""
    async with serving_handshakes(tmp_path, here=settings("x")) as client:
        answer = await client.get("/webhooks/here", params={"crc_token": token})
        headers = {"x-twitter-webhooks-signature": answer.json()["response_token"], "Content-Type": "application/json"}
        forged = await client.post("/webhooks/here", content=token.encode(), headers=headers)
        assert forged.status_code == 400


def braintree_challenge(challenge: str) -> str:
    public, _, private = sender("braintree").pair().signing.partition("|")
    digest = hmac.new(hashlib.sha1(private.encode()).digest(), challenge.encode(), hashlib.sha1).hexdigest()
    return f"{public}|{digest}"


async def test_braintree_challenge_is_sent_back_signed_if_it_is_hexadecimal(tmp_path: Path) -> None:
    challenge = "20f9f8ed05f77439fe955c977e4c8a53"
    async with serving_handshakes(tmp_path, here=settings("braintree")) as client:
        answer = await client.get("/webhooks/here", params={"bt_challenge": challenge})
        assert (answer.status_code, answer.text) == (200, braintree_challenge(challenge))
        for other in (
            challenge.upper(),
            challenge[:19],
            challenge + "0",
            "PG5vdGlmaWNhdGlvbj48L25v",
            challenge[:-1] + "g",
        ):
            assert (await client.get("/webhooks/here", params={"bt_challenge": other})).status_code == 400


async def test_signed_braintree_challenge_is_never_accepted_as_an_event(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, here=settings("braintree")) as client:
        for challenge in ("20f9f8ed05f77439fe955c977e4c8a53", "0" * 20, "ab" * 12):
            pair = (await client.get("/webhooks/here", params={"bt_challenge": challenge})).text
            for payload in (challenge, challenge + "\n"):
                form = {"bt_signature": pair, "bt_payload": payload}
                assert (await client.post("/webhooks/here", data=form)).status_code in (400, 401)


# -- offered secrets ------------------------------------------------------------------------------------------------

OFFERED = "b537207f20cbfa02357cf448134da559e8bd39d61597dcd5631b8012eae53e81"
Offer = Callable[[httpx.AsyncClient], Any]


async def offer_by_asana(client: httpx.AsyncClient, secret: str = OFFERED) -> httpx.Response:
    return await client.post("/webhooks/here", headers={"X-Hook-Secret": secret})


async def offer_by_notion(client: httpx.AsyncClient, secret: str = OFFERED) -> httpx.Response:
    return await client.post("/webhooks/here", json={"verification_token": secret})


OFFERS = {"asana": offer_by_asana, "notion": offer_by_notion}


@pytest.mark.parametrize("name", OFFERS)
async def test_offered_secret_is_logged_and_never_adopted(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="oncehook")
    one = sender(name)
    async with serving_handshakes(tmp_path, here=settings(name, secrets=[])) as client:
        answer = await OFFERS[name](client)
        assert answer.status_code == 200
        assert answer.headers.get("x-hook-secret") == (OFFERED if name == "asana" else None)
        shown = [record for record in caplog.records if vars(record).get("event") == "secret_offered"]
        assert [(record.source, record.secret) for record in shown] == [("here", OFFERED)]  # type: ignore[attr-defined]
        event = one.compose()
        headers, body = sign(one.provider, event.body, OFFERED, headers={"Content-Type": "application/json"}, now=NOW)
        assert (await client.post("/webhooks/here", content=body, headers=headers)).status_code == 401


@pytest.mark.parametrize("name", OFFERS)
async def test_source_without_its_secret_logs_a_warning_at_start(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="oncehook")
    async with serving_handshakes(tmp_path, here=settings(name, secrets=[])):
        assert [vars(record).get("event") for record in caplog.records] == ["secret_missing"]


@pytest.mark.parametrize("name", OFFERS)
async def test_offered_secrets_per_minute_are_limited(tmp_path: Path, name: str) -> None:
    async with serving_handshakes(tmp_path, here=settings(name, secrets=[])) as client:
        statuses = [
            (await OFFERS[name](client, f"secret_{number}")).status_code for number in range(MAX_OFFERS_PER_MINUTE + 2)
        ]
        assert statuses == [200] * MAX_OFFERS_PER_MINUTE + [503] * 2


@pytest.mark.parametrize("name", OFFERS)
async def test_offered_secret_with_other_characters_is_neither_logged_nor_sent_back(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="oncehook")
    async with serving_handshakes(tmp_path, here=settings(name, secrets=[])) as client:
        for secret in ("<script>", "a b", "a" * 101, "a;b"):
            assert (await OFFERS[name](client, secret)).status_code == 400
    assert not [record for record in caplog.records if vars(record).get("event") == "secret_offered"]


# -- acknowledged requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trello", "mandrill"])
async def test_head_request_is_answered_with_200(tmp_path: Path, name: str) -> None:
    secrets = [] if name == "mandrill" else [sender(name).pair().verifying]
    async with serving_handshakes(tmp_path, here=settings(name, secrets=secrets)) as client:
        answer = await client.head("/webhooks/here")
        assert (answer.status_code, answer.content) == (200, b"")


async def test_cloudevents_sender_is_allowed_to_deliver(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, here=settings("cloudevents")) as client:
        request = {"WebHook-Request-Origin": "eventemitter.example.com", "WebHook-Request-Rate": "120"}
        answer = await client.options("/webhooks/here", headers=request)
        assert answer.status_code == 200 and answer.headers["allow"] == "POST"
        assert answer.headers["webhook-allowed-origin"] == "eventemitter.example.com"
        assert answer.headers["webhook-allowed-rate"] == "120"
        unlimited = await client.options("/webhooks/here", headers={"WebHook-Request-Origin": "a.example"})
        assert unlimited.headers["webhook-allowed-rate"] == "*"
        for origin in ("", "a b", "a/b", "<x>"):
            assert (
                await client.options("/webhooks/here", headers={"WebHook-Request-Origin": origin})
            ).status_code == 400


async def test_discord_ping_is_answered_and_its_unsigned_probe_is_rejected(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, here=settings("discord")) as client:
        ping = await client.post("/webhooks/here", **signed("discord", {"version": 1, "type": 0}))
        assert (ping.status_code, ping.content) == (204, b"")
        interaction = await client.post("/webhooks/here", **signed("discord", {"id": "1", "type": 1, "token": "t"}))
        assert (interaction.status_code, interaction.json()) == (200, {"type": 1})
        probe = signed("discord", {"type": 0})
        probe["headers"]["X-Signature-Ed25519"] = "00" * 64
        assert (await client.post("/webhooks/here", **probe)).status_code == 401


async def test_woocommerce_ping_is_answered_with_200(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, here=settings("woocommerce")) as client:
        assert (await client.post("/webhooks/here", data={"webhook_id": "7"})).status_code == 200
        forged = await client.post("/webhooks/here", json={"id": 1}, headers={"X-WC-Webhook-Topic": "order.created"})
        assert forged.status_code == 401


async def test_xero_intent_to_receive_is_answered_with_200_or_401(tmp_path: Path) -> None:
    intent = {"events": [], "firstEventSequence": 0, "lastEventSequence": 0, "entropy": "S0m3r4Nd0mt3xt"}
    async with serving_handshakes(tmp_path, here=settings("xero")) as client:
        right = await client.post("/webhooks/here", **signed("xero", intent))
        assert (right.status_code, right.content) == (200, b"")
        wrong = signed("xero", intent)
        wrong["content"] += b" "
        assert (await client.post("/webhooks/here", **wrong)).status_code == 401


@pytest.mark.parametrize("name", ["asana", "line", "sparkpost", "mandrill"])
async def test_delivery_without_events_is_acked_and_leaves_no_receipt(tmp_path: Path, name: str) -> None:
    one = sender(name)
    bodies = {"sparkpost": b'[{"msys":{}}]', "mandrill": b"mandrill_events=%5B%5D"}
    content_type = "application/x-www-form-urlencoded" if name == "mandrill" else "application/json"
    body = bodies.get(name, b'{"events":[]}')
    found, body = sign(
        one.provider, body, one.pair().signing, headers={"Content-Type": content_type}, now=NOW, settings=one.settings()
    )
    async with serving_handshakes(tmp_path, here=settings(name)) as client:
        assert (await client.post("/webhooks/here", content=body, headers=found)).status_code == 200


def test_no_example_is_taken_for_a_handshake() -> None:
    from tests.support.providers import SENDERS

    for one in SENDERS:
        source = one.source()
        for type_ in one.types:
            delivery: Delivery = one.compose(type_)
            assert source.handshake_of(delivery, one.provider.handshakes) is None, str(one)


# -- parts of a handshake -------------------------------------------------------------------------------------------


def test_repeated_too_long_or_missing_parameter_is_none() -> None:
    for query in (
        b"",
        b"x=1",
        b"challenge=1&challenge=2",
        b"challenge=" + b"x" * 9000,
        b"&".join([b"challenge=1"] * 60),
    ):
        delivery = Delivery(b"", query=query)
        assert locate("query:challenge", delivery, body_of(delivery)) is None
    delivery = Delivery(b"", query=b"challenge=a%20b")
    assert locate("query:challenge", delivery, body_of(delivery)) == "a b"


def test_repeated_header_is_none() -> None:
    delivery = Delivery(b"", [(b"x-hook-secret", b"1"), (b"x-hook-secret", b"2")])
    assert locate("header:X-Hook-Secret", delivery, body_of(delivery)) is None


async def test_signed_response_needs_a_secret() -> None:
    handshake = sender("x").provider.handshakes[0]
    delivery = Delivery(b"", method="GET", query=b"crc_token=word")
    with pytest.raises(Unavailable, match="the source has no secret yet"):
        await respond(handshake, delivery, body_of(delivery), HandshakeHost(Certificates()))


@pytest.mark.parametrize("name", ["basic", "unknown"])
def test_name_that_is_not_a_kind_of_handshake_is_an_error(name: str) -> None:
    with pytest.raises(LookupError, match=name):
        kind_of(name)
