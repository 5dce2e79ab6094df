"""Plaid: a token (JWT) over the hash of the body, signed with a pinned key or one that Plaid's API returns.

Oncehook fetches the key that the token names, with the source's credentials, and only from Plaid's own host.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers import key_pairs
from oncehook.providers.certificates import KeyRequest
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.family import Check, CheckContext, Family, Keys, Match, SignedDelivery, UnsignedDelivery
from oncehook.providers.jwt import NOT_A_KEY, Token, Tokens, load_p256_key
from oncehook.providers.key_pairs import Pair
from oncehook.providers.signatures import Key, algorithm
from oncehook.providers.template import Body

HEADER = b"plaid-verification"
EXAMPLE_KEY = "example-key"


class PlaidClaims(msgspec.Struct, frozen=True):
    """The claims of Plaid's token about a delivery."""

    iat: int
    request_body_sha256: str


TOKENS = Tokens("ES256", key_names=r"[A-Za-z0-9-]{1,64}", claims=PlaidClaims, longest=4096)


class Credentials(str):
    """client_id:secret, the credentials that fetch keys. The other kind of secret is a key itself."""

    __slots__ = ()


class Pinned(NamedTuple):
    """A configured key. If it has a name, it only verifies tokens that name it."""

    name: str | None
    key: Key


class PlaidCheck:
    """Verifies that the token in the header covers the body, with the key that it names."""

    stamped = True
    guarded = frozenset({HEADER})

    def __init__(self, keys: Keys, context: CheckContext) -> None:
        self.pinned: list[tuple[int, Pinned]] = [(index, key) for index, key in keys if isinstance(key, Pinned)]
        self.credentials = [(index, key) for index, key in keys if isinstance(key, Credentials)]
        self.fetches = bool(self.credentials)
        self.sandbox = context.settings.sandbox
        self.certificates = context.certificates

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if HEADER in delivery.repeated:
            raise Rejected("malformed", "a header of the signature is repeated")
        token = self._token(delivery)
        if token is None:
            return None
        for index, key in self._keys(token):
            if TOKENS.is_signed_by(key, token):
                return index, _issued_at(token)
        return None

    def key_to_fetch(self, delivery: Delivery, body: Body) -> KeyRequest | None:
        token = self._token(delivery)
        if token is None or not self.credentials:
            return None
        requests = self._key_requests(token)
        return None if any(self.certificates.get(request.name) is not None for request in requests) else requests[0]

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        token = self._token(delivery)
        return None if token is None else _issued_at(token)

    def _token(self, delivery: Delivery) -> Token[PlaidClaims] | None:
        try:
            token = TOKENS.read(delivery.headers.get(HEADER, b""))
        except ValueError:
            return None
        digest = token.claims.request_body_sha256
        expected = hashlib.sha256(delivery.body).hexdigest()
        return token if digest.isascii() and hmac.compare_digest(expected, digest) else None

    def _keys(self, token: Token[PlaidClaims]) -> Keys:
        fetched = [
            (index, self.certificates.get(self._key_request(token, key).name)) for index, key in self.credentials
        ]
        pinned = [(index, pin.key) for index, pin in self.pinned if pin.name in (None, token.key_name)]
        return [*pinned, *((index, key) for index, key in fetched if key is not None)]

    def _key_requests(self, token: Token[PlaidClaims]) -> Sequence[KeyRequest]:
        return [self._key_request(token, credentials) for _, credentials in self.credentials]

    def _key_request(self, token: Token[PlaidClaims], credentials: str) -> KeyRequest:
        return key_request(token.key_name, credentials, sandbox=self.sandbox)


def _issued_at(token: Token[PlaidClaims]) -> bytes:
    return str(token.claims.iat).encode()


# -- keys -----------------------------------------------------------------------------------------------------------


def load_jwk(content: bytes | str) -> Key:
    """The P-256 public key of a JWK, alone or inside Plaid's response. Raises ValueError for any other content."""
    try:
        table: Any = msgspec.json.decode(content)
        table = table.get("key", table)
        if table.get("expired_at") is not None:
            raise ValueError("the key has expired")
        return load_p256_key(table)
    except NOT_A_KEY:
        raise ValueError("it is not a key (JWK)") from None


def name_of(content: str) -> str | None:
    """The `kid` of a JWK, if it has one."""
    try:
        table: Any = msgspec.json.decode(content)
        name = table.get("key", table).get("kid")
    except NOT_A_KEY:
        return None
    return name if isinstance(name, str) else None


def key_request(key_name: str, credentials: str, *, sandbox: bool) -> KeyRequest:
    """The request that fetches the key of a name from Plaid. `credentials` are client_id:secret."""
    host = "sandbox.plaid.com" if sandbox else "production.plaid.com"
    client, _, secret = credentials.partition(":")
    content = msgspec.json.encode({"client_id": client, "secret": secret, "key_id": key_name})
    return KeyRequest(f"{host}#{key_name}", f"https://{host}/webhook_verification_key/get", content, load_jwk)


class PlaidFamily(Family):
    """Plaid. The secret is client_id:secret, or a pinned key (JWK or PEM)."""

    def load_key(self, signature: Signature, secret: str) -> Key:
        text = secret.strip()
        if text.startswith("{"):
            return Pinned(name_of(text), load_jwk(text))
        client, _, rest = text.partition(":")
        if client.isalnum() and rest.isalnum() and text.isascii():
            return Credentials(text)
        return Pinned(None, algorithm(TOKENS.algorithm).load(secret, "public"))

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return PlaidCheck(keys, context)

    def sign(self, signature: Signature, unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        digest = hashlib.sha256(unsigned.body).hexdigest()
        token = TOKENS.sign(secret, EXAMPLE_KEY, {"iat": int(unsigned.now), "request_body_sha256": digest})
        return {**unsigned.headers, "Plaid-Verification": token.decode()}, unsigned.body

    def make_pair(self, signature: Signature) -> Pair:
        return key_pairs.ecdsa()

    def shares_secret(self, signature: Signature) -> bool:
        return False

    def signature_header(self, signature: Signature) -> str:
        return "Plaid-Verification"


FAMILY = PlaidFamily()
