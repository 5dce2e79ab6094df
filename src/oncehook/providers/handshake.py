"""Exchanges that are answered without storing anything: a closed set, named by a provider's definition.

A handshake that its provider signs is verified like an event first. One that nobody signs is answered from a small set
of characters only, so nothing that is sent back can be more than a word. Where the answer is signed with the source's
key (Zoom, X, Braintree), `is_signable` says which words are signed, and the source rejects a body that is such a word:
no answer is ever the signature of an event. A secret that a handshake offers (Asana, Notion) is shown to the
operator and never adopted. Nothing is fetched but from an address that `families/sns_form.py` allows.
"""

import base64
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

import msgspec

from oncehook.model.delivery import LARGE, Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.providers.certificates import Certificates
from oncehook.providers.definition import Handshake
from oncehook.providers.expressions import NotReadable, parse
from oncehook.providers.families import braintree_form as braintree
from oncehook.providers.families.sns_form import subscribe_url
from oncehook.providers.signatures import Key
from oncehook.providers.template import Body, compile_paths

Answer = tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]  # status, body, headers

IN_HANDSHAKE = "handshake: "
"""How the detail begins by which a refused handshake is told from a refused event."""

_STRICT = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
# Microsoft Graph sends a sentence with an address-like id. It is no key's message, and plain text to every browser.
_SENTENCE = re.compile(r"[A-Za-z0-9_ :.,;=+/()-]{1,512}", re.ASCII)
_CHARACTERS = {"strict": _STRICT, "sentence": _SENTENCE}
_SIGNED = {"zoom": _STRICT, "crc": _STRICT, "braintree": re.compile(r"[a-f0-9]{20,32}", re.ASCII)}
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}", re.ASCII)
_TEXT = ((b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff"))
_JSON = ((b"content-type", b"application/json"),)
_FEW_FIELDS, _LONGEST_QUERY = 50, 8192


@dataclass(frozen=True)
class Host:
    """The source, as far as an answer may need it."""

    certificates: Certificates
    keys: Sequence[Key] = ()  # the source's own, the one that verified this handshake first
    verify_token: bytes = b""
    offer: Callable[[str], None] = lambda secret: None  # show a secret to the operator


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


def is_signable(kind: str, text: str) -> bool:
    """Whether a handshake of this kind could sign this text. A source never reads such a text as an event."""
    return kind in _SIGNED and _SIGNED[kind].fullmatch(text) is not None


def is_handshake(handshake: Handshake, delivery: Delivery, body: Body) -> bool:
    """Whether a delivery is this handshake."""
    if handshake.method != delivery.method or len(delivery.body) > LARGE:
        return False
    for locator, wanted in handshake.when.items():
        found = locate(locator, delivery, body)
        if found != wanted and (found is None or wanted != "*") and (found is not None or wanted):
            return False
    return True


async def answer(handshake: Handshake, delivery: Delivery, body: Body, host: Host) -> Answer:
    """What to send back. Raises Rejected, or Unavailable when the other side does not answer."""
    if handshake.kind == "ack":
        return handshake.status, handshake.body.encode(), _JSON if handshake.body else ()
    if handshake.kind == "sns":
        return await _confirm_subscription(body, host)
    if handshake.kind == "cloudevents":
        return _allow_origin(delivery)
    if handshake.kind == "token" and not _repeats_token(delivery, host):
        raise Rejected("bad_signature", "the handshake does not repeat the source's verify_token")
    challenge = locate(handshake.echo, delivery, body) if _is_text(handshake.echo, body) else None
    if challenge is None or not _CHARACTERS[handshake.characters].fullmatch(challenge):
        raise Rejected("malformed", "the challenge is not one that is answered")
    if handshake.is_keyed and (not is_signable(handshake.kind, challenge) or _is_readable(handshake.kind, challenge)):
        raise Rejected("malformed", "the challenge is not one that is answered")
    return _KINDS[handshake.kind](handshake, challenge, host)


# -- what is sent back ----------------------------------------------------------------------------------------------


def _echo(handshake: Handshake, challenge: str, host: Host) -> Answer:
    if handshake.json:
        return handshake.status, msgspec.json.encode({handshake.json: challenge}), _JSON
    return handshake.status, challenge.encode(), _TEXT


def _zoom(handshake: Handshake, challenge: str, host: Host) -> Answer:
    token = hmac.digest(_key(host), challenge.encode(), "sha256").hex()
    return 200, msgspec.json.encode({"plainToken": challenge, "encryptedToken": token}), _JSON


def _crc(handshake: Handshake, challenge: str, host: Host) -> Answer:
    digest = hmac.digest(_key(host), challenge.encode(), "sha256")
    return 200, msgspec.json.encode({"response_token": "sha256=" + base64.b64encode(digest).decode()}), _JSON


def _is_readable(kind: str, text: str) -> bool:
    """Whether the reader of events takes this text: a number or `null`, which the answer would sign as a body."""
    try:
        braintree.read_xml(text) if kind == "braintree" else parse(text.encode())
    except NotReadable:
        return False
    return True


def _braintree(handshake: Handshake, challenge: str, host: Host) -> Answer:
    public, key = _key(host)
    return 200, public + b"|" + braintree.sign(key, challenge.encode()), _TEXT


def _secret(handshake: Handshake, challenge: str, host: Host) -> Answer:
    """The offered secret is shown, and, where the provider wants that, sent back in the header that it came in."""
    host.offer(challenge)
    kind, _, name = handshake.echo.partition(":")
    return 200, b"", ((name.strip().lower().encode(), challenge.encode()),) if kind == "header" else ()


_KINDS = {"echo": _echo, "token": _echo, "zoom": _zoom, "crc": _crc, "braintree": _braintree, "secret": _secret}


def _key(host: Host) -> Key:
    if not host.keys:
        raise Unavailable("the source has no secret yet to answer this handshake with")
    return host.keys[0]


def _repeats_token(delivery: Delivery, host: Host) -> bool:
    given = _parameter(delivery.query, "hub.verify_token")
    return given is not None and bool(host.verify_token) and hmac.compare_digest(given.encode(), host.verify_token)


def _allow_origin(delivery: Delivery) -> Answer:
    """The permission of the CloudEvents webhook specification: this origin may deliver, as often as it asked to."""
    origin = delivery.headers.get(b"webhook-request-origin", b"")
    if not _HOST.fullmatch(origin.decode("latin-1")):
        raise Rejected("malformed", "the handshake names no origin")
    rate = delivery.headers.get(b"webhook-request-rate", b"*")
    allowed = rate if rate.isdigit() and len(rate) < 10 else b"*"
    return 200, b"", ((b"allow", b"POST"), (b"webhook-allowed-origin", origin), (b"webhook-allowed-rate", allowed))


async def _confirm_subscription(body: Body, host: Host) -> Answer:
    url = subscribe_url(body.texts(("SubscribeURL",)) or {})
    if url is None:
        raise Rejected("malformed", "SubscribeURL is not an address of SNS")
    try:
        await host.certificates.visit(url)
    except OSError as error:
        raise Unavailable(f"the subscription could not be confirmed: {error}", retry_after=20) from error
    return 200, b"confirmed", _TEXT
