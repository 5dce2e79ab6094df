"""The message that the receiver publishes: a verified delivery, sealed with the key ring.

A program that can only write to the queue cannot make such a message, and one that can only read the queue cannot read
the body. The seal names the source, so a message of one source is not accepted in the queue of another.

    oncehook1:<key id>:<base64>     AES-256-GCM over MessagePack
    oncehook1::<base64>             MessagePack; accepted only with `intake_trust = "queue"`
"""

import base64
import binascii

import msgspec

from oncehook.config.keyring import KeyMissing, KeyRing, KeyWrong
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.providers.expressions import NEW
from oncehook.providers.source import Source

PREFIX = b"oncehook1:"


class SealKeyMissing(Unavailable):
    """The key ring lacks the key that sealed a message. The message waits until the process has the key."""


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verified delivery as it waits in a queue, with the headers that are stored with an event: no credentials."""

    source: str
    id: str  # random: the id of this delivery
    received_at: float  # Unix seconds
    body: bytes
    headers: list[tuple[bytes, bytes]]
    tenant: str = ""
    verified_by: str = ""  # the fingerprint of the secret that verified it
    path: str = ""
    query: bytes = b""
    scheme: str = "http"
    address: str = ""
    object: str = ""  # the address of the whole message in the payload store, if it is too large for the broker

    def delivery(self) -> Delivery:
        """The delivery as it was received, without credentials."""
        delivery = Delivery(self.body, self.headers, path=self.path, query=self.query, scheme=self.scheme)
        delivery.address = self.address
        delivery.headers[NEW] = self.id.encode()
        return delivery


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def make_envelope(source: Source, delivery: Delivery, *, id: str, received_at: float, verified_by: str) -> Envelope:
    """The envelope of a delivery that was verified just now."""
    is_stored = source.reader.stored_names
    return Envelope(
        source=source.name,
        tenant=source.tenant,
        id=id,
        received_at=received_at,
        verified_by=verified_by,
        body=delivery.body,
        headers=[pair for pair in delivery.headers.items() if is_stored[pair[0]]],
        path=delivery.path,
        query=delivery.query,
        scheme=delivery.scheme,
        address=delivery.address,
    )


def make_pointer(envelope: Envelope, address: str) -> Envelope:
    """The envelope that the broker gets if the sealed message is stored at `address`."""
    return msgspec.structs.replace(envelope, body=b"", headers=[], object=address)


def seal(envelope: Envelope, keys: KeyRing) -> bytes:
    """The message of an envelope: sealed with the first key, or plain if the key ring is empty."""
    key_id, data = "", _encode(envelope)
    if keys:
        key_id, data = keys.encrypt(data, _context(envelope.source))
    return b"%s%s:%s" % (PREFIX, key_id.encode(), base64.b64encode(data))


def unseal(message: bytes, source: str, keys: KeyRing, *, trusted: bool) -> Envelope:
    """The envelope in a message. Raises Rejected if it is not authentic, and SealKeyMissing if it may be.

    A message that is not sealed is accepted only with `trusted`.
    """
    key_id, colon, encoded = message.removeprefix(PREFIX).partition(b":")
    if not message.startswith(PREFIX) or not colon:
        raise Rejected("malformed", "the message is not one that the receiver published")
    if not key_id and not trusted:
        raise Rejected("bad_signature", "the message is not sealed with a key of the key ring")
    try:
        data = base64.b64decode(encoded, validate=True)
        if base64.b64encode(data) != encoded:  # another text for the same bytes: the receiver writes only one
            raise ValueError
        if key_id:
            data = keys.decrypt(key_id.decode("ascii"), data, _context(source))
        envelope = _decode(data)
    except KeyMissing as error:
        raise SealKeyMissing(str(error)) from None
    except KeyWrong:
        raise Rejected("bad_signature", "the seal of the message does not match its key and its source") from None
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise Rejected("malformed", "the message cannot be decoded") from None
    if envelope.source != source:
        raise Rejected("bad_signature", "the message belongs to another source")
    return envelope


def _context(source: str) -> str:
    return f"intake\n{source}"
