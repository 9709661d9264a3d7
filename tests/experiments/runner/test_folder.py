from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from math import isnan
from pathlib import Path

import pytest
from rich.console import Console

from fedrank.experiments.report.formatting import duration
from fedrank.experiments.report.run_output import about_runs
from fedrank.experiments.report.terminal import show
from fedrank.experiments.runner.runs import Runs, clean, load_runs
from tests.experiments.report.made_up_runs import write_experiment, write_grid, write_run


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_final_is_the_mean_of_the_last_ten_evaluations(tmp_path: Path) -> None:
    offline = [None if r % 2 else float(r) for r in range(1, 25)]  # 12 evaluations: rounds 2, 4 .. 24
    online = [r / 100 for r in range(1, 25)]
    folder = write_run(tmp_path, rounds=24, offline=offline, online=online)
    (run,) = load_runs(folder)
    assert run.final_value("ndcg@10") == pytest.approx(sum(range(6, 25, 2)) / 10)
    assert run.final_value("online") == pytest.approx(sum(range(6, 25, 2)) / 10 / 100)
    assert isnan(run.rounds["ndcg@10"][0])
    assert run.measures == ("ndcg@10", "mrr@10")
    with pytest.raises(KeyError, match="column 'ndcg' does not exist"):
        run.final_value("ndcg")


def test_fewer_evaluations_than_ten_all_count(tmp_path: Path) -> None:
    folder = write_run(tmp_path, rounds=3, every=1, offline=[0.1, 0.2, 0.6])
    assert load_runs(folder)[0].final_value("ndcg@10") == pytest.approx((0.1 + 0.2 + 0.6) / 3)


def test_online_sum_by_hand(tmp_path: Path) -> None:
    run = load_runs(write_run(tmp_path, rounds=3, online=[0.5, 0.25, 1.0]))[0]
    assert run.online_sum() == pytest.approx(0.5 + 0.9995 * 0.25 + 0.9995**2 * 1.0, abs=1e-9)
    # the published identity: a perfect run of 200 rounds comes to 190.37
    perfect = load_runs(write_run(tmp_path, seed=2, rounds=200, online=[1.0] * 200))[0]
    assert perfect.online_sum() == pytest.approx(190.37, abs=0.005)


def test_everything_else_of_a_run(tmp_path: Path) -> None:
    run = load_runs(write_run(tmp_path, rounds=40, queries=6))[0]
    ids, values = run.queries
    assert ids.tolist() == ["1000", "1001", "1002", "1003", "1004", "1005"]
    assert [isnan(value) for value in values["mrr@10"]] == [False, False, False, True, False, False]
    assert run.model is not None
    assert run.model["features"] == 8
    assert (run.seconds, run.costs["cpu_seconds"]) == (0.8, 1.6)
    assert run.costs["bytes_up"] == 40 * 1840
    assert (run.round, run.asked, run.status, run.reason) == (40, 40, "finished", "")
    assert (run.spec.kind, run.spec.rounds) == ("federated", 40)


def test_finds_runs_below_one_or_several_folders_once(tmp_path: Path) -> None:
    write_grid(tmp_path / "a", {"clients.count": [2, 10]}, [0.4], folds=(1,), seeds=(1, 2))
    write_run(tmp_path / "b")
    assert len(load_runs(tmp_path)) == 5
    assert len(load_runs([tmp_path / "a", tmp_path / "b", tmp_path])) == 5
    # 2 before 10: numbers are sorted as numbers
    assert [run.variant for run in load_runs(tmp_path / "a")] == ["clients.count=2"] * 2 + ["clients.count=10"] * 2
    assert len(load_runs(tmp_path / "b" / "robust" / "only" / "fold-1-seed-1")) == 1
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_runs(tmp_path / "nowhere")


def test_damage_is_told_and_harms_no_other_run(tmp_path: Path) -> None:
    write_run(tmp_path, seed=1)
    (write_run(tmp_path, seed=2) / "run.json").write_text('{"format": 1, "sta')
    (write_run(tmp_path, seed=3) / "run.json").unlink()
    cut = write_run(tmp_path, seed=4) / "rounds.csv"
    cut.write_text(cut.read_text()[:-30])
    (write_run(tmp_path, seed=5) / "rounds.csv").write_text("")
    (write_run(tmp_path, seed=6) / "run.json").write_text("[]")
    write_run(tmp_path, seed=7, format=99)
    write_run(tmp_path, seed=8, status="splendid")
    gone = json.loads((write_run(tmp_path, seed=9) / "run.json").read_text())
    del gone["fold"]
    (tmp_path / "robust/only/fold-1-seed-9/run.json").write_text(json.dumps(gone))
    (tmp_path / "robust/only/fold-1-seed-10").mkdir()
    runs = load_runs(tmp_path)
    reasons = {run.seed: run.reason for run in runs if run.status == "broken"}
    assert [run.seed for run in runs.finished] == [1]
    assert "cannot be read" in reasons[2]
    assert "no run.json" in reasons[3]
    assert "not with a complete row of round 40" in reasons[4]
    assert "rounds.csv" in reasons[5]
    assert "object" in reasons[6]
    assert "newer" in reasons[7]
    assert "splendid" in reasons[8]
    assert "lacks 'fold'" in reasons[9]
    assert "no run.json" in reasons[10]


def test_damage_inside_a_file_is_found_by_reading_it(tmp_path: Path) -> None:
    file = write_run(tmp_path) / "rounds.csv"
    file.write_text(file.read_text().replace("\n7,", "\n7,oops,"))
    runs = load_runs(tmp_path)
    assert runs[0].status == "finished"
    (run,) = runs.checked()
    assert run.status == "broken"
    assert "line 8 has 8 cells" in run.reason
    assert runs.table()[0]["status"] == "broken"


