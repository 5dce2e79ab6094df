"""The email event that all payloads are normalized to: what happened to which message and recipient, and when.

The types are the same for every provider. `bounce` says whether a bounce is hard (the address does not work) or soft
(it may work later). What a provider calls dropped, blocked or rejected is `rejected`: the provider did not send the
message. Its `bounce` is hard if the address is the reason: it bounced, complained or unsubscribed before, or is
invalid. Otherwise (content, quota, policy, sender) it is absent.
"""

import re
import unicodedata
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from oncehook.model.timestamps import rfc3339
from oncehook.providers.expressions import index_text


class EmailType(StrEnum):
    """The type of an email event."""

    QUEUED = "queued"  # the provider has accepted the message
    SENT = "sent"  # the provider has sent it
    DEFERRED = "deferred"  # not accepted yet; the provider retries
    DELIVERED = "delivered"  # accepted by the recipient's server
    BOUNCED = "bounced"  # rejected by the recipient's server
    REJECTED = "rejected"  # not sent by the provider: its suppression list, a policy, a virus
    FAILED = "failed"  # an error of the provider: a template that does not render
    COMPLAINED = "complained"  # the recipient reported it as spam
    OPENED = "opened"
    CLICKED = "clicked"
    UNSUBSCRIBED = "unsubscribed"
    SUBSCRIBED = "subscribed"
    AUTORESPONDED = "autoresponded"  # an automatic reply: out of office, a challenge
    UNKNOWN = "unknown"  # a type that Oncehook does not know


HARD, SOFT = "hard", "soft"

MAX_CLOCK_AHEAD = timedelta(days=1)
"""How far a provider's clock or time zone may be ahead of ours."""

MAX_TAGS = 50
MAX_REASON_LENGTH = 1000
MAX_METADATA_LENGTH = 16_384


class EmailEvent(msgspec.Struct, kw_only=True, frozen=True):
    """One email event of one recipient. All texts are valid in both databases and short enough for an index."""

    key: str  # unique in its source; empty if the receipt's event id is the key
    type: EmailType
    message_id: str | None
    recipient: str | None  # None if the provider does not say which
    occurred_at: datetime | None  # by the provider's clock, in UTC; None if it cannot be read
    bounce: str | None = None
    reason: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    raw: Any = None

    @property
    def domain(self) -> str | None:
        return None if self.recipient is None else self.recipient.rpartition("@")[2] or None

    def as_json(self) -> dict[str, Any]:
        """Return the event without its raw payload."""
        row = {name: getattr(self, name) for name in self.__struct_fields__ if name != "raw"}
        return {**row, "type": self.type.value, "occurred_at": rfc3339(self.occurred_at), "tags": list(self.tags)}


# -- texts ----------------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Replace characters that a database cannot store: NULs and lone surrogates."""
    if text.isascii():
        return text.replace("\x00", "\ufffd")
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


_PLAIN = re.compile(r"[A-Za-z0-9._+=-]{1,64}@[a-z0-9.-]{1,180}[a-z0-9]", re.ASCII)
"""The form of nearly every address, which needs no normalization."""


_WITH_DISPLAY_NAME = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^"<>,;])*<([^<>]*)>\s*(?:\([^()]*\))?')
"""An address with a display name before it, and a comment after it."""

_NOT_LOCAL = re.compile(r"[\s,;<>@]")
_NOT_DOMAIN = re.compile(r"[\s,;<>@\"()]")
"""Characters that are not allowed in an address, or separate several."""

MAX_DOMAIN_LENGTH, MAX_LABEL_LENGTH = 253, 63
_INVISIBLE = dict.fromkeys([0x00AD, 0x034F, 0x200B, 0x2060, 0xFEFF, *range(0x180B, 0x180E), *range(0xFE00, 0xFE10)])
"""Invisible characters, which IDNA removes from a domain."""


def normalise_address(value: Any) -> str | None:
    """Return an address in its normalized form: the domain as lower-case ASCII, the local part unchanged.

    Whether JANE@ and jane@ are one mailbox depends on the domain, so the local part keeps its case. A display name is
    removed. Returns None if the value is not an address, or holds several: an answer about one could be mistaken for an
    answer about all.
    """
    if not isinstance(value, str) or "@" not in value:
        return None
    if _PLAIN.fullmatch(value):
        return value
    bare = value.strip()
    if match := _WITH_DISPLAY_NAME.fullmatch(bare):
        bare = match[1].strip()
    local, _, domain = bare.rpartition("@")
    domain = _ascii_domain(domain)
    return index_text(f"{local}@{domain}") if domain and _is_local(local) else None


def _is_local(local: str) -> bool:
    """Return whether a text is allowed before the @. In quotes, nearly any text is."""
    if len(local) > 2 and local[0] == local[-1] == '"':
        return not any(c.isspace() for c in local if c != " ")
    return bool(local) and not _NOT_LOCAL.search(local)


def _ascii_domain(domain: str) -> str:
    """Return a domain as browsers and mail servers write it (`xn--…`), or "" if it is not one.

    ß and ς stay distinct letters, as in IDNA 2008. Punycode takes quadratic time, so it only gets valid labels.
    """
    if len(domain) > MAX_DOMAIN_LENGTH or _NOT_DOMAIN.search(domain):
        return ""
    if domain.isascii():
        return domain.lower().rstrip(".")
    text = unicodedata.normalize("NFKC", domain.translate(_INVISIBLE)).lower().replace("。", ".")
    labels = [label for label in text.split(".") if label]
    if any(len(label) > MAX_LABEL_LENGTH for label in labels):
        return ""
    return ".".join(label if label.isascii() else "xn--" + label.encode("punycode").decode() for label in labels)


def normalise_message_id(value: Any) -> str | None:
    """Return a message id in its normalized form: without angle brackets, and as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if value else None
    if not isinstance(value, str):
        return None
    return index_text(value.strip().removeprefix("<").removesuffix(">")) or None


def compose_key(*parts: Any) -> str:
    """Join values to a key. Different values never give the same key."""
    texts = ["" if part is None else str(part) for part in parts]
    return index_text("|".join(text.replace("%", "%25").replace("|", "%7C") for text in texts)) or ""
