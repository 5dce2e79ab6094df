"""The settings under [alerts]: errors name the wrong key and show no secret."""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.alerts import read_alerts
from oncehook.model.errors import ConfigurationError
from tests.support.alerts import configured, make_target

pytestmark = pytest.mark.anyio


MAIL = {"smtp": "mail.example.com", "sender": "a@example.com", "to": "b@example.com"}


@pytest.mark.parametrize(
    ("alerts", "sentence"),
    [
        ({"lagg": "5m"}, "alerts.lagg is not a setting: did you mean alerts.lag?"),
        ({"lag": "soon"}, "alerts.lag is 'soon': expected a duration such as"),
        ({"lag": "0s"}, "alerts.lag is '0s': expected more than 0, or \"off\""),
        ({"retries": 100}, "alerts.retries is 100: expected a percentage from 1 to 99"),
        ({"dead_letters": -1}, "alerts.dead_letters is -1: expected a whole number"),
        ({"sources": {"shop": {"every": "1s"}}}, "alerts.sources.shop.every is not a setting"),
        ({"sources": "all"}, "alerts.sources must contain tables"),
        ({"targets": {"Ops!": {"slack": "x"}}}, "alerts.targets.Ops!: use lower-case letters"),
    ],
)
def test_error_of_a_wrong_setting_names_its_key(alerts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_alerts(alerts)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "alerts.targets.ops does not say how to send alerts: set exactly one of webhook, slack, smtp, command"),
        ({"slack": "https://x", "smtp": "y"}, "alerts.targets.ops has both slack and smtp"),
        ({"webhook": "https://x"}, "alerts.targets.ops.secret is missing: webhook targets must be signed"),
        ({"slack": "https://x", "to": "y"}, "alerts.targets.ops.to is for smtp targets, but this is a slack target"),
        ({"command": []}, "alerts.targets.ops.command is empty: name a program"),
        ({"command": "page ops"}, "alerts.targets.ops.command is not usable: expected a list of strings"),
        ({"smtp": "mail.example.com", "to": "x@y.z"}, "alerts.targets.ops.sender is missing"),
        (MAIL | {"to": "no address"}, "sender and to must be email addresses"),
        (MAIL | {"to": "a@b\r\nBcc: c@d"}, "sender and to must be email addresses"),
        (MAIL | {"user": "x"}, "set both user and password"),
        (MAIL | {"user": "x", "password": "p-secret", "tls": "none"}, "would be sent unencrypted"),
        (MAIL | {"smtp": "mail.example.com:smtp"}, "expected a mail server, such as"),
        (MAIL | {"timeout": "0s"}, "alerts.targets.ops.timeout is '0s': expected more than 0"),
        ({"slack": "env:NOT_SET_ANYWHERE"}, "set NOT_SET_ANYWHERE in the environment or in .env, or remove the target"),
        ({"slack": "ftp://p-secret@x"}, "alerts.targets.ops.slack is not usable: expected an address"),
        ({"slack": 7}, "alerts.targets.ops.slack is not usable: expected a string"),
        ({"webhook": "https://x", "secret": "p-secret"}, "alerts.targets.ops.secret cannot sign"),
    ],
)
def test_unusable_target_is_a_configuration_error_that_shows_no_secret(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        make_target(**settings)
    assert sentence in str(raised.value) and "p-secret" not in str(raised.value)


async def test_thresholds_for_an_unknown_source_stop_the_start(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(config=configured(sources={"strip": {"silent": "1h"}}))
    inbox.source("stripe", secrets=["whsec_test"])
    with pytest.raises(
        ConfigurationError, match=r"alerts\.sources\.strip: there is no such source; the sources are stripe"
    ):
        await inbox.start()


def test_rule_is_off_with_false_or_off_and_a_source_overrides_it() -> None:
    settings = read_alerts({"lag": False, "effects": "off", "sources": {"shop": {"lag": "1h", "retries": "off"}}})
    assert (settings.lag, settings.effects, settings.retries) == (None, None, 75)
    assert (settings.of("shop").lag, settings.of("shop").retries, settings.of("stripe").lag) == (3600.0, None, None)
