"""Providers as data: how a provider signs, where the facts of its events are, its handshakes and its retries.

A provider is a TOML file in `catalog/`, or a `[providers.NAME]` table in the user's configuration with the same keys.
The structs below declare the keys, and docs/providers.md explains each. No provider has code here: a definition names
algorithms, signature families and kinds of handshakes.
"""

import datetime
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from oncehook.config.settings import SourceSettings
from oncehook.model.errors import ConfigurationError
from oncehook.model.nearest import nearest
from oncehook.model.values import duration, not_allowed, size, with_allowed
from oncehook.providers import families, form, handshake
from oncehook.providers.expressions import Headers, compile_expression, compile_key
from oncehook.providers.family import Family

Expression = str | list[str]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
ALGORITHMS = (
    "hmac-sha1",
    "hmac-sha256",
    "hmac-sha512",
    "ed25519",
    "ecdsa-p256-sha256",
    "rsa-sha256",
    "token",
)
"""Algorithms that sign a `template`. Any other value of `algorithm` is the name of a signature family."""

CATALOG = Path(__file__).parent / "catalog"
_FORM = form.CONTENT_TYPE.encode()


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the tables below. An unknown key is an error."""


class Signature(Definition, frozen=True, kw_only=True):
    """One way in which a provider signs. Several are alternatives: a secret is tried with each that fits its format."""

    algorithm: str
    header: str | None = None  # the header with the signature
    body: str | None = None  # the path of the signature in the body, if there is no header
    fields: str | None = None  # the separator of the name=value fields in the header
    field: str | None = None  # the name of the signature's field
    separator: str | None = None  # the separator of several signatures in the header
    prefix: str = ""  # the text before the encoded signature
    encoding: Literal["hex", "base64"] = "hex"
    key: Literal["text", "base64", "hex", "whsec", "whpk", "public"] = "text"
    template: str = "{body}"  # the signed content
    each: str | None = None  # the array whose elements are signed separately; paths start at an element
    tokens: str | None = None  # the family of the tokens that are verified too, if the source has an `app_id`
    url: Literal["exact", "ports", "decoded"] = "exact"  # which spellings of the address the signature may cover
    digest: str | None = None  # the query parameter that must be the hex SHA-256 of the body
    timestamp: bool = True  # whether this alternative covers the provider's timestamp

    @property
    def covers_address(self) -> bool:
        """Whether the signature covers the public address."""
        return "{url}" in self.template

    @property
    def family(self) -> Family:
        """The family that verifies and signs this. Raises LookupError for an unknown name."""
        if self.tokens is not None:
            return families.find(self.tokens)
        if self.algorithm not in ALGORITHMS:
            return families.find(self.algorithm)
        if self.each is not None:
            return families.find("each")
        return families.find("address" if self.covers_address else "template")


class Timestamp(Definition, frozen=True, kw_only=True):
    """Where the signed timestamp is, and how far it may be from now."""

    header: str | None = None
    field: str | None = None  # a field of the signature's header
    body: str | None = None
    unit: Literal["s", "ms", "iso"] = "s"
    tolerance: str = "300s"
    stamps: Literal["attempt", "event", "unknown"] = "attempt"  # the last two may be as old as the retry horizon


class EventExpressions(Definition, frozen=True, kw_only=True):
    """Where the facts of an event are, as expressions (see `oncehook.providers.expressions`)."""

    id: Expression
    type: Expression
    object: Expression | None = None
    occurred_at: Expression | None = None
    delivery_id: Expression | None = None
    unique: list[Expression] = []  # facts besides the id that are unique within a source
    kinds: dict[str, dict[str, str]] = {}  # locator → value → the type to use instead of `type`
    split: str | None = None  # the array of events; "*" is the body itself
    single: bool = False  # the body may also be a single event
    not_events: list[str] = []  # elements, as JSON, that are not events
    volatile: list[str] = []  # paths that change from attempt to attempt


class Handshake(Definition, frozen=True, kw_only=True):
    """A request that is answered without storing anything. A POST is verified like an event first."""

    kind: str
    method: Literal["POST", "GET", "HEAD", "OPTIONS"] = "POST"
    when: dict[str, str] = {}  # locator → the value that identifies the handshake; "*" is any value, "" is none
    echo: str = ""  # the locator of the value to send back
    json: str = ""  # the key of a JSON object in which the value is sent back, instead of plain text
    characters: Literal["strict", "sentence"] = "strict"  # which values may be sent back
    signed: bool = True  # whether a POST carries the provider's signature
    before_secret: bool = False  # whether it comes before there is a secret: the source may then start without one
    status: Annotated[int, msgspec.Meta(ge=200, le=299)] = 200
    body: str = ""  # the body of an `ack`

    @property
    def verified(self) -> bool:
        return self.method == "POST" and self.signed

    @property
    def is_keyed(self) -> bool:
        """Whether the response is signed with the source's key."""
        return handshake.kind_of(self.kind).signs is not None


