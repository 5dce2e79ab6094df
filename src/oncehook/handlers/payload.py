"""Typed payloads: a parameter of a handler that is annotated with `Payload` gets that part of the event, decoded.

    async def paid(event: Event, invoice: Annotated[Invoice, Payload("data.object")], tx: AsyncSession) -> None: ...

Annotations are resolved when the handler is registered. The payload is decoded before the handler's transaction opens,
so an event that does not fit the type takes no connection.
"""

import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from oncehook.concurrency import calling
from oncehook.concurrency.calling import Function
from oncehook.handlers.event import BaseEvent
from oncehook.handlers.mismatch import describe_mismatch, missing, type_name
from oncehook.handlers.payload_types import decode_model, has_nested, inspect_type, is_data
from oncehook.model.errors import ConfigurationError
from oncehook.model.retry import Fail
from oncehook.providers.expressions import NotReadable, TooDeep, look_up, parse

NOTATION = 'Annotated[Invoice, Payload("data.object")]'
OPTIONAL = 'Annotated[Invoice | None, Payload("data.object")] = None'


@dataclass(frozen=True, slots=True)
class Payload:
    """Annotates a parameter of a handler that gets a part of the payload, decoded to the annotated type.

    `path` is dotted, such as "data.object". Without it, the parameter gets the whole payload. The type may be a
    dataclass, a `TypedDict`, a `msgspec.Struct`, a pydantic model or a built-in type. An event whose payload does not
    fit becomes a dead letter at once, with an error that names the field. A default is used if the path is missing.

        @inbox.on("stripe", "invoice.paid")
        async def invoice_paid(event: Event, invoice: Annotated[Invoice, Payload("data.object")]) -> None: ...
    """

    path: str | None = None

    def __post_init__(self) -> None:
        if self.path is not None and not (isinstance(self.path, str) and all(self.path.split("."))):
            raise ConfigurationError(
                f'Payload({self.path!r}) is not a path: write keys separated by dots, such as "data.object", or '
                "write Payload() for the whole payload"
            )

    @property
    def steps(self) -> tuple[str, ...]:
        return () if self.path is None else tuple(self.path.split("."))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that gets a payload. `default` is UNSET if the parameter has no default."""

    name: str
    steps: tuple[str, ...]
    type: Any
    is_container: bool  # the type is decoded from a JSON object or array, never from a string
    default: Any

    def decode(self, event: BaseEvent) -> Any:
        """Return the decoded value. Raises Fail if it does not fit: a retry would decode the same payload."""
        payload = event.payload
        if payload is None and event.raw.strip() != b"null":
            raise Fail(f"payload does not fit {type_name(self.type)}: the body cannot be read as JSON or a form")
        value = look_up(payload, self.steps, msgspec.UNSET)
        if value is msgspec.UNSET:
            if self.default is msgspec.UNSET:
                raise Fail(missing(self.type, self.steps))
            return self.default
        if self.is_container and isinstance(value, str):
            value = _read_text(value)
        try:
            return msgspec.convert(
                value, self.type, strict=not event._is_form, str_keys=True, dec_hook=decode_model
            )  # all fields of a form are strings
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise Fail(describe_mismatch(error, self.type, self.steps, value)) from None


def _read_text(text: str) -> Any:
    """Parse a string that contains JSON, as a longer path would do. Returns the string if it is not JSON."""
    try:
        return parse(text.encode("utf-8", "surrogatepass"))
    except (NotReadable, TooDeep):
        return text


@dataclass(frozen=True, slots=True)
class DecodedPayloads:
    """The decoded payloads of one event, by parameter name."""

    values: dict[str, Any]
    positional: Sequence[str]

    def bind(self, event_and_tx: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments of the call. `event_and_tx` fills those without payload."""
        rest, keywords = iter(event_and_tx), dict(self.values)
        arguments = [keywords.pop(name) if name in keywords else next(rest) for name in self.positional]
        return arguments, keywords


@dataclass(frozen=True, slots=True)
class PayloadParameters:
    """The payload parameters of a handler."""

    parameters: tuple[Parameter, ...]
    positional: tuple[str, ...]  # all parameters that are passed by position, in order

    @property
    def names(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.parameters)

    def decode(self, event: BaseEvent) -> DecodedPayloads:
        return DecodedPayloads(
            {parameter.name: parameter.decode(event) for parameter in self.parameters}, self.positional
        )


# -- registration ---------------------------------------------------------------------------------------------------


