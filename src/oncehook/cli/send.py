"""`oncehook send`: signed, realistic events, posted."""

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
from typing import Any
from urllib.parse import SplitResult, urlsplit

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, console, json_option, print_json
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import Configuration
from oncehook.config.secret import resolve
from oncehook.config.settings import SourceSettings
from oncehook.model.errors import ConfigurationError
from oncehook.providers import definition as providers
from oncehook.providers.definition import Provider
from oncehook.providers.draft import with_field, with_id
from oncehook.providers.sample import Sample, compose, url_for

Answer = tuple[int, str]


@click.command("send")
@click.argument("provider")
@click.argument("type_", metavar="TYPE")
@config_option
@app_option
@click.option("--to", help="Where to post.  [default: the source of an inbox on http://127.0.0.1:8000]")
@click.option("--port", type=click.IntRange(1, 65535), help="The port of an inbox on this machine, in place of 8000.")
@click.option("--data", metavar="FILE", help="The body to send, in place of a sample; - is standard input.")
@click.option(
    "--set",
    "fields",
    metavar="PATH=VALUE",
    multiple=True,
    help="A field of the event; JSON or a text. May be repeated.",
)
@click.option("--id", "id_", help="The id of the event; the same twice is a duplicate.")
@click.option("--secret", help="What to sign with: env:NAME, file:PATH or the value.  [default: the source's]")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1, 1_000_000), help="How many events.")
@click.option(
    "--duplicate",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="How many more times to deliver each.",
)
@click.option("--concurrency", default=1, show_default=True, type=click.IntRange(1, 256), help="How many at once.")
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
    secret: str | None,
    count: int,
    duplicate: int,
    concurrency: int,
    as_json: bool,
) -> None:
    """Sign and post realistic events of a provider. Exits 1 if an answer was not 2xx.

    \b
    oncehook send stripe invoice.paid
    oncehook send github pull_request.opened --duplicate 2
    oncehook send shopify orders/create --to https://example.com/webhooks/shopify --secret env:SHOPIFY_SECRET
    oncehook send stripe invoice.paid --set data.object.metadata.user=7 --id evt_1
    oncehook send stripe invoice.paid --data body.json --port 9000
    oncehook send stripe invoice.paid --count 1000 --concurrency 16
    """
    if not type_.isprintable():
        raise click.UsageError(f"{type_!r} is not a type: it has characters that no header may hold")
    configuration, _ = configured(config)
    source = _source_for(provider, configuration)
    definition = providers.find(
        configuration.sources[source].provider or source if source else provider, configuration.providers
    )
    if to is not None and port is not None:
        raise click.UsageError("--port is for an inbox on this machine; --to has the whole address")
    if id_ == "":
        raise click.UsageError("--id is empty; leave it out for a new id")
    if id_ is not None and count > 1:
        raise click.UsageError("--id is for one event; deliver it again with --duplicate")
    url = _address(to or url_for(source or provider, f"http://127.0.0.1:{port or 8000}"))
    settings = configuration.sources[source] if source else SourceSettings()
    edit = Edit(definition, settings, _read_data(data), tuple(map(_field, fields)), id_)
    key = _secret(definition, source, secret, configuration)
    samples = _samples(
        edit, type_, key, count=count, duplicate=duplicate, settings=_settings(source, configuration, url.geturl())
    )
    sys.exit(_post_all(samples, url, count * (duplicate + 1), concurrency, as_json))


@dataclass(frozen=True, slots=True)
class Edit:
    """What is sent in place of a sample, or changed of one."""

    provider: Provider
    settings: SourceSettings
    body: bytes | None
    fields: tuple[tuple[str, Any], ...]
    id: str | None

    def apply(self, draft: Sample) -> Sample:
        """The draft as it is wanted; a usage error where it has no place for a field."""
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


