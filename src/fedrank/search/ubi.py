"""Export of searches and clicks in User Behavior Insights 1.3, for other tools."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from fedrank.files import write_atomic
from fedrank.search.impressions import ImpressionRows
from fedrank.search.results import SearchError, UbiFiles

QUERIES, EVENTS = "ubi_queries.jsonl", "ubi_events.jsonl"
APPLICATION = "fedrank-search"
CLIENT = "me"  # a search folder has one user


def export(rows: ImpressionRows, folder: str | os.PathLike[str]) -> UbiFiles:
    """Write both files atomically, readable only by their owner."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise SearchError(f"{folder} is a file; nothing was written; give a folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # an existing folder keeps its permissions
    ids = [id for (id,) in rows.store.rows("SELECT id FROM impressions ORDER BY id")]
    write_atomic(folder / QUERIES, _queries(rows, ids), private=True)
    write_atomic(folder / EVENTS, _events(rows, ids), private=True)
    clicks = rows.store.count("SELECT count(*) FROM clicks WHERE NOT bounced")
    return UbiFiles(str(folder / QUERIES), str(folder / EVENTS), len(ids), clicks)


def _queries(rows: ImpressionRows, ids: list[int]) -> Iterator[str]:
    for id in ids:
        one = rows.get(id)
        yield _line(
            {
                "application": APPLICATION,
                "query_id": str(id),
                "client_id": CLIENT,
                "user_query": one.query,
                "timestamp": _time(one.time),
                "query_response_id": f"{id}-1",
                "query_response_hit_ids": [str(document) for document in one.candidates[one.shown].tolist()],
                "object_id_field": "id",
                "query_attributes": {"kind": one.kind, "sort": one.sort, "filters": json.loads(one.filters)},
            }
        )


def _events(rows: ImpressionRows, ids: list[int]) -> Iterator[str]:
    for id in ids:
        for click in rows.clicks(id):
            if not click.bounced:
                yield _line(
                    {
                        "application": APPLICATION,
                        "action_name": "click",
                        "query_id": str(id),
                        "client_id": CLIENT,
                        "session_id": CLIENT,
                        "timestamp": _time(click.time),
                        "event_attributes": {
                            "object": {"object_id": str(click.document), "object_id_field": "id"},
                            "position": {"ordinal": click.position + 1},
                        },
                    }
                )


def _line(one: dict[str, object]) -> str:
    return json.dumps(one, ensure_ascii=False) + "\n"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
