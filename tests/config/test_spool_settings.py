"""The settings of the spool are read as all others."""

from oncehook.config.settings import Settings, SourceSettings


def test_spool_is_off_and_limited_by_default() -> None:
    assert (Settings().spool, Settings().spool_limit) == (None, 256 * 2**20)


def test_source_leaves_the_decision_to_its_provider_by_default() -> None:
    assert SourceSettings().spool is None
