"""The settings of the spool."""

from dataclasses import dataclass

from oncehook.config.setting import setting
from oncehook.model.values import boolean, positive, size, text


@dataclass(frozen=True, kw_only=True)
class SpoolSettings:
    """The settings of an inbox that begin with `spool`."""

    spool: str | None = setting(
        None,
        text,
        "A folder on a local disk. Deliveries of providers that hardly retry are written there while the database is "
        "unavailable, and claimed later. Absent: such deliveries get 503. See [spool](spool.md).",
    )
    spool_limit: int = setting(
        256 * 2**20, positive(size), "How many bytes the spool may have. Further deliveries get 503."
    )


@dataclass(frozen=True, kw_only=True)
class SourceSpoolSettings:
    """The key `spool` under `[sources.NAME]`."""

    spool: bool | None = setting(
        None,
        boolean,
        "With the inbox's `spool`: whether deliveries to this source are spooled. Absent: if its provider stops "
        "retrying within 24 hours, or that is not known. See [spool](spool.md).",
    )