@pytest.mark.process
def test_a_dead_runner_means_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path, seed=1, status="running", round=7, pid=dead_pid())
    write_run(tmp_path, seed=2, status="running", round=7, pid=os.getpid())
    first, second = load_runs(tmp_path)
    assert first.status == "interrupted"
    assert first.reason == "stopped after round 40 of 40"  # by its rows: run.json is older than they are
    assert second.status == "running"


def test_a_copied_run_is_no_repeat(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    copy = folder.parent.parent / "only-copy" / folder.name
    copy.mkdir(parents=True)
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    first, second = load_runs(tmp_path)
    assert (first.status, second.status) == ("finished", "broken")
    assert "same variant" in second.reason


def test_a_growing_file_is_read_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path, rounds=4, every=1, status="running", pid=os.getpid())
    (run,) = load_runs(tmp_path)
    assert len(run.rounds["round"]) == 4
    with (folder / "rounds.csv").open("a") as file:
        file.write("5,0.5,250,9200,9200,0.4,0.5\n")
    assert run.rounds["round"].tolist() == [1, 2, 3, 4, 5]


def test_filter_group_and_table(tmp_path: Path) -> None:
    write_grid(tmp_path, {"aggregator.name": ["mean", "krum"]}, [0.4, 0.3], folds=(1, 2), seeds=(1, 2))
    runs = load_runs(tmp_path)
    assert len(runs.filter(fold=1)) == 4
    assert len(runs.filter(seed=[1, 2], fold=2, **{"aggregator.name": "krum"})) == 2
    with pytest.raises(KeyError, match=r'did you mean "aggregator\.name"'):
        runs.filter(**{"agregator.name": "krum"})
    rows = runs.table()
    assert len(rows) == 8
    assert rows[0]["aggregator.name"] == "krum"
    assert rows[0]["ndcg@10"] == runs[0].final_value("ndcg@10")
    assert rows[0]["online_sum"] == runs[0].online_sum()
    assert "8 finished" in repr(runs)
    assert "aggregator.name=krum: 4 of 4 finished" in repr(runs)
    assert repr(Runs()) == "Runs(0)"


def test_clean_takes_only_the_unfinished(tmp_path: Path) -> None:
    done = write_run(tmp_path, seed=1)
    failed = write_run(tmp_path, seed=2, status="failed", error={"message": "boom", "round": 3, "client": 4})
    stopped = write_run(tmp_path, seed=3, status="interrupted", round=5)
    live = write_run(tmp_path, seed=4, status="running", pid=os.getpid())
    half = tmp_path / "robust" / "only" / "fold-1-seed-5"
    half.mkdir()
    (half / "spec.toml").write_text("")
    other = tmp_path / "robust" / "only" / "fold-1-seed-6"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    experiment = write_experiment(tmp_path) / "experiment.toml"
    assert sorted(clean(load_runs(tmp_path))) == [failed, stopped, half]
    assert done.exists()
    assert live.exists()
    assert other.exists()
    assert experiment.exists()
    assert not failed.exists()


def test_clean_looks_again_before_it_deletes(tmp_path: Path) -> None:
    folder = write_run(tmp_path, status="interrupted", round=5)
    runs = load_runs(tmp_path)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"status": "running", "pid": os.getpid()}))
    assert clean(runs) == []
    assert folder.exists()


def test_clean_spares_what_it_cannot_judge(tmp_path: Path) -> None:
    newer = write_run(tmp_path, seed=1, format=99)
    foreign = tmp_path / "website"
    foreign.mkdir()
    (foreign / "run.json").write_text("not ours")
    damaged = write_run(tmp_path, seed=2)
    (damaged / "run.json").write_text("{")
    runs = load_runs(tmp_path)
    assert [run.status for run in runs] == ["broken"] * 3
    assert clean(runs) == [damaged]
    assert newer.exists()
    assert foreign.exists()


def test_clean_keeps_what_it_is_told_to_keep(tmp_path: Path) -> None:
    write_run(tmp_path, seed=1, status="interrupted")
    failed = write_run(tmp_path, seed=2, status="failed")
    assert clean(load_runs(tmp_path), keep=lambda run: run.status == "interrupted") == [failed]


def test_the_list_names_state_quality_and_reason(tmp_path: Path) -> None:
    write_run(tmp_path, seed=1, variant="[bold]krum", rounds=24, every=1, offline=[0.25] * 24)
    write_run(tmp_path, seed=2, status="failed", round=3, error={"message": "boom", "round": 3, "client": 4})
    console = Console(file=io.StringIO(), width=120)
    show(about_runs(load_runs(tmp_path)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]krum" in text
    assert "ndcg@10 0.2500" in text
    assert "24 / 24" in text
    assert "boom (round 3, client 4)" in text
    for seed in range(3, 23):
        write_run(tmp_path, seed=seed, status="failed", error={"message": "bang", "round": seed, "client": None})
    show(about_runs(load_runs(tmp_path)), console)
    assert console.file.getvalue().count("bang") == 1  # type: ignore[attr-defined]
    assert "20 runs, first only fold 1 seed 3: bang (round 3)" in console.file.getvalue()  # type: ignore[attr-defined]
    show(about_runs(Runs()), console)
    assert "No runs here" in console.file.getvalue()  # type: ignore[attr-defined]


def test_durations() -> None:
    assert [duration(s) for s in (0.42, 12.3, 59.7, 185, 7620)] == [
        "0.4 s",
        "12 s",
        "1 min 00 s",
        "3 min 05 s",
        "2 h 07 min",
    ]
    assert duration(float("nan")) == "-"
