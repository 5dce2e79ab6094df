"""Exchanges that are answered without storing anything; a provider's definition names their kind.

A handshake that its provider signs is verified like an event first. One that nobody signs is answered from a small set
of characters only, so nothing that is sent back can be more than a word. Where the answer is signed with the source's
key, `HandshakeKind.signs` says which words are signed, and the source rejects a body that is such a word: no answer is
ever the signature of an event. A secret that a handshake offers (Asana, Notion) is shown to the operator and never
adopted.
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
"""How the detail begins by which a refused handshake is told from a refused event."""

_STRICT = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
# A sentence may hold an address-like id. It is no key's message, and plain text to every browser.
_SENTENCE = re.compile(r"[A-Za-z0-9_ :.,;=+/()-]{1,512}", re.ASCII)
_CHARACTERS = {"strict": _STRICT, "sentence": _SENTENCE}
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}", re.ASCII)
TEXT = ((b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff"))
JSON = ((b"content-type", b"application/json"),)
_FEW_FIELDS, _LONGEST_QUERY = 50, 8192


@dataclass(frozen=True)
class HandshakeHost:
    """The source, as far as an answer may need it."""

    certificates: Certificates
    keys: Sequence[Key] = ()  # the source's own, the one that verified this handshake first
    verify_token: bytes = b""
    offer: Callable[[str], None] = lambda secret: None  # show a secret to the operator


@dataclass(frozen=True, slots=True)
class HandshakeKind:
    """One kind of handshake, and what is sent back."""

    summary: str  # for people
    answer: "Callable[[HandshakeRequest], Awaitable[HandshakeResponse]]"
    needs_echo: bool = True  # its challenge stands where `echo` says
    signs: re.Pattern[str] | None = None  # the challenges that it signs with the source's key
    read_event: Callable[[str], Any] = lambda text: parse(text.encode())  # no challenge that this can read is signed
    needs_hmac: bool = False  # it signs with a key of HMAC
    must_be_signed: bool = False  # the request itself
    calls_sender: bool = False  # a URL of the request is fetched: never for a source that verifies nothing

    def is_signable(self, text: str) -> bool:
        """Whether it could sign this text. A source never reads such a text as an event."""
        return self.signs is not None and self.signs.fullmatch(text) is not None

    def is_readable(self, text: str) -> bool:
        """Whether the reader of events takes this text: a number or `null`, which the answer would sign as a body."""
        try:
            self.read_event(text)
        except NotReadable:
            return False
        return True


@dataclass(frozen=True, slots=True)
class HandshakeRequest:
    """A request that is a handshake, and the source that answers it."""

    handshake: "Handshake"
    delivery: Delivery
    body: Body
    host: HandshakeHost

    def challenge(self) -> str:
        """The value to send back. Raises Rejected for one that is not answered."""
        handshake, kind = self.handshake, kind_of(self.handshake.kind)
        found = locate(handshake.echo, self.delivery, self.body) if _is_text(handshake.echo, self.body) else None
        if found is None or not _CHARACTERS[handshake.characters].fullmatch(found):
            raise Rejected("malformed", "the challenge is not one that is answered")
        if kind.signs is not None and (not kind.is_signable(found) or kind.is_readable(found)):
            raise Rejected("malformed", "the challenge is not one that is answered")
        return found

    def key(self) -> Key:
        """The key to sign with. Raises Unavailable if the source has no secret yet."""
        if not self.host.keys:
            raise Unavailable("the source has no secret yet to answer this handshake with")
        return self.host.keys[0]


def locate(locator: str, delivery: Delivery, body: Body) -> str | None:
    """What stands at `header:NAME`, `query:NAME` or a path in the body; None where it is not, or twice."""
    kind, _, name = locator.partition(":")
    if kind == "header":
        key = name.strip().lower().encode()
        found = None if key in delivery.repeated else delivery.headers.get(key)
        return None if found is None else found.decode("latin-1").strip()
    if kind == "query":
        return _parameter(delivery.query, name)
    at = body.at(compile_paths(locator))
    return None if at is None else at.decode("utf-8", "replace")


def _is_text(locator: str, body: Body) -> bool:
    """Whether what stands at a path of the body is a text; a number is no challenge."""
    raw = None if ":" in locator else body.raw(tuple(locator.split(".")))
    return raw is None or raw.lstrip().startswith(b'"')


def _parameter(query: bytes, name: str) -> str | None:
    if len(query) > _LONGEST_QUERY:
        return None
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_FEW_FIELDS)
    except ValueError:
        return None
    found = [value for parameter, value in pairs if parameter == name]
    return found[0] if len(found) == 1 else None


def is_handshake(handshake: "Handshake", delivery: Delivery, body: Body) -> bool:
    """Whether a delivery is this handshake."""
    if handshake.method != delivery.method or len(delivery.body) > LARGE:
        return False
    for locator, wanted in handshake.when.items():
        found = locate(locator, delivery, body)
        if found != wanted and (found is None or wanted != "*") and (found is not None or wanted):
            return False
    return True


async def answer(handshake: "Handshake", delivery: Delivery, body: Body, host: HandshakeHost) -> HandshakeResponse:
    """What to send back. Raises Rejected, or Unavailable when the other side does not answer."""
    return await kind_of(handshake.kind).answer(HandshakeRequest(handshake, delivery, body, host))


# -- the kinds ------------------------------------------------------------------------------------------------------


async def _ack(exchange: HandshakeRequest) -> HandshakeResponse:
    handshake = exchange.handshake
    return handshake.status, handshake.body.encode(), JSON if handshake.body else ()


async def _echo(exchange: HandshakeRequest) -> HandshakeResponse:
    handshake, challenge = exchange.handshake, exchange.challenge()
    if handshake.json:
        return handshake.status, msgspec.json.encode({handshake.json: challenge}), JSON
    return handshake.status, challenge.encode(), TEXT


async def _token(exchange: HandshakeRequest) -> HandshakeResponse:
    given, expected = _parameter(exchange.delivery.query, "hub.verify_token"), exchange.host.verify_token
    if given is None or not expected or not hmac.compare_digest(given.encode(), expected):
        raise Rejected("bad_signature", "the handshake does not repeat the source's verify_token")
    return await _echo(exchange)


async def _zoom(exchange: HandshakeRequest) -> HandshakeResponse:
    challenge = exchange.challenge()
    token = hmac.digest(exchange.key(), challenge.encode(), "sha256").hex()
    return 200, msgspec.json.encode({"plainToken": challenge, "encryptedToken": token}), JSON


async def _crc(exchange: HandshakeRequest) -> HandshakeResponse:
    challenge = exchange.challenge()
    digest = hmac.digest(exchange.key(), challenge.encode(), "sha256")
    return 200, msgspec.json.encode({"response_token": "sha256=" + base64.b64encode(digest).decode()}), JSON


async def _secret(exchange: HandshakeRequest) -> HandshakeResponse:
    """The offered secret is shown, and, where the provider wants that, sent back in the header that it came in."""
    challenge = exchange.challenge()
    exchange.host.offer(challenge)
    kind, _, name = exchange.handshake.echo.partition(":")
    return 200, b"", ((name.strip().lower().encode(), challenge.encode()),) if kind == "header" else ()


async def _allow_origin(exchange: HandshakeRequest) -> HandshakeResponse:
    """The permission of the CloudEvents webhook specification: this origin may deliver, as often as it asked to."""
    headers = exchange.delivery.headers
    origin = headers.get(b"webhook-request-origin", b"")
    if not _HOST.fullmatch(origin.decode("latin-1")):
        raise Rejected("malformed", "the handshake names no origin")
    rate = headers.get(b"webhook-request-rate", b"*")
    allowed = rate if rate.isdigit() and len(rate) < 10 else b"*"
    return 200, b"", ((b"allow", b"POST"), (b"webhook-allowed-origin", origin), (b"webhook-allowed-rate", allowed))


_SENT_BACK_SIGNED = "its token is sent back signed"
KINDS = {
    "echo": HandshakeKind("its challenge is sent back", _echo),
    "ack": HandshakeKind("its ping is acknowledged", _ack, needs_echo=False),
    "token": HandshakeKind("its challenge is sent back if it repeats `verify_token`", _token),
    "zoom": HandshakeKind(_SENT_BACK_SIGNED, _zoom, signs=_STRICT, needs_hmac=True, must_be_signed=True),
    "crc": HandshakeKind(_SENT_BACK_SIGNED, _crc, signs=_STRICT, needs_hmac=True),
    "secret": HandshakeKind("it offers a secret, which is shown in the log and never adopted", _secret),
    "cloudevents": HandshakeKind("its origin is allowed to deliver", _allow_origin, needs_echo=False),
}
"""The kinds that any provider may name; a signature family may have one more, under its own name."""


def kind_of(name: str) -> HandshakeKind:
    """The handshake kind of a name. Raises LookupError if there is none."""
    if name in KINDS:
        return KINDS[name]
    kind = families.find(name).handshake
    if kind is None:
        raise LookupError(f"the signature family {name} has no handshake")
    return kind
