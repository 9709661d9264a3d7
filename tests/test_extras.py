"""What is told to somebody who lacks a package that only a part of fedrank needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from fedrank.extras import missing_extra

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Modules that do not have the name of their package.
PACKAGES = {
    "dp_accounting": "dp-accounting",
    "Stemmer": "PyStemmer",
    "cupy": "cupy-cuda13x",
    "ir_datasets": "ir-datasets",
    "opensearchpy": "opensearch-py",
    "mlflow": "mlflow-skinny",
}
IN_NO_EXTRA = {"onnxruntime", "pandas"}  # the message names the package


def packages_of(extra: str) -> set[str]:
    """Names of the packages that an extra installs."""
    found = set()
    for each in PROJECT["optional-dependencies"][extra]:
        inner = re.fullmatch(r"fedrank\[([\w-]+)\]", each)
        found |= packages_of(inner[1]) if inner else {re.split(r"[^\w.-]", each, maxsplit=1)[0]}
    return found


def refused_imports() -> list[tuple[str, set[str], ast.expr | None]]:
    """Where an import that fails ends in an error: the place, the packages, and the extra that the error names."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for block in ast.walk(ast.parse(text)) if "except ImportError" in text else ():
            if not isinstance(block, ast.Try):
                continue
            names = {node.module or "" for node in ast.walk(block) if isinstance(node, ast.ImportFrom)}
            names |= {name.name for node in block.body if isinstance(node, ast.Import) for name in node.names}
            calls = [call for node in block.body for call in ast.walk(node) if isinstance(call, ast.Call)]
            loaded = [call.args[0] for call in calls if getattr(call.func, "id", "") == "import_module"]
            names |= {name.value for name in loaded if isinstance(name, ast.Constant)}
            packages = {PACKAGES.get(top, top) for name in names if (top := name.partition(".")[0]) != "fedrank"}
            for handler in block.handlers:
                raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
                if packages and raises and getattr(handler.type, "id", "") in ("ImportError", "ModuleNotFoundError"):
                    called = [
                        node
                        for node in ast.walk(handler)
                        if getattr(getattr(node, "func", 0), "id", "") == "missing_extra"
                    ]
                    where = f"{path.relative_to(ROOT)}:{block.lineno}"
                    found.append((where, packages, called[0].args[1] if called else None))
    return found


def test_every_missing_package_is_asked_for_by_an_extra_that_has_it():
    places = refused_imports()
    assert len(places) >= 18
    for where, packages, extra in places:
        if packages <= IN_NO_EXTRA:
            assert not packages & {name for each in ("search", "onnx", "documents") for name in packages_of(each)}
            continue
        assert extra is not None, f"{where} does not use fedrank.extras.missing_extra"
        if isinstance(extra, ast.Constant):
            assert packages <= packages_of(extra.value), where
        else:  # the page's server, for whoever shows a page
            assert packages <= packages_of("search") & packages_of("watch"), where


def test_an_extra_is_installed_beside_the_fedrank_that_is_there():
    assert str(missing_extra("trees need LightGBM", "trees")) == "trees need LightGBM: pip install 'fedrank[trees]'"


@pytest.mark.parametrize("module", ["tantivy", "Stemmer"])
def test_a_search_asks_for_its_own_extra(tmp_path, monkeypatch, module):
    """PyStemmer is part of two extras, and whoever searches needs all of one."""
    pytest.importorskip("tantivy")
    from fedrank.data import text
    from fedrank.search.client import SearchClient

    text.stemmer.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'fedrank\[search\]'$"):
        SearchClient(tmp_path, language="german")
