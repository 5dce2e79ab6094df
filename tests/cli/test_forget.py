"""`oncehook forget`: payloads are erased after a confirmation, and receipts are kept."""

import pytest

from tests.cli.conftest import Accept
from tests.support.command_line import Run
from tests.support.events import Rows, stripe_body

PAYLOADS = "SELECT count(*) FROM webhook_payloads"
RECEIPTS = "SELECT count(*) FROM webhook_receipts"


def test_payloads_about_an_object_are_erased_and_receipts_are_kept(run: Run, accepted: None, rows: Rows) -> None:
    before = rows(PAYLOADS)[0][0], rows(RECEIPTS)
    ran = run("forget", "--object", "in_2", "--yes")
    assert (ran.code, ran.out) == (0, "erased 1 payload; the receipts are kept\n")
    assert (rows(PAYLOADS)[0][0] + 1, rows(RECEIPTS)) == before
    assert "pruned" in run("show", "evt_2").out


def test_payloads_that_contain_an_address_are_erased(run: Run, accept: Accept, rows: Rows) -> None:
    accept(stripe_body("evt_1", to="jane@example.com"), stripe_body("evt_2"))
    ran = run("forget", "--address", "Jane@Example.com", "--yes")
    assert ran.code == 0 and ran.out.startswith("erased 1 payload;")
    ((detail,),) = rows("SELECT detail FROM webhook_audit")
    assert "jane" not in detail.lower(), "the audit log must contain only a hash of the address"


def test_without_a_terminal_yes_is_needed(run: Run, accepted: None, rows: Rows) -> None:
    before = rows(PAYLOADS)
    ran = run("forget", "--object", "in_2")
    assert ran.code == 2 and "this would permanently erase 1 payload: confirm with --yes" in ran.error
    assert rows(PAYLOADS) == before


def test_exit_code_is_1_if_no_payload_matches(run: Run, accepted: None) -> None:
    ran = run("forget", "--object", "nothing", "--yes")
    assert (ran.code, ran.error) == (1, "no payload matches\n")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("options", [[], ["--object", "in_1", "--address", "jane@example.com"]], ids=["none", "both"])
def test_exactly_one_of_object_and_address_is_needed(run: Run, accepted: None, options: list[str]) -> None:
    ran = run("forget", *options, "--yes")
    assert ran.code == 2 and "pass one of --object ID, --address EMAIL and --tenant SOURCE/TENANT" in ran.error


def test_everything_of_a_tenant_is_erased(run: Run, accepted: None, rows: Rows) -> None:
    rows("UPDATE webhook_receipts SET tenant = 'acme' WHERE event_id IN ('evt_2', 'evt_3')")
    ran = run("forget", "--tenant", "stripe/acme")
    assert ran.code == 2 and "erase everything of stripe/acme, which has 2 events: confirm with --yes" in ran.error
    before = rows(PAYLOADS)[0][0], rows(RECEIPTS)
    ran = run("forget", "--tenant", "stripe/acme", "--yes")
    assert ran.out == "erased 2 payloads and all other data of stripe/acme; the event ids are kept\n"
    assert (rows(PAYLOADS)[0][0] + 2, rows(RECEIPTS)) == before


def test_forget_says_that_a_managed_tenant_can_still_deliver(run: Run, accepted: None, rows: Rows) -> None:
    rows("UPDATE webhook_receipts SET tenant = 'acme' WHERE event_id IN ('evt_2', 'evt_3')")
    columns, values = "source, tenant, secrets, revision, actor", "'stripe', 'acme', '', 1, 'jane'"
    rows(f"INSERT INTO webhook_tenants ({columns}) VALUES ({values})")
    assert "oncehook tenants remove stripe acme" in run("forget", "--tenant", "stripe/acme", "--yes").error
    rows("UPDATE webhook_tenants SET removed_at = updated_at")
    assert run("forget", "--tenant", "stripe/acme", "--yes").error == ""


@pytest.mark.parametrize("tenant", ["acme", "stripe/", "/acme", "stripe/a/b"])
def test_tenant_is_named_with_its_source(run: Run, accepted: None, tenant: str) -> None:
    ran = run("forget", "--tenant", tenant, "--yes")
    assert ran.code == 2 and "is not SOURCE/TENANT, such as stripe/acme" in ran.error


def test_exit_code_is_1_if_the_tenant_has_no_data(run: Run, accepted: None) -> None:
    ran = run("forget", "--tenant", "stripe/nobody", "--yes")
    assert (ran.code, ran.error) == (1, "there is nothing of stripe/nobody\n")
