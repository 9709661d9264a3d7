"""The status of a search client: documents, searches, the learned model, and every byte that was sent."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from fedrank.search import quality
from fedrank.search.impressions import ImpressionRows
from fedrank.search.ingest import roots_of
from fedrank.search.readers import clean
from fedrank.search.results import SearchStatus, Weight
from fedrank.search.sent import SentRecord
from fedrank.search.store import Store
from fedrank.search.trial import Trials

NOTES = ("Data is not encrypted: any program that can read the folder can read your documents, searches and clicks.",)


def status_of(
    folder: Path, rows: ImpressionRows, trials: Trials, record: SentRecord, learns: bool, encoder: str
) -> SearchStatus:
    """The status of a folder."""
    store, features = rows.store, rows.features
    model, weights = rows.model()
    origin, start, learned = store.one("SELECT origin, start, learned FROM models WHERE id = ?", model)
    begun = np.frombuffer(start, "<f8")
    sent = record.everything()
    return SearchStatus(
        folder=str(folder),
        documents=store.count("SELECT count(*) FROM documents"),
        kinds=dict(store.rows("SELECT kind, count(*) FROM documents GROUP BY kind ORDER BY kind")),
        skipped=skipped_files(store),
        roots=tuple(clean(str(root.path)) for root in roots_of(store)),
        disk_bytes=_size_of(folder),
        searches=store.count("SELECT count(*) FROM impressions"),
        clicks=store.count("SELECT count(*) FROM clicks WHERE NOT bounced"),
        bounced=store.count("SELECT count(*) FROM clicks WHERE bounced"),
        impressions=dict(store.rows("SELECT state, count(*) FROM impressions GROUP BY state ORDER BY state")),
        kinds_of_lists=dict(store.rows("SELECT kind, count(*) FROM impressions GROUP BY kind ORDER BY kind")),
        learn=learns,
        order=store.setting("order", "drawn"),
        learned_from=learned,
        model=f"number {model} (initialized from {origin}, updated by {learned:,} searches)",
        feature_set=features.version,
        weights=tuple(Weight(name, float(begun[f]), float(weights[f])) for f, name in enumerate(features.names)),
        weeks=quality.weeks(store),
        replay=quality.replay(rows, weights),
        interleaved=quality.interleaved(store),
        sent=sent,
        sent_bytes=sum(one.bytes for one in sent),
        encoder=encoder,
        trial=trials.news(),
        waiting=store.count("SELECT count(*) FROM documents WHERE seq > ?", store.indexed),
        notes=NOTES + record.about_sharing(),
    )


def skipped_files(store: Store) -> dict[str, int]:
    rows = store.rows(
        "SELECT reason, sum(times) FROM (SELECT reason, times FROM skipped UNION ALL SELECT reason, times FROM "
        "passed_over) GROUP BY reason ORDER BY reason"
    )
    return dict(rows)


def _size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total
