"""The artefact: digests of results, claims as LaTeX, and a document that TeX compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.report.write import latex
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.spec.source import read_spec
from fedrank_papers import artefact
from tests import needs
from tests.experiments.report.made_up_runs import write_experiment, write_run
from tests.experiments.report.strict_latex import check_table

CLAIM = """
[[claims]]
says   = "Fewer are better at ε = 1"
higher = "few"
lower  = "many"
"""


def test_digests_cover_names_and_bytes_of_results_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "a", "few")
    write_run(tmp_path / "two", "a", "few")
    (tmp_path / "two" / "a" / "few" / "fold-1-seed-1" / "timing.csv").write_text("another clock")
    assert artefact.digest(tmp_path / "one") == artefact.digest(tmp_path / "two")
    rounds = tmp_path / "two" / "a" / "few" / "fold-1-seed-1" / "rounds.csv"
    rounds.write_text(rounds.read_text().replace("1", "2", 1))
    assert artefact.digest(tmp_path / "one") != artefact.digest(tmp_path / "two")
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match=r"none has none of rounds.csv, .*; run the experiment first"):
        artefact.digest(tmp_path / "none")


def test_claims_are_a_table_that_latex_takes(tmp_path: Path) -> None:
    for variant, level in (("few", 0.4), ("many", 0.6)):
        for seed in (1, 2, 3):
            write_run(tmp_path, "a", variant, 1, seed, level=level, settings={"variants": variant})
    write_experiment(tmp_path, CLAIM, "a")
    [found] = analyse(load_runs(tmp_path))
    header, row = check_table(latex(artefact.claims(found), "c", "l"))
    assert header[-1] == "verdict"
    assert row[0] == r"Fewer are better at $\varepsilon$ = 1"
    assert row[-1] == "does not hold"
    assert row[3].count("$-$") == 2


def test_without_tex_the_reason_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    told = artefact.compile_artefact(tmp_path)
    assert "was written, but not compiled: neither tectonic nor pdflatex was found; install one" in told


def test_findings_name_experiments_that_exist() -> None:
    assert all(read_spec(finding.experiment).about.claims for finding in artefact.FINDINGS)
    few, many, _ = read_spec("artefact/few-rounds").variants
    assert (few.experiment.rounds, many.experiment.rounds) == (4, 100)
    assert few.experiment.mechanism == many.experiment.mechanism  # and everybody takes part once: the same ε


@needs.latex
@pytest.mark.process
@pytest.mark.long
def test_the_document_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "FINDINGS", artefact.FINDINGS[-1:])
    monkeypatch.setattr(artefact, "PROCESSORS", {"this processor": {}, "again": {}})
    monkeypatch.setattr(artefact, "SHORT", ["rounds=2", "seeds=[1]", "data.folds=[1]"])
    out = tmp_path / "out"
    document = artefact.write_artefact(tmp_path / "runs", out).read_text()
    assert document.count("\\section{") == 3
    assert "All digests are equal." in (out / "bits" / "digests.tex").read_text()
    assert "as published, $\\varepsilon$ = 0.5 & 1.000 & 1.000" in (out / "noise" / "noise.tex").read_text()
    for table in out.glob("*/*.tex"):
        check_table(table.read_text())
    artefact.compile_artefact(out)
    assert (out / "artefact.pdf").read_bytes().startswith(b"%PDF")
    assert (out / "README.md").read_text().startswith("# Artefact")
