"""Exchanges that are answered without storing anything: a closed set, named by a provider's definition.

A handshake is a verified delivery that matches `when`. What it answers is here; that nothing else of the body is
echoed, and that nothing is fetched but from an address that `providers/sns.py` allows, is the point of the set.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any

from oncehook.errors import Rejected, Unavailable
from oncehook.extract import look_up
from oncehook.providers import Handshake
from oncehook.providers.sns import subscribe_url

_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{1,100}")


def is_handshake(handshake: Handshake | None, parsed: Any) -> bool:
    """Whether a verified body is this provider's handshake."""
    if handshake is None or not isinstance(parsed, dict):
        return False
    return all(look_up(parsed, path.split(".")) == value for path, value in handshake.when.items())


async def answer(handshake: Handshake, parsed: dict[str, Any], fetch: Callable[[str], bytes]) -> bytes:
    """What to send back, as text/plain. Raises Rejected, or Unavailable when the other side does not answer."""
    if handshake.kind == "echo":
        return _echo(look_up(parsed, handshake.echo.split(".")))
    return await _confirm_subscription(parsed, fetch)


def _echo(challenge: Any) -> bytes:
    if not isinstance(challenge, str) or not _CHALLENGE.fullmatch(challenge):
        raise Rejected("malformed", "the challenge is not one that is echoed")
    return challenge.encode()


async def _confirm_subscription(parsed: dict[str, Any], fetch: Callable[[str], bytes]) -> bytes:
    url = subscribe_url(parsed)
    if url is None:
        raise Rejected("malformed", "SubscribeURL is not an address of SNS")
    try:
        await asyncio.to_thread(fetch, url)
    except OSError as error:
        raise Unavailable(f"the subscription could not be confirmed: {error}", retry_after=20) from error
    return b"confirmed"
