"""No secret leaves the configuration: a whole service runs with a canary as each of its secrets.

It gets authentic, forged, malformed and too large deliveries, its handlers, forwards, brokers and Redis fail, and every
page, route and command is opened. Then everything that came out of it is searched for each canary.
"""

import asyncio
import base64
import io
import json
import logging
import sqlite3
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from oncehook import Event, Inbox
from oncehook.observability import signals
from oncehook.web.auth import hash_password, hash_token
from oncehook.web.dashboard import Dashboard
from proof.results import write_result
from tests.support.command_line import Run
from tests.support.dashboard import Browser
from tests.support.encryption import stored_somewhere
from tests.support.events import github_headers, stripe_body, stripe_headers
from tests.support.http_target import http_response, receiving
from tests.support.serve import connected, request, served
from tests.support.servers import run_sql
from tests.support.spans import Spans, all_text, trace_with
from tests.support.waiting import eventually

KEY = b"CANARY-key-of-the-encryption-123"
CANARIES = {
    "source secret": "whsec_CANARYsourceCANARYsource01",
    "encrypted source secret": "CANARY-github-0123456789",
    "tenant secret": "whsec_CANARYtenantCANARYtenant01",
    "forward secret": "whsec_" + base64.b64encode(b"CANARY-forward-0123456789").decode(),
    "password of the dashboard": "CANARY-password-0123456789",
    "token of the dashboard": "CANARY-token-0123456789",
    "session key": "CANARY-session-key-0123456789-0123456789",
    "metrics token": "CANARY-metrics-0123456789",
    "password of Redis": "CANARY-redis-0123456789",
    "password of the broker": "CANARY-broker-0123456789",
    "password of the database": "CANARY-database-0123456789",
    "encryption key": base64.b64encode(KEY).decode(),
}
SPELLINGS = {
    name: {value, value.removeprefix("whsec_"), value.removeprefix("whsec_").rstrip("=")}
    for name, value in CANARIES.items()
}
SPELLINGS["encryption key"] |= {KEY.decode(), KEY.hex()}
SPELLINGS["forward secret"] |= {"CANARY-forward-0123456789"}

CONFIGURATION = """
database = "{database}"
redis = "redis://:{redis}@127.0.0.1:1/0"
keys = ["k1:{key}"]
metrics_token = "{metrics}"
effect_targets = ["nats://app:{broker}@127.0.0.1:1"]
poll = "20ms"
lease = "5s"
log_level = "debug"

[sources.stripe]
secrets = ["{source}"]
types = ["invoice.*"]
forward = "{target}"
forward_secret = "{forward}"

[sources.github]
secrets = ["{github}"]
encrypt = true

[sources.shared]
provider = "stripe"
tenants = true

[dashboard]
session_key = "{session}"
users.otto = {{ password = "{password}", role = "operator" }}
tokens.admin = {{ token = "{token}", scopes = ["read", "replay", "admin"] }}
"""


def write_configuration(folder: Path, database: str, target: str) -> None:
    """Write the configuration with every canary."""
    if database.startswith("postgresql"):  # the server trusts every local client, so any password is accepted
        database = database.replace("@", f":{CANARIES['password of the database']}@", 1)
    text = CONFIGURATION.format(
        database=database,
        redis=CANARIES["password of Redis"],
        key=CANARIES["encryption key"],
        metrics=CANARIES["metrics token"],
        broker=CANARIES["password of the broker"],
        source=CANARIES["source secret"],
        target=target,
        forward=CANARIES["forward secret"],
        github=CANARIES["encrypted source secret"],
        session=CANARIES["session key"],
        password=hash_password(CANARIES["password of the dashboard"], cost=4),
        token=hash_token(CANARIES["token of the dashboard"]),
    )
    (folder / "oncehook.toml").write_text(text)


