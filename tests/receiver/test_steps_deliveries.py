"""Duplicate, concurrent, tampered, delayed and malformed deliveries, and the rows that they leave."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import httpx
import pytest

from oncehook import Inbox
from oncehook.model.states import State
from oncehook.providers.definition import built_in
from oncehook.providers.sign import sign
from oncehook.testing import DeliveryResponse, deliver, post
from tests.support.counts import RACES, count
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import served

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("adapter")]


COUNT = "SELECT count(*) FROM webhook_receipts"


HOUR = 3600.0


SECRET = "sesmetric-secret"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox()
    inbox.source("sesmetric", secrets=[SECRET])
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        yield inbox


def signed(body: bytes, *, secret: str = SECRET, skew: float = 0.0, clock: float = 0.0) -> dict[str, str]:
    headers, _ = sign(built_in("sesmetric"), body, secret, now=clock + skew)
    return headers


async def send(
    inbox: Inbox, body: bytes, *, sent: bytes | None = None, secret: str = SECRET, skew: float = 0
) -> DeliveryResponse:
    """Deliver to the source `sesmetric`. `sent` replaces the signed body on the wire."""
    headers = signed(body, secret=secret, skew=skew, clock=inbox._runtime.clock.now())
    return await post(inbox, "sesmetric", body if sent is None else sent, headers)


BODY = b'{"id": "evt_123", "type": "delivery", "message_id": "m_1"}'


async def test_two_deliveries_of_one_event_make_one_receipt(inbox: Inbox, rows: Rows) -> None:
    assert (await send(inbox, BODY)).outcome == (202, "accepted")
    assert (await send(inbox, BODY)).outcome == (200, "duplicate")
    assert rows("SELECT source, event_id, status FROM webhook_receipts") == [("sesmetric", "evt_123", "received")]
    assert rows("SELECT body FROM webhook_payloads") == [(BODY,)]


async def test_a_body_with_one_changed_byte_is_rejected(inbox: Inbox, rows: Rows) -> None:
    for index in range(len(BODY)):
        tampered = BODY[:index] + bytes([BODY[index] ^ 1]) + BODY[index + 1 :]
        assert (await send(inbox, BODY, sent=tampered)).outcome == (401, "bad_signature")
    for truncated in (BODY[:-1], BODY + b" ", b""):
        assert (await send(inbox, BODY, sent=truncated)).outcome == (401, "bad_signature")
    assert rows(COUNT) == [(0,)]


@pytest.mark.parametrize("skew", [-HOUR, HOUR, -310.0, 310.0])
async def test_a_timestamp_in_the_past_or_future_is_stale(inbox: Inbox, rows: Rows, skew: float) -> None:
    assert (await send(inbox, BODY, skew=skew)).outcome == (401, "stale_timestamp")
    assert rows(COUNT) == [(0,)]
    assert (await send(inbox, BODY, skew=skew / 100)).outcome == (202, "accepted")


@pytest.mark.parametrize("body", [b"", b"{", b'{"id": "evt_123"', b"id=evt_123", b"\x00"], ids=repr)
async def test_a_malformed_payload_is_rejected_with_400_and_leaves_no_receipt(
    inbox: Inbox, rows: Rows, body: bytes
) -> None:
    assert (await send(inbox, body)).outcome == (400, "malformed")
    assert rows(COUNT) == [(0,)]


async def test_a_forged_delivery_cannot_claim_an_id_before_the_real_one(inbox: Inbox, rows: Rows) -> None:
    for _ in range(3):
        assert (await send(inbox, BODY, secret="guessed")).status == 401
    assert rows(COUNT) == [(0,)]
    assert (await send(inbox, BODY)).outcome == (202, "accepted")


async def test_a_delivery_that_failed_with_503_can_be_delivered_again(inbox: Inbox, rows: Rows) -> None:
    await inbox._runtime.store.close()
    assert (await send(inbox, BODY)).outcome == (503, "unavailable")
    await inbox._runtime.store.open()
    assert rows(COUNT) == [(0,)]
    assert (await send(inbox, BODY)).outcome == (202, "accepted")


async def test_an_invalid_signature_is_rejected_before_anything_is_stored(inbox: Inbox, rows: Rows) -> None:
    assert (await deliver(inbox, "stripe", stripe_body(), secret="whsec_other")).outcome == (401, "bad_signature")
    tables = [rows(f"SELECT count(*) FROM {t}") for t in ("webhook_receipts", "webhook_payloads", "webhook_deliveries")]
    assert tables == [[(0,)]] * 3


@pytest.mark.parametrize("state", State)
async def test_a_duplicate_of_a_receipt_in_any_state_is_acked_and_changes_nothing(
    inbox: Inbox, rows: Rows, state: State
) -> None:
    await send(inbox, BODY)
    rows(f"UPDATE webhook_receipts SET status = '{state}', attempts = 3, last_error = 'no luck'")
    before = rows("SELECT * FROM webhook_receipts")
    answers = await asyncio.gather(*(send(inbox, BODY) for _ in range(5)))
    await inbox._runtime.reception.duplicates.drain()
    assert [answer.outcome for answer in answers] == [(200, "duplicate")] * 5
    assert rows("SELECT * FROM webhook_receipts") == before
    assert rows("SELECT count(*) FROM webhook_deliveries") == [(5,)]


async def test_an_event_id_with_another_body_is_flagged_and_the_first_body_stays(inbox: Inbox, rows: Rows) -> None:
    await send(inbox, BODY)
    other = BODY.replace(b"m_1", b"m_2")
    assert (await send(inbox, other)).outcome == (200, "duplicate")
    await inbox._runtime.reception.duplicates.drain()
    assert rows("SELECT same_body FROM webhook_deliveries") == [(False,)]
    assert rows("SELECT body FROM webhook_payloads") == [(BODY,)]


@asynccontextmanager
async def uncommitted(database: str, event_id: str) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Another process has claimed an id and not committed yet; gives the function that ends its transaction."""
    values = f"'sesmetric', 'sesmetric', '{event_id}', 'delivery', 'received'"
    columns = "source, provider, event_id, type, status"
    if database.startswith("sqlite"):
        file = sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)
        file.execute("BEGIN IMMEDIATE")
        file.execute(f"INSERT INTO webhook_receipts ({columns}, fingerprint) VALUES ({values}, x'00')")

        async def end_sqlite(how: str) -> None:
            file.execute(how)

        yield end_sqlite
        file.close()
        return
    connection = await asyncpg.connect(database)
    await connection.execute("BEGIN")
    await connection.execute(
        f"INSERT INTO webhook_receipts (id, {columns}, fingerprint) "
        f"VALUES (nextval('webhook_receipt_ids'), {values}, '\\x00')"
    )

    async def end_postgres(how: str) -> None:
        await connection.execute(how)

    yield end_postgres
    await connection.close()


