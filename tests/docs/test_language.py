"""The documentation uses the terms of the glossary, and none of the words that the glossary replaces."""

import re

from docs import generate
from tests.support import ROOT

PAGES = {page.relative_to(ROOT).as_posix(): page.read_text("utf-8") for page in generate.pages()}
GLOSSARY = PAGES.pop("docs/glossary.md")
TERMS = [
    term.strip("` ")
    for cell in re.findall(r"^\| ([^|]+) \| [^|]+ \|[^|]*\|$", GLOSSARY, re.MULTILINE)
    for term in cell.split(",")
    if term not in ("term", "---")
]


def test_every_term_of_the_glossary_is_used_in_the_documentation() -> None:
    assert len(TERMS) > 40, "the tables of the glossary were not found"
    prose = " ".join(" ".join(PAGES.values()).lower().split())
    unused = [term for term in TERMS if not re.search(rf"\b{re.escape(term.lower())}", prose)]
    assert unused == [], "these terms of docs/glossary.md appear on no other page"
