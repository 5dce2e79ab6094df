"""The lock of a connection is taken from a handler that does not leave its statement."""

import threading

import pytest

from oncehook import Unavailable
from oncehook.integrations import user_transaction
from oncehook.integrations.user_transaction import taken_from_handler


class Driver:
    """Ends the statement of a handler when it is interrupted."""

    def __init__(self, statement: threading.Event) -> None:
        self.statement = statement

    def interrupt(self) -> None:
        self.statement.set()


def test_statement_of_a_handler_is_interrupted() -> None:
    lock, entered, statement = threading.RLock(), threading.Event(), threading.Event()

    def handle() -> None:
        with lock:
            entered.set()
            statement.wait(30)

    thread = threading.Thread(target=handle)
    thread.start()
    entered.wait(30)
    with taken_from_handler(lock, Driver(statement)):
        assert statement.is_set()
    thread.join()


def test_handler_that_cannot_be_interrupted_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_transaction, "PATIENCE", 0.2)
    lock, entered, ends = threading.RLock(), threading.Event(), threading.Event()

    def handle() -> None:
        with lock:
            entered.set()
            ends.wait(30)

    thread = threading.Thread(target=handle)
    thread.start()
    entered.wait(30)
    with pytest.raises(Unavailable, match="did not leave its statement"), taken_from_handler(lock, None):
        pass
    ends.set()
    thread.join()
