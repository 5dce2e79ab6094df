"""Forwards to a broker: body, headers and key of the message, allowed addresses, and retries."""

import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import standardwebhooks

from oncehook import Inbox
from oncehook.handlers import forward
from oncehook.handlers.broker_forward import BrokerForward, forward_origin
from oncehook.model.errors import ConfigurationError
from oncehook.model.receipt import Filter
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.testing import deliver
from tests.support.broker_servers import PASSWORD, NatsServer, RedisServer
from tests.support.brokers import RedisQueue
from tests.support.forwarding import running_inbox
from tests.support.servers import run_sql
from tests.support.waiting import eventually
from tests.support.work import HISTORY, QUICK, claim, receipts_are

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"a secret of this test, 32 bytes.").decode()


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[RedisQueue]:
    with RedisServer(tmp_path / "redis").running() as server:
        yield RedisQueue(server)


async def test_event_is_published_with_its_bytes_its_key_and_a_signature(
    forward_config: Callable[..., Path], database: str, queue: RedisQueue
) -> None:
    body = b'{ "id" : "evt_1", "type": "invoice.paid",  "data": {"object": {"id": "in_1"}}, "\xc3\xa9": 1.10 }\n'
    config = forward_config(queue.address(), f'forward_secret = "{SECRET}"')
    async with running_inbox(config) as inbox:
        assert (await deliver(inbox, "stripe", body)).outcome == (202, "accepted")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "processed", 1))
    (arrived,) = await queue.messages()
    assert (arrived.key, arrived.body) == ("stripe:evt_1", body)
    standardwebhooks.Webhook(SECRET).verify(arrived.body, arrived.headers)
    assert arrived.headers["oncehook-event-type"] == "invoice.paid"
    assert arrived.headers["content-type"] == "application/json"
    assert not {"stripe-signature", "user-agent"} & set(arrived.headers)
    handler = f"forward to {queue.server.origin}"
    assert run_sql(database, "SELECT status, handler FROM webhook_receipts") == [("processed", handler)]


async def test_event_is_processed_only_after_an_acknowledgement_and_a_replay_has_the_same_key(
    forward_config: Callable[..., Path], database: str, queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "POLICY", QUICK)
    client = queue.client()
    await client.set(queue.name, "not a stream")
    async with running_inbox(forward_config(queue.address())) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "failed", 1))
        await client.delete(queue.name)
        for _ in range(2):
            await replay(inbox._runtime.store, Selection(Filter(event_id="evt_1")), actor="test")
            await eventually(receipts_are(database, "processed", 1))
    await client.aclose()
    assert [arrived.key for arrived in await queue.messages()] == ["stripe:evt_1"] * 2
    error = f"NotStored: {queue.server.origin} did not store the message: WRONGTYPE"
    assert [row[2] for row in run_sql(database, HISTORY)[:3]] == [error] * 3


async def test_message_that_cannot_be_sent_is_a_dead_letter_at_once(
    forward_config: Callable[..., Path], database: str, tmp_path: Path
) -> None:
    with NatsServer(tmp_path / "nats").running() as server:
        async with running_inbox(forward_config(server.address("orders"))) as inbox:
            await claim(inbox, "evt_1", body=bytes(2**20))
            inbox._runtime.start_worker()
            await eventually(receipts_are(database, "failed", 1))
    [(attempts, error)] = run_sql(database, "SELECT attempts, last_error FROM webhook_receipts")
    assert attempts == 1 and f"and {server.origin} accepts 1,048,576" in error


async def test_credentials_of_the_address_are_never_shown(
    forward_config: Callable[..., Path], database: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = forward_config(f"redis://default:{PASSWORD}@127.0.0.1:1/0/orders", "retry = { attempts = 1 }")
    async with running_inbox(config) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "failed", 1))
    assert "redis://127.0.0.1:1 cannot be reached" in run_sql(database, "SELECT last_error FROM webhook_receipts")[0][0]
    everything = [run_sql(database, f"SELECT * FROM {t}") for t in ("webhook_receipts", "webhook_attempts")]
    assert PASSWORD not in f"{everything} {caplog.text} {[vars(record) for record in caplog.records]}"


def test_address_in_code_is_used_only_without_credentials_and_if_its_origin_is_configured(tmp_path: Path) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "sqlite:///{tmp_path}/a.db"\neffect_targets = ["redis://me:hidden@allowed"]\n')

    def forward_to(address: str) -> BrokerForward:
        inbox = Inbox(config=str(config))
        inbox.source("stripe", secrets=["whsec_test"], forward=address)
        inbox._runtime.load_secrets()
        made = inbox._runtime.forwards["stripe"]
        assert isinstance(made, BrokerForward)
        return made

    assert forward_to("redis://allowed/0/orders").address.password == "hidden"
    with pytest.raises(ConfigurationError, match=r"forward: redis://other:6379 is not in effect_targets"):
        forward_to("redis://other/0/orders")
    with pytest.raises(ConfigurationError, match=r"sources.stripe.forward contains credentials"):
        forward_to("redis://me:hidden@allowed/0/orders")
    with pytest.raises(ConfigurationError, match=r"forward is not usable: expected two names") as caught:
        forward_to("redis://me:hidden@allowed/orders")
    assert "hidden" not in str(caught.value)


def test_password_and_client_library_are_checked_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(
        f'database = "sqlite:///{tmp_path}/a.db"\n[sources.stripe]\nsecrets = ["whsec_test"]\n'
        'forward = "redis://me:env:REDIS_PASSWORD@host/0/orders"\n'
    )
    inbox = Inbox(config=str(config))
    with pytest.raises(ConfigurationError, match=r"sources.stripe.forward is empty: set REDIS_PASSWORD"):
        inbox._runtime.load_secrets()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"sources.stripe.forward needs its client: pip install"):
        inbox._runtime.load_secrets()


def test_origin_of_any_target_has_no_credentials_and_no_path() -> None:
    assert forward_origin("https://host/secret?a=b") == "https://host"
    assert forward_origin("rabbitmq://me:hidden@host/vhost/orders") == "rabbitmq://host:5672"
