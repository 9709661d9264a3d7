"""Where a result comes from, and that other data under a finished run are told."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import fedrank as fr
from fedrank.experiments.runner import provenance
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.provenance import changed_files, checksum, data_sums, processor
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import plan, run_experiment
from fedrank.experiments.spec.grid import read_tables
from tests.experiments.runner.test_run import content, one_task, tables


def letor(path: Path, seed: int = 1) -> Path:
    rng = np.random.default_rng(seed)
    rows = [
        f"{rng.integers(3)} qid:{query} " + " ".join(f"{i}:{value:.3f}" for i, value in enumerate(rng.random(5), 1))
        for query in range(12)
        for _ in range(6)
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def files(tmp_path):
    return {"train": str(letor(tmp_path / "train.txt")), "test": str(letor(tmp_path / "test.txt", 2))}


def asked(files, **changes):
    return read_tables(tables(data=files, rounds=4, evaluate_every=2, **changes))


def facts(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def test_a_run_says_where_it_comes_from(tmp_path, files):
    [task] = plan(asked(files), "test", tmp_path / "runs")
    assert perform(task) == "finished"
    said = facts(task.folder)
    assert said["files"] == {path: sha256(Path(path)) for path in sorted(files.values())}
    assert datetime.fromisoformat(said["begun"]) <= datetime.fromisoformat(said["ended"])
    assert said["versions"]["python"] == platform.python_version()
    assert said["versions"]["numpy"] == np.__version__
    assert said["processor"] == processor() != ""
    assert said["commits"] == provenance.commits()
    [run] = load_runs(task.folder)
    assert run.files == said["files"]


def test_a_finished_run_of_the_same_data_is_not_repeated(tmp_path, files):
    grid = asked(files, seeds=[1, 2])
    run_experiment(grid, "test", tmp_path / "runs")
    os.utime(files["train"])  # another time is no other file
    assert len(run_experiment(grid, "test", tmp_path / "runs").skipped) == 2


def test_other_data_under_a_finished_run_are_told(tmp_path, files):
    grid = asked(files)
    [task] = plan(grid, "test", tmp_path / "runs")
    run_experiment(grid, "test", tmp_path / "runs")
    before = content(task.folder)
    old = Path(files["test"]).read_bytes()
    letor(Path(files["test"]), 3)
    with pytest.raises(
        FileExistsError, match=rf"finished with other data: {files['test']} changed since .* restore the"
    ):
        run_experiment(grid, "test", tmp_path / "runs")
    assert content(task.folder) == before
    Path(files["test"]).write_bytes(old)
    assert len(run_experiment(grid, "test", tmp_path / "runs").skipped) == 1


def test_data_that_change_while_a_process_lives_are_read_again(tmp_path, files):
    """As in a notebook: what run.json says was read is what was read."""
    grid = asked(files)
    [first] = run_experiment(grid, "first", tmp_path / "runs").finished
    letor(Path(files["train"]), 3)
    [second] = run_experiment(grid, "second", tmp_path / "runs").finished
    assert changed_files(facts(first.folder)["files"], facts(second.folder)["files"]) == [files["train"]]
    assert (first.folder / "rounds.csv").read_bytes() != (second.folder / "rounds.csv").read_bytes()


def test_a_run_is_not_resumed_on_other_data(tmp_path, files, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    grid = asked(files)
    [task] = plan(grid, "test", tmp_path / "runs")
    calls = iter([False] * 2 + [True])
    assert perform(task, stop=lambda: next(calls)) == "interrupted"
    letor(Path(files["train"]), 3)
    with pytest.raises(FileExistsError, match=r"was begun with other data"):
        run_experiment(grid, "test", tmp_path / "runs")


def test_a_failed_run_may_begin_again_with_mended_data(tmp_path, files):
    grid = asked(files)
    [task] = plan(grid, "test", tmp_path / "runs")
    good = Path(files["train"]).read_text()
    Path(files["train"]).write_text("this is no LETOR file\n")
    assert perform(task) == "failed"
    assert facts(task.folder)["files"]
    Path(files["train"]).write_text(good)
    assert len(run_experiment(grid, "test", tmp_path / "runs").finished) == 1


def test_data_that_are_gone_do_not_undo_what_was_done(tmp_path, files):
    grid = asked(files)
    run_experiment(grid, "test", tmp_path / "runs")
    Path(files["train"]).unlink()
    assert len(run_experiment(grid, "test", tmp_path / "runs").skipped) == 1


def test_folders_of_older_versions_are_as_finished_as_before(tmp_path, files):
    grid = asked(files)
    [task] = plan(grid, "test", tmp_path / "runs")
    run_experiment(grid, "test", tmp_path / "runs")
    old = facts(task.folder)
    for name in ("files", "begun", "ended", "commits", "versions", "processor"):
        del old[name]
    (task.folder / "run.json").write_text(json.dumps(old))
    letor(Path(files["train"]), 3)
    assert len(run_experiment(grid, "test", tmp_path / "runs").skipped) == 1


def test_a_resumed_run_began_when_it_did(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    task = one_task(tmp_path)
    calls = iter([False] * 9 + [True])
    assert perform(task, stop=lambda: next(calls)) == "interrupted"
    said = facts(task.folder)
    assert "ended" not in said
    (task.folder / "run.json").write_text(json.dumps(said | {"begun": "2020-01-01T00:00:00+00:00"}))
    assert perform(task) == "finished"
    assert facts(task.folder)["begun"] == "2020-01-01T00:00:00+00:00"
    assert facts(task.folder)["ended"] > "2020"


def test_what_is_built_in_has_no_file(tmp_path):
    assert data_sums(one_task(tmp_path).experiment) == {}
    silo = {"kind": "silo", "rounds": 1, "data": {"name": "synthetic-silos"}, "method": {"name": "local"}}
    assert data_sums(read_tables(silo).base) == {}


def test_sets_of_the_catalog_are_named_by_their_parts(tmp_path, monkeypatch):
    for fold in (1, 2):
        for part in ("train", "vali", "test"):
            (tmp_path / "MQ2007" / f"Fold{fold}").mkdir(parents=True, exist_ok=True)
            letor(tmp_path / "MQ2007" / f"Fold{fold}" / f"{part}.txt", fold)
    monkeypatch.setenv("FEDRANK_DATA", str(tmp_path))
    [task] = plan(read_tables(tables(data={"name": "mq2007", "folds": [2]})), "test", tmp_path / "runs")
    folder = tmp_path / "MQ2007" / "Fold2"
    expected = {f"mq2007/Fold2/{part}.txt": sha256(folder / f"{part}.txt") for part in ("train", "vali", "test")}
    assert data_sums(task.experiment) == expected


@pytest.mark.long
def test_collections_logs_and_models_to_begin_with_count(tmp_path, monkeypatch):
    from fedrank.data.synthetic_log import synthetic_log

    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text('{"_id": "a", "text": "flu"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "flu"}\n')
    (folder / "qrels.tsv").write_text("q\ta\t1\n")
    silo = {"kind": "silo", "rounds": 1, "data": {"folder": str(folder)}, "method": {"name": "local"}}
    names = {f"{folder}/{name}" for name in ("corpus.jsonl", "queries.jsonl", "qrels.tsv")}
    assert data_sums(read_tables(silo).base).keys() == names
    synthetic_log(tmp_path / "toy", users=5, seed=1)
    fr.build_log(tmp_path / "toy" / "log.tsv", tmp_path / "toy" / "corpus.jsonl", tmp_path / "log")
    asks = tables(data={"log": str(tmp_path / "log")}, clients={"count": 2, "partition": {"name": "users"}})
    read = data_sums(read_tables(asks).base)
    assert {f"{tmp_path}/log/{name}" for name in ("facts.json", "features.npy", "target.npy", "users.txt")} <= set(read)
    first = one_task(tmp_path / "runs", rounds=2)
    perform(first)
    second = one_task(tmp_path / "more", rounds=2, start=str(first.folder))
    assert data_sums(second.experiment) == {str(first.folder): sha256(first.folder / "model.json")}


def test_a_large_file_is_read_once_for_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(provenance, "cache_folder", lambda: tmp_path / "cache")
    file = tmp_path / "large.txt"
    file.write_bytes(b"x" * (provenance.SMALL + 1))
    assert checksum(file) == sha256(file)
    provenance._checksum.cache_clear()  # another process
    monkeypatch.setattr(provenance, "_digest", lambda file: pytest.fail("read again"))
    assert checksum(file) == sha256(file)
    monkeypatch.undo()
    monkeypatch.setattr(provenance, "cache_folder", lambda: tmp_path / "cache")
    file.write_bytes(b"y" * (provenance.SMALL + 1))
    assert checksum(file) == sha256(file)
    [kept, *_] = (tmp_path / "cache" / "checksums").iterdir()
    kept.write_text("damaged")
    provenance._checksum.cache_clear()
    assert checksum(file) == sha256(file)


def git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *own, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_code(tmp_path, monkeypatch):
    assert provenance._commit(tmp_path) == ""
    git(tmp_path, "init", "-q")
    assert provenance._commit(tmp_path) == ""  # nothing is committed yet
    code = tmp_path / "code.py"
    code.write_text("a = 1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert provenance._commit(tmp_path, "code.py") == provenance._commit(tmp_path) == commit
    assert provenance._commit(tmp_path, "installed.py") == ""  # it only lies there
    (tmp_path / "notes.txt").write_text("not in the repository")
    assert provenance._commit(tmp_path) == commit
    code.write_text("a = 2\n")
    assert provenance._commit(tmp_path) == f"{commit} with changes"
    git(tmp_path, "checkout", "-q", "code.py")
    asked = provenance._git

    def slow(folder, *words):
        if words[0] == "status":
            raise subprocess.TimeoutExpired("git", 1.0)
        return asked(folder, *words)

    monkeypatch.setattr(provenance, "_git", slow)
    assert provenance._commit(tmp_path) == f"{commit} perhaps with changes"


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance._commit(provenance.CODE) == ""


def test_a_report_says_where_its_numbers_come_from(tmp_path, files):
    run_experiment(asked(files, seeds=[1, 2]), "test", tmp_path / "runs")
    runs = load_runs(tmp_path / "runs")
    page = fr.write_report(runs, tmp_path / "report.md").read_text()
    told = page[page.index("Provenance") :]
    for text in (sha256(Path(files["train"])), sha256(Path(files["test"])), runs[0].begun, runs[0].processor):
        assert text in told
    assert f"numpy {np.__version__}" in told
    assert "cannot be compared" not in told
    run_experiment(asked(files, seeds=[3]), "more", tmp_path / "runs")
    letor(Path(files["train"]), 5)
    run_experiment(asked(files, seeds=[3]), "later", tmp_path / "runs")
    later = load_runs([tmp_path / "runs" / "more", tmp_path / "runs" / "later"])
    page = fr.write_report(later, tmp_path / "later.md").read_text()
    assert f"Runs read 2 different versions of {files['train']}, so their results are not comparable" in page
    other = facts(runs[0].path)
    (runs[0].path / "run.json").write_text(json.dumps(other | {"files": other["files"] | {files["test"]: "0" * 64}}))
    page = fr.write_report(load_runs(tmp_path / "runs" / "test"), tmp_path / "report.md").read_text()
    assert f"Runs read 2 different versions of {files['test']}, so their results are not comparable" in page
