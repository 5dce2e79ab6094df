"""The steps of a delivery: its response, and the rows that it leaves in the database."""

import asyncio
import base64
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from oncehook import Inbox
from oncehook.model.errors import StoreUnavailable
from oncehook.providers.definition import built_in
from oncehook.providers.sign import sign
from oncehook.store.sqlite import file as sqlite
from oncehook.testing import DeliveryResponse, deliver, post
from tests.support.events import Rows, github_headers, stripe_body, stripe_headers
from tests.support.servers import Postgres

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("adapter")]


COUNT = "SELECT count(*) FROM webhook_receipts"


STORED = "SELECT r.event_id, r.status, p.body FROM webhook_receipts r JOIN webhook_payloads p ON p.receipt_id = r.id"


def only_receipt(rows: Rows) -> int:
    ((receipt,),) = rows("SELECT id FROM webhook_receipts")
    return int(receipt)


async def test_a_first_delivery_is_accepted_with_its_receipt(inbox: Inbox, rows: Rows) -> None:
    body = stripe_body("evt_1")
    answer = await deliver(inbox, "stripe", body)
    assert answer.status == 202
    assert answer.json == {"status": "accepted", "event_id": "evt_1", "receipt": only_receipt(rows)}
    assert answer.headers["content-type"] == "application/json"
    assert rows(STORED) == [("evt_1", "received", body)]


async def test_a_second_delivery_is_a_duplicate_of_the_same_receipt(inbox: Inbox, rows: Rows) -> None:
    body = stripe_body("evt_1")
    await deliver(inbox, "stripe", body)
    answer = await deliver(inbox, "stripe", body)
    assert answer.status == 200
    assert answer.json == {"status": "duplicate", "event_id": "evt_1", "receipt": only_receipt(rows)}


async def test_duplicates_are_recorded_in_the_background(inbox: Inbox, rows: Rows) -> None:
    for body in (stripe_body("evt_1"), stripe_body("evt_1"), stripe_body("evt_1", more=1), stripe_body("evt_1")):
        await deliver(inbox, "stripe", body)
    await inbox._runtime.reception.duplicates.drain()
    receipt = only_receipt(rows)
    recorded = [(receipt, True), (receipt, False), (receipt, True)]
    assert rows("SELECT receipt_id, same_body FROM webhook_deliveries ORDER BY id") == recorded


async def test_an_authentic_event_of_another_type_is_recorded_as_ignored(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], types=["invoice.*", "customer"])
    async with inbox.lifespan():
        other = await deliver(inbox, "stripe", stripe_body("evt_1", "charge.refunded"))
        answers = [await deliver(inbox, "stripe", stripe_body(f"evt_{t}", t)) for t in ("invoice.paid", "customer.new")]
        again = await deliver(inbox, "stripe", stripe_body("evt_1", "charge.refunded"))
    assert other.status == 200
    assert other.json == {"status": "ignored", "event_id": "evt_1", "receipt": other.json["receipt"]}
    assert [answer.outcome for answer in answers] == [(202, "accepted")] * 2
    assert again.outcome == (200, "duplicate")
    states: dict[str, str] = dict(rows("SELECT event_id, status FROM webhook_receipts"))
    assert states == {"evt_1": "ignored", "evt_invoice.paid": "received", "evt_customer.new": "received"}


@pytest.mark.parametrize("lacking", ["id", "type"])
async def test_an_authentic_body_without_a_usable_id_or_type_is_stored_as_a_dead_letter(
    inbox: Inbox, rows: Rows, lacking: str
) -> None:
    event: dict[str, Any] = {"id": "evt_1", "type": "invoice.paid"}
    body = json.dumps(event | {lacking: {"new": "shape"}}).encode()
    answer = await deliver(inbox, "stripe", body)
    event_id = "sha256:" + hashlib.sha256(body).hexdigest()
    assert answer.status == 202
    assert answer.json == {"status": "accepted", "event_id": event_id, "receipt": only_receipt(rows)}
    assert rows("SELECT event_id, payload FROM webhook_dlq") == [(event_id, body)]
    assert lacking in rows("SELECT last_error FROM webhook_dlq")[0][0]
    assert (await deliver(inbox, "stripe", body)).outcome == (200, "duplicate")


