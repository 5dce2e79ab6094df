"""`oncehook providers`: the list, one provider, and providers of the configuration."""

from pathlib import Path

import pytest

from tests.support.command_line import Run


@pytest.fixture(autouse=True)
def configuration(in_folder: Path) -> Path:
    """An empty configuration."""
    file = in_folder / "oncehook.toml"
    file.touch()
    return file


def test_providers_are_listed_and_described(run: Run) -> None:
    listed = run("providers", "--json")
    assert listed.code == 0
    names = [line["name"] for line in listed.lines]
    assert names == sorted(names) and {"stripe", "github", "sendgrid", "ses"} <= set(names)
    shown = run("providers").out
    assert all(name in shown for name in names)
    one = run("providers", "stripe")
    assert one.code == 0 and "Signing secret" in one.out and "hmac-sha256" in one.out
    assert "oncehook send stripe invoice.paid" in one.out
    (row,) = run("providers", "stripe", "--json").lines
    assert row["name"] == "stripe" and row["retry_horizon"] == "3d"
    unknown = run("providers", "strip")
    assert unknown.code == 1 and "strip" in unknown.error


ACME = """
[providers.acme]
title = "Acme"
[[providers.acme.signatures]]
algorithm = "hmac-sha256"
header = "X-Acme-Signature"
template = "{body}"
[providers.acme.event]
id = "id"
type = "type"
"""


def test_a_configured_provider_is_listed_with_the_built_in_ones(run: Run, configuration: Path) -> None:
    configuration.write_text(ACME)
    names = [line["name"] for line in run("providers", "--json").lines]
    assert "acme" in names and "stripe" in names
    described = run("providers", "acme").out
    assert "Acme" in described and "https://YOUR-HOST/webhooks/acme" in described


def test_a_provider_with_batches_says_that_each_event_has_a_receipt(run: Run) -> None:
    assert "each element has one receipt" in run("providers", "sendgrid").out


def test_stop_codes_and_the_deadline_of_the_ack_are_shown(run: Run) -> None:
    for row in run("providers", "--json").lines:
        if row["stop_codes"] and row["time_limit"]:
            described = run("providers", row["name"]).out
            assert "stops after status" in described and f"Ack deadline   {row['time_limit']}" in described
            return
    raise AssertionError("no provider has stop codes and a time limit")
