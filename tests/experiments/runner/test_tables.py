"""Tables of run folders: every name comes back as it was, and what is being written is not read as if it were whole."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.report.write import numbers
from fedrank.experiments.runner.folder import table
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.scoring import Quality
from tests.experiments.report.made_up_runs import write_experiment, write_run

ODD = ['"', '"a', '"b"', "c,d", 'e",f', "g\rh", "i\nj", "k\r\nl", " m ", "'n'", "=o", "", "1:x:2", "日本", "\ufeffp"]


def test_query_ids_come_back_as_they_were(tmp_path):
    folder = write_run(tmp_path)
    values = [index / 7 for index in range(len(ODD))]
    (folder / "queries.csv").write_text(table(["query", "ndcg@10"], zip(ODD, values, strict=True)), newline="")
    [run] = load_runs(folder)
    ids, measures = run.queries
    assert ids.tolist() == ODD
    assert measures["ndcg@10"].tolist() == values
    assert run.checked().status == "finished"


def test_values_per_query_and_reports_quote_alike(tmp_path):
    values = np.array([[index / 7 for index in range(len(ODD))]])
    rows = list(csv.reader(io.StringIO(Quality(("map",), np.array(ODD), values).csv(), newline=""), strict=True))
    assert [row[0] for row in rows] == ["query", *ODD]
    variant = 'a "b", c'
    write_run(tmp_path, variant=variant, settings={'key, "x"': "line\nbreak"})
    write_experiment(tmp_path)
    header, *rows = list(csv.reader(io.StringIO(numbers(analyse(load_runs(tmp_path))), newline=""), strict=True))
    assert {len(row) for row in rows} == {len(header)}
    assert {row[header.index("variant")] for row in rows} == {variant}
    assert 'key, "x"' in header


@pytest.mark.parametrize("text", ['query,map\n"a,0.5\n"b,0.5\n', 'query,map\n"a"b,0.5\n', "query,map\na\rb,0.5\n"])
def test_quotes_that_do_not_fit_are_no_ids(tmp_path, text):
    folder = write_run(tmp_path)
    (folder / "queries.csv").write_text(text, newline="")
    [run] = load_runs(folder).checked()
    assert run.status == "broken"
    assert run.reason.startswith("queries.csv")


@pytest.mark.parametrize("file", ["rounds.csv", "queries.csv", "nothing.csv"])
def test_lines_may_end_as_on_any_system_and_cells_may_stand_in_quotes(tmp_path, file):
    folder = write_run(tmp_path)
    if file == "nothing.csv":
        (folder / file).write_bytes((folder / "queries.csv").read_bytes())
    plain = (folder / file).read_text()
    assert ",\n" in plain
    found = []
    for text in (plain, plain.replace("\n", "\r\n"), plain.replace(",\n", ',""\n'), plain.removesuffix("\n")):
        (folder / file).write_text(text, newline="")
        [run] = [replace(run, status="finished", error=None) for run in load_runs(folder)]
        read = {"rounds.csv": run.rounds, "queries.csv": run.queries[1], "nothing.csv": run.nothing}[file]
        found.append({**read})
    for other in found[1:]:
        np.testing.assert_equal(other, found[0])


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("file", ["rounds.csv", "queries.csv", "nothing.csv"])
def test_a_row_of_another_width_and_a_file_of_nothing_are_told(tmp_path, file, quote):
    folder = write_run(tmp_path)
    (folder / file).write_text(f"round,map\n{quote}1{quote},0.5\n2,0.5,7\n40,0.5\n")
    [run] = load_runs(folder).checked()
    assert run.reason == f"{file} line 3 has 3 cells where the header has 2"
    for text in ("", "\n", "\r\n", "\r\n\r\n"):
        (folder / file).write_text(text, newline="")
        [run] = [replace(run, status="finished", error=None).checked() for run in load_runs(folder)]
        assert run.reason == f"{file} is empty"


def test_an_id_longer_than_any_cell_is_a_clear_line(tmp_path):
    folder = write_run(tmp_path)
    (folder / "queries.csv").write_text(table(["query", "map"], [["x" * 200_000, 0.5]]))
    [run] = load_runs(folder).checked()
    assert "queries.csv cannot be read as CSV: field larger than" in run.reason


def test_a_number_that_was_cut_off_is_no_number(tmp_path):
    folder = write_run(tmp_path)
    file = folder / "rounds.csv"
    file.write_bytes(file.read_bytes()[:-4])  # the last row has all its cells, one of them with fewer digits
    [run] = load_runs(folder)
    assert run.status == "broken"
    assert "not with a complete row of round 40" in run.reason


@pytest.mark.parametrize("cut", [1, 4, 20])
def test_a_row_that_is_being_written_does_not_count_yet(tmp_path, cut):
    folder = write_run(tmp_path, status="interrupted")
    file = folder / "rounds.csv"
    whole = load_runs(folder)[0]
    rounds = {name: column[:-1].tolist() for name, column in whole.rounds.items()}
    file.write_bytes(file.read_bytes()[:-cut])
    [run] = load_runs(folder)
    np.testing.assert_equal({name: column.tolist() for name, column in run.rounds.items()}, rounds)
    assert run.latest_value == (run.measures[0], run.final_value(run.measures[0]))


@pytest.mark.parametrize(("rounds", "every"), [(3, 1), (40, 2), (40, 50), (3000, 1), (3000, 200)])
def test_quality_so_far_is_read_from_the_end(tmp_path, rounds, every):
    folder = write_run(tmp_path, rounds=rounds, every=every)
    [run] = load_runs(folder)
    column, value = run.latest_value
    assert column == "ndcg@10"
    np.testing.assert_equal(value, run.final_value(column))


def test_a_file_that_changes_between_two_readings_is_read_anew_even_if_the_clock_jumped_back(tmp_path):
    import os

    folder = write_run(tmp_path)
    [run] = load_runs(folder)
    file = folder / "rounds.csv"
    before, state = run.rounds["round"].tolist(), file.stat()
    new = folder / "new"
    new.write_bytes(file.read_bytes().replace(b"\n1,", b"\n7,"))
    os.utime(new, ns=(state.st_atime_ns, state.st_mtime_ns))
    new.replace(file)
    assert file.stat().st_mtime_ns == state.st_mtime_ns
    assert file.stat().st_size == state.st_size
    assert (before[0], run.rounds["round"][0]) == (1, 7)


def test_a_folder_deleted_while_a_report_is_written_is_left_out(tmp_path):
    import shutil

    write_experiment(tmp_path)
    gone = write_run(tmp_path, seed=1)
    write_run(tmp_path, seed=2)
    runs = load_runs(tmp_path)
    shutil.rmtree(gone)
    [findings] = analyse(runs)
    assert [run.status for run in findings.runs] == ["broken", "finished"]
    assert findings.unfinished[0].reason == f"{gone / 'rounds.csv'}: No such file or directory"


def test_counts_that_many_runs_share_are_read_once_and_those_of_others_anew(tmp_path):
    changes = ((), (), (("\n2,", "\n2.5,"),), ((",50,", ",51,"),), ())
    for seed, change in enumerate(changes, 1):
        file = write_run(tmp_path, seed=seed, rounds=6) / "rounds.csv"
        text = file.read_text()
        for before, after in change:
            assert before in text
            text = text.replace(before, after)
        file.write_text(text)
    for run in load_runs(tmp_path):
        header, *rows = csv.reader((run.path / "rounds.csv").read_text().splitlines())
        for name, cells in zip(header, zip(*rows, strict=True), strict=True):
            wanted = [float(cell) if cell else np.nan for cell in cells]
            np.testing.assert_array_equal(run.rounds[name], wanted)
            assert not run.rounds[name].flags.writeable
