"""`python -m examples.shop [PORT]`: run the shop, and print commands to try."""

import argparse
import logging
import os
import sys
from pathlib import Path

import uvicorn

SECRET = "whsec_only_for_trying_it_out"  # noqa: S105 - set STRIPE_WEBHOOK_SECRET to your own

INTRODUCTION = """\
The shop runs at {base}. In another terminal, in this folder:

    export ONCEHOOK_DATABASE={database} PATH="{path}:$PATH"
    oncehook send stripe invoice.paid --duplicate 4 --concurrency 5{options}
    oncehook send stripe customer.subscription.created{options}
    oncehook events
    oncehook effects
    oncehook replay 1

Ctrl-C stops it. Kill it and start it again: nothing is lost or repeated.
"""


STANDARD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime"}


class FieldFormatter(logging.Formatter):
    """Formats a log line of the inbox with its fields, which are attributes of the record."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [f"{name}={value!r}" for name, value in vars(record).items() if name not in STANDARD_ATTRIBUTES]
        return " ".join([super().format(record), *fields])


def show_warnings() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(FieldFormatter("%(levelname)s %(name)s %(message)s"))
    logging.getLogger("oncehook").addHandler(handler)


def parse_port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port: use a number from 1 to 65535")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.shop", description="Run the shop, and print commands to try."
    )
    parser.add_argument("port", metavar="PORT", nargs="?", type=parse_port, default=8000, help="default: 8000")
    port = parser.parse_args().port
    secret = os.environ.setdefault("STRIPE_WEBHOOK_SECRET", SECRET)
    from examples.shop.app import app  # the import needs the secret
    from examples.shop.models import DATABASE

    base = f"http://127.0.0.1:{port}"
    options = " --secret " + (secret if secret == SECRET else "env:STRIPE_WEBHOOK_SECRET")
    if port != 8000:
        options += f" --to {base}/webhooks/stripe"
    path = Path(sys.executable).parent
    show_warnings()
    print(INTRODUCTION.format(base=base, database=DATABASE, path=path, options=options), flush=True)
    uvicorn.run(app, port=port, log_level="warning")


if __name__ == "__main__":
    main()
