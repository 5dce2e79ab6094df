"""Authentication: passwords, tokens, and the sessions of signed-in users.

The configuration holds only hashes of passwords and tokens. A session is a signed cookie, not a row: it holds the
user's name and an expiry time. The signature covers the hash of the credential. Changing or removing the credential
therefore ends its sessions.
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
"""log2 of scrypt's N: each guess takes 32 MiB and about a tenth of a second."""

UNKNOWN_USER_HASH = f"scrypt:{COST}:{'A' * 22}:{'A' * 43}"
"""Passwords of unknown users are compared with this hash, so that response times do not reveal which users exist."""

MAX_FAILURES = 10
FAILURE_WINDOW = 300.0
"""After MAX_FAILURES failures for one name from one address within FAILURE_WINDOW seconds, sign-ins are throttled."""

THROTTLE_INTERVAL = 10.0
"""A throttled name and address gets one sign-in every THROTTLE_INTERVAL seconds."""

MAX_WAITING_PER_KEY, MAX_WAITING = 3, 50
"""How many throttled sign-ins may wait: for one name and address, and in total. Further ones get a 429."""

MAX_HASHING, MAX_HASHING_PER_ADDRESS = 20, 3
"""How many passwords may wait to be hashed: in total, and from one address. One client cannot fill the queue."""

MAX_REMEMBERED = 10_000
RUN_PRINCIPAL = "run"
"""The name of the principal that holds the token printed by `serve`."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated user or token, and its scopes."""

    name: str
    scopes: frozenset[str]
    session: str | None = None  # None for a token
    csrf: str = ""

    def may(self, scope: str) -> bool:
        return scope in self.scopes


class Busy(Exception):
    """Too many sign-ins are waiting."""


class Session(msgspec.Struct, array_like=True):
    """The content of a session cookie."""

    name: str
    id: str
    until: int


# -- hashes -----------------------------------------------------------------------------------------------------------


def hash_password(password: str, salt: bytes | None = None, cost: int = COST) -> str:
    salt = salt or secrets.token_bytes(16)
    digest = hashlib.scrypt(password.encode(), salt=salt, n=2**cost, r=8, p=1, dklen=32, maxmem=2 ** (cost + 11))
    return f"scrypt:{cost}:{_text(salt)}:{_text(digest)}"


def is_password(password: str, hashed: str) -> bool:
    """Compare in constant time."""
    _, cost, salt, _ = hashed.split(":")
    return hmac.compare_digest(hash_password(password, _bytes(salt), int(cost)), hashed)


def make_token() -> str:
    return "oh_" + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Hash a token. A token has 256 random bits, so its hash needs no salt and no work factor."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


# -- access -----------------------------------------------------------------------------------------------------------


