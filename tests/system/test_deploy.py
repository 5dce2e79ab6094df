"""What is under deploy/: linted, and its figures and names are those of the product."""

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

import kubernetes_validate
import promql_parser
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
LONGEST_STOP = Settings().stop_grace + 10  # then what waits is written, and the store is closed


def tool(name: str) -> str:
    """A program that is installed with the packages of the tests."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found is not None, f"{name} is not installed: it is in requirements/dev.txt"
    return found


def passes(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# -- lint -----------------------------------------------------------------------------------------------------------


def test_the_dockerfile_passes_hadolint() -> None:
    passes(tool("hadolint"), DEPLOY / "Dockerfile")


def test_every_yaml_file_passes_yamllint() -> None:
    passes(tool("yamllint"), "--strict", "-c", DEPLOY / ".yamllint", DEPLOY)


def resources() -> Iterator[Any]:
    for file in MANIFESTS:
        for document in yaml.safe_load_all(file.read_text()):
            if document["kind"] != "Kustomization":  # which no cluster is ever given
                yield pytest.param(document, id=f"{document['kind']} {document['metadata']['name']}")


@pytest.mark.parametrize("document", list(resources()))
def test_every_manifest_is_what_kubernetes_expects(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.33", strict=True)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_units_and_finds_them_hardened(unit: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not here")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/oncehook/bin/oncehook", sys.executable))
    passes(program, "verify", copy)
    passes(program, "security", "--offline=true", "--threshold=25", copy)


def test_every_link_of_the_pages_resolves() -> None:
    for page in DEPLOY.glob("*.md"):
        for target in re.findall(r"\]\(([^)\s:]+)\)", page.read_text()):
            assert (DEPLOY / target.partition("#")[0]).exists(), target
    linked = (DEPLOY / "README.md").read_text()
    assert [
        one.name for one in DEPLOY.iterdir() if not one.name.startswith((".", "README")) and one.name not in linked
    ] == []


def test_a_proxy_lets_through_what_the_door_takes() -> None:
    page = (DEPLOY / "proxy.md").read_text()
    nginx, caddy = re.findall(r"client_max_body_size (\d+)m;|max_size (\d+)MB", page)
    largest = max(size(providers.built_in(name).max_body or "0") for name in providers.built_in_names())
    assert int(nginx[0]) * 2**20 >= largest and int(caddy[1]) * 10**6 >= largest


# -- the product's own figures and words ----------------------------------------------------------------------------


def read_unit(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser["Service"]


COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
DEPLOYMENTS = [one.values[0] for one in resources() if one.values[0]["kind"] == "Deployment"]
PODS = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in DEPLOYMENTS}


def command_lines() -> list[list[str]]:
    """What each file has Oncehook do."""
    image = (DEPLOY / "Dockerfile").read_text()
    lines = [json.loads(re.findall(r"^CMD (\[.*\])$", image, re.MULTILINE)[-1])]
    lines += [read_unit(unit)["ExecStart"].split()[1:] for unit in UNITS]
    lines += [service["command"] for name, service in COMPOSE.items() if name != "postgres"]
    for pod in PODS.values():
        lines += [container["args"] for container in (*pod["initContainers"], *pod["containers"])]
    return [[str(word) for word in line] for line in lines]


@pytest.mark.parametrize("line", command_lines(), ids=" ".join)
def test_every_command_line_is_one(line: list[str]) -> None:
    assert line[0] in COMMANDS
    known = {"serve": serve_command, "worker": worker_command}.get(line[0])
    if known is not None:
        known.make_context(line[0], line[1:]).close()
    if known is serve_command and "--config" not in line:
        assert "0.0.0.0" in line  # in a container the loopback is nobody else's


def test_what_stops_it_waits_for_longer_than_it_takes() -> None:
    for unit in UNITS:
        assert float(read_unit(unit)["TimeoutStopSec"]) >= LONGEST_STOP
    for name in ("serve", "worker"):
        assert float(COMPOSE[name]["stop_grace_period"].removesuffix("s")) >= LONGEST_STOP
    for pod in PODS.values():
        first = pod["containers"][0].get("lifecycle", {}).get("preStop", {"exec": {"command": ["sleep", "0"]}})
        waits = float(first["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] >= LONGEST_STOP + waits
    assert f"`stop_grace` ({Settings().stop_grace:.0f} s)" in " ".join((DEPLOY / "README.md").read_text().split())


def test_probes_ask_what_there_is_and_the_database_is_no_matter_of_life() -> None:
    (container,) = PODS["oncehook-serve"]["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert set(paths.values()) <= set(PROBES)
    assert paths["livenessProbe"] == paths["startupProbe"] == "/healthz"  # a restart mends no database
    assert paths["readinessProbe"] == "/readyz"
    assert container["ports"][0]["containerPort"] == 8000
    assert "127.0.0.1:8000/healthz" in (DEPLOY / "Dockerfile").read_text()


def test_nothing_runs_as_root_and_no_secret_is_written_down() -> None:
    assert re.search(r"^USER 10001$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    for pod in PODS.values():
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["envFrom"] == [{"secretRef": {"name": "oncehook"}}]
            assert container["securityContext"]["readOnlyRootFilesystem"] and container["resources"]["limits"]["memory"]
    assert all(read_unit(unit)["User"] == "oncehook" for unit in UNITS)
    (config,) = [one.values[0] for one in resources() if one.values[0]["kind"] == "ConfigMap"]
    table = tomllib.loads(config["data"]["oncehook.toml"])
    assert all(secret.startswith("env:") for source in table["sources"].values() for secret in source["secrets"])


def test_memory_is_limited_wherever_it_runs() -> None:
    for unit in UNITS:
        assert read_unit(unit)["MemoryMax"] == "1G"
    for name in ("migrate", "serve", "worker"):
        assert COMPOSE[name]["mem_limit"] == "512m"


def test_every_pod_has_a_network_policy_and_workers_take_no_connection() -> None:
    policies = {
        one.values[0]["metadata"]["name"]: one.values[0]["spec"] for one in resources() if "NetworkPolicy" in one.id
    }
    assert set(policies) == set(PODS)
    assert policies["oncehook-worker"]["ingress"] == []
    (allowed,) = policies["oncehook-serve"]["ingress"]
    (container,) = PODS["oncehook-serve"]["containers"]
    assert [port["port"] for port in allowed["ports"]] == [port["name"] for port in container["ports"]]
    for spec in policies.values():
        outward = [block["ipBlock"] for rule in spec["egress"] for block in rule.get("to", ())]
        assert {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]} in outward


def test_the_pinned_versions_are_allowed_by_the_bounds_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    bounds = {canonicalize_name((one := Requirement(text)).name): one for text in wanted}
    for file in ("run.txt", "dev.txt"):
        lines = (ROOT / "requirements" / file).read_text().splitlines()
        pins = {canonicalize_name((pin := Requirement(line)).name): pin for line in lines if line}
        for name in bounds.keys() & pins.keys():
            (version,) = [one.version for one in pins[name].specifier]
            assert bounds[name].specifier.contains(version), f"{file}: {name}"
    image = (DEPLOY / "Dockerfile").read_text()
    assert (
        "--constraint requirements/dev.txt" in image and {"asyncpg", "opentelemetry-api"} <= bounds.keys() & pins.keys()
    )


def test_budgets_and_services_choose_pods_that_exist() -> None:
    labels = [one["spec"]["template"]["metadata"]["labels"].items() for one in DEPLOYMENTS]
    for one in resources():
        document = one.values[0]
        spec = document.get("spec", {})
        chosen = spec.get("podSelector") if document["kind"] == "NetworkPolicy" else spec.get("selector")
        if chosen is not None:
            wanted = chosen.get("matchLabels", chosen).items()
            assert any(wanted <= found for found in labels), one.id


# -- metrics --------------------------------------------------------------------------------------------------------

SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
SERIES = {name + suffix: (name, labels) for name, (kind, labels, _) in METRICS.items() for suffix in SUFFIXES[kind]}
VALUES = {
    "state": {*State, *EffectState},
    "reason": set(ERRORS),
    "outcome": set(OUTCOMES["outcome"]),
}


def shown() -> list[Any]:
    """Every query of the dashboard, as Prometheus is asked it."""
    found = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [
        pytest.param(expr.replace("$__rate_interval", "5m").replace("$source", "stripe"), id=title)
        for title, expr in found
    ]


def alerting() -> list[Any]:
    return [pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES]


def parts(expression: Any) -> Iterator[Any]:
    """An expression and all in it."""
    yield expression
    inner = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "vector_selector")]
    for one in (*inner, *(getattr(expression, "args", None) or ())):
        if one is not None:
            yield from parts(one)


def selectors(expression: Any) -> list[Any]:
    return [one for one in parts(expression) if isinstance(one, promql_parser.VectorSelector)]


def check(query: str) -> set[str]:
    """The metrics that a query asks for; it parses, they exist, and so do their labels and the values of those."""
    parsed = promql_parser.parse(query)
    asked = selectors(parsed)
    assert asked, query
    for one in asked:
        if one.name == "up":  # Prometheus' own
            continue
        assert one.name in SERIES, f"there is no {one.name}"
        labels = SERIES[one.name][1]
        for matcher in one.matchers.matchers:
            assert matcher.name in labels, f"{one.name} has no label {matcher.name}"
            if matcher.name in VALUES:
                assert set(matcher.value.split("|")) <= VALUES[matcher.name], matcher.value
    for one in parts(parsed):
        if isinstance(one, promql_parser.AggregateExpr) and one.modifier is not None:
            below = [SERIES[selector.name] for selector in selectors(one.expr)]
            for name, labels in below:
                allowed = {*labels, "le"} if METRICS[name][0] == "histogram" else set(labels)
                assert set(one.modifier.labels) <= allowed, f"{name} has not all of {one.modifier.labels}"
    return {SERIES[one.name][0] for one in asked if one.name in SERIES}


@pytest.mark.parametrize("query", [*shown(), *alerting()])
def test_every_query_asks_for_what_exists(query: str) -> None:
    check(query)


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
def test_a_query_for_what_is_not_there_is_noticed(query: str, wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        check(query)


def test_every_metric_is_on_the_dashboard() -> None:
    assert set(METRICS) - set().union(*(check(one.values[0]) for one in shown())) == set()


def test_the_dashboard_can_be_imported_anywhere_and_no_panel_is_below_another() -> None:
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "source"]
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["datasource"]["uid"] == "${datasource}" and panel["description"] for panel in panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells and at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_happened_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    text = (ROOT / page).read_text()
    assert anchor in anchors(text)
    assert f"`{rule['alert']}`" in text
    told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    by = re.search(r"by \(([^)]*)\)", rule["expr"])
    assert told <= ({name.strip() for name in by[1].split(",")} if by else {"instance"})
