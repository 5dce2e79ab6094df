"""Suppressions of email addresses, as the pages and the API list and change them."""

from typing import Any

from starlette.requests import Request

from oncehook.web.page import Context, Problem, check_texts, principal


async def look(context: Context, search: str, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """A page, and where the next one begins."""
    check_texts({"search": search, "cursor": after})
    rows = await context.runtime.email.suppressions(after=after, limit=limit + 1, search=search)
    return rows[:limit], rows[limit - 1]["address"] if len(rows) > limit else None


async def change(context: Context, request: Request, address: str, note: str, *, remove: bool) -> dict[str, Any]:
    """Add or lift a suppression, and record who did. Raises Problem for what is no address."""
    address, note = address.strip(), note.strip()
    check_texts({"address": address, "note": note}, 500)
    email = context.runtime.email
    try:
        return await (email.allow if remove else email.suppress)(
            address, actor=principal(request).name, note=note or None
        )
    except ValueError:
        raise Problem(422, "bad_address", "This is not an email address.") from None
