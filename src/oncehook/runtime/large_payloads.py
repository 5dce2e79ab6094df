"""The payload store of an inbox: the receiver writes large bodies to it."""

from typing import TYPE_CHECKING

from oncehook.model.errors import ConfigurationError
from oncehook.objects.reference import ObjectStoreUnavailable
from oncehook.observability import signals
from oncehook.receiver.claim import Claimer
from oncehook.receiver.offload import OffloadingClaims

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


def offload_claims(runtime: "Runtime", claimer: Claimer) -> OffloadingClaims:
    """Make the step that writes large bodies to the payload store before `claimer` commits."""
    settings = runtime.settings
    return OffloadingClaims(
        claimer,
        runtime.store,
        threshold=settings.payload_threshold,
        limit_bytes=settings.intake_bytes,
        rejects=settings.payload_fallback == "reject",
    )


class LargePayloads:
    """Implements `Part`. It wraps the step that commits claims, so every way to record an event goes through it."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._step: OffloadingClaims | None = None

    async def start(self) -> None:
        runtime, settings = self._runtime, self._runtime.settings
        try:
            await runtime.store.objects.check()
        except ObjectStoreUnavailable as error:
            if str(settings.payload_store).startswith("file:"):
                raise ConfigurationError(f"payload_store: {error}") from None
            signals.emit("payload_store_unavailable", detail=str(error))  # it may answer later
        receiver = runtime.reception.receiver
        self._step = receiver.claims = receiver.inline_claims = offload_claims(runtime, runtime.reception.claimer)

    async def stop(self) -> None:
        if self._step is not None:
            await self._step.drain()
            receiver = self._runtime.reception.receiver
            receiver.claims = receiver.inline_claims = self._step.claims
            self._step = None
