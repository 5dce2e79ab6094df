"""An inbox like yours on a database of a test's own."""

from dataclasses import replace
from typing import Any

from oncehook.effect import HTTP
from oncehook.errors import ConfigurationError
from oncehook.inbox import Inbox
from oncehook.settings import Configuration
from oncehook.testing.keys import make_pair, shared_secret


class IsolatedInbox(Inbox):
    """An inbox for tests, which knows what its senders sign with."""

    signing: dict[str, str]


def isolated(inbox: Inbox, database: str, *, engine: Any = None, **settings: Any) -> IsolatedInbox:
    """The same sources, handlers, effects and settings on another database, without a worker; yours is left as it is.

    A source that verifies with a public key gets a pair of the test's own, so that `deliver` can sign for it. An inbox
    with a SQLAlchemy engine needs an engine on the test's database here. `settings` are changed settings.
    """
    if inbox.sessions is not None and engine is None:
        raise ConfigurationError(
            "the handlers of this inbox write through its SQLAlchemy engine: give isolated() an engine on the test's "
            "database, engine=…"
        )
    sources, signing = {}, {}
    for name, source in inbox.sources.items():
        sources[name] = source.settings
        if source.verifier is not None and shared_secret(source) is None:
            pair = make_pair(source.provider)
            sources[name] = replace(source.settings, secrets=(pair.verifying,))
            signing[name] = pair.signing
    for_tests = replace(inbox.settings, database=database, migrate="auto", unsafe_durability=True)
    made = IsolatedInbox(
        config=Configuration(for_tests, sources, inbox.configuration.providers),
        worker=False,
        clock=inbox.clock,
        certificates=inbox.certificates,
        engine=engine,
        **settings,
    )
    made.signing = signing
    made.handlers, made.canonicals = inbox.handlers, inbox.canonicals
    for target in inbox.effects:
        if target.kind != HTTP:  # its own way out, with its own addresses
            made.effects.add(target)
    return made
