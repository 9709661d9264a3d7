"""`python -m tests.mutants`: make a hundred small changes to the core, one at a time; list those that no test notices.

The sample of changes has a fixed seed. A mutant runs only the tests of `make test` that execute its line, until one of
them fails; a mutated kernel runs uncompiled. Tests run in a copy of the project, in which modules change when they are
imported. If the command is stopped, the same command continues, provided that the project has not changed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedrank.files import locked, write_atomic
from fedrank.kernels.compile import cache_folder
from tests.mutants.operators import Mutant, sample

SEED = 16
COUNT = 100
CAUGHT = 0.9  # of all mutants, at least
WORKERS = os.cpu_count() or 2
PACKAGES = (
    *("data", "ranking", "kernels", "federated", "privacy", "attacks", "unlearning", "silo", "trees"),
    *("experiments/spec", "experiments/runner", "experiments/report"),
)
SELECTED = "not (process or browser or build or long or smoke)"  # what `make test` runs
KERNELS = re.compile(r"^\s*(from|import) (tests\.oracles|fedrank\.kernels(?!\.compile))", re.MULTILINE)
COMMANDS = re.compile(r"fedrank\.cli")
LIMIT = 300.0  # seconds, always of the processor: of a test in the first run, which may have to compile
UNCOMPILED_LIMIT = 5.0
BUDGET = 60.0  # seconds of tests for one mutant, as measured in the first run
SLOWER = 10.0  # times as long as in the first run: the mutant does not end
LEAST = 20.0  # seconds that every test has
TOO_SLOW = -signal.SIGPROF
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, -signal.SIGXFSZ)

ROOT = Path(__file__).parents[2]
RUNNING: set[subprocess.Popen[str]] = set()


@contextlib.contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """Threads that wait for processes, which end with the block, also if it is interrupted."""
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(RUNNING):
                process.kill()
            raise


def copy_tree(target: Path) -> str:
    """Copy the files of the project, those that git does not ignore, and return a digest of them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    shutil.rmtree(target, ignore_errors=True)
    digest = hashlib.sha256()
    for name in sorted({*listed.stdout.split("\0")} - {""}):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)  # with its time, by which compiled code is found again
            digest.update(repr((name, hashlib.sha256((target / name).read_bytes()).digest())).encode())
    return digest.hexdigest()


@contextlib.contextmanager
def pytest_process(work: Path, task: dict[str, Any], arguments: Iterable[str]) -> Iterator[Path]:
    """Run pytest on a task of the plugin; the folder holds what it wrote: `out`, `output` and its `code`."""
    with tempfile.TemporaryDirectory(dir=work, prefix="scratch-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "cache").mkdir()
        (folder / "cache" / "compiled").symlink_to(work / "compiled")
        (folder / "task.json").write_text(json.dumps({"root": str(work / "tree"), "out": str(folder / "out"), **task}))
        environment = os.environ | {
            "PYTHONPATH": f"{work / 'tree'}{os.pathsep}{work / 'tree/src'}",
            "FEDRANK_MUTANTS": str(folder / "task.json"),
            "FEDRANK_CACHE": str(folder / "cache"),  # what a mutant keeps there must not be found by another one
            "TMPDIR": str(folder),
            "OMP_NUM_THREADS": "1",
            "NUMBA_DISABLE_JIT": "1" if task["uncompiled"] else "0",
        }
        environment.pop("NUMBA_CACHE_DIR", None)
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.plugin", "-p", "no:cacheprovider"]
        command += ["-o", "addopts=", "-q", "--strict-markers", "-m", SELECTED, f"--basetemp={folder / 'tests'}"]
        if task["uncompiled"]:
            command += ["-W", "ignore::RuntimeWarning"]  # counters of 64 bits wrap on purpose
        with open(folder / "output", "w") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=work / "tree",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )
        RUNNING.add(process)
        try:
            code = process.wait(task.get("patience"))
        except subprocess.TimeoutExpired:
            code = TOO_SLOW
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it started
            process.wait()
            RUNNING.discard(process)
        (folder / "code").write_text(str(code))
        yield folder


