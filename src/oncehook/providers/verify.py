"""Is this delivery authentic? `verify` says by which secret, or raises Rejected; nothing else can escape it.

A provider's `signatures` become checks, of the families in `oncehook.providers.families`.
"""

import re
from collections.abc import Sequence

from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.model.values import duration
from oncehook.providers.certificates import Certificates, Wanted
from oncehook.providers.definition import FETCHED, Provider, Signature, Timestamp
from oncehook.providers.expressions import moment
from oncehook.providers.families import MOST_SIGNATURES, Check, Keys, Surroundings
from oncehook.providers.families import basic as basic_family
from oncehook.providers.families import braintree_form as braintree
from oncehook.providers.families import plaid as plaid_family
from oncehook.providers.families.address import AddressCheck
from oncehook.providers.families.basic import BasicCheck
from oncehook.providers.families.braintree import BraintreeCheck
from oncehook.providers.families.each import EachCheck
from oncehook.providers.families.graph import GraphCheck
from oncehook.providers.families.paypal import PayPalCheck
from oncehook.providers.families.plaid import PlaidCheck
from oncehook.providers.families.sns import SnsCheck
from oncehook.providers.families.template import TemplateCheck
from oncehook.providers.signatures import Key, algorithm
from oncehook.providers.template import Body

__all__ = ["MOST_SIGNATURES", "TemplateCheck", "Verifier"]

FUTURE = 300.0
"""How far ahead of our clock a timestamp may be, where the provider's past side is longer."""

NO_ADDRESS = "the provider signs the address, and no peer in trusted_proxies says which it was"

FETCHING = (SnsCheck, PayPalCheck, PlaidCheck, GraphCheck)


class Verifier:
    """A provider's checks with one source's secrets. Made at start-up; a secret that cannot be used stops it there."""

    def __init__(
        self,
        provider: Provider,
        secrets: Sequence[str],
        *,
        where: str,
        tolerance: float | None = None,
        topics: Sequence[re.Pattern[str]] = (),
        certificates: Certificates | None = None,
        public_url: str = "",
        webhook_id: str = "",
        sandbox: bool = False,
        app_id: str = "",
    ) -> None:
        self.provider = provider
        surroundings = Surroundings(certificates or Certificates(), topics, public_url, webhook_id, sandbox, app_id)
        self.certificates = surroundings.certificates
        self.window = window_of(provider, tolerance)
        if not secrets and not provider.starts_without_secret:
            raise ConfigurationError(
                f"{where}.secrets is empty: give the secret ({provider.secret or 'of this provider'}), "
                f'or write verify = "none" to accept unsigned deliveries'
            )
        self.keys = _load_keys(provider, secrets, where)
        self.checks: list[Check] = [
            make_check(signature, provider.timestamp, self.keys[i], surroundings)
            for i, signature in enumerate(provider.signatures)
            if self.keys[i] or signature.algorithm in FETCHED
        ]
        self.fetches = any(_fetches(check) for check in self.checks)
        self.asks_address = not public_url and any(isinstance(check, AddressCheck) for check in self.checks)

    def verify(self, delivery: Delivery, now: float) -> int:
        """The index of the secret that verified the delivery. Raises Rejected for every other one."""
        body = Body(delivery, self.provider.sends_form)
        for check in self.checks:
            found = check.matches(delivery, body)
            if found is not None:
                index, stamp = found
                if self.window is not None and check.stamped:
                    _check_window(stamp, self.window, now)
                return index
        if self.asks_address and not delivery.address:
            raise Rejected("bad_signature", NO_ADDRESS)
        raise Rejected("bad_signature", "no signature in the request matches a secret of the source")

    def certificate_wanted(self, delivery: Delivery, now: float | None = None) -> Wanted | str | None:
        """The certificate or key that must be fetched before this delivery can be verified, if any.

        Raises Rejected for a delivery that no certificate could make authentic; with `now`, for one that is too old
        or from the future.
        """
        body = Body(delivery, self.provider.sends_form)
        for check in self.checks:
            if not isinstance(check, FETCHING):
                continue
            wanted = check.wanted(delivery, body)
            if wanted is not None:
                if now is not None and self.window is not None and check.stamped:
                    _check_window(check.stamp(delivery, body), self.window, now)
                return wanted
        return None


