"""Hashes of passwords and tokens, sessions, and the throttle of sign-ins."""

import asyncio
import time
from typing import Any

import pytest

from oncehook.concurrency.clock import Clock
from oncehook.web import auth
from oncehook.web.auth import (
    MAX_FAILURES,
    MAX_HASHING_PER_ADDRESS,
    MAX_WAITING_PER_KEY,
    THROTTLE_INTERVAL,
    Access,
    Busy,
    Throttle,
    hash_password,
    hash_token,
    is_password,
    make_token,
)
from oncehook.web.settings import read_dashboard
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio
HASH = hash_password("right password", cost=4)
TABLE: dict[str, Any] = {
    "session_key": "a long and random session key",
    "users": {"vera": {"password": HASH, "role": "viewer"}, "otto": {"password": HASH, "role": "operator"}},
    "tokens": {"ci": {"token": hash_token("token of ci"), "scopes": ["read", "replay"]}},
}


class MovableClock(Clock):
    """A clock that a test moves forward."""

    ahead = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return self.ahead


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def access(clock: MovableClock) -> Access:
    return Access(read_dashboard(TABLE), b"key", clock)


# -- hashes ---------------------------------------------------------------------------------------------------------


def test_each_password_hash_has_its_own_salt() -> None:
    first, second = hash_password("a password"), hash_password("a password")
    assert first != second and "a password" not in first
    assert is_password("a password", first) and is_password("a password", second)
    assert not is_password("a Password", first)


def test_tokens_are_random_and_only_their_hash_is_stored() -> None:
    first, second = make_token(), make_token()
    assert first != second and len(first) > 40
    assert first not in hash_token(first) and hash_token(first) == hash_token(first)


@pytest.mark.system  # it measures time
async def test_unknown_user_takes_as_long_as_a_wrong_password() -> None:
    access = Access(read_dashboard({"users": {"vera": {"password": hash_password("right")}}}), b"key")

    async def measure(name: str) -> float:
        started = time.perf_counter()
        assert await access.check_password(name, "wrong") is None
        return time.perf_counter() - started

    known = min([await measure("vera") for _ in range(2)])
    unknown = min([await measure("mallory") for _ in range(2)])
    assert unknown > known / 3, "the response time must not reveal which users exist"


async def test_right_password_returns_the_name_of_the_principal(access: Access) -> None:
    assert await access.check_password("vera", "right password") == "user:vera"
    assert await access.check_password("vera", "wrong") is None


async def test_one_address_cannot_fill_the_queue_of_passwords(access: Access) -> None:
    await access._hash_lock.acquire()  # so that no password is checked yet
    waiting = [
        asyncio.create_task(access.check_password("vera", "wrong", "203.0.113.9"))
        for _ in range(MAX_HASHING_PER_ADDRESS)
    ]
    await next_turn()
    with pytest.raises(Busy):
        await access.check_password("vera", "wrong", "203.0.113.9")
    other = asyncio.create_task(access.check_password("vera", "right password", "198.51.100.7"))
    access._hash_lock.release()
    assert await other == "user:vera", "a client at another address must still get through"
    assert await asyncio.gather(*waiting) == [None] * MAX_HASHING_PER_ADDRESS


# -- sessions and tokens --------------------------------------------------------------------------------------------


def test_session_holds_the_user_and_expires(access: Access, clock: MovableClock) -> None:
    cookie = access.start_session("user:vera")
    principal = access.check_session(cookie)
    assert principal is not None and principal.name == "user:vera" and principal.scopes == {"read"} and principal.csrf
    clock.ahead = 12 * 3600 - 60
    assert access.check_session(cookie) is not None
    clock.ahead = 12 * 3600 + 60
    assert access.check_session(cookie) is None


def test_changed_cookie_is_never_a_session(access: Access) -> None:
    cookie = access.start_session("user:vera")
    body, _, signature = cookie.partition(".")
    other = access.start_session("user:otto").partition(".")[0]
    forged = [f"{other}.{signature}", body, f"{body}.", f".{signature}", "", ".", "é.é", cookie[:-1], cookie + "A"]
    forged += [f"{body}.{signature[:i]}{'A' if signature[i] != 'A' else 'B'}{signature[i + 1 :]}" for i in (0, 10, 41)]
    assert [cookie for cookie in forged if access.check_session(cookie) is not None] == []


