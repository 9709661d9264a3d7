"""Remove one user, or expired entries, from a data set: a new folder is written next to it and replaces it atomically.

A process that is killed leaves either the complete old folder or the complete new one. Data that only the removed
entries contain are removed, too: users and queries without other entries, and features of pairs in no other list.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.log_folder import UNFINISHED, working_on
from fedrank.data.logs import ARRAYS, FACTS, TEXTS, SearchLog, load_log, write_names
from fedrank.data.mapped import new_mapped
from fedrank.files import UNFINISHED as PART
from fedrank.files import exchange, is_alive, private_folder, sync, write_atomic

GONE = "(forgotten)"  # replaces the name in facts
_SOME = 50_000  # rows in memory at a time
_PART = "forgetting"


@dataclass(frozen=True)
class RemovedRows:
    """Counts of what is removed from a data set."""

    entries: int
    clicks: int
    queries: int  # queries without other entries
    pairs: int  # pairs of query and document in no other list
    first: int  # time of the first entry, seconds since 1970
    last: int  # time of the last entry


def rows_of_user(log: SearchLog, name: str) -> RemovedRows:
    """Return what forgetting a user would remove; an unknown user, or the only user, is an error."""
    return _rows(log, _own(log, name))


def expired_rows(log: SearchLog) -> RemovedRows | None:
    """Return what the retention period of a data set would remove; None: nothing."""
    own = _expired(log)
    return _rows(log, own) if own.any() else None


def _rows(log: SearchLog, own: NDArray[np.bool_]) -> RemovedRows:
    queries, pairs = _remaining(log.query, len(log.queries), own), _remaining_pairs(log, own)
    mine = np.flatnonzero(own)
    clicked = len(mine) if log.clicks is None else int(np.asarray(log.clicks[mine]).sum())
    times = np.asarray(log.time[mine])
    return RemovedRows(
        len(mine),
        clicked,
        len(log.queries) - int(queries.sum()),
        len(log.document) - int(pairs.sum()),
        int(times.min()) if len(times) else 0,
        int(times.max()) if len(times) else 0,
    )


def forget_user(
    folder: str | os.PathLike[str],
    name: str,
    note: dict[str, Any] | None = None,
    complete: Callable[[Path, RemovedRows], None] = lambda part, removed: None,
) -> RemovedRows:
    """Permanently remove a user from a data set.

    `note` is added to the data set's record of removals and should not name a person. `complete` may add files to
    the new folder before it replaces the old one.
    """

    def chosen(log: SearchLog) -> tuple[NDArray[np.bool_], dict[str, Any]]:
        own = _own(log, name)
        entry = {"entries": int(own.sum()), **(note or {})}
        return own, {"forgotten": [*log.facts.get("forgotten", ()), entry]}

    return _remove(folder, chosen, complete)


def forget_expired(folder: str | os.PathLike[str]) -> RemovedRows:
    """Permanently remove the entries of a data set that are older than its retention period."""

    def chosen(log: SearchLog) -> tuple[NDArray[np.bool_], dict[str, Any]]:
        own = _expired(log)
        if not own.any():
            raise ValueError(f"no entry of {log.folder} is older than its retention period; nothing was deleted")
        entry = {"entries": int(own.sum()), "before": log.oldest_allowed()}
        return own, {"expired": [*log.facts.get("expired", ()), entry]}

    return _remove(folder, chosen)


def _remove(
    folder: str | os.PathLike[str],
    chosen: Callable[[SearchLog], tuple[NDArray[np.bool_], dict[str, Any]]],  # the entries, and new facts
    complete: Callable[[Path, RemovedRows], None] = lambda part, removed: None,
) -> RemovedRows:
    folder = Path(folder).resolve()
    sweep(folder)
    with working_on(folder):
        log = load_log(folder)
        own, facts = chosen(log)
        removed = _rows(log, own)
        part = folder.with_name(f".{folder.name}.{_PART}.{os.getpid()}")
        private_folder(part)
        try:
            _write(log, own, part, removed, facts)
            complete(part, removed)
            load_log(part)  # validate before replacing the old folder
            for path in part.iterdir():
                os.chmod(path, 0o600)
                sync(path)
            sync(part)
            exchange(part, folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)  # the old folder, or an unfinished new one
    if part.exists():
        raise OSError(f"{part} could not be deleted and still contains the removed entries; delete it")
    return removed


def sweep(folder: Path) -> int:
    """Delete folders that a killed process left next to a data set; return their number."""
    stale = [path for path in folder.parent.glob(f".{glob.escape(folder.name)}.{_PART}.*") if is_left(path)]
    for path in sorted(stale):  # new folders sort before the old ones that they replace
        if not folder.exists() and (path / FACTS).exists():
            os.rename(path, folder)  # killed between two renames, on a system without atomic exchange
        else:
            shutil.rmtree(path, ignore_errors=True)
            if path.exists():
                raise OSError(f"{path} could not be deleted and may contain a forgotten user's data; delete it")
    return len(stale)


def is_left(path: Path) -> bool:
    """Whether the process that wrote this has died; containers reuse process ids, so it may equal our id."""
    pid = path.name.removesuffix(PART).rpartition(".")[2]
    return pid.isdigit() and (int(pid) == os.getpid() or not is_alive(int(pid)))


def _own(log: SearchLog, name: str) -> NDArray[np.bool_]:
    """[entries]: True for entries of the user."""
    if name not in log.users:
        before = len(log.facts.get("forgotten", ()))
        since = f"; {before} users were removed earlier, see forgotten-*.json in the folder" if before else ""
        raise ValueError(
            f"{log.folder} has no user {name!r}{since}; users are identified by the {log.unit} ids of the log that "
            "the data set was built from"
        )
    own: NDArray[np.bool_] = np.asarray(log.user) == log.users.index(name)
    if own.all():
        raise ValueError(f"{log.folder} has no entries of other users; delete the folder instead")
    return own


def _expired(log: SearchLog) -> NDArray[np.bool_]:
    """[entries]: True for entries that are older than the retention period."""
    since = log.oldest_allowed()
    own: NDArray[np.bool_] = np.zeros(len(log), np.bool_) if since is None else np.asarray(log.time) < since
    if len(log) and own.all():
        raise ValueError(f"all entries of {log.folder} are older than its retention period; delete the folder instead")
    return own


def _remaining(values: NDArray[Any], count: int, own: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[users or queries]: False for those that only the removed entries have."""
    theirs, others = np.zeros((2, count), np.bool_)
    values = np.asarray(values)
    theirs[values[own]], others[values[~own]] = True, True
    remaining: NDArray[np.bool_] = ~theirs | others
    return remaining


