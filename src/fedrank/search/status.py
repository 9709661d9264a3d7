"""The status of a search client: documents, searches, settings, and what was clicked by week."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path

from fedrank.search.ingest import MISSING, roots_of
from fedrank.search.readers import clean
from fedrank.search.results import SearchStatus, SkippedFile, Week
from fedrank.search.settings import SearchSettings
from fedrank.search.store import Store

NOTES = ("Data is not encrypted: any program that can read the folder can read your documents, searches and clicks.",)
WEEKS = 26  # latest weeks shown


def status_of(folder: Path, store: Store, settings: SearchSettings) -> SearchStatus:
    """The status of a folder."""
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
        learn=settings.learns,
        order=settings.order,
        feature_set=store.setting("features"),
        weeks=weeks(store),
        waiting=store.count("SELECT count(*) FROM documents WHERE seq > ?", store.indexed),
        notes=NOTES,
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
