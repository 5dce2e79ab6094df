"""Creates an empty PostgreSQL database for a test, and drops it afterwards."""

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from oncehook.model.errors import ConfigurationError
from oncehook.store import queries


@contextmanager
def fresh_database(server: str) -> Iterator[str]:
    """Yield the address of a new database on `server`. Its user must be allowed to create databases."""
    name = f"oncehook_test_{secrets.token_hex(8)}"
    sql = queries.load("postgres")
    _run(server, sql["create_database"].format(name=name))
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        _run(server, sql["drop_database"].format(name=name))


def _run(server: str, statement: str) -> None:
    try:
        import asyncpg

        from oncehook.store.postgres.pool import error_summary
    except ModuleNotFoundError:
        raise ConfigurationError("PostgreSQL needs its driver: pip install 'oncehook[postgres]'") from None

    async def run() -> None:
        connection = await asyncpg.connect(server)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:  # the test's own thread may run an event loop
        try:
            thread.submit(asyncio.run, run()).result()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
            raise ConfigurationError(
                f"PostgreSQL could not create a database for this test: {error_summary(error)}. Check that it is "
                "running, that the address is correct, and that its user may create databases"
            ) from None
