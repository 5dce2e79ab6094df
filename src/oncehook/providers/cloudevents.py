"""The three shapes of a CloudEvent over HTTP: attributes in headers, in the body, or a batch of the latter.

A header's value is unquoted, then percent-decoded once; what is not UTF-8 then is refused.
"""

import re
from typing import Any
from urllib.parse import unquote_to_bytes

from oncehook.providers.expressions import Headers, NotReadable, TooDeep, parse

BATCH, STRUCTURED = b"application/cloudevents-batch", b"application/cloudevents"
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)


def is_batch(headers: Headers) -> bool:
    return headers.get(b"content-type", b"").lower().startswith(BATCH)


def read(body: bytes, headers: Headers) -> Any:
    """The event with its attributes as a table; of a batch, the array. Raises NotReadable or TooDeep."""
    if headers.get(b"content-type", b"").lower().startswith(STRUCTURED):
        return parse(body)
    event: dict[str, Any] = {
        name[3:].decode("latin-1"): attribute(value) for name, value in headers.items() if name.startswith(b"ce-")
    }
    if not event:
        raise NotReadable("neither the headers nor the body are those of a CloudEvent")
    try:
        event["data"] = parse(body)
    except (NotReadable, TooDeep):
        event["data"] = None  # any content type may be carried
    return event


def attribute(value: bytes) -> str:
    """A header's value as the attribute that it stands for. Raises NotReadable if that is not UTF-8."""
    try:
        text = value.decode("utf-8").strip()
        quoted = _QUOTED.fullmatch(text)
        if quoted:
            text = re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL)
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise NotReadable("an attribute of the event is not UTF-8") from None
