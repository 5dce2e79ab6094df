"""Who asks: passwords, tokens, and the sessions that a sign-in gives.

Of a password or a token only a hash is configured. A session is a signed cookie and no row: it names who signed in and
until when. Its signature covers the hash that it was earned with, so it ends when that is changed or taken out.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

import msgspec

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.secret import resolve
from oncehook.web.settings import ROLES, SCOPES, DashboardSettings

COST = 15
"""log2 of scrypt's N: 32 MiB and about a tenth of a second for each guess."""

NOBODY = f"scrypt:{COST}:{'A' * 22}:{'A' * 43}"
"""The hash that an unknown name is compared with, so that it takes as long as a known one."""

TRIES = 10
TRIES_SECONDS = 300.0
"""So many failed sign-ins of one name from one address within so many seconds; then the pace is slowed down."""

PACE = 10.0
"""Seconds from one sign-in to the next that is looked at, at the slow pace."""

MOST_WAITING, MOST_WAITING_IN_ALL = 3, 50
"""How many sign-ins of one name from one address, and of all, wait at the slow pace; more are told to come again."""

GUESSES, GUESSES_OF_ONE = 20, 3
"""How many passwords may wait to be looked at: of all addresses, and of one, so that nobody fills the queue alone."""

REMEMBERED = 10_000
RUN = "run"
"""Who holds the token that `serve` prints."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who proved who they are, and what they may do."""

    name: str
    scopes: frozenset[str]
    session: str | None = None  # of a browser; a token has none
    csrf: str = ""

    def may(self, scope: str) -> bool:
        return scope in self.scopes


class Busy(Exception):
    """Too many sign-ins at once."""


class Session(msgspec.Struct, array_like=True):
    """What the cookie says; its signature says that we wrote it."""

    name: str
    id: str
    until: int


# -- hashes -----------------------------------------------------------------------------------------------------------


def hash_password(password: str, salt: bytes | None = None, cost: int = COST) -> str:
    salt = salt or secrets.token_bytes(16)
    digest = hashlib.scrypt(password.encode(), salt=salt, n=2**cost, r=8, p=1, dklen=32, maxmem=2 ** (cost + 11))
    return f"scrypt:{cost}:{_text(salt)}:{_text(digest)}"


def is_password(password: str, hashed: str) -> bool:
    """In the same time for every wrong one."""
    _, cost, salt, _ = hashed.split(":")
    return hmac.compare_digest(hash_password(password, _bytes(salt), int(cost)), hashed)


