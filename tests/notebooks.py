"""Notebooks without Jupyter: run the code cells of an .ipynb, and compare or store what they show.

    python -m tests.notebooks [FILE ...]

stores what the notebooks of examples/ show; the tests compare. Cells run as in a notebook: one after the other in one
namespace, and the value of a last expression is shown. pandas counts as not installed, so that everybody sees the same.
A cell tagged "chance" draws from the system's secure source: its numbers with a decimal point are not compared.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
Output = dict[str, Any]
ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
RICH = {"text/html": "_repr_html_", "image/png": "_repr_png_"}


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(notebook: dict[str, Any], folder: Path) -> list[list[Output]]:
    """What each code cell shows, run in this folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with _as_a_kernel(folder):
        return [_run("".join(cell["source"]), names, number) for number, cell in enumerate(code_cells(notebook), 1)]


@contextlib.contextmanager
def _as_a_kernel(folder: Path) -> Iterator[None]:
    """The folder is the working directory, and modules in it can be imported."""
    before, path, modules = Path.cwd(), sys.path.copy(), set(sys.modules)
    pandas = sys.modules.get("pandas")
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        sys.modules.pop("pandas")
        if pandas is not None:
            sys.modules["pandas"] = pandas
        forget_modules(folder, modules)


def forget_modules(folder: Path, before: set[str]) -> None:
    """Take back what was imported from a folder since; a folder of modules without an __init__ has no file itself."""
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        if any(
            str(folder) in str(place) for place in (getattr(module, "__file__", ""), *getattr(module, "__path__", ()))
        ):
            del sys.modules[name]


def _run(source: str, names: dict[str, Any], number: int) -> list[Output]:
    statements = ast.parse(source).body
    last = statements.pop() if statements and isinstance(statements[-1], ast.Expr) else None
    place, said, value = f"<cell {number}>", io.StringIO(), None
    with contextlib.redirect_stdout(said):
        exec(compile(ast.Module(statements, []), place, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)
    outputs: list[Output] = []
    if said.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(said.getvalue())})
    if value is not None:
        shown = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": _data(value)}
        outputs.append(shown)
    return outputs


def _data(value: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"text/plain": _lines(repr(value))}
    for kind, method in RICH.items():
        rich = getattr(value, method)() if hasattr(value, method) else None
        if rich is not None:  # a figure has no HTML, and says so
            data[kind] = base64.b64encode(rich).decode() + "\n" if isinstance(rich, bytes) else _lines(rich)
    return data


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def seen(cell: Cell, outputs: list[Output]) -> list[dict[str, str]]:
    """What can be compared of a cell's outputs: texts as they are, and of pictures that there is one."""
    found = []
    for output in outputs:
        data = output.get("data", {"text/plain": output.get("text", [])})
        picture = "image/png" in data
        texts = {kind: "" if picture else "".join(lines) for kind, lines in data.items()}
        if "chance" in cell["metadata"].get("tags", []):
            texts = {kind: re.sub(r"\d+\.\d+", "#", text) for kind, text in texts.items()}
        found.append(texts)
    return found


def store(file: Path) -> None:
    """Run a notebook and write what it shows into its file."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        shown = execute(notebook, Path(folder))
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), shown, strict=True), 1):
        cell |= {"execution_count": number, "outputs": outputs}
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if len(sys.argv) > 1 else NOTEBOOKS:
        store(path)
        print(f"stored what {path.name} shows")
