"""References to secrets, and the fingerprints that identify secrets without showing them."""

import hashlib
import os
from pathlib import Path

from oncehook.model.errors import ConfigurationError


def is_reference(secret: str) -> bool:
    """Return whether a secret refers to an environment variable or a file, which is read when the inbox starts."""
    return secret.startswith(("env:", "file:"))


def is_unset(secret: str) -> bool:
    """Return whether a secret refers to a variable or a file that is missing or empty."""
    try:
        resolve(secret, "")
    except ConfigurationError:
        return is_reference(secret)
    return False


def secret_fingerprint(source: str, secret: str) -> str:
    """Return a short id of a secret: 32 bits of a salted hash, which reveal nothing about the value."""
    return hashlib.sha256(f"oncehook secret\n{source}\n{secret}".encode("utf-8", "surrogateescape")).hexdigest()[:8]


ENV_FILE = ".env"
"""A file in the current directory with values for `env:NAME` that the environment does not have."""

PLACEHOLDERS = frozenset(("none", "null", "undefined", '""', "''"))
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"


def in_env_file(name: str, file: Path = Path(ENV_FILE)) -> str | None:
    """Return the value of a variable in `.env`, without surrounding blanks and quotes, or None."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in reversed(lines):  # the last assignment wins, as in a shell
        key, equals, value = line.removeprefix("export ").partition("=")
        if equals and key.strip() == name:
            value = value.strip()
            return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    return None


def resolve(secret: str, where: str, owner: str = "source") -> str:
    """Return the value of a secret: `env:NAME`, `file:PATH` or the value itself.

    Errors contain the setting `where`, never the value.
    """
    kind, _, name = secret.partition(":")
    if kind == "env":
        value = os.environ.get(name, "") or in_env_file(name) or ""
        if not value.strip():
            raise ConfigurationError(
                f"{where} is empty: set {name} in the environment or in {ENV_FILE}, or remove the {owner}"
            )
    elif kind == "file":
        try:
            value = Path(name).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{where}: {name} cannot be read ({type(error).__name__})") from None
        if not value:
            raise ConfigurationError(f"{where} is empty: the file {name} has no content")
    else:
        value = secret
        if not value.strip():
            raise ConfigurationError(f"{where} is empty: write the secret, or remove the {owner}")
    bare = value.strip().strip(_INVISIBLE).strip()
    if not bare or bare.lower() in PLACEHOLDERS:
        raise ConfigurationError(f"{where} is a placeholder, not a secret: write the secret, or remove the {owner}")
    return value
