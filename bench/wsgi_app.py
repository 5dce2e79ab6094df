"""The same inbox as an ASGI app and as a WSGI app. Its database comes from the environment."""

import os
from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from bench.accept import SECRET
from oncehook import Inbox

inbox = Inbox(os.environ["BENCH_DATABASE"], worker=False)
inbox.source("stripe", secrets=[SECRET])


def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("the shop")


def shop(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "8")])
    return [b"the shop"]


asgi = Starlette(routes=[Mount("/webhooks", inbox), Route("/healthz", home)], lifespan=inbox.lifespan)
wsgi = inbox.wsgi.mount(shop)
