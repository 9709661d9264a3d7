"""The notebooks of examples/ run, and show what is stored in them."""

from __future__ import annotations

import copy
import json
import platform
import runpy
from pathlib import Path

import pytest

from fedrank.kernels.compile import same_bytes_here
from tests import needs
from tests.notebooks import NOTEBOOKS, ROOT, code_cells, execute, seen, store

pytestmark = pytest.mark.process


def read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def test_there_are_three():
    assert [file.stem for file in NOTEBOOKS] == ["first_federation", "own_method", "privacy"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_shows_what_is_stored_in_it(file, tmp_path):
    if file.stem == "privacy":
        pytest.importorskip("dp_accounting", reason="pip install 'fedrank[privacy]'")
    if not same_bytes_here():
        needs.skip("system", f"on {platform.machine()} the last digits may differ")
    notebook = read(file)
    shown = execute(notebook, tmp_path)
    for cell, outputs in zip(code_cells(notebook), shown, strict=True):
        assert seen(cell, outputs) == seen(cell, cell["outputs"]), "".join(cell["source"])


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_one_that_jupyter_opens(file):
    notebook = read(file)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    assert notebook["cells"][0]["source"][0].startswith("# ")
    code = code_cells(notebook)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert sum("image/png" in output.get("data", {}) for cell in code for output in cell["outputs"]) >= 1
    assert str(Path.home()) not in file.read_text(encoding="utf-8")  # nothing of the machine it ran on
    assert "/tmp" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_the_site_shows_a_notebook_as_it_was_run(file, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))  # as MkDocs does for a hook
    pages = runpy.run_path(str(ROOT / "docs" / "build.py"))["linked_files"](sorted((ROOT / "docs").rglob("*.md")))
    page = pages[f"files/examples/{file.name}.md"]
    for cell in read(file)["cells"]:
        assert "".join(cell["source"]) in page
    assert page.count("data:image/png;base64,") == file.read_text(encoding="utf-8").count('"image/png"')


def made_up(*sources: str, tags: tuple[str, ...] = ()) -> dict:
    cells = [
        {"cell_type": "code", "id": str(i), "metadata": {"tags": list(tags)}, "outputs": [], "source": [source]}
        for i, source in enumerate(sources)
    ]
    return {"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}


def test_cells_run_as_in_a_notebook(tmp_path):
    notebook = made_up("a = 3\nprint('said')", "a + 1", "a = 5; None", "import own_module", "a, own_module.b")
    (tmp_path / "own_module.py").write_text("b = 7")
    first, second, third, fourth, last = execute(notebook, tmp_path)
    assert [output["text"] for output in first] == [["said\n"]]
    assert [output["data"] for output in second] == [{"text/plain": ["4"]}]
    assert third == fourth == []
    assert last[0]["data"] == {"text/plain": ["(5, 7)"]}
    with pytest.raises(ZeroDivisionError):
        execute(made_up("1 / 0"), tmp_path)


def test_other_outputs_are_noticed_unless_they_are_chance(tmp_path):
    file = tmp_path / "made_up.ipynb"
    for tags, differs in (((), True), (("chance",), False)):
        notebook = made_up("print('quality 0.51 of 3')", tags=tags)
        file.write_text(json.dumps(notebook))
        store(file)
        [cell] = code_cells(read(file))
        other = copy.deepcopy(cell["outputs"])
        other[0]["text"] = ["quality 0.52 of 3\n"]
        assert (seen(cell, other) != seen(cell, cell["outputs"])) == differs
        other[0]["text"] = ["quality 0.51 of 4\n"]
        assert seen(cell, other) != seen(cell, cell["outputs"])
