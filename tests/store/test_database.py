"""Opening, closing and checking a store."""

import subprocess
import sys

import pytest

from oncehook.config.settings import Settings
from oncehook.model.claim import Duplicate
from oncehook.model.errors import StoreUnavailable
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import make_claim

pytestmark = pytest.mark.anyio


async def test_ping_succeeds_on_an_open_store(store: Store) -> None:
    await store.ping()


@pytest.mark.without_schema
@pytest.mark.parametrize("verb", ["ping", "claim", "note_duplicates", "get", "counts"])
async def test_store_that_is_not_open_raises_unavailable(database: str, verb: str) -> None:
    store = make_store(Settings(database=database))
    calls = {
        "ping": store.ping,
        "claim": lambda: store.claims.insert([make_claim()]),
        "note_duplicates": lambda: store.claims.note_duplicates([Duplicate(1, None, b"f", True)]),
        "get": lambda: store.receipts.get(1),
        "counts": store.stats.counts,
    }
    with pytest.raises(StoreUnavailable):
        await calls[verb]()
    await store.open()
    await store.ping()
    await store.close()
    await store.close()
    if verb in ("ping", "claim", "note_duplicates"):
        with pytest.raises(StoreUnavailable):
            await calls[verb]()


FORK = """
import asyncio, os, sys
from oncehook.model.errors import StoreUnavailable
from oncehook.config.settings import Settings
from oncehook.store import make_store
from tests.support.events import make_claim

async def main():
    store = make_store(Settings(database=sys.argv[1]))
    await store.open()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(store.claims.insert([make_claim()]))  # a loop does not survive a fork either
        except StoreUnavailable as error:
            os._exit(42 if "fork" in str(error) else 1)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert (await store.claims.insert([make_claim()]))[0].fresh
    await store.close()
    return os.waitstatus_to_exitcode(status)

sys.exit(asyncio.run(main()))
"""


def test_store_opened_before_a_fork_fails_in_the_child_and_works_in_the_parent(database: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, database], capture_output=True, text=True, timeout=30)
    assert done.returncode == 42, done.stderr
