"""`fedrank ledger`: what people have spent on all runs together, and, in so many words, how to forget it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrank.cli.shared import new_console, print_line, print_sections

ledger_app = typer.Typer(
    help="Ledgers: what people have spent, over all runs; they outlive the runs.", no_args_is_help=True
)
Folders = Annotated[
    list[Path], typer.Argument(help="Folders with ledgers: of runs, or of a population, such as runs/populations/town.")
]


@ledger_app.command("show", epilog="Examples:  fedrank ledger show runs  ·  fedrank ledger show runs/populations/town")
def ledger_show(folders: Folders) -> None:
    """Every ledger, and what all of them together would cost if they were of the same people."""
    from fedrank.experiments.report.command_output import about_ledgers

    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder {folder}; give a folder of runs, or that of a population")
    print_sections(about_ledgers(folders), new_console())


@ledger_app.command(
    "forget",
    epilog="Example:  fedrank ledger forget runs/my/only/fold-1-seed-1 --because 'a test with made-up people'",
)
def ledger_forget(
    folder: Annotated[Path, typer.Argument(help="A run folder, or the folder of a population.")],
    because: Annotated[str, typer.Option(help="Why; it is written down beside what was forgotten.")],
    words: Annotated[str | None, typer.Option(help="The sentence that is asked for otherwise, word for word.")] = None,
) -> None:
    """Delete the ledgers of a folder, as if nobody there had spent anything. What they said in all stays on record."""
    from fedrank.privacy.population import FORGOTTEN, Account, forget_ledgers, ledgers_below, totals

    ledgers = ledgers_below(folder)
    if not ledgers:
        raise FileNotFoundError(f"no ledger at or below {folder}; nothing was forgotten")
    found = totals([account for account in map(Account.read, ledgers) if account is not None])
    sentence = f"forget what {found['people']} people spent"
    if words is None:
        words = typer.prompt(
            f"{found['participations']:,} participations of {found['people']:,} people in {folder} would no longer "
            f"count. Type '{sentence}' to go on"
        )
    if words.strip() != sentence:
        raise ValueError(f"{words!r} is not {sentence!r}: nothing was forgotten")
    record = forget_ledgers(folder, because)
    print_line(
        new_console(), f"{len(record['ledgers'])} ledgers are gone; {folder / FORGOTTEN} says which, when and why"
    )
