"""Providers as data: who sends, how it signs, where its facts are, how it shakes hands and how long it retries.

A provider is a TOML file in `catalog/`, or a `[providers.NAME]` table in the user's own file, in the same
words. The structs below are those words; docs/providers.md explains each. Nothing here is code per provider:
what a definition can name is algorithms, signature families and handshakes.
"""

import datetime
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from oncehook.config.settings import SourceSettings
from oncehook.model.errors import ConfigurationError
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
"""What signs over a `template`; any other value of `algorithm` is the name of a signature family."""

CATALOG = Path(__file__).parent / "catalog"
_FORM = form.CONTENT_TYPE.encode()


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of the tables below: a key that is not a word of the format is an error."""


class Signature(Definition, frozen=True, kw_only=True):
    """One way a provider signs. Several are alternatives: a secret is tried with each whose form it has."""

    algorithm: str
    header: str | None = None  # the header with the signature, or
    body: str | None = None  # … the path in the body with it
    fields: str | None = None  # the header holds name=value fields with this between them,
    field: str | None = None  # … and the signature is the field of this name
    separator: str | None = None  # the header holds several signatures with this between them
    prefix: str = ""  # what stands before the encoded signature
    encoding: Literal["hex", "base64"] = "hex"
    key: Literal["text", "base64", "hex", "whsec", "whpk", "public"] = "text"
    template: str = "{body}"  # what is signed
    each: str | None = None  # the array whose elements are each signed by themselves, with paths within an element
    tokens: str | None = None  # the family of tokens beside it that are checked too, if the source has an `app_id`
    url: Literal["exact", "ports", "decoded"] = "exact"  # which spellings of the address may have been signed
    digest: str | None = None  # the parameter of the address that must be the hex SHA-256 of the body
    timestamp: bool = True  # whether this alternative covers the provider's timestamp

    @property
    def covers_address(self) -> bool:
        """Whether the public address is a part of what is signed."""
        return "{url}" in self.template

    @property
    def family(self) -> Family:
        """The code that verifies and signs this. Raises LookupError if there is none of this name."""
        if self.tokens is not None:
            return families.find(self.tokens)
        if self.algorithm not in ALGORITHMS:
            return families.find(self.algorithm)
        if self.each is not None:
            return families.find("each")
        return families.find("address" if self.covers_address else "template")


class Timestamp(Definition, frozen=True, kw_only=True):
    """When the delivery was signed, and how far that may be from now."""

    header: str | None = None
    field: str | None = None  # a field of the signature's header
    body: str | None = None
    unit: Literal["s", "ms", "iso"] = "s"
    tolerance: str = "300s"
    stamps: Literal["attempt", "event", "unknown"] = "attempt"  # unless "attempt", the past side is the retry horizon


class EventExpressions(Definition, frozen=True, kw_only=True):
    """Where an event's facts are: expressions, see `oncehook.providers.expressions`."""

    id: Expression
    type: Expression
    object: Expression | None = None
    occurred_at: Expression | None = None
    delivery_id: Expression | None = None
    unique: list[Expression] = []  # facts besides the id of which no two events of a source have the same
    kinds: dict[str, dict[str, str]] = {}  # locator → value there → the type, in place of the usual one
    split: str | None = None  # the array of events: "*" is the body itself
    single: bool = False  # the body may also be one event by itself
    not_events: list[str] = []  # elements, as JSON, that are no events
    volatile: list[str] = []  # paths that change from attempt to attempt


