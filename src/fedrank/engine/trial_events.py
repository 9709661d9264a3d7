"""Searches and clicks of a trial from engines and browsers, as JSON lines. Browsers are not trusted.

A search counts as its server logged it: the displayed results and their teams. A click counts if it is on a result of
such a search. Other claims of a click, such as its position or team, are compared with the search.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedrank.data.rows import Column, RowFormat, RowReader, UnusableRow
from fedrank.data.values import nested_value, parse_id, parse_list, parse_time
from fedrank.engine.team_draft import BOTH, NEW, OLD, team_draft
from fedrank.engine.trial_record import TrialPlan

MAX_SHOWN = 1000  # documents in a list
BEFORE = "a search before the trial: it shows only that its client is not new"
CODES = {OLD: "o", NEW: "n", BOTH: "b"}  # codes of teams in stored files


class ShownSearch(NamedTuple):
    """A displayed list with the team of each position."""

    id: str
    client: str  # a browser; "" if the log does not name it
    time: float
    shown: tuple[str, ...]
    teams: str  # one letter per position: o, n, or b for results that both chose
    known: bool  # whether the log shows which results both chose


class SearchClick(NamedTuple):
    """A click as reported by a browser."""

    search: str
    document: str
    client: str  # a browser; "" if it is not named
    team: str  # the team that it claims; "" if it claims none


class EarlierSearch(NamedTuple):
    """A search from before the trial, which shows that its client existed."""

    client: str


@dataclass
class EventLines:
    """The content of some files."""

    searches: list[ShownSearch] = field(default_factory=list)
    clicks: list[SearchClick] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)  # lines by reason
    inputs: list[dict[str, Any]] = field(default_factory=list)  # name, digest, lines
    earlier: set[str] = field(default_factory=set)  # clients with a search before the trial
    clicked: float = -math.inf  # time of the latest click
    untimed: int = 0  # clicks without a valid time


def read_events(found: EventLines, plan: TrialPlan, file: str | Path, labels: Mapping[str, str], digest: str) -> None:
    """Add a file of searches, clicks, or both: UBI, lines of `team_draft.py`, or answers of Solr and OpenSearch.

    `labels` assigns OpenSearch's ids to "old" and "new". A file without a usable line is refused.
    """
    earlier: list[str] = []
    column = Column((), lambda row: parse_row(row, plan, labels))
    time = Column((), lambda row: parse_time(row.get("timestamp", row.get("time"))))
    reader = RowReader(file, RowFormat({"event": column, "at": time}, kind="json", nested=True))
    for _, row in reader:
        if isinstance(row["event"], ShownSearch):
            found.searches.append(row["event"])
        elif isinstance(row["event"], EarlierSearch):
            earlier.append(row["event"].client)
        else:
            found.clicks.append(row["event"])
            found.clicked = max(found.clicked, -math.inf if row["at"] is None else row["at"])
            found.untimed += row["at"] is None
    rows = reader.rows
    dropped = Counter({reason: one["rows"] for reason, one in reader.left_out.found.items()})
    if earlier:
        dropped[BEFORE] += len(earlier)
    elif rows and dropped.total() == rows:
        reason, times = dropped.most_common(1)[0]
        raise ValueError(
            f"{file}: none of its {rows:,} lines can be used for this trial; the most frequent reason ({times:,} "
            f"lines): {reason}"
        )
    found.earlier.update(earlier)
    found.dropped += dropped
    found.inputs.append({"name": Path(file).name, "digest": digest, "lines": rows})


def parse_row(
    row: dict[str, Any], plan: TrialPlan, labels: Mapping[str, str]
) -> ShownSearch | SearchClick | EarlierSearch:
    """Parse one line; raise UnusableRow with the reason if it cannot be used."""
    if "action_name" in row:
        if row["action_name"] != "click":
            raise UnusableRow("an event that is not a click")
        return _click(row, "query_id", "event_attributes.object.object_id", "client_id", "event_attributes.team")
    if "clicked" in row:
        return _click(row, "search", "clicked", "client", "team")
    if "query_response_hit_ids" in row:
        attributes = {name: nested_value(row, f"query_attributes.{name}") for name in ("trial", "teams", "old", "new")}
        row = {
            **{name: value for name, value in attributes.items() if value is not None},
            "search": row.get("query_id"),
            "client": row.get("client_id"),
            "time": row.get("timestamp"),
            "shown": row["query_response_hit_ids"],
        }
    elif "response" in row or "hits" in row:
        row = _answer(row)
    if "shown" not in row:
        raise UnusableRow("neither a search nor a click")
    return _search(row, plan, labels)


def _click(row: dict[str, Any], search: str, document: str, client: str, team: str) -> SearchClick:
    claimed = nested_value(row, team)
    return SearchClick(
        _name(row, search, "a click without a query id"),
        _name(row, document, "a click without a document"),
        parse_id(nested_value(row, client)),
        "" if claimed is None else parse_id(claimed) or "?",
    )


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    """An engine's answer as your service logs it, with `query_id`, `client_id` and `timestamp`."""
    answer = row.get("response", row)
    if isinstance(answer, dict) and isinstance(answer.get("response"), dict):  # the complete answer of Solr
        answer = answer["response"]
    documents = answer.get("docs") if isinstance(answer, dict) else None
    hits = answer.get("hits") if isinstance(answer, dict) else None
    if isinstance(documents, list):
        places, document, team = documents, str(row.get("id_field") or "id"), "[interleaving]"
    elif isinstance(hits, list):
        places, document, team = hits, "_id", "_search_configuration_id"
    else:
        raise UnusableRow("neither a search nor a click")
    if not all(isinstance(place, dict) for place in places):
        raise UnusableRow("a list that cannot be read")
    return {
        **{name: row[name] for name in ("old", "new", "trial") if name in row},
        "search": row.get("query_id"),
        "client": row.get("client_id"),
        "time": row.get("timestamp"),
        "shown": [place.get(document) for place in places],
        "teams": [place.get(team) for place in places],
    }


