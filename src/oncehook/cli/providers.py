"""`oncehook providers`: list the providers, or describe one and how to configure it."""

import sys

import click

from oncehook.cli.options import config_option, console, json_option, print_json
from oncehook.cli.starter_files import example_type
from oncehook.config.configuration import load
from oncehook.providers import definition as providers
from oncehook.providers.definition import Provider
from oncehook.providers.handshake import kind_of


@click.command("providers")
@click.argument("name", required=False)
@config_option
@json_option
def command(name: str | None, config: str | None, as_json: bool) -> None:
    """List the providers, or describe one: its address and secret, its event ids, and its retries.

    \b
    oncehook providers
    oncehook providers stripe
    """
    own = load(config).providers
    if name is None:
        listed = [providers.find(n, own) for n in sorted({*providers.built_in_names(), *own})]
        for provider in listed if as_json else ():
            print_json(_row(provider))
        if not as_json:
            _print_list(listed)
        return
    if name not in own and name not in providers.built_in_names():
        click.echo(f"oncehook: there is no provider {name}; `oncehook providers` lists them", err=True)
        sys.exit(1)
    provider = providers.find(name, own)
    if as_json:
        print_json(_row(provider))
    else:
        _print_details(provider)


def _row(provider: Provider) -> dict[str, object]:
    return {
        "name": provider.name,
        "title": provider.title,
        "support": provider.support,
        "signature": _algorithms(provider),
        "secret": provider.secret,
        "options": provider.options,
        "id": provider.event.id,
        "type": provider.event.type,
        "object": provider.event.object,
        "occurred_at": provider.event.occurred_at,
        "batch": provider.event.split,
        "handshakes": [handshake.kind for handshake in provider.handshakes],
        "retry_horizon": provider.retries.horizon,
        "time_limit": provider.retries.time_limit,
        "stop_codes": provider.retries.stop_codes,
        "max_body": provider.max_body,
        "docs": provider.docs,
        "checked": str(provider.checked) if provider.checked else None,
        "notes": provider.notes,
    }


def _algorithms(provider: Provider) -> str:
    return " or ".join(dict.fromkeys(signature.algorithm for signature in provider.signatures))


def _print_list(listed: list[Provider]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("name", "provider", "signature", "retries for", "support"):
        table.add_column(title)
    for provider in listed:
        style = "" if provider.support == "confirmed" else "yellow"
        table.add_row(
            provider.name,
            provider.title,
            _algorithms(provider),
            provider.retries.horizon or "unknown",
            Text(provider.support, style),
        )
    console().print(table)


def _print_details(provider: Provider) -> None:
    from rich.text import Text

    out = console()
    out.print(Text(f"{provider.title or provider.name}", style="bold"))
    if provider.support != "confirmed":
        out.print(
            Text("This signature scheme is not confirmed by the provider's documentation: test it first.", "yellow")
        )
    stop = (
        f"; stops after status {', '.join(map(str, provider.retries.stop_codes))}"
        if provider.retries.stop_codes
        else ""
    )
    horizon = f" (assumed: {provider.retries.horizon})" if provider.retries.horizon else ""
    facts = {
        "Endpoint URL": f"https://YOUR-HOST/webhooks/{provider.name}",
        "Configure": f"[sources.{provider.name}] with secrets"
        + "".join(f" and {option}" for option in provider.options),
        "Secret": provider.secret,
        "Signature": _algorithms(provider),
        "Event id": _expression_text(provider.event.id),
        "Type": _expression_text(provider.event.type),
        "Object": _expression_text(provider.event.object),
        "Occurred at": _expression_text(provider.event.occurred_at),
        "Batches": f"an array at {provider.event.split}; each element has one receipt" if provider.event.split else "",
        "Handshake": ", ".join(kind_of(handshake.kind).summary for handshake in provider.handshakes),
        "Retries": (provider.retries.schedule or "unknown") + horizon + stop,
        "Ack deadline": provider.retries.time_limit or "",
        "Largest body": provider.max_body or "",
        "Try it": f"oncehook send {provider.name} {example_type(provider)}",
        "Documentation": f"{provider.docs} (checked {provider.checked})" if provider.docs else "",
    }
    for title, text in facts.items():
        if text:
            out.print(Text.assemble((f"{title:<14} ", "bold"), text))
    for note in provider.notes:
        out.print(Text(f"• {note}"))


def _expression_text(expression: str | list[str] | None) -> str:
    if expression is None:
        return ""
    return expression if isinstance(expression, str) else ", otherwise ".join(expression)
