"""Finds out offline why a delivery was rejected, from its stored sample. The doctor never accepts a delivery.

The doctor verifies the sample again with one thing changed, then with two: the body as it was before a proxy or a
framework rewrote it, the form of the secret, the secret of another source, the encoding, or the address. The first
change that makes the signature valid is the cause.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.model.rows import StoredRejection
from oncehook.model.values import as_duration
from oncehook.operations.rotation import RemovedSecret, removed_secret
from oncehook.operations.signature_trials import combinations, find_match, is_signature_valid
from oncehook.providers.definition import Provider
from oncehook.providers.expressions import parse_time
from oncehook.providers.family import Match
from oncehook.providers.forwarded_address import ADDRESS
from oncehook.providers.handshake import IN_HANDSHAKE
from oncehook.providers.source import Source
from oncehook.providers.verify import Verifier, seconds_of, window_of
from oncehook.store.store import Store
from oncehook.tenants.cache import Lookup


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict: the label of the cause, one sentence about it, and one sentence about the action."""

    cause: str
    shows: str
    remedy: str


REMEDIES = {
    "clock": "Synchronize this machine's clock with NTP; raise the source's `tolerance` only if deliveries really take "
    "this long, because an attacker who repeats an old request looks the same.",
    "would be accepted": "Ask the provider to deliver the event again.",
    "rewritten JSON": "Find the gateway, middleware or test tool that parses the body and serializes it again, and "
    "make it pass the raw bytes through.",
    "newline": "Find the proxy or tool that adds or removes a line break, and make it pass the raw bytes through "
    "(with curl, `--data-binary` instead of `-d`).",
    "blank in the secret": "Remove the spaces, quotes or line break around the configured secret.",
    "form of the secret": "Paste the secret exactly as the provider shows it, with its prefix; for a provider that "
    "you defined, correct `key` in its definition.",
    "encoding": "Correct `encoding` in the definition of your provider.",
    "other source": "Correct the address that is registered with the provider, or swap the secrets of the two sources "
    "(test and live?).",
    "other secret": "Add this secret to the source's `secrets`, or correct the secret that is registered with the "
    "provider.",
    "address": "Set `public_url` to exactly the address that is registered with the provider, or configure your "
    "proxy to forward it.",
    "no address": "List the proxy in `trusted_proxies` and configure it to set X-Forwarded-Proto and X-Forwarded-Host, "
    "or set the source's `public_url` to the address that is registered with the provider.",
    "handshake": "Compare the source's `verify_token`, if it has one, with the provider's token; if the provider "
    "did not send this handshake, rejecting it is correct.",
    "malformed": "Check whether a proxy repeats a header or cuts or rewrites the body; if the provider did not send "
    "this request, rejecting it is correct.",
    "topic": "If the topic is yours, add its ARN to the source's `topics`; if it is not, rejecting the delivery is "
    "correct.",
    "no secret": "Create the webhook in the provider's settings, and add the secret that the log message "
    "`secret_offered` shows to the source's `secrets`.",
    "no signature": "Find the proxy that removes the header; if the provider did not send this request, rejecting it "
    "is correct.",
    "token": "Compare the source's secret with the one that is registered with the provider; the doctor cannot compare "
    "them, because credentials of rejected requests are not stored.",
    "cut": "Have the provider deliver a smaller event, or inspect the delivery in the provider's dashboard.",
    "encrypted": "Compare the source's secret with the one that the provider shows for exactly this endpoint; of a "
    "source without `encrypt`, the doctor could verify the request again.",
    "removed secret": "Add the secret to the source's `secrets` again, and remove it once the provider signs with the "
    "new one.",
    "no tenant": "If the tenant was removed, rejecting the delivery is correct; otherwise make the lookup return its "
    "secrets.",
    "no lookup": "Make the lookup of this source's tenants work here, and run the doctor again.",
    "unknown": "Compare the configured secret with the one that the provider shows for exactly this endpoint; "
    "`oncehook doctor signature --secret env:NAME` tries another one.",
}
"""Cause → the action that fixes it, in one sentence."""

CASE = ("id", "source", "rejected_at", "reason", "detail", "size")
"""The keys of a case that are columns of its sample."""

UNKNOWN = (
    "No signature in the request is valid with any configured secret, nor with a changed body, form or encoding; most "
    "likely the provider signs with a secret that is not configured here."
)


def diagnose(
    rejection: StoredRejection,
    source: Source,
    others: Sequence[Source] = (),
    secrets: Sequence[str] = (),
    removed: RemovedSecret | None = None,
) -> list[Finding]:
    """Return why a sample was rejected: at least one finding, the most likely first.

    `secrets` are more secrets to try, such as older ones or those of another environment. `removed` is the secret that
    was removed too early. Its value is unknown, so it is the cause only if there is no other.
    """
    if source.verifier is None:
        return [_finding("would be accepted", "The source accepts unsigned deliveries now.")]
    if source.waits_for_secret:
        return [_finding("no secret", "The source has no secret yet, so it rejects every event.")]
    if source.settings.encrypt and rejection.size and not rejection.body:
        return [_finding("encrypted", f"The source is encrypted, so only the reason is stored: {rejection.detail}.")]
    delivery = _delivery(rejection)
    unrelated = _unrelated_to_signature(rejection, source.verifier, delivery)
    if unrelated is not None:
        return [unrelated]
    missing = _missing_header(source.provider, delivery)
    if missing:
        return [_finding("no signature", missing)]
    if source.verifier.needs_address and not delivery.address:
        return [_finding("no address", "The provider signs the address, and no trusted proxy forwarded it.")]
    if all(signature.family.sends_secret(signature) for signature in source.provider.signatures):
        wrong = _finding("token", "The password or token in the request is not one of the source's secrets.")
        return [_removed_secret(removed, rejection) or wrong]
    if rejection.size > len(delivery.body):
        stored = f"Only the first {len(delivery.body):,} of {rejection.size:,} bytes are stored"
        sentence = f"{stored}, so the signature cannot be verified."
        return [_finding("cut", sentence)]
    match = find_match(source.verifier, delivery)
    if match is not None:
        return [_time_finding(match, source, rejection)]
    for variations in combinations(source, others, secrets, delivery):
        if is_signature_valid(source, delivery, variations):
            return [_finding(variation.cause, variation.shows) for variation in variations if variation.cause]
    unknown = _finding(
        "unknown",
        UNKNOWN,
    )
    return [_removed_secret(removed, rejection) or unknown]


