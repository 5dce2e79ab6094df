"""What is written is run: code blocks, commands and links of the docs, and the tables that they are made of."""

import ast
import asyncio
import importlib
import os
import re
import shlex
import sqlite3
import tomllib
from contextlib import closing
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace

from docs import generate, schema
from oncehook import Inbox, testing
from oncehook.alerts.monitor import INCIDENT_RETENTION
from oncehook.alerts.rules import NEWEST, RULES
from oncehook.alerts.settings import AlertSettings, TargetSettings
from oncehook.cli import COMMANDS, starter_files
from oncehook.cli.demo_session import make_keys
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import load
from oncehook.config.settings import Settings, SourceSettings
from oncehook.effects.effect import EFFECT_TIMEOUT, MAX_ARGUMENT_BYTES
from oncehook.effects.relay import MARGIN
from oncehook.handlers.canonical import FETCH_TIMEOUT
from oncehook.handlers.forward import POLICY
from oncehook.http_client.circuit_breaker import FAILURES, FIRST_PAUSE, MOST_PAUSE
from oncehook.http_client.client import MOST_BODY
from oncehook.model.effect import EffectState
from oncehook.model.states import State
from oncehook.observability.log_events import LOG_EVENTS
from oncehook.providers import definition as providers
from oncehook.providers.expressions import MOST_BYTES
from oncehook.providers.families.template import MOST_SIGNATURES
from oncehook.providers.sample import compose
from oncehook.receiver.ack import ERRORS
from oncehook.store import queries
from oncehook.store.rows import MAX_DUPLICATES
from oncehook.web import overview
from oncehook.web.api import ENDPOINTS
from oncehook.web.auth import hash_token
from oncehook.web.settings import DashboardSettings, TokenSettings, UserSettings
from tests.support import ROOT
from tests.testing.test_testing import run_pytest

WORDS = {5: "fifty", 6: "sixty", 7: "seventy"}
PAGES = generate.pages()
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text("utf-8") for page in PAGES}
KEYS = make_keys()
FORWARDING = "whsec_c2lnbnMgd2hhdCB0aGUgZG9jcyBmb3J3YXJk"


def blocks(language: str) -> list[Any]:
    """Every block of a language, as a parameter that is named after its page."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [
        pytest.param(code, id=f"{name}-{number}")
        for name, text in TEXTS.items()
        for number, code in enumerate(fence.findall(text))
    ]


# -- code -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def secrets_of_the_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in TEXTS.values():
        for name in re.findall(r"env:([A-Z_]+)", text):
            monkeypatch.setenv(name, secret_for(name)[1])


def secret_for(name: str) -> tuple[str, str]:
    """What the sender signs with, and what the source is given."""
    if name.startswith(("FORWARD", "ALERT")):
        return FORWARDING, FORWARDING
    if name.endswith("_URL"):
        return (f"https://{name.lower().replace('_', '-')}.example.com/",) * 2
    return KEYS.get(name.split("_")[0].lower(), ("a-long-random-text", "a-long-random-text"))


@pytest.mark.parametrize("code", blocks("python"))
def test_python_in_the_docs_runs_as_it_is(
    code: str, in_folder: Path, secrets_of_the_docs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: None)  # it would stay for every test after
    names: dict[str, Any] = {"__name__": "app"}
    if "inbox.dashboard" in code:
        (in_folder / "oncehook.toml").write_text(f'[dashboard.tokens.ci]\ntoken = "{hash_token("any")}"\n')
    exec(compile(code, "docs", "exec"), names)
    if "app" in names:
        asyncio.run(deliver_to(names["app"], names["inbox"]))


def create_own_tables(database: Path) -> None:
    """The tables that the README tells its reader to create."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript("".join(re.findall(r"^CREATE TABLE .*;$", TEXTS["README.md"], re.MULTILINE)))


