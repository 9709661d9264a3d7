"""Checks ledgers of a population against its run folders.

A ledger that was truncated after a record, or deleted as a whole, looks valid by itself. The run folders next to the
population record the rounds of each run, so a ledger with fewer rounds is detected.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedrank.experiments.runner.folder import Card, Facts
from fedrank.experiments.runner.runs import Run, load_runs, read_toml
from fedrank.experiments.runner.traces import ancestors_of
from fedrank.files import read_bytes, read_text
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.population import FOLDER, LEDGER, PEOPLE, Account, Population, forgotten, home_of, ledger_folders
from fedrank.toml import shown


def check_recorded(home: Path, name: str) -> None:
    """Raise an error if a run in `home` has more rounds on a population than its ledgers.

    Runs whose ledgers were deleted by `fedrank privacy ledger --forget` are skipped. A moved or copied run folder is
    identified by its spec. Hold the lock of the population while other runs are active, or a moved ledger is missed.
    """
    if not home.is_dir():
        return
    home = home.resolve()
    folder = home / FOLDER / name
    needed = [(run, _rounds_of(run)) for run in load_runs(home) if _is_on(run, name)]  # must be read before the ledgers
    if not needed:
        return
    gone = {Path(ledger).parent for record in forgotten(folder) for ledger in record["ledgers"]}
    accounts = {ledger: account for ledger in ledger_folders(folder) if (account := Account.read(ledger)) is not None}
    for run, rounds in needed:
        folders = [below(home, path) for path in _back_to_training(run)]
        if not folders or gone.intersection(folders):
            continue
        charged = sum(one.rounds for ledger, one in accounts.items() if ledger.parent.relative_to(folder) in folders)
        if charged >= rounds:
            continue
        spec = hashlib.sha256(read_bytes(run.path / "spec.toml")).hexdigest()
        if any(one.rounds >= rounds for one in accounts.values() if one.terms.spec == spec):
            continue
        raise LedgerError(
            f"{run.path} records {rounds:,} rounds that were charged to population {name!r}, but the ledgers in "
            f"{folder} have {charged:,}: a ledger is missing or was truncated. Restore {folder} from a backup made "
            "after that run; without one, treat the privacy budget of these people as spent. If the run was on "
            f"other people, move its folder out of {home}"
        )


def check_populations(folder: Path) -> None:
    """Raise an error if a ledger of a population in or below a folder is incomplete."""
    folder = folder.absolute()
    around = {home for ledger in (*ledger_folders(folder), folder / LEDGER) if (home := home_of(ledger)) is not None}
    for people in sorted({file.parent for file in folder.rglob(PEOPLE)} | around):
        Population.find(people)
        if people.parent.name == FOLDER:
            check_recorded(people.parent.parent, people.name)


def below(home: Path, run: Path) -> Path:
    """The path of a run's ledger in a population; other runs are identified by experiment, variant and repeat."""
    return run.relative_to(home) if run.is_relative_to(home) else Path(*run.parts[-3:])


def _is_on(run: Run, name: str) -> bool:
    """Whether a run is on a population; False for a damaged or incomplete folder."""
    if run.status == "broken":
        return False
    try:
        # Most runs have no population, and a text search is faster than parsing their specs.
        spec = run.path / "spec.toml"
        return f"population = {shown(name)}" in read_text(spec) and read_toml(spec).get("population") == name
    except (OSError, ValueError):
        return False


def _back_to_training(run: Run) -> tuple[Path, ...]:
    """A run and the runs that it was unlearned from; empty if one of these is missing or unreadable."""
    try:
        chain = ancestors_of(run.path)
        first = Facts.read(chain[-1])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return chain if first is not None and first.unlearned is None else ()


def _rounds_of(run: Run) -> int:
    """The minimum number of rounds that a run, and those it was unlearned from, have been charged for."""
    try:
        card = Card.read(run.path)
    except (OSError, ValueError):
        card = None
    charged = 0 if card is None else card.rounds_charged or 0
    return charged if run.unlearned is not None else max(charged, run.round)
