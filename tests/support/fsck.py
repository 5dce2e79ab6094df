"""The check that ends every fault test: `oncehook fsck` finds no violation in its databases."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from oncehook.config.settings import Settings
from oncehook.model.errors import StoreUnavailable
from oncehook.operations.fsck import Fsck, Report
from oncehook.operations.fsck_bodies import make_fingerprints
from oncehook.store import make_store


async def run_fsck(database: str, **options: object) -> Report:
    """Check a database that no test configures: without keys and with the built-in providers."""
    store = make_store(Settings(database=database, migrate="never", unsafe_durability=True))
    await store.open()
    try:
        return await Fsck(fingerprints=make_fingerprints({}), **options).run(store)  # type: ignore[arg-type]
    finally:
        await store.close()


def violations(report: Report) -> dict[str, list[str]]:
    """The violated checks of a report, each with the details of its rows."""
    return {result.check.name: [row.detail for row in result.rows] for result in report.results if result.number}


def assert_fsck_is_clean(database: str, repeat: str = "") -> None:
    """Run every check on a database, in another thread: a test's event loop may be running."""
    with ThreadPoolExecutor(1) as thread:
        report = thread.submit(asyncio.run, run_fsck(database)).result()
    assert report.is_clean, f"fsck found violations in {database}: {violations(report)}. {repeat}"


def is_reachable(database: str) -> bool:
    """Whether the server of a database still runs: some fault tests stop it."""
    store = make_store(Settings(database=database, migrate="never", unsafe_durability=True, claim_timeout=2.0))

    async def connect() -> bool:
        try:
            await store.open()
        except StoreUnavailable:
            return False
        await store.close()
        return True

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, connect()).result()
