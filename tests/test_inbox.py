"""Inbox: mounting, ASGI messages, and the arguments of its operations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncehook import ConfigurationError, Inbox
from oncehook.receiver.asgi import path_below_mount, source_name

pytestmark = [pytest.mark.anyio, pytest.mark.system]


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db", worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


@pytest.mark.parametrize(
    ("path", "root", "app_root", "below"),
    [
        ("/stripe", "", "", "/stripe"),
        ("/webhooks/stripe", "/webhooks", "", "/stripe"),
        ("/webhooks/stripe/", "/webhooks/", "", "/stripe/"),
        ("/webhooks", "/webhooks", "", ""),
        ("/webhooksother/stripe", "/webhooks", "", "/webhooksother/stripe"),
        ("/webhooks/stripe", "/proxy/webhooks", "/proxy", "/stripe"),
        ("/proxy/webhooks/stripe", "/proxy/webhooks", "/proxy", "/stripe"),
    ],
)
def test_the_path_is_relative_to_the_mount_point(path: str, root: str, app_root: str, below: str) -> None:
    assert path_below_mount({"path": path, "root_path": root, "app_root_path": app_root}) == below


def test_the_source_is_the_path_without_slashes() -> None:
    assert source_name({"path": "/webhooks/stripe/", "root_path": "/webhooks"}) == "stripe"


def messages(*types: str) -> Any:
    pending: Iterator[dict[str, str]] = iter([{"type": type_} for type_ in types])

    async def receive() -> dict[str, str]:
        return next(pending)

    return receive


async def test_the_lifespan_of_a_server_starts_and_stops_the_inbox(inbox: Inbox) -> None:
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(f"{message['type']} {inbox._runtime.is_running}")

    await inbox({"type": "lifespan"}, messages("lifespan.startup", "lifespan.shutdown"), send)
    assert sent == ["lifespan.startup.complete True", "lifespan.shutdown.complete False"]


async def test_a_failed_start_is_reported_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING_SECRET", raising=False)
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db", worker=False)
    inbox.source("stripe", secrets=["env:MISSING_SECRET"])
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await inbox({"type": "lifespan"}, messages("lifespan.startup"), send)
    (message,) = sent
    assert message["type"] == "lifespan.startup.failed" and "MISSING_SECRET" in message["message"]


async def test_a_websocket_is_closed(inbox: Inbox) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await inbox({"type": "websocket"}, messages("websocket.connect"), send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_source_cannot_be_added_twice(inbox: Inbox) -> None:
    with pytest.raises(ConfigurationError, match=r"sources\.stripe is defined twice"):
        inbox.source("stripe", secrets=["whsec_test"])


def test_secrets_must_be_a_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="secrets"):
        Inbox(f"sqlite:///{tmp_path}/inbox.db").source("stripe", secrets="whsec_test")


async def test_a_pause_of_zero_seconds_is_an_error(inbox: Inbox) -> None:
    with pytest.raises(ValueError, match="duration='0s'"):
        await inbox.pause("stripe", duration="0s")


async def test_a_replay_needs_either_receipts_or_a_filter(inbox: Inbox) -> None:
    for arguments, filters in (((), {}), ((1,), {"status": "failed"})):
        with pytest.raises(ValueError, match="either receipts or a filter"):
            await inbox.replay(*arguments, **filters)  # type: ignore[arg-type]


def test_code_cannot_set_the_targets_that_only_the_configuration_may_name(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"effect_targets": ["redis://me:hidden@127.0.0.1:6379"]}
    with pytest.raises(
        ConfigurationError, match=r"effect_targets cannot be set in code: write it in oncehook\.toml"
    ) as e:
        Inbox(f"sqlite:///{tmp_path}/a.db", **settings)
    assert "hidden" not in str(e.value)
