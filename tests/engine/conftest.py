"""What several tests of engines read: a log of features and UBI of the same searches."""

from __future__ import annotations

import json

import pytest

from fedrank.data.engine_features import NAMES

TIME = 1_700_000_000


def value(search: int, document: int) -> float:
    return search + document / 16


@pytest.fixture
def files(tmp_path):
    """Six searches of two browsers, three documents each; the fifth has a document that was not logged."""

    def write(name, rows):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / name

    shown = {search: [(search + i) % 5 for i in range(3)] for search in range(6)}
    answers = [
        {
            "query_id": f"q{search}",
            "hits": {
                "hits": [
                    {
                        "_id": f"d{document}",
                        "fields": {
                            "_ltrlog": [
                                {"engine-1": [{"name": name, "value": value(search, document)} for name in NAMES]}
                            ]
                        },
                    }
                    for document in sorted(documents)
                    if (search, document) != (4, 0)
                ]
            },
        }
        for search, documents in shown.items()
    ]
    queries = [
        {
            "query_id": f"q{search}",
            "client_id": f"browser {search % 2}",
            "user_query": f"question {search}",
            "timestamp": (TIME + search) * 1000,
            "query_response_hit_ids": [f"d{document}" for document in documents],
        }
        for search, documents in shown.items()
    ]
    events = [
        {
            "action_name": "click",
            "query_id": f"q{search}",
            "client_id": f"browser {search % 2}",
            "timestamp": (TIME + search + 9) * 1000,
            "event_attributes": {"object": {"object_id": f"d{documents[search % 3]}"}},
        }
        for search, documents in shown.items()
    ]
    return write("log.ndjson", answers), write("queries.ndjson", queries), write("events.ndjson", events), shown
