"""The address of a Django database."""

from typing import Any

import pytest

from oncehook import ConfigurationError
from oncehook.integrations.django.address import database_address

POSTGRES: dict[str, Any] = {"NAME": "shop", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "OPTIONS": {}}


@pytest.mark.parametrize(
    ("changes", "address"),
    [
        ({}, "postgresql:///shop"),
        (
            {"USER": "me", "PASSWORD": "p@ss/word", "HOST": "db", "PORT": 5433},
            "postgresql://me:p%40ss%2Fword@db:5433/shop",
        ),
        ({"HOST": "/run/postgresql", "PORT": "5433"}, "postgresql:///shop?host=%2Frun%2Fpostgresql&port=5433"),
        ({"HOST": "::1"}, "postgresql://[::1]/shop"),
        ({"OPTIONS": {"sslmode": "require", "connect_timeout": 3}}, "postgresql:///shop?sslmode=require"),
        ({"OPTIONS": {"options": "-c search_path=a,b"}}, "postgresql:///shop?options=-c%20search_path%3Da%2Cb"),
        ({"NAME": "", "OPTIONS": {"service": "shop"}}, "postgresql:///?service=shop"),
        ({"OPTIONS": {"assume_role": "app", "pool": True}}, "postgresql:///shop?role=app"),
    ],
)
def test_address_of_a_postgresql_database(changes: dict[str, Any], address: str) -> None:
    assert database_address("default", {**POSTGRES, **changes}, "postgresql") == address


@pytest.mark.parametrize(
    ("settings", "vendor", "message"),
    [
        ({"NAME": "shop"}, "mysql", "is on mysql, and Oncehook stores events in PostgreSQL or SQLite"),
        ({"NAME": ":memory:"}, "sqlite", "is in memory"),
        ({"NAME": "file:shop.db?mode=rw"}, "sqlite", "without file:"),
        (POSTGRES | {"PORT": 99999}, "postgresql", "has the PORT '99999': set it to a number from 1 to 65535"),
        (POSTGRES | {"PORT": "5432x"}, "postgresql", "has the PORT '5432x'"),
        (POSTGRES | {"OPTIONS": {"hostaddr": "10.0.0.1"}}, "postgresql", r"OPTIONS\['hostaddr'\]"),
    ],
)
def test_database_that_the_inbox_cannot_use_is_an_error(settings: dict[str, Any], vendor: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        database_address("default", settings, vendor)
