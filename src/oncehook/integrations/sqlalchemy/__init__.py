"""SQLAlchemy: `tx` is a session on the user's own engine, and its ORM work commits with the processed status.

An `AsyncEngine` gives an `AsyncSession` to `async def` handlers, an `Engine` gives a `Session` to plain ones, which run
in a thread. Nothing is held before the session's first use. The end of the transaction is ours: a handler that calls
`commit` or `rollback` is told so, `begin_nested` is its savepoint. The engine itself is left as it is.

On SQLite the driver emits no BEGIN before a SAVEPOINT, so a RELEASE would commit, and the row survive the outer
rollback. So these sessions emit `BEGIN IMMEDIATE` themselves, take turns with each other, and hold the write lock only
so long.
"""

from oncehook.integrations.sqlalchemy.engine import Sessions

__all__ = ["Sessions"]
