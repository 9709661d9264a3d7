"""Runs: what they write, and that stopping one at any moment changes nothing."""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.runs import load_runs, working_on
from fedrank.experiments.runner.schedule import _without_ctrl_c, plan, run_experiment
from fedrank.experiments.runner.writer import Task
from fedrank.experiments.spec.experiment import to_toml
from fedrank.experiments.spec.grid import read_tables
from fedrank.ranking.measures import Evaluator
from fedrank.trees.model_files import load_model
from tests import needs


def tables(**changes):
    base = {
        "title": "a test",
        "rounds": 60,
        "evaluate_every": 7,
        "measures": ["ndcg@10", "mrr@10"],
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": 4, "interactions": 3, "click_model": "navigational"},
        "learner": {"name": "pdgd"},
    }
    return base | changes


def one_task(folder, **changes) -> Task:
    [task] = plan(read_tables(tables(**changes)), "test", folder)
    return task


def content(folder) -> dict[str, bytes]:
    names = ("rounds.csv", "queries.csv", "rewards.csv", "model.json", "spec.toml")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def test_a_run_writes_what_it_promises(tmp_path):
    task = one_task(tmp_path)
    news = []
    assert perform(task, on_progress=news.append) == "finished"
    rows = list(csv.DictReader((task.folder / "rounds.csv").read_text().splitlines()))
    assert [int(row["round"]) for row in rows] == list(range(1, 61))
    assert [int(row["round"]) for row in rows if row["ndcg@10"]] == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert int(rows[-1]["interactions"]) == 60 * 4 * 3
    assert int(rows[-1]["bytes_up"]) == int(rows[-1]["bytes_down"]) == 60 * 4 * 46 * 4
    facts = json.loads((task.folder / "run.json").read_text())
    assert (facts["status"], facts["round"], facts["error"]) == ("finished", 60, None)
    assert facts["data"]["features"] == 46
    assert not (task.folder / "checkpoint.npz").exists()
    assert news[-1].round == 60
    [run] = load_runs(tmp_path)
    model = load_model(task.folder)
    from fedrank.data.catalog import load

    expected = Evaluator(load("synthetic-mq2007").test, ["ndcg@10", "mrr@10"])(model.weights, model.ranker)
    assert [float(rows[-1][name]) for name in ("ndcg@10", "mrr@10")] == pytest.approx(expected, abs=1e-9)
    ids, values = run.queries
    assert len(ids) == load("synthetic-mq2007").test.queries
    assert np.nanmean(values["ndcg@10"]) == pytest.approx(expected[0])


def test_the_same_spec_gives_the_same_bytes_whatever_the_threads(tmp_path):
    many = {"clients": {"count": 400, "interactions": 3}, "rounds": 8, "evaluate_every": 2}
    one, two = one_task(tmp_path / "a", **many), one_task(tmp_path / "b", **many)
    assert perform(one, threads=1) == perform(two, threads=2) == "finished"
    assert content(one.folder) == content(two.folder)


NEURAL = {"name": "mlp", "hidden": 4}