class Handshake(Definition, frozen=True, kw_only=True):
    """An exchange that is answered without storing anything. With POST it is verified like an event first."""

    kind: str
    method: Literal["POST", "GET", "HEAD", "OPTIONS"] = "POST"
    when: dict[str, str] = {}  # locator → the value that tells the handshake; "*" is any, "" is none
    echo: str = ""  # the locator whose value is sent back
    json: str = ""  # send it back as the value of this key, in place of plain text
    characters: Literal["strict", "sentence"] = "strict"  # which values are sent back
    signed: bool = True  # whether a POST carries the provider's signature
    before_secret: bool = False  # it comes before there is a secret: the source may start without one
    status: Annotated[int, msgspec.Meta(ge=200, le=299)] = 200
    body: str = ""  # what an `ack` says

    @property
    def verified(self) -> bool:
        return self.method == "POST" and self.signed

    @property
    def is_keyed(self) -> bool:
        """Whether the answer is signed with the source's own key."""
        return handshake.kind_of(self.kind).signs is not None


class AckOverride(Definition, frozen=True, kw_only=True):
    """What this provider needs to hear in place of the usual 202 or 200."""

    status: Annotated[int, msgspec.Meta(ge=200, le=299)] | None = None
    body: str | None = None


class Retries(Definition, frozen=True, kw_only=True):
    """How long the provider tries, as far as it is known."""

    horizon: str | None = None
    schedule: str = ""
    time_limit: str | None = None
    stop_codes: list[int] = []


class Example(Definition, frozen=True, kw_only=True):
    """A realistic delivery, with $id, $type, $now, $now_iso, $now_ms and $number to be filled in."""

    body: str = ""
    form: dict[str, str] = {}  # the fields of a form, in place of a body
    type: str = "*"
    headers: dict[str, str] = {}


class Provider(Definition, frozen=True, kw_only=True):
    """The definition of who sends."""

    name: Name
    title: str = ""
    support: Literal["confirmed", "unconfirmed"] = "unconfirmed"
    docs: str = ""
    checked: datetime.date | None = None
    secret: str = ""  # what to paste as the secret, and where it is found
    notes: list[str] = []
    content: tuple[Literal["json", "form", "cloudevents"], ...] = ("json",)
    form_field: str | None = None  # a form's field that holds the event
    form_holds: Literal["json", "xml"] = "json"  # what that field holds: JSON, or XML in base64
    max_body: str | None = None
    options: list[str] = []  # settings of a source that this provider cannot do without
    signatures: list[Signature]
    timestamp: Timestamp | None = None
    event: EventExpressions
    handshakes: list[Handshake] = []
    answer: AckOverride = AckOverride()
    retries: Retries = Retries()
    examples: list[Example] = []

    @property
    def horizon(self) -> float | None:
        """Seconds over which the provider may redeliver an event, where it is known."""
        return duration(self.retries.horizon) if self.retries.horizon else None

    @property
    def starts_without_secret(self) -> bool:
        """Whether a source may start without a secret: its key is fetched, or its handshake comes first."""
        fetched = any(signature.family.fetches_key for signature in self.signatures)
        return fetched or any(one.before_secret for one in self.handshakes)

    def takes(self, signature: Signature, secret: str) -> bool:
        """Whether a secret may be a key of this alternative.

        A key is never sent along. Where tokens are, `whsec_` tells the two apart, or a token that happens to be base64
        would be a key of a scheme that nobody chose.
        """
        is_key = secret.strip().startswith("whsec_")
        if signature.family.sends_secret(signature):
            return not is_key
        sends_token = any(one.family.sends_secret(one) for one in self.signatures)
        return is_key or signature.key != "whsec" or not sends_token

    def sends_form(self, headers: Headers) -> bool:
        """Whether this body is a form. One answer for `verify` and for what reads after it, or they could differ."""
        return "form" in self.content and headers.get(b"content-type", b"").lower().startswith(_FORM)


def read_provider(name: str, table: Mapping[str, Any], where: str) -> Provider:
    """A checked definition out of a table. Raises ConfigurationError that names the wrong key."""
    try:
        provider = msgspec.convert({**table, "name": name}, Provider)
        _check(provider)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigurationError(f"{where}: {with_allowed(str(error), *Definition.__subclasses__())}") from None
    return provider


