"""`oncehook access`: who may use the dashboard and the API."""

import re
import sys

import click

from oncehook.web.auth import hash_password, hash_token, make_token
from oncehook.web.settings import ROLES, SCOPES

SHORTEST = 12
NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


@click.command("access")
@click.argument("name")
@click.option("--role", type=click.Choice(list(ROLES)), default="viewer", show_default=True, help="What they may do.")
@click.option("--token", is_flag=True, help="For a program: make a token in place of asking for a password.")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(SCOPES), help="What the token may do.  [default: read]"
)
def command(name: str, role: str, token: bool, scopes: tuple[str, ...]) -> None:
    """Print the lines of oncehook.toml that let somebody in: with a password, which is asked for, or a program with a
    token, which is shown this once. The lines hold only a hash.

    \b
    oncehook access jane --role operator >> oncehook.toml
    oncehook access ci --token --scope read --scope replay >> oncehook.toml
    """
    if not NAME.fullmatch(name):
        raise click.UsageError("NAME is letters, digits, - and _ (at most 63)")
    if scopes and not token:
        raise click.UsageError("--scope is for a token; a person has a --role")
    if token:
        _token(name, scopes or ("read",))
    else:
        _user(name, role)


def _user(name: str, role: str) -> None:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    if len(password) < SHORTEST:
        raise click.UsageError(f"the password is shorter than {SHORTEST} characters")
    click.echo(f'\n[dashboard.users.{name}]\npassword = "{hash_password(password)}"\nrole = "{role}"')


def _token(name: str, scopes: tuple[str, ...]) -> None:
    token = make_token()
    listed = ", ".join(f'"{scope}"' for scope in scopes)
    click.echo(f"The token, which is shown this once:\n{token}", err=True)
    click.echo(f'\n[dashboard.tokens.{name}]\ntoken = "{hash_token(token)}"\nscopes = [{listed}]')
