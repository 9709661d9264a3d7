"""Interleave the lists of two rankers for one search, and record which ranker chose each position.

Standard library only. Copy this file into your own service: `fedrank engine trial plan --to own` puts a copy next to
the plan.

    key = json.load(open("trial.json"))["key"]                        # stays on your server, never in a browser
    mixed = team_draft(old_ids, new_ids, 10, key, query_id)           # old_ids, new_ids: best first
    log.write(search_line(mixed, old_ids, new_ids, query_id, client_id, time.time(), trial_id))
    show([document for document, team in mixed])

The coin of each turn is a bit of SHA-256 of the key, the search and the turn. The same search therefore gets the same
list on every machine, and the holder of the key can verify it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

OLD, NEW, BOTH = "old", "new", "both"


def team_draft(old: Sequence[str], new: Sequence[str], places: int, key: str, search: str) -> list[tuple[str, str]]:
    """[(document, team)]: both rankers choose in turn, and a coin decides which is first in each turn.

    A document that both would choose belongs to neither: a click on it does not count.

    >>> team_draft(["a", "b"], ["a", "c"], 3, "key", "search 1")
    [('a', 'both'), ('c', 'new'), ('b', 'old')]
    """
    mixed: list[tuple[str, str]] = []
    taken: set[str] = set()
    lists = {OLD: _unused(old, taken), NEW: _unused(new, taken)}
    wish = {team: next(lists[team], None) for team in lists}
    turn = 0

    def take(document: str, team: str) -> None:
        mixed.append((document, team))
        taken.add(document)
        for other in wish:
            if wish[other] in taken:
                wish[other] = next(lists[other], None)

    while len(mixed) < places:
        first = wish[OLD]
        if first == wish[NEW]:
            if first is None:
                break
            take(first, BOTH)
            continue
        turn += 1
        for team in (NEW, OLD) if coin(key, search, turn) else (OLD, NEW):
            wanted = wish[team]
            if wanted is not None and len(mixed) < places:
                take(wanted, team)
    return mixed


def coin(key: str, search: str, turn: int) -> bool:
    """Whether the new ranker is first in this turn."""
    return bool(hashlib.sha256(f"{key}\n{search}\n{turn}".encode()).digest()[0] & 1)


def search_line(
    mixed: Sequence[tuple[str, str]],
    old: Sequence[str],
    new: Sequence[str],
    search: str,
    client: str,
    time: float,
    trial: str,
) -> str:
    """The log line of a search on your server; `client` is the browser, `time` seconds since 1970."""
    shown, teams = [document for document, _ in mixed], [team for _, team in mixed]
    places = len(mixed)
    return json.dumps(
        {
            "search": search,
            "client": client,
            "time": time,
            "trial": trial,
            "shown": shown,
            "teams": teams,
            "old": list(old[:places]),
            "new": list(new[:places]),
        }
    )


def click_line(search: str, client: str, time: float, document: str) -> str:
    """The log line of a click. A browser may write it: it counts only together with the line of its search."""
    return json.dumps({"search": search, "client": client, "time": time, "clicked": document})


def _unused(ranking: Sequence[str], taken: set[str]) -> Iterator[str]:
    return (document for document in ranking if document not in taken)