async def deliver_to(app: Any, inbox: Inbox) -> None:
    """Every source of a mounted inbox takes an event once."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        create_own_tables(Path("shop.db"))
        for name, source in inbox._runtime.sources.items():
            type_ = "invoice.paid" if name == "stripe" else "push"
            sample = compose(source.provider, type_, secret_for(name)[0], now=SYSTEM.now())
            first, second = [
                await client.post(f"/webhooks/{name}", content=sample.body, headers=sample.headers) for _ in range(2)
            ]
            assert (first.status_code, first.json()["status"]) == (202, "accepted")
            assert (second.status_code, second.json()["status"]) == (200, "duplicate")
            async with asyncio.timeout(20):
                while (await inbox._runtime.store.receipts.get(first.json()["receipt"])).status is not State.PROCESSED:  # type: ignore[union-attr]
                    await asyncio.sleep(0.02)


def test_handler_of_the_readme_survives_a_replay(in_folder: Path, secrets_of_the_docs: None) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXTS["README.md"], re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "app"}
    exec(compile(code, "README.md", "exec"), names)
    database = in_folder / "replayed.db"
    with testing.Bench(testing.isolated(names["inbox"], f"sqlite:///{database}")) as bench:
        create_own_tables(database)
        answer = bench.deliver("stripe", type="invoice.paid")
        assert [receipt.status for receipt in bench.drain()] == [State.PROCESSED]
        assert bench.replay(answer) == 1
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
def test_no_documented_handler_fails_at_its_second_run(code: str) -> None:
    """A replay would meet the table and the row of the first run."""
    assert "CREATE TABLE" not in code
    assert [text for text in re.findall(r"INSERT INTO[^\"]*", code) if "ON CONFLICT" not in text] == []


def test_the_tests_in_the_docs_pass(in_folder: Path) -> None:
    """The page on testing is a project of a few files, each named in its first line."""
    files = re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", TEXTS["docs/testing.md"], re.DOTALL | re.MULTILINE)
    assert [name for name, _ in files] == ["shop.py", "pytest.ini", "conftest.py", "test_shop.py"]
    for name, text in files:
        (in_folder / name).write_text(text)
    done = run_pytest(in_folder, ini=None)
    assert done.returncode == 0 and "7 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("code", blocks("toml"))
def test_toml_in_the_docs_makes_an_inbox(code: str, in_folder: Path, secrets_of_the_docs: None) -> None:
    if code.startswith("title = "):  # the file of a provider
        code = "[sources.acme]\nsecrets = ['a secret']\n" + as_own_provider(code, "acme")
    (in_folder / "old").write_text("whsec_old")
    (in_folder / "oncehook.toml").write_text(re.sub(r"file:/[^\"]+", "file:old", code))
    inbox = Inbox()
    assert set(inbox._runtime.sources) == set(load().sources)


def as_own_provider(code: str, name: str) -> str:
    """The file of a provider, as the table of one's own that it could be."""
    headings = re.sub(r"^(\[+)", rf"\1providers.{name}.", code, flags=re.MULTILINE)
    return f"[providers.{name}]\n{headings}"


@pytest.mark.parametrize("code", blocks("sh"))
def test_commands_in_the_docs_are_commands(code: str) -> None:
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["oncehook"]:
            command = importlib.import_module(f"oncehook.cli.{words[1]}").command
            command.make_context(words[1], words[2:]).close()
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line


@pytest.mark.parametrize("code", [block for block in blocks("sql") if "…" not in block.values[0]])
def test_sql_in_the_docs_runs_on_the_schema(code: str) -> None:
    connection = sqlite3.connect(":memory:")
    for _, _, sql in queries.migrations("sqlite"):
        connection.executescript(sql)
    for statement in filter(str.strip, code.split(";")):
        connection.execute(statement)
    connection.close()


# -- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", TEXTS)
def test_generated_blocks_are_current(page: str) -> None:
    assert generate.fill(TEXTS[page]) == TEXTS[page], "run `make docs`"


