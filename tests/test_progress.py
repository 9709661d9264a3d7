"""Progress in a notebook: bars that are updated, and nothing where there is no notebook."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedrank import progress
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.grid import read_tables
from fedrank.progress import NotebookBars, here, quiet
from tests.experiments.runner.test_run import tables


class Display(ModuleType):
    """What a notebook was told to show: the first time, and in its place afterwards."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.shown: list[str] = []

    def HTML(self, text: str) -> str:
        return text

    def display(self, page: str, display_id: bool) -> SimpleNamespace:
        assert display_id
        assert not self.shown, "a second one below the first"
        self.shown.append(page)
        return SimpleNamespace(update=self.shown.append)


@pytest.fixture
def notebook(monkeypatch):
    display = Display()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return SimpleNamespace(display=display, shell=shell)


def test_bars_come_and_go(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LOOKS", 0.0)
    display = Display()
    bars = NotebookBars(display)
    bars("a <b>", 1, 4, "round 1 of 4")
    bars("c", 1, 2)
    bars("a <b>", 4, 4, "finished")
    bars("c", 2, 2)
    first, second, third, last = display.shown
    assert first == '<div><progress value="1" max="4"></progress> a &lt;b&gt;: round 1 of 4</div>'
    assert second.count("<progress") == 2
    assert third.count("<progress") == 1
    assert third.endswith("<div>a &lt;b&gt;: finished</div>")
    assert last == "<div>c: done</div>"


def test_not_every_round_is_sent():
    display = Display()
    bars = NotebookBars(display)
    for number in range(1000):
        bars("a", number, 1000)
    bars("a", 1000, 1000, "finished")
    assert len(display.shown) < 20
    assert display.shown[-1] == "<div>a: finished</div>"  # an end is never left out


def test_a_notebook_shows_how_far_runs_are(notebook, tmp_path):
    run_experiment(read_tables(tables(rounds=5, seeds=[1, 2])), "test", tmp_path)
    assert notebook.display.shown[-1] == "<div>all runs: 2 of 2</div>"
    assert any("seed 1: finished (1 of 2)" in page for page in notebook.display.shown)


def test_a_script_and_a_terminal_show_nothing(notebook, monkeypatch):
    assert isinstance(here(), NotebookBars)
    notebook.shell.kernel = None  # IPython at a terminal
    assert here() is quiet
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert here() is quiet
    monkeypatch.delitem(sys.modules, "IPython")
    assert here() is quiet
