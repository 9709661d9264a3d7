"""The status of a search client: documents, searches, the learned model and its quality, and every byte that was sent.

Quality is measured by clicks, which are biased towards what was shown; there are no relevance labels.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from fedrank.display import count_of
from fedrank.ranking.gate import Team
from fedrank.search.impressions import ImpressionRows
from fedrank.search.ingest import MISSING, roots_of
from fedrank.search.readers import clean
from fedrank.search.results import SearchStatus, SkippedFile, Week, Weight
from fedrank.search.sharing import SentRecord
from fedrank.search.store import Store
from fedrank.search.trial import Trials, winners

NOTES = ("Data is not encrypted: any program that can read the folder can read your documents, searches and clicks.",)
WEEKS = 26  # latest weeks shown


def status_of(folder: Path, rows: ImpressionRows, trials: Trials, record: SentRecord, learns: bool) -> SearchStatus:
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
        model=f"initialized from {origin}, updated by {count_of(learned, 'search', 'searches')}",
        feature_set=features.version,
        weights=tuple(Weight(name, float(begun[f]), float(weights[f])) for f, name in enumerate(features.names)),
        weeks=weeks(store),
        interleaved=interleaved(store),
        sent=sent,
        sent_bytes=sum(one.bytes for one in sent),
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
    rows = store.rows("SELECT path FROM roots JOIN passed_over ON root = id WHERE reason = ? ORDER BY id", MISSING)
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


def weeks(store: Store) -> tuple[Week, ...]:
    """The latest weeks with searches; a search without a click for 30 minutes counts as abandoned."""
    rows = store.rows(
        "SELECT time, state, (SELECT min(place) FROM clicks WHERE impression = id AND NOT bounced) FROM impressions "
        "WHERE length(shown) > 0 ORDER BY time"
    )
    by_week: dict[int, list[tuple[str, int | None]]] = defaultdict(list)
    for time, state, position in rows:
        by_week[monday(time)].append((state, position))
    return tuple(_week(week, by_week[week]) for week in sorted(by_week)[-WEEKS:])


def monday(time: float) -> int:
    """The beginning of the week of this time, in local time."""
    day = datetime.fromtimestamp(time)
    return int((datetime(day.year, day.month, day.day) - timedelta(days=day.weekday())).timestamp())


def _week(begins: int, lists: list[tuple[str, int | None]]) -> Week:
    positions = [position for _, position in lists if position is not None]
    return Week(
        begins,
        len(lists),
        len(positions),
        sum(position == 0 for position in positions),
        sum(position < 3 for position in positions),
        sum(state == "abandoned" for state, position in lists if position is None),
        sum(1.0 / (position + 1) for position in positions) / len(lists),
    )


def interleaved(store: Store) -> dict[str, float]:
    """Wins, losses and ties of models on trial in interleaved lists, and the share of wins with a 95 % interval."""
    counts = winners(store, "trial > 0")
    wins, losses, ties = counts[Team.NEW], counts[Team.OLD], counts[Team.NEITHER]
    decided = wins + losses
    if not decided + ties:
        return {}
    out = {"wins": float(wins), "losses": float(losses), "ties": float(ties)}
    if decided:
        share, z = wins / decided, 1.96
        middle = (share + z * z / (2 * decided)) / (1 + z * z / decided)  # Wilson's interval
        half = z * np.sqrt(share * (1 - share) / decided + z * z / (4 * decided**2)) / (1 + z * z / decided)
        out |= {"share": share, "low": float(middle - half), "high": float(middle + half)}
    return out
