"""Secrets of a test's own, of whatever kind a provider signs with."""

from oncehook.config.secret import resolve
from oncehook.providers.definition import Provider, Signature, find
from oncehook.providers.key_pairs import Pair
from oncehook.providers.source import Source


def make_pair(provider: str | Provider | Signature) -> Pair:
    """A new secret for a provider's first way to sign, or for the one that is given."""
    if isinstance(provider, str):
        provider = find(provider, {})
    signature = provider.signatures[0] if isinstance(provider, Provider) else provider
    return signature.family.make_pair(signature)


def shared_secret(source: Source) -> str | None:
    """What both a source and its sender have, or None where the source has only a public key."""
    if not source.settings.secrets:
        return None
    secret = resolve(source.settings.secrets[0], f"sources.{source.name}.secrets[0]")
    shared = any(one.family.shares_secret(one) for one in source.provider.signatures)
    return secret if shared and not secret.startswith("whpk_") else None
