"""New secrets and key pairs for tests, of the kind that a provider signs with."""

from oncehook.config.secret import resolve
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
