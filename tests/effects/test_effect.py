"""Effects: their registry, their arguments and their idempotency keys."""

import datetime
import json
from typing import Any

import msgspec
import pytest

from oncehook import ConfigurationError, Effect, EffectRefused, Retry
from oncehook.effects.effect import (
    FUNCTION,
    HTTP,
    MAX_ARGUMENT_BYTES,
    EffectRegistry,
    RegisteredEffect,
    encode,
    idempotency_key,
)
from oncehook.model.effect import LeasedEffect
from tests.support.registration import make_registration


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (datetime.datetime.now(), r"arguments\.at is a datetime"),
        ({"a": [1, {2}]}, r"arguments\.at\.a\[1\] is a set"),
        (float("nan"), "is nan"),
        ((1, 2), "is a tuple"),
        (b"bytes", "is a bytes"),
        ({1: 2}, "has a key of type int"),
        ("x" * MAX_ARGUMENT_BYTES, "the limit is"),
        ([10**5000], "cannot be written as JSON"),
    ],
)
def test_arguments_that_are_not_plain_data_are_rejected(value: Any, message: str) -> None:
    with pytest.raises(EffectRefused, match=message):
        encode({"at": value})


def test_plain_arguments_survive_encoding_unchanged() -> None:
    args = {"a": [1, 2.5, None, True, "x\x00\ud800é"], "b": {"c": 10**40, "d": -1}}
    assert json.loads(encode(args)) == args


def test_an_effect_name_is_registered_once_and_its_function_takes_the_effect() -> None:
    inbox = make_registration()

    @inbox.effect
    async def send(effect: Effect) -> None: ...

    with pytest.raises(ConfigurationError, match="two functions are registered"):
        inbox.effect(name="send")(lambda effect: None)
    with pytest.raises(ConfigurationError, match="must take the effect as its first argument"):
        register: Any = inbox.effect(name="other")
        register(lambda: None)


def test_a_subscriber_that_cannot_receive_messages_is_rejected_at_registration() -> None:
    inbox: Any = make_registration()
    for wrong in (lambda payload: None, lambda effect, message: None, lambda effect, payload, more: None):
        with pytest.raises(ConfigurationError, match=r"def f\(effect, payload\)"):
            inbox.subscribe("invoices")(wrong)
    with pytest.raises(ConfigurationError, match="needs a topic"):
        inbox.subscribe(lambda effect, payload: None)  # without the brackets
    inbox.subscribe("invoices")(lambda effect, payload, more=None: None)
    inbox.subscribe("others")(lambda *args, **kwargs: None)


def registered(kind: str = FUNCTION, name: str | None = "send", function: Any = None) -> RegisteredEffect:
    return RegisteredEffect(kind, name, function or (lambda effect, to: None), Retry(), 30.0)


def test_an_idempotency_key_is_stable_and_differs_for_other_parts() -> None:
    key = idempotency_key("effect", "stripe", "mail:1")
    assert key == idempotency_key("effect", "stripe", "mail:1") and len(key) == 40
    others = {idempotency_key("effect", "stripe", "mail:2"), idempotency_key("effect", "stripemail", ":1")}
    assert key not in others and len(others) == 2, "parts must not run together"


def test_an_effect_has_the_same_idempotency_key_in_every_attempt() -> None:
    leased = LeasedEffect(
        id=1,
        lease=1,
        attempt=1,
        kind=FUNCTION,
        target="send",
        scope="stripe",
        key="mail:1",
        args="{}",
        source="stripe",
        receipt=7,
        replays=0,
    )
    again = msgspec.structs.replace(leased, lease=2, attempt=2)
    first, second = Effect.of(leased), Effect.of(again)
    assert first.idempotency_key == second.idempotency_key
    assert (second.attempt, second.receipt, second.key) == (2, 7, "mail:1")


def test_a_kind_without_a_name_matches_every_name_of_the_kind() -> None:
    registry, http = EffectRegistry(), registered(HTTP, None)
    registry.add(http)
    assert registry.find(HTTP, "https://a.example/hook") is http
    assert registry.find(FUNCTION, "send") is None


def test_a_handler_names_its_target_by_function_name_or_address() -> None:
    def send(effect: Effect, to: str) -> None: ...

    registry = EffectRegistry()
    registry.add(registered(function=send))
    registry.add(registered(HTTP, None, lambda effect, **args: None))
    assert registry.resolve(send, {"to": "jane"}) == (FUNCTION, "send")
    assert registry.resolve("send", {"to": "jane"}) == (FUNCTION, "send")
    assert registry.resolve("https://a.example/hook", {"any": 1}) == (HTTP, "https://a.example/hook")
    assert registry.resolve("of_another_process", {}) == (FUNCTION, "of_another_process")


def test_a_target_that_cannot_run_is_rejected_with_the_reason() -> None:
    registry = EffectRegistry()
    registry.add(registered())
    for target, args, reason in (
        (lambda effect: None, {}, "is not registered"),
        ("send", {"whom": "jane"}, "cannot be called with these arguments"),
        ("https://a.example/?token=secret", {}, "HTTP effects are not set up here"),
        ("", {}, "is not the target of an effect"),
    ):
        with pytest.raises(EffectRefused, match=reason) as rejected:
            registry.resolve(target, args)
        assert "secret" not in str(rejected.value)
