"""The addresses of brokers: which server, with which credentials, and which queue, stream, topic or subject of it.

    sqs:https://sqs.eu-west-1.amazonaws.com/123456789012/orders
    nats://host:4222/SUBJECT
    kafka://host:9092,other:9092/TOPIC
    redis://host:6379/DATABASE/STREAM
    rabbitmq://host:5672/VHOST/QUEUE

`+tls` after the scheme (`nats+tls://…`) connects with TLS. Messages and logs show the origin of an address: its scheme,
hosts and ports. They never show its credentials or the rest.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote

from oncehook.config.secret import resolve
from oncehook.model.errors import ConfigurationError

SQS, NATS, KAFKA, REDIS, RABBITMQ = "sqs", "nats", "kafka", "redis", "rabbitmq"

PORTS = {NATS: 4222, KAFKA: 9092, REDIS: 6379, RABBITMQ: 5672}
"""The kinds of brokers whose address has a scheme, and the port without TLS."""

TLS_PORTS = {**PORTS, RABBITMQ: 5671}
EXAMPLES = {
    SQS: "sqs:https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
    NATS: "nats://host:4222/orders.created",
    KAFKA: "kafka://host:9092,other:9092/orders",
    REDIS: "redis://host:6379/0/orders",
    RABBITMQ: "rabbitmq://host:5672/vhost/orders",
}
OPTIONS = {
    NATS: frozenset({"sync"}),
    KAFKA: frozenset({"sasl", "group"}),
    REDIS: frozenset({"maxlen"}),
    RABBITMQ: frozenset({"exchange"}),
}
"""The options after `?` that each kind of broker has."""

_SCHEME = re.compile(r"(?P<kind>nats|kafka|redis|rabbitmq)(?P<tls>\+tls)?://|(?P<sqs>sqs):https?://")
_REST = re.compile(r"(?:(?P<user>[!-~]*)@)?(?P<hosts>[^/?#@]+)(?P<path>/[^?#]*)?(?:\?(?P<options>[!-~]*))?")
_HOST = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]{0,252}))(?::(?P<port>[0-9]{1,5}))?"
)


def is_broker(text: str) -> bool:
    """Whether a text is the address of a broker, by its scheme."""
    return _SCHEME.match(text) is not None


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The parts of an address. `path` has the decoded names after the hosts, such as a database and a stream."""

    kind: str
    hosts: tuple[tuple[str, int], ...]
    path: tuple[str, ...]
    secure: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Scheme, hosts and ports: the part that messages may show."""
        if self.kind == SQS:
            scheme, default = ("sqs:https", 443) if self.secure else ("sqs:http", 80)
            return f"{scheme}://" + ",".join(_authority(h, None if p == default else p) for h, p in self.hosts)
        scheme = f"{self.kind}+tls" if self.secure else self.kind
        return f"{scheme}://" + ",".join(_authority(host, port) for host, port in self.hosts)

    @property
    def servers(self) -> list[str]:
        """The servers as `host:port`."""
        return [_authority(host, port) for host, port in self.hosts]

    @property
    def name(self) -> str:
        """The last name of the path: the queue, subject, topic or stream."""
        return self.path[-1]

    @property
    def vhost(self) -> str | None:
        """The part of the path that belongs to the connection: RabbitMQ's virtual host, or the database of Redis."""
        if self.kind == RABBITMQ:
            return self.path[0] if len(self.path) > 1 else "/"
        return self.path[0] if self.kind == REDIS else None

    @property
    def queue_url(self) -> str:
        """The URL of an SQS queue."""
        return f"{self.origin.removeprefix('sqs:')}/{'/'.join(self.path)}"

    @property
    def has_credentials(self) -> bool:
        return self.user is not None or self.password is not None

    def with_credentials_of(self, other: "BrokerAddress") -> "BrokerAddress":
        """The same address with the credentials and options of another, which is in the configuration."""
        return replace(self, user=other.user, password=other.password, options={**other.options, **self.options})

    def resolve_password(self, where: str) -> "BrokerAddress":
        """The address with the value of a password that is `env:NAME` or `file:PATH`. Raises ConfigurationError."""
        return self if self.password is None else replace(self, password=resolve(self.password, where, "address"))


def parse_broker(text: str, *, needs_name: bool = True) -> BrokerAddress:
    """Split an address. Raises ValueError with a message that does not repeat it.

    Without `needs_name`, the address may end after the hosts.
    """
    scheme = _SCHEME.match(text)
    if scheme is None:
        raise ValueError(f"expected the address of a broker, such as {EXAMPLES[NATS]}")
    kind = scheme["kind"] or scheme["sqs"]
    rest = _REST.fullmatch(text[scheme.end() :])
    problem = ValueError(f"expected an address such as {EXAMPLES[kind]}, in ASCII")
    if rest is None:
        raise problem
    secure = bool(scheme["tls"]) if kind != SQS else scheme[0] == "sqs:https://"
    default = (443 if secure else 80) if kind == SQS else (TLS_PORTS if secure else PORTS)[kind]
    hosts = tuple(_parse_host(host, default, problem) for host in rest["hosts"].split(","))
    path = tuple(unquote(name) for name in (rest["path"] or "").split("/")[1:] if name)
    user, _, password = (rest["user"] or "").partition(":")
    address = BrokerAddress(
        kind,
        hosts,
        path,
        secure,
        user=unquote(user) or None,
        password=unquote(password) or None,
        options=dict(parse_qsl(rest["options"] or "", keep_blank_values=True)),
    )
    _check(address, needs_name)
    return address


def _parse_host(text: str, default: int, problem: ValueError) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    port = int(match["port"] or default) if match else 0
    if match is None or not 0 < port < 65536:
        raise problem
    return (match["v6"] or match["name"]).rstrip(".").lower(), port


def _check(address: BrokerAddress, needs_name: bool) -> None:
    kind, names = address.kind, len(address.path)
    expected = {NATS: (1,), KAFKA: (1,), REDIS: (2,), RABBITMQ: (1, 2), SQS: (1, 2)}[kind]
    if names not in expected and (needs_name or names):
        raise ValueError(f"expected {'two names' if expected == (2,) else 'a name'} after the host: {EXAMPLES[kind]}")
    if kind == REDIS and names and not address.path[0].isdecimal():
        raise ValueError(f"expected the number of a database before the stream: {EXAMPLES[kind]}")
    if kind == SQS and (address.user or address.password or len(address.hosts) > 1):
        raise ValueError("expected the URL of one queue without credentials: AWS's own settings have them")
    if kind in (REDIS, RABBITMQ) and len(address.hosts) > 1:
        raise ValueError(f"expected one host: {EXAMPLES[kind]}")
    unknown = sorted(set(address.options) - OPTIONS.get(kind, frozenset()))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not an option of a {kind} address")
    if kind == NATS and address.options.get("sync", "always") != "always":
        raise ValueError("expected always as the option sync")
    if kind == REDIS and not address.options.get("maxlen", "1").isdecimal():
        raise ValueError("expected a number as the option maxlen")


def _authority(host: str, port: int | None) -> str:
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def check_client(module: str, extra: str, what: str) -> None:
    """Raise ConfigurationError if the client library of a broker is not installed."""
    from importlib.util import find_spec  # most inboxes have no broker

    if find_spec(module) is None:
        raise ConfigurationError(f"{what} needs its client: pip install 'oncehook[{extra}]'")
