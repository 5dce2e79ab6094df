"""Reads the payload of an event for people, who must also see why it cannot be decrypted."""

from oncehook.config.keyring import KeyRingError
from oncehook.model.receipt import StoredPayload
from oncehook.store.store import Store


async def read_payload(store: Store, receipt: int) -> tuple[StoredPayload | None, str | None]:
    """Return the payload, or None if it was pruned or erased, and why it cannot be decrypted, or None."""
    try:
        return await store.receipts.payload(receipt), None
    except KeyRingError as error:
        return None, f"The payload is encrypted and cannot be shown: {error}."
