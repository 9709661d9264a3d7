"""Signals that ask a process to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_requested(names: Sequence[str] = ("SIGINT", "SIGTERM"), again: bool = True) -> Iterator[Callable[[], bool]]:
    """A function that returns whether one of these signals arrived; with `again`, a second signal interrupts at once.

    Only the main thread receives signals; in another thread the function always returns False.
    """
    requested = False

    def note(number: int, frame: Any) -> None:
        nonlocal requested
        if requested and again:
            raise KeyboardInterrupt
        requested = True

    before: dict[int, Any] = {}
    try:
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            before[number] = signal.signal(number, note)
    except ValueError:
        yield lambda: False
        return
    try:
        yield lambda: requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
