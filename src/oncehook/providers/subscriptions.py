"""Subscriptions: which events of a source the consumers other than `main` get.

A claim has a receipt for each of them. The subscriptions change at run time, when a process registers a consumer or a
person removes one. All readers of a source share one `Subscribers`, so that the next event sees the change.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from oncehook.model.claim import ConsumerClaim
from oncehook.model.patterns import compile_pattern
from oncehook.model.states import State
from oncehook.providers.conditions import make_condition, type_condition
from oncehook.providers.where import Facts, compile_where


def check_filter(
    consumer: str, sources: Sequence[str] | None, types: Sequence[str] | None, where: Mapping[str, Any]
) -> None:
    """Raise ConfigurationError for a filter that cannot be read, or that no event of any of the sources can match."""
    given = [] if sources is None else [make_condition("@source", "in", sources, f"consumers.{consumer}.sources")]
    if types is not None:
        given.append(type_condition(types, f"consumers.{consumer}.types"))
    compile_where(where, f"consumers.{consumer}.where", given=given)


class Subscription:
    """The subscription of one consumer to one source."""

    def __init__(
        self,
        consumer: str,
        source: str,
        *,
        patterns: Sequence[str] = ("*",),
        types: Sequence[str] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> None:
        """Raise ConfigurationError for a filter that cannot be read."""
        self.consumer = consumer
        self.source = source
        self.takes_all = "*" in patterns
        self.patterns = [compile_pattern(pattern) for pattern in patterns]
        self.types = None if types is None else [compile_pattern(pattern) for pattern in types]
        self.where = None if where is None else compile_where(where, f"consumers.{consumer}.where")

    def claim(self, type_: str, payload: Any, facts: Facts, serial_key: str | None) -> ConsumerClaim | None:
        """Return the receipt of this consumer, or None if no handler of it is for this type. Never raises."""
        if not self.takes_all and not _matches(self.patterns, type_):
            return None
        reason = self.reason(type_, payload, facts)
        status = State.RECEIVED if reason is None else State.IGNORED
        return ConsumerClaim(self.consumer, status, reason, serial_key)

    def reason(self, type_: str, payload: Any, facts: Facts) -> str | None:
        """Return why the consumer ignores an event, or None if it handles it."""
        if self.types is not None and not _matches(self.types, type_):
            return f"the type {type_} is not in consumers.{self.consumer}.types"
        return None if self.where is None else self.where.reason(payload, facts)


class Subscribers:
    """The subscriptions to one source. An empty one costs a claim one comparison."""

    __slots__ = ("subscriptions",)

    def __init__(self) -> None:
        self.subscriptions: tuple[Subscription, ...] = ()

    def copies(
        self, type_: str, payload: Any, facts: Facts, serial_key: str | None = None
    ) -> tuple[ConsumerClaim, ...]:
        """Return the receipts of an event for all consumers except `main`."""
        claims = (each.claim(type_, payload, facts, serial_key) for each in self.subscriptions)
        return tuple(claim for claim in claims if claim is not None)


def _matches(patterns: Sequence[Any], type_: str) -> bool:
    return any(pattern.fullmatch(type_) for pattern in patterns)
