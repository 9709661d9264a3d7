"""Convert the published files of AOL4FOLTR into a data set: `metadata.csv` (user, time, query, click) and `letor.txt`.

`letor.txt` (55 GB of text with the features) is streamed once; its features become a memory-mapped file of 21 GB.
Columns and lines are those that the released code writes: `qid` joins the two files, the 20 documents of a query are
adjacent, and the clicked document has label 1. The released code lists documents in the order of a Python set, so
only the clicked candidate is known, and no positions.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.click_log import (
    BAD_TIME,
    EMPTY_QUERY,
    NO_CLICK,
    NO_USER,
    ClickColumns,
    Clicks,
    rank_users,
)
from fedrank.data.log_folder import UNFINISHED, Marks, build_folder, finish, log_facts, save_arrays, table, write_texts
from fedrank.data.logs import ARRAYS, FORMAT, SearchLog
from fedrank.data.rows import Column, Reasons, Row, RowFormat, RowReader, UnusableRow, list_reasons
from fedrank.data.values import parse_name, parse_query, parse_seconds, parse_whole_number
from fedrank.files import opened, sync
from fedrank.progress import Progress, quiet
from fedrank.types import Features

BLOCK = 8 << 20  # bytes of letor.txt in memory at a time
LENGTH = 20  # documents per list
BETWEEN_MARKS = 256 << 20  # maximum number of bytes of letor.txt to read again after an interruption
BAD_QID = "qid that is not an integer"
TWICE = "qid that occurs more than once"
NO_ENTRY = "qid without an entry in metadata.csv"
NO_LINES = "entry without lines in letor.txt"
OTHER_LENGTH = f"query without {LENGTH} documents"
OTHER_CLICKS = "query without exactly one clicked document"
NOT_A_NUMBER = "value that is not a number, counted as 0"

_HEADER = 128  # bytes before the first row of features.npy
_SAMPLES, _SAMPLE = 64, 1 << 20  # number and size in bytes of the samples in a file's fingerprint
_ENTRIES, _TARGETS = f"entries{UNFINISHED}", f"targets{UNFINISHED}"
_SOME = 100_000  # lists per write
_ROWS = 16_384  # documents parsed at a time
_MAX_QID_LENGTH = 20  # bytes

METADATA = RowFormat(
    {
        "qid": Column(("qid",), parse_whole_number, BAD_QID),
        "time": Column(("timestamp",), parse_seconds, BAD_TIME),
        "user": Column(("user_id",), parse_name, NO_USER),
        "query": Column(("query",), parse_query, EMPTY_QUERY),
        "document": Column(("target_doc_id",), parse_name, NO_CLICK),
    },
    kind="csv",
    exact=True,
)


def convert_aol4foltr(
    metadata: str | os.PathLike[str],
    letor: str | os.PathLike[str],
    out: str | os.PathLike[str],
    progress: Progress = quiet,
) -> SearchLog:
    """Convert the two published files into a data set in the folder `out`, or continue an interrupted conversion.

    Rows that do not match are left out and counted, with their first line numbers.
    """
    metadata, letor, out = Path(metadata), Path(letor), Path(out)
    request = {
        "format": FORMAT,
        "metadata": _fingerprint(metadata),
        "letor": _fingerprint(letor),
        "settings": {"published": "AOL4FOLTR"},
    }

    def build(marks: Marks) -> None:
        progress("metadata", 0, 1)
        entries = read_metadata(metadata)
        progress("metadata", 1, 1)
        _write_features(out, marks, letor, entries, progress)
        stored = np.fromfile(out / _ENTRIES, "<i4")
        _write_rest(out, stored, entries)
        finish(out, _facts(marks, metadata.name, letor.name, len(stored), entries.clicks))

    return build_folder(out, request, build)


@dataclass(frozen=True)
class Metadata:
    """The valid rows of metadata.csv, ordered by time."""

    clicks: Clicks  # its documents are rows of `documents`
    documents: list[str]  # all clicked documents
    qid: NDArray[np.int64]  # [entries], unique
    line: NDArray[np.int64]  # [entries], line in metadata.csv


def read_metadata(path: Path) -> Metadata:
    """Read metadata.csv: columns qid, user_id, timestamp, query and target_doc_id; others are ignored."""
    reader, found = RowReader(path, METADATA), ClickColumns()
    documents: dict[str, int] = {}
    lines: dict[int, int] = {}  # by qid

    def take(number: int, row: Row) -> None:
        if row["qid"] in lines:
            raise UnusableRow(TWICE)
        lines[row["qid"]] = number
        found.add(row, documents.setdefault(row["document"], len(documents)))

    reader.each(take)
    if not lines:
        raise ValueError(f"{path} contains no usable entries ({list_reasons(reader.left_out.all())})")
    clicks, order = found.finish(reader)
    qids, numbers = (np.fromiter(column, np.int64, len(lines))[order] for column in (lines, lines.values()))
    return Metadata(clicks, list(documents), qids, numbers)


def _write_features(out: Path, marks: Marks, letor: Path, entries: Metadata, report: Progress) -> None:
    """Append the features of all matching queries to features.npy, and their entries and clicks to adjacent files."""
    from fedrank.data.log_features import FEATURE_NAMES

    width, size = len(FEATURE_NAMES), letor.stat().st_size
    done = marks.done.get("letor") or {"position": 0, "line": 1, "kept": 0, "left_out": {}}
    if not size:
        raise ValueError(f"{letor} is empty; copy or unpack the file again")
    if done["position"] == size:
        return
    blocks = read_queries(letor, done["position"], done["line"], width)
    if not done["position"]:
        blocks = chain([next(blocks)], blocks)  # parse before the mark, so an invalid file leaves no folder
        marks.set("letor", done)
    stored, left_out = done["kept"], Reasons(done["left_out"])
    lengths = {"features.npy": _HEADER + stored * LENGTH * width * 4, _ENTRIES: stored * 4, _TARGETS: stored}
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_continued(out / name, length)) for name, length in lengths.items()]
        features, entry_rows, targets = files
        match = _Match(entries, np.fromfile(out / _ENTRIES, "<i4"), left_out)
        for block in blocks:
            entry = match.entries_of(block)
            rows = np.repeat(entry >= 0, np.diff(block.starts))
            used = slice(int(block.starts[0]), int(block.starts[-1]))
            features.write((block.features[used] if rows.all() else block.features[used][rows]).data)
            entry_rows.write(entry[entry >= 0].astype("<i4").data)
            targets.write((block.grades[used][rows].reshape(-1, LENGTH) > 0).argmax(axis=1).astype("|i1").data)
            stored += int(np.count_nonzero(entry >= 0))
            report("letor", block.position, size)
            ended = block.position == size
            if ended:
                if not stored:
                    raise ValueError(
                        f"no query of {letor} matches metadata.csv ({list_reasons(left_out.all())}); check that both "
                        "files are from the same release"
                    )
                features.seek(0)
                features.write(_header(stored * LENGTH, width))
            if ended or block.position - marks.done["letor"]["position"] >= BETWEEN_MARKS:
                for file in files:
                    file.flush()
                    os.fsync(file.fileno())
                found = {"position": block.position, "line": block.line, "kept": stored, "left_out": left_out.found}
                marks.set("letor", found)


class _Match:
    """Match each query of letor.txt to its entry of metadata.csv."""

    def __init__(self, entries: Metadata, taken: NDArray[np.int32], left_out: Reasons) -> None:
        self.left_out = left_out
        self.order = np.argsort(entries.qid)
        self.qids = entries.qid[self.order]
        self.taken = np.zeros(len(self.qids), bool)
        self.taken[taken] = True

    def entries_of(self, block: Queries) -> NDArray[np.int64]:
        """[queries]: the matching entry, or -1 if the query is left out."""
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


def _continued(path: Path, length: int) -> BinaryIO:
    """Open a file for writing after the part that is marked as complete."""
    file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
    file.truncate(length)
    file.seek(length)
    return file


def _header(rows: int, width: int) -> bytes:
    """Return the header of an .npy file with a fixed length, since the number of rows is known only at the end."""
    text = f"{{'descr': '{ARRAYS['features']}', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    text = text.ljust(_HEADER - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _write_rest(out: Path, entry_rows: NDArray[np.int32], entries: Metadata) -> None:
    """Write everything except the features, ordered by time; ties keep the order of letor.txt."""
    clicks = entries.clicks
    order = np.lexsort((np.arange(len(entry_rows)), clicks.time[entry_rows]))
    chosen = entry_rows[order]
    lists = table(out / "lists.npy", (len(order), LENGTH), ARRAYS["lists"], new=True)
    for first in range(0, len(order), _SOME):
        lists[first : first + _SOME] = order[first : first + _SOME, None] * LENGTH + np.arange(LENGTH)
    lists.flush()
    target = np.fromfile(out / _TARGETS, "|i1")[order]
    ranking, rank = rank_users(np.bincount(clicks.user[chosen], minlength=len(clicks.users)))
    queries, query = np.unique(clicks.query[chosen], return_inverse=True)
    save_arrays(out, target=target, user=rank[clicks.user[chosen]], time=clicks.time[chosen], query=query)
    documents, document = np.unique(clicks.document[chosen], return_inverse=True)
    pairs = table(out / "document.npy", (len(order) * LENGTH,), ARRAYS["document"], new=True)
    pairs[:] = -1
    pairs[order * LENGTH + target] = document
    pairs.flush()
    write_texts(
        out,
        [clicks.users[user] for user in ranking],
        [clicks.queries[query] for query in queries],
        [entries.documents[document] for document in documents],
    )
    for name in ("lists.npy", "document.npy"):
        sync(out / name)


def _facts(marks: Marks, metadata: str, letor: str, stored: int, clicks: Clicks) -> dict[str, Any]:
    """Return the facts of the data set; each reason names its file."""
    from fedrank.data.log_features import FEATURE_NAMES

    common = log_facts(marks, clicks, len(clicks), {"metadata": metadata, "letor": letor}, FEATURE_NAMES)
    left_out = {
        **{f"{metadata}: {reason}": one for reason, one in common["left_out"].items()},
        **{f"{letor}: {reason}": one for reason, one in marks.done["letor"]["left_out"].items()},
    }
    return common | {"left_out": left_out, "dropped": {NO_LINES: len(clicks) - stored}}


def _fingerprint(path: Path) -> str:
    """Return a fingerprint of the file's size and of samples, since hashing the whole file would take minutes."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.blake2b(str(size).encode(), digest_size=16)
        for sample in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE) * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


