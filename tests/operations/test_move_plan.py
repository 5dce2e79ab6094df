"""Where a move begins or continues."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.operations.move_plan import MoveRefused, Plan, plan_move
from tests.support.servers import Postgres, run_sql
from tests.support.shards import ShardDatabases, federation_of, shard_databases, stripe_sources

pytestmark = pytest.mark.anyio


@pytest.fixture
def databases(postgres: Postgres, tmp_path: Path) -> Iterator[ShardDatabases]:
    with shard_databases(postgres, tmp_path, "a", "b") as made:
        yield made


async def test_plan_follows_from_the_recorded_phases(databases: ShardDatabases) -> None:
    configuration = databases.configuration(sources=stripe_sources("one"))
    inbox = Inbox(config=configuration, worker=False)

    async def plan(to: str | None, source: str = "one") -> Plan:
        federation = federation_of(inbox)
        return await plan_move(federation.members, federation.routes, source, to)

    def record(shard: str, phase: str) -> None:
        run_sql(databases.addresses[shard], "DELETE FROM webhook_moves")
        columns = "source, phase, from_shard, to_shard, actor"
        values = f"('one', '{phase}', 'main', 'a', 'jane')"
        run_sql(databases.addresses[shard], f"INSERT INTO webhook_moves ({columns}) VALUES {values}")

    async with inbox.lifespan():
        assert await plan("a") == Plan("main", "a", None, 1)
        for to, message in (("c", "there is no shard c"), (None, "is not being moved"), ("main", "already")):
            with pytest.raises(MoveRefused, match=message):
                await plan(to)
        record("a", "arriving")
        assert await plan(None) == Plan("main", "a", None, 1)  # killed before it began in the old shard
        for phase in ("copying", "draining", "frozen", "left"):
            record("main", phase)
            assert await plan(None) == await plan("a") == Plan("main", "a", phase, 1)
            with pytest.raises(MoveRefused, match="is being moved to a"):
                await plan("b")
        record("a", "here")  # killed before the route was recorded
        assert await plan("a") == Plan("main", "a", "left", 1)


async def test_source_whose_tenants_are_spread_cannot_be_moved(databases: ShardDatabases) -> None:
    tenants = stripe_sources("one", extra="tenants = true")
    spread = 'tenants = ["one"]'
    keys = "keys = ['k1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=']"
    configuration = databases.configuration(top=keys, sources=tenants, a=spread, b=spread)
    inbox = Inbox(config=configuration, worker=False)
    federation = federation_of(inbox)
    async with inbox.lifespan():
        with pytest.raises(MoveRefused, match="are spread over a, b"):
            await plan_move(federation.members, federation.routes, "one", "a")
