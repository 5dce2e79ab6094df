"""References to secrets, and the fingerprints that identify secrets without showing them."""

import hashlib
import os
from pathlib import Path

from oncehook.model.errors import ConfigurationError


def is_reference(secret: str) -> bool:
    """Whether the value is somewhere else, in the environment or a file, and is read when the inbox starts."""
    return secret.startswith(("env:", "file:"))


def is_unset(secret: str) -> bool:
    """Whether it is a reference to a variable or a file that is not there, or is empty."""
    try:
        resolve(secret, "")
    except ConfigurationError:
        return is_reference(secret)
    return False


def secret_fingerprint(source: str, secret: str) -> str:
    """Return a short id of a secret: 32 bits of a salted hash, which reveal nothing about the value."""
    return hashlib.sha256(f"oncehook secret\n{source}\n{secret}".encode("utf-8", "surrogateescape")).hexdigest()[:8]


ENV_FILE = ".env"
"""Where `env:NAME` is looked up in the current directory, if the environment has no such variable."""

PLACEHOLDERS = frozenset(("none", "null", "undefined", '""', "''"))
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"


def in_env_file(name: str, file: Path = Path(ENV_FILE)) -> str | None:
    """The value of a variable in `.env`; None if it has none. Blanks and quotes around it are not part of it."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in reversed(lines):  # the last one counts, as in a shell
        key, equals, value = line.removeprefix("export ").partition("=")
        if equals and key.strip() == name:
            value = value.strip()
            return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    return None


def resolve(secret: str, where: str, what: str = "source") -> str:
    """A secret's value out of `env:NAME`, `file:PATH` or the value itself. Errors name the place, never the value."""
    kind, _, name = secret.partition(":")
    if kind == "env":
        value = os.environ.get(name, "") or in_env_file(name) or ""
        if not value.strip():
            raise ConfigurationError(
                f"{where} is empty: set {name} in the environment or in {ENV_FILE}, or remove the {what}"
            )
    elif kind == "file":
        try:
            value = Path(name).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{where}: {name} cannot be read ({type(error).__name__})") from None
        if not value:
            raise ConfigurationError(f"{where} is empty: {name} has nothing in it")
    else:
        value = secret
        if not value.strip():
            raise ConfigurationError(f"{where} is empty: give the secret, or remove the {what}")
    bare = value.strip().strip(_INVISIBLE).strip()
    if not bare or bare.lower() in PLACEHOLDERS:
        raise ConfigurationError(f"{where} is a placeholder, not a secret: give the secret, or remove the {what}")
    return value