class Queries(NamedTuple):
    """A block of complete queries; its arrays are overwritten by the next block."""

    qids: list[int | None]
    lines: list[int]  # first line of each
    starts: NDArray[np.int64]  # [queries + 1], rows of features and labels
    features: Features  # [documents, features]
    grades: NDArray[np.int8]  # [documents]
    position: int  # offset in the file after these queries
    line: int  # line number at this offset
    not_numbers: list[int]  # lines with NaN values


def read_queries(path: Path, position: int, line: int, width: int) -> Iterator[Queries]:
    """Yield blocks of complete queries of a LETOR file larger than memory, from a byte where a query begins."""
    from fedrank.kernels import letor as kernel

    text = bytearray(BLOCK + 1)
    view = np.frombuffer(text, np.uint8)
    features, grades = np.zeros((_ROWS, width), np.float32), np.zeros(_ROWS, np.int8)
    queries, unrounded = np.zeros((_ROWS, 4), np.int64), np.zeros((_ROWS, 5), np.int64)
    seen, state = np.zeros(width + 1, np.int64), np.zeros(kernel.STATES, np.int64)
    end, final = 0, False
    not_numbers: list[int] = []
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(position)
        while not final:
            end += file.readinto(memoryview(text)[end:BLOCK])
            ended = position + end >= size
            if ended and end and text[end - 1] != 10:
                text[end] = 10
                end += 1
            stamp = state[kernel.STAMP]
            state[:] = 0
            state[kernel.STAMP], state[kernel.LINE], state[kernel.FEWEST] = stamp, line, width
            features[:] = 0
            stop = text.rfind(b"\n", 0, end) + 1
            while True:
                status = kernel.read_lines(
                    view, stop, features, grades, seen, queries, unrounded, state, np.nan, _MAX_QID_LENGTH
                )
                if status != kernel.BAD_VALUE or not _counts_as_zero(text, int(state[kernel.MARK])):
                    break
                not_numbers.append(int(state[kernel.LINE]))
            for row, column, at, first, last in unrounded[: state[kernel.UNROUNDED]].tolist():
                with np.errstate(over="ignore", under="ignore"):
                    features[row, column] = np.float32(float(text[first:last]))
                if np.isinf(features[row, column]):
                    raise _unsound(path, at, bytes(text[first:last]))
            if status == kernel.WIDER or (state[kernel.QUERIES] and state[kernel.HIGHEST] != width):
                highest = max(state[kernel.WANTED], state[kernel.HIGHEST])
                raise ValueError(
                    f"{path}, from line {line}: {highest} features, but the published file has {width}; copy the file "
                    "again"
                )
            if status not in (kernel.DONE, kernel.FULL):
                raise _unsound(path, int(state[kernel.LINE]), bytes(text[state[kernel.MARK] : end]))
            final = ended and status == kernel.DONE
            found = queries[: state[kernel.QUERIES]]
            if final or not len(found):
                used, line, rows = int(state[kernel.POSITION]), int(state[kernel.LINE]), int(state[kernel.ROW])
            else:  # the last query may continue after this block: it is read again with the next
                rows, line, at = found[-1, :3].tolist()
                used, found = text.rfind(b"\n", 0, at) + 1, found[:-1]
            if not used and not final:
                raise ValueError(
                    f"{path}, line {line}: a query has more than {BLOCK:,} bytes or {_ROWS:,} documents; check that "
                    "the file is sorted by query"
                )
            position += used
            yield Queries(
                [parse_whole_number(bytes(text[first:last])) for first, last in found[:, 2:].tolist()],
                found[:, 1].tolist(),
                np.append(found[:, 0], rows),
                features,
                grades,
                min(position, size),
                line,
                [at for at in not_numbers if at < line],
            )
            not_numbers = [at for at in not_numbers if at >= line]  # zeroed lines are not found again
            text[: end - used] = text[used:end]
            end -= used


def _counts_as_zero(text: bytearray, at: int) -> bool:
    """Overwrite the value with 0 if it is NaN, as the released code reads it."""
    pair = bytes(text[at : at + 40]).split()[0]
    value = pair.rpartition(b":")[2]
    if value.lower() not in (b"nan", b"-nan"):
        return False
    first = at + len(pair) - len(value)
    text[first : first + len(value)] = b"0".ljust(len(value))
    return True


def _unsound(path: Path, line: int, text: bytes) -> ValueError:
    words = text[:40].split()
    word = words[0].decode(errors="replace") if words else ""
    return ValueError(
        f"{path}, line {line}: {word!r} cannot be read; lines must look like '1 qid:7 1:0.5 2:3', with finite values; "
        "copy or unpack the file again"
    )
