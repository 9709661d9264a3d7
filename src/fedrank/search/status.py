"""The status of a search client: documents, searches, the learned model, and every byte that was sent."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

from fedrank.search import quality
from fedrank.search.impressions import ImpressionRows
from fedrank.search.ingest import MISSING, roots_of
from fedrank.search.readers import clean
from fedrank.search.results import SearchStatus, SkippedFile, Weight
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
        folder=str(folder.absolute()),
        documents=store.count("SELECT count(*) FROM documents"),
        kinds=dict(store.rows("SELECT kind, count(*) FROM documents GROUP BY kind ORDER BY kind")),
        skipped=skipped_files(store),
        roots=tuple(clean(str(root.path)) for root in roots_of(store)),
        missing=missing_roots(store),
        disk_bytes=_size_of(folder),
        searches=store.count("SELECT count(*) FROM impressions"),
        clicks=store.count("SELECT count(*) FROM clicks WHERE NOT bounced"),
        bounced=store.count("SELECT count(*) FROM clicks WHERE bounced"),
        impressions=dict(store.rows("SELECT state, count(*) FROM impressions GROUP BY state ORDER BY state")),
        kinds_of_lists=dict(store.rows("SELECT kind, count(*) FROM impressions GROUP BY kind ORDER BY kind")),
        learn=learns,
        order=store.setting("order", "drawn"),
        learned_from=learned,
        model=f"initialized from {origin}, updated by {learned:,} search{'' if learned == 1 else 'es'}",
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


def list_skipped(store: Store) -> list[SkippedFile]:
    """Files that were read and skipped, with the reasons; links and hidden files are only counted."""
    rows = store.rows(
        "SELECT roots.path, files.path, reason, times FROM skipped JOIN files ON files.id = file JOIN roots ON "
        "roots.id = root ORDER BY roots.path, files.path, reason"
    )
    return [SkippedFile(os.fsdecode(os.path.join(root, path) if path else root), *rest) for root, path, *rest in rows]


def missing_roots(store: Store) -> tuple[str, ...]:
    rows = store.rows(
        "SELECT path FROM roots JOIN passed_over ON root = id WHERE reason = ? ORDER BY id",
        MISSING,
    )
    return tuple(clean(os.fsdecode(path)) for (path,) in rows)


def empty_roots(store: Store) -> tuple[str, ...]:
    """Indexed folders in which the last update found nothing."""
    rows = store.rows(
        "SELECT path FROM roots WHERE id NOT IN (SELECT root FROM files UNION SELECT root FROM passed_over) ORDER BY id"
    )
    return tuple(clean(os.fsdecode(path)) for (path,) in rows)


def _size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total
