"""The relay runs effects whose transaction has committed: lease → call → settle.

An effect is called at least once, always with the same idempotency key. A crash between the call and the settle repeats
the call. Attempts are counted when an effect is leased, so an effect that kills its process counts as an attempt. A
lease lasts for the effect's timeout plus MARGIN seconds of the database's clock, and settling must match its fence.
Each effect has its own state, so an effect that commits late is not skipped.
"""

import asyncio
import json
import os
import socket
from functools import partial

from msgspec.structs import replace

from oncehook.concurrency.calling import Threads, after_failure, call, error_class
from oncehook.concurrency.clock import SYSTEM
from oncehook.concurrency.quarantine import Quarantine
from oncehook.concurrency.stopping import finish_or_cancel, is_stopping
from oncehook.concurrency.wakeup_queue import WakeupQueue
from oncehook.config.keyring import KEY_MISSING_SECONDS, KeyMissing
from oncehook.effects.effect import Effect, EffectRegistry
from oncehook.effects.settle import EffectSettler
from oncehook.model.effect import EffectState, LeasedEffect, SettledEffect
from oncehook.model.errors import Unavailable
from oncehook.model.retry import Crashed, Fail, Postpone, Retry
from oncehook.observability import signals, tracing
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.rows import EffectTarget
from oncehook.store.store import Store

MARGIN = 15.0
"""Seconds that a lease lasts longer than the effect's timeout, so that a busy database can still settle it."""

PAGE = 200
RESCUE_INTERVAL = 10.0
"""Seconds between two scans for expired leases and for effects that this process has no function for."""


