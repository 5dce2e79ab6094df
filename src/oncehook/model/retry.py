"""When an attempt failed: again, and when, or never. Pure: a policy and a failure in, a decision out."""

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.model.values import Duration, Parse, duration, positive, ratio, whole_number

Uniform = Callable[[float, float], float]


class RetryLater(OncehookError):
    """Raised by a handler: not now, try again after so long. It counts as an attempt."""

    def __init__(self, reason: str = "the handler asked to be called later", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else duration(after)


class Fail(OncehookError):
    """Raised by a handler: this event will never work. It becomes a dead letter at once."""

    def __init__(self, reason: str = "the handler gave up on this event") -> None:
        super().__init__(reason)


class Postpone(OncehookError):
    """What the event needs is not to be had now, and not for anything of its own: it goes back, and no attempt is used.

    Where the provider's own redeliveries are the attempts, there is no going back, and it is a failure like any other.
    """

    def __init__(self, reason: str, *, after: float) -> None:
        super().__init__(reason)
        self.after = after


class Crashed(Exception):
    """The process that held a lease is gone, or what it called hung."""


@dataclass(frozen=True, slots=True)
class ScheduleRetry:
    """Try again after so many seconds."""

    after: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Give up: the receipt is a dead letter."""


Decision = ScheduleRetry | GiveUp


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a handler is tried, and how long apart: exponential, with full jitter, so that no herd forms."""

    attempts: int = 10
    first: float = 5.0
    factor: float = 2.0
    most: float = 3600.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first < 0 or self.factor < 1 or self.most < self.first:
            raise ConfigurationError(
                f"{self} cannot be followed: attempts ≥ 1, first ≥ 0, factor ≥ 1 and most ≥ first are needed"
            )

    def ceiling(self, attempt: int) -> float:
        """The longest pause after attempt number `attempt` (from 1)."""
        return min(self.most, self.first * self.factor ** min(attempt - 1, 64))


_FIELDS: Mapping[str, Parse] = {
    "attempts": positive(whole_number),
    "first": duration,
    "factor": ratio,
    "most": duration,
}


def retry_fields(value: Any) -> dict[str, Any]:
    """The fields of a policy that a source's `retry` names, out of a table or a `Retry`."""
    if isinstance(value, Retry):
        return asdict(value)
    if not isinstance(value, Mapping) or not value:
        raise ValueError('expected a table such as { attempts = 5, first = "2s", factor = 2, most = "10m" }')
    for name in value:
        if name not in _FIELDS:
            raise ValueError(f"{name} is not part of it: known are {', '.join(_FIELDS)}")
    fields = {}
    for name, given in value.items():
        try:
            fields[name] = _FIELDS[name](given)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return fields


def with_fields(base: Retry, fields: Mapping[str, Any], where: str) -> Retry:
    """`base` with some fields replaced. Raises ConfigurationError if that makes no policy."""
    try:
        return replace(base, **fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def decide(policy: Retry, attempt: int, error: BaseException, uniform: Uniform = random.uniform) -> Decision:
    """What follows on the failure of attempt number `attempt` (from 1)."""
    if isinstance(error, Fail) or attempt >= policy.attempts:
        return GiveUp()
    if isinstance(error, RetryLater) and error.after is not None:
        return ScheduleRetry(error.after + uniform(0, error.after / 10))  # asked for: never sooner
    return ScheduleRetry(uniform(0, policy.ceiling(attempt)))
