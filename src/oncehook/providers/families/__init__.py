"""Signature families, one module each: how deliveries are verified and signed."""

from functools import cache
from importlib import import_module
from pathlib import Path

from oncehook.providers.family import Family


@cache
def built_in_names() -> tuple[str, ...]:
    """The names of the modules beside this one, sorted. None of them is imported."""
    return tuple(sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py")))


@cache
def find(name: str) -> Family:
    """The family of a name: a module beside this one, or `module:NAME` of anybody. Raises LookupError."""
    path, _, attribute = name.partition(":")
    if attribute:
        return _load(path, attribute, name)
    if name not in built_in_names():
        raise LookupError(f"there is no signature family {name}")
    return _load(f"{__name__}.{name}", "FAMILY", name)


def _load(path: str, attribute: str, name: str) -> Family:
    try:
        found = getattr(import_module(path), attribute, None)
    except Exception as error:  # whatever the module does when it is imported
        raise LookupError(f"signature family {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, Family):
        raise LookupError(f"{name} is not a signature family: an instance of a subclass of Family is needed")
    return found
