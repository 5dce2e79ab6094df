"""Redis streams: a key of another type, a server that does not accept writes, and trimming."""

import pytest

from oncehook.brokers.address import parse_broker
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message, NotStored
from oncehook.model.errors import SendFailed
from tests.support.brokers import MakeQueue, RedisQueue

pytestmark = [pytest.mark.anyio, pytest.mark.system, pytest.mark.xdist_group("brokers")]


async def test_name_of_another_type_is_not_stored(make_queue: MakeQueue, publishers: Publishers) -> None:
    queue = await make_queue("redis")
    assert isinstance(queue, RedisQueue)
    client = queue.client()
    await client.set(queue.name, "not a stream")
    with pytest.raises(NotStored, match="WRONGTYPE"):
        await publishers.publish(parse_broker(queue.address()), Message(key="lost", body=b"{}"), timeout=10)
    await client.aclose()


async def test_server_that_takes_no_writes_is_a_failure_of_the_server(
    make_queue: MakeQueue, publishers: Publishers
) -> None:
    queue = await make_queue("redis")
    assert isinstance(queue, RedisQueue)
    client = queue.client()
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(SendFailed, match="does not accept writes: OutOfMemoryError"):
            await publishers.publish(parse_broker(queue.address()), Message(key="lost", body=b"{}"), timeout=10)
    finally:
        await client.config_set("maxmemory", "0")
        await client.aclose()
    assert await queue.messages() == []


async def test_maxlen_trims_old_entries(make_queue: MakeQueue, publishers: Publishers) -> None:
    queue = await make_queue("redis")
    address = parse_broker(f"{queue.address()}?maxlen=100")
    for number in range(400):
        await publishers.publish(address, Message(key=str(number), body=b""), timeout=10)
    keys = [arrived.key for arrived in await queue.messages()]
    assert 100 <= len(keys) <= 200 and keys[-1] == "399"
