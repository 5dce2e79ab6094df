"""Claims the events of a queue: receives messages, reads them, commits their events, and only then acks them.

A message is acked after the commit. If the process dies before the ack, the broker delivers the message again, and its
events are duplicates. While the database is down, the consumer holds the messages that it has, receives no others, and
retries with backoff. So the redelivery count of a message does not grow during an outage.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from oncehook.concurrency.backoff import Backoff
from oncehook.concurrency.clock import Clock
from oncehook.concurrency.stopping import finish_or_cancel
from oncehook.intake.broker import Broker, Message
from oncehook.intake.envelope import SealKeyMissing
from oncehook.intake.reader import MessageReader
from oncehook.model.delivery import Delivery
from oncehook.model.errors import BrokerUnavailable, Rejected, RowRefused, Unavailable
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.providers.source import Source
from oncehook.receiver.claim import ClaimStep

MAX_PARKED = 20
"""How many batches may wait for a key. Messages of further ones are rejected: they may be forged."""

STOP_SECONDS = 3.0
"""Seconds for which a stop waits for the commit and the ack of the messages that are held."""

NoteRejection = Callable[[Source, Delivery, Rejected], None]


class IntakeConsumer:
    """Claims the events of one source's queue in this process."""

    def __init__(
        self, broker: Broker, reader: MessageReader, claims: ClaimStep, note_rejection: NoteRejection, clock: Clock
    ) -> None:
        self.broker = broker
        self.source = reader.source
        self.problem: str | None = None  # why messages wait now: the error of the database or of the broker
        self._reader = reader
        self._claims = claims
        self._note_rejection = note_rejection
        self._clock = clock
        self._batches: list[list[Message]] = []  # that are held now
        self._last_lag = 0.0
        self._loops: set[asyncio.Task[None]] = set()
        self._receiving: set[asyncio.Task[None] | None] = set()
        self._parked: set[asyncio.Task[None]] = set()  # hold messages whose key is missing
        self._is_stopping = False

    @property
    def lag(self) -> float:
        """Seconds since the broker got the oldest message that is held. 0 if the queue is empty."""
        oldest = min((message.sent_at for batch in self._batches for message in batch), default=None)
        return self._last_lag if oldest is None else max(0.0, self._clock.now() - oldest)

    def start(self) -> None:
        self._is_stopping = False
        self._start_loop(wait=True)

    def _start_loop(self, *, wait: bool) -> None:
        task = asyncio.create_task(self._run(wait))
        self._loops.add(task)
        task.add_done_callback(self._loops.discard)

    async def stop(self) -> None:
        """Stop receiving, and finish the messages that are held. Those that are not claimed go back to the queue."""
        self._is_stopping = True
        receiving = [task for task in self._loops if task in self._receiving]
        for task in receiving:
            task.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)  # else they could receive what is released below
        for task in self._parked:
            task.cancel()
        await finish_or_cancel([*self._loops, *self._parked], STOP_SECONDS)

    async def _run(self, wait: bool) -> None:
        """Claim messages. One loop waits for them; while batches are full, others help, and end when they find none."""
        backoff = Backoff()
        while not self._is_stopping:
            try:
                messages = await self._receive(wait)
                backoff.reset()
                if not messages and not wait:
                    return
                if len(messages) == self.broker.batch and len(self._loops) < self.broker.parallel:
                    self._start_loop(wait=False)
                await self._take(messages)
                self._set_problem(None)
            except BrokerUnavailable as error:
                self._set_problem(error)
                await backoff.wait()
            except Exception as error:  # a bug: the messages are delivered again
                signals.log_background_failure("intake", error)
                await backoff.wait()
            reach(Checkpoint.INTAKE_CLAIMED)

    async def _receive(self, wait: bool) -> list[Message]:
        task = asyncio.current_task()
        self._receiving.add(task)
        try:
            return await self.broker.receive(wait=wait)
        finally:
            self._receiving.discard(task)

    async def _take(self, messages: Sequence[Message], *, parked: bool = False) -> None:
        """Claim or reject each of these messages. Those that are left when the consumer stops go back to the queue.

        Messages whose key is missing are held by another task, so that the next messages do not wait for the key.
        """
        held, backoff = list(messages), Backoff()
        self._batches.append(held)
        self._last_lag = max((self._clock.now() - message.sent_at for message in messages), default=0.0)
        extending = asyncio.create_task(self._keep_extending(held))
        try:
            while held and not self._is_stopping:
                errors = await self._settle(held)
                if held and not parked and all(isinstance(error, SealKeyMissing) for error in errors):
                    await self._park(held)
                if held:
                    await backoff.wait()
        finally:
            extending.cancel()
            self._batches.remove(held)
            self._reader.forget(messages)
            if held:
                with suppress(BrokerUnavailable):
                    await self.broker.release(held)

    async def _park(self, held: list[Message]) -> None:
        """Let another task hold these messages, or reject them, and remove them from `held`."""
        if len(self._parked) >= MAX_PARKED:
            missing = Rejected("bad_signature", "the key that sealed the message is missing")
            await self._reject(held, [(message, missing) for message in held])
            return
        task = asyncio.create_task(self._take(list(held), parked=True))
        self._parked.add(task)
        task.add_done_callback(self._parked.discard)
        held.clear()

    async def _settle(self, held: list[Message]) -> list[Unavailable]:
        """Try to claim every message, and remove those from `held` that are claimed or rejected.

        Returns why the others cannot be claimed now.
        """
        results = list(zip(held, await asyncio.gather(*map(self._claim, held)), strict=True))
        held[:] = [message for message, error in results if error is not None]
        errors = [error for _, error in results if isinstance(error, Unavailable)]
        self._set_problem(errors[0] if errors else None)
        claimed = [message for message, error in results if error is None]
        if claimed:
            await self.broker.ack(claimed)
            await self._reader.discard(claimed)
        await self._reject(held, [(message, error) for message, error in results if isinstance(error, Rejected)])
        return errors

    async def _reject(self, held: list[Message], rejections: Sequence[tuple[Message, Rejected]]) -> None:
        """Reject messages, and remove each from `held`. If the broker fails, the others are still held."""
        for message, error in rejections:
            await self.broker.reject(message, error.reason)
            held.remove(message)
            self._note_rejection(self.source, Delivery(message.body, message.headers), error)

    async def _claim(self, message: Message) -> Rejected | Unavailable | None:
        """Claim the events of a message. Returns None once they are committed, or why they cannot be."""
        try:
            await self._claims.claim(await self._reader.read(message))
        except RowRefused as error:
            return Rejected("malformed", f"the database rejects the event: {error.detail}")
        except (Rejected, Unavailable) as error:
            return error
        except Exception as error:  # a bug: the message is kept with the rejected ones, and others do not wait for it
            signals.log_background_failure("intake", error)
            return Rejected("malformed", f"reading the message failed: {type(error).__name__}")
        return None

    async def _keep_extending(self, held: list[Message]) -> None:
        while True:
            await asyncio.sleep(self.broker.extend_every)
            with suppress(BrokerUnavailable):
                await self.broker.extend(list(held))

    def _set_problem(self, error: Unavailable | None) -> None:
        """Log when messages begin to wait, and when they no longer do."""
        if error is None and self._parked:
            return  # messages still wait for a key
        problem = None if error is None else error.detail
        if (problem is None) != (self.problem is None):
            fields = {"source": self.source.name, "queue": self.broker.name}
            if problem is None:
                signals.emit("intake_resumed", **fields)
            else:
                signals.emit("intake_paused", **fields, detail=problem)
        self.problem = problem
