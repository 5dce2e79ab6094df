"""Turns: the tenants of a source share the worker, so that a flood of one tenant does not delay the others.

A lease visits the tenants with waiting receipts one after the other, and takes equally many of each, as far as each has
them. The next lease continues at the tenant where the last one ended. Its cost depends on the number of tenants that it
visits, not on the number of waiting receipts.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from oncehook.model.lease import Leased
from oncehook.store.serial import Key

LeaseTurn = Callable[[Sequence[Key], int, int], Awaitable[list[Leased]]]
"""Leases up to a number of receipts of each of some tenants, and up to a total."""


def tenant_of(leased: Leased) -> Key:
    """The tenant of a receipt. The same name at another source is another tenant."""
    return leased.source, leased.tenant


async def lease_turns(tenants: Sequence[Key], limit: int, lease_turn: LeaseTurn) -> list[Leased]:
    """Lease up to `limit` receipts, equally many of each tenant as far as each has them. The tenants alternate."""
    leased: list[Leased] = []
    waiting = list(tenants)
    while waiting and len(leased) < limit:
        room = limit - len(leased)
        each = max(1, room // len(waiting))
        turn = await lease_turn(waiting, each, room)
        leased += turn
        counts = Counter(map(tenant_of, turn))
        waiting = [tenant for tenant in waiting if counts[tenant] == each]  # the others have no more
    return alternate(leased)


def alternate(leased: Sequence[Leased]) -> list[Leased]:
    """Order receipts so that the first of every tenant comes first, then the second of every tenant, and so on."""
    seen: Counter[Key] = Counter()
    ranks: list[tuple[int, int]] = []
    for number, receipt in enumerate(leased):
        tenant = tenant_of(receipt)
        ranks.append((seen[tenant], number))
        seen[tenant] += 1
    return [leased[number] for _, number in sorted(ranks)]
