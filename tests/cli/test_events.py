"""`oncehook events`: the filters, the JSON lines and the table."""

import pytest

from oncehook.operations import selection
from tests.cli.conftest import Accept
from tests.support.command_line import Ran, Run
from tests.support.events import EVENT_KEYS, Rows, stripe_body


def source_and_id(ran: Ran) -> list[str]:
    assert ran.code == 0, ran.error
    return [f"{line['source']}/{line['event_id'][:7]}" for line in ran.lines]


def test_json_output_has_one_object_per_event_with_the_documented_keys(run: Run, accepted: None, rows: Rows) -> None:
    ran = run("events", "--json")
    shas = "stripe/sha256:"
    assert source_and_id(ran) == ["live/evt_1", shas, "stripe/evt_4", "stripe/evt_3", "stripe/evt_2", "stripe/evt_1"]
    assert all(sorted(line) == sorted(EVENT_KEYS) for line in ran.lines)
    assert [line["duplicates"] for line in ran.lines] == [0, 0, 0, 0, 0, 1]
    assert [line["receipt"] for line in ran.lines] == [
        r for (r,) in rows("SELECT id FROM webhook_receipts ORDER BY 1 DESC")
    ]


FILTERS: dict[str, list[str]] = {
    "--source live": ["live/evt_1"],
    "--type invoice --source stripe": ["stripe/evt_3", "stripe/evt_2", "stripe/evt_1"],
    "--type *.refunded": ["stripe/evt_4"],
    "--object in_2": ["stripe/evt_2"],
    "--status failed": ["stripe/sha256:"],
    "--search evt_3": ["stripe/evt_3"],
    "--since 1h --limit 2": ["live/evt_1", "stripe/sha256:"],
    "--until 2099-01-01 --type charge": ["stripe/evt_4"],
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("options", "expected"), FILTERS.items())
def test_each_option_filters_the_events(run: Run, accepted: None, options: str, expected: list[str]) -> None:
    assert source_and_id(run("events", "--json", *options.split())) == expected


def test_the_command_reads_page_by_page_up_to_the_limit(
    run: Run, accepted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = source_and_id(run("events", "--json"))
    monkeypatch.setattr(selection, "PAGE", 2)
    assert source_and_id(run("events", "--json")) == whole
    assert source_and_id(run("events", "--json", "--limit", "5")) == whole[:5]


def test_exit_code_is_1_if_no_event_matches(run: Run, accepted: None) -> None:
    for options in (["--source", "unknown"], ["--until", "2020-01-01"], ["--search", "nothing like it"]):
        ran = run("events", *options)
        assert (ran.code, ran.out, ran.error) == (1, "", "no event matches\n")
        ran = run("events", "--json", *options)
        assert (ran.code, ran.out) == (1, "")


def test_table_escapes_control_characters_of_the_sender(run: Run, accept: Accept) -> None:
    accept(stripe_body("evt_[red]\x1b[2J\u202e", "a\nb"))
    ran = run("events")
    head, row = ran.out.splitlines()
    assert head.split() == ["received", "source", "type", "object", "event", "id", "status", "dup", "receipt"]
    assert r"evt_[red]\x1b[2J\u202e" in row and r"a\nb" in row and row.isprintable()
