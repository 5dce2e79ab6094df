"""`oncehook init`: the written files work with `serve`, `send` and `pytest` without changes."""

import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.config.configuration import load
from oncehook.config.secret import in_env_file, resolve
from oncehook.model.errors import ConfigurationError
from tests.support.command_line import Run
from tests.support.serve import ONCEHOOK, process
from tests.support.waiting import wait_until

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEHOOK", "PYTEST", "STRIPE"))}


def oncehook(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(ONCEHOOK), *arguments], cwd=folder, env=CLEAN, capture_output=True, text=True, check=False, timeout=60
    )


def test_init_serve_and_send_work_without_further_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRIPE_WEBHOOK_SECRET", raising=False)  # a value in the environment would override .env
    written = oncehook(tmp_path, "init", "stripe")
    assert written.returncode == 0, written.stderr
    assert "oncehook send stripe invoice.paid" in written.stdout
    with process(tmp_path / "oncehook.toml", cwd=tmp_path) as running:
        sent = oncehook(tmp_path, "send", "stripe", "invoice.paid", "--port", str(running.port))
        assert sent.returncode == 0 and "accepted" in sent.stdout, sent.stdout + sent.stderr
        wait_until(
            lambda: '"status": "done"' in oncehook(tmp_path, "effects", "--json").stdout,
            "the effect of the handler runs",
        )
        shown = oncehook(tmp_path, "events", "--json")
        assert '"status": "processed"' in shown.stdout


@pytest.mark.rest
def test_the_written_test_passes_without_changes(tmp_path: Path) -> None:
    oncehook(tmp_path, "init", "stripe")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=tmp_path, env=CLEAN, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize("provider", ["github", "sendgrid", "meta", "ses", "twilio", "standard-webhooks"])
def test_the_configuration_of_other_providers_is_valid(provider: str, tmp_path: Path) -> None:
    assert oncehook(tmp_path, "init", provider).returncode == 0
    assert load(tmp_path / "oncehook.toml").settings.app == "hooks:inbox"
    known = oncehook(tmp_path, "migrate")  # imports the app, which checks its source
    assert known.returncode == 0, known.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("provider", ["mailgun", "twilio", "shopify"])
def test_the_handler_matches_every_type_if_no_type_of_the_provider_is_known(provider: str, tmp_path: Path) -> None:
    assert oncehook(tmp_path, "init", provider).returncode == 0
    hooks = (tmp_path / "hooks.py").read_text()
    assert f'@inbox.on("{provider}", "*")\nasync def on_event(' in hooks


def test_the_secret_is_private_and_existing_lines_are_kept(tmp_path: Path, run: Run) -> None:
    (tmp_path / ".env").write_text("OTHER=1")
    assert run("init", "stripe", "--folder", str(tmp_path / "new")).code == 0
    assert stat.S_IMODE((tmp_path / "new" / ".env").stat().st_mode) == 0o600
    assert run("init", "stripe", "--folder", str(tmp_path)).code == 0
    lines = (tmp_path / ".env").read_text().splitlines()
    assert lines[0] == "OTHER=1" and lines[1].startswith("STRIPE_WEBHOOK_SECRET=")
    again = run("init", "stripe", "--folder", str(tmp_path))
    assert again.code == 1 and ".env already has STRIPE_WEBHOOK_SECRET: not changed" in again.error
    assert (tmp_path / ".env").read_text().splitlines() == lines


def test_an_unknown_provider_is_reported_and_nothing_is_written(run: Run, in_folder: Path) -> None:
    ran = run("init", "services/webhooks")
    assert ran.code == 2 and "--folder" in ran.error and list(in_folder.iterdir()) == []


def test_a_secret_is_read_from_the_environment_before_the_env_file(
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


def test_init_never_overwrites_a_file(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "services" / "webhooks"
    ran = run("init", "--folder", str(target))
    assert ran.code == 0 and "oncehook serve" in ran.out
    assert load(target / "oncehook.toml").settings.database == "sqlite:///oncehook.db"
    compile((target / "hooks.py").read_text(), "hooks.py", "exec")
    (target / "hooks.py").write_text("mine")
    ran = run("init", "--folder", str(target))
    assert ran.code == 1 and "not changed" in ran.error
    assert (target / "hooks.py").read_text() == "mine"
    (target / "oncehook.toml").unlink()
    assert run("init", "--folder", str(target)).code == 0
    assert (target / "hooks.py").read_text() == "mine"


def test_init_prints_a_source_only_if_the_configuration_lacks_it(run: Run, in_folder: Path) -> None:
    assert run("init", "stripe").code == 0
    again = run("init", "stripe")
    assert again.code == 1 and "Add to" not in again.error, "the source is there already"
    other = run("init", "github")
    assert "Add to oncehook.toml" in other.error and "[sources.github]" in other.error


def test_the_commented_examples_are_a_valid_configuration(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", "--folder", str(tmp_path))
    file = tmp_path / "oncehook.toml"
    lines = file.read_text().splitlines()
    code = [line[2:] if line.startswith("# ") and ("=" in line or line.startswith("# [")) else line for line in lines]
    tomllib.loads("\n".join(code))
    file.write_text("\n".join(line for line in code if not line.startswith(("Every", "Secrets"))))
    for name in ("STRIPE_WEBHOOK_SECRET", "GITHUB_WEBHOOK_SECRET", "STRIPE_TEST_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "whsec_x")
    monkeypatch.setenv("FORWARD_SECRET", "whsec_c2lnbnMgd2hhdCBpcyBmb3J3YXJkZWQ=")
    monkeypatch.setenv("SLACK_ALERTS_URL", "https://chat.example.com/hook")
    inbox = Inbox(config=str(file))
    assert sorted(inbox._runtime.sources) == ["github", "stripe", "stripe-test"] and list(
        inbox._runtime.alerts.settings.targets
    ) == ["chat"]
