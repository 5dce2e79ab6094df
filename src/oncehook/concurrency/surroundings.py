"""Context managers around the calls of user functions, such as the application context of a web framework.

They apply to all calls in one event loop, which is that of the inbox.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from weakref import WeakKeyDictionary

Surrounding = Callable[[], AbstractContextManager[object]]
"""Makes a context manager, which a call enters in the thread or task of the function."""


class CurrentSurrounding:
    """A context manager that can be replaced while the inbox runs. Later calls use the new one."""

    def __init__(self, current: Surrounding) -> None:
        self.current = current

    def __call__(self) -> AbstractContextManager[object]:
        return self.current()


_of_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, list[Surrounding]]" = WeakKeyDictionary()


def surround_calls(surroundings: Iterable[Surrounding]) -> None:
    """Call all user functions of the running event loop within these context managers from now on."""
    known = _of_loop.setdefault(asyncio.get_running_loop(), [])
    known.extend(surrounding for surrounding in surroundings if surrounding not in known)


def end_surrounding(surroundings: Iterable[Surrounding]) -> None:
    """Call the functions without these context managers again."""
    known, ended = _of_loop.get(asyncio.get_running_loop(), []), list(surroundings)
    known[:] = [surrounding for surrounding in known if surrounding not in ended]


def surrounding() -> Surrounding:
    """Return the context manager around the calls in the running event loop."""
    found = _of_loop.get(asyncio.get_running_loop()) if _of_loop else None
    if not found:
        return nullcontext
    surroundings = tuple(found)

    def enter_all() -> AbstractContextManager[object]:
        with ExitStack() as stack:
            for make in surroundings:
                stack.enter_context(make())
            return stack.pop_all()

    return enter_all
