"""The pages of the documentation are complete, current and correctly linked."""

import re
from dataclasses import fields

import pytest

from docs import diagrams, generate, schema
from oncehook import testing
from oncehook.alerts.monitor import INCIDENT_RETENTION
from oncehook.alerts.rules import NEWEST, RULES
from oncehook.alerts.settings import AlertSettings, TargetSettings
from oncehook.cli import COMMANDS
from oncehook.config.settings import Settings, SourceSettings
from oncehook.effects.effect import EFFECT_TIMEOUT, MAX_ARGUMENT_BYTES
from oncehook.effects.relay import MARGIN
from oncehook.handlers.canonical import FETCH_TIMEOUT
from oncehook.handlers.forward import POLICY
from oncehook.http_client.circuit_breaker import FAILURES, FIRST_PAUSE, MAX_PAUSE
from oncehook.http_client.client import MAX_RESPONSE_BODY
from oncehook.model.effect import EffectState
from oncehook.model.states import State
from oncehook.observability.log_events import LOG_EVENTS
from oncehook.providers import definition as providers
from oncehook.providers.expressions import MAX_BYTES
from oncehook.providers.families.template import MAX_SIGNATURES
from oncehook.receiver.ack import ERRORS
from oncehook.store.rows import MAX_DUPLICATES
from oncehook.web import overview
from oncehook.web.api import ENDPOINTS
from oncehook.web.api.schemas.events import Event
from oncehook.web.settings import DashboardSettings, TokenSettings, UserSettings
from tests.support import ROOT
from tests.support.documentation import PAGES, anchors, without_code

TENS = {5: "fifty", 6: "sixty", 7: "seventy"}


@pytest.mark.parametrize("page", PAGES)
def test_generated_blocks_are_current(page: str) -> None:
    assert generate.fill(PAGES[page]) == PAGES[page], "run `make docs`"


def test_columns_of_the_schema_command_are_current() -> None:
    assert generate.COLUMNS.read_text("utf-8") == schema.columns_json(), "run `make docs`"


def test_diagrams_are_current() -> None:
    for path, svg in diagrams.files().items():
        assert path.read_text("utf-8") == svg, f"{path.name}: run `make docs`"
        assert path.name in PAGES["docs/exactly-once.md"]


def test_command_help_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert generate.commands().strip() in PAGES["docs/cli.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_resolves(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(PAGES[page])):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(file.read_text("utf-8")), f"{target}: the page has no such heading"


@pytest.mark.parametrize("page", [name for name in PAGES if name.startswith("docs/")])
def test_source_file_that_a_page_names_exists(page: str) -> None:
    paths = re.findall(r"`((?:\w+/)+\w+\.(?:py|sql|toml))`", PAGES[page])
    folders = (ROOT, ROOT / "src" / "oncehook")
    assert [path for path in paths if not any((folder / path).is_file() for folder in folders)] == []


@pytest.mark.parametrize(
    ("page", "entries"),
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
        ("docs/logs.md", [f"`{name}`" for name in LOG_EVENTS]),
        ("docs/ack.md", [f"`{code}`" for code in ERRORS]),
        ("docs/lifecycle.md", [f"`{state}`" for state in State]),
        ("docs/effects.md", [f"`{state}`" for state in EffectState]),
        ("docs/providers.md", [f"### {name}" for name in providers.built_in_names()]),
        ("docs/testing.md", [f"`{name}" for name in testing.__all__]),
        (
            "docs/README.md",
            [f"]({page.name})" for page in (ROOT / "docs").glob("*.md") if page.stem != "README"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_page_documents_everything_that_exists(page: str, entries: list[str]) -> None:
    assert [entry for entry in entries if entry not in PAGES[page]] == []


def test_every_key_of_a_provider_definition_is_documented() -> None:
    tables = [providers.Provider, providers.Signature, providers.Timestamp, providers.EventExpressions]
    tables += [providers.Handshake, providers.AckOverride, providers.Retries, providers.Example]
    keys = {key for table in tables for key in table.__struct_fields__} - {"name"}
    text = PAGES["docs/providers.md"].partition("## Built-in providers")[0]
    assert [key for key in sorted(keys) if not re.search(rf"`(\w+\.)?{key}`", text)] == []


def test_every_json_key_of_an_event_is_documented() -> None:
    assert [name for name in Event.__struct_fields__ if f"`{name}`" not in PAGES["docs/events.md"]] == []


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("README.md", f"at most {MAX_DUPLICATES} of a kind per receipt"),
        ("docs/claim.md", f"at most {MAX_DUPLICATES} per receipt"),
        ("docs/claim.md", f"longer than {MAX_BYTES} bytes"),
        ("docs/forwarding.md", f"up to {POLICY.attempts} attempts"),
        ("docs/forwarding.md", f"After {FAILURES} failures in a row"),
        ("docs/forwarding.md", f"open for {FIRST_PAUSE:.0f} seconds"),
        ("docs/forwarding.md", f"up to {MAX_PAUSE / 60:.0f} minutes"),
        ("docs/forwarding.md", f"larger than {MAX_RESPONSE_BODY // 1024} kB"),
        ("docs/effects.md", f"at most {MAX_ARGUMENT_BYTES // 1024} kB as JSON"),
        ("docs/effects.md", f"{EFFECT_TIMEOUT:.0f} seconds unless you set `timeout`"),
        ("docs/effects.md", f"lease is {MARGIN:.0f} seconds longer than the time limit"),
        ("docs/order.md", f"{FETCH_TIMEOUT:.0f} seconds unless you set `timeout`"),
        ("docs/alerts.md", f"for {INCIDENT_RETENTION / 86400:.0f} days"),
        ("docs/alerts.md", f"within {AlertSettings().every:.0f} seconds"),
        ("docs/alerts.md", f"at {AlertSettings().retries} percent (`retries`)"),
        ("docs/alerts.md", f"the newest {NEWEST:,} receipts"),
        ("docs/alerts.md", f"below its threshold for {AlertSettings().recover_after / 60:.0f} minutes"),
        ("docs/verify.md", f"alternatives, at most {MAX_SIGNATURES}"),
        ("docs/dashboard.md", f"Counts stop at {overview.MAX_COUNT:,}"),
        ("docs/dashboard.md", f"for {DashboardSettings().session_length / 3600:.0f} hours"),
        ("README.md", f"{TENS[len(providers.built_in_names()) // 10]} others"),
        ("CHANGELOG.md", f"more than {TENS[len(providers.built_in_names()) // 10]} of them as data"),
        ("docs/verify.md", f"within {providers.Timestamp().tolerance.removesuffix('s')} seconds of now"),
    ],
)
def test_number_in_prose_matches_the_source(page: str, sentence: str) -> None:
    assert sentence in " ".join(PAGES[page].split())


def test_picture_of_the_demo_loads_nothing_from_other_hosts() -> None:
    picture = (ROOT / "docs/images/demo.svg").read_text("utf-8")
    assert set(re.findall(r"https?://[^\s\"'<)]+", picture)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in picture and "@font-face" not in picture
