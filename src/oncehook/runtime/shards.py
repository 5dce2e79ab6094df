"""Shards: several databases behind one inbox, each with its own claims, workers, relay, pruning and alerts.

Each shard besides `main` is a `Runtime` that shares the sources, handlers and effects of the main one. The receiver of
the main runtime claims an event in the shard of its source. If a shard is down, only its sources get 503, and this
process connects to it again in the background.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from oncehook.concurrency.clock import Clock
from oncehook.config.shard_settings import MAIN_SHARD, check_shards, database_of
from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import ConfigurationError, SourceMoved, StoreUnavailable, Unavailable
from oncehook.observability import signals
from oncehook.providers.source import Source
from oncehook.receiver.ack import Response
from oncehook.receiver.claim import ClaimStep, Waiter, new_waiter
from oncehook.receiver.inline import InlineReceiver
from oncehook.store.federation import FederatedStore
from oncehook.store.routes import Routes
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

CONNECT_EVERY = 5.0
"""Seconds between two attempts to connect to a shard that is down."""

MOVING = "the source is being moved to another shard"
MOVING_SECONDS = 0.2
"""Seconds for which a source that is being moved gets 503 without another claim."""


class ShardClaims:
    """Implements `ClaimStep`: claims events in the shard of their source."""

    def __init__(
        self,
        routes: Routes,
        steps: Mapping[str, Callable[[], ClaimStep]],
        refresh: Callable[[], Coroutine[Any, Any, None]],
        clock: Clock,
    ) -> None:
        self.routes = routes
        self.steps = steps
        self.clock = clock
        self._refresh = refresh
        self._moving: dict[str, float] = {}  # by source: until when it gets 503
        self._reading: asyncio.Task[None] | None = None

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Claim events in their shards. Those of one delivery have the same source and tenant.

        If the source does not live in its shard any more, read the routes again, and claim in the new shard.
        """
        if not claims:
            return []
        if len(claims) > 1 and len({(claim.source, claim.tenant) for claim in claims}) > 1:
            return [outcome for claim in claims for outcome in await self.claim([claim])]  # a batch of a broker
        source, tenant = claims[0].source, claims[0].tenant
        until = self._moving.get(source)
        if until is not None:
            if self.clock.monotonic() < until:
                raise StoreUnavailable(MOVING, retry_after=1)
            del self._moving[source]
        shard = self.routes.shard_of(source, tenant)
        try:
            return await self.steps[shard]().claim(claims)
        except SourceMoved:
            await self._read_routes()
            if self.routes.shard_of(source, tenant) == shard:
                self._moving[source] = self.clock.monotonic() + MOVING_SECONDS
                raise StoreUnavailable(MOVING, retry_after=1) from None  # not RowRefused: a later claim succeeds
        try:
            return await self.steps[self.routes.shard_of(source, tenant)]().claim(claims)
        except SourceMoved:
            raise StoreUnavailable(MOVING, retry_after=1) from None

    async def _read_routes(self) -> None:
        """Read the routes in a task that concurrent claims share: the caller may run without a task itself.

        If `main` does not respond, the known routes stay.
        """
        loop = asyncio.get_running_loop()
        if self._reading is None or self._reading.done():
            self._reading = loop.create_task(self._refresh())
        waiter: Waiter[bool] = new_waiter(loop)
        self._reading.add_done_callback(partial(_resume, waiter))
        await waiter


def _resume(waiter: Waiter[bool], task: asyncio.Task[None]) -> None:
    if not waiter.done():
        waiter.set_result(task.cancelled() or task.exception() is None)


