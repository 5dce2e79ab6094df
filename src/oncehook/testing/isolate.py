"""Copies an inbox to the database of a test."""

from dataclasses import replace
from typing import Any

from oncehook.config.configuration import Configuration
from oncehook.config.secret import is_unset
from oncehook.config.settings import SourceSettings
from oncehook.inbox import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.observability.signals import ADDRESSES
from oncehook.providers.definition import built_in
from oncehook.testing.keys import make_pair, shared_secret

TEST_KEY = "test:dGhlIGtleSByaW5nIG9mIHRlc3RzLCBubyBzZWNyZXQ="
"""The key ring of copies. It is the same in every test, because several copies may use one database."""


class IsolatedInbox(Inbox):
    """A copy of an inbox for tests, with the secrets that its senders sign with."""

    signing: dict[str, str]


def isolated(inbox: Inbox, database: str, *, engine: Any = None, **settings: Any) -> IsolatedInbox:
    """Return a copy of an inbox on another database, without a worker: same sources, handlers, effects and settings.

    The original is not changed. A source that verifies with a public key, or whose secret is not set in the test
    environment, gets a new key pair, so that `deliver` can sign for it. Encrypted sources use a key for tests. If the
    inbox uses a SQLAlchemy engine, pass an engine on the test's database. `settings` override those of the inbox.

        inbox = isolated(shop.inbox, "sqlite:///test.db")
    """
    if inbox._runtime.sessions is not None and engine is None:
        raise ConfigurationError(
            "the handlers of this inbox write through a SQLAlchemy engine: pass an engine on the test's database to "
            "isolated(…, engine=…). For a Django project, use oncehook.integrations.django.testing"
        )
    sources, signing = {}, {}
    for name, source in inbox._runtime.sources.items():
        sources[name] = _with_test_secrets(source.settings)
        unset = any(is_unset(secret) for secret in source.settings.secrets)
        if source.is_verified and not source.needs_tenant and (unset or shared_secret(source) is None):
            pair = make_pair(source.provider)
            sources[name] = replace(sources[name], secrets=(pair.verifying,))
            signing[name] = pair.signing
    test_settings = replace(inbox._runtime.settings, database=database, migrate="auto", unsafe_durability=True)
    if test_settings.keys or any(source.encrypt for source in sources.values()):
        test_settings = replace(test_settings, keys=(TEST_KEY,))
    copy = IsolatedInbox(
        config=Configuration(settings=test_settings, sources=sources, providers=inbox._runtime.configuration.providers),
        worker=False,
        clock=inbox._runtime.clock,
        certificates=inbox._runtime.certificates,
        engine=engine,
        **settings,
    )
    copy.signing = signing
    copy._runtime.registered.surroundings.update(inbox._runtime.registered.surroundings)
    for name, cache in inbox._runtime.tenants.items():
        copy._runtime.tenants[name] = cache.for_source(copy._runtime.sources[name])
    for name, fetcher in inbox._runtime.canonicals:
        copy._runtime.canonicals.add(name, fetcher)
    for handler in inbox._runtime.handlers:
        if not handler.forwards_to:  # the copy has its own forwards, with its own secrets
            copy._runtime.handlers.add(handler)
    for name, forward in copy._runtime.forwards.items():
        forward.trusted = inbox._runtime.forwards[name].trusted
    for target in inbox._runtime.effects:
        if target.kind not in ADDRESSES:  # the copy has its own clients, with their own allowed addresses
            copy._runtime.effects.add(target)
    copy._runtime.effects.task_queues.update(inbox._runtime.effects.task_queues)
    return copy


def _with_test_secrets(settings: SourceSettings) -> SourceSettings:
    """Replace the verify token and the forwarding secrets by new ones if they are not set in this environment.

    The copy has no intake: it claims every delivery at once.
    """
    settings = replace(settings, intake=None, intake_format="oncehook", intake_trust=None)  # a test has no broker
    token = settings.verify_token
    if any(is_unset(secret) for secret in settings.forward_secret):
        settings = replace(settings, forward_secret=(make_pair(built_in("standard-webhooks")).signing,))
    if token and is_unset(token):
        settings = replace(settings, verify_token="oncehook-test")  # noqa: S106
    return settings
