"""Effects: actions outside the database, requested by a handler and run after its commit, once per key.

A request writes a row with a unique key in the handler's transaction, so the effect is recorded exactly when the
handler's work commits. The relay runs it afterwards: at least once, always with the same idempotency key. A request
with a key that is already recorded returns False and changes nothing, whether it comes from another event, a retry or
a replay.
"""

import hashlib
import inspect
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from oncehook.brokers.address import is_broker, parse_broker
from oncehook.concurrency import calling
from oncehook.concurrency.calling import Function, name_of
from oncehook.model.effect import LeasedEffect, StoredEffect
from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.model.retry import Retry
from oncehook.providers.expressions import is_storable

if TYPE_CHECKING:
    from oncehook.effects.tasks import TaskQueue

EFFECT_TIMEOUT = 30.0
MAX_ARGUMENT_BYTES = 256 * 1024
"""The largest arguments of an effect, as JSON."""

MAX_DEPTH = 32
FUNCTION, TOPIC, HTTP = "function", "topic", "http"
BROKER, BROKER_TOPIC = "broker", "broker-topic"
"""Effects at the address of a broker: one that a handler requested, and a message that it published."""

TASK = "task:"
"""Before the name of a task queue: the kind of its effects."""


class EffectRefused(OncehookError):
    """A handler requested an effect that cannot be recorded. The message says what to change."""


def idempotency_key(*parts: str) -> str:
    """A short opaque string that is always the same for the same parts, and different for others."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def effect_json(row: StoredEffect) -> dict[str, Any]:
    """An effect as JSON, with the same keys in every command, page and API response."""
    args = None if row.args is None else json.loads(row.args)
    return {**row.as_json(), "args": args, "idempotency_key": idempotency_key("effect", row.scope, row.key)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The first argument of an effect's function."""

    id: int
    key: str
    idempotency_key: str  # send it with your request: every repeated call has the same key
    target: str
    source: str
    receipt: int  # the receipt of the event that requested the effect first
    attempt: int  # 1 for the first

    @classmethod
    def of(cls, leased: LeasedEffect) -> "Effect":
        stable = idempotency_key("effect", leased.scope, leased.key)
        return cls(
            id=leased.id,
            key=leased.key,
            idempotency_key=stable,
            target=leased.target,
            source=leased.source,
            receipt=leased.receipt,
            attempt=leased.attempt,
        )


@dataclass(frozen=True, slots=True)
class RegisteredEffect:
    """The function that runs effects of one kind and name. If `name` is None, it runs every name of the kind."""

    kind: str
    name: str | None
    function: Function
    retry: Retry
    timeout: float

    def __post_init__(self) -> None:
        calling.check_function(self.function, name_of(self.function), self.retry, self.timeout)


class EffectRegistry:
    """The effects that this process can run, by kind and name.

    Effects with other names are left to processes that have their function. A kind whose names cannot be listed, such
    as HTTP addresses, is registered once without a name.
    """

    def __init__(self) -> None:
        self._registered: dict[tuple[str, str | None], RegisteredEffect] = {}
        self.task_queues: dict[str, TaskQueue] = {}  # by name

    def add(self, effect: RegisteredEffect) -> None:
        known = self._registered.get((effect.kind, effect.name))
        if known is not None:
            raise ConfigurationError(
                f"two functions are registered for the {effect.kind} {effect.name!r}: {name_of(known.function)} and "
                f"{name_of(effect.function)}; rename one of them"
            )
        if effect.kind == FUNCTION and not takes_effect(effect.function):
            raise ConfigurationError(
                f"{name_of(effect.function)} must take the effect as its first argument: "
                f"def {effect.name}(effect, …). The idempotency key to send is effect.idempotency_key"
            )
        if effect.kind == TOPIC and not takes_message(effect.function):
            raise ConfigurationError(
                f"{name_of(effect.function)} cannot receive the messages of {effect.name!r}: "
                "define it as def f(effect, payload), with no other required parameters"
            )
        self._registered[effect.kind, effect.name] = effect

    def find(self, kind: str, name: str) -> RegisteredEffect | None:
        return self._registered.get((kind, name)) or self._registered.get((kind, None))

    def resolve(self, target: Function | str, args: dict[str, Any]) -> tuple[str, str]:
        """The kind and name of the target that a handler requests: a registered function, its name, or an address."""
        if isinstance(target, str):
            if not target or not is_storable(target):
                raise EffectRefused(
                    f"{target!r} is not the target of an effect: pass a function with @inbox.effect, its name or a URL"
                )
            kind = check_broker_target(target) or (HTTP if "://" in target else FUNCTION)
            registered = self.find(kind, target)
            if registered is None and kind == HTTP:
                raise EffectRefused(
                    f"an effect cannot be sent to {target.partition('?')[0]}: HTTP effects are not set up here"
                )
            name = target
        else:
            registered = next((r for r in self if r.kind == FUNCTION and r.function is target), None)
            if registered is None:
                raise EffectRefused(
                    f"{name_of(target)} is not registered: decorate it with @inbox.effect, so that any process can "
                    f"find it by its name after the commit"
                )
            kind, name = FUNCTION, str(registered.name)
        if registered is not None and kind == FUNCTION:
            _check_arguments(registered, args)
        return kind, name

    def resolve_task(self, task: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str, str]:
        """The kind, the target and the encoded arguments of a task that a handler enqueues."""
        from oncehook.effects.tasks import find_task  # only an inbox with task queues needs it

        kind, target = find_task(self.task_queues, task, args, kwargs)
        return kind, target, encode({"args": list(args), "kwargs": kwargs}, "task")

    def __iter__(self) -> Iterator[RegisteredEffect]:
        return iter(self._registered.values())


