"""The OpenAPI document: it describes every endpoint, the responses match it, and no request causes a server error."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok

from oncehook import Fail, Inbox
from oncehook.testing import deliver, drain, post
from oncehook.web.api import ENDPOINTS
from oncehook.web.api.openapi import document
from oncehook.web.auth import hash_token
from tests.support.dashboard import both_databases, send
from tests.support.email_payloads import postmark_bounce
from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import Process, process, write_config

EXAMPLES = 2  # of each mode and operation


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


def test_generated_requests_never_cause_a_server_error(service: Process) -> None:
    base = f"http://127.0.0.1:{service.port}"
    schema = schemathesis.openapi.from_url(f"{base}/api/openapi.json", headers=HEADERS)
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) > 10
    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            strategy = operation.as_strategy(generation_mode=mode)
            call_some(strategy, base)


def call_some(strategy: st.SearchStrategy[Any], base: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def call(case: Any) -> None:
        response = case.call(base_url=base, headers=HEADERS)
        assert response.status_code < 500, (case.method, case.formatted_path, response.text)
        if response.status_code < 300:
            case.validate_response(response)
        elif response.headers.get("content-type") == "application/json":
            assert set(response.json()["error"]) == {"code", "message"}

    call()


# -- the document and the endpoints ---------------------------------------------------------------------------------


@pytest.fixture
def shop(inbox: Inbox) -> Inbox:
    """An inbox whose handlers fail, request an effect, and record email events."""

    @inbox.effect
    async def notify(effect: Any, name: str) -> None:
        raise Fail("no route")

    @inbox.on("stripe", "charge.failed")
    async def declined(event: Any) -> None:
        raise Fail("declined")

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Any) -> None:
        await event.effect("notify:1", notify, name="jane")

    inbox.source("postmark", verify="none", email=True)
    inbox.source("shops", provider="stripe", tenants=True)
    return inbox


@pytest.mark.anyio
@both_databases
async def test_every_response_matches_the_declared_type(shop: Inbox, program: httpx.AsyncClient) -> None:
    receipt = await send(shop, "evt_1", "charge.failed")
    await send(shop, "evt_1", "charge.failed", amount=2)
    await send(shop, "evt_2")
    bounce = json.dumps(postmark_bounce("HardBounce", MessageID="m1@example.com")).encode()
    await post(shop, "postmark", bounce, {"content-type": "application/json"})
    await shop._runtime.reception.duplicates.drain()
    await drain(shop)
    await deliver(shop, "stripe", stripe_body("x"), secret="whsec_wrong")
    run = (await program.post("/api/replays", json={"status": "failed", "count": 1})).json()["run"]
    required = {"/api/email/status": {"message": "<m1@example.com>"}}
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET" and endpoint.response is not None:
            path = endpoint.path.replace("{receipt}", str(receipt)).replace("{run}", run).replace("{effect}", "1")
            path = path.replace("{source}", "shops")
            response = await program.get(path, params=required.get(path))
            assert response.status_code == 200, path
            msgspec.json.decode(response.content, type=endpoint.response)
            if endpoint.query is not None:
                assert (await program.get(path, params={"nothing": "1"})).status_code == 422


def test_document_has_every_endpoint_its_scope_and_its_types() -> None:
    endpoints = [endpoint for endpoint in ENDPOINTS if endpoint.path != "/api/openapi.json"]
    description = document(endpoints)
    described = {(method.upper(), path) for path, methods in description["paths"].items() for method in methods}
    assert described == {(endpoint.method, endpoint.path) for endpoint in endpoints}
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description)))
    assert references == set(description["components"]["schemas"])
    replay = description["paths"]["/api/replays"]["post"]
    assert "replay" in replay["description"] and replay["requestBody"]["required"] and "202" in replay["responses"]


def test_path_and_query_parameters_are_described() -> None:
    parameters = document(ENDPOINTS)["paths"]["/api/events"]["get"]["parameters"]
    assert {parameter["name"] for parameter in parameters} >= {"source", "status", "cursor", "limit"}
    (receipt,) = document(ENDPOINTS)["paths"]["/api/events/{receipt}"]["get"]["parameters"]
    assert (receipt["in"], receipt["required"], receipt["schema"]["type"]) == ("path", True, "integer")
