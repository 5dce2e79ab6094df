"""Which names in a `Host` header are this service's own.

A page of another site can give its own name the address of this machine (DNS rebinding), and a browser then takes this
service for a part of that site. It cannot do that with an address, with `localhost`, or with a name without a dot.
"""

import re
from urllib.parse import urlsplit

_NAME = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_ADDRESS = re.compile(r"\[[0-9a-f:.]+\]|[0-9]{1,3}(?:\.[0-9]{1,3}){3}")


def is_known_host(host: str, public_url: str | None) -> bool:
    """Whether `host`, a `Host` header in lower case, is an address, a local name, or the host of `public_url`."""
    match = _NAME.fullmatch(host)
    if match is None:
        return False
    name = match[1].removesuffix(".")
    if _ADDRESS.fullmatch(name) or "." not in name or name.endswith(".localhost"):
        return True
    return public_url is not None and name == urlsplit(public_url).hostname
