"""A trial in a folder: its plan, the events that were read, and its result.

    trial.json           the plan, which never changes
    events/0001.jsonl    searches and clicks of one import that were not known before
    labels.json          which of OpenSearch's ids is which model, once known
    history.json         actions with time, user and reason

All counts are computed from these files each time. An import is stored completely or not at all, so after a crash it is
simply repeated; the same search or click counts once, however often it is read.

Searches count in the order of their times. A search is closed, and its clicks are counted, once searches and clicks
that are `wait` seconds later were read. Files may be read in any order: rows count if their search is at most `window`
seconds older than the latest search of earlier imports, and older ones are never counted. An adoption rests on searches
older than that, which cannot change anymore: if it could rest on what is read next to what is missing, looking after
each of eight files in random order would adopt 10 % of models that are not better instead of 4 %.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.engine.trial_decision import DecidedSearch, Judgement, judge
from fedrank.engine.trial_events import EventLines, SearchClick, ShownSearch, read_events
from fedrank.engine.trial_record import LABELS, PLAN, TrialPlan, digest_of, now, read_plan, user_name
from fedrank.files import locked, parse_json, private_folder, read_bytes, write_atomic
from fedrank.ranking.gate import Draft, Team

EVENTS, HISTORY, LOCK = "events", "history.json", ".lock"
BATCH_FORMAT = "fedrank-trial-events"
UNFAIR = 4.5  # standard deviations that a fair assignment does not exceed
TEAMS = {"o": Team.OLD, "n": Team.NEW, "b": Team.NEITHER}
ENDED = ("adopted", "rolled back")  # events that end a trial
DIFFERS = "a search that was also logged with different content; the earliest record counts"
LONG_AGO = 1e15  # seconds
Batch = tuple[dict[str, Any], list[ShownSearch], list[SearchClick]]  # one import: header, searches and clicks


@dataclass(frozen=True)
class ImportResult:
    """The result of one import."""

    searches: int
    clicks: int
    known: int  # searches and clicks that were read before
    dropped: dict[str, int]  # lines by reason
    skipped: tuple[str, ...]  # files that were read before, byte for byte
    outside: int = 0  # searches and clicks that are too old to count


@dataclass(frozen=True)
class ForgottenEvents:
    """Rows of one client in the events of a trial."""

    trial: str  # its folder
    searches: int
    clicks: int  # of the client, or on searches of the client


@dataclass
class Count:
    """Counts of everything that was read."""

    searches: int = 0
    open: int = 0  # waiting for clicks
    unclicked: int = 0
    drawn: int = 0  # clicked, but neither model won: clicks on shared results, or as many on both
    clicks: int = 0
    late: int = 0  # clicks on a search that is too old, or for which no more clicks were expected
    too_old: int = 0  # searches that were read too long after later ones
    without_search: int = 0  # clicks on a search that no server logged
    not_shown: int = 0  # clicks on results that were not displayed
    of_others: int = 0  # clicks of another client than the one that searched, or of an unknown one
    forged: int = 0  # clicks that claim another team than the server's record
    nobodys: int = 0  # clicks on results that both models chose
    without_client: int = 0  # decided searches with unknown client; together they count as one client
    shared_unknown: int = 0  # closed searches whose log does not show which results both chose
    settled: int = 0  # decided searches, the first ones, that no file can change anymore
    largest: float = 0.0  # largest share of decided searches of one client
    leads: tuple[int, int] = (0, 0)  # lists in which the (old, new) model made the first own choice
    dropped: Counter[str] = field(default_factory=Counter)
    decided: list[DecidedSearch] = field(default_factory=list)
    earlier: set[str] = field(default_factory=set)  # clients with a search before the trial; empty: not known

    @property
    def unfair(self) -> float:
        """Standard deviations by which the assignment of the first choice deviates from a fair coin."""
        total = sum(self.leads)
        return abs(self.leads[0] - self.leads[1]) / math.sqrt(total) if total else 0.0


@dataclass(frozen=True)
class HistoryEntry:
    """One line of a trial's history."""

    what: str
    at: str
    who: str
    because: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


