"""Encrypts the rows of events whose source has `encrypt = true`, and decrypts them where they are read.

The body is encrypted as bytes. Headers, effect arguments and error texts are sealed texts, which name their key. Sealed
headers show that a payload is encrypted, so the statements and rows of other sources do not change.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from oncehook.config.keyring import PREFIX, KeyMissing, KeyRing, KeyRingError, is_sealed, key_id_of
from oncehook.model.claim import Claim
from oncehook.model.effect import LeasedEffect, StoredEffect
from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import Leased, Settled
from oncehook.model.receipt import Receipt
from oncehook.model.rows import StoredAttempt

SEALED = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9_-]+:[A-Za-z0-9+/]+=*")
"""A sealed text inside another text, such as the last error of an abandoned event."""


class Identity(Protocol):
    """Identifies an event. Its payload can be decrypted only with the identity that it was encrypted with."""

    @property
    def source(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def event_id(self) -> str: ...


def payload_context(event: Identity) -> str:
    """The context of a payload."""
    return f"payload\n{event.source}\n{event.tenant}\n{event.event_id}"


def error_context(source: str) -> str:
    """The context of the error texts of a source."""
    return f"error\n{source}"


def args_context(scope: str, key: str) -> str:
    """The context of an effect's arguments."""
    return f"effect\n{scope}\n{key}"


class Encryption:
    """Encrypts with the first key of the store's key ring, and decrypts with the key that a value names."""

    def __init__(self, keys: Callable[[], KeyRing]) -> None:
        self._keys = keys

    # -- payloads -------------------------------------------------------------------------------------------------

    def encrypt_claims(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims as they are stored. Raises StoreUnavailable without a key: the sender should retry."""
        try:
            return [self._encrypt_claim(claim) for claim in claims]
        except KeyMissing as error:
            raise StoreUnavailable(str(error)) from None

    def _encrypt_claim(self, claim: Claim) -> Claim:
        ring, context = self._keys(), payload_context(claim)
        key_id, body = ring.encrypt(claim.body, context)
        return replace(
            claim,
            body=body,
            headers=ring.seal(claim.headers, context),
            key_id=key_id,
            last_error=self.seal_error(claim.last_error, claim.source),
            copies=tuple(
                replace(copy, last_error=self.seal_error(copy.last_error, claim.source)) for copy in claim.copies
            ),
        )

    def decrypt(self, event: Identity, body: bytes, headers: str) -> tuple[bytes, str]:
        """Return the body and the headers of a payload. Raises KeyRingError if it is encrypted and cannot be read."""
        key_id = key_id_of(headers)
        if key_id is None:
            return body, headers
        ring, context = self._keys(), payload_context(event)
        return ring.decrypt(key_id, body, context), ring.open(headers, context)

    def decrypt_headers(self, event: Identity, headers: str) -> tuple[bytes, str]:
        """Return no body, and the headers of a payload whose body is lost. Raises KeyRingError."""
        return b"", self._keys().open(headers, payload_context(event)) if is_sealed(headers) else headers

    def open_leases(self, leased: list[Leased]) -> list[Leased]:
        """Decrypt the payloads of leased receipts. A payload that cannot be decrypted is None, with `payload_error`.

        A payload whose body is an object is left as it is: `PayloadBodies` reads it later.
        """
        return [self._open(lease) if (lease.headers or "").startswith(PREFIX) else lease for lease in leased]

    def _open(self, leased: Leased) -> Leased:
        assert leased.body is not None and leased.headers is not None
        if leased.object is not None:
            return leased
        try:
            body, headers = self.decrypt(leased, leased.body, leased.headers)
        except KeyRingError as error:
            return replace(leased, body=None, headers=None, is_encrypted=True, payload_error=error)
        return replace(leased, body=body, headers=headers, is_encrypted=True)

    # -- error texts ----------------------------------------------------------------------------------------------

    def seal_error(self, text: str | None, source: str) -> str | None:
        """Seal an error text of an encrypted source."""
        return None if text is None else self._keys().seal(text, error_context(source))

    def seal_attempt(self, leased: Leased, settled: Settled) -> Settled:
        """Return the result of an attempt with sealed error texts."""
        return replace(
            settled,
            error=self.seal_error(settled.error, leased.source),
            traceback=self.seal_error(settled.traceback, leased.source),
        )

    def open_error(self, text: str | None, source: str) -> str | None:
        """Return an error text with its sealed parts opened. A part without its key is replaced by a note."""
        if text is None or PREFIX not in text:
            return text
        return SEALED.sub(lambda part: self._open_or_note(part.group(), error_context(source)), text)

    def _open_or_note(self, text: str, context: str) -> str:
        try:
            return self._keys().open(text, context)
        except KeyRingError as error:
            return f"({encrypted_note(error)})"

    def open_receipts(self, receipts: list[Receipt]) -> list[Receipt]:
        """Open the error texts of receipts."""
        return [
            row if row.last_error is None or PREFIX not in row.last_error
            else replace(row, last_error=self.open_error(row.last_error, row.source))
            for row in receipts
        ]  # fmt: skip

    def open_attempts(self, attempts: list[StoredAttempt], source: str) -> list[StoredAttempt]:
        """Open the error texts of the attempts of one receipt."""
        return [
            replace(
                row, error=self.open_error(row.error, source), traceback=self.open_error(row.traceback, source)
            )
            for row in attempts
        ]  # fmt: skip

    # -- effects --------------------------------------------------------------------------------------------------

    def seal_args(self, scope: str, key: str, args: str) -> str:
        """Seal the arguments of an effect that an event of an encrypted source requests."""
        return self._keys().seal(args, args_context(scope, key))

    def open_effect(self, effect: LeasedEffect) -> LeasedEffect:
        """Open the arguments of a leased effect. Without their key they are None, with `key_error`."""
        if effect.args is not None and is_sealed(effect.args):
            effect.is_encrypted = True
            try:
                effect.args = self._keys().open(effect.args, args_context(effect.scope, effect.key))
            except KeyRingError as error:
                effect.args, effect.key_error = None, error
        return effect

    def open_stored_effect(self, row: StoredEffect) -> StoredEffect:
        """Open the arguments and the error of an effect for people. Without the key, the arguments are None."""
        args, error = row.args, self.open_error(row.last_error, row.source)
        if args is not None and is_sealed(args):
            try:
                args = self._keys().open(args, args_context(row.scope, row.key))
            except KeyRingError as failure:
                args, error = None, error or f"({encrypted_note(failure)})"
        return replace(row, args=args, last_error=error)


def without_sealed(text: str | None) -> str | None:
    """Return a text for a log line, in which no encrypted text is shown."""
    return None if text is None else SEALED.sub("(encrypted)", text)


def encrypted_note(error: KeyRingError) -> str:
    """Return a short note for people about a value that cannot be decrypted."""
    problem = "is missing" if isinstance(error, KeyMissing) else "does not decrypt it"
    return f"encrypted; the key {error.key_id} {problem}"
