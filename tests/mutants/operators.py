"""The changes that a mutant can have, a sample of them with a fixed seed, and how a module is changed.

A mutant replaces one node of a module's syntax tree. Text that only a person reads, annotations, decorators, imports,
assertions and the arguments of `raise` are never changed.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HIT = "__mutant_hit__"  # the builtin that an instrumented module calls: (number of the mutant, level)

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}
RENAMED = {
    one: other
    for pair in (("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"), ("floor", "ceil"))
    for one, other in (pair, pair[::-1])
}
SHOWN = {"print", "echo", "secho", "warn"}  # calls that only tell a person something
BUILTIN_TYPES = {"bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple", "type"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Change:
    """One node that is replaced by another one, and the statement that it belongs to."""

    statement: ast.stmt
    old: ast.AST
    new: ast.AST
    scope: tuple[str, ...]  # names of the classes and functions around the statement
    in_function: bool

    @property
    def bound(self) -> tuple[str, ...]:
        """Names by which a function uses what the statement defines; none for a statement within a function."""
        if self.in_function:
            return ()
        if self.scope:
            return self.scope[:1]
        if isinstance(self.statement, (*FUNCTIONS, ast.ClassDef)):
            return (self.statement.name,)
        targets = [node for node in ast.walk(self.statement) if isinstance(node, ast.Name)]
        return tuple(node.id for node in targets if isinstance(node.ctx, ast.Store))


@dataclass(frozen=True)
class Mutant:
    """One change of one file, small enough to be written down: `number` counts the changes of the file."""

    file: str  # relative to the root of the project
    number: int
    line: int
    before: str
    after: str
    bound: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  ->  {self.after}"


def changes(module: ast.Module) -> Iterator[Change]:
    """All changes of a module, in the order of its statements."""
    return _in_block(module.body, (), False)


def _in_block(block: Sequence[ast.AST], scope: tuple[str, ...], in_function: bool) -> Iterator[Change]:
    for node in block:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)) or _only_for_tools(node):
            continue
        if isinstance(node, ast.stmt):
            for old, new in _in_statement(node):
                yield Change(node, old, new, scope, in_function)
        inner = (*scope, node.name) if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else scope
        within = in_function or isinstance(node, FUNCTIONS)
        for field in ("body", "handlers", "cases", "orelse", "finalbody"):
            yield from _in_block(getattr(node, field, ()), inner, within)


def _only_for_tools(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        names = {found.id for found in ast.walk(node.test) if isinstance(found, ast.Name)}
        return bool(names & {"TYPE_CHECKING", "__name__"})
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.annotation).endswith("TypeAlias")
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def _in_statement(node: ast.stmt) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Changes of the statement itself, then of its expressions; statements within it come later."""
    match node:
        case ast.If(body=[ast.Raise()], orelse=[]) | ast.Delete():
            yield node, ast.Pass()
        case ast.Expr(value=ast.Call(func=function)) if _last_name(function) not in SHOWN:
            yield node, ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, ast.Pass()
        case ast.Break() | ast.Continue():
            yield node, SWAPPED[type(node)]()
        case ast.AugAssign(op=operator) if type(operator) in SWAPPED:
            yield node, _with(node, op=SWAPPED[type(operator)]())
        case ast.Return(value=ast.expr() as value) if not any(_in_expressions(node)) and ast.unparse(value) != "None":
            yield node, ast.Return(value=ast.Constant(value=None))  # only where nothing smaller can change
        case _:
            pass
    yield from _in_expressions(node)


def _in_expressions(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        children = value if isinstance(value, list) else [value]
        if isinstance(node, ast.Call) and field == "args":
            first, last = {"cast": (1, None), "isinstance": (0, 1)}.get(_last_name(node.func), (0, None))
            children = children[first:last]
        for child in children:
            if not isinstance(child, ast.AST) or isinstance(child, (ast.stmt, ast.JoinedStr)):
                continue
            if isinstance(child, ast.Call) and _last_name(child.func) in SHOWN:
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":  # of zip: a check for the developer
                continue
            if (
                field == "test"
                and isinstance(child, ast.expr)
                and not isinstance(child, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant))
            ):
                yield child, ast.UnaryOp(op=ast.Not(), operand=child)
            for new in _of_expression(child):
                yield child, new
            yield from _in_expressions(child)


