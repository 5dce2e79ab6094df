"""Secret rotation: which secret can be removed, and which was removed too early."""

import pytest

from oncehook.model.rows import SecretUse
from oncehook.operations.rotation import list_secrets, removed_secret
from tests.support.rejections import make_source


@pytest.mark.parametrize(
    ("days", "advice"), [(1, "keep it until 3 days have passed"), (6, "last used 6 days ago: safe to remove")]
)
def test_old_secret_is_safe_to_remove_after_it_was_unused_for_longer_than_the_provider_retries(
    days: int, advice: str
) -> None:
    source = make_source(secrets=["whsec_new", "whsec_old"])
    new, old = source.fingerprints
    now, first = "2026-11-15T00:00:00.000000Z", "2026-11-01T00:00:00.000000Z"
    used = [
        SecretUse("stripe", new, 5, first, "2026-11-14T23:59:00.000000Z", now),
        SecretUse("stripe", old, 5, first, f"2026-11-{15 - days:02d}T00:00:00.000000Z", now),
    ]
    assert advice in list_secrets([source], used)[1]["advice"]


NOW, FIRST = "2026-11-15T00:00:00.000000Z", "2026-11-01T00:00:00.000000Z"


def make_use(secret: str, last_used_at: str, verified: int = 5) -> SecretUse:
    return SecretUse("stripe", secret, verified, FIRST, last_used_at, NOW)


def test_secret_that_was_used_after_all_configured_ones_was_removed_too_early() -> None:
    source = make_source(secrets=["whsec_new"])
    (new,) = source.fingerprints
    uses = [make_use(new, "2026-11-10T00:00:00.000000Z"), make_use("0ld", "2026-11-14T12:30:00.000000Z", 1)]
    removed = removed_secret(source, uses)
    assert removed is not None and removed.sentence == (
        "No delivery was verified since 2026-11-14 12:30:00 UTC. The secret 0ld, which verified 1 delivery until then, "
        "is no longer configured."
    )
    assert removed_secret(source, uses[:1]) is None
    later = make_use(new, "2026-11-14T23:00:00.000000Z")
    assert removed_secret(source, [later, uses[1]]) is None, "the new secret has verified a delivery since"


def test_uses_of_another_source_and_unverified_sources_do_not_count() -> None:
    source = make_source(secrets=["whsec_new"])
    other = SecretUse("github", "0ld", 5, FIRST, "2026-11-14T00:00:00.000000Z", NOW)
    assert removed_secret(source, [other]) is None
    unverified = make_source(secrets=[], verify="none")
    assert removed_secret(unverified, [make_use("0ld", "2026-11-14T00:00:00.000000Z")]) is None
    assert list_secrets([unverified], []) == []


def test_list_has_configured_secrets_in_order_and_then_removed_ones() -> None:
    source = make_source(secrets=["whsec_new", "whsec_old"])
    new, old = source.fingerprints
    uses = [make_use(new, "2026-11-14T23:00:00.000000Z"), make_use("0ld", "2026-11-02T00:00:00.000000Z", 3)]
    rows = list_secrets([source], uses)
    assert [(row["secret"], row["mark"], row["verified"]) for row in rows] == [
        (0, new, 5),
        (1, old, 0),
        (None, "0ld", 3),
    ]
    assert [row["advice"] for row in rows] == [
        "in use", "never used: newly added, or safe to remove", "no longer configured"
    ]  # fmt: skip


def test_single_secret_is_in_use_or_not_used_yet() -> None:
    source = make_source(secrets=["whsec_new"])
    assert list_secrets([source], [])[0]["advice"] == "not used yet"
    assert list_secrets([source], [make_use(source.fingerprints[0], FIRST)])[0]["advice"] == "in use"
