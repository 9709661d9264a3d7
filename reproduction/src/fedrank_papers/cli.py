"""`fedrank papers`: every published table and figure that fedrank computes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrank.cli.shared import (
    EXIT_FAILURE,
    AsJson,
    Changes,
    Workers,
    print_line,
    print_result,
    progress,
    run_and_print,
)

papers_app = typer.Typer(
    help="Tables and figures of papers as experiments, and their published values next to measured ones.",
    no_args_is_help=True,
)
Runs = Annotated[Path, typer.Option("--runs", help="Folder of the results.")]


@papers_app.command("list", epilog="Example:  FEDRANK_DATA=/data fedrank papers list")
def papers_list(as_json: AsJson = False) -> None:
    """List each table and figure: its experiment, its data, whether they are available, and the running time."""
    from fedrank_papers.items import about_papers, papers_facts

    print_result(as_json, papers_facts, about_papers)


@papers_app.command("convert", epilog="Example:  fedrank papers convert metadata.csv letor.txt --out aol")
def papers_convert(
    metadata: Annotated[Path, typer.Argument(help="Published metadata.csv of AOL4FOLTR.")],
    letor: Annotated[Path, typer.Argument(help="Published features, letor.txt, unpacked.")],
    out: Annotated[Path, typer.Option(help="Folder for the data set.")],
) -> None:
    """Convert the published files of AOL4FOLTR into a data set. A stopped conversion continues."""
    from fedrank.cli.data import make_log
    from fedrank_papers.aol4foltr import convert_aol4foltr

    make_log(lambda report: convert_aol4foltr(metadata, letor, out, report))


@papers_app.command(
    "run",
    epilog="Examples:  fedrank papers run thesis/table-6-2 --quick  ·  fedrank papers run thesis/fig-5-5 --set "
    "data.name=mq2008",
)
def papers_run(
    names: Annotated[list[str], typer.Argument(help="Names from `fedrank papers list`, or `all`.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Run the small form, which takes minutes; its title names the data.")
    ] = False,
    claims: Annotated[bool, typer.Option("--claims", help="Run only the variants that claims compare.")] = False,
    set_: Changes = None,
    runs: Runs = Path("runs"),
    workers: Workers = None,
) -> None:
    """Run experiments of the papers. Results of quick forms and of other data are stored separately."""
    from fedrank_papers.items import ask, compared, named, unlearn_after

    wanted = named(names)
    failed = []
    for name in wanted:
        grid, label = ask(name, set_ or [], quick, runs)
        try:
            grid.base.data.require()
        except (OSError, ValueError) as problem:
            if len(wanted) == 1:
                raise
            print_line(f"skipped {name}: {problem}", style="yellow")
            continue
        try:
            run_and_print(compared(name, grid) if claims else grid, label, runs, workers)
        except typer.Exit as end:
            if end.exit_code != EXIT_FAILURE:  # the user asked to stop
                raise
            failed.append(name)
            continue
        with progress() as tell:
            unlearned = unlearn_after(name, grid, label, runs, tell)
        if unlearned is not None:
            print_line(f"Unlearned: {unlearned}")
    if failed:
        if len(wanted) > 1:
            print_line(f"Runs failed in {', '.join(failed)}; the reasons are above.", style="red")
        raise typer.Exit(EXIT_FAILURE)


@papers_app.command(
    "report",
    epilog="Examples:  fedrank papers report --runs runs --out papers.html  ·  "
    "fedrank papers report --out claims.md --details notebook.md",
)
def papers_report(
    out: Annotated[
        Path, typer.Option(help="Web page to write, with one page per paper next to it; or a .md file with all claims.")
    ] = Path("papers.html"),
    runs: Runs = Path("runs"),
    details: Annotated[
        Path | None,
        typer.Option(help="With a .md file: file for the results of each experiment. Default: next to it."),
    ] = None,
) -> None:
    """Write a report of published and measured values, with a verdict on each claim."""
    from fedrank_papers.claims_page import write_claims
    from fedrank_papers.page import write_papers_report

    if out.suffix == ".md":
        details = details or out.with_name(f"{out.stem}-notebook.md")
        print_line(write_claims(runs, out, details))
        print_line(f"Claims: {out}; results of each experiment: {details}")
        return
    if details is not None:
        raise ValueError(f"--details {details} needs a .md file as --out (got {out})")
    if not runs.is_dir():
        raise FileNotFoundError(f"folder {runs} does not exist; give the folder of the results with --runs")
    print_line(write_papers_report(runs, out))
    print_line(f"Report: {out}, with one page per paper next to it")
