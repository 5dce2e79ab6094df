"""Converts the errors of a delivery into HTTP responses, and counts and logs them."""

import traceback
from collections.abc import Collection

from oncehook.model.errors import RateLimited, Rejected, TenantUnavailable, Unavailable
from oncehook.model.tenant import TENANT_NAME
from oncehook.observability import signals
from oncehook.observability.receiver_stats import ReceiverStats
from oncehook.receiver.ack import Response, rejected_response, unavailable_response
from oncehook.receiver.request import RequestRejected


class ErrorResponses:
    """Makes the response for each error of the receiver. Metric labels never come from a sender."""

    def __init__(self, sources: Collection[str], stats: ReceiverStats) -> None:
        self._sources = sources
        self._stats = stats

    def respond(self, name: str, error: Exception) -> Response:
        """Return the response for `error`, and count and log it unless that is already done.

        `name` is a source, or a source and a tenant. A tenant is logged, and only the source is counted.
        """
        name, _, tenant = name.partition("/")
        if isinstance(error, RequestRejected):
            if error.code is not None:
                known = name if name in self._sources else "unknown"
                self.count(known, tenant, error.code, "rejected before it was read and verified")
            return error.response
        if isinstance(error, Rejected):
            self.count(name, tenant, error.reason, error.detail)
            return rejected_response(error.reason)
        if isinstance(error, RateLimited):
            self.count(name, tenant, "rate_limited", error.detail)
            return rejected_response("rate_limited", (b"retry-after", str(error.retry_after).encode()))
        if isinstance(error, Unavailable):
            signals.record_unavailable(name, error.detail, is_logged=isinstance(error, TenantUnavailable))
            return unavailable_response(error.retry_after)
        frames = "".join(traceback.format_tb(error.__traceback__))
        signals.emit("receiver_failed", source=name, error=type(error).__name__, traceback=frames)
        return unavailable_response(5)  # a bug in the receiver: the sender delivers again

    def count(self, source: str, tenant: str, reason: str, detail: str) -> None:
        """Count and log a rejection."""
        named = tenant if source != "unknown" and TENANT_NAME.fullmatch(tenant) else ""
        signals.record_rejection(source, reason, detail, named)
        self._stats.record_rejection(source, reason, detail)
