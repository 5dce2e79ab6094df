"""`oncehook serve` checks at its start that its HTTP protocols work with the installed uvicorn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from oncehook.receiver import protocol_check
from oncehook.receiver.fast_protocol import FastProtocol
from oncehook.receiver.limited_protocol import LimitedProtocol
from oncehook.receiver.protocol_check import PLAIN, check, choose_protocol
from tests.support.events import Rows, stripe_body
from tests.support.serve import post_stripe, process, write_config

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.mark.anyio
async def test_both_protocols_work_with_the_installed_uvicorn(database: str) -> None:
    await check(FastProtocol, direct=True)
    await check(LimitedProtocol, direct=False)
    assert await choose_protocol(fast=True) is FastProtocol
    assert await choose_protocol(fast=False) is LimitedProtocol


@pytest.mark.anyio
async def test_a_changed_uvicorn_turns_the_fast_protocol_off_and_is_logged(
    database: str, monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    # It stands for a later version of uvicorn without an attribute that FastProtocol reads.
    monkeypatch.setattr(FastProtocol, "_may_be_direct", lambda self: self.an_attribute_that_uvicorn_renamed)
    assert await choose_protocol(fast=True) is LimitedProtocol
    (line,) = [line for line in lines() if line["event"] == "fast_path_off"]
    assert "FastProtocol does not work with uvicorn" in line["detail"]


@pytest.mark.anyio
async def test_uvicorns_h11_protocol_is_used_if_neither_protocol_works(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpToolsProtocol, "on_headers_complete", lambda self: None)
    monkeypatch.setattr(protocol_check, "SECONDS", 0.2)
    assert await choose_protocol(fast=True) == PLAIN


def test_serve_without_fast_paths_accepts_deliveries_and_limits_heads(
    tmp_path: Path, database: str, rows: Rows
) -> None:
    with process(write_config(tmp_path, database), "--no-worker", "--no-fast-paths") as service:
        assert post_stripe(service.port, stripe_body("evt_1")).status_code == 202
        large = httpx.post(f"http://127.0.0.1:{service.port}/webhooks/stripe", headers={"x": "x" * 70_000})
        assert large.status_code == 431
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]
