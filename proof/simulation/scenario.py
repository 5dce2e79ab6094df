"""The contents of one seed: events, handlers that fail, operators and faults, all drawn at random.

Each run draws its own probabilities (swarm testing): some runs have many kills, others only lost replies, others none.
"""

import random
from dataclasses import dataclass, field
from functools import cached_property

ATTEMPTS = 4
EFFECT_ATTEMPTS = 4
STARTING = 0.15
"""How likely a fault is while a process starts, compared with later. A higher value lets few processes get ready."""

HANDLER_OUTCOMES = (
    "works",
    "works",
    "works",
    "fails",
    "later",
    "slow",
    "gives up",
    "kills",
    "blocks",
    "hangs",
    "stalls",
)
EFFECT_OUTCOMES = ("works", "works", "works", "fails", "answers and fails", "kills", "kills after", "slow")


@dataclass
class Delivery:
    """One request of the sender."""

    event: int
    at: float


@dataclass
class Scenario:
    """The plan of a run. `only` limits the faults at statements to these places, to shrink a failure."""

    seed: int
    only: frozenset[int] | None = None
    _drawn: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = random.Random(f"{self.seed} plan")  # noqa: S311  # repeats a run, guards no secret
        self.processes = rng.choice((1, 2, 2, 3))
        self.consumers = ("main", "audit") if rng.random() < 0.4 else ("main",)
        self.lease = rng.choice((2.0, 3.0, 5.0))
        self.poll = rng.choice((1.0, 3.0))
        self.concurrency = rng.choice((1, 2, 4))
        self.is_serial = rng.random() < 0.2
        self.horizon = rng.uniform(4.0, 9.0)  # when faults stop
        self.slow = rng.choice((0.0, 0.0, 0.003, 0.02))
        self.error = rng.choice((0.0, 0.0, 0.005, 0.02, 0.05))
        self.crash = rng.choice((0.0, 0.002, 0.004, 0.008))
        self.lost = rng.choice((0.0, 0.0, 0.1, 0.3))  # responses that the sender does not get
        self.disconnect = rng.choice((0.0, 0.0, 0.1, 0.3))  # senders that go away while the receiver works
        events = rng.randint(2, 6)
        self.events = [f"evt_{number}" for number in range(events)]
        self.deliveries = sorted(
            (
                Delivery(event, rng.uniform(0, self.horizon * 0.8))
                for event in range(events)
                for _ in range(rng.choice((1, 1, 2, 3, 5)))
            ),
            key=lambda delivery: delivery.at,
        )
        for first, second in zip(self.deliveries, self.deliveries[1:], strict=False):
            if rng.random() < 0.3:
                second.at = first.at  # at the same moment
        self._outcomes = random.Random(f"{self.seed} outcomes")  # noqa: S311  # as above
        self.clock_jumps = [
            (rng.uniform(0, self.horizon), rng.choice((-60.0, -5.0, 5.0, 20.0, 60.0)))
            for _ in range(rng.choice((0, 0, 0, 1, 2)))
        ]
        self.replays = [rng.uniform(self.horizon * 0.3, self.horizon) for _ in range(rng.choice((0, 0, 1, 2)))]
        self.prunes = [rng.uniform(0, self.horizon) for _ in range(rng.choice((0, 1)))]
        self.stops = [rng.uniform(0, self.horizon) for _ in range(rng.choice((0, 0, 1, 2)))]  # graceful
        self.pauses = [rng.uniform(0, self.horizon) for _ in range(rng.choice((0, 0, 1, 2)))]  # SIGSTOP
        self.prunes_at_end = rng.random() < 0.25

    @cached_property
    def handler_plans(self) -> dict[tuple[str, str], list[str]]:
        """The outcome of each attempt of an event and consumer. Further attempts work."""
        plans = {
            (event, consumer): [
                self._outcomes.choice(HANDLER_OUTCOMES) for _ in range(self._outcomes.choice((0, 1, 2)))
            ]
            for event in self.events
            for consumer in self.consumers
        }
        for plan in plans.values():
            if plan[-1:] == ["stalls"]:
                plan.append("slow")  # the attempt that replaces it is likely to run when the stalled one continues
        return plans

    @cached_property
    def effect_plans(self) -> dict[str, list[str]]:
        """The outcome of each call of an event's effect."""
        return {
            event: [self._outcomes.choice(EFFECT_OUTCOMES) for _ in range(self._outcomes.choice((0, 0, 1, 2)))]
            for event in self.events
        }

    def fault_at(self, place: int, rng: random.Random, *, is_starting: bool) -> str | None:
        """What happens before, in or after a statement."""
        value = rng.random() / (STARTING if is_starting else 1.0)
        kind = "crash" if value < self.crash else "error" if value < self.crash + self.error else None
        if kind is None or (self.only is not None and place not in self.only):
            return None
        self._drawn[place] = kind
        return kind

    @property
    def drawn(self) -> dict[int, str]:
        """The faults of the run, by the number of their place."""
        return self._drawn
