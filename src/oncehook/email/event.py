"""One email event, whoever sent it: what happened to which message and recipient, and when.

The words are few and the same for every provider. `bounced` is told apart by `bounce`: hard (the address is no good) or
soft (it may be, later). What a provider calls dropped, blocked or rejected is `rejected`: it refused to send. There
`bounce` is hard if the address is the reason (it bounced, complained or unsubscribed before, or is invalid), and absent
if it is not: content, quota, a policy, the sender.
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
    """What happened."""

    QUEUED = "queued"  # the provider has it
    SENT = "sent"  # the provider has sent it on
    DEFERRED = "deferred"  # not taken yet; the provider goes on trying
    DELIVERED = "delivered"  # taken by the recipient's server
    BOUNCED = "bounced"  # refused by the recipient's server
    REJECTED = "rejected"  # the provider refused to send: its own suppressions, a policy, a virus
    FAILED = "failed"  # the provider could not send: a template that does not render
    COMPLAINED = "complained"  # the recipient called it spam
    OPENED = "opened"
    CLICKED = "clicked"
    UNSUBSCRIBED = "unsubscribed"
    SUBSCRIBED = "subscribed"
    AUTORESPONDED = "autoresponded"  # a machine answered: out of office, a challenge
    UNKNOWN = "unknown"  # a word that the provider added after this was written


HARD, SOFT = "hard", "soft"

AHEAD = timedelta(days=1)
"""How far a provider's clock, or its time zone, may be ahead of ours."""

MOST_TAGS = 50
MOST_REASON = 1000
MOST_METADATA = 16_384


class EmailEvent(msgspec.Struct, kw_only=True, frozen=True):
    """One fact about one recipient of one message. Every text in it is short, clean and fit for an index."""

    key: str  # unique in its source, of the provider's own facts; empty: the receipt's event id is
    type: EmailType
    message_id: str | None
    recipient: str | None  # None where the provider does not say which
    occurred_at: datetime | None  # the provider's clock, UTC; None where it gives none that can be read
    bounce: str | None = None
    reason: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    raw: Any = None

    @property
    def domain(self) -> str | None:
        return None if self.recipient is None else self.recipient.rpartition("@")[2] or None

    def as_json(self) -> dict[str, Any]:
        """The event without its raw payload, as it is printed."""
        row = {name: getattr(self, name) for name in self.__struct_fields__ if name != "raw"}
        return {**row, "type": self.type.value, "occurred_at": rfc3339(self.occurred_at), "tags": list(self.tags)}


# -- texts ----------------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """A text that both databases hold: without NULs and lone surrogates."""
    if text.isascii():
        return text.replace("\x00", "\ufffd")
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


_PLAIN = re.compile(r"[A-Za-z0-9._+=-]{1,64}@[a-z0-9.-]{1,180}[a-z0-9]", re.ASCII)
"""What nearly every address is: nothing has to be done about it."""


_NAMED = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^"<>,;])*<([^<>]*)>\s*(?:\([^()]*\))?')
"""An address with a display name before it, and a comment after it."""

_NOT_LOCAL = re.compile(r"[\s,;<>@]")
_NOT_DOMAIN = re.compile(r"[\s,;<>@\"()]")
"""What makes it no address, or more than one."""

MOST_DOMAIN, MOST_LABEL = 253, 63
_UNSEEN = dict.fromkeys([0x00AD, 0x034F, 0x200B, 0x2060, 0xFEFF, *range(0x180B, 0x180E), *range(0xFE00, 0xFE10)])
"""What IDNA leaves out of a domain, and nobody sees."""


def address(given: Any) -> str | None:
    """An address as it is compared: the domain in lower case and as ASCII, the local part exactly as it came.

    Whether JANE@ and jane@ are one mailbox is the business of the domain's owner; we do not guess. None for what is no
    address, and for several: an answer about one of them would be taken for all. A display name around it is left out.
    """
    if not isinstance(given, str) or "@" not in given:
        return None
    if _PLAIN.fullmatch(given):
        return given
    bare = given.strip()
    if match := _NAMED.fullmatch(bare):
        bare = match[1].strip()
    local, _, domain = bare.rpartition("@")
    domain = _ascii_domain(domain)
    return index_text(f"{local}@{domain}") if domain and _is_local(local) else None


def _is_local(local: str) -> bool:
    """Whether this may stand before the @. In quotes it may be nearly anything."""
    if len(local) > 2 and local[0] == local[-1] == '"':
        return not any(c.isspace() for c in local if c != " ")
    return bool(local) and not _NOT_LOCAL.search(local)


def _ascii_domain(domain: str) -> str:
    """As browsers and mail servers write it (`xn--…`): ß and ς are letters of their own there, as in IDNA 2008.

    Empty for what is none. Punycode takes the square of a label's length: it is only asked for what a label may be.
    """
    if len(domain) > MOST_DOMAIN or _NOT_DOMAIN.search(domain):
        return ""
    if domain.isascii():
        return domain.lower().rstrip(".")
    text = unicodedata.normalize("NFKC", domain.translate(_UNSEEN)).lower().replace("。", ".")
    labels = [label for label in text.split(".") if label]
    if any(len(label) > MOST_LABEL for label in labels):
        return ""
    return ".".join(label if label.isascii() else "xn--" + label.encode("punycode").decode() for label in labels)


def message(given: Any) -> str | None:
    """A message id as it is compared: without angle brackets, a number as text."""
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given) if given else None
    if not isinstance(given, str):
        return None
    return index_text(given.strip().removeprefix("<").removesuffix(">")) or None


def compose(*parts: Any) -> str:
    """A key of several facts, of which two different sets never give the same."""
    texts = ["" if part is None else str(part) for part in parts]
    return index_text("|".join(text.replace("%", "%25").replace("|", "%7C") for text in texts)) or ""
