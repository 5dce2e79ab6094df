"""`oncehook keys`: keys for the key ring."""

import re
from pathlib import Path

import pytest

from oncehook.config.keyring import read_keys
from tests.support.command_line import Run
from tests.support.encryption import ring


@pytest.fixture(autouse=True)
def configuration(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEHOOK_KEYS", raising=False)
    (in_folder / "oncehook.toml").write_text("")


def test_generated_entry_is_usable_and_alone_on_standard_output(run: Run) -> None:
    ran = run("keys", "generate")
    assert ran.code == 0 and re.fullmatch(r"20\d{6}:[A-Za-z0-9+/]{43}=\n", ran.out)
    assert read_keys([ran.out.strip()])
    assert f"ONCEHOOK_KEYS={ran.out.strip()}" in ran.error and "Keep a copy" in ran.error


def test_every_generated_key_is_new(run: Run) -> None:
    assert len({run("keys", "generate", "--id", "a").out for _ in range(3)}) == 3


def test_second_key_comes_with_the_steps_of_a_rotation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEHOOK_KEYS", ",".join(ring("2026a")))
    ran = run("keys", "generate", "--id", "2026b")
    assert ran.code == 0 and ran.out.startswith("2026b:")
    assert f"ONCEHOOK_KEYS={ran.out.strip()},2026a:…" in ran.error and "oncehook keys rotate" in ran.error
    assert ring("2026a")[0] not in ran.error, "the key in use is not shown"


def test_two_keys_of_one_day_have_different_ids(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run("keys", "generate").out.strip()
    monkeypatch.setenv("ONCEHOOK_KEYS", first)
    assert run("keys", "generate").out.split(":")[0] == first.split(":")[0] + "b"


@pytest.mark.parametrize(
    ("key_id", "message"),
    [("a b", "may have up to 32 letters"), ("env", "must not be env or file"), ("2026a", "already in the key ring")],
)
def test_unusable_id_is_rejected(run: Run, monkeypatch: pytest.MonkeyPatch, key_id: str, message: str) -> None:
    monkeypatch.setenv("ONCEHOOK_KEYS", ",".join(ring("2026a")))
    ran = run("keys", "generate", "--id", key_id)
    assert (ran.code, ran.out) == (2, "") and message in ran.error


def test_key_can_be_generated_while_the_key_ring_is_unusable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEHOOK_KEYS", "broken")
    assert run("keys", "generate").code == 0
