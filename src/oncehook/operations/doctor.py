"""Why was this delivery refused? The usual causes, tried offline on the kept sample. Nothing here accepts anything.

A refused request is tried again with one thing changed at a time, then two: another body (as it was before a proxy
or a framework wrote it anew), another form of the secret, another source's secret, another encoding, another address.
The first change that makes the signature right is the cause.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import msgspec

from oncehook.config.secret import resolve
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.model.rows import StoredRejection
from oncehook.model.values import as_duration
from oncehook.operations.rotation import Removed, removed_secret
from oncehook.providers.definition import Provider
from oncehook.providers.expressions import parse_time
from oncehook.providers.family import Match
from oncehook.providers.forwarded_address import ADDRESS, USUAL_PORTS, split_url
from oncehook.providers.handshake import IN_HANDSHAKE
from oncehook.providers.source import Source
from oncehook.providers.template import Body
from oncehook.providers.verify import Verifier, seconds_of, window_of
from oncehook.store.store import Store


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause, what shows it, and what to do."""

    cause: str
    shows: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is tried otherwise. Its cause is empty for "as it is"."""

    cause: str
    value: Any
    shows: str = ""


REMEDIES = {
    "clock": "Set this machine's clock (NTP). If deliveries really take so long, raise the source's `tolerance`; a "
    "recorded request that somebody sends again looks just like this, so do not raise it far.",
    "would be accepted": "Nothing to do: have the provider deliver it again.",
    "rewritten JSON": "Something between the provider and Oncehook parses the body and writes it anew (a gateway, a "
    "framework's middleware, a test tool). Pass the raw bytes through.",
    "newline": "Something between the provider and Oncehook, or the tool that sent this, adds or cuts a line end. Pass "
    "the raw bytes through (`curl --data-binary`, not `-d`).",
    "blank in the secret": "The configured secret has blanks, quotes or a line end around it. Take them away.",
    "form of the secret": "The secret is right but is read in another form. Paste it exactly as the provider shows it, "
    "with its prefix; for a provider of your own, correct `key` in its definition.",
    "encoding": "The signature is right but is written in another encoding. For a provider of your own, correct "
    "`encoding` in its definition.",
    "other source": "Either the address that is registered with the provider is that of the wrong source, or the "
    "secrets of the two (test and live?) are swapped.",
    "other secret": "The provider signs with this one: an older one, or that of another environment. Add it to the "
    "source's `secrets`, or correct what is registered at the provider.",
    "address": "The address that the provider signs is not the one that Oncehook was told. Set `public_url` to exactly "
    "what is registered with the provider, or let your proxy say it.",
    "no address": "List the proxy in `trusted_proxies` and let it set X-Forwarded-Proto and X-Forwarded-Host, or "
    "set the source's `public_url` to what is registered with the provider.",
    "handshake": "Compare the source's `verify_token`, if it has one, with what was typed at the provider. A "
    "challenge of other characters than the provider sends is somebody else's, and refusing is right.",
    "malformed": "If it is the provider that sends, something between changes the request: doubles a header, or cuts "
    "or rewrites the body. Else somebody else knows this address, and refusing is right.",
    "topic": "If the topic is yours, add its ARN to the source's `topics`; else somebody has subscribed your address "
    "to theirs, and refusing is right.",
    "no secret": "Create the webhook at the provider: it offers a secret, which the log shows (`secret_offered`). Put "
    "that into the source's `secrets`.",
    "no signature": "If it is the provider that sends, a proxy drops the header; else somebody else knows this "
    "address, and refusing is right.",
    "token": "Compare it with what is registered at the provider. Credentials of refused requests are not kept, so "
    "more cannot be said.",
    "cut": "Let the provider deliver a smaller event, or look at the delivery at the provider.",
    "removed secret": "Add it to the source's `secrets` again, beside the new one, until the provider signs with the "
    "new one.",
    "unknown": "Most likely the provider signs with a secret that is not configured here: the other usual causes "
    "(body, form, encoding, clock, another source) are ruled out. Compare the secret with the one that the provider "
    "shows for exactly this endpoint. `oncehook doctor signature --secret env:NAME` tries one more.",
}


def diagnose(
    rejection: StoredRejection,
    source: Source,
    others: Sequence[Source] = (),
    secrets: Sequence[str] = (),
    removed: Removed | None = None,
) -> list[Finding]:
    """What is wrong with a kept sample, most likely first. Always at least one finding.

    `secrets` are tried too: those of another environment, or older ones, which no source has. `removed` verified until
    it was taken out; its value is not known, so it explains only what nothing else does.
    """
    if source.verifier is None:
        return [_found("would be accepted", "The source accepts unsigned deliveries now.")]
    if source.waits_for_secret:
        return [_found("no secret", "The source has no secret yet: it refuses every event.")]
    delivery = _delivery(rejection)
    other = _no_signature(rejection, source.verifier, delivery)
    if other is not None:
        return [other]
    missing = _missing_header(source.provider, delivery)
    if missing:
        return [_found("no signature", missing)]
    if source.verifier.needs_address and not delivery.address:
        return [_found("no address", "The provider signs the address, and no listed proxy said which it was.")]
    if all(signature.family.sends_secret(signature) for signature in source.provider.signatures):
        wrong = _found("token", "The password or token in the request is not one of the source's secrets.")
        return [_taken_out(removed, rejection) or wrong]
    if rejection.size > len(delivery.body):
        said = f"Only the first {len(delivery.body):,} of {rejection.size:,} bytes were kept: it cannot be tried."
        return [_found("cut", said)]
    match = _match(source.verifier, delivery)
    if match is not None:
        return [_of_the_time(match, source, rejection)]
    for changes in _trials(source, others, secrets, delivery):
        if _signature_is_right(source, delivery, changes):
            return [_found(change.cause, change.shows) for change in changes if change.cause]
    unknown = _found("unknown", "No signature in the request is right with any secret, body or form that was tried.")
    return [_taken_out(removed, rejection) or unknown]


def _taken_out(removed: Removed | None, rejection: StoredRejection) -> Finding | None:
    is_later = removed is not None and rejection.rejected_at > removed.last_used_at
    return _found("removed secret", removed.sentence) if removed is not None and is_later else None


async def examine(
    store: Store,
    sources: Mapping[str, Source],
    source: str | None = None,
    limit: int = 1,
    secrets: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The kept samples, newest first, with the doctor's word on each; none for a source that is not there any more.

    The trials are in a thread: a sample is a stranger's, and the door is not to wait for it.
    """
    others, cases, used = list(sources.values()), [], await store.rejections.secrets_used()
    for row in await store.rejections.find(source, limit=limit):
        known = sources.get(row.source)
        removed = None if known is None else removed_secret(known, used)
        found = [] if known is None else await asyncio.to_thread(diagnose, row, known, others, secrets, removed)
        case = {name: getattr(row, name) for name in ("id", "source", "rejected_at", "reason", "detail", "size")}
        cases.append(case | {"findings": [asdict(finding) for finding in found]})
    return cases