@pytest.mark.parametrize(("ending", "first"), [("COMMIT", 200), ("ROLLBACK", 202)])
async def test_no_duplicate_is_acked_before_the_first_delivery_commits(
    inbox: Inbox, database: str, rows: Rows, ending: str, first: int
) -> None:
    async with uncommitted(database, "evt_123") as end:
        posting = [asyncio.create_task(send(inbox, BODY)) for _ in range(3)]
        done, _ = await asyncio.wait(posting, timeout=0.3)
        assert not done
        await end(ending)
        answers = await asyncio.gather(*posting)
    assert sorted(answer.status for answer in answers) == [200, 200, first]
    assert rows(COUNT) == [(1,)]


async def test_deliveries_that_are_sent_again_in_reverse_order_change_nothing(inbox: Inbox, rows: Rows) -> None:
    bodies = [f'{{"id": "evt_{n}", "type": "bounce"}}'.encode() for n in range(40)]
    for body in bodies:
        assert (await send(inbox, body)).status == 202
    before = rows("SELECT * FROM webhook_receipts ORDER BY id")
    again = await asyncio.gather(*(send(inbox, body) for body in reversed(bodies)))
    assert {answer.outcome for answer in again} == {(200, "duplicate")}
    assert rows("SELECT * FROM webhook_receipts ORDER BY id") == before


async def test_two_deliveries_over_http_are_accepted_and_duplicate(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    body = stripe_body("evt_1")
    async with served(inbox) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/webhooks/stripe"
        first = await client.post(url, content=body, headers=stripe_headers(body))
        second = await client.post(url, content=body, headers=stripe_headers(body))
    assert (first.status_code, first.json()["status"]) == (202, "accepted")
    assert (second.status_code, second.json()["status"]) == (200, "duplicate")
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("inboxes", "rounds"),
    [
        (1, 200),
        (2, 100),
        pytest.param(1, 300, marks=pytest.mark.torture),
        pytest.param(2, 300, marks=pytest.mark.torture),
        pytest.param(2, 10_000, marks=pytest.mark.long),
    ],
)
async def test_exactly_one_of_64_concurrent_deliveries_is_accepted(
    make_inbox: Callable[..., Inbox], rows: Rows, inboxes: int, rounds: int, request: pytest.FixtureRequest
) -> None:
    """Two inboxes share only the database, which decides which delivery is first."""
    if "wsgi" in request.node.name:
        rounds //= 10  # each delivery takes a thread, and the claims are the same
    async with AsyncExitStack() as stack:
        inboxes_under_test = [make_inbox() for _ in range(inboxes)]
        for inbox in inboxes_under_test:
            inbox.source("stripe", secrets=["whsec_test"])
            await stack.enter_async_context(inbox.lifespan())
        for number in range(rounds):
            body = stripe_body(f"evt_{number}")
            headers = stripe_headers(body)
            answers = await asyncio.gather(
                *(post(inboxes_under_test[index % inboxes], "stripe", body, headers) for index in range(64))
            )
            statuses = sorted(answer.status for answer in answers)
            assert statuses == [200] * 63 + [202], f"round {number}: {statuses}"
            assert len({answer.json["receipt"] for answer in answers}) == 1
    count(RACES, rounds)
    assert rows("SELECT count(*), count(DISTINCT event_id) FROM webhook_receipts") == [(rounds, rounds)]
    assert rows("SELECT count(*) FROM webhook_payloads") == [(rounds,)]


UNUSUAL = [
    b'"\\u0000"', b'"\\ud800"', b'"\\u2028"', b"1e400", b"-0", b"1" * 5000, b'{"a":1,"a":2}', b"[" * 60 + b"]" * 60,
    '"é"'.encode(), '"e\u0301"'.encode(),
]  # fmt: skip


async def test_unusual_json_is_stored_byte_for_byte(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    """Databases and JSON parsers disagree about these values, so none of them may decide what is stored."""
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    bodies = [b'{"id":"evt_%d","type":"t","data":%s}' % item for item in enumerate(UNUSUAL)]
    async with inbox.lifespan():
        for body in bodies:
            assert (await post(inbox, "stripe", body, stripe_headers(body))).outcome == (202, "accepted"), body
    assert {bytes(body) for (body,) in rows("SELECT body FROM webhook_payloads")} == set(bodies)
