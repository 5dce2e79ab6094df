"""Django: handlers use the ORM, and their work commits with the processed status, in the project's own database.

Add `oncehook.integrations.django` to `INSTALLED_APPS`, and write handlers in the `webhooks.py` of any app:

    from oncehook.integrations.django import inbox
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncehook.inbox import Inbox

    inbox: Inbox

__all__ = ["inbox"]


def __getattr__(name: str) -> Any:
    if name == "inbox":
        from oncehook.integrations.django.instance import get_inbox  # Django imports this module before its apps exist

        return get_inbox()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
