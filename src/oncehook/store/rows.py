"""Parameter and return types of the store's methods. The rows that other packages share are in `oncehook.model`."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from oncehook.model.receipt import Filter
from oncehook.model.rows import ManagedSource, ManagedTenant

MAX_DUPLICATES = 100
"""How many duplicates are recorded per receipt; as many again with another body."""


MAX_REJECTIONS = 20
"""How many samples of rejected requests are kept per source. The oldest are deleted."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The receipts of a replay. A receipt is selected if it meets all conditions."""

    filter: Filter = field(default_factory=Filter)
    receipts: tuple[int, ...] | None = None
    handled_by: str | None = None  # the version of the code that attempted them
    after: int = 0  # only receipts with a greater id
    horizon: datetime | None = None  # received no later: events that arrive during a replay are not part of it


@dataclass(frozen=True, slots=True)
class BackfillRange:
    """The events of a backfill: those of these sources that a consumer has no receipt of."""

    consumer: str
    sources: tuple[str, ...]
    since: datetime
    until: datetime
    type: str | None = None  # a pattern with * and ?, or a dotted prefix


@dataclass(frozen=True, slots=True)
class BackfillEvent:
    """An event that a consumer has no receipt of. `receipt` is that of `main`."""

    receipt: int
    source: str
    tenant: str
    event_id: str
    type: str
    object_id: str | None
    received_at: datetime


@dataclass(frozen=True, slots=True)
class BackfillPayload:
    """The stored payload of an event, encrypted if its source is."""

    receipt: int
    body: bytes
    headers: str
    object: str | None


@dataclass(frozen=True, slots=True)
class BackfillRow:
    """A receipt that a backfill writes for an event, which is named by the receipt of `main`."""

    receipt: int
    status: str
    last_error: str | None  # why the consumer ignores it


@dataclass(frozen=True, slots=True)
class EffectTarget:
    """Effects that a relay can run: a kind, a target (None: all targets), and the seconds of a lease."""

    kind: str
    target: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a consumer got, and the seconds until its bucket has the next one."""

    granted: int
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryChange:
    """The new content of a managed source or tenant, and the entry of the audit log. No detail contains a secret."""

    secrets: str  # sealed; empty if it is removed
    action: str
    detail: Mapping[str, Any]
    settings: str | None = None  # of a source, as JSON
    is_removed: bool = False


SourceChange = Callable[[ManagedSource | None], DirectoryChange]
"""Decides on a change from the current row of a source. What it raises undoes the transaction."""

TenantChange = Callable[[ManagedTenant | None], DirectoryChange]
"""Decides on a change from the current row of a tenant. What it raises undoes the transaction."""

Cutoffs = Mapping[str, datetime]
"""By source, the time before which rows may be deleted. Other sources are not pruned."""

PruneCursor = tuple[datetime, int]
"""(received_at, receipt) at which the next step of pruning continues."""


@dataclass(slots=True)
class ResealedPage:
    """The result of one page of a key rotation: how many rows were encrypted again, and which were not."""

    next: Any  # where the next page begins; None: this was the last page
    resealed: int = 0
    locked: int = 0  # another transaction had locked or changed them
    unreadable: Counter[str] = field(default_factory=Counter)  # rows by the key that is missing or wrong


ReceiptPosition = tuple[str, int]
"""(received_at, receipt): a position in a list of receipts, newest first."""

EventType = tuple[str, str]
"""(source, type)"""

WindowPosition = tuple[str, ...]
"""The end of a window of waiting receipts: (due time,), or (source, key) for receipts with a serial key."""

Window = tuple[WindowPosition | None, WindowPosition]
"""The start and the end of a window of waiting receipts."""


class GivenUp(NamedTuple):
    """A receipt whose message a queue has given up, as the message names it."""

    receipt: int
    replays: int
    source: str
    event_id: str


@dataclass(frozen=True, slots=True)
class FsckWindow:
    """A window of a table: its bounds as parameters, and the number of rows that are examined."""

    parameters: Mapping[str, Any]
    number: int

    @property
    def end(self) -> dict[str, Any]:
        """The bounds after which the next window begins."""
        names = [name for name in self.parameters if name.startswith("last")]
        return {name.replace("last", "after"): self.parameters[name] for name in names}


@dataclass(frozen=True, slots=True)
class FsckRow:
    """A row that contradicts a guarantee. `key` names it in its table, and `receipt` is its event."""

    key: int | str
    receipt: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class FsckBody:
    """A stored payload with the fingerprint of its receipt."""

    id: int
    source: str
    tenant: str
    event_id: str
    provider: str
    fingerprint: bytes
    body: bytes
    headers: str
    key_id: str | None
    object: str | None


@dataclass(frozen=True, slots=True)
class ReplayCount:
    """How often a receipt was replayed."""

    receipt: int
    number: int


@dataclass(frozen=True, slots=True)
class AuditedReplay:
    """A receipt that a row of the audit log names as replayed. `id` is that row."""

    id: int
    receipt: int


@dataclass(frozen=True, slots=True)
class SchemaObject:
    """A table, view, index, trigger, routine or type. One that is not valid has no effect."""

    name: str
    is_valid: bool


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A column of a table or view."""

    name: str
    part: str
