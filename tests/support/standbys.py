"""A standby of a private PostgreSQL cluster, which replicates through a proxy that a test can stall."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.proxy import Proxy, proxied
from tests.support.servers import Postgres, run_sql

NAME = "standby_1"


class Standby:
    """A replica of `primary`. While `link` is stalled, it receives nothing."""

    def __init__(self, primary: Postgres, link: Proxy, folder: Path) -> None:
        self.primary = primary
        self.link = link
        follow = f"host=127.0.0.1 port={link.port} user={primary.user} application_name={NAME} sslmode=disable"
        self.server = Postgres(folder / "cluster", primary_conninfo=follow, wal_retrieve_retry_interval="100ms")

    def copy_and_start(self) -> None:
        self.server.folder.mkdir()
        if self.server._as:
            shutil.chown(self.server.folder, self.server._owner())
        copy: list[str | Path] = [self.primary.binaries / "pg_basebackup", "-h", "127.0.0.1", "-U", self.primary.user]
        copy += ["-p", str(self.primary.port), "-D", self.server.folder / "data", "-X", "stream", "-c", "fast"]
        subprocess.run(copy, check=True, cwd="/", **self.server._as)
        (self.server.folder / "data" / "standby.signal").touch()
        self.server.start()

    async def make_synchronous(self) -> None:
        """Make commits of the primary wait for this standby."""
        self.primary.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
        self.primary.sql("SELECT pg_reload_conf()")
        await self.until_replicating("sync")

    async def until_replicating(self, state: str) -> None:
        """Wait until the primary lists it as `sync` or `async`."""
        streaming = f"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '{state}'"
        async with asyncio.timeout(30):
            while await asyncio.to_thread(run_sql, self.primary.url("postgres"), streaming) != [(1,)]:
                await asyncio.sleep(0.05)

    def has_received_all(self) -> bool:
        """Whether it has replayed every commit of the primary."""
        return self.server.sql("SELECT pg_last_wal_replay_lsn()") == self.primary.sql("SELECT pg_current_wal_lsn()")

    def promote(self) -> None:
        """Make it the primary. It has only what it has received."""
        assert self.server.sql("SELECT pg_promote()") == "t"


@asynccontextmanager
async def following(primary: Postgres) -> AsyncIterator[Standby]:
    """A standby for the length of a block, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="oncehook-standby-"))
    folder.chmod(0o755)
    async with proxied(primary.url("postgres")) as (link, _):
        standby = Standby(primary, link, folder)
        try:
            await asyncio.to_thread(standby.copy_and_start)
            await standby.until_replicating("async")
            yield standby
        finally:
            link.flow()
            await asyncio.to_thread(standby.server.stop, kill=True)
            shutil.rmtree(folder, ignore_errors=True)
