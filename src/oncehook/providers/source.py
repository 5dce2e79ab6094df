"""A configured source: its provider's definition combined with its secrets, types and limits.

`parse` and `read` turn a verified delivery into claims (`providers/claims.py`).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import retry_of
from oncehook.config.intake_settings import check_intake, is_published, is_queue_only
from oncehook.config.secret import is_reference, resolve, secret_fingerprint
from oncehook.config.settings import SourceSettings
from oncehook.model.claim import Claim
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

Encrypt = Callable[[Sequence[Claim]], list[Claim]]
"""Returns claims as they are stored: with encrypted payloads."""

HORIZON = 30 * 86400.0  # seconds during which a provider may retry, if its definition does not say
CERTIFICATE = "certificate"
"""Stands for the fingerprint at a source whose deliveries are verified by a certificate that is fetched."""

INLINE_ATTEMPTS = 5
"""Default number of attempts of an inline event. Each delivery by the provider is one attempt."""

MAX_OFFERS_PER_MINUTE = 5
"""Offered secrets per minute that are logged. The limit keeps unauthenticated requests from flooding the log."""

FROM_SECRETS = frozenset(
    (
        "verifier",
        "fingerprints",
        "uses",
        "waits_for_secret",
        "fetches_certificates",
        "proxies",
        "verify_token",
        "is_plain",
    )
)
"""Attributes that exist only after the secrets are loaded."""


class Source:
    """A source. It can receive deliveries once its secrets are loaded."""

    verifier: Verifier | None
    fingerprints: list[str]  # of the secrets, in their order
    uses: list[int]  # deliveries that each secret verified since the counts were last written
    waits_for_secret: bool
    fetches_certificates: bool
    proxies: Proxies | None  # the proxies that may report which address a sender used
    verify_token: bytes
    is_plain: bool  # deliveries only need to be verified, read and claimed

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
        self.tenant = ""  # of a source that `for_tenant` returned
        self.settings = settings
        self.has_tenants = settings.tenants is not None
        self.needs_tenant = self.has_tenants and not settings.secrets
        self.provider: Provider = providers.find(settings.provider or name, own_providers or {})
        self.provider_name = self.provider.name
        self.certificates = (certificates or Certificates()).for_source()
        check_intake(settings, where, has_tenants=self.has_tenants)
        self.is_published = is_published(settings)  # its deliveries go to a queue, and are claimed from there
        self.is_queue_only = is_queue_only(settings)  # it has no address
        for option in () if self.is_queue_only else self.provider.options:
            if not getattr(settings, option) and not (option == "public_url" and proxies):
                alternative = ", or your proxies in trusted_proxies" if option == "public_url" else ""
                raise ConfigurationError(
                    f"{where}.{option} is missing: deliveries of {self.provider.title} cannot be verified without it. "
                    f"Set it{alternative}"
                )
        self.is_verified = settings.verify == "signature"
        if self.has_tenants and not self.is_verified:
            raise ConfigurationError(
                f'{where} has tenants and verify = "none": without signatures, anyone could deliver to every tenant. '
                f"Remove `verify`, or use a source without tenants"
            )
        if self.has_tenants and settings.email:
            raise ConfigurationError(
                f"{where} has tenants and email = true: the email tables do not know tenants. Remove one of them"
            )
        self._trusted_proxies = proxies
        self._prepare_handshakes()
        self.max_body = settings.max_body or (size(self.provider.max_body) if self.provider.max_body else max_body)
        self.horizon = self.provider.horizon or HORIZON
        self.reader = ClaimReader(name, self.provider, settings, has_tenants=self.has_tenants)
        self.parse, self.read = self.reader.parse, self.reader.read  # hot path: saves an attribute lookup per event
        self.split, self.inline = self.reader.split, self.reader.is_inline
        self.retry = retry_of(settings, where)
        self.inline_attempts = settings.max_attempts or INLINE_ATTEMPTS
        self.encrypt: Encrypt | None = None  # set by the inbox if the source has `encrypt = true`
        if not any(is_reference(secret) for secret in (*settings.secrets, settings.verify_token or "")):
            self.load_secrets()  # literal secrets are checked when the source is defined

    def load_secrets(self) -> None:
        """Resolve the secrets and make the verifier. Raises ConfigurationError, which names the setting.

        The inbox calls it at every start. Without a start, the first use of an attribute in FROM_SECRETS calls it.
        """
        where, settings = f"sources.{self.name}", self.settings
        token = settings.verify_token
        self.verify_token = resolve(token, f"{where}.verify_token").encode() if token else b""
        self._use_secrets(
            [resolve(secret, f"{where}.secrets[{i}]") for i, secret in enumerate(settings.secrets)], where
        )

    def _use_secrets(self, secrets: Sequence[str], where: str) -> None:
        """Verify deliveries with these secrets from now on."""
        fingerprints, verifier = [CERTIFICATE], None
        if self.is_verified:
            fingerprints = [secret_fingerprint(self.name, secret) for secret in secrets] or fingerprints
            verifier = self.make_verifier(self.provider, secrets, where=where)
        self.verifier, self.fingerprints, self.uses = verifier, fingerprints, [0] * len(fingerprints)
        self.waits_for_secret = (
            verifier is not None and not verifier.checks and not self.needs_tenant and not self.is_queue_only
        )
        self.fetches_certificates = verifier is not None and verifier.fetches
        self.proxies = self._trusted_proxies if verifier is not None and verifier.needs_address else None
        more = (
            self.inline,
            self.is_published,
            self.fetches_certificates,
            self.proxies,
            self.handshakes,
            self.unsigned_handshakes,
        )
        self.is_plain = not any(more) and not self.needs_tenant

    def for_tenant(self, tenant: str, secrets: Sequence[str]) -> "Source":
        """This source with the address, the secrets and the events of one tenant.

        Each of `secrets` is a value, never a reference: a tenant must not choose a variable or file of this process.
        Raises ConfigurationError for a secret that cannot be used, and never shows it.
        """
        source = copy(self)
        source.tenant, source.needs_tenant, source.methods = tenant, False, self._methods
        if self.settings.public_url is not None:
            source.settings = replace(self.settings, public_url=tenant_address(self.settings.public_url, tenant))
        source.verify_token = self.verify_token
        source.reader = self.reader.for_tenant(tenant)
        source.parse, source.read = source.reader.parse, source.reader.read
        source._use_secrets(secrets, f"sources.{self.name}/{tenant}")
        return source

    if not TYPE_CHECKING:  # otherwise mypy would accept every misspelled attribute

        def __getattr__(self, name: str) -> Any:
            if name not in FROM_SECRETS:
                raise AttributeError(f"a source has no {name}")
            self.load_secrets()
            return self.__dict__[name]

    def _prepare_handshakes(self) -> None:
        # Only a verified sender may use a handshake that makes Oncehook call an address.
        defined = self.provider.handshakes
        allowed = [entry for entry in defined if self.is_verified or not kind_of(entry.kind).calls_sender]
        self.handshakes = [entry for entry in allowed if entry.verified]
        self.unsigned_handshakes = [entry for entry in allowed if not entry.verified]
        self._methods = sorted({"POST", *(entry.method for entry in allowed)})
        self.methods = [] if self.needs_tenant or self.is_queue_only else self._methods
        self._offers: deque[float] = deque(maxlen=MAX_OFFERS_PER_MINUTE)

    def make_verifier(
        self, provider: Provider, secrets: Sequence[str], *, where: str, public_url: str | None = None
    ) -> Verifier:
        """A verifier with this source's settings. The doctor passes other definitions, secrets and addresses."""
        settings = self.settings if public_url is None else replace(self.settings, public_url=public_url)
        return Verifier(
            provider,
            secrets,
            where=where,
            settings=settings,
            certificates=self.certificates,
            required=not self.needs_tenant and not self.is_queue_only,
        )

    # -- handshakes -----------------------------------------------------------------------------------------------

    def body_of(self, delivery: Delivery) -> Body:
        return Body(delivery, self.provider.sends_form)

    def handshake_of(self, delivery: Delivery, among: Sequence[Handshake]) -> Handshake | None:
        """The handshake among these that matches a delivery, or None."""
        body = self.body_of(delivery)
        return next((entry for entry in among if is_handshake(entry, delivery, body)), None)

    def handshake_host(self, offer: Callable[[str], None], verified_by: int = 0) -> HandshakeHost:
        """The parts of this source that the response to a handshake may need."""
        keys = sorted(self._keys(), key=lambda pair: (pair[0] != verified_by, pair[0]))
        return HandshakeHost(self.certificates, [key for _, key in keys], self.verify_token, self._limited(offer))

    def _keys(self) -> Sequence[tuple[int, Any]]:
        return self.verifier.keys[0] if self.verifier is not None else ()

    def _limited(self, offer: Callable[[str], None]) -> Callable[[str], None]:
        def limited(secret: str) -> None:
            now = SYSTEM.monotonic()
            if len(self._offers) == MAX_OFFERS_PER_MINUTE and self._offers[0] > now - 60:
                raise Unavailable("too many secrets were offered in the last minute", retry_after=60)
            self._offers.append(now)
            offer(secret)

        return limited


def tenant_address(address: str, tenant: str) -> str:
    """The address of a tenant, from the address of its source."""
    parts = urlsplit(address)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{tenant}").geturl()