class EngineTrial:
    """A trial in its folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.plan: TrialPlan = read_plan(folder)

    @property
    def current(self) -> Path:
        """The file that names the model in use."""
        return Path(os.path.normpath(self.folder / self.plan.current))

    def history(self) -> list[HistoryEntry]:
        path = self.folder / HISTORY
        if not path.exists():
            return []
        try:
            entries = [HistoryEntry(**row) for row in parse_json(read_bytes(path))]
            if not all(isinstance(text, str) for one in entries for text in (one.what, one.at, one.who, one.because)):
                raise ValueError("its values must be text")
            return entries
        except (ValueError, TypeError) as problem:
            raise ValueError(f"{path} cannot be read: {problem}; restore it from a backup") from None

    def note(self, what: str, who: str | None = None, because: str = "", **facts: Any) -> HistoryEntry:
        """Record an action in the history."""
        entry = HistoryEntry(what, now(), who or user_name(), because, facts)
        rows = [vars(one) for one in (*self.history(), entry)]
        write_atomic(self.folder / HISTORY, json.dumps(rows, indent=1) + "\n", private=True)
        return entry

    @property
    def ended(self) -> HistoryEntry | None:
        """The event that ended the trial, if any: the last one, because an adoption may be rolled back."""
        return next((entry for entry in reversed(self.history()) if entry.what in ENDED), None)

    @property
    def is_closed(self) -> bool:
        """Whether it was decided or ended."""
        return any(entry.what in ("decided", *ENDED) for entry in self.history())

    def working(self) -> AbstractContextManager[None]:
        """A lock: one process at a time reads or decides."""
        return locked(self.folder / LOCK, f"the trial in {self.folder}")

    def labels(self) -> dict[str, str]:
        path = self.folder / LABELS
        if not path.exists():
            return {}
        found = parse_json(read_bytes(path))
        if not isinstance(found, dict) or not set(found.values()) <= {"old", "new"}:
            raise ValueError(f"{path} cannot be read; delete it, and assign the ids again with --old-id and --new-id")
        return found

    def read(
        self, files: Sequence[str | Path], labels: Mapping[str, str] | None = None, complete: bool = False
    ) -> ImportResult:
        """Read files of searches and clicks; `complete`: no further clicks will arrive for these searches."""
        with self.working():
            if ended := self.ended:
                raise ValueError(
                    f"the trial was {ended.what} on {ended.at[:10]}, so later searches are not part of it; "
                    "start another one with fedrank engine trial plan"
                )
            batches = list(self._batches())
            known_labels = self._all_labels(labels or {}, begun=bool(batches))
            before = {entry["digest"] for head, _, _ in batches for entry in head["inputs"]}
            found, skipped = EventLines(), []
            for file in files:
                digest = digest_of(file)  # first: a file that grows meanwhile has another digest when it is read again
                if digest in before:
                    skipped.append(str(file))
                    continue
                before.add(digest)
                read_events(found, self.plan, file, known_labels, digest)
            searches, clicks = self._new(batches, found)
            brought = len(found.searches) + len(found.clicks)
            if known_labels != self.labels():  # only after something was read with them
                write_atomic(self.folder / LABELS, json.dumps(known_labels, indent=1) + "\n", private=True)
            head = self._head(found, complete)
            if found.inputs or complete:
                path = private_folder(self.folder / EVENTS) / f"{len(batches) + 1:04d}.jsonl"
                self._write_batch(path, head, searches, clicks)
            earlier, later = self._count(batches), self._count([*batches, (head, searches, clicks)])
            new = later.searches + later.too_old - earlier.searches - earlier.too_old
            return ImportResult(
                new,
                len(clicks),
                brought - new - len(clicks),
                dict(found.dropped.most_common()),
                tuple(skipped),
                later.late + later.too_old - earlier.late - earlier.too_old,
            )

    def events_of(self, client: str) -> ForgottenEvents:
        """Count the rows of a client, given by the id in the engine's log."""
        return self._forget(client, write=False)

    def forget(self, client: str) -> ForgottenEvents:
        """Delete the rows of a client: its searches, its clicks, and all clicks on its searches.

        Counts and evidence change accordingly, because they are computed from the remaining rows. The digests of the
        imported files remain, so reading the same file again does not restore the rows.
        """
        with self.working():
            found = self._forget(client, write=True)
            if found.searches or found.clicks:
                self.note("forgot a client", searches=found.searches, clicks=found.clicks)
            return found

    def _forget(self, client: str, write: bool) -> ForgottenEvents:
        stand_in, batches = self._stand_in(client), list(self._batches())
        theirs = {one.id for _, searches, _ in batches for one in searches if one.client == stand_in and stand_in}
        removed_searches = removed_clicks = 0
        for path, (head, searches, clicks) in zip(self._batch_files(), batches, strict=True):
            kept = [one for one in searches if one.id not in theirs]
            left = [one for one in clicks if one.search not in theirs and (not stand_in or one.client != stand_in)]
            removed_searches += len(searches) - len(kept)
            removed_clicks += len(clicks) - len(left)
            listed = {"earlier": [one for one in head["earlier"] if one != stand_in]} if "earlier" in head else {}
            if write and (len(kept), len(left), head | listed) != (len(searches), len(clicks), head):
                self._write_batch(path, head | listed, kept, left)
        return ForgottenEvents(str(self.folder), removed_searches, removed_clicks)

    def count(self) -> Count:
        """Count everything that was read."""
        return self._count(self._batches())

    def _count(self, batches: Iterable[Batch]) -> Count:
        count = Count()
        searches: dict[str, ShownSearch] = {}
        clicks: dict[str, list[SearchClick]] = {}
        too_old, complete = set[str](), set[str]()
        horizon = clicked = settled = -math.inf
        for head, found, events in batches:
            count.dropped.update(head["dropped"])
            count.earlier.update(head.get("earlier", ()))
            for search in found:
                if search.time < settled:
                    too_old.add(search.id)
                else:  # of several records of a search, the same one counts in every order of reading
                    searches[search.id] = min(search, searches.get(search.id, search), key=lambda one: (one.time, one))
                    horizon = max(horizon, search.time)
            for click in events:
                count.clicks += 1
                its = searches.get(click.search)
                if click.search in complete or (its is not None and its.time < settled):
                    count.late += 1
                else:
                    clicks.setdefault(click.search, []).append(click)
            clicked = max(clicked, horizon if head.get("clicked", "all") == "all" else head["clicked"])
            complete |= searches.keys() if head["complete"] else set()
            settled = max(settled, horizon if head["complete"] else horizon - self.plan.rules.window)
        ends = min(horizon, clicked) - self.plan.rules.wait
        closed = [one for one in searches.values() if one.id in complete or one.time <= ends]
        labels = self.labels()
        for search in sorted(closed, key=lambda one: (one.time, one.id)):
            self._close(search, clicks.get(search.id, ()), labels, count)
            if search.id in complete or search.time < settled:
                count.settled = len(count.decided)
        count.searches, count.open = len(searches), len(searches) - len(closed)
        count.too_old = len(too_old - searches.keys())
        count.late += sum(len(on) for search, on in clicks.items() if search in too_old - searches.keys())
        count.without_search = sum(len(on) for search, on in clicks.items() if search not in searches.keys() | too_old)
        by_client = Counter(one.client for one in count.decided)
        count.largest = max(by_client.values(), default=0) / max(len(count.decided), 1)
        return count

    def judged(self, count: Count | None = None) -> Judgement:
        """The result of the decided searches."""
        found = count or self.count()
        judgement = judge(found.decided, self.plan.rules, found.earlier or None)
        if judgement.ruling != "adopt":
            return judgement
        final = judge(found.decided[: found.settled], self.plan.rules, found.earlier or None).ruling == "adopt"
        return judgement if final else replace(judgement, ruling="undecided", provisional=True)

    def _close(
        self, search: ShownSearch, clicks: Iterable[SearchClick], labels: Mapping[str, str], count: Count
    ) -> None:
        """Count one search and its clicks."""
        teams = np.array([TEAMS[letter] for letter in search.teams], np.int8)
        clicked = np.zeros(len(teams), bool)
        count.shared_unknown += not search.known
        own = teams[teams != Team.NEITHER]
        if len(own):
            count.leads = (count.leads[0] + int(own[0] == Team.OLD), count.leads[1] + int(own[0] == Team.NEW))
        places = {document: place for place, document in enumerate(search.shown)}
        for click in clicks:
            place = places.get(click.document)
            if place is None:
                count.not_shown += 1
            elif search.client and click.client != search.client:  # a forged click cannot omit the client either
                count.of_others += 1
            elif click.team and teams[place] != Team.NEITHER and self._side(click.team, labels) != teams[place]:
                count.forged += 1
            else:
                clicked[place] = True
        count.nobodys += int(np.sum(clicked & (teams == Team.NEITHER)))
        winner = Draft(np.arange(len(teams)), teams).winner(clicked)
        if winner == Team.NEITHER:
            count.unclicked += not clicked.any()
            count.drawn += int(clicked.any())
            return
        count.without_client += not search.client
        count.decided.append(DecidedSearch(search.client, winner == Team.NEW))

    def _side(self, label: str, labels: Mapping[str, str]) -> int | None:
        team = self.plan.team(label, labels)
        return None if team is None else TEAMS[team[0]]

    def _all_labels(self, given: Mapping[str, str], begun: bool) -> dict[str, str]:
        """Known and new labels, which must not contradict each other once something was read."""
        known = self.labels()
        sides = {side: label for label, side in known.items()}
        for label, side in given.items():
            if begun and (known.get(label, side) != side or sides.get(side, label) != label):
                raise ValueError(
                    f"{label} cannot belong to the {side} model: this trial has {known}, and searches read with other "
                    "ids would count for the wrong model. Start another trial"
                )
        replaced = {label: side for label, side in known.items() if side not in given.values()}
        return {**replaced, **given}

    def _new(self, batches: Iterable[Batch], found: EventLines) -> tuple[list[ShownSearch], list[SearchClick]]:
        """Searches and clicks that were not read before, with pseudonyms of client ids."""
        searches: dict[str, set[ShownSearch]] = {}  # by id; a search may have several records
        clicks: set[SearchClick] = set()  # with all their claims: a forged click must not hide a true one
        for _, old_searches, old_clicks in batches:
            for search in old_searches:
                searches.setdefault(search.id, set()).add(search)
            clicks.update(old_clicks)
        new_searches, new_clicks = [], []
        for search in found.searches:
            search = search._replace(client=self._stand_in(search.client))
            same = searches.setdefault(search.id, set())
            if same and all(one[3:5] != search[3:5] for one in same):
                found.dropped[DIFFERS] += 1
            if search not in same:
                same.add(search)
                new_searches.append(search)
        for click in found.clicks:
            click = click._replace(client=self._stand_in(click.client))
            if click not in clicks:
                clicks.add(click)
                new_clicks.append(click)
        return new_searches, new_clicks

    def _stand_in(self, client: str) -> str:
        """The stored pseudonym of a client id; it cannot be reversed without the trial's key."""
        return hmac.new(self.plan.key.encode(), client.encode(), hashlib.sha256).hexdigest()[:16] if client else ""

    def _head(self, found: EventLines, complete: bool) -> dict[str, Any]:
        """The first line of an import's file."""
        head = {
            "format": BATCH_FORMAT,
            "read": now(),
            "complete": complete,
            "inputs": found.inputs,
            "dropped": dict(found.dropped),
            "clicked": "all" if found.untimed else max(found.clicked, -LONG_AGO),
        }
        if found.earlier:
            head["earlier"] = sorted(map(self._stand_in, found.earlier))
        return head

    def _write_batch(
        self, path: Path, head: Mapping[str, Any], searches: Iterable[ShownSearch], clicks: Iterable[SearchClick]
    ) -> None:
        lines = [json.dumps(head), *(json.dumps(["search", *one]) for one in searches)]
        lines += [json.dumps(["click", *one]) for one in clicks]
        write_atomic(path, "\n".join(lines) + "\n", private=True)

    def _batch_files(self) -> list[Path]:
        return sorted((self.folder / EVENTS).glob("*.jsonl"))

    def _batches(self) -> Iterable[Batch]:
        """Each import: its header, searches and clicks."""
        for path in self._batch_files():
            try:
                first, *rest = read_bytes(path).decode().splitlines()
                head = parse_json(first)
                counts = head["dropped"].values()
                if head["format"] != BATCH_FORMAT or not isinstance(head["complete"], bool):
                    raise ValueError("it is not an import of a trial")
                if not all(isinstance(one, str) for one in head.get("earlier", [])):
                    raise ValueError("a client in it is not a text")
                if head.get("clicked", "all") != "all" and not math.isfinite(head["clicked"]):
                    raise ValueError("the time of its clicks is not a number")
                if not all(isinstance(count, int) for count in counts):
                    raise ValueError("a count in it is not an integer")
                rows = [parse_json(line) for line in rest]
                searches = [_stored_search(row) for row in rows if row[0] == "search"]
                clicks = [SearchClick(*map(str, row[1:])) for row in rows if row[0] == "click"]
                yield head, searches, clicks
            except (ValueError, TypeError, KeyError, IndexError, AttributeError) as problem:
                raise ValueError(f"{path} is damaged ({problem}); restore it from a backup") from None


def _stored_search(row: list[Any]) -> ShownSearch:
    id, client, time, shown, teams, known = row[1:]
    if not set(teams) <= set(TEAMS) or len(teams) != len(shown) or not math.isfinite(time):
        raise ValueError("a search in it cannot be read")
    return ShownSearch(str(id), str(client), float(time), tuple(map(str, shown)), str(teams), bool(known))


def find_trials(folders: Iterable[str | Path]) -> list[EngineTrial]:
    """All trials in these folders and below, in order."""
    found = {path.parent.resolve(): path.parent for folder in folders for path in sorted(Path(folder).rglob(PLAN))}
    return [EngineTrial(folder) for folder in found.values()]
