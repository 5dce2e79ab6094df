"""Payloads for people, who must also see why a payload cannot be decrypted or searched."""

from collections.abc import Mapping

from oncehook.config.keyring import KeyRingError
from oncehook.config.settings import SourceSettings
from oncehook.model.receipt import Filter, StoredPayload
from oncehook.objects.reference import ObjectError
from oncehook.store.store import Store


async def read_payload(store: Store, receipt: int) -> tuple[StoredPayload | None, str | None]:
    """Return the payload, or None if it was pruned or erased, and why it cannot be read, or None."""
    try:
        return await store.receipts.payload(receipt), None
    except KeyRingError as error:
        return None, f"The payload is encrypted and cannot be shown: {error}."
    except ObjectError as error:
        return None, f"The payload cannot be shown: {error}."


SEARCH_NOTE = "Payloads of encrypted sources are not searched: of their events, a search finds only the ids."
LARGE_NOTE = "Bodies in the payload store are not searched: of their events, a search finds only the ids."


async def search_note(store: Store, condition: Filter, sources: Mapping[str, SourceSettings]) -> str | None:
    """Return a note if a search leaves out payloads that are encrypted or in the payload store, or None.

    `sources` are the configured ones. Other sources may be encrypted if a process has recorded a key.
    """
    if condition.search is None:
        return None
    configured = sources.get(condition.source or "")
    notes = [] if store.settings.payload_store is None else [LARGE_NOTE]
    if (configured is None or configured.encrypt) and await store.encrypted_rows.registered():
        notes.append(SEARCH_NOTE)
    return " ".join(notes) or None
