"""Replay: finished receipts go back to `received`, deliberately, and who did it is recorded in the same transaction.

Only `failed`, `processed` and `ignored` move; a receipt in another state is left alone and counted, and so is one whose
payload was pruned. The move compares the state, so however many replays run at once, each receipt moves once.
"""

import asyncio
import contextlib
import getpass
import os
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.effect import EffectFilter, EffectState
from oncehook.model.errors import OncehookError
from oncehook.model.receipt import Receipt
from oncehook.model.states import TRANSITIONS, State
from oncehook.model.timestamps import rfc3339
from oncehook.observability import signals
from oncehook.store.rows import Selection
from oncehook.store.store import Store

BATCH = 500
"""Receipts a transaction: few enough that neither the door nor a worker waits for one."""

REPLAYABLE = frozenset(
    state
    for state, following in TRANSITIONS.items()
    if state is not None and State.RECEIVED in following and state is not State.PROCESSING  # that one is a release
)
MEANWHILE, PRUNED, UNTYPED = "changed meanwhile", "payload pruned", "no type"
NOT_OURS = "inline, or changed meanwhile"
"""Why a waiting retry cannot be run now: its provider delivers it again, or it is under way already."""


@dataclass(slots=True)
class Replayed:
    """What a replay did, or would do: how many matched and moved, and why the others did not.

    `replayed` counts events by the status that they had, and `left` those that were left alone, by the reason. `run` is
    the name of the replay in the audit, and `last` the last receipt that it looked at.
    """

    matched: int = 0
    replayed: Counter[str] = field(default_factory=Counter)  # by the state they were in
    left: Counter[str] = field(default_factory=Counter)  # by the reason: a state, or one of the words above
    run: str | None = field(default=None, compare=False)  # its name in the audit
    last: int = field(default=0, compare=False)  # the last receipt that was looked at

    @property
    def count(self) -> int:
        """How many were replayed."""
        return self.replayed.total()

    def as_json(self) -> dict[str, Any]:
        return {
            "matched": self.matched,
            "replayed": self.count,
            "from": dict(sorted(self.replayed.items())),
            "left": dict(sorted(self.left.items())),
        }


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the receipts that a replay moved."""

    handled: int = 0
    failed: int = 0
    waiting: int = 0  # for a worker, for the end of an attempt, or for a retry

    def as_json(self) -> dict[str, int]:
        return asdict(self)


Progress = Callable[[Replayed], None]


async def replay(
    store: Store,
    selection: Selection,
    *,
    actor: str | None = None,
    progress: Progress | None = None,
    batch: int = BATCH,
    run: str | None = None,
    rate: float | None = None,
) -> Replayed:
    """Replay the selection, oldest first, batch by batch, at most `rate` receipts a second.

    Interrupted, it has done whole batches: repeated after `last`, it goes on with the rest. Events that arrive during a
    replay are not part of it. `run` is the name under which `begin_run` recorded its start; a replay of more than one
    batch records its own.
    """
    selection = await bounded(store, selection)
    actor, done = actor or whoami(), Replayed(run=run or secrets.token_hex(8))
    detail = {"run": done.run, "selection": as_json(selection)}
    size, is_begun, state = _batch_size(batch, rate), run is not None, "stopped"
    pace = Pace(rate)
    try:
        async for page in pages(store, selection, size):
            await pace.wait()
            if not is_begun and (rate is not None or len(page) == size > 1):
                is_begun = True
                await begin_run(store, selection, actor, run=done.run)
            action = "replay_batch" if is_begun else "replay"
            moved = await _replay_page(store, page, done, actor=actor, detail=detail, action=action)
            pace.count(moved)
            if progress is not None:
                progress(done)
        state = "done"
    finally:  # also of what was interrupted: whole batches of it are done
        if done.count:
            signals.emit("replayed", actor=actor, count=done.count, **detail)
        if is_begun:
            with contextlib.suppress(OncehookError):  # the batches have recorded themselves
                ended = {"run": done.run, "state": state, **done.as_json()}
                await asyncio.shield(store.operations.audit(actor, "replay_ended", ended))
    return done


async def begin_run(
    store: Store, selection: Selection, actor: str, *, run: str | None = None, matched: int | None = None
) -> str:
    """Record that a replay of many begins: the one row of it that people see in the audit. Returns its name."""
    run = run or secrets.token_hex(8)
    await store.operations.audit(
        actor, "replay_started", {"run": run, "matched": matched, "selection": as_json(selection)}
    )
    return run


async def outcomes(store: Store, run: str) -> Outcomes:
    """What became of the receipts that a replay moved."""
    states = await store.operations.run_outcomes(run)
    handled, failed = states.pop(State.PROCESSED, 0), states.pop(State.FAILED, 0)
    return Outcomes(handled, failed, sum(states.values()))


def _batch_size(batch: int, rate: float | None) -> int:
    """With a rate, a quarter of a second's receipts, so that they return evenly."""
    return batch if rate is None else max(1, min(batch, int(rate / 4)))


