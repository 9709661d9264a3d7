"""FOLTR-Bench: what a submission may set, what is frozen, and which folders are refused."""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.experiments.bench import confine, tasks
from fedrank.experiments.bench.board import card, comparison, leaderboard, read_entries, smallest_difference, write_page
from fedrank.experiments.bench.check import check_folder
from fedrank.experiments.bench.run import MANIFEST, recorded_files, run_submission
from fedrank.experiments.bench.submission import builtin_methods, read_submission
from fedrank.experiments.bench.tasks import SETTINGS, SKYLINE, cells_of, check_data, frozen, tasks_digest
from fedrank.experiments.report.contrast import Contrast
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.statistics import power_of
from fedrank.files import write_atomic

TWO = 'tasks = ["noniid"]\nserver = {{ name = "add", rate = {rate} }}\n'
CLASS = """
from dataclasses import dataclass

{before}
SUBMISSION = {{"tasks": ["poisoned"], "aggregator": {{"name": "Half", "share": 0.5}}}}


@dataclass(frozen=True)
class Half:
    share: float = 0.5
    other: float = 1.0

    def __call__(self, messages):
        return self.share * messages.updates.mean(axis=0)
"""


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_the_tasks_are_frozen():
    """A task never changes: a change needs another version, a new folder and a new digest here."""
    assert tasks_digest() == "73df6db2b78993a464ee5ddb1b18fb5fb5d781aafe54ee290b4c84ebf70504ef"
    assert list(SETTINGS) == ["online", "noniid", "poisoned", "private", "unlearning", "silos"]


def test_every_cell_states_its_power_and_every_data_set_its_content():
    cells = {f"{task}/{cell}" for task in SETTINGS for cell in cells_of(task)}
    assert set(frozen().smallest) == cells
    assert all(0 < value < 0.5 for value in frozen().smallest.values())
    grids = [tasks.task_grid(task, {cell: {} for cell in cells_of(task)}) for task in (*SETTINGS, SKYLINE)]
    read = {
        f"{one.experiment.data.name}/{fold}" for grid in grids for one in grid.variants for fold in grid.base.data.folds
    }
    assert set(frozen().data) == read
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in frozen().data.values())


def test_generated_data_have_the_frozen_content():
    grid = tasks.task_grid("silos", {"generated": {}}, short=True)
    found = tasks.data_digests([grid])
    assert list(found) == ["synthetic-silos/1"]
    check_data(found)
    with pytest.raises(ValueError, match="changed data: synthetic-silos, fold 1, does not have the content"):
        check_data({"synthetic-silos/1": "0" * 64})


@pytest.mark.parametrize("name", builtin_methods())
def test_built_in_methods_fit_the_tasks_that_they_enter(name):
    submission = read_submission(name)
    assert submission.tasks
    for task in submission.tasks:
        assert submission.grid(task).names == cells_of(task)
    assert submission.tried == 1


def test_every_task_has_a_built_in_method():
    entered = {task for name in builtin_methods() if name != SKYLINE for task in read_submission(name).tasks}
    assert entered == set(SETTINGS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('learner = "lambdarank"', "lambdarank uses the true relevance labels"),
        ("rounds = 5", "rounds: a submission cannot set it"),
        ("seeds = [9]", "seeds: a submission cannot set it"),
        ('[online]\nattack = "noise"', "online.attack: a submission cannot set it"),
        ('[private.epsilon-1]\nclients = 3\nserver = "add"', "private.epsilon-1.clients: a submission cannot set it"),
        ('server = "add"\ntried = 9', r"tried: must be 1 to 8, the same budget for all submissions \(got 9\)"),
        ('server = "add"\ntasks = ["offline"]', "tasks: unknown task 'offline'"),
        ('server = "add"\nname = "skyline"', "name: \"skyline\" cannot be used"),
        ('server = "add"\nname = "../x"', "cannot be used"),
        ("[private]\nepsilon-1 = 3", r"private.epsilon-1: 3 is not a table; write \[private.epsilon-1\]"),
        ('title = "empty"', "it enters no task"),
        ('mechanism = "lab:Own"', "a class of the submission would state its own ε"),
        ('method = "lab:Own"', "would see the documents of all silos"),
        ('method = { name = "cross-silo", counts = "exact" }', '"exact" reads the documents of other silos'),
    ],
)  # fmt: skip
def test_what_a_submission_cannot_set(tmp_path, text, reason):
    with pytest.raises(ValueError, match=reason) as found:
        read_submission(written(tmp_path, text))
    lines = str(found.value).splitlines()
    assert len(lines) == len(set(lines))  # once, not for every cell of a task