def make_token() -> str:
    return "oh_" + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """A token is random and long: nobody can guess through a plain hash of it."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


# -- access -----------------------------------------------------------------------------------------------------------


class Access:
    """Who may come in, by the configuration; `run_key` is of this run, and shared by its processes."""

    def __init__(self, settings: DashboardSettings, run_key: bytes, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self.clock = clock
        configured = settings.session_key and resolve(settings.session_key, "dashboard.session_key").encode()
        self._key = hashlib.sha256(b"session" + (configured or run_key)).digest()
        self.is_open = not settings.users and not settings.tokens
        self.run_token = _text(_mac(run_key, "token")) if self.is_open else None
        # name → (hash, scopes): what each one has to prove, and what it may do then
        self._users = {f"user:{name}": (user.password, ROLES[user.role]) for name, user in settings.users.items()}
        self._tokens = {f"token:{n}": (t.token, frozenset(t.scopes)) for n, t in settings.tokens.items()}
        if self.run_token is not None:
            self._tokens[RUN] = hash_token(self.run_token), frozenset(SCOPES)
        self._hashing = asyncio.Semaphore(1)  # guesses wait for each other, and the door for none of them
        self._guesses: Counter[str] = Counter()  # how many wait, by address
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.throttle = Throttle(clock)

    @property
    def has_users(self) -> bool:
        return bool(self._users)

    async def by_password(self, name: str, password: str, address: str = "") -> str | None:
        """Who signed in, or None. Raises Busy when too many wait, of all or of this address."""
        known = self._users.get(f"user:{name}")
        if self._guesses.total() >= GUESSES or self._guesses[address] >= GUESSES_OF_ONE:
            raise Busy
        self._guesses[address] += 1
        try:
            async with self._hashing:
                right = await asyncio.to_thread(is_password, password, known[0] if known else NOBODY)
        finally:
            self._guesses[address] -= 1
            self._guesses += Counter()  # without those that are 0
        return f"user:{name}" if right and known else None

    def by_token(self, token: str) -> Principal | None:
        given, found = hash_token(token), None
        for name, (hashed, scopes) in self._tokens.items():
            if hmac.compare_digest(given, hashed):
                found = Principal(name, scopes)
        return found

    def is_run_token(self, token: str) -> bool:
        """Whether this is the token that `serve` printed."""
        return self.run_token is not None and hmac.compare_digest(hash_token(token), hash_token(self.run_token))

    # -- sessions -------------------------------------------------------------------------------------------------

    def start_session(self, name: str) -> str:
        """The value of a cookie."""
        until = int(self.clock.now() + self.settings.session_length)
        body = _text(msgspec.json.encode(Session(name, secrets.token_hex(16), until)))
        return f"{body}.{self._sign(name, body)}"

    def by_session(self, cookie: str) -> Principal | None:
        """Who a cookie is of; None for one that is not ours, has ended, or whose user is not there any more."""
        body, _, signature = cookie.partition(".")
        try:
            session = msgspec.json.decode(_bytes(body), type=Session)
        except (ValueError, msgspec.MsgspecError):
            return None
        known = (self._users | self._tokens).get(session.name)
        if known is None or not hmac.compare_digest(self._sign(session.name, body).encode(), signature.encode()):
            return None
        if session.until < self.clock.now() or session.id in self._ended:
            return None
        return Principal(session.name, known[1], session.id, _text(_mac(self._key, f"csrf {session.id}")))

    def end_session(self, principal: Principal) -> None:
        """Its cookie counts for nothing from here on, in this process; the browser forgets it everywhere."""
        if principal.session is not None:
            self._ended[principal.session] = None
            while len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)

    def _sign(self, name: str, body: str) -> str:
        hashed, _ = (self._users | self._tokens).get(name, ("", None))
        return _text(_mac(self._key, f"{hashed} {body}"))


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


Key = tuple[str, str]


class Failures:
    """The last failed sign-ins of one name from one address."""

    __slots__ = ("next", "times")

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=TRIES)
        self.next = 0.0  # when the next sign-in is looked at, at the slow pace


class Throttle:
    """Slows down sign-ins by address and name: after TRIES failures within TRIES_SECONDS, one each PACE seconds.

    A right password is never rejected unread, or whoever knows a name could lock its owner out.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self._failed: OrderedDict[Key, Failures] = OrderedDict()
        self._waiting = 0

    async def wait(self, key: Key) -> None:
        """Return when this sign-in may be looked at. Raises Busy when too many wait."""
        seconds = self._reserve(key)
        if seconds <= 0:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1

    def _reserve(self, key: Key) -> float:
        """Seconds until this sign-in may be looked at."""
        failures, now = self._failed.get(key), self.clock.monotonic()
        if failures is None or len(failures.times) < TRIES or failures.times[0] + TRIES_SECONDS < now:
            return 0.0
        at = max(now, failures.next)
        if at - now > PACE * MOST_WAITING or self._waiting >= MOST_WAITING_IN_ALL:
            raise Busy
        failures.next = at + PACE
        return at - now

    def failed(self, key: Key) -> None:
        now = self.clock.monotonic()
        failures = self._failed.setdefault(key, Failures())
        failures.times.append(now)
        failures.next = max(failures.next, now + PACE)
        self._failed.move_to_end(key)
        while len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)

    def succeeded(self, key: Key) -> None:
        self._failed.pop(key, None)
