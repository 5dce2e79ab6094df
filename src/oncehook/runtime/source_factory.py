"""Makes the source of a runtime from its settings."""

from typing import TYPE_CHECKING

from oncehook.config.settings import SourceSettings
from oncehook.model.errors import ConfigurationError
from oncehook.providers.source import Source

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


def make_source(runtime: "Runtime", name: str, settings: SourceSettings) -> Source:
    """Make a source, without adding it. Raises ConfigurationError if its settings cannot be used."""
    source = Source(
        name,
        settings,
        own_providers=runtime.configuration.providers,
        max_body=runtime.settings.max_body,
        certificates=runtime.certificates,
        proxies=runtime.proxies,
    )
    if settings.encrypt:
        if settings.email:
            raise ConfigurationError(
                f"sources.{name}: email and encrypt contradict each other, because the email projection stores "
                f"addresses in plain text: remove one of them"
            )
        source.encrypt = runtime.store.encryption.encrypt_claims
    return source
