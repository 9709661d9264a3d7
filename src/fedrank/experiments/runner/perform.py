"""One run: executes an experiment with one fold and seed, and writes a run folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fedrank.experiments.runner.failures import TRACEBACK, note_failure
from fedrank.experiments.runner.runs import working_on
from fedrank.experiments.runner.writer import News, RunWriter, Stopped, Task
from fedrank.experiments.spec.kinds import KINDS
from fedrank.files import add_path_to_errors

Performer = Callable[[Any, RunWriter], None]


def perform(
    task: Task,
    threads: int = 1,
    on_progress: Callable[[News], None] = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
    performer: Performer | None = None,
) -> str:
    """Execute a run, or resume it; returns its status: finished, interrupted or failed.

    `performer` replaces the one of its kind, for example for deployed sites. A failure is written into the run folder
    and is only raised if that is impossible.
    """
    if performer is None:
        module, _, name = KINDS[task.experiment.kind].performer.partition(":")
        performer = getattr(import_module(f"fedrank.experiments.runner.{module}"), name)
    task.folder.mkdir(parents=True, exist_ok=True)
    with working_on(task.folder), RunWriter(task, threads, on_progress, stop) as writer, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* has no guarantee if ")  # the notes of the run say it
        try:
            (task.folder / TRACEBACK).unlink(missing_ok=True)  # from an earlier attempt
            writer.check_checkpoint()
            writer.update_facts()
            with add_path_to_errors(task.folder):
                performer(task.experiment, writer)
        except Stopped:
            writer.update_facts(status="interrupted", round=writer.round)
        except (Exception, SystemExit) as problem:  # a method that exits the program has failed, too
            try:
                error = note_failure(problem, task.experiment, task.folder)
                writer.update_facts(status="failed", round=writer.round, error=error)
            except OSError:  # the disk may be full
                raise problem from None
        return writer.facts.status
