"""Pages of effects: filters, cursors and windows; and replays of failed effects."""

from typing import Any

import pytest

from oncehook import Fail, Inbox
from oncehook.model.effect import EffectFilter, StoredEffect
from oncehook.testing import drain
from oncehook.web import effects
from oncehook.web.effects import (
    EffectFilterForm,
    failed_effects,
    find_effect,
    list_effects,
    read_cursor,
    replay_effect,
)
from oncehook.web.page import Context, Problem
from tests.support.dashboard import both_databases, make_request, send

pytestmark = pytest.mark.anyio


@pytest.fixture
async def mailing(inbox: Inbox) -> Inbox:
    """Each customer gets an email, which fails, and a message, which succeeds. Two customers were created."""

    @inbox.effect
    async def mail(effect: Any, to: str) -> None:
        raise Fail("the mailbox is full")

    @inbox.subscribe("billing")
    async def billing(effect: Any, payload: Any) -> None: ...

    @inbox.on("stripe", "customer.created")
    async def created(event: Any) -> None:
        await event.effect(f"mail:{event.id}", mail, to="jane@example.com")
        await event.publish("billing", {}, key=f"billing:{event.id}")

    for event_id in ("evt_1", "evt_2"):
        await send(inbox, event_id, "customer.created")
        await drain(inbox)
    return inbox


async def stored(inbox: Inbox, **fields: Any) -> list[StoredEffect]:
    return await inbox._runtime.store.effects.find(EffectFilter(**fields), limit=100)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"status": "lost"}, "status must be one of waiting"),
        ({"receipt": "x"}, "receipt must be a number"),
        ({"key": "\0"}, "key is too long or is not valid text"),
    ],
)
def test_invalid_field_is_a_problem_that_names_it(fields: dict[str, str], message: str) -> None:
    with pytest.raises(Problem, match=message):
        EffectFilterForm.of(fields).parse()


def test_form_ignores_blanks_and_reads_the_receipt_as_a_number() -> None:
    form = EffectFilterForm.of({"receipt": " 7 ", "target": "mail", "cursor": "5"})
    assert form.non_empty() == {"receipt": "7", "target": "mail"}
    assert form.parse() == EffectFilter(receipt=7, target="mail")
    assert failed_effects(EffectFilterForm(target="mail", key="x")) == EffectFilter(target="mail", status="failed")


def test_cursor_is_the_id_of_the_last_effect() -> None:
    assert read_cursor("17") == 17 and read_cursor("") is None and read_cursor(None) is None
    with pytest.raises(Problem, match="The cursor is not valid"):
        read_cursor("x")


@both_databases
@pytest.mark.parametrize("condition", [EffectFilter(), EffectFilter(target="mail")], ids=["indexed", "searched"])
async def test_pages_follow_each_other_without_gaps(
    mailing: Inbox, condition: EffectFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "WINDOW", 1)
    expected = [row.id for row in await mailing._runtime.store.effects.find(condition, limit=100)]
    ids: list[int] = []
    cursor = None
    while True:
        page = await list_effects(mailing._runtime.store.effects, condition, cursor, limit=1)
        ids += [row.id for row in page.rows]
        cursor = page.next
        if cursor is None:
            break
    assert ids == expected and len(ids) == (4 if condition == EffectFilter() else 2)


async def test_search_that_runs_out_of_time_is_partial_and_continues(
    mailing: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "WINDOW", 1)
    monkeypatch.setattr(effects, "SECONDS", 0.0)
    condition, effects_store = EffectFilter(key="mail:evt_1"), mailing._runtime.store.effects
    pages = [await list_effects(effects_store, condition, None)]
    while pages[-1].next is not None:
        pages.append(await list_effects(effects_store, condition, pages[-1].next))
    assert [page.is_partial for page in pages] == [True] * (len(pages) - 1) + [False] and len(pages) > 1
    assert [row.key for page in pages for row in page.rows] == ["mail:evt_1"]


async def test_effect_is_found_by_its_id_or_reported_as_not_found(mailing: Inbox, context: Context) -> None:
    (row,) = await stored(mailing, key="mail:evt_1")
    assert (await find_effect(context, make_request(effect=str(row.id)))).key == "mail:evt_1"
    for id in ("99999", "x"):
        with pytest.raises(Problem, match="Effect not found"):
            await find_effect(context, make_request(effect=id))


@both_databases
async def test_only_a_failed_effect_can_be_replayed(mailing: Inbox, context: Context) -> None:
    (failed,), (done,) = await stored(mailing, key="mail:evt_1"), await stored(mailing, key="billing:evt_1")
    assert await replay_effect(context, make_request(effect=str(failed.id))) == failed.id
    assert [row.status for row in await stored(mailing, key="mail:evt_1")] == ["waiting"]
    with pytest.raises(Problem, match="The effect was not replayed: it is done"):
        await replay_effect(context, make_request(effect=str(done.id)))
