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
    """The family of a name: a module beside this one, or `module:NAME` of a user's own. Raises LookupError."""
    path, _, attribute = name.partition(":")
    if attribute:
        return _import_own(path, attribute)
    if name not in built_in_names():
        raise LookupError(f"there is no signature family {name}")
    family: Family = import_module(f"{__name__}.{name}").FAMILY
    return family


def _import_own(path: str, attribute: str) -> Family:
    try:
        found = getattr(import_module(path), attribute, None)
    except Exception as error:  # whatever the module does when it is imported
        summary = f"{type(error).__name__}: {error}"
        raise LookupError(f"signature family {path}:{attribute} cannot be imported: {summary}") from error
    if not isinstance(found, Family):
        raise LookupError(f"{path}:{attribute} is not a signature family: it must be an instance of a Family")
    return found
