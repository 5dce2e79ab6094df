"""The files that `oncehook init` writes."""

import re
from collections.abc import Container

from oncehook.providers.definition import Provider
from oncehook.providers.sample import sample_type

CONFIGURATION = """\
# Oncehook: every webhook, exactly once. Start it with `oncehook serve`.
# docs/settings.md explains every setting. Environment variables such as ONCEHOOK_DATABASE override this file.

app = "hooks:inbox"                     # your handlers: the variable inbox in hooks.py
database = "sqlite:///oncehook.db"      # or "postgresql://user@host/db"
max_body = "1MiB"

# Each source has an address: POST /webhooks/<name>. `oncehook providers` lists the providers.
# Secrets come from the environment, from .env or from a file, so that you can commit this file.

{sources}
# Access to the dashboard: `oncehook access NAME` prints lines to append here. Without any, `oncehook serve` prints an
# address with a token that is valid until the server stops.

# Alerts: `oncehook alerts test` sends a test notification to every target.
# [alerts.targets.chat]
# slack = "env:SLACK_ALERTS_URL"
"""

EXAMPLES = """\
# [sources.stripe]
# secrets = ["env:STRIPE_WEBHOOK_SECRET"]   # during a rotation, list both: each one is tried
# types = ["invoice.*", "customer.subscription.*"]   # other types are acked and stored as ignored

# [sources.github]
# secrets = ["env:GITHUB_WEBHOOK_SECRET"]
# forward = "http://localhost:3000/hooks"      # posts each event there; a 2xx response means processed
# forward_secret = "env:FORWARD_SECRET"        # whsec_…: signs the forwarded requests

# Test and live endpoints of a provider are two sources, each with its own secrets:
# [sources.stripe-test]
# provider = "stripe"
# secrets = ["env:STRIPE_TEST_WEBHOOK_SECRET"]

# A provider that is not built in:
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
"""The inbox and its handlers. `oncehook serve` runs them, `oncehook send` sends them events, `pytest` tests them.

To mount the inbox in your own app:

    app = FastAPI(lifespan=inbox.lifespan)
    app.mount("/webhooks", inbox)
"""

from oncehook import Effect, Event, Inbox

inbox = Inbox()  # database and sources from oncehook.toml and the environment

{handler}

@inbox.effect
async def notify(effect: Effect, text: str) -> None:
    """Called after the commit, and again if it fails. Pass effect.idempotency_key to the service that you call."""
    print(text, flush=True)
'''

HANDLER = '''
@inbox.on("{source}", "{type}")
async def {name}(event: Event) -> None:
    """Runs until it succeeds. After that, only a replay runs it again for this event.

    Add a second parameter, `tx`, to write to the database: the writes, the effects and the processed status commit
    together. Each effect key is recorded once, however often the event is delivered.
    """
    await event.effect(f"notify:{{event.id}}", notify, text=f"{{event.type}} {{event.object_id or event.id}}")
'''

COMMENTED = """
# Configure a source in oncehook.toml, then handle its events:
# @inbox.on("stripe", "invoice.paid")
# async def on_invoice_paid(event: Event) -> None:
#     await event.effect(f"notify:{event.id}", notify, text=f"{event.type} {event.object_id}")
"""

TEST = '''\
"""Tests of hooks.py. Each test gets a new database. Run them with `pytest`."""

from oncehook import State
from oncehook.testing import Bench


def test_event_is_handled_once_and_notifies_once(oncehook: Bench) -> None:
    response = oncehook.deliver("{source}", type="{type}", copies=3)  # signed, three concurrent deliveries
    assert 200 <= response.status < 300
    done = oncehook.drain()  # runs the handlers and effects until none is due
    assert {{receipt.status for receipt in done}} == {{State.PROCESSED}}
    assert [effect.target for effect in done.effects] == ["notify"] * len(done)
'''


OPTIONS = {
    "topics": '["arn:aws:sns:*"]    # the SNS topics to accept: replace this with yours',
    "webhook_id": '"your-webhook-id"    # shown by the provider',
    "public_url": '"http://127.0.0.1:8000/webhooks/{name}"    # the URL that you register with the provider',
    "verify_token": '"env:{verify_token}"    # a string of your choice; enter it at the provider with the URL',
}
"""Settings that some providers require."""

UNKNOWN_OPTION = '""    # required by the provider: see docs/settings.md'


def variable(provider: Provider, suffix: str = "WEBHOOK_SECRET") -> str:
    """The environment variable of a secret, such as STRIPE_WEBHOOK_SECRET."""
    return f"{re.sub(r'[^A-Z0-9]', '_', provider.name.upper())}_{suffix}"


def example_type(provider: Provider) -> str:
    """A well-known event type of this provider."""
    return "invoice.paid" if provider.name == "stripe" else sample_type(provider)


def _is_sent(provider: Provider, type_: str) -> bool:
    """Whether a sample event has exactly this type. Most samples accept any type, and some contain several events."""
    known = type_ == "invoice.paid" or any(example.type == type_ for example in provider.examples)
    return known and not provider.event.split


def source_lines(provider: Provider, secrets: Container[str]) -> str:
    """The source's table in oncehook.toml."""
    lines = [f"[sources.{provider.name}]"]
    if variable(provider) in secrets:
        lines += [f"# {provider.secret}"] if provider.secret else []
        lines += [f'secrets = ["env:{variable(provider)}"]    # during a rotation, list both: each one is tried']
    values = {"name": provider.name, "verify_token": variable(provider, "VERIFY_TOKEN")}
    lines += [f"{name} = {OPTIONS.get(name, UNKNOWN_OPTION).format(**values)}" for name in provider.options]
    return "\n".join(lines) + "\n"


def files(provider: Provider | None, source: str) -> dict[str, str]:
    """The files to write: content by name."""
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
