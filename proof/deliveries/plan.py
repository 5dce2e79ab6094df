"""The deliveries of a run, from its seed: events with versions of objects, duplicates, and events out of order."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

VERSIONS = 10
"""The events of one object. Each has the next version of it."""

DUPLICATES, REORDERED = 0.3, 0.1
"""Shares of all deliveries."""

_LATE = 0.22
"""The share of events that are sent late. Not all of them end up behind a later version of their object."""

MISDEEDS = {"block": 10, "hang": 10, "deadlock": 40, "serialization": 40, "abort": 8, "fork": 40, "memory": 20}
"""How often handlers misbehave in 100,000 deliveries, at the first attempt of an event."""


@dataclass(frozen=True)
class Plan:
    """Which event each delivery has, in the order of sending, and how the handler of an event misbehaves."""

    seed: int
    deliveries: tuple[int, ...]
    misdeeds: Mapping[int, str] = field(default_factory=dict)

    @property
    def events(self) -> int:
        return max(self.deliveries) + 1

    @property
    def duplicates(self) -> int:
        return len(self.deliveries) - self.events

    @property
    def reordered(self) -> int:
        """How many events are first sent after a later version of their object."""
        newest: dict[int, int] = {}
        sent: set[int] = set()
        late = 0
        for number in self.deliveries:
            if number not in sent:
                sent.add(number)
                late += newest.get(number // VERSIONS, -1) > number
                newest[number // VERSIONS] = max(number, newest.get(number // VERSIONS, -1))
        return late

    def body(self, number: int) -> bytes:
        """The body of an event, which is the same at each delivery."""
        chance = random.Random(f"{self.seed}/{number}")
        event = {
            "id": event_id(number),
            "type": "customer.subscription.updated",
            "created": 1763200000,
            "data": {"object": {"id": object_id(number), "version": version(number)}},
            "note": "ß\u2028" + "x" * chance.randrange(600),
            "misdeed": self.misdeeds.get(number),
        }
        return json.dumps(event).encode()


def event_id(number: int) -> str:
    return f"evt_{number}"


def object_id(number: int) -> str:
    return f"sub_{number // VERSIONS}"


def version(number: int) -> int:
    return number % VERSIONS + 1


def make_plan(seed: int, deliveries: int, misdeeds: frozenset[str] = frozenset(MISDEEDS)) -> Plan:
    """Plan this many deliveries. The same seed gives the same plan."""
    chance = random.Random(seed)
    events = deliveries - round(deliveries * DUPLICATES)
    late = set(chance.sample(range(events), round(events * _LATE)))
    moments = [(number + (chance.uniform(1.5, 40) if number in late else 0), number) for number in range(events)]
    moments += [
        (number + chance.choice((0, 0, chance.uniform(0, 20), chance.uniform(0, 2000))), number)
        for number in chance.choices(range(events), k=deliveries - events)
    ]
    return Plan(seed, tuple(number for _, number in sorted(moments)), _misdeeds(chance, events, deliveries, misdeeds))


def _misdeeds(chance: random.Random, events: int, deliveries: int, chosen: frozenset[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for name, count in MISDEEDS.items():
        if name not in chosen:
            continue
        for number in chance.sample(range(events - VERSIONS), max(2, round(count * deliveries / 100_000))):
            found[number] = name
            if name == "deadlock":
                found[number + VERSIONS] = name  # of the next object: their handlers lock two rows in opposite orders
    return found
