"""Answers handshakes without storing anything. A provider's definition names the kind of each handshake.

A handshake that the provider signs is verified like an event first. The response to an unsigned one contains
only allowed characters, so it cannot contain markup. If the response is signed with the source's key,
`HandshakeKind.signs` says which challenges are signed. The source rejects a body that is such a challenge, so no
response is ever the signature of an event. A secret that a handshake offers (Asana, Notion) is logged for the operator
and never adopted.
"""

import base64
import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from oncehook.model.delivery import LARGE, Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.providers import families
from oncehook.providers.certificates import Certificates
from oncehook.providers.expressions import NotReadable, parse
from oncehook.providers.signatures import Key
from oncehook.providers.template import Body, compile_paths

if TYPE_CHECKING:
    from oncehook.providers.definition import Handshake

HandshakeResponse = tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]  # status, body, headers

IN_HANDSHAKE = "handshake: "
"""The prefix of a rejection's detail that distinguishes a rejected handshake from a rejected event."""

_STRICT = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
# A sentence may hold an id that looks like an address. It is never signed, and browsers show it as plain text.
_SENTENCE = re.compile(r"[A-Za-z0-9_ :.,;=+/()-]{1,512}", re.ASCII)
_CHARACTERS = {"strict": _STRICT, "sentence": _SENTENCE}
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}", re.ASCII)
TEXT = ((b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff"))
JSON = ((b"content-type", b"application/json"),)
_FEW_FIELDS, _LONGEST_QUERY = 50, 8192


@dataclass(frozen=True)
class HandshakeHost:
    """The parts of a source that a response may need."""

    certificates: Certificates
    keys: Sequence[Key] = ()  # the source's keys; the first one verified this handshake
    verify_token: bytes = b""
    offer: Callable[[str], None] = lambda secret: None  # shows a secret to the operator


@dataclass(frozen=True, slots=True)
class HandshakeKind:
    """One kind of handshake, and how it is answered."""

    summary: str  # for people
    answer: "Callable[[HandshakeRequest], Awaitable[HandshakeResponse]]"
    needs_echo: bool = True  # the definition must say in `echo` where the challenge is
    signs: re.Pattern[str] | None = None  # the challenges that it signs with the source's key
    read_event: Callable[[str], Any] = lambda text: parse(text.encode())  # a challenge that this reads is not signed
    needs_hmac: bool = False  # it signs with an HMAC key
    must_be_signed: bool = False  # the request must carry the provider's signature
    calls_sender: bool = False  # it fetches a URL of the request, so the source must verify deliveries

    def is_signable(self, text: str) -> bool:
        """Whether this kind could sign a text. A source never reads such a text as an event."""
        return self.signs is not None and self.signs.fullmatch(text) is not None

    def is_readable(self, text: str) -> bool:
        """Whether a text is also a valid body, such as a number or `null`. Signing it would sign a body."""
        try:
            self.read_event(text)
        except NotReadable:
            return False
        return True


@dataclass(frozen=True, slots=True)
class HandshakeRequest:
    """A handshake to answer, and the source that answers it."""

    handshake: "Handshake"
    delivery: Delivery
    body: Body
    host: HandshakeHost

    def challenge(self) -> str:
        """The challenge to send back. Raises Rejected if it is missing or has characters that are not allowed."""
        handshake, kind = self.handshake, kind_of(self.handshake.kind)
        value = locate(handshake.echo, self.delivery, self.body) if _is_text(handshake.echo, self.body) else None
        if value is None or not _CHARACTERS[handshake.characters].fullmatch(value):
            raise Rejected("malformed", "the challenge is missing or has characters that are not allowed")
        if kind.signs is not None and (not kind.is_signable(value) or kind.is_readable(value)):
            raise Rejected("malformed", "the challenge could be read as an event, so it is not signed")
        return value

    def key(self) -> Key:
        """The key to sign with. Raises Unavailable if the source has no secret yet."""
        if not self.host.keys:
            raise Unavailable("the source has no secret yet, and the response to this handshake must be signed")
        return self.host.keys[0]


def locate(locator: str, delivery: Delivery, body: Body) -> str | None:
    """The value at `header:NAME`, `query:NAME` or a path in the body; None if it is missing or repeated."""
    kind, _, name = locator.partition(":")
    if kind == "header":
        key = name.strip().lower().encode()
        header = None if key in delivery.repeated else delivery.headers.get(key)
        return None if header is None else header.decode("latin-1").strip()
    if kind == "query":
        return _parameter(delivery.query, name)
    text = body.at(compile_paths(locator))
    return None if text is None else text.decode("utf-8", "replace")


def _is_text(locator: str, body: Body) -> bool:
    """Whether the value at a path of the body is a string. A number is not a challenge."""
    raw = None if ":" in locator else body.raw(tuple(locator.split(".")))
    return raw is None or raw.lstrip().startswith(b'"')


def _parameter(query: bytes, name: str) -> str | None:
    if len(query) > _LONGEST_QUERY:
        return None
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_FEW_FIELDS)
    except ValueError:
        return None
    values = [value for parameter, value in pairs if parameter == name]
    return values[0] if len(values) == 1 else None


def is_handshake(handshake: "Handshake", delivery: Delivery, body: Body) -> bool:
    """Whether a delivery is this handshake."""
    if handshake.method != delivery.method or len(delivery.body) > LARGE:
        return False
    for locator, condition in handshake.when.items():
        value = locate(locator, delivery, body)
        if value != condition and (value is None or condition != "*") and (value is not None or condition):
            return False
    return True


async def answer(handshake: "Handshake", delivery: Delivery, body: Body, host: HandshakeHost) -> HandshakeResponse:
    """The response to a handshake. Raises Rejected, or Unavailable if a URL that it names does not answer."""
    return await kind_of(handshake.kind).answer(HandshakeRequest(handshake, delivery, body, host))


# -- the kinds ------------------------------------------------------------------------------------------------------


async def _ack(request: HandshakeRequest) -> HandshakeResponse:
    handshake = request.handshake
    return handshake.status, handshake.body.encode(), JSON if handshake.body else ()


async def _echo(request: HandshakeRequest) -> HandshakeResponse:
    handshake, challenge = request.handshake, request.challenge()
    if handshake.json:
        return handshake.status, msgspec.json.encode({handshake.json: challenge}), JSON
    return handshake.status, challenge.encode(), TEXT


async def _token(request: HandshakeRequest) -> HandshakeResponse:
    token, expected = _parameter(request.delivery.query, "hub.verify_token"), request.host.verify_token
    if token is None or not expected or not hmac.compare_digest(token.encode(), expected):
        raise Rejected("bad_signature", "the handshake does not repeat the source's verify_token")
    return await _echo(request)


async def _zoom(request: HandshakeRequest) -> HandshakeResponse:
    challenge = request.challenge()
    token = hmac.digest(request.key(), challenge.encode(), "sha256").hex()
    return 200, msgspec.json.encode({"plainToken": challenge, "encryptedToken": token}), JSON


async def _crc(request: HandshakeRequest) -> HandshakeResponse:
    challenge = request.challenge()
    digest = hmac.digest(request.key(), challenge.encode(), "sha256")
    return 200, msgspec.json.encode({"response_token": "sha256=" + base64.b64encode(digest).decode()}), JSON


async def _secret(request: HandshakeRequest) -> HandshakeResponse:
    """Show the offered secret to the operator. If it came in a header, the response repeats that header."""
    challenge = request.challenge()
    request.host.offer(challenge)
    kind, _, name = request.handshake.echo.partition(":")
    return 200, b"", ((name.strip().lower().encode(), challenge.encode()),) if kind == "header" else ()


async def _allow_origin(request: HandshakeRequest) -> HandshakeResponse:
    """Allow the origin to deliver at the rate that it requested, as the CloudEvents webhook specification defines."""
    headers = request.delivery.headers
    origin = headers.get(b"webhook-request-origin", b"")
    if not _HOST.fullmatch(origin.decode("latin-1")):
        raise Rejected("malformed", "the handshake names no origin")
    rate = headers.get(b"webhook-request-rate", b"*")
    allowed = rate if rate.isdigit() and len(rate) < 10 else b"*"
    return 200, b"", ((b"allow", b"POST"), (b"webhook-allowed-origin", origin), (b"webhook-allowed-rate", allowed))


_SENT_BACK_SIGNED = "Oncehook sends the token back, signed"
KINDS = {
    "echo": HandshakeKind("Oncehook sends the challenge back", _echo),
    "ack": HandshakeKind("Oncehook acknowledges the ping", _ack, needs_echo=False),
    "token": HandshakeKind("Oncehook sends the challenge back if it repeats `verify_token`", _token),
    "zoom": HandshakeKind(_SENT_BACK_SIGNED, _zoom, signs=_STRICT, needs_hmac=True, must_be_signed=True),
    "crc": HandshakeKind(_SENT_BACK_SIGNED, _crc, signs=_STRICT, needs_hmac=True),
    "secret": HandshakeKind("it offers a secret, which Oncehook logs and never adopts", _secret),
    "cloudevents": HandshakeKind("Oncehook allows the origin to deliver", _allow_origin, needs_echo=False),
}
"""The kinds that any provider may name. A signature family may define one more, under its own name."""


def kind_of(name: str) -> HandshakeKind:
    """The handshake kind of a name. Raises LookupError if there is none."""
    if name in KINDS:
        return KINDS[name]
    kind = families.find(name).handshake
    if kind is None:
        raise LookupError(f"the signature family {name} has no handshake")
    return kind
