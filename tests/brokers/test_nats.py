"""NATS JetStream: headers that the server interprets, and replies that are no acknowledgement."""

import nats
import pytest

from oncehook.brokers.address import parse_broker
from oncehook.brokers.nats import sendable_headers
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message, NotStored
from tests.support.broker_servers import PASSWORD
from tests.support.brokers import MakeQueue

pytestmark = [pytest.mark.anyio, pytest.mark.system, pytest.mark.xdist_group("brokers")]


def test_headers_that_the_server_interprets_are_not_sent() -> None:
    headers = {"Nats-Rollup": "all", "nats-msg-id": "forged", "Status": "503", "x-nats": "1", "content-type": "a/b"}
    assert sendable_headers(headers) == {"x-nats": "1", "content-type": "a/b"}


async def test_header_of_a_delivery_cannot_delete_the_messages_of_a_stream(
    make_queue: MakeQueue, publishers: Publishers
) -> None:
    queue = await make_queue("nats")
    for key in ("first", "second"):
        message = Message(key=key, body=b"{}", headers={"Nats-Rollup": "all", "Nats-Msg-Id": "forged"})
        await publishers.publish(parse_broker(queue.address()), message, timeout=10)
    assert [arrived.key for arrived in await queue.messages()] == ["first", "second"]


@pytest.mark.parametrize("reply", [b"", b"thanks", b"{}", b"[]", b'{"stream": "orders"}', b'{"stream": "", "seq": 0}'])
async def test_reply_of_a_subscriber_is_not_the_acknowledgement_of_a_stream(
    make_queue: MakeQueue, publishers: Publishers, reply: bytes
) -> None:
    queue = await make_queue("nats")
    client = await nats.connect(queue.server.origin, user=queue.server.user, password=PASSWORD)

    async def answer(message: object) -> None:
        await message.respond(reply)  # type: ignore[attr-defined]

    await client.subscribe("not.captured", cb=answer)
    await client.flush()
    with pytest.raises(NotStored):
        await publishers.publish(
            parse_broker(queue.server.address("not.captured")), Message(key="lost", body=b"{}"), timeout=10
        )
    await client.close()
