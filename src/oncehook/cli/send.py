"""`oncehook send`: signed, realistic events, posted."""

import http.client
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import local
from urllib.parse import SplitResult, urlsplit

import click

from oncehook import providers
from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, console, json_option, print_json
from oncehook.clock import SYSTEM
from oncehook.errors import ConfigurationError
from oncehook.providers import Provider
from oncehook.sample import Sample, compose, url_for
from oncehook.secret import resolve
from oncehook.settings import Configuration

Answer = tuple[int, str]


@click.command("send")
@click.argument("provider")
@click.argument("type_", metavar="TYPE")
@config_option
@app_option
@click.option("--to", help="Where to post.  [default: the source of an inbox on http://127.0.0.1:8000]")
@click.option("--secret", help="What to sign with: env:NAME, file:PATH or the value.  [default: the source's]")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1, 1_000_000), help="How many events.")
@click.option(
    "--duplicate", default=0, show_default=True, type=click.IntRange(0, 1000), help="Deliver each so many times more."
)
@click.option("--concurrency", default=1, show_default=True, type=click.IntRange(1, 256), help="How many at once.")
@json_option
def command(
    provider: str,
    type_: str,
    config: str | None,
    to: str | None,
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
    oncehook send stripe invoice.paid --count 1000 --concurrency 16
    """
    if not type_.isprintable():
        raise click.UsageError(f"{type_!r} is not a type: it has characters that no header may hold")
    configuration, _ = configured(config)
    source = _source_for(provider, configuration)
    definition = providers.find(
        configuration.sources[source].provider or source if source else provider, configuration.providers
    )
    url = _address(to or url_for(source or provider))
    key = _secret(definition, source, secret, configuration)
    samples = _samples(definition, type_, key, count, duplicate, _signed_too(source, configuration, url.geturl()))
    sys.exit(_post_all(samples, url, count * (duplicate + 1), concurrency, as_json))


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


def _secret(provider: Provider, source: str | None, given: str | None, configuration: Configuration) -> str:
    if given is not None:
        return resolve(given, "--secret")
    secrets = configuration.sources[source].secrets if source else ()
    if not secrets:
        raise ConfigurationError(
            f"there is no secret to sign with: configure [sources.{provider.name}], or give --secret. "
            f"Expected: {provider.secret}"
        )
    return resolve(secrets[0], f"sources.{source}.secrets[0]")


def _signed_too(source: str | None, configuration: Configuration, url: str) -> dict[str, str]:
    """What some providers sign beside the delivery itself: the topic, the public address, the id of the webhook."""
    settings = configuration.sources[source] if source else None
    if settings is None:
        return {"public_url": url}
    found = {"public_url": settings.public_url or url, "webhook_id": settings.webhook_id or ""}
    return {**found, "topic": settings.topics[0]} if settings.topics else found


def _samples(
    provider: Provider, type_: str, key: str, count: int, duplicate: int, extra: dict[str, str]
) -> Iterator[Sample]:
    for _ in range(count):
        try:
            sample = compose(provider, type_, key, now=SYSTEM.now(), **extra)
        except ValueError as error:
            raise ConfigurationError(
                f"{provider.name} cannot be signed with this secret ({error}); to sign as an asymmetric sender, "
                f"give its private key: --secret file:key.pem"
            ) from None
        for _ in range(duplicate + 1):
            yield sample


_connections = local()


def post(sample: Sample, url: SplitResult) -> Answer:
    """Deliver one; (0, reason) if nobody answered. The connection is kept for the thread's next one."""
    for fresh in (False, True):
        connection = None if fresh else getattr(_connections, "open", None)
        if connection is None:
            kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
            connection = _connections.open = kind(url.hostname or "", url.port, timeout=30)
            fresh = True
        try:
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("POST", target, sample.body, sample.headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
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
