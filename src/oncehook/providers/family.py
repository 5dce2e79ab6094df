"""The interface of a signature family: one class that a module in `families/` fills in.

A family is one way to sign and verify deliveries. A module of `families/` that defines `FAMILY` is a family, under the
name of the module; a module of your own is one under its path, `algorithm = "your_module:FAMILY"`. No other code names
a family: the verifier, the signer, the doctor, samples and tests ask `Signature.family`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.providers.certificates import Certificates, KeyRequest
from oncehook.providers.key_pairs import Pair
from oncehook.providers.signatures import Key
from oncehook.providers.template import Body

if TYPE_CHECKING:
    from oncehook.providers.definition import Provider, Signature
    from oncehook.providers.handshake import HandshakeKind

Keys = Sequence[tuple[int, Key]]  # (index of the secret, its key)
Match = tuple[int, bytes | None]  # (index of the secret that verifies, the timestamp that it covers)
NamedBy = Literal["algorithm", "tokens", ""]
SignedDelivery = tuple[dict[str, str], bytes]  # headers and body


class WrongKeyKind(ValueError):
    """A secret that signs, but with another kind of key than this alternative has."""


class Check(Protocol):
    """One alternative of a provider's signatures, with the source's keys for it."""

    stamped: bool  # whether the timestamp that it returns must be inside the window

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        """The secret that verifies the delivery, or None. Raises Rejected to stop other checks from being tried."""


@runtime_checkable
class FetchingCheck(Protocol):
    """A check whose key may have to be fetched."""

    stamped: bool
    fetches: bool  # whether this source's key has to be fetched

    def matches(self, delivery: Delivery, body: Body) -> Match | None: ...

    def key_to_fetch(self, delivery: Delivery, body: Body) -> KeyRequest | str | None:
        """The key or certificate to fetch for this delivery. None for a delivery that could never verify."""

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        """The time that the delivery claims, which is checked before anything is fetched for it."""


@dataclass(frozen=True)
class CheckContext:
    """What a check may use of its source: its settings, and the keys that it fetched."""

    settings: SourceSettings = field(default_factory=SourceSettings)
    certificates: Certificates = field(default_factory=Certificates)


@dataclass(frozen=True, slots=True)
class UnsignedDelivery:
    """A delivery before it is signed."""

    provider: "Provider"
    body: bytes
    headers: dict[str, str]
    now: float
    settings: SourceSettings  # of the source that it is for

    def delivery(self) -> Delivery:
        query = (self.settings.public_url or "").partition("?")[2].encode()
        return Delivery(self.body, self.pairs(), query=query)

    def pairs(self) -> list[tuple[bytes, bytes]]:
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]


class Family(ABC):
    """One way to sign and verify deliveries, in both directions.

    Four methods must be written: `load_key` and `make_check` verify, `sign` and `make_pair` are the sender's side, for
    tests, samples and `oncehook send`. Everything below them has a default that fits a shared secret and a signature
    in the body; a signature in a header needs `signature_header` too.
    """

    named_by: NamedBy = "algorithm"
    """The key of `[[signatures]]` whose value names this family; "" if the rest of the table implies it."""

    options: Mapping[str, object] = {}
    """Settings of a source that it needs, each with a value for tests. A definition must list them in its `options`."""

    fetches_key = False
    """Whether a source may have no secret, because the key is fetched."""

    handshake: "HandshakeKind | None" = None
    """A handshake that only these senders have. Its `kind` in a definition is the name of the family."""

    # -- verifying -----------------------------------------------------------------------------------------------

    @abstractmethod
    def load_key(self, signature: "Signature", secret: str) -> Key:
        """A secret, which is not blank, as a key. Raises ValueError that says what is wrong, without the value."""

    @abstractmethod
    def make_check(self, signature: "Signature", provider: "Provider", keys: Keys, context: CheckContext) -> Check:
        """The check of one alternative, made once at start-up; it has `FetchingCheck`'s methods if it fetches keys."""

    # -- signing -------------------------------------------------------------------------------------------------

    @abstractmethod
    def sign(self, signature: "Signature", unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        """The headers and body as the sender sends them. Raises ValueError if it cannot be signed so."""

    @abstractmethod
    def make_pair(self, signature: "Signature") -> Pair:
        """A new secret: what signs, and what a source verifies with."""

    def check_signing_key(self, signature: "Signature", secret: str) -> None:  # noqa: B027  # optional
        """Raises ValueError for a secret that cannot sign; WrongKeyKind if it is for another kind of key."""

    def shares_secret(self, signature: "Signature") -> bool:
        """Whether sender and source have the same secret. False: the source has a public key, or none."""
        return True

    def sample_words(self, settings: SourceSettings) -> Mapping[str, str]:
        """Words that examples of a definition may use, besides $id, $type and the others, by name."""
        return {}

    # -- what a definition may say -------------------------------------------------------------------------------

    def check_definition(self, signature: "Signature", provider: "Provider") -> None:  # noqa: B027  # optional
        """Raises ValueError for a definition that could never work as meant."""

    def may_sign_challenges(self, signature: "Signature") -> bool:
        """Whether a signed word can never be the signature of an event: then a handshake may sign with this key."""
        return True

    # -- what is known about a request ---------------------------------------------------------------------------

    def signature_header(self, signature: "Signature") -> str | None:
        """The header with the signature, which is never stored with an event. None if it is in the body."""
        return None

    def signed_headers(self, signature: "Signature") -> frozenset[bytes]:
        """Every header that the check reads, in lower case: samples of rejected requests keep them for the doctor."""
        header = self.signature_header(signature)
        return frozenset() if header is None else frozenset({header.lower().encode()})

    def sends_secret(self, signature: "Signature") -> bool:
        """Whether the request carries the secret itself, and nothing is signed."""
        return False

    def signed_content(self, signature: "Signature", delivery: Delivery, body: Body) -> bytes:
        """The signed content in one spelling, for the hash of an event.

        If the sender's signature is the same for several spellings of a body, this must return the same bytes for all
        of them. Otherwise a captured delivery could be sent again as a new event.
        """
        return delivery.body
