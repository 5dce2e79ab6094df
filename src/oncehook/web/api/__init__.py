"""The JSON API: everything that the dashboard shows and does."""

from oncehook.web.api import consumers, effects, email, events, managed, openapi, state
from oncehook.web.api.endpoint import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *events.ENDPOINTS,
    *effects.ENDPOINTS,
    *state.ENDPOINTS,
    *managed.ENDPOINTS,
    *consumers.ENDPOINTS,
    *email.ENDPOINTS,
    *openapi.ENDPOINTS,
)
