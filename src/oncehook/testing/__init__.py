"""For the tests of your handlers: real deliveries through the real door, real work on a real database, no waiting.

async with inbox.lifespan():
    answer = await deliver(inbox, "stripe", type="invoice.paid")
    (receipt,) = await drain(inbox)

`isolated` gives an inbox like yours on a database of the test's own; `Bench` is the same for tests that are plain
functions, and the pytest fixtures `oncehook_inbox` and `oncehook` are there without an import.
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
