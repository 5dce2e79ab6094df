"""Calls of `secrets_for`: what it may return, and how long it may take."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from oncehook.model.errors import ConfigurationError
from oncehook.tenants.lookup import MAX_SECRETS, FunctionLookup, WrongSecrets, check_secrets

pytestmark = pytest.mark.anyio


async def test_async_function_runs_in_the_event_loop_and_plain_function_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    async def in_loop(tenant: str) -> Sequence[str]:
        threads.append(threading.current_thread())
        return [tenant + "-secret"]

    def plain(tenant: str) -> Sequence[str] | None:
        threads.append(threading.current_thread())
        return None

    assert await FunctionLookup("stripe", in_loop, 1.0).find("acme") == ("acme-secret",)
    assert await FunctionLookup("stripe", plain, 1.0).find("acme") is None
    assert threads[0] is threading.current_thread() is not threads[1]


async def test_lookup_that_takes_too_long_raises_timeout_error() -> None:
    async def hang(tenant: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    release = threading.Event()

    def hang_in_thread(tenant: str) -> Sequence[str]:
        release.wait(30)
        return []

    for function in (hang, hang_in_thread):
        with pytest.raises(TimeoutError, match=r"secrets_for of sources.stripe did not finish"):
            await FunctionLookup("stripe", function, 0.02).find("acme")
    release.set()


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ("whsec_test", "it returned a str: return a list"),
        (b"whsec_test", "it returned a bytes"),
        (5, "it returned a int"),
        ({"secret": "whsec_test"}, "it returned a dict"),
        ([b"whsec_test"], "a list with a bytes: a secret is a string"),
        (["s"] * (MAX_SECRETS + 1), f"a tenant may have {MAX_SECRETS}"),
    ],
)
def test_result_that_is_no_list_of_secrets_is_an_error_that_does_not_show_it(found: Any, sentence: str) -> None:
    with pytest.raises(WrongSecrets, match=sentence) as caught:
        check_secrets(found)
    assert "whsec_test" not in str(caught.value)


def test_lists_tuples_and_sets_of_strings_are_secrets() -> None:
    assert check_secrets(["a", "b"]) == ("a", "b")
    assert check_secrets({"a"}) == ("a",)
    assert check_secrets(()) == ()
    assert check_secrets(None) is None


@pytest.mark.parametrize("function", [5, "lookup", lambda: ["s"], lambda tenant, more: []])
def test_function_that_cannot_be_called_with_a_tenant_is_a_configuration_error(function: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"secrets_for of sources\.stripe"):
        FunctionLookup("stripe", function, 1.0)
