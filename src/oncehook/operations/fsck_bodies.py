"""Compares stored payloads with the fingerprints of their receipts."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from oncehook.config.keyring import KeyMissing, KeyRingError
from oncehook.model.errors import ConfigurationError
from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable
from oncehook.providers import definition
from oncehook.providers.expressions import NotReadable, TooDeep, fingerprint, parse
from oncehook.store.rows import FsckBody
from oncehook.store.store import Store

Fingerprint = Callable[[bytes], bytes]
Fingerprints = Callable[[str], Fingerprint | None]
"""Returns for a provider how the fingerprint of a body is made. None if the body alone does not determine it."""

NO_KEY = "payloads whose key is not in `keys`"
NO_STORE = "payload objects whose store did not answer"
NO_PROVIDER = "payloads whose provider signs more than the body, or is not defined here"


def make_fingerprints(own: Mapping[str, Mapping[str, Any]]) -> Fingerprints:
    """Return the fingerprints of the built-in providers and of those of a configuration."""

    @cache
    def find(name: str) -> Fingerprint | None:
        try:
            provider = definition.find(name, own)
        except ConfigurationError:
            return None
        if provider.content != ("json",):
            return None
        volatile = tuple(tuple(path.split(".")) for path in provider.event.volatile)
        return lambda body: fingerprint(body, _parsed(body), volatile)

    return find


def _parsed(body: bytes) -> Any:
    try:
        return parse(body)
    except (NotReadable, TooDeep):
        return None


async def body_problem(store: Store, row: FsckBody, fingerprints: Fingerprints, unknown: Counter[str]) -> str | None:
    """Return what is wrong with a payload, or None. Payloads that cannot be compared are counted in `unknown`."""
    try:
        body, _ = await store.bodies.read(row, row.body, row.headers, row.object)
    except KeyMissing:
        unknown[NO_KEY] += 1
        return None
    except ObjectStoreUnavailable:
        unknown[NO_STORE] += 1
        return None
    except (KeyRingError, ObjectMissing) as error:
        return str(error)
    if hashlib.sha256(body).digest() == row.fingerprint:
        return None
    make = fingerprints(row.provider)
    if make is None:
        unknown[NO_PROVIDER] += 1
        return None
    return None if make(body) == row.fingerprint else f"its {len(body):,} bytes do not have the recorded fingerprint"
