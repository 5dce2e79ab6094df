"""An inbox like yours on a database of a test's own."""

from dataclasses import replace
from typing import Any

from oncehook.config.configuration import Configuration
from oncehook.config.secret import is_unset
from oncehook.config.settings import SourceSettings
from oncehook.effects.effect import HTTP
from oncehook.inbox import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.providers.definition import built_in
from oncehook.testing.keys import make_pair, shared_secret


class IsolatedInbox(Inbox):
    """An inbox for tests, which knows what its senders sign with."""

    signing: dict[str, str]


def isolated(inbox: Inbox, database: str, *, engine: Any = None, **settings: Any) -> IsolatedInbox:
    """The same sources, handlers, effects and settings on another database, without a worker; yours is left as it is.

    A source that verifies with a public key gets a pair of the test's own, so that `deliver` can sign for it, and so
    does one whose secret is not set where the tests run. An inbox with a SQLAlchemy engine needs an engine on the
    test's database here. `settings` are changed settings.
    """
    if inbox._runtime.sessions is not None and engine is None:
        raise ConfigurationError(
            "the handlers of this inbox write through its SQLAlchemy engine: give isolated() an engine on the test's "
            "database, engine=…"
        )
    sources, signing = {}, {}
    for name, source in inbox._runtime.sources.items():
        sources[name] = _with_what_is_set(source.settings)
        unset = any(is_unset(secret) for secret in source.settings.secrets)
        if source.is_verified and (unset or shared_secret(source) is None):
            pair = make_pair(source.provider)
            sources[name] = replace(sources[name], secrets=(pair.verifying,))
            signing[name] = pair.signing
    for_tests = replace(inbox._runtime.settings, database=database, migrate="auto", unsafe_durability=True)
    made = IsolatedInbox(
        config=Configuration(settings=for_tests, sources=sources, providers=inbox._runtime.configuration.providers),
        worker=False,
        clock=inbox._runtime.clock,
        certificates=inbox._runtime.certificates,
        engine=engine,
        **settings,
    )
    made.signing = signing
    for name, fetcher in inbox._runtime.canonicals:
        made._runtime.canonicals.add(name, fetcher)
    for handler in inbox._runtime.handlers:
        if not handler.forwards_to:  # its own forwards, with its own secrets
            made._runtime.handlers.add(handler)
    for name, forward in made._runtime.forwards.items():
        forward.trusted = inbox._runtime.forwards[name].trusted
    for target in inbox._runtime.effects:
        if target.kind != HTTP:  # its own way out, with its own addresses
            made._runtime.effects.add(target)
    return made


def _with_what_is_set(settings: SourceSettings) -> SourceSettings:
    """A test's own token and forwarding secret in place of references that lead nowhere here."""
    signs, token = settings.forward_secret, settings.verify_token
    if any(is_unset(secret) for secret in signs):
        settings = replace(settings, forward_secret=(make_pair(built_in("standard-webhooks")).signing,))
    if token and is_unset(token):
        settings = replace(settings, verify_token="oncehook-test")  # noqa: S106
    return settings
