"""Suppressions as the dashboard and the API list and change them."""

import pytest

from oncehook.web.email import change_suppression, list_suppressions
from oncehook.web.page import Context, Problem
from tests.support.dashboard import both_databases, make_request
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


@both_databases
async def test_pages_are_ordered_by_address_and_searched_without_case(context: Context) -> None:
    for n in range(7):
        await context.runtime.email.suppress(f"user{n}@example.com", actor="import")
    first, cursor = await list_suppressions(context, "", "", 5)
    assert cursor == "user4@example.com"
    second, end = await list_suppressions(context, "", cursor, 5)
    assert [row["address"] for row in first + second] == [f"user{n}@example.com" for n in range(7)] and end is None
    assert (await list_suppressions(context, "", "", 7))[1] is None, "a full page may be the last"
    assert [row["address"] for row in (await list_suppressions(context, "USER3", "", 5))[0]] == ["user3@example.com"]


async def test_change_is_recorded_with_its_actor_and_note(context: Context, rows: Rows) -> None:
    request = make_request("user:otto")
    added = await change_suppression(context, request, " jane@Example.COM ", "asked by phone", remove=False)
    assert (added["address"], added["note"], added["actor"]) == ("jane@example.com", "asked by phone", "user:otto")
    removed = await change_suppression(context, request, "jane@example.com", "", remove=True)
    assert removed["since"] is None and await context.runtime.email.can_send("jane@example.com")
    actions = rows("SELECT actor, action FROM webhook_audit ORDER BY id")
    assert actions == [("user:otto", "suppress"), ("user:otto", "allow")]


@pytest.mark.parametrize("address", ["no address", "", "a@b.c, d@e.f"])
async def test_text_that_is_no_address_is_a_problem(context: Context, address: str) -> None:
    with pytest.raises(Problem, match="This is not a valid email address") as error:
        await change_suppression(context, make_request(), address, "", remove=False)
    assert (error.value.status, error.value.code) == (422, "bad_address")


async def test_note_must_be_valid_text_of_500_characters(context: Context) -> None:
    for note in ("\0", "x" * 501):
        with pytest.raises(Problem, match="note is too long or is not valid text"):
            await change_suppression(context, make_request(), "jane@example.com", note, remove=False)
