"""What a handler gets: one event, with its facts at hand and its body as plain data when asked."""

import hashlib
import re
from datetime import datetime
from typing import Any

import msgspec

from oncehook.extract import NotReadable, TooDeep, look_up, parse
from oncehook.receipt import Leased

_PLAIN = re.compile(r"[A-Za-z0-9_:@/+=~-]{1,191}")
FORM = "application/x-www-form-urlencoded"


class Event:
    """One event, leased to a handler. `event["data.object.id"]` looks into its payload."""

    __slots__ = ("_headers", "_leased", "_payload")

    def __init__(self, leased: Leased) -> None:
        self._leased = leased
        self._payload: Any = msgspec.UNSET
        self._headers: dict[str, str] | None = None

    @property
    def id(self) -> str:
        """The sender's id, stable across its retries."""
        return self._leased.event_id

    @property
    def receipt(self) -> int:
        return self._leased.receipt

    @property
    def source(self) -> str:
        return self._leased.source

    @property
    def provider(self) -> str:
        return self._leased.provider

    @property
    def type(self) -> str:
        return self._leased.type

    @property
    def object_id(self) -> str | None:
        return self._leased.object_id

    @property
    def occurred_at(self) -> datetime | None:
        """When it happened, by the sender's clock."""
        return self._leased.occurred_at

    @property
    def received_at(self) -> datetime:
        """When it was committed here, by the database's clock."""
        return self._leased.received_at

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self._leased.attempt

    @property
    def replays(self) -> int:
        return self._leased.replays

    @property
    def correlation_id(self) -> str:
        return self._leased.correlation_id or str(self._leased.receipt)

    @property
    def idempotency_key(self) -> str:
        """For whatever is called downstream: of this event alone, the same at every attempt and replay, header-safe."""
        return make_key(self.source, self.id)

    @property
    def raw(self) -> bytes:
        """The exact bytes as received."""
        return self._leased.body or b""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were kept, with lower-case names; credentials are not among them."""
        if self._headers is None:
            self._headers = msgspec.json.decode(self._leased.headers or "{}", type=dict[str, str])
        return self._headers

    @property
    def payload(self) -> Any:
        """The body as plain data; None if it cannot be read as such (`raw` has it)."""
        if self._payload is msgspec.UNSET:
            form = self.headers.get("content-type", "").lower().startswith(FORM)
            try:
                self._payload = parse(self.raw, form=form)
            except (NotReadable, TooDeep):
                self._payload = None
        return self._payload

    def __getitem__(self, path: str) -> Any:
        found = look_up(self.payload, path.split("."))
        if found is None:
            raise KeyError(path)
        return found

    def get(self, path: str, default: Any = None) -> Any:
        """What stands at a path of the payload, or `default`."""
        found = look_up(self.payload, path.split("."))
        return default if found is None else found

    def __repr__(self) -> str:
        return f"<Event {self.source} {self.type} {self.id} receipt={self.receipt} attempt={self.attempt}>"


def make_key(source: str, event_id: str) -> str:
    """`source:id`, at most 255 characters. An id that is long, or has other than plain characters, goes in by its hash.

    A dot is not plain: Standard Webhooks joins id, time and body with dots, and must not be read in two ways.
    """
    if _PLAIN.fullmatch(event_id):
        return f"{source}:{event_id}"
    return f"{source}:sha256-{hashlib.sha256(event_id.encode('utf-8', 'surrogatepass')).hexdigest()}"
