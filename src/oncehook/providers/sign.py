"""The other direction of `verify`: a delivery as its provider would send it, signed with a secret.

Used by `oncehook send`, the demo and the tests. What this signs, `verify` accepts; the tests hold the pair together
for every provider, and against what the providers' own libraries sign and accept.
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

    `headers` are those that the signature covers or the event needs (`webhook-id`, say); they are in the
    result too. The body is changed only for providers that carry their signature inside it. For asymmetric
    schemes `secret` is the private key. `settings` are those of the source that it is for: some providers sign its
    `public_url` or `webhook_id`.
    """
    unsigned = UnsignedDelivery(provider, body, dict(headers or {}), now, settings or SourceSettings())
    signature = _signing(provider, secret)
    return signature.family.sign(signature, unsigned, secret)


def _signing(provider: Provider, secret: str) -> Signature:
    """The alternative whose signing key `secret` is; if it is none's, one of its kind, to say what is wrong with it."""
    of_its_kind = None
    for signature in provider.signatures:
        if not provider.takes(signature, secret):
            continue
        try:
            signature.family.check_signing_key(signature, secret)
        except WrongKeyKind:
            continue
        except ValueError:
            of_its_kind = of_its_kind or signature
            continue
        return signature
    return of_its_kind or provider.signatures[0]
