"""Replay: sets finished receipts back to `received`, and records the actor in the same transaction.

Only receipts with status `failed`, `processed` or `ignored` are replayed. Receipts with another status, or without
their payload, are skipped and counted. The update compares the status, so concurrent replays move each receipt once.
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
"""Receipts per transaction: few enough that neither the receiver nor a worker waits for one."""

REPLAYABLE = frozenset(
    state
    for state, following in TRANSITIONS.items()
    if state is not None and State.RECEIVED in following and state is not State.PROCESSING  # that is a release
)
CHANGED, PRUNED, UNTYPED = "status changed", "payload pruned", "no type"
NOT_RETRYABLE = "inline, or already running"
"""Why a waiting retry cannot be run now: its provider delivers it again, or an attempt has started."""


@dataclass(slots=True)
class Replayed:
    """The result of a replay, or of its preview.

    `matched` counts the selected events, `replayed` those that were replayed, by their previous status, and `left`
    those that were skipped, by reason. `run` is the id of the replay in the audit log, and `last` the last receipt that
    it reached.
    """

    matched: int = 0
    replayed: Counter[str] = field(default_factory=Counter)  # by previous status
    left: Counter[str] = field(default_factory=Counter)  # by reason: a status, or a constant above
    run: str | None = field(default=None, compare=False)  # its id in the audit log
    last: int = field(default=0, compare=False)  # the last receipt that was reached

    @property
    def count(self) -> int:
        """The number of replayed events."""
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
    """The current results of the receipts that a replay moved."""

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
    """Replay the selection in batches, oldest first, at most `rate` receipts per second.

    An interrupted replay has completed whole batches. Replay again after `last` to continue. Events that arrive during
    a replay are not part of it. `run` is the id that `begin_run` recorded; without it, a replay of more than one batch
    records its own start.
    """
    selection = await with_horizon(store, selection)
    actor, done = actor or whoami(), Replayed(run=run or secrets.token_hex(8))
    detail = {"run": done.run, "selection": selection_json(selection)}
    size, is_begun, state = _batch_size(batch, rate), run is not None, "stopped"
    limit = RateLimit(rate)
    try:
        async for page in pages(store, selection, size):
            await limit.wait()
            if not is_begun and (rate is not None or len(page) == size > 1):
                is_begun = True
                await begin_run(store, selection, actor, run=done.run)
            action = "replay_batch" if is_begun else "replay"
            moved = await _replay_page(store, page, done, actor=actor, detail=detail, action=action)
            limit.count(moved)
            if progress is not None:
                progress(done)
        state = "done"
    finally:  # an interrupted replay has completed whole batches, which are recorded too
        if done.count:
            signals.emit("replayed", actor=actor, count=done.count, **detail)
        if is_begun:
            with contextlib.suppress(OncehookError):  # each batch is already recorded
                ended = {"run": done.run, "state": state, **done.as_json()}
                await asyncio.shield(store.operations.audit(actor, "replay_ended", ended))
    return done


async def begin_run(
    store: Store, selection: Selection, actor: str, *, run: str | None = None, matched: int | None = None
) -> str:
    """Record the start of a replay in the audit log, and return its id."""
    run = run or secrets.token_hex(8)
    await store.operations.audit(
        actor, "replay_started", {"run": run, "matched": matched, "selection": selection_json(selection)}
    )
    return run


async def run_outcomes(store: Store, run: str) -> Outcomes:
    """Count the current results of the receipts that a replay moved."""
    states = await store.operations.run_outcomes(run)
    handled, failed = states.pop(State.PROCESSED, 0), states.pop(State.FAILED, 0)
    return Outcomes(handled, failed, sum(states.values()))


def _batch_size(batch: int, rate: float | None) -> int:
    """Return the batch size. With a rate, a batch is a quarter of a second's receipts, so that the load is even."""
    return batch if rate is None else max(1, min(batch, int(rate / 4)))


class RateLimit:
    """Waits so that at most `rate` receipts are counted per second. With None, it never waits."""

    def __init__(self, rate: float | None, clock: Clock = SYSTEM) -> None:
        self.rate = rate
        self.clock = clock
        self._next = float("-inf")

    def count(self, number: int) -> None:
        if self.rate is not None:
            self._next = max(self._next, self.clock.monotonic()) + number / self.rate

    async def wait(self) -> None:
        await asyncio.sleep(self.delay())

    def delay(self) -> float:
        """Return the seconds until the next batch may run."""
        return max(0.0, self._next - self.clock.monotonic())


