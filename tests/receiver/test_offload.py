"""The receiver stores large bodies in the payload store, and what it does while that store is down or slow."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import IntakeFull
from oncehook.model.states import State
from oncehook.receiver import offload
from oncehook.receiver.claim import ImmediateFuture
from oncehook.receiver.offload import OffloadingClaims
from oncehook.testing import deliver, drain
from tests.support.aws import Moto, environment
from tests.support.events import Rows, make_claim, stripe_body
from tests.support.payload_stores import BucketStore, FolderStore, large_body, large_inbox
from tests.support.proxy import proxied
from tests.support.serve import post_stripe, served
from tests.support.stores import open_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


class RecordingStep:
    """A claim step that records the claims that reach it."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    async def claim(self, claims: Any) -> list[Claimed]:
        self.claims += claims
        return [Claimed(1, True, State.RECEIVED, claim.fingerprint) for claim in claims]


def offloading(step: RecordingStep, store: Any, **options: Any) -> OffloadingClaims:
    return OffloadingClaims(step, store, **{"threshold": 10, "limit_bytes": 1000, "rejects": False, **options})


async def test_small_claims_are_passed_on_as_they_are(database: str) -> None:
    async with open_store(database) as store:
        step, claims = RecordingStep(), [make_claim("evt_1", body=b"0123456789")]
        await offloading(step, store).claim(claims)
        assert step.claims == claims


async def test_only_the_large_events_of_a_delivery_get_objects(database: str, tmp_path: Path) -> None:
    folder = FolderStore(tmp_path / "payloads")
    async with open_store(database, payload_store=folder.address) as store:
        step = RecordingStep()
        claims = [make_claim(f"evt_{n}", body=b"x" * n) for n in (5, 20, 30)]
        await offloading(step, store).claim(claims)
        assert [(len(claim.body), claim.object is None) for claim in step.claims] == [(5, True), (0, False), (0, False)]
        assert sorted(folder.objects().values()) == [b"x" * 20, b"x" * 30]


async def test_caller_without_a_task_gets_the_result_and_the_error(database: str, tmp_path: Path) -> None:
    async with open_store(database, payload_store=f"file://{tmp_path}/payloads") as store:
        step = offloading(RecordingStep(), store)
        results: list[Any] = []

        def run(coroutine: Any) -> None:
            try:
                waiter: ImmediateFuture[list[Claimed]] = coroutine.send(None)
                waiter.add_done_callback(lambda _: run(coroutine))
            except (StopIteration, IntakeFull) as end:
                results.append(end)

        asyncio.get_running_loop().call_soon(lambda: run(step.claim([make_claim("evt_1", body=b"x" * 20)])))
        await eventually(lambda: results, "the caller has its result")
        assert results[0].value[0].fresh


async def test_intake_is_bounded_in_bytes(database: str, tmp_path: Path) -> None:
    async with open_store(database, payload_store=f"file://{tmp_path}/payloads") as store:
        step = offloading(RecordingStep(), store)
        claims = [[make_claim(f"evt_{n}", body=b"x" * 600)] for n in range(2)]
        results = await asyncio.gather(*map(step.claim, claims), return_exceptions=True)
        assert [type(result) for result in results] == [list, IntakeFull]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", ["refuse", "stall"])
@pytest.mark.parametrize("fallback", ["database", "reject"])
async def test_store_that_is_down_affects_large_bodies_only(
    make_inbox: Callable[..., Inbox],
    rows: Rows,
    moto: Moto,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    fallback: str,
) -> None:
    monkeypatch.setattr(offload, "WRITE_SECONDS", 0.2)
    bucket = BucketStore(moto)
    async with proxied(f"{moto.url}/") as (proxy, url):
        for name, value in environment(url.rstrip("/")).items():
            monkeypatch.setenv(name, value)
        inbox = large_inbox(make_inbox, bucket, payload_fallback=fallback)
        async with inbox.lifespan():
            getattr(proxy, fault)()
            small = await deliver(inbox, "stripe", stripe_body("evt_small"))
            large = await deliver(inbox, "stripe", large_body("evt_large"))
            proxy.accept()
            proxy.flow()
            assert small.status == 202
            assert large.outcome == ((202, "accepted") if fallback == "database" else (503, "unavailable"))
            again = await deliver(inbox, "stripe", large_body("evt_large"))
            assert again.outcome == ((200, "duplicate") if fallback == "database" else (202, "accepted"))
            stored = rows("SELECT object IS NULL FROM webhook_payloads ORDER BY receipt_id")
            assert [bool(inline) for (inline,) in stored] == [True, fallback == "database"]


async def test_large_body_over_the_fast_protocol_is_an_object(
    make_inbox: Callable[..., Inbox], tmp_path: Path, rows: Rows
) -> None:
    folder = FolderStore(tmp_path / "payloads")
    inbox = large_inbox(make_inbox, folder)
    body = large_body("evt_1")
    async with served(inbox) as port:
        assert (await asyncio.to_thread(post_stripe, port, body)).status_code == 202
        assert list(folder.objects().values()) == [body]
        ((address,),) = rows("SELECT object FROM webhook_payloads")
        assert address in folder.objects()


async def test_events_wait_without_an_attempt_until_the_store_answers_again(
    make_inbox: Callable[..., Inbox], tmp_path: Path, rows: Rows
) -> None:
    folder = FolderStore(tmp_path / "payloads")
    inbox = large_inbox(make_inbox, folder)
    seen: list[str] = []

    @inbox.on("stripe", "*")
    async def paid(event: Any) -> None:
        seen.append(event.id)

    async with inbox.lifespan():
        await deliver(inbox, "stripe", large_body("evt_large"))
        await deliver(inbox, "stripe", stripe_body("evt_small"))
        folder.folder.rename(tmp_path / "elsewhere")
        await drain(inbox)
        assert seen == ["evt_small"], "its neighbour is handled"
        assert rows("SELECT status, attempts FROM webhook_receipts WHERE event_id = 'evt_large'") == [("received", 0)]
        (tmp_path / "elsewhere").rename(folder.folder)
        await drain(inbox, later=True)
        assert seen == ["evt_small", "evt_large"]
