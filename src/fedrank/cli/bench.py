"""`fedrank bench`: run a submission to FOLTR-Bench, and compare submissions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedrank.cli.shared import EXIT_FAILURE, Quiet, Workers, print_if_compiling, print_line, print_sections, progress

bench_app = typer.Typer(no_args_is_help=True)
OUT = Path("bench")


@bench_app.command(
    epilog="Examples:  fedrank bench run my.toml --short  ·  fedrank bench run my.py  ·  fedrank bench run multi-krum"
    "  ·  fedrank bench run my.toml --verify"
)
def run(
    submission: Annotated[
        str, typer.Argument(help="TOML file with settings, Python file with a class, or name of a built-in method.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = OUT,
    short: Annotated[bool, typer.Option("--short", help="Run a small form on generated data, to test it.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run again on seeds derived from the text of the submission, and compare.")
    ] = False,
    minutes: Annotated[
        float, typer.Option(min=0.01, help="Time limit of a Python submission for each task, in minutes.")
    ] = 60.0,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Run a submission in the tasks that it enters, and write its card. Finished runs are skipped."""
    from fedrank.experiments.bench.board import card, read_entries, write_page
    from fedrank.experiments.bench.run import Interrupted, run_submission
    from fedrank.experiments.bench.submission import read_submission
    from fedrank.experiments.bench.tasks import SKYLINE

    asked = read_submission(submission)
    if not quiet:
        print_if_compiling()
    # The skyline is a row of every table, so it is run once beside the submissions.
    wanted = [asked] if verify or asked.is_skyline else [read_submission(SKYLINE), asked]
    at_once = workers or os.cpu_count() or 1
    try:
        for one in wanted:
            shown = None if quiet else progress
            folder = run_submission(
                one,
                out,
                short=short,
                verify=verify,
                workers=at_once,
                minutes=minutes,
                progress=shown,
                tell=print_line,
            )
    except Interrupted:
        print_line("Stopped; run the same command to resume.")
        raise typer.Exit(130) from None
    entries, refused = read_entries([folder])
    if refused:
        raise ValueError("\n".join(refused))
    sections = card(next(entry for entry in entries if entry.name == asked.name), entries)
    write_page(asked.name, sections, folder / "card.md")
    print_sections(sections[:1])
    print_line(f"Card: {folder / 'card.md'}")


@bench_app.command(
    epilog="Examples:  fedrank bench compare bench/bench-1/mine bench/bench-1/fedavg  ·  fedrank bench compare "
    "bench/bench-1/* --out leaderboard.html  ·  fedrank bench compare bench/bench-1/mine --out card.md"
)
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of submissions, such as bench/bench-1/fedavg.")],
    out: Annotated[Path | None, typer.Option(help="Page to write: .html or .md.")] = None,
) -> None:
    """Check submissions and compare them: one gives its card, two a test in every cell, more a leaderboard."""
    from fedrank.experiments.bench.board import card, comparison, leaderboard, read_entries, write_page

    entries, refused = read_entries(folders)
    named = {folder.resolve() for folder in folders}
    given = [entry for entry in entries if entry.folder.resolve() in named]
    if len(folders) <= 2 and refused:
        raise ValueError("\n".join(refused))
    if len(given) == 1 and len(folders) == 1:
        title, sections = given[0].name, card(given[0], entries)
    elif len(folders) == 2 and len(given) < 2:
        raise ValueError(f"{folders[0]} and {folders[1]} are the same submission; give two")
    elif len(folders) == 2:
        title, sections = "FOLTR-Bench", comparison(given[0], given[1], entries)
    else:
        title, sections = "FOLTR-Bench", leaderboard(entries, refused)
    if out is not None:
        write_page(title, sections, out)
    print_sections(sections[:1] if len(folders) == 1 else sections)
    if out is not None:
        print_line(f"Page: {out}")
    if refused:
        raise typer.Exit(EXIT_FAILURE)
