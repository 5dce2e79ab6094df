"""Whether a broker stores a message on disk before it acknowledges it. Needs no client library."""

from oncehook.brokers.address import NATS, is_broker, parse_broker
from oncehook.config.intake_settings import is_published
from oncehook.config.settings import SourceSettings


def durability_risk(settings: SourceSettings) -> str | None:
    """Why deliveries that were acked can be lost in the queue of a source. None if no such risk is known.

    A client of NATS cannot read the server's `sync_interval`. The address says whether it is `always`.
    """
    if not is_published(settings) or settings.intake is None or not is_broker(settings.intake):
        return None
    try:
        address = parse_broker(settings.intake)
    except ValueError:  # the start reports it
        return None
    if address.kind != NATS or address.options.get("sync") == "always":
        return None
    return (
        "NATS acknowledges messages before fsync, every 2 minutes by default: a power failure can lose accepted "
        "deliveries. Set sync_interval: always on the server, and add ?sync=always to the address"
    )
