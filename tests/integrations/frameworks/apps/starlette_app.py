"""Starlette, with the inbox as a mounted app."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from tests.integrations.frameworks.shop import inbox


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("the shop starlette_app")


app = Starlette(routes=[Route("/", home), Mount("/webhooks", inbox)], lifespan=inbox.lifespan)
