"""Types of parameters and fields that several resources share."""

from typing import Annotated, Literal

from msgspec import Meta

StateName = Literal["received", "processing", "processed", "retrying", "failed", "ignored"]
EffectStateName = Literal["waiting", "performing", "retrying", "done", "failed"]
Text = Annotated[str, Meta(max_length=500)]
Number = Annotated[str, Meta(pattern="^[0-9]{0,18}$")]
Cursor = Annotated[str, Meta(max_length=200, description="`next` of the previous page.")]
Time = Annotated[str, Meta(max_length=40, description="An age (2h, 7d) or a time (2026-11-15T03:00:00Z).")]
