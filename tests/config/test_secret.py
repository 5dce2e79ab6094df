"""Secrets are read when the inbox starts: a module with sources can be imported where no secret is set."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from oncehook import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.model.states import State
from tests.support.command_line import Run, run_process
from tests.support.events import make_claim, stripe_body, stripe_headers
from tests.support.work import claim_and_settle

UNSET = "sources.stripe.secrets[0] is empty: set SHOP_SECRET in the environment or in .env, or remove the source"
HOOKS = """
from oncehook import Inbox

inbox = Inbox("sqlite:///shop.db")
inbox.source("stripe", secrets=["env:SHOP_SECRET"])

@inbox.on("stripe", "*")
async def handle(event): ...
"""


@pytest.fixture
def shop(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEHOOK_CONFIG", raising=False)
    (in_folder / "hooks.py").write_text(HOOKS)
    facts = {"status": State.FAILED, "outcome": "failed", "error": "x"}
    claim_and_settle(lambda **given: Inbox("sqlite:///shop.db", **given), make_claim("evt_1"), **facts)


@pytest.mark.anyio
async def test_each_start_reads_the_current_secret(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["env:SHOP_SECRET"])
    with pytest.raises(ConfigurationError) as caught:
        await inbox.start()
    assert str(caught.value) == UNSET and not inbox._runtime.is_running
    for secret in ("whsec_test", "whsec_new"):
        monkeypatch.setenv("SHOP_SECRET", secret)
        body = stripe_body("evt_" + secret)
        async with (
            inbox.lifespan(),
            httpx.AsyncClient(transport=httpx.ASGITransport(inbox), base_url="http://test") as client,
        ):
            answer = await client.post("/stripe", content=body, headers=stripe_headers(body, secret))
            forged = await client.post("/stripe", content=body, headers=stripe_headers(body, "whsec_wrong"))
        assert (answer.status_code, forged.status_code) == (202, 401)


@pytest.mark.anyio
async def test_delivery_before_the_start_is_not_accepted(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["env:SHOP_SECRET"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(inbox), base_url="http://test") as client:
        assert (await client.post("/stripe", content=b"{}")).status_code == 503


@pytest.mark.anyio
async def test_lifespan_of_the_app_raises_if_a_secret_is_missing(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["env:SHOP_SECRET"])
    app = FastAPI(lifespan=inbox.lifespan)
    with pytest.raises(ConfigurationError) as caught:
        async with app.router.lifespan_context(app):
            pass
    assert str(caught.value) == UNSET


def test_serve_and_worker_name_the_missing_secret_and_exit(shop: None, in_folder: Path) -> None:
    for command in (("serve", "hooks:inbox", "--port", "0"), ("worker", "hooks:inbox")):
        done = run_process(*command, cwd=in_folder)
        assert (done.returncode, done.stderr) == (2, f"oncehook: {UNSET}\n")
        assert done.stdout == ""


def test_command_that_needs_no_secret_runs_without_it(run: Run, shop: None) -> None:
    for command in (("events",), ("show", "evt_1"), ("dead",), ("stats",), ("replay", "evt_1", "--yes")):
        assert run(*command, "--app", "hooks:inbox").code == 0, command


def test_command_that_needs_a_secret_names_the_missing_one(run: Run, in_folder: Path) -> None:
    (in_folder / "oncehook.toml").write_text('[sources.stripe]\nsecrets = ["env:SHOP_SECRET"]\n')
    claim_and_settle(lambda **given: Inbox("sqlite:///oncehook.db", **given), make_claim("evt_1"))
    for command in (("secrets",), ("send", "stripe", "invoice.paid")):
        ran = run(*command)
        assert ran.code == 2 and "set SHOP_SECRET in the environment" in ran.error, command
    doctor = run("doctor")
    assert doctor.code == 1 and f"wrong  {UNSET}" in doctor.out


FILE = """
[sources.stripe]
secrets = ["whsec_test"]
forward = "https://example.com/"
forward_secret = "env:FORWARD_SECRET"

[alerts.targets.chat]
slack = "env:SLACK_URL"
"""


@pytest.mark.anyio
async def test_forward_secrets_and_alert_addresses_are_read_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "oncehook.toml").write_text(f'database = "sqlite:///{tmp_path}/a.db"\n{FILE}')
    inbox = Inbox(config=str(tmp_path / "oncehook.toml"))
    with pytest.raises(ConfigurationError, match="set FORWARD_SECRET in the environment"):
        await inbox.start()
    monkeypatch.setenv("FORWARD_SECRET", "whsec_" + "QUJD" * 8)
    with pytest.raises(ConfigurationError, match="set SLACK_URL in the environment"):
        await inbox.start()
    monkeypatch.setenv("SLACK_URL", "https://example.com/services/x")
    async with inbox.lifespan():
        assert inbox._runtime.is_running
