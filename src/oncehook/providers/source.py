"""A configured endpoint, made ready at start-up: its provider's definition with its own secrets, types and limits.

`parse` and `read` turn a verified delivery into claims (`providers/claims.py`).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import retry_of
from oncehook.config.secret import is_reference, resolve, secret_fingerprint
from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Unavailable
from oncehook.model.values import size
from oncehook.providers import definition as providers
from oncehook.providers.certificates import Certificates
from oncehook.providers.claims import ClaimReader
from oncehook.providers.definition import Handshake, Provider
from oncehook.providers.forwarded_address import Proxies
from oncehook.providers.handshake import HandshakeHost, is_handshake, kind_of
from oncehook.providers.template import Body
from oncehook.providers.verify import Verifier

HORIZON = 30 * 86400.0  # seconds for which a provider retries, where its definition does not say
CERTIFICATE = "certificate"
"""Stands for the fingerprint at a source whose deliveries are verified by a certificate that is fetched."""

INLINE_ATTEMPTS = 5
"""How many deliveries of an inline event are attempts, unless the source says."""

MOST_OFFERS = 5
"""So many secrets a minute may be offered to a source; more are a stranger's noise in the operator's log."""

FROM_SECRETS = frozenset(
    ("verifier", "marks", "uses", "waits_for_secret", "fetches_certificates", "proxies", "verify_token", "is_plain")
)
"""What a source is without until its secrets are loaded."""


class Source:
    """A source. It is ready to receive once its secrets are loaded."""

    verifier: Verifier | None
    marks: list[str]
    uses: list[int]  # how often each secret verified, since that was last written
    waits_for_secret: bool
    fetches_certificates: bool
    proxies: Proxies | None  # who may say which address a sender used
    verify_token: bytes
    is_plain: bool  # a delivery needs nothing but to be verified, read and claimed

    def __init__(
        self,
        name: str,
        settings: SourceSettings,
        *,
        own_providers: Mapping[str, Mapping[str, Any]] | None = None,
        max_body: int,
        certificates: Certificates | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        where = f"sources.{name}"
        self.name = name
        self.settings = settings
        self.provider: Provider = providers.find(settings.provider or name, own_providers or {})
        self.provider_name = self.provider.name
        self.certificates = (certificates or Certificates()).for_source()
        for option in self.provider.options:
            if not getattr(settings, option) and not (option == "public_url" and proxies):
                other = ", or without your proxies in trusted_proxies" if option == "public_url" else ""
                raise ConfigurationError(
                    f"{where}.{option} is missing: {self.provider.title} cannot be received safely without it{other}"
                )
        self.is_verified = settings.verify == "signature"
        self._trusted_proxies = proxies
        self._prepare_handshakes()
        self.max_body = settings.max_body or (size(self.provider.max_body) if self.provider.max_body else max_body)
        self.horizon = self.provider.horizon or HORIZON
        self.reader = ClaimReader(name, self.provider, settings)
        self.parse, self.read = self.reader.parse, self.reader.read  # every event passes here
        self.split, self.inline = self.reader.split, self.reader.is_inline
        self.retry = retry_of(settings, where)
        self.inline_attempts = settings.max_attempts or INLINE_ATTEMPTS
        if not any(is_reference(secret) for secret in (*settings.secrets, settings.verify_token or "")):
            self.load_secrets()  # a secret that is written out is checked where it stands

    def load_secrets(self) -> None:
        """Resolve the secrets, and make what depends on them. Raises ConfigurationError, which names the place.

        The inbox calls it at every start. Where a source is read without a start, its first use does.
        """
        where, settings = f"sources.{self.name}", self.settings
        marks, verifier = [CERTIFICATE], None
        if self.is_verified:
            given = [resolve(secret, f"{where}.secrets[{i}]") for i, secret in enumerate(settings.secrets)]
            marks = [secret_fingerprint(self.name, secret) for secret in given] or marks
            verifier = self.make_verifier(self.provider, given, where=where)
        token = settings.verify_token
        self.verify_token = resolve(token, f"{where}.verify_token").encode() if token else b""
        self.verifier, self.marks, self.uses = verifier, marks, [0] * len(marks)
        self.waits_for_secret = verifier is not None and not verifier.checks
        self.fetches_certificates = verifier is not None and verifier.fetches
        self.proxies = self._trusted_proxies if verifier is not None and verifier.needs_address else None
        more = self.inline, self.fetches_certificates, self.proxies, self.handshakes, self.unsigned_handshakes
        self.is_plain = not any(more)

    if not TYPE_CHECKING:  # it would let every misspelt attribute pass

        def __getattr__(self, name: str) -> Any:
            if name not in FROM_SECRETS:
                raise AttributeError(f"a source has no {name}")
            self.load_secrets()
            return self.__dict__[name]

    def _prepare_handshakes(self) -> None:
        # A handshake that makes us call somebody is only for senders that have proved who they are.
        known = [one for one in self.provider.handshakes if self.is_verified or not kind_of(one.kind).calls_sender]
        self.handshakes = [one for one in known if one.verified]
        self.unsigned_handshakes = [one for one in known if not one.verified]
        self.methods = sorted({"POST", *(one.method for one in known)})
        self._offers: deque[float] = deque(maxlen=MOST_OFFERS)

    def make_verifier(
        self, provider: Provider, secrets: Sequence[str], *, where: str, public_url: str | None = None
    ) -> Verifier:
        """A verifier with this source's settings; the doctor tries other definitions, secrets and addresses."""
        settings = self.settings if public_url is None else replace(self.settings, public_url=public_url)
        return Verifier(provider, secrets, where=where, settings=settings, certificates=self.certificates)

    # -- handshakes -----------------------------------------------------------------------------------------------

    def body_of(self, delivery: Delivery) -> Body:
        return Body(delivery, self.provider.sends_form)

    def handshake_of(self, delivery: Delivery, among: Sequence[Handshake]) -> Handshake | None:
        """The handshake that a delivery is, if it is one of these."""
        body = self.body_of(delivery)
        return next((one for one in among if is_handshake(one, delivery, body)), None)

    def handshake_host(self, offer: Callable[[str], None], verified_by: int = 0) -> HandshakeHost:
        """What an answer to a handshake may need of this source."""
        keys = sorted(self._keys(), key=lambda pair: (pair[0] != verified_by, pair[0]))
        return HandshakeHost(self.certificates, [key for _, key in keys], self.verify_token, self._limited(offer))

    def _keys(self) -> Sequence[tuple[int, Any]]:
        return self.verifier.keys[0] if self.verifier is not None else ()

    def _limited(self, offer: Callable[[str], None]) -> Callable[[str], None]:
        def limited(secret: str) -> None:
            now = SYSTEM.monotonic()
            if len(self._offers) == MOST_OFFERS and self._offers[0] > now - 60:
                raise Unavailable("too many secrets were offered in the last minute", retry_after=60)
            self._offers.append(now)
            offer(secret)

        return limited
