"""Whatever is asked of the API, as its own document allows or not, it has an answer."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oncehook.web.auth import hash_token
from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import Process, process, write_config

EXAMPLES = 4  # of each kind and operation


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("schema")
    config = write_config(folder, f"sqlite:///{folder / 'inbox.db'}")
    with config.open("a") as file:
        file.write(f'[dashboard.tokens.test]\ntoken = "{hash_token("test")}"\nscopes = ["read", "replay", "admin"]\n')
    with process(Path(config)) as running:
        for n in range(5):
            body = stripe_body(f"evt_{n}")
            httpx.post(f"http://127.0.0.1:{running.port}/webhooks/stripe", content=body, headers=stripe_headers(body))
        yield running


HEADERS = {"Authorization": "Bearer test"}


def test_no_request_that_can_be_thought_of_is_an_error_of_ours(service: Process) -> None:
    base = f"http://127.0.0.1:{service.port}"
    schema = schemathesis.openapi.from_url(f"{base}/api/openapi.json", headers=HEADERS)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 10
    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            strategy = operation.as_strategy(generation_mode=mode)
            ask_some(strategy, base)


def ask_some(strategy: "st.SearchStrategy[schemathesis.Case]", base: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def asked(case: schemathesis.Case) -> None:
        answer = case.call(base_url=base, headers=HEADERS)
        assert answer.status_code < 500, (case.method, case.formatted_path, answer.text)
        if answer.status_code < 300:
            case.validate_response(answer)
        elif answer.headers.get("content-type") == "application/json":
            assert set(answer.json()["error"]) == {"code", "message"}

    asked()
