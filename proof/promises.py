"""The promises of the README, each with the parts and the counts that show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support import counts


@dataclass(frozen=True)
class Promise:
    """A sentence of the README, and its evidence: counts of parts by label. Without labels, all counts of a part."""

    text: str
    evidence: Mapping[str, Sequence[str]]


DELIVERED = ("deliveries", "kinds of faults")
KILLS = ("processes killed with SIGKILL at a random moment",)
DATABASE_KILLS = (counts.DATABASE_KILLS,)
CRASHES = ("processes killed with SIGKILL at a crash point", "tasks cancelled at a crash point")
HOSTILE = (
    "mutated deliveries that raised nothing but a rejection",
    "requests that got the same answer on both paths",
)
SIMULATED = ("seeds", "processes that died")
MODEL = ("distinct states",)

PROMISES = (
    Promise(
        "The event has one receipt, and one delivery gets the 202.",
        {"races": ("races of 64 concurrent deliveries of one event",), "deliveries": DELIVERED},
    ),
    Promise(
        "Once the sender has received a 2xx, the event is not lost.",
        {"deliveries": DELIVERED, "faults": KILLS, "crash-points": CRASHES, "simulation": SIMULATED},
    ),
    Promise(
        "A handler's writes are applied exactly once in the database of the inbox.",
        {"faults": KILLS, "crash-points": CRASHES, "simulation": SIMULATED, "model": MODEL},
    ),
    Promise(
        "An effect is recorded once per key and run at least once, always with the same idempotency key.",
        {"crash-points": CRASHES, "simulation": SIMULATED, "model": MODEL},
    ),
    Promise(
        "Unverified data is never stored as an event.",
        {"checks": HOSTILE},
    ),
    Promise("An ack is durable.", {"power-loss": ("power cuts",), "database-kills": DATABASE_KILLS}),
    Promise(
        "A PostgreSQL failover keeps every acknowledged event only if you have a synchronous standby.",
        {"faults": ("failovers to the synchronous standby",)},
    ),
    Promise(
        "A duplicate gets 200 and changes nothing on its receipt.",
        {"races": ("races of 64 concurrent deliveries of one event",), "deliveries": DELIVERED},
    ),
    Promise(
        "An event that is not recorded never gets 2xx.", {"deliveries": DELIVERED, "database-kills": DATABASE_KILLS}
    ),
)  # fmt: skip
