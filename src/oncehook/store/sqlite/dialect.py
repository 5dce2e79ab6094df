"""The SQLite dialect."""

import json
from pathlib import Path

import msgspec

from oncehook.model.errors import ConfigurationError
from oncehook.model.patterns import glob
from oncehook.model.timestamps import rfc3339
from oncehook.store.dialect import Dialect

_encode = msgspec.json.Encoder().encode


def database_path(address: str) -> Path:
    """Return the file of `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    rest = address.removeprefix("sqlite:///")
    if rest == address or not rest or rest == ":memory:":
        raise ConfigurationError(
            "database: SQLite needs a file, such as sqlite:///oncehook.db (relative) or sqlite:////var/lib/oncehook.db"
        )
    return Path(rest)


SQLITE = Dialect(
    name="sqlite",
    title="SQLite",
    placeholder="?",
    array=lambda values: json.dumps(list(values)),
    texts=lambda values: json.dumps(list(values)),
    json=lambda value: _encode(value).decode(),
    time=rfc3339,
    earliest="",
    single_writer=True,
    file=database_path,
    replay=("keep_attempts", "replay"),
    pattern=glob,
)
