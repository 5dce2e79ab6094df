"""Order: an entity has the state of its newest event, whatever the order in which the events arrive.

Each entity stores the maximum of its events by (terminal, at, version, event id). A newer event wins, a terminal state
is replaced only by a newer terminal one, and the event id breaks ties. A maximum does not depend on the order of
arrival, so the state does not either. The database compares and locks the entity's row in one statement, in the
handler's transaction. Another transaction that advances the same entity waits until this one ends.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from oncehook.model.effect import StoredEntity
from oncehook.model.errors import OncehookError
from oncehook.model.lease import Leased
from oncehook.model.receipt import Receipt
from oncehook.model.timestamps import rfc3339
from oncehook.providers.expressions import index_text, is_storable, parse_time
from oncehook.store.store import Store


class Occurred:
    """The type of `OCCURRED`, the default of `at`: use the event's own time."""

    def __repr__(self) -> str:
        return "event.occurred_at"


OCCURRED: Final = Occurred()
_NEVER = datetime.min.replace(tzinfo=UTC)
_MIN_INTEGER = -(2**63)


class InvalidOrder(OncehookError):
    """A handler advanced an entity with values that cannot be ordered. The message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The state that an event gives to an entity, in the form that the store compares and writes."""

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
    def order_key(self) -> "OrderKey":
        moment = None if self.at is None else datetime.fromisoformat(self.at)
        return make_order_key(self.is_terminal, moment, self.version, self.event_id)

    @property
    def key(self) -> str:
        return index_text(f"{self.kind}:{self.id}") or ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


OrderKey = tuple[bool, datetime, int, str]
"""Orders the events of an entity: the event with the greatest key is the newest."""


def make_order_key(is_terminal: bool, at: datetime | None, version: int | None, event_id: str) -> OrderKey:
    return bool(is_terminal), at or _NEVER, _MIN_INTEGER if version is None else version, event_id


def order_key_of(row: Sequence[Any]) -> OrderKey:
    """The order key of a row of entities, whose time is text on SQLite."""
    is_terminal, at, version, event_id, *_ = row
    return make_order_key(is_terminal, parse_time(at) if isinstance(at, str) else at, version, event_id)


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
    """Return the checked values of `event.advance(…)`. Raises InvalidOrder if they cannot be ordered."""
    moment = leased.occurred_at if isinstance(at, Occurred) else at
    if moment is None and version is None:
        raise InvalidOrder(f"{kind} {id} cannot be ordered: the event has no time; pass at=… or version=…")
    if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
        raise InvalidOrder(f"at= is {moment!r}: pass a datetime with a time zone")
    if version is not None and (type(version) is not int or not _MIN_INTEGER <= version < 2**63):
        raise InvalidOrder(f"version= is {version!r}: pass an integer of at most 64 bits")
    if state is not None and (not isinstance(state, str) or not is_storable(state)):
        raise InvalidOrder("state= must be a string without NUL characters and lone surrogates")
    try:
        at_text = rfc3339(moment)
    except OverflowError:
        raise InvalidOrder(f"at= is {moment!r}, which is out of range in UTC") from None
    return Advance(
        scope=_text(scope or leased.consumer_scope, "scope"),
        kind=_text(kind, "kind"),
        id=_text(id, "id"),
        state=state,
        at=at_text,
        version=version,
        is_terminal=bool(terminal),
        event_id=leased.event_id,
        receipt=leased.receipt,
    )


async def entities_of(store: Store, receipt: Receipt) -> list[StoredEntity]:
    """Return the entities with the object id of an event, in the scope of its source and consumer."""
    if receipt.object_id is None:
        return []
    parameters = {"scope": receipt.consumer_scope, "id": receipt.object_id}
    return await store.email.query("entities_of", parameters, StoredEntity)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidOrder(f"the entity's {name} is {value!r}: pass a non-empty string")
    return index_text(value) or ""
