"""The drill of docs/high-availability.md: its commands run on a Patroni cluster, as a person runs them."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from oncehook.config.settings import Settings
from tests.support.documentation import PAGES
from tests.support.patroni import patroni_cluster
from tests.support.serve import ONCEHOOK, Process, write_config
from tests.support.servers import Postgres, free_port

PAGE = PAGES["docs/high-availability.md"]
DRILL = re.findall(r"^```sh\n(.*?)^```$", PAGE.partition("## The drill")[2], re.DOTALL | re.MULTILINE)


@pytest.mark.rest
def test_drill_of_the_page_finds_no_lost_event(tmp_path: Path) -> None:
    with patroni_cluster() as cluster:
        cluster.create_database("shop")
        config = write_config(tmp_path, cluster.url("shop"))
        (tmp_path / "patroni.yml").write_text(cluster.nodes[0].config.read_text())  # JSON is YAML
        service = Process(config)
        try:
            path = f"{ONCEHOOK.parent}:{os.environ['PATH']}"
            data = str(cluster.leader().folder / "data")
            script = "set -e\n" + "\n".join(DRILL).replace("--count", f"--port {service.port} --count")
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=tmp_path, env={**os.environ, "PATH": path, "PGDATA": data, "ONCEHOOK_CONFIG": str(config)},
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            assert service.end() == 0
        finally:
            service.kill()
        acked = (tmp_path / "acked").read_text().split()
        assert len(acked) > 100
        assert re.search(r"^0$", done.stdout, re.MULTILINE), "an acked event was lost"
        assert re.search(r"node2 .*Leader.* 2 ", done.stdout), done.stdout
        assert "asynchronous standby" not in done.stdout


@pytest.mark.parametrize(
    "phrase", [f"`claim_timeout` ({Settings().claim_timeout:.0f} s)", f"`lease` ({Settings().lease:.0f} s)"]
)
def test_number_on_the_page_matches_the_source(phrase: str) -> None:
    assert phrase in " ".join(PAGE.split())


@pytest.mark.anyio
async def test_sqlalchemy_addresses_of_the_page_reach_the_second_host(postgres: Postgres) -> None:
    sync, async_ = re.findall(r"^postgresql\+\w+://.*$", PAGE, re.MULTILINE)
    for old, new in (
        ("shop@/shop", f"{postgres.user}@/postgres"),
        ("db1.internal:5432", f"127.0.0.1:{free_port()}"),
        ("db2.internal:5432", f"127.0.0.1:{postgres.port}"),
    ):
        sync, async_ = sync.replace(old, new), async_.replace(old, new)
    port = text("SELECT current_setting('port')::integer")
    engine, async_engine = create_engine(sync), create_async_engine(async_)
    with engine.connect() as connection:
        assert connection.scalar(port) == postgres.port
    async with async_engine.connect() as connection:
        assert await connection.scalar(port) == postgres.port
    engine.dispose()
    await async_engine.dispose()
