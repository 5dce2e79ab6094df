"""The inbox starts and stops with an ASGI server."""

from typing import Any

import pytest

from oncehook import ConfigurationError
from oncehook.integrations.django.asgi import with_lifespan
from oncehook.integrations.django.instance import project
from tests.support.django_project import using_database

pytestmark = pytest.mark.anyio


async def run_lifespan(app: Any, sent: list[Any], while_running: Any) -> None:
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, str]:
        kind = next(messages)
        if kind == "lifespan.shutdown":
            while_running()
        return {"type": kind}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)


async def test_inbox_runs_from_the_start_of_the_server_to_its_end(django_inbox: Any) -> None:
    sent: list[Any] = []
    running: list[bool] = []
    await run_lifespan(with_lifespan(None), sent, lambda: running.append(django_inbox._runtime.is_running))
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert (running, django_inbox._runtime.is_running) == ([True], False)


@pytest.mark.without_schema
async def test_server_does_not_start_with_a_wrong_configuration(database: str) -> None:
    sent: list[Any] = []
    with using_database(database):
        await run_lifespan(with_lifespan(None), sent, lambda: None)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert sent[0]["message"] == "the database schema is out of date: run `manage.py migrate`"


async def test_server_does_not_start_with_settings_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(project, "error", ConfigurationError("the setting ONCEHOOK is a list: make it a dict"))
    await run_lifespan(with_lifespan(None), sent, lambda: None)
    assert sent == [{"type": "lifespan.startup.failed", "message": "the setting ONCEHOOK is a list: make it a dict"}]


async def test_other_requests_are_those_of_django() -> None:
    passed: list[Any] = []

    async def django(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    await with_lifespan(django)({"type": "http"}, None, None)  # type: ignore[arg-type]
    assert passed == ["http"]
