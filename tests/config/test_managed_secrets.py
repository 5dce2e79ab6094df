"""The secrets of a managed source: rotation, and the text that the key ring seals."""

import pytest

from oncehook.config.keyring import KeyRing, KeyRingError, KeyWrong, read_keys
from oncehook.config.managed_secrets import (
    MAX_SECRETS,
    ManagedSecret,
    ManagedSecrets,
    check_value,
    new_secrets,
    open_secrets,
    source_context,
    tenant_context,
)
from oncehook.model.errors import ConfigurationError
from tests.support.managed import KEY, OTHER_KEY

DAY_1, DAY_2, DAY_3 = (f"2026-11-1{n}T00:00:00.000000Z" for n in range(3))


def values(secrets: ManagedSecrets, now: str) -> list[str]:
    return [secret.value for secret in secrets.active(now)]


def test_rotation_keeps_the_older_secret_until_its_end() -> None:
    secrets = new_secrets(["old"], DAY_1).rotated("new", DAY_1, DAY_2)
    assert values(secrets, DAY_1) == ["new", "old"] and secrets.next_end(DAY_1) == DAY_2
    assert values(secrets, DAY_2) == ["new"] and secrets.next_end(DAY_2) is None


def test_second_rotation_does_not_prolong_a_secret_that_ends_earlier() -> None:
    secrets = new_secrets(["a"], DAY_1).rotated("b", DAY_1, DAY_2).rotated("c", DAY_1, DAY_3)
    assert [(secret.value, secret.ends_at) for secret in secrets.secrets] == [("c", None), ("b", DAY_3), ("a", DAY_2)]


def test_rotation_drops_the_values_that_have_ended() -> None:
    secrets = new_secrets(["a"], DAY_1).rotated("b", DAY_1, DAY_2).rotated("c", DAY_2, DAY_3)
    assert [secret.value for secret in secrets.secrets] == ["c", "b"]


def test_rotation_back_to_an_older_secret_keeps_both() -> None:
    secrets = new_secrets(["a"], DAY_1).rotated("b", DAY_1, DAY_2).rotated("a", DAY_1, DAY_3)
    assert [(secret.value, secret.ends_at) for secret in secrets.secrets] == [("a", None), ("b", DAY_3)]


def test_rotation_to_the_newest_secret_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="already the newest one"):
        new_secrets(["a"], DAY_1).rotated("a", DAY_1, DAY_2)


def test_number_of_secrets_is_bounded() -> None:
    secrets = ManagedSecrets(tuple(ManagedSecret(f"s{n}", DAY_1) for n in range(MAX_SECRETS)))
    with pytest.raises(ConfigurationError, match="end the rotation first"):
        secrets.rotated("one more", DAY_1, DAY_2)
    with pytest.raises(ConfigurationError, match=f"may have {MAX_SECRETS}"):
        new_secrets([f"s{n}" for n in range(MAX_SECRETS + 1)], DAY_1)


def test_finish_keeps_only_the_newest_secret() -> None:
    secrets = new_secrets(["a"], DAY_1).rotated("b", DAY_1, DAY_3)
    assert values(secrets.finished(DAY_1), DAY_1) == ["b"]
    with pytest.raises(ConfigurationError, match="no rotation is under way"):
        secrets.finished(DAY_1).finished(DAY_1)


@pytest.mark.parametrize("value", ["env:NAME", "file:/etc/passwd"])
def test_reference_is_not_stored(value: str) -> None:
    with pytest.raises(ConfigurationError, match="stored by value"):
        check_value(value)
    with pytest.raises(ConfigurationError, match="stored by value"):
        new_secrets([value], DAY_1)


def test_repeated_secret_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="a secret is repeated"):
        new_secrets(["a", "a"], DAY_1)


def test_sealed_text_shows_no_secret_and_opens_only_in_its_row() -> None:
    ring = read_keys([KEY])
    secrets = new_secrets(["whsec_value"], DAY_1, {"verify_token": "token-value"}).rotated("next", DAY_1, DAY_2)
    sealed = secrets.seal(ring, source_context("acme"))
    assert "whsec" not in sealed and "token" not in sealed and "next" not in sealed
    assert open_secrets(ring, sealed, source_context("acme")) == secrets
    for context in (source_context("acme2"), tenant_context("acme", "a"), tenant_context("a", "cme")):
        with pytest.raises(KeyWrong):
            open_secrets(ring, sealed, context)


def test_missing_key_and_unencrypted_text_are_errors() -> None:
    sealed = new_secrets(["a"], DAY_1).seal(read_keys([KEY]), source_context("acme"))
    for ring in (KeyRing(), read_keys([OTHER_KEY])):
        with pytest.raises(KeyRingError, match="test"):
            open_secrets(ring, sealed, source_context("acme"))
    with pytest.raises(KeyWrong, match="not encrypted"):
        open_secrets(read_keys([KEY]), '{"secrets": [{"value": "a", "added_at": ""}]}', source_context("acme"))