async def _replay_page(
    store: Store,
    page: list[tuple[Receipt, str | None]],
    done: Replayed,
    *,
    actor: str,
    detail: dict[str, Any],
    action: str,
) -> int:
    """Replay the replayable receipts of a page, and return how many were moved."""
    movable = [receipt for receipt, reason in page if reason is None]
    moved = set(
        await store.operations.replay([r.receipt for r in movable], actor, detail, action=action) if movable else ()
    )
    if moved:
        await store.wakeups.notify()
    done.matched += len(page)
    done.left.update(reason for _, reason in page if reason is not None)
    for receipt in movable:
        if receipt.receipt in moved:
            done.replayed[receipt.status.value] += 1
        else:
            done.left[CHANGED] += 1
    done.last = page[-1][0].receipt
    return len(moved)


async def retry_now(store: Store, selection: Selection, *, actor: str | None = None) -> Replayed:
    """Make the waiting retries of the selection due now. Earlier attempts still count."""
    selection = await with_horizon(store, selection)
    actor, done = actor or whoami(), Replayed()
    detail = {"selection": selection_json(selection)}
    async for page in pages(store, selection):
        waiting = [receipt.receipt for receipt, _ in page if receipt.status is State.RETRYING]
        moved = await store.operations.retry_now(waiting, actor, detail) if waiting else []
        if moved:
            await store.wakeups.notify()
        done.matched += len(page)
        done.left.update(receipt.status.value for receipt, _ in page if receipt.status is not State.RETRYING)
        done.replayed[State.RETRYING.value] += len(moved)
        done.left[NOT_RETRYABLE] += len(waiting) - len(moved)
    done.left = +done.left
    if done.count:
        signals.emit("retry_requested", actor=actor, count=done.count, **detail)
    return done


async def preview(store: Store, selection: Selection) -> Replayed:
    """Return what a replay of the selection would do now. Writes nothing."""
    result = Replayed()
    for row in await store.operations.count(selection):
        result.matched += row.receipts
        reason = obstacle(State(row.status), has_type=row.has_type, has_payload=row.has_payload)
        if reason is None:
            result.replayed[row.status] += row.receipts
        else:
            result.left[reason] += row.receipts
    return result


async def pages(
    store: Store, selection: Selection, size: int = BATCH
) -> AsyncIterator[list[tuple[Receipt, str | None]]]:
    """Read the selected receipts page by page, in order of id, each with the obstacle to its replay or None."""
    after = selection.after
    while page := await store.operations.select(selection, after=after, limit=size):
        after = page[-1][0].receipt
        yield [
            (receipt, obstacle(receipt.status, has_type=receipt.type is not None, has_payload=has_payload))
            for receipt, has_payload in page
        ]


async def with_horizon(store: Store, selection: Selection) -> Selection:
    """Limit the selection to events that have arrived by now."""
    return selection if selection.horizon is not None else replace(selection, horizon=await store.operations.now())


def obstacle(status: State, *, has_type: bool, has_payload: bool) -> str | None:
    """Return why a receipt cannot be replayed, or None if it can."""
    if status not in REPLAYABLE:
        return status.value
    if not has_type:
        return UNTYPED
    return None if has_payload else PRUNED


def selection_json(selection: Selection) -> dict[str, Any]:
    """Return the conditions of a selection for the audit log."""
    conditions: dict[str, Any] = {**asdict(selection.filter), "handled_by": selection.handled_by}
    conditions |= {name: rfc3339(conditions[name]) for name in ("since", "until")}
    if selection.after:
        conditions["after"] = selection.after
    if selection.receipts is not None:
        conditions["named"] = len(selection.receipts)
    return {name: value for name, value in conditions.items() if value is not None}


def whoami() -> str:
    """Return the actor as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for this user
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


async def replay_effects(store: Store, effect_filter: EffectFilter, *, actor: str) -> set[int]:
    """Replay the failed effects that match the filter, batch by batch. Returns the ids that were moved.

    An effect that fails again during the replay is not replayed twice.
    """
    moved: set[int] = set()
    before = None
    while page := await store.effects.find(
        replace(effect_filter, status=EffectState.FAILED.value), limit=BATCH, before=before
    ):
        before = page[-1].id
        moved |= set(await store.effects.replay([row.id for row in page], actor))
    return moved
