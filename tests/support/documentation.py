"""The pages of the documentation, and ways to read them."""

import ast
import re
from functools import cache

from docs import generate
from tests.support import ROOT

PAGES = {page.relative_to(ROOT).as_posix(): page.read_text("utf-8") for page in generate.pages()}
"""Path from the root of the repository → text."""

DJANGO_PAGES = {"docs/django.md", "docs/from-dj-stripe.md", "docs/from-anymail.md"}
"""Pages whose code is the code of a Django project. `tests/docs/test_django_page.py` runs it there."""

TEST_REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
"""A test that a page names as evidence: its file and its function."""

_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def without_code(text: str) -> str:
    """Return a page without its code blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub creates them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_tests(text: str) -> list[str]:
    """Return the tests that a text names and that do not exist."""
    return [f"{file}::{test}" for file, test in TEST_REFERENCE.findall(text) if test not in _functions(file)]


@cache
def _functions(file: str) -> set[str]:
    if not (ROOT / file).is_file():
        return set()
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def as_own_provider(definition: str, name: str) -> str:
    """Return the file of a built-in provider as a `[providers.NAME]` table of oncehook.toml."""
    headings = re.sub(r"^(\[+)", rf"\1providers.{name}.", definition, flags=re.MULTILINE)
    return f"[providers.{name}]\n{headings}"
