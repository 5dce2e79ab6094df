"""The system checks of the Django integration."""

from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import router

from oncehook import ConfigurationError
from oncehook.integrations.django import checks
from oncehook.integrations.django.instance import project
from tests.support.django_project import using_database
from tests.support.django_shop import webhooks
from tests.support.servers import Postgres, private_pgbouncer


def check_messages(**options: Any) -> list[tuple[str | None, str]]:
    return [(message.id, message.msg) for message in run_checks(tags=["oncehook"], **options)]


def test_project_without_a_mistake_has_no_finding(sqlite: str) -> None:
    with using_database(sqlite):
        assert check_messages(include_deployment_checks=True) == []


def test_mistake_in_the_settings_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "error", ConfigurationError("sorces is not a setting"))
    assert check_messages() == [("oncehook.E001", "sorces is not a setting")]


def test_handler_for_a_source_that_the_settings_do_not_have_is_a_warning(sqlite: str) -> None:
    with using_database(sqlite) as inbox:
        inbox.on("strpe", "*")(handle)
        ((name, text),) = check_messages()
    assert name == "oncehook.W006"
    assert text.endswith("handle is for source 'strpe', which is not in ONCEHOOK['sources']: the sources are stripe")


def test_handler_for_a_type_that_its_source_never_accepts_is_an_error(sqlite: str) -> None:
    with using_database(sqlite) as inbox:
        inbox.source("github", secrets=["x" * 20], types=["push"])
        inbox.on("github", "issues.*")(handle)
        ((name, text),) = check_messages()
    assert (name, "which sources.github.types never accepts" in text) == ("oncehook.E001", True)


def handle(event: Any) -> None: ...


def test_secret_that_is_not_set_is_a_warning_and_an_error_of_a_deployment(sqlite: str) -> None:
    with using_database(sqlite) as inbox:
        inbox.source("github", secrets=["env:NO_SUCH_SECRET"])
        expected = "sources.github.secrets[0]"
        ((warning, text),) = check_messages()
        assert (warning, text.startswith(expected)) == ("oncehook.W003", True)
        assert [name for name, _ in check_messages(include_deployment_checks=True)] == [
            "oncehook.W003",
            "oncehook.E002",
        ]


class OtherDatabase:
    """A router that writes the shop's models to another database."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "django_shop" else None


def test_model_in_another_database_is_a_warning(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert webhooks.__doc__
    with using_database(sqlite):
        monkeypatch.setattr(router, "routers", [OtherDatabase()])
        findings = check_messages()
    assert [name for name, _ in findings] == ["oncehook.W001"] * 2
    assert findings[0][1] == (
        "django_shop.Invoice is written to the database 'other', and the inbox is in 'default': your writes would not "
        "be exactly once"
    )


def test_sqlite_on_a_network_disk_is_a_warning(sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nfiler:/data {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(checks, "MOUNTS", mounts)
    with using_database(sqlite):
        ((name, text),) = check_messages()
    assert (name, "on a network disk (nfs4)" in text) == ("oncehook.W002", True)


def test_persistent_connections_behind_a_pooler_are_a_warning(postgres: Postgres) -> None:
    address = postgres.database(migrated=True)
    with private_pgbouncer(postgres) as bouncer:
        with using_database(bouncer.url(address), CONN_MAX_AGE=60):
            assert [name for name, _ in check_messages(databases=["default"])] == ["oncehook.W004", "oncehook.W005"]
            assert check_messages(databases=[]) == [], "without --database, no check connects"
        with using_database(bouncer.url(address), CONN_MAX_AGE=0, DISABLE_SERVER_SIDE_CURSORS=True):
            assert check_messages(databases=["default"]) == []
    with using_database(address, CONN_MAX_AGE=60):
        assert check_messages(databases=["default"]) == []
