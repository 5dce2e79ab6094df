"""Writes configuration files."""

from pathlib import Path


def write_stripe_source(folder: Path, database: str, *lines: str) -> str:
    """Write a configuration whose Stripe source has these lines. Returns its path."""
    file = folder / "oncehook.toml"
    source = ("[sources.stripe]", 'secrets = ["whsec_test"]', *lines)
    file.write_text("\n".join((f'database = "{database}"', 'poll = "50ms"', *source)) + "\n")
    return str(file)
