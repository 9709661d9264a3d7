"""How far something is: told by whoever does it through a plain callback, shown by nobody but the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Takes news of one thing under way; it has ended when `done` reaches `of`."""

    def __call__(self, what: str, done: float, of: float, detail: str = "") -> None: ...


def quiet(what: str, done: float, of: float, detail: str = "") -> None:
    """For whoever does not want to know."""


def by_rounds(progress: Progress, what: str) -> Callable[[int, int], None]:
    """For whoever says after every round how many are done, and how many there are."""
    return lambda done, rounds: progress(what, done, rounds, f"round {done:,} of {rounds:,}")
