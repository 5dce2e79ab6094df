"""Provider handshakes: the receiver recognizes and answers them, and never stores them."""

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.observability import signals
from oncehook.providers.definition import Handshake
from oncehook.providers.handshake import IN_HANDSHAKE, answer
from oncehook.providers.source import Source
from oncehook.receiver.ack import Response
from oncehook.receiver.request import CLOSE, RequestRejected


def find_unsigned(source: Source, delivery: Delivery) -> Handshake | None:
    """The unsigned handshake in a delivery, or None. Only such a handshake may use another method than POST."""
    if not source.unsigned_handshakes:
        return None
    handshake = source.handshake_of(delivery, source.unsigned_handshakes)
    if handshake is None and delivery.method != "POST":
        raise RequestRejected.with_code("method_not_allowed", (b"allow", b"POST"), CLOSE)
    return handshake


def find_signed(source: Source, delivery: Delivery) -> Handshake | None:
    """The handshake in a verified delivery, or None."""
    return source.handshake_of(delivery, source.handshakes) if source.handshakes else None


async def answer_handshake(source: Source, handshake: Handshake, delivery: Delivery, verified_by: int) -> Response:
    """Answer a handshake as its definition says. `verified_by` is the index of the secret that verified it."""

    tenant = {"tenant": source.tenant} if source.tenant else {}

    def offer(secret: str) -> None:
        signals.emit("secret_offered", source=source.name, **tenant, secret=secret)

    try:
        response = await answer(
            handshake, delivery, source.body_of(delivery), source.handshake_host(offer, verified_by)
        )
    except Rejected as error:
        if handshake.kind == "secret":
            delivery.body = b""  # the rejection sample must not contain the offered secret
        raise Rejected(error.reason, IN_HANDSHAKE + error.detail) from None
    signals.emit("handshake_answered", source=source.name, **tenant, kind=handshake.kind)
    return response
