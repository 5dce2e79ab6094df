"""The demo's check of its guarantee: every acked event has exactly one receipt."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from oncehook.receiver.request import Receive, Scope, Send

USER_AGENT = "oncehook-demo"
"""The User-Agent of the demo's senders. Deliveries with any other User-Agent are counted separately."""

EventKey = tuple[str, str]  # source, event id


@dataclass
class DeliveryCounts:
    """Counts by source: requests (deliveries, rejected, unavailable) and events (accepted, duplicate, ignored)."""

    deliveries: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    duplicate: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    unavailable: Counter[str] = field(default_factory=Counter)
    behaviors: Counter[str] = field(default_factory=Counter)  # by the sender's behavior


@dataclass(frozen=True, kw_only=True)
class GuaranteeCheck:
    """One comparison of acked events with receipts, made while no delivery was in progress."""

    acked: int = 0
    receipts: int = 0
    accepted_twice: int = 0
    forged_accepted: int = 0
    genuine_rejected: int = 0
    unexpected: int = 0

    @property
    def holds(self) -> bool:
        violations = self.accepted_twice or self.forged_accepted or self.genuine_rejected or self.unexpected
        return self.acked == self.receipts and not violations


@dataclass
class ResponseLog:
    """The receiver's responses to all deliveries, and the violations they reveal."""

    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    acked: set[EventKey] = field(default_factory=set)
    accepted: set[EventKey] = field(default_factory=set)
    other_senders: set[EventKey] = field(default_factory=set)
    other_senders_batched: int = 0
    accepted_twice: int = 0  # events that the receiver accepted as new a second time
    forged_accepted: int = 0  # forged deliveries that the receiver accepted
    genuine_rejected: int = 0  # genuine deliveries that the receiver rejected
    unexpected: int = 0  # responses that the receiver should never send

    def record(self, source: str, status: int, text: str, ids: Iterable[str], *, genuine: bool) -> None:
        """Record the response to one delivery of the events with these ids."""
        self.counts.deliveries[source] += 1
        if 200 <= status < 300:
            self.forged_accepted += not genuine
            self._record_ack(source, parse_response(text), [(source, id) for id in ids])
        elif 400 <= status < 500:
            self.genuine_rejected += genuine
            self.counts.rejected[source] += 1
        elif status in (0, 503):
            self.counts.unavailable[source] += 1
        else:
            self.unexpected += 1

    def _record_ack(self, source: str, response: dict[str, Any], keys: list[EventKey]) -> None:
        outcomes = count_outcomes(response)
        self.counts.accepted[source] += outcomes["accepted"] + outcomes["failed"]
        self.counts.duplicate[source] += outcomes["duplicate"]
        self.counts.ignored[source] += outcomes["ignored"]
        self.acked.update(keys)
        if not outcomes["duplicate"]:
            self.accepted_twice += len(self.accepted.intersection(keys))
            self.accepted.update(keys)

    @property
    def from_other_senders(self) -> int:
        """The number of distinct acked events that the demo did not send itself."""
        return len(self.other_senders) + self.other_senders_batched

    def check(self, receipts: int) -> GuaranteeCheck:
        """Compare the acked events with the number of receipts in the database."""
        return GuaranteeCheck(
            acked=len(self.acked) + self.from_other_senders,
            receipts=receipts,
            accepted_twice=self.accepted_twice,
            forged_accepted=self.forged_accepted,
            genuine_rejected=self.genuine_rejected,
            unexpected=self.unexpected,
        )


def parse_response(text: str | bytes) -> dict[str, Any]:
    """The JSON object of a response body; empty if the body is not a JSON object."""
    try:
        response = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return response if isinstance(response, dict) else {}


def count_outcomes(response: dict[str, Any]) -> Counter[str]:
    """Events by outcome: accepted, duplicate, ignored, failed. A response covers one event or a batch."""
    if "event_id" in response:
        return Counter({str(response["status"]): 1})
    return Counter({outcome: response.get(outcome, 0) for outcome in ("accepted", "duplicate", "ignored", "failed")})


class OtherSendersMiddleware:
    """ASGI middleware that records the acks sent to other senders, such as your `oncehook send`."""

    def __init__(self, app: Any, log: ResponseLog) -> None:
        self.app = app
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_other = scope["type"] == "http" and (b"user-agent", USER_AGENT.encode()) not in scope["headers"]
        if not (is_other and scope["path"].startswith("/webhooks/")):
            await self.app(scope, receive, send)
            return
        status = 0

        async def record_and_send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            if 200 <= status < 300 and message["type"] == "http.response.body":
                self._record(scope["path"].removeprefix("/webhooks/").rstrip("/"), parse_response(message["body"]))
            await send(message)

        await self.app(scope, receive, record_and_send)

    def _record(self, source: str, response: dict[str, Any]) -> None:
        if "event_id" in response:
            self.log.other_senders.add((source, response["event_id"]))
        else:
            outcomes = count_outcomes(response)
            self.log.other_senders_batched += outcomes["accepted"] + outcomes["ignored"] + outcomes["failed"]
