"""Records of a segment: one for each delivery, with its length and a checksum.

A record that was cut off by a crash or a power loss is recognized. It was never acked, because the ack follows the
fsync. If a record in the middle is damaged, the records after it are still found.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from oncehook.model.claim import Claim

MAGIC = b"oncehook spool 1\n"
MARK = b"\xf5rec"
HEADER = struct.Struct(">4sII16s")  # mark, length of the payload, number of events, checksum

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Claim]).decode


@dataclass
class Contents:
    """What a segment has."""

    deliveries: list[list[Claim]] = field(default_factory=list)
    damaged: int = 0
    """Bytes between two records that are not readable."""

    torn: int = 0
    """Bytes at the end that are no complete record."""


def encode(claims: Sequence[Claim]) -> bytes:
    """Return the record of one delivery."""
    payload = _encode(claims)
    return HEADER.pack(MARK, len(payload), len(claims), _checksum(payload, len(claims))) + payload


def read(data: bytes) -> Contents:
    """Return the deliveries of a segment. Never raises: what cannot be read is counted."""
    contents = Contents()
    position = len(MAGIC) if data.startswith(MAGIC) else 0
    while position < len(data):
        record = _read_record(data, position)
        if record is None:
            following = _next_record(data, position + 1)
            if following is None:
                contents.torn = len(data) - position
                break
            contents.damaged += following - position
            position = following
            continue
        claims, position = record
        contents.deliveries.append(claims)
    return contents


def count_events(data: bytes) -> int:
    """Return how many events the records have, by their headers. Damaged records are not counted."""
    events, position = 0, len(MAGIC)
    while position + HEADER.size <= len(data):
        mark, length, number, _ = HEADER.unpack_from(data, position)
        if mark != MARK or position + HEADER.size + length > len(data):
            break
        events += number
        position += HEADER.size + length
    return events


def _read_record(data: bytes, position: int) -> tuple[list[Claim], int] | None:
    """Return the claims of the record at a position, and where the record ends. None if there is no whole record."""
    start = position + HEADER.size
    if start > len(data):
        return None
    mark, length, number, checksum = HEADER.unpack_from(data, position)
    payload = data[start : start + length]
    if mark != MARK or len(payload) != length or _checksum(payload, number) != checksum:
        return None
    try:
        return _decode(payload), start + length
    except msgspec.MsgspecError:  # written by a version whose claims this one cannot read
        return None


def _next_record(data: bytes, position: int) -> int | None:
    """Return where the next whole record begins."""
    position = data.find(MARK, position)
    while position != -1:
        if _read_record(data, position) is not None:
            return position
        position = data.find(MARK, position + 1)
    return None


def _checksum(payload: bytes, events: int) -> bytes:
    return hashlib.blake2b(payload, digest_size=16, salt=struct.pack(">Q", events)).digest()
