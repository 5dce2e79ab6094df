"""Protection against DNS rebinding: which names in a `Host` header belong to this service.

Another site can point its own domain at this machine's address. A browser then treats this service as part of that
site. The attack does not work with an IP address, with `localhost`, or with a name without a dot.
"""

import re
from urllib.parse import urlsplit

_NAME = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_ADDRESS = re.compile(r"\[[0-9a-f:.]+\]|[0-9]{1,3}(?:\.[0-9]{1,3}){3}")


def is_known_host(host: str, public_url: str | None) -> bool:
    """Whether `host`, a lower-case `Host` header, is an IP address, a local name, or the host of `public_url`."""
    match = _NAME.fullmatch(host)
    if match is None:
        return False
    name = match[1].removesuffix(".")
    if _ADDRESS.fullmatch(name) or "." not in name or name.endswith(".localhost"):
        return True
    return public_url is not None and name == urlsplit(public_url).hostname
