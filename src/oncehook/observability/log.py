"""How lines are written: through the app's own logging, as JSON, or for people on a terminal.

What a sender has written cannot break a line or command a terminal, and a log that stands still holds up no delivery.
"""

import io
import logging
import os
import select
import stat
import sys
from collections.abc import Mapping
from typing import Any, TextIO, cast

import msgspec

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.timestamps import rfc3339

STANDARD = logging.getLogger("oncehook")


class AppLog:
    """The app's own logging: the message says what happened, and a line's fields are attributes of its record."""

    def __getattr__(self, level: str) -> Any:
        method = getattr(STANDARD, level)
        # What differs from line to line is an argument, so that tools that group by the message still can.
        return lambda line, **fields: method(f"{line}%s", _message(fields), extra={**fields, "event": line})


_WHICH = ("source", "type", "event_id", "reason", "key", "target")
_ONLY_EXTRA = frozenset(
    (
        *_WHICH,
        "provider",
        "object_id",
        "receipt",
        "status",
        "correlation_id",
        "delivery_id",
        "handler",
        "outcome",
        "attempt",
        "error",
        "detail",
        "where",
        "traceback",
    )
)


def _message(fields: Mapping[str, Any]) -> str:
    """What a line is about and what went wrong: ` stripe invoice.paid evt_1 attempt 2: KeyError: 'x' (app.py:40)`."""
    words = [_printable(fields[name]) for name in _WHICH if fields.get(name)]
    words += [f"attempt {fields['attempt']}"] if fields.get("attempt") else []
    words += [f"{name}={_printable(value)}" for name, value in fields.items() if name not in _ONLY_EXTRA]
    why = fields.get("error") or fields.get("detail")
    where = f" ({fields['where']})" if fields.get("where") else ""
    return "".join(f" {word}" for word in words) + (f": {_printable(why)}" if why else "") + where


def _printable(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class NeverWaits(io.TextIOBase):
    """Standard error, written only while whoever reads it keeps up: a log that stands still holds up no delivery.

    A pipe that says it is writable takes 4 kB without waiting. What it does not take is dropped, and the next line that
    is written says how much that was.
    """

    AT_ONCE = 4096

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.dropped = 0
        self._file = stream.fileno()
        self._is_file = stat.S_ISREG(os.fstat(self._file).st_mode)  # a file has no reader to wait for
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLOUT)

    def isatty(self) -> bool:
        return self.stream.isatty()

    def write(self, text: str) -> int:
        if self.dropped and self._is_writable():
            dropped, self.dropped = self.dropped, 0
            told = {"event": "lines_dropped", "count": dropped, "level": "warning"}
            os.write(self._file, encode(told) + b"\n")
        data = text.encode("utf-8", "backslashreplace")
        if self._is_file:
            os.write(self._file, data)
            return len(text)
        while data:
            end = data.rfind(b"\n", 0, self.AT_ONCE) + 1 or self.AT_ONCE  # whole lines, where they are short enough
            if not self._is_writable():
                self.dropped += data.count(b"\n")
                break
            os.write(self._file, data[:end])
            data = data[end:]
        return len(text)

    def _is_writable(self) -> bool:
        return any(event & select.POLLOUT for _, event in self._poll.poll(0))


def standard_error() -> TextIO | io.TextIOBase:
    try:
        return NeverWaits(sys.stderr)
    except (AttributeError, OSError, ValueError):  # no `poll` on Windows, or no file behind it
        return sys.stderr


def console(stream: TextIO | io.TextIOBase, threshold: int) -> Any:
    import structlog  # it takes long to import, and only a person at a terminal needs it

    return structlog.wrap_logger(
        structlog.WriteLogger(cast(TextIO, stream)),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            escape,
            structlog.dev.ConsoleRenderer(colors=stream.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        cache_logger_on_first_use=True,
    )


class JsonLog:
    """A line is an object on a line of its own."""

    def __init__(self, stream: TextIO | io.TextIOBase) -> None:
        self.stream = stream

    def __getattr__(self, level: str) -> Any:
        return lambda line, **fields: self._write(level, line, fields)

    def _write(self, level: str, line: str, fields: dict[str, Any]) -> None:
        told = {**fields, "event": line, "level": level, "timestamp": rfc3339(SYSTEM.datetime())}
        self.stream.write(encode(escape(None, "", told)).decode() + "\n")
        self.stream.flush()


_encoder = msgspec.json.Encoder(enc_hook=str)
encode = _encoder.encode
encode_lines = _encoder.encode_lines


def escape(logger: Any, method: str, event: Any) -> Any:
    """Senders choose ids and types: what could break a line, or command a terminal, is escaped."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = _printable(value)
    return event
