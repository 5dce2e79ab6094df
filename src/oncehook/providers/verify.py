"""Is this delivery authentic? `verify` says by which secret, or raises Rejected; nothing else can escape it.

A provider's `signatures` become checks, each made by its signature family (`oncehook.providers.families`).
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
"""How far ahead of our clock a timestamp may be, where the provider's past side is longer."""

NO_ADDRESS = "the provider signs the address, and no peer in trusted_proxies says which it was"


class Verifier:
    """A provider's checks with one source's secrets. Made at start-up; a secret that cannot be used stops it there."""

    def __init__(
        self,
        provider: Provider,
        secrets: Sequence[str],
        *,
        where: str,
        settings: SourceSettings | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.provider = provider
        context = CheckContext(settings or SourceSettings(), certificates or Certificates())
        self.certificates = context.certificates
        self.window = window_of(provider, context.settings.tolerance)
        if not secrets and not provider.starts_without_secret:
            raise ConfigurationError(
                f"{where}.secrets is empty: give the secret ({provider.secret or 'of this provider'}), "
                f'or write verify = "none" to accept unsigned deliveries'
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
        """The index of the secret that verified the delivery. Raises Rejected for every other one."""
        body = Body(delivery, self.provider.sends_form)
        for check in self.checks:
            found = check.matches(delivery, body)
            if found is not None:
                index, stamp = found
                if self.window is not None and check.stamped:
                    _check_window(stamp, self.window, now)
                return index
        if self.needs_address and not delivery.address:
            raise Rejected("bad_signature", NO_ADDRESS)
        raise Rejected("bad_signature", "no signature in the request matches a secret of the source")

    def key_to_fetch(self, delivery: Delivery, now: float | None = None) -> KeyRequest | str | None:
        """The certificate or key that must be fetched before this delivery can be verified, if any.

        Raises Rejected for a delivery that no certificate could make authentic; with `now`, for one that is too old
        or from the future.
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


def load_key(signature: Signature, secret: str) -> Key:
    """A secret as the key of this alternative. Raises ValueError, without its value."""
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
        read = parse_time(stamp.decode("latin-1")) if b"-" in stamp else None
        return None if read is None else read.timestamp()
    if len(stamp) > 15 or not stamp.isdigit():  # of bytes, ASCII digits and nothing else
        return None
    return int(stamp) / 1000 if unit == "ms" else int(stamp)
