"""Managed sources and tenants seen from the outside: real servers, real commands, rotation under load, kills."""

import asyncio
import contextlib
import itertools
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.command_line import run_process
from tests.support.counts import Repetitions
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.managed import FIRST, KEY, SECOND, THIRD
from tests.support.serve import ONCEHOOK, Process, write_config
from tests.support.waiting import eventually, pause_at_random, wait_until

# Each test starts processes: on SQLite only with --torture, as the statements are tested on both elsewhere.
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.rest), "postgres"], indirect=True),
]

SEEN_WITHIN = 3.0
"""Seconds within which every process must use a change: a second, and what a busy machine adds."""

HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox()


@inbox.on("acme", "*")
async def note(event: Event, tx) -> None:
    await tx.execute("INSERT INTO noted (event_id) VALUES ({placeholder})", event.id)
"""


@pytest.fixture
def folder(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, and a key in the environment."""
    monkeypatch.setenv("ONCEHOOK_KEYS", KEY)
    write_config(tmp_path, database, 'log_level = "error"')
    with (tmp_path / "oncehook.toml").open("a") as file:
        file.write('[sources.shops]\nprovider = "stripe"\ntenants = true\n')
    return tmp_path


def assert_runs(folder: Path, *arguments: str) -> None:
    """Run a command, which must succeed."""
    ran = run_process(*arguments, cwd=folder, ONCEHOOK_CONFIG="oncehook.toml")
    assert ran.returncode == 0, ran.stderr


@contextlib.contextmanager
def serving(folder: Path, count: int = 2, **more: str | None) -> Iterator[list[Process]]:
    running: list[Process] = []
    try:
        for _ in range(count):
            running.append(Process(folder / "oncehook.toml", cwd=folder, app=more.get("app")))
        yield running
    finally:
        for process in running:
            process.kill()


def post(port: int, path: str, secret: str, event_id: str) -> int:
    body = stripe_body(event_id)
    headers = stripe_headers(body, secret)
    return httpx.post(f"http://127.0.0.1:{port}/webhooks/{path}", content=body, headers=headers, timeout=10).status_code


def assert_all_answer(processes: list[Process], path: str, secret: str, expected: int) -> None:
    """Every process answers with this status within SEEN_WITHIN seconds from now."""
    deadline = time.monotonic() + SEEN_WITHIN
    answers = {expected, 200} if expected == 202 else {expected}  # the second delivery of an event gets 200
    for process in processes:

        def is_seen(port: int = process.port) -> bool:
            return post(port, path, secret, f"{path} {secret}") in answers

        wait_until(is_seen, f"/webhooks/{path} answers {expected}", within=deadline - time.monotonic())


def test_two_processes_see_a_source_that_is_added_rotated_and_removed(folder: Path) -> None:
    with serving(folder) as processes:
        assert {post(process.port, "acme", FIRST, "x") for process in processes} == {404}
        assert_runs(folder, "sources", "add", "acme", "--provider", "stripe", "--secret", FIRST)
        assert_all_answer(processes, "acme", FIRST, 202)
        assert_runs(folder, "sources", "rotate", "acme", "--secret", SECOND)
        assert_all_answer(processes, "acme", SECOND, 202)
        assert_all_answer(processes, "acme", FIRST, 202)
        assert_runs(folder, "sources", "rotate", "acme", "--finish")
        assert_all_answer(processes, "acme", FIRST, 401)
        assert_runs(folder, "sources", "remove", "acme")
        assert_all_answer(processes, "acme", SECOND, 404)


@pytest.mark.rest
def test_two_processes_see_a_tenant_that_is_added_rotated_and_removed(folder: Path) -> None:
    with serving(folder) as processes:
        assert {post(process.port, "shops/acme", FIRST, "x") for process in processes} == {404}
        assert_runs(folder, "tenants", "add", "shops", "acme", "--secret", FIRST)
        assert_all_answer(processes, "shops/acme", FIRST, 202)
        assert_runs(folder, "tenants", "rotate", "shops", "acme", "--secret", SECOND, "--grace", "0s")
        assert_all_answer(processes, "shops/acme", SECOND, 202)
        assert_all_answer(processes, "shops/acme", FIRST, 401)
        assert_runs(folder, "tenants", "remove", "shops", "acme")
        assert_all_answer(processes, "shops/acme", SECOND, 404)


def test_worker_of_a_running_process_handles_the_events_of_a_managed_source(
    folder: Path, database: str, rows: Rows
) -> None:
    rows("CREATE TABLE noted (event_id TEXT PRIMARY KEY)")
    placeholder = "$1" if database.startswith("postgresql") else "?"
    (folder / "hooks.py").write_text(HOOKS.replace("{placeholder}", placeholder))
    assert_runs(folder, "sources", "add", "acme", "--provider", "stripe", "--secret", FIRST)
    with serving(folder, 1, app="hooks:inbox") as processes:
        assert post(processes[0].port, "acme", FIRST, "evt_1") == 202
        wait_until(lambda: rows("SELECT event_id FROM noted") == [("evt_1",)], "the handler runs")
        assert_runs(folder, "sources", "remove", "acme")
        assert_all_answer(processes, "acme", FIRST, 404)
    with serving(folder, 1, app="hooks:inbox") as processes:
        assert post(processes[0].port, "acme", FIRST, "evt_2") == 404, "it starts although its source was removed"


