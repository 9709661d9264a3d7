"""One run: an experiment on one fold with one seed goes in, a run folder comes out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fedrank.federate.server import RoundError
from fedrank.files import naming, told
from fedrank.run.runs import working_on
from fedrank.run.writer import News, RunWriter, Stopped, Task
from fedrank.spec.kinds import KINDS

Performer = Callable[[Any, RunWriter], None]


def perform(
    task: Task,
    threads: int = 1,
    tell: Callable[[News], None] = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
    performer: Performer | None = None,
) -> str:
    """Do a run, or what is left of it; returns its status: finished, interrupted or failed.

    `performer` takes the place of the one that its kind has, such as where clients are sites elsewhere. A failure is
    written into the run folder and does not leave this function, unless that cannot be written.
    """
    if performer is None:
        module, _, name = KINDS[task.experiment.kind].performer.partition(":")
        performer = getattr(import_module(f"fedrank.run.{module}"), name)
    task.folder.mkdir(parents=True, exist_ok=True)
    with working_on(task.folder), RunWriter(task, threads, tell, stop) as writer, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* promises nothing where ")  # it stands in the notes
        try:
            writer.check_checkpoint()
            writer.know()
            with naming(task.folder):
                performer(task.experiment, writer)
        except Stopped:
            writer.know(status="interrupted", round=writer.round)
        except Exception as problem:
            try:
                writer.know(status="failed", round=writer.round, error=_told(problem))
            except OSError:  # where a disk is full, there is no room to say so either
                raise problem from None
        return writer.facts.status


def _told(problem: Exception) -> dict[str, Any]:
    message = problem.message if isinstance(problem, RoundError) else told(problem)
    place = {name: getattr(problem, name, None) for name in ("round", "client")}
    return {"message": message or type(problem).__name__} | place
