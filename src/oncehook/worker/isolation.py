"""Isolation: a quarantined receipt runs while no worker of the process runs anything else.

A process has one worker per consumer. A receipt whose process died may kill its next process too. If it ran beside the
handlers of other consumers, their events would lose an attempt with each crash, and could become dead letters.
"""

from typing import Protocol


class IsolatedWorker(Protocol):
    """A worker of the process."""

    @property
    def is_quiet(self) -> bool:
        """Whether the worker runs nothing, and holds no lease of a receipt that it has not started."""

    def wake(self) -> None:
        """Continue now: the isolation has begun or ended, or another worker has become quiet."""


class Isolation:
    """The worker of this process that has a quarantined receipt, if there is one. The others then start nothing."""

    def __init__(self) -> None:
        self._workers: list[IsolatedWorker] = []
        self._holder: IsolatedWorker | None = None

    def join(self, worker: IsolatedWorker) -> None:
        self._workers.append(worker)

    def leave(self, worker: IsolatedWorker) -> None:
        self.release(worker)
        if worker in self._workers:
            self._workers.remove(worker)

    @property
    def is_free(self) -> bool:
        return self._holder is None

    def is_held_for_other(self, worker: IsolatedWorker) -> bool:
        """Whether this worker must start nothing, because another one has a quarantined receipt."""
        return self._holder is not None and self._holder is not worker

    def acquire(self, worker: IsolatedWorker) -> bool:
        """Isolate this worker. Returns False if another one is isolated."""
        if self.is_held_for_other(worker):
            return False
        self._holder = worker
        self._wake_others(worker)
        return True

    def release(self, worker: IsolatedWorker) -> None:
        """End the isolation of this worker, if it has it."""
        if self._holder is worker:
            self._holder = None
            self._wake_others(worker)

    def are_others_quiet(self, worker: IsolatedWorker) -> bool:
        return all(other.is_quiet for other in self._workers if other is not worker)

    def notify(self, worker: IsolatedWorker) -> None:
        """Wake the isolated worker, because this one has finished something."""
        if self._holder is not None and self._holder is not worker:
            self._holder.wake()

    def _wake_others(self, worker: IsolatedWorker) -> None:
        for other in self._workers:
            if other is not worker:
                other.wake()
