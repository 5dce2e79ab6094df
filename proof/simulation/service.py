"""The service that runs in each simulated process: an inbox with handlers and an effect, which fail as planned."""

import asyncio
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any

from oncehook import AsyncTransaction, Effect, Event, Fail, Inbox, Retry, RetryLater
from oncehook.model.delivery import Delivery
from proof.simulation.loop import current_process
from proof.simulation.scenario import ATTEMPTS, EFFECT_ATTEMPTS
from proof.simulation.threads import WriteLock

if TYPE_CHECKING:
    from proof.simulation.world import Process, World

SECRET = "whsec_simulation"  # noqa: S105  # it guards nothing
HANDLER_TIMEOUT, EFFECT_TIMEOUT = 4.0, 1.5
WINDOW = 40 * 86400.0
"""The dedupe window. Payloads are kept as long."""


def body_of(event: str) -> bytes:
    number = int(event.removeprefix("evt_"))
    payload = {"id": event, "type": "invoice.paid", "created": 1, "data": {"object": {"id": f"in_{number % 2}"}}}
    return json.dumps(payload).encode()


def signed_delivery(event: str, now: float) -> Delivery:
    """A delivery as Stripe sends it."""
    body, moment = body_of(event), str(int(now))
    digest = hmac.new(SECRET.encode(), moment.encode() + b"." + body, hashlib.sha256).hexdigest()
    return Delivery.of(body, {"content-type": "application/json", "stripe-signature": f"t={moment},v1={digest}"})


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


class Service:
    """Makes the inbox of a process, and has its handlers and its effect."""

    def __init__(self, world: "World", lock: WriteLock) -> None:
        self.world = world
        self.scenario = world.scenario
        self.lock = lock
        self.calls: list[tuple[str, str, bool]] = []  # (event, idempotency key, whether the target answered)
        self.answers: list[tuple[int, str, str]] = []  # (last change before it, process, event)
        self.handled: dict[tuple[str, str, int], int] = {}  # attempts that started, by event, consumer and replay

    def make_inbox(self) -> Inbox:
        scenario = self.scenario
        inbox = Inbox(
            f"sqlite:///{self.world.path}",
            clock=self.world.clock,
            migrate="never",
            lease=scenario.lease,
            poll=scenario.poll,
            concurrency=scenario.concurrency,
            stop_grace=2.0,
            claim_timeout=4.0,
            dedupe_window=WINDOW,
            payload_retention=WINDOW,
            version="simulation",
        )
        serial = {"serial_by": "object", "serial_failed": "skip"} if scenario.is_serial else {}
        inbox.source("stripe", secrets=[SECRET], **serial)  # type: ignore[arg-type]
        retry = Retry(attempts=ATTEMPTS, first=0.5, most=2.0)
        for consumer in scenario.consumers:
            inbox.on("stripe", "invoice.paid", retry=retry, timeout=HANDLER_TIMEOUT, consumer=consumer)(self.handle)
        inbox.effect(name="notify", retry=Retry(attempts=EFFECT_ATTEMPTS, first=0.5, most=2.0), timeout=EFFECT_TIMEOUT)(
            self.notify
        )
        database: Any = inbox._runtime.store.database
        database.file.write_lock = self.lock
        return inbox

    async def handle(self, event: Event, tx: AsyncTransaction) -> None:
        process: Process = current_process()
        place = event.id, event.consumer, event.replays
        self.handled[place] = self.handled.get(place, 0) + 1
        plan = self.scenario.handler_plans[event.id, event.consumer]
        outcome = plan[event.attempt - 1] if event.attempt <= len(plan) and not event.replays else "works"
        if not self.world.has_faults and outcome in ("kills", "hangs", "blocks", "stalls"):
            outcome = "works"
        self.world.note(f"{process.name}: {event.id}/{event.consumer} attempt {event.attempt} {outcome}")
        if outcome == "slow":
            await asyncio.sleep(self.scenario.lease * 0.7)
        if outcome == "blocks":
            process.block_until(self.world.loop.now + 2.5 * self.scenario.lease)
            await asyncio.sleep(0)
        if outcome == "stalls":
            self.world.counts["SIGSTOP in a handler"] += 1
            process.stop_until(self.world.loop.now + self.world.schedule.uniform(1.3, 3.0) * self.scenario.lease)
            await asyncio.sleep(0)
        await tx.execute("INSERT INTO ledger VALUES (?, ?, ?)", event.receipt, event.replays, event.consumer)
        await event.effect(f"notify:{event.id}", "notify", event_id=event.id)
        if outcome == "kills":
            self.world.kill(process)
            await hang()
        if outcome == "hangs":
            await hang()
        if outcome == "fails":
            raise ValueError("planned")
        if outcome == "later":
            raise RetryLater("planned", after=1.0)
        if outcome == "gives up":
            raise Fail("planned")

    async def notify(self, effect: Effect, event_id: str) -> None:
        process: Process = current_process()
        plan = self.scenario.effect_plans[event_id]
        outcome = plan[effect.attempt - 1] if effect.attempt <= len(plan) else "works"
        if not self.world.has_faults and outcome in ("kills", "kills after"):
            outcome = "works"
        self.world.note(f"{process.name}: effect of {event_id} attempt {effect.attempt} {outcome}")
        if outcome == "slow":
            await asyncio.sleep(EFFECT_TIMEOUT * 2)
        if outcome == "kills":
            self.world.kill(process)
            await hang()
        answered = outcome != "fails"
        self.calls.append((event_id, effect.idempotency_key, answered))
        if answered:
            self.answers.append((self.world.last_change(), process.name, event_id))
        if outcome == "kills after":
            self.world.kill(process)
            await hang()
        if outcome in ("fails", "answers and fails"):
            raise ValueError("planned")
