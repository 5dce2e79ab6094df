"""What the demo's senders saw, and whether the door kept its promise: acked events against receipts, exactly."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from oncehook.receiver.request import Receive, Scope, Send

AGENT = "oncehook-demo"
"""The User-Agent of the demo's own senders; whoever else delivers is counted apart."""

Key = tuple[str, str]  # source, event id


@dataclass
class Counts:
    """By source. Deliveries, rejected and unavailable count requests; accepted, duplicate and ignored count events."""

    deliveries: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    duplicate: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    unavailable: Counter[str] = field(default_factory=Counter)
    behaviours: Counter[str] = field(default_factory=Counter)  # by what the sender did


@dataclass
class Tally:
    """What the senders saw."""

    counts: Counts = field(default_factory=Counts)
    acked: set[Key] = field(default_factory=set)
    fresh: set[Key] = field(default_factory=set)
    others: set[Key] = field(default_factory=set)
    others_in_batches: int = 0
    twice: int = 0  # events that were new to the door a second time
    forged: int = 0  # deliveries that it should have refused, and took
    refused: int = 0  # genuine deliveries that it refused
    astray: int = 0  # answers that the door should never give

    def note(self, source: str, status: int, text: str, ids: Iterable[str], *, genuine: bool) -> None:
        """One answer to one delivery of these events."""
        self.counts.deliveries[source] += 1
        if 200 <= status < 300:
            self.forged += not genuine
            self._note_ack(source, read_answer(text), [(source, id) for id in ids])
        elif 400 <= status < 500:
            self.refused += genuine
            self.counts.rejected[source] += 1
        elif status in (0, 503):
            self.counts.unavailable[source] += 1
        else:
            self.astray += 1

    def _note_ack(self, source: str, answer: dict[str, Any], keys: list[Key]) -> None:
        said = count_outcomes(answer)
        self.counts.accepted[source] += said["accepted"] + said["failed"]
        self.counts.duplicate[source] += said["duplicate"]
        self.counts.ignored[source] += said["ignored"]
        self.acked.update(keys)
        if not said["duplicate"]:
            self.twice += len(self.fresh.intersection(keys))
            self.fresh.update(keys)

    @property
    def from_others(self) -> int:
        """How many different events of other senders the door has acked."""
        return len(self.others) + self.others_in_batches

    def check(self, receipts: int) -> "Check":
        """What is acked against what is kept."""
        acked = len(self.acked) + self.from_others
        return Check(
            acked=acked,
            receipts=receipts,
            twice=self.twice,
            forged=self.forged,
            refused=self.refused,
            astray=self.astray,
        )


def read_answer(text: str | bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return answer if isinstance(answer, dict) else {}


def count_outcomes(answer: dict[str, Any]) -> Counter[str]:
    """How many events an answer calls accepted, duplicate, ignored or failed: it has one event, or a batch."""
    if "event_id" in answer:
        return Counter({str(answer["status"]): 1})
    return Counter({word: answer.get(word, 0) for word in ("accepted", "duplicate", "ignored", "failed")})


@dataclass(frozen=True, kw_only=True)
class Check:
    """The promise, compared at a moment when no delivery was under way."""

    acked: int = 0
    receipts: int = 0
    twice: int = 0
    forged: int = 0
    refused: int = 0
    astray: int = 0

    @property
    def holds(self) -> bool:
        return self.acked == self.receipts and not (self.twice or self.forged or self.refused or self.astray)


class Witness:
    """An ASGI app around the service, which notes what it acks to senders other than the demo's own."""

    def __init__(self, app: Any, tally: Tally) -> None:
        self.app = app
        self.tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        foreign = scope["type"] == "http" and (b"user-agent", AGENT.encode()) not in scope["headers"]
        if not (foreign and scope["path"].startswith("/webhooks/")):
            await self.app(scope, receive, send)
            return
        status = 0

        async def watched(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            if 200 <= status < 300 and message["type"] == "http.response.body":
                self._note(scope["path"].removeprefix("/webhooks/").rstrip("/"), read_answer(message["body"]))
            await send(message)

        await self.app(scope, receive, watched)

    def _note(self, source: str, answer: dict[str, Any]) -> None:
        if "event_id" in answer:
            self.tally.others.add((source, answer["event_id"]))
        else:
            counts = count_outcomes(answer)
            self.tally.others_in_batches += counts["accepted"] + counts["ignored"] + counts["failed"]
