"""Apps that mount an inbox, behind uvicorn in this event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn

from oncehook.cli.serve import listen


@asynccontextmanager
async def uvicorn_client(app: Any, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run the app with uvicorn, as a user does, and yield a client for it."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None, **settings))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=base, timeout=10, verify=False) as client:
            yield client
    finally:
        server.should_exit = True
        await serving
