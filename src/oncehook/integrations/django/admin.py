"""Events in Django's admin: search and filter them, read one with its attempts and effects, replay and rehearse."""

import json
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html

from oncehook.integrations.django import operations
from oncehook.integrations.django.instance import project
from oncehook.integrations.django.models import Attempt, AuditEntry, Effect, Event
from oncehook.model.errors import OncehookError

MAX_COUNTED = 10_000
"""How many events a list counts: a longer count would read a large table for every page."""

MAX_SHOWN = 100_000
"""How many characters of a payload the page shows."""


FACTS = (
    ("status", "attempts", "replays"),
    ("source", "type", "object_id"),
    ("received_at", "processed_at", "next_attempt_at"),
    "last_error",
)
DETAILS = (
    ("id", "event_id", "delivery_id"),
    ("provider", "tenant", "consumer"),
    ("occurred_at", "replayed_at", "failed_at"),
    ("handler", "version", "worker"),
    ("correlation_id", "origin", "main_id"),
    "unhandled_at",
)
"""The fields of the page of an event, in rows."""


class LimitedPaginator(Paginator):
    """Counts up to MAX_COUNTED rows."""

    @cached_property
    def count(self) -> int:
        number: int = self.object_list[: MAX_COUNTED + 1].count()
        return number


class ReadOnlyAdmin(admin.ModelAdmin):
    """A list and a page without forms."""

    paginator = LimitedPaginator
    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyInline(admin.TabularInline):
    """Rows of the event's page. A user who may see the event may see them."""

    fk_name = "receipt"
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return True


class AttemptInline(ReadOnlyInline):
    """The attempts of an event."""

    model = Attempt
    fields = readonly_fields = ("number", "outcome", "started_at", "ended_at", "handler", "version", "error")


class EffectInline(ReadOnlyInline):
    """The effects that the handler of an event requested."""

    model = Effect
    fields = readonly_fields = ("key", "target", "status", "attempts", "done_at", "last_error")


class SourceFilter(admin.SimpleListFilter):
    """The sources of the inbox. To list those of the table would read all its rows."""

    title = parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted(project.inbox._runtime.sources)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(source=self.value()) if self.value() else queryset


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    """Events, with replay and rehearse."""

    list_display = ("received_at", "source", "type", "event_id", "object_id", "status", "attempts", "last_error")
    list_display_links = ("event_id",)
    list_filter = ("status", SourceFilter, "received_at")
    search_fields = ("event_id__exact", "object_id__exact", "type__startswith")
    search_help_text = "An event id, an object id, or the beginning of a type"
    inlines = (AttemptInline, EffectInline)
    actions = ("replay_selected", "rehearse_selected")
    change_form_template = "admin/oncehook/event/change_form.html"

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[str | None, dict[str, Any]]]:
        if not request.user.has_perm("oncehook.view_payload"):
            return [(None, {"fields": FACTS}), ("Details", {"fields": DETAILS, "classes": ("collapse",)})]
        return [
            (None, {"fields": FACTS}),
            ("Payload", {"fields": ("payload", "headers"), "classes": ("collapse",)}),
            ("Details", {"fields": DETAILS, "classes": ("collapse",)}),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*(field.name for field in Event._meta.fields), "payload", "headers"]

    # -- the payload ----------------------------------------------------------------------------------------------

    @admin.display(description="payload")
    def payload(self, event: Event) -> str:
        """The body, formatted if it is JSON."""
        return _shown(lambda payload: _pretty(payload.body), event)

    @admin.display(description="headers")
    def headers(self, event: Event) -> str:
        """The headers of the delivery, without credentials."""
        return _shown(lambda payload: "\n".join(f"{name}: {value}" for name, value in payload.headers.items()), event)

    # -- replay and rehearse --------------------------------------------------------------------------------------

    def has_replay_permission(self, request: HttpRequest) -> bool:
        """Whether the user may replay events."""
        return bool(request.user.has_perm("oncehook.replay_event"))

    def has_rehearse_permission(self, request: HttpRequest) -> bool:
        """Whether the user may rehearse events."""
        return bool(request.user.has_perm("oncehook.rehearse_event"))

    @admin.action(description="Replay the selected events", permissions=["replay"])
    def replay_selected(self, request: HttpRequest, queryset: Any) -> None:
        """Queue the selected events to be handled again."""
        self._replay(request, list(queryset.values_list("id", flat=True)))

    @admin.action(description="Rehearse the selected events (all is rolled back)", permissions=["rehearse"])
    def rehearse_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        """Show what the handlers of the selected events would do."""
        return self._rehearse(request, list(queryset.values_list("id", flat=True)))

    def get_urls(self) -> list[Any]:
        return [
            path("<int:receipt>/replay/", self.admin_site.admin_view(self.replay_view), name="oncehook_event_replay"),
            path(
                "<int:receipt>/rehearse/",
                self.admin_site.admin_view(self.rehearse_view),
                name="oncehook_event_rehearse",
            ),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        extra = {
            "may_replay": self.has_replay_permission(request),
            "may_rehearse": self.has_rehearse_permission(request),
        }
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **extra})

    def replay_view(self, request: HttpRequest, receipt: int) -> HttpResponse:
        """Replay one event, from its page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_replay_permission(request):
            raise PermissionDenied
        self._replay(request, [receipt])
        return HttpResponseRedirect(reverse("admin:oncehook_event_change", args=[receipt]))

    def rehearse_view(self, request: HttpRequest, receipt: int) -> HttpResponse:
        """Rehearse one event, from its page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_rehearse_permission(request):
            raise PermissionDenied
        return self._rehearse(request, [receipt])

    def _replay(self, request: HttpRequest, receipts: list[int]) -> None:
        try:
            done = operations.replay(receipts, actor=f"django:{request.user.get_username()}")
        except OncehookError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        left = "; ".join(f"{reason}: {count}" for reason, count in done.left.items() if count)
        text = f"{done.count} queued to be handled again." + (f" Not queued: {left}." if left else "")
        self.message_user(request, text, messages.SUCCESS if done.count else messages.WARNING)

    def _rehearse(self, request: HttpRequest, receipts: list[int]) -> HttpResponse:
        try:
            rehearsals = operations.rehearse(receipts)
        except OncehookError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(reverse("admin:oncehook_event_changelist"))
        context = {
            **self.admin_site.each_context(request),
            "title": "Rehearsal",
            "opts": Event._meta,
            "rehearsals": rehearsals,
            "left_out": len(receipts) - len(rehearsals),
        }
        return TemplateResponse(request, "admin/oncehook/event/rehearsal.html", context)


def _shown(read: Any, event: Event) -> str:
    try:
        payload = operations.read_payload(event.payload_receipt)
    except OncehookError as error:
        return str(error)
    text = "" if payload is None else read(payload)
    if len(text) > MAX_SHOWN:
        text = text[:MAX_SHOWN] + "\n… `manage.py oncehook show --raw` prints all of it"
    shown: str = "The payload was pruned." if payload is None else format_html("<pre>{}</pre>", text)
    return shown


def _pretty(body: bytes) -> str:
    text = body.decode("utf-8", "backslashreplace")
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


@admin.register(Effect)
class EffectAdmin(ReadOnlyAdmin):
    """Effects."""

    list_display = ("created_at", "key", "target", "status", "attempts", "last_error")
    list_display_links = ("key",)
    list_filter = ("created_at",)
    search_fields = ("key__startswith",)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """The audit log."""

    list_display = ("at", "actor", "action", "detail")
    search_fields = ("actor__exact", "action__exact")
