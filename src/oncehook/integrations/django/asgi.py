"""Starts and stops the inbox with an ASGI server, because Django's own ASGI app has no lifespan.

# mysite/asgi.py
application = with_lifespan(get_asgi_application())
"""

import asyncio
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from oncehook.integrations.django.instance import project
from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.receiver.request import Receive, Scope, Send


def with_lifespan(application: Any) -> "LifespanApp":
    """Return an ASGI app that runs the inbox from the start of the server to its end, and `application` in between."""
    return LifespanApp(application)


class LifespanApp:
    """Handles the lifespan messages of a server, and passes every other request on."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.application(scope, receive, send)
            return
        await receive()
        try:
            await asyncio.to_thread(project.inbox.wsgi.start)
        except (ConfigurationError, ImproperlyConfigured) as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        except OncehookError:  # the database does not answer: the site works, and later requests try again
            project.inbox.wsgi.thread.start_soon()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(project.inbox.wsgi.stop)
        await send({"type": "lifespan.shutdown.complete"})
