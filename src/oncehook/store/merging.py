"""How the answers of several shards to one call become one answer. Each merge gets the answers of the shards."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

Merge = Callable[[Sequence[Any]], Any]


def concatenated(answers: Sequence[Iterable[Any]]) -> list[Any]:
    """All rows."""
    return [row for answer in answers for row in answer]


def total(answers: Sequence[int]) -> int:
    return sum(answers)


def totals(answers: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The sums of tuples of numbers, position by position."""
    return tuple(map(sum, zip(*answers, strict=True)))


def added(answers: Sequence[dict[str, int]]) -> dict[str, int]:
    """The sums of numbers by key."""
    counts: Counter[str] = Counter()
    for answer in answers:
        counts.update(answer)
    return dict(counts)


def joined(answers: Sequence[str]) -> str:
    return "/".join(answers)


def struct_total(answers: Sequence[Any]) -> Any:
    """A struct whose fields are all numbers: their sums."""
    fields = answers[0].__struct_fields__
    return type(answers[0])(*(sum(getattr(answer, name) for answer in answers) for name in fields))


def unique(answers: Sequence[Iterable[Any]]) -> list[Any]:
    """All values, without repetitions, sorted."""
    return sorted({value for answer in answers for value in answer})


def summed(*names: str, greatest: Sequence[str] = ()) -> Merge:
    """Rows whose other fields are equal become one row, with the sums of `names` and the maxima of `greatest`."""

    def merge(answers: Sequence[Iterable[Any]]) -> list[Any]:
        rows: dict[tuple[Any, ...], Any] = {}
        for row in concatenated(answers):
            changing = (*names, *greatest)
            key = tuple(getattr(row, field) for field in row.__struct_fields__ if field not in changing)
            other = rows.get(key)
            if other is None:
                rows[key] = row
                continue
            values = {name: getattr(row, name) + getattr(other, name) for name in names}
            values |= {name: max(getattr(row, name), getattr(other, name)) for name in greatest}
            rows[key] = msgspec.structs.replace(row, **values)
        return list(rows.values())

    return merge


def source_totals(answers: Sequence[Any]) -> Any:
    """The totals of all sources. A source whose tenants are spread has rows in several shards."""
    add = summed("number")
    last: dict[str, str] = {}
    for answer in answers:
        for source, at in answer.last_received_at.items():
            last[source] = max(at, last.get(source, ""))
    return type(answers[0])(
        waiting=add([answer.waiting for answer in answers]),
        dead_letters=add([answer.dead_letters for answer in answers]),
        last_received_at=last,
    )
