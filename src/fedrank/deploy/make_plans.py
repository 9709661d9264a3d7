"""Plans for the runs of an experiment, and their execution, for any transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.data.ranking import RankingData
from fedrank.deploy.plan import Plan, PlannedSite, make_plan
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.folder import Card
from fedrank.experiments.runner.runs import load_runs, working_on
from fedrank.experiments.runner.schedule import Results, is_finished, show_news
from fedrank.experiments.runner.schedule import plan as tasks_of
from fedrank.experiments.runner.writer import News, Task
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.files import error_message, parse_json, write_atomic
from fedrank.progress import Progress, quiet

if TYPE_CHECKING:
    from fedrank.deploy.unlearning import Departure

# Performs or continues a run and reports its progress; returns finished, interrupted or failed.
Do = Callable[[Task, Plan, Callable[[News], None]], str]
A_DAY = 86_400.0  # default patience in seconds for sites that use a shared folder


def plan_runs(
    grid: Grid[Any], name: str, out: Path, parties: Sequence[PlannedSite], federation: str
) -> list[tuple[Task, Plan]]:
    """Plan every run of an experiment; raise an error before the first one starts if one cannot be planned.

    The plan is the only thing that sites receive. Overrides of the spec are part of it; after a run has started, they
    would make another plan, which no site has accepted, and are refused.
    """
    from fedrank.deploy.coordinate import check_same_plan

    if not parties:
        raise ValueError(f"no site has joined federation {federation!r}; approve sites first")
    runs = [(task, plan_task(task, parties, federation)) for task in tasks_of(grid, name, out)]
    for task, plan in runs:
        if not is_finished(task):
            check_same_plan(task.folder, plan)
    return runs


def do_runs(
    grid: Grid[Any], runs: Sequence[tuple[Task, Plan]], do: Do, stop: Callable[[], bool], progress: Progress = quiet
) -> Results:
    """Perform all unfinished runs one after the other: a site participates in one run at a time."""
    from fedrank.deploy.coordinate import PLAN

    results = Results()
    for task, plan in runs:
        if plan is not None and is_finished(task) and not (task.folder / PLAN).exists():
            raise ValueError(f"{task.folder} has the results of a simulation; choose another name with --name")
    for task, plan in runs:
        if is_finished(task):
            results.skipped.append(task)
            continue
        if stop():
            results.interrupted.append(task)
            continue
        write_atomic(task.folder.parent.parent / "experiment.toml", grid.toml())
        try:
            status = do(task, plan, partial(show_news, progress, task))
        except (OSError, RuntimeError, ValueError) as problem:
            results.failed.append((task, error_message(problem)))
            continue
        progress(task.label, 1, 1, status)
        if status == "finished":
            results.finished.append(task)
        elif status == "failed":
            results.failed.append((task, _reason(task)))
        else:
            results.interrupted.append(task)
    return results


def parties_of(home: Path) -> list[PlannedSite]:
    """The joined sites of a coordinator's home, with their keys."""
    from fedrank.deploy.flare_kit import read_members

    members = read_members(home).values()
    return [PlannedSite(one.name, (one.id,), one.identity) for one in members if one.state == "joined"]


def run_in_folder(
    shared: Path,
    home: Path,
    task: Task,
    plan: Plan,
    tell: Callable[[News], None],
    stop: Callable[[], bool],
    patience: float = A_DAY,
    departure: Departure | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> str:
    """Perform a run through a shared folder; return its status. With `departure`, it unlearns sites that left."""
    from fedrank.deploy.coordinate import coordinate
    from fedrank.deploy.folder import folder_send, refuse_online_plan

    refuse_online_plan(plan)
    with folder_send(shared, home) as send:
        return coordinate(task, plan, send, tell, stop, patience, departure, say, home)


def forget_sites(departure: Departure, out: Path, name: str | None, do: Do, progress: Progress = quiet) -> Path:
    """Unlearn sites of a finished run: from recorded updates if they suffice, else in rounds with the other sites."""
    from fedrank.deploy.unlearning import remove

    if departure.alone:
        return remove(departure, out, name, progress)
    task, plan = departure.planned(out, name)
    status = do(task, plan, partial(show_news, progress, task))
    progress(task.label, 1, 1, status)
    if status == "failed":
        raise ValueError(f"{task.label}: {_reason(task)}")
    if status != "finished":
        raise InterruptedError(f"{task.label} is not finished; run the same command again to continue")
    return task.folder


def readmit(folder: Path, site: str) -> str:
    """Readmit a site that was excluded from a run; return why it was excluded. The run must not be active."""
    from fedrank.deploy.coordinate import LEFT_OUT

    folder = Path(folder)
    if not (folder / "spec.toml").exists():
        raise FileNotFoundError(f"{folder} is not a run folder; give the folder that `fedrank deploy status` shows")
    path = folder / LEFT_OUT
    with working_on(folder):
        found = parse_json(path.read_bytes()) if path.exists() else {}
        if site not in found:
            raise ValueError(f"{site!r} is not excluded from {folder} (excluded: {', '.join(found) or 'none'})")
        why = str(found.pop(site))
        write_atomic(path, json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    return why


def site_problems(task: Task, plan: Plan) -> list[str]:
    """Sites that a run excluded or that did not receive its result, with the reasons; for the operator."""
    from fedrank.deploy.coordinate import LEFT_OUT

    path, names = task.folder / LEFT_OUT, {site.name for site in plan.sites}
    found = parse_json(path.read_bytes()) if path.exists() else {}
    lines = [f"{name}: {why}; `--readmit {name}` asks it again" for name, why in found.items()]
    notes = load_runs(task.folder)[0].notes if is_finished(task) else ()
    return lines + [note for note in notes if note.partition(" did not receive the result: ")[0] in names]


def gate_of(task: Task) -> dict[str, Any] | None:
    """The decision of the gate on the model of a finished run; None without a gate."""
    card = Card.read(task.folder) if is_finished(task) else None
    gate = (card.deployment or {}).get("gate") if card is not None else None
    return gate if isinstance(gate, dict) else None


def plan_task(task: Task, parties: Sequence[PlannedSite], federation: str, simulated: bool = False) -> Plan:
    """The plan of one run. Sites must have the features of the coordinator's own data, or those that the spec names."""
    experiment: Any = task.experiment
    features: dict[str, Any] = {}
    if isinstance(experiment, FederatedExperiment | TreesExperiment):
        data = experiment.unscaled if isinstance(experiment, TreesExperiment) else experiment.data
        features = features_of(load_fold(data, task.fold, deployed=not simulated).train)
    return make_plan(
        experiment,
        f"{task.name}/{task.variant}/{task.folder.name}",
        parties,
        federation=federation,
        fold=task.fold,
        seed=task.seed,
        min_sites=len(parties) if simulated else None,
        simulated=simulated,
        **features,
    )


def features_of(data: RankingData) -> dict[str, Any]:
    """The entries of a plan about features, from data."""
    names, normalised = data.feature_names, data.normalised
    return {"features": data.features.shape[1], "feature_names": names, "normalised": normalised}


def _reason(task: Task) -> str:
    return load_runs(task.folder)[0].reason
