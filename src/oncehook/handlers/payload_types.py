"""The types that a payload can be decoded to: the types that msgspec supports, and pydantic models.

This module never imports pydantic. A class that looks like a pydantic model validates the value itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Struct, inspect

_BUILT_IN = (str, bytes, int, float, dict, list, tuple, set, frozenset)

_CONTAINERS = (
    inspect.StructType,
    inspect.DataclassType,
    inspect.TypedDictType,
    inspect.DictType,
    inspect.CollectionType,
    inspect.TupleType,
    inspect.NamedTupleType,
    inspect.NoneType,
)


def decode_model(type_: Any, value: Any) -> Any:
    """Decode to a type that msgspec does not support: the hook that msgspec calls."""
    return value if type_ is object else type_.model_validate(value)


def is_data(hint: Any) -> bool:
    """Return whether a type is data, such as a model or a string, and cannot be a transaction."""
    if get_origin(hint) is Annotated:
        return is_data(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return any(map(is_data, get_args(hint)))
    cls = get_origin(hint) or hint
    return isinstance(cls, type) and (
        issubclass(cls, (Struct, *_BUILT_IN)) or is_dataclass(cls) or _is_pydantic_model(cls)
    )


def has_nested(hint: Any, matches: Callable[[Any], bool]) -> bool:
    """Return whether `matches` is true for any part of an annotation, such as an item of a list or of a union."""
    seen: dict[int, Any] = {}
    waiting = _parts(hint)
    while waiting:
        part = waiting.pop()
        if matches(part):
            return True
        if id(part) not in seen:  # an alias may contain itself
            seen[id(part)] = part
            waiting.extend(_parts(part))
    return False


def _parts(hint: Any) -> list[Any]:
    if isinstance(hint, (list, tuple)):  # the arguments of a Callable
        return list(hint)
    try:
        aliased = getattr(get_origin(hint) or hint, "__value__", None)  # `type Paid = Annotated[…]`
    except Exception:  # an alias may use names that exist only for type checkers
        aliased = None
    return [*get_args(hint), aliased]


def inspect_type(hint: Any) -> bool:
    """Return whether the type is decoded from a JSON object or array, never from a string.

    Raises TypeError if no payload can be decoded to the type.
    """
    info = inspect.type_info(hint)
    for node in _walk(info):
        _check(node)
    return all(map(_is_container, info.types if isinstance(info, inspect.UnionType) else (info,)))


def _walk(info: Any) -> Iterator[Any]:
    """Yield every type inside a type, each once, because models may contain themselves."""
    seen: set[int] = set()
    waiting = [info]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, (inspect.Type, inspect.Field)) and id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)


def _check(info: Any) -> None:
    if isinstance(info, inspect.CustomType) and info.cls is not object and not _is_pydantic_model(info.cls):
        raise TypeError(f"{info.cls.__name__} is not a struct, dataclass, TypedDict, pydantic model or built-in type")
    if isinstance(info, inspect.DataclassType) and hasattr(info.cls, "__pydantic_validator__"):
        raise TypeError(f"{info.cls.__name__} is a pydantic dataclass: use a pydantic model or a standard dataclass")


def _is_container(info: Any) -> bool:
    if isinstance(info, inspect.Metadata):
        return _is_container(info.type)
    return isinstance(info, _CONTAINERS) or (isinstance(info, inspect.CustomType) and info.cls is not object)


def _is_pydantic_model(cls: Any) -> bool:
    return isinstance(cls, type) and hasattr(cls, "model_validate") and hasattr(cls, "__pydantic_validator__")
