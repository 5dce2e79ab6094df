"""`oncehook init`: a configuration and a first handler file to start from."""

from pathlib import Path

import click

from oncehook.cli.options import write_new

CONFIGURATION = """\
# Oncehook: every webhook, exactly once. Start with `oncehook serve`.
# Every setting is explained in docs/settings.md; the environment wins over this file (ONCEHOOK_DATABASE …).

database = "sqlite:///oncehook.db"      # or "postgresql://user@host/db"
max_body = "1MiB"

# A source is an address: POST /webhooks/<name>. `oncehook providers` lists who can send.
# Secrets come from the environment or a file, so that this file can be committed.

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

# Who may use the dashboard: `oncehook access NAME` prints lines to append here. Without any, `serve` prints an address
# with a token of its run.

# Who is told when something is wrong; `oncehook alerts test` tries it.
# [alerts.targets.chat]
# slack = "env:SLACK_ALERTS_URL"

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
"""The inbox of this app. Run it with `oncehook serve hooks:inbox`, or mount it in yours:

    app = FastAPI(lifespan=inbox.lifespan)
    app.mount("/webhooks", inbox)
"""

from oncehook import Inbox

inbox = Inbox()  # database and sources from oncehook.toml and the environment

# Sources can be added here too:
# inbox.source("shopify", secrets=["env:SHOPIFY_CLIENT_SECRET"])
'''


@click.command("init")
@click.argument("folder", default=".", type=click.Path(file_okay=False))
def command(folder: str) -> None:
    """Write a commented oncehook.toml and a hooks.py into FOLDER. What is there already is left as it is.

    \b
    oncehook init
    oncehook init services/webhooks
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    wrote = []
    for name, content in (("oncehook.toml", CONFIGURATION), ("hooks.py", HOOKS)):
        if write_new(target / name, content):
            wrote.append(name)
            click.echo(f"wrote {target / name}")
        else:
            click.echo(f"{target / name} is there already: left as it is", err=True)
    if not wrote:
        raise SystemExit(1)
    click.echo("Next: uncomment a source in oncehook.toml, set its secret, and run `oncehook serve`.")
