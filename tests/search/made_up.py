"""A made-up desk for tests of the search client: a clock, a folder of documents, an opened client."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fedrank.search.client import SearchClient

FRUIT = ("apple", "pear", "plum", "cherry", "quince", "fig", "lemon", "grape", "melon", "peach")


class Clock:
    """Time that passes when told."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def write_documents(folder: Path, count: int = 40) -> Path:
    """Documents about two fruits each, all of which mention an orchard."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        one, two = FRUIT[n % 10], FRUIT[(3 * n + 1) % 10]
        text = f"The orchard grows {one} and {two}. " * (1 + n % 4) + f"Row {n} has water and shade. " * (n % 3)
        path = folder / f"row{n:03}.txt"
        if not path.exists():  # written again it would have another date, and be another document
            path.write_text(text)
    return folder


@contextlib.contextmanager
def opened(folder: Path, clock: Clock | None = None, count: int = 40):
    """A client with made-up documents below `folder`."""
    documents = write_documents(folder / "documents", count)
    with SearchClient(folder / "store", clock=clock or Clock()) as client:
        client.index([documents])
        with client.store.writing():
            client.store.set(chance=11)  # the same lists in every run
        yield client


def close(client: SearchClient, impression: int) -> None:
    """Close an opened list without waiting half an hour."""
    with client.store.writing():
        client.store.db.execute(
            "UPDATE impressions SET state = 'closed' WHERE id = ? AND state = 'opened'", (impression,)
        )
