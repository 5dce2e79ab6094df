"""What may stand in a setting: a function for each kind of value, which reads it or says what was expected."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Literal, get_args, get_origin, get_type_hints

Parse = Callable[[Any], Any]
Network = IPv4Network | IPv6Network

Duration = str | float
"""A duration as code and files give it: "30d", "2h", "90s", "250ms", or seconds."""

Size = str | int
"""A size as code and files give it: "1MiB", "500kB", or bytes."""


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a text")
    return value


def address(value: Any) -> str:
    """An http or https address, as one would register it with a sender."""
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s#]*", str(value), re.ASCII):
        raise ValueError("expected an address such as https://example.com/webhooks/twilio")
    return str(value)


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError("expected true or false")


def whole_number(value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,12}", str(value)):
        raise ValueError("expected a whole number")
    return int(value)


def ratio(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < math.inf:
        raise ValueError("expected a number, 1 or more")
    return float(value)


def texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise ValueError('expected a list of texts, such as ["first", "second"]')
    return tuple(value)


def locators(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else texts(value)


_DURATION = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE = {"": 1, "B": 1, "kB": 1000, "KB": 1000, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def rate(value: Any) -> float:
    """How many a second, out of "50/s", "100/m" or "3000/h"."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)\s*/\s*(s|m|h)", str(value), re.ASCII)
    if not match or not float(match[1]):
        raise ValueError("expected a rate such as 50/s, 100/m or 3000/h")
    return float(match[1]) / _DURATION[match[2]]


LONGEST = 366 * 86400.0
"""Seconds that a pause may take, or a command wait."""


def duration(value: Any) -> float:
    """Seconds out of "30d", "2h", "90s", "250ms" or a plain number of seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(value)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)?", str(value), re.ASCII)
    if not match:
        raise ValueError('expected a duration such as "30d", "2h", "90s" or "250ms"')
    return float(match[1]) * _DURATION[match[2] or "s"]


def positive_duration(value: Any) -> float:
    """A duration of more than nothing and at most a year: a time that long from now exists in every database."""
    seconds = duration(value)
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"expected more than 0 and at most {as_duration(LONGEST)}")
    return seconds


def as_duration(seconds: float) -> str:
    """Seconds as one would write them in the file: the largest unit that leaves a whole number."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _DURATION[unit] == 0:
            return f"{seconds / _DURATION[unit]:.0f}{unit}"
    return f"{seconds:g}s"


def size(value: Any) -> int:
    """Bytes out of "1MiB", "500kB" or a plain number of bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", str(value), re.ASCII)
    if isinstance(value, bool) or not match or match[2] not in _SIZE:
        raise ValueError('expected a size such as "1MiB" or "500kB"')
    return int(float(match[1]) * _SIZE[match[2]])


def positive(parse: Parse) -> Parse:
    """As `parse`, but nothing at all is a mistake: no body, no time or no worker would do no work."""

    @wraps(parse)
    def parse_positive(value: Any) -> Any:
        read = parse(value)
        if not read > 0:
            raise ValueError("expected more than 0")
        return read

    return parse_positive


def one_of(*words: str) -> Parse:
    def parse(value: Any) -> str:
        if value not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return str(value)

    return parse


def any_of(*words: str) -> Parse:
    def parse(value: Any) -> tuple[str, ...]:
        for word in texts(value):
            if word not in words:
                raise ValueError(f"{word!r} is not known; expected some of {', '.join(words)}")
        return texts(value)

    return parse


def networks(value: Any) -> tuple[Network, ...]:
    """Addresses and networks of machines that are believed. The whole world is a mistake, and never taken."""
    return tuple(_network(name) for name in texts(value))


def _network(name: str) -> Network:
    try:
        network = ip_network(name.strip())
    except ValueError:
        raise ValueError(
            f"{name!r} is not an address such as 10.0.0.5 or a network such as 10.0.0.0/8 (its first address, a slash "
            f"and the bits that it shares)"
        ) from None
    if network.prefixlen == 0:
        raise ValueError(f"{name!r} is everybody: name the machines that are meant")
    return network


_NOT_ALLOWED = re.compile(r"Invalid enum value '(.*)' - at `\$\.(?P<path>.*?(?P<key>\w+)(?:\[[\d.]+\])?)`")


def with_allowed(message: str, *tables: type) -> str:
    """msgspec's message about a word that a field of these tables does not take, with the words that it takes."""
    found = _NOT_ALLOWED.fullmatch(message)
    if found is None:
        return message
    return not_allowed(found["path"], found[1], [word for table in tables for word in _words(table, found["key"])])


def not_allowed(path: str, word: str, allowed: Sequence[str]) -> str:
    """The message about a word that a field does not take, with the words that it takes."""
    words = sorted({known for known in allowed if known})
    from difflib import get_close_matches  # only a mistake needs it

    near = get_close_matches(word, words, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{path} is {word!r}: {hint}allowed are {', '.join(words)}"


def _words(table: type, key: str) -> Iterator[str]:
    kinds = [get_type_hints(table).get(key)]
    while kinds:
        kind = kinds.pop()
        if get_origin(kind) is Literal:
            yield from get_args(kind)
        else:
            kinds += [one for one in get_args(kind) if one is not ...]