def _remaining_pairs(log: SearchLog, own: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[pairs]: False for pairs that only the removed lists have."""
    theirs, others = np.zeros(
        (2, len(log.document) + 1), np.bool_
    )  # the last item is for -1, the padding of short lists
    for seen, entries in ((theirs, np.flatnonzero(own)), (others, np.flatnonzero(~own))):
        for rows in _blocks(entries):
            seen[np.asarray(log.lists[rows]).ravel()] = True
    remaining: NDArray[np.bool_] = (~theirs | others)[:-1]
    return remaining


def _blocks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for first in range(0, len(rows), _SOME):
        yield rows[first : first + _SOME]


def _write(log: SearchLog, own: NDArray[np.bool_], part: Path, removed: RemovedRows, more: dict[str, Any]) -> None:
    entries, pairs = np.flatnonzero(~own), _remaining_pairs(log, own)
    users, queries = _remaining(log.user, len(log.users), own), _remaining(log.query, len(log.queries), own)
    new_pair = np.append(np.cumsum(pairs) - 1, -1)  # maps -1 to -1
    new_query, new_user = np.cumsum(queries) - 1, np.cumsum(users) - 1
    shapes = {}
    for array in log.facts["shapes"]:
        values: NDArray[Any] = getattr(log, array)
        rows = np.flatnonzero(pairs) if array in ("features", "document") else entries
        out = new_mapped(part / f"{array}.npy", (len(rows), *values.shape[1:]), ARRAYS[array])
        for first, some in zip(range(0, len(rows), _SOME), _blocks(rows), strict=True):
            block = np.asarray(values[some])
            if array == "lists":
                block = new_pair[block]
            elif array == "query":
                block = new_query[block]
            elif array == "user":
                block = new_user[block]
            out[first : first + len(some)] = block
        out.flush()
        shapes[array] = list(out.shape)
        del out
    texts = {
        "users": tuple(one for one, remaining in zip(log.users, users, strict=True) if remaining),
        "queries": tuple(one for one, remaining in zip(log.queries, queries, strict=True) if remaining),
        "documents": log.documents,
    }
    for text in TEXTS:
        write_names(part / f"{text}.txt", texts[text])
    ours = {*(f"{array}.npy" for array in shapes), *(f"{text}.txt" for text in TEXTS), FACTS}
    for path in log.folder.iterdir():  # receipts and other files, without temporary ones
        if path.is_file() and path.name not in ours and UNFINISHED not in path.name:
            shutil.copy2(path, part / path.name)
    counts = log.facts["counts"] | {
        "entries": len(entries),
        "pairs": int(pairs.sum()),
        **{text: len(texts[text]) for text in TEXTS},
    }
    if "clicks" in counts:
        counts["clicks"] -= removed.clicks
    gone = {one for one, remaining in zip(log.users, users, strict=True) if not remaining}
    facts = _without(log.facts, gone) | {"counts": counts, "shapes": shapes} | more
    if held := facts.get("held_out"):
        facts["held_out"] = held | {"entries": int(log.held_out[entries].sum())}
    if (facts.get("heavy_user") or {}).get("user") == GONE:
        facts["heavy_user"] = None
    write_atomic(part / FACTS, json.dumps(facts, indent=1, ensure_ascii=False) + "\n", private=True)


def _without(value: Any, names: set[str]) -> Any:
    """Replace each value that equals one of the names."""
    if isinstance(value, dict):
        return {GONE if key in names else key: _without(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_without(one, names) for one in value]
    return GONE if isinstance(value, str) and value in names else value
