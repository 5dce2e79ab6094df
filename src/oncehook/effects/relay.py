"""The relay performs effects that have committed: lease → call → mark.

At least once, always with the same idempotency key: a crash between the call and the mark repeats the call. Attempts
are counted at the lease, so an effect that kills its process is counted too. A lease is as long as its target may take
and some more, by the database's clock, and the mark matches its fence. Each effect has a state of its own; nothing is
passed over because it committed late.
"""

import asyncio
import json
import os
import socket
from functools import partial

from oncehook.concurrency.calling import Threads, after_failure, call
from oncehook.concurrency.clock import SYSTEM
from oncehook.concurrency.quarantine import Alone
from oncehook.concurrency.stopping import end, is_stopping
from oncehook.concurrency.wakeup_queue import Dues
from oncehook.effects.effect import Effect, Effects
from oncehook.model.effect import EffectState, LeasedEffect, SettledEffect
from oncehook.model.errors import Unavailable
from oncehook.model.retry import Crashed, Fail, Postpone, Retry
from oncehook.observability import signals, tracing
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.protocols import EffectStore
from oncehook.store.rows import EffectTarget
from oncehook.store.store import Store

MARGIN = 15.0
"""How much longer than its target may take an effect is leased: for the mark, on a busy day."""

MARK_TRIES = 5
PAGE = 200
LOOK_AROUND = 10.0
"""Every so many seconds: whether leases ran out, and whether effects wait that nobody here can perform."""


class Relay:
    """Leases effects that this process can perform, and performs them, `concurrency` at once."""

    def __init__(
        self,
        store: Store,
        effects: Effects,
        *,
        concurrency: int = 16,
        poll: float = 1.0,
        look_around: float | None = None,
    ) -> None:
        self.store = store
        self.effects = effects
        self.concurrency = concurrency
        self.poll = poll  # seconds between looks when nothing woke it: a wake-up is a hint, never the only way
        self.look_around = LOOK_AROUND if look_around is None else look_around
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.marks = Marks(store.effects)
        self._threads = Threads(concurrency, "oncehook-effect", patience=MARGIN / 3)
        self._running: set[asyncio.Task[None]] = set()
        self._attention = asyncio.Event()  # something may be due, or a place is free
        self._dues = Dues()
        self._stop_asked = False
        self._crashed = False  # whether an effect whose process died is known to be due
        self._alone: Alone[bool] = Alone(SYSTEM)  # its turn; it is leased when it begins: no lease is renewed
        self._feeding: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._told: set[tuple[str, str]] = set()

    def start(self) -> None:
        self._feeding = asyncio.create_task(self._feed())
        self._looking = asyncio.create_task(self._keep_looking())

    def wake(self) -> None:
        """Something may be due."""
        self._attention.set()

    async def stop(self, grace: float = 30.0) -> None:
        """Lease no more, and let calls that are under way finish within `grace`; the rest goes back, uncounted."""
        self._stop_asked = True
        self._attention.set()
        if self._looking is not None:
            self._looking.cancel()
        began = SYSTEM.monotonic()
        await asyncio.gather(*filter(None, (self._feeding, self._looking)), return_exceptions=True)
        await end(self._running, max(0.0, grace - (SYSTEM.monotonic() - began)))

    async def drain(self, most: int | None = None) -> list[int]:
        """Perform what is due now and return when nothing of it is left, or after `most` calls; which were called."""
        performed: list[int] = []
        while most is None or len(performed) < most:
            leased = await self.store.effects.lease(self.concurrency, self.name, self._targets())
            leased = leased or await self.store.effects.lease(1, self.name, self._targets(), rescued=True)
            if not leased:
                break
            await asyncio.gather(*map(self._perform, leased))
            performed += [one.id for one in leased]
        return performed

    # -- feeding --------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        while not self._stop_asked:
            self._attention.clear()
            try:
                found = await self._lease()
            except Exception as error:
                signals.log_background_failure("relay", error)
                await asyncio.sleep(min(self.poll, 1.0))  # a stop waits for it
                continue
            if not found:
                reach(Checkpoint.RELAY_IDLE)
                left = self._alone.left
                try:
                    seconds = self._dues.left(self.poll) if left is None else max(left, 0)
                    await asyncio.wait_for(self._attention.wait(), seconds)
                except TimeoutError:
                    pass

    async def _lease(self) -> int:
        """Fill the places that are free. An effect whose process died is taken alone, and nothing else is started."""
        left = self._alone.left
        if left is not None and left <= 0 and self._running:
            self._alone.put_off()
        if self._crashed and self._alone.leased is None and self._alone.is_due:
            self._alone.take(True)
        room, targets = self.concurrency - len(self._running), self._targets()
        if room <= 0 or not targets or (self._alone.leased and self._running):
            return 0
        try:
            leased = await self._take_crashed(targets) if self._alone.leased else []
            if not leased:
                leased = await self.store.effects.lease(room, self.name, targets)
            if not leased and self._crashed and not self._running:
                leased = await self._take_crashed(targets)
        except Unavailable as error:
            signals.emit("relay_database_unavailable", detail=error.detail)
            return 0
        for one in leased:
            task = asyncio.create_task(self._perform(one))
            self._running.add(task)
            task.add_done_callback(self._ended)
        return len(leased)

    async def _take_crashed(self, targets: list[EffectTarget]) -> list[LeasedEffect]:
        """An effect whose process died, with nothing under way beside it."""
        leased = await self.store.effects.lease(1, self.name, targets, rescued=True)
        self._crashed = bool(leased)
        self._alone.take(True if leased else None)
        if leased:
            self._alone.begin()
        return leased

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if self._alone.is_running:
            self._alone.end()
        self._attention.set()

    def _targets(self) -> list[EffectTarget]:
        return [EffectTarget(target.kind, target.name, target.timeout + MARGIN) for target in self.effects]

    # -- performing -----------------------------------------------------------------------------------------------

    async def _perform(self, leased: LeasedEffect) -> None:
        settled = SettledEffect(leased.id, leased.lease, EffectState.DONE)
        target = self.effects.find(leased.kind, leased.target)
        assert target is not None, "only what is registered here is leased"
        try:
            if leased.args is None:
                raise Fail("its arguments were erased")
            args = json.loads(leased.args)
            effect = Effect.of(leased)
            called = partial(call, leased.target, target.function, self._threads, target.timeout, effect, **args)
            await (
                called() if tracing.active is None else tracing.active.run_effect(called, leased, self.store.receipts)
            )
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, Postpone) or is_stopping():
                _put_back(settled, leased, error.after if isinstance(error, Postpone) else None)
            else:
                _failed(settled, target.retry, leased.attempt, error)
        landed = await asyncio.shield(self.marks.mark(settled))
        self._dues.add(settled.after)
        if landed is not None and not settled.uncharged:
            signals.record_effect_attempt(leased, settled, landed)

    # -- looking around -------------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self.rescue()
                await self._look_at_waiting()
            except Unavailable as error:
                signals.emit("relay_database_unavailable", detail=error.detail)
            except Exception as error:
                signals.log_background_failure("relay looking around", error)
            await asyncio.sleep(self.look_around)

    async def rescue(self) -> int:
        """Take back effects whose lease ran out; how many. One that used up its attempts is given up."""
        rescued = after = 0
        while page := await self.store.effects.expired(PAGE, after):
            after = page[-1].id
            taken: dict[int, SettledEffect] = {}
            for row in page:
                target = self.effects.find(row.kind, row.target)
                if target is None:  # its policy is not known here
                    self._tell_unregistered(row.kind, row.target, 1)
                else:
                    settled = SettledEffect(row.id, row.lease, EffectState.FAILED, crashed=True)
                    _failed(settled, target.retry, row.attempt, Crashed("the process died, or was cut off"))
                    taken[row.id] = settled
            landed = await self.store.effects.settle([*taken.values()]) if taken else set()
            for row in page:
                if row.id in landed:
                    signals.record_expired_effect_lease(row, taken[row.id])
            rescued += len(landed)
        return rescued

    async def _look_at_waiting(self) -> None:
        """Give a turn to those whose process died; tell, once for each name, of those that nobody here can perform."""
        for row in await self.store.effects.waiting():
            if self.effects.find(row.kind, row.target) is None:
                self._tell_unregistered(row.kind, row.target, row.effects)
            elif row.crashed:
                self._crashed = True
                self.wake()

    def _tell_unregistered(self, kind: str, target: str, effects: int) -> None:
        if (kind, target) not in self._told:
            self._told.add((kind, target))
            signals.emit(
                "effect_unregistered", kind=kind, target=signals.redacted_target(kind, target), effects=effects
            )


