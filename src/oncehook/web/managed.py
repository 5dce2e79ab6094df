"""Changes managed sources and tenants, for the dashboard and the API. Both show fingerprints, never secrets."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from starlette.requests import Request

from oncehook.model.errors import ConfigurationError, Unavailable
from oncehook.runtime.managed_changes import KeyNeeded, NameTaken, SourceChanges, UnknownName
from oncehook.runtime.tenant_changes import TenantChanges, managed_source, tenant_row
from oncehook.web.page import Context, Problem, check_texts, principal

GRACES = {"86400": "for 24 hours", "604800": "for 7 days", "3600": "for an hour", "0": "not at all"}
"""How long a form offers to accept the older secrets, by the number of seconds."""

MAX_SECRET_LENGTH = 20_000
"""Maximum characters of a secret in a form. A secret may be a public key."""


@asynccontextmanager
async def changing_sources(context: Context, request: Request) -> AsyncIterator[SourceChanges]:
    """Changes of managed sources by the principal of a request. Raises Problem for a change that fails."""
    async with _changing(context):
        yield SourceChanges(context.runtime, context.store, principal(request).name)


@asynccontextmanager
async def changing_tenants(context: Context, request: Request) -> AsyncIterator[TenantChanges]:
    """Changes of the tenants of the source in the path. Raises Problem for a change that fails."""
    async with _changing(context):
        yield TenantChanges(context.runtime, context.store, principal(request).name, request.path_params["source"])


@asynccontextmanager
async def _changing(context: Context) -> AsyncIterator[None]:
    """Convert refusals to problems. After the change, let this process see it now, as others do within a second."""
    with _problems():
        yield
    with suppress(Unavailable):  # the change is committed, and the watch queries again
        await context.runtime.settings_watch.refresh()
    context.overview.invalidate()


@contextmanager
def _problems() -> Iterator[None]:
    """Convert ConfigurationError to Problem."""
    try:
        yield
    except UnknownName as error:
        raise Problem(404, "not_found", _sentence(error)) from None
    except NameTaken as error:
        raise Problem(409, "name_taken", _sentence(error)) from None
    except KeyNeeded as error:
        raise Problem(409, "key_needed", _sentence(error)) from None
    except ConfigurationError as error:
        raise Problem(422, "bad_source", _sentence(error)) from None


def _sentence(error: ConfigurationError) -> str:
    text = str(error)
    is_setting = text.startswith("sources.")  # a name is not capitalized
    return f"{text[:1] if is_setting else text[:1].upper()}{text[1:]}{'' if text.endswith(('?', '.')) else '.'}"


async def list_tenants(
    context: Context, source: str, *, search: str, after: str, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of the managed tenants of a source by name, and the cursor of the next page."""
    check_texts({"search": search, "cursor": after}, 200)
    with _problems():
        managed_source(context.runtime, source)
        rows = await context.store.directory.tenants(source, search=search, after=after, limit=limit + 1)
        listed = [tenant_row(context.store.keys, row) for row in rows[:limit]]
    return listed, rows[limit - 1].tenant if len(rows) > limit else None


def secret_of(fields: Mapping[str, str]) -> str:
    """The secret of a form. Raises Problem if it is missing."""
    secret = fields.get("secret", "").strip()
    if not secret:
        raise Problem(422, "bad_source", "Enter the secret.")
    check_texts({"secret": secret}, MAX_SECRET_LENGTH)
    return secret


def grace_of(fields: Mapping[str, str]) -> float:
    """The seconds for which the older secrets are accepted. Raises Problem for a value that the form does not offer."""
    grace = fields.get("grace", "86400")
    if grace not in GRACES:
        raise Problem(422, "bad_source", "Choose how long the older secrets are accepted.")
    return float(grace)
