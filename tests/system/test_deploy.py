"""The files in deploy/: they pass linters, and their figures and names match the product."""

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from oncehook.cli import COMMANDS
from oncehook.cli.serve import command as serve_command
from oncehook.cli.worker import command as worker_command
from oncehook.config.settings import Settings
from oncehook.model.effect import EffectState
from oncehook.model.states import State
from oncehook.model.values import size
from oncehook.observability.metrics import METRICS
from oncehook.observability.metrics import VALUES as OUTCOMES
from oncehook.providers import definition as providers
from oncehook.receiver.ack import ERRORS
from oncehook.web.app import PROBES
from tests.support import ROOT
from tests.support.documentation import anchors

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").iterdir())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "grafana/oncehook.json").read_text())
LONGEST_STOP = Settings().stop_grace + 10  # some seconds to write buffered rows and close the store


def tool(name: str) -> str:
    """The path of a program that requirements/dev.txt installs."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert path is not None, f"{name} is not installed: it is in requirements/dev.txt"
    return path


def assert_succeeds(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# -- lint -----------------------------------------------------------------------------------------------------------


def test_the_dockerfile_passes_hadolint() -> None:
    assert_succeeds(tool("hadolint"), DEPLOY / "Dockerfile")


def test_every_yaml_file_passes_yamllint() -> None:
    assert_succeeds(tool("yamllint"), "--strict", "-c", DEPLOY / ".yamllint", DEPLOY)


def resources() -> Iterator[Any]:
    for file in MANIFESTS:
        for document in yaml.safe_load_all(file.read_text()):
            if document["kind"] != "Kustomization":  # not applied to a cluster
                yield pytest.param(document, id=f"{document['kind']} {document['metadata']['name']}")


@pytest.mark.xdist_group("kubernetes")
@pytest.mark.parametrize("document", list(resources()))
def test_every_manifest_matches_the_schema_of_kubernetes(document: dict[str, Any]) -> None:
    import kubernetes_validate  # compiles grammars for a second: in one process is enough

    kubernetes_validate.validate(document, "1.33", strict=True)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units_and_rates_them_as_hardened(unit: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/oncehook/bin/oncehook", sys.executable))
    assert_succeeds(program, "verify", copy)
    assert_succeeds(program, "security", "--offline=true", "--threshold=25", copy)


def test_every_link_resolves_and_every_file_is_linked() -> None:
    for page in DEPLOY.glob("*.md"):
        for target in re.findall(r"\]\(([^)\s:]+)\)", page.read_text()):
            assert (DEPLOY / target.partition("#")[0]).exists(), target
    readme = (DEPLOY / "README.md").read_text()
    names = [file.name for file in DEPLOY.iterdir() if not file.name.startswith((".", "README"))]
    assert [name for name in names if name not in readme] == []


def test_the_proxies_accept_the_largest_body_that_the_receiver_accepts() -> None:
    page = (DEPLOY / "proxy.md").read_text()
    nginx, caddy = re.findall(r"client_max_body_size (\d+)m;|max_size (\d+)MB", page)
    largest = max(size(providers.built_in(name).max_body or "0") for name in providers.built_in_names())
    assert int(nginx[0]) * 2**20 >= largest and int(caddy[1]) * 10**6 >= largest


# -- figures and names of the product --------------------------------------------------------------------------------


def read_unit(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser["Service"]


COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
DEPLOYMENTS = [resource.values[0] for resource in resources() if resource.values[0]["kind"] == "Deployment"]
PODS = {row["metadata"]["name"]: row["spec"]["template"]["spec"] for row in DEPLOYMENTS}


def command_lines() -> list[list[str]]:
    """The arguments with which each file starts Oncehook."""
    image = (DEPLOY / "Dockerfile").read_text()
    lines = [json.loads(re.findall(r"^CMD (\[.*\])$", image, re.MULTILINE)[-1])]
    lines += [read_unit(unit)["ExecStart"].split()[1:] for unit in UNITS]
    lines += [service["command"] for name, service in COMPOSE.items() if name != "postgres"]
    for pod in PODS.values():
        lines += [container["args"] for container in (*pod["initContainers"], *pod["containers"])]
    return [[str(argument) for argument in line] for line in lines]


@pytest.mark.parametrize("line", command_lines(), ids=" ".join)
def test_every_command_line_is_valid(line: list[str]) -> None:
    assert line[0] in COMMANDS
    command = {"serve": serve_command, "worker": worker_command}.get(line[0])
    if command is not None:
        command.make_context(line[0], line[1:]).close()
    if command is serve_command and "--config" not in line:
        assert "0.0.0.0" in line, "the loopback of a container cannot be reached from outside"


def test_every_stop_timeout_is_longer_than_a_drain() -> None:
    for unit in UNITS:
        assert float(read_unit(unit)["TimeoutStopSec"]) >= LONGEST_STOP
    for name in ("serve", "worker"):
        assert float(COMPOSE[name]["stop_grace_period"].removesuffix("s")) >= LONGEST_STOP
    for pod in PODS.values():
        hook = pod["containers"][0].get("lifecycle", {}).get("preStop", {"exec": {"command": ["sleep", "0"]}})
        seconds = float(hook["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] >= LONGEST_STOP + seconds
    assert f"`stop_grace` ({Settings().stop_grace:.0f} s)" in " ".join((DEPLOY / "README.md").read_text().split())


def test_liveness_probes_do_not_depend_on_the_database() -> None:
    (container,) = PODS["oncehook-serve"]["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert set(paths.values()) <= set(PROBES)
    assert paths["livenessProbe"] == paths["startupProbe"] == "/healthz", "a restart fixes no database"
    assert paths["readinessProbe"] == "/readyz"
    assert container["ports"][0]["containerPort"] == 8000
    assert "127.0.0.1:8000/healthz" in (DEPLOY / "Dockerfile").read_text()


def test_nothing_runs_as_root_and_no_file_contains_a_secret() -> None:
    assert re.search(r"^USER 10001$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    for pod in PODS.values():
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["envFrom"] == [{"secretRef": {"name": "oncehook"}}]
            assert container["securityContext"]["readOnlyRootFilesystem"] and container["resources"]["limits"]["memory"]
    assert all(read_unit(unit)["User"] == "oncehook" for unit in UNITS)
    (config,) = [row.values[0] for row in resources() if row.values[0]["kind"] == "ConfigMap"]
    table = tomllib.loads(config["data"]["oncehook.toml"])
    assert all(secret.startswith("env:") for source in table["sources"].values() for secret in source["secrets"])


def test_every_unit_and_container_has_a_memory_limit() -> None:
    for unit in UNITS:
        assert read_unit(unit)["MemoryMax"] == "1G"
    for name in ("migrate", "serve", "worker"):
        assert COMPOSE[name]["mem_limit"] == "512m"


def test_every_pod_has_a_network_policy_and_workers_accept_no_connection() -> None:
    policies = {
        row.values[0]["metadata"]["name"]: row.values[0]["spec"] for row in resources() if "NetworkPolicy" in row.id
    }
    assert set(policies) == set(PODS)
    assert policies["oncehook-worker"]["ingress"] == []
    (allowed,) = policies["oncehook-serve"]["ingress"]
    (container,) = PODS["oncehook-serve"]["containers"]
    assert [port["port"] for port in allowed["ports"]] == [port["name"] for port in container["ports"]]
    for spec in policies.values():
        targets = [block["ipBlock"] for rule in spec["egress"] for block in rule.get("to", ())]
        assert {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]} in targets


def test_image_installs_only_files_whose_hashes_are_known() -> None:
    image = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"pip install [^&\n]*", image)
    assert len(installs) == 3
    assert all("--no-deps" in line and ("--require-hashes" in line or "/tmp/dist/" in line) for line in installs)


def test_budgets_services_and_policies_select_existing_pods() -> None:
    labels = [row["spec"]["template"]["metadata"]["labels"].items() for row in DEPLOYMENTS]
    for resource in resources():
        document = resource.values[0]
        spec = document.get("spec", {})
        selector = spec.get("podSelector") if document["kind"] == "NetworkPolicy" else spec.get("selector")
        if selector is not None:
            selected = selector.get("matchLabels", selector).items()
            assert any(selected <= pod for pod in labels), resource.id


# -- metrics --------------------------------------------------------------------------------------------------------

SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
SERIES = {name + suffix: (name, labels) for name, (kind, labels, _) in METRICS.items() for suffix in SUFFIXES[kind]}
VALUES = {
    "state": {*State, *EffectState},
    "reason": set(ERRORS),
    "outcome": set(OUTCOMES["outcome"]),
}


def dashboard_queries() -> list[Any]:
    """Every query of the dashboard, with its variables replaced."""
    queries = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [
        pytest.param(expr.replace("$__rate_interval", "5m").replace("$source", "stripe"), id=title)
        for title, expr in queries
    ]


def alert_queries() -> list[Any]:
    return [pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES]


def parts(expression: Any) -> Iterator[Any]:
    """An expression and all expressions in it."""
    yield expression
    inner = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "vector_selector")]
    for part in (*inner, *(getattr(expression, "args", None) or ())):
        if part is not None:
            yield from parts(part)


def selectors(expression: Any) -> list[Any]:
    return [part for part in parts(expression) if isinstance(part, promql_parser.VectorSelector)]


def assert_valid(query: str) -> set[str]:
    """Assert that the query parses, and that its metrics, labels and label values exist. Returns the metrics."""
    parsed = promql_parser.parse(query)
    selected = selectors(parsed)
    assert selected, query
    for selector in selected:
        if selector.name == "up":  # a metric of Prometheus itself
            continue
        assert selector.name in SERIES, f"there is no {selector.name}"
        labels = SERIES[selector.name][1]
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels, f"{selector.name} has no label {matcher.name}"
            if matcher.name in VALUES:
                assert set(matcher.value.split("|")) <= VALUES[matcher.name], matcher.value
    for part in parts(parsed):
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            for name, labels in [SERIES[selector.name] for selector in selectors(part.expr)]:
                allowed = {*labels, "le"} if METRICS[name][0] == "histogram" else set(labels)
                assert set(part.modifier.labels) <= allowed, f"{name} does not have all of {part.modifier.labels}"
    return {SERIES[selector.name][0] for selector in selected if selector.name in SERIES}


@pytest.mark.parametrize("query", [*dashboard_queries(), *alert_queries()])
def test_every_query_uses_existing_metrics_and_labels(query: str) -> None:
    assert_valid(query)


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("rate(oncehook_lost_total[5m])", "no oncehook_lost_total"),
        ('oncehook_receipts{reason="failed"}', "no label reason"),
        ('oncehook_receipts{state="dead"}', "dead"),
        ("sum by (handler) (oncehook_lag_seconds)", "handler"),
        ("oncehook_accept_seconds", "no oncehook_accept_seconds"),
    ],
)
def test_a_query_with_an_unknown_metric_or_label_is_found(query: str, wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        assert_valid(query)


def test_every_metric_is_on_the_dashboard() -> None:
    assert set(METRICS) - set().union(*(assert_valid(query.values[0]) for query in dashboard_queries())) == set()


def test_the_dashboard_uses_any_data_source_and_no_panels_overlap() -> None:
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "source", "consumer"]
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["datasource"]["uid"] == "${datasource}" and panel["description"] for panel in panels)
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not covered & cells and at["x"] + at["w"] <= 24
        covered |= cells


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_runbook_section_and_a_summary_with_known_labels(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    text = (ROOT / page).read_text()
    assert anchor in anchors(text)
    assert f"`{rule['alert']}`" in text
    labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    by = re.search(r"by \(([^)]*)\)", rule["expr"])
    assert labels <= ({name.strip() for name in by[1].split(",")} if by else {"instance"})
