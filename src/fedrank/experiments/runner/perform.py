"""One run: an experiment on one fold with one seed goes in, a run folder comes out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fedrank.experiments.runner.failures import TRACEBACK, note_failure
from fedrank.experiments.runner.runs import working_on
from fedrank.experiments.runner.writer import News, RunWriter, Stopped, Task
from fedrank.experiments.spec.kinds import KINDS
from fedrank.files import naming

Performer = Callable[[Any, RunWriter], None]


def perform(
    task: Task,
    threads: int = 1,
    on_progress: Callable[[News], None] = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
    performer: Performer | None = None,
) -> str:
    """Do a run, or what is left of it; returns its status: finished, interrupted or failed.

    `performer` takes the place of the one that its kind has, such as where clients are sites elsewhere. A failure is
    written into the run folder and does not leave this function, unless that cannot be written.
    """
    if performer is None:
        module, _, name = KINDS[task.experiment.kind].performer.partition(":")
        performer = getattr(import_module(f"fedrank.experiments.runner.{module}"), name)
    task.folder.mkdir(parents=True, exist_ok=True)
    with working_on(task.folder), RunWriter(task, threads, on_progress, stop) as writer, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* has no guarantee if ")  # it stands in the notes
        try:
            (task.folder / TRACEBACK).unlink(missing_ok=True)  # of an earlier attempt
            writer.check_checkpoint()
            writer.update_facts()
            with naming(task.folder):
                performer(task.experiment, writer)
        except Stopped:
            writer.update_facts(status="interrupted", round=writer.round)
        except (Exception, SystemExit) as problem:  # a method that ends the program has failed, too
            try:
                error = note_failure(problem, task.experiment, task.folder)
                writer.update_facts(status="failed", round=writer.round, error=error)
            except OSError:  # where a disk is full, there is no room to say so either
                raise problem from None
        return writer.facts.status
