"""`fedrank forget`: a client of finished runs, or a person or expired entries of a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrank.cli.config import Config, with_settings
from fedrank.cli.shared import (
    MethodChanges,
    RunsFolders,
    Trust,
    Yes,
    print_line,
    print_sections,
    progress,
    results_name,
    unlearner,
)

if TYPE_CHECKING:
    from fedrank.experiments.runner.forget_person import AffectedRun, ForgettingPlan

forget_app = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True)
class UnlearnOptions:
    """Further options of `forget client`."""

    name: str | None = None  # name of the results; default: the name of the runs and -unlearned
    trust: bool = False  # import methods from other packages that the spec names; they run as code
    quiet: bool = False  # do not print progress


@forget_app.command(
    epilog="Examples:  fedrank forget client runs/my --client 9  ·  fedrank forget client runs/my --client 9 "
    "--client 3 --method fed-eraser --set steps=2 --verify  ·  fedrank forget client runs/my --client 9 "
    "--method retrain --purge-parent  ·  fedrank forget client runs/my --method certified"
)
@with_settings
def client(
    folders: RunsFolders,
    client: Annotated[
        list[int] | None,
        typer.Option(
            help="Number of the client, from 0; may be repeated. With --method certified, without it: people whose "
            "rows were removed from the data set since the run."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Unlearning method; fedrank methods unlearner lists them.")
    ] = "fed-eraser",
    set_: MethodChanges = None,
    out: Annotated[Path, typer.Option(help="Folder for the results; they are written to OUT/NAME.")] = Path("runs"),
    verify: Annotated[
        bool, typer.Option("--verify", help="Also retrain without these clients, with four seeds, and compare.")
    ] = False,
    purge_parent: Annotated[
        bool, typer.Option("--purge-parent", help="Delete the models of the runs and the updates of these clients.")
    ] = False,
    yes: Yes = False,
    config: Config = None,
    *,
    more: UnlearnOptions,
) -> None:
    """Unlearn clients of finished runs, or people: write new runs without them, each with a receipt."""
    from fedrank.experiments.report.model_output import about_forgotten
    from fedrank.experiments.runner.unlearning import unlearn_runs

    chosen = unlearner(method, set_)
    label = None if more.name is None else results_name(more.name, "")
    if purge_parent and not yes:
        typer.confirm(
            "Delete the models of these runs and the updates of these clients? This cannot be undone.", abort=True
        )
    with progress(more.quiet) as tell:
        results = unlearn_runs(
            folders,
            client or (),
            chosen,
            out,
            label,
            verify=verify,
            purge=purge_parent,
            trust=more.trust,
            progress=tell,
        )
    print_sections(about_forgotten(results))
    print_line(f"Compare: fedrank report {' '.join(map(str, folders))} {results[0].folder.parent.parent}")


@forget_app.command(
    epilog="Examples:  fedrank forget person 71845 --data aol --plan  ·  fedrank forget person 71845 --data aol --out "
    "receipt.json"
)
def person(
    person: Annotated[str, typer.Argument(metavar="ID", help="Id of the person in the log.")],
    data: Annotated[Path, typer.Option(help="Data set written by fedrank data build.")],
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of runs, or models of a site, that may have used the data set. Default: runs."),
    ] = None,
    trials: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of trials of an engine with the same ids; may be repeated. Default: trials."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the receipt; the data set contains a copy.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be deleted, and change nothing.")] = False,
    yes: Yes = False,
    trust: Trust = False,
) -> None:
    """Delete a person's rows from a data set and from trials, list the runs that used them, and write a receipt."""
    from fedrank.engine.trial import find_trials
    from fedrank.experiments.runner.forget_person import clear_traces, forget_person, plan_forgetting

    folders = list(runs or [])
    if not folders and Path("runs").is_dir():
        folders = [Path("runs")]
    if missing := [folder for folder in trials or [] if not folder.is_dir()]:
        raise FileNotFoundError(f"no folder {missing[0]}; give a folder of trials as --trials")
    in_trials = find_trials(trials or ([Path("trials")] if Path("trials").is_dir() else []))
    affected = [found for found in (one.events_of(person) for one in in_trials) if found.searches or found.clicks]
    if not plan and clear_traces(data):  # first, because files of a stopped command may contain deleted rows
        print_line(f"Deleted temporary files beside {data} that a stopped command had left.")
    found = replace(plan_forgetting(person, data, folders, trust), trials=tuple(vars(one) for one in affected))
    if plan:
        _print_plan(found)
        print_line("Nothing was changed.")
        return
    if not yes:
        _print_plan(found)
        typer.confirm(f"Delete these rows from {data}? This cannot be undone.", abort=True)

    def from_trials() -> list[dict[str, Any]]:
        removed = [one.forget(person) for one in in_trials]
        return [vars(one) for one in removed if one.searches or one.clicks]

    receipt, path = forget_person(person, data, folders, out, trust, from_trials)
    print_line(receipt.summary)
    _print_commands(found.runs, before=False)
    print_line(f"Receipt: {path}")


@forget_app.command(epilog="Examples:  fedrank forget expired log --plan  ·  fedrank forget expired log --yes")
def expired(
    data: Annotated[Path, typer.Argument(help="Data set written by fedrank data build --keep-days.")],
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be deleted, and change nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Delete the entries of a data set that are older than its retention period. Run it every day, for example."""
    from fedrank.data.forget_user import expired_rows, forget_expired
    from fedrank.data.logs import load_log

    found = expired_rows(load_log(data))
    if found is None:
        print_line(f"No entry of {data} is older than its retention period.")
        return
    print_line(
        f"{found.entries:,} lists, {found.clicks:,} clicks, {found.queries:,} queries and {found.pairs:,} rows of "
        "features that occur only there"
    )
    if plan:
        print_line("Nothing was changed.")
        return
    if not yes:
        typer.confirm(f"Delete them from {data}? This cannot be undone.", abort=True)
    forget_expired(data)
    print_line("Deleted. Models that were trained on these entries still contain what they learned.")


def _print_plan(plan: ForgettingPlan) -> None:
    removed = plan.removed
    print_line(
        f"{removed.entries:,} lists of one {plan.unit}, {removed.clicks:,} clicks, {removed.queries:,} queries and "
        f"{removed.pairs:,} rows of features that occur only there"
    )
    for trial in plan.trials:
        print_line(f"{trial['trial']}: {trial['searches']:,} searches and {trial['clicks']:,} clicks")
    for run in plan.runs:
        print_line(f"{run.run}: {run.used}{f' ({run.because})' if run.because else ''}")
        if run.holds:
            print_line(f"    privacy guarantee of its model: {'; '.join(run.claims) or 'none'}")
    _print_commands(plan.runs, before=True)


def _print_commands(runs: tuple[AffectedRun, ...], before: bool) -> None:
    unlearn = dict.fromkeys(run.unlearn_command for run in runs if run.unlearn_command)
    if before and unlearn:
        print_line("Before rows are deleted, unlearn without training again:")
        for line in unlearn:
            print_line(f"    {line}")
    certify = dict.fromkeys(run.certified_command for run in runs if run.certified_command and run.holds)
    if certify:
        print_line("After rows are deleted, make a model with a certificate that it forgot them:")
        for line in certify:
            print_line(f"    {line}")
    again = dict.fromkeys(run.retrain_command for run in runs if run.retrain_command and run.holds)
    if again:
        print_line("After rows are deleted, train again on the remaining data:")
        for line in again:
            print_line(f"    {line}")
