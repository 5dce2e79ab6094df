"""The source of a runtime gets the inbox's limits, providers and encryption."""

from pathlib import Path

import pytest

from oncehook import ConfigurationError, Inbox
from oncehook.config.settings import SourceSettings
from oncehook.runtime.source_factory import make_source


def test_source_has_the_limits_of_the_inbox_and_is_not_added(tmp_path: Path) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db", max_body="10kB")
    source = make_source(inbox._runtime, "stripe", SourceSettings(secrets=("whsec_test",)))
    assert source.max_body == 10_000 and source.encrypt is None and inbox._runtime.sources == {}


def test_only_a_source_with_encrypt_encrypts_and_it_cannot_be_projected(tmp_path: Path) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db")
    settings = SourceSettings(provider="stripe", secrets=("whsec_test",), encrypt=True)
    assert make_source(inbox._runtime, "stripe", settings).encrypt is not None
    with pytest.raises(ConfigurationError, match="email and encrypt contradict each other"):
        make_source(inbox._runtime, "stripe", SourceSettings(secrets=("whsec_test",), encrypt=True, email=True))
