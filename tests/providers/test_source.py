"""Sources: their settings, limits and secrets."""

from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.config.secret import resolve
from oncehook.model.errors import ConfigurationError
from tests.support.providers import make_source


def test_source_without_a_required_option_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"sources\.here\.topics is missing"):
        make_source("ses", secrets=[])


def test_source_without_secrets_must_set_verify_to_none() -> None:
    assert make_source(secrets=[], verify="none").verifier is None
    with pytest.raises(ConfigurationError, match='set verify = "none"'):
        make_source(secrets=[])


def test_max_body_of_the_source_takes_precedence_over_provider_and_global_limit() -> None:
    assert make_source("stripe").max_body == 1000
    assert make_source("github").max_body == 25 * 2**20
    assert make_source("github", max_body="5kB").max_body == 5000


def test_secret_is_read_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_TEST", "from the environment")
    (tmp_path / "secret").write_text("from a file\n")
    assert resolve("env:OF_A_TEST", "x") == "from the environment"
    assert resolve(f"file:{tmp_path / 'secret'}", "x") == "from a file"
    assert resolve("whsec_x", "x") == "whsec_x"


@pytest.mark.parametrize("word", ["None", "null", "NULL", '""', "''", " None ", "\u200b", "\ufeff", "undefined"])
def test_placeholder_is_rejected_as_a_secret(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_TEST", word)
    for reference in (word, "env:OF_A_TEST"):
        with pytest.raises(ConfigurationError, match=r"^sources\.here\.secrets\[0\] is a placeholder"):
            make_source(secrets=[reference]).load_secrets()


@pytest.mark.parametrize(
    "reference",
    [
        "",
        " ",
        "env:NOT_SET_ANYWHERE",
        "env:BLANK",
        "env:",
        "file:/not/there",
        "file:{}/blank",
        "file:{}/bytes",
        "file:{}",
        "file:\x00",
    ],
)
def test_missing_secret_is_a_configuration_error_that_names_the_setting(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLANK", " \n")
    (tmp_path / "blank").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"canary\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"^sources\.here\.secrets\[0\]") as caught:
        make_source(secrets=[reference.format(tmp_path)]).load_secrets()
    assert "canary" not in str(caught.value)


def test_string_instead_of_a_list_of_secrets_is_an_error() -> None:
    """Otherwise each character would be a secret."""
    with pytest.raises(ConfigurationError, match=r"sources\.github\.secrets.*expected a list of strings"):
        Inbox("sqlite:///x.db").source("github", secrets="hello")


def test_secrets_of_a_reference_are_loaded_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(secrets=["env:OF_A_TEST"])
    assert "verifier" not in vars(source)
    monkeypatch.setenv("OF_A_TEST", "whsec_of_the_test")
    assert source.verifier is not None and len(source.fingerprints) == 1
    with pytest.raises(AttributeError, match="a source has no color"):
        source.color  # type: ignore[attr-defined]  # noqa: B018


def test_source_that_verifies_nothing_has_no_handshake_that_calls_an_address() -> None:
    topics = ["arn:aws:sns:eu-west-1:123456789012:mail"]
    assert make_source("ses", secrets=[], topics=topics).handshakes
    assert not make_source("ses", secrets=[], topics=topics, verify="none").handshakes


def test_tenant_has_its_own_secrets_reader_and_counts() -> None:
    source = make_source("stripe", secrets=["whsec_own"], tenants=True)
    acme, other = source.for_tenant("acme", ["whsec_a", "whsec_b"]), source.for_tenant("other", ["whsec_c"])
    assert (acme.name, acme.tenant, acme.reader.tenant, source.tenant) == ("here", "acme", "acme", "")
    assert acme.uses == [0, 0] and other.uses == [0] and source.uses == [0]
    assert len({*acme.fingerprints, *other.fingerprints, *source.fingerprints}) == 4
    assert acme.verifier is not other.verifier and acme.is_plain and source.is_plain


def test_secret_of_a_tenant_is_never_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_PROCESS", "whsec_process")
    tenant = make_source("stripe", secrets=[], tenants=True).for_tenant("acme", ["env:OF_THE_PROCESS"])
    own = make_source("stripe", secrets=["env:OF_THE_PROCESS"])
    assert tenant.fingerprints != own.fingerprints


def test_source_with_tenants_and_no_secrets_accepts_nothing_at_its_own_address() -> None:
    source = make_source("stripe", secrets=[], tenants=True)
    assert source.methods == [] and not source.is_plain and not source.waits_for_secret
    assert source.verifier is not None and source.verifier.checks == []
    assert source.for_tenant("acme", ["whsec_a"]).methods == ["POST"]


def test_tenants_need_signatures() -> None:
    with pytest.raises(ConfigurationError, match=r"sources.here has tenants and verify = \"none\""):
        make_source("stripe", secrets=[], tenants=True, verify="none")


def test_public_url_of_a_tenant_is_below_that_of_its_source() -> None:
    source = make_source("twilio", secrets=[], tenants=True, public_url="https://example.com/hooks/?a=1")
    assert source.for_tenant("acme", ["token"]).settings.public_url == "https://example.com/hooks/acme?a=1"
    assert source.settings.public_url == "https://example.com/hooks/?a=1"


def test_email_projection_does_not_know_tenants() -> None:
    with pytest.raises(ConfigurationError, match=r"sources.here has tenants and email = true"):
        make_source("mailgun", secrets=[], tenants=True, email=True)
