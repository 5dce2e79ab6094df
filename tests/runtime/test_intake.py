"""The intakes of a running inbox: the checks at the start, and which process consumes."""

import pytest

from oncehook import Inbox
from oncehook.model.errors import ConfigurationError, Unavailable
from oncehook.runtime.parts import intake_statuses
from tests.support.aws import Moto
from tests.support.encryption import ring
from tests.support.events import STRIPE_SECRET
from tests.support.intake import intakes_of
from tests.support.proxy import proxied
from tests.support.servers import Postgres

pytestmark = pytest.mark.anyio


async def test_start_without_a_key_that_seals_messages_is_an_error(sqlite: str, aws: Moto) -> None:
    inbox = Inbox(sqlite)
    inbox.source("stripe", secrets=[STRIPE_SECRET], intake=f"sqs:{aws.queue()}")
    with pytest.raises(ConfigurationError, match="needs a key that seals its messages"):
        await inbox.start()


async def test_source_that_trusts_its_queue_needs_no_key_and_is_logged(
    sqlite: str, aws: Moto, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox(sqlite)
    inbox.source("stripe", secrets=[STRIPE_SECRET], intake=f"sqs:{aws.queue()}", intake_trust="queue")
    async with inbox.lifespan():
        assert "intake_trusts_queue" in caplog.text


async def test_process_without_a_worker_publishes_and_does_not_consume(sqlite: str, aws: Moto) -> None:
    inbox = Inbox(sqlite, worker=False, keys=ring("2026a"))
    inbox.source("stripe", secrets=[STRIPE_SECRET], intake=f"sqs:{aws.queue()}")
    async with inbox.lifespan():
        assert intakes_of(inbox).consumers == []
        assert inbox._runtime.reception.receiver.publisher is not None
    assert inbox._runtime.reception.receiver.publisher is None


async def test_process_is_ready_while_only_the_broker_responds(postgres: Postgres, aws: Moto) -> None:
    async with proxied(postgres.database()) as (proxy, address):
        inbox = Inbox(address, worker=False, keys=ring("2026a"))
        inbox.source("stripe", secrets=[STRIPE_SECRET], intake=f"sqs:{aws.queue()}")
        async with inbox.lifespan():
            await inbox._runtime.readiness.check()
            proxy.refuse()
            await inbox._runtime.readiness.check()
            inbox._runtime.readiness.alternative = None
            with pytest.raises(Unavailable):
                await inbox._runtime.readiness.check()
            proxy.accept()


async def test_lag_is_a_metric_and_the_overview_shows_the_queue(sqlite: str, aws: Moto) -> None:
    address = aws.queue()
    inbox = Inbox(sqlite, keys=ring("2026a"))
    inbox.source("stripe", secrets=[STRIPE_SECRET], intake=f"sqs:{address}")
    async with inbox.lifespan():
        text = (await inbox._runtime.metrics_exporter.text()).decode()
        assert 'oncehook_intake_lag_seconds{source="stripe"} 0.0' in text
        (status,) = await intake_statuses(inbox._runtime.parts)
        assert status.queue == f"sqs:{address.rpartition('/')[2]}" and status.problem is None
