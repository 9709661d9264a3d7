"""The shape of the package: imports point down, public names are sorted, nothing heavy is imported early."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import fedrank
from fedrank import plugins
from fedrank.experiments.spec.families import FAMILIES

ROOT = Path(fedrank.__file__).parent
APPLICATIONS = ["search", "engine", "deploy"]
EXPERIMENTS = [f"experiments.{name}" for name in ("builtin", "bench", "watch", "report", "runner", "spec")]
CORE = [
    "testing",
    "unlearning",
    "attacks",
    "trees",
    "silo",
    "privacy",
    "federated",
    "ranking",
    "data",
    "web",
    "kernels",
]
ORDER = ["cli", *APPLICATIONS, *EXPERIMENTS, *CORE]
BOTTOM = {
    "wire",
    "files",
    "names",
    "seeds",
    "types",
    "progress",
    "display",
    "extras",
    "plugins",
    "toml",
    "value_checks",
}
ENTRY_POINTS = (plugins.COMMANDS, plugins.METHODS, plugins.SPECS)  # names of groups, not of modules
MODULE = re.compile(r"fedrank\.(experiments\.\w+|\w+)(\.\w*)*(:[\w.]+)?")  # as text: a module, or something in one


def layer_of(source: Path) -> str:
    """`ranking` of ranking/gate.py, and `experiments.spec` of experiments/spec/grid.py."""
    parts = source.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:2]) if parts[0] == "experiments" else parts[0]


@cache
def imported_layers(source: Path) -> set[str]:
    """Layers of fedrank that a module needs when it runs; imports for type checkers do not count.

    A text that names a module counts as an import, wherever it stands: somebody will import it.
    """
    tree = ast.parse(source.read_text(encoding="utf-8"))
    only_for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    layers = set()
    for node in ast.walk(tree):
        if id(node) in only_for_types:
            continue
        names = []
        if isinstance(node, ast.ImportFrom) and node.module == "fedrank":
            names = [f"fedrank.{alias.name}" for alias in node.names if not alias.name.startswith("__")]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: write whole names, fedrank.{source.parent.name}..."
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        layers |= {found[1] for name in names if name not in ENTRY_POINTS and (found := MODULE.fullmatch(name))}
    return layers


def test_imports_point_down():
    wrong = []
    for source in ROOT.rglob("*.py"):
        layer = layer_of(source)
        if layer in ("__init__", "__main__", "experiments.__init__"):
            continue
        if layer in BOTTOM:
            allowed = BOTTOM
        else:
            assert layer in ORDER, f"{layer} is a new layer; give it its place in design and test"
            allowed = {*ORDER[ORDER.index(layer) :], *BOTTOM}
        wrong += [f"{source.relative_to(ROOT)} imports {name}" for name in imported_layers(source) - allowed]
    assert not wrong


MAX_CROSSING = 195  # names of the core that applications use; it may only fall


def crossing_names(source: Path) -> set[str]:
    """Names of the core that a module of an application uses, with the module that they come from.

    Of a module that is imported as a whole, each name that is used counts: `kernels.sums.products`.
    """
    tree = ast.parse(source.read_text(encoding="utf-8"))
    imported = {
        (alias.asname or alias.name, f"{node.module}.{alias.name}")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (known := MODULE.fullmatch(f"{node.module}.{alias.name}"))
        and known[1] not in {*APPLICATIONS, *BOTTOM, "__version__"}
    }
    modules = {here: name for here, name in imported if is_module(name)}
    chains = (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    parts = [chain.partition(".") for chain in chains if re.fullmatch(r"[\w.]+", chain)]
    used = {f"{modules[first]}.{rest}" for first, _, rest in parts if first in modules}
    used = {name for name in used if not any(longer.startswith(f"{name}.") for longer in used)}
    return {name for _, name in imported if not is_module(name)} | used


def is_module(name: str) -> bool:
    path = ROOT.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def test_applications_use_no_more_of_the_core_than_before():
    found = {
        name for package in APPLICATIONS for path in (ROOT / package).rglob("*.py") for name in crossing_names(path)
    }
    assert len(found) <= MAX_CROSSING


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "from fedrank.ranking.gate import Gate, Team as Side",
            {"fedrank.ranking.gate.Gate", "fedrank.ranking.gate.Team"},
        ),
        ("from fedrank.ranking import gate\ngate.Gate().verdict(1, 2)", {"fedrank.ranking.gate.Gate"}),
        ("from fedrank import kernels\nkernels.sums.products(1)", {"fedrank.kernels.sums.products"}),
        ("from fedrank import load_model", {"fedrank.load_model"}),
        ("from fedrank import __version__, wire\nfrom fedrank.deploy.plan import Plan\nwire.pack()", set()),
    ],
)
def test_what_counts_as_a_name_of_the_core(tmp_path, text, names):
    source = tmp_path / "module.py"
    source.write_text(text)
    assert crossing_names(source) == names


def test_the_core_imports_no_application():
    """That is part of the order of layers; said here so that a change of the order does not lose it."""
    for source in ROOT.rglob("*.py"):
        if layer_of(source) in (*CORE, *EXPERIMENTS, *BOTTOM):
            assert not imported_layers(source) & {*APPLICATIONS, "cli"}, source


def test_every_layer_is_there():
    there = {layer_of(path) for path in ROOT.rglob("*.py")}
    assert there - {"__init__", "__main__", "experiments.__init__"} == {*ORDER, *BOTTOM}


@pytest.mark.parametrize(
    ("line", "layers"),
    [
        ("from fedrank.ranking.measures import Measure", {"ranking"}),
        ("import fedrank.ranking.measures", {"ranking"}),
        ("from fedrank import kernels, load_model", {"kernels", "load_model"}),
        ("from fedrank import __version__", set()),
        ('import_module("fedrank.trees.forest")', {"trees"}),
        ('import_module(f"fedrank.experiments.runner.{name}")', {"experiments.runner"}),
        ('READERS = {"forest": "fedrank.trees.forest:load_forest"}', {"trees"}),
        ('TITLE = "fedrank.trees is a room"', set()),
        ("if TYPE_CHECKING:\n    from fedrank.experiments.runner.runs import Runs", set()),
        ("def later():\n    from fedrank.experiments.runner.runs import Runs", {"experiments.runner"}),
    ],
)
def test_what_counts_as_an_import(tmp_path, line, layers):
    source = tmp_path / "module.py"
    source.write_text(line)
    assert imported_layers(source) == layers


def test_kernels_import_nothing_above_them():
    for source in (ROOT / "kernels").rglob("*.py"):
        assert imported_layers(source) <= {"kernels", "extras"}, source


def test_public_names_are_sorted_and_there():
    assert fedrank.__all__ == sorted(fedrank.__all__)
    for name in fedrank.__all__:
        assert getattr(fedrank, name) is not None
    with_docs = [name for name in fedrank.__all__ if callable(getattr(fedrank, name))]
    assert all(getattr(fedrank, name).__doc__ for name in with_docs)


def test_methods_stand_under_their_family_all_of_them():
    families = {name: home for name, home in fedrank._listed().items() if isinstance(home, dict)}
    shown = [{getattr(getattr(fedrank, name), method) for method in home} for name, home in families.items()]
    assert shown == [set(family.methods.values()) for family in FAMILIES.values()]
    import_module("fedrank.attacks.poison")  # a package with the name of a family has its methods, too

    assert fedrank.attacks.Fang is fedrank.attacks.poison.Fang
    assert "Fang" in dir(fedrank.attacks)
    assert not hasattr(fedrank.attacks, "no_such_attack")


def test_a_class_has_a_name_of_its_own():
    """One name, one thing; whoever searches for it finds it."""
    names = Counter(
        name
        for source in ROOT.rglob("*.py")
        for name in re.findall(r"^class ([A-Za-z]\w*)", source.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert [name for name, times in names.items() if times > 1] == []


def test_an_unknown_public_name_is_an_attribute_error():
    assert not hasattr(fedrank, "no_such_thing")


@pytest.mark.process
def test_help_needs_nothing_heavy():
    code = (
        "import sys; from typer.testing import CliRunner; from fedrank.cli import GROUPS, build_app; "
        "result = CliRunner().invoke(build_app(''), ['--help']); assert result.exit_code == 0, result.output; "
        "groups = {f'fedrank.cli.{name}' for name in GROUPS}; "
        "print(*sorted({'numba', 'numpy', 'scipy', 'matplotlib', 'jinja2', *groups} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_no_module_has_a_meaningless_name():
    assert not {source.stem for source in ROOT.rglob("*.py")} & {
        "utils",
        "core",
        "common",
        "base",
        "helpers",
        "manager",
    }


CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}


def elapsed(source: str) -> list[int]:
    """Lines that compute how much time has passed: a clock minus an earlier reading of it.

    A deadline (`time.monotonic() < until`) and a moment ago (`time.time() - 60`) are no durations.
    """
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and isinstance(node.left, ast.Call)
        and ast.unparse(node.left.func).removeprefix("time.").removesuffix("_ns") in CLOCKS
        and not isinstance(node.right, ast.Constant)
    ]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("assert time.monotonic() - began < 10", [1]),
        ("took = perf_counter() - began\nassert took < 1", [1]),
        ("assert (time.process_time_ns() - began) / 1e9 < 1", [1]),
        ("until = time.monotonic() + 60\nassert time.monotonic() < until", []),
        ("rounds(time.time() - 1)", []),
    ],
)
def test_what_counts_as_a_duration(source, lines):
    assert elapsed(source) == lines


def test_no_test_measures_a_duration():
    """A busy machine would fail it; benchmarks measure speed."""
    tests = Path(__file__).parent
    texts = {path.relative_to(tests): path.read_text(encoding="utf-8") for path in tests.rglob("test_*.py")}
    likely = re.compile(r"(time|monotonic|perf_counter|_ns)\(\) -")  # parsing all tests would take seconds
    found = {path: elapsed(text) for path, text in texts.items() if likely.search(text)}
    assert {path: lines for path, lines in found.items() if lines} == {}