ODD_BODIES = {
    "a NUL": (b'{"id":"evt\\u0000","type":"a"}', "received"),
    "a lone surrogate": (b'{"id":"evt\\ud800","type":"a"}', "received"),
    "a number of 5,000 digits": (b'{"id":' + b"9" * 5000 + b',"type":"a"}', "received"),
    "a number of 5,000 digits elsewhere": (b'{"id":"evt_1","type":"a","n":' + b"9" * 5000 + b"}", "received"),
    "a nest of 100,000": (b'{"id":"evt_1","type":"a","n":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "failed"),
    "an id of 2,000 characters": (b'{"id":"' + b"x" * 2000 + b'","type":"a"}', "received"),
    "an infinite number": (b'{"id":"evt_1","type":"a","n":1e400}', "received"),
}


@pytest.mark.parametrize(("body", "status"), ODD_BODIES.values(), ids=ODD_BODIES.keys())
async def test_an_unusual_authentic_body_is_stored_byte_for_byte(
    inbox: Inbox, rows: Rows, body: bytes, status: str
) -> None:
    answer = await deliver(inbox, "stripe", body)
    assert answer.outcome == (202, "accepted")
    assert rows(STORED) == [(answer.json["event_id"], status, body)]
    assert (await deliver(inbox, "stripe", body)).outcome == (200, "duplicate")


@pytest.mark.parametrize("body", [b"", b"{", b"not json", b'{"id":"a"} x', b"\xff\xfe", b'{"id":NaN}'], ids=repr)
async def test_authentic_bytes_that_are_not_json_are_rejected_as_malformed(
    inbox: Inbox, rows: Rows, body: bytes
) -> None:
    answer = await deliver(inbox, "stripe", body)
    assert answer.outcome == (400, "malformed")
    assert set(answer.json) == {"error"} and set(answer.json["error"]) == {"code", "message"}
    assert rows(COUNT) == [(0,)]


@pytest.fixture(scope="module")
def sendgrid_keys() -> tuple[str, str]:
    """A private key that signs as SendGrid does, and its public key as SendGrid shows it."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), base64.b64encode(public).decode()


async def test_each_event_of_a_batch_has_a_receipt_with_its_exact_bytes(
    make_inbox: Callable[..., Inbox], rows: Rows, sendgrid_keys: tuple[str, str]
) -> None:
    private, public = sendgrid_keys
    inbox = make_inbox()
    inbox.source("sendgrid", secrets=[public], types=["delivered"])
    elements = [
        b'{"sg_event_id": "a",  "event":"delivered"}',
        b'{"event":"open","sg_event_id":"b"}',
        b'{"sg_event_id":"a","event":"delivered"}',
        b'{"no":"id"}',
        b'"not even an object"',
    ]
    body = b"[" + b",\n ".join(elements) + b"]"

    async def send() -> DeliveryResponse:
        headers, _ = sign(built_in("sendgrid"), body, private, now=inbox._runtime.clock.now())
        return await post(inbox, "sendgrid", body, headers)

    async with inbox.lifespan():
        first, again = await send(), await send()
    assert first.status == 202
    assert first.json == {"status": "accepted", "accepted": 1, "duplicate": 1, "ignored": 1, "failed": 2}
    assert again.status == 200
    assert again.json == {"status": "accepted", "accepted": 0, "duplicate": 5, "ignored": 0, "failed": 0}
    stored = {event_id: (status, bytes(body)) for event_id, status, body in rows(STORED)}
    assert stored["a"] == ("received", elements[0])
    assert stored["b"] == ("ignored", elements[1])
    assert sorted(element for status, element in stored.values() if status == "failed") == sorted(elements[3:])


async def test_secrets_and_event_ids_belong_to_one_source(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("live", provider="stripe", secrets=["whsec_live"])
    inbox.source("test", provider="stripe", secrets=["whsec_test"])
    body = stripe_body("evt_1")
    async with inbox.lifespan():
        crossed = await post(inbox, "live", body, stripe_headers(body, "whsec_test"))
        live = await post(inbox, "live", body, stripe_headers(body, "whsec_live"))
        test = await post(inbox, "test", body, stripe_headers(body, "whsec_test"))
    assert [crossed.status, live.status, test.status] == [401, 202, 202]
    assert rows("SELECT source, event_id FROM webhook_receipts ORDER BY 1") == [("live", "evt_1"), ("test", "evt_1")]


REJECTIONS: dict[str, tuple[str, dict[str, str], int, str]] = {
    "an unknown source": ("unknown", {}, 404, "unknown_source"),
    "no signature": ("stripe", {"Content-Type": "application/json"}, 401, "bad_signature"),
    "a compressed body": ("stripe", {"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
    "a multipart body": ("stripe", {"Content-Type": "Multipart/form-data; b=x"}, 415, "unsupported_media_type"),
    "a length that is no number": ("stripe", {"Content-Length": "5, 5"}, 400, "malformed"),
    "a length too large": ("stripe", {"Content-Length": str(2**20 + 1)}, 413, "too_large"),
    "a length with too many digits for a number": ("stripe", {"Content-Length": "9" * 5000}, 413, "too_large"),
}


@pytest.mark.parametrize(("source", "headers", "status", "code"), REJECTIONS.values(), ids=REJECTIONS.keys())
async def test_a_rejected_delivery_leaves_no_receipt(
    inbox: Inbox, rows: Rows, source: str, headers: dict[str, str], status: int, code: str
) -> None:
    body = stripe_body()
    signed = {} if code == "bad_signature" else stripe_headers(body)
    answer = await post(inbox, source, body, {**signed, **headers})
    assert answer.outcome == (status, code)
    assert set(answer.json) == {"error"} and set(answer.json["error"]) == {"code", "message"}
    assert rows(COUNT) == [(0,)]


async def test_a_body_of_the_largest_size_is_accepted_and_one_byte_more_is_rejected(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(max_body="10kB")
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.source("small", provider="stripe", secrets=["whsec_test"], max_body="200B")
    whole = stripe_body("evt_1", filler="")
    whole = stripe_body("evt_1", filler="x" * (10_000 - len(whole)))
    assert len(whole) == 10_000
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", whole)).status == 202
        assert (await deliver(inbox, "stripe", whole + b" ")).outcome == (413, "too_large")
        assert (await post(inbox, "small", whole, stripe_headers(whole))).outcome == (413, "too_large")
    assert rows("SELECT source FROM webhook_receipts") == [("stripe",)]


async def test_the_response_never_says_which_part_of_a_signature_was_wrong(inbox: Inbox) -> None:
    body = stripe_body()
    good = stripe_headers(body)["Stripe-Signature"]
    bad = ["", "x", good[:-1], good.replace("v1=", "v0="), good.replace("t=", "t=1"), f"{good[:20]},v1={'0' * 64}"]
    answers = [await post(inbox, "stripe", body, {"Stripe-Signature": value}) for value in bad]
    assert {answer.status for answer in answers} == {401}
    assert len({answer.body for answer in answers if b"bad_signature" in answer.body}) == 1


@contextlib.contextmanager
def database_unavailable(database: str, postgres: Postgres) -> Iterator[None]:
    """The database accepts no write for the length of the block."""
    if database.startswith("sqlite"):
        lock = sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        yield
        lock.close()
        return
    name = database.rpartition("/")[2]
    postgres.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    postgres.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    yield
    postgres.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@pytest.fixture
async def impatient(make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Inbox]:
    """An inbox with short timeouts for its database."""
    monkeypatch.setattr(sqlite, "BUSY_MS", 100)
    inbox = make_inbox(claim_timeout="500ms", duplicate_cache=0)  # SQLite would answer: it reads while it is locked
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.source("github", secrets=["github-secret"])
    async with inbox.lifespan():
        yield inbox


async def test_the_receiver_answers_503_without_its_database_and_accepts_afterwards(
    impatient: Inbox, database: str, postgres: Postgres, rows: Rows
) -> None:
    body = stripe_body("evt_1")
    assert (await deliver(impatient, "stripe", stripe_body("before"))).status == 202
    with database_unavailable(database, postgres):
        answers = await asyncio.gather(
            *(deliver(impatient, "stripe", b) for b in (body, body, stripe_body("evt_2"), stripe_body("before")))
        )
        with pytest.raises(StoreUnavailable):
            await impatient.ready()
    for answer in answers:
        assert answer.outcome == (503, "unavailable")
        assert int(answer.headers["retry-after"]) > 0
    await impatient.ready()
    assert (await deliver(impatient, "stripe", body)).outcome == (202, "accepted")
    assert rows("SELECT event_id FROM webhook_receipts ORDER BY 1") == [("before",), ("evt_1",)]


async def test_invalid_deliveries_are_rejected_without_a_database(
    impatient: Inbox, database: str, postgres: Postgres
) -> None:
    with database_unavailable(database, postgres):
        assert (await deliver(impatient, "stripe", stripe_body(), secret="whsec_wrong")).status == 401
        assert (await post(impatient, "unknown", b"", {})).status == 404


async def test_a_delivery_to_a_full_intake_gets_503_and_is_accepted_later(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(intake_limit=4)
    inbox.source("stripe", secrets=["whsec_test"])
    bodies = [stripe_body(f"evt_{n}") for n in range(40)]
    async with inbox.lifespan():
        answers = await asyncio.gather(*(deliver(inbox, "stripe", body) for body in bodies))
        assert {answer.status for answer in answers} == {202, 503}
        rejected = [body for body, answer in zip(bodies, answers, strict=True) if answer.status == 503]
        assert rows(COUNT) == [(40 - len(rejected),)]
        for body in rejected:
            assert (await deliver(inbox, "stripe", body)).status == 202
    assert rows(COUNT) == [(40,)]


async def test_github_events_are_identified_by_the_id_in_their_header(inbox: Inbox, rows: Rows) -> None:
    body = b'{"ref":"refs/heads/main","repository":{"full_name":"example/shop"}}'
    assert (await post(inbox, "github", body, github_headers(body, "guid-1"))).outcome == (202, "accepted")
    assert (await post(inbox, "github", body, github_headers(body, "guid-2"))).outcome == (202, "accepted")
    assert (await post(inbox, "github", body, github_headers(body, "guid-1"))).outcome == (200, "duplicate")
    assert rows("SELECT event_id, type, object_id FROM webhook_receipts ORDER BY 1") == [
        ("guid-1", "push", "example/shop"),
        ("guid-2", "push", "example/shop"),
    ]
