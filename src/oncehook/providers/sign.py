"""Signs deliveries as their provider would, for `oncehook send`, the demo and tests. It is the inverse of `verify`.

For every provider, tests check that `verify` accepts what `sign` signs, and compare both with the provider's library.
"""

from collections.abc import Mapping

from oncehook.config.settings import SourceSettings
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.family import SignedDelivery, UnsignedDelivery, WrongKeyKind


def sign(
    provider: Provider,
    body: bytes,
    secret: str,
    *,
    headers: Mapping[str, str] | None = None,
    now: float,
    settings: SourceSettings | None = None,
) -> SignedDelivery:
    """The headers and body of a delivery as `provider` would send it, signed with `secret`.

    Pass in `headers` those that the signature covers or the event needs, such as `webhook-id`; the result includes
    them. The body changes only if the provider carries its signature in the body. For asymmetric algorithms, `secret`
    is the private key. `settings` are those of the receiving source: some providers sign its `public_url` or
    `webhook_id`.
    """
    unsigned = UnsignedDelivery(provider, body, dict(headers or {}), now, settings or SourceSettings())
    signature = _choose_signature(provider, secret)
    return signature.family.sign(signature, unsigned, secret)


def _choose_signature(provider: Provider, secret: str) -> Signature:
    """The alternative that `secret` can sign for.

    If there is none, it returns an alternative for the same kind of key, whose error then explains the problem.
    """
    same_kind = None
    for signature in provider.signatures:
        if not provider.accepts_secret(signature, secret):
            continue
        try:
            signature.family.check_signing_key(signature, secret)
        except WrongKeyKind:
            continue
        except ValueError:
            same_kind = same_kind or signature
            continue
        return signature
    return same_kind or provider.signatures[0]
