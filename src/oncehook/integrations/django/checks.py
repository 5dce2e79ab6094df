"""System checks of the inbox, which `manage.py check` and most commands run. The ids are in docs/django.md."""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Tags, Warning, register
from django.core.checks import Error as CheckError
from django.db import Error, connections, router

from oncehook.integrations.django.instance import project
from oncehook.model.errors import ConfigurationError
from oncehook.store import queries

NETWORK_DISKS = ("9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "nfs", "smb", "vboxsf", "virtiofs")
MOUNTS = Path("/proc/mounts")


@register("oncehook")
def check_settings(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """Report settings that the inbox cannot use, and those with which it would not work as expected."""
    if project.error is not None:
        return [CheckError(str(project.error), id="oncehook.E001")]
    return [*_check_handlers(), *_check_models(), *_check_disk(), *_check_secrets(Warning, "oncehook.W003")]


@register("oncehook", deploy=True)
def check_deployment(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """With `check --deploy`, a missing secret is an error: the inbox would not start."""
    return [] if project.error is not None else list(_check_secrets(CheckError, "oncehook.E002"))


@register("oncehook", Tags.database)
def check_pooler(app_configs: Any, databases: Sequence[str] | None = None, **options: Any) -> list[CheckMessage]:
    """Report settings that do not work behind PgBouncer. This connects, so it runs only with `check --database`."""
    using = project.using
    if project.error is not None or using not in (databases or ()) or connections[using].vendor != "postgresql":
        return []
    settings = connections[using].settings_dict
    found = []
    if _is_pooled(using) and settings.get("CONN_MAX_AGE") != 0:
        found.append(
            Warning(
                f"DATABASES[{using!r}] has CONN_MAX_AGE {settings['CONN_MAX_AGE']!r} behind a pooler: each handler "
                f"would keep one of its connections",
                hint="Set CONN_MAX_AGE to 0: the pooler keeps connections open.",
                id="oncehook.W004",
            )
        )
    if _is_pooled(using) and not settings.get("DISABLE_SERVER_SIDE_CURSORS"):
        found.append(
            Warning(
                f"DATABASES[{using!r}] has server-side cursors behind a pooler, which loses them between statements",
                hint="Set DISABLE_SERVER_SIDE_CURSORS to True.",
                id="oncehook.W005",
            )
        )
    return found


def _check_handlers() -> Iterator[CheckMessage]:
    """Find handlers that no event can reach, with which the inbox does not start.

    A source that the settings do not have may be a managed one. Only the database has those, so it is a warning.
    """
    runtime = project.inbox._runtime
    known = {name: source.settings.types for name, source in runtime.sources.items()}
    unknown = {handler.source: handler for handler in runtime.handlers if handler.source not in known}
    for source, handler in unknown.items():
        yield Warning(
            f"{handler.name} is for source {source!r}, which is not in ONCEHOOK['sources']: the sources are "
            f"{', '.join(sorted(known)) or 'none'}",
            hint=f"Add it there or with `manage.py oncehook sources add {source}`: without it, no inbox starts.",
            id="oncehook.W006",
        )
    try:
        runtime.handlers.check({**dict.fromkeys(unknown), **known})
    except ConfigurationError as error:
        yield CheckError(str(error), id="oncehook.E001")


def _check_models() -> Iterator[CheckMessage]:
    """Find models of apps with a `webhooks.py` that are written to another database than the inbox."""
    for app in apps.get_app_configs():
        if app.label == "oncehook" or importlib.util.find_spec(f"{app.name}.webhooks") is None:
            continue
        for model in app.get_models():
            alias = router.db_for_write(model)
            if alias != project.using and not model._meta.proxy:
                yield Warning(
                    f"{model._meta.label} is written to the database {alias!r}, and the inbox is in {project.using!r}: "
                    f"your writes would not be exactly once",
                    hint=f"Set ONCEHOOK['using'] to {alias!r}, or do not write this model in a handler.",
                    obj=model,
                    id="oncehook.W001",
                )


def _check_disk() -> Iterator[CheckMessage]:
    connection = connections[project.using]
    kind = network_disk(Path(str(connection.settings_dict["NAME"]))) if connection.vendor == "sqlite" else None
    if kind is not None:
        yield Warning(
            f"the SQLite file of DATABASES[{project.using!r}] is on a network disk ({kind}), where locks and durable "
            f"commits do not work",
            hint="Move the file to a local disk, or use PostgreSQL.",
            id="oncehook.W002",
        )


def network_disk(file: Path) -> str | None:
    """Return the kind of the network disk that has a file, or None if it is on a local disk or that is not known."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:  # not Linux
        return None
    path = file.absolute()
    holding = [(Path(mount[1]), mount[2]) for mount in mounts if len(mount) > 2 and path.is_relative_to(mount[1])]
    kind = max(holding, key=lambda mount: len(mount[0].parts), default=(path, ""))[1]
    return kind if kind.startswith(NETWORK_DISKS) else None


def _check_secrets(level: Any, name: str) -> Iterator[CheckMessage]:
    runtime = project.inbox._runtime
    for source in runtime.sources.values():
        try:
            source.load_secrets()
        except ConfigurationError as error:
            yield level(str(error), hint="The inbox does not start without it.", id=name)


def _is_pooled(using: str) -> bool:
    """Whether a pooler answers in place of the server. It reports another process id than the server does."""
    connection = connections.create_connection(using)
    try:
        with connection.cursor() as cursor:
            cursor.execute(queries.load("postgres")["backend_pid"])
            (process,) = cursor.fetchone()
        driver = connection.connection
        reported = driver.info.backend_pid if hasattr(driver, "pgconn") else driver.get_backend_pid()
        return bool(process != reported)
    except Error:
        return False
    finally:
        connection.close()
