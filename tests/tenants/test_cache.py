"""The cache of tenants: bounds, times to live, single flight, floods of made-up tenants and lookups that fail."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, RateLimited, Unavailable
from oncehook.model.tenant import TenantLimits
from oncehook.tenants.cache import FAILED_SECONDS, UNKNOWN_SECONDS, TenantCache, make_cache
from tests.support.clocks import ManualClock
from tests.support.events import stripe_body, stripe_headers
from tests.support.providers import make_source
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio

LIMITS = TenantLimits(cache=100, ttl=60.0, stale=600.0, lookups=50.0)


class Directory:
    """The tenants of a user. Tests let it fail, hang or change."""

    def __init__(self, *tenants: str) -> None:
        self.secrets: dict[str, Sequence[str]] = {tenant: [f"whsec_{tenant}"] for tenant in tenants}
        self.calls: Counter[str] = Counter()
        self.error: Exception | None = None
        self.answering = asyncio.Event()
        self.answering.set()

    async def find(self, tenant: str) -> Sequence[str] | None:
        self.calls[tenant] += 1
        await self.answering.wait()
        if self.error is not None:
            raise self.error
        return self.secrets.get(tenant)

    def reset(self) -> None: ...


def make_tenants(directory: Directory, clock: ManualClock, limits: TenantLimits = LIMITS) -> TenantCache:
    return TenantCache(make_source("stripe", tenants=limits, secrets=[]), directory, limits, clock)


Lines = Callable[[], list[dict[str, Any]]]


def failed_lookups(lines: Lines) -> list[dict[str, Any]]:
    return [line for line in lines() if line["event"] == "tenant_lookup_failed"]


async def test_known_tenant_is_looked_up_once_until_its_time_to_live_ends() -> None:
    directory, clock = Directory("acme"), ManualClock()
    cache = make_tenants(directory, clock)
    assert cache.get("acme") is None
    source = await cache.find("acme")
    assert source is not None and source.tenant == "acme" and source.name == "here"
    assert await cache.find("acme") is source is cache.get("acme")
    clock.advance(LIMITS.ttl)
    assert cache.get("acme") is None
    directory.secrets["acme"] = ["whsec_new"]
    renewed = await cache.find("acme")
    assert renewed is not source and directory.calls["acme"] == 2


async def test_unknown_tenant_is_cached_too_and_for_a_shorter_time() -> None:
    directory, clock = Directory(), ManualClock()
    cache = make_tenants(directory, clock)
    for _ in range(5):
        assert await cache.find("acme") is None
    assert directory.calls["acme"] == 1
    directory.secrets["acme"] = ["whsec_acme"]
    clock.advance(UNKNOWN_SECONDS)
    assert await cache.find("acme") is not None


@pytest.mark.parametrize("secrets", [None, []])
async def test_no_secrets_means_unknown(secrets: Any) -> None:
    directory = Directory()
    directory.secrets["acme"] = secrets
    assert await make_tenants(directory, ManualClock()).find("acme") is None


async def test_name_that_no_tenant_can_have_is_never_looked_up() -> None:
    directory = Directory()
    cache = make_tenants(directory, ManualClock())
    for name in ("", "a/b", "../x", "a" * 129, "ümlaut"):
        assert await cache.find(name) is None
    assert not directory.calls and len(cache) == 0


async def test_concurrent_deliveries_to_a_tenant_share_one_lookup() -> None:
    directory = Directory("acme")
    directory.answering.clear()
    cache = make_tenants(directory, ManualClock())
    finds = [asyncio.create_task(cache.find("acme")) for _ in range(50)]
    await next_turn()
    finds[0].cancel()  # a client that disconnects does not end the lookup of the others
    directory.answering.set()
    sources = await asyncio.gather(*finds[1:])
    assert len(set(map(id, sources))) == 1 and directory.calls["acme"] == 1


async def test_flood_of_made_up_tenants_neither_grows_memory_nor_reaches_the_lookup_without_limit() -> None:
    directory, clock = Directory("acme"), ManualClock()
    cache = make_tenants(directory, clock)
    await cache.find("acme")
    unavailable = 0
    for number in range(10_000):
        clock.advance(0.001)
        try:
            assert await cache.find(f"made-up-{number}") is None
        except Unavailable as error:
            assert error.retry_after >= 1
            unavailable += 1
    assert sum(directory.calls.values()) <= 1 + 50 + 10 * 50  # the burst, and 50 in each of 10 seconds
    assert unavailable >= 9_000 and len(cache) <= 101
    assert cache.get("acme") is not None, "made-up tenants displaced a known one"


async def test_flood_of_made_up_tenants_logs_one_line_per_second(lines: Lines) -> None:
    clock = ManualClock()
    cache = make_tenants(Directory("acme"), clock)
    for number in range(200):
        clock.advance(0.005)
        with suppress(Unavailable):
            await cache.find(f"made-up-{number}")
    exceeded = [line for line in lines() if line["event"] == "tenant_lookups_exceeded"]
    assert len(exceeded) == 1, "strangers must not be able to fill the log"


async def test_known_tenant_is_renewed_during_a_flood() -> None:
    directory, clock = Directory("acme"), ManualClock()
    cache = make_tenants(directory, clock)
    await cache.find("acme")
    clock.advance(LIMITS.ttl)
    for number in range(100):
        try:
            await cache.find(f"made-up-{number}")
        except Unavailable:
            break
    directory.secrets["acme"] = []
    assert await cache.find("acme") is None, "the flood kept a removed tenant alive"


async def test_least_recently_used_tenant_leaves_a_full_cache() -> None:
    directory, clock = Directory(*(f"t{number}" for number in range(4))), ManualClock()
    cache = make_tenants(directory, clock, TenantLimits(cache=3))
    for tenant in ("t0", "t1", "t2"):
        await cache.find(tenant)
    assert cache.get("t0") is not None
    await cache.find("t3")
    assert cache.get("t1") is None and cache.get("t0") is not None and len(cache) == 3


async def test_failing_lookup_is_unavailable_and_is_not_repeated_for_every_delivery(lines: Lines) -> None:
    directory, clock = Directory(), ManualClock()
    directory.error = RuntimeError("the password is whsec_acme")
    cache = make_tenants(directory, clock)
    for _ in range(5):
        with pytest.raises(Unavailable, match="could not be looked up: RuntimeError"):
            await cache.find("acme")
    assert directory.calls["acme"] == 1
    clock.advance(FAILED_SECONDS)
    directory.error = None
    assert await cache.find("acme") is None
    line, *others = failed_lookups(lines)
    assert not others and (line["source"], line["tenant"], line["error"]) == ("here", "acme", "RuntimeError")
    assert "whsec_acme" not in str(lines())


async def test_cached_tenant_keeps_its_secrets_while_lookups_fail_but_not_forever() -> None:
    directory, clock = Directory("acme"), ManualClock()
    cache = make_tenants(directory, clock)
    source = await cache.find("acme")
    directory.error = OSError("down")
    clock.advance(LIMITS.ttl)
    for _ in range(10):
        assert await cache.find("acme") is source
    assert directory.calls["acme"] == 2, "deliveries waited for a lookup that had just failed"
    clock.advance(LIMITS.stale - FAILED_SECONDS / 2)
    assert await cache.find("acme") is source
    clock.advance(FAILED_SECONDS / 2)
    with pytest.raises(Unavailable):
        await cache.find("acme")
    directory.error = None
    clock.advance(FAILED_SECONDS)
    assert await cache.find("acme") is not None


async def test_secret_that_cannot_be_used_is_unavailable_and_is_not_logged(lines: Lines) -> None:
    directory = Directory("acme")
    directory.secrets["acme"] = ["whsec_ok", "   "]
    with pytest.raises(Unavailable):
        await make_tenants(directory, ManualClock()).find("acme")
    (line,) = failed_lookups(lines)
    assert "sources.here/acme.secrets[1] cannot be used: it is empty" in line["detail"]
    assert "whsec_ok" not in str(lines())


async def test_failures_are_logged_once_a_second_with_their_number(lines: Lines) -> None:
    directory, clock = Directory(), ManualClock()
    directory.error = OSError("down")
    cache = make_tenants(directory, clock)
    for number in range(20):
        with pytest.raises(Unavailable):
            await cache.find(f"t{number}")
    clock.advance(1.0)
    with pytest.raises(Unavailable):
        await cache.find("t20")
    assert [line["failures"] for line in failed_lookups(lines)] == [1, 20]


@pytest.mark.parametrize(
    "forget", [lambda cache: cache.discard("acme"), TenantCache.clear], ids=["one tenant", "all tenants"]
)
async def test_forgotten_tenant_is_looked_up_again_and_a_running_lookup_is_not_stored(
    forget: Callable[[TenantCache], None],
) -> None:
    directory, clock = Directory("acme"), ManualClock()
    directory.answering.clear()
    cache = make_tenants(directory, clock)
    find = asyncio.create_task(cache.find("acme"))
    await next_turn()
    forget(cache)
    directory.answering.set()
    assert await find is not None
    assert cache.get("acme") is None and await cache.find("acme") is not None
    assert directory.calls["acme"] == 2


async def test_stop_ends_running_lookups_and_their_deliveries_are_unavailable() -> None:
    directory = Directory("acme")
    directory.answering.clear()
    cache = make_tenants(directory, ManualClock())
    find = asyncio.create_task(cache.find("acme"))
    await next_turn()
    await cache.stop()
    with pytest.raises(Unavailable, match="stopping"):
        await find
    directory.answering.set()
    assert await cache.find("acme") is not None


async def test_rate_limits_the_verified_deliveries_of_each_tenant() -> None:
    directory, clock = Directory("acme", "other"), ManualClock()
    limits = TenantLimits(rate=2.0, ttl=5.0)
    cache = make_tenants(directory, clock, limits)
    body = stripe_body()
    delivery = Delivery.of(body, stripe_headers(body))

    async def read(tenant: str) -> int:
        source = await cache.find(tenant)
        assert source is not None
        return len(source.read(delivery, source.parse(delivery)))

    assert await read("acme") == await read("acme") == 1
    with pytest.raises(RateLimited) as caught:
        await read("acme")
    assert caught.value.retry_after == 1
    assert await read("other") == 1
    cache.discard("other")
    clock.advance(0.1)
    with pytest.raises(RateLimited):
        await read("acme")
    clock.advance(0.9)
    assert await read("acme") == 1


async def test_renewal_of_the_secrets_does_not_renew_the_rate() -> None:
    directory, clock = Directory("acme"), ManualClock()
    cache = make_tenants(directory, clock, TenantLimits(rate=0.1, ttl=1.0))
    body = stripe_body()
    delivery = Delivery.of(body, stripe_headers(body))
    source = await cache.find("acme")
    assert source is not None
    source.read(delivery, source.parse(delivery))
    clock.advance(2.0)
    renewed = await cache.find("acme")
    assert renewed is not None and renewed is not source
    with pytest.raises(RateLimited):
        renewed.read(delivery, renewed.parse(delivery))


def test_function_of_the_user_is_checked_when_the_source_is_added() -> None:
    source = make_source("stripe", tenants=True, secrets=[])
    with pytest.raises(ConfigurationError, match="cannot be called with one argument"):
        make_cache(source, lambda: ["secret"])  # type: ignore[arg-type, misc]
    assert make_cache(source, lambda tenant: [tenant]).limits == TenantLimits()
    with pytest.raises(ConfigurationError, match="tenants = false"):
        make_cache(make_source("stripe"), lambda tenant: [tenant])


async def test_lookup_that_ignores_its_time_limit_is_ended_by_the_cache() -> None:
    directory = Directory("acme")
    directory.answering.clear()
    cache = make_tenants(directory, ManualClock(), TenantLimits(timeout=0.01))
    with pytest.raises(Unavailable, match="TimeoutError"):
        await cache.find("acme")


async def test_stop_also_ends_the_lookup_of_a_discarded_tenant() -> None:
    directory = Directory("acme")
    directory.answering.clear()
    cache = make_tenants(directory, ManualClock())
    find = asyncio.create_task(cache.find("acme"))
    await next_turn()
    cache.discard("acme")
    await cache.stop()
    with pytest.raises(Unavailable, match="stopping"):
        await find
