"""New secrets and key pairs for tests, of the kind that a provider signs with."""

from oncehook.config.secret import resolve
from oncehook.inbox import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.providers.definition import Provider, Signature, find
from oncehook.providers.key_pairs import Pair
from oncehook.providers.source import Source


def make_pair(provider: str | Provider | Signature) -> Pair:
    """Return a new secret or key pair for a signature, or for the first signature of a provider.

    pair = make_pair("stripe")
    inbox.source("stripe", secrets=[pair.verifying])
    await deliver(inbox, "stripe", secret=pair.signing)
    """
    if isinstance(provider, str):
        provider = find(provider, {})
    signature = provider.signatures[0] if isinstance(provider, Provider) else provider
    return signature.family.make_pair(signature)


def shared_secret(source: Source) -> str | None:
    """Return the secret that a source shares with its sender, or None if the source has only a public key."""
    if not source.settings.secrets:
        return None
    secret = resolve(source.settings.secrets[0], f"sources.{source.name}.secrets[0]")
    shared = any(signature.family.shares_secret(signature) for signature in source.provider.signatures)
    return secret if shared and not secret.startswith("whpk_") else None


async def tenant_secret(inbox: Inbox, source: Source, tenant: str) -> str:
    """Return the first secret of a tenant. Raises ConfigurationError if the tenant has none."""
    cache = inbox._runtime.tenants.get(source.name)
    secrets = None if cache is None else await cache.lookup.find(tenant)
    if not secrets:
        reason = "the source has no tenants" if cache is None else "its secrets_for returned no secret"
        raise ConfigurationError(
            f"sources.{source.name} has no tenant {tenant!r}: {reason}. To deliver as a stranger, pass secret=…"
        )
    return secrets[0]
