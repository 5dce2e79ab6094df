"""The state of a PostgreSQL session of the user's own, before its first handler."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from oncehook.store.postgres.finish import literal


class SessionState(NamedTuple):
    """The session settings of a connection before its first handler."""

    restore: str  # the statements that restore the settings; empty if there are none
    is_whole: bool  # whether the statements restore all of the state


UNKNOWN = SessionState("", False)  # a connection that was replaced without notice


def state_of(row: Sequence[Any]) -> SessionState:
    """Return the state from the row of the query `session_state`."""
    session_user, role, settings, has_more = row
    values = json.loads(settings) | {
        name: value for name, value in (("session_authorization", session_user), ("role", role)) if value
    }
    calls = [f"pg_catalog.set_config({literal(name)}, {literal(value)}, false)" for name, value in values.items()]
    # reset the role first: the app may have changed settings, then the role, which may not change them
    restore = f"RESET SESSION AUTHORIZATION; RESET ROLE; SELECT {', '.join(calls)}" if calls else ""
    return SessionState(restore, not has_more)
