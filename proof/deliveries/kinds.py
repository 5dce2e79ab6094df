"""The kinds of faults, and where each is shown: in a run of `python -m proof.deliveries`, or in named tests."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

MISDEEDS = {
    "F4": ("block",),
    "F5": ("hang",),
    "F17": ("deadlock", "serialization"),
    "F22": ("abort",),
    "F24": ("fork",),
    "F26": ("memory",),
}
"""The kinds that a handler of the run causes, and how it misbehaves for each."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault. `runs` are the databases on which a run applies it."""

    name: str
    what: str
    runs: tuple[str, ...]
    tests: tuple[str, ...] = ()


BOTH, POSTGRES, SQLITE, NEVER = ("postgres", "sqlite"), ("postgres",), ("sqlite",), ()

KINDS = (
    Kind(
        "F1",
        "SIGKILL of a server or a worker",
        BOTH,
        (
            "tests/faults/test_kill.py::test_kills_under_load_lose_no_acked_event",
            "tests/faults/test_worker_kill.py::test_kills_of_workers_under_load_apply_each_event_once",
            "tests/faults/test_crash_points.py::test_crash_at_every_point",
        ),
    ),
    Kind(
        "F2",
        "SIGTERM of a server or a worker",
        BOTH,
        ("tests/faults/test_rolling_hosts.py::test_hosts_are_restarted_many_times_without_a_failed_delivery",),
    ),
    Kind(
        "F3",
        "SIGSTOP for longer than a lease",
        BOTH,
        ("tests/faults/test_worker_kill.py::test_worker_that_was_stopped_past_its_lease_cannot_commit",),
    ),
    Kind(
        "F4",
        "a handler that blocks its event loop for longer than a lease",
        BOTH,
        (
            "tests/faults/test_blocked_loop.py::"
            "test_receipts_behind_a_handler_that_blocks_the_loop_are_handled_by_another_worker",
        ),
    ),
    Kind(
        "F5",
        "a handler that is cancelled at its time limit; the tests cancel at each crash point",
        BOTH,
        ("tests/faults/test_crash_points.py::test_crash_at_every_point",),
    ),
    Kind(
        "F6",
        "a client that disconnects during the body or before the response",
        BOTH,
        ("tests/receiver/test_asgi.py::test_a_client_that_disconnects_before_its_body_is_complete_leaves_no_receipt",),
    ),
    Kind(
        "F7",
        "a restart of PostgreSQL",
        POSTGRES,
        ("tests/faults/test_database_goes.py::test_database_that_restarts_and_dies_under_load_loses_no_acked_event",),
    ),
    Kind(
        "F8",
        "`kill -9` of all processes of PostgreSQL",
        POSTGRES,
        ("tests/faults/test_database_goes.py::test_database_that_restarts_and_dies_under_load_loses_no_acked_event",),
    ),
    Kind(
        "F9",
        "sessions that are ended by `pg_terminate_backend`",
        POSTGRES,
        ("tests/faults/test_database_goes.py::test_terminated_connections_under_load_lose_no_event_and_cause_no_503",),
    ),
    Kind(
        "F10",
        "a proxy that drops the reply to a claim or a COMMIT",
        POSTGRES,
        ("tests/faults/test_lost_replies.py::test_committed_claim_without_a_reply_is_fresh_and_has_one_row",),
    ),
    Kind(
        "F11",
        "a partition: connections that stay open and forward nothing",
        POSTGRES,
        ("tests/faults/test_two_hosts.py::test_hosts_recover_from_many_cuts_of_one_or_both_links",),
    ),
    Kind(
        "F12",
        "a database whose replies are late",
        POSTGRES,
        ("tests/faults/test_lost_replies.py::test_database_that_does_not_answer_is_unavailable_in_time_and_recovers",),
    ),
    Kind(
        "F13",
        "a full disk of the database",
        BOTH,
        ("tests/faults/test_disk_full.py::test_full_disk_loses_no_acked_event",),
    ),
    Kind("F14", "a sync of the database's disk that fails (EIO)", BOTH),
    Kind(
        "F15",
        "a power cut that drops unsynced writes",
        NEVER,
        (
            "tests/faults/test_power_loss.py::test_power_cuts_under_load_lose_no_acked_event",
            "tests/faults/test_power_loss.py::test_power_cuts_lose_acked_events_if_commits_are_not_synced",
        ),
    ),
    Kind(
        "F16",
        "a clock that is an hour off, for one worker (PostgreSQL) or for the host (SQLite)",
        BOTH,
        (
            "tests/faults/test_clock_jumps.py::"
            "test_events_that_wait_while_the_clock_goes_back_are_handled_once_without_delay",
        ),
    ),
    Kind(
        "F17",
        "deadlocks and serialization failures in handlers",
        POSTGRES,
        ("tests/receiver/test_claim.py::test_two_inboxes_that_claim_overlapping_batches_do_not_deadlock",),
    ),
    Kind(
        "F18",
        "another process that holds SQLite's write lock (SQLITE_BUSY)",
        SQLITE,
        ("tests/store/sqlite/test_file.py::test_claim_fails_while_another_process_holds_the_write_lock",),
    ),
    Kind(
        "F19",
        "no connection left in PostgreSQL; the tests also use a pool of one connection",
        POSTGRES,
        ("tests/integrations/sqlalchemy/test_cleaner.py::test_session_state_is_removed_with_every_kind_of_pool",),
    ),
    Kind(
        "F20",
        "Redis that is killed, stopped or emptied",
        BOTH,
        (
            "tests/faults/test_fast_path_faults.py::test_no_fault_of_redis_loses_or_doubles_an_event",
            "tests/faults/test_fast_path_faults.py::test_redis_that_lies_is_not_believed",
        ),
    ),
    Kind(
        "F21",
        "brokers that are killed, and that drop, repeat and reorder messages",
        NEVER,
        (
            "tests/faults/test_broker_targets.py::test_effect_waits_for_a_broker_that_is_gone_and_is_done_when_it_is_back",
            "tests/faults/test_work_queue.py::test_kills_of_workers_with_a_disturbed_queue_apply_each_event_once",
            "tests/faults/test_intake_kill.py::test_messages_survive_a_nats_server_that_is_killed_and_started_again",
        ),
    ),
    Kind(
        "F22",
        "a handler that aborts its process",
        BOTH,
        (
            "tests/faults/test_consumer_kill.py::"
            "test_event_that_kills_the_process_of_one_consumer_makes_no_dead_letter_of_another",
        ),
    ),
    Kind("F23", "a snapshot that stays open (pinned xmin)", POSTGRES),
    Kind(
        "F24",
        "a handler that forks; the child closes the connections",
        BOTH,
        ("tests/store/test_database.py::test_store_opened_before_a_fork_fails_in_the_child_and_works_in_the_parent",),
    ),
    Kind(
        "F25",
        "PgBouncer in transaction mode, which is killed",
        POSTGRES,
        ("tests/store/postgres/test_pool_pgbouncer.py::test_duplicate_events_are_handled_once_over_few_connections",),
    ),
    Kind("F26", "no file descriptor left in a server, no memory left in a handler", BOTH),
)
NAMES = frozenset(kind.name for kind in KINDS)


def missing_tests(root: Path = ROOT) -> Iterator[str]:
    """The tests of the table that do not exist."""
    for kind in KINDS:
        for test in kind.tests:
            file, _, name = test.partition("::")
            if name not in _tests_in(root / file):
                yield test


@cache
def _tests_in(file: Path) -> frozenset[str]:
    if not file.exists():
        return frozenset()
    tree = ast.parse(file.read_text("utf-8"))
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
