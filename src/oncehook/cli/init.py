"""`oncehook init`: a source with its secret, a handler with an effect, and a test of it, to start from."""

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
@click.option("--folder", default=".", type=click.Path(file_okay=False), help="Where to.  [default: here]")
def command(provider: str | None, folder: str) -> None:
    """Write an oncehook.toml and a hooks.py. For PROVIDER also its source, a secret in .env, a handler with an effect,
    and a test of it. What is there already is left as it is.

    The secret is made up, so that `oncehook send` can sign with it; put the provider's own in its place. `env:NAME`
    reads the environment, and where it has no such variable, .env in the current directory.

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
    wrote = [_write(target / name, content) for name, content in files(definition, source).items()]
    if definition is not None and not wrote[0]:
        click.echo(f"Add to {target / 'oncehook.toml'}:\n\n{source}", err=True)
    wrote += [_write_secret(target, name, value) for name, value in secrets.items()]
    if not any(wrote):
        raise SystemExit(1)
    _say_what_next(definition, target, can_send)


def _secrets(provider: Provider) -> tuple[dict[str, str], bool]:
    """The lines of .env by their names, and whether `send` can sign with what is in them.

    A provider whose key only the provider has gets an empty line, to be filled in.
    """
    found: dict[str, str] = {}
    pair = None if provider.starts_without_secret else make_pair(provider)
    if pair is not None:
        found[variable(provider)] = pair.verifying if pair.signing == pair.verifying else ""
    if "verify_token" in provider.options:
        found[variable(provider, "VERIFY_TOKEN")] = token_hex(16)
    return found, pair is not None and pair.signing == pair.verifying


def _find(name: str) -> Provider:
    try:
        return providers.find(name, {})
    except ConfigurationError as error:
        raise click.UsageError(f"{error}. A folder is given with --folder") from None


def _write(path: Path, content: str) -> bool:
    is_new = write_new(path, content)
    click.echo(f"wrote {path}" if is_new else f"{path} is there already: left as it is", err=not is_new)
    return is_new


def _write_secret(folder: Path, name: str, value: str) -> bool:
    """Append a line to .env, which only its owner may read; False if there is one already."""
    path = folder / ENV_FILE
    if in_env_file(name, path) is not None:
        click.echo(f"{path} has {name} already: left as it is", err=True)
        return False
    text = path.read_text("utf-8") if path.exists() else ""
    line = f"{name}={value}\n" if not text or text.endswith("\n") else f"\n{name}={value}\n"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(line)
    click.echo(f"wrote {name} to {path}: keep it out of version control")
    return True


def _say_what_next(provider: Provider | None, folder: Path, can_send: bool) -> None:
    here = "" if folder == Path() else f"cd {folder} && "
    if provider is None:
        click.echo(f"Next: uncomment a source in oncehook.toml, set its secret, and run `{here}oncehook serve`.")
        return
    click.echo(f"Next: {here}oncehook serve")
    if can_send:
        click.echo(f"      oncehook send {provider.name} {example_type(provider)}    in another terminal")
    else:
        why = provider.secret.removeprefix("None: ")
        click.echo(f"      {provider.title or provider.name} signs with a key that only it has, so `send` cannot sign.")
        click.echo(f"      {why[:1].upper()}{why[1:]}")
    click.echo("      pytest")
