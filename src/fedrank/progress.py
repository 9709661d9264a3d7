"""Progress reports by a callback, shown by the command line or in a notebook."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from html import escape
from importlib import import_module
from typing import Any, Protocol, TextIO

SECONDS_BETWEEN_LOOKS = 0.2  # limits updates, since a notebook stores all of them
_notes: set[str] = set()  # warnings that were shown


class Progress(Protocol):
    """Receives the progress of a task, which has ended when `done` reaches `of`."""

    def __call__(self, what: str, done: float, of: float, detail: str = "") -> None: ...


def quiet(what: str, done: float, of: float, detail: str = "") -> None:
    """Ignore progress."""


def here() -> Progress:
    """Return bars below the cell in a notebook, and `quiet` elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return quiet if getattr(shell, "kernel", None) is None else NotebookBars(import_module("IPython.display"))


class NotebookBars:
    """A bar per running task below the cell; the result of the last finished task stays."""

    def __init__(self, display: Any) -> None:
        self._display = display  # the module IPython.display
        self._handle: Any = None
        self._bars: dict[str, str] = {}
        self._ended = ""
        self._looked = 0.0

    def __call__(self, what: str, done: float, of: float, detail: str = "") -> None:
        ends = done >= of
        if ends:
            self._bars.pop(what, None)
            self._ended = f"<div>{escape(what)}: {escape(detail or 'done')}</div>"
        else:
            self._bars[what] = (
                f'<div><progress value="{done:g}" max="{of:g}"></progress> {escape(what)}: {escape(detail)}</div>'
            )
        if not ends and time.monotonic() - self._looked < SECONDS_BETWEEN_LOOKS:
            return
        self._looked = time.monotonic()
        page = self._display.HTML("".join([*self._bars.values(), self._ended]))
        if self._handle is None:
            self._handle = self._display.display(page, display_id=True)
        else:
            self._handle.update(page)


def by_rounds(progress: Progress, what: str) -> Callable[[int, int], None]:
    """Return a callback that takes the number of completed rounds and of all rounds."""
    return lambda done, rounds: progress(what, done, rounds, f"round {done:,} of {rounds:,}")


def show_warnings_as_notes(shown: Iterable[str] = ()) -> None:
    """Show a warning of Python as one line without its place in the code, once; not those that were `shown` already."""
    _notes.update(shown)
    warnings.showwarning = _show_note


def shown_notes() -> frozenset[str] | None:
    """The notes that were shown; None if warnings are not shown as notes."""
    return frozenset(_notes) if warnings.showwarning is _show_note else None


def _show_note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    note = " ".join(str(message).split())
    if issubclass(category, UserWarning) and note not in _notes:
        _notes.add(note)
        print(f"note: {note}", file=sys.stderr, flush=True)