class Access:
    """Authenticates users and tokens by the configuration.

    `run_key` is a random key of this run of the service; all its processes share it.
    """

    def __init__(self, settings: DashboardSettings, run_key: bytes, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self.clock = clock
        configured = settings.session_key and resolve(settings.session_key, "dashboard.session_key").encode()
        self._key = hashlib.sha256(b"session" + (configured or run_key)).digest()
        self.uses_run_token = not settings.users and not settings.tokens
        self.run_token = _text(_mac(run_key, "token")) if self.uses_run_token else None
        # principal name → (hash of its credential, scopes)
        self._users = {f"user:{name}": (user.password, ROLES[user.role]) for name, user in settings.users.items()}
        self._tokens = {f"token:{n}": (t.token, frozenset(t.scopes)) for n, t in settings.tokens.items()}
        if self.run_token is not None:
            self._tokens[RUN_PRINCIPAL] = hash_token(self.run_token), frozenset(SCOPES)
        self._hash_lock = asyncio.Semaphore(1)  # one hash at a time: sign-ins must not slow the receiver down
        self._hashing_from: Counter[str] = Counter()  # client address → passwords that wait
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.throttle = Throttle(clock)

    @property
    def has_users(self) -> bool:
        return bool(self._users)

    async def check_password(self, name: str, password: str, address: str = "") -> str | None:
        """Return the name of the user's principal, or None. Raises Busy if too many passwords wait to be hashed."""
        known = self._users.get(f"user:{name}")
        waiting = self._hashing_from
        if waiting.total() >= MAX_HASHING or waiting[address] >= MAX_HASHING_PER_ADDRESS:
            raise Busy
        self._hashing_from[address] += 1
        try:
            async with self._hash_lock:
                hashed = known[0] if known else UNKNOWN_USER_HASH
                is_right = await asyncio.to_thread(is_password, password, hashed)
        finally:
            self._hashing_from[address] -= 1
            self._hashing_from += Counter()  # drops addresses at 0
        return f"user:{name}" if is_right and known else None

    def check_token(self, token: str) -> Principal | None:
        token_hash, principal = hash_token(token), None
        for name, (hashed, scopes) in self._tokens.items():
            if hmac.compare_digest(token_hash, hashed):
                principal = Principal(name, scopes)
        return principal

    def is_run_token(self, token: str) -> bool:
        """Whether this is the token that `serve` printed."""
        return self.run_token is not None and hmac.compare_digest(hash_token(token), hash_token(self.run_token))

    # -- sessions -------------------------------------------------------------------------------------------------

    def start_session(self, name: str) -> str:
        """Return the value of a new session cookie."""
        until = int(self.clock.now() + self.settings.session_length)
        body = _text(msgspec.json.encode(Session(name, secrets.token_hex(16), until)))
        return f"{body}.{self._sign(name, body)}"

    def check_session(self, cookie: str) -> Principal | None:
        """Return the principal of a session cookie; None if it is forged, has expired, or its user was removed."""
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
        """Revoke the session in this process. The response also deletes the cookie from the browser."""
        if principal.session is not None:
            self._ended[principal.session] = None
            while len(self._ended) > MAX_REMEMBERED:
                self._ended.popitem(last=False)

    def _sign(self, name: str, body: str) -> str:
        hashed, _ = (self._users | self._tokens).get(name, ("", None))
        return _text(_mac(self._key, f"{hashed} {body}"))


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


Key = tuple[str, str]


class Failures:
    """The latest failed sign-ins for one name from one address."""

    __slots__ = ("next", "times")

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=MAX_FAILURES)
        self.next = 0.0  # when the next throttled sign-in may be checked


class Throttle:
    """Throttles sign-ins by client address and name.

    After MAX_FAILURES failures within FAILURE_WINDOW seconds, it lets one sign-in through every THROTTLE_INTERVAL
    seconds. It never locks a user out: otherwise anyone who knows a user's name could do that.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self._failed: OrderedDict[Key, Failures] = OrderedDict()
        self._waiting = 0

    async def wait(self, key: Key) -> None:
        """Wait until this sign-in may be checked. Raises Busy if too many wait."""
        seconds = self._reserve(key)
        if seconds <= 0:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1

    def _reserve(self, key: Key) -> float:
        """Reserve the next slot and return the seconds until then."""
        failures, now = self._failed.get(key), self.clock.monotonic()
        if failures is None or len(failures.times) < MAX_FAILURES or failures.times[0] + FAILURE_WINDOW < now:
            return 0.0
        at = max(now, failures.next)
        if at - now > THROTTLE_INTERVAL * MAX_WAITING_PER_KEY or self._waiting >= MAX_WAITING:
            raise Busy
        failures.next = at + THROTTLE_INTERVAL
        return at - now

    def failed(self, key: Key) -> None:
        now = self.clock.monotonic()
        failures = self._failed.setdefault(key, Failures())
        failures.times.append(now)
        failures.next = max(failures.next, now + THROTTLE_INTERVAL)
        self._failed.move_to_end(key)
        while len(self._failed) > MAX_REMEMBERED:
            self._failed.popitem(last=False)

    def succeeded(self, key: Key) -> None:
        self._failed.pop(key, None)
