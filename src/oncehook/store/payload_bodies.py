"""Reads the bodies of payloads: from the row or from the payload store, and decrypted if the source is encrypted."""

from msgspec.structs import replace

from oncehook.config.keyring import KeyRingError, is_sealed
from oncehook.model.lease import Leased
from oncehook.objects.payload_objects import PayloadObjects
from oncehook.objects.reference import ObjectError, ObjectMissing
from oncehook.store.encryption import Encryption, Identity
from oncehook.store.executor import Executor


class PayloadBodies:
    """Reads payloads. No transaction and no connection of the database is held while it waits for the payload store."""

    def __init__(self, executor: Executor, objects: PayloadObjects, encryption: Encryption) -> None:
        self._executor = executor
        self._objects = objects
        self._encryption = encryption

    async def read(self, event: Identity, body: bytes, headers: str, address: str | None) -> tuple[bytes, str]:
        """Return the body and the headers of a payload. Raises ObjectError or KeyRingError if it cannot be read."""
        if address is not None:
            body = await self._objects.get(address)
        return self._encryption.decrypt(event, body, headers)

    async def open_lease(self, leased: Leased) -> Leased:
        """Return a leased receipt with its body. If it cannot be read, the body is None, with `payload_error`."""
        if leased.object is None or leased.headers is None:
            return leased
        is_encrypted = is_sealed(leased.headers)
        try:
            try:
                body, headers = await self.read(leased, b"", leased.headers, leased.object)
            except ObjectMissing:  # since the lease, the payload may have been erased, or encrypted with another key
                rows = await self._executor.read("payload", {"receipt": leased.receipt})
                if not rows:
                    return replace(leased, body=None, headers=None, object=None, is_encrypted=is_encrypted)
                body, headers = await self.read(leased, rows[0]["body"], rows[0]["headers"], rows[0]["object"])
        except (KeyRingError, ObjectError) as error:
            return replace(leased, body=None, headers=None, object=None, is_encrypted=is_encrypted, payload_error=error)
        return replace(leased, body=body, headers=headers, object=None, is_encrypted=is_encrypted)
