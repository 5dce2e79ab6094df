"""`oncehook keys`: keys for the key ring."""

import asyncio
import re
from pathlib import Path

import pytest

from oncehook import Event, Fail, Inbox
from oncehook.config.keyring import read_keys
from oncehook.testing import deliver, drain
from tests.support.command_line import Run, run_process
from tests.support.encryption import ring
from tests.support.events import stripe_body


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


@pytest.fixture
def encrypted(in_folder: Path, database: str) -> str:
    """A database with two events that the key 2026a encrypted, one of them a dead letter."""
    (in_folder / "oncehook.toml").write_text(
        f'database = "{database}"\n[sources.stripe]\nsecrets = ["whsec_test"]\nencrypt = true\n'
    )

    async def fill() -> None:
        inbox = Inbox(worker=False, keys=ring("2026a"))

        @inbox.on("stripe", "*")
        async def handle(event: Event) -> None:
            raise Fail("Markererror")

        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body("evt_1"))
            await drain(inbox)
            await deliver(inbox, "stripe", stripe_body("evt_2"))

    asyncio.run(fill())
    return database


def use_keys(monkeypatch: pytest.MonkeyPatch, *ids: str) -> None:
    monkeypatch.setenv("ONCEHOOK_KEYS", ",".join(ring(*ids)))


def test_list_shows_the_rows_of_each_key_and_what_to_do(
    run: Run, encrypted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_keys(monkeypatch, "2026b", "2026a")
    ran = run("keys", "list")
    assert ran.code == 0 and "2026b  encrypts  none" in ran.out
    assert re.search(r"2026a +decrypts +1 past_attempts, 2 payloads, 1 receipts +run `oncehook keys rotate`", ran.out)
    first, second = run("keys", "list", "--json").lines
    assert (first["key"], first["state"], first["rows"]) == ("2026b", "encrypts", {})
    assert second["rows"] == {"webhook_past_attempts": 1, "webhook_payloads": 2, "webhook_receipts": 1}
    assert not any(entry.split(":")[1] in ran.out for entry in ring("2026a", "2026b")), "no key is shown"


def test_list_exits_1_if_a_key_is_missing(run: Run, encrypted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch, "2026b")
    ran = run("keys", "list")
    assert ran.code == 1 and re.search(r"2026a +missing .*add it to ONCEHOOK_KEYS", ran.out)


def test_list_of_an_inbox_without_keys(run: Run, in_folder: Path, database: str) -> None:
    (in_folder / "oncehook.toml").write_text(f'database = "{database}"\n')
    ran = run("keys", "list")
    assert (ran.code, ran.out) == (0, "") and "no key is configured, and no row is encrypted" in ran.error


def test_rotate_encrypts_all_rows_and_says_which_key_can_be_removed(
    run: Run, encrypted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_keys(monkeypatch, "2026b", "2026a")
    ran = run("keys", "rotate")
    assert ran.code == 0 and "encrypted 4 rows with the first key" in ran.out
    assert "no row needs the key 2026a any more: you can remove it from ONCEHOOK_KEYS" in ran.out
    assert run("keys", "rotate", "--json").lines == [
        {"resealed": 0, "locked": 0, "unreadable": {}, "removable": ["2026a"]}
    ]
    use_keys(monkeypatch, "2026b")
    assert run("keys", "list").code == 0
    assert "Markererror" in run("show", "evt_1").out


def test_rotate_without_the_old_key_exits_1_and_names_it(
    run: Run, encrypted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_keys(monkeypatch, "2026b")
    ran = run("keys", "rotate")
    assert ran.code == 1 and "4 rows cannot be decrypted: the key 2026a is missing or wrong" in ran.error


def test_rotate_without_a_key_says_how_to_get_one(run: Run, encrypted: str) -> None:
    ran = run("keys", "rotate")
    assert ran.code == 1 and "`oncehook keys generate` prints one" in ran.error


def test_commands_show_an_event_without_its_key_with_a_note(run: Run, encrypted: str) -> None:
    shown = run("show", "evt_1")
    assert shown.code == 0 and "The payload is encrypted and cannot be shown: the key 2026a is missing" in shown.out
    assert "(encrypted; the key 2026a is missing)" in shown.out
    (as_json,) = run("show", "evt_1", "--json").lines
    assert as_json["payload"] is None and "the key 2026a is missing" in as_json["unreadable"]
    raw = run("show", "evt_1", "--raw")
    assert (raw.code, raw.out) == (1, "") and "the key 2026a is missing" in raw.error
    assert run("events").code == run("dead").code == run("stats").code == 0


def test_search_of_encrypted_sources_says_that_it_leaves_out_payloads(run: Run, encrypted: str) -> None:
    note = "Payloads of encrypted sources are not searched"
    found = run("events", "--search", "evt_1")
    assert found.code == 0 and "evt_1" in found.out and note in found.error
    assert note in run("replay", "--search", "evt_1", "--dry-run").error
    assert note not in run("events", "--source", "stripe").error


def test_forget_without_the_key_erases_nothing_and_says_why(run: Run, encrypted: str) -> None:
    ran = run("forget", "--address", "jane@example.com", "--yes")
    assert ran.code == 1 and "the key 2026a is missing" in ran.error


@pytest.mark.sampled(1)
def test_serve_without_the_key_names_it_and_exits(encrypted: str, in_folder: Path) -> None:
    serve = ("serve", "--no-worker", "--port", "0")
    done = run_process(*serve, cwd=in_folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("oncehook: sources.stripe.encrypt needs a key")
    done = run_process(*serve, cwd=in_folder, ONCEHOOK_KEYS=",".join(ring("2026b")))
    assert done.returncode == 2 and "rows that the key 2026a encrypted" in done.stderr


def test_abandon_erases_the_values_of_a_lost_key_after_a_confirmation(
    run: Run, encrypted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_keys(monkeypatch, "2026b")
    ran = run("keys", "abandon", "2026a")
    assert ran.code == 2 and "confirm with --yes" in ran.error
    ran = run("keys", "abandon", "2026a", "--yes")
    assert ran.code == 0 and "erased 2 payloads, and error texts or arguments of 2 rows" in ran.out
    assert run("keys", "list").code == 0 and "(erased)" in run("show", "evt_1").out
    ran = run("keys", "abandon", "2026a", "--yes")
    assert ran.code == 2 and "no row names the key 2026a: there are no missing keys" in ran.error


def test_abandon_refuses_a_key_that_is_not_lost(run: Run, encrypted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch, "2026b", "2026a")
    ran = run("keys", "abandon", "2026a", "--yes")
    assert ran.code == 2 and "`oncehook keys rotate` replaces it" in ran.error


def test_doctor_names_a_key_that_is_missing(run: Run, encrypted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = run("doctor")
    assert doctor.code == 1 and "sources.stripe.encrypt needs a key" in doctor.out
    assert "rows that the key 2026a encrypted" in doctor.out
    use_keys(monkeypatch, "2026a")
    assert "key" not in run("doctor").out.replace("webhook_keys", "")


def test_every_subcommand_takes_a_configuration_file(
    run: Run, encrypted: str, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (in_folder / "oncehook.toml").rename(in_folder / "other.toml")
    use_keys(monkeypatch, "2026b", "2026a")
    for command in (("list",), ("rotate",), ("generate",)):
        assert run("keys", *command, "--config", "other.toml").code == 0, command