def _removed_secret(removed: RemovedSecret | None, rejection: StoredRejection) -> Finding | None:
    is_later = removed is not None and rejection.rejected_at > removed.last_used_at
    return _finding("removed secret", removed.sentence) if removed is not None and is_later else None


async def examine(
    store: Store,
    sources: Mapping[str, Source],
    source: str | None = None,
    limit: int = 1,
    secrets: Sequence[str] = (),
    *,
    lookups: Mapping[str, Lookup] | None = None,
) -> list[dict[str, Any]]:
    """Diagnose the newest samples. A sample of a source that no longer exists has no findings.

    `lookups` find the secrets of tenants, by source.

    The trials run in a thread: a stranger may have sent the sample, and the receiver must not wait for it.
    """
    others, cases, used = list(sources.values()), [], await store.rejections.secrets_used()
    for row in await store.rejections.find(source, limit=limit):
        known: Source | Finding | None = sources.get(row.source)
        if isinstance(known, Source) and row.tenant:
            known = await _of_tenant(known, row.tenant, (lookups or {}).get(row.source))
        if isinstance(known, Finding):
            findings = [known]
        else:
            removed = None if known is None else removed_secret(known, used)
            findings = [] if known is None else await asyncio.to_thread(diagnose, row, known, others, secrets, removed)
        case = {name: getattr(row, name) for name in CASE} | {"tenant": row.tenant or None}
        cases.append(case | {"findings": [asdict(finding) for finding in findings]})
    return cases


async def _of_tenant(source: Source, tenant: str, lookup: Lookup | None) -> Source | Finding:
    """Return the source with the secrets of a tenant, or the finding that there are none."""
    if lookup is None:
        return _finding("no lookup", "The request was sent to a tenant, and this source has no tenants now.")
    try:
        secrets = await lookup.find(tenant)
        if secrets:
            own = source.for_tenant(tenant, secrets)
            own.settings = replace(own.settings, secrets=tuple(secrets))  # for the trials
            return own
    except Exception as error:  # of the user's function: the doctor never fails because of it
        return _finding("no lookup", f"The secrets of the tenant could not be looked up: {type(error).__name__}.")
    return _finding("no tenant", "The lookup returns no secret for this tenant now.")


def _unrelated_to_signature(rejection: StoredRejection, verifier: Verifier, delivery: Delivery) -> Finding | None:
    """Return the finding for a rejection that has nothing to do with a signature."""
    detail = rejection.detail
    if detail.startswith(IN_HANDSHAKE):
        return _finding("handshake", _sentence(detail.removeprefix(IN_HANDSHAKE)))
    if rejection.reason == "malformed":
        return _finding("malformed", _sentence(detail))
    try:
        verifier.key_to_fetch(delivery)
    except Rejected as error:
        return _finding("topic", _sentence(error.detail))
    return None


def _sentence(detail: str) -> str:
    return detail[:1].upper() + detail[1:] + "."


def _finding(cause: str, shows: str) -> Finding:
    return Finding(cause, shows, REMEDIES[cause])


def _delivery(rejection: StoredRejection) -> Delivery:
    stored = json.loads(rejection.headers)
    address = stored.pop(ADDRESS, "")
    headers = [(name.encode(), text.encode("latin-1")) for name, text in stored.items()]
    body = bytes(rejection.body)
    delivery = Delivery(body, headers, method=rejection.method, query=rejection.query.encode())
    delivery.address = address
    return delivery


def _missing_header(provider: Provider, delivery: Delivery) -> str | None:
    """Return a sentence if the request has none of the headers that may hold a signature."""
    names = {signature.family.signature_header(signature) or "" for signature in provider.signatures}
    if "" in names or any(_has(delivery, name.lower().encode()) for name in names):
        return None
    return f"The request has no {' and no '.join(sorted(names))} header."


def _has(delivery: Delivery, name: bytes) -> bool:
    if name.endswith(b"*"):
        return any(header.startswith(name[:-1]) for header in delivery.headers)
    return name in delivery.headers


def _time_finding(match: Match, source: Source, rejection: StoredRejection) -> Finding:
    """Return the finding for a valid signature: the time was wrong, or the configuration has been fixed since."""
    window = window_of(source.provider, source.settings.tolerance)
    stamp = seconds_of(match[1], window[0]) if window is not None else None
    arrived = parse_time(rejection.rejected_at)
    if window is None or stamp is None or arrived is None:
        return _finding("would be accepted", "The signature is valid with the current secrets.")
    late = arrived.timestamp() - stamp
    if -window[2] <= late <= window[1]:
        return _finding(
            "would be accepted", "The signature and its time are valid with the secrets that are configured now."
        )
    difference = as_duration(float(round(abs(late))))
    when = f"{difference} before it arrived" if late > 0 else f"{difference} after it arrived"
    return _finding("clock", f"The signature is valid, but its time is {when}.")
