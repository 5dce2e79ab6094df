"""The demo's session: an inbox with five sources on a temporary SQLite file, senders, and a check of the guarantee."""

import asyncio
import contextlib
import secrets
import signal
import socket
from collections import Counter, deque
from copy import deepcopy
from pathlib import Path

from oncehook.cli.demo_check import OtherSendersMiddleware, ResponseLog
from oncehook.cli.demo_screen import DemoSnapshot, LineOutput, LiveScreen
from oncehook.cli.demo_shop import register_handlers
from oncehook.cli.demo_traffic import SENDERS, Traffic
from oncehook.cli.serve import make_dashboard, make_server
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import load
from oncehook.inbox import Inbox
from oncehook.model.event import MAIN
from oncehook.model.receipt import Filter
from oncehook.observability import signals

CHECK_INTERVAL = 20
"""The pause after a check, as a multiple of its duration: counting many receipts takes time."""

CONFIGURATION = """\
# Written by `oncehook demo`, which deletes it when it ends.
database = "sqlite:///{folder}/oncehook.db"

[sources.stripe]
secrets = ["{stripe}"]

[sources.github]
secrets = ["{github}"]
types = ["push", "pull_request", "issues"]   # other types are acked and stored as ignored

[sources.shopify]
secrets = ["{shopify}"]

[sources.slack]
secrets = ["{slack}"]

[sources.sendgrid]
secrets = ["{sendgrid}"]   # a public key; the private key is in sendgrid.pem
email = true
"""


class DemoSession:
    """An inbox with its senders, and the figures of the last check."""

    def __init__(self, folder: Path, listener: socket.socket, rate: float) -> None:
        keys = make_keys()
        self.folder = folder
        self.listener = listener
        self.base = "http://{}:{}".format(*listener.getsockname())
        self.inbox = _make_inbox(folder, keys)
        self.dashboard = make_dashboard(self.inbox._runtime)
        self.log = ResponseLog()
        self.guarantee_holds = True  # the guarantee, at every check so far
        self.snapshot = DemoSnapshot([sender.source for sender in SENDERS])
        self._recent: deque[tuple[float, int]] = deque(maxlen=10)
        signing, forging = ({name: pair[0] for name, pair in pairs.items()} for pairs in (keys, make_keys()))
        self.traffic = Traffic(self.base, signing, forging, self.log, rate=rate)

    async def run(self, view: LiveScreen | LineOutput, seconds: float | None) -> bool:
        """Serve and send until the time is up or a signal arrives. Returns whether every check held."""
        with (self.folder / "oncehook.log").open("w") as log:
            signals.configure("info", "json", log)
            async with self.inbox.lifespan():
                return await self._run(view, seconds)

    async def _run(self, view: LiveScreen | LineOutput, seconds: float | None) -> bool:
        stop = self.traffic.stopping
        server = make_server(self.inbox, self.dashboard)
        server.config.app = OtherSendersMiddleware(server.config.app, self.log)
        server.handle_exit = lambda *_: stop.set()  # type: ignore[method-assign]  # senders stop before the server
        server.stop_on_signals()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop.set)  # the terminal was closed
        serving = asyncio.create_task(server.serve(sockets=[self.listener]))
        serving.add_done_callback(lambda _: stop.set())
        sending = asyncio.create_task(self.traffic.run())
        try:
            with view:
                await self._watch(view, seconds)
                stop.set()
                await sending
                await self._check()
                view.show(self.snapshot)
        finally:
            stop.set()
            await sending
            server.should_exit = True
            await serving
        return self.guarantee_holds

    # -- checking -------------------------------------------------------------------------------------------------

    async def _watch(self, view: LiveScreen | LineOutput, seconds: float | None) -> None:
        """Check the guarantee and show the figures until the time is up or the demo is stopped."""
        started = SYSTEM.monotonic()
        next_check = 0.0
        while not self.traffic.stopping.is_set():
            self.snapshot.seconds = SYSTEM.monotonic() - started
            remaining = view.interval if seconds is None else seconds - self.snapshot.seconds
            if remaining <= 0:
                return
            if self.snapshot.seconds >= next_check:
                next_check = self.snapshot.seconds + await self._check()
            view.show(self.snapshot)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.traffic.stopping.wait(), min(view.interval, remaining))

    async def _check(self) -> float:
        """Compare the acked events with the receipts. Returns the seconds to wait before the next check."""
        before = SYSTEM.monotonic()
        for _ in range(3):  # another sender's event may be committed but not acked yet: try again
            async with self.traffic.quiet():
                await self._compare()
            if self.snapshot.check.holds:
                break
            await asyncio.sleep(0.1)
        self.guarantee_holds = self.guarantee_holds and self.snapshot.check.holds
        self.snapshot.latest = await self.inbox._runtime.store.receipts.find(Filter(), limit=12)
        self._measure()
        return max(0.5, CHECK_INTERVAL * (SYSTEM.monotonic() - before))

    async def _compare(self) -> None:
        receipts: Counter[str] = Counter()
        for row in await self.inbox._runtime.store.stats.counts():
            receipts[row.source] += row.receipts if row.consumer == MAIN else 0
        self.snapshot.receipts = receipts
        self.snapshot.check = self.log.check(receipts.total())
        self.snapshot.counts = deepcopy(self.log.counts)
        self.snapshot.from_you = self.log.from_other_senders

    def _measure(self) -> None:
        """Set the rate: deliveries per second over the last ten checks."""
        self._recent.append((self.snapshot.seconds, self.snapshot.counts.deliveries.total()))
        (then, before), (now, after) = self._recent[0], self._recent[-1]
        self.snapshot.rate = (after - before) / (now - then) if now > then else 0.0


def _make_inbox(folder: Path, keys: dict[str, tuple[str, str]]) -> Inbox:
    file, key = folder / "oncehook.toml", folder / "sendgrid.pem"
    for path in (file, key):
        path.touch(mode=0o600)
    file.write_text(CONFIGURATION.format(folder=folder, **{name: pair[1] for name, pair in keys.items()}))
    key.write_text(keys["sendgrid"][0])
    inbox = Inbox(config=load(file, environ={}))  # never the database that the environment names
    register_handlers(inbox)
    return inbox


def make_keys() -> dict[str, tuple[str, str]]:
    """New keys by source: the sender's signing key and the receiver's secret, which differ for an asymmetric pair."""
    keys = {name: secrets.token_hex(16) for name in ("github", "shopify", "slack")}
    keys["stripe"] = "whsec_" + secrets.token_hex(16)
    return {name: (key, key) for name, key in keys.items()} | {"sendgrid": _key_pair()}


def _key_pair() -> tuple[str, str]:
    """A new ECDSA key pair in SendGrid's formats: the private key in PEM, the public key in base64."""
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
