"""Litestar, with the inbox as a mounted ASGI app."""

from typing import Any

from litestar import Litestar, MediaType, asgi, get

from tests.integrations.frameworks.shop import inbox


@get("/", media_type=MediaType.TEXT)
async def home() -> str:
    return "the shop litestar_app"


@asgi("/webhooks", is_mount=True, copy_scope=True)
async def webhooks(scope: Any, receive: Any, send: Any) -> None:
    await inbox(scope, receive, send)


app = Litestar([home, webhooks], lifespan=[inbox.lifespan], logging_config=None)  # else it formats all log lines
