"""Facts about SQLite."""

import json

import msgspec

from oncehook.model.patterns import glob
from oncehook.model.timestamps import rfc3339
from oncehook.store.dialect import Dialect

_encode = msgspec.json.Encoder().encode

SQLITE = Dialect(
    name="sqlite",
    title="SQLite",
    placeholder="?",
    single_writer=True,
    earliest="",
    array=lambda values: json.dumps(list(values)),
    texts=lambda values: json.dumps(list(values)),
    time=rfc3339,
    json=lambda value: _encode(value).decode(),
    replay=("keep_attempts", "replay"),
    pattern=glob,
)
