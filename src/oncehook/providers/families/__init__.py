"""Signature families, one module each. A family verifies and signs deliveries."""

from functools import cache
from importlib import import_module
from pathlib import Path

from oncehook.providers.family import Family


@cache
def built_in_names() -> tuple[str, ...]:
    """The names of the modules in this package, sorted. It imports none of them."""
    return tuple(sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py")))


@cache
def find(name: str) -> Family:
    """The family of a name: a module of this package, or `module:NAME` in the user's code. Raises LookupError."""
    path, _, attribute = name.partition(":")
    if attribute:
        return _import_custom(path, attribute)
    if name not in built_in_names():
        raise LookupError(f"there is no signature family {name}")
    family: Family = import_module(f"{__name__}.{name}").FAMILY
    return family


def _import_custom(path: str, attribute: str) -> Family:
    try:
        family = getattr(import_module(path), attribute, None)
    except Exception as error:  # importing a user's module may raise anything
        summary = f"{type(error).__name__}: {error}"
        raise LookupError(f"signature family {path}:{attribute} cannot be imported: {summary}") from error
    if not isinstance(family, Family):
        raise LookupError(f"{path}:{attribute} is not a signature family: it must be an instance of a Family subclass")
    return family
