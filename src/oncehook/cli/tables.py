"""Tables as plain text. Columns are padded, and truncated to the width of a terminal."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from oncehook.cli.options import printable

GAP = "  "
MIN_WIDTH = 6
"""Columns are not truncated below this width."""


def is_narrow(columns: int) -> bool:
    """Whether standard output is a terminal with fewer columns."""
    return sys.stdout.isatty() and shutil.get_terminal_size().columns < columns


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    right: bool = False
    truncates: bool = False  # may be truncated to fit a terminal
    colors: dict[str, str] | str | None = None  # by the text of the cell, or one for the whole column


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """Print a header and the rows. Unprintable characters are escaped."""
    texts = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(_width, cells)) for cells in zip([c.title for c in columns], *texts, strict=True)]
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        _fit(widths, columns, shutil.get_terminal_size().columns)
    header = [_pad(column.title, width, column.right) for column, width in zip(columns, widths, strict=True)]
    click.secho(GAP.join(header).rstrip(), bold=True)
    lines = [_line(columns, widths, row, is_terminal) for row in texts]
    click.echo("\n".join(lines))


def _fit(widths: list[int], columns: Sequence[Column], total: int) -> None:
    """Narrow the widest truncatable columns until a line fits into `total` characters, if possible."""
    while sum(widths) + len(GAP) * (len(widths) - 1) > total:
        wide = [
            i for i, column in enumerate(columns) if column.truncates and widths[i] > max(MIN_WIDTH, len(column.title))
        ]
        if not wide:
            return
        widths[max(wide, key=widths.__getitem__)] -= 1


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str], is_colored: bool) -> str:
    cells = [_pad(text, width, column.right) for text, width, column in zip(row, widths, columns, strict=True)]
    if is_colored:
        for i, column in enumerate(columns):
            color = column.colors.get(row[i]) if isinstance(column.colors, dict) else column.colors
            if color:
                cells[i] = click.style(cells[i], fg=color)
    return GAP.join(cells).rstrip()


def _pad(text: str, width: int, right: bool) -> str:
    if _width(text) > width:
        text = _truncate(text, width)
    blanks = " " * (width - _width(text))
    return blanks + text if right else text + blanks


def _truncate(text: str, width: int) -> str:
    while _width(text) >= width:
        text = text[:-1]
    return f"{text}…"


def _width(text: str) -> int:
    """The width in terminal cells; a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
