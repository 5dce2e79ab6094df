"""Redis may vanish, hang, lose or refuse anything: lookups return nothing, in time, and go on when it answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from oncehook.brokers import redis_cache
from oncehook.brokers.redis_cache import RedisCache
from oncehook.model.errors import ConfigurationError
from tests.support.redis_server import RedisServer, private_redis
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.system]

WITHOUT_HURRY = 30.0
"""Seconds that a healthy Redis has for its answer, however busy the machine is."""


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with private_redis() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    if shared_server.process is None:
        shared_server.start()
    shared_server.flush()
    return shared_server


@pytest.fixture
async def cache(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisCache]:
    monkeypatch.setattr(redis_cache, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(redis_cache, "MAX_PAUSE", 0.02)
    monkeypatch.setattr(redis_cache, "BUDGET", WITHOUT_HURRY)
    monkeypatch.setattr(redis_cache, "WRITE_SECONDS", WITHOUT_HURRY)
    cache = RedisCache(server.url)
    await cache.start()
    await eventually(lambda: cache.is_available, "a busy machine has answered the probe")
    yield cache
    await cache.stop()


async def test_values_are_stored_for_their_time(cache: RedisCache, server: RedisServer) -> None:
    await cache.put({b"one": b"\x00\xff", b"two": b"2"}, 3600)
    assert await cache.get([b"one", b"none", b"two"]) == [b"\x00\xff", None, b"2"]
    with server.client as client:
        assert 3590 < client.ttl("one") <= 3600


async def test_killed_redis_is_left_alone_until_it_answers_again(cache: RedisCache, server: RedisServer) -> None:
    await cache.put({b"one": b"1"}, 60)
    server.kill()
    assert await cache.get([b"one"]) == [None]
    assert not cache.is_available
    await cache.put({b"two": b"2"}, 60)
    server.start()
    await eventually(lambda: cache.is_available, "the cache is used again")
    assert await cache.get([b"one"]) == [None]
    await cache.put({b"two": b"2"}, 60)
    assert await cache.get([b"two"]) == [b"2"]


async def test_redis_that_hangs_costs_three_budgets_and_then_nothing(
    cache: RedisCache, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.put({b"one": b"1"}, 60)
    server.pause()
    monkeypatch.setattr(redis_cache, "BUDGET", 0.02)
    monkeypatch.setattr(redis_cache, "PROBE_SECONDS", 0.1)
    try:
        for _ in range(redis_cache.FAILURES):
            assert cache.is_available, "the cache is used until three lookups had no answer in time"
            assert await cache.get([b"one"]) == [None]
        assert not cache.is_available
        monkeypatch.setattr(redis_cache, "BUDGET", 3600.0)  # a lookup that asks Redis would not end
        async with asyncio.timeout(60):
            assert await cache.get([b"one"]) == [None]
    finally:
        server.resume()
    await eventually(lambda: cache.is_available, "the cache is used again")
    monkeypatch.setattr(redis_cache, "BUDGET", WITHOUT_HURRY)
    assert await cache.get([b"one"]) == [b"1"]


async def test_full_redis_that_refuses_writes_stays_usable(cache: RedisCache, server: RedisServer) -> None:
    await cache.put({b"one": b"1"}, 60)
    with server.client as client:
        client.config_set("maxmemory", "1mb")
        try:
            await cache.put({b"two": b"2" * 2**21}, 60)
            assert await cache.get([b"one", b"two"]) == [b"1", None]
        finally:
            client.config_set("maxmemory", "0")
    assert cache.is_available


async def test_redis_that_is_down_at_the_start_is_used_later(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_cache, "FIRST_PAUSE", 0.02)
    server.kill()
    cache = RedisCache(server.url)
    await cache.start()
    assert not cache.is_available
    server.start()
    await eventually(lambda: cache.is_available, "the cache is used")
    await cache.stop()


@pytest.mark.parametrize("url", ["host:6379", "http://host", ""])
def test_url_that_is_not_of_redis_is_a_configuration_error_without_the_url(url: str) -> None:
    with pytest.raises(ConfigurationError, match="redis is not a Redis URL: expected redis://"):
        RedisCache(url)


def test_missing_client_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "redis.asyncio", None)
    with pytest.raises(ConfigurationError, match=r"redis needs its client: pip install 'oncehook\[redis\]'"):
        RedisCache("redis://localhost")
