"""The app `oncehook` of a Django project."""

from django.apps import AppConfig


class OncehookConfig(AppConfig):
    """Builds the inbox when all models are loaded."""

    name = "oncehook.integrations.django"
    label = "oncehook"
    verbose_name = "Webhooks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from oncehook.integrations.django import checks  # noqa: F401  # registers the system checks
        from oncehook.integrations.django.instance import project

        project.load()