def _fetches(check: Check) -> bool:
    """Whether this check may need a key that it was not given."""
    if isinstance(check, PlaidCheck):
        return bool(check.credentials)
    return isinstance(check, GraphCheck) or (isinstance(check, (SnsCheck, PayPalCheck)) and not check.keys)


def _load_keys(provider: Provider, secrets: Sequence[str], where: str) -> list[list[tuple[int, Key]]]:
    """For each alternative, the secrets that fit it. One that fits none is an error that names it, not its value."""
    keys: list[list[tuple[int, Key]]] = [[] for _ in provider.signatures]
    for index, secret in enumerate(secrets):
        problems = []
        for i, signature in enumerate(provider.signatures):
            try:
                if not provider.takes(signature, secret):
                    raise ValueError("it is a key for another kind of signature")
                keys[i].append((index, load_key(signature, secret)))
            except ValueError as error:
                problems.append(str(error))
        if len(problems) == len(provider.signatures):
            raise ConfigurationError(
                f"{where}.secrets[{index}] cannot be used: {problems[0]}. Expected: {provider.secret}"
            )
    return keys


_LOAD = {
    "basic": basic_family.load_key,
    "sns": lambda secret: algorithm("rsa-sha256").load(secret, "public"),
    "paypal": lambda secret: algorithm("rsa-sha256").load(secret, "public"),
    "plaid": plaid_family.load_key,
    "braintree": braintree.load_key,
}


def load_key(signature: Signature, secret: str) -> Key:
    """A secret as the key of this alternative. Raises ValueError, without its value."""
    if not secret.strip():
        raise ValueError("it is empty")
    if signature.algorithm in _LOAD:
        return _LOAD[signature.algorithm](secret)
    if (signature.key == "whpk") != secret.startswith("whpk_") and signature.key in ("whpk", "whsec"):
        raise ValueError("it is a key for another kind of signature")
    return algorithm(signature.algorithm).load(secret, signature.key)


def make_check(signature: Signature, timestamp: Timestamp | None, keys: Keys, around: Surroundings) -> Check:
    """The check of one alternative."""
    if signature.algorithm == "basic":
        return BasicCheck(keys)
    if signature.algorithm == "sns":
        return SnsCheck(keys, around.certificates, around.topics)
    if signature.algorithm == "paypal":
        return PayPalCheck(keys, around)
    if signature.algorithm == "plaid":
        return PlaidCheck(keys, around)
    if signature.algorithm == "braintree":
        return BraintreeCheck(keys)
    if signature.tokens is not None and around.app_id:
        return GraphCheck(signature, keys, around)
    if signature.each is not None:
        return EachCheck(signature, keys)
    if signature.covers_address:
        return AddressCheck(signature, timestamp, keys, around.public_url)
    return TemplateCheck(signature, timestamp, keys)


# -- time -----------------------------------------------------------------------------------------------------------

Window = tuple[str, float, float]  # unit, seconds into the past, seconds into the future


def window_of(provider: Provider, tolerance: float | None) -> Window | None:
    """How far a timestamp may be from now, or None for a provider without one."""
    if provider.timestamp is None:
        return None
    allowed = duration(provider.timestamp.tolerance) if tolerance is None else tolerance
    if provider.timestamp.stamps == "attempt":
        return provider.timestamp.unit, allowed, allowed
    return provider.timestamp.unit, (provider.horizon or 0.0) + allowed, min(allowed, FUTURE)


def _check_window(stamp: bytes | None, window: Window, now: float) -> None:
    unit, past, future = window
    seconds = seconds_of(stamp, unit)
    if seconds is None:
        raise Rejected("bad_signature", "the timestamp is missing or not one")
    if seconds < now - past:
        raise Rejected("stale_timestamp", "the timestamp is too old")
    if seconds > now + future:
        raise Rejected("stale_timestamp", "the timestamp is in the future")


def seconds_of(stamp: bytes | None, unit: str) -> float | None:
    """A timestamp in Unix seconds, or None if it is none."""
    if stamp is None:
        return None
    if unit == "iso":
        read = moment(stamp.decode("latin-1")) if b"-" in stamp else None
        return None if read is None else read.timestamp()
    if len(stamp) > 15 or not stamp.isdigit():  # of bytes, ASCII digits and nothing else
        return None
    return int(stamp) / 1000 if unit == "ms" else int(stamp)
