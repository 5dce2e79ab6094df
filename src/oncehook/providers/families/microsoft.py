"""Microsoft Graph: clientState in each notification, and tokens for notifications with resource data.

Microsoft's identity platform signs a token with a key that it publishes. The token must be issued for this application
and to the application that sends change notifications.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.delivery import Delivery
from oncehook.providers.certificates import KeyRequest
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.families.each import EachCheck, EachFamily, read_elements
from oncehook.providers.family import Check, CheckContext, Keys, Match, NamedBy
from oncehook.providers.jwt import NOT_A_KEY, UNREADABLE, Token, Tokens, load_rsa_key
from oncehook.providers.signatures import Key
from oncehook.providers.template import Body, read_field

SENDER = "0bf30f3b-4a52-48df-9a82-234910c4a086"
KEYS = "https://login.microsoftonline.com/common/discovery/v2.0/keys"
LEEWAY = 300
MAX_TOKENS = 32
_TENANT = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ISSUER = re.compile(rf"https://(?:login\.microsoftonline\.com/{_TENANT}/v2\.0|sts\.windows\.net/{_TENANT}/)", re.ASCII)
_text = msgspec.json.Decoder(str).decode


class GraphClaims(msgspec.Struct, frozen=True):
    """The claims of a token: its audience, issuer and sender, and when it is valid."""

    aud: str
    iss: str
    exp: int
    nbf: int = 0
    azp: str = ""
    appid: str = ""

    def are_for(self, app_id: str, now: float) -> bool:
        """Whether the token is for this application, from Microsoft's sender of notifications, and valid now."""
        in_time = self.nbf - LEEWAY <= now <= self.exp + LEEWAY
        is_sender = (self.azp or self.appid) == SENDER
        return self.aud == app_id and is_sender and bool(_ISSUER.fullmatch(self.iss)) and in_time


TOKENS = Tokens("RS256", key_names=r"[A-Za-z0-9_-]{1,128}", claims=GraphClaims, longest=16 * 1024)


class MicrosoftCheck(EachCheck):
    """Verifies every clientState and every token. Resource data without a token is rejected."""

    fetches = True

    def __init__(self, signature: Signature, keys: Keys, context: CheckContext) -> None:
        super().__init__(signature, keys)
        self.app_id = context.settings.app_id or ""
        self.certificates = context.certificates

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        match = super().matches(delivery, body)
        if match is None:
            return None
        tokens = self._tokens(body)
        if tokens is None or not all(self._is_genuine(token) for token in tokens):
            return None
        return match if tokens or not self._has_resource_data(body) else None

    def key_to_fetch(self, delivery: Delivery, body: Body) -> KeyRequest | None:
        """The first missing key of a token. Nothing is fetched for a delivery with a wrong clientState."""
        if super().matches(delivery, body) is None:
            return None
        requests = (key_request(token.key_name) for token in self._tokens(body) or ())
        return next((request for request in requests if self.certificates.get(request.name) is None), None)

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        return None

    def _tokens(self, body: Body) -> Sequence[Token[GraphClaims]] | None:
        """The tokens beside the notifications. None if one of them is malformed or not for this application."""
        raw = body.raw(("validationTokens",))
        if raw is None or raw == b"null":
            return ()
        elements = read_elements(raw)
        if elements is None or len(elements) > MAX_TOKENS:
            return None
        try:
            tokens = [TOKENS.read(_text(element).encode("utf-8", "surrogatepass")) for element in elements]
        except (*UNREADABLE, ValueError):
            return None
        now = SYSTEM.now()
        return tokens if all(token.claims.are_for(self.app_id, now) for token in tokens) else None

    def _is_genuine(self, token: Token[GraphClaims]) -> bool:
        key = self.certificates.get(key_request(token.key_name).name)
        return key is not None and TOKENS.is_signed_by(key, token)

    def _has_resource_data(self, body: Body) -> bool:
        return any(read_field(element, "encryptedContent") is not None for element in self._elements(body))


def key_request(key_name: str) -> KeyRequest:
    """The request that fetches the key of a name."""
    return KeyRequest(f"{KEYS}#{key_name}", KEYS, load=partial(load_key, key_name))


def load_key(key_name: str, content: bytes) -> Key:
    """The key of a name among Microsoft's published keys. Raises ValueError if it is not one of them."""
    try:
        tables: Any = msgspec.json.decode(content)["keys"]
        table = next(table for table in tables if table["kid"] == key_name and table["kty"] == "RSA")
        return load_rsa_key(table)
    except (*NOT_A_KEY, StopIteration):
        raise ValueError("the key is not one of Microsoft's published keys") from None


class MicrosoftFamily(EachFamily):
    """clientState in each element. If the source has an `app_id`, the tokens are verified too."""

    named_by: NamedBy = "tokens"

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        if not context.settings.app_id:
            return EachCheck(signature, keys)
        return MicrosoftCheck(signature, keys, context)


FAMILY = MicrosoftFamily()
