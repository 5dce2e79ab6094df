"""The answer to a delivery that was not accepted, counted and logged."""

import traceback
from collections.abc import Collection

from oncehook.model.errors import Rejected, Unavailable
from oncehook.observability import signals
from oncehook.observability.receiver_stats import ReceiverStats
from oncehook.receiver.ack import Response, refused, unavailable
from oncehook.receiver.request import Refused


class Refusals:
    """Turns an error of the receiver into its answer. Labels of metrics never come from a sender."""

    def __init__(self, sources: Collection[str], stats: ReceiverStats) -> None:
        self._sources = sources
        self._stats = stats

    def answer(self, name: str, error: Exception) -> Response:
        """The answer for `error`, which is counted and logged here unless it is already."""
        if isinstance(error, Refused):
            if error.code is not None:
                known = name if name in self._sources else "unknown"
                self._count(known, error.code, "refused before it was read and verified")
            return error.response
        if isinstance(error, Rejected):
            self._count(name, error.reason, error.detail)
            return refused(error.reason)
        if isinstance(error, Unavailable):
            signals.record_unavailable(name, error.detail)
            return unavailable(error.retry_after)
        where = "".join(traceback.format_tb(error.__traceback__))
        signals.emit("receiver_failed", source=name, error=type(error).__name__, traceback=where)
        return unavailable(5)  # a bug in the receiver: the sender keeps the event and tries again

    def _count(self, source: str, reason: str, detail: str) -> None:
        signals.record_rejection(source, reason, detail)
        self._stats.record_rejection(source, reason, detail)
