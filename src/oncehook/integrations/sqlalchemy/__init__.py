"""SQLAlchemy: `tx` is a session on the user's own engine, and its ORM work commits with the processed status.

With an `AsyncEngine`, `async def` handlers get an `AsyncSession`. With an `Engine`, plain handlers get a `Session` and
run in a thread. A session takes a connection at its first use. Oncehook ends the transaction: a handler that calls
`commit` or `rollback` gets an error, and uses `begin_nested` for a savepoint. The engine itself is not changed.

On SQLite the driver emits no BEGIN before a SAVEPOINT, so a RELEASE would commit, and the row would survive the outer
rollback. So these sessions emit `BEGIN IMMEDIATE` themselves. One session at a time holds SQLite's write lock, and only
for a limited time.
"""

from oncehook.integrations.sqlalchemy.engine import Sessions

__all__ = ["Sessions"]
