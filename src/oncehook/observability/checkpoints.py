"""Named points that the background loops reach, so that tests wait for them instead of sleeping.

In production there is no listener, and `reach` costs one comparison. No checkpoint is on the path of a single event:
each stands at the end of a batch or of one pass of a loop.
"""

from collections.abc import Callable
from enum import StrEnum


class Checkpoint(StrEnum):
    """What has just happened when a checkpoint is reached."""

    RECEIPTS_SETTLED = "receipts_settled"
    WORKER_IDLE = "worker_idle"
    LEASES_RENEWED = "leases_renewed"
    EFFECTS_SETTLED = "effects_settled"
    RELAY_IDLE = "relay_idle"
    DUPLICATES_RECORDED = "duplicates_recorded"
    REJECTIONS_RECORDED = "rejections_recorded"
    EXPIRED_LEASES_CHECKED = "expired_leases_checked"
    PRUNED = "pruned"
    INTAKE_CLAIMED = "intake_claimed"
    ALERT_RULES_CHECKED = "alert_rules_checked"
    SPOOL_DRAINED = "spool_drained"


listener: Callable[[Checkpoint], None] | None = None
"""Called at each checkpoint. Only tests set it."""


def reach(checkpoint: Checkpoint) -> None:
    """Report that the checkpoint was reached."""
    if listener is not None:
        listener(checkpoint)
