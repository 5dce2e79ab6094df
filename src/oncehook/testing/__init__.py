"""Tools to test your handlers: real deliveries to the real receiver and a real database, without waiting.

    async with inbox.lifespan():
        response = await deliver(inbox, "stripe", type="invoice.paid")
        (receipt,) = await drain(inbox)

`isolated` copies your inbox to the database of a test. `Bench` has the same functions for synchronous tests. The
pytest fixtures `oncehook_inbox` and `oncehook` need no import.
"""

from oncehook.providers.key_pairs import Pair
from oncehook.testing.bench import Bench
from oncehook.testing.clock import advance
from oncehook.testing.deliveries import DeliveryResponse, deliver, post, sign
from oncehook.testing.isolate import isolated
from oncehook.testing.keys import make_pair
from oncehook.testing.steps import Drained, NotAtRest, Performed, crash, drain, perform, prune, receipt, replay

__all__ = [
    "Bench",
    "DeliveryResponse",
    "Drained",
    "NotAtRest",
    "Pair",
    "Performed",
    "advance",
    "crash",
    "deliver",
    "drain",
    "isolated",
    "make_pair",
    "perform",
    "post",
    "prune",
    "receipt",
    "replay",
    "sign",
]
