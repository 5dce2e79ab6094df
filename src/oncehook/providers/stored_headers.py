"""Decides which headers are stored with an event or a rejection sample: no connection headers and no credentials.

A credential is recognized by its name, for every provider: a delivery to the wrong source may carry the token of
another provider. A header that the source needs for a fact of the event is always stored.
"""

import re
from collections.abc import Iterable

import msgspec

HeaderPair = tuple[bytes, bytes]

NEVER_STORED = frozenset(
    b"host connection accept accept-encoding content-length transfer-encoding expect upgrade keep-alive te trailer "
    b"forwarded x-forwarded-for x-forwarded-proto x-forwarded-host x-forwarded-port x-forwarded-prefix x-real-ip "
    b"x-trello-webhook :new".split()
)
_CREDENTIAL = re.compile(
    rb"token|secret|auth|key|session|cookie|signature|-sig$|-verification$|hmac|passw|credential|jwt|oidc|bearer|dpop|"
    rb"client-cert"
)
_NO_CREDENTIALS = frozenset((b"idempotency-key",))

_MOST_NAMES, _LONGEST_NAME = 1000, 100
_MOST_CACHED, _LONGEST_CACHED = 256, 2048
_encode = msgspec.json.Encoder().encode
_cache: dict[tuple[HeaderPair, ...], str] = {}


class StoredNames(dict[bytes, bool]):
    """Maps the name of a header to whether it is stored. Results are cached, except for unusually long names."""

    def __init__(self, *, dropped: Iterable[bytes] = (), needed: Iterable[bytes] = ()) -> None:
        names = set(dropped)  # a name that ends in * is a prefix
        self._dropped = NEVER_STORED | names
        self._dropped_like = tuple(name[:-1] for name in names if name.endswith(b"*"))
        self._needed = _NO_CREDENTIALS | set(needed)

    def __missing__(self, name: bytes) -> bool:
        is_stored = name not in self._dropped and not name.startswith(self._dropped_like)
        is_stored = is_stored and (name in self._needed or _CREDENTIAL.search(name) is None)
        if len(self) < _MOST_NAMES and len(name) <= _LONGEST_NAME:
            self[name] = is_stored
        return is_stored


def headers_json(headers: tuple[HeaderPair, ...]) -> str:
    """The headers as a JSON object. Small objects are cached: most senders repeat the same headers."""
    text = _cache.get(headers)
    if text is None:
        text = _encode({name.decode("latin-1"): value.decode("latin-1") for name, value in headers}).decode()
        if len(text) <= _LONGEST_CACHED:
            if len(_cache) >= _MOST_CACHED:
                _cache.clear()
            _cache[headers] = text
    return text