class Marks:
    """Writes what came of calls: the first at once, whoever comes meanwhile together in the next, for one fsync."""

    def __init__(self, store: EffectStore) -> None:
        self.store = store
        self._waiting: list[tuple[SettledEffect, asyncio.Future[bool | None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def mark(self, settled: SettledEffect) -> bool | None:
        """Whether it landed; None if that is not known: then the lease may run out, and the call be repeated."""
        landed: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((settled, landed))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return await landed

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                landed = await self._surely([settled for settled, _ in batch])
                for settled, waiter in batch:
                    if not waiter.done():
                        waiter.set_result(None if landed is None else settled.id in landed)
                reach(Checkpoint.EFFECTS_SETTLED)
        finally:
            self._writing = None

    async def _surely(self, settled: list[SettledEffect]) -> set[int] | None:
        for number in range(1, MARK_TRIES + 1):
            try:
                landed = await self.store.settle(settled)
            except Unavailable as error:
                if number == MARK_TRIES:
                    signals.emit("effect_settle_failed", effects=len(settled), detail=error.detail)
                    break
                await asyncio.sleep(0.1 * 2**number)
            except Exception as error:  # nobody may wait for ever for what is not written
                signals.log_background_failure("relay marking", error)
                break
            else:
                return landed if number == 1 else None  # an earlier try may have landed without an answer
        return None


def _put_back(settled: SettledEffect, leased: LeasedEffect, after: float | None) -> None:
    """No attempt is counted: what it needs is not to be had now, or the relay stops."""
    settled.status = EffectState.RETRYING if leased.attempt > 1 else EffectState.WAITING
    settled.after, settled.uncharged = after, True


def _failed(settled: SettledEffect, retry: Retry, attempt: int, error: BaseException) -> None:
    settled.after, settled.error = after_failure(retry, attempt, error)
    settled.status = EffectState.FAILED if settled.after is None else EffectState.RETRYING
