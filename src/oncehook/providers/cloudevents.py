"""Reads the three formats of CloudEvents over HTTP: attributes in headers, in the body, or a batch of bodies.

The value of an attribute header is unquoted, then percent-decoded once. It must then be UTF-8.
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
    """The event as a dict of its attributes and `data`; for a batch, the array. Raises NotReadable or TooDeep."""
    if headers.get(b"content-type", b"").lower().startswith(STRUCTURED):
        return parse(body)
    event: dict[str, Any] = {
        name[3:].decode("latin-1"): attribute(value) for name, value in headers.items() if name.startswith(b"ce-")
    }
    if not event:
        raise NotReadable("neither the headers nor the body hold a CloudEvent")
    try:
        event["data"] = parse(body)
    except (NotReadable, TooDeep):
        event["data"] = None  # the data may have any content type
    return event


def attribute(value: bytes) -> str:
    """Decode the value of a header into its attribute. Raises NotReadable if it is not UTF-8."""
    try:
        text = value.decode("utf-8").strip()
        quoted = _QUOTED.fullmatch(text)
        if quoted:
            text = re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL)
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise NotReadable("an attribute of the event is not UTF-8") from None
