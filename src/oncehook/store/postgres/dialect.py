"""The PostgreSQL dialect. This module does not import the driver."""

from collections.abc import Iterable
from typing import Any

import msgspec

from oncehook.model.patterns import like
from oncehook.store.dialect import Dialect

_encode = msgspec.json.Encoder().encode


def array(values: Iterable[Any]) -> str:
    """Return numbers or dates as the text of a PostgreSQL array.

    For a real array parameter, asyncpg looks up the type on each new connection. That query can take seconds on a busy
    server, and longer behind a pooler.
    """
    return "{" + ",".join(map(str, values)) + "}"


def storable_json(value: Any) -> str:
    """Return a value as JSON. Replace NUL, which PostgreSQL's text type cannot store."""
    return _encode(value).decode().replace("\\u0000", "\\ufffd")


POSTGRES = Dialect(
    name="postgres",
    title="PostgreSQL",
    placeholder="$1",
    single_writer=False,
    earliest="-infinity",
    array=array,
    texts=list,
    time=lambda moment: moment,
    json=storable_json,
    file=lambda address: None,
    replay=("replay",),
    pattern=like,
)
