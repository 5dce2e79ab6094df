"""Secrets are read when the inbox starts: a module that names them can be imported where none of them is set."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from oncehook import Event, Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.model.states import State
from oncehook.testing import deliver, drain, isolated
from tests.support.command_line import Run, run_process
from tests.support.events import make_claim, stripe_body, stripe_headers
from tests.support.http_target import receiving
from tests.support.work import claim_and_settle

UNSET = "sources.stripe.secrets[0] is empty: set SHOP_SECRET in the environment or in .env, or remove the source"
HOOKS = """
from oncehook import Inbox

inbox = Inbox("sqlite:///shop.db")
inbox.source("stripe", secrets=["env:SHOP_SECRET"])

@inbox.on("stripe", "*")
async def handle(event): ...
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOP_SECRET", "FORWARD_SECRET", "VERIFY_TOKEN", "SLACK_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shop(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEHOOK_CONFIG", raising=False)
    (in_folder / "hooks.py").write_text(HOOKS)
    facts = {"status": State.FAILED, "outcome": "failed", "error": "x"}
    claim_and_settle(lambda **given: Inbox("sqlite:///shop.db", **given), make_claim("evt_1"), **facts)


@pytest.mark.anyio
async def test_each_start_reads_the_secret_as_it_is_then(
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
async def test_a_delivery_before_the_start_is_not_taken(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["env:SHOP_SECRET"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(inbox), base_url="http://test") as client:
        assert (await client.post("/stripe", content=b"{}")).status_code == 503


@pytest.mark.anyio
async def test_the_lifespan_of_the_app_that_mounts_it_raises(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["env:SHOP_SECRET"])
    app = FastAPI(lifespan=inbox.lifespan)
    with pytest.raises(ConfigurationError) as caught:
        async with app.router.lifespan_context(app):
            pass
    assert str(caught.value) == UNSET


def test_serve_and_worker_say_it_and_end(shop: None, in_folder: Path) -> None:
    for command in (("serve", "hooks:inbox", "--port", "0"), ("worker", "hooks:inbox")):
        done = run_process(*command, cwd=in_folder)
        assert (done.returncode, done.stderr) == (2, f"oncehook: {UNSET}\n")
        assert done.stdout == ""


def test_commands_that_need_no_secret_run_without_it(run: Run, shop: None) -> None:
    for command in (("events",), ("show", "evt_1"), ("dead",), ("stats",), ("replay", "evt_1", "--yes")):
        assert run(*command, "--app", "hooks:inbox").code == 0, command


def test_commands_that_need_it_say_which_is_missing(run: Run, in_folder: Path) -> None:
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
async def test_what_signs_a_forward_and_where_alerts_go_are_read_at_the_start_too(
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


@pytest.mark.anyio
async def test_an_isolated_inbox_needs_no_secret(tmp_path: Path) -> None:
    yours = Inbox(f"sqlite:///{tmp_path}/yours.db")
    yours.source("stripe", secrets=["env:SHOP_SECRET"])
    yours.source("paypal", secrets=["env:SHOP_SECRET"], webhook_id="1")
    yours.source("meta", secrets=["env:SHOP_SECRET"], verify_token="env:VERIFY_TOKEN")
    handled: list[str] = []

    @yours.on("stripe", "*")
    @yours.on("paypal", "*")
    @yours.on("meta", "*")
    async def handle(event: Event) -> None:
        handled.append(event.source)

    inbox = isolated(yours, f"sqlite:///{tmp_path}/test.db")
    async with inbox.lifespan():
        for source in ("stripe", "paypal", "meta"):
            assert (await deliver(inbox, source)).outcome[1] == "accepted"
        await drain(inbox)
    assert sorted(handled) == ["meta", "paypal", "stripe"]


@pytest.mark.anyio
async def test_an_isolated_inbox_signs_what_it_forwards_with_a_secret_of_the_test(tmp_path: Path) -> None:
    async with receiving() as receiver:
        (tmp_path / "oncehook.toml").write_text(
            f'[sources.stripe]\nsecrets = ["env:SHOP_SECRET"]\nforward = "{receiver.url}"\n'
            'forward_secret = "env:FORWARD_SECRET"\n'
        )
        yours = Inbox(config=str(tmp_path / "oncehook.toml"))
        inbox = isolated(yours, f"sqlite:///{tmp_path}/test.db")
        async with inbox.lifespan():
            await deliver(inbox, "stripe", type="invoice.paid")
            await drain(inbox)
        (request,) = receiver.requests
        assert request.headers["webhook-signature"].startswith("v1,")


@pytest.mark.anyio
async def test_a_handler_added_to_an_isolated_inbox_is_not_added_to_yours(tmp_path: Path) -> None:
    yours = Inbox(f"sqlite:///{tmp_path}/yours.db")
    yours.source("stripe", secrets=["whsec_test"])
    isolated(yours, f"sqlite:///{tmp_path}/test.db").on("stripe", "*")(lambda event: None)
    assert list(yours._runtime.handlers) == []
