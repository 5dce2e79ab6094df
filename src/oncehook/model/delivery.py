"""A delivery, which is one HTTP request, and the sample that is stored of a rejected one."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LARGE = 256 * 1024
"""A larger body, in bytes, is verified in a thread and is never a handshake."""


_NONE: frozenset[bytes] = frozenset()


def _repeated(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    counts = Counter(name for name, _ in headers)
    return frozenset(name for name, count in counts.items() if count > 1)


class Delivery:
    """One HTTP request: its raw body and its headers.

    Header names are lower-case bytes, as in ASGI. `repeated` has the names of headers that occur more than once, so
    that a signature scheme can reject them. `address` is the URL that the sender used, as reported by a trusted proxy.
    """

    __slots__ = ("address", "body", "headers", "method", "path", "query", "repeated", "scheme")

    def __init__(
        self,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        method: str = "POST",
        path: str = "",
        query: bytes = b"",
        scheme: str = "http",
    ) -> None:
        pairs: list[tuple[bytes, bytes]] = headers if isinstance(headers, list) else list(headers)
        self.address = ""
        self.body = body
        self.method = method
        self.path = path
        self.query = query
        self.scheme = scheme
        self.headers = dict(pairs)
        self.repeated = _NONE if len(self.headers) == len(pairs) else _repeated(pairs)

    @classmethod
    def of(cls, body: bytes, headers: Mapping[str, str] | None = None) -> "Delivery":
        """Make a delivery from headers as strings, for code without an ASGI scope."""
        pairs = ((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items())
        return cls(body, pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A sample of a rejected request, for the doctor. Its values are not trusted, and it contains no credentials."""

    source: str
    tenant: str
    reason: str
    detail: str
    method: str
    query: str
    headers: str  # a JSON object
    body: bytes  # only the beginning of a long body
    size: int  # of the whole body