def _no_signature(rejection: StoredRejection, verifier: Verifier, delivery: Delivery) -> Finding | None:
    """A refusal that is about something else than a signature."""
    detail = rejection.detail
    if detail.startswith(IN_HANDSHAKE):
        return _found("handshake", _sentence(detail.removeprefix(IN_HANDSHAKE)))
    if rejection.reason == "malformed":
        return _found("malformed", _sentence(detail))
    try:
        verifier.key_to_fetch(delivery)
    except Rejected as error:
        return _found("topic", _sentence(error.detail))
    return None


def _sentence(detail: str) -> str:
    return detail[:1].upper() + detail[1:] + "."


def _found(cause: str, shows: str) -> Finding:
    return Finding(cause, shows, REMEDIES[cause])


def _delivery(rejection: StoredRejection) -> Delivery:
    kept = json.loads(rejection.headers)
    address = kept.pop(ADDRESS, "")
    headers = [(name.encode(), text.encode("latin-1")) for name, text in kept.items()]
    body = bytes(rejection.body)
    delivery = Delivery(body, headers, method=rejection.method, query=rejection.query.encode())
    delivery.address = address
    return delivery


def _missing_header(provider: Provider, delivery: Delivery) -> str | None:
    """What to say if none of the headers is there that may hold a signature."""
    names = {signature.family.signature_header(signature) or "" for signature in provider.signatures}
    if "" in names or any(_has(delivery, name.lower().encode()) for name in names):
        return None
    return f"The request has no {' and no '.join(sorted(names))} header."


