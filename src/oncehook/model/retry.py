"""Retry policies: decide after a failed attempt whether and when to retry."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any

from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.model.values import Duration, Parse, duration, positive, ratio, whole_number

Uniform = Callable[[float, float], float]
_uniform: ContextVar[Uniform] = ContextVar("uniform", default=random.uniform)


@contextmanager
def longest_delays() -> Iterator[None]:
    """Let each retry wait for the longest time that its policy allows, so that a test does not depend on chance."""
    token = _uniform.set(lambda low, high: high)
    try:
        yield
    finally:
        _uniform.reset(token)


class RetryLater(OncehookError):
    """Raise this in a handler or effect to retry later. The attempt counts.

    `after`, such as "2m" or seconds, is the delay. Without it, the retry policy decides.

        raise RetryLater("the customer is not synchronized yet", after="2m")
    """

    def __init__(self, reason: str = "the handler asked to be called later", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else duration(after)


class Fail(OncehookError):
    """Raise this in a handler or effect that can never succeed. The event becomes a dead letter without a retry.

    raise Fail("no such customer")
    """

    def __init__(self, reason: str = "the handler gave up on this event") -> None:
        super().__init__(reason)


class Postpone(OncehookError):
    """Raised if an event cannot be handled now for a reason outside the event, such as no free thread.

    The worker releases the receipt, and no attempt is counted. If the handler of an inline event raises it, the attempt
    failed: the attempts of such an event are the provider's deliveries.
    """

    def __init__(self, reason: str, *, after: float) -> None:
        super().__init__(reason)
        self.after = after


class Crashed(Exception):
    """The process that held a lease died, or the function that it called hung."""


@dataclass(frozen=True, slots=True)
class ScheduleRetry:
    """Retry after `after` seconds."""

    after: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not retry: the receipt becomes a dead letter."""


Decision = ScheduleRetry | GiveUp


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy: exponential backoff with full jitter.

    The worker makes up to `attempts` attempts. The delay after attempt n is a random number of seconds between 0 and
    `first * factor ** (n - 1)`, and never more than `most`. The jitter keeps retries from arriving all at once.

        @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=5, first=2.0, most=600.0))
        async def invoice_paid(event: Event) -> None: ...
    """

    attempts: int = 10
    first: float = 5.0
    factor: float = 2.0
    most: float = 3600.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigurationError(
                    f"Retry({name}={value!r}) is not valid: {name} is a number; first and most are seconds, such as 2.0"
                )
        if self.attempts < 1 or self.first < 0 or self.factor < 1 or self.most < self.first:
            raise ConfigurationError(
                f"{self} is not a valid policy: it needs attempts ≥ 1, first ≥ 0, factor ≥ 1 and most ≥ first"
            )

    def ceiling(self, attempt: int) -> float:
        """Return the longest delay in seconds after attempt number `attempt`, which starts at 1."""
        try:
            return min(self.most, self.first * self.factor ** min(attempt - 1, 64))
        except OverflowError:
            return self.most


_FIELDS: Mapping[str, Parse] = {
    "attempts": positive(whole_number),
    "first": duration,
    "factor": ratio,
    "most": duration,
}


def retry_fields(value: Any) -> dict[str, Any]:
    """Parse a source's `retry`: return the fields that a table sets, or all fields of a `Retry`."""
    if isinstance(value, Retry):
        return asdict(value)
    if not isinstance(value, Mapping) or not value:
        raise ValueError('expected a table such as { attempts = 5, first = "2s", factor = 2, most = "10m" }')
    for name in value:
        if name not in _FIELDS:
            raise ValueError(f"{name} is not a field of it; the fields are {', '.join(_FIELDS)}")
    fields = {}
    for name, field_value in value.items():
        try:
            fields[name] = _FIELDS[name](field_value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return fields


def with_fields(base: Retry, fields: Mapping[str, Any], where: str) -> Retry:
    """Return `base` with some fields replaced. Raises ConfigurationError if the policy is not valid."""
    try:
        return replace(base, **fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def decide(policy: Retry, attempt: int, error: BaseException, uniform: Uniform | None = None) -> Decision:
    """Decide what to do after attempt number `attempt` failed with `error`. The first attempt is 1."""
    uniform = uniform or _uniform.get()
    if isinstance(error, Fail) or attempt >= policy.attempts:
        return GiveUp()
    if isinstance(error, RetryLater) and error.after is not None:
        return ScheduleRetry(error.after + uniform(0, error.after / 10))  # never earlier than requested
    return ScheduleRetry(uniform(0, policy.ceiling(attempt)))