def test_session_ends_when_its_password_changes_or_its_user_is_removed(access: Access) -> None:
    cookie = access.start_session("user:vera")
    changed = {**TABLE, "users": {"vera": {"password": hash_password("another", cost=4)}}}
    assert Access(read_dashboard(changed), b"key").check_session(cookie) is None
    assert Access(read_dashboard({**TABLE, "users": {}}), b"key").check_session(cookie) is None
    assert Access(read_dashboard(TABLE), b"another run").check_session(cookie) is not None


def test_without_a_session_key_a_session_is_valid_for_one_run_only() -> None:
    settings = read_dashboard({name: value for name, value in TABLE.items() if name != "session_key"})
    cookie = Access(settings, b"one run").start_session("user:vera")
    assert Access(settings, b"one run").check_session(cookie) is not None
    assert Access(settings, b"another run").check_session(cookie) is None


def test_signed_out_session_is_revoked_and_others_are_not(access: Access) -> None:
    first, second = access.start_session("user:vera"), access.start_session("user:vera")
    principal = access.check_session(first)
    assert principal is not None
    access.end_session(principal)
    assert access.check_session(first) is None and access.check_session(second) is not None


def test_oldest_signed_out_sessions_are_forgotten_first(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_REMEMBERED", 2)
    cookies = [access.start_session("user:vera") for _ in range(4)]
    for cookie in cookies:
        principal = access.check_session(cookie)
        assert principal is not None
        access.end_session(principal)
    assert [access.check_session(cookie) is None for cookie in cookies] == [False, False, True, True]


def test_token_has_its_configured_scopes_only(access: Access) -> None:
    principal = access.check_token("token of ci")
    assert principal is not None and principal.scopes == {"read", "replay"} and not principal.may("admin")
    assert access.check_token("token of c") is None and access.check_token("") is None
    assert access.check_token(hash_token("token of ci")) is None, "the hash in the configuration must not be a token"


def test_run_token_exists_only_without_users_and_tokens(access: Access) -> None:
    unconfigured = Access(read_dashboard({}), b"key")
    assert unconfigured.uses_run_token and unconfigured.run_token is not None
    assert unconfigured.is_run_token(unconfigured.run_token) and not unconfigured.is_run_token("wrong")
    principal = unconfigured.check_token(unconfigured.run_token)
    assert principal is not None and principal.name == "run" and principal.may("admin")
    assert access.run_token is None and not access.is_run_token("")


# -- the throttle ---------------------------------------------------------------------------------------------------

KEY = ("203.0.113.9", "otto")


def fail_often(throttle: Throttle) -> None:
    for _ in range(MAX_FAILURES):
        throttle.failed(KEY)


def test_throttle_delays_only_the_name_and_address_that_failed(clock: MovableClock) -> None:
    throttle = Throttle(clock)
    fail_often(throttle)
    assert throttle._reserve(("198.51.100.7", "otto")) == 0, "another address must not be delayed"
    assert throttle._reserve(("203.0.113.9", "vera")) == 0, "another name must not be delayed"
    assert throttle._reserve(KEY) == THROTTLE_INTERVAL


def test_throttled_sign_ins_get_one_slot_per_interval_and_then_are_busy(clock: MovableClock) -> None:
    throttle = Throttle(clock)
    fail_often(throttle)
    waits = [throttle._reserve(KEY) for _ in range(MAX_WAITING_PER_KEY)]
    assert waits == [THROTTLE_INTERVAL * n for n in range(1, MAX_WAITING_PER_KEY + 1)]
    with pytest.raises(Busy):
        throttle._reserve(KEY)


def test_throttle_ends_after_a_success_and_after_the_failure_window(clock: MovableClock) -> None:
    throttle = Throttle(clock)
    fail_often(throttle)
    throttle.succeeded(KEY)
    assert throttle._reserve(KEY) == 0
    fail_often(throttle)
    clock.ahead += auth.FAILURE_WINDOW + 1
    assert throttle._reserve(KEY) == 0


async def test_throttled_sign_in_waits_for_its_slot(clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "THROTTLE_INTERVAL", 0.01)
    throttle = Throttle(clock)
    fail_often(throttle)
    started = time.monotonic()
    await throttle.wait(KEY)
    assert time.monotonic() - started >= 0.009


def test_throttle_forgets_the_oldest_keys(clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_REMEMBERED", 5)
    throttle = Throttle(clock)
    for number in range(20):
        throttle.failed((f"192.0.2.{number}", "otto"))
    assert list(throttle._failed) == [(f"192.0.2.{number}", "otto") for number in range(15, 20)]
