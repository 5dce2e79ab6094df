"""Parsers of settings, one per kind of value. Each raises ValueError with a sentence that says what it expects."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Literal, get_args, get_origin, get_type_hints

from oncehook.model.nearest import nearest

Parse = Callable[[Any], Any]
Network = IPv4Network | IPv6Network

Duration = str | float
"""A duration in code or a file: "30d", "2h", "90s", "250ms", or a number of seconds."""

Size = str | int
"""A size in code or a file: "1MiB", "500kB", or a number of bytes."""


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a string")
    return value


def address(value: Any) -> str:
    """Parse an http or https address."""
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s#]*", str(value), re.ASCII):
        raise ValueError("expected an address such as https://example.com/webhooks/twilio")
    return str(value)


def broker_address(value: Any) -> str:
    """Parse the address of a queue: the name of its broker, a colon, and what the broker needs."""
    if not re.fullmatch(r"(?:sqs|(?:nats|kafka)(?:\+tls)?):\S+", str(value), re.ASCII):
        raise ValueError("expected sqs:, nats: or kafka: and the address of a queue, such as sqs:https://…/my-queue")
    return str(value)


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    values = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, str) and value.lower() in values:
        return values[value.lower()]
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
        raise ValueError('expected a list of strings, such as ["first", "second"]')
    return tuple(value)


def conditions(value: Any) -> Mapping[str, Any]:
    """Check that a filter is a table. The source or consumer that uses it compiles it."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError('expected a table with one or more conditions, such as { "data.object.livemode" = true }')
    return {name: _plain(condition) for name, condition in value.items()}


def _plain(value: Any) -> Any:
    """Return tables as dictionaries and sequences as lists, so that the value can be written as JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def locators(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else texts(value)


def queue_address(value: Any) -> str:
    if value != "database" and not (isinstance(value, str) and re.fullmatch(r"sqs:https?://\S+/\S+", value)):
        raise ValueError(
            'expected "database", or an SQS queue, such as "sqs:https://sqs.eu-west-1.amazonaws.com/123456789012/work"'
        )
    return str(value)


_DURATION = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE = {"": 1, "B": 1, "kB": 1000, "KB": 1000, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def rate(value: Any) -> float:
    """Parse a rate such as "50/s", "100/m" or "3000/h". Returns the number per second."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)\s*/\s*(s|m|h)", str(value), re.ASCII)
    if not match or not float(match[1]):
        raise ValueError("expected a rate such as 50/s, 100/m or 3000/h")
    return float(match[1]) / _DURATION[match[2]]


def as_rate(per_second: float) -> str:
    """Format a number per second as a rate such as `50/s`, `100/m` or `3/h`."""
    for unit in ("s", "m", "h"):
        number = round(per_second * _DURATION[unit], 6)
        if number >= 1 and number == int(number):
            return f"{int(number)}/{unit}"
    return f"{round(per_second * _DURATION['h'], 6):g}/h"


SEALED_PREFIX = "oncehook:aesgcm:"
"""The beginning of a text that the key ring has encrypted. The id of the key follows it."""

LONGEST = 366 * 86400.0
"""The longest pause of a source and the longest wait of a command, in seconds."""


def duration(value: Any) -> float:
    """Parse a duration such as "30d", "2h", "90s", "250ms" or a number of seconds. Returns seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(value)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)?", str(value), re.ASCII)
    if not match:
        raise ValueError('expected a duration such as "30d", "2h", "90s" or "250ms"')
    return float(match[1]) * _DURATION[match[2] or "s"]


def positive_duration(value: Any) -> float:
    """Parse a duration above 0 and up to 366 days, so that every database can represent its end."""
    seconds = duration(value)
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"expected more than 0 and at most {as_duration(LONGEST)}")
    return seconds


def as_duration(seconds: float) -> str:
    """Format seconds with the largest unit that gives a whole number, such as "30d" or "90s"."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _DURATION[unit] == 0:
            return f"{seconds / _DURATION[unit]:.0f}{unit}"
    return f"{seconds:.12g}s"


def size(value: Any) -> int:
    """Parse a size such as "1MiB", "500kB" or a number of bytes. Returns bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", str(value), re.ASCII)
    if isinstance(value, bool) or not match or match[2] not in _SIZE:
        raise ValueError('expected a size such as "1MiB" or "500kB"')
    return int(float(match[1]) * _SIZE[match[2]])


def positive(parse: Parse) -> Parse:
    """Return a parser like `parse` that rejects zero."""

    @wraps(parse)
    def parse_positive(value: Any) -> Any:
        number = parse(value)
        if not number > 0:
            raise ValueError("expected more than 0")
        return number

    return parse_positive


def one_of(*allowed: str) -> Parse:
    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return str(value)

    return parse


def any_of(*allowed: str) -> Parse:
    def parse(value: Any) -> tuple[str, ...]:
        for choice in texts(value):
            if choice not in allowed:
                raise ValueError(f"{choice!r} is not a known value; the allowed values are {', '.join(allowed)}")
        return texts(value)

    return parse


def networks(value: Any) -> tuple[Network, ...]:
    """Parse the addresses and networks of trusted machines. A network that contains every address is an error."""
    return tuple(_network(name) for name in texts(value))


def _network(name: str) -> Network:
    try:
        network = ip_network(name.strip())
    except ValueError:
        raise ValueError(
            f"{name!r} is not an address such as 10.0.0.5 or a network such as 10.0.0.0/8 (its first address, a slash "
            f"and the length of its prefix)"
        ) from None
    if network.prefixlen == 0:
        raise ValueError(f"{name!r} contains every address: list your own machines or networks")
    return network


_NOT_ALLOWED = re.compile(r"Invalid enum value '(.*)' - at `\$\.(?P<path>.*?(?P<key>\w+)(?:\[[\d.]+\])?)`")


def with_allowed(message: str, *tables: type) -> str:
    """Return msgspec's message about a value that is not allowed, with the values that the field of `tables` allows."""
    match = _NOT_ALLOWED.fullmatch(message)
    if match is None:
        return message
    allowed = [value for table in tables for value in _allowed_values(table, match["key"])]
    return not_allowed(match["path"], match[1], allowed)


def not_allowed(path: str, value: str, allowed: Sequence[str]) -> str:
    """Return the message about a value that is not allowed, with the allowed values and the closest one."""
    choices = sorted({choice for choice in allowed if choice})
    closest = nearest(value, choices)
    hint = f"did you mean {closest}? " if closest else ""
    return f"{path} is {value!r}: {hint}the allowed values are {', '.join(choices)}"


def _allowed_values(table: type, key: str) -> Iterator[str]:
    kinds = [get_type_hints(table).get(key)]
    while kinds:
        kind = kinds.pop()
        if get_origin(kind) is Literal:
            yield from get_args(kind)
        else:
            kinds += [argument for argument in get_args(kind) if argument is not ...]
