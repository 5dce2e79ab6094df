"""The cache of the doctor's findings and the use of secrets."""

import time

import pytest

from oncehook import Inbox
from oncehook.concurrency.clock import Clock
from oncehook.testing import deliver
from oncehook.web.doctor import MAX_AGE, DiagnosisCache
from tests.support.dashboard import send
from tests.support.events import stripe_body
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


class StoppedClock(Clock):
    """A clock that stands still until a test moves it."""

    seconds = 0.0

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return self.seconds


async def reject(inbox: Inbox, event_id: str, secret: str) -> None:
    """Sends a delivery with a wrong secret and waits for its sample."""
    count = len(await inbox._runtime.store.rejections.find("stripe"))
    await deliver(inbox, "stripe", stripe_body(event_id), secret=secret)

    async def is_stored() -> bool:
        return len(await inbox._runtime.store.rejections.find("stripe")) > count

    await eventually(is_stored, "the sample of the rejection is stored")


async def test_newest_sample_of_a_source_comes_with_findings(inbox: Inbox) -> None:
    await reject(inbox, "evt_1", "github-secret")
    cases, _ = await DiagnosisCache(inbox._runtime).get()
    assert set(cases) == {"stripe"} and cases["stripe"]["reason"] == "bad_signature"
    (finding,) = cases["stripe"]["findings"]
    assert "source github" in finding["shows"] and finding["remedy"]


async def test_secrets_are_listed_by_source_with_their_use(inbox: Inbox) -> None:
    await send(inbox, "evt_1")
    await inbox._runtime.reception.secret_uses.write()
    _, secrets = await DiagnosisCache(inbox._runtime).get()
    assert set(secrets) == {"stripe", "github"}
    assert [use["verified"] for use in secrets["stripe"]] == [1]
    assert "whsec_test" not in str(secrets), "a secret must never be shown"


async def test_findings_are_refreshed_after_the_maximum_age_only(inbox: Inbox) -> None:
    clock = StoppedClock()
    cache = DiagnosisCache(inbox._runtime, clock)
    assert await cache.get() == ({}, (await cache.get())[1])
    await reject(inbox, "evt_1", "github-secret")
    assert (await cache.get())[0] == {}
    clock.seconds += MAX_AGE
    assert set((await cache.get())[0]) == {"stripe"}
