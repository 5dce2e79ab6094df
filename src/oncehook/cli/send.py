"""`oncehook send`: sign and send realistic events of a provider."""

import http.client
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.managed import with_managed
from oncehook.cli.options import config_option, console, json_option, print_json, printable, run
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import Configuration
from oncehook.config.secret import resolve
from oncehook.config.settings import SourceSettings
from oncehook.model.errors import ConfigurationError
from oncehook.model.tenant import TENANT_NAME
from oncehook.providers import definition as providers
from oncehook.providers.definition import Provider
from oncehook.providers.draft import with_field, with_id
from oncehook.providers.sample import Sample, compose, url_for
from oncehook.providers.source import tenant_address
from oncehook.tenants.lookup import FunctionLookup

if TYPE_CHECKING:
    from oncehook.inbox import Inbox

StatusAndBody = tuple[int, str]


@click.command("send")
@click.argument("provider")
@click.argument("type_", metavar="TYPE")
@config_option
@app_option
@click.option("--to", help="URL to post to.  [default: the source on http://127.0.0.1:8000]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of an inbox on this machine, if it is not 8000.")
@click.option("--data", metavar="FILE", help="File with the body to send instead of a sample; - is standard input.")
@click.option(
    "--set",
    "fields",
    metavar="PATH=VALUE",
    multiple=True,
    help="Set a field of the body to JSON or text; may be repeated.",
)
@click.option("--id", "id_", help="Id of the event; sending the same id twice makes a duplicate.")
@click.option(
    "--tenant", help="Tenant of the source to send to. Needs --secret, unless the app's secrets_for has its secret."
)
@click.option("--secret", help="Signing key: env:NAME, file:PATH or the value.  [default: the secret of the source]")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1, 1_000_000), help="Number of events.")
@click.option(
    "--duplicate",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="Number of additional deliveries of each event.",
)
@click.option(
    "--concurrency", default=1, show_default=True, type=click.IntRange(1, 256), help="Number of concurrent deliveries."
)
@json_option
def command(
    provider: str,
    type_: str,
    config: str | None,
    to: str | None,
    port: int | None,
    data: str | None,
    fields: tuple[str, ...],
    id_: str | None,
    tenant: str | None,
    secret: str | None,
    count: int,
    duplicate: int,
    concurrency: int,
    as_json: bool,
) -> None:
    """Sign and send realistic events of a provider. Exits 1 if a response is not 2xx.

    PROVIDER is the name of a provider or of a source. `oncehook providers NAME` shows a TYPE to try.

    \b
    oncehook send stripe invoice.paid
    oncehook send github pull_request.opened --duplicate 2
    oncehook send github push --to https://example.com/hooks --secret env:KEY
    oncehook send stripe invoice.paid --set data.object.metadata.user=7 --id evt_1
    oncehook send stripe invoice.paid --data body.json --port 9000
    oncehook send stripe invoice.paid --count 1000 --concurrency 16
    oncehook send stripe invoice.paid --tenant acme --secret env:ACME_SECRET
    """
    if not type_.isprintable():
        raise click.UsageError(f"{type_!r} is not a valid type: it contains unprintable characters")
    configuration, inbox = configured(config)
    if provider not in {*configuration.sources, *configuration.providers, *providers.built_in_names()}:
        configuration = with_managed(configuration, config)
    source = _source_for(provider, configuration)
    definition = providers.find(
        configuration.sources[source].provider or source if source else provider, configuration.providers
    )
    if to is not None and port is not None:
        raise click.UsageError("--port and --to cannot be combined: --to contains the port")
    if id_ == "":
        raise click.UsageError("--id is empty: leave it out to get a new id")
    if id_ is not None and count > 1:
        raise click.UsageError("--id needs --count 1: to deliver the event again, use --duplicate")
    url = _parse_url(to or url_for(source or provider, f"http://127.0.0.1:{port or 8000}"))
    if tenant is not None:
        url = _parse_url(tenant_address(url.geturl(), tenant))
        secret = secret or _tenant_secret(inbox, source, tenant)
    settings = configuration.sources[source] if source else SourceSettings()
    edit = SampleEdit(definition, settings, _read_data(data), tuple(map(_parse_field, fields)), id_)
    key = _signing_key(definition, source, secret, configuration)
    samples = _samples(
        edit,
        type_,
        key,
        count=count,
        duplicate=duplicate,
        settings=_settings(source, configuration, url.geturl(), tenant),
    )
    sys.exit(_post_all(samples, url, count * (duplicate + 1), concurrency, as_json))


