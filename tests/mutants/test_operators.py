"""The mutants of a few lines written by hand, and which tests would be chosen for them."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tests.mutants.__main__ import LIMIT, ROOT, SELECTED, covering
from tests.mutants.operators import HIT, Mutant, as_mutant, changes, instrumented, mutated, sample


def mutants_of(source: str) -> list[str]:
    count = len(list(changes(ast.parse(source))))
    return [ast.unparse(mutated(source, number)) for number in range(count)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a <= b"]),
        ("a = b <= c < d", ["a = b < c < d", "a = b <= c <= d"]),
        ("a = b == c", ["a = b != c"]),
        ("a = b is not None", ["a = b is None"]),
        ("a = b in c", ["a = b not in c"]),
        ("a = b + c * d", ["a = b - c * d", "a = b + c / d"]),
        ("a = b // c % d", ["a = b // c // d", "a = b * c % d"]),
        ("a = b << c | d", ["a = b << c & d", "a = b >> c | d"]),
        ("a += b", ["a -= b"]),
        ("a = b and c", ["a = b or c"]),
        ("a = not b", ["a = b"]),
        ("a = -b", ["a = b"]),
        ("a = 3", ["a = 4"]),
        ("a = 0.5", ["a = 1.5"]),
        ("a = True", ["a = False"]),
        ("a = b[c:d]", ["a = b[c + 1:d]", "a = b[c:d - 1]"]),
        ("a = b[1:]", ["a = b[2:]"]),
        ("a = min(b, c)", ["a = max(b, c)"]),
        ("a = b.argmax()", ["a = b.argmin()"]),
        ("a.b = c", ["pass"]),
        ("a(b)", ["pass"]),
        ("del a", ["pass"]),
        ("a = b if c else d", ["a = b if not c else d"]),
        ("if a:\n    b", ["if not a:\n    b"]),
        ("if a > b:\n    raise C('d')", ["pass", "if a >= b:\n    raise C('d')"]),
        ("for a in b:\n    break", ["for a in b:\n    continue"]),
        ("def f():\n    return a", ["def f():\n    return None"]),
        ("def f():\n    return a + b", ["def f():\n    return a - b"]),
        ("def f(a=1):\n    pass", ["def f(a=2):\n    pass"]),
    ],
)
def test_what_a_mutant_changes(source, expected):
    assert mutants_of(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    '''Text with 1 + 1.'''",
        "raise ValueError(f'{a + 1}', 2)",
        "assert a < b",
        "a = f'{b + 1}'",
        "a = 'b' + c",
        "print(a + 1)",
        "warnings.warn(a, stacklevel=2)",
        "def f(a: Literal[1] | None) -> Literal[2]: ...",
        "a: Literal[1] = b",
        "A: TypeAlias = list[B | C]",
        "A = B | None",
        "a = cast(B[1], c)",
        "a = isinstance(b, int | float)",
        "a = zip(b, c, strict=True)",
        "@dataclass(frozen=True)\nclass A:\n    '''Text.'''",
        "__all__ = ['a'] + B[:1]",
        "if TYPE_CHECKING:\n    a = 1",
        "if __name__ == '__main__':\n    a()",
        "from __future__ import annotations",
        "def f():\n    return None",
    ],
)
def test_what_no_mutant_changes(source):
    assert mutants_of(source) == []


def test_a_mutant_tells_its_line_and_both_statements():
    source = "def f(a, b):\n    if (a\n            < 3):\n        return b\n"
    change = list(changes(ast.parse(source)))[1]
    assert as_mutant("src/x.py", 1, change) == Mutant("src/x.py", 1, 3, "if a < 3:", "if a < 4:")


SOURCE = dedent(
    """
    SIZE = 3

    class A:
        least = 1

        def f(self):
            '''Text.'''
            return self.least

    def g(a=2):
        if a:
            a += 1
        return SIZE
    """
)


def hits(number: int, call: str) -> set[int]:
    """Levels that a call of the instrumented module reports for a mutant."""
    mutant = as_mutant("x.py", number, list(changes(ast.parse(SOURCE)))[number])
    module = instrumented(SOURCE, "x.py", {7: mutant})
    assert module is not None
    found: set[tuple[int, int]] = set()
    names: dict[str, object] = {HIT: lambda key, level: found.add((key, level))}
    exec(compile(module, "x.py", "exec"), names)
    assert names["A"].f.__doc__ == "Text."
    eval(call, names)
    assert {key for key, _ in found} <= {7}
    return {level for _, level in found}


def test_a_module_reports_the_mutants_that_a_call_meets():
    # in this order: SIZE, least, return self.least, a=2, if a, a +=, 1, return SIZE
    assert hits(0, "g()") == {1, 2}
    assert hits(0, "A().f()") == {2}
    assert hits(1, "A().f()") == {1, 2}
    assert hits(2, "A().f()") == {0, 2}
    assert hits(3, "g(0)") == {0}
    assert hits(3, "A().f()") == {2}
    assert hits(5, "g(0)") == {2}
    assert hits(5, "g(1)") == {0, 2}


def test_other_modules_report_a_mutant_only_if_they_use_its_name():
    mutant = Mutant("x.py", 0, 2, "SIZE = 3", "SIZE = 4", bound=("SIZE",))
    assert instrumented("def h():\n    return 1", "y.py", {0: mutant}) is None
    module = instrumented("from x import SIZE\n\ndef h():\n    return SIZE", "y.py", {0: mutant})
    assert module is not None
    assert ast.unparse(module) == f"from x import SIZE\n\ndef h():\n    {HIT}(0, 1)\n    return SIZE"


def test_the_sample_stays_when_a_package_gets_another_name(tmp_path):
    for root, package in ((tmp_path / "one", "a"), (tmp_path / "other", "b")):
        folder = root / "src/fedrank" / package
        folder.mkdir(parents=True)
        (folder / "x.py").write_text(SOURCE)
        (folder / "y.py").write_text("A = 1\nB = 2\n")
    drawn = [
        [(one.line, one.after) for one in sample(tmp_path / root, [package], 5, 1)]
        for root, package in (("one", "a"), ("other", "b"))
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 5
    assert drawn[0] != [(one.line, one.after) for one in sample(tmp_path / "one", ["a"], 5, 2)]
    assert drawn[0][:2] == [(one.line, one.after) for one in sample(tmp_path / "one", ["a"], 2, 1)]


def test_tests_of_the_statement_come_first_then_those_of_the_package():
    mutant = Mutant("src/fedrank/ranking/x.py", 0, 1, "", "")
    met = [
        {"test": "tests/experiments/runner/test_a.py::a", "seconds": 0.1, "passed": True, "hits": [[0, 0], [0, 2]]},
        {"test": "tests/ranking/test_b.py::a", "seconds": 0.3, "passed": True, "hits": [[0, 0]]},
        {"test": "tests/ranking/test_b.py::b", "seconds": 0.1, "passed": False, "hits": [[0, 0]]},
        {"test": "tests/ranking/test_c.py::a", "seconds": 0.1, "passed": True, "hits": [[0, 2]]},
        {"test": "tests/ranking/test_d.py::a", "seconds": LIMIT, "passed": True, "hits": [[0, 0]]},
    ]
    assert list(covering({0: mutant}, met)[0]) == [
        "tests/ranking/test_b.py::a",
        "tests/experiments/runner/test_a.py::a",
    ]
    assert list(covering({0: mutant}, met[3:4])[0]) == ["tests/ranking/test_c.py::a"]
    assert list(covering({0: mutant}, met[4:])[0]) == ["tests/ranking/test_d.py::a"], "at least one, however slow"
    assert covering({0: mutant}, met[2:3]) == {0: {}}


def test_mutants_meet_the_tests_of_make_test():
    makefile = (ROOT / "Makefile").read_text()
    rest = next(line for line in makefile.splitlines() if line.startswith("REST")).partition(":= ")[2]
    assert f"not ({rest} or smoke)" == SELECTED
