"""`fedrank forget-person` and `fedrank impact`: what people may ask of whoever learns from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.shared import Trust, new_console, print_line

if TYPE_CHECKING:
    from rich.console import Console

    from fedrank.experiments.runner.forget_person import AffectedRun, ForgettingPlan


def forget_person(
    person: Annotated[str, typer.Argument(metavar="ID", help="Who leaves: the id that the log has for them.")],
    data: Annotated[Path, typer.Option(help="A data set that fedrank logs build wrote.")],
    runs: Annotated[
        list[Path] | None, typer.Option(help="Folder of runs that may have used it; may be repeated. [default: runs]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the receipt; it lies in the data set as well.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before deleting.")] = False,
    trust: Trust = False,
) -> None:
    """Remove one person's rows from a data set; find the runs that used them; write a receipt."""
    from fedrank.experiments.runner.forget_person import clear_traces, plan_forgetting
    from fedrank.experiments.runner.forget_person import forget_person as forget

    folders = list(runs or [])
    if not folders and Path("runs").is_dir():
        folders = [Path("runs")]
    console = new_console()
    if not plan and clear_traces(data):  # before anything else: who is no longer in the data set may lie beside it
        print_line(console, f"What a command that was stopped had left beside {data} is deleted.")
    found = plan_forgetting(person, data, folders, trust)
    if plan:
        _say_plan(found, console)
        print_line(console, "Nothing was changed.")
        return
    if not yes:
        _say_plan(found, console)
        typer.confirm(f"Delete these rows from {data}? This cannot be undone.", abort=True)
    receipt, path = forget(person, data, folders, out, trust)
    print_line(console, receipt.summary)
    _say_commands(found.runs, console, before=False)
    print_line(console, f"Receipt: {path}")


def _say_plan(plan: ForgettingPlan, console: Console) -> None:
    removed = plan.removed
    print_line(
        console,
        f"{removed.entries:,} lists of one {plan.unit}, {removed.clicks:,} clicks, {removed.queries:,} queries that "
        f"nobody else asked, {removed.pairs:,} rows of features that nobody else needs",
    )
    for run in plan.runs:
        print_line(console, f"{run.run}: {run.used}{f' ({run.because})' if run.because else ''}")
        if run.holds:
            print_line(console, f"    claimed for its model: {'; '.join(run.claims) or 'nothing'}")
    _say_commands(plan.runs, console, before=True)


def _say_commands(runs: tuple[AffectedRun, ...], console: Console, before: bool) -> None:
    unlearn = dict.fromkeys(run.before for run in runs if run.before)
    if before and unlearn:
        print_line(console, "To let models forget without training them again, before rows are deleted:")
        for line in unlearn:
            print_line(console, f"    {line}")
    again = dict.fromkeys(run.after for run in runs if run.after and run.holds)
    if again:
        print_line(console, "To train again on what is left, after rows are deleted:")
        for line in again:
            print_line(console, f"    {line}")


def impact(
    source: Annotated[str, typer.Argument(metavar="SPEC_OR_RUNS", help="A spec, or a folder of finished runs.")],
    out: Annotated[Path, typer.Option(help="Markdown file to write; one that is there is never replaced.")],
    runs: Annotated[
        Path, typer.Option(help="The folder that runs go to: ledgers of a population lie in RUNS/populations.")
    ] = Path("runs"),
    trust: Trust = False,
) -> None:
    """Begin a data protection impact assessment: what files say is filled in, what people must say is marked."""
    from fedrank.experiments.report.impact import TO_FILL_IN, read_assessed
    from fedrank.experiments.report.impact import impact as assess
    from fedrank.experiments.report.markdown import markdown
    from fedrank.files import writing

    if out.suffix.lower() != ".md":
        raise ValueError(f"--out {out}: the assessment is Markdown; let its name end in .md")
    if out.exists():
        raise FileExistsError(f"{out} is there already, and somebody may have filled it in; name another file")
    text = markdown(assess(read_assessed(source, trust), runs))
    with writing(out, replace=False) as file:
        file.write(text.encode())
    console = new_console()
    print_line(
        console, f"Written: {out}, with {text.count(TO_FILL_IN.strip()):,} places marked {TO_FILL_IN.strip(': ')}"
    )
