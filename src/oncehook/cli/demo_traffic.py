"""The demo's traffic: senders that behave as real ones do, over HTTP.

Most events are delivered once. Others are delivered again because the ack was lost, several times concurrently, or late
and out of order. Some deliveries are forged, stale or malformed, and some repeat an event id with a new body.
"""

import asyncio
import hashlib
import http.client
import json
import random
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from oncehook.cli.demo_check import USER_AGENT, ResponseLog
from oncehook.concurrency.clock import SYSTEM
from oncehook.providers import definition as providers
from oncehook.providers.definition import Provider
from oncehook.providers.sample import Sample, compose, url_for
from oncehook.providers.sign import sign

STALE = 3 * 86400
"""Age in seconds of a stale delivery: older than any of these providers would retry."""

_dice = random.Random()  # noqa: S311  # picks events, not secrets


@dataclass(frozen=True)
class Sender:
    """A provider that sends to one source: its event types, and the field or header with the event id."""

    source: str
    types: tuple[str, ...]
    id_key: str | None = None
    id_header: str = ""

    @property
    def provider(self) -> Provider:
        return providers.built_in(self.source)

    def ids(self, sample: Sample) -> list[str]:
        """The event ids in a delivery."""
        if self.id_key is None:
            return [sample.headers[self.id_header]]
        body = json.loads(sample.body)
        return [event[self.id_key] for event in (body if isinstance(body, list) else [body])]


SENDERS = (
    Sender("stripe", ("invoice.paid", "invoice.payment_failed", "customer.updated", "charge.refunded"), "id"),
    Sender("github", ("push", "pull_request.opened", "issues.closed", "star.created"), id_header="X-GitHub-Delivery"),
    Sender("shopify", ("orders/create", "orders/paid", "refunds/create"), id_header="X-Shopify-Webhook-Id"),
    Sender("slack", ("message", "reaction_added", "app_mention"), "event_id"),
    Sender("sendgrid", ("delivered", "open", "click", "bounce"), "sg_event_id"),
)

BEHAVIORS: dict[str, int] = {
    "once": 58,
    "ack lost": 12,
    "concurrent": 8,
    "late": 8,
    "forged": 5,
    "stale": 2,
    "new body": 3,
    "malformed": 2,
    "no id": 2,
}
"""The behaviors of senders, with the percentage of events."""

NOT_SENT_BY = {
    "stale": ("github", "shopify"),  # their deliveries have no timestamp
    "no id": ("sendgrid",),  # a batch, in which each event has an id
}
"""Behaviors that some senders cannot show."""


class Stopped(Exception):
    """The demo is ending, and no further delivery is sent."""