@pytest.mark.parametrize(
    "methods",
    [
        {"learner": {"name": "pdgd"}},
        {"learner": {"name": "pdgd", "ranker": NEURAL}},
        {"learner": {"name": "pdgd", "ranker": NEURAL}, "local": "fedper", "fine_tune": 3},
        {"local": "scaffold", "clients": {"count": 6, "participation": 0.5}},
        {"server": {"name": "momentum"}},
        {"learner": {"name": "evolution", "truth": 0.9}, "server": {"name": "adam"}},
        {
            "clients": {
                "count": 3,
                "partition": {"name": "shared", "partition": {"name": "labels"}, "share": 0.1, "warm_up": 20},
            }
        },
    ],
    ids=["linear", "neural", "fedper", "scaffold", "momentum", "evolution", "shared"],
)
def test_stopping_and_resuming_changes_nothing(tmp_path, methods, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    whole = one_task(tmp_path / "whole", **methods)
    assert perform(whole) == "finished"
    parts = one_task(tmp_path / "parts", **methods)
    stops = 0
    # A stop after every few rounds, at rounds that are evaluated and rounds that are not.
    while True:
        left = random.Random(stops).randint(1, 12)

        def stop():
            nonlocal left
            left -= 1
            return left <= 0

        status = perform(parts, stop=stop)
        if status == "finished":
            break
        assert status == "interrupted"
        [run] = load_runs(parts.folder)
        assert run.status == "interrupted"
        stops += 1
    assert stops >= 4
    assert content(whole.folder) == content(parts.folder)
    queries, rewards = load_runs(whole.folder)[0].rewards
    if "truth" in methods.get("learner", {}):
        assert len(queries) == load_runs(whole.folder)[0].data["train_queries"]
        assert 0 < rewards["reward"].mean() < 1
    else:
        assert not len(queries)


def test_apart_and_partial_participation_resume_too(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    for changes in ({"aggregator": {"name": "none"}}, {"clients": {"count": 10, "participation": 0.3}}):
        whole, parts = one_task(tmp_path / f"w{len(changes)}", **changes), one_task(tmp_path / "p", **changes)
        perform(whole)
        calls = iter([False] * 9 + [True])
        assert perform(parts, stop=lambda calls=calls: next(calls)) == "interrupted"
        assert perform(parts) == "finished"
        assert content(whole.folder) == content(parts.folder)
        shutil.rmtree(tmp_path / "p")
        shutil.rmtree(whole.folder)


@pytest.mark.parametrize(
    "methods",
    [
        {},
        {"server": {"name": "adam"}, "clients": {"count": 7, "interactions": [1, 4], "participation": 0.5}},
        {"learner": {"name": "pdgd", "ranker": NEURAL}, "aggregator": {"name": "mean", "weighted": False}},
    ],
    ids=["linear", "some", "neural"],
)
def test_many_rounds_at_once_write_the_same_bytes_and_can_be_stopped(tmp_path, methods, monkeypatch):
    whole, parts = one_task(tmp_path / "whole", **methods), one_task(tmp_path / "parts", **methods)
    assert perform(whole) == "finished"
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    monkeypatch.setattr("fedrank.federated.backends.ENOUGH_ROUNDS", 1)
    stopped = []
    for rounds in (1, 5, 19):  # in the middle of what one call did
        calls = iter([False] * (rounds - 1) + [True])
        assert perform(parts, stop=lambda calls=calls: next(calls)) == "interrupted"
        stopped.append(load_runs(parts.folder)[0].round)
    assert stopped == [1, 1 + 5, 1 + 5 + 19]
    assert perform(parts) == "finished"
    assert content(whole.folder) == content(parts.folder)


KILLED = """
import sys
import fedrank.experiments.runner.writer as writer
from fedrank.experiments.runner.perform import perform
from tests.experiments.runner.test_run import one_task
writer.SECONDS_BETWEEN_CHECKPOINTS = 0.02
writer.SECONDS_BETWEEN_NEWS = 0.005
perform(one_task(sys.argv[1], rounds=4000, evaluate_every=10))
"""


@pytest.mark.process
def test_kill_at_any_moment_then_resume_equals_uninterrupted(tmp_path):
    whole = one_task(tmp_path / "whole", rounds=4000, evaluate_every=10)
    perform(whole)
    killed = one_task(tmp_path / "killed", rounds=4000, evaluate_every=10)
    rng = random.Random(5)
    resumed_at = []
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "killed")])
        begun = (killed.folder / "checkpoint.npz").stat().st_mtime_ns if resumed_at else 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            checkpoint = killed.folder / "checkpoint.npz"
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns > begun:
                break
            time.sleep(0.001)
        time.sleep(rng.random() * 0.05)  # anywhere: while learning, writing rows, or replacing the checkpoint
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (killed.folder / "checkpoint.npz").exists():
            with np.load(killed.folder / "checkpoint.npz") as kept:
                resumed_at.append(int(kept["round"]))
    assert resumed_at, "the run was never caught in the middle"
    assert resumed_at == sorted(resumed_at)
    assert perform(killed) == "finished"
    assert content(whole.folder) == content(killed.folder)


def test_a_torn_last_line_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    whole, torn = one_task(tmp_path / "whole"), one_task(tmp_path / "torn")
    perform(whole)
    calls = iter([False] * 20 + [True])
    perform(torn, stop=lambda: next(calls))
    with (torn.folder / "rounds.csv").open("a") as file:
        file.write("22,0.31,9" * 10_000)  # more than the rest of the run will write: a disk gone wrong
    assert perform(torn) == "finished"
    assert content(whole.folder) == content(torn.folder)


