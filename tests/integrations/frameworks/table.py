"""The frameworks of the suite: the module of each app in `apps/`, and the command of its server.

To add a framework, write a module in `apps/` with the `inbox` of `shop` below `/webhooks` and the page `/`, which
answers "the shop <module>", and add a row here. The command is a program of the virtual environment. `{app}` is
replaced by `<module>:app`, and `{port}` by a free port.
"""

import signal
from dataclasses import dataclass

GUNICORN = ("gunicorn", "--threads", "8", "--bind", "127.0.0.1:{port}", "{app}")
WAITRESS = ("waitress-serve", "--threads", "8", "--listen", "127.0.0.1:{port}", "{app}")
UWSGI = ("uwsgi", "--master", "--enable-threads", "--threads", "8", "--need-app", "--die-on-term",
         "--http-socket", "127.0.0.1:{port}", "--module", "{app}")  # fmt: skip
HYPERCORN = ("hypercorn", "--bind", "127.0.0.1:{port}", "{app}")
AIOHTTP = ("python", "-m", "tests.integrations.frameworks.apps.aiohttp_app", "{port}")
UVICORN = ("uvicorn", "--port", "{port}", "{app}")


@dataclass(frozen=True)
class Framework:
    """One framework with its own server."""

    module: str
    command: tuple[str, ...]
    stop: signal.Signals = signal.SIGTERM
    """The signal that stops its server cleanly."""

    interrupts: bool = False
    """Whether a body that is late gets 408. Some servers read the whole body first, or do not share the connection."""

    is_sample: bool = True
    """Whether it is part of every run. The others are part of the long runs."""

    @property
    def name(self) -> str:
        return f"{self.module.removesuffix('_app')}-{self.command[0]}"


FRAMEWORKS = [
    Framework("fastapi_app", UVICORN, interrupts=True),
    Framework("starlette_app", UVICORN, interrupts=True, is_sample=False),  # FastAPI is a Starlette app
    Framework("litestar_app", UVICORN, interrupts=True),
    Framework("quart_app", HYPERCORN, interrupts=True),
    Framework("aiohttp_app", AIOHTTP, interrupts=True),
    Framework("flask_app", GUNICORN, interrupts=True),
    Framework("flask_app", UWSGI, is_sample=False),
    Framework("bottle_app", GUNICORN, is_sample=False),
    Framework("django_wsgi_app", GUNICORN),
    Framework("django_asgi_app", UVICORN),
    Framework("falcon_app", WAITRESS, signal.SIGINT, is_sample=False),
]
