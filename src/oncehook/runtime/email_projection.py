"""Registers the sources whose events update the email projection."""

from typing import TYPE_CHECKING

from oncehook.providers.source import Source

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


def project_email(runtime: "Runtime", source: Source, *, unhandled: bool) -> None:
    """Update the email projection with events of a source. With `unhandled`, also with events without a handler."""
    from oncehook.email.projection import BATCH, EmailProjection, project_only  # only sources with `email` need it

    if runtime.email_projection is None:
        runtime.email_projection = runtime.handlers.projection = EmailProjection(runtime.email.policy)
    runtime.email_projection.add(source.name, source.provider_name, natural=source.settings.id is not None)
    if unhandled:
        runtime.handlers.add_projection(source.name, project_only, batch=BATCH)