def test_server_does_not_start_without_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_runs(folder, "tenants", "add", "shops", "acme", "--secret", FIRST)
    monkeypatch.delenv("ONCEHOOK_KEYS")
    ran = run_process("serve", "--config", "oncehook.toml", "--port", "0", cwd=folder)
    assert ran.returncode == 2 and "test" in ran.stderr and "ONCEHOOK_KEYS" in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr


class Provider:
    """A sender that signs with its current secret, as a provider whose secret an operator replaces."""

    def __init__(self, path: str, secret: str) -> None:
        self.path, self.secret = path, secret
        self.statuses: list[int] = []
        self.stopping = False

    async def send(self, port: int, sender: int) -> None:
        async with httpx.AsyncClient(verify=False, base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            number = 0
            while not self.stopping:
                number += 1
                body = stripe_body(f"{sender}-{number}")
                headers = stripe_headers(body, self.secret)
                response = await client.post(f"/webhooks/{self.path}", content=body, headers=headers)
                self.statuses.append(response.status_code)

    async def until_more(self, count: int) -> None:
        goal = len(self.statuses) + count
        await eventually(lambda: len(self.statuses) >= goal, f"{count} more deliveries are answered")


@pytest.mark.rest
async def test_rotation_under_load_rejects_no_delivery(folder: Path, database: str) -> None:
    await assert_rotation_rejects_nothing(folder, "acme" if database.startswith("sqlite") else "shops/acme", 1)


@pytest.mark.torture
@pytest.mark.parametrize("path", ["acme", "shops/acme"])
async def test_many_rotations_under_load_reject_no_delivery(folder: Path, path: str, repetitions: Repetitions) -> None:
    await assert_rotation_rejects_nothing(folder, path, repetitions(3, 10))


async def assert_rotation_rejects_nothing(folder: Path, path: str, rounds: int) -> None:
    kind = ("sources", "acme") if path == "acme" else ("tenants", "shops", "acme")
    provider_option = ("--provider", "stripe") if path == "acme" else ()
    await asyncio.to_thread(assert_runs, folder, kind[0], "add", *kind[1:], *provider_option, "--secret", FIRST)
    with serving(folder) as processes:
        provider = Provider(path, FIRST)
        sending = [asyncio.create_task(provider.send(process.port, n)) for n, process in enumerate(processes * 3)]
        for secret in itertools.islice(itertools.cycle((SECOND, THIRD)), rounds):
            await provider.until_more(100)
            await asyncio.to_thread(assert_runs, folder, kind[0], "rotate", *kind[1:], "--secret", secret)
            await asyncio.to_thread(assert_all_answer, processes, path, secret, 202)
            provider.secret = secret  # the operator sets it at the provider
            await provider.until_more(100)
            await asyncio.to_thread(assert_runs, folder, kind[0], "rotate", *kind[1:], "--finish")
        await provider.until_more(200)
        provider.stopping = True
        await asyncio.gather(*sending)
    assert set(provider.statuses) == {202}, f"{len(provider.statuses)} deliveries"


@pytest.mark.torture
async def test_operators_that_are_killed_leave_a_whole_row_or_none(folder: Path, rows: Rows) -> None:
    chance = random.Random(random.randrange(2**32))
    environment = {**os.environ, "ONCEHOOK_CONFIG": "oncehook.toml"}
    for number in range(5):
        arguments = ["sources", "add", f"acme{number}", "--provider", "stripe", "--secret", FIRST]
        running = subprocess.Popen([str(ONCEHOOK), *arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        await pause_at_random(chance, 1.2)
        running.kill()
        running.wait()
    sources = rows("SELECT name, revision FROM webhook_sources ORDER BY revision")
    audited = rows("SELECT count(*) FROM webhook_audit WHERE action = 'add_source'")
    assert [revision for _, revision in sources] == list(range(1, len(sources) + 1))
    assert audited == [(len(sources),)] and rows("SELECT number FROM webhook_revisions") == [(len(sources),)]
    with serving(folder, 1) as processes:
        for name, _ in sources:
            assert post(processes[0].port, name, FIRST, name) == 202


def test_dump_contains_no_secret(folder: Path, database: str, tmp_path: Path) -> None:
    secrets = ["--secret", FIRST, "--set", "verify_token=the-verify-token"]
    assert_runs(folder, "sources", "add", "acme", "--provider", "stripe", *secrets)
    assert_runs(folder, "sources", "rotate", "acme", "--secret", SECOND)
    assert_runs(folder, "tenants", "add", "shops", "acme", "--secret", THIRD)
    with serving(folder, 1) as processes:
        assert post(processes[0].port, "acme", SECOND, "evt_1") == 202
        assert post(processes[0].port, "shops/acme", THIRD, "evt_2") == 202
    if database.startswith("sqlite"):
        dump = b"".join(file.read_bytes() for file in tmp_path.glob("inbox.db*"))
    else:
        dump = subprocess.run(["pg_dump", database], capture_output=True, check=True).stdout
    assert b"rotate_source" in dump and b"evt_2" in dump, "the dump is complete"
    for value in (FIRST, SECOND, THIRD, "the-verify-token", KEY.partition(":")[2]):
        assert value.encode() not in dump
