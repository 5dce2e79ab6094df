"""A read replica: a store for pages that only show data. It reads from a standby while that is current.

A statement goes to the standby if the standby is usable, and otherwise to the primary. The store cannot write, claim or
lease: these operations raise RuntimeError. No decision is based on what it returns.
"""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.errors import StoreUnavailable
from oncehook.store.database import Database
from oncehook.store.encryption import Encryption
from oncehook.store.executor import NO_PARAMETERS, Executor, T, Work
from oncehook.store.pauses import SqlPauseStore

if TYPE_CHECKING:
    from oncehook.store.shards import ShardStore

SAMPLES = 600
"""How many positions of the primary are remembered. One is added per second."""

REFUSED = "a read replica is only for pages that show data: use the primary"


class Position(NamedTuple):
    """How far a server has written or replayed its log, and which database it is."""

    database: str
    position: int
    is_standby: bool


class Standby(Protocol):
    """The connections to a standby. Each database with standbys implements it."""

    executor: Executor

    async def open(self) -> None:
        """Prepare the connections. Does not fail if the standby is down."""

    async def close(self) -> None:
        """Disconnect."""

    async def position(self) -> Position:
        """Return how far the standby has replayed. Raises StoreUnavailable if it is down."""

    async def primary_position(self, primary: Executor) -> Position:
        """Return how far the primary has written. Raises StoreUnavailable if it is down."""


class ReplicaMonitor:
    """Measures how far the standby is behind, and decides whether it is read.

    The lag is the age of the newest known position of the primary that the standby has replayed. So it also grows while
    the standby receives nothing, and it depends on no clock but that of this process.
    """

    def __init__(self, max_lag: float, clock: Clock = SYSTEM) -> None:
        self.max_lag = max_lag
        self.clock = clock
        self.problem: str | None = "it was not checked yet"
        self._primary: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        self._current_at = self._changed_at = float("-inf")  # when it was last known to be current; the last change

    @property
    def lag(self) -> float | None:
        """Seconds that the standby is behind. None if that is unknown."""
        if self.problem is not None or self._current_at == float("-inf"):
            return None
        newest = self._primary[-1][0]
        return 0.0 if self._current_at == newest else self.clock.monotonic() - self._current_at

    @property
    def is_usable(self) -> bool:
        """Whether to read from the standby. After a change by this process, only when the standby has it."""
        lag = self.lag
        return lag is not None and lag <= self.max_lag and self._current_at > self._changed_at

    @property
    def state(self) -> str:
        """Describe the standby in a sentence without an end."""
        lag = self.lag
        if lag is None:
            return f"not used: {self.problem or 'its lag is unknown'}"
        return f"{lag:.1f} s behind" + ("" if lag <= self.max_lag else ": not used, because that is too much")

    def note_change(self) -> None:
        """This process has changed something that the next page must show."""
        self._changed_at = self.clock.monotonic()

    def fail(self, problem: str) -> None:
        """Do not use the standby until the next successful check."""
        self.problem = problem

    def record(self, asked_at: float, primary: Position, standby: Position) -> None:
        """Record a check: the primary was asked at `asked_at`, and the standby afterwards."""
        self.problem = None
        if primary.database != standby.database:
            self.fail("it is no standby of `database`")
        elif not standby.is_standby:
            self.fail("it is not a standby any more")
        if self._primary and primary.position < self._primary[-1][1]:
            self._primary.clear()  # another primary, with another history
            self._current_at = float("-inf")
        self._primary.append((asked_at, primary.position))
        self._current_at = max(
            (at for at, position in self._primary if position <= standby.position), default=self._current_at
        )


class ReadExecutor:
    """Implements the reading half of `Executor`."""

    def __init__(self, standby: Executor, primary: Executor, monitor: ReplicaMonitor) -> None:
        self.dialect = primary.dialect
        self._standby = standby
        self._primary = primary
        self._monitor = monitor

    async def read(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        if self._monitor.is_usable:
            try:
                return await self._standby.read(name, parameters)
            except StoreUnavailable:  # down, or the statement was in the way of the replay
                pass
        return await self._primary.read(name, parameters)

    async def scan(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        if self._monitor.is_usable:
            try:
                return await self._standby.scan(name, parameters)
            except StoreUnavailable:
                pass
        return await self._primary.scan(name, parameters)

    async def write(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> NoReturn:
        raise RuntimeError(REFUSED)

    async def transaction(self, work: Work[T]) -> NoReturn:
        raise RuntimeError(REFUSED)

    def as_unavailable(self, error: BaseException) -> StoreUnavailable | None:
        return self._primary.as_unavailable(error)


class Refused:
    """Stands for an area of the store that a read replica does not have."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(REFUSED)


class ReplicaDatabase:
    """Implements `Database` for a store that only reads."""

    handler_lock = None

    def __init__(self, primary: Database, standby: Standby, monitor: ReplicaMonitor) -> None:
        self.dialect = primary.dialect
        self.process = primary.process
        self.connector = primary.connector
        self.identities = primary.identities
        self.executor: Executor = ReadExecutor(standby.executor, primary.executor, monitor)
        self.claims: Any = Refused()
        self.schema: Any = Refused()
        self.retention: Any = Refused()
        self.wakeups: Any = Refused()
        self.shards: ShardStore | None = None
        self.open = standby.open
        self.close = standby.close
        self.ping = primary.ping
        self.identity = primary.identity
        self.risks = primary.risks

    def leases(self, pauses: SqlPauseStore, encryption: Encryption) -> Any:
        return Refused()

    def transaction(self) -> NoReturn:
        raise RuntimeError(REFUSED)

    def heartbeat_connection(self) -> NoReturn:
        raise RuntimeError(REFUSED)