def find_tests(work: Path, mutants: dict[int, Mutant], uncompiled: bool, files: Sequence[str]) -> list[dict[str, Any]]:
    """Run the tests once, in several processes, and return what each of them met."""
    out = work / f"{'uncompiled' if uncompiled else 'compiled'}.jsonl"

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    with tempfile.TemporaryDirectory(dir=work, prefix="claims-") as claims:
        task = {
            "mutants": {str(key): asdict(mutant) for key, mutant in mutants.items()},
            "uncompiled": uncompiled,
            "limit": UNCOMPILED_LIMIT if uncompiled else LIMIT,
            "claims": claims,
            "out": str(out),
            "known": [line["test"] for line in lines()],
        }

        def part(_: int) -> None:
            with pytest_process(work, task, ["--continue-on-collection-errors", *files]) as folder:
                if (folder / "code").read_text() not in ("0", "1", "5"):
                    output = (folder / "output").read_text(errors="replace")
                    raise SystemExit(f"the tests ended early, before any mutant:\n{output[-3000:]}")

        with workers() as pool:
            list(pool.map(part, range(WORKERS)))
    return lines()


def covering(mutants: dict[int, Mutant], met: Sequence[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """For each mutant the tests that run it, with their seconds: those of its package first, then the fastest files."""
    found: dict[int, dict[str, float]] = {}
    for key, mutant in mutants.items():
        at_level: list[dict[str, float]] = [{}, {}, {}]
        for line in met:
            for hit, level in line["hits"]:
                if hit == key and line["passed"]:
                    at_level[level][line["test"]] = line["seconds"]
        tests = next((level for level in at_level if level), {})
        files: defaultdict[str, float] = defaultdict(float)
        for name, seconds in tests.items():
            files[name.partition("::")[0]] += seconds
        order = sorted(files, key=lambda file: (package(file) != package(mutant.file), files[file], file))
        left = BUDGET
        found[key] = {}
        for name in sorted(tests, key=lambda name: order.index(name.partition("::")[0])):
            if tests[name] <= left or not found[key]:
                found[key][name] = tests[name]
                left -= tests[name]
    return found


def package(file: str) -> str:
    """`rank` of src/fedrank/ranking/gate.py as of tests/ranking/test_gate.py."""
    parts = file.removeprefix("src/").split("/")
    return parts[1] if len(parts) > 2 else ""


def judge(work: Path, mutant: Mutant, tests: dict[str, float]) -> tuple[str, str]:
    """How a mutant ended, `caught` or `survived`, and by which test or why."""
    if not tests:
        return "survived", "no test runs it"
    task = {
        "uncompiled": package(mutant.file) == "kernels",
        "file": mutant.file,
        "number": mutant.number,
        "limits": {name: max(LEAST, SLOWER * seconds) for name, seconds in tests.items()},
        "patience": LIMIT + SLOWER * sum(tests.values()),  # for a process that only waits
    }
    files = sorted({name.partition("::")[0] for name in tests})
    with pytest_process(work, task, ["-x", *files]) as folder:
        code = int((folder / "code").read_text())
        test = (folder / "out").read_text() if (folder / "out").exists() else "import"
        if code in (0, 5):  # 5: the change took the names of all these tests away
            return "survived", f"{len(tests)} tests run it"
        if code > 0:
            return "caught", test
        if code == TOO_SLOW:
            return "caught", f"{test} (it did not end)"
        if code in CRASHES:
            return "caught", f"{test} ({signal.Signals(-code).name})"
        raise SystemExit(f"a process was stopped from outside, by signal {-code}; run the same command to continue")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=COUNT, help="number of mutants")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES, metavar="PACKAGE")
    options.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="only tests in these paths")
    options.add_argument("--out", type=Path, help="write the result as JSON to this file")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))  # so that processes end with this one
    work = cache_folder().resolve() / "mutants"
    with locked(work / "lock", "another `python -m tests.mutants` is running"):
        result = run(work, chosen.count, chosen.seed, sorted(chosen.packages), sorted(chosen.tests))
    if chosen.out:
        write_atomic(chosen.out, json.dumps(result, indent=1))
    tell(result["mutants"])
    caught = sum(mutant["outcome"] == "caught" for mutant in result["mutants"])
    sys.exit(0 if caught >= CAUGHT * len(result["mutants"]) else 1)


