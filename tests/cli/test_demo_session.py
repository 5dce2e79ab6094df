"""The demo's session: senders show every behavior, and the guarantee holds."""

import asyncio
from base64 import b64decode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_private_key

from oncehook.cli.demo_screen import DemoSnapshot, LineOutput
from oncehook.cli.demo_session import DemoSession, make_keys
from oncehook.cli.demo_traffic import BEHAVIORS, SENDERS
from oncehook.cli.serve import listen
from tests.support.servers import run_sql

SOURCES = {sender.source for sender in SENDERS}

pytestmark = pytest.mark.system


restored_log = pytest.mark.usefixtures("lines")  # the demo configures the log of its process


class RecordingView(LineOutput):
    """A view that remembers the last snapshot."""

    def show(self, snapshot: DemoSnapshot) -> None:
        self.last = snapshot


@restored_log
def test_senders_show_every_behavior_and_the_guarantee_holds(tmp_path: Path) -> None:
    session, view = DemoSession(tmp_path, listen("127.0.0.1", 0), 150), RecordingView()
    assert asyncio.run(session.run(view, 3))
    counts, check = view.last.counts, view.last.check
    assert all(counts.behaviors[name] for name in BEHAVIORS), counts.behaviors
    assert counts.rejected.total() == sum(counts.behaviors[name] for name in ("forged", "stale", "malformed"))
    assert set(view.last.receipts) == SOURCES
    assert check.acked == check.receipts == counts.accepted.total() + counts.ignored.total()
    assert counts.unavailable.total() == 0
    assert {receipt.source for receipt in view.last.latest} <= SOURCES
    database = f"sqlite:///{tmp_path / 'oncehook.db'}"
    for table in ("effects", "entities", "email_events", "email_status"):  # every page has something to show
        assert run_sql(database, f"SELECT count(*) FROM webhook_{table}")[0][0] > 0, table


@restored_log
def test_demo_reports_an_acked_event_without_a_receipt(tmp_path: Path) -> None:
    session, view = DemoSession(tmp_path, listen("127.0.0.1", 0), 20), RecordingView()
    session.log.acked.add((SENDERS[0].source, "evt_without_a_receipt"))
    assert not asyncio.run(session.run(view, 1)), "a broken guarantee must be the demo's exit code"
    assert view.last.check.acked == view.last.check.receipts + 1


def test_each_source_has_new_keys() -> None:
    first, second = make_keys(), make_keys()
    assert first.keys() == SOURCES and all(first[name] != second[name] for name in SOURCES)
    assert all(signing == verifying for name, (signing, verifying) in first.items() if name != "sendgrid")


def test_the_keys_of_sendgrid_are_a_pair() -> None:
    private, public = make_keys()["sendgrid"]
    key = load_pem_private_key(private.encode(), None)
    assert load_der_public_key(b64decode(public)) == key.public_key()


def test_the_files_of_the_demo_are_private_and_its_database_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEHOOK_DATABASE", "sqlite:///precious.db")
    with listen("127.0.0.1", 0) as listener:
        session = DemoSession(tmp_path, listener, 20)
    assert session.inbox._runtime.settings.database == f"sqlite:///{tmp_path}/oncehook.db"
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}, "the files hold secrets"
    assert session.inbox._runtime.sources.keys() == SOURCES
