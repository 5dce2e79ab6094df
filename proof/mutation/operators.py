"""The mutants of a module: each has one changed place, and is compiled.

Not changed: docstrings, annotations, decorators, `assert`, `strict=` of `zip`, checkpoints, and messages, which are the
texts with a space in them. Of the code that runs at import, only constants and the default values of parameters are
changed.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, TypeGuard

SWAPPED: dict[type, tuple[type[Any], ...]] = {
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt), ast.And: (ast.Or,), ast.Or: (ast.And,),
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.FloorDiv,), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,),
}  # fmt: skip
UNCHANGED_FIELDS = {"annotation", "returns", "decorator_list", "format_spec"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """One changed place. Its name has no line number, so that it stays the same when other code changes."""

    name: str
    lines: range  # of the changed statement
    code: CodeType  # of the whole module
    constant: str | None = None  # the name of the module's constant, if one is changed


class Mutations:
    """All mutants of one file."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.tree = ast.parse(path.read_text("utf-8"))
        self.original = compile(self.tree, str(path), "exec")
        self._names: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Mutant]:
        self._names.clear()
        for statement in self.tree.body:
            yield from self._visit_top(statement, "")

    def _visit_top(self, statement: ast.stmt, scope: str) -> Iterator[Mutant]:
        """The mutants of a function, a class or a constant of the module."""
        if isinstance(statement, ast.ClassDef):
            for part in statement.body:
                if isinstance(part, Function):
                    yield from self._visit_top(part, f"{statement.name}.")
        elif isinstance(statement, Function):
            yield from self._visit(statement, scope + statement.name, statement)
        elif isinstance(statement, ast.Assign) and _is_constant(target := statement.targets[0]):
            for mutant in self._visit(statement, target.id, statement):
                yield Mutant(mutant.name, self._uses(target.id), mutant.code, target.id)

    def _uses(self, name: str) -> range:
        """The lines from the first to the last use of a constant."""
        lines = [node.lineno for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id == name]
        return range(min(lines[1:], default=0), max(lines) + 1)

    def _visit(self, node: ast.AST, scope: str, statement: ast.AST) -> Iterator[Mutant]:
        for field, value in list(ast.iter_fields(node)):
            if field in UNCHANGED_FIELDS:
                continue
            for index, child in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(child, ast.AST) or _is_left_out(child):
                    continue
                own = child if isinstance(child, ast.stmt | ast.ExceptHandler) else statement
                for new in _replacements(child, node, field):
                    yield self._mutant(node, field, index, ast.copy_location(new, child), scope, own)
                inner = f"{scope}.{child.name}" if isinstance(child, Function) else scope
                yield from self._visit(child, inner, own)

    def _mutant(self, parent: ast.AST, field: str, index: int, new: ast.AST, scope: str, statement: ast.AST) -> Mutant:
        value = getattr(parent, field)
        old = value[index] if isinstance(value, list) else value
        _put(parent, field, index, new)
        changed = new if old is statement else statement
        text = f"without {_text(old)}" if isinstance(new, ast.Pass) else _text(changed)
        code = compile(ast.fix_missing_locations(self.tree), str(self.path), "exec")
        _put(parent, field, index, old)
        name = f"{self.name} {scope}: {text}"
        self._names[name] += 1
        again = f" ({self._names[name]})" if self._names[name] > 1 else ""
        return Mutant(name + again, _lines(statement), code)


def _is_constant(target: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(target, ast.Name) and target.id.isupper()


def _put(parent: ast.AST, field: str, index: int, child: ast.AST) -> None:
    value = getattr(parent, field)
    if isinstance(value, list):
        value[index] = child
    else:
        setattr(parent, field, child)


def _text(node: ast.AST) -> str:
    return ast.unparse(node).strip().splitlines()[0] if not isinstance(node, ast.ExceptHandler) else _handler(node)


def _handler(node: ast.ExceptHandler) -> str:
    kind = ast.unparse(node.type) if node.type else ""
    return f"except {kind}: {_text(node.body[0])}"


def _lines(statement: ast.AST) -> range:
    """The lines of a statement, or of the head of one that contains others. A default value is used in the body."""
    if isinstance(statement, Function):
        return range(statement.lineno, (statement.end_lineno or 0) + 1)
    first, body = getattr(statement, "lineno", 0), getattr(statement, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) else getattr(statement, "end_lineno", first)
    return range(first, max(first, last) + 1)


def _is_left_out(node: ast.AST) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    checks_length = isinstance(node, ast.keyword) and node.arg == "strict"
    checkpoint = isinstance(node, ast.Expr) and ast.unparse(node).startswith("reach(")
    other = isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)
    return docstring or checks_length or checkpoint or other


def _replacements(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    """What a node is replaced with, one after the other."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for swapped in SWAPPED[type(operator)]:
                yield _with(node, ops=[*node.ops[:index], swapped(), *node.ops[index + 1 :]])
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign):
        for swapped in SWAPPED.get(type(node.op), ()):
            yield _with(node, op=swapped())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield _with(node, value=ast.Constant(None))
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.ExceptHandler):
        yield from _other_handlers(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "shield":
        yield node.args[0]
    if _is_removable(node) and not (isinstance(parent, Function) and parent.name == "__init__"):
        yield ast.Pass()
    if field in ("test", "ifs") and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Await | ast.NamedExpr):
        yield ast.UnaryOp(ast.Not(), node)


def _with(node: ast.AST, **changes: object) -> ast.AST:
    changed = copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _other_constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
    elif isinstance(value, str) and " " not in value:  # with a space, it is a message
        yield ast.Constant("" if value else "mutated")
    elif isinstance(value, bytes):
        yield ast.Constant(b"" if value else b"mutated")


def _other_handlers(node: ast.ExceptHandler) -> Iterator[ast.AST]:
    """A handler that catches nothing, or one class less. One that only raises again already catches nothing."""
    if not (isinstance(node.body[0], ast.Raise) and node.body[0].exc is None):
        yield _with(node, body=[ast.copy_location(ast.Raise(), node.body[0])])
    if isinstance(node.type, ast.Tuple):
        for dropped in node.type.elts:
            yield _with(node, type=_with(node.type, elts=[kind for kind in node.type.elts if kind is not dropped]))


def _is_removable(node: ast.AST) -> bool:
    """Whether a statement is removed. Without the assignment of a variable, any test would see a NameError.

    For the same reason, `__init__` keeps its statements.
    """
    if isinstance(node, ast.Assign):
        return not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
    return isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Delete)
