"""Creates the tables of the inbox from Oncehook's own SQL, as `oncehook migrate` does.

The models are not managed by Django: their rows show what Oncehook's migrations create.
"""

from django.db import migrations, models

from oncehook.integrations.django.schema import RunMigration

ID = ("id", models.BigIntegerField(primary_key=True, serialize=False))


def unmanaged(name: str, table: str, **options: object) -> migrations.CreateModel:
    return migrations.CreateModel(
        name=name,
        fields=[ID],
        options={"db_table": table, "managed": False, "default_permissions": ("view",), **options},
    )


class Migration(migrations.Migration):
    """Migration 001 of Oncehook."""

    initial = True
    dependencies = ()
    operations = (
        RunMigration(1),
        unmanaged(
            "Event",
            "webhook_receipts",
            ordering=("-received_at", "-id"),
            permissions=(
                ("replay_event", "Can replay events"),
                ("rehearse_event", "Can rehearse events"),
                ("view_payload", "Can see payloads"),
            ),
        ),
        unmanaged("Attempt", "webhook_attempts", ordering=("started_at", "number")),
        unmanaged("Effect", "webhook_effects", ordering=("-created_at", "-id")),
        unmanaged(
            "AuditEntry",
            "webhook_audit",
            ordering=("-at", "-id"),
            verbose_name="audit entry",
            verbose_name_plural="audit log",
        ),
    )
