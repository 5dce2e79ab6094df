"""Looks up the secrets of a tenant with a function of the user, within a time limit."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from oncehook.concurrency.calling import Threads, call, check_function
from oncehook.model.errors import ConfigurationError, OncehookError

SecretsFor = Callable[[str], Sequence[str] | Awaitable[Sequence[str] | None] | None]
"""A function that returns the secrets of a tenant. It returns None or an empty sequence for an unknown tenant."""

MAX_SECRETS = 16
"""A tenant may have this many secrets. Every delivery tries them all."""

THREADS = 8
"""Lookups by a plain `def` that may run at the same time, each in its own thread."""


class WrongSecrets(OncehookError):
    """A lookup returned something that is not a list of secrets. The message never contains what it returned."""


class FunctionLookup:
    """Calls `secrets_for` of one source: an `async def` in the event loop, a plain `def` in a thread."""

    def __init__(self, source: str, function: SecretsFor, timeout: float) -> None:
        """Raise ConfigurationError for a function that cannot be called with one argument."""
        self.name = f"secrets_for of sources.{source}"
        check_function(function, self.name)
        _check_parameters(function, self.name)
        self.function = function
        self.timeout = timeout
        self._threads: Threads | None = None

    async def find(self, tenant: str) -> tuple[str, ...] | None:
        """The secrets of a tenant, or None if it is unknown. Raises what the function raises, or TimeoutError."""
        if self._threads is None:
            self._threads = Threads(THREADS, "tenant-lookup", patience=self.timeout)
        return check_secrets(await call(self.name, self.function, self._threads, self.timeout, tenant))

    def reset(self) -> None:
        """Forget the threads. The next lookup may run in another event loop."""
        self._threads = None


def check_secrets(found: Any) -> tuple[str, ...] | None:
    """Return the result of a lookup as secrets. Raises WrongSecrets if it is not a sequence of strings."""
    if found is None:
        return None
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Collection):
        raise WrongSecrets(f"it returned a {type(found).__name__}: return a list of secrets, or None")
    secrets = tuple(found)
    if len(secrets) > MAX_SECRETS:
        raise WrongSecrets(f"it returned {len(secrets)} secrets: a tenant may have {MAX_SECRETS}")
    wrong = next((secret for secret in secrets if not isinstance(secret, str)), None)
    if wrong is not None:
        raise WrongSecrets(f"it returned a list with a {type(wrong).__name__}: a secret is a string")
    return secrets


def _check_parameters(function: SecretsFor, name: str) -> None:
    try:
        inspect.signature(function).bind("acme")
    except TypeError:
        raise ConfigurationError(
            f"{name} cannot be called with one argument, the tenant: write `async def lookup(tenant: str) -> list[str]`"
        ) from None
    except ValueError:  # a builtin without a signature: the first lookup tells
        return