class Pace:
    """Waits so that at most `rate` are counted a second; None: it never waits."""

    def __init__(self, rate: float | None, clock: Clock = SYSTEM) -> None:
        self.rate = rate
        self.clock = clock
        self._next = float("-inf")

    def count(self, number: int) -> None:
        if self.rate is not None:
            self._next = max(self._next, self.clock.monotonic()) + number / self.rate

    async def wait(self) -> None:
        await asyncio.sleep(max(0.0, self._next - self.clock.monotonic()))


async def _replay_page(
    store: Store,
    page: list[tuple[Receipt, str | None]],
    done: Replayed,
    *,
    actor: str,
    detail: dict[str, Any],
    action: str,
) -> int:
    """Move what can be moved of a page; how many were."""
    movable = [receipt for receipt, why in page if why is None]
    moved = set(
        await store.operations.replay([r.receipt for r in movable], actor, detail, action=action) if movable else ()
    )
    if moved:
        await store.wakeups.notify()
    done.matched += len(page)
    done.left.update(why for _, why in page if why is not None)
    for receipt in movable:
        if receipt.receipt in moved:
            done.replayed[receipt.status.value] += 1
        else:
            done.left[MEANWHILE] += 1
    done.last = page[-1][0].receipt
    return len(moved)


async def retry_now(store: Store, selection: Selection, *, actor: str | None = None) -> Replayed:
    """Make the waiting retries of the selection due now. Attempts that were made still count."""
    selection = await bounded(store, selection)
    actor, done = actor or whoami(), Replayed()
    detail = {"selection": as_json(selection)}
    async for page in pages(store, selection):
        waiting = [receipt.receipt for receipt, _ in page if receipt.status is State.RETRYING]
        moved = await store.operations.retry_now(waiting, actor, detail) if waiting else []
        if moved:
            await store.wakeups.notify()
        done.matched += len(page)
        done.left.update(receipt.status.value for receipt, _ in page if receipt.status is not State.RETRYING)
        done.replayed[State.RETRYING.value] += len(moved)
        done.left[NOT_OURS] += len(waiting) - len(moved)
    done.left = +done.left
    if done.count:
        signals.emit("retry_requested", actor=actor, count=done.count, **detail)
    return done


async def survey(store: Store, selection: Selection) -> Replayed:
    """What a replay of it would do now. Nothing is written."""
    would = Replayed()
    for row in await store.operations.count(selection):
        would.matched += row.receipts
        why = obstacle(State(row.status), typed=row.typed, kept=row.kept)
        if why is None:
            would.replayed[row.status] += row.receipts
        else:
            would.left[why] += row.receipts
    return would


async def pages(
    store: Store, selection: Selection, size: int = BATCH
) -> AsyncIterator[list[tuple[Receipt, str | None]]]:
    """What is meant, by id, page by page; each with the reason why it cannot be replayed, or None."""
    after = selection.after
    while page := await store.operations.select(selection, after=after, limit=size):
        after = page[-1][0].receipt
        yield [(one, obstacle(one.status, typed=one.type is not None, kept=kept)) for one, kept in page]


async def bounded(store: Store, selection: Selection) -> Selection:
    """The selection as of now: what arrives later is not of it."""
    return selection if selection.horizon is not None else replace(selection, horizon=await store.operations.now())


def obstacle(status: State, *, typed: bool, kept: bool) -> str | None:
    """Why a receipt cannot be replayed, or None if it can."""
    if status not in REPLAYABLE:
        return status.value
    if not typed:
        return UNTYPED
    return None if kept else PRUNED


def as_json(selection: Selection) -> dict[str, Any]:
    """The selection as the audit keeps it: only what was asked for."""
    asked: dict[str, Any] = {**asdict(selection.filter), "handled_by": selection.handled_by}
    asked |= {name: rfc3339(asked[name]) for name in ("since", "until")}
    if selection.after:
        asked["after"] = selection.after
    if selection.receipts is not None:
        asked["named"] = len(selection.receipts)
    return {name: value for name, value in asked.items() if value is not None}


def whoami() -> str:
    """Who acts, as far as the machine knows: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for this user
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


async def replay_effects(store: Store, wanted: EffectFilter, *, actor: str) -> set[int]:
    """Have the failed effects that are meant performed again, batch by batch; which moved.

    One that fails again meanwhile is not met twice.
    """
    moved: set[int] = set()
    before = None
    while page := await store.effects.find(
        replace(wanted, status=EffectState.FAILED.value), limit=BATCH, before=before
    ):
        before = page[-1].id
        moved |= set(await store.effects.replay([row.id for row in page], actor))
    return moved
