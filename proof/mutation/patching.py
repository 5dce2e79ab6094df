"""Puts a mutant into the running process: every live function of the module gets its changed code."""

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from proof.mutation.operators import Mutant


def find_functions(path: str) -> list[FunctionType]:
    """Every function of a file that exists now: also those behind a decorator, and closures that are kept."""
    gc.unfreeze()  # the tests freeze what they have imported
    return [
        found for found in gc.get_objects() if isinstance(found, FunctionType) and found.__code__.co_filename == path
    ]


def apply(mutant: Mutant, original: CodeType, module: ModuleType, functions: list[FunctionType]) -> None:
    """Change the module in this process."""
    if mutant.constant is not None:
        _replace_constant(mutant, mutant.constant, module)
        return
    changed = {old: new for old, new in _pairs(original, mutant.code) if old != new}
    scratch = dict(vars(module))
    exec(mutant.code, scratch)  # noqa: S102  # the module itself, with one place changed: for its default values
    defaults = {function.__qualname__: function for function in _functions(scratch)}
    for function in functions:
        code = changed.get(function.__code__)
        if code is not None and code.co_freevars == function.__code__.co_freevars:
            function.__code__ = code
        if function.__qualname__ in defaults and "<locals>" not in function.__qualname__:
            _copy_defaults(defaults[function.__qualname__], function)
    clear_caches(module)


def clear_caches(module: ModuleType) -> None:
    """Forget what the functions of the module computed before they were changed."""
    for name, value in list(vars(module).items()):
        if isinstance(value, dict) and name.startswith("_") and name.islower() and not name.startswith("__"):
            value.clear()
        elif hasattr(value, "cache_clear") and getattr(value, "__module__", None) == module.__name__:
            value.cache_clear()


def _replace_constant(mutant: Mutant, name: str, module: ModuleType) -> None:
    old, scratch = getattr(module, name), dict(vars(module))
    exec(mutant.code, scratch)  # noqa: S102  # as above
    for other in list(sys.modules.values()):  # also where it was imported by name
        if other is not None and vars(other).get(name) is old:
            setattr(other, name, scratch[name])


def _functions(scratch: dict[str, object]) -> Iterator[FunctionType]:
    for value in list(scratch.values()):
        for found in (value, *vars(value).values()) if isinstance(value, type) else (value,):
            if isinstance(found, FunctionType):
                yield found


def _copy_defaults(changed: FunctionType, function: FunctionType) -> None:
    """Copy plain values only: another default would be a new object, and not the one that the tests use."""
    plain = (bool, int, float, str, bytes)
    old, new = function.__defaults__ or (), changed.__defaults__ or ()
    if len(old) == len(new):
        function.__defaults__ = tuple(b if isinstance(b, plain) else a for a, b in zip(old, new, strict=True)) or None
    for name, value in (changed.__kwdefaults__ or {}).items():
        if isinstance(value, plain) and function.__kwdefaults__ is not None:
            function.__kwdefaults__[name] = value


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code of each function, also of inner ones, before and after the change."""
    yield old, new
    changed = dict(_inner(new))
    for place, code in _inner(old):
        if place in changed:
            yield from _pairs(code, changed[place])


def _inner(code: CodeType) -> Iterator[tuple[tuple[str, int, int], CodeType]]:
    seen: Counter[tuple[str, int]] = Counter()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            place = constant.co_name, constant.co_firstlineno
            seen[place] += 1
            yield (*place, seen[place]), constant