def test_a_lost_checkpoint_begins_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    whole, lost = one_task(tmp_path / "whole"), one_task(tmp_path / "lost")
    perform(whole)
    calls = iter([False] * 20 + [True])
    perform(lost, stop=lambda: next(calls))
    (lost.folder / "checkpoint.npz").unlink()
    assert perform(lost) == "finished"
    assert content(whole.folder) == content(lost.folder)


def test_a_failing_run_says_where_and_takes_nobody_with_it(tmp_path):
    asked = read_tables(
        tables(vary={"learner.rate": [0.1, 1e300]}, rounds=40, learner={"name": "pdgd", "rate": 0.1}),
    )
    results = run_experiment(asked, "test", tmp_path)
    assert [task.variant for task in results.finished] == ["learner.rate=0.1"]
    [(task, reason)] = results.failed
    assert task.variant == "learner.rate=1e+300"
    assert "the update is not finite; reduce learner.rate" in reason
    assert "round 2" in reason  # in round 1 nobody clicked
    assert "client" in reason
    [run] = load_runs(task.folder)
    assert (run.status, run.error["round"]) == ("failed", 2)
    again = run_experiment(asked, "test", tmp_path)
    assert len(again.skipped) == 1
    assert len(again.failed) == 1


def test_finished_runs_are_not_repeated_and_other_specs_not_overwritten(tmp_path):
    asked = read_tables(tables(rounds=5))
    run_experiment(asked, "test", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.parent.name == "fold-1-seed-1"}
    results = run_experiment(asked, "test", tmp_path)
    assert (len(results.skipped), len(results.finished)) == (1, 0)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    with pytest.raises(FileExistsError, match="contains a run of another spec"):
        run_experiment(read_tables(tables(rounds=6)), "test", tmp_path)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.process
def test_processes_give_the_same_bytes(tmp_path):
    asked = read_tables(tables(seeds=[1, 2, 3], rounds=20))
    alone = run_experiment(asked, "test", tmp_path / "one")
    together = run_experiment(asked, "test", tmp_path / "two", workers=2)
    assert multiprocessing.active_children() == []  # they end before the command does
    assert len(alone.finished) == len(together.finished) == 3
    for task in alone.finished:
        other = tmp_path / "two" / task.folder.relative_to(tmp_path / "one")
        assert content(task.folder) == content(other)


INTERRUPTED = """
import sys
from fedrank.experiments.runner.schedule import _without_ctrl_c, run_experiment
from fedrank.experiments.spec.grid import read_tables
from tests.experiments.runner.test_run import tables
if __name__ == "__main__":
    asked = read_tables(tables(rounds=200_000, seeds=[1, 2, 3]))
    results = run_experiment(asked, "test", sys.argv[1], workers=int(sys.argv[2]))
    print("interrupted", len(results.interrupted), "failed", len(results.failed))
"""


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_leaves_a_state_that_can_be_resumed(tmp_path, workers):
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs"), str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/test/only/*/rounds.csv")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody receives it
    output, _ = process.communicate(timeout=60)
    assert "interrupted 3 failed 0" in output
    started = load_runs(tmp_path / "runs")
    assert {run.status for run in started} == {"interrupted"}
    assert max(run.round for run in started) > 0


