"""Runs that are killed, watched, or denied room and permission: what is said, and that nothing is lost."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.segment
import rich.table  # noqa: F401

import fedrank.data.check
import fedrank.experiments.report.data_output
import fedrank.experiments.report.privacy_output
import fedrank.experiments.report.run_output
import fedrank.experiments.report.terminal
import fedrank.experiments.report.write
from fedrank.cli import main
from fedrank.data.letor import read_letor
from fedrank.experiments.runner.runs import LOCK, load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.source import read_spec
from tests import needs
from tests.experiments.report.made_up_runs import write_experiment, write_run

pytestmark = [pytest.mark.process, needs.posix]

SPEC = """
rounds = {rounds}
evaluate_every = 50
learner = "pdgd"
clients = {{ count = 2 }}
data = {{ name = "synthetic-mq2007" }}
seeds = [1]
"""
ROWS = ("rounds.csv", "queries.csv", "model.json")


@pytest.fixture
def spec(tmp_path) -> Path:
    file = tmp_path / "hard.toml"
    file.write_text(SPEC.format(rounds=3000))
    return file


def command(*arguments: object, limit: int | None = None, **options: Any) -> subprocess.Popen[str]:
    """A command of ours under way; `limit`: bytes that a file may have."""

    def begin() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    line = [sys.executable, "-m", "fedrank", *map(str, arguments)]
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=begin, **options
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    return process.returncode, " ".join((out + err).split())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def running(tmp_path, spec) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A long run that has kept a checkpoint already, and its folder."""
    spec.write_text(SPEC.format(rounds=2_000_000))
    process = command("run", spec, "--out", tmp_path / "runs", "--workers", 1)
    folder = tmp_path / "runs" / "hard" / "only" / "fold-1-seed-1"
    try:
        wait_for(lambda: (folder / "checkpoint.npz").exists() or process.poll() is not None)
        yield process, folder
    finally:
        process.kill()
        process.communicate()


def test_the_true_round_is_shown_while_running_and_after_kill_9(running):
    process, folder = running
    [run] = load_runs(folder)
    assert run.status == "running"
    assert run.round > 0
    process.send_signal(signal.SIGKILL)
    process.wait()
    [run] = load_runs(folder)
    with np.load(folder / "checkpoint.npz") as kept:
        assert (run.status, run.round) == ("interrupted", int(kept["round"]))
    assert run.reason == f"stopped after round {run.round} of 2000000"
    assert f"{run.round:,} / 2,000,000" in ended(command("watch", folder, "--list"))[1]
    (folder / "checkpoint.npz").write_bytes(b"PK damaged")
    rows = (folder / "rounds.csv").read_text().splitlines()
    assert load_runs(folder)[0].round == int(rows[-1].split(",")[0])
    with (folder / "rounds.csv").open("a") as file:
        file.write("99999")  # a row that was being written
    assert load_runs(folder)[0].round == int(rows[-1].split(",")[0])


def test_whoever_looks_never_takes_the_lock_of_a_run_and_nobody_removes_it(running):
    process, folder = running
    inode = (folder / LOCK).stat().st_ino
    for _ in range(300):
        assert load_runs(folder)[0].status == "running"
    assert process.poll() is None
    code, said = ended(command("run", folder.parents[2].parent / "hard.toml", "--out", folder.parents[2]))
    assert code == 2
    assert "; wait for it, or stop it" in said
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.wait()
    assert load_runs(folder)[0].status == "interrupted"
    assert (folder / LOCK).stat().st_ino == inode, "removed, two could hold it"


def test_runs_begin_while_others_look(tmp_path, spec):
    spec.write_text(SPEC.format(rounds=2))
    look = "import sys\nfrom fedrank.experiments.runner.runs import load_runs\nwhile True: load_runs(sys.argv[1])"
    looking = subprocess.Popen([sys.executable, "-c", look, str(tmp_path)])
    try:
        for attempt in range(5):
            results = run_experiment(read_spec(str(spec), []), f"again-{attempt}", tmp_path)
            assert len(results.finished) == 1
            assert (results.finished[0].folder / LOCK).exists(), "removed, two could hold it"
    finally:
        looking.kill()
        looking.wait()


def test_a_full_disk_names_the_file_and_the_run_resumes_byte_for_byte(tmp_path, spec):
    assert ended(command("run", spec, "--out", tmp_path / "whole", "--workers", 1))[0] == 0
    whole = tmp_path / "whole" / "hard" / "only" / "fold-1-seed-1"
    room = (whole / "rounds.csv").stat().st_size // 2
    folder = tmp_path / "runs" / "hard" / "only" / "fold-1-seed-1"
    code, said = ended(command("run", spec, "--out", tmp_path / "runs", "--workers", 1, limit=room))
    assert code == 1
    line = f"{folder / 'rounds.csv'}: File too large; free disk space, then run the same command again"
    assert f"failed only, fold 1, seed 1: {line}" in said
    [run] = load_runs(folder)
    assert (run.status, run.reason) == ("failed", line)
    assert ended(command("run", spec, "--out", tmp_path / "runs", "--workers", 1))[0] == 0
    for name in ROWS:
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_without_room_for_the_failure_itself_still_names_the_file(tmp_path, spec, workers):
    """Not even `run.json` can be written: the worker survives, and what is said is what went wrong first."""
    spec.write_text(SPEC.format(rounds=2).replace("seeds = [1]", "seeds = [1, 2]"))
    code, said = ended(command("run", spec, "--out", tmp_path / "runs", "--workers", workers, limit=700))
    assert code == 1
    assert len(re.findall(r"failed 2 runs, first only, fold 1, seed [12]: ", said)) == 1
    assert said.count("File too large; free disk space") == 1
    assert "memory may have run out" not in said
    assert ended(command("run", spec, "--out", tmp_path / "runs", "--workers", workers))[0] == 0


