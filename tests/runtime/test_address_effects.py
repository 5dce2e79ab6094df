"""Effects at addresses are registered in every process, for brokers and for HTTP."""

from pathlib import Path

from oncehook import Inbox
from oncehook.effects.effect import BROKER, BROKER_TOPIC, HTTP
from oncehook.observability.signals import ADDRESSES


def test_every_process_runs_effects_at_addresses(tmp_path: Path) -> None:
    effects = Inbox(f"sqlite:///{tmp_path}/inbox.db")._runtime.effects
    assert {effect.kind for effect in effects if effect.name is None} == {HTTP, BROKER, BROKER_TOPIC} == ADDRESSES
