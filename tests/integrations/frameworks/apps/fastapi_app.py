"""FastAPI: the inbox as an ASGI app, whose answers the others have too."""

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from tests.integrations.frameworks.shop import inbox

app = FastAPI(lifespan=inbox.lifespan)


@app.get("/", response_class=PlainTextResponse)
def home() -> str:
    return "the shop fastapi_app"


app.mount("/webhooks", inbox)
