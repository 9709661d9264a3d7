"""Which searches may be learned from together: those of a person who joined a federation, from that moment on.

    FOLDER/federation/             the folder of a site (`fedrank.deploy`): key, policy, ledger, what was sent; one that
                                   takes part over a network has a folder of its own elsewhere
    FOLDER/federation/search.json  where the federation meets, and after which search sharing began
    FOLDER/federation/searches/    recorded lists (`deploy/recorded_lists.py`), from which the site answers

The database stays the only truth: a list is recorded when it is closed, again when a click of it is forgotten, and gone
when its search is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedrank.deploy.recorded_lists import RecordedFolder, RecordedList
from fedrank.files import parse_json, private_folder, write_atomic
from fedrank.search.impressions import ImpressionRows
from fedrank.search.results import SearchError

FEDERATION, MARK, SEARCHES = "federation", "search.json", "searches"


@dataclass(frozen=True)
class Sharing:
    """What somebody who joined agreed to."""

    shared: str  # where the federation meets: a folder, or the address of its server
    after: int  # the last search that is not shared
    epsilon: float  # that all rounds together may cost
    site: str = ""  # folder of a site that takes part over a network; "": the one in the search folder

    @staticmethod
    def is_there(folder: Path) -> bool:
        """Whether somebody joined with a search folder."""
        return (folder / FEDERATION / MARK).exists()

    @classmethod
    def read(cls, folder: Path) -> Sharing | None:
        """That of a search folder; None: nothing is shared."""
        path = folder / FEDERATION / MARK
        try:
            found = parse_json(path.read_bytes())
            return cls(str(found["shared"]), int(found["after"]), float(found["epsilon"]), str(found.get("site", "")))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as problem:
            raise SearchError(f"{path} cannot be read ({problem!r}), so that nothing is shared; restore it") from None

    def site_folder(self, folder: Path) -> Path:
        """That of the site which answers for a search folder."""
        return Path(self.site) if self.site else folder / FEDERATION

    def write(self, folder: Path) -> None:
        write_atomic(private_folder(folder / FEDERATION) / MARK, json.dumps(asdict(self)) + "\n", private=True)


def recorded(folder: Path) -> RecordedFolder:
    """The lists of a search folder that are shared."""
    return RecordedFolder(folder / FEDERATION / SEARCHES)


def record(rows: ImpressionRows, folder: Path, anew: bool = False) -> None:
    """Let the recorded lists be those of the database: closed, drawn by the model, and after joining.

    With `anew` those that are there are compared, too: something was forgotten.
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
    done = set() if anew else set(there)
    for (id,) in due:
        if id in done:
            continue
        one = rows.get(id)
        if (impression := rows.as_impression(one)) is not None:
            lists.add(id, RecordedList(impression, one.temperature, one.keep, rows.features.version))