def _has(delivery: Delivery, name: bytes) -> bool:
    if name.endswith(b"*"):
        return any(one.startswith(name[:-1]) for one in delivery.headers)
    return name in delivery.headers


def _of_the_time(match: Match, source: Source, rejection: StoredRejection) -> Finding:
    """The signature is right: then it was the time, or it is right only since the configuration was changed."""
    window = window_of(source.provider, source.settings.tolerance)
    stamp = seconds_of(match[1], window[0]) if window is not None else None
    arrived = parse_time(rejection.rejected_at)
    if window is None or stamp is None or arrived is None:
        return _found("would be accepted", "The signature is right with the secrets of now.")
    late = arrived.timestamp() - stamp
    if -window[2] <= late <= window[1]:
        return _found("would be accepted", "The signature and its time are right with the secrets of now.")
    far = as_duration(float(round(abs(late))))
    when = f"{far} before it arrived" if late > 0 else f"{far} after it arrived"
    return _found("clock", f"The signature is right, but its time is {when}.")


# -- trials ---------------------------------------------------------------------------------------------------------


def _trials(
    source: Source, others: Sequence[Source], secrets: Sequence[str], delivery: Delivery
) -> Iterator[tuple[Change, ...]]:
    """Combinations of changes, those with the fewest first, and no more than two at once."""
    alternatives = (
        list(_secrets(source, others, secrets)),
        list(_bodies(delivery.body)),
        list(_readings(source.provider)),
        list(_addresses(source, delivery)),
    )
    changed = ((sum(1 for change in changes if change.cause), changes) for changes in product(*alternatives))
    few = [(count, changes) for count, changes in changed if count <= 2]
    for _, changes in sorted(few, key=lambda one: one[0]):
        yield changes


def _signature_is_right(source: Source, delivery: Delivery, changes: tuple[Change, ...]) -> bool:
    secret, body, reading, (public_url, query) = (change.value for change in changes)
    try:
        verifier = source.make_verifier(reading, [secret], where="doctor", public_url=public_url)
    except ConfigurationError:
        return False  # this secret cannot be read in this form
    tried = Delivery(body, delivery.headers.items(), method=delivery.method, query=query)
    return _match(verifier, tried) is not None


def _match(verifier: Verifier, delivery: Delivery) -> Match | None:
    body = Body(delivery, verifier.provider.sends_form)
    for check in verifier.checks:
        try:
            found = check.matches(delivery, body)
        except Rejected:
            continue
        if found is not None:
            return found
    return None


def _secrets(source: Source, others: Sequence[Source], given: Sequence[str]) -> Iterator[Change]:
    own = _resolved(source)
    for secret in own:
        yield Change("", secret)
    for secret in own:
        for bare in dict.fromkeys((secret.strip(), secret.strip().strip("\"'"), secret + "\n")):
            if bare != secret and bare:
                yield Change("blank in the secret", bare, "The signature is right with the secret without blanks.")
    for other in others:
        if other.name != source.name:
            for secret in _resolved(other):
                if secret not in own:
                    shows = f"The signature is right with a secret of source {other.name}."
                    yield Change("other source", secret, shows)
    for number, secret in enumerate(given):
        yield Change("other secret", secret, f"The signature is right with secret {number + 1} of those to try.")


def _resolved(source: Source) -> list[str]:
    found = []
    for secret in source.settings.secrets:
        try:
            found.append(resolve(secret, ""))
        except ConfigurationError:
            continue
    return found


def _readings(provider: Provider) -> Iterator[Change]:
    """The provider's definition with its keys or its signatures read in another form."""
    yield Change("", provider)
    for encoding in ("hex", "base64"):
        yield Change("encoding", _with(provider, encoding=encoding), f"The signature is right read as {encoding}.")
    for key in ("text", "base64", "hex", "whsec"):
        shows = f"The signature is right with the secret read as {key}."
        yield Change("form of the secret", _with(provider, key=key), shows)


