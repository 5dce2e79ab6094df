"""The table of built-in providers, and the entry of each, for docs/providers.md."""

from docs.markdown import table
from oncehook.providers import definition as providers
from oncehook.providers.definition import Expression, Provider
from oncehook.providers.handshake import kind_of


def providers_table() -> str:
    definitions = [providers.built_in(name) for name in providers.built_in_names()]
    rows = [(f"[`{p.name}`](#{p.name})", p.title, _signed(p), p.retries.horizon or "?", p.support) for p in definitions]
    return table(("provider", "sender", "signed by", "retries for", "support"), rows)


def entries() -> str:
    """The entry of every built-in provider."""
    return "\n\n".join(_provider(providers.built_in(name)) for name in providers.built_in_names())


UNCONFIRMED = "**Not confirmed** by the provider's own documentation: check it before you rely on it."

STAMPS = {
    "attempt": "of each attempt: within {} of now, before or after",
    "event": "of the event: no older than the retry horizon plus {0}, no more than {0} in the future",
    "unknown": "of the event or the attempt (not documented): no older than the retry horizon plus {0}, "
    "no more than {0} in the future",
}


def _provider(provider: Provider) -> str:
    stamp, facts, retries = provider.timestamp, provider.event, provider.retries
    rows = {
        "Secret": provider.secret,
        "Needs": ", ".join(f"`{option}`" for option in provider.options),
        "Signed by": _signed(provider),
        "Timestamp": STAMPS[stamp.stamps].format(stamp.tolerance) if stamp else "none",
        "Body": " or ".join(provider.content) + (f", up to {provider.max_body}" if provider.max_body else ""),
        "Batch": _batch(facts.split),
        "Id": _expression(facts.id),
        "Type": _expression(facts.type),
        "Object": _expression(facts.object),
        "Occurred at": _expression(facts.occurred_at),
        "Delivery id": _expression(facts.delivery_id),
        "Handshake": "; ".join(
            f"`{exchange.method}`: {kind_of(exchange.kind).summary}" for exchange in provider.handshakes
        ),
        "Response": _response(provider),
        "Retries": retries.schedule,
        "Time limit": retries.time_limit or "",
        "Stops on": ", ".join(map(str, retries.stop_codes)),
        "Documentation": f"<{provider.docs}> (checked on {provider.checked})" if provider.docs else "",
    }
    about = table(("", provider.title or provider.name), [(name, text) for name, text in rows.items() if text])
    notes = "\n".join(f"- {note}" for note in provider.notes)
    doubt = "" if provider.support == "confirmed" else f"{UNCONFIRMED}\n\n"
    return f"### {provider.name}\n\n{doubt}{about}\n\n{notes}".strip()


def _response(provider: Provider) -> str:
    answer = provider.answer
    if answer.status is None and answer.body is None:
        return ""
    body = "" if answer.body is None else f", `{answer.body}`" if answer.body else ", empty body"
    return f"{answer.status or 200}{body}"


def _batch(split: str | None) -> str:
    if split is None:
        return ""
    return f"{'the body is an array' if split == '*' else f'an array at `{split}`'}: one receipt per element"


def _signed(provider: Provider) -> str:
    return " or ".join(dict.fromkeys(f"`{signature.algorithm}`" for signature in provider.signatures))


def _expression(expression: Expression | None) -> str:
    if expression is None:
        return ""
    choices = [expression] if isinstance(expression, str) else expression
    return ", else ".join(f"`{choice}`" for choice in choices)
