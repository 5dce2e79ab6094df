"""The reference of the public Python names for docs/python.md, from their signatures and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from types import ModuleType
from typing import Any

import oncehook
import oncehook.email
import oncehook.testing
from docs.markdown import table

Function = ast.FunctionDef | ast.AsyncFunctionDef

DOCUMENTED: dict[str, type[Any]] = {
    "inbox": oncehook.Inbox,
    "event": oncehook.Event,
    "effect": oncehook.Effect,
    "tx": oncehook.AsyncTransaction,
    "receipt": oncehook.Receipt,
    "replayed": oncehook.Replayed,
    "rehearsal": oncehook.Rehearsal,
    "pruned": oncehook.Pruned,
}
"""Variable name → class. Members are shown with the variable: `inbox.source`, `event.effect`."""


def names_table(module: ModuleType = oncehook) -> str:
    """Every public name of a module, with the first sentence of its docstring."""
    rows = [f"| `{name}` | {_summary(getattr(module, name))} |" for name in module.__all__]
    return "\n".join(["| name | description |", "| --- | --- |", *rows])


def testing_names() -> str:
    return names_table(oncehook.testing)


def email_names() -> str:
    return names_table(oncehook.email)


def constructor() -> str:
    """The arguments of `Inbox`."""
    (function,) = (node for node in _functions(oncehook.Inbox) if node.name == "__init__")
    return _code(_wrapped(_signature("Inbox", function)))


def members() -> str:
    """The members of the classes that users work with, one section each."""
    return "\n\n".join(
        "\n\n".join([f"### `{cls.__name__}`", _description(inspect.getdoc(cls) or ""), *_members(variable, cls)])
        for variable, cls in DOCUMENTED.items()
    )


def _members(variable: str, cls: type[Any]) -> Iterator[str]:
    if annotated := _fields(cls):
        yield table(("field", "type"), [(f"`{name}`", f"`{annotation}`") for name, annotation in annotated])
    known: set[str] = set()
    for owner in cls.__mro__:
        functions = _functions(owner) if owner.__module__.startswith("oncehook") else []
        for function in functions:
            hidden = function.name.startswith("_") or _is(function, "overload") or _is(function, "classmethod")
            if not hidden and function.name not in known:
                known.add(function.name)
                yield _member(variable, function)


def _member(variable: str, function: Function) -> str:
    """Return a heading, the signature and the description of a method or property."""
    name = f"{variable}.{function.name}"
    if _is(function, "property"):
        signature = f"{name}: {_returns(function)}"
    else:
        is_awaited = isinstance(function, ast.AsyncFunctionDef) and "AsyncIterator" not in _returns(function)
        wait = "await " if is_awaited or "Coroutine" in _returns(function) else ""
        signature = _wrapped(f"{wait}{_signature(name, function)}")
    parts = [f"#### `{name}`", _code(signature), _description(ast.get_docstring(function) or "")]
    return "\n\n".join(part for part in parts if part)


def _wrapped(signature: str) -> str:
    """Return a long signature with one argument per line."""
    if len(signature) <= 100:
        return signature
    name, _, rest = signature.partition("(")
    arguments, _, result = rest.rpartition(")")
    lines = re.split(r", (?![^\[(]*[\])])", arguments)
    return "\n".join([f"{name}(", *(f"    {line}," for line in lines), f"){result}"])


def _fields(cls: type[Any]) -> list[tuple[str, str]]:
    if not hasattr(cls, "__dataclass_fields__") and not hasattr(cls, "__struct_fields__"):
        return []
    body = _class(cls).body
    return [
        (node.target.id, ast.unparse(node.annotation))
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _class(cls: type[Any]) -> ast.ClassDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return node


def _functions(cls: type[Any]) -> list[Function]:
    return [node for node in _class(cls).body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _is(function: Function, decorator: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == decorator for node in function.decorator_list)


def _returns(function: Function) -> str:
    return "" if function.returns is None else ast.unparse(function.returns).strip("'")


def _signature(name: str, function: Function) -> str:
    """Return a signature as a caller sees it: without `self`, and with the awaited result of a coroutine."""
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg) and isinstance(argument.annotation, ast.Constant):
            argument.annotation = ast.Name(str(argument.annotation.value))  # an annotation in quotes
    arguments = ast.unparse(function.args).removeprefix("self").removeprefix(", ")
    result = _returns(function)
    if result.startswith("Coroutine"):
        result = result.removeprefix("Coroutine[Any, Any, ").removesuffix("]")
    return f"{name}({arguments})" + ("" if result in ("None", "Any", "") else f" -> {result}")


def _description(docstring: str) -> str:
    """Return a docstring as Markdown: each paragraph in one line, and indented examples as code blocks."""
    parts: list[str] = []
    for is_code, group in groupby(docstring.split("\n\n"), lambda paragraph: paragraph.startswith("    ")):
        if is_code:
            parts.append(_code(textwrap.dedent("\n\n".join(group))))
        else:
            parts += [" ".join(paragraph.split()) for paragraph in group]
    return "\n\n".join(parts)


def _code(text: str) -> str:
    """Return a code block, with two blank lines around functions, as ruff formats it."""
    spaced = re.sub(r"\n\n(?=@|def |async def )|(?<=\n)( [^\n]+)\n\n(?=\S)", r"\1\n\n\n", text.strip())
    return f"```py\n{spaced}\n```"


def _summary(value: Any) -> str:
    text = " ".join(_plain(inspect.getdoc(value) or "").split())
    return text.partition(". ")[0].removesuffix(".") + "." if text else ""


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
