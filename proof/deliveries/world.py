"""The servers and processes of a run, on PostgreSQL or on SQLite."""

import asyncio
import shutil
import struct
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from proof.deliveries.processes import APP, Slot, preload
from proof.deliveries.tables import KEYS, TABLES
from tests.faults.power import compile_library
from tests.support import programs
from tests.support.events import STRIPE_SECRET
from tests.support.proxy import Proxy, proxied
from tests.support.redis_server import RedisServer, private_redis
from tests.support.servers import PgBouncer, Postgres, migrate, private_pgbouncer, run_sql

LEASE_SECONDS = 3.0
CLAIM_SECONDS = 2.0
CONFIG = f"""
database = "{{database}}"
poll = "100ms"
lease = "{LEASE_SECONDS}s"
claim_timeout = "{CLAIM_SECONDS}s"
stop_grace = "5s"
migrate = "never"
log_level = "warning"
{{redis}}

[sources.stripe]
secrets = ["{STRIPE_SECRET}"]
"""
SETTINGS = {"deadlock_timeout": "200ms", "max_connections": "110", "max_wal_size": "256MB"}


@dataclass
class World:
    """What a run starts, and what its faults act on."""

    database: str
    folder: Path
    slots: list[Slot] = field(default_factory=list)
    postgres: Postgres | None = None
    proxy: Proxy | None = None
    bouncer: PgBouncer | None = None
    redis: RedisServer | None = None
    disk: Path | None = None
    """The file that controls the disk, if there is a C compiler."""

    clock_offset: int = 0
    """How far the clock of the servers is off. Senders sign with the same clock."""

    @property
    def is_postgres(self) -> bool:
        return self.postgres is not None

    @property
    def servers(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.is_server]

    def set_disk(self, *, full: bool = False, failing_syncs: int = 0) -> None:
        """Let the disk of the database be full, or let its next syncs fail."""
        assert self.disk is not None
        with self.disk.open("r+b") as file:
            file.write(struct.pack("<qq", full, failing_syncs))

    def read_disk(self) -> tuple[int, int]:
        """How many syncs are still to fail, and how many writes found the disk full."""
        assert self.disk is not None
        _, failing, refused = struct.unpack("<qqq", self.disk.read_bytes())
        return max(0, failing), refused

    @property
    def misdeeds(self) -> Path:
        """The file in which handlers record how they misbehave, a line each."""
        return self.folder / "misdeeds"

    def add(self, name: str, command: str, database: str, libraries: list[Path], *, with_app: bool = True) -> None:
        redis = f'redis = "{self.redis.url}"' if self.redis is not None and command == "serve" else ""
        config = self.folder / f"{name}.toml"
        config.write_text(CONFIG.format(database=database, redis=redis))
        kind = {"DELIVERIES_SQLITE": "" if self.is_postgres else "yes"}
        environment = {"DELIVERIES_CONFIG": str(config), "DELIVERIES_MISDEEDS": str(self.misdeeds), **kind}
        slot = Slot(
            name,
            self.folder,
            [command, *([APP] if with_app else []), "--config", str(config), *_port(command)],
            environment
            | preload(libraries, CLOCK_OFFSET=self.folder / f"{name}.clock", DISK_FAULT=self.folder / "disk"),
        )
        slot.set_clock(0)
        self.slots.append(slot)


def _port(command: str) -> list[str]:
    return ["--port", "0"] if command == "serve" else []


@asynccontextmanager
async def make_world(kind: str) -> AsyncIterator[World]:
    """Start the servers and processes of a run on this kind of database. They end with the block."""
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="oncehook-deliveries-"))
        folder.chmod(0o755)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        world = World("", folder)
        if programs.PROGRAMS["redis"].locate():
            world.redis = stack.enter_context(private_redis())
        if shutil.which("cc") and Path("/proc").exists():
            world.disk = folder / "disk"
            world.disk.write_bytes(bytes(24))
            world.disk.chmod(0o666)  # PostgreSQL runs under another account
        await (_add_postgres if kind == "postgres" else _add_sqlite)(world, stack)
        for statement in TABLES:
            run_sql(world.database, statement.format(key=KEYS[kind]))
        running = [asyncio.create_task(slot.run()) for slot in world.slots]
        try:
            yield world
        finally:
            for slot in world.slots:
                slot.kill()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _add_postgres(world: World, stack: AsyncExitStack) -> None:
    """Two servers and two workers. They reach the database through a proxy, through PgBouncer and directly."""
    clock = [compile_library("clock.c", world.folder)] if world.disk else []
    server = Postgres(world.folder / "cluster", **SETTINGS)
    if world.disk is not None:
        server.environment = preload([compile_library("disk.c", world.folder)], DISK_FAULT=world.disk)
    stack.callback(lambda: server.stop())
    world.postgres = server.start()
    world.database = server.database()
    migrate(world.database)
    world.proxy, through_proxy = await stack.enter_async_context(proxied(world.database))
    pooled = world.database
    if programs.PROGRAMS["pgbouncer"].locate():
        world.bouncer = stack.enter_context(private_pgbouncer(server))
        pooled = world.bouncer.url(world.database)
    world.add("serve-1", "serve", through_proxy, [])
    world.add("serve-2", "serve", pooled, [], with_app=False)
    world.add("worker-1", "worker", through_proxy, clock)
    world.add("worker-2", "worker", world.database, clock)


async def _add_sqlite(world: World, stack: AsyncExitStack) -> None:
    """Two servers and a worker on one file."""
    libraries = [compile_library(source, world.folder) for source in ("clock.c", "disk.c")] if world.disk else []
    world.database = f"sqlite:///{world.folder / 'inbox.db'}"
    await asyncio.to_thread(migrate, world.database)
    world.add("serve-1", "serve", world.database, libraries)
    world.add("serve-2", "serve", world.database, libraries, with_app=False)
    world.add("worker-1", "worker", world.database, libraries)
