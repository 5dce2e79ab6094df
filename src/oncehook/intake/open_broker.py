"""Makes the broker of a source's `intake`. The client library of a broker is imported only here, when it is used."""

from oncehook.brokers.address import EXAMPLES, KAFKA, NATS, is_broker, parse_broker
from oncehook.brokers.publisher import check_broker
from oncehook.intake.broker import Broker
from oncehook.model.errors import ConfigurationError


def open_broker(intake: str, source: str) -> Broker:
    """Make the broker of a source, without connecting. Raises ConfigurationError if the address cannot be used."""
    kind, _, address = intake.partition(":")
    if kind == "sqs":
        from oncehook.intake.sqs import SqsBroker

        return SqsBroker(address, source)
    where = f"sources.{source}.intake"
    if not is_broker(intake):
        raise ConfigurationError(f"{where}: expected the address of a queue, such as {EXAMPLES[NATS]}")
    try:
        parsed = parse_broker(intake)
    except ValueError as error:
        raise ConfigurationError(f"{where} is not usable: {error}") from None
    if parsed.kind not in (NATS, KAFKA):
        raise ConfigurationError(f"{where}: {parsed.kind} cannot be an intake: use sqs, nats or kafka")
    check_broker(parsed, where)
    if parsed.kind == NATS:
        from oncehook.intake.nats import NatsBroker

        return NatsBroker(parsed, source)
    from oncehook.intake.kafka import KafkaBroker

    return KafkaBroker(parsed, source)
