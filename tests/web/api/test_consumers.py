"""The API of consumers: list, pause and resume."""

import pytest

from oncehook import Inbox
from oncehook.testing import drain
from oncehook.web.api.schemas.consumers import ConsumerState
from tests.support.dashboard import Site, both_databases, send

pytestmark = pytest.mark.anyio


@both_databases
async def test_consumers_are_listed_with_their_work(team: Inbox, team_site: Site) -> None:
    await send(team, "evt_1")
    await drain(team)
    async with team_site.program("reader") as program:
        main, analytics, ledger = (await program.get("/api/consumers")).json()["consumers"]
        overview = (await program.get("/api/overview?range=15m")).json()
    assert set(main) == set(ConsumerState.__struct_fields__)
    assert (main["consumer"], main["waiting"], main["dead_letters"]) == ("main", 0, 0)
    assert (analytics["consumer"], analytics["waiting"], analytics["sources"]) == (
        "analytics",
        1,
        {"stripe": ["invoice.*"]},
    )
    assert analytics["oldest_unfinished_seconds"] >= 0 and ledger["dead_letters"] == 1
    assert (sum(overview["received"]), overview["waiting"], overview["dead_letters"]) == (1, 1, 1)


@both_databases
async def test_consumer_is_paused_with_a_reason_and_resumed(team_site: Site) -> None:
    async with team_site.program("admin") as program:
        paused = await program.post("/api/consumers/ledger/pause", json={"reason": "migration", "seconds": 3600})
        assert paused.json() == {"consumer": "ledger", "paused": True}
        states = {row["consumer"]: row["paused"] for row in (await program.get("/api/consumers")).json()["consumers"]}
        assert states["main"] is None and states["ledger"]["reason"] == "migration" and states["ledger"]["until"]
        assert (await program.get("/api/overview")).json()["paused_consumers"] == ["ledger"]
        assert (await program.post("/api/consumers/ledger/resume")).json() == {"consumer": "ledger", "paused": False}
        assert (await program.get("/api/overview")).json()["paused_consumers"] == []
        assert (await program.post("/api/consumers/nobody/pause")).status_code == 404
    async with team_site.program("replayer") as program:
        assert (await program.post("/api/consumers/ledger/pause")).status_code == 403
