"""Facts about PostgreSQL. This module does not need its driver."""

from collections.abc import Iterable
from typing import Any

import msgspec

from oncehook.model.patterns import like
from oncehook.store.dialect import Dialect

_encode = msgspec.json.Encoder().encode


def array(values: Iterable[Any]) -> str:
    """Numbers or dates as the text of a PostgreSQL array.

    For an array parameter asyncpg asks each new connection what that type is, in a query that can take seconds on a
    busy server, the more so behind a pooler.
    """
    return "{" + ",".join(map(str, values)) + "}"


def storable_json(value: Any) -> str:
    """A value as JSON. PostgreSQL's text cannot hold NUL, so each one is replaced."""
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
