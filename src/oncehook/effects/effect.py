"""Effects: what is to be done outside the database, once per key, after the commit.

A handler asks for one, and a row with a unique key is written in its transaction, so the effect is recorded exactly
when the handler's work is. `relay` performs it afterwards: at least once, always with the same idempotency key. Whoever
asks for a key that is recorded already, be it another event, a retry or a replay, gets False, and nothing more happens.
"""

import hashlib
import inspect
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from oncehook.concurrency import calling
from oncehook.concurrency.calling import Function
from oncehook.concurrency.calling import name_of as told
from oncehook.model.effect import LeasedEffect, StoredEffect
from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.model.retry import Retry
from oncehook.providers.expressions import is_storable

EFFECT_TIMEOUT = 30.0
MOST_BYTES = 256 * 1024
"""The most that an effect's arguments may be, as JSON."""

MOST_DEPTH = 32
FUNCTION, TOPIC, HTTP = "function", "topic", "http"


class EffectRefused(OncehookError):
    """An effect was asked for in a way that cannot be recorded; the message says what to change."""


def idempotency_key(*parts: str) -> str:
    """A short opaque text that is the same for the same parts, for ever, and another for any others."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def effect_json(row: StoredEffect) -> dict[str, Any]:
    """An effect as the outside knows it: the same keys wherever one is printed."""
    args = None if row.args is None else json.loads(row.args)
    return {**row.as_json(), "args": args, "idempotency_key": idempotency_key("effect", row.scope, row.key)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an effect's function gets as its first argument."""

    id: int
    key: str
    idempotency_key: str  # give it to whoever is called: a repeated call has the same one
    target: str
    source: str
    receipt: int  # of the event that asked first
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
class Target:
    """Who performs effects of a kind: of one name, or of every name where `name` is None."""

    kind: str
    name: str | None
    function: Function
    retry: Retry
    timeout: float

    def __post_init__(self) -> None:
        calling.check(self.function, told(self.function), self.retry, self.timeout)


class Effects:
    """The targets that this process can perform, by kind and name.

    An effect of another name is left for a process that has it. A kind whose names cannot be listed, such as addresses,
    is one target without a name.
    """

    def __init__(self) -> None:
        self._targets: dict[tuple[str, str | None], Target] = {}

    def add(self, target: Target) -> None:
        known = self._targets.get((target.kind, target.name))
        if known is not None:
            raise ConfigurationError(
                f"two functions are registered for the {target.kind} {target.name!r}: {told(known.function)} and "
                f"{told(target.function)}; name one of them otherwise"
            )
        if target.kind == FUNCTION and not takes_effect(target.function):
            raise ConfigurationError(
                f"{told(target.function)} must take the effect as its first argument: "
                f"def {target.name}(effect, …), with the key to pass on in effect.idempotency_key"
            )
        if target.kind == TOPIC and not takes_message(target.function):
            raise ConfigurationError(
                f"{told(target.function)} cannot take the messages of {target.name!r}: "
                "def f(effect, payload), with these names and no more that must be given"
            )
        self._targets[target.kind, target.name] = target

    def find(self, kind: str, name: str) -> Target | None:
        return self._targets.get((kind, name)) or self._targets.get((kind, None))

    def resolve(self, what: Function | str, args: dict[str, Any]) -> tuple[str, str]:
        """(kind, name) of what a handler names: a registered function, its name, or an address."""
        if isinstance(what, str):
            if not what or not is_storable(what):
                raise EffectRefused(
                    f"an effect is asked of {what!r}: give a function under @inbox.effect, its name, or an address"
                )
            kind = HTTP if "://" in what else FUNCTION
            found = self.find(kind, what)
            if found is None and kind == HTTP:
                raise EffectRefused(f"an effect cannot go to {what.partition('?')[0]}: no HTTP target is set up here")
            name = what
        else:
            found = next((t for t in self if t.kind == FUNCTION and t.function is what), None)
            if found is None:
                raise EffectRefused(
                    f"{told(what)} is not registered: put @inbox.effect over it, so that it can be found by its name "
                    f"after the commit, in any process"
                )
            kind, name = FUNCTION, str(found.name)
        if found is not None and kind == FUNCTION:
            _check_arguments(found, args)
        return kind, name

    def __iter__(self) -> Iterator[Target]:
        return iter(self._targets.values())


def takes_effect(function: Function) -> bool:
    """Whether it has a positional parameter."""
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(parameter.kind in kinds for parameter in inspect.signature(function).parameters.values())


def takes_message(function: Function) -> bool:
    """Whether it can be called as a topic's subscriber is."""
    try:
        inspect.signature(function).bind(None, payload=None)
    except TypeError:
        return False
    return True


def _check_arguments(target: Target, args: dict[str, Any]) -> None:
    """Refuse at the call what would fail only after the commit, again and again."""
    try:
        inspect.signature(target.function).bind(None, **args)
    except TypeError as error:
        raise EffectRefused(f"{target.name} cannot be called with these arguments: {error}") from None


def encode(args: Any, name: str = "arguments") -> str:
    """Plain data as JSON, or EffectRefused with where it is not plain."""
    _check_plain(args, name, 0)
    try:
        text = json.dumps(args, separators=(",", ":"))
    except ValueError as error:  # Python writes no number of thousands of digits
        raise EffectRefused(f"the {name} cannot be written as JSON: {error}") from None
    if len(text) > MOST_BYTES:
        raise EffectRefused(
            f"the {name} are {len(text):,} bytes of JSON, and {MOST_BYTES:,} is the most: record the data in a table "
            f"of yours, and give the effect its id"
        )
    return text


def _check_plain(value: Any, where: str, depth: int) -> None:
    refused = partial(_refuse, where)
    if depth > MOST_DEPTH:
        raise refused("is nested too deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise refused(f"is {value}, which JSON cannot hold")
    if type(value) is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise refused(f"has a key that is a {type(key).__name__} and not a text")
            _check_plain(inner, f"{where}.{key}", depth + 1)
    elif type(value) is list:
        for number, inner in enumerate(value):
            _check_plain(inner, f"{where}[{number}]", depth + 1)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise refused(f"is a {type(value).__name__}")


def _refuse(where: str, what: str) -> EffectRefused:
    return EffectRefused(
        f"{where} {what}: another process may perform the effect, so it is given plain data only "
        f"(texts, numbers, true and false, None, lists and dicts of them)"
    )
