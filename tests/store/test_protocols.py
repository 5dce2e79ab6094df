"""Every database implements the protocols that the receiver, the worker and the relay use."""

import inspect

import pytest

from oncehook.store import protocols
from oncehook.store.store import Store
from tests.support.stores import assert_implements

PARTS = {
    "claims": protocols.ClaimStore,
    "leases": protocols.LeaseStore,
    "effects": protocols.EffectStore,
    "pauses": protocols.PauseStore,
    "rates": protocols.RateStore,
    "due_times": protocols.DueTimeStore,
    "roster": protocols.RosterStore,
    "directory": protocols.DirectoryStore,
    "email": protocols.EmailStore,
    "schema": protocols.SchemaStore,
    "wakeups": protocols.WakeupStore,
}


@pytest.mark.parametrize("name", PARTS)
def test_part_of_the_store_implements_its_protocol(closed_store: Store, name: str) -> None:
    assert_implements(getattr(closed_store, name), PARTS[name])


def test_every_protocol_describes_each_method() -> None:
    for protocol in PARTS.values():
        for name, method in vars(protocol).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                assert method.__doc__, f"{protocol.__name__}.{name} must have a docstring"


def test_only_postgresql_claims_concurrently(closed_store: Store) -> None:
    assert closed_store.claims.parallel == (1 if closed_store.dialect.single_writer else 2)
