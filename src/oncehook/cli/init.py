"""`oncehook init`: starter files with a source and its secret, a handler with an effect, and a test."""

import os
from pathlib import Path
from secrets import token_hex

import click

from oncehook.cli.options import write_new
from oncehook.cli.starter_files import example_type, files, source_lines, variable
from oncehook.config.secret import ENV_FILE, in_env_file
from oncehook.model.errors import ConfigurationError
from oncehook.providers import definition as providers
from oncehook.providers.definition import Provider
from oncehook.testing.keys import make_pair


@click.command("init")
@click.argument("provider", required=False)
@click.option("--folder", default=".", type=click.Path(file_okay=False), help="Folder to write to.  [default: .]")
def command(provider: str | None, folder: str) -> None:
    """Write oncehook.toml and hooks.py. With PROVIDER, they contain a source and a handler with an effect, and the
    command also writes a secret to .env and a test. Existing files are not changed.

    The secret is random, so that `oncehook send` can sign with it; replace it with the one from your provider. The
    setting `env:NAME` reads the environment variable NAME, or if it is not set, .env in the current directory.

    \b
    oncehook init stripe && oncehook serve
    oncehook init
    oncehook init github --folder services/webhooks
    """
    definition = None if provider is None else _find(provider)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    secrets, can_send = ({}, False) if definition is None else _secrets(definition)
    source = "" if definition is None else source_lines(definition, secrets)
    written = [_write(target / name, content) for name, content in files(definition, source).items()]
    if definition is not None and f"[sources.{definition.name}]" not in (target / "oncehook.toml").read_text("utf-8"):
        click.echo(f"Add to {target / 'oncehook.toml'}:\n\n{source}", err=True)
    written += [_write_secret(target, name, value) for name, value in secrets.items()]
    if not any(written):
        raise SystemExit(1)
    _print_next_steps(definition, target, can_send)


def _secrets(provider: Provider) -> tuple[dict[str, str], bool]:
    """The variables for .env, and whether `oncehook send` can sign with them.

    If only the provider has the signing key, the variable is empty and the user fills it in.
    """
    variables: dict[str, str] = {}
    pair = None if provider.starts_without_secret else make_pair(provider)
    if pair is not None:
        variables[variable(provider)] = pair.verifying if pair.signing == pair.verifying else ""
    if "verify_token" in provider.options:
        variables[variable(provider, "VERIFY_TOKEN")] = token_hex(16)
    return variables, pair is not None and pair.signing == pair.verifying


def _find(name: str) -> Provider:
    try:
        return providers.find(name, {})
    except ConfigurationError as error:
        raise click.UsageError(f"{error}. To choose a folder, use --folder") from None


def _write(path: Path, content: str) -> bool:
    is_new = write_new(path, content)
    click.echo(f"wrote {path}" if is_new else f"{path} already exists: not changed", err=not is_new)
    return is_new


def _write_secret(folder: Path, name: str, value: str) -> bool:
    """Append a variable to .env, which only its owner can read. Returns False if .env has the variable."""
    path = folder / ENV_FILE
    if in_env_file(name, path) is not None:
        click.echo(f"{path} already has {name}: not changed", err=True)
        return False
    text = path.read_text("utf-8") if path.exists() else ""
    line = f"{name}={value}\n" if not text or text.endswith("\n") else f"\n{name}={value}\n"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(line)
    click.echo(f"wrote {name} to {path}: keep it out of version control")
    return True


def _print_next_steps(provider: Provider | None, folder: Path, can_send: bool) -> None:
    cd = "" if folder == Path() else f"cd {folder} && "
    if provider is None:
        click.echo(f"Next: uncomment a source in oncehook.toml, set its secret, and run `{cd}oncehook serve`.")
        return
    click.echo(f"Next: {cd}oncehook serve")
    if can_send:
        click.echo(f"      oncehook send {provider.name} {example_type(provider)}    in another terminal")
    else:
        description = provider.secret.removeprefix("None: ")
        click.echo(f"      {provider.title or provider.name} signs with its private key, so `send` cannot sign.")
        click.echo(f"      {description[:1].upper()}{description[1:]}")
    click.echo("      pytest")