def _with(provider: Provider, **changes: str) -> Provider:
    """The definition with the encoding of its shared keys or signatures changed."""
    signatures = [
        msgspec.structs.replace(signature, **changes)
        if signature.family.shares_secret(signature) and not signature.family.sends_secret(signature)
        else signature
        for signature in provider.signatures
    ]
    return msgspec.structs.replace(provider, signatures=signatures)


def _addresses(source: Source, delivery: Delivery) -> Iterator[Change]:
    """The address as it may be registered, as (public_url, query). It is described, not told: it may hold a token."""
    query = delivery.query
    public_url, _, own_query = (source.settings.public_url or delivery.address).partition("?")
    yield Change("", (public_url, query))
    if not any(signature.covers_address for signature in source.provider.signatures):
        return
    queries = {own_query.encode(): "with the query of `public_url`", b"": "without the query", query: ""}
    found = []
    for (url, how), (asked, what) in product(_spellings(public_url), queries.items()):
        words = [*how, what] if what else how
        if words:
            shows = f"The signature is right for the address {' and '.join(words)}."
            found.append((len(words), Change("address", (url, asked), shows)))
    yield from (change for _, change in sorted(found, key=lambda one: one[0]))


def _spellings(url: str) -> Iterator[tuple[str, list[str]]]:
    """An address without its query, in each way in which it may have been meant; and in words, what is changed."""
    parts = split_url(url)
    if parts is None:
        yield url, []
        return
    scheme, host, port, path = parts
    other = "http" if scheme == "https" else "https"
    slash = (path + "/", "with a slash at its end")
    if path.endswith("/"):
        slash = (path[:-1], "without the slash at its end")
    for kind, with_scheme in ((scheme, ""), (other, f"with {other} in place of {scheme}")):
        usual = USUAL_PORTS[kind]
        ports = [(port, ""), ("", f"without port {port}") if port else (usual, f"with port {usual}")]
        for (number, with_port), (rest, with_slash) in product(ports, ((path, ""), slash)):
            spelling = f"{kind}://{host}{':' + number if number else ''}{rest}"
            yield spelling, [word for word in (with_scheme, with_port, with_slash) if word]


def _bodies(body: bytes) -> Iterator[Change]:
    """The body as it may have been before somebody touched it."""
    yield Change("", body)
    seen = {body}
    for shows, was in (*_line_ends(body), *_rewritten(body)):
        if was not in seen:
            seen.add(was)
            yield Change("rewritten JSON" if "JSON" in shows else "newline", was, shows)


def _line_ends(body: bytes) -> Iterator[tuple[str, bytes]]:
    yield "The signature is right for the body without the line end at its end.", body.rstrip(b"\r\n")
    yield "The signature is right for the body with a line end after it.", body + b"\n"
    yield "The signature is right for the body with CR LF as line ends.", body.replace(b"\n", b"\r\n")
    yield "The signature is right for the body with LF as line ends.", body.replace(b"\r\n", b"\n")
    yield "The signature is right for the body without the byte order mark.", body.removeprefix(b"\xef\xbb\xbf")


def _rewritten(body: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return
    styles: list[tuple[str, Callable[[], str]]] = [
        ("compact", lambda: json.dumps(parsed, separators=(",", ":"), ensure_ascii=False)),
        ("compact, other letters escaped", lambda: json.dumps(parsed, separators=(",", ":"))),
        ("with blanks", lambda: json.dumps(parsed, ensure_ascii=False)),
        ("with blanks, other letters escaped", lambda: json.dumps(parsed)),
        ("indented by two", lambda: json.dumps(parsed, indent=2, ensure_ascii=False)),
        ("indented by four", lambda: json.dumps(parsed, indent=4, ensure_ascii=False)),
        ("compact, keys sorted", lambda: json.dumps(parsed, separators=(",", ":"), sort_keys=True, ensure_ascii=False)),
        ("compact, slashes escaped", lambda: json.dumps(parsed, separators=(",", ":")).replace("/", "\\/")),
    ]
    for style, write in styles:
        try:
            yield f"The signature is right for the same JSON, written {style}.", write().encode()
        except (ValueError, RecursionError, UnicodeError):
            continue