def _field(text: str) -> tuple[str, Any]:
    """A path and its value: JSON where it is some, else the text."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise click.UsageError(f"--set {text} is not PATH=VALUE, such as data.object.metadata.user=7")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value


def _address(text: str) -> SplitResult:
    """Where to post; a usage error for what is no address."""
    try:
        url = urlsplit(text)
        sound = url.scheme in ("http", "https") and url.hostname and url.port != 0 and text.isascii()
    except ValueError:
        sound = False
    if not sound or any(c.isspace() or not c.isprintable() for c in text):
        raise click.UsageError(f"--to {text!r} is not an http or https address")
    return url


def _source_for(name: str, configuration: Configuration) -> str | None:
    """The configured source of this name, or the only one of this provider."""
    if name in configuration.sources:
        return name
    of_provider = [source for source, settings in configuration.sources.items() if settings.provider == name]
    return of_provider[0] if len(of_provider) == 1 else None


def _secret(provider: Provider, source: str | None, given: str | None, configuration: Configuration) -> str | None:
    """What to sign with; None for a source that takes unsigned deliveries."""
    if given is not None:
        return resolve(given, "--secret")
    if source and configuration.sources[source].verify == "none":
        return None
    secrets = configuration.sources[source].secrets if source else ()
    if not secrets:
        raise ConfigurationError(
            f"there is no secret to sign with: configure [sources.{provider.name}], or give --secret. "
            f"Expected: {provider.secret}"
        )
    return resolve(secrets[0], f"sources.{source}.secrets[0]")


def _expected_secret(provider: Provider) -> str:
    """What can sign as this provider."""
    if any(one.family.shares_secret(one) for one in provider.signatures):
        return f"expected: {provider.secret}"
    return "to sign as an asymmetric sender, give its private key: --secret file:key.pem"


def _settings(source: str | None, configuration: Configuration, url: str) -> SourceSettings:
    """The source's settings, some of which its provider signs; its address is `url` if it has no other."""
    settings = configuration.sources[source] if source else SourceSettings()
    return replace(settings, public_url=settings.public_url or url)


def _samples(
    edit: Edit, type_: str, key: str | None, *, count: int, duplicate: int, settings: SourceSettings
) -> Iterator[Sample]:
    provider = edit.provider
    for _ in range(count):
        try:
            sample = compose(provider, type_, key, now=SYSTEM.now(), edit=edit.apply, settings=settings)
        except ValueError as error:
            raise ConfigurationError(
                f"{provider.name} cannot be signed with this secret ({error}); {_expected_secret(provider)}"
            ) from None
        for _ in range(duplicate + 1):
            yield sample


_connections = local()
_opened: list[http.client.HTTPConnection] = []


def post(sample: Sample, url: SplitResult) -> Answer:
    """Deliver one; (0, reason) if nobody answered. The connection is kept for the thread's next one."""
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

    answers: Counter[Answer] = Counter()
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
                click.echo(f"{status or 'no answer'}  {text.strip()[:200]}")
            else:
                answers[(status, _kind(text))] += 1
    seconds = time.monotonic() - started
    while _opened:
        _opened.pop().close()
    if statuses[0]:
        where = f"{url.scheme}://{url.netloc}"
        click.echo(
            f"oncehook: nothing answers at {where}: start `oncehook serve`, or name its address with --port or --to",
            err=True,
        )
    if not as_json and total >= 50:
        for (status, kind), number in sorted(answers.items()):
            click.echo(f"{number:>8}  {status or 'no answer'}  {kind}")
        click.echo(f"{total:>8}  in {seconds:.1f} s, {total / seconds:,.0f} a second")
    return 0 if all(200 <= status < 300 for status in statuses) else 1


def _bounded_map(pool: ThreadPoolExecutor, samples: Iterator[Sample], url: SplitResult, width: int) -> Iterator[Answer]:
    """Like `pool.map`, without composing a million events before the first is sent."""
    waiting = []
    for sample in samples:
        waiting.append(pool.submit(post, sample, url))
        if len(waiting) >= 2 * width:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _kind(text: str) -> str:
    import msgspec

    try:
        body = msgspec.json.decode(text)
        return str(body.get("status") or body["error"]["code"])
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError):
        return text.strip()[:60]
