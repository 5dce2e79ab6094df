"""Which headers of a request are kept with an event or a sample: not those of the connection, and no credentials.

A credential is recognized by its name, whoever sends it: a delivery to the wrong address may carry another provider's
token. A header that the source needs for a fact of the event is kept whatever its name.
"""

import re
from collections.abc import Iterable

import msgspec

Pair = tuple[bytes, bytes]

NEVER_KEPT = frozenset(
    b"host connection accept accept-encoding content-length transfer-encoding expect upgrade keep-alive te trailer "
    b"forwarded x-forwarded-for x-forwarded-proto x-forwarded-host x-forwarded-port x-forwarded-prefix x-real-ip "
    b"x-trello-webhook".split()
)
_CREDENTIAL = re.compile(
    rb"token|secret|auth|key|session|cookie|signature|-sig$|-verification$|hmac|passw|credential|jwt|oidc|bearer|dpop|"
    rb"client-cert"
)
_NO_CREDENTIALS = frozenset((b"idempotency-key",))

_MOST_NAMES, _LONGEST_NAME = 1000, 100
_MOST_CACHED, _LONGEST_CACHED = 256, 2048
_encode = msgspec.json.Encoder().encode
_as_json: dict[tuple[Pair, ...], str] = {}


class StoredNames(dict[bytes, bool]):
    """Whether the header of a name is kept. Verdicts are cached, but for names longer than any sender's."""

    def __init__(self, *, dropped: Iterable[bytes] = (), needed: Iterable[bytes] = ()) -> None:
        names = set(dropped)  # a name that ends in * stands for all that begin so
        self._dropped = NEVER_KEPT | names
        self._dropped_like = tuple(name[:-1] for name in names if name.endswith(b"*"))
        self._needed = _NO_CREDENTIALS | set(needed)

    def __missing__(self, name: bytes) -> bool:
        is_kept = name not in self._dropped and not name.startswith(self._dropped_like)
        is_kept = is_kept and (name in self._needed or _CREDENTIAL.search(name) is None)
        if len(self) < _MOST_NAMES and len(name) <= _LONGEST_NAME:
            self[name] = is_kept
        return is_kept


def headers_json(headers: tuple[Pair, ...]) -> str:
    """The headers as a JSON object. Small ones are cached: most senders repeat themselves in every header."""
    found = _as_json.get(headers)
    if found is None:
        found = _encode({name.decode("latin-1"): value.decode("latin-1") for name, value in headers}).decode()
        if len(found) <= _LONGEST_CACHED:
            if len(_as_json) >= _MOST_CACHED:
                _as_json.clear()
            _as_json[headers] = found
    return found
