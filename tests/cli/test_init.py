"""`oncehook init PROVIDER`: what it writes is served, sent to and tested with nothing else."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oncehook.config.configuration import load
from oncehook.config.secret import in_env_file, resolve
from oncehook.model.errors import ConfigurationError
from tests.support.command_line import Run
from tests.support.serve import ONCEHOOK, process

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEHOOK", "PYTEST", "STRIPE"))}


def oncehook(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(ONCEHOOK), *arguments], cwd=folder, env=CLEAN, capture_output=True, text=True, check=False, timeout=60
    )


def test_init_serve_and_send_work_with_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRIPE_WEBHOOK_SECRET", raising=False)  # another test may have set it; .env has the one to use
    written = oncehook(tmp_path, "init", "stripe")
    assert written.returncode == 0, written.stderr
    assert "oncehook send stripe invoice.paid" in written.stdout
    with process(tmp_path / "oncehook.toml", cwd=tmp_path) as running:
        sent = oncehook(tmp_path, "send", "stripe", "invoice.paid", "--port", str(running.port))
        assert sent.returncode == 0 and "accepted" in sent.stdout, sent.stdout + sent.stderr
        deadline = time.monotonic() + 20
        while '"status": "done"' not in (effects := oncehook(tmp_path, "effects", "--json")).stdout:
            assert time.monotonic() < deadline, effects.stdout + effects.stderr
            time.sleep(0.1)
        shown = oncehook(tmp_path, "events", "--json")
        assert '"status": "processed"' in shown.stdout


def test_written_test_passes_as_it_is(tmp_path: Path) -> None:
    oncehook(tmp_path, "init", "stripe")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=tmp_path, env=CLEAN, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout


@pytest.mark.parametrize("provider", ["github", "sendgrid", "meta", "ses", "twilio", "standard-webhooks"])
def test_other_providers_are_loaded_and_checked(provider: str, tmp_path: Path) -> None:
    assert oncehook(tmp_path, "init", provider).returncode == 0
    assert load(tmp_path / "oncehook.toml").settings.app == "hooks:inbox"
    known = oncehook(tmp_path, "migrate")  # which imports the app, and so its source
    assert known.returncode == 0, known.stderr


@pytest.mark.parametrize("provider", ["mailgun", "twilio", "shopify"])
def test_handler_takes_every_type_where_no_type_of_the_provider_is_known(provider: str, tmp_path: Path) -> None:
    assert oncehook(tmp_path, "init", provider).returncode == 0
    hooks = (tmp_path / "hooks.py").read_text()
    assert f'@inbox.on("{provider}", "*")\nasync def on_event(' in hooks


def test_secret_is_private_and_what_is_there_is_left(tmp_path: Path, run: Run) -> None:
    (tmp_path / ".env").write_text("OTHER=1")
    assert run("init", "stripe", "--folder", str(tmp_path / "new")).code == 0
    assert stat.S_IMODE((tmp_path / "new" / ".env").stat().st_mode) == 0o600
    assert run("init", "stripe", "--folder", str(tmp_path)).code == 0
    lines = (tmp_path / ".env").read_text().splitlines()
    assert lines[0] == "OTHER=1" and lines[1].startswith("STRIPE_WEBHOOK_SECRET=")
    again = run("init", "stripe", "--folder", str(tmp_path))
    assert again.code == 1 and ".env already has STRIPE_WEBHOOK_SECRET: not changed" in again.error
    assert "[sources.stripe]" in again.error  # what to add to a configuration that is there already
    assert (tmp_path / ".env").read_text().splitlines() == lines


def test_unknown_provider_is_a_sentence(run: Run, in_folder: Path) -> None:
    ran = run("init", "services/webhooks")
    assert ran.code == 2 and "--folder" in ran.error and list(in_folder.iterdir()) == []


def test_variable_is_read_from_the_environment_then_from_the_file(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "# FIRST=comment\nFIRST = one\nexport SECOND='two words'\nTHIRD=\"a=b\"\nFIRST=last\nEMPTY=\nno line\n"
    (in_folder / ".env").write_text(text)
    assert [resolve(f"env:{name}", "here") for name in ("FIRST", "SECOND", "THIRD")] == ["last", "two words", "a=b"]
    monkeypatch.setenv("FIRST", "from the environment")
    assert resolve("env:FIRST", "here") == "from the environment"
    for missing in ("EMPTY", "NOWHERE"):
        with pytest.raises(ConfigurationError, match=rf"set {missing} in the environment or in \.env"):
            resolve(f"env:{missing}", "here")
    assert in_env_file("FIRST", in_folder / "missing") is None


def test_init_writes_files_that_only_their_owner_can_read(run: Run, in_folder: Path) -> None:
    before = os.umask(0o022)
    try:
        assert run("init").code == 0
    finally:
        os.umask(before)
    assert {(in_folder / name).stat().st_mode & 0o777 for name in ("oncehook.toml", "hooks.py")} == {0o600}
