"""aiohttp, which is not ASGI, with the adapter."""

import sys

from aiohttp import web

from oncehook.integrations.aiohttp import setup
from tests.integrations.frameworks.shop import inbox

app = web.Application()
setup(app, inbox)


async def home(request: web.Request) -> web.Response:
    return web.Response(text="the shop aiohttp_app")


app.router.add_get("/", home)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