def test_keys_of_a_task_and_of_a_cell_come_last(tmp_path):
    text = """
    server = { name = "add", rate = 0.5 }
    [private]
    server = { name = "add", rate = 30.0 }
    [private.epsilon-1]
    server = { name = "add", rate = 20.0 }
    """
    one = read_submission(written(tmp_path, text))
    assert one.tasks == ["online", "noniid", "poisoned", "private"]
    rates = {
        (task, cell): one.parts(task, cell)["server"]["rate"]
        for task, cell in [("online", "generated-10"), ("private", "mq2008-epsilon-1"), ("private", "mq2008-epsilon-4")]
    }
    assert list(rates.values()) == [0.5, 20.0, 30.0]


def test_a_python_file_is_read_and_not_executed(tmp_path):
    file = written(tmp_path, CLASS.format(before="raise SystemExit"), "half.py")
    one = read_submission(file)
    assert one.parts("poisoned", "generated-ipm") == {"aggregator": {"name": "submission:Half", "share": 0.5}}
    assert (one.name, one.tasks) == ("half", ["poisoned"])
    for text in ("SUBMISSION = dict(a=1)", "x = 1", "SUBMISSION = ["):
        with pytest.raises(ValueError, match="half"):
            read_submission(written(tmp_path, text, "half.py"))


def test_seeds_follow_from_the_text_of_a_submission(tmp_path):
    one, other = (read_submission(written(tmp_path, TWO.format(rate=rate))) for rate in (0.5, 0.6))
    assert one.seeds(3)[:2] == one.seeds(2)
    assert not {*one.seeds(3)} & {*other.seeds(3)}
    assert one.grid("noniid", short=True, seeds=one.seeds(2)).base.seeds == one.seeds(2)


def test_the_smallest_difference_has_a_power_of_four_fifths():
    found = smallest_difference(Contrast(0.1, error=0.01, degrees_of_freedom=20.0))
    assert power_of(found, 0.01, 20.0) == pytest.approx(0.8, abs=1e-6)
    assert math.isnan(smallest_difference(Contrast(0.1)))


def test_the_published_leaderboard_has_every_method_in_every_cell_that_it_enters():
    page = (Path(__file__).parents[3] / "reproduction" / "foltr-bench.md").read_text(encoding="utf-8")
    for task in SETTINGS:
        table = page.split(f"\n## {task}\n")[1].partition("\n## ")[0]
        lines = [line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("|")]
        rows = {name: cells for name, *cells in lines}
        methods = [name for name in builtin_methods() if name != SKYLINE and task in read_submission(name).tasks]
        assert rows[""] == [*cells_of(task), "tried", "verified"]
        for name in (*methods, SKYLINE, "do nothing"):
            assert all(re.match(r"0\.\d{4} ± ", cell) for cell in rows[name][: len(cells_of(task))])
        powers = [f"{frozen().smallest[f'{task}/{cell}']:.4f}" for cell in cells_of(task)]
        assert rows["smallest difference"][: len(powers)] == powers


@pytest.fixture(scope="module")
def small():
    """Tasks of five rounds on one fold, so that a run takes a moment; their data and specs are checked as ever."""
    real = tasks._tables.__wrapped__

    def tables(task, short):
        made = copy.deepcopy(real(task, short))
        if task in ("noniid", SKYLINE, "unlearning"):
            made["rounds"], made["evaluate_every"], made["data"] = 5, 1, made["data"] | {"folds": [1]}
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "_tables", tables)
        yield


@pytest.fixture(scope="module")
def board(small, tmp_path_factory):
    """Three submissions: two to one task, and one to unlearning."""
    folder = tmp_path_factory.mktemp("bench")
    for name, text in (
        ("slow", TWO.format(rate=0.1)),
        ("fast", TWO.format(rate=2.0)),
        ("eraser", 'unlearner = { name = "fed-remove" }'),
    ):
        run_submission(read_submission(written(folder, text, f"{name}.toml")), folder, short=True)
    return folder / "short-1"


@pytest.fixture
def copied(board, tmp_path):
    shutil.copytree(board, tmp_path / "short-1")
    return tmp_path / "short-1"


