"""Lists and deletes what run folders contain about clients that leave."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from fedrank.experiments.runner.folder import Facts
from fedrank.experiments.runner.runs import working_on
from fedrank.unlearning.history import INDEX, History

TRACES = {
    "model.json": "the model that was trained on their data",
    "checkpoint.npz": "the model that was trained on their data, and the state of clients between rounds",
    "rounds.csv": "quality after every round, which their updates influenced",
    "queries.csv": "quality of that model by query",
    "clients.csv": "one row for each of them: queries, interactions, quality",
    "privacy.json": "the privacy guarantees of all clients, including them",
    "ledger/*": "the rounds in which they participated",
}


def history_of(folder: Path) -> History | None:
    """The recorded history of a run; None if there is none."""
    return History.open(folder / "history") if (folder / "history" / INDEX).exists() else None


def ancestors_of(folder: Path) -> tuple[Path, ...]:
    """A run, the run that it was unlearned from, and so on to the trained one, as far as they exist."""
    found = [folder]
    while (facts := Facts.read(found[-1])) is not None and facts.unlearned is not None:
        parent = Path(os.path.normpath(found[-1] / facts.unlearned["parent"]))
        if not (parent / Facts.FILE).exists():
            break
        found.append(parent)
    return tuple(found)


def what_remains(folder: Path, leaving: Sequence[int]) -> list[dict[str, str]]:
    """Files of a run and its ancestors that still contain data of the leaving clients, with a description."""
    return [
        row if name == "." else row | {"run": name}
        for name, one in _named(ancestors_of(folder))
        for row in _remains(one, leaving)
    ]


def purge_traces(folder: Path, leaving: Sequence[int]) -> list[str]:
    """Delete the models of a run and its ancestors, and the leaving clients' history; returns what was deleted.

    Curves, privacy cards and ledgers are kept as a record; privacy accounting depends on the last two.
    """
    purged = []
    for name, one in _named(ancestors_of(folder)):
        with working_on(one):
            purged += [line if name == "." else f"{name}/{line}" for line in _purge(one, leaving)]
    return purged


def _named(ancestors: Sequence[Path]) -> list[tuple[str, Path]]:
    return [(os.path.relpath(one, ancestors[0]), one) for one in ancestors]


def _remains(folder: Path, leaving: Sequence[int]) -> list[dict[str, str]]:
    found = [{"file": name, "holds": holds} for name, holds in TRACES.items() if any(folder.glob(name))]
    history = history_of(folder)
    if history is not None:
        rows = [client for client in leaving if history.holds(client)]
        if not leaving:
            holds = "updates that were computed from their data, and the models"
        elif rows:
            holds = f"updates of clients {', '.join(map(str, rows))} in the recorded rounds, and the models"
        else:
            holds = "no updates of the leaving clients; updates of the others to models that those clients influenced"
        found.append({"file": "history/", "holds": holds})
    return found


def _purge(folder: Path, leaving: Sequence[int]) -> list[str]:
    purged = []
    # History first: after an interruption, the remaining model shows that purging must be repeated.
    history = history_of(folder)
    if history is not None and not leaving:  # people of any clients
        shutil.rmtree(folder / "history")
        purged.append("history/: updates of all clients, and models")
    elif history is not None:
        history.forget(leaving)
        purged.append(f"history/: updates of clients {', '.join(map(str, leaving))}, and models")
    for name in ("checkpoint.npz", "model.json"):
        if (folder / name).exists():
            (folder / name).unlink()
            purged.append(name)
    return purged