def test_a_failure_that_cannot_be_written_is_told_by_its_first_cause(tmp_path, spec, monkeypatch):
    grid = read_spec(str(spec), [])

    def full(*given: Any, **named: Any) -> None:
        if named.get("status") == "failed":
            raise OSError(errno.ENOSPC, "No space left on device", "run.json")

    def fails(experiment: Any, writer: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunWriter, "update_facts", full)
    monkeypatch.setattr("fedrank.experiments.runner.federated.perform_federated", fails)
    results = run_experiment(grid, "full", tmp_path)
    [(task, reason)] = results.failed
    assert reason == f"{task.folder}: No space left on device; free disk space, then run the same command again"


def test_a_clock_that_jumps_back_changes_nothing(tmp_path, spec, monkeypatch):
    spec.write_text(SPEC.format(rounds=200))
    run_experiment(read_spec(str(spec), []), "steady", tmp_path)
    start = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(start)))
    run_experiment(read_spec(str(spec), []), "jumping", tmp_path)
    steady, jumping = load_runs(tmp_path / "steady")[0], load_runs(tmp_path / "jumping")[0]
    for name in ("rounds.csv", "queries.csv"):
        assert (steady.path / name).read_bytes() == (jumping.path / name).read_bytes()
    assert jumping.seconds >= 0


# As somebody who is not root: root may do everything.


def as_nobody(work: Callable[[], None]) -> str:
    """What a process says that is not root's. All modules must be loaded: others may not be allowed to read them."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            os.dup2(write, 1)
            sys.stdout = sys.stderr = os.fdopen(1, "w")
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            work()
            code = 0
        except BaseException as problem:
            print(f"raised {type(problem).__name__}: {problem}")
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(child, 0)
    return " ".join(text.split())


def fedrank(*arguments: object) -> Callable[[], None]:
    def work() -> None:
        sys.argv = ["fedrank", *map(str, arguments)]
        os.environ["COLUMNS"] = "500"
        main()

    return work


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that everybody can reach and only we can write to; those of pytest are for their owner alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for below in (folder, *folder.rglob("*")):
            if below.is_dir():
                below.chmod(0o755)
        shutil.rmtree(folder)


def test_permission_denied_is_one_clear_line(reachable):
    folder = write_run(reachable / "runs")
    write_experiment(reachable / "runs")
    shown = fedrank("watch", reachable / "runs", "--list")
    assert "finished" in as_nobody(shown)
    (folder / "run.json").chmod(0)
    assert f"only fold 1 seed 1: {folder / 'run.json'}: Permission denied" in as_nobody(shown)
    (folder / "run.json").chmod(0o644)
    (folder / "rounds.csv").chmod(0)
    assert f"only fold 1 seed 1: {folder / 'rounds.csv'}: Permission denied" in as_nobody(shown)
    report = fedrank("report", reachable / "runs", "--out", reachable / "shut" / "report.csv")
    assert f"fedrank: none of 1 runs is finished, so there is nothing to report; the first is broken: {folder}" in (
        as_nobody(report)
    )
    (folder / "rounds.csv").chmod(0o644)
    folder.chmod(0)
    assert f"only fold 1 seed 1: {folder / 'run.json'}: Permission denied" in as_nobody(shown)
    folder.chmod(0o755)
    (reachable / "shut").mkdir(mode=0o555)
    said = as_nobody(report)
    assert said.startswith(f"fedrank: {reachable / 'shut'}/")
    assert "report.csv" in said
    assert ": Permission denied raised SystemExit: 2" in said
    data = reachable / "data.txt"
    data.write_text("1 qid:1 1:1\n")
    data.chmod(0)
    said = as_nobody(fedrank("data", "check", data))
    assert f"'{data}' is not readable" in said


def test_a_run_is_not_begun_where_nothing_may_be_written(reachable, spec):
    grid = read_spec(str(spec), [])
    (reachable / "shut").mkdir(mode=0o555)
    said = as_nobody(lambda: print(run_experiment(grid, "mine", reachable / "shut")))
    assert f"Permission denied: '{reachable / 'shut' / 'mine'}'" in said


def test_a_run_of_another_user_is_seen_to_run(reachable):
    """Its lock is for its owner alone, and so is whether somebody holds it."""
    folder = write_run(reachable, status="running", pid=os.getpid())
    (folder / LOCK).touch()
    (folder / LOCK).chmod(0)
    assert "running" in as_nobody(fedrank("watch", reachable, "--list"))


def test_a_cache_that_cannot_be_written_is_done_without(reachable, monkeypatch):
    data = reachable / "data.txt"
    data.write_text("1 qid:1 1:1\n0 qid:1 1:0\n")
    (reachable / "cache").mkdir(mode=0o555)
    read_letor(data)  # compiled already
    monkeypatch.setenv("FEDRANK_CACHE", str(reachable / "cache"))
    assert as_nobody(lambda: print(read_letor(data).documents)) == "2"
