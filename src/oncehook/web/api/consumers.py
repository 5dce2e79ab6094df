"""API endpoints for consumers: list, pause and resume."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.web.api.endpoint import Endpoint, json_response, read_body
from oncehook.web.api.schemas.consumers import ConsumerPauseState, Consumers
from oncehook.web.api.schemas.sources import PauseRequest
from oncehook.web.consumers import describe_consumers, set_consumer_paused
from oncehook.web.page import Context


async def get_all(context: Context, request: Request) -> Response:
    return json_response({"consumers": await describe_consumers(context)})


async def pause(context: Context, request: Request) -> Response:
    body = read_body(request, PauseRequest) if request.state.body else PauseRequest()
    name = await set_consumer_paused(context, request, paused=True, reason=body.reason, seconds=body.seconds)
    return json_response({"consumer": name, "paused": True})


async def resume(context: Context, request: Request) -> Response:
    return json_response({"consumer": await set_consumer_paused(context, request, paused=False), "paused": False})


ENDPOINTS = (
    Endpoint("GET", "/api/consumers", get_all, summary="Lists the consumers and their work.", response=Consumers),
    Endpoint(
        "POST",
        "/api/consumers/{consumer}/pause",
        pause,
        scope="admin",
        summary="Pauses a consumer: its events wait, and the other consumers continue.",
        body=PauseRequest,
        response=ConsumerPauseState,
    ),
    Endpoint(
        "POST",
        "/api/consumers/{consumer}/resume",
        resume,
        scope="admin",
        summary="Resumes a consumer: its waiting events are handled.",
        response=ConsumerPauseState,
    ),
)
