"""The invariants, checked with SQL and with the records of the sender and of the target of effects."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from proof.simulation.scenario import ATTEMPTS, EFFECT_ATTEMPTS
from proof.simulation.service import body_of

if TYPE_CHECKING:
    from proof.simulation.run import Driver


class InvariantViolated(Exception):
    """An invariant does not hold."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantViolated(sentence)


def query(driver: "Driver", sql: str, *parameters: Any) -> list[Any]:
    return driver.world.observer.execute(sql, parameters).fetchall()


def rows_of(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in rows]


def assert_at_ack(driver: "Driver", event: str) -> None:
    """I1 and I4: at a 2xx, the event is stored for every consumer, with the body that was sent."""
    rows = query(
        driver,
        "SELECT r.consumer, p.body FROM webhook_receipts r LEFT JOIN webhook_payloads p"
        " ON p.receipt_id = coalesce(r.main_id, r.id) WHERE r.event_id = ?",
        event,
    )
    stored = sorted(row[0] for row in rows)
    require(stored == sorted(driver.scenario.consumers), f"I1: {event} got a 2xx, and its receipts are {stored}")
    require(all(row[1] == body_of(event) for row in rows), f"I1: {event} got a 2xx, and its body is not the one sent")


def assert_now(driver: "Driver") -> None:
    """The invariants of every moment, which a crash must not break."""
    duplicates = query(
        driver, "SELECT event_id FROM webhook_receipts GROUP BY event_id, consumer, source HAVING count(*) > 1"
    )
    require(not duplicates, f"I4: {[row[0] for row in duplicates]} have two receipts")
    applied = query(
        driver, "SELECT receipt, replays, count(*) FROM ledger GROUP BY receipt, replays HAVING count(*) > 1"
    )
    require(not applied, f"I2: work was applied more than once (receipt, replay, times): {rows_of(applied)}")
    apart = query(
        driver,
        "SELECT r.id, r.status FROM webhook_receipts r LEFT JOIN ledger l ON l.receipt = r.id AND l.replays = r.replays"
        " WHERE (r.status = 'processed') <> (l.receipt IS NOT NULL)",
    )
    require(not apart, f"I3: the status and the work of receipts differ: {rows_of(apart)}")
    orphans = query(
        driver,
        "SELECT key FROM webhook_effects e WHERE NOT EXISTS (SELECT 1 FROM ledger l WHERE l.receipt = e.receipt_id)",
    )
    require(not orphans, f"I3: effects without the work that requested them: {[row[0] for row in orphans]}")
    excess = query(driver, "SELECT event_id, attempts FROM webhook_receipts WHERE attempts > ?", ATTEMPTS)
    require(not excess, f"I7: more than {ATTEMPTS} attempts: {rows_of(excess)}")
    excess = query(driver, "SELECT key, attempts FROM webhook_effects WHERE attempts > ?", EFFECT_ATTEMPTS)
    require(not excess, f"I7: more than {EFFECT_ATTEMPTS} attempts of effects: {rows_of(excess)}")
    stored = {row[0] for row in query(driver, "SELECT DISTINCT event_id FROM webhook_receipts")}
    require(driver.acked <= stored, f"I1: events with a 2xx are gone: {sorted(driver.acked - stored)}")
    answered = {event for event, _, is_answered in driver.service.calls if is_answered}
    done = {
        row[0].removeprefix("notify:") for row in query(driver, "SELECT key FROM webhook_effects WHERE status = 'done'")
    }
    require(done <= answered, f"I11: effects are done that no target answered: {sorted(done - answered)}")


def assert_at_end(driver: "Driver") -> None:
    """Every invariant, when all faults have stopped and all work has ended."""
    assert_now(driver)
    consumers = len(driver.scenario.consumers)
    counts = Counter(row[0] for row in query(driver, "SELECT event_id FROM webhook_receipts"))
    require(
        all(counts[event] == consumers for event in driver.scenario.events),
        f"I8: each event should have {consumers} receipts, and they have {dict(counts)}",
    )
    accepted = Counter(driver.accepted)
    require(max(accepted.values(), default=0) <= 1, f"I4: events were accepted as new twice: {accepted.most_common(3)}")
    keys = {event: {key for name, key, _ in driver.service.calls if name == event} for event in driver.scenario.events}
    require(all(len(found) <= 1 for found in keys.values()), f"I2: an effect had several idempotency keys: {keys}")
    effects = Counter(row[0] for row in query(driver, "SELECT key FROM webhook_effects"))
    require(max(effects.values(), default=0) <= 1, f"I9: effects were recorded twice: {effects.most_common(3)}")
    replays = query(driver, "SELECT coalesce(sum(replays), 0) FROM webhook_receipts")[0][0]
    audited = query(driver, "SELECT coalesce(sum(json_array_length(detail, '$.receipts')), 0) FROM webhook_audit"
                            " WHERE action IN ('replay', 'replay_batch')")[0][0]  # fmt: skip
    require(replays == audited, f"I9: {replays} replays, and {audited} of them are audited")
    leases = query(
        driver,
        "SELECT event, consumer, replays,"
        " sum(after = 'processing') - sum(before = 'processing' AND attempts < attempts_before) AS n"
        " FROM trace WHERE kind = 'receipt' AND before IS NOT NULL GROUP BY row, replays HAVING n > ?",
        ATTEMPTS,
    )
    require(not leases, f"I7: more than {ATTEMPTS} attempts began (event, consumer, replay, leases): {rows_of(leases)}")
    stale = query(
        driver,
        "SELECT t.process, t.event, t.consumer, t.after FROM trace t"
        " WHERE t.kind = 'receipt' AND t.before = 'processing' AND t.outcome IS NOT 'crashed' AND t.process <> ("
        " SELECT l.process FROM trace l WHERE l.row = t.row AND l.after = 'processing' AND l.fence = t.fence)",
    )
    require(not stale, f"I6: a process ended an attempt that another one holds: {rows_of(stale)}")
    redone = query(driver, "SELECT event FROM trace WHERE kind = 'effect' AND before = 'done'")
    require(not redone, f"I9: effects that were done changed again: {[row[0] for row in redone]}")


def is_quiet(driver: "Driver") -> bool:
    """Whether every receipt and effect has ended."""
    [row] = query(
        driver,
        "SELECT NOT EXISTS (SELECT 1 FROM webhook_receipts WHERE status NOT IN ('processed', 'failed', 'ignored'))"
        " AND NOT EXISTS (SELECT 1 FROM webhook_effects WHERE status NOT IN ('done', 'failed'))",
    )
    return bool(row[0])


def assert_pruned(driver: "Driver", before: list[tuple[Any, ...]], *, is_past: bool) -> None:
    """I12: inside the window nothing is deleted, and after it only events that were processed for every consumer."""
    left = {row[:2] for row in driver.rows()}
    gone = sorted(row for row in before if row[:2] not in left)
    require(is_past or not gone, f"I12: receipts were pruned inside their window: {gone}")
    unfinished = {event for event, _, status, *_ in before if status != "processed"}
    require(not unfinished & {row[0] for row in gone}, f"I12: receipts of unfinished events were pruned: {gone}")
