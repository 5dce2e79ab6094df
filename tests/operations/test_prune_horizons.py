"""The retention of a source: defaults, minimum and cutoffs. No database."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oncehook.config.configuration import load
from oncehook.config.settings import Horizon, Settings, SourceSettings
from oncehook.model.errors import ConfigurationError
from oncehook.model.values import as_duration, duration
from oncehook.operations.prune import cutoffs, horizon
from oncehook.providers import definition as providers
from tests.support.retention import DAY


def stripe_horizon(source: dict[str, Any] | None = None, **settings: Any) -> Horizon:
    global_values: dict[str, Any] = {name: duration(value) for name, value in settings.items()}
    own_values: dict[str, Any] = {name: duration(value) for name, value in (source or {}).items()}
    return horizon("shop", SourceSettings(**own_values), providers.built_in("stripe"), Settings(**global_values))


def test_receipts_and_payloads_stay_for_thirty_days_by_default() -> None:
    assert stripe_horizon() == Horizon("shop", 30 * DAY, 30 * DAY)


def test_provider_that_retries_for_longer_raises_the_default_window() -> None:
    definition: dict[str, Any] = {"title": "Slow", "event": {"id": "id", "type": "type"}, "retries": {"horizon": "30d"}}
    definition["signatures"] = [{"algorithm": "hmac-sha256", "header": "X-Sig"}]
    slow = providers.find("slow", {"slow": definition})
    assert horizon("slow", SourceSettings(), slow, Settings()).receipts == 35 * DAY
    with pytest.raises(ConfigurationError, match="the minimum is 35d"):
        horizon("slow", SourceSettings(), slow, Settings(dedupe_window=duration("30d")))


@pytest.mark.parametrize(
    ("settings", "source", "where"),
    [
        ({"dedupe_window": "7d"}, {}, "dedupe_window is 7d"),
        ({}, {"dedupe_window": "36h"}, "sources.shop.dedupe_window is 36h"),
        ({"dedupe_window": "60d"}, {"dedupe_window": 0}, "sources.shop.dedupe_window is 0s"),
    ],
)
def test_too_short_window_is_an_error_that_names_the_minimum(
    settings: dict[str, Any], source: dict[str, Any], where: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{where}: .*minimum is 8d$"):
        stripe_horizon(source, **settings)


def test_minimum_window_is_allowed_and_a_source_overrides_it() -> None:
    assert stripe_horizon(dedupe_window="8d").receipts == 8 * DAY
    assert stripe_horizon({"dedupe_window": "90d"}, dedupe_window="8d").receipts == 90 * DAY
    assert stripe_horizon({"payload_retention": "1d"}, payload_retention="9d").payloads == DAY


def test_payload_never_outlives_its_receipt() -> None:
    assert stripe_horizon(dedupe_window="10d") == Horizon("shop", 10 * DAY, 10 * DAY)
    assert stripe_horizon(dedupe_window="10d", payload_retention="90d").payloads == 10 * DAY


def test_retention_is_read_from_the_file_and_the_environment(in_folder: Path) -> None:
    (in_folder / "oncehook.toml").write_text(
        'dedupe_window = "40d"\n[sources.stripe]\nsecrets = ["x"]\npayload_retention = "2h"\n'
    )
    configuration = load(environ={"ONCEHOOK_PAYLOAD_RETENTION": "5d"})
    assert configuration.settings.dedupe_window == 40 * DAY
    assert configuration.settings.payload_retention == 5 * DAY
    assert configuration.sources["stripe"].payload_retention == 7200


@pytest.mark.parametrize("text", ["8d", "195h", "90m", "45s", "0s"])
def test_duration_is_formatted_as_it_would_be_written(text: str) -> None:
    assert as_duration(duration(text)) == text


def test_long_retention_ends_with_the_day_and_a_short_one_is_exact() -> None:
    now = datetime(2026, 11, 15, 21, 11, 4, tzinfo=UTC)
    receipts, payloads = cutoffs([Horizon("a", 30 * DAY, 3600), Horizon("b", 1e13, 2 * DAY)], now)
    assert receipts == {"a": datetime(2026, 10, 16, tzinfo=UTC), "b": datetime(1970, 1, 1, tzinfo=UTC)}
    assert payloads == {"a": datetime(2026, 11, 15, 20, 11, 4, tzinfo=UTC), "b": datetime(2026, 11, 13, tzinfo=UTC)}
