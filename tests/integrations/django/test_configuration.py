"""The setting `ONCEHOOK`, and the address of the database that it uses."""

from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from django.utils.translation import gettext_lazy

from oncehook import ConfigurationError
from oncehook.integrations.django.configuration import read_setting
from tests.support.django_project import using_database


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ([], "the setting ONCEHOOK is a list"),
        ({"worker": "no"}, "'worker'.* is 'no': set it to True or False"),
        ({"using": 5}, "'using'.* is 5: set it to the alias of one database"),
        ({"using": ["default"]}, "'using'.* is \\['default'\\]: set it to the alias of one database"),
        ({"config": 5}, "'config'.* is 5: set it to the path of a file"),
        ({5: "x"}, "the setting ONCEHOOK has a key of the type int: names must be plain text"),
        ({"sources": {gettext_lazy("stripe"): {}}}, "sources has a key of the type __proxy__: names must be plain"),
        ({"using": "events"}, "DATABASES has no such alias: it has default"),
        ({"database": "sqlite:///other.db"}, "`database` is set in ONCEHOOK: in a Django project"),
        ({"sorces": {}}, "sorces is not a setting: did you mean"),
        ({"sources": {"stripe": {"secret": "x"}}}, "sources.stripe.secret is not a setting"),
    ],
)
def test_mistake_in_the_setting_is_explained(setting: Any, message: str) -> None:
    with override_settings(ONCEHOOK=setting), pytest.raises(ConfigurationError, match=message):
        read_setting()


def test_sources_come_from_the_file_and_the_dict(tmp_path: Path) -> None:
    (tmp_path / "oncehook.toml").write_text('max_body = "2MiB"\n[sources.github]\nsecrets = ["from the file"]\n')
    own = {"config": tmp_path / "oncehook.toml", "sources": {"stripe": {"secrets": ["from the dict"]}}, "poll": "2s"}
    with override_settings(ONCEHOOK=own):
        found = read_setting().configuration
    assert sorted(found.sources) == ["github", "stripe"]
    assert (found.settings.max_body, found.settings.poll) == (2 * 1024 * 1024, 2.0)


async def _read(inbox: Any) -> Any:
    async with inbox._runtime.opened_store() as store:
        return await store.schema.pending()


@pytest.mark.anyio
async def test_derived_address_leads_to_the_database_of_django(database: str) -> None:
    with using_database(database) as inbox:
        assert await _read(inbox) == []
