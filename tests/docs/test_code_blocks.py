"""The code blocks of the documentation are executed, loaded or parsed."""

import asyncio
import importlib
import re
import shlex
import sqlite3
import sys
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from starlette.applications import Starlette

from oncehook import Inbox, testing
from oncehook.cli import starter_files
from oncehook.cli.demo_session import make_keys
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import load
from oncehook.model.states import State
from oncehook.providers.sample import compose
from oncehook.store import queries
from oncehook.testing.keys import tenant_secret
from oncehook.web.auth import hash_token
from tests.support import ROOT
from tests.support.documentation import DJANGO_PAGES, PAGES, as_own_provider
from tests.support.user_project import run_pytest
from tests.support.waiting import eventually

KEYS = make_keys()
FORWARD_SECRET = "whsec_c2lnbnMgd2hhdCB0aGUgZG9jcyBmb3J3YXJk"
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def blocks(language: str) -> list[Any]:
    """Return every code block of a language as a parameter with the name of its page."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [
        pytest.param(code, id=f"{name}-{number}")
        for name, text in PAGES.items()
        if name not in DJANGO_PAGES or language != "python"
        for number, code in enumerate(fence.findall(text))
    ]


@pytest.fixture
def documented_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set every environment variable that the documentation uses for a secret."""
    for text in PAGES.values():
        for name in re.findall(r"env:([A-Z_]+)", text):
            monkeypatch.setenv(name, key_pair(name)[1])


def key_pair(name: str) -> tuple[str, str]:
    """Return the sender's key and the source's secret for the name of a variable or a source."""
    if name.startswith(("FORWARD", "ALERT")):
        return FORWARD_SECRET, FORWARD_SECRET
    if name.endswith("_URL"):
        return (f"https://{name.lower().replace('_', '-')}.example.com/",) * 2
    return KEYS.get(name.split("_")[0].lower(), ("a-long-random-text", "a-long-random-text"))


@pytest.mark.parametrize("code", blocks("python"))
def test_python_block_runs_without_changes(
    code: str, in_folder: Path, documented_secrets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: None)  # it would affect every later test
    module = ModuleType("app")
    monkeypatch.setitem(sys.modules, "app", module)  # Litestar looks up types in the module of a handler
    names = vars(module)
    if "inbox.dashboard" in code:
        (in_folder / "oncehook.toml").write_text(f'[dashboard.tokens.ci]\ntoken = "{hash_token("any")}"\n')
    exec(compile(code, "docs", "exec"), names)
    if "app" in names and ("inbox.wsgi" in code or "integrations.flask" in code):
        assert_wsgi_sources_accept_events(names["app"], names["inbox"])
    elif isinstance(names.get("app"), Starlette):
        asyncio.run(assert_sources_accept_events(names["app"], names["inbox"]))


def create_own_tables(database: Path) -> None:
    """Create the tables that the README asks its reader to create."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript("".join(re.findall(r"^CREATE TABLE .*;$", PAGES["README.md"], re.MULTILINE)))


async def assert_sources_accept_events(app: Any, inbox: Inbox) -> None:
    """Deliver an event twice to every source of a mounted inbox, and wait until it is processed."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        create_own_tables(Path("shop.db"))
        for name, source in inbox._runtime.sources.items():
            type_ = "invoice.paid" if name == "stripe" else "push"
            path, secret = name, key_pair(name)[0]
            if source.needs_tenant:
                path, secret = f"{name}/acme", await tenant_secret(inbox, source, "acme")
            sample = compose(source.provider, type_, secret, now=SYSTEM.now())
            first, second = [
                await client.post(f"/webhooks/{path}", content=sample.body, headers=sample.headers) for _ in range(2)
            ]
            assert (first.status_code, first.json()["status"]) == (202, "accepted")
            assert (second.status_code, second.json()["status"]) == (200, "duplicate")
            await assert_processed(inbox, first.json()["receipt"])