@pytest.mark.parametrize("page", TEXTS)
def test_every_relative_link_resolves(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(TEXTS[page])):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.read_text("utf-8")), target


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/cli.md", [f"oncehook {name}" for name in COMMANDS]),
        ("docs/settings.md", [f"`{field.name}`" for field in (*fields(Settings), *fields(SourceSettings))]),
        (
            "docs/settings.md",
            [f"{field.name}`" for cls in (DashboardSettings, UserSettings, TokenSettings) for field in fields(cls)],
        ),
        (
            "docs/settings.md",
            [f"{field.name}`" for cls in (AlertSettings, TargetSettings) for field in fields(cls) if field.metadata],
        ),
        ("docs/alerts.md", [f"`{rule.name}`" for rule in RULES]),
        ("docs/api.md", [f"`{endpoint.method} {endpoint.path}`" for endpoint in ENDPOINTS]),
        ("docs/logs.md", [f"`{line}`" for line in LOG_EVENTS]),
        ("docs/ack.md", [f"`{code}`" for code in ERRORS]),
        ("docs/lifecycle.md", [f"`{state}`" for state in State]),
        ("docs/effects.md", [f"`{state}`" for state in EffectState]),
        ("docs/providers.md", [f"### {name}" for name in providers.built_in_names()]),
        ("docs/testing.md", [f"`{name}" for name in testing.__all__]),
        (
            "docs/README.md",
            [f"]({page.name})" for page in PAGES if page.parent == ROOT / "docs" and page.stem != "README"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_everything_that_exists_is_documented(page: str, words: list[str]) -> None:
    assert [word for word in words if word not in TEXTS[page]] == []


def test_every_word_of_a_definition_is_documented() -> None:
    tables = [providers.Provider, providers.Signature, providers.Timestamp, providers.EventExpressions]
    tables += [providers.Handshake, providers.AckOverride, providers.Retries, providers.Example]
    words = {word for table in tables for word in table.__struct_fields__} - {"name"}
    text = TEXTS["docs/providers.md"].partition("## Built-in providers")[0]
    assert [word for word in sorted(words) if not re.search(rf"`(\w+\.)?{word}`", text)] == []


def test_the_event_in_json_is_documented_key_by_key() -> None:
    from oncehook.web.api.schemas.events import Event

    assert [name for name in Event.__struct_fields__ if f"`{name}`" not in TEXTS["docs/events.md"]] == []


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("README.md", f"at most {MAX_DUPLICATES} of a kind per receipt"),
        ("docs/claim.md", f"at most {MAX_DUPLICATES} per receipt"),
        ("docs/claim.md", f"longer than {MOST_BYTES} bytes"),
        ("docs/forwarding.md", f"up to {POLICY.attempts} attempts"),
        ("docs/forwarding.md", f"After {FAILURES} failures in a row"),
        ("docs/forwarding.md", f"paused: {FIRST_PAUSE:.0f} seconds"),
        ("docs/forwarding.md", f"up to {MOST_PAUSE / 60:.0f} minutes"),
        ("docs/forwarding.md", f"larger than {MOST_BODY // 1024} kB"),
        ("docs/effects.md", f"at most {MAX_ARGUMENT_BYTES // 1024} kB as JSON"),
        ("docs/effects.md", f"{EFFECT_TIMEOUT:.0f} seconds unless you set `timeout`"),
        ("docs/effects.md", f"lease is {MARGIN:.0f} seconds longer than the time limit"),
        ("docs/order.md", f"{FETCH_TIMEOUT:.0f} seconds unless you set `timeout`"),
        ("docs/alerts.md", f"for {INCIDENT_RETENTION / 86400:.0f} days"),
        ("docs/alerts.md", f"within {AlertSettings().every:.0f} seconds"),
        ("docs/alerts.md", f"at {AlertSettings().retries} percent (`retries`)"),
        ("docs/alerts.md", f"the newest {NEWEST:,} receipts"),
        ("docs/alerts.md", f"below its threshold for {AlertSettings().recover_after / 60:.0f} minutes"),
        ("docs/verify.md", f"alternatives, at most {MOST_SIGNATURES}"),
        ("docs/dashboard.md", f"Counts stop at {overview.MAX_COUNT:,}"),
        ("docs/dashboard.md", f"for {DashboardSettings().session_length / 3600:.0f} hours"),
        ("README.md", f"{WORDS[len(providers.built_in_names()) // 10]} others"),
        ("CHANGELOG.md", f"more than {WORDS[len(providers.built_in_names()) // 10]} of them as data"),
        ("docs/verify.md", f"within {providers.Timestamp().tolerance.removesuffix('s')} seconds of now"),
    ],
)
def test_a_number_in_prose_is_the_one_in_the_source(page: str, sentence: str) -> None:
    assert sentence in " ".join(TEXTS[page].split())


