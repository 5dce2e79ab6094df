"""Private Redis servers, and a proxy that changes what a Redis answers."""

import asyncio
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from redis import Redis

from tests.support import programs
from tests.support.servers import free_port
from tests.support.waiting import wait_until, wait_until_stopped


class RedisServer:
    """A Redis on a free port, without persistence. `options` are those of the command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def client(self) -> Redis:
        return Redis(port=self.port)

    def start(self) -> "RedisServer":
        command = [str(programs.find("redis")), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self.process = subprocess.Popen(
            [*command, "--dir", str(self.folder), *self.options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._answers, "Redis starts", within=30)
        return self

    def _answers(self) -> bool:
        with self.client as client:
            try:
                return bool(client.ping())
            except OSError:
                return False
            except Exception as error:
                return type(error).__name__ != "ConnectionError"

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Stop the process, so that its connections stay open and nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        wait_until_stopped(self.process.pid)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def values(self) -> dict[bytes, bytes]:
        """Everything that it stores."""
        with self.client as client:
            return {key: client.get(key) for key in client.scan_iter()}

    def flush(self) -> None:
        with self.client as client:
            client.flushall()


@contextmanager
def private_redis(*options: str) -> Iterator[RedisServer]:
    """A Redis that exists for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="oncehook-redis-") as folder:
        server = RedisServer(Path(folder), *options)
        try:
            yield server.start()
        finally:
            server.kill()


@asynccontextmanager
async def lying_redis(server: RedisServer, change: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """The address of a Redis whose answers are changed by `change` before a client gets them."""
    tasks: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, edit: bool) -> None:
        while chunk := await reader.read(2**16):
            writer.write(change(chunk) if edit else chunk)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server.port)
        ways = [pass_on(reader, to_server, False), pass_on(from_server, writer, True)]
        both = [asyncio.create_task(way) for way in ways]
        tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, to_server):
            end.transport.abort()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0"
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
