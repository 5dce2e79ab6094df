"""Order: of an entity, the newest that is known counts, whatever the order of arrival.

Each entity holds the maximum by (terminal, at, version, event id): newer wins, a terminal state is only left for a
newer terminal one, and ties are decided. Since a maximum does not depend on the order of its parts, neither does the
state. The database compares and locks the entity's row in one statement, in the handler's transaction: whoever
advances the same entity at the same time waits for its end.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from oncehook.model.effect import StoredEntity
from oncehook.model.errors import OncehookError
from oncehook.model.lease import Leased
from oncehook.model.receipt import Receipt
from oncehook.model.timestamps import rfc3339
from oncehook.providers.expressions import indexed, is_storable
from oncehook.store.store import Store


class Occurred:
    """In place of a time: the event's own."""

    def __repr__(self) -> str:
        return "event.occurred_at"


OCCURRED: Final = Occurred()
_NEVER = datetime.min.replace(tzinfo=UTC)
_LEAST = -(2**63)


class OrderRefused(OncehookError):
    """An entity was advanced with something that cannot be ordered; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What an event says of an entity, as the store compares it."""

    scope: str
    kind: str
    id: str
    state: str | None
    at: str | None
    version: int | None
    is_terminal: bool
    event_id: str
    receipt: int

    @property
    def place(self) -> "Place":
        moment = None if self.at is None else datetime.fromisoformat(self.at)
        return place(self.is_terminal, moment, self.version, self.event_id)

    @property
    def key(self) -> str:
        return indexed(f"{self.kind}:{self.id}") or ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Place = tuple[bool, datetime, int, str]
"""Where an event stands among those of its entity: the greater one counts."""


def place(is_terminal: bool, at: datetime | None, version: int | None, event_id: str) -> Place:
    return bool(is_terminal), at or _NEVER, _LEAST if version is None else version, event_id


def advance_of(
    leased: Leased,
    kind: str,
    id: str | None,
    *,
    state: str | None = None,
    at: datetime | Occurred | None = OCCURRED,
    version: int | None = None,
    terminal: bool = False,
    scope: str | None = None,
) -> Advance:
    """What the event says, checked."""
    moment = leased.occurred_at if isinstance(at, Occurred) else at
    if moment is None and version is None:
        raise OrderRefused(
            f"there is nothing to order {kind} {id} by: the event has no time of its own; give at=… or version=…"
        )
    if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
        raise OrderRefused(f"at= is {moment!r}: give a datetime with a time zone")
    if version is not None and (type(version) is not int or not _LEAST <= version < 2**63):
        raise OrderRefused(f"version= is {version!r}: give a whole number of 64 bits")
    if state is not None and (not isinstance(state, str) or not is_storable(state)):
        raise OrderRefused("state= is not a text, or has NULs or lone surrogates in it")
    try:
        told = rfc3339(moment)
    except OverflowError:
        raise OrderRefused(f"at= is {moment!r}, which no calendar has in UTC") from None
    return Advance(
        scope=_text(scope or leased.source, "scope"),
        kind=_text(kind, "kind"),
        id=_text(id, "id"),
        state=state,
        at=told,
        version=version,
        is_terminal=bool(terminal),
        event_id=leased.event_id,
        receipt=leased.receipt,
    )


async def entities_of(store: Store, receipt: Receipt) -> list[StoredEntity]:
    """What is known of the object of an event, in the scope of its source, and which event said so."""
    if receipt.object_id is None:
        return []
    given = {"scope": receipt.source, "id": receipt.object_id}
    return await store.email.query("entities_of", given, StoredEntity)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise OrderRefused(f"the entity's {name} is {value!r}: give a text")
    return indexed(value) or ""
