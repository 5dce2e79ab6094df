"""The documentation uses the terms of the glossary, and none of the words that the glossary replaces."""

import re

import pytest

from tests.support.documentation import PAGES

GLOSSARY = PAGES["docs/glossary.md"]
TEXTS = {
    name: " ".join(re.sub(r"`[^`\n]*`", "", text).split()) for name, text in PAGES.items() if name != "docs/glossary.md"
}
"""The pages without inline code, which may name an old test, column or status."""

TERMS = [
    term.strip("` ")
    for cell in re.findall(r"^\| ([^|]+) \| [^|]+ \|[^|]*\|$", GLOSSARY, re.MULTILINE)
    for term in cell.split(",")
    if term not in ("term", "---")
]
REPLACED = {
    "door": r"doors?",
    "turned away": r"turn(s|ed)? away",
    "the mark": r"the mark",
    "put back": r"puts? back",
    "give back": r"(give|gives|gave|given) back",
    "runs out": r"(runs?|ran) out",
    "short way": r"short way",
    "long way": r"long way",
    "mend": r"mend(s|ed)?",
    "anew": r"anew",
    "told": r"told",
    "so many": r"so many",
    "so often": r"so often",
    "so long": r"so long(?! as)",
    "whoever": r"whoever",
    "nobody": r"nobody",
    "somebody": r"somebody",
    "meanwhile": r"(?<!in the )meanwhile",
    "in vain": r"in vain",
}
"""Word that the glossary replaces → pattern of its forms."""
ANY_REPLACED = re.compile(rf"\b(?:{'|'.join(REPLACED.values())})\b", re.IGNORECASE)


def test_every_term_of_the_glossary_is_used_in_the_documentation() -> None:
    assert len(TERMS) > 40, "the tables of the glossary were not found"
    text = " ".join(" ".join(PAGES[name].split()) for name in TEXTS).lower()
    unused = [term for term in TERMS if not re.search(rf"\b{re.escape(term.lower())}", text)]
    assert unused == [], "these terms of docs/glossary.md appear on no other page"


@pytest.mark.parametrize("word", REPLACED)
def test_replaced_word_is_listed_in_the_glossary(word: str) -> None:
    assert re.search(rf"\| (?:[^|]*, )?{word}(?:, [^|]*| \([^|]*\))? \|$", GLOSSARY, re.MULTILINE)


@pytest.mark.parametrize("page", TEXTS)
def test_page_uses_no_replaced_word(page: str) -> None:
    sentences = [sentence.strip() for sentence in re.split("[.|]", TEXTS[page]) if ANY_REPLACED.search(sentence)]
    assert sentences == [], "docs/glossary.md has the words to use instead"
