"""Payloads for people, who must also see why a payload cannot be decrypted or searched."""

from collections.abc import Mapping

from oncehook.config.keyring import KeyRingError
from oncehook.config.settings import SourceSettings
from oncehook.model.receipt import Filter, StoredPayload
from oncehook.store.store import Store


async def read_payload(store: Store, receipt: int) -> tuple[StoredPayload | None, str | None]:
    """Return the payload, or None if it was pruned or erased, and why it cannot be decrypted, or None."""
    try:
        return await store.receipts.payload(receipt), None
    except KeyRingError as error:
        return None, f"The payload is encrypted and cannot be shown: {error}."


SEARCH_NOTE = "Payloads of encrypted sources are not searched: of their events, a search finds only the ids."


async def search_note(store: Store, condition: Filter, sources: Mapping[str, SourceSettings]) -> str | None:
    """Return a note if a search leaves out payloads that are encrypted, or None.

    `sources` are the configured ones. Other sources may be encrypted if a process has recorded a key.
    """
    configured = sources.get(condition.source or "")
    if condition.search is None or (configured is not None and not configured.encrypt):
        return None
    return SEARCH_NOTE if await store.encrypted_rows.registered() else None