class Traffic:
    """Sends events until it is stopped. Genuine deliveries are signed with `keys`, forged ones with `forged_keys`."""

    def __init__(
        self, base: str, keys: Mapping[str, str], forged_keys: Mapping[str, str], log: ResponseLog, *, rate: float
    ) -> None:
        self.urls = {sender.source: urlsplit(url_for(sender.source, base)) for sender in SENDERS}
        self.keys = keys
        self.forged_keys = forged_keys
        self.log = log
        self.log.counts.behaviors.update(dict.fromkeys(BEHAVIORS, 0))
        self.rate = rate
        self._unseen = list(BEHAVIORS)  # the first deliveries show each behavior once
        self.stopping = asyncio.Event()
        self._open = asyncio.Event()
        self._idle = asyncio.Event()
        self._open.set()
        self._idle.set()
        self._in_progress = 0
        self._pool = ThreadPoolExecutor(32, thread_name_prefix="sender")

    async def run(self) -> None:
        """Start events at the rate until `stopping` is set, then wait for the deliveries in progress."""
        started: set[asyncio.Task[None]] = set()
        try:
            while True:
                task = asyncio.create_task(self._behave())
                started.add(task)
                task.add_done_callback(started.discard)
                await self._pause(_dice.expovariate(self.rate))
        except Stopped:
            await asyncio.gather(*started)
        finally:
            self._pool.shutdown()

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Hold back the demo's deliveries, so that acks and receipts can be compared."""
        self._open.clear()
        try:
            await self._idle.wait()
            yield
        finally:
            self._open.set()

    # -- behaviors ----------------------------------------------------------------------------------------------

    async def _behave(self) -> None:
        chosen = _dice.choices(list(BEHAVIORS), list(BEHAVIORS.values()))[0]
        behavior = self._unseen.pop() if self._unseen else chosen
        sender = _dice.choice([sender for sender in SENDERS if sender.source not in NOT_SENT_BY.get(behavior, ())])
        self.log.counts.behaviors[behavior] += 1
        try:
            await getattr(self, "_" + behavior.replace(" ", "_"))(sender)
        except Stopped:
            pass

    async def _once(self, sender: Sender) -> None:
        await self._deliver(sender, self._compose(sender))

    async def _ack_lost(self, sender: Sender) -> None:
        sample = self._compose(sender)
        for _ in range(_dice.choice((2, 2, 3))):
            await self._deliver(sender, sample)
            await self._pause(_dice.uniform(0.2, 2))

    async def _concurrent(self, sender: Sender) -> None:
        sample = self._compose(sender)
        await asyncio.gather(*(self._deliver(sender, sample) for _ in range(_dice.randint(2, 5))))

    async def _late(self, sender: Sender) -> None:
        older, newer = self._compose(sender, age=_dice.uniform(60, 240)), self._compose(sender)
        await self._deliver(sender, newer)
        await self._pause(_dice.uniform(0.2, 2))
        await self._deliver(sender, older)

    async def _forged(self, sender: Sender) -> None:
        if _dice.random() < 0.5:
            sample = self._compose(sender, key=self.forged_keys[sender.source])
        else:
            genuine = self._compose(sender)
            sample = Sample(genuine.headers, re.sub(rb"\d", _different_digit, genuine.body, count=1))
        await self._deliver(sender, sample, genuine=False)

    async def _stale(self, sender: Sender) -> None:
        await self._deliver(sender, self._compose(sender, age=STALE), genuine=False)

    async def _new_body(self, sender: Sender) -> None:
        first = self._compose(sender)
        await self._deliver(sender, first)
        body = json.loads(first.body)
        (body[0] if isinstance(body, list) else body)["changed"] = True
        await self._deliver(sender, self._sign(sender, json.dumps(body).encode(), first.headers))

    async def _malformed(self, sender: Sender) -> None:
        whole = self._compose(sender)
        await self._deliver(
            sender, self._sign(sender, whole.body[: len(whole.body) // 2], whole.headers), genuine=False
        )

    async def _no_id(self, sender: Sender) -> None:
        """An event whose provider left out the id: its receipt is identified by the hash of its body."""
        whole = self._compose(sender)
        body = json.loads(whole.body)
        body.pop(sender.id_key, None)
        headers = {name: value for name, value in whole.headers.items() if name != sender.id_header}
        sample = self._sign(sender, json.dumps(body).encode(), headers)
        await self._deliver(sender, sample, ids=["sha256:" + hashlib.sha256(sample.body).hexdigest()])

    # -- composing and posting ---------------------------------------------------------------------------------------

    def _compose(self, sender: Sender, *, age: float = 0, key: str | None = None) -> Sample:
        sample = compose(
            sender.provider, _dice.choice(sender.types), key or self.keys[sender.source], now=SYSTEM.now() - age
        )
        return Sample({**sample.headers, "User-Agent": USER_AGENT}, sample.body)

    def _sign(self, sender: Sender, body: bytes, headers: Mapping[str, str]) -> Sample:
        return Sample(*sign(sender.provider, body, self.keys[sender.source], headers=headers, now=SYSTEM.now()))

    async def _deliver(
        self, sender: Sender, sample: Sample, *, genuine: bool = True, ids: Sequence[str] | None = None
    ) -> None:
        """Post a delivery, and retry it with backoff if the receiver could not record it."""
        if ids is None:
            ids = sender.ids(sample) if genuine else []
        for wait in (0.5, 1.0, 2.0, 4.0):
            status = await self._post(sender, sample, ids, genuine)
            if 0 < status < 500:
                return
            await self._pause(wait)

    async def _post(self, sender: Sender, sample: Sample, ids: Sequence[str], genuine: bool) -> int:
        while not self._open.is_set():
            await self._open.wait()
        self._in_progress += 1
        self._idle.clear()
        try:
            loop = asyncio.get_running_loop()
            status, text = await loop.run_in_executor(self._pool, post, sample, self.urls[sender.source])
            self.log.record(sender.source, status, text, ids, genuine=genuine)
            return status
        finally:
            self._in_progress -= 1
            if not self._in_progress:
                self._idle.set()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return
        raise Stopped


def post(sample: Sample, url: SplitResult) -> tuple[int, str]:
    """Post one delivery on a new connection. Returns the status and the body; status 0 if there was no response."""
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=30)
    try:
        connection.request("POST", url.path, sample.body, sample.headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def _different_digit(digit: re.Match[bytes]) -> bytes:
    return b"7" if digit[0] != b"7" else b"3"
