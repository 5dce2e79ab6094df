"""The step that publishes a delivery to the queue of its source, instead of claiming its events now."""

from typing import Protocol

from oncehook.model.delivery import Delivery
from oncehook.providers.source import Source


class PublishStep(Protocol):
    """Publishes verified deliveries of sources with an intake. `oncehook.intake` implements it."""

    def prepare(self, delivery: Delivery) -> None:
        """Give a delivery its id, before its events are read."""

    async def publish(self, source: Source, delivery: Delivery, verified_by: int) -> bool:
        """Publish a delivery durably. Returns False if it must be claimed directly. Raises Unavailable."""
