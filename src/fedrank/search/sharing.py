"""The searches that a federation may learn from: those after the user joined it.

    FOLDER/federation/search.json  the folder of the site (`fedrank.deploy`), and the last search that is not shared
    FOLDER/federation/searches/    recorded impressions (`deploy/recorded_lists.py`) that the site learns from

The database is authoritative: an impression is recorded when it is closed, recorded again when one of its clicks is
forgotten, and deleted with its search.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedrank.deploy.recorded_lists import RecordedFolder, RecordedList
from fedrank.deploy.sent_log import what_was_sent
from fedrank.files import parse_json, private_folder, write_atomic
from fedrank.search.impressions import ImpressionRows
from fedrank.search.results import SearchError, SentBytes
from fedrank.search.store import Store

FEDERATION, MARK, SEARCHES = "federation", "search.json", "searches"


@dataclass(frozen=True)
class Sharing:
    """What the user agreed to when joining."""

    shared: str  # the federation and the address of its server
    after: int  # the last search that is not shared
    epsilon: float  # limit for all rounds together
    site: str = ""  # folder of the site; "": joined by an earlier version through a shared folder, which has ended

    @staticmethod
    def is_there(folder: Path) -> bool:
        """Whether the user joined a federation with this search folder."""
        return (folder / FEDERATION / MARK).exists()

    @classmethod
    def read(cls, folder: Path) -> Sharing | None:
        """Read the agreement in a search folder; None if nothing is shared."""
        path = folder / FEDERATION / MARK
        try:
            found = parse_json(path.read_bytes())
            return cls(str(found["shared"]), int(found["after"]), float(found["epsilon"]), str(found.get("site", "")))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as problem:
            raise SearchError(
                f"{path} cannot be read ({problem!r}), so nothing is shared; restore it from a backup"
            ) from None

    def write(self, folder: Path) -> None:
        write_atomic(private_folder(folder / FEDERATION) / MARK, json.dumps(asdict(self)) + "\n", private=True)


def recorded(folder: Path) -> RecordedFolder:
    """The recorded impressions of a search folder."""
    return RecordedFolder(folder / FEDERATION / SEARCHES)


def record(rows: ImpressionRows, folder: Path, rewrite: bool = False) -> None:
    """Update the recorded impressions from the database: closed, drawn by the model, and after joining.

    With `rewrite` those already recorded are written again, for use after a deletion.
    """
    lists, sharing = recorded(folder), Sharing.read(folder)
    if not lists.folder.is_dir():
        return
    known = {id for (id,) in rows.store.rows("SELECT id FROM impressions")}
    there = lists.numbers()
    for number in there:
        if sharing is None or number not in known:
            lists.forget(number)
    if sharing is None:
        return
    due = rows.store.rows(
        "SELECT id FROM impressions WHERE id > ? AND kind = 'pdgd' AND state IN ('closed', 'learned') AND features "
        "IS NOT NULL AND length(shown) > 0 ORDER BY id",
        sharing.after,
    )
    done = set() if rewrite else set(there)
    for (id,) in due:
        if id in done:
            continue
        one = rows.get(id)
        if (impression := rows.as_impression(one)) is not None:
            lists.add(id, RecordedList(impression, one.temperature, one.keep, rows.features.version))


class SentRecord:
    """The record of sent data: that of each site, and what earlier versions noted in the store."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder

    def add_journal(self, site: Path, receiver: str) -> None:
        """Include the record of a site's folder permanently."""
        # A relative path stays valid if the search folder is moved.
        inside = site.relative_to(self.folder) if site.is_relative_to(self.folder) else site
        with self.store.writing():
            known = json.loads(self.store.setting("journals", "{}"))
            self.store.set(journals=json.dumps(known | {str(inside): receiver}))

    def everything(self) -> tuple[SentBytes, ...]:
        """All data that was ever sent, from all records."""
        noted = self.store.rows("SELECT time, receiver, what, bytes FROM sent ORDER BY id")
        found = [SentBytes(int(when), to, what, size) for when, to, what, size in noted]
        for site, receiver in json.loads(self.store.setting("journals", "{}")).items():
            if not (self.folder / site).is_dir():
                found.append(SentBytes(0, receiver, f"unknown: the record in {site} is missing", 0))
            for one in what_was_sent(self.folder / site):
                often = f" ({one.times:,} times)" if one.times > 1 else ""
                found.append(SentBytes(int(one.at), receiver, one.what + often, one.bytes))
        return tuple(sorted(found, key=lambda one: one.time))

    def note_problem(self, problem: str) -> None:
        """Store the problem that prevents participation in the federation, for the status; "": none."""
        if self.store.setting("federation_problem", "") != problem:
            with self.store.writing():
                self.store.set(federation_problem=problem)

    def about_sharing(self) -> tuple[str, ...]:
        """Notes on sharing for the status page; empty for a person who has not joined a federation."""
        try:
            joined = Sharing.read(self.folder)
        except SearchError as damaged:
            return (str(damaged),)
        if joined is None:
            return ()
        count, problem = len(recorded(self.folder).numbers()), self.store.setting("federation_problem", "")
        text = (
            f"You participate in a federation through {joined.shared}, with at most ε = {joined.epsilon:g} in total. "
            f"{count:,} searches are recorded for it. They stay on this device; all data that was sent is listed."
        )
        return (text, *([problem] if problem else []))
