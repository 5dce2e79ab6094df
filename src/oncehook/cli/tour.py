"""The demo's tour: a real inbox with five sources on a temporary SQLite file, its senders, and the promise watched."""

import asyncio
import contextlib
import secrets
import signal
import socket
from collections import Counter, deque
from copy import deepcopy
from pathlib import Path

from oncehook.cli.board import Board, Lines, Snapshot
from oncehook.cli.serve import make_dashboard, make_server
from oncehook.cli.shop import open_shop
from oncehook.cli.tally import Tally, Witness
from oncehook.cli.traffic import SENDERS, Traffic
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import load
from oncehook.inbox import Inbox
from oncehook.model.receipt import Filter
from oncehook.observability import signals

CHECK_SHARE = 20
"""A check may take one part in so many of the demo's time: counting many receipts takes long."""

CONFIGURATION = """\
# Made by `oncehook demo`; it goes when the demo ends.
database = "sqlite:///{folder}/oncehook.db"

[sources.stripe]
secrets = ["{stripe}"]

[sources.github]
secrets = ["{github}"]
types = ["push", "pull_request", "issues"]   # the others are acked and kept as ignored

[sources.shopify]
secrets = ["{shopify}"]

[sources.slack]
secrets = ["{slack}"]

[sources.sendgrid]
secrets = ["{sendgrid}"]   # a public key: its private half is in sendgrid.pem
email = true
"""


class Tour:
    """The inbox, its senders and what is known about them."""

    def __init__(self, folder: Path, listener: socket.socket, rate: float) -> None:
        keys = make_keys()
        self.folder = folder
        self.listener = listener
        self.base = "http://{}:{}".format(*listener.getsockname())
        self.inbox = _make_inbox(folder, keys)
        self.dashboard = make_dashboard(self.inbox._runtime)
        self.tally = Tally()
        self.held = True
        self.now = Snapshot([sender.source for sender in SENDERS])
        self._recent: deque[tuple[float, int]] = deque(maxlen=10)
        signing, strangers = ({name: pair[0] for name, pair in each.items()} for each in (keys, make_keys()))
        self.traffic = Traffic(self.base, signing, strangers, self.tally, rate=rate)

    async def run(self, view: Board | Lines, seconds: float | None) -> bool:
        """Serve and send until the time is up or a signal comes. Whether the promise held throughout."""
        with (self.folder / "oncehook.log").open("w") as log:
            signals.configure("info", "json", log)
            async with self.inbox.lifespan():
                return await self._run(view, seconds)

    async def _run(self, view: Board | Lines, seconds: float | None) -> bool:
        stop = self.traffic.stopping
        server = make_server(self.inbox, self.dashboard)
        server.config.app = Witness(server.config.app, self.tally)
        server.handle_exit = lambda *_: stop.set()  # type: ignore[method-assign]  # the senders end before the server
        server.end_on_signals()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop.set)  # the terminal was closed
        serving = asyncio.create_task(server.serve(sockets=[self.listener]))
        serving.add_done_callback(lambda _: stop.set())
        sending = asyncio.create_task(self.traffic.run())
        try:
            with view:
                await self._watch(view, seconds)
                stop.set()
                await sending
                await self._look()
                view.show(self.now)
        finally:
            stop.set()
            await sending
            server.should_exit = True
            await serving
        return self.held

    # -- watching -------------------------------------------------------------------------------------------------

    async def _watch(self, view: Board | Lines, seconds: float | None) -> None:
        """Show it until the time is up or somebody stops it."""
        started = SYSTEM.monotonic()
        next_look = 0.0
        while not self.traffic.stopping.is_set():
            self.now.seconds = SYSTEM.monotonic() - started
            left = view.every if seconds is None else seconds - self.now.seconds
            if left <= 0:
                return
            if self.now.seconds >= next_look:
                next_look = self.now.seconds + await self._look()
            view.show(self.now)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.traffic.stopping.wait(), min(view.every, left))

    async def _look(self) -> float:
        """Compare what is acked with what is kept. Returns the seconds until it is worth doing again."""
        before = SYSTEM.monotonic()
        for _ in range(3):  # a delivery of somebody else's may be between its commit and its answer: look again
            async with self.traffic.quiet():
                await self._compare()
            if self.now.check.holds:
                break
            await asyncio.sleep(0.1)
        self.held = self.held and self.now.check.holds
        self.now.latest = await self.inbox._runtime.store.receipts.find(Filter(), limit=12)
        self._measure()
        return max(0.5, CHECK_SHARE * (SYSTEM.monotonic() - before))

    async def _compare(self) -> None:
        receipts: Counter[str] = Counter()
        for row in await self.inbox._runtime.store.stats.counts():
            receipts[row.source] += row.receipts
        self.now.receipts = receipts
        self.now.check = self.tally.check(receipts.total())
        self.now.counts = deepcopy(self.tally.counts)
        self.now.from_you = self.tally.from_others

    def _measure(self) -> None:
        """Deliveries a second, over the last few seconds."""
        self._recent.append((self.now.seconds, self.now.counts.deliveries.total()))
        (then, before), (now, after) = self._recent[0], self._recent[-1]
        self.now.rate = (after - before) / (now - then) if now > then else 0.0


def _make_inbox(folder: Path, keys: dict[str, tuple[str, str]]) -> Inbox:
    file, key = folder / "oncehook.toml", folder / "sendgrid.pem"
    for path in (file, key):
        path.touch(mode=0o600)
    file.write_text(CONFIGURATION.format(folder=folder, **{name: pair[1] for name, pair in keys.items()}))
    key.write_text(keys["sendgrid"][0])
    inbox = Inbox(config=load(file, environ={}))  # the environment may name a database that is not for play
    open_shop(inbox)
    return inbox


def make_keys() -> dict[str, tuple[str, str]]:
    """What each source's sender signs with, and what its source is given: the same but for a pair of keys."""
    keys = {name: secrets.token_hex(16) for name in ("github", "shopify", "slack")}
    keys["stripe"] = "whsec_" + secrets.token_hex(16)
    return {name: (key, key) for name, key in keys.items()} | {"sendgrid": _key_pair()}


def _key_pair() -> tuple[str, str]:
    """A new ECDSA pair, as SendGrid has them: the private key in PEM, the public one in base64."""
    from base64 import b64encode

    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem.decode(), b64encode(public).decode()
