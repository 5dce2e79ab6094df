"""What must hold after a run: nothing acked is lost, nothing is applied twice, nothing is stuck."""

import hashlib
import subprocess
from collections import Counter
from collections.abc import Iterator

from proof.deliveries.plan import Plan, event_id, object_id, version
from proof.deliveries.senders import Answers
from proof.deliveries.world import World
from tests.support.serve import ONCEHOOK
from tests.support.servers import run_sql

STORED = "SELECT event_id, body FROM webhook_receipts r LEFT JOIN webhook_payloads ON receipt_id = r.id"
UNFINISHED = "SELECT count(*) FROM webhook_receipts WHERE status <> 'processed'"
STATES = "SELECT status, count(*) FROM webhook_receipts GROUP BY status"


def problems_of(world: World, plan: Plan, answers: Answers) -> list[str]:
    """Every violation, as a sentence. An empty list is the proof."""
    return [
        *check_answers(answers, plan),
        *check_stored(world, answers, plan),
        *check_work(world, plan),
        *check_fsck(world),
    ]


def check_answers(answers: Answers, plan: Plan) -> Iterator[str]:
    if answers.odd:
        yield f"{len(answers.odd)} responses that must never occur, such as {answers.odd[:3]}"
    twice = [event_id(number) for number, count in answers.accepted.items() if count > 1]
    if twice:
        yield f"{len(twice)} events were accepted twice, such as {twice[:3]}"
    if len(answers.acked) != plan.events and not answers.odd:
        yield f"{plan.events - len(answers.acked)} events were never acked"


def check_stored(world: World, answers: Answers, plan: Plan) -> Iterator[str]:
    rows = run_sql(world.database, STORED)
    digests = {name: hashlib.sha256(body or b"").digest() for name, body in rows}
    if len(rows) != len(digests):
        yield f"{len(rows) - len(digests)} events have two receipts"
    lost = [
        event_id(number)
        for number in answers.acked
        if digests.get(event_id(number)) != hashlib.sha256(plan.body(number)).digest()
    ]
    if lost:
        yield f"{len(lost)} acked events are lost or have another body, such as {lost[:3]}"
    states = dict(run_sql(world.database, STATES))
    if states.keys() - {"processed"}:
        yield f"events are stuck: {states}"


def check_work(world: World, plan: Plan) -> Iterator[str]:
    counts = Counter(dict(run_sql(world.database, "SELECT event_id, count(*) FROM ledger GROUP BY event_id")))
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        yield f"{len(twice)} events were applied twice, such as {twice[:3]}"
    missing = [event_id(number) for number in range(plan.events) if event_id(number) not in counts]
    if missing:
        yield f"{len(missing)} events were not applied, such as {missing[:3]}"
    newest: dict[str, int] = {}
    for name, applied in run_sql(world.database, "SELECT object_id, version FROM history ORDER BY id"):
        if applied <= newest.get(name, 0):
            yield f"{name} went from version {newest[name]} to {applied}"
        newest[name] = applied
    last = {object_id(number): version(number) for number in range(plan.events)}
    behind = [name for name in last if newest.get(name) != last[name]]
    if behind:
        yield f"{len(behind)} objects do not have their newest version, such as {behind[:3]}"
    bookings = sum(misdeed == "deadlock" for misdeed in plan.misdeeds.values())
    accounts = run_sql(world.database, "SELECT bookings FROM accounts")
    if any(row[0] != bookings for row in accounts):
        yield f"the accounts have {accounts} bookings instead of {bookings}"


def check_fsck(world: World) -> Iterator[str]:
    config = world.folder / "serve-1.toml"
    direct = world.folder / "fsck.toml"
    lines = config.read_text().splitlines()
    direct.write_text(
        "\n".join([f'database = "{world.database}"', *(x for x in lines if not x.startswith("database"))])
    )
    done = subprocess.run([ONCEHOOK, "fsck", "--config", direct], capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"oncehook fsck found violations: {done.stdout[-3000:]}{done.stderr[-1000:]}"
