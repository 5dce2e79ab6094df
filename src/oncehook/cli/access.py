"""`oncehook access`: configuration lines that give a person or a program access to the dashboard and the API."""

import re
import sys

import click

from oncehook.web.auth import hash_password, hash_token, make_token
from oncehook.web.settings import ROLES, SCOPES

MIN_PASSWORD_LENGTH = 12
NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


@click.command("access")
@click.argument("name")
@click.option("--role", type=click.Choice(list(ROLES)), default="viewer", show_default=True, help="Role of the person.")
@click.option("--token", is_flag=True, help="Create a token for a program instead of a password for a person.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    help="Scope of the token; may be repeated.  [default: read]",
)
def command(name: str, role: str, token: bool, scopes: tuple[str, ...]) -> None:
    """Print lines for oncehook.toml that give NAME access to the dashboard and the API.

    A person signs in with a password, which the command prompts for or reads from standard input. A program uses a
    token, which is shown only once. The printed lines contain only a hash.

    \b
    oncehook access jane --role operator >> oncehook.toml
    oncehook access ci --token --scope read --scope replay >> oncehook.toml
    """
    if not NAME.fullmatch(name):
        raise click.UsageError("NAME may contain only letters, digits, - and _, up to 63 characters")
    if scopes and not token:
        raise click.UsageError("--scope needs --token: a person has a --role instead")
    if token:
        _print_token(name, scopes or ("read",))
    else:
        _print_user(name, role)


def _print_user(name: str, role: str) -> None:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    if len(password) < MIN_PASSWORD_LENGTH:
        raise click.UsageError(f"the password must have at least {MIN_PASSWORD_LENGTH} characters")
    click.echo(f'\n[dashboard.users.{name}]\npassword = "{hash_password(password)}"\nrole = "{role}"')


def _print_token(name: str, scopes: tuple[str, ...]) -> None:
    token = make_token()
    listed = ", ".join(f'"{scope}"' for scope in scopes)
    click.echo(f"The token, shown only once:\n{token}", err=True)
    click.echo(f'\n[dashboard.tokens.{name}]\ntoken = "{hash_token(token)}"\nscopes = [{listed}]')