def test_the_picture_asks_no_other_host_for_anything() -> None:
    picture = (ROOT / "docs/images/demo.svg").read_text("utf-8")
    assert set(re.findall(r"https?://[^\s\"'<)]+", picture)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in picture and "@font-face" not in picture


# -- guarantees -----------------------------------------------------------------------------------------------------

BUILT = {f"R{number}" for number in (*range(1, 29), *range(31, 36))}
PROOF = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_promise_is_listed_with_tests_that_exist() -> None:
    sections = dict(
        re.findall(r"^### (R\d+)\b.*?\n(.*?)(?=^##|\Z)", TEXTS["docs/guarantees.md"], re.DOTALL | re.MULTILINE)
    )
    assert set(sections) == BUILT
    for promise, text in sections.items():
        proofs = PROOF.findall(text)
        assert proofs, promise
        assert [f"{file}::{test}" for file, test in proofs if test not in names_in(file)] == []


def test_every_promise_that_is_not_kept_yet_is_named() -> None:
    later = TEXTS["docs/guarantees.md"].partition("## Not built yet")[2]
    assert set(re.findall(r"\*\*(R\d+)\*\*", later)) == {f"R{number}" for number in range(1, 36)} - BUILT


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


# -- decisions ------------------------------------------------------------------------------------------------------

RECORDS = {name: text for name, text in TEXTS.items() if name.startswith("docs/decisions/")}
MOST_LINES = 50


def test_decision_records_are_numbered_without_a_gap() -> None:
    numbers = [int(Path(name).name.partition("-")[0]) for name in RECORDS]
    assert numbers and numbers == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("name", RECORDS)
def test_decision_record_has_its_four_parts_on_one_screen(name: str) -> None:
    text = RECORDS[name]
    assert text.startswith(f"# {Path(name).name.partition('-')[0]} ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Evidence", "Consequences"]
    assert all(part.strip() for part in re.split(r"^#.*$", text, flags=re.MULTILINE)[1:]), "a part is empty"
    assert len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", RECORDS)
def test_decision_record_is_listed_and_names_tests_that_exist(name: str) -> None:
    assert f"](decisions/{Path(name).name})" in TEXTS["docs/architecture.md"]
    for file in re.findall(r"`(tests/[\w/]+\.py)`", RECORDS[name]):
        assert (ROOT / file).is_file(), file
    assert [f"{file}::{test}" for file, test in PROOF.findall(RECORDS[name]) if test not in names_in(file)] == []


# -- dependencies ---------------------------------------------------------------------------------------------------


def test_every_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    pinned = {normal(line) for line in (ROOT / "requirements/dev.txt").read_text().splitlines() if line.strip()}
    brought = {normal(one) for name in pinned for one in metadata.requires(name) or () if "extra ==" not in one}
    direct = {normal(one) for one in wanted} | (pinned - brought)
    documented = {normal(name) for name in re.findall(r"`([\w-]+)`", TEXTS["docs/dependencies.md"])}
    assert sorted(direct - documented) == []


def normal(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return name[0].lower().replace("_", "-").replace(".", "-")


def test_no_committed_requirement_names_a_registry() -> None:
    for file in (ROOT / "requirements").iterdir():
        assert not re.search(r"://|--index|--extra|-i ", file.read_text()), file.name


def test_help_is_the_same_in_every_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "40")
    assert generate.commands().strip() in TEXTS["docs/cli.md"]


def test_columns_of_the_schema_command_are_current() -> None:
    assert generate.COLUMNS.read_text("utf-8") == schema.columns_json(), "run `make docs`"