class Relay:
    """Leases effects that this process has a function for, and runs up to `concurrency` at the same time."""

    def __init__(
        self,
        store: Store,
        effects: EffectRegistry,
        *,
        concurrency: int = 16,
        poll: float = 1.0,
        rescue_interval: float | None = None,
    ) -> None:
        self.store = store
        self.effects = effects
        self.concurrency = concurrency
        self.poll = poll  # seconds between two leases without a wake-up, which is only a hint
        self.rescue_interval = RESCUE_INTERVAL if rescue_interval is None else rescue_interval
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.settler = EffectSettler(store.effects)
        self._threads = Threads(concurrency, "oncehook-effect", patience=MARGIN / 3)
        self._running: set[asyncio.Task[None]] = set()
        self._wakeup = asyncio.Event()  # effects may be due, or a slot is free
        self._wakeups = WakeupQueue()
        self._stop_requested = False
        self._has_crashed = False  # an effect whose process died is due
        # The quarantine leases its effect when it starts, because leases of effects are not extended.
        self._quarantine: Quarantine[bool] = Quarantine(SYSTEM)
        self._feeding: asyncio.Task[None] | None = None
        self._rescuing: asyncio.Task[None] | None = None
        self._reported: set[tuple[str, str]] = set()  # unregistered (kind, target)

    def start(self) -> None:
        self._feeding = asyncio.create_task(self._feed())
        self._rescuing = asyncio.create_task(self._keep_rescuing())

    def wake(self) -> None:
        """Look for due effects now."""
        self._wakeup.set()

    async def stop(self, grace: float = 30.0) -> None:
        """Stop leasing, let running calls finish within `grace` seconds, and release the others without an attempt."""
        self._stop_requested = True
        self._wakeup.set()
        if self._rescuing is not None:
            self._rescuing.cancel()
        began = SYSTEM.monotonic()
        await asyncio.gather(*filter(None, (self._feeding, self._rescuing)), return_exceptions=True)
        await finish_or_cancel(self._running, max(0.0, grace - (SYSTEM.monotonic() - began)))
        for queue in self.effects.task_queues.values():
            await queue.close()

    async def drain(self, most: int | None = None) -> list[int]:
        """Run the effects that are due until none is left, or up to `most`. Returns the ids of those that ran."""
        done: list[int] = []
        while most is None or len(done) < most:
            leased = await self.store.effects.lease(self.concurrency, self.name, self._targets())
            leased = leased or await self.store.effects.lease(1, self.name, self._targets(), rescued=True)
            if not leased:
                break
            await asyncio.gather(*map(self._run, leased))
            done += [effect.id for effect in leased]
        return done

    # -- feeding --------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        while not self._stop_requested:
            self._wakeup.clear()
            try:
                count = await self._lease()
            except Exception as error:
                signals.log_background_failure("relay", error)
                await asyncio.sleep(min(self.poll, 1.0))  # short, because `stop` waits for it
                continue
            if not count:
                reach(Checkpoint.RELAY_IDLE)
                patience = self._quarantine.patience_left
                try:
                    seconds = self._wakeups.seconds_left(self.poll) if patience is None else max(patience, 0)
                    await asyncio.wait_for(self._wakeup.wait(), seconds)
                except TimeoutError:
                    pass

    async def _lease(self) -> int:
        """Lease effects for the free slots. While a quarantined effect waits or runs, start nothing else."""
        patience = self._quarantine.patience_left
        if patience is not None and patience <= 0 and self._running:
            self._quarantine.postpone()
        if self._has_crashed and self._quarantine.item is None and self._quarantine.is_due:
            self._quarantine.hold(True)
        room, targets = self.concurrency - len(self._running), self._targets()
        if room <= 0 or not targets or (self._quarantine.item and self._running):
            return 0
        try:
            leased = await self._lease_crashed(targets) if self._quarantine.item else []
            if not leased:
                leased = await self.store.effects.lease(room, self.name, targets)
            if not leased and self._has_crashed and not self._running:
                leased = await self._lease_crashed(targets)
        except Unavailable as error:
            signals.emit("relay_database_unavailable", detail=error.detail)
            return 0
        for effect in leased:
            task = asyncio.create_task(self._run(effect))
            self._running.add(task)
            task.add_done_callback(self._task_done)
        return len(leased)

    async def _lease_crashed(self, targets: list[EffectTarget]) -> list[LeasedEffect]:
        """Lease an effect whose process died, to run it in isolation."""
        leased = await self.store.effects.lease(1, self.name, targets, rescued=True)
        self._has_crashed = bool(leased)
        self._quarantine.hold(True if leased else None)
        if leased:
            self._quarantine.start()
        return leased

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if self._quarantine.is_running:
            self._quarantine.finish()
        self._wakeup.set()

    def _targets(self) -> list[EffectTarget]:
        return [
            EffectTarget(registered.kind, registered.name, registered.timeout + MARGIN) for registered in self.effects
        ]

    # -- running --------------------------------------------------------------------------------------------------

    async def _run(self, leased: LeasedEffect) -> None:
        settled = SettledEffect(leased.id, leased.lease, EffectState.DONE)
        registered = self.effects.find(leased.kind, leased.target)
        assert registered is not None, "a relay leases only effects that are registered in its process"
        try:
            if leased.args is None:
                raise _missing_args(leased)
            args = json.loads(leased.args)
            effect = Effect.of(leased)
            run = partial(call, leased.target, registered.function, self._threads, registered.timeout, effect, **args)
            await (run() if tracing.active is None else tracing.active.run_effect(run, leased, self.store.receipts))
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, Postpone) or is_stopping():
                _release(settled, leased, error.after if isinstance(error, Postpone) else None)
            else:
                _fail(settled, registered.retry, leased.attempt, error)
        stored = settled
        if leased.is_encrypted and settled.error is not None and leased.key_error is None:
            stored = replace(settled, error=self.store.encryption.seal_error(settled.error, leased.source))
            settled.error = error_class(settled.error)
        landed = await asyncio.shield(self.settler.settle(stored))
        self._wakeups.schedule(settled.after)
        if landed is not None and not settled.uncharged:
            signals.record_effect_attempt(leased, settled, landed)

    # -- rescuing -------------------------------------------------------------------------------------------------

    async def _keep_rescuing(self) -> None:
        while True:
            try:
                await self.rescue()
                await self._check_waiting()
            except Unavailable as error:
                signals.emit("relay_database_unavailable", detail=error.detail)
            except Exception as error:
                signals.log_background_failure("relay rescue", error)
            await asyncio.sleep(self.rescue_interval)

    async def rescue(self) -> int:
        """Rescue effects whose lease has expired, and return their number. An effect without attempts left fails."""
        rescued = after = 0
        while page := await self.store.effects.expired(PAGE, after):
            after = page[-1].id
            settled_by_id: dict[int, SettledEffect] = {}
            for row in page:
                registered = self.effects.find(row.kind, row.target)
                if registered is None:  # this process does not know its retry policy
                    self._report_unregistered(row.kind, row.target, 1)
                else:
                    settled = SettledEffect(row.id, row.lease, EffectState.FAILED, crashed=True)
                    _fail(settled, registered.retry, row.attempt, Crashed("the process died or lost its connection"))
                    settled_by_id[row.id] = settled
            landed = await self.store.effects.settle([*settled_by_id.values()]) if settled_by_id else set()
            for row in page:
                if row.id in landed:
                    signals.record_expired_effect_lease(row, settled_by_id[row.id])
            rescued += len(landed)
        return rescued

    async def _check_waiting(self) -> None:
        """Quarantine effects whose process died. Report effects without a function here, once for each name."""
        for row in await self.store.effects.waiting():
            if self.effects.find(row.kind, row.target) is None:
                self._report_unregistered(row.kind, row.target, row.effects)
            elif row.crashed:
                self._has_crashed = True
                self.wake()

    def _report_unregistered(self, kind: str, target: str, effects: int) -> None:
        if (kind, target) not in self._reported:
            self._reported.add((kind, target))
            signals.emit(
                "effect_unregistered", kind=kind, target=signals.redacted_target(kind, target), effects=effects
            )


def _missing_args(leased: LeasedEffect) -> Exception:
    """The error of an effect without arguments. If only this process lacks their key, another may run the effect."""
    if isinstance(leased.key_error, KeyMissing):
        signals.emit("key_missing", source=leased.source, receipt=leased.receipt, key=leased.key_error.key_id)
        return Postpone(str(leased.key_error), after=KEY_MISSING_SECONDS)
    if leased.key_error is not None:
        return Fail(f"the effect's arguments cannot be decrypted: {leased.key_error}")
    return Fail("the effect's arguments were erased")


def _release(settled: SettledEffect, leased: LeasedEffect, after: float | None) -> None:
    """Release an effect without counting an attempt: a slot or the target is unavailable, or the relay stops."""
    settled.status = EffectState.RETRYING if leased.attempt > 1 else EffectState.WAITING
    settled.after, settled.uncharged = after, True


def _fail(settled: SettledEffect, retry: Retry, attempt: int, error: BaseException) -> None:
    settled.after, settled.error = after_failure(retry, attempt, error)
    settled.status = EffectState.FAILED if settled.after is None else EffectState.RETRYING