def recorded_again(folder, **changes):
    """Write the manifest as someone would who wants to hide a change."""
    manifest = json.loads((folder / MANIFEST).read_text()) | changes
    manifest["files"] = recorded_files(folder, read_submission(folder).tasks)
    write_atomic(folder / MANIFEST, json.dumps(manifest))


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def tamper(folder: Path, how: str) -> None:
    run = folder / "noniid" / "generated-1" / "fold-1-seed-1"
    if how == "row":
        changed(run / "queries.csv", ",0.", ",0.9")
    elif how == "seed":
        run.rename(run.with_name("fold-1-seed-9"))
        recorded_again(folder)
    elif how == "missing run":
        shutil.rmtree(run)
        recorded_again(folder)
    elif how == "missing round":
        rows = (run / "rounds.csv").read_text().splitlines(keepends=True)
        (run / "rounds.csv").write_text("".join(rows[:-1]))
        recorded_again(folder)
    elif how == "missing cell":
        recorded_again(folder, cells={"noniid": ["generated-1"]})
    elif how == "spec":
        changed(run / "spec.toml", "interactions = 5", "interactions = 50")
        recorded_again(folder)
    elif how == "data":
        recorded_again(folder, data={"synthetic-mq2007/1": "0" * 64})
    elif how == "no data":
        recorded_again(folder, data={})
    elif how == "submission":
        changed(folder / "submission.toml", "rate = 2.0", "rate = 3.0")
    elif how == "version":
        recorded_again(folder, tasks="0" * 64)
    elif how == "manifest":
        (folder / MANIFEST).write_text('{"bench": 1}')
    else:
        (folder / MANIFEST).unlink()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("row", "changed rows: noniid/generated-1/fold-1-seed-1/queries.csv"),
        ("seed", "other seeds: noniid/generated-1/fold-1-seed-9"),
        ("missing run", "missing rows: noniid/generated-1/fold-1-seed-1"),
        ("missing round", "missing rows: noniid/generated-1/fold-1-seed-1 is broken (rounds.csv ends with"),
        ("missing cell", "missing rows: noniid/generated-2"),
        ("spec", "other settings: noniid/generated-1/fold-1-seed-1 differs from the task in clients"),
        ("data", "changed data: synthetic-mq2007, fold 1"),
        ("no data", "changed data: bench.json does not record synthetic-mq2007, fold 1"),
        ("submission", "changed submission"),
        ("version", "it was run with other tasks"),
        ("manifest", "bench.json"),
        ("stopped", "it is not complete"),
    ],
)
def test_a_bad_folder_is_refused_by_name_and_the_others_stay(copied, how, reason):
    tamper(copied / "fast", how)
    entries, refused = read_entries([copied / "fast", copied / "slow", copied / "eraser"])
    assert [entry.name for entry in entries] == ["slow", "eraser"]
    assert len(refused) == 1
    assert refused[0].startswith("fast: ")
    assert reason in refused[0]
    text = markdown(leaderboard(entries, refused))
    assert "slow" in text
    assert f"- {refused[0].split(' (')[0]}" in text


def test_unlearning_must_be_what_the_submission_says(copied):
    [run, *_] = sorted((copied / "eraser" / "unlearned").glob("*/fold-*"))
    changed(run / "run.json", '"fed-remove"', '"retrain"')
    recorded_again(copied / "eraser")
    with pytest.raises(ValueError, match="eraser: other settings: unlearned/"):
        check_folder(copied / "eraser")
    shutil.rmtree(run)
    recorded_again(copied / "eraser")
    with pytest.raises(ValueError, match="eraser: missing rows: unlearned/generated/fold-1-seed-1"):
        check_folder(copied / "eraser")


def test_pages(board, tmp_path):
    entries, refused = read_entries([board / "fast", board / "slow", board / "eraser"])
    assert not refused
    fast, slow, eraser = entries
    text = markdown(comparison(fast, slow, entries))
    assert "noniid/generated-1" in text
    assert "fast against slow" in text
    with pytest.raises(ValueError, match="no task in common"):
        comparison(fast, eraser, entries)
    text = markdown(card(eraser, entries))
    assert "of the cost of training again" in text
    assert "1 of 8 permitted" in text
    rows = [line for line in markdown(leaderboard(entries, [])).splitlines() if line.startswith("| ")]
    assert [line.split(" |")[0][2:] for line in rows if "noniid" not in line][1:5] == [
        ":---", "do nothing", "skyline", max(fast, slow, key=lambda one: one.rows["noniid", "generated-1"].summary(
            "ndcg@10").mean).name,
    ]  # fmt: skip
    page = tmp_path / "page.html"
    write_page("FOLTR-Bench", leaderboard(entries, []), page)
    before = page.read_bytes()
    with pytest.raises(ValueError, match="must end in"):
        write_page("FOLTR-Bench", [], tmp_path / "page.txt")
    assert page.read_bytes() == before


