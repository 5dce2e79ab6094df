"""Effects that are recorded without a relay."""

from oncehook import Event, Inbox
from oncehook.model.lease import Leased, Settled
from oncehook.model.states import State
from tests.support.work import claim


async def record(inbox: Inbox, *ids: str) -> None:
    """Process events so that their effects `send` are recorded, without a relay that runs them."""
    await claim(inbox, *ids)
    for leased in await inbox._runtime.store.leases.take(100, 30, "the test"):
        outbox = inbox._runtime.outbox()
        await Event(leased, outbox).effect(f"send:{leased.event_id}", "send", number=1)
        assert await outbox.settle([make_settled(leased)])


def make_settled(leased: Leased) -> Settled:
    """The result of a receipt that was processed."""
    return Settled(leased.receipt, leased.lease, State.PROCESSED, "processed")
