"""What arrives: one HTTP request, and the sample that is kept of a rejected one."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LARGE = 256 * 1024
"""A body of more bytes is verified in a thread, and is no handshake."""


_NONE: frozenset[bytes] = frozenset()


def _repeated(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    counts = Counter(name for name, _ in headers)
    return frozenset(name for name, count in counts.items() if count > 1)


class Delivery:
    """One HTTP request: its raw bytes, and its headers as they came.

    Header names are lower-case bytes, as ASGI gives them. A header that came twice is in `repeated`,
    so that a scheme can refuse it instead of choosing one. `address` is what a listed proxy said that the sender used.
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
        """A delivery from plain text headers, for code that has no ASGI scope at hand."""
        pairs = ((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items())
        return cls(body, pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A sample of a refused request, for the doctor. Nothing in it is trusted, and no credential is in it."""

    source: str
    reason: str
    detail: str
    method: str
    query: str
    headers: str  # a JSON object
    body: bytes  # its beginning, where it was long
    size: int  # of the whole body
