"""What `fedrank data check` finds in a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from fedrank.data.check import FileCheck, check_files
from fedrank.experiments.report.data_output import about_checks
from fedrank.experiments.report.terminal import show
from tests import needs

DATA = os.environ.get("FEDRANK_DATA")

# Feature 1 varies, 2 never changes, 3 is always 0. Query a repeats a document, b has one, c has one grade only.
TEXT = """\
2 qid:a 1:0.5 2:1 3:0
2 qid:a 1:0.5 2:1 3:-0.0
0 qid:a 1:0.1 2:1
0 qid:b 1:0.5 2:1
0 qid:c 1:0.2 2:1
0 qid:c 1:0.3 2:1
4 qid:d 1:0.2 2:1
0 qid:d 1:0.0 2:1
"""


@pytest.fixture
def check(tmp_path: Path) -> FileCheck:
    path = tmp_path / "set.txt"
    path.write_text(TEXT)
    return check_files([path])[0]


def test_counts_by_hand(check: FileCheck) -> None:
    assert check.sound
    assert (check.queries, check.documents, check.features) == (4, 8, 3)
    assert check.grades == (5, 0, 2, 0, 1)
    assert (check.fewest, check.median, check.most) == (1, 2.0, 3)
    assert check.without_relevant == 2
    assert check.single == 1
    assert check.same_grade == 1
    assert check.constant == (2,)
    assert check.all_zero == (3,)
    assert check.duplicates == 1
    assert check.sorted_queries == 2 / 2
    assert check.sorted_by_grade
    assert check.looks_normalised
    assert check.zeros == (8 + 1) / (3 * 8)


def test_oddities_are_sentences(check: FileCheck) -> None:
    assert check.oddities == (
        "2 queries have no relevant document",
        "1 query has only one document, so there is nothing to rank",
        "1 query has several documents, all with the same relevance label",
        "no document has relevance label 1 and 3",
        "feature 2 is constant",
        "feature 3 is always 0",
        "1 document has the same features as another document of the query",
        "100% of the queries list their documents by relevance label, best first; "
        "a ranker with tied scores looks perfect if ties keep the order of the file",
    )


def test_a_file_without_oddities(tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    path.write_text("0 qid:a 1:3\n1 qid:a 1:1\n0 qid:b 1:5\n1 qid:b 1:0.1\n")
    check = check_files([path])[0]
    assert check.oddities == ()
    assert check.sorted_queries == 0
    assert not check.looks_normalised
    assert not check.sorted_by_grade


def test_many_features_are_not_all_listed(tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    path.write_text("0 qid:a 1:3 20:1\n1 qid:a 1:1 20:2\n")
    assert check_files([path])[0].oddities == ("features 2, 3, 4, 5, 6, 7, 8 and 11 more are always 0",)


def test_unsound_files_are_results(tmp_path: Path) -> None:
    good, bad, absent = tmp_path / "good.txt", tmp_path / "bad.txt", tmp_path / "absent.txt"
    good.write_text(TEXT)
    bad.write_text("1 qid:1 1:nan\n")
    checks = check_files([good, bad, absent])
    assert [check.sound for check in checks] == [True, False, False]
    assert "bad.txt, line 1: '1:nan'" in checks[1].error
    assert checks[2].error == f"{absent}: No such file or directory"
    assert checks[1].documents == 0


def shown(checks: list[FileCheck], width: int) -> str:
    console = Console(width=width, record=True, quiet=False, file=open(os.devnull, "w"))  # noqa: SIM115
    try:
        show(about_checks(checks), console)
        return console.export_text()
    finally:
        console.file.close()


def test_show(tmp_path: Path) -> None:
    good, bad = tmp_path / "[red]good.txt", tmp_path / "bad.txt"
    good.write_text(TEXT)
    bad.write_text("1 qid:1 1:[bold]\n")
    text = shown(check_files([good, bad]), 140)
    assert "[red]good.txt" in text
    assert "1 / 2 / 3" in text
    assert "5  0  2  0  1" in text
    assert "feature 2 is constant" in text
    assert "unsound" in text
    assert "'1:[bold]' has no number" in text
    assert shown([], 80).strip() == ""


@needs.data
def test_real_files() -> None:
    folder = Path(DATA or "") / "letor"
    mslr, mq = check_files([folder / "mslr-sample" / "queries.txt.xz", folder / "mq2008" / "S1.txt.xz"])
    assert (mslr.queries, mslr.documents, mslr.features, mslr.looks_normalised) == (177, 19_281, 136, False)
    assert (mq.documents, mq.features, mq.looks_normalised) == (2933, 46, True)
    assert mq.all_zero == (6, 7, 8, 9, 10, 43)
