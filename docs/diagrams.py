"""Draws the diagrams of docs/exactly-once.md as SVG files: `python -m docs.diagrams`, or `make docs`.

They are images of the repository, so that they show on GitHub and in the site without a script or another host.
"""

from collections.abc import Callable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "images"
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #222; }
.small { font-size: 12px; fill: #555; }
.bold { font-weight: 600; }
.box { fill: #f4f7f7; stroke: #7a8a8a; }
.good { fill: #d8f0ea; stroke: #009485; }
.bad { fill: #fbe3e0; stroke: #c0392b; }
.line { stroke: #444; stroke-width: 1.5; fill: none; }
.dashed { stroke-dasharray: 5 4; }
"""


class Drawing:
    """A picture of boxes, texts and arrows, in pixels from the top left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size = f"{width} {height}"
        self.parts = [f"<title>{escape(title)}</title>"]

    def text(self, x: int, y: int, text: str, style: str = "", anchor: str = "middle") -> None:
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{style}">{escape(text)}</text>')

    def box(self, x: int, y: int, width: int, height: int, text: str, style: str = "box", note: str = "") -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{style}" stroke-width="1.5"/>'
        )
        middle = y + height // 2 + 5
        self.text(x + width // 2, middle - (9 if note else 0), text, "bold")
        if note:
            self.text(x + width // 2, middle + 9, note, "small")

    def arrow(self, x: int, y: int, to_x: int, to_y: int, label: str = "", style: str = "") -> None:
        self.parts.append(f'<path d="M{x} {y} L{to_x} {to_y}" class="line {style}" marker-end="url(#head)"/>')
        if label:
            self.text((x + to_x) // 2, min(y, to_y) - 7, label, "small")

    def svg(self) -> str:
        head = (
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0 L10 5 L0 10 z" fill="#444"/></marker>'
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.size}" role="img">',
            f"<style>{STYLE}</style>",
            f"<defs>{head}</defs>",
            '<rect width="100%" height="100%" rx="8" fill="#fff"/>',
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def overview() -> Drawing:
    drawing = Drawing(760, 200, "From the sender over claim and handler, in one database, to other services")
    for x, name in ((20, "sender"), (220, "claim"), (430, "handler"), (640, "service")):
        drawing.box(x, 50, 100, 46, name, "good" if name in ("claim", "handler") else "box")
    for x, to, label in ((120, 220, "at least once"), (320, 430, "exactly once"), (530, 640, "at least once,")):
        drawing.arrow(x, 73, to, 73, label)
    drawing.text(585, 92, "one key", "small")
    drawing.box(180, 140, 390, 44, "one SQLite or PostgreSQL database", "good")
    drawing.arrow(270, 96, 270, 140)
    drawing.arrow(480, 96, 480, 140)
    return drawing


def claim() -> Drawing:
    drawing = Drawing(760, 170, "Two deliveries insert the same key: one gets 202, the other waits and gets 200")
    for y, name, result, style in (
        (20, "delivery A", "202 accepted", "good"),
        (105, "delivery B", "200 duplicate", "box"),
    ):
        drawing.box(20, y, 110, 44, name)
        drawing.arrow(130, y + 22, 280, 85, "")
        drawing.arrow(500, 85, 600, y + 22, "")
        drawing.box(600, y, 140, 44, result, style)
    drawing.box(280, 55, 220, 60, "INSERT … ON CONFLICT", "good", "unique: source, event_id")
    drawing.text(390, 140, "B waits for A's commit", "small")
    return drawing


def group_commit() -> Drawing:
    drawing = Drawing(760, 230, "Claims that arrive during a commit share the next commit")
    for number, (start, y) in enumerate(((120, 20), (170, 70), (220, 115), (270, 160)), start=1):
        drawing.text(20, y + 25, f"claim {number}", anchor="start")
        if number > 1:
            drawing.arrow(start, y + 20, 330, y + 20, "waits", "dashed")
    drawing.box(120, 20, 200, 40, "commit + fsync", "good")
    drawing.text(335, 45, "202", "bold", "start")
    drawing.box(335, 70, 200, 130, "one commit + fsync", "good", "for three claims")
    for y, result in ((95, "202"), (140, "202"), (185, "200 duplicate of claim 2")):
        drawing.text(550, y, result, "bold", "start")
    drawing.arrow(110, 215, 740, 215)
    drawing.text(20, 220, "time", "small", "start")
    return drawing


def fence() -> Drawing:
    drawing = Drawing(760, 190, "A worker that lost its lease cannot commit, because the fence has changed")
    drawing.text(20, 50, "worker 1", anchor="start")
    drawing.box(95, 25, 110, 44, "lease", note="fence 7")
    drawing.box(215, 25, 90, 44, "handler")
    drawing.arrow(305, 47, 590, 47, "suspended", "dashed")
    drawing.box(590, 25, 150, 44, "rolled back", "bad", "fence 7 is not 9")
    drawing.text(20, 130, "worker 2", anchor="start")
    drawing.text(245, 112, "lease expires", "small")
    drawing.arrow(205, 125, 290, 125, "", "dashed")
    drawing.box(290, 103, 110, 44, "lease", note="fence 9")
    drawing.box(410, 103, 90, 44, "handler")
    drawing.box(510, 103, 120, 44, "committed", "good", "fence 9")
    drawing.arrow(95, 172, 740, 172)
    drawing.text(20, 177, "time", "small", "start")
    return drawing


def outbox() -> Drawing:
    drawing = Drawing(
        760, 200, "The effect is a row in the handler's transaction; the relay calls the service after the commit"
    )
    drawing.box(20, 40, 195, 60, "handler's transaction", "good", "writes, status, effect row")
    drawing.arrow(215, 70, 290, 70, "commit")
    drawing.box(290, 40, 120, 60, "relay", note="leases the row")
    drawing.arrow(410, 70, 560, 70, "calls with the key")
    drawing.box(560, 40, 180, 60, "service", note="acts once per key")
    drawing.arrow(350, 100, 350, 145)
    drawing.box(290, 145, 120, 40, "row: done", "good")
    drawing.box(450, 145, 290, 40, "process dies: same call, same key", "bad")
    drawing.arrow(595, 145, 595, 102, "", "dashed")
    return drawing


DIAGRAMS: dict[str, Callable[[], Drawing]] = {
    "overview": overview,
    "claim": claim,
    "group-commit": group_commit,
    "fence": fence,
    "outbox": outbox,
}


def files() -> dict[Path, str]:
    """Return the path and the content of every diagram."""
    return {FOLDER / f"exactly-once-{name}.svg": draw().svg() for name, draw in DIAGRAMS.items()}


def main() -> None:
    for path, svg in files().items():
        if not path.exists() or path.read_text("utf-8") != svg:
            path.write_text(svg, "utf-8")
            print(f"wrote docs/images/{path.name}")


if __name__ == "__main__":
    main()
