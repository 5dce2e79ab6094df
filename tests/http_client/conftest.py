"""Every test of the HTTP client runs on both event loops."""

import pytest


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The event loop of a user's app, and the one of `serve`."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}
