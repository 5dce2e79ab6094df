"""Read-only models of the tables that an app may read. Oncehook itself never uses them."""

from datetime import datetime
from typing import Any

from django.db import models

from oncehook.integrations.django.instance import project
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339


class ReadOnly(Exception):
    """A model of Oncehook cannot be saved or deleted: its rows are changed by the inbox alone."""

    def __init__(self) -> None:
        super().__init__("the tables of the inbox are read-only: use inbox.replay, inbox.pause or `manage.py oncehook`")


class TimestampField(models.DateTimeField):
    """A time. On SQLite, the tables contain RFC 3339 texts, which sort as times."""

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        value = super().get_db_prep_value(value, connection, prepared) if connection.vendor != "sqlite" else value
        return rfc3339(self.to_python(value)) if connection.vendor == "sqlite" and value is not None else value

    def to_python(self, value: Any) -> datetime | None:
        moment: datetime | None = super().to_python(value)
        return moment


class ReadOnlyQuerySet(models.QuerySet):
    """Queries without the methods that write."""

    def _refuse(self, *args: Any, **keywords: Any) -> Any:
        raise ReadOnly

    create = get_or_create = update_or_create = bulk_create = bulk_update = update = delete = _refuse
    acreate = aget_or_create = aupdate_or_create = abulk_create = abulk_update = aupdate = adelete = _refuse


class InboxManager(models.Manager.from_queryset(ReadOnlyQuerySet)):  # type: ignore[misc]
    """Reads from the database of the inbox, whichever database the routers choose."""

    def get_queryset(self) -> Any:
        return super().get_queryset().using(project.using)


class InboxModel(models.Model):
    """Base of the models. Their tables belong to the migrations of Oncehook."""

    objects = InboxManager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **keywords: Any) -> None:
        raise ReadOnly

    def delete(self, *args: Any, **keywords: Any) -> Any:
        raise ReadOnly


def text(**options: Any) -> Any:
    return models.TextField(**options)


def optional_text() -> Any:
    return models.TextField(null=True, blank=True)


def optional_time() -> Any:
    return TimestampField(null=True, blank=True)


class Event(InboxModel):
    """An event, with its state: one row per event and consumer."""

    id = models.BigIntegerField("receipt", primary_key=True)
    source = text()
    provider = text()
    tenant = text(blank=True)
    event_id = text()
    type = optional_text()
    object_id = optional_text()
    delivery_id = optional_text()
    occurred_at = optional_time()
    received_at = TimestampField()
    correlation_id = optional_text()
    consumer = text()
    origin = optional_text()
    main_id = models.BigIntegerField(null=True)
    status = text(choices=[(state.value, state.value) for state in State])
    attempts = models.IntegerField()
    replays = models.IntegerField()
    next_attempt_at = optional_time()
    processed_at = optional_time()
    failed_at = optional_time()
    replayed_at = optional_time()
    unhandled_at = optional_time()
    handler = optional_text()
    version = optional_text()
    worker = optional_text()
    last_error = optional_text()

    class Meta:
        managed = False
        db_table = "webhook_receipts"
        ordering = ("-received_at", "-id")
        default_permissions = ("view",)
        permissions = (
            ("replay_event", "Can replay events"),
            ("rehearse_event", "Can rehearse events"),
            ("view_payload", "Can see payloads"),
        )

    def __str__(self) -> str:
        return f"{self.type or self.source} {self.event_id}"

    @property
    def payload_receipt(self) -> int:
        """The receipt that has the payload and the duplicates."""
        receipt: int = self.main_id or self.id
        return receipt


class Attempt(InboxModel):
    """An attempt to handle an event."""

    id = models.BigIntegerField(primary_key=True)
    receipt = models.ForeignKey(Event, models.DO_NOTHING, db_constraint=False, related_name="attempt_set")
    number = models.IntegerField()
    started_at = TimestampField()
    ended_at = optional_time()
    outcome = text()
    error = optional_text()
    traceback = optional_text()
    handler = optional_text()
    version = optional_text()
    worker = optional_text()

    class Meta:
        managed = False
        db_table = "webhook_attempts"
        ordering = ("started_at", "number")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"attempt {self.number}: {self.outcome}"


class Effect(InboxModel):
    """An effect that a handler requested."""

    id = models.BigIntegerField(primary_key=True)
    scope = text()
    key = text()
    kind = text()
    target = text()
    source = text()
    receipt = models.ForeignKey(Event, models.DO_NOTHING, db_constraint=False, related_name="effects")
    status = text()
    attempts = models.IntegerField()
    created_at = TimestampField()
    next_attempt_at = optional_time()
    done_at = optional_time()
    last_error = optional_text()

    class Meta:
        managed = False
        db_table = "webhook_effects"
        ordering = ("-created_at", "-id")
        default_permissions = ("view",)

    def __str__(self) -> str:
        key: str = self.key
        return key


class AuditEntry(InboxModel):
    """An action of a person, such as a replay."""

    id = models.BigIntegerField(primary_key=True)
    at = TimestampField()
    actor = text()
    action = text()
    detail = text()

    class Meta:
        managed = False
        db_table = "webhook_audit"
        ordering = ("-at", "-id")
        default_permissions = ("view",)
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"

    def __str__(self) -> str:
        return f"{self.actor}: {self.action}"
