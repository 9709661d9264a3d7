"""The published files of AOL4FOLTR as a data set: `metadata.csv` with who asked what when, `letor.txt` with features.

`letor.txt` (55 GB of text) is read once in a stream and never as a whole; its features become a file of 21 GB that is
opened without being read. Columns and lines are those that the released code writes: `qid` joins the two files,
the 20 documents of a query are neighbours, the clicked one has grade 1. The released code lists them in the order of a
Python set, so that nobody knows which candidate a line belongs to, the clicked one aside, nor where it was shown.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedrank.data.build_log import heavy_user
from fedrank.data.documents import SHOWN, find_columns, is_name, text_lines
from fedrank.data.letor_stream import Queries, read_queries, whole_number
from fedrank.data.log_folder import UNFINISHED, Marks, begin, finish, is_complete, table, working_on
from fedrank.data.logs import (
    ARRAYS,
    BAD_BYTES,
    BAD_ROW,
    BAD_TIME,
    EMPTY_QUERY,
    FORMAT,
    NO_CLICK,
    NO_USER,
    TEXTS,
    Clicks,
    LeftOut,
    SearchLog,
    load_log,
    normalised,
    seconds_of,
    write_names,
)
from fedrank.data.mapped import save_array
from fedrank.files import opened, sync
from fedrank.progress import Progress, quiet

LENGTH = 20  # documents of a list
BETWEEN_MARKS = 256 << 20  # bytes of letor.txt that are read again at most after a stop
COLUMNS: dict[str, tuple[str, ...]] = {  # what a column of metadata.csv may be called
    "qid": ("qid",),
    "user": ("user_id",),
    "time": ("timestamp",),
    "query": ("query",),
    "document": ("target_doc_id",),
}
BAD_QID = "qid that is no whole number"
TWICE = "qid that occurred before"
NO_ENTRY = "qid without an entry in metadata.csv"
NO_LINES = "entry without lines in letor.txt"
OTHER_LENGTH = f"query without {LENGTH} documents"
OTHER_CLICKS = "query without exactly one clicked document"
NOT_A_NUMBER = "value that is not a number, counted as 0"

_HEADER = 128  # bytes before the first row of features.npy
_SAMPLES, _SAMPLE = 64, 1 << 20  # stretches of a file, and their bytes, by which it is recognised
_ENTRIES, _TARGETS = f"entries{UNFINISHED}", f"targets{UNFINISHED}"
_UNSOUND = {"user": NO_USER, "query": EMPTY_QUERY, "document": NO_CLICK}
_SOME = 100_000  # entries whose lists are written at a time


def convert_published(
    metadata: str | os.PathLike[str],
    letor: str | os.PathLike[str],
    out: str | os.PathLike[str],
    progress: Progress = quiet,
) -> SearchLog:
    """Convert the two published files into a data set in the folder `out`, or continue where this was stopped.

    What does not fit together is left out and counted, with the first lines where it happened.
    """
    metadata, letor, out = Path(metadata), Path(letor), Path(out)
    asked = {
        "format": FORMAT,
        "metadata": _fingerprint(metadata),
        "letor": _fingerprint(letor),
        "settings": {"published": "AOL4FOLTR"},
    }
    if not is_complete(out, asked):
        with working_on(out):
            if not is_complete(out, asked):  # by another process in between
                _convert(metadata, letor, out, asked, progress)
    return load_log(out)


def _convert(metadata: Path, letor: Path, out: Path, asked: dict[str, Any], report: Progress) -> None:
    marks = begin(out, asked)
    report("metadata", 0, 1)
    entries = read_metadata(metadata)
    report("metadata", 1, 1)
    _write_features(out, marks, letor, entries, report)
    places = np.fromfile(out / _ENTRIES, "<i4")
    _write_rest(out, places, entries)
    finish(out, _facts(out, marks, asked, (metadata.name, letor.name), places, entries))


class _LeftOut:
    """Counts of what is left out, by reason, with the first lines; as it comes back from a file."""

    def __init__(self, found: dict[str, dict[str, Any]] | None = None) -> None:
        self.found = found or {}

    def add(self, reason: str, line: int) -> None:
        one = self.found.setdefault(reason, {"rows": 0, "lines": []})
        one["rows"] += 1
        if len(one["lines"]) < SHOWN:
            one["lines"].append(line)


@dataclass(frozen=True)
class Metadata:
    """The sound rows of metadata.csv, in order of time."""

    clicks: Clicks  # the documents are rows of the next
    documents: list[str]  # all that were clicked
    qid: NDArray[np.int64]  # [entries], all different
    line: NDArray[np.int64]  # [entries], where it stands


def read_metadata(path: Path) -> Metadata:
    """Read metadata.csv: columns qid, user_id, timestamp, query and target_doc_id; others are ignored."""
    left_out = _LeftOut()
    numbers = {name: array("q") for name in ("qid", "time", "line")}
    texts = {name: array("i") for name in ("user", "query", "document")}
    names: dict[str, dict[str, int]] = {name: {} for name in texts}
    known: set[int] = set()
    rows = 0
    for line, cells in _metadata_rows(path):
        rows += 1
        if isinstance(cells, str):
            left_out.add(cells, line)
            continue
        found = {"user": cells[1].strip(), "query": normalised(cells[3]), "document": cells[4].strip()}
        qid, time = whole_number(cells[0]), seconds_of(cells[2])
        if qid is None or qid in known:
            left_out.add(BAD_QID if qid is None else TWICE, line)
        elif time is None:
            left_out.add(BAD_TIME, line)
        elif unsound := [name for name, text in found.items() if not is_name(text)]:
            left_out.add(_UNSOUND[unsound[0]], line)
        else:
            known.add(qid)
            for name, number in (("qid", qid), ("time", time), ("line", line)):
                numbers[name].append(number)
            for name, text in found.items():
                texts[name].append(names[name].setdefault(text, len(names[name])))
    if not known:
        reasons = "; ".join(f"{reason}: {one['rows']:,}" for reason, one in left_out.found.items()) or "it is empty"
        raise ValueError(f"{path} holds no entry that can be used ({reasons})")
    time_of = np.array(numbers["time"], np.int64)
    order = np.argsort(time_of, kind="stable")
    clicks = Clicks(
        **{name: np.array(column, np.int32)[order] for name, column in texts.items()},
        time=time_of[order],
        users=list(names["user"]),
        queries=list(names["query"]),
        rows=rows,
        left_out={reason: LeftOut(one["rows"], tuple(one["lines"])) for reason, one in left_out.found.items()},
        out_of_order=int(np.count_nonzero(time_of < np.maximum.accumulate(time_of))),
    )
    qid_of, line_of = (np.array(numbers[name], np.int64)[order] for name in ("qid", "line"))
    return Metadata(clicks, list(names["document"]), qid_of, line_of)


def _metadata_rows(path: Path) -> Iterator[tuple[int, list[str] | str]]:
    """Line number, and the five cells or what is wrong with the row."""
    places: list[int] = []
    width = 0
    for number, line in text_lines(path):
        try:
            cells = next(csv.reader([line.decode("utf-8-sig" if not places else "utf-8")], strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            if not places:
                raise ValueError(f"{path}, line {number}: the names of the columns cannot be read ({error})") from None
            yield number, BAD_BYTES if isinstance(error, UnicodeDecodeError) else BAD_ROW
            continue
        if not places:
            found = find_columns(cells, COLUMNS, {}, COLUMNS, f"{path}, line {number}")
            places, width = [cells.index(found[name]) for name in COLUMNS], len(cells)
        elif len(cells) != width:
            yield number, BAD_ROW
        else:
            yield number, [cells[place] for place in places]


def _write_features(out: Path, marks: Marks, letor: Path, entries: Metadata, report: Progress) -> None:
    """Append the features of all queries that fit to features.npy, and their entries and clicks to files beside it."""
    from fedrank.data.log_features import FEATURE_NAMES

    width, size = len(FEATURE_NAMES), letor.stat().st_size
    done = marks.done.get("letor") or {"position": 0, "line": 1, "kept": 0, "left_out": {}}
    if not size:
        raise ValueError(f"{letor} is empty; copy or unpack it again")
    if done["position"] == size:
        return
    blocks = read_queries(letor, done["position"], done["line"], width)
    if not done["position"]:
        blocks = chain([next(blocks)], blocks)  # before the mark: a file that makes no sense leaves no folder behind
        marks.set("letor", done)
    kept, left_out = done["kept"], _LeftOut(done["left_out"])
    lengths = {"features.npy": _HEADER + kept * LENGTH * width * 4, _ENTRIES: kept * 4, _TARGETS: kept}
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_continued(out / name, length)) for name, length in lengths.items()]
        features, places, targets = files
        match = _Match(entries, np.fromfile(out / _ENTRIES, "<i4"), left_out)
        for block in blocks:
            entry = match.entries_of(block)
            rows = np.repeat(entry >= 0, np.diff(block.starts))
            used = slice(int(block.starts[0]), int(block.starts[-1]))
            features.write((block.features[used] if rows.all() else block.features[used][rows]).data)
            places.write(entry[entry >= 0].astype("<i4").data)
            targets.write((block.grades[used][rows].reshape(-1, LENGTH) > 0).argmax(axis=1).astype("|i1").data)
            kept += int(np.count_nonzero(entry >= 0))
            report("letor", block.position, size)
            ended = block.position == size
            if ended:
                _check_some(kept, letor, left_out)
                features.seek(0)
                features.write(_header(kept * LENGTH, width))
            if ended or block.position - marks.done["letor"]["position"] >= BETWEEN_MARKS:
                for file in files:
                    file.flush()
                    os.fsync(file.fileno())
                found = {"position": block.position, "line": block.line, "kept": kept, "left_out": left_out.found}
                marks.set("letor", found)


class _Match:
    """Which entry of metadata.csv a query of letor.txt is of; each entry has one."""

    def __init__(self, entries: Metadata, taken: NDArray[np.int32], left_out: _LeftOut) -> None:
        self.left_out = left_out
        self.order = np.argsort(entries.qid)
        self.qids = entries.qid[self.order]
        self.taken = np.zeros(len(self.qids), bool)
        self.taken[taken] = True

    def entries_of(self, block: Queries) -> NDArray[np.int64]:
        """[queries]: the entry of each, -1 where it is left out."""
        qids = np.array([-1 if qid is None else qid for qid in block.qids], np.int64)
        at = np.minimum(np.searchsorted(self.qids, qids), len(self.qids) - 1)
        entry = np.where(self.qids[at] == qids, self.order[at], -1)
        clicks = np.diff(np.concatenate([[0], np.cumsum(block.grades > 0)])[block.starts])
        lengths = np.diff(block.starts)
        for i, row in enumerate(entry.tolist()):
            reason = (
                NO_ENTRY
                if block.qids[i] is None or row < 0
                else TWICE
                if self.taken[row]
                else OTHER_LENGTH
                if lengths[i] != LENGTH
                else OTHER_CLICKS
                if clicks[i] != 1
                else ""
            )
            if reason:
                self.left_out.add(reason, block.lines[i])
                entry[i] = -1
            else:
                self.taken[row] = True
        for line in block.not_numbers:
            self.left_out.add(NOT_A_NUMBER, line)
        return entry


def _check_some(kept: int, letor: Path, left_out: _LeftOut) -> None:
    if not kept:
        reasons = "; ".join(f"{reason}: {one['rows']:,}" for reason, one in left_out.found.items()) or "it is empty"
        raise ValueError(f"no query of {letor} fits ({reasons}); do the two files belong together?")


def _continued(path: Path, length: int) -> BinaryIO:
    """A file opened behind what was marked as written."""
    file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
    file.truncate(length)
    file.seek(length)
    return file


def _header(rows: int, width: int) -> bytes:
    """What stands before the values in an .npy file, always of one length: the rows are known at the end only."""
    text = f"{{'descr': '{ARRAYS['features']}', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    text = text.ljust(_HEADER - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _write_rest(out: Path, places: NDArray[np.int32], entries: Metadata) -> None:
    """Write all but the features: in order of time, at the same second in the order of letor.txt."""
    clicks = entries.clicks
    order = np.lexsort((np.arange(len(places)), clicks.time[places]))
    chosen = places[order]
    lists = table(out / "lists.npy", (len(order), LENGTH), ARRAYS["lists"], new=True)
    for first in range(0, len(order), _SOME):
        lists[first : first + _SOME] = order[first : first + _SOME, None] * LENGTH + np.arange(LENGTH)
    lists.flush()
    target = np.fromfile(out / _TARGETS, "|i1")[order]
    save_array(out / "target.npy", target)
    counts = np.bincount(clicks.user[chosen], minlength=len(clicks.users))
    ranking = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    number = np.zeros(len(clicks.users), np.int32)
    number[ranking] = np.arange(len(ranking))
    save_array(out / "user.npy", number[clicks.user[chosen]])
    save_array(out / "time.npy", clicks.time[chosen])
    queries, query = np.unique(clicks.query[chosen], return_inverse=True)
    save_array(out / "query.npy", query.astype(np.int32))
    documents, document = np.unique(clicks.document[chosen], return_inverse=True)
    pairs = table(out / "document.npy", (len(order) * LENGTH,), ARRAYS["document"], new=True)
    pairs[:] = -1
    pairs[order * LENGTH + target] = document
    pairs.flush()
    write_names(out / "users.txt", [clicks.users[user] for user in ranking])
    write_names(out / "queries.txt", [clicks.queries[query] for query in queries])
    write_names(out / "documents.txt", [entries.documents[document] for document in documents])
    for name in ("lists.npy", "document.npy", *(f"{name}.txt" for name in TEXTS)):
        sync(out / name)


def _facts(
    out: Path,
    marks: Marks,
    asked: dict[str, Any],
    files: tuple[str, str],
    places: NDArray[np.int32],
    entries: Metadata,
) -> dict[str, Any]:
    """What a reader of the data set should know."""
    from fedrank.data.log_features import FEATURE_NAMES

    clicks, (metadata, letor) = entries.clicks, files
    shapes = {name: list(np.load(out / f"{name}.npy", mmap_mode="r").shape) for name in ARRAYS}
    texts = {name: (out / f"{name}.txt").read_bytes().count(b"\n") for name in TEXTS}
    left_out = {f"{metadata}: {reason}": one for reason, one in clicks.left_out.items()}
    return {
        "format": FORMAT,
        "files": {"metadata": metadata, "letor": letor},
        "made_from": {"metadata": asked["metadata"], "letor": asked["letor"]},
        "settings": asked["settings"],
        "counts": {
            "rows": clicks.rows,  # of metadata.csv
            "sound": len(clicks),  # of them
            "entries": shapes["lists"][0],  # in the data set
            "pairs": shapes["features"][0],
            **texts,
        },
        "left_out": {
            **{reason: {"rows": one.count, "lines": list(one.lines)} for reason, one in left_out.items()},
            **{f"{letor}: {reason}": one for reason, one in marks.done["letor"]["left_out"].items()},
        },
        "dropped": {NO_LINES: len(clicks) - len(places)},
        "out_of_order": clicks.out_of_order,
        "broken_documents": 0,
        "heavy_user": heavy_user(clicks),
        "shapes": shapes,
        "feature_names": list(FEATURE_NAMES),
    }


def _fingerprint(path: Path) -> str:
    """By which a file is known again: its size and stretches of it, since all of it would take minutes."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.blake2b(str(size).encode(), digest_size=16)
        for sample in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE) * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()