@dataclass(frozen=True, slots=True)
class SampleEdit:
    """The changes to a sample: a different body, fields and an id."""

    provider: Provider
    settings: SourceSettings
    body: bytes | None
    fields: tuple[tuple[str, Any], ...]
    id: str | None

    def apply(self, draft: Sample) -> Sample:
        """The edited draft. Fails with a usage error if the body cannot hold a field."""
        split = self.provider.event.split
        draft = draft if self.body is None else Sample(draft.headers, self.body)
        try:
            for path, value in self.fields:
                draft = with_field(self.provider, draft, path, value, split=split)
            if self.id is not None:
                draft = with_id(self.provider, draft, self.id, split=split, natural=self.settings.id)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        return draft


def _read_data(file: str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise click.UsageError(f"--data {file} cannot be read: {error.strerror}") from None


def _parse_field(text: str) -> tuple[str, Any]:
    """The path and the value of PATH=VALUE. The value is JSON if it parses, otherwise text."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise click.UsageError(f"--set {text} is not PATH=VALUE, such as data.object.metadata.user=7")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value


def _parse_url(text: str) -> SplitResult:
    """Parse the URL to post to. Fails with a usage error if it is not http or https."""
    try:
        url = urlsplit(text)
        is_valid = url.scheme in ("http", "https") and url.hostname and url.port != 0 and text.isascii()
    except ValueError:
        is_valid = False
    if not is_valid or any(c.isspace() or not c.isprintable() for c in text):
        raise click.UsageError(f"--to {text!r} is not an http or https URL")
    return url


def _source_for(name: str, configuration: Configuration) -> str | None:
    """The configured source of this name, or the only one of this provider."""
    if name in configuration.sources:
        return name
    of_provider = _sources_of(name, configuration)
    return of_provider[0] if len(of_provider) == 1 else None


def _sources_of(provider: str, configuration: Configuration) -> list[str]:
    return [source for source, settings in configuration.sources.items() if settings.provider == provider]


def _signing_key(
    provider: Provider, source: str | None, option: str | None, configuration: Configuration
) -> str | None:
    """The key to sign with. None for a source that accepts unsigned deliveries."""
    if option is not None:
        return resolve(option, "--secret")
    if source and configuration.sources[source].verify == "none":
        return None
    several = [] if source else _sources_of(provider.name, configuration)
    if several:
        raise click.UsageError(f"{len(several)} sources use {provider.name}: name one of them ({', '.join(several)})")
    secrets = configuration.sources[source].secrets if source else ()
    if not secrets:
        raise ConfigurationError(
            f"there is no secret to sign with: configure [sources.{source or provider.name}], or add --secret. "
            f"Expected: {provider.secret}"
        )
    return resolve(secrets[0], f"sources.{source}.secrets[0]")


def _tenant_secret(inbox: "Inbox | None", source: str | None, tenant: str) -> str:
    """The first secret that `secrets_for` returns for a tenant. Fails with a usage error if there is none."""
    if not TENANT_NAME.fullmatch(tenant):
        raise click.UsageError(f"--tenant {printable(tenant)} is not a tenant: use letters, digits, - _ . and ~")
    cache = None if inbox is None or source is None else inbox._runtime.tenants.get(source)
    if cache is None or not isinstance(cache.lookup, FunctionLookup):
        raise click.UsageError("--tenant needs --secret here: the app has no secrets_for that returns the secret")
    secrets = run(cache.lookup.find(tenant))
    if not secrets:
        raise click.UsageError(f"secrets_for returns no secret for the tenant {tenant}: pass --secret")
    return secrets[0]


def _expected_secret(provider: Provider) -> str:
    """Describe the key that can sign for this provider."""
    if any(signature.family.shares_secret(signature) for signature in provider.signatures):
        return f"expected: {provider.secret}"
    return "this provider signs with a private key: pass it with --secret file:key.pem"


def _settings(source: str | None, configuration: Configuration, url: str, tenant: str | None) -> SourceSettings:
    """The settings of the source, some of which the provider signs. `url` is the default of public_url."""
    settings = configuration.sources[source] if source else SourceSettings()
    if settings.public_url and tenant:
        return replace(settings, public_url=tenant_address(settings.public_url, tenant))
    return replace(settings, public_url=settings.public_url or url)


def _samples(
    edit: SampleEdit, type_: str, key: str | None, *, count: int, duplicate: int, settings: SourceSettings
) -> Iterator[Sample]:
    provider = edit.provider
    for _ in range(count):
        try:
            sample = compose(provider, type_, key, now=SYSTEM.now(), edit=edit.apply, settings=settings)
        except ValueError as error:
            raise ConfigurationError(
                f"cannot sign for {provider.name} with this secret ({error}); {_expected_secret(provider)}"
            ) from None
        for _ in range(duplicate + 1):
            yield sample


_connections = local()
_opened: list[http.client.HTTPConnection] = []


def post(sample: Sample, url: SplitResult) -> StatusAndBody:
    """Post one delivery. Returns (0, reason) without a response. Each thread keeps its connection open."""
    for fresh in (False, True):
        connection = None if fresh else getattr(_connections, "open", None)
        if connection is None:
            kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
            connection = _connections.open = kind(url.hostname or "", url.port, timeout=30)
            _opened.append(connection)
            fresh = True
        try:
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("POST", target, sample.body, sample.headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            _opened.remove(connection)
            _connections.open = None
            if fresh:
                return 0, f"{type(error).__name__}: {error}"
    raise AssertionError("unreachable")


def _post_all(samples: Iterator[Sample], url: SplitResult, total: int, concurrency: int, as_json: bool) -> int:
    from rich.progress import Progress

    responses: Counter[StatusAndBody] = Counter()
    statuses: Counter[int] = Counter()
    started = time.monotonic()
    with (
        ThreadPoolExecutor(concurrency) as pool,
        Progress(
            console=console(), transient=True, disable=as_json or total < 50 or not sys.stdout.isatty()
        ) as progress,
    ):
        task = progress.add_task("sending", total=total)
        for status, text in _bounded_map(pool, samples, url, concurrency):
            statuses[status] += 1
            progress.advance(task)
            if as_json:
                print_json({"status": status, "answer": text})
            elif total < 50:
                click.echo(f"{status or 'no response'}  {text.strip()[:200]}")
            else:
                responses[(status, _outcome(text))] += 1
    seconds = time.monotonic() - started
    while _opened:
        _opened.pop().close()
    if statuses[0]:
        where = f"{url.scheme}://{url.netloc}"
        click.echo(
            f"oncehook: no response from {where}: start `oncehook serve`, or pass the address with --port or --to",
            err=True,
        )
    if not as_json and total >= 50:
        for (status, outcome), number in sorted(responses.items()):
            click.echo(f"{number:>8}  {status or 'no response'}  {outcome}")
        click.echo(f"{total:>8}  in {seconds:.1f} s, {total / seconds:,.0f} per second")
    return 0 if all(200 <= status < 300 for status in statuses) else 1


def _bounded_map(
    pool: ThreadPoolExecutor, samples: Iterator[Sample], url: SplitResult, width: int
) -> Iterator[StatusAndBody]:
    """Like `pool.map`, but composes events only as they are sent."""
    pending = []
    for sample in samples:
        pending.append(pool.submit(post, sample, url))
        if len(pending) >= 2 * width:
            yield pending.pop(0).result()
    for future in pending:
        yield future.result()


def _outcome(text: str) -> str:
    import msgspec

    try:
        body = msgspec.json.decode(text)
        return str(body.get("status") or body["error"]["code"])
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError):
        return text.strip()[:60]
