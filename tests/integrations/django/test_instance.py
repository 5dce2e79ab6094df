"""The inbox of a project: when it starts, and what it does in tests."""

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.signals import request_started
from django.test import Client, override_settings

from oncehook import ConfigurationError
from oncehook.integrations.django.instance import ProjectInbox, project
from oncehook.runtime import loop_thread
from tests.support.django_project import using_database
from tests.support.waiting import wait_until


def test_first_request_starts_the_inbox_of_a_web_process(sqlite: str) -> None:
    from django.conf import settings

    with override_settings(ONCEHOOK={**settings.ONCEHOOK, "worker": True}), using_database(sqlite) as inbox:
        assert Client().get("/nothing").status_code == 404
        wait_until(lambda: inbox.wsgi.thread.handover is not None, "the inbox starts")
        assert inbox._runtime.worker is not None
        inbox.wsgi.stop()


def test_later_request_starts_the_inbox_after_a_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from django.conf import settings

    empty = f"sqlite:///{tmp_path / 'inbox.db'}"
    with override_settings(ONCEHOOK={**settings.ONCEHOOK, "worker": True}), using_database(empty) as inbox:
        assert Client().get("/nothing").status_code == 404
        wait_until(lambda: "run `manage.py migrate`" in caplog.text, "the start fails without tables")
        call_command("migrate", "oncehook", verbosity=0)
        monkeypatch.setattr(loop_thread, "RETRY_SECONDS", 0.0)

        def runs() -> bool:
            assert Client().get("/nothing").status_code == 404
            return inbox.wsgi.thread.handover is not None

        wait_until(runs, "a later request starts the inbox")
        inbox.wsgi.stop()


def test_request_starts_nothing_in_a_test_whose_database_is_another(
    sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connections

    started: list[Any] = []
    with using_database(sqlite) as inbox:
        monkeypatch.setattr(inbox.wsgi.thread, "start_soon", lambda: started.append(inbox))
        connections["default"].settings_dict["NAME"] = "file:memorydb_default?mode=memory&cache=shared"
        project.start_in_background()
        assert started == []


def test_settings_that_cannot_be_used_are_logged_with_the_first_page(caplog: pytest.LogCaptureFixture) -> None:
    fresh = ProjectInbox()
    request_started.disconnect(dispatch_uid="oncehook")
    try:
        with override_settings(ONCEHOOK=["x"]):
            fresh.load()
        for _ in range(2):
            assert Client().get("/nothing").status_code == 404
    finally:
        request_started.disconnect(dispatch_uid="oncehook")
        request_started.connect(project.start_in_background, dispatch_uid="oncehook")
    assert caplog.text.count("the setting ONCEHOOK is a list: make it a dict") == 1


def test_inbox_says_why_it_does_not_exist() -> None:
    fresh = ProjectInbox()
    with pytest.raises(ImproperlyConfigured, match=r"add 'oncehook.integrations.django' to INSTALLED_APPS"):
        _ = fresh.inbox
    fresh.error = ConfigurationError("sorces is not a setting")
    with pytest.raises(ImproperlyConfigured, match="sorces is not a setting"):
        _ = fresh.inbox
