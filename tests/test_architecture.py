"""The shape of the package: imports point down, public names are sorted, nothing heavy is imported early."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fedrank

ROOT = Path(fedrank.__file__).parent
ORDER = ["cli", "deploy", "experiment", "unlearn", "attack", "silo", "protect", "federate", "rank", "data", "kernels"]
BOTTOM = {"files", "names", "seeds", "types"}


def imported_layers(source: Path) -> set[str]:
    """Layers of fedrank that a module needs when it runs; imports for type checkers do not count."""
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
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedrank."):
            layers.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            layers |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedrank.")}
    return layers


def test_imports_point_down():
    wrong = []
    for source in ROOT.rglob("*.py"):
        layer = source.relative_to(ROOT).parts[0].removesuffix(".py")
        if layer in ("__init__", "__main__"):
            continue
        if layer in BOTTOM:
            allowed = BOTTOM
        else:
            assert layer in ORDER, f"{layer} is a new layer; give it its place in design and test"
            allowed = {*ORDER[ORDER.index(layer) :], *BOTTOM}
        wrong += [f"{source.relative_to(ROOT)} imports {name}" for name in imported_layers(source) - allowed]
    assert not wrong


def test_kernels_import_nothing_above_them():
    for source in (ROOT / "kernels").glob("*.py"):
        assert imported_layers(source) <= {"kernels"}, source


def test_public_names_are_sorted_and_there():
    assert fedrank.__all__ == sorted(fedrank.__all__)
    for name in fedrank.__all__:
        assert getattr(fedrank, name) is not None
    with_docs = [name for name in fedrank.__all__ if callable(getattr(fedrank, name))]
    assert all(getattr(fedrank, name).__doc__ for name in with_docs)


def test_type_checkers_and_users_find_the_same_public_names():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = [(node.module, alias.asname) for node in block.body for alias in node.names]
    assert sorted(told) == sorted((f"fedrank.{home}", name) for name, home in fedrank._HOMES.items())


def test_an_unknown_public_name_is_an_attribute_error():
    assert not hasattr(fedrank, "no_such_thing")


def test_help_needs_nothing_heavy():
    code = (
        "import sys; from typer.testing import CliRunner; from fedrank.cli import app; "
        "result = CliRunner().invoke(app, ['--help']); assert result.exit_code == 0, result.output; "
        "print(*sorted({'numba', 'numpy', 'scipy', 'matplotlib', 'pydantic'} & set(sys.modules)))"
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
