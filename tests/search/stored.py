"""Documents put straight into a store, for tests of single parts of the search client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrank.data.live_features import LIVE_1
from fedrank.search.impressions import ImpressionRows
from fedrank.search.index import Candidacy
from fedrank.search.lists import Query
from fedrank.search.results import Filters
from fedrank.search.settings import begin
from fedrank.search.store import NewDocument, Store
from tests.search.made_up import Clock


def stored(folder, texts: Sequence[str] = (), clock: Clock | None = None) -> ImpressionRows:
    """A store with a document of each text; their ids count from 1."""
    rows = ImpressionRows(Store(folder), LIVE_1)
    begin(rows, clock or Clock())
    add_documents(rows.store, texts)
    with rows.store.writing():
        rows.store.set(chance=11)
    return rows


def add_documents(store: Store, texts: Sequence[str]) -> None:
    with store.writing():
        store.db.execute("INSERT OR IGNORE INTO roots VALUES (1, ?, 'folder')", (b"/desk",))
        for text in texts:
            number = store.count("SELECT count(*) FROM files") + 1
            name = f"{number}.txt"
            store.db.execute(
                "INSERT INTO files VALUES (?, 1, ?, ?, 1, 1, NULL)", (number, name.encode(), name.encode())
            )
            one = NewDocument(
                "", text.encode(), "file", name, f"/desk/{name}", "", 1_000 + number, "", text,
                LIVE_1.row(name, text),
            )  # fmt: skip
            store.save([(number, one)], set())


def query(text: str, clock: Clock, **more) -> Query:
    return Query(text, LIVE_1.query(text), more.get("filters", Filters()), more.get("sort", "rank"), clock())


def candidates(count: int) -> tuple[Candidacy, np.ndarray]:
    """Documents 1 to `count`, the engine's first one first, and features that agree with it."""
    raw = np.zeros((count, len(LIVE_1.names)), np.float16)
    raw[:, 0] = np.linspace(1, 0, count)
    return Candidacy(np.arange(1, count + 1), np.linspace(9, 1, count), count), raw
