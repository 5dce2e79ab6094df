"""Quart, with a dispatcher before it for the paths of the sources."""

from collections.abc import AsyncGenerator
from typing import Any

from quart import Quart

from tests.integrations.frameworks.shop import inbox

shop = Quart(__name__)


@shop.while_serving
async def lifespan() -> AsyncGenerator[None, None]:
    async with inbox.lifespan():
        yield


@shop.get("/")
async def home() -> str:
    return "the shop quart_app"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http" and scope["path"].startswith("/webhooks/"):
        scope = {**scope, "root_path": scope.get("root_path", "") + "/webhooks"}
        await inbox(scope, receive, send)
    else:
        await shop(scope, receive, send)
