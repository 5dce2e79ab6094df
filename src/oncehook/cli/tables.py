"""Long lists as plain text. Columns are padded, and on a terminal the widest are cut to fit it."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from oncehook.cli.options import printable

GAP = "  "
LEAST = 8
"""No column is cut to fewer characters."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list."""

    title: str
    right: bool = False
    cuts: bool = False  # may be cut to fit a terminal
    colours: dict[str, str] | str | None = None  # by the cell's text, or of every cell


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """Print a header and the rows. Texts of a sender are escaped."""
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
    """Take from the widest column that may be cut until the line fits, or nothing is left to take."""
    while sum(widths) + len(GAP) * (len(widths) - 1) > total:
        wide = [i for i, column in enumerate(columns) if column.cuts and widths[i] > max(LEAST, len(column.title))]
        if not wide:
            return
        widths[max(wide, key=widths.__getitem__)] -= 1


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str], is_coloured: bool) -> str:
    cells = [_pad(text, width, column.right) for text, width, column in zip(row, widths, columns, strict=True)]
    if is_coloured:
        for i, column in enumerate(columns):
            colour = column.colours.get(row[i]) if isinstance(column.colours, dict) else column.colours
            if colour:
                cells[i] = click.style(cells[i], fg=colour)
    return GAP.join(cells).rstrip()


def _pad(text: str, width: int, right: bool) -> str:
    if _width(text) > width:
        text = _cut(text, width)
    blanks = " " * (width - _width(text))
    return blanks + text if right else text + blanks


def _cut(text: str, width: int) -> str:
    while _width(text) >= width:
        text = text[:-1]
    return f"{text}…"


def _width(text: str) -> int:
    """How many cells of a terminal it takes: a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
