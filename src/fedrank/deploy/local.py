"""A trial of a federation on one machine: the clients of a spec are divided among sites that simulate them.

Everything else is as between machines: kits and certificates, a server and sites as processes, mutual TLS on loopback,
jobs, outboxes, ledgers. Weights and `rounds.csv` equal those of `fedrank run`, except for the columns of bytes. Privacy
noise comes from the secure source, so runs with noise differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrank.data.logs import load_log
from fedrank.deploy.consent import accept
from fedrank.deploy.flare_jobs import run_deployed
from fedrank.deploy.flare_local import LocalFederation, local_federation
from fedrank.deploy.forests import portions_of
from fedrank.deploy.make_plans import do_runs, parties_of, plan_runs, plan_task
from fedrank.deploy.plan import Plan, PlannedSite, forest_problems
from fedrank.deploy.records import last_line
from fedrank.deploy.settings import BROWSER, LOCAL, SITE, TRIAL, USER
from fedrank.deploy.site_runtime import LOG
from fedrank.deploy.warm_up import warm_up
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.schedule import Results, is_finished
from fedrank.experiments.runner.schedule import plan as tasks_of
from fedrank.experiments.runner.writer import News, Task
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.families import name_of, settings_of
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.files import write_atomic
from fedrank.progress import Progress, quiet
from fedrank.toml import write_toml
from fedrank.types import has_trait

TEST_SHARE = 0.2  # of a log that holds nothing out


def run_local(
    grid: Grid[Any],
    name: str,
    out: Path,
    sites: int,
    progress: Progress = quiet,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
    folder: Path | None = None,
) -> Results:
    """Run an experiment with sites as processes on this machine; without a folder, only its results are stored.

    Variants that exchange no messages, such as clients that learn separately, are simulated.
    """
    tasks = tasks_of(grid, name, out)
    plans = {task.folder: trial_plan(task, sites) for task in tasks if _travels(task)}
    for label in {task.variant for task in tasks if task.folder not in plans}:
        say(f"{label}: it exchanges no messages between sites and is therefore simulated")

    def do(task: Task, plan: Plan | None, tell: Callable[[News], None]) -> str:
        if plan is None:
            return perform(task, on_progress=tell, stop=stop)
        return run_deployed(federation.home, task, plan, tell, stop, say)

    runs: Any = [(task, plans.get(task.folder)) for task in tasks]
    if all(is_finished(task) for task in tasks):
        return do_runs(grid, runs, do, stop, progress)
    names = {site_name(number): number for number in range(sites)}
    say(f"Starting a server and {sites} sites on this machine ...")
    learners = {name_of(task.experiment.learner) for task in tasks if isinstance(task.experiment, FederatedExperiment)}
    with local_federation(names, folder, prepare, LOCAL, say, lambda: warm_up(sorted(learners))) as federation:
        results = do_runs(grid, runs, do, stop, progress)
        for name, home in federation.sites.items() if results.failed else ():
            if (reason := last_line(home / LOG)) is not None:
                say(f"{name}: {reason}")
        return results


def run_local_logs(
    grid: Grid[Any],
    name: str,
    out: Path,
    logs: Sequence[Path],
    progress: Progress = quiet,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
    folder: Path | None = None,
) -> Results:
    """Run an experiment between sites on this machine, each with its own search log, as between organisations.

    Plans, policies, ledgers and releases are those of real sites. Without a folder, only the results are stored.
    """
    for path in logs:
        load_log(path)
    names = {site_name(number): number for number in range(len(logs))}
    tasks = tasks_of(grid, name, out)
    [measures] = {task.experiment.measures for task in tasks}
    people = any(has_trait(getattr(task.experiment, "mechanism", None), "people") for task in tasks)
    gates = [gate.plans for task in tasks if (gate := getattr(task.experiment, "gate", None)) is not None]
    policy = replace(
        TRIAL,
        unit="person" if people else "site",
        measures=measures,
        plain_measures=not people,
        plans_per_year=min(gates, default=1),
    )

    def write_sites(federation: LocalFederation) -> None:
        for (site, home), log in zip(federation.sites.items(), logs, strict=True):
            found = load_log(log)
            person = USER if found.unit == "person" else BROWSER
            data: dict[str, Any] = {"log": str(Path(log).absolute()), "person": person}
            if not found.held_out.any():
                data["test_share"] = TEST_SHARE
            own = {"name": site, "id": names[site], "federation": LOCAL, "second_place": "../heads", "data": data}
            write_atomic(home / SITE, write_toml(own | {"policy": settings_of(policy)}), private=True)

    def do(task: Task, plan: Plan, tell: Callable[[News], None]) -> str:
        return run_deployed(federation.home, task, plan, tell, stop, say)

    say(f"Starting a server and {len(logs)} sites on this machine ...")
    learners = {name_of(task.experiment.learner) for task in tasks if isinstance(task.experiment, FederatedExperiment)}
    with local_federation(names, folder, write_sites, LOCAL, say, lambda: warm_up(sorted(learners))) as federation:
        runs = plan_runs(grid, name, out, parties_of(federation.home), LOCAL)
        for home in federation.sites.values():
            for _, plan in runs:
                accept(home, plan)  # one person acts for all sites here, so keys need not be compared
        results = do_runs(grid, runs, do, stop, progress)
        for site, home in federation.sites.items() if results.failed else ():
            if (reason := last_line(home / LOG)) is not None:
                say(f"{site}: {reason}")
        return results


def site_name(number: int) -> str:
    return f"site-{number + 1}"


def trial_plan(task: Task, sites: int) -> Plan:
    """The plan of a trial: clients are assigned to sites in turn, and every round needs all sites."""
    experiment: Any = task.experiment
    trees = isinstance(experiment, TreesExperiment)
    clients = len(portions_of(experiment, task.fold, task.seed)) if trees else experiment.clients.count
    parties = [
        PlannedSite(site_name(number), tuple(range(number, clients, sites))) for number in range(min(sites, clients))
    ]
    return plan_task(task, parties, LOCAL, simulated=True)


def prepare(federation: LocalFederation) -> None:
    """Write the settings of the sites of a trial: they accept everything, because they simulate their people."""
    for number, (name, folder) in enumerate(federation.sites.items()):
        own = {
            "name": name,
            "id": number,
            "federation": LOCAL,
            "simulated": True,
            "data": {},
            "policy": settings_of(TRIAL),
        }
        write_atomic(folder / SITE, write_toml(own), private=True)


def _travels(task: Task) -> bool:
    experiment = task.experiment
    if isinstance(experiment, TreesExperiment):
        return not forest_problems(experiment, simulated=True)
    if not isinstance(experiment, FederatedExperiment):
        raise SpecError([f'kind: "{experiment.kind}" is not supported between sites; use `fedrank run`'])
    return not has_trait(experiment.aggregator, "apart")