def _check(provider: Provider) -> None:
    """What the types of the format do not say. Raises ValueError for a definition that could never work as meant."""
    facts = provider.event
    compile_key(facts.id)
    for expression in (facts.type, facts.object, facts.occurred_at, facts.delivery_id):
        if expression is not None:
            compile_expression(expression)
    for text in (provider.retries.horizon, provider.timestamp.tolerance if provider.timestamp else None):
        if text is not None:
            duration(text)
    if provider.max_body is not None:
        size(provider.max_body)
    if not provider.signatures:
        raise ValueError("`signatures` is empty: say how deliveries are signed")
    for option in provider.options:
        if option not in SourceSettings.__dataclass_fields__:
            raise ValueError(f"`options` has {option}, which is not a setting of a source")
    for i, signature in enumerate(provider.signatures):
        _check_family(signature, f"signatures[{i}]")
    for i, one in enumerate(provider.handshakes):
        _check_handshake(one, provider.signatures, f"handshakes[{i}]")
    for signature in provider.signatures:
        signature.family.check_definition(signature, provider)
        for option in signature.family.options:
            if option not in provider.options:
                raise ValueError(f'what is signed depends on {option} of the source: put "{option}" into `options`')


def _check_family(signature: Signature, where: str) -> None:
    """Whether `algorithm` and `tokens` name something that there is."""
    if signature.algorithm not in ALGORITHMS:
        _check_name("algorithm", signature.algorithm, where, ALGORITHMS)
    if signature.tokens is not None:
        _check_name("tokens", signature.tokens, where)


def _check_name(field: str, name: str, where: str, others: Sequence[str] = ()) -> None:
    try:
        if families.find(name).named_by == field:
            return
    except LookupError as error:
        if ":" in name:  # somebody's own module
            raise ValueError(f"{where}.{field}: {error}") from None
    named = [family for family in families.built_in_names() if families.find(family).named_by == field]
    raise ValueError(not_allowed(f"{where}.{field}", name, [*others, *named]))


def _check_handshake(one: Handshake, signatures: Sequence[Signature], where: str) -> None:
    signature = signatures[0]
    try:
        kind = handshake.kind_of(one.kind)
    except LookupError:
        shared = [name for name in families.built_in_names() if families.find(name).handshake is not None]
        raise ValueError(not_allowed(f"{where}.kind", one.kind, [*handshake.KINDS, *shared])) from None
    if one.method == "POST" and not one.when:
        raise ValueError("`when` of a handshake is empty: every delivery would be a handshake")
    if kind.needs_echo and not one.echo:
        raise ValueError(f"`echo` of a handshake is empty: say where the value of kind `{one.kind}` is")
    if kind.needs_hmac and not signature.algorithm.startswith("hmac-"):
        raise ValueError(f"a handshake of kind `{one.kind}` is answered with a key of HMAC")
    if kind.must_be_signed and not one.verified:
        raise ValueError(f"a handshake of kind `{one.kind}` must be signed, or anyone could use it")
    if one.kind not in handshake.KINDS and signature.algorithm != one.kind:
        raise ValueError(f'a handshake of kind `{one.kind}` needs `algorithm = "{one.kind}"`')
    if one.is_keyed and not all(signature.family.may_sign_challenges(signature) for signature in signatures):
        raise ValueError(
            f"a handshake of kind `{one.kind}` signs words with the key of the events: "
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
        from difflib import get_close_matches  # only a mistake needs it

        near = get_close_matches(name, built_in_names(), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigurationError(
            f"provider {name} is not known: {hint}`oncehook providers` lists them, and [providers.{name}] defines one"
        )
    content = (CATALOG / f"{name}.toml").read_bytes()
    return read_provider(name, msgspec.toml.decode(content), f"providers/catalog/{name}.toml")


def find(name: str, own: Mapping[str, Mapping[str, Any]]) -> Provider:
    """The provider of a name: the user's own definition first, then the one that comes with Oncehook."""
    if name in own:
        return read_provider(name, own[name], f"providers.{name}")
    return built_in(name)