def test_the_commands(copied, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    page, folders = tmp_path / "page.md", [str(copied / name) for name in ("fast", "slow", "eraser")]

    def compare(*words):
        return CliRunner().invoke(app, ["bench", "compare", *words])

    assert compare(*folders, "--out", str(page)).exit_code == 0
    assert "Card: slow" in compare(folders[1]).output
    assert "fast against slow" in compare(*folders[:2]).output
    assert "are the same submission" in str(compare(folders[0], folders[0]).exception)
    (copied / "fast" / MANIFEST).unlink()
    done = compare(*folders, "--out", str(page))
    assert (done.exit_code, "fast: it is not complete" in page.read_text(encoding="utf-8")) == (1, True)
    assert "slow" in page.read_text(encoding="utf-8")


def test_verification_compares_public_with_derived_seeds(board):
    submission = read_submission(board / "slow")
    folder = run_submission(submission, board.parent, short=True, verify=True)
    found = json.loads((folder / "verified.json").read_text())
    assert check_folder(folder).overfitted == tuple(found["overfitted"])
    runs = {path.name for path in (folder / "verify" / "noniid" / "generated-1").iterdir()}
    assert runs == {f"fold-1-seed-{seed}" for seed in submission.seeds(2)}
    assert {*found["cells"]} == {"noniid/generated-1", "noniid/generated-2"}
    row = found["cells"]["noniid/generated-1"]
    assert row["difference"] == pytest.approx(row["public"] - row["derived"])
    assert found["overfitted"] == [cell for cell, row in found["cells"].items() if row["difference"] > row["limit"]]


def test_another_submission_with_the_same_name_is_not_overwritten(board, tmp_path):
    other = read_submission(written(tmp_path, TWO.format(rate=7.0), "slow.toml"))
    with pytest.raises(FileExistsError, match="contains another submission with the name 'slow'"):
        run_submission(other, board.parent, short=True)


FORKS = """
import os, time

for _ in range(120):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1e6)
time.sleep(1e6)
"""
MANY = """
import os, time

for _ in range(8):
    if os.fork() == 0:
        break
big = bytearray(1 << 26)
time.sleep(1e6)
"""
PICKLE = """
import os, pickle, struct, time
from contextlib import suppress


class Run:
    def __reduce__(self):
        return os.mkdir, ("OUTSIDE",)


told = pickle.dumps(Run())
for pipe in range(3, 64):
    with suppress(OSError):
        os.write(pipe, struct.pack("!i", len(told)) + told)
time.sleep(1e6)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("raise RuntimeError('boom')", "boom"),
        ("import time; time.sleep(1e6)", "did not finish within 0.05 minutes"),
        ("import os; os._exit(7)", r"its process ended \(exit code 7\)"),
        ("big = bytearray(1 << 45)", "MemoryError|memory|cannot be imported"),
        (FORKS, "its code started more than 100 processes, and was ended"),
        (PICKLE, "its process sent an invalid message|its process ended"),
        (MANY, "its code used more than 0 GiB of memory, and was ended"),
        ("open('OUTSIDE', 'w')", "Permission denied: 'OUTSIDE'"),
        ("import shutil; shutil.rmtree('OTHERS')", "Permission denied"),
    ],
)
def test_code_that_fails_or_hangs_is_refused_by_name(tmp_path, board, monkeypatch, before, reason):
    if before == MANY:
        monkeypatch.setattr(confine, "MEMORY", 1 << 29)
    outside, others = tmp_path / "outside", board / "slow"
    before, reason = (text.replace("OUTSIDE", str(outside)).replace("OTHERS", str(others)) for text in (before, reason))
    submission = read_submission(written(tmp_path, CLASS.format(before=before), "half.py"))
    processes = confine.adopt_orphans()
    with pytest.raises(ValueError, match=rf"half: poisoned: .*({reason})"):
        run_submission(
            submission, tmp_path / "out", short=True, minutes=0.05 if before.endswith("; time.sleep(1e6)") else 60
        )
    _, refused = read_entries([tmp_path / "out" / "short-1" / "half"])
    assert refused == [
        "half: it is not complete (bench.json is missing); run `fedrank bench run` on the submission to the end"
    ]
    assert not outside.exists()
    assert check_folder(others).name == "slow"
    assert not confine.descendants(processes)


@pytest.mark.process
@pytest.mark.long
def test_a_class_of_a_submission_runs_in_its_own_process(tmp_path):
    file = written(tmp_path, CLASS.format(before=""), "half.py")
    done = CliRunner().invoke(app, ["bench", "run", str(file), "--out", str(tmp_path), "--short", "--quiet"])
    assert done.exit_code == 0, done.output
    assert "Card: half" in (tmp_path / "short-1" / "half" / "card.md").read_text(encoding="utf-8")
    entries, refused = read_entries([tmp_path / "short-1" / "half"])
    assert ([entry.name for entry in entries], refused) == ([SKYLINE, "half"], [])
    found = entries[1]
    assert {*found.rows} == {("poisoned", "generated-clicks"), ("poisoned", "generated-ipm")}
    assert all(len(row.repeats) == 4 for row in found.rows.values())
