"""Sessions on a user's SQLAlchemy engine."""

import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from oncehook import ConfigurationError, Inbox
from oncehook.integrations.sqlalchemy import Sessions
from oncehook.runtime.sessions import make_sessions


def test_an_engine_gives_handlers_sessions_on_it(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/inbox.db")
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db", engine=engine)
    sessions = inbox._runtime.sessions
    assert isinstance(sessions, Sessions) and sessions.engine is engine
    assert sessions.store is inbox._runtime.store


def test_without_an_engine_there_are_no_sessions(tmp_path: Path) -> None:
    assert Inbox(f"sqlite:///{tmp_path}/inbox.db")._runtime.sessions is None


def test_an_engine_without_sqlalchemy_installed_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Inbox(f"sqlite:///{tmp_path}/inbox.db")._runtime.store
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    for name in [name for name in sys.modules if name.startswith("oncehook.integrations.sqlalchemy")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigurationError, match=r"pip install 'oncehook\[sqlalchemy\]'"):
        make_sessions(object(), store)
