"""Invalid `max_attempts`, `retry` and `timeout` of a source are errors at start."""

from pathlib import Path

import pytest

from oncehook import ConfigurationError, Inbox
from tests.support.configuration import write_stripe_source

WRONG = [
    ("max_attempts = 0", "sources.stripe.max_attempts is 0: expected more than 0"),
    ('max_attempts = "many"', "sources.stripe.max_attempts is 'many': expected a whole number"),
    ('timeout = "soon"', "sources.stripe.timeout is 'soon': expected a duration"),
    ("timeout = 0", "sources.stripe.timeout is 0: expected more than 0"),
    ("retry = 5", "sources.stripe.retry is 5: expected a table such as { attempts = 5"),
    ("retry = {}", "expected a table such as { attempts = 5"),
    ("retry = { tries = 5 }", "tries is not a field of it; the fields are attempts, first, factor, most"),
    ("retry = { attempts = 0 }", "attempts: expected more than 0"),
    ('retry = { first = "soon" }', "first: expected a duration"),
    ("retry = { factor = 0.5 }", "factor: expected a number, 1 or more"),
    (
        'retry = { first = "2h" }',
        "sources.stripe.retry: Retry(attempts=10, first=7200.0, factor=2.0, most=3600.0) is not a valid policy",
    ),
    ("max_attempts = 3\nretry = { attempts = 4 }", "max_attempts and retry.attempts set the same value: remove one"),
    ('mode = "inline"\nretry = { attempts = 4 }', 'sources.stripe.retry needs mode = "queued"'),
    ('on_failure = "dead_letter"', 'sources.stripe.on_failure needs mode = "inline"'),
]


@pytest.mark.parametrize(("line", "sentence"), WRONG)
def test_invalid_retry_setting_is_an_error_that_names_it(line: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Inbox(config=write_stripe_source(tmp_path, f"sqlite:///{tmp_path}/a.db", line))
    assert sentence in str(caught.value)
