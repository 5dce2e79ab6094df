"""Verifies deliveries. `verify` returns the secret that matches, or raises Rejected and nothing else.

The signature family (`oncehook.providers.families`) of each entry in a provider's `signatures` makes a check.
"""

from collections.abc import Sequence

from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.model.values import duration
from oncehook.providers.certificates import Certificates, KeyRequest
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.expressions import parse_time
from oncehook.providers.family import Check, CheckContext, FetchingCheck
from oncehook.providers.signatures import Key
from oncehook.providers.template import Body

FUTURE = 300.0
"""Seconds that a timestamp may be in the future, if timestamps may be as old as the retry horizon."""

NO_ADDRESS = "the provider signs the address, and no proxy in trusted_proxies reported it"


class Verifier:
    """A provider's checks with one source's secrets. It is made at start-up; an unusable secret is an error then."""

    def __init__(
        self,
        provider: Provider,
        secrets: Sequence[str],
        *,
        where: str,
        settings: SourceSettings | None = None,
        certificates: Certificates | None = None,
        required: bool = True,
    ) -> None:
        """Make the checks. Without secrets and with `required=False`, the verifier rejects every delivery."""
        self.provider = provider
        context = CheckContext(settings or SourceSettings(), certificates or Certificates())
        self.certificates = context.certificates
        self.window = window_of(provider, context.settings.tolerance)
        if required and not secrets and not provider.starts_without_secret:
            raise ConfigurationError(
                f"{where}.secrets is empty: set the secret ({provider.secret or 'of this provider'}), "
                f'or set verify = "none" to accept unsigned deliveries'
            )
        self.keys = _load_keys(provider, secrets, where)
        used = [
            (signature, keys)
            for signature, keys in zip(provider.signatures, self.keys, strict=True)
            if keys or signature.family.fetches_key
        ]
        self.checks: list[Check] = [
            signature.family.make_check(signature, provider, keys, context) for signature, keys in used
        ]
        self.fetching = [check for check in self.checks if isinstance(check, FetchingCheck)]
        self.fetches = any(check.fetches for check in self.fetching)
        self.needs_address = not context.settings.public_url and any(signature.covers_address for signature, _ in used)

    def verify(self, delivery: Delivery, now: float) -> int:
        """The index of the secret that verifies the delivery. Raises Rejected if there is none."""
        body = Body(delivery, self.provider.sends_form)
        for check in self.checks:
            match = check.matches(delivery, body)
            if match is not None:
                index, stamp = match
                if self.window is not None and check.stamped:
                    _check_window(stamp, self.window, now)
                return index
        if self.needs_address and not delivery.address:
            raise Rejected("bad_signature", NO_ADDRESS)
        raise Rejected("bad_signature", "no signature in the request matches a secret of the source")

    def key_to_fetch(self, delivery: Delivery, now: float | None = None) -> KeyRequest | str | None:
        """The certificate or key that must be fetched before this delivery can be verified, if any.

        Raises Rejected for a delivery that no certificate could verify. With `now`, it also rejects a delivery that is
        too old or from the future.
        """
        body = Body(delivery, self.provider.sends_form)
        for check in self.fetching:
            request = check.key_to_fetch(delivery, body)
            if request is not None:
                if now is not None and self.window is not None and check.stamped:
                    _check_window(check.stamp(delivery, body), self.window, now)
                return request
        return None


def _load_keys(provider: Provider, secrets: Sequence[str], where: str) -> list[list[tuple[int, Key]]]:
    """Return the keys of the secrets that fit each alternative.

    Raises ConfigurationError for a secret that fits none.
    """
    keys: list[list[tuple[int, Key]]] = [[] for _ in provider.signatures]
    for index, secret in enumerate(secrets):
        problems = []
        for i, signature in enumerate(provider.signatures):
            try:
                if not provider.accepts_secret(signature, secret):
                    raise ValueError("it is a key for another kind of signature")
                keys[i].append((index, load_key(signature, secret)))
            except ValueError as error:
                problems.append(str(error))
        if len(problems) == len(provider.signatures):
            raise ConfigurationError(
                f"{where}.secrets[{index}] cannot be used: {problems[0]}. Expected: {provider.secret}"
            )
    return keys


def load_key(signature: Signature, secret: str) -> Key:
    """The key of a secret for this alternative. Raises ValueError, which never quotes the secret."""
    if not secret.strip():
        raise ValueError("it is empty")
    return signature.family.load_key(signature, secret)


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
        raise Rejected("bad_signature", "the timestamp is missing or malformed")
    if seconds < now - past:
        raise Rejected("stale_timestamp", "the timestamp is too old")
    if seconds > now + future:
        raise Rejected("stale_timestamp", "the timestamp is in the future")


def seconds_of(stamp: bytes | None, unit: str) -> float | None:
    """A timestamp in Unix seconds, or None if it is malformed."""
    if stamp is None:
        return None
    if unit == "iso":
        time = parse_time(stamp.decode("latin-1")) if b"-" in stamp else None
        return None if time is None else time.timestamp()
    if len(stamp) > 15 or not stamp.isdigit():  # for bytes, `isdigit` accepts ASCII digits only
        return None
    return int(stamp) / 1000 if unit == "ms" else int(stamp)
