"""Run folders as a second record of what a population was charged.

A ledger whose file was cut at the end of a record, or that was deleted as a whole, looks sound by itself. The run
folders beside the population say how many rounds each run has done, so that a ledger that says less is noticed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedrank.experiments.runner.folder import Card, Facts
from fedrank.experiments.runner.runs import Run, load_runs, read_toml
from fedrank.experiments.runner.traces import ancestors_of
from fedrank.files import read_bytes, read_text
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.population import FOLDER, Account, forgotten, ledger_folders
from fedrank.toml import shown


def check_recorded(home: Path, name: str) -> None:
    """Raise where a run in `home` did more rounds on a population than the ledgers of the population say.

    Runs whose ledgers were deleted by `fedrank ledger forget` are left out. A run folder that was moved or copied is
    known by its spec. While others run, hold the lock of the population, or a ledger that is set aside is missed.
    """
    if not home.is_dir():
        return
    home = home.resolve()
    folder = home / FOLDER / name
    needed = [(run, _rounds_of(run)) for run in load_runs(home) if _is_on(run, name)]  # read before the ledgers
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
            f"{run.path} records {rounds:,} rounds that population {name!r} was charged for, and the ledgers in "
            f"{folder} say {charged:,}: a ledger is missing or was shortened. Restore {folder} from a copy made after "
            "that run; without one, treat the privacy of these people as spent. If the run was on other people, move "
            f"its folder out of {home}"
        )


def below(home: Path, run: Path) -> Path:
    """Where the ledger of a run lies in a population; runs elsewhere are known by experiment, variant and repeat."""
    return run.relative_to(home) if run.is_relative_to(home) else Path(*run.parts[-3:])


def _is_on(run: Run, name: str) -> bool:
    """Whether a run names a population; one whose folder is damaged or incomplete says nothing."""
    if run.status == "broken":
        return False
    try:
        # Most runs name no population, and a search is faster than reading their specs.
        spec = run.path / "spec.toml"
        return f"population = {shown(name)}" in read_text(spec) and read_toml(spec).get("population") == name
    except (OSError, ValueError):
        return False


def _back_to_training(run: Run) -> tuple[Path, ...]:
    """A run and those that it was unlearned from; none where one of these was deleted or cannot be read."""
    try:
        chain = ancestors_of(run.path)
        first = Facts.read(chain[-1])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return chain if first is not None and first.unlearned is None else ()


def _rounds_of(run: Run) -> int:
    """Rounds that a run, and those that it was unlearned from, have been charged for at least."""
    try:
        card = Card.read(run.path)
    except (OSError, ValueError):
        card = None
    charged = 0 if card is None else card.rounds_charged or 0
    return charged if run.unlearned is not None else max(charged, run.round)