def find_payloads(function: Function, handler: str) -> PayloadParameters | None:
    """Return the payload parameters of a handler's function, or None if it has none."""
    bound = _bound_names(function)
    signature = [p for p in calling.signature_of(function, handler).values() if p.name not in bound]
    namespace = _namespace(function)
    candidates = [_read_parameter(parameter, namespace, handler) for parameter in signature]
    parameters = tuple(parameter for parameter in candidates if parameter is not None)
    if not parameters:
        return None
    positional = tuple(p.name for p in signature if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return PayloadParameters(parameters, positional)


def check_transaction(function: Function, handler: str, payloads: frozenset[str]) -> None:
    """Raise ConfigurationError if the parameter that would get `tx` is annotated as data: it lacks a `Payload`."""
    parameters = [p for p in calling.signature_of(function, handler).values() if p.name not in payloads]
    for parameter in parameters[1:2]:
        where = f"{handler}: the parameter {parameter.name!r}"
        hint = _resolve(parameter.annotation, _namespace(function), where)
        if parameter.kind is not parameter.KEYWORD_ONLY and is_data(hint):
            raise ConfigurationError(
                f"{where} would get the transaction, but is annotated as {type_name(hint)}: annotate a payload as "
                f"{NOTATION}, and move a parameter with its own default behind `*`"
            )


def _layers(function: Function) -> Iterator[Function]:
    """Yield the function, then each callable that it wraps (by partial, decorator or object), innermost last."""
    while True:
        yield function
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif calling.wrapped_function(function) is not function:
            function = calling.wrapped_function(function)
        else:
            return


def _namespace(function: Function) -> dict[str, Any]:
    """Return the globals in which the function's annotations are resolved."""
    *_, innermost = _layers(function)
    names: dict[str, Any] = getattr(innermost, "__globals__", {})
    return names


def _bound_names(function: Function) -> set[str]:
    """Return the parameters whose values `functools.partial` already supplies."""
    return {name for layer in _layers(function) if isinstance(layer, functools.partial) for name in layer.keywords}


def _read_parameter(parameter: inspect.Parameter, namespace: dict[str, Any], handler: str) -> Parameter | None:
    where = f"{handler}: the parameter {parameter.name!r}"
    hint = _resolve(parameter.annotation, namespace, where)
    arguments = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    markers = [value for value in (*arguments, parameter.default) if _is_marker(value)]
    if has_nested(arguments[0], _is_marker):
        raise ConfigurationError(
            f"{where} has Payload inside another type: annotate the whole parameter as {NOTATION}. If the payload is "
            f"optional, write {OPTIONAL}"
        )
    if not markers:
        return None
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise ConfigurationError(
            f"{where} collects several arguments, but a payload is one argument: remove the `*` before its name"
        )
    marker, metadata = markers[0], [value for value in arguments[1:] if value is not markers[0]]
    if len(markers) > 1 or not isinstance(marker, Payload) or len(metadata) == len(arguments) - 1:
        raise ConfigurationError(f"{where} does not say which payload it gets: annotate it as {NOTATION}")
    expected = Annotated[(arguments[0], *metadata)] if metadata else arguments[0]
    default = msgspec.UNSET if parameter.default is parameter.empty else parameter.default
    try:
        return Parameter(parameter.name, marker.steps, expected, inspect_type(expected), default)
    except Exception as error:  # the model's own annotations may raise anything
        detail = calling.error_summary(error)
        raise ConfigurationError(
            f"{where} is a {type_name(expected)}, and no payload can be decoded to that type: {detail}"
        ) from None


def _is_marker(value: Any) -> bool:
    return value is Payload or isinstance(value, Payload)


def _resolve(annotation: Any, namespace: dict[str, Any], where: str) -> Any:
    """Return the annotation with its names resolved, or None if that fails.

    A failure is an error only if the annotation mentions Payload: the types of the event and `tx` may be imported under
    TYPE_CHECKING.
    """
    try:
        holder = SimpleNamespace(__annotations__={"it": annotation})
        hint = get_type_hints(holder, namespace, include_extras=True)["it"]
        return getattr(hint, "__value__", hint)  # `type Paid = Annotated[…]`
    except Exception as error:
        text = annotation if isinstance(annotation, str) else repr(annotation)
        if "Payload" in text or "Annotated" in text:
            raise ConfigurationError(
                f"{where} has the annotation {text}, which cannot be resolved ({error}): define or import its names in "
                "the handler's module, above the handler and not under TYPE_CHECKING"
            ) from None
        return None
