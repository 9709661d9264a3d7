"""Tables that LaTeX takes, whatever names and numbers stand in them. No LaTeX is needed: a strict reader stands in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrank.experiments.report.sections import Cell, Table
from fedrank.experiments.report.write import ESCAPED, latex, write_report
from fedrank.experiments.runner.runs import load_runs
from tests.experiments.report.made_up_runs import write_experiment, write_run
from tests.experiments.report.strict_latex import check_table

WORDS = st.text(alphabet=[*ESCAPED, *"abc 09.-+'()/=,:;!?@\"]"], min_size=1, max_size=20)


def table(first: str, second: str, mark: str | None = None, strong: bool = False) -> str:
    cells = [[Cell(first), Cell(second, strong, mark=mark)], [Cell(second), Cell("-0.1")]]
    return latex(Table([first, second], cells, 1, [first]), f"On {first}", "one")


@given(WORDS, WORDS, st.sampled_from([None, "", "▲", "▼"]), st.booleans())
def test_any_name_can_stand_in_a_table(first: str, second: str, mark: str | None, strong: bool) -> None:
    assert len(check_table(table(first, second, mark, strong))) == 3


def test_a_bracket_or_a_star_begins_no_argument() -> None:
    assert check_table(table("[a]", "*b"))[1][0] == "{[}a]"


def test_both_ends_of_an_interval_have_a_minus_and_names_keep_their_hyphens() -> None:
    written = latex(Table(["a"], [["-0.0234 to -0.0058"], ["rate-0.5 (-1)"], ["2026-11-16"]], 1), "c", "l")
    assert [row[0] for row in check_table(written)] == [
        "a",
        "$-$0.0234 to $-$0.0058",
        "rate-0.5 ($-$1)",
        "2026-11-16",
    ]


def test_marks_are_explained_below_the_table() -> None:
    note = "▲ ▼: significantly above or below the baseline"
    written = latex(Table(["a"], [[Cell("0.1", mark="▼")]], 1, [note]), "c", "l")
    assert check_table(written)[1] == [r"0.1$^{\downarrow}$"]
    below = written.partition("\\end{tabular}")[2]
    assert r"{\footnotesize $^{\uparrow}$ $^{\downarrow}$: significantly above or below the baseline\par}" in below


@pytest.mark.parametrize(
    "broken",
    [
        ("a & b", "a & b & c"),
        ("a & b", "a_1 & b"),
        ("a & b", "{a & b"),
        ("a & b", "50 % & b"),
        ("a & b", "$a & b"),
        ("a & b", "\\unknown & b"),
        ("a & b", "[a & b"),
        ("a & b", "a ± 1 & b"),
        ("{table}", "{tabel}"),
        ("\\midrule", "\\middlerule"),
    ],
)
def test_the_reader_is_strict(broken: tuple[str, str]) -> None:
    good = table("a", "b")
    assert check_table(good)
    with pytest.raises(ValueError):
        check_table(good.replace(*broken))


@pytest.mark.long
def test_every_table_of_a_report_is_one_that_latex_takes(tmp_path: Path) -> None:
    write_experiment(tmp_path / "runs", experiment="50_%_#1")
    for variant in ("krum_{2}", "mean & median", "[best]"):
        for seed in (1, 2, 3):
            write_run(tmp_path / "runs", "50_%_#1", variant, seed=seed, nothing=0.3)
    write_report(load_runs(tmp_path / "runs"), tmp_path / "report.html", figures=tmp_path / "paper")
    tables = sorted((tmp_path / "paper").glob("*.tex"))
    assert {"final.tex", "cost.tex", "against-nothing.tex"} <= {file.name for file in tables}
    for file in tables:
        assert len(check_table(file.read_text(encoding="utf-8"))) >= 3, file.name
