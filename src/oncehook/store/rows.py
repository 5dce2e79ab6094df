"""Values that the store's methods take and return, beside those of `oncehook.model`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from oncehook.model.receipt import Filter

DUPLICATES_KEPT = 100
"""How many duplicates of one receipt are noted, and as many again with another body."""


REJECTIONS_KEPT = 20
"""How many refused requests of one source are kept; the newest push out the oldest."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which receipts a replay is for: all conditions hold together."""

    wanted: Filter = field(default_factory=Filter)
    receipts: tuple[int, ...] | None = None
    handled_by: str | None = None  # a code version that has attempted them
    after: int = 0  # only receipts with a greater number
    horizon: datetime | None = None  # received no later: what arrives while a replay runs is not of it


@dataclass(frozen=True, slots=True)
class EffectTarget:
    """What a relay can perform: effects of a kind and target (None: any), each leased for so many seconds."""

    kind: str
    target: str | None
    seconds: float


Cutoffs = Mapping[str, datetime]
"""Source → the time before which something of it may go. A source that is not in it is left alone."""

Cursor = tuple[datetime, int]
"""(received_at, receipt) where a step of pruning ended, to go on from."""


Place = tuple[str, int]
"""(received_at, receipt) of a receipt in a list that goes from the newest to the oldest."""

Type = tuple[str, str]
"""(source, type)"""

Position = tuple[str, ...]
"""Where a window of waiting receipts ends: (due time,), and among receipts with a serial key (source, key)."""
