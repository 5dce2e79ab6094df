"""Which offset of each Kafka partition may be committed: everything before it is claimed or set aside.

Kafka has no acks for single messages. A group commits an offset, and after a crash it continues there. Messages are
acked in any order, so the offset to commit is the first one that is not done.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Partition:
    delivered: deque[int] = field(default_factory=deque)  # in order, from the first that is not done
    done: set[int] = field(default_factory=set)
    next: int | None = None  # the offset to commit


class Offsets:
    """The messages of the assigned partitions that were delivered and are not committed yet."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    @property
    def in_flight(self) -> int:
        """How many messages are delivered and not done."""
        return sum(len(partition.delivered) - len(partition.done) for partition in self._partitions.values())

    def deliver(self, partition: int, offset: int) -> None:
        """Note that a message was delivered. The library delivers the messages of a partition in order."""
        self._partitions.setdefault(partition, _Partition()).delivered.append(offset)

    def finish(self, partition: int, offset: int) -> None:
        """Note that a message is done. One of a partition that was taken away is ignored: another consumer has it."""
        known = self._partitions.get(partition)
        if known is None or offset not in known.delivered:
            return
        known.done.add(offset)
        while known.delivered and known.delivered[0] in known.done:
            first = known.delivered.popleft()
            known.done.discard(first)
            known.next = first + 1

    def take_commits(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Return the offsets to commit, by partition, and forget them."""
        wanted = list(self._partitions) if partitions is None else partitions
        commits = {}
        for number in wanted:
            known = self._partitions.get(number)
            if known is not None and known.next is not None:
                commits[number], known.next = known.next, None
        return commits

    def restore_commits(self, commits: dict[int, int]) -> None:
        """Keep offsets whose commit failed, for the next one."""
        for number, offset in commits.items():
            known = self._partitions.get(number)
            if known is not None:
                known.next = max(offset, known.next or 0)

    def rewind(self, partition: int, offset: int) -> bool:
        """Forget a message and all later ones of its partition: they are delivered again. False if it is unknown."""
        known = self._partitions.get(partition)
        if known is None or offset not in known.delivered:
            return False
        while known.delivered and known.delivered[-1] >= offset:
            known.done.discard(known.delivered.pop())
        return True

    def forget(self, partitions: Iterable[int]) -> None:
        """Forget partitions that this consumer no longer has."""
        for number in partitions:
            self._partitions.pop(number, None)
