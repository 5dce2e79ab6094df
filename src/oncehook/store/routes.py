"""Routes: the shard of each source and tenant. `main` records it when a source is new, and when it is moved."""

from collections.abc import Mapping

from oncehook.config.shard_settings import MAIN_SHARD, ShardSettings, configured_shard, shard_of_tenant, spread_over
from oncehook.model.errors import ConfigurationError
from oncehook.store.shards import ShardStore


class Routes:
    """The shard of each source. A recorded route wins over the configuration."""

    def __init__(self, shards: Mapping[str, ShardSettings]) -> None:
        self.shards = shards
        self.names = (MAIN_SHARD, *shards)
        self.moved: dict[str, str] = {}
        self._found: dict[str, tuple[str, ...]] = {}

    def shard_of(self, source: str, tenant: str = "") -> str:
        """Return the shard of a source, or of one tenant of a source whose tenants are spread."""
        names = self._found.get(source)
        if names is None:
            names = self._found[source] = self.shards_of(source)
        return names[0] if len(names) == 1 else shard_of_tenant(names, source, tenant)

    def shards_of(self, source: str) -> tuple[str, ...]:
        """Return all shards that have events of a source: one, unless its tenants are spread."""
        moved = self.moved.get(source)
        return self.configured(source) if moved is None else (moved,)

    def configured(self, source: str) -> tuple[str, ...]:
        """Return the shards of a source by the configuration alone, which applies to new sources."""
        return spread_over(self.shards, source) or (configured_shard(self.shards, source),)

    def lives_in(self, source: str, shard: str) -> bool:
        """Whether the events of a source, or of some of its tenants, are in a shard."""
        return shard in self.shards_of(source)

    async def load(self, main: ShardStore) -> None:
        """Read the recorded routes. Raises ConfigurationError if the configuration contradicts them."""
        moved = await main.routes()
        for source, route in moved.items():
            spread = spread_over(self.shards, source)
            recorded = tuple(route.shard.split(","))
            if (spread or len(recorded) > 1) and recorded != spread:
                raise ConfigurationError(_contradiction(source, recorded, spread))
            if len(recorded) == 1 and recorded[0] not in self.names:
                raise ConfigurationError(
                    f"the source {source} was moved to the shard {recorded[0]}, which the configuration does not have: "
                    f"add [shards.{recorded[0]}]"
                )
        self.moved = {source: route.shard for source, route in moved.items() if "," not in route.shard}
        self._found.clear()


def _contradiction(source: str, recorded: tuple[str, ...], spread: tuple[str, ...]) -> str:
    before = f"the shards {', '.join(recorded)}" if len(recorded) > 1 else f"the shard {recorded[0]}"
    now = f"the shards {', '.join(spread)}" if spread else "one shard"
    return (
        f"the events of {source} are in {before}, and the configuration says {now} (shards.NAME.tenants). The shards "
        f"of a source whose tenants are spread cannot be changed: write them as before"
    )