class EventBridge(Definition, frozen=True, kw_only=True):
    """Where an event of EventBridge has the delivery of this provider."""

    source: str | None = None  # the `source` that its events have (shell pattern)
    body: str | None = None  # the key in `detail` of the body; without it, `detail` is the body
    headers: str | None = None  # the key in `detail` of the headers


class AckOverride(Definition, frozen=True, kw_only=True):
    """The response that this provider needs instead of the usual 202 or 200."""

    status: Annotated[int, msgspec.Meta(ge=200, le=299)] | None = None
    body: str | None = None


class Retries(Definition, frozen=True, kw_only=True):
    """How long the provider retries, if that is known."""

    horizon: str | None = None
    automatic: str | None = None  # how long it retries by itself, if it can be asked for longer to deliver again
    schedule: str = ""
    time_limit: str | None = None
    stop_codes: list[int] = []


class Example(Definition, frozen=True, kw_only=True):
    """A realistic delivery, in which $id, $type, $now, $now_iso, $now_ms and $number are filled in."""

    body: str = ""
    form: dict[str, str] = {}  # the fields of a form, instead of a body
    type: str = "*"
    headers: dict[str, str] = {}


class Provider(Definition, frozen=True, kw_only=True):
    """The definition of a provider."""

    name: Name
    title: str = ""
    support: Literal["confirmed", "unconfirmed"] = "unconfirmed"
    docs: str = ""
    checked: datetime.date | None = None
    secret: str = ""  # which secret to configure, and where the provider shows it
    notes: list[str] = []
    content: tuple[Literal["json", "form", "cloudevents"], ...] = ("json",)
    form_field: str | None = None  # the form field that holds the event
    form_holds: Literal["json", "xml"] = "json"  # the format of that field: JSON, or XML in base64
    max_body: str | None = None
    options: list[str] = []  # settings that a source of this provider must have
    signatures: list[Signature]
    timestamp: Timestamp | None = None
    event: EventExpressions
    handshakes: list[Handshake] = []
    answer: AckOverride = AckOverride()
    eventbridge: EventBridge = EventBridge()
    retries: Retries = Retries()
    examples: list[Example] = []

    @property
    def horizon(self) -> float | None:
        """Seconds during which the provider may redeliver an event, or None if that is not known."""
        return duration(self.retries.horizon) if self.retries.horizon else None

    @property
    def retries_for(self) -> float | None:
        """Seconds during which the provider retries by itself, or None if that is not known."""
        return duration(self.retries.automatic) if self.retries.automatic else self.horizon

    @property
    def starts_without_secret(self) -> bool:
        """Whether a source may start without a secret, because its key is fetched or a handshake comes first."""
        fetched = any(signature.family.fetches_key for signature in self.signatures)
        return fetched or any(handshake.before_secret for handshake in self.handshakes)

    def accepts_secret(self, signature: Signature, secret: str) -> bool:
        """Whether a secret may be a key of this alternative.

        A provider may have both signing keys and tokens. Then `whsec_` marks a key. Without that rule, a token that
        happens to be valid base64 would also be accepted as a signing key.
        """
        is_key = secret.strip().startswith("whsec_")
        if signature.family.sends_secret(signature):
            return not is_key
        sends_token = any(other.family.sends_secret(other) for other in self.signatures)
        return is_key or signature.key != "whsec" or not sends_token

    def sends_form(self, headers: Headers) -> bool:
        """Whether the body is a form. `verify` and the claim reader both use this, so they cannot disagree."""
        return "form" in self.content and headers.get(b"content-type", b"").lower().startswith(_FORM)


def read_provider(name: str, table: Mapping[str, Any], where: str) -> Provider:
    """Read and check a definition. Raises ConfigurationError, which names the wrong key."""
    try:
        provider = msgspec.convert({**table, "name": name}, Provider)
        _check(provider)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigurationError(f"{where}: {with_allowed(str(error), *Definition.__subclasses__())}") from None
    return provider


