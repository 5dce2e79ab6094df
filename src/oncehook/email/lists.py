"""Suppressions as CSV: out for a person or another system, and in from one."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from oncehook.email.event import address, clean
from oncehook.email.suppress import FORGOTTEN, MANUAL, Change
from oncehook.model.errors import OncehookError
from oncehook.model.timestamps import rfc3339
from oncehook.providers.expressions import index_text, parse_time

COLUMNS = ("address", "reason", "since", "source", "event", "note")
ADDRESS = ("address", "email", "recipient")
SINCE = ("since", "created", "created_at", "occurred_at")
"""Which of a foreign file's columns are read as the address and the time."""


class NotImportable(OncehookError):
    """A file of suppressions cannot be read; it says where."""


def write(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a CSV file, the head first."""
    yield _line(COLUMNS)
    for row in rows:
        yield _line([row["address"], *(_plain(row[name] or "") for name in COLUMNS[1:])])


_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def _plain(text: str) -> str:
    """A text that no spreadsheet takes for a formula. An address stays as it is: other systems read it."""
    return "'" + text if _FORMULA.match(text) else text


def _as_it_was(text: str) -> str:
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _line(values: Iterable[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()


def read(file: TextIO) -> Iterator[Change]:
    """Additions out of a CSV file with a head; raises NotImportable, with the line, for what is no address or time."""
    lines = csv.reader(file)
    try:
        head = [name.strip().lower() for name in next(lines, [])]
        to, since = _column(head, ADDRESS), _column(head, SINCE)
        if to is None:
            raise NotImportable(f"the first line must name the columns, one of them {' or '.join(ADDRESS)}")
        for values in lines:
            if any(value.strip() for value in values):
                yield _change(dict(zip(head, values, strict=False)), to, since, lines.line_num)
    except UnicodeDecodeError:
        raise NotImportable("the file is not UTF-8: save it as that and try again") from None
    except csv.Error as error:
        raise NotImportable(f"line {lines.line_num + 1} is not CSV: {error}") from None


def _column(head: list[str], names: Iterable[str]) -> str | None:
    return next((name for name in names if name in head), None)


def _change(row: dict[str, str], to: str, since: str | None, line: int) -> Change:
    given, when = row.get(to, "").strip(), (row.get(since, "") if since else "").strip()
    if address(given) is None and not FORGOTTEN.fullmatch(given):
        raise NotImportable(f"line {line}: {given[:80]!r} is not an email address")
    time = parse_time(when) if when else None
    if when and time is None:
        raise NotImportable(f"line {line}: {when[:80]!r} is not a time, such as 2026-11-15T03:00:00Z")
    reason = index_text(clean(_as_it_was(row.get("reason", "").strip()))) or MANUAL
    note = clean(_as_it_was(row.get("note", "").strip())) or None
    return Change(given, note, reason=reason, since=rfc3339(time))
