"""The tables of docs/scale.md, from the figures that `python -m bench.capacity` measured."""

from bench.capacity_model import (
    CORE_HOUR,
    DATABASE_CORES,
    GIGABYTE_MONTH,
    RATES,
    RETENTION_DAYS,
    UTILIZATION,
    cost_per_million,
    largest_rate,
    load_figures,
    plan,
)
from docs.markdown import table


def figures_table() -> str:
    """What one event costs."""
    f = load_figures()
    rows = [
        ("accept, receiver process", f"{f.accept_cpu_us:.0f} µs of CPU", f"{f.accept_rate:,.0f} events/s"),
        ("accept, PostgreSQL", f"{f.accept_server_us:.0f} µs of CPU", ""),
        ("accept on SQLite, one process", "", f"{f.sqlite_accept_rate:,.0f} events/s"),
        ("handle, worker process", f"{f.process_cpu_us:.0f} µs of CPU", f"{f.process_rate:,.0f} events/s"),
        ("handle, PostgreSQL", f"{f.process_server_us:.0f} µs of CPU", ""),
        (
            "handle in batches of 200, worker process",
            f"{f.batch_cpu_us:.0f} µs of CPU",
            f"{f.batch_rate:,.0f} events/s",
        ),
        ("handle in batches of 200, PostgreSQL", f"{f.batch_server_us:.0f} µs of CPU", ""),
        ("lease in batches of 100", "", f"{f.lease_rate:,.0f} events/s"),
        ("receipt with its indexes", f"{f.receipt_bytes:,.0f} bytes", ""),
        (f"payload of {f.body:,} bytes, with headers", f"{f.payload_bytes:,.0f} bytes", ""),
        ("write-ahead log, accept and handle", f"{f.wal_bytes:,.0f} bytes", ""),
        ("vacuum of the receipts", f"{f.vacuum_seconds_per_million:.1f} s per million events", ""),
        (f"first page of events, {f.receipts_searched:,} receipts", f"{f.page_ms:.0f} ms", ""),
        (f"search by event id, {f.receipts_searched:,} receipts", f"{f.search_ms:.0f} ms", ""),
    ]
    note = (
        f"Measured by `python -m bench.capacity` with {f.versions}, on a machine with {f.cores} cores and "
        f"{f.fsyncs_per_second:,.0f} durable writes a second, which the load generator and PostgreSQL shared."
    )
    return f"{table(('step', 'cost per event', 'rate that was measured'), rows)}\n\n{note}"


def plan_table() -> str:
    """What each rate of events needs."""
    figures, rows = load_figures(), []
    for rate in RATES:
        single, batch = plan(figures, rate), plan(figures, rate, batch=True)
        rows.append(
            (
                f"{rate:,}",
                _cores(single.receiver_cores),
                f"{_cores(single.worker_cores)} ({_cores(batch.worker_cores)})",
                f"{_cores(single.database_cores)} ({_cores(batch.database_cores)})",
                f"{single.shards} ({batch.shards})",
                _size(single.stored_gigabytes),
                f"{single.wal_megabytes_per_second:,.1f} MB/s",
            )
        )
    head = ("events/s", "receiver cores", "worker cores", "PostgreSQL cores", "databases", "stored", "write-ahead log")
    return (
        f"{table(head, rows)}\n\nIn parentheses: with batch handlers. Cores are used to {UTILIZATION:.0%}, a database "
        f"has at most {DATABASE_CORES} cores, and events are kept for {RETENTION_DAYS} days. One such database carries "
        f"about {largest_rate(figures, DATABASE_CORES):,.0f} events a second with one handler per event, and about "
        f"{largest_rate(figures, DATABASE_CORES, batch=True):,.0f} with batch handlers."
    )


def cost_table() -> str:
    """What a million events cost."""
    rows = []
    for name, batch in (("one handler per event", False), ("batch handlers", True)):
        cost = cost_per_million(load_figures(), batch=batch)
        seconds = (cost.receiver_core_seconds, cost.worker_core_seconds, cost.database_core_seconds)
        rows.append(
            (name, *(f"{number:.0f} s" for number in seconds), f"{cost.gigabytes:.1f} GB", f"${cost.dollars:.2f}")
        )
    head = ("a million events", "receiver CPU", "worker CPU", "PostgreSQL CPU", "stored", "example price")
    return (
        f"{table(head, rows)}\n\nThe example price is ${CORE_HOUR:.2f} for a core and hour, used to {UTILIZATION:.0%}, "
        f"and ${GIGABYTE_MONTH:.2f} for a gigabyte and month. It contains no traffic, backups or standbys: a standby "
        "doubles the share of PostgreSQL."
    )


def _cores(number: float) -> str:
    return f"{number:,.1f}" if number >= 0.1 else "< 0.1"


def _size(gigabytes: float) -> str:
    return f"{gigabytes:,.0f} GB" if gigabytes < 1000 else f"{gigabytes / 1000:,.1f} TB"