class Output:
    """Everything that came out of the service, by the place where it came out."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}

    def add(self, place: str, *texts: object) -> None:
        self.texts.setdefault(place, []).extend(map(str, texts))

    def add_response(self, place: str, response: httpx.Response) -> httpx.Response:
        self.add(place, response.headers, response.text)
        return response

    def assert_has_no_canary(self, database: str) -> None:
        leaks = [
            f"{name} in {place}"
            for name, spellings in SPELLINGS.items()
            for place, texts in self.texts.items()
            if any(spelling in text for spelling in spellings for text in texts)
        ]
        leaks += [
            f"{name} in {place}"
            for name, spellings in SPELLINGS.items()
            for spelling in spellings
            for place in stored_somewhere(database, spelling)
        ]
        assert leaks == [], f"a secret is where it does not belong: {leaks}"


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """The log lines of Oncehook at debug level, and those of every other logger of this process."""
    for name in ("_log", "_threshold", "_json_stream"):
        monkeypatch.setattr(signals, name, getattr(signals, name))
    stream = io.StringIO()
    signals.configure("debug", "json", stream)
    caplog.set_level(logging.DEBUG)
    own = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "asyncio", "oncehook")]
    for logger in own:
        monkeypatch.setattr(logger, "propagate", True)

    def text() -> str:
        lines = [f"{record.__dict__} {record.getMessage()} {record.exc_text}" for record in caplog.records]
        return stream.getvalue() + "\n".join(lines)

    yield text


@asynccontextmanager
async def running_service(folder: Path, output: Output) -> AsyncIterator[tuple[int, Dashboard]]:
    inbox = Inbox(config=str(folder / "oncehook.toml"))

    @inbox.on("shared", "invoice.paid")
    async def fail(event: Event) -> None:
        try:
            raise ValueError("a handler with a cause")
        except ValueError as error:
            raise RuntimeError("a handler that fails") from error

    @inbox.on("github", "push")
    async def publish(event: Event) -> None:
        await event.publish("nats://127.0.0.1:1/subject", {"id": event.id})

    dashboard = Dashboard(inbox._runtime, "the key of this run")
    runtime = inbox._runtime
    for shown in (inbox, runtime, runtime.settings, runtime.configuration, dashboard, *runtime.sources.values()):
        output.add(f"the representation of {type(shown).__name__}", repr(shown))
    async with served(inbox, dashboard) as port:
        yield port, dashboard


async def deliver_everything(port: int, output: Output) -> None:
    """Deliveries of each kind, and requests that are not HTTP."""
    secret, tenant = CANARIES["source secret"], CANARIES["tenant secret"]
    created, paid = stripe_body("evt_created", "invoice.created"), stripe_body("evt_paid")
    push, large = json.dumps({"ref": "main"}).encode(), b" " * 2_000_000
    wanted: list[tuple[int, str, bytes, dict[str, str]]] = [
        (202, "stripe", paid, stripe_headers(paid, secret)),
        (200, "stripe", paid, stripe_headers(paid, secret)),
        (202, "stripe", created, stripe_headers(created, secret)),
        (202, "github", push, github_headers(push, "guid-1", CANARIES["encrypted source secret"])),
        (202, "shared/acme", paid, stripe_headers(paid, tenant)),
        (401, "stripe", paid, stripe_headers(paid, "whsec_of_somebody_else_0123456")),
        (401, "shared/acme", paid, stripe_headers(paid, "whsec_of_somebody_else_0123456")),
        (401, "stripe", paid, stripe_headers(paid, secret, now=1.0)),
        (401, "github", push, {"X-Hub-Signature-256": "sha256=\xff"}),
        (400, "stripe", b"{", stripe_headers(b"{", secret)),
        (202, "stripe", b"{}", stripe_headers(b"{}", secret)),
        (413, "stripe", large, stripe_headers(large, secret)),
        (415, "stripe", paid, {**stripe_headers(paid, secret), "Content-Encoding": "gzip"}),
        (404, "nothing", paid, stripe_headers(paid, secret)),
    ]
    for status, source, body, headers in wanted:
        async with connected(port) as wire:
            await wire.say(request(f"/webhooks/{source}", headers, body))
            answer = await wire.answer()
            output.add("responses", answer.headers, answer.body)
            assert answer.status == status, (source, answer.body)
    async with connected(port) as wire:
        await wire.say(b"\0\r\n\r\n")
        output.add("responses", (await wire.reader.read()).decode("latin-1"))


def paths(dashboard: Dashboard, receipts: Sequence[int]) -> list[str]:
    """The paths of every GET route, for each event."""
    found = []
    for route in dashboard.router.routes:
        if isinstance(route, Route) and "GET" in (route.methods or ()) and not route.path.endswith("live"):
            for receipt in receipts if "{receipt}" in route.path else receipts[:1]:
                path = route.path.replace("{receipt}", str(receipt)).replace("{run}", "0" * 16)
                found.append(path.replace("{effect}", "1").replace("{source}", "stripe"))
    return found


async def open_everything(port: int, dashboard: Dashboard, output: Output) -> None:
    """Every page and route, as an operator, as a program and as a stranger."""
    base, everything = f"http://127.0.0.1:{port}", paths(dashboard, range(1, 7))
    token = {"authorization": f"Bearer {CANARIES['token of the dashboard']}"}
    async with Browser(base_url=base, timeout=30) as browser:
        wrong = await browser.sign_in("otto", "CANARY-that-is-wrong")
        assert output.add_response("pages", wrong).status_code in (200, 401)
        assert (await browser.sign_in("otto", CANARIES["password of the dashboard"])).status_code == 303
        assert len([output.add_response("pages", await browser.get(path)) for path in everything]) > 30
    async with httpx.AsyncClient(base_url=base, timeout=30, verify=False) as client:
        for path in everything:
            output.add_response("the API", await client.get(path, headers=token))
            output.add_response("responses to strangers", await client.get(path))
        metrics = {"authorization": f"Bearer {CANARIES['metrics token']}"}
        assert output.add_response("metrics", await client.get("/metrics", headers=metrics)).status_code == 200
        for path in ("/metrics", "/healthz", "/readyz"):
            output.add_response("responses to strangers", await client.get(path, headers=token))


async def run_service(folder: Path, database: str, output: Output, spans: Spans) -> None:
    async with receiving(http_response(500)) as target:
        write_configuration(folder, database, target.url)
        async with running_service(folder, output) as (port, dashboard):
            await deliver_everything(port, output)
            await eventually(lambda: len(target.requests) > 0, "the event is forwarded")
            for query, what in OUTCOMES.items():
                await eventually(lambda: run_sql(database, query)[0][0] > 0, what)  # noqa: B023  # called here
            await open_everything(port, dashboard, output)
        output.add("forwards", *((one.head, one.body) for one in target.requests))


OUTCOMES = {
    "SELECT count(*) FROM webhook_receipts WHERE last_error LIKE '%a handler that fails%'": "the handler fails",
    "SELECT count(*) FROM webhook_effects WHERE attempts > 0": "the broker cannot be reached",
}
COMMANDS: list[tuple[str, ...]] = [
    ("doctor",), ("doctor", "stripe"), ("doctor", "github"), ("stats",), ("stats", "--json"), ("events",),
    ("events", "--json"), ("show", "1"), ("show", "2"), ("show", "3"), ("show", "4"), ("schema",), ("dead",),
    ("effects",), ("effects", "--json"), ("alerts",), ("fsck",), ("sources",), ("sources", "list"), ("tenants", "list"),
    ("tenants", "list", "shared"), ("secrets",), ("keys", "list"), ("consumers",), ("shards",), ("intake",),
    ("providers", "stripe"), ("replay", "99"), ("show", "99"), ("send", "stripe", "invoice.paid", "--url", "http://127.0.0.1:1"),
]  # fmt: skip
BROKEN = {
    "database = ": "database = [",  # not TOML
    'types = ["invoice.*"]': "types = 5",
    "keys = [": 'keys = ["k2:CANARYCANARY", ',
    'provider = "stripe"': 'provider = "none"',
}


def run_commands(folder: Path, run: Run, output: Output) -> None:
    """Every command that reads, and commands with a configuration that is wrong."""
    for command in COMMANDS:
        done = run(*command)
        output.add(f"oncehook {' '.join(command)}", done.out, done.error)
    file = folder / "oncehook.toml"
    right = file.read_text()
    for part, wrong in BROKEN.items():
        file.write_text(right.replace(part, wrong, 1))
        done = run("doctor")
        assert done.code != 0, wrong
        output.add("errors about the configuration", done.out, done.error)
        try:
            Inbox(config=str(file))
        except Exception as error:  # the traceback is searched
            output.add("tracebacks", "".join(traceback.format_exception(error)))
    file.write_text(right)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
def test_no_secret_leaves_the_configuration(
    in_folder: Path, database: str, run: Run, logged: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, spans = Output(), trace_with(monkeypatch)
    write_configuration(in_folder, database, "http://127.0.0.1:1/hooks")
    added = run("tenants", "add", "shared", "acme", "--secret", CANARIES["tenant secret"])
    output.add("oncehook tenants add", added.out, added.error)
    asyncio.run(run_service(in_folder, database, output, spans))
    run_commands(in_folder, run, output)
    output.add("logs", logged())
    output.add("spans", all_text(spans))
    for place, word in {"logs": "rejected", "spans": "deliver", "metrics": "oncehook_", "pages": "evt_paid"}.items():
        assert any(word in text for text in output.texts[place]), f"{place} must have been collected"
    output.assert_has_no_canary(database)
    places = {place: sum(map(len, texts)) for place, texts in output.texts.items()}
    write_result(
        f"canaries-{database.partition(':')[0]}", {"canaries": len(CANARIES), "leaks": 0, "characters": places}
    )


def test_search_finds_a_canary_in_a_text_and_in_a_column(in_folder: Path, sqlite: str) -> None:
    output = Output()
    output.add("logs", f"x{CANARIES['metrics token']}y")
    with closing(sqlite3.connect(sqlite.removeprefix("sqlite:///"))) as file, file:
        file.execute("CREATE TABLE leak (text TEXT)")
        file.execute("INSERT INTO leak VALUES (?)", (CANARIES["session key"],))
    with pytest.raises(AssertionError, match="does not belong") as failure:
        output.assert_has_no_canary(sqlite)
    assert "metrics token in logs" in str(failure.value) and "session key in leak" in str(failure.value)
