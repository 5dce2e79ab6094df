"""The tables that the handler of a run writes."""

TABLES = (
    "CREATE TABLE ledger (event_id TEXT NOT NULL)",
    "CREATE TABLE history (id {key}, object_id TEXT NOT NULL, version INTEGER NOT NULL)",
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, bookings INTEGER NOT NULL)",
    "INSERT INTO accounts VALUES (0, 0), (1, 0)",
)
KEYS = {"postgres": "bigint GENERATED ALWAYS AS IDENTITY", "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT"}
