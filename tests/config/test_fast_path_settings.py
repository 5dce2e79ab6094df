"""The settings of the duplicate fast path are read as all others."""

from oncehook.config.settings import Settings


def test_process_remembers_receipts_by_default_and_uses_no_redis() -> None:
    assert (Settings().duplicate_cache, Settings().redis) == (16 * 2**20, None)