def assert_wsgi_sources_accept_events(app: Any, inbox: Inbox) -> None:
    """The same for an inbox that is mounted in a WSGI app."""
    try:
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test") as client:
            for name, source in inbox._runtime.sources.items():
                sample = compose(source.provider, "invoice.paid", key_pair(name)[0], now=SYSTEM.now())
                first, second = [
                    client.post(f"/webhooks/{name}", content=sample.body, headers=sample.headers) for _ in range(2)
                ]
                assert (first.status_code, second.status_code) == (202, 200), (first.text, second.text)
                inbox.wsgi.thread.run(assert_processed(inbox, first.json()["receipt"]))
    finally:
        inbox.wsgi.stop()


async def assert_processed(inbox: Inbox, number: int) -> None:
    async def is_processed() -> bool:
        receipt = await inbox._runtime.store.receipts.get(number)
        return receipt is not None and receipt.status is State.PROCESSED

    await eventually(is_processed, "the documented handler processes its event")


def test_handler_of_the_readme_survives_a_replay(in_folder: Path, documented_secrets: None) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGES["README.md"], re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "app"}
    exec(compile(code, "README.md", "exec"), names)
    database = in_folder / "replayed.db"
    with testing.Bench(testing.isolated(names["inbox"], f"sqlite:///{database}")) as bench:
        create_own_tables(database)
        response = bench.deliver("stripe", type="invoice.paid")
        assert [receipt.status for receipt in bench.drain()] == [State.PROCESSED]
        assert bench.replay(response) == 1
        (receipt,) = bench.drain()
        assert (receipt.status, receipt.replays, receipt.attempts) == (State.PROCESSED, 1, 1)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM paid").fetchone() == (1,)


HANDLERS = [block.values[0] for block in blocks("python") if ".on(" in block.values[0]]
HANDLERS += [
    starter_files.HOOKS,
    starter_files.HANDLER,
    *(file.read_text("utf-8") for file in ROOT.glob("examples/*/hooks.py")),
]


@pytest.mark.parametrize("code", HANDLERS)
def test_documented_handler_can_run_twice(code: str) -> None:
    """A replay finds the table and the row of the first run."""
    assert "CREATE TABLE" not in code, "a second run would fail, because the table exists"
    plain = [text for text in re.findall(r"INSERT INTO[^\"]*", code) if "ON CONFLICT" not in text]
    assert plain == [], "a second run would fail, because the row exists"


@pytest.mark.system
def test_tests_in_the_documentation_pass(in_folder: Path) -> None:
    """The page on testing is a project of a few files, each named in its first line."""
    files = re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", PAGES["docs/testing.md"], re.DOTALL | re.MULTILINE)
    assert [name for name, _ in files] == ["shop.py", "pytest.ini", "conftest.py", "test_shop.py"]
    for name, text in files:
        (in_folder / name).write_text(text)
    run = run_pytest(in_folder, ini=None)
    assert run.returncode == 0 and "7 passed" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("code", blocks("toml"))
def test_toml_block_configures_an_inbox(code: str, in_folder: Path, documented_secrets: None) -> None:
    if code.startswith("title = "):  # the definition of a provider
        code = "[sources.acme]\nsecrets = ['a secret']\n" + as_own_provider(code, "acme")
    (in_folder / "old").write_text("whsec_old")
    (in_folder / "oncehook.toml").write_text(re.sub(r"file:/[^\"]+", "file:old", code))
    inbox = Inbox()
    assert set(inbox._runtime.sources) == set(load().sources)


@pytest.mark.parametrize("code", blocks("sh"))
def test_shell_block_has_existing_commands_and_options(code: str) -> None:
    for line in code.splitlines():
        words = list(takewhile(lambda word: word not in ("|", ">", "&"), shlex.split(line, comments=True)))
        if words[:1] == ["oncehook"]:
            command = importlib.import_module(f"oncehook.cli.{words[1]}").command
            command.make_context(words[1], words[2:]).close()
        elif words[:1] == ["make"]:
            assert re.search(rf"^(?:[\w-]+ )*{words[1]}( [\w-]+)*:", MAKEFILE, re.MULTILINE), (
                f"the Makefile has no target for: {line}"
            )


@pytest.mark.parametrize("code", [block for block in blocks("sql") if "…" not in block.values[0]])
def test_sql_block_runs_on_the_schema(code: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, _, sql in queries.migrations("sqlite"):
            connection.executescript(sql)
        for statement in filter(str.strip, code.split(";")):
            connection.execute(statement)
