"""What run folders hold of clients that leave: naming it, and deleting it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedrank.experiments.runner.folder import Facts
from fedrank.experiments.runner.runs import working_on
from fedrank.unlearning.history import INDEX, History

TRACES = {
    "model.json": "the model that learned from them",
    "checkpoint.npz": "the model that learned from them, and what clients keep between rounds",
    "rounds.csv": "quality after every round, which their updates shaped",
    "queries.csv": "quality of that model by query",
    "clients.csv": "a row for each of them: queries, interactions, quality",
    "privacy.json": "what was promised to everybody, also to them",
    "ledger/*": "in which rounds they took part",
}


def history_of(folder: Path) -> History | None:
    """What was recorded in a run; None where nothing was."""
    return History.open(folder / "history") if (folder / "history" / INDEX).exists() else None


def ancestors_of(folder: Path) -> tuple[Path, ...]:
    """A run, the one that it was unlearned from, and so on to the one that was trained, as far as they are there."""
    found = [folder]
    while (facts := Facts.read(found[-1])) is not None and facts.unlearned is not None:
        parent = Path(os.path.normpath(found[-1] / facts.unlearned["parent"]))
        if not (parent / Facts.FILE).exists():
            break
        found.append(parent)
    return tuple(found)


def what_remains(folder: Path, leaving: Sequence[int]) -> list[dict[str, str]]:
    """Files of a run and of those before it that still hold something of the leaving clients, and what."""
    return [
        row if name == "." else row | {"run": name}
        for name, one in _named(ancestors_of(folder))
        for row in _remains(one, leaving)
    ]


def purge_traces(folder: Path, leaving: Sequence[int]) -> list[str]:
    """Delete the models of a run and of those before it, and the leaving clients' history; returns what was deleted.

    Curves, privacy cards and ledgers stay: they say what happened, and a promise about privacy rests on the last two.
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
        if rows:
            holds = f"every update that clients {', '.join(map(str, rows))} sent at the stored rounds, and the models"
        else:
            holds = "no update of the leaving clients; updates of the others, made from models that they had shaped"
        found.append({"file": "history/", "holds": holds})
    return found


def _purge(folder: Path, leaving: Sequence[int]) -> list[str]:
    purged = []
    # History first: if this is cut off, the model that is still there shows that purging has to be repeated.
    history = history_of(folder)
    if history is not None:
        history.forget(leaving)
        purged.append(f"history/: updates of clients {', '.join(map(str, leaving))}, and models")
    for name in ("checkpoint.npz", "model.json"):
        if (folder / name).exists():
            (folder / name).unlink()
            purged.append(name)
    return purged
