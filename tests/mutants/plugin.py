"""A pytest plugin that changes modules of fedrank as they are imported, and never on the disk.

`FEDRANK_MUTANTS` names a file with a task as JSON: either mutants, and every test writes down which of them it meets
(`Mapper`), or one mutant and the tests that have to notice it (`Judge`).
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numba.core.event
import pytest
from hypothesis import HealthCheck, settings

from tests.mutants.operators import HIT, Mutant, instrumented, mutated

MEMORY = 12 << 30  # bytes of address space: a mutant that allocates without end fails, and the machine goes on
IMPORTS = 120.0  # seconds until the first test begins
FILE_SIZE = 1 << 30  # bytes of one file
KERNELS = "src/fedrank/kernels/"

TASK: dict[str, Any] = json.loads(Path(os.environ["FEDRANK_MUTANTS"]).read_text())
ROOT = Path(TASK["root"])
MUTANTS = {int(key): Mutant(**mutant) for key, mutant in TASK.get("mutants", {}).items()}
HITS: set[tuple[int, int]] = set()


def changed(path: Path) -> ast.Module | None:
    """The module as this process should see it, or nothing if it stays as it is."""
    if not path.is_relative_to(ROOT / "src"):
        return None
    file = path.relative_to(ROOT).as_posix()
    if not MUTANTS:
        return mutated(path.read_bytes(), TASK["number"]) if file == TASK["file"] else None
    if file.startswith(KERNELS) and not TASK["uncompiled"]:
        return None  # a compiled kernel cannot report anything
    return instrumented(path.read_bytes(), file, MUTANTS)


def plain(**_options: object) -> Callable[[Any], Any]:
    """Leaves a kernel uncompiled, and gives it the attribute by which tests find the uncompiled one."""

    def decorate(function: Any) -> Any:
        function.py_func = function
        return function

    return decorate


def install() -> None:
    """Change modules from now on, and bound what a mutant can use up."""
    unchanged = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        module = changed(Path(path))
        return unchanged(self, fullname) if module is None else compile(module, path, "exec", dont_inherit=True)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
    setattr(builtins, HIT, lambda key, level: HITS.add((key, level)))
    if TASK["uncompiled"]:
        numba.njit = plain  # type: ignore[assignment]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))


install()


def pytest_configure(config: pytest.Config) -> None:
    # Slower than usual is not wrong: modules are instrumented, and kernels may be uncompiled.
    settings.register_profile(
        "mutants", settings.get_profile("steady"), deadline=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("mutants")
    config.pluginmanager.register(Mapper() if MUTANTS else Judge())


def limit(seconds: float) -> None:
    """End this process after so many seconds of processor time, wherever it hangs: no Python code has to run for it."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


class Judge:
    """Runs the tests of one mutant in their order, each of them with a limit of time."""

    def __init__(self) -> None:
        limit(IMPORTS)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        place = {name: number for number, name in enumerate(TASK["limits"])}
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        Path(TASK["out"]).write_text(item.nodeid)  # the last one is the test that noticed the mutant
        limit(TASK["limits"][item.nodeid])
        return (yield)

    def pytest_sessionfinish(self) -> None:
        limit(IMPORTS)  # an atexit handler may hang as well


class Compiling(numba.core.event.Listener):
    """Seconds of processor time spent on compilation."""

    seconds = began = 0.0
    depth = 0

    def on_start(self, _event: object) -> None:
        if self.depth == 0:
            self.began = time.process_time()
        self.depth += 1

    def on_end(self, _event: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.process_time() - self.began


class Mapper:
    """Writes a line for each test: whether it passed, its seconds without compilation, and which mutants it met.

    Seconds are those of the processor: what else the machine does changes no choice.

    Two processes run it at once and share the tests, file by file.
    """

    def __init__(self) -> None:
        self.mine: dict[Path, bool] = {}
        self.passed = True
        self.compiling = Compiling()
        numba.core.event.register("numba:compile", self.compiling)  # type: ignore[no-untyped-call]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        known = {*TASK["known"]}
        items = (item for item in session.items if item.nodeid not in known and self.claim(item.path))
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        return True

    def claim(self, path: Path) -> bool:
        if path not in self.mine:
            name = path.relative_to(ROOT).as_posix().replace("/", "+")
            try:
                (Path(TASK["claims"]) / name).touch(exist_ok=False)
                self.mine[path] = True
            except FileExistsError:
                self.mine[path] = False
        return self.mine[path]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        HITS.clear()
        self.passed = True
        signal.signal(signal.SIGPROF, too_slow)
        signal.setitimer(signal.ITIMER_PROF, TASK["limit"])
        began = time.process_time() - self.compiling.seconds
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            seconds = round(time.process_time() - self.compiling.seconds - began, 3)
            line = {"test": item.nodeid, "passed": self.passed, "seconds": seconds, "hits": sorted(HITS)}
            with open(TASK["out"], "ab", buffering=0) as file:
                file.write(json.dumps(line).encode() + b"\n")  # at once: the other process writes here, too

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed = self.passed and not report.failed


def too_slow(_signal: int, _frame: FrameType | None) -> None:
    pytest.fail(f"it takes more than {TASK['limit']} s")
