"""Facts of the email projection, and the tables that follow from them."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from oncehook.email import status, suppressions
from oncehook.email.status import Fact
from oncehook.email.suppressions import Policy
from oncehook.store.store import Store
from tests.support.servers import run_sql

POLICY = Policy(soft_bounces=3)
DAY0 = datetime(2025, 11, 1, tzinfo=UTC)
TABLES = {
    "facts": "SELECT source, key, type, bounce, message_id, recipient, occurred_at, reason FROM webhook_email_events "
    "ORDER BY source, key",
    "status": "SELECT * FROM webhook_email_status ORDER BY message_id, recipient, source",
    "suppressions": "SELECT * FROM webhook_suppressions ORDER BY address",
}


def make_fact(number: int, type_: str, day: float = 0, to: str = "jane@example.com", **more: Any) -> Fact:
    """Make a fact of one message and recipient, `day` days after DAY0."""
    at = (DAY0 + timedelta(days=day)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    values: dict[str, Any] = {"source": "ses", "key": f"k{number}", "message_id": f"m{number}", **more}
    return Fact(type=type_, recipient=to, occurred_at=at, domain="example.com", **values)


async def record_facts(store: Store, facts: list[Fact], policy: Policy = POLICY) -> None:
    """Record facts and update status and suppressions, as the projection does."""

    async def work(transaction: Any) -> None:
        new = await status.record(transaction, facts)
        await suppressions.suppress(transaction, new, policy)

    await store.email.transact(work)


def email_tables(database: str) -> dict[str, list[Any]]:
    """Return all rows of the projection."""
    return {name: run_sql(database, sql) for name, sql in TABLES.items()}


def clear_tables(database: str) -> None:
    """Delete all rows of the projection."""
    for table in ("webhook_email_events", "webhook_email_status", "webhook_suppressions"):
        run_statement(database, f"DELETE FROM {table} WHERE true")


def run_statement(database: str, sql: str) -> None:
    """Run a statement that changes rows."""
    run_sql(database, sql + (" RETURNING 1" if database.startswith("p") else ""))


def make_facts(rows: list[tuple[int, str, str | None, int, int]]) -> list[Fact]:
    """Make facts of few messages, recipients and times. The key is a function of the other values."""
    return [
        make_fact(
            message,
            type_,
            day / 4,
            f"r{to}@example.com",
            bounce=bounce if type_ == "bounced" else None,
            key=f"{message} {type_} {bounce} {to} {day}",
            message_id=f"m{message}" if message else "",
            reason=f"{type_} {day}",
        )
        for message, type_, bounce, to, day in rows
    ]


def row_versions(database: str) -> list[Any]:
    """Return which transaction wrote each row, on PostgreSQL."""
    if database.startswith("sqlite"):
        return []
    return run_sql(
        database, "SELECT message_id, recipient, xmin::text, ctid::text FROM webhook_email_status ORDER BY 1, 2"
    )


def make_history(count: int, seed: int = 7) -> list[Fact]:
    """Make a random history of many messages."""
    chance = random.Random(seed)
    types = ["queued", "delivered", "opened", "clicked", "bounced", "deferred", "complained"]
    rows = [
        (
            chance.randint(1, count // 4),
            chance.choice(types),
            chance.choice(["hard", "soft"]),
            0,
            chance.randint(0, 400),
        )
        for _ in range(count)
    ]
    return make_facts([(n, t, b if t == "bounced" else None, n % 50, day) for n, t, b, _, day in dict.fromkeys(rows)])


NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # each example uses a database


def examples(number: int) -> settings:
    """Return settings of Hypothesis for tests that use a database."""
    return settings(
        max_examples=number,
        deadline=None,
        phases=NO_SHRINKING,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
