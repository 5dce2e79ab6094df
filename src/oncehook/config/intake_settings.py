"""The settings of a source's intake, and how they depend on each other."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehook.config.setting import setting
from oncehook.model.errors import ConfigurationError
from oncehook.model.values import broker_address, one_of

if TYPE_CHECKING:
    from oncehook.config.settings import SourceSettings


@dataclass(frozen=True, kw_only=True)
class IntakeSettings:
    """The keys under `[sources.NAME]` that begin with `intake`."""

    intake: str | None = setting(
        None,
        broker_address,
        "The queue of a broker in which its events wait until they are claimed: `sqs:QUEUE_URL`, `nats:…` or "
        "`kafka:…`. See [intake](intake.md).",
    )
    intake_format: str = setting(
        "oncehook",
        one_of("oncehook", "http", "sns", "eventbridge"),
        "Who fills that queue. `oncehook`: the receiver, with deliveries that it verified. Otherwise others do: `http` "
        "is a body with its headers, `sns` a notification of SNS around one, `eventbridge` an event of EventBridge.",
    )
    intake_trust: str | None = setting(
        None,
        one_of("queue", "topic"),
        "`queue` accepts every message of that queue without a signature or seal, so it trusts every program that may "
        "write to the queue. `topic` accepts what SNS signed for one of the `topics`. Absent: each is verified.",
    )


def check_intake(settings: "SourceSettings", where: str, *, has_tenants: bool) -> None:
    """Raise ConfigurationError for settings of an intake that cannot work together."""
    if settings.intake is None:
        if settings.intake_format != "oncehook" or settings.intake_trust is not None:
            raise ConfigurationError(f"{where}: intake_format and intake_trust need intake, the address of a queue")
        return
    if settings.mode == "inline":
        raise ConfigurationError(
            f'{where}: intake and mode = "inline" contradict each other, because an inline handler runs before the '
            f"ack, and a queue is read after it. Remove one of them"
        )
    if settings.intake_trust == "topic" and not (settings.intake_format == "sns" and settings.topics):
        raise ConfigurationError(f'{where}: intake_trust = "topic" needs intake_format = "sns" and topics')
    if settings.intake_format == "eventbridge" and settings.intake_trust is None:
        raise ConfigurationError(
            f"{where}: events of EventBridge have no signature: IAM decides who may put them into the queue. Set "
            f'intake_trust = "queue" if only EventBridge may send to it'
        )
    if has_tenants and settings.intake_trust is not None and settings.intake_format != "oncehook":
        raise ConfigurationError(
            f"{where} has tenants and intake_trust: a message could name any tenant. Remove intake_trust, "
            f"or use one source for each queue"
        )


def is_published(settings: "SourceSettings") -> bool:
    """Whether the receiver publishes the deliveries of a source to its queue."""
    return settings.intake is not None and settings.intake_format == "oncehook"


def is_queue_only(settings: "SourceSettings") -> bool:
    """Whether a source has no address: others fill its queue, and it has no secret to verify a delivery with."""
    is_foreign = settings.intake is not None and settings.intake_format != "oncehook"
    return is_foreign and settings.intake_trust is not None and not settings.secrets
