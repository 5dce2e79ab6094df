"""Routes: a recorded move wins over the configuration, and a configuration that contradicts it is an error."""

from typing import Any, cast

import pytest

from oncehook.config.shard_settings import ShardSettings
from oncehook.model.errors import ConfigurationError
from oncehook.store.routes import Routes
from oncehook.store.shards import Route, ShardStore

pytestmark = pytest.mark.anyio


class Recorded:
    """The routes that `main` has recorded."""

    def __init__(self, **routes: str) -> None:
        self.recorded = {source: Route(source, shard, 1) for source, shard in routes.items()}

    async def routes(self) -> dict[str, Route]:
        return self.recorded


def store(**routes: str) -> ShardStore:
    return cast(ShardStore, cast(Any, Recorded(**routes)))


SHARDS = {
    "a": ShardSettings(database="postgresql://a", sources=("one",), tenants=("app",)),
    "b": ShardSettings(database="postgresql://b", tenants=("app",)),
}


async def test_move_wins_over_the_configuration() -> None:
    routes = Routes(SHARDS)
    assert routes.shard_of("one") == "a" and routes.shard_of("two") == "main"
    await routes.load(store(one="b", two="a", app="a,b"))
    assert routes.shard_of("one") == "b" and routes.shard_of("two") == "a"
    assert routes.lives_in("one", "b") and not routes.lives_in("one", "a")
    assert routes.shards_of("app") == ("a", "b")
    assert {routes.shard_of("app", f"t{number}") for number in range(20)} == {"a", "b"}


@pytest.mark.parametrize(
    ("recorded", "message"),
    [({"one": "c"}, "add \\[shards.c\\]"), ({"app": "a,c"}, "cannot be changed"), ({"one": "a,b"}, "says one shard")],
)
async def test_configuration_that_contradicts_a_route_is_an_error(recorded: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await Routes(SHARDS).load(store(**recorded))
