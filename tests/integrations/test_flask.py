"""The Flask extension: where the inbox is mounted, and the app context of handlers and effects."""

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, current_app, g, has_request_context

from oncehook import ConfigurationError, Effect, Event, Inbox, Retry, SyncEvent
from oncehook.integrations.flask import Oncehook
from oncehook.testing import Bench, isolated
from tests.support.events import stripe_body, stripe_headers
from tests.support.waiting import wait_until


@pytest.fixture
def inbox(sqlite: str) -> Iterator[Inbox]:
    inbox = Inbox(sqlite, poll="50ms")
    inbox.source("stripe", secrets=["whsec_test"])
    yield inbox
    inbox.wsgi.stop()


def make_app(name: str = "shop") -> Flask:
    app = Flask(name)
    app.get("/")(lambda: "the shop")
    return app


def deliver(app: Flask, event_id: str, type_: str = "invoice.paid", path: str = "/webhooks/stripe") -> Any:
    body = stripe_body(event_id, type_)
    return app.test_client().post(path, data=body, headers=stripe_headers(body))


def test_extension_mounts_the_inbox_and_leaves_other_paths_to_the_app(inbox: Inbox) -> None:
    app = make_app()
    app.before_request(lambda: ("this hook would break signatures", 500))
    Oncehook(app, inbox)
    assert deliver(app, "evt_1").json["status"] == "accepted"
    assert deliver(app, "evt_1", path="/webhooks/stripe/").json["status"] == "duplicate"
    assert deliver(app, "evt_1", path="/webhooks/unknown").json["error"]["code"] == "unknown_source"
    assert deliver(app, "evt_1", path="/webhooksother/stripe").status_code == 500, "the app answers"
    assert app.extensions["oncehook"] is inbox


def test_factory_creates_apps_with_another_prefix(inbox: Inbox) -> None:
    extension = Oncehook(inbox=inbox, url_prefix="hooks/in/")
    first, second = make_app(), make_app()
    extension.init_app(first)
    extension.init_app(second)
    assert deliver(first, "evt_1", path="/hooks/in/stripe").status_code == 202
    assert deliver(second, "evt_1", path="/hooks/in/stripe").status_code == 200
    assert first.test_client().get("/").text == "the shop"


def test_page_of_the_app_starts_the_inbox_so_that_waiting_events_are_handled(inbox: Inbox) -> None:
    app = make_app()
    Oncehook(app, inbox)
    assert not inbox._runtime.is_running
    assert app.test_client().get("/").text == "the shop"
    wait_until(lambda: inbox.wsgi.thread.handover is not None, "the inbox has started")


def test_handlers_and_effects_have_the_context_of_the_app_and_no_request(inbox: Inbox) -> None:
    app, seen = make_app("shop"), []

    def note(what: str) -> None:
        seen.append((what, current_app.name, has_request_context(), g.setdefault("calls", 1)))

    @inbox.on("stripe", "plain.*")
    def plain(event: SyncEvent) -> None:
        note("plain")
        event.effect("mail", mail)

    @inbox.on("stripe", "async.*", retry=Retry(attempts=1))
    async def in_loop(event: Event) -> None:
        note("async")
        raise ValueError("the context ends with the call")

    @inbox.effect
    def mail(effect: Effect) -> None:
        note("effect")

    Oncehook(app, inbox)
    deliver(app, "evt_1", "plain.one")
    deliver(app, "evt_2", "async.one")
    deliver(app, "evt_3", "async.two")
    wait_until(lambda: len(seen) == 4, "all functions were called")
    assert sorted(seen) == [
        ("async", "shop", False, 1),
        ("async", "shop", False, 1),
        ("effect", "shop", False, 1),
        ("plain", "shop", False, 1),
    ]


def test_inline_handler_has_the_context_of_the_app_and_no_request(sqlite: str) -> None:
    inbox, app, seen = Inbox(sqlite), make_app("shop"), []
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        seen.append((current_app.name, has_request_context()))

    Oncehook(app, inbox)
    with app.test_request_context("/"):  # a caller that has a request in its thread
        assert deliver(app, "evt_1").json["status"] == "processed"
    inbox.wsgi.stop()
    assert seen == [("shop", False)]


def test_isolated_copy_of_the_inbox_has_the_context_too(inbox: Inbox, sqlite: str) -> None:
    seen: list[str] = []

    @inbox.on("stripe", "*")
    def handle(event: SyncEvent) -> None:
        seen.append(current_app.name)

    Oncehook(make_app("shop"), inbox)
    with Bench(isolated(inbox, sqlite)) as bench:
        bench.deliver("stripe")
        bench.drain()
    assert seen == ["shop"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"url_prefix": "/"}, "url_prefix is empty"), ({"inbox": None}, "has no inbox")],
)
def test_extension_that_cannot_work_says_what_to_do(inbox: Inbox, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Oncehook(make_app(), **{"inbox": inbox, **arguments})


def test_app_has_the_extension_once(inbox: Inbox) -> None:
    app = make_app()
    Oncehook(app, inbox)
    with pytest.raises(ConfigurationError, match="already"):
        Oncehook(app, inbox)
