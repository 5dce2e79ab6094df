"""The files that `oncehook init` writes."""

import re
from collections.abc import Container

from oncehook.providers.definition import Provider
from oncehook.providers.sample import sample_type

CONFIGURATION = """\
# Oncehook: every webhook, exactly once. Start with `oncehook serve`.
# Every setting is explained in docs/settings.md; the environment wins over this file (ONCEHOOK_DATABASE …).

app = "hooks:inbox"                     # your handlers: the inbox in hooks.py
database = "sqlite:///oncehook.db"      # or "postgresql://user@host/db"
max_body = "1MiB"

# A source is an address: POST /webhooks/<name>. `oncehook providers` lists who can send.
# Secrets come from the environment, from a line of .env or from a file, so that this file can be committed.

{sources}
# Who may use the dashboard: `oncehook access NAME` prints lines to append here. Without any, `serve` prints an address
# with a token of its run.

# Who is told when something is wrong; `oncehook alerts test` tries it.
# [alerts.targets.chat]
# slack = "env:SLACK_ALERTS_URL"
"""

EXAMPLES = """\
# [sources.stripe]
# secrets = ["env:STRIPE_WEBHOOK_SECRET"]   # several while you rotate: all are tried
# types = ["invoice.*", "customer.subscription.*"]   # the others are acked and kept as ignored

# [sources.github]
# secrets = ["env:GITHUB_WEBHOOK_SECRET"]
# forward = "http://localhost:3000/hooks"      # this address handles its events: 2xx is done
# forward_secret = "env:FORWARD_SECRET"        # whsec_…: signs what is forwarded

# Test and live endpoints of one provider are two sources, with their own secrets:
# [sources.stripe-test]
# provider = "stripe"
# secrets = ["env:STRIPE_TEST_WEBHOOK_SECRET"]

# A sender that is not in the list, in the same words as the built-in ones:
# [providers.acme]
# title = "Acme"
# [[providers.acme.signatures]]
# algorithm = "hmac-sha256"
# header = "X-Acme-Signature"
# template = "{timestamp}.{body}"
# [providers.acme.timestamp]
# header = "X-Acme-Timestamp"
# [providers.acme.event]
# id = "id"
# type = "type"
"""

HOOKS = '''\
"""The inbox and its handlers. `oncehook serve` runs them, `oncehook send` tries them, `pytest` tests them.

To mount the inbox in an app of your own:

    app = FastAPI(lifespan=inbox.lifespan)
    app.mount("/webhooks", inbox)
"""

from oncehook import Effect, Event, Inbox

inbox = Inbox()  # database and sources from oncehook.toml and the environment

{handler}

@inbox.effect
async def notify(effect: Effect, text: str) -> None:
    """Called after the commit, and again if it fails. Pass effect.idempotency_key on to the service that you call."""
    print(text, flush=True)
'''

HANDLER = '''
@inbox.on("{source}", "{type}")
async def {name}(event: Event) -> None:
    """Runs until it succeeds. After that, only a replay runs it again for this event.

    With a second parameter, `tx`, it writes to the database: those writes, its effects and the processed status commit
    together. An effect is recorded once for its key, however often the event is delivered.
    """
    await event.effect(f"notify:{{event.id}}", notify, text=f"{{event.type}} {{event.object_id or event.id}}")
'''

COMMENTED = """
# Give a source its secret in oncehook.toml, then handle its events:
# @inbox.on("stripe", "invoice.paid")
# async def on_invoice_paid(event: Event) -> None:
#     await event.effect(f"notify:{event.id}", notify, text=f"{event.type} {event.object_id}")
"""

TEST = '''\
"""Tests of hooks.py, each on its own database: run `pytest`."""

from oncehook import State
from oncehook.testing import Bench


def test_event_is_handled_once_and_notifies_once(oncehook: Bench) -> None:
    answer = oncehook.deliver("{source}", type="{type}", copies=3)  # signed, three times at once
    assert 200 <= answer.status < 300
    done = oncehook.drain()  # work until nothing is due
    assert {{receipt.status for receipt in done}} == {{State.PROCESSED}}
    assert [effect.target for effect in done.effects] == ["notify"] * len(done)
'''


OPTIONS = {
    "topics": '["arn:aws:sns:*"]    # the topics that may deliver here: name yours',
    "webhook_id": '"your-webhook-id"    # as the provider shows it',
    "public_url": '"http://127.0.0.1:8000/webhooks/{name}"    # the address as the provider has it',
    "verify_token": '"env:{verify_token}"    # a text of your own, to type beside the address',
}
"""What some providers do not start without."""

UNKNOWN_OPTION = '""    # the provider needs this setting: see docs/settings.md'


def variable(provider: Provider, what: str = "WEBHOOK_SECRET") -> str:
    """The name of a secret of it in the environment: STRIPE_WEBHOOK_SECRET."""
    return f"{re.sub(r'[^A-Z0-9]', '_', provider.name.upper())}_{what}"


def example_type(provider: Provider) -> str:
    """A type that newcomers of this provider know."""
    return "invoice.paid" if provider.name == "stripe" else sample_type(provider)


def _is_sent(provider: Provider, type_: str) -> bool:
    """Whether a handler for this type alone would run: most samples take any type, and some hold several events."""
    known = type_ == "invoice.paid" or any(example.type == type_ for example in provider.examples)
    return known and not provider.event.split


def source_lines(provider: Provider, secrets: Container[str]) -> str:
    """The table of its source in oncehook.toml."""
    lines = [f"[sources.{provider.name}]"]
    if variable(provider) in secrets:
        lines += [f"# {provider.secret}"] if provider.secret else []
        lines += [f'secrets = ["env:{variable(provider)}"]    # several while you rotate: all are tried']
    words = {"name": provider.name, "verify_token": variable(provider, "VERIFY_TOKEN")}
    lines += [f"{name} = {OPTIONS.get(name, UNKNOWN_OPTION).format(**words)}" for name in provider.options]
    return "\n".join(lines) + "\n"


def files(provider: Provider | None, source: str) -> dict[str, str]:
    """Name → content."""
    if provider is None:
        hooks = HOOKS.replace("{handler}", COMMENTED)
        return {"oncehook.toml": CONFIGURATION.replace("{sources}", EXAMPLES), "hooks.py": hooks}
    type_ = example_type(provider)
    pattern = type_ if _is_sent(provider, type_) else "*"
    name = "on_" + (re.sub(r"\W+", "_", pattern, flags=re.ASCII).strip("_").lower() or "event")
    handler = HANDLER.format(source=provider.name, type=pattern, name=name)
    return {
        "oncehook.toml": CONFIGURATION.replace("{sources}", source),
        "hooks.py": HOOKS.replace("{handler}", handler),
        "test_hooks.py": TEST.format(source=provider.name, type=type_),
    }
