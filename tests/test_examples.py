"""Every public name shows how it is used: its docstring has an example, which runs and prints what it says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import fedrank

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.REPORT_ONLY_FIRST_FAILURE  # long lines of output may be wrapped


@pytest.mark.parametrize("name", fedrank.__all__)
def test_the_example_of_a_public_name_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = doctest.DocTestParser().get_doctest(getattr(fedrank, name).__doc__ or "", {}, name, None, None)
    assert any("fr." in each.source for each in example.examples), f"add an example (>>>) to the docstring of {name}"
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(example, out=report.append)
    assert not failed, "".join(report)