def _of_expression(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                swapped = [*operators[:place], SWAPPED[type(operator)](), *operators[place + 1 :]]
                yield _with(node, ops=swapped)
        case ast.BoolOp(op=operator):
            yield _with(node, op=SWAPPED[type(operator)]())
        case ast.BinOp(op=operator) if type(operator) in SWAPPED and not _joins_text_or_types(node):
            yield _with(node, op=SWAPPED[type(operator)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield _with(node, value=not value)
        case ast.Constant(value=int() | float() as value):
            yield _with(node, value=value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in RENAMED:
            yield _with(node, func=ast.Name(id=RENAMED[name], ctx=ast.Load()))
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in RENAMED:
            yield _with(node, func=_with(function, attr=RENAMED[name]))
        case ast.Slice(lower=lower, upper=upper):
            one = ast.Constant(value=1)
            if lower is not None and not isinstance(lower, ast.Constant):
                yield _with(node, lower=ast.BinOp(left=lower, op=ast.Add(), right=one))
            if upper is not None and not isinstance(upper, ast.Constant):
                yield _with(node, upper=ast.BinOp(left=upper, op=ast.Sub(), right=one))
        case _:
            pass


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _last_name(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _joins_text_or_types(node: ast.BinOp) -> bool:
    """Whether the operands are strings, or the sum is a union of types: any other operator fails at once."""
    for side in (node.left, node.right):
        if isinstance(side, ast.JoinedStr) or (
            isinstance(side, ast.Constant) and isinstance(side.value, str | bytes | None)
        ):
            return True
        name = _last_name(side)
        if isinstance(node.op, ast.BitOr) and (
            name in BUILTIN_TYPES or (name[:1].isupper() and not name.isupper()) or isinstance(side, ast.Subscript)
        ):
            return True
    return False


def header(statement: ast.AST) -> str:
    """The first line of a statement, without decorators."""
    left_out: dict[str, list[ast.AST]] = {
        field: [] for field in ("body", "orelse", "finalbody", "decorator_list") if hasattr(statement, field)
    }
    return ast.unparse(_with(statement, **left_out)).partition("\n")[0]


def sample(root: Path, packages: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants of these packages, one for a statement, all statements being equally likely.

    A statement is drawn by a hash of what it says and of the names of its module and functions. So the sample depends
    neither on the order of files nor on the folder of a module, and an edit elsewhere leaves it as it was.
    """
    drawn = []
    for package in packages:
        for path in (root / "src/fedrank" / package).rglob("*.py"):
            module = ast.parse(path.read_bytes())
            candidates: dict[int, list[tuple[int, Change]]] = {}
            for number, change in enumerate(changes(module)):
                candidates.setdefault(id(change.statement), []).append((number, change))
            times: Counter[tuple[object, ...]] = Counter()
            for choices in candidates.values():
                statement, scope = choices[0][1].statement, choices[0][1].scope
                place = (path.stem, scope, header(statement))
                digest = hashlib.blake2b(repr((seed, place, times[place])).encode(), digest_size=16).digest()
                times[place] += 1
                number, change = choices[int.from_bytes(digest[8:]) % len(choices)]
                file = path.relative_to(root).as_posix()
                drawn.append((digest, file, number, change))
    drawn.sort(key=lambda one: one[:3])
    return [as_mutant(file, number, change) for _, file, number, change in drawn[:count]]


def as_mutant(file: str, number: int, change: Change) -> Mutant:
    before = header(change.statement)
    bound = change.bound
    line: int = getattr(change.old, "lineno", change.statement.lineno)
    after = header(change.new if change.old is change.statement else _replaced_in(change))
    return Mutant(file, number, line, before, after, bound)


def _replaced_in(change: Change) -> ast.AST:
    """A copy of the statement with the change, which leaves the statement as it is."""
    memo: dict[int, object] = {id(change.old): copy.deepcopy(change.new)}
    return copy.deepcopy(change.statement, memo)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST | list[ast.AST]) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
        if node is not self.old:
            found: ast.AST = self.generic_visit(node)
            return found
        return self.new


def mutated(source: str | bytes, number: int) -> ast.Module:
    """A module with one of its changes."""
    module = ast.parse(source)
    change = next(one for place, one in enumerate(changes(module)) if place == number)
    ast.copy_location(change.new, change.old)
    _Replace(change.old, change.new).visit(module)
    return ast.fix_missing_locations(module)


def instrumented(source: str | bytes, file: str, mutants: dict[int, Mutant]) -> ast.Module | None:
    """A module that reports which mutants a test would meet; nothing if it has no part in any.

    Level 0: the statement of the mutant runs, or the function whose defaults it changes. Level 1: a function runs that
    is part of the class, or that uses the name, which a statement outside functions defines. Level 2: any function of
    the module runs.
    """
    module = ast.parse(source)
    all_changes = list(changes(module)) if any(mutant.file == file for mutant in mutants.values()) else []
    touched = False
    functions = list(_functions(module.body, ()))
    for key, mutant in mutants.items():
        if mutant.file == file:
            change = all_changes[mutant.number]
            touched = True
            if change.in_function:
                _Replace(change.statement, [_hit(key, 0), change.statement]).visit(module)
            for function, _ in functions:
                _enter(function, key, 0 if function is change.statement else 2)
        for function, names in functions:
            if names.intersection(mutant.bound):
                _enter(function, key, 1)
                touched = True
    return ast.fix_missing_locations(module) if touched else None


def _functions(
    block: Sequence[ast.AST], classes: tuple[str, ...]
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, set[str]]]:
    """Functions outside of functions, each with the names that it uses and those of its classes."""
    for node in block:
        if isinstance(node, FUNCTIONS):
            yield node, {_last_name(part) for part in ast.walk(node) if isinstance(part, ast.expr)} | {*classes}
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, (*classes, node.name))
        else:
            for field in ("body", "handlers", "orelse", "finalbody"):
                yield from _functions(getattr(node, field, ()), classes)


def _hit(key: int, level: int) -> ast.stmt:
    call = ast.Call(
        func=ast.Name(id=HIT, ctx=ast.Load()), args=[ast.Constant(value=key), ast.Constant(value=level)], keywords=[]
    )
    return ast.Expr(value=call)


def _enter(function: ast.FunctionDef | ast.AsyncFunctionDef, key: int, level: int) -> None:
    documented = ast.get_docstring(function, clean=False) is not None
    function.body.insert(int(documented), _hit(key, level))
