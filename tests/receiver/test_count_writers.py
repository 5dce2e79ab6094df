"""Counts are written periodically and when the inbox stops: uses of secrets, rejections and ack latencies."""

import asyncio
from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.receiver import count_writers
from oncehook.receiver.count_writers import PeriodicWriter
from oncehook.testing import deliver, post
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.stores import missing_table
from tests.support.waiting import eventually, next_turn

pytestmark = pytest.mark.anyio


USES = "SELECT source, secret, verified FROM webhook_secrets ORDER BY source, secret"


async def test_the_uses_of_each_secret_are_written_when_the_inbox_stops(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    for round_ in range(2):
        inbox = make_inbox()
        source = inbox.source("stripe", secrets=["whsec_new", "whsec_old"])
        async with inbox.lifespan():
            for number in range(3):
                body = stripe_body(f"evt_{round_}_{number}")
                assert (await deliver(inbox, "stripe", body, secret="whsec_old")).status == 202
            body = stripe_body(f"evt_{round_}_new")
            assert (await post(inbox, "stripe", body, stripe_headers(body, "whsec_new"))).status == 202
    new, old = source.fingerprints
    assert sorted(rows(USES)) == sorted([("stripe", new, 2), ("stripe", old, 6)])
    assert new != old and "whsec" not in str(rows(USES))


async def test_uses_of_a_failed_write_are_part_of_the_next_write(inbox: Inbox, rows: Rows) -> None:
    await deliver(inbox, "stripe", stripe_body())
    with missing_table(rows, "webhook_secrets"):
        await inbox._runtime.reception.secret_uses.write()
    assert rows(USES) == []
    await inbox._runtime.reception.secret_uses.write()
    await inbox._runtime.reception.secret_uses.write()
    assert [row[2] for row in rows(USES)] == [1]


async def test_use_during_a_write_is_part_of_the_next_write(inbox: Inbox, rows: Rows) -> None:
    await deliver(inbox, "stripe", stripe_body())
    writer = inbox._runtime.reception.secret_uses
    writing = asyncio.create_task(writer.write())
    await next_turn()
    assert not writing.done()
    inbox._runtime.sources["stripe"].uses[0] += 1  # as a delivery that is verified now
    await writing
    await writer.write()
    assert [row[2] for row in rows(USES)] == [2]


async def test_rejections_of_a_failed_write_are_part_of_the_next_write(inbox: Inbox, rows: Rows) -> None:
    stats, writer = inbox._runtime.reception.stats, inbox._runtime.reception.rejection_counts
    stats.record_rejection("stripe", "bad_signature", "no secret matches")
    with missing_table(rows, "webhook_refusals"):
        await writer.write()
    stats.record_rejection("stripe", "bad_signature", "no secret matches")
    await writer.write()
    await writer.write()
    written = rows("SELECT source, reason, sum(refused) FROM webhook_refusals GROUP BY source, reason")
    assert written == [("stripe", "bad_signature", 2)], "nothing is lost, and nothing is written twice"


async def test_ack_latencies_are_written_and_then_counted_from_zero(inbox: Inbox) -> None:
    stats, writer = inbox._runtime.reception.stats, inbox._runtime.reception.ack_latencies
    stats.record_ack("stripe", 0.004)
    stats.record_ack("stripe", 0.004)
    await writer.write()
    assert not stats.unwritten_acks
    await writer.write()


async def test_a_writer_writes_once_more_when_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []

    class Counting(PeriodicWriter):
        async def write(self) -> None:
            writes.append(len(writes))

    monkeypatch.setattr(count_writers, "FLUSH_SECONDS", 0.01)
    writer = Counting()
    writer.start()
    await eventually(lambda: len(writes) >= 2, "the writer writes periodically")
    before = len(writes)
    await writer.stop()
    assert len(writes) == before + 1
