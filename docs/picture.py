"""Takes the picture of the demo for the README from a real run: `python -m docs.picture` (half a minute).

The SVG loads nothing from other hosts: rich's own template would load its font from a CDN.
"""

import asyncio
import io
import re
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from oncehook.cli.demo_screen import LiveScreen, render
from oncehook.cli.demo_session import DemoSession
from oncehook.cli.serve import listen

PICTURE = Path(__file__).parent / "images" / "demo.svg"
SECONDS = 30
WIDTH = 100
DARK = ["#484f58", "#ff7b72", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#c9d1d9"]
BRIGHT = ["#8b949e", "#ffa198", "#7ee787", "#f2cc60", "#a5d6ff", "#e2c5ff", "#b3f0ff", "#ffffff"]


def color(text: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue


THEME = TerminalTheme(
    color("#161b22"), color("#c9d1d9"), [color(text) for text in DARK], [color(text) for text in BRIGHT]
)


def template() -> str:
    """Return rich's template with a local monospaced font instead of a linked one."""
    without_links = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    without_links = without_links.replace("<!-- Generated with Rich https://www.textualize.io -->\n", "")
    return without_links.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace")


def main() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=WIDTH, height=40)
    with tempfile.TemporaryDirectory() as folder:
        session = DemoSession(Path(folder), listen("127.0.0.1", 0), 20)
        held = asyncio.run(session.run(LiveScreen(screen), SECONDS))
    assert held, "the guarantee did not hold, so this run cannot be the README picture"
    camera = Console(record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor", width=WIDTH)
    camera.print("[bold]$[/bold] oncehook demo\n", highlight=False)
    camera.print(render(session.snapshot, events=8))
    svg = camera.export_svg(title="oncehook demo", theme=THEME, code_format=template(), unique_id="oncehook-demo")
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", "utf-8")
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
