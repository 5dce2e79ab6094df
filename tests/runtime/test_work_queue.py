"""The queue as a part of an inbox: its start, its checks, its gauges, and `oncehook doctor`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook import ConfigurationError, Inbox
from oncehook.runtime.work_queue import redrive_advice
from oncehook.testing import deliver
from tests.support.aws import Moto, environment
from tests.support.command_line import Run
from tests.support.events import stripe_body
from tests.support.servers import free_port
from tests.support.work_queue import WorkQueue

pytestmark = pytest.mark.anyio

Make = Callable[..., Inbox]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_an_inbox_does_not_start_with_a_queue_that_does_not_exist(make_inbox: Make, aws: Moto) -> None:
    inbox = make_inbox(queue=f"sqs:{aws.url}/123456789012/missing")
    with pytest.raises(ConfigurationError, match="queue: get_queue_attributes of AWS sqs failed"):
        await inbox._runtime.start()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_an_inbox_starts_and_accepts_while_the_queue_does_not_respond(
    make_inbox: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for name, value in environment(f"http://127.0.0.1:{port}").items():
        monkeypatch.setenv(name, value)
    inbox = make_inbox(queue=f"sqs:http://127.0.0.1:{port}/123456789012/work")
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).outcome == (202, "accepted")


@pytest.mark.parametrize("value", ["sqs", "sqs:", "sqs:orders", "redis://host", 5, "database:x"])
async def test_the_setting_is_the_database_or_the_url_of_a_queue(make_inbox: Make, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"queue is .*: expected"):
        make_inbox(queue=value)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_the_metrics_have_the_number_of_messages(make_inbox: Make, aws: Moto) -> None:
    queue = WorkQueue(aws)
    inbox = make_inbox(queue=f"sqs:{queue.url}")
    queue.put({"receipt": 1}, {"receipt": 2})
    async with inbox.lifespan():
        text = (await inbox._runtime.metrics_exporter.text()).decode()
    assert 'oncehook_queue_messages{state="waiting"} 2.0' in text
    assert 'oncehook_queue_messages{state="in_flight"} 0.0' in text
    assert "oncehook_queue_sent_total" in text


async def test_advice_compares_the_redrive_policy_with_the_attempts(aws: Moto) -> None:
    from oncehook.brokers.sqs import QueueAttributes

    def advice(max_receives: int | None) -> list[str]:
        return redrive_advice("work", QueueAttributes(0, 0, 0, None, max_receives), 10)

    assert "has no dead-letter queue" in advice(None)[0]
    assert advice(10)[0].endswith("becomes a dead letter early. Set it to 20")
    assert advice(11) == []


def test_doctor_examines_the_queue(run: Run, in_folder: Path, aws: Moto) -> None:
    queue = WorkQueue(aws, max_receives=3)
    database = f'database = "sqlite:///{in_folder}/inbox.db"\n'
    Path("oncehook.toml").write_text(database + f'queue = "sqs:{queue.url}"\n')
    run("migrate")
    queue.put({"receipt": 1})
    ran = run("doctor")
    name = queue.url.rpartition("/")[2]
    assert f"queue: {name} (standard) responds; 1 waiting, 0 in flight" in ran.out
    Path("oncehook.toml").write_text(database + f'queue = "sqs:{queue.url}-missing"\n')
    ran = run("doctor")
    assert ran.code == 1 and "queue: get_queue_attributes of AWS sqs failed" in ran.out
