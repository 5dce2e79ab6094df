"""Samples of rejected requests and uses of secrets, on every store."""

import pytest

from oncehook.model.delivery import Rejection
from oncehook.store.rows import MAX_REJECTIONS
from oncehook.store.store import Store

pytestmark = pytest.mark.anyio


def make_rejection(detail: str = "no match", source: str = "stripe") -> Rejection:
    return Rejection(
        source=source, tenant="", reason="bad_signature", detail=detail, method="POST", query="a=1",
        headers='{"x":"y"}', body=b"\x00body", size=5,
    )  # fmt: skip


async def test_sample_is_stored_with_all_its_fields(store: Store) -> None:
    await store.rejections.keep(make_rejection())
    (row,) = await store.rejections.find()
    assert (row.source, row.reason, row.detail, row.method) == ("stripe", "bad_signature", "no match", "POST")
    assert (row.query, row.headers, row.body, row.size) == ("a=1", '{"x":"y"}', b"\x00body", 5)
    assert row.rejected_at.endswith("Z")


async def test_only_the_newest_samples_of_a_source_are_kept(store: Store) -> None:
    await store.rejections.keep(make_rejection("of another source", source="github"))
    for number in range(MAX_REJECTIONS + 3):
        await store.rejections.keep(make_rejection(str(number)))
    samples = await store.rejections.find("stripe", limit=100)
    assert [row.detail for row in samples] == [str(n) for n in reversed(range(3, MAX_REJECTIONS + 3))]
    assert len(await store.rejections.find("github")) == 1


async def test_find_returns_up_to_the_limit_newest_first(store: Store) -> None:
    for number in range(5):
        await store.rejections.keep(make_rejection(str(number)))
    assert [row.detail for row in await store.rejections.find(limit=2)] == ["4", "3"]


async def test_uses_of_a_secret_are_added_up(store: Store) -> None:
    await store.rejections.note_secrets({("stripe", "a"): 2, ("stripe", "b"): 1})
    await store.rejections.note_secrets({("stripe", "a"): 3})
    uses = {(row.source, row.secret): row for row in await store.rejections.secrets_used()}
    assert {key: row.verified for key, row in uses.items()} == {("stripe", "a"): 5, ("stripe", "b"): 1}
    first = uses["stripe", "a"]
    assert first.first_used_at <= first.last_used_at <= first.now
