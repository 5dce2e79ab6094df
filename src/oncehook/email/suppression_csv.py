"""Exports and imports suppressions as CSV."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from oncehook.email.event import clean, normalise_address
from oncehook.email.suppressions import FORGOTTEN, MANUAL, SuppressionChange
from oncehook.model.errors import OncehookError
from oncehook.model.timestamps import rfc3339
from oncehook.providers.expressions import index_text, parse_time

COLUMNS = ("address", "reason", "since", "source", "event", "note")
ADDRESS = ("address", "email", "recipient")
SINCE = ("since", "created", "created_at", "occurred_at")
"""The columns of another system's file that are read as the address and the time."""


class NotImportable(OncehookError):
    """A file of suppressions cannot be read. The message names the line."""


def write(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a CSV file, the header first."""
    yield _line(COLUMNS)
    for row in rows:
        yield _line([row["address"], *(_escape_formula(row[name] or "") for name in COLUMNS[1:])])


_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def _escape_formula(text: str) -> str:
    """Quote a text that a spreadsheet would run as a formula. Addresses are never quoted: other systems read them."""
    return "'" + text if _FORMULA.match(text) else text


def _unescape_formula(text: str) -> str:
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _line(values: Iterable[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()


def read(file: TextIO) -> Iterator[SuppressionChange]:
    """Yield additions from a CSV file with a header. Raises NotImportable for an invalid address or time."""
    lines = csv.reader(file)
    try:
        head = [name.strip().lower() for name in next(lines, [])]
        to, since = _column(head, ADDRESS), _column(head, SINCE)
        if to is None:
            raise NotImportable(f"the first line must name the columns, and one of them must be {' or '.join(ADDRESS)}")
        for values in lines:
            if any(value.strip() for value in values):
                yield _change(dict(zip(head, values, strict=False)), to, since, lines.line_num)
    except UnicodeDecodeError:
        raise NotImportable("the file is not UTF-8: save it as UTF-8 and try again") from None
    except csv.Error as error:
        raise NotImportable(f"line {lines.line_num + 1} is not CSV: {error}") from None


def _column(head: list[str], names: Iterable[str]) -> str | None:
    return next((name for name in names if name in head), None)


def _change(row: dict[str, str], to: str, since: str | None, line: int) -> SuppressionChange:
    address, since_text = row.get(to, "").strip(), (row.get(since, "") if since else "").strip()
    if normalise_address(address) is None and not FORGOTTEN.fullmatch(address):
        raise NotImportable(f"line {line}: {address[:80]!r} is not an email address")
    time = parse_time(since_text) if since_text else None
    if since_text and time is None:
        raise NotImportable(f"line {line}: {since_text[:80]!r} is not a time, such as 2026-11-15T03:00:00Z")
    reason = index_text(clean(_unescape_formula(row.get("reason", "").strip()))) or MANUAL
    note = clean(_unescape_formula(row.get("note", "").strip())) or None
    return SuppressionChange(address, note, reason=reason, since=rfc3339(time))
