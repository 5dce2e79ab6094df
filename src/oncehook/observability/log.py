"""Writes log lines: to the app's own logging, as JSON, or formatted for a terminal.

Text from a sender can neither break a line nor send control sequences to a terminal. A log that is not read never
delays a delivery.
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
    """Logs through the app's own logging. The fields of a line become attributes of its record."""

    def __getattr__(self, level: str) -> Any:
        method = getattr(STANDARD, level)
        # The details are an argument of the message, so tools that group by message group by event name.
        return lambda event, **fields: method(f"{event}%s", _message(fields), extra={**fields, "event": event})


_SUBJECT_FIELDS = ("source", "type", "event_id", "reason", "key", "target")
_ONLY_EXTRA = frozenset(
    (
        *_SUBJECT_FIELDS,
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
    """Return the subject and the error: ` stripe invoice.paid evt_1 attempt 2: KeyError: 'x' (app.py:40)`."""
    words = [_printable(fields[name]) for name in _SUBJECT_FIELDS if fields.get(name)]
    words += [f"attempt {fields['attempt']}"] if fields.get("attempt") else []
    words += [f"{name}={_printable(value)}" for name, value in fields.items() if name not in _ONLY_EXTRA]
    why = fields.get("error") or fields.get("detail")
    where = f" ({fields['where']})" if fields.get("where") else ""
    return "".join(f" {word}" for word in words) + (f": {_printable(why)}" if why else "") + where


def _printable(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class NonBlockingStream(io.TextIOBase):
    """Standard error that drops lines when its reader is too slow, so that logging never delays a delivery.

    A pipe that polls as writable takes 4 kB without blocking. Lines that do not fit are dropped, and the next line
    that is written is preceded by one that says how many.
    """

    CHUNK = 4096

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.dropped = 0
        self._file = stream.fileno()
        self._is_file = stat.S_ISREG(os.fstat(self._file).st_mode)  # a regular file never blocks on a reader
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLOUT)

    def isatty(self) -> bool:
        return self.stream.isatty()

    def write(self, text: str) -> int:
        if self.dropped and self._is_writable():
            dropped, self.dropped = self.dropped, 0
            line = {"event": "log_lines_dropped", "count": dropped, "level": "warning"}
            os.write(self._file, encode(line) + b"\n")
        data = text.encode("utf-8", "backslashreplace")
        if self._is_file:
            os.write(self._file, data)
            return len(text)
        while data:
            end = data.rfind(b"\n", 0, self.CHUNK) + 1 or self.CHUNK  # whole lines, if they are short enough
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
        return NonBlockingStream(sys.stderr)
    except (AttributeError, OSError, ValueError):  # Windows has no `poll`, or stderr has no file descriptor
        return sys.stderr


def console(stream: TextIO | io.TextIOBase, threshold: int) -> Any:
    import structlog  # slow to import, and needed only for a terminal

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
    """Writes each log line as one JSON object."""

    def __init__(self, stream: TextIO | io.TextIOBase) -> None:
        self.stream = stream

    def __getattr__(self, level: str) -> Any:
        return lambda event, **fields: self._write(level, event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        line = {**fields, "event": event, "level": level, "timestamp": rfc3339(SYSTEM.datetime())}
        self.stream.write(encode(escape(None, "", line)).decode() + "\n")
        self.stream.flush()


_encoder = msgspec.json.Encoder(enc_hook=str)
encode = _encoder.encode
encode_lines = _encoder.encode_lines


def escape(logger: Any, method: str, line: Any) -> Any:
    """Escape characters that could break a line or control a terminal: senders choose ids and types."""
    for name, value in line.items():
        if isinstance(value, str) and not value.isprintable():
            line[name] = _printable(value)
    return line