@pytest.mark.process
@needs.posix
def test_what_is_started_does_not_receive_ctrl_c_and_who_starts_it_does():
    def start():
        asked = "import signal; exit(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
        with _without_ctrl_c():
            child = os.posix_spawn(sys.executable, [sys.executable, "-c", asked], os.environ)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # this thread: others do not block it
            assert signal.SIGINT in signal.sigpending()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background commands without it
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.process
@needs.linux
def test_ctrl_c_while_workers_start_is_no_traceback(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs"), "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    children, deadline = Path(f"/proc/{process.pid}/task/{process.pid}/children"), time.monotonic() + 120

    def importing() -> bool:
        """Whether both workers are past Python's own start, and not yet at work."""
        with contextlib.suppress(OSError):
            maps = [Path(f"/proc/{child}/maps").read_text() for child in children.read_text().split()]
            return sum("numpy" in text for text in maps) == 2
        return False

    try:
        while not importing() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "Traceback" not in output
    assert "interrupted 3 failed 0" in output


@pytest.mark.process
def test_a_killed_worker_is_reported_and_the_others_go_on(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(INTERRUPTED.replace("200_000", "3_000"))
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs"), "2"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline = time.monotonic() + 60
    victim = None
    while victim is None and time.monotonic() < deadline:
        for facts in tmp_path.glob("runs/test/only/*/run.json"):
            try:
                victim = json.loads(facts.read_text())["pid"]
            except (OSError, ValueError):
                continue
        time.sleep(0.01)
    os.kill(victim, signal.SIGKILL)
    output, _ = process.communicate(timeout=100)
    assert "failed 1" in output
    states = sorted(run.status for run in load_runs(tmp_path / "runs"))
    assert states.count("finished") == 2


def test_warm_start_begins_where_the_model_is(tmp_path):
    first = one_task(tmp_path / "first", rounds=30)
    perform(first)
    second = one_task(tmp_path / "second", rounds=1, evaluate_every=1, start=str(first.folder / "model.json"))
    assert perform(second) == "finished"
    start, after = load_model(first.folder).weights, load_model(second.folder).weights
    assert 0 < np.abs(after - start).max() < 0.2
    wrong = one_task(
        tmp_path / "wrong", rounds=1, start=str(first.folder), learner={"name": "pdgd", "ranker": {"name": "mlp"}}
    )
    assert perform(wrong) == "failed"
    [run] = load_runs(wrong.folder)
    assert "has another ranker than learner.ranker" in run.reason


def test_spec_in_the_folder_is_complete_and_gives_the_run_again(tmp_path):
    import tomllib

    task = one_task(tmp_path / "a", rounds=6)
    perform(task)
    text = (task.folder / "spec.toml").read_text()
    assert 'ranker = { name = "linear", start_norm = 0.0 }' in text
    again = read_tables(tomllib.loads(text))
    assert to_toml(again.base.single(1, 1)) == text
    [task_again] = plan(again, "test", tmp_path / "b")
    perform(task_again)
    assert content(task.folder) == content(task_again.folder)


def test_a_damaged_checkpoint_begins_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    whole, damaged = one_task(tmp_path / "whole"), one_task(tmp_path / "damaged")
    perform(whole)
    calls = iter([False] * 20 + [True])
    perform(damaged, stop=lambda: next(calls))
    (damaged.folder / "checkpoint.npz").write_bytes(b"not a checkpoint")
    assert perform(damaged) == "finished"
    assert content(whole.folder) == content(damaged.folder)


@pytest.mark.usefixtures("impatient")
def test_a_folder_is_worked_on_by_one_process_at_a_time(tmp_path):
    task = one_task(tmp_path, rounds=3)
    task.folder.mkdir(parents=True)
    with working_on(task.folder), pytest.raises(FileExistsError, match="in use by process"):
        perform(task)
    assert perform(task) == "finished"
    # What a killed process leaves: a lock that nobody holds, and a number that some other process has by now.
    facts = json.loads((task.folder / "run.json").read_text())
    (task.folder / "run.json").write_text(json.dumps(facts | {"status": "running", "pid": os.getpid()}))
    (task.folder / "lock").touch()
    [run] = load_runs(task.folder)
    assert run.status == "interrupted"


def test_personal_models_are_kept_one_per_client(tmp_path):
    task = one_task(tmp_path, learner={"name": "pdgd", "ranker": NEURAL}, local="fedper", rounds=5)
    assert perform(task) == "finished"
    model = load_model(task.folder)
    assert model.weights.shape == (4, 4 * 48)
    assert np.array_equal(model.weights[0, :-4], model.weights[1, :-4])
    assert not np.array_equal(model.weights[0, -4:], model.weights[1, -4:])
    header = (task.folder / "clients.csv").read_text().splitlines()[0]
    assert header == "client,queries,interactions,ndcg@10 averaged,mrr@10 averaged,ndcg@10 personal,mrr@10 personal"


def test_a_learner_that_serves_nobody_has_no_online_quality(tmp_path):
    task = one_task(tmp_path, learner={"name": "lambdarank"}, rounds=5)
    assert perform(task) == "finished"
    [run] = load_runs(task.folder)
    assert np.isnan(run.rounds["online"]).all()
    assert np.isfinite(run.final_value("ndcg@10"))