def _search(row: dict[str, Any], plan: TrialPlan, labels: Mapping[str, str]) -> ShownSearch | EarlierSearch:
    if row.get("trial") not in (None, plan.id):
        raise UnusableRow("a search of another trial")
    search = _name(row, "search", "a search without an id")
    client = parse_id(row.get("client"))  # "" if none is named or the name is not valid
    shown, teams = _ids(row["shown"]), parse_list(row.get("teams"))
    if not any(teams or ()):
        began, at = parse_time(plan.planned), parse_time(row.get("time"))
        if client and began is not None and at is not None and at < began:
            return EarlierSearch(client)
    if not teams:
        raise UnusableRow("a search without teams: it was not part of the trial")
    if len(teams) != len(shown):
        raise UnusableRow("the numbers of teams and positions differ")
    if len(set(shown)) < len(shown):
        raise UnusableRow("a list with a duplicate document")
    found = [plan.team(team, labels) if isinstance(team, str) else None for team in teams]
    whose = [team for team in found if team is not None]
    if len(whose) < len(found):
        raise UnusableRow("a team that is not part of this trial")
    if len(whose) > 1 and len(set(whose)) == 1 and BOTH not in whose:
        raise UnusableRow("a list of one model only: it was not interleaved")
    known = plan.to == "own"
    if "old" in row or "new" in row:
        whose = _checked(search, shown, whose, _ids(row.get("old")), _ids(row.get("new")), plan)
        known = True
    time = parse_time(row.get("time"))
    if time is None:
        raise UnusableRow("a search without a valid time")
    return ShownSearch(search, client, time, shown, "".join(CODES[team] for team in whose), known)


def _checked(
    search: str, shown: tuple[str, ...], teams: list[str], old: tuple[str, ...], new: tuple[str, ...], plan: TrialPlan
) -> list[str]:
    """Teams derived from both lists, with shared choices marked; a list that does not follow from them is refused."""
    if plan.to == "own":
        if list(zip(shown, teams, strict=True)) != team_draft(old, new, len(shown), plan.key, search):
            raise UnusableRow("teams that contradict the two lists and the trial's key")
        return teams
    found, taken = [], set[str]()
    leads = ""  # which team made the first choice of this turn
    for document, team in zip(shown, teams, strict=True):
        wish = {
            side: next((one for one in ranking if one not in taken), None) for side, ranking in ((OLD, old), (NEW, new))
        }
        if wish[team] != document:
            raise UnusableRow("teams that contradict the two lists")
        begins = not leads or leads == team
        found.append(BOTH if begins and wish[OLD] == wish[NEW] else team)
        leads = team if begins else ""
        taken.add(document)
    return found


def _ids(value: Any) -> tuple[str, ...]:
    listed = parse_list(value)
    if not listed:
        raise UnusableRow("an empty or missing list")
    if len(listed) > MAX_SHOWN:
        raise UnusableRow(f"a list of more than {MAX_SHOWN:,} positions")
    names = tuple(map(parse_id, listed))
    if "" in names:
        raise UnusableRow("a list with an invalid document id")
    return names


def _name(row: dict[str, Any], field: str, without: str) -> str:
    if name := parse_id(nested_value(row, field)):
        return name
    raise UnusableRow(without)
