"""What the demo's senders saw, and whether the door kept its promise: acked events against receipts, exactly."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from oncehook.receive import Receive, Scope, Send

AGENT = "oncehook-demo"
"""The User-Agent of the demo's own senders; whoever else delivers is counted apart."""

Key = tuple[str, str]  # source, event id


@dataclass
class Tally:
    """Deliveries and answers by source. Deliveries count requests; accepted, duplicate and ignored count events."""

    deliveries: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    duplicate: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    unavailable: Counter[str] = field(default_factory=Counter)
    behaviours: Counter[str] = field(default_factory=Counter)
    acked: set[Key] = field(default_factory=set)
    fresh: set[Key] = field(default_factory=set)
    twice: int = 0  # events that were new to the door a second time
    forged: int = 0  # deliveries that it should have refused, and took
    refused: int = 0  # genuine deliveries that it refused
    others: set[Key] = field(default_factory=set)
    others_in_batches: int = 0

    def note(self, source: str, status: int, text: str, ids: Iterable[str], *, genuine: bool) -> None:
        """One answer to one delivery of these events."""
        self.deliveries[source] += 1
        if 200 <= status < 300:
            self.forged += not genuine
            self._note_ack(source, read_answer(text), [(source, id) for id in ids])
        elif 400 <= status < 500:
            self.refused += genuine
            self.rejected[source] += 1
        else:
            self.unavailable[source] += 1

    def _note_ack(self, source: str, answer: dict[str, Any], keys: list[Key]) -> None:
        counts = count_outcomes(answer)
        self.accepted[source] += counts["accepted"] + counts["failed"]
        self.duplicate[source] += counts["duplicate"]
        self.ignored[source] += counts["ignored"]
        self.acked.update(keys)
        if not counts["duplicate"]:
            self.twice += len(self.fresh.intersection(keys))
            self.fresh.update(keys)

    @property
    def events(self) -> int:
        """How many different events the door has acked, whoever sent them."""
        return len(self.acked) + len(self.others) + self.others_in_batches


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


@dataclass(frozen=True)
class Check:
    """The promise, compared at a moment when no delivery was under way."""

    acked: int = 0
    receipts: int = 0
    twice: int = 0
    forged: int = 0
    refused: int = 0

    @property
    def holds(self) -> bool:
        return self.acked == self.receipts and not (self.twice or self.forged or self.refused)


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