def _check(provider: Provider) -> None:
    """Check the rules that the types do not express. Raises ValueError for a definition that cannot work."""
    facts = provider.event
    compile_key(facts.id)
    for expression in (facts.type, facts.object, facts.occurred_at, facts.delivery_id):
        if expression is not None:
            compile_expression(expression)
    retries = provider.retries
    for text in (retries.horizon, retries.automatic, provider.timestamp.tolerance if provider.timestamp else None):
        if text is not None:
            duration(text)
    if provider.max_body is not None:
        size(provider.max_body)
    if not provider.signatures:
        raise ValueError("`signatures` is empty: define how deliveries are signed")
    for option in provider.options:
        if option not in SourceSettings.__dataclass_fields__:
            raise ValueError(f"`options` names {option}, which is not a setting of a source")
    for i, signature in enumerate(provider.signatures):
        _check_family(signature, f"signatures[{i}]")
    for i, entry in enumerate(provider.handshakes):
        _check_handshake(entry, provider.signatures, f"handshakes[{i}]")
    for signature in provider.signatures:
        signature.family.check_definition(signature, provider)
        for option in signature.family.options:
            if option not in provider.options:
                raise ValueError(f'the signature depends on the source\'s {option}: add "{option}" to `options`')


def _check_family(signature: Signature, where: str) -> None:
    """Raise ValueError if `algorithm` or `tokens` is not a known name."""
    if signature.algorithm not in ALGORITHMS:
        _check_name("algorithm", signature.algorithm, where, ALGORITHMS)
    if signature.tokens is not None:
        _check_name("tokens", signature.tokens, where)


def _check_name(field: str, name: str, where: str, others: Sequence[str] = ()) -> None:
    try:
        if families.find(name).named_by == field:
            return
    except LookupError as error:
        if ":" in name:  # a module of the user
            raise ValueError(f"{where}.{field}: {error}") from None
    known = [family for family in families.built_in_names() if families.find(family).named_by == field]
    raise ValueError(not_allowed(f"{where}.{field}", name, [*others, *known]))


def _check_handshake(entry: Handshake, signatures: Sequence[Signature], where: str) -> None:
    signature = signatures[0]
    try:
        kind = handshake.kind_of(entry.kind)
    except LookupError:
        of_families = [name for name in families.built_in_names() if families.find(name).handshake is not None]
        raise ValueError(not_allowed(f"{where}.kind", entry.kind, [*handshake.KINDS, *of_families])) from None
    if entry.method == "POST" and not entry.when:
        raise ValueError("`when` of a handshake is empty: every delivery would be a handshake")
    if kind.needs_echo and not entry.echo:
        raise ValueError(f"`echo` of a handshake is empty: say where the value of kind `{entry.kind}` is")
    if kind.needs_hmac and not signature.algorithm.startswith("hmac-"):
        raise ValueError(f"a handshake of kind `{entry.kind}` needs an HMAC key")
    if kind.must_be_signed and not entry.verified:
        raise ValueError(f"a handshake of kind `{entry.kind}` must be signed, or anyone could use it")
    if entry.kind not in handshake.KINDS and signature.algorithm != entry.kind:
        raise ValueError(f'a handshake of kind `{entry.kind}` needs `algorithm = "{entry.kind}"`')
    if entry.is_keyed and not all(signature.family.may_sign_challenges(signature) for signature in signatures):
        raise ValueError(
            f"a handshake of kind `{entry.kind}` signs challenges with the key of the events: "
            "`template` must be {body}, or have text with a character other than A-Z a-z 0-9 _ and -"
        )


@cache
def built_in_names() -> tuple[str, ...]:
    """The names of the providers that come with Oncehook, sorted."""
    return tuple(sorted(file.stem for file in CATALOG.glob("*.toml")))


@cache
def built_in(name: str) -> Provider:
    """A provider that comes with Oncehook."""
    if name not in built_in_names():
        near = nearest(name, built_in_names())
        hint = f"did you mean {near}? " if near else ""
        raise ConfigurationError(
            f"provider {name} is not known: {hint}`oncehook providers` lists all, and [providers.{name}] defines one"
        )
    content = (CATALOG / f"{name}.toml").read_bytes()
    return read_provider(name, msgspec.toml.decode(content), f"providers/catalog/{name}.toml")


def find(name: str, own: Mapping[str, Mapping[str, Any]]) -> Provider:
    """The provider of a name. A definition in the user's configuration takes precedence over a built-in one."""
    if name in own:
        return read_provider(name, own[name], f"providers.{name}")
    return built_in(name)
