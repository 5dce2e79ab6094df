"""The interface of a signature family: a class that each module in `families/` implements.

A family is one way to sign and verify deliveries. A module of `families/` defines `FAMILY`, and the name of the module
is the name of the family. Users name a family in their code by path: `algorithm = "your_module:FAMILY"`. No other code
names a family: the verifier, the signer, the doctor, samples and tests use `Signature.family`.
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
Match = tuple[int, bytes | None]  # (index of the secret that verified, the signed timestamp)
NamedBy = Literal["algorithm", "tokens", ""]
SignedDelivery = tuple[dict[str, str], bytes]  # headers and body


class WrongKeyKind(ValueError):
    """The secret is a signing key, but of another kind than this alternative uses."""


class Check(Protocol):
    """Verifies one alternative of a provider's signatures with the source's keys for it."""

    stamped: bool  # whether the timestamp that `matches` returns must be within the tolerance

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        """The secret that verifies the delivery, or None. Raises Rejected to reject it without trying other checks."""


@runtime_checkable
class FetchingCheck(Protocol):
    """A check whose key may have to be fetched."""

    stamped: bool
    fetches: bool  # whether this source's key has to be fetched

    def matches(self, delivery: Delivery, body: Body) -> Match | None: ...

    def key_to_fetch(self, delivery: Delivery, body: Body) -> KeyRequest | str | None:
        """The key or certificate to fetch for this delivery. None if no key is missing, or none could verify it."""

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        """The timestamp of the delivery. It is checked before a key is fetched."""


@dataclass(frozen=True)
class CheckContext:
    """The parts of a source that a check may use: its settings and its fetched keys."""

    settings: SourceSettings = field(default_factory=SourceSettings)
    certificates: Certificates = field(default_factory=Certificates)


@dataclass(frozen=True, slots=True)
class UnsignedDelivery:
    """A delivery before it is signed."""

    provider: "Provider"
    body: bytes
    headers: dict[str, str]
    now: float
    settings: SourceSettings  # of the source that will receive it

    def delivery(self) -> Delivery:
        query = (self.settings.public_url or "").partition("?")[2].encode()
        return Delivery(self.body, self.pairs(), query=query)

    def pairs(self) -> list[tuple[bytes, bytes]]:
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]


class Family(ABC):
    """One way to sign and verify deliveries.

    Subclasses implement four methods. `load_key` and `make_check` verify. `sign` and `make_pair` act as the sender, for
    tests, samples and `oncehook send`. The defaults of the other methods fit a shared secret and a signature in the
    body; a signature in a header needs `signature_header` too.
    """

    named_by: NamedBy = "algorithm"
    """The key of `[[signatures]]` whose value names this family, or "" if other keys of the table imply it."""

    options: Mapping[str, object] = {}
    """Settings that a source must have, each with a value for tests. A definition repeats them in its `options`."""

    fetches_key = False
    """Whether a source may have no secret, because the key is fetched."""

    handshake: "HandshakeKind | None" = None
    """A kind of handshake that only these senders use. Its `kind` in a definition is the name of the family."""

    # -- verifying -----------------------------------------------------------------------------------------------

    @abstractmethod
    def load_key(self, signature: "Signature", secret: str) -> Key:
        """Turn a secret that is not blank into a key. Raises ValueError, whose message never quotes the secret."""

    @abstractmethod
    def make_check(self, signature: "Signature", provider: "Provider", keys: Keys, context: CheckContext) -> Check:
        """Make the check of one alternative at start-up. If it fetches keys, it is also a `FetchingCheck`."""

    # -- signing -------------------------------------------------------------------------------------------------

    @abstractmethod
    def sign(self, signature: "Signature", unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        """The headers and body as the sender sends them. Raises ValueError if this delivery cannot be signed."""

    @abstractmethod
    def make_pair(self, signature: "Signature") -> Pair:
        """A new secret: the part that signs, and the part that a source verifies with."""

    def check_signing_key(self, signature: "Signature", secret: str) -> None:  # noqa: B027  # optional
        """Raise ValueError for a secret that cannot sign; WrongKeyKind if it is another kind of key."""

    def shares_secret(self, signature: "Signature") -> bool:
        """Whether sender and source have the same secret. False if the source has a public key, or no key."""
        return True

    def sample_words(self, settings: SourceSettings) -> Mapping[str, str]:
        """Placeholders that the examples of a definition may use besides $id, $type and the others, by name."""
        return {}

    # -- checking definitions ------------------------------------------------------------------------------------

    def check_definition(self, signature: "Signature", provider: "Provider") -> None:  # noqa: B027  # optional
        """Raise ValueError for a definition that cannot work."""

    def may_sign_challenges(self, signature: "Signature") -> bool:
        """Whether a handshake may sign with this key: the signature of a challenge must never fit an event."""
        return True

    # -- describing requests -------------------------------------------------------------------------------------

    def signature_header(self, signature: "Signature") -> str | None:
        """The header with the signature, which is never stored with an event. None if the signature is in the body."""
        return None

    def signed_headers(self, signature: "Signature") -> frozenset[bytes]:
        """Every header that the check reads, in lower case. Rejection samples keep these headers for the doctor."""
        header = self.signature_header(signature)
        return frozenset() if header is None else frozenset({header.lower().encode()})

    def sends_secret(self, signature: "Signature") -> bool:
        """Whether the request carries the secret itself instead of a signature."""
        return False

    def signed_content(self, signature: "Signature", delivery: Delivery, body: Body) -> bytes:
        """The signed content in a canonical spelling, for the hash of an event.

        If one signature is valid for several spellings of a body, this must return the same bytes for all of them.
        Otherwise a captured delivery could be sent again as a new event.
        """
        return delivery.body
