"""Payload objects in a directory, which all processes of the inbox must share.

An object is durable when `write` returns: its file, its directory and the directory above are fsynced.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable

THREADS = 8
"""How many files are written, read and deleted at the same time."""

T = TypeVar("T")


class DirectoryObjects:
    """Implements `ObjectBackend` on a file system."""

    def __init__(self, store: str) -> None:
        self._root = Path(unquote(store.removeprefix("file://")))
        # Its own threads: a file system that hangs must not block the threads of other work.
        self._threads = ThreadPoolExecutor(THREADS, "oncehook-payload-store")

    async def check(self) -> None:
        await self._run(self._check)

    async def write(self, key: str, data: bytes) -> None:
        await self._run(self._write, key, data)

    async def read(self, key: str) -> bytes:
        return await self._run(self._read, key)

    async def delete(self, key: str) -> None:
        await self._run(self._delete, key)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _run(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _check(self) -> None:
        try:
            self._make(self._root)
            if not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError("this process may not write to it")
        except OSError as error:
            raise ObjectStoreUnavailable(self._problem(error)) from error

    def _write(self, key: str, data: bytes) -> None:
        path = self._root / key
        try:
            descriptor = self._create(path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            _sync_directory(path.parent)
        except OSError as error:
            raise ObjectStoreUnavailable(self._problem(error)) from error

    def _create(self, path: Path) -> int:
        """Create the file. If another process deletes its empty directory at this moment, make the directory again."""
        for _ in range(3):
            self._make(path.parent)
            with suppress(FileNotFoundError):
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        raise FileNotFoundError(f"{path.parent} is repeatedly deleted")

    def _make(self, directory: Path) -> None:
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync_directory(directory.parent)

    def _read(self, key: str) -> bytes:
        try:
            return (self._root / key).read_bytes()
        except FileNotFoundError as error:
            if not self._root.is_dir():  # it is not mounted, which says nothing about the object
                raise ObjectStoreUnavailable(f"the directory {self._root} does not exist") from error
            raise ObjectMissing(f"its payload object file://{self._root}/{key} does not exist") from error
        except OSError as error:
            raise ObjectStoreUnavailable(self._problem(error)) from error

    def _delete(self, key: str) -> None:
        path = self._root / key
        try:
            if not self._root.is_dir():
                raise FileNotFoundError("the directory does not exist")
            path.unlink(missing_ok=True)
            with suppress(OSError):  # it has other objects
                path.parent.rmdir()
        except OSError as error:
            raise ObjectStoreUnavailable(self._problem(error)) from error

    def _problem(self, error: OSError) -> str:
        return f"the directory {self._root}: {error.strerror or error}"


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
