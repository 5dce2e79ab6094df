"""The decorators of an inbox."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncehook import ConfigurationError, Effect, Event, Retry
from oncehook.effects.effect import EffectRegistry
from oncehook.handlers.canonical import CanonicalFetchers
from oncehook.handlers.registration import Registration, identity_of, seconds
from oncehook.handlers.registry import DEFAULT_TIMEOUT, Handlers


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def effects() -> EffectRegistry:
    return EffectRegistry()


@pytest.fixture
def inbox(handlers: Handlers, effects: EffectRegistry) -> Registration:
    return Registration(handlers, effects, CanonicalFetchers())


async def handle(event: Event) -> None: ...


def test_decorator_returns_the_function_unchanged(inbox: Registration, handlers: Handlers) -> None:
    function: Callable[[Event], Awaitable[None]] = inbox.on("stripe", "invoice.*")(handle)
    assert function is handle
    (handler,) = handlers
    assert (handler.source, handler.pattern, handler.function) == ("stripe", "invoice.*", handle)


def test_retry_and_timeout_that_are_not_set_are_those_of_the_source(inbox: Registration, handlers: Handlers) -> None:
    inbox.on("stripe", "invoice.*")(handle)
    inbox.on("stripe", "charge.*", retry=Retry(attempts=2), timeout="7s")(handle)
    charge, invoice = sorted(handlers, key=lambda handler: handler.pattern)
    assert invoice.defaulted == {"retry", "timeout"} and charge.defaulted == frozenset()
    assert (invoice.timeout, charge.timeout, charge.retry.attempts) == (DEFAULT_TIMEOUT, 7.0, 2)


def test_effect_is_known_by_its_own_name_or_by_the_name_that_is_passed(
    inbox: Registration, effects: EffectRegistry
) -> None:
    @inbox.effect
    def send(effect: Effect) -> None: ...

    @inbox.effect(name="mail")
    def other(effect: Effect) -> None: ...

    assert [(target.kind, target.name) for target in effects] == [("function", "send"), ("function", "mail")]


def test_effect_without_a_name_is_an_error(inbox: Registration) -> None:
    class Mailer:
        def __call__(self, effect: Effect) -> None: ...

    with pytest.raises(ConfigurationError, match=r"pass name=… to @inbox\.effect"):
        inbox.effect(Mailer())


def test_subscriber_without_a_topic_is_an_error(inbox: Registration) -> None:
    with pytest.raises(ConfigurationError, match="needs a topic"):
        inbox.subscribe(handle)  # type: ignore[arg-type]


def test_second_fetcher_of_a_source_is_an_error(inbox: Registration) -> None:
    inbox.canonical("stripe", lambda event: None)
    with pytest.raises(ConfigurationError, match="source 'stripe' has two canonical fetchers"):
        inbox.canonical("stripe", lambda event: None)


@pytest.mark.parametrize(
    ("once_per", "names"),
    [(None, ()), ("object_id", ("object_id",)), (["type", "data.id"], ("type", "data.id"))],
)
def test_identity_is_one_name_or_several(once_per: Any, names: tuple[str, ...]) -> None:
    assert identity_of(once_per) == names


@pytest.mark.parametrize("once_per", [[], (), 5])
def test_identity_without_a_name_is_an_error(once_per: Any) -> None:
    with pytest.raises(ConfigurationError, match="names no fact of the event"):
        identity_of(once_per)


def test_timeout_is_a_duration_or_the_default() -> None:
    assert (seconds("2m", 5.0), seconds(None, 5.0)) == (120.0, 5.0)
    with pytest.raises(ConfigurationError, match="timeout='soon': expected a duration"):
        seconds("soon", 5.0)
