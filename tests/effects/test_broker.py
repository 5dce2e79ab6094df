"""Effects and messages at the address of a broker: after the commit, under one key, and done only when acknowledged."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from oncehook import Event, Inbox
from oncehook.brokers.address import parse_broker
from oncehook.brokers.pool import Publishers
from oncehook.effects import broker
from oncehook.effects.broker import BrokerTargets, EffectPublisher, publish_and_record
from oncehook.effects.effect import EffectRefused, check_broker_target
from oncehook.http_client import circuit_breaker
from oncehook.model.errors import ConfigurationError
from oncehook.observability import signals
from oncehook.runtime import address_effects
from oncehook.testing import advance
from tests.support.broker_servers import PASSWORD, NatsServer
from tests.support.brokers import NatsQueue
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import RETRY_WITHIN_2H, claim

pytestmark = pytest.mark.anyio

STATES = "SELECT status, attempts, kind, last_error FROM webhook_effects"


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[NatsQueue]:
    with NatsServer(tmp_path / "nats").running() as server:
        queue = NatsQueue(server)
        await queue.create()
        yield queue


@pytest.fixture
def make_publishing_inbox(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Inbox]:
    """An inbox whose handlers publish to `address`. `allowed` are its `effect_targets`."""
    monkeypatch.setattr(address_effects, "POLICY", RETRY_WITHIN_2H)

    def make(address: str, *allowed: str) -> Inbox:
        config = tmp_path / "oncehook.toml"
        config.write_text(f'database = "{database}"\npoll = "50ms"\neffect_targets = {json.dumps(allowed)}\n')
        inbox = Inbox(config=str(config))
        inbox.source("stripe", secrets=["whsec_test"])

        @inbox.on("stripe", "invoice.paid")
        async def paid(event: Event) -> None:
            await event.effect("notify:in_1", address, invoice="in_1", payload=2900)

        @inbox.on("stripe", "invoice.voided")
        async def voided(event: Event) -> None:
            await event.publish(address, ["voided", event.object_id])

        return inbox

    return make


def allowed_origin(queue: NatsQueue) -> str:
    return f"nats://app:{PASSWORD}@127.0.0.1:{queue.server.port}"


async def test_effect_and_message_are_published_once_with_their_keys(
    make_publishing_inbox: Callable[..., Inbox], queue: NatsQueue, rows: Rows
) -> None:
    inbox = make_publishing_inbox(queue.bare, allowed_origin(queue))
    async with inbox.lifespan():
        await claim(inbox, "evt_1", "evt_2")
        await claim(inbox, "evt_3", type="invoice.voided", object_id="in_3")
        await eventually(lambda: [row[0] for row in rows(STATES)] == ["done", "done"])
    arrived = {message.body: message for message in await queue.messages()}
    effect, message = arrived[b'{"invoice":"in_1","payload":2900}'], arrived[b'["voided","in_3"]']
    assert len(effect.key) == 40 and effect.key != message.key
    assert effect.headers["idempotency-key"] == effect.key and effect.headers["oncehook-source"] == "stripe"
    assert message.headers["content-type"] == "application/json"
    assert sorted(row[2] for row in rows(STATES)) == ["broker", "broker-topic"]


async def test_effect_is_done_only_after_an_acknowledgement_and_every_attempt_has_the_same_key(
    make_publishing_inbox: Callable[..., Inbox],
    queue: NatsQueue,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: list[str] = []

    async def record(*args: object) -> None:
        keys.append(args[3].key)  # type: ignore[attr-defined]
        await publish_and_record(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(broker, "publish_and_record", record)
    monkeypatch.setattr(broker, "EFFECT_TIMEOUT", 1.0)
    inbox = make_publishing_inbox(queue.bare, allowed_origin(queue))
    queue.server.kill()
    async with inbox.lifespan():
        await claim(inbox, "evt_1")
        await eventually(lambda: rows(STATES) and rows(STATES)[0][0] == "retrying")
        queue.server.start()
        queue.server.pause()
        await advance(inbox, "2h")
        inbox._runtime.relay.wake()  # type: ignore[union-attr]
        await eventually(lambda: rows(STATES)[0][:2] == ("retrying", 2))
        assert "did not acknowledge the message within 0.5 s" in rows(STATES)[0][3]
        queue.server.go_on()
        await advance(inbox, "2h")
        inbox._runtime.relay.wake()  # type: ignore[union-attr]
        await eventually(lambda: rows(STATES)[0][:2] == ("done", 3))
    assert len(keys) == 3 and len(set(keys)) == 1
    assert [arrived.key for arrived in await queue.messages()] == keys[:1]


async def test_effect_that_the_broker_does_not_store_is_retried_and_its_circuit_breaker_stays_closed(
    make_publishing_inbox: Callable[..., Inbox], queue: NatsQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "FAILURES", 1)
    inbox = make_publishing_inbox(f"{queue.server.origin}/no.stream.here", allowed_origin(queue))
    async with inbox.lifespan():
        await claim(inbox, "evt_1")
        await eventually(lambda: rows(STATES) and rows(STATES)[0][:2] == ("retrying", 1))
        assert "no stream of" in rows(STATES)[0][3]
        await advance(inbox, "2h")
        inbox._runtime.relay.wake()  # type: ignore[union-attr]
        await eventually(lambda: rows(STATES)[0][:2] == ("retrying", 2), "the next attempt reaches the broker")


async def test_broker_is_used_only_if_the_configuration_names_its_origin(
    make_publishing_inbox: Callable[..., Inbox], queue: NatsQueue, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = make_publishing_inbox(queue.bare, "nats://127.0.0.1:1")
    async with inbox.lifespan():
        await claim(inbox, "evt_1")
        await eventually(lambda: rows(STATES) and rows(STATES)[0][0] == "failed")
    assert "is not in effect_targets" in rows(STATES)[0][3] and await queue.messages() == []
    [line] = [record for record in caplog.records if record.msg.startswith("effect_failed")]
    assert vars(line)["target"] == queue.server.origin


async def test_circuit_breaker_opens_and_waiting_for_it_uses_no_attempt(
    make_publishing_inbox: Callable[..., Inbox], queue: NatsQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "FAILURES", 1)
    queue.server.kill()
    inbox = make_publishing_inbox(queue.bare, allowed_origin(queue))
    async with inbox.lifespan():
        await claim(inbox, "evt_1")
        await eventually(lambda: rows(STATES) and rows(STATES)[0][:2] == ("retrying", 1))
        await claim(inbox, "evt_3", type="invoice.voided")
        await eventually(lambda: len(rows(STATES)) == 2)
        relay = inbox._runtime.relay
        assert relay is not None
        await eventually(lambda: ("waiting", 0) in [row[:2] for row in rows(STATES)])
    assert sorted(row[1] for row in rows(STATES)) == [0, 1]


async def test_address_with_credentials_is_refused_in_the_handler_and_never_stored(
    make_publishing_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_publishing_inbox(f"nats://app:{PASSWORD}@127.0.0.1:1/orders")
    async with inbox.lifespan():
        await claim(inbox, "evt_1")
        await claim(inbox, "evt_3", type="invoice.voided")
        errors = "SELECT last_error FROM webhook_receipts WHERE last_error IS NOT NULL"
        await eventually(lambda: len(rows(errors)) == 2)
    assert all("contains credentials: write them in effect_targets" in error for (error,) in rows(errors))
    assert PASSWORD not in str(rows("SELECT * FROM webhook_receipts")) and rows(STATES) == []


def test_invalid_address_is_refused_in_the_handler() -> None:
    assert check_broker_target("send_receipt") is None
    with pytest.raises(EffectRefused, match="expected a name after the host"):
        check_broker_target("nats://host")


@pytest.mark.parametrize("address", ["nats://host/a/b", "redis://host/orders", "kafka://me:hidden@"])
def test_invalid_effect_target_is_a_configuration_error(address: str) -> None:
    with pytest.raises(ConfigurationError, match="effect_targets has an invalid address") as caught:
        BrokerTargets([address])
    assert "hidden" not in str(caught.value)


def test_passwords_and_client_libraries_are_checked_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = BrokerTargets(["https://partner.example", "nats://me:env:NATS_PASSWORD@host"])
    with pytest.raises(ConfigurationError, match="effect_targets is empty: set NATS_PASSWORD"):
        targets.load_secrets()
    monkeypatch.setenv("NATS_PASSWORD", "hidden")
    targets.load_secrets()
    address = targets.find(parse_broker("nats://host/orders"))
    assert address is not None and (address.user, address.password) == ("me", "hidden")
    assert targets.find(parse_broker("nats://host:4223/orders")) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"effect_targets needs its client: pip install 'oncehook\[nats\]'"):
        targets.load_secrets()


def test_log_line_contains_only_the_origin_of_a_broker() -> None:
    for kind in ("broker", "broker-topic"):
        assert signals.redacted_target(kind, "nats://me:secret@a:1,b:2/secret") == "nats://a:1,b:2"
        assert signals.redacted_target(kind, "sqs:https://sqs.eu-west-1.amazonaws.com/1/secret") == (
            "sqs:https://sqs.eu-west-1.amazonaws.com"
        )


def test_origins_share_the_circuit_breaker_of_a_forward() -> None:
    shared = circuit_breaker.CircuitBreaker("nats://host:4222", 4)
    publisher = EffectPublisher(Publishers(), BrokerTargets([]), {"nats://host:4222": shared})
    assert publisher._breaker("nats://host:4222") is shared
    assert publisher._breaker("nats://other:4222") is publisher._breaker("nats://other:4222")