class ShardInline(InlineReceiver):
    """Receives the deliveries of inline sources in the shard of their source."""

    def __init__(self, shards: "Shards", own: InlineReceiver) -> None:
        super().__init__(own.store, own.claimer, own.processor, own.roster, own.lease_seconds)
        self._shards = shards
        self._own = own

    async def receive(self, source: Source, claims: Sequence[Claim], *, batch: bool) -> Response:
        tenant = claims[0].tenant if claims else ""
        shard = self._shards.routes.shard_of(source.name, tenant)
        inline = self._own if shard == MAIN_SHARD else self._shards.children[shard].reception.receiver.inline
        if inline is None:
            raise StoreUnavailable(f"the shard {shard} is not available")
        try:
            return await inline.receive(source, claims, batch=batch)
        except SourceMoved:
            with suppress(Unavailable):
                await self._shards.refresh()
            raise StoreUnavailable(MOVING, retry_after=1) from None

    async def stop(self, grace: float) -> None:
        """Stop the work of all shards at the same time: they share the grace period."""
        children = [child.stop_work() for child in self._shards.children.values()]
        await asyncio.gather(self._own.stop(grace), *children)


class Shards:
    """The shards of an inbox besides `main`. A part of the running inbox."""

    def __init__(self, runtime: "Runtime") -> None:
        from oncehook.runtime import Runtime

        settings, shards = runtime.settings, runtime.configuration.shards
        check_shards(shards, settings.database)
        self.runtime = runtime
        self.routes = Routes(shards)
        self.children: dict[str, Runtime] = {
            name: Runtime(
                replace(runtime.configuration, shards={}),
                replace(settings, database=database_of(name, shard)),
                worker=runtime.has_worker,
                clock=runtime.clock,
                certificates=runtime.certificates,
                engine=None,
                parent=runtime,
            )
            for name, shard in shards.items()
        }
        self._down: dict[str, str] = {}  # by shard: why it has not started
        self._started: set[str] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._own: ClaimStep | None = None  # the claims of `main`
        runtime.settings_watch.add(self._read_routes)

    @property
    def stores(self) -> dict[str, Store]:
        """The stores of all shards, `main` first."""
        return {MAIN_SHARD: self.runtime.store} | {name: child.store for name, child in self.children.items()}

    @cached_property
    def federation(self) -> FederatedStore:
        """One store over all shards, for operators."""
        return FederatedStore(self.stores, self.routes)

    async def _read_routes(self, previous: int) -> None:
        """Read the routes after a change of the settings, and record those of sources that were added."""
        await self.refresh()
        if self._own is not None:
            await self._record_routes()

    async def refresh(self) -> None:
        """Read the routes from `main`. Raises ConfigurationError if they contradict the configuration."""
        main = self.runtime.store.shards
        assert main is not None
        await self.routes.load(main)

    # -- starting and stopping ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all shards. One that is down starts later, and its sources get 503 until then."""
        self._check()
        main = self.runtime.store.shards
        assert main is not None
        await main.become(MAIN_SHARD, 0)
        await self._record_routes(warns=True)
        receiver = self.runtime.reception.receiver
        self._own = own = receiver.claims
        steps = {name: partial(self._claims_of, name) for name in self.children}
        receiver.claims = ShardClaims(self.routes, {MAIN_SHARD: lambda: own, **steps}, self.refresh, self.runtime.clock)
        await asyncio.gather(*map(self._start, self.children))
        self._connecting = asyncio.create_task(self._keep_connecting())
        if self.runtime.has_worker:
            self.runtime.start_processor()
            assert receiver.inline is not None
            receiver.inline = ShardInline(self, receiver.inline)

    async def stop(self) -> None:
        task, self._connecting = self._connecting, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._started.clear()
        await asyncio.gather(*(child.stop() for child in self.children.values()))
        if self._own is not None:
            self.runtime.reception.receiver.claims, self._own = self._own, None

    def _check(self) -> None:
        runtime, shards = self.runtime, self.routes.shards
        if runtime.sessions is not None:
            raise ConfigurationError(
                "[shards] and engine= cannot be combined: the engine is connected to one database, and handlers run in "
                "the database of their event"
            )
        if runtime.settings.queue != "database":
            raise ConfigurationError("[shards] and queue cannot be combined: the workers of a shard query its database")
        known = {*runtime.sources, *runtime.managed_sources.rows}
        for name, shard in shards.items():
            for source in (*shard.sources, *shard.tenants):
                if source not in known and not set("*?[").intersection(source):
                    raise ConfigurationError(f"shards.{name} lists the source {source!r}, which does not exist")
        for name, source_ in runtime.sources.items():
            if spread_tenants(self.routes, name) and not source_.has_tenants:
                raise ConfigurationError(f"shards.NAME.tenants lists {name!r}, and sources.{name} has no tenants")
            if source_.settings.email and self.routes.shards_of(name) != (MAIN_SHARD,):
                raise ConfigurationError(
                    f"sources.{name}.email needs the shard {MAIN_SHARD}: suppressions apply to all sources, so they "
                    f"are in one database. Remove {name} from shards.NAME"
                )

    async def _record_routes(self, *, warns: bool = False) -> None:
        """Record where each new source lives. Later changes of the configuration do not move it.

        Raises ConfigurationError for a source that has events in `main` already, and is configured elsewhere.
        """
        main = self.runtime.store.shards
        assert main is not None
        recorded = await main.routes()
        new = self.runtime.sources.keys() - recorded.keys()
        in_main = await self.runtime.store.receipts.sources() if new else []
        for source in list(self.runtime.sources):
            names, route = self.routes.configured(source), recorded.get(source)
            if warns and route is not None and route.shard != ",".join(names):
                signals.emit("shard_differs", source=source, shard=route.shard, configured=",".join(names))
            elif route is None and names != (MAIN_SHARD,) and source in in_main:
                raise ConfigurationError(
                    f"sources.{source} has events in the shard {MAIN_SHARD}, and shards.{names[0]} lists it. Remove it "
                    f"there, start the inbox, and run `oncehook shards move {source} --to {names[0]}`"
                )
            elif route is None:
                await main.put_route(source, ",".join(names), "oncehook", number=0)
        if new:
            await self.refresh()

    async def _start(self, name: str) -> None:
        """Start one shard. If its database does not respond, note it. Raises ConfigurationError if it cannot work."""
        child, main = self.children[name], self.runtime.store.shards
        assert main is not None and child.store.shards is not None
        child.has_worker, child.is_mounted = self.runtime.has_worker, False
        child.settings = replace(
            child.settings, concurrency=self.runtime.settings.concurrency, fast_paths=self.runtime.settings.fast_paths
        )
        child.shard = name, await main.number_of(name)
        try:
            await child.start()
        except Unavailable as error:
            if name not in self._down:
                signals.emit("shard_unavailable", shard=name, detail=error.detail)
            self._down[name] = error.detail
        else:
            self._started.add(name)
            if self._down.pop(name, None) is not None:
                signals.emit("shard_available", shard=name)

    def _claims_of(self, name: str) -> ClaimStep:
        """The claims of a shard that has started. Before that, its database may not be checked yet."""
        if name not in self._started:
            raise StoreUnavailable(f"the shard {name} is not available")
        return self.children[name].reception.receiver.claims

    async def _keep_connecting(self) -> None:
        while True:
            await asyncio.sleep(CONNECT_EVERY)
            for name in list(self._down):
                try:
                    await self._start(name)
                except Exception as error:
                    signals.log_background_failure(f"shard {name}", error)

    # -- readiness ------------------------------------------------------------------------------------------------

    async def unavailable(self) -> dict[str, str]:
        """Return the shards that cannot commit an event now, each with the reason."""
        names = [name for name in self.children if name not in self._down]
        results = await asyncio.gather(
            *(self.children[name].readiness.check() for name in names), return_exceptions=True
        )
        failed = {name: str(error) for name, error in zip(names, results, strict=True) if error is not None}
        return dict(self._down) | failed


def spread_tenants(routes: Routes, source: str) -> bool:
    """Whether the tenants of a source are spread over shards."""
    return any(source in shard.tenants for shard in routes.shards.values())
