"""A bare ASGI app that reads the body and responds: the baseline of `bench.accept`."""

from typing import Any

RESPONSE = b'{"status":"accepted","event_id":"evt_0","receipt":1}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(RESPONSE)).encode())]


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": RESPONSE})
