"""The settings of the duplicate fast path."""

from dataclasses import dataclass

from oncehook.config.setting import setting
from oncehook.model.values import size, text


@dataclass(frozen=True, kw_only=True)
class FastPathSettings:
    """Where receipts are remembered. `fast_paths` turns it off."""

    duplicate_cache: int = setting(
        16 * 2**20,
        size,
        "How much memory each process uses to remember receipts, so that their duplicates need no claim. 0: none. See "
        "[duplicate fast path](duplicates.md).",
    )
    redis: str | None = setting(
        None,
        text,
        "A Redis in which processes share the receipts that they remember, such as `redis://host:6379/0`. It may lose "
        "everything at any time. See [duplicate fast path](duplicates.md#redis).",
    )