def check_broker_target(target: str) -> str | None:
    """Return the kind of an effect at a broker's address, or None for another target.

    Raises EffectRefused for an address that cannot be recorded. The database must not contain credentials.
    """
    if not is_broker(target):
        return None
    try:
        address = parse_broker(target)
    except ValueError as error:
        raise EffectRefused(f"the effect's address is not valid: {error}") from None
    if address.has_credentials:
        raise EffectRefused(
            f"the address of {address.origin} contains credentials: write them in effect_targets, in oncehook.toml"
        )
    return BROKER


def takes_effect(function: Function) -> bool:
    """Whether the function has a positional parameter."""
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(parameter.kind in kinds for parameter in inspect.signature(function).parameters.values())


def takes_message(function: Function) -> bool:
    """Whether the function can be called as the subscriber of a topic."""
    try:
        inspect.signature(function).bind(None, payload=None)
    except TypeError:
        return False
    return True


def _check_arguments(effect: RegisteredEffect, args: dict[str, Any]) -> None:
    """Raise EffectRefused in the handler for arguments that would fail in every call after the commit."""
    try:
        inspect.signature(effect.function).bind(None, **args)
    except TypeError as error:
        raise EffectRefused(f"{effect.name} cannot be called with these arguments: {error}") from None


def encode(args: Any, name: str = "arguments") -> str:
    """Plain data as JSON. Raises EffectRefused with the path of a value that is not plain."""
    _check_plain(args, name, 0)
    try:
        text = json.dumps(args, separators=(",", ":"))
    except ValueError as error:  # Python does not convert a number with thousands of digits
        raise EffectRefused(f"the {name} cannot be written as JSON: {error}") from None
    if len(text) > MAX_ARGUMENT_BYTES:
        raise EffectRefused(
            f"the {name} are {len(text):,} bytes of JSON, and the limit is {MAX_ARGUMENT_BYTES:,}: store the data in "
            f"your own table, and pass its id to the effect"
        )
    return text


def _check_plain(value: Any, where: str, depth: int) -> None:
    not_plain = partial(_not_plain, where)
    if depth > MAX_DEPTH:
        raise not_plain("is nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise not_plain(f"is {value}, which JSON cannot hold")
    if type(value) is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise not_plain(f"has a key of type {type(key).__name__} instead of str")
            _check_plain(inner, f"{where}.{key}", depth + 1)
    elif type(value) is list:
        for number, inner in enumerate(value):
            _check_plain(inner, f"{where}[{number}]", depth + 1)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise not_plain(f"is a {type(value).__name__}")


def _not_plain(where: str, problem: str) -> EffectRefused:
    return EffectRefused(
        f"{where} {problem}: another process may run the effect, so its arguments must be plain data "
        f"(str, int, float, bool, None, and lists and dicts of them)"
    )
