"""Rules for all tests: steady examples, marked processes, and skips that say what is missing.

Examples that Hypothesis makes up are the same in every run, so a change is judged by what it changed. Set
FEDRANK_EXPLORE=1 to look for new ones.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import typer.testing
from hypothesis import settings

from tests.needs import REMEDIES

settings.register_profile("steady", derandomize=not os.environ.get("FEDRANK_EXPLORE"))
settings.load_profile("steady")

# Building the commands takes a fifth of a second, and most tests of the command line need nothing else.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)

# A minute and more each: they begin first, so no worker is left with one of them at the end.
LONGEST = (
    "test_three_users",
    "test_flare.py",
    "deploy/test_tutorial",
    "test_packaging",
    "test_fuzz.py",
)
# Markers of tests that may start another process.
STARTING = ("process", "browser", "build", "smoke")
# What a run asks about the code and the machine, and does without where there is no answer.
QUESTIONS = ("git", "uname")
REQUIRED = {name.strip() for name in os.environ.get("FEDRANK_REQUIRE", "").split(",")} - {""}

_started: list[str] = []


def _note_process(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        if arguments[0] not in QUESTIONS:
            _started.append(str(arguments[0]))
    elif event in ("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"):
        _started.append(event)


sys.addaudithook(_note_process)


def pytest_configure() -> None:
    if unknown := REQUIRED - REMEDIES.keys():
        raise pytest.UsageError(
            f"FEDRANK_REQUIRE names {', '.join(sorted(unknown))}; it can name {', '.join(REMEDIES)}"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Share out the compilation of test modules, which every worker imports: each begins with its own part of them."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    tests = Path(__file__).parent
    names = [
        ".".join(path.relative_to(tests.parent).with_suffix("").parts) for path in sorted(tests.rglob("test_*.py"))
    ]
    for name in names[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest imports it again, and reports it
            importlib.import_module(name)


def pytest_collection_finish() -> None:
    gc.freeze()  # ten thousand tests are not searched for garbage again and again


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _without_processes(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _without_processes(item))


def _without_processes(item: pytest.Item) -> Iterator[None]:
    """An unmarked test that starts a process fails: `make test` runs only what needs no other process."""
    _started.clear()
    yield
    if _started and not any(item.get_closest_marker(name) for name in STARTING):
        pytest.fail(f"this test started a process ({_started[0]}); mark it with @pytest.mark.process", pytrace=False)


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here survives a power cut; tests of what is synced, and when, replace `os.fsync` themselves."""
    if not any(request.node.get_closest_marker(name) for name in STARTING):
        monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(autouse=True, scope="session")
def _second_places_of_sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sites write the heads of their journals to a folder of the tests, not to that of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that hold a lock themselves, so waiting for it is of no use."""
    monkeypatch.setattr("fedrank.files.PATIENCE", 0.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A skip for something that FEDRANK_REQUIRE names is a failure, and so is a skip without a remedy."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        need, reason = need_and_reason(report.longrepr)
        if need is None or need in REQUIRED:
            told = "FEDRANK_REQUIRE names it" if need else f"a skip must begin with one of {', '.join(REMEDIES)}"
            report.outcome, report.longrepr = "failed", f"skipped: {reason} ({told})"
    return report


def need_and_reason(longrepr: Any) -> tuple[str | None, str]:
    """What a skipped test needs, as a key of REMEDIES, and what is missing."""
    reason = str(longrepr[2]).removeprefix("Skipped: ")
    name, colon, rest = reason.partition(": ")
    if colon and name in REMEDIES:
        return name, rest.removesuffix(f"; {REMEDIES[name]}")
    if reason.startswith(("could not import", "pip install ")) or "extra" in reason:
        return "package", reason
    return None, reason


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was skipped, once for each thing that was missing, and how to get it."""
    found = [need_and_reason(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    needs = Counter(need for need, _ in found if need)
    if not needs:
        return
    terminalreporter.section("not run because something is missing")
    for need, count in needs.most_common():
        missing = Counter(reason for name, reason in found if name == need)
        shown = "; ".join(reason for reason, _ in missing.most_common(2))
        more = f"; and {len(missing) - 2} more reasons" if len(missing) > 2 else ""
        terminalreporter.line(f"{count} tests need {need}: {shown}{more}")
        terminalreporter.line(f"    to run them: {REMEDIES[need]}")