def run(work: Path, count: int, seed: int, packages: Sequence[str], tests: Sequence[str]) -> dict[str, Any]:
    began = time.monotonic()
    for name in ("scratch-*", "claims-*"):  # of a command that was killed
        for folder in work.glob(name):
            shutil.rmtree(folder, ignore_errors=True)
    digest = copy_tree(work / "tree")
    (work / "compiled").mkdir(exist_ok=True)
    settings = {"tree": digest, "count": count, "seed": seed, "packages": list(packages), "tests": list(tests)}
    mutants = dict(enumerate(sample(work / "tree", packages, count, seed)))
    state: dict[str, Any] = {"settings": settings, "covering": {}, "ended": {}}
    kept = None
    with contextlib.suppress(FileNotFoundError):
        kept = json.loads((work / "state.json").read_text())
        state = kept if kept["settings"] == settings else state
    if state is not kept:
        for file in work.glob("*.jsonl"):
            file.unlink()
        write_atomic(work / "state.json", json.dumps(state))
    if not state["covering"]:
        for uncompiled in (False, True):
            chosen = {key: one for key, one in mutants.items() if (package(one.file) == "kernels") == uncompiled}
            if not chosen:
                continue
            files = of_kernels(work / "tree", tests) if uncompiled else tests
            met = find_tests(work, chosen, uncompiled, files)
            state["covering"] |= {str(key): found for key, found in covering(chosen, met).items()}
            failed = [line["test"] for line in met if not line["passed"]]
            print(
                f"{len(met)} tests ran {'uncompiled ' * uncompiled}once; {len(failed)} failed and are left out; "
                f"{sum(bool(state['covering'][str(key)]) for key in chosen)} of {len(chosen)} mutants meet a test "
                f"({time.monotonic() - began:.0f} s)",
                flush=True,
            )
            for name in failed:
                print(f"  {name}")
        write_atomic(work / "state.json", json.dumps(state))

    def one(key: int) -> tuple[int, str, str, float]:
        start = time.monotonic()
        return key, *judge(work, mutants[key], state["covering"][str(key)]), time.monotonic() - start

    left = [key for key in mutants if str(key) not in state["ended"]]
    with workers() as pool:
        for future in as_completed([pool.submit(one, key) for key in left]):
            key, outcome, why, seconds = future.result()
            state["ended"][str(key)] = {"outcome": outcome, "why": why, "seconds": round(seconds, 1)}
            write_atomic(work / "state.json", json.dumps(state))
            done = len(state["ended"])
            print(f"{done:3}/{len(mutants)} {outcome:8} {seconds:4.0f} s  {mutants[key].name}  [{why}]", flush=True)
    print(f"{time.monotonic() - began:.0f} s")
    return settings | {"mutants": [asdict(mutants[key]) | state["ended"][str(key)] for key in mutants]}


def of_kernels(tree: Path, tests: Sequence[str]) -> list[str]:
    """Files among these that call kernels or compare with oracles; commands are left out, being slow uncompiled."""
    files = {
        path.relative_to(tree).as_posix(): path.read_text(encoding="utf-8")
        for name in tests
        for path in ([tree / name] if (tree / name).is_file() else (tree / name).rglob("test_*.py"))
    }
    return sorted(name for name, text in files.items() if KERNELS.search(text) and not COMMANDS.search(text))


def tell(mutants: Sequence[dict[str, Any]]) -> None:
    """Print how many were caught in each package, and the survivors."""
    total: Counter[str] = Counter(package(mutant["file"]) for mutant in mutants)
    caught: Counter[str] = Counter(package(one["file"]) for one in mutants if one["outcome"] == "caught")
    for name in sorted(total):
        print(f"{name:10} {caught[name]:3} of {total[name]:3} caught")
    print(f"{'all':10} {caught.total():3} of {total.total():3} caught; at least {CAUGHT:.0%} should be")
    for one in mutants:
        if one["outcome"] == "survived":
            print(f"\n{one['file']}:{one['line']} ({one['why']})\n  - {one['before']}\n  + {one['after']}")


if __name__ == "__main__":
    main()
