"""Unfinished and failed work by source and consumer."""

from collections import Counter

import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.model.states import State
from oncehook.operations.work import Work, read_open_work, read_work
from oncehook.store.store import Store
from tests.support.work import claim

WORK = Work(
    unhandled=Counter({("stripe", "main"): 2}),
    lags={("stripe", "main"): 4.0, ("stripe", "ledger"): 90.0, ("github", "ledger"): -5.0},
    ages={("stripe", "main"): 7.0},
    waiting=Counter({("stripe", "main"): 3, ("stripe", "ledger"): 10, ("github", "ledger"): 1}),
    dead_letters=Counter({("github", "main"): 1}),
)


@pytest.mark.parametrize(
    ("part", "figures"),
    [
        ({"source": "stripe"}, (13, 2, 0, 90.0, 7.0)),
        ({"source": "github"}, (1, 0, 1, 0.0, 0.0)),
        ({"consumer": "ledger"}, (11, 0, 0, 90.0, 0.0)),
        ({"consumer": "main", "source": "stripe"}, (3, 2, 0, 4.0, 7.0)),
        ({}, (14, 2, 1, 90.0, 7.0)),
        ({"source": "unknown"}, (0, 0, 0, 0.0, 0.0)),
    ],
)
def test_figures_add_numbers_up_and_take_the_longest_time(part: dict[str, str], figures: tuple[float, ...]) -> None:
    names = ("waiting", "unhandled", "dead_letters", "lag_seconds", "oldest_unfinished_seconds")
    assert WORK.figures(**part) == dict(zip(names, figures, strict=True))


def test_named_consumers_are_those_with_work_except_main() -> None:
    assert WORK.named_consumers == {"ledger"}


@pytest.mark.anyio
async def test_work_is_read_by_source_and_consumer(store: Store) -> None:
    await claim(store, "evt_1", copies=(ConsumerClaim("ledger"), ConsumerClaim("mail", State.FAILED, "E: x")))
    work, newest = await read_work(store, 100)
    assert work.waiting == {("stripe", "main"): 1, ("stripe", "ledger"): 1}
    assert work.dead_letters == {("stripe", "mail"): 1} and set(newest) == {"stripe"}
    assert set(work.ages) == set(work.lags) == set(work.waiting)
    assert (await read_open_work(store)).waiting == {}
