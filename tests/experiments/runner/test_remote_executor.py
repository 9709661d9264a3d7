"""Runs that an engine does elsewhere: the same bytes, whoever dies, and workers that cannot do them say why."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import fedrank.experiments.runner.writer as writer
from fedrank import __version__
from fedrank.experiments.runner import executors, remote_executor, remote_task
from fedrank.experiments.runner.executors import SubmititExecutor, open_executor, sbatch_options
from fedrank.experiments.runner.folder import CHECKPOINT
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.remote_executor import send
from fedrank.experiments.runner.remote_task import SENT, announce, do_remote_task, remote_task_of
from fedrank.experiments.runner.runs import LOCK, load_runs
from fedrank.experiments.runner.schedule import plan, run_experiment
from fedrank.experiments.runner.writer import News, Task
from fedrank.experiments.spec.grid import read_tables
from fedrank.files import locked
from tests import needs
from tests.experiments.runner.test_run import content, tables

LONG = 1500  # rounds; enough to be caught in the middle
KILLED = "killed.txt"  # in the folder of an experiment, after a worker was killed


def asked(**changes):
    return read_tables(tables(**{"rounds": 12, "seeds": [1, 2]} | changes))


def whole(folder: Path) -> dict[str, dict[str, bytes]]:
    """What all runs of an experiment wrote that is the same bytes each time."""
    return {str(run.path.relative_to(folder)): content(run.path) for run in load_runs(folder)}


@pytest.fixture(scope="module")
def long_alone(tmp_path_factory) -> dict[str, dict[str, bytes]]:
    out = tmp_path_factory.mktemp("alone")
    run_experiment(asked(rounds=LONG), "test", out)
    return whole(out)


@pytest.fixture
def hurried(monkeypatch):
    """Runs that tell and keep more often than people need."""
    monkeypatch.setattr(writer, "SECONDS_BETWEEN_NEWS", 0.0)
    monkeypatch.setattr(writer, "SECONDS_BETWEEN_CHECKPOINTS", 0.01)
    for module in (remote_executor, remote_task, executors):
        monkeypatch.setattr(module, "SECONDS_BETWEEN_LOOKS", 0.02)


def hurry() -> None:
    """The same in the process of a worker, which waits in its first rounds until one of them was killed."""
    writer.SECONDS_BETWEEN_NEWS, writer.SECONDS_BETWEEN_CHECKPOINTS = 0.0, 0.05
    remote_task.perform = perform_after_kill


def perform_after_kill(task: Task, threads: int, stop: Callable[[], bool]) -> str:
    def stopped() -> bool:
        deadline = time.monotonic() + 60
        while not (task.folder.parents[1] / KILLED).exists() and time.monotonic() < deadline:
            if not (task.folder / CHECKPOINT).exists():
                break
            time.sleep(0.01)
        return stop()

    return perform(task, threads, stop=stopped)


class Here(Executor):
    """An engine in this thread. It may lose what it is given, and it writes down what that is."""

    def __init__(self, losing: int = 0):
        self.losing, self.given = losing, []

    def submit(self, fn, /, *args, **kwargs):
        self.given.append((fn, args, kwargs))
        future = Future()
        if self.losing:
            self.losing -= 1
            future.set_exception(RuntimeError("the worker is gone\nin many lines"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


class Heard:
    """Notes what becomes of runs."""

    def __init__(self):
        self.told, self.ends, self.losses = [], [], []

    def news(self, task: Task, news: News) -> None:
        self.told.append((task.label, news.round))

    def ended(self, task: Task, status: str, reason: str = "") -> None:
        self.ends.append((status, reason))

    def lost(self, task: Task, round: int, reason: str) -> None:
        self.losses.append(reason)


def one_remote_task(out: Path, **changes) -> remote_task.RemoteTask:
    [task] = plan(asked(seeds=[1]), "test", out)
    home = task.folder.parents[1]
    home.mkdir(parents=True)
    announce(home, "token")
    made = remote_task_of(task, "token", 1, 1, {})
    return remote_task.RemoteTask(**vars(made) | changes)


@pytest.mark.process
def test_any_executor_gives_the_same_bytes_and_is_handed_texts_alone(tmp_path):
    run_experiment(asked(), "test", tmp_path / "alone")
    here = Here()
    results = run_experiment(asked(), "test", tmp_path / "here", executor=here)
    assert len(results.finished) == 2
    for fn, args, kwargs in here.given:
        assert fn is do_remote_task
        assert [type(arg) for arg in args] == [str]
        assert not kwargs
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        run_experiment(asked(), "test", tmp_path / "pool", executor=pool, workers=1)
    assert whole(tmp_path / "alone") == whole(tmp_path / "here") == whole(tmp_path / "pool")
    assert not (tmp_path / "here" / "test" / SENT).exists()
    assert len(run_experiment(asked(), "test", tmp_path / "here", executor=here).skipped) == 2
    assert len(here.given) == 2


def test_settings_and_names_arrive_as_they_are(tmp_path):
    grid = asked(seeds=[3], vary={"learner.rate": [0.1, 0.3]}, title='ümläut "quoted"')
    run_experiment(grid, "deep/er", tmp_path / "alone", threads=2)
    run_experiment(grid, "deep/er", tmp_path / "here", threads=2, executor=Here())
    assert whole(tmp_path / "alone") == whole(tmp_path / "here")
    same = ("experiment", "title", "variant", "settings", "fold", "seed", "notes", "files", "data")
    runs = zip(load_runs(tmp_path / "alone"), load_runs(tmp_path / "here"), strict=True)
    assert all(getattr(one, name) == getattr(other, name) for one, other in runs for name in same)


@pytest.mark.long
@pytest.mark.usefixtures("hurried")
def test_stopping_leaves_what_can_be_resumed(tmp_path, long_alone, monkeypatch):
    def in_the_middle(task: Task, threads: int, stop: Callable[[], bool]) -> str:
        """Perform the run; it waits in its first rounds until it is stopped, however slow the sender is."""

        def stopped() -> bool:
            deadline = time.monotonic() + 60
            while not stop() and load_runs(task.folder)[0].round > 0 and time.monotonic() < deadline:
                time.sleep(0.01)
            return stop()

        return perform(task, threads, stop=stopped)

    monkeypatch.setattr(remote_task, "perform", in_the_middle)
    tasks, heard = plan(asked(rounds=LONG), "test", tmp_path), Heard()
    tasks[0].folder.parents[1].mkdir(parents=True)
    with ThreadPoolExecutor(1) as threads:
        left = send(tasks, threads, 2, 1, lambda: bool(heard.told), heard)
    assert heard.ends == [("interrupted", "")]
    assert left == (tasks[1:], "")
    first, *_ = load_runs(tmp_path)
    assert first.status == "interrupted"
    assert 0 < first.round < LONG
    assert not (tmp_path / "test" / SENT).exists()
    monkeypatch.undo()
    assert len(run_experiment(asked(rounds=LONG), "test", tmp_path, executor=Here()).finished) == 2
    assert whole(tmp_path) == long_alone


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("again", [False, True])
def test_deleting_the_file_that_was_sent_stops_all_and_so_does_sending_again(tmp_path, again):
    class Deleting(Heard):
        def news(self, task: Task, news: News) -> None:
            file = tmp_path / "test" / SENT
            file.write_text("another one") if again else file.unlink(missing_ok=True)

    tasks, heard = plan(asked(rounds=200_000), "test", tmp_path), Deleting()
    tasks[0].folder.parents[1].mkdir(parents=True)
    with ThreadPoolExecutor(2) as threads:
        not_begun, stopped = send(tasks, threads, 2, 1, lambda: False, heard)
    assert heard.ends == [("interrupted", "")] * 2
    assert not_begun == []
    assert stopped.endswith("another command submitted it" if again else f"{SENT} was deleted")


def test_a_lost_run_is_sent_again_and_one_that_gets_nowhere_fails(tmp_path):
    here, heard = Here(losing=2), Heard()
    [task] = plan(asked(seeds=[1]), "test", tmp_path)
    task.folder.parents[1].mkdir(parents=True)
    send([task], here, 1, 1, lambda: False, heard)
    assert heard.losses == ["RuntimeError: the worker is gone"] * 2
    assert heard.ends == [("finished", "")]
    texts = [args[0] for _, args, _ in here.given]
    assert len(set(texts)) == 3  # an engine that remembers answers has to take each for another call
    results = run_experiment(asked(seeds=[1]), "other", tmp_path, executor=Here(losing=99))
    [(_, reason)] = results.failed
    assert "lost 3 times without progress (RuntimeError: the worker is gone)" in reason


def test_an_engine_that_takes_nothing_is_told_once(tmp_path):
    class Closed(Executor):
        def submit(self, fn, /, *args, **kwargs):
            raise RuntimeError("partition 'shrot' is unknown")

    results = run_experiment(asked(), "test", tmp_path, executor=Closed())
    assert len(results.failed) == 2
    assert "could not be submitted (RuntimeError: partition 'shrot' is unknown)" in results.failed[0][1]


def test_a_worker_without_fedrank_is_told_as_such(tmp_path):
    class Bare(Executor):
        def submit(self, fn, /, *args, **kwargs):
            future = Future()
            problem = RuntimeError("could not be unpickled")
            problem.__cause__ = ModuleNotFoundError("No module named 'fedrank'")
            future.set_exception(problem)
            return future

    results = run_experiment(asked(seeds=[1]), "test", tmp_path, executor=Bare())
    assert "a worker has no fedrank, or another version (No module named 'fedrank'); install" in results.failed[0][1]


def test_another_version_of_fedrank_is_refused(tmp_path):
    told = json.loads(one_remote_task(tmp_path).text())
    status, reason = do_remote_task(json.dumps(told | {"fedrank": "9.9.9", "new key": 1}))
    assert status == "refused"
    assert f"has fedrank {__version__}, but these runs were sent by fedrank 9.9.9" in reason
    assert not list(tmp_path.rglob("run.json"))


def test_a_folder_that_a_worker_does_not_see_is_refused(tmp_path):
    made = one_remote_task(tmp_path / "shared")
    for elsewhere_ in ({"folder": str(tmp_path / "not-there")}, {"token": "of a copy"}):
        status, reason = do_remote_task(remote_task.RemoteTask(**vars(made) | elsewhere_).text())
        assert status == "refused"
        assert SENT in reason
        assert "file system that all workers share" in reason
    assert not (tmp_path / "not-there").exists()
    assert not list(tmp_path.rglob("run.json"))


def test_a_text_that_is_no_remote_task_is_refused_by_name(tmp_path):
    told = json.loads(one_remote_task(tmp_path / "shared").text())
    lacking = {name: value for name, value in told.items() if name != "token"}
    for text, said in {
        "no JSON": "Expecting value",
        "[" * 100_000: "nested too deeply",
        "[1]": "a remote task",
        json.dumps(lacking): "'token' is missing",
        json.dumps(told | {"shell": "ls"}): "'shell' is not known",
        json.dumps(told | {"folder": 3}): "folder",
        json.dumps(told | {"seed": "1"}): "seed",
        json.dumps(told | {"threads": 0}): "threads",
        json.dumps(told | {"files": {"train.txt": 1}}): "files.train.txt",
    }.items():
        status, reason = do_remote_task(text)
        assert (status, said in reason) == ("refused", True), reason
    for out in ("../../outside", "..", "variant", "variant/..", f"{tmp_path}/outside", "a/b/c", "a\\b/c", ""):
        status, reason = do_remote_task(json.dumps(told | {"run": out}))
        assert (status, "must be the folder of a variant" in reason) == ("refused", True), reason
    status, reason = do_remote_task(json.dumps(told | {"seed": 2}))
    assert (status, "not that of fold 1 with seed 2" in reason) == ("refused", True)
    assert not list(tmp_path.rglob("run.json"))


def test_a_file_that_was_not_written_by_us_asks_for_nothing(tmp_path):
    sent = tmp_path / SENT
    for written in (b"token" + b"\n" * 5000, b"\xfftoken\n", b""):
        sent.write_bytes(written)
        assert remote_task.token_in(tmp_path) != "token"
    sent.write_bytes(b"token\r\nas an editor writes it\r\n")
    assert remote_task.token_in(tmp_path) == "token"
    sent.unlink()
    sent.mkdir()
    assert remote_task.token_in(tmp_path) is None


def test_data_that_a_worker_does_not_find_or_has_otherwise_are_refused(tmp_path):
    made = one_remote_task(tmp_path / "a")
    gone = made.spec.replace('name = "synthetic-mq2007"', 'train = "/no/such/train.txt"\ntest = "/no/such/test.txt"')
    status, reason = do_remote_task(remote_task.RemoteTask(**vars(made) | {"spec": gone}).text())
    assert (status, "/no/such/train.txt" in reason) == ("refused", True)
    status, reason = do_remote_task(remote_task.RemoteTask(**vars(made) | {"files": {"train.txt": "0" * 64}}).text())
    assert status == "refused"
    assert "train.txt differ from the sender's data" in reason
    assert not list(tmp_path.rglob("run.json"))


def test_a_worker_that_cannot_is_told_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_task, "__version__", "0.0.9")  # of the worker; texts below are of this one
    monkeypatch.setattr(remote_task.RemoteTask, "text", lambda self: json.dumps({"fedrank": __version__} | vars(self)))
    results = run_experiment(asked(), "test", tmp_path, executor=Here())
    assert [reason.partition(" has ")[2][:13] for _, reason in results.failed] == ["fedrank 0.0.9"] * 2


def test_an_unknown_device_is_refused_here_and_a_missing_card_there(tmp_path):
    with pytest.raises(ValueError, match="unknown device 'cdua'"):
        run_experiment(asked(), "test", tmp_path, device="cdua", executor=Here())
    for device in ("cuda", "cuda-float16"):
        made = one_remote_task(tmp_path / device, device=device)
        status, reason = do_remote_task(made.text())
        if status == "finished":
            needs.skip("system", "a graphics card was found, and the test needs a machine without one")
        assert (status, bool(reason)) == ("refused", True)
        # The machine that sends needs no card, so that it is the worker that refuses.
        results = run_experiment(asked(seeds=[1]), "test", tmp_path / "sent" / device, device=device, executor=Here())
        assert [why.partition(" ")[0] for _, why in results.failed] == ["worker"]


@pytest.mark.usefixtures("hurried")
def test_a_signal_that_time_is_over_ends_a_run_at_its_round(tmp_path):
    [task] = plan(asked(rounds=200_000, seeds=[1]), "test", tmp_path)
    task.folder.parents[1].mkdir(parents=True)
    announce(tmp_path / "test", "token")

    def end():
        while not (task.folder / CHECKPOINT).exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.getsignal(signal.SIGUSR2)
    threading.Thread(target=end, daemon=True).start()
    assert do_remote_task(remote_task_of(task, "token", 1, 1, {}).text()) == ("interrupted", "")
    assert signal.getsignal(signal.SIGUSR2) == before
    assert load_runs(tmp_path)[0].status == "interrupted"


@pytest.mark.usefixtures("hurried")
def test_a_run_that_somebody_else_works_on_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_task, "SECONDS_FOR_LOCK", 0.1)
    made = one_remote_task(tmp_path)
    folder = Path(made.folder) / made.run
    with locked(folder / LOCK, "it"):
        status, reason = do_remote_task(made.text())
    assert (status, "another process" in reason) == ("busy", True)
    assert do_remote_task(made.text())[0] == "finished"
    done = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert do_remote_task(made.text()) == ("finished", "")  # an engine may ask twice
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == done


def test_what_a_worker_wrote_has_to_be_seen_here(tmp_path, monkeypatch):
    class Liar(Executor):
        def submit(self, fn, /, *args, **kwargs):
            future = Future()
            future.set_result(("finished", ""))
            return future

    monkeypatch.setattr(remote_executor, "SECONDS_TO_SEE", 0.3)
    results = run_experiment(asked(seeds=[1]), "test", tmp_path, executor=Liar())
    assert "does not show it; check that the folder is shared" in results.failed[0][1]


def kill_one(out: Path, killed: list[int]) -> None:
    """End a worker that is in the middle of a run, as a machine without memory does."""
    while not killed:
        for checkpoint in out.glob(f"test/only/*/{CHECKPOINT}"):
            killed.append(json.loads((checkpoint.parent / "run.json").read_text())["pid"])
            os.kill(killed[0], signal.SIGKILL)
            (out / "test" / KILLED).touch()
            return
        time.sleep(0.005)


@pytest.fixture(scope="module")
def dask():
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(**settings, silence_logs=50) as cluster:
        yield cluster


@pytest.mark.process
def test_dask_gives_the_same_bytes_though_a_worker_is_killed(tmp_path, dask, long_alone):
    address = dask.scheduler_address.replace("tcp", "dask")
    killed: list[int] = []
    with open_executor(address, tmp_path / "test") as (executor, about):
        assert about.endswith("which has 2 workers")
        executor._client.run(hurry)
        threading.Thread(target=kill_one, args=(tmp_path, killed), daemon=True).start()
        results = run_experiment(asked(rounds=LONG), "test", tmp_path, executor=executor)
    assert killed
    assert len(results.finished) == 2
    assert killed[0] not in {run.pid for run in load_runs(tmp_path)}
    assert whole(tmp_path) == long_alone


@pytest.mark.process
@pytest.mark.usefixtures("hurried")
def test_submitit_gives_the_same_bytes_though_a_job_is_killed(tmp_path, long_alone, monkeypatch):
    submitit = pytest.importorskip("submitit", reason="the extra slurm is not installed")
    monkeypatch.setattr(submitit.Job, "_results_timeout_s", 0.1)  # nobody waits for a slow disk here
    jobs = submitit.LocalExecutor(tmp_path / "jobs" / "%j")
    jobs.update_parameters(timeout_min=5)
    killed: list[int] = []
    hurried = jobs.submit
    jobs.submit = lambda fn, *args: hurried(hurried_remote_task, *args)
    with SubmititExecutor(jobs) as executor:
        threading.Thread(target=kill_one, args=(tmp_path, killed), daemon=True).start()
        results = run_experiment(asked(rounds=LONG, seeds=[1]), "test", tmp_path, executor=executor)
    assert killed
    assert len(results.finished) == 1
    [(name, files)] = whole(tmp_path).items()
    assert files == long_alone[name]


def hurried_remote_task(text: str) -> tuple[str, str]:
    hurry()
    return do_remote_task(text)


SBATCH = f"""#!{sys.executable}
import os, subprocess, sys
job = os.getpid()
with open(os.environ["SBATCHED"], "a") as file:
    file.write(open(sys.argv[-1]).read())
away = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}}
subprocess.Popen(["bash", sys.argv[-1]], env=os.environ | {{"SLURM_JOB_ID": str(job)}}, **away)
print("Submitted batch job", job)
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
exec "$@"
"""


@pytest.mark.process
def test_slurm_is_asked_for_a_job_each(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    commands = {"sbatch": SBATCH, "srun": SRUN, "sacct": "#!/bin/bash\n", "scancel": "#!/bin/bash\n"}
    for name, text in commands.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SBATCHED", str(tmp_path / "sbatched.txt"))
    run_experiment(asked(seeds=[1]), "test", tmp_path / "alone")
    out = tmp_path / "slurm"
    options = ["partition=short", "mem=2G"]
    with open_executor("slurm", out / "test", options, threads=2, device="cuda-float16") as (executor, about):
        assert "one job per run" in about
        results = run_experiment(asked(seeds=[1]), "test", out, executor=executor)
    assert len(results.finished) == 1
    assert whole(out) == whole(tmp_path / "alone")
    sent = (tmp_path / "sbatched.txt").read_text()
    for line in (
        "--partition=short",
        "--mem=2G",
        "--time=60",
        "--cpus-per-task=2",
        "--job-name=fedrank-test",
        "--gpus-per-node=1",
    ):
        assert f"#SBATCH {line}\n" in sent


def bad(on: str, **options) -> str:
    with pytest.raises((ValueError, OSError, ImportError)) as problem, open_executor(on, Path("runs/x"), **options):
        pass
    return str(problem.value)


def test_engines_that_are_none_are_refused_by_name(monkeypatch):
    assert "unknown executor 'slrum'; did you mean \"slurm\"?" in bad("slrum")
    assert "use dask://HOST:PORT or slurm" in bad("ssh://me@there")
    for address in (
        "dask",
        "dask://",
        "dask://node7",
        "dask:node7:8786",
        "dask://node7:8786/path",
        "dask://me:pw@node7:1",
    ):
        assert "write dask://HOST:PORT" in bad(address), address
    assert "write dask://HOST:PORT" in bad("dask://node7:many")
    assert "slurm has no address" in bad("slurm://node7")
    assert "sbatch options apply only to Slurm" in bad("dask://node7:8786", sbatch=["mem=2G"])


def test_a_scheduler_that_does_not_answer(monkeypatch):
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    monkeypatch.setattr(executors, "SECONDS_TO_ANSWER", 0.5)
    assert "no Dask scheduler answered" in bad("dask://127.0.0.1:1")


def test_no_slurm_here(monkeypatch, tmp_path):
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "sbatch and srun were not found" in bad("slurm")


def test_an_extra_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert bad("dask://node7:8786").endswith("pip install 'fedrank[dask]'")
    assert bad("slurm").endswith("pip install 'fedrank[slurm]'")


def test_options_of_sbatch():
    assert sbatch_options(["--mem=4G", "gpus-per-node=1"]) == {"mem": "4G", "gpus_per_node": 1}
    for text, said in {
        "mem": "has no value",
        "mem=": "has no value",
        "partitoin=short": 'did you mean "partition"?',
        "time=2:00:00": "is not minutes",
        "time=0": "is not minutes",
        "array=1-9": "unknown or unsupported option 'array'",
    }.items():
        with pytest.raises(ValueError, match="--sbatch") as problem:
            sbatch_options([text])
        assert said in str(problem.value)
