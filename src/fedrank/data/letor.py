"""LETOR files: lines of `label qid:Q index:value ... # comment`, as text, `.gz` or `.xz`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.data import cache as kept
from fedrank.data.judged_files import JudgedFileError, Paths
from fedrank.data.lines import unpacked_file
from fedrank.data.normalise import known_normalisation, normalise_into
from fedrank.data.ranking import RankingData
from fedrank.kernels import letor as kernel

BLOCK = 4 << 20  # bytes of text in memory at a time; also the maximum line length
MAX_QUERY_LENGTH = 1000  # bytes per query id
WIDEST = 10_000  # maximum number of features unless stated: storage is dense
SMALL = 256 << 20  # bytes of features that are always allowed
PER_BYTE = 32  # allowed bytes of features per byte of text; enough for files with 2 % of values
_GROWTH = 64 << 20  # up to this size arrays double; larger ones grow by at least an eighth
_BOM = b"\xef\xbb\xbf"


def read_letor(
    paths: Paths,
    *,
    features: int | None = None,
    normalise: str = "none",
    missing: float | None = None,
    cache: bool = True,
) -> RankingData:
    r"""Read one LETOR file, or several files as one data set.

    `features` is the number of features; the default is the highest index, up to 10,000. A sparse file may omit its
    last features on some lines, but not on all. `missing` is a value that marks a missing feature and is read as 0.
    With normalise="global", the ranges are those of these files; see `normalise` for a test set.

    >>> from pathlib import Path
    >>> import fedrank as fr
    >>> _ = Path("judged.txt").write_text("2 qid:7 1:0.5 3:4.0 # page A\n0 qid:7 2:0.25\n")
    >>> data = fr.read_letor("judged.txt")
    >>> data.features.tolist(), data.grades.tolist(), data.query_ids.tolist()
    ([[0.5, 0.0, 4.0], [0.0, 0.25, 0.0]], [2, 0], ['7'])
    """
    files = _files(paths)
    known_normalisation(normalise)
    if features is not None and not 1 <= features <= kernel.MAX_INDEX:
        raise ValueError(f"features must be from 1 to {kernel.MAX_INDEX:,}, or None (got {features})")
    name = "+".join(file.name.split(".")[0] for file in files)
    if not cache:
        return replace(_read(files, features, normalise, missing), name=name)
    options = {"features": features, "normalise": normalise, "missing": missing}
    key = kept.cache_key(files, options)
    data = kept.load(key)
    if data is None:
        data = _read(files, features, normalise, missing)
        if kept.cache_key(files, options) != key:
            which = files[0] if len(files) == 1 else f"one of {', '.join(map(str, files))}"
            raise JudgedFileError(
                f"{which} changed while it was read, so its contents may be inconsistent; wait until it is written, "
                "then read it again"
            )
        if kept.store(key, data):
            data = kept.load(key) or data
    return replace(data, name=name)


def read_comments(paths: Paths) -> list[str]:
    """Return the comment after `#` of every document, in order; "" if there is none.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "tiny.txt"
    >>> _ = file.write_text("1 qid:7 1:0.5 #docid = GX000\\n# no document\\n0 qid:7 1:0.1\\n")
    >>> read_comments(file)
    ['docid = GX000', '']
    """
    comments = []
    for path in _files(paths):
        with unpacked_file(path, JudgedFileError) as stream:
            for number, line in enumerate(stream):
                if number == 0:
                    line = line.removeprefix(_BOM)
                document, _, comment = line.partition(b"#")
                if document.strip():
                    comments.append(comment.strip().decode(errors="replace"))
    return comments


def letor_lines(data: RankingData) -> Iterator[str]:
    """Yield the lines of a LETOR file; reading them gives the same numbers."""
    template = " ".join(f"{column}:%.9g" for column in range(1, data.features.shape[1] + 1))
    for query, name in enumerate(data.query_ids):
        for row in range(data.offsets[query], data.offsets[query + 1]):
            yield f"{data.grades[row]} qid:{name} {template % tuple(data.features[row].tolist())}\n"  # prose: ok


def _files(paths: Paths) -> list[Path]:
    files = [Path(paths)] if isinstance(paths, (str, os.PathLike)) else [Path(path) for path in paths]
    if not files:
        raise ValueError("paths is empty; name at least one file")
    return files


def _read(files: Sequence[Path], features: int | None, normalise: str, missing: float | None) -> RankingData:
    table = _Table(features, missing)
    for path in files:
        table.read(path)
    table.finish()
    normalise_into(table.features, table.features, table.offsets, normalise)
    return RankingData(
        features=table.features,
        grades=table.grades,
        offsets=table.offsets,
        query_ids=np.array(table.query_ids, dtype=np.str_),
        normalised=normalise,
    )


class _Table:
    """Arrays that grow while files are read, and the current block of text."""

    def __init__(self, features: int | None, missing: float | None) -> None:
        self.expected = features
        self._free = free_memory()
        self.missing = np.nan if missing is None else float(missing)
        self.features: NDArray[np.float32] = np.zeros((0, features or 0), np.float32)
        self.grades: NDArray[np.int8] = np.zeros(0, np.int8)
        self.offsets: NDArray[np.int64] = np.zeros(0, np.int64)
        self.query_ids: list[str] = []

        self._starts: list[int] = []  # first document of every query
        self._known: set[str] = set()  # query ids
        self._path = Path()
        # The id of the last query is stored before the block, where the kernel can compare it.
        self._bytes = bytearray(MAX_QUERY_LENGTH + BLOCK + 1)
        self._text = np.frombuffer(self._bytes, np.uint8)
        self._seen = np.zeros((features or 0) + 1, np.int64)
        self._queries = np.zeros((1 << 14, 4), np.int64)
        self._unrounded = np.zeros((kernel.MAX_INDEX, 5), np.int64)
        self._state = np.zeros(kernel.STATES, np.int64)
        self._state[kernel.FEWEST] = kernel.MAX_INDEX
        self._read = 0  # decompressed bytes of all files

    def read(self, path: Path) -> None:
        """Read a file and append its documents."""
        state, text = self._state, self._bytes
        self._path = path
        before = int(state[kernel.ROW])
        state[kernel.LINE] = 1
        first, end = True, MAX_QUERY_LENGTH
        with unpacked_file(path, JudgedFileError) as stream:
            ended = False
            while not ended:
                filled = _fill(stream, memoryview(text)[end:-1])
                self._read += filled
                ended = end + filled < len(text) - 1
                end += filled
                if ended and end > MAX_QUERY_LENGTH and text[end - 1] != 10:
                    text[end] = 10
                    end += 1
                stop = text.rfind(b"\n", MAX_QUERY_LENGTH, end) + 1
                if not ended and stop == 0:
                    raise self._error(f"the line is longer than {BLOCK:,} bytes; check that this is a LETOR file")
                bom = first and text.startswith(_BOM, MAX_QUERY_LENGTH)
                state[kernel.POSITION] = MAX_QUERY_LENGTH + (len(_BOM) if bom else 0)
                first = False
                self._parse(stop)
                last = text[state[kernel.LAST] : state[kernel.LAST_END]]
                text[: len(last)] = last
                state[kernel.LAST], state[kernel.LAST_END] = 0, len(last)
                if not ended:
                    rest = text[stop:end]
                    end = MAX_QUERY_LENGTH + len(rest)
                    text[MAX_QUERY_LENGTH:end] = rest
        if state[kernel.ROW] == before:
            raise JudgedFileError(
                f"{path}: the file contains no documents; check that it is the right file and complete"
            )

    def finish(self) -> None:
        """Trim the arrays to the documents read."""
        rows, highest, fewest = (int(self._state[place]) for place in (kernel.ROW, kernel.HIGHEST, kernel.FEWEST))
        if highest == 0:
            raise JudgedFileError(f"{self._path}: no document has a feature; lines must look like '2 qid:1 1:0.5 2:3'")
        if self.expected is not None and highest < self.expected and fewest == highest:
            raise JudgedFileError(
                f"{self._path}: every document has {highest} features, but {self.expected} were expected; "
                f"use another file, or features={highest}"
            )
        width = self.expected or highest
        if width < self.features.shape[1]:
            self.features = self.features[:rows, :width].copy()
        self.features.resize((rows, width), refcheck=False)
        self.grades.resize(rows, refcheck=False)
        self.offsets = np.array([*self._starts, rows], np.int64)

    def _parse(self, stop: int) -> None:
        state = self._state
        while True:
            status = kernel.read_lines(
                self._text,
                stop,
                self.features,
                self.grades,
                self._seen,
                self._queries,
                self._unrounded,
                state,
                self.missing,
                MAX_QUERY_LENGTH,
            )
            self._name_queries()
            self._round_exactly()
            if status == kernel.DONE:
                return
            if status == kernel.WIDER:
                self._widen(int(state[kernel.WANTED]))
            elif status == kernel.FULL:
                self._lengthen()
            else:
                raise self._bad_line(status)

    def _name_queries(self) -> None:
        used = int(self._state[kernel.QUERIES])
        self._state[kernel.QUERIES] = 0
        for row, line, start, end in self._queries[:used].tolist():
            try:
                name = self._bytes[start:end].decode()
            except UnicodeDecodeError as error:
                text = _short(self._bytes[start:end].decode(errors="replace"))
                raise self._error(f"{text!r} is not valid UTF-8; save the file as UTF-8", line) from error
            if name in self._known:
                raise self._error(
                    f"qid:{name} has occurred before, with other queries in between, but the lines of a query must be "
                    "adjacent; sort the lines by query",
                    line,
                )
            self._known.add(name)
            self.query_ids.append(name)
            self._starts.append(row)

    def _round_exactly(self) -> None:
        used = int(self._state[kernel.UNROUNDED])
        self._state[kernel.UNROUNDED] = 0
        for row, column, line, start, end in self._unrounded[:used].tolist():
            text = self._bytes[start:end].decode()
            with np.errstate(over="ignore", under="ignore"):
                value = np.float32(float(text))
            if np.isinf(value):
                raise self._infinite(f"{column + 1}:{text}", line)
            self.features[row, column] = value

    def _widen(self, wanted: int) -> None:
        if self.expected is not None:
            raise self._error(
                f"feature {wanted} is above the expected number of features, {self.expected}; use another file, or "
                f"features={wanted}"
            )
        if wanted > WIDEST:
            raise self._error(
                f"feature {wanted} is above {WIDEST:,}, and every document stores all features; if the number is "
                f"right, set features={wanted} (in a spec data.features = {wanted})"
            )
        width = self.features.shape[1]
        # Reserve more the second time: in a sparse file, the highest index grows line by line.
        width = wanted if width == 0 else min(max(wanted, width + width // 4), WIDEST)
        rows = int(self._state[kernel.ROW])
        room = self._room(rows, width)
        wider = np.zeros((room, width), np.float32)
        wider[:rows, : self.features.shape[1]] = self.features[:rows]
        self.features = wider
        self.grades.resize(room, refcheck=False)
        self._seen = np.zeros(width + 1, np.int64)

    def _lengthen(self) -> None:
        if self._state[kernel.ROW] < len(self.grades):
            return
        # The operating system moves large arrays without a copy when they are resized in place.
        rows, width = self.features.shape
        room = self._room(rows, width)
        self.features.resize((room, width), refcheck=False)
        self.grades.resize(room, refcheck=False)

    def _room(self, rows: int, width: int) -> int:
        """Return the number of rows to allocate when `rows` are needed; checks the memory first."""
        size = 4 * max(width, 16)
        if self.expected is None and 4 * rows * width > SMALL + PER_BYTE * self._read:
            raise self._error(
                f"{rows:,} documents of {width:,} features would take {4 * rows * width / 1e9:.1f} GB, but the text so "
                f"far has only {self._read / 1e6:,.1f} MB; correct the feature index if it is wrong, or set the number "
                "of features: features=N (in a spec data.features = N)"
            )
        room = rows + max(rows // 8, min(rows, _GROWTH // size), (1 << 20) // size, 1)
        if self._free is not None and room * size > self._free:
            raise self._error(
                f"{rows:,} documents of {width:,} features need over {4 * rows * width / 1e9:.1f} GB, which exceeds "
                "the free memory; use a part of the file, or fewer features"
            )
        return room

    def _bad_line(self, status: int) -> JudgedFileError:
        state, text = self._state, self._bytes
        mark = int(state[kernel.MARK])
        whole = bytes(text[state[kernel.POSITION] : text.index(b"\n", mark)])
        words = bytes(text[mark : mark + 80]).split(b"\n")[0].split()
        word = words[0].decode(errors="replace") if words else ""
        if b"\0" in whole:
            return self._error(_REMEDIES[kernel.NUL])
        if status == kernel.INFINITE or (status == kernel.BAD_VALUE and _is_not_finite(word)):
            return self._infinite(word)
        return self._error(f"{_short(word)!r} {_REMEDIES[status]}")

    def _infinite(self, word: str, line: int | None = None) -> JudgedFileError:
        return self._error(
            f"{_short(word)!r} is not a finite float32; correct it, or, if this value marks a missing feature, name "
            "it: missing=...",
            line,
        )

    def _error(self, what: str, line: int | None = None) -> JudgedFileError:
        """An error in this line, or in the current one."""
        return JudgedFileError(f"{self._path}, line {self._state[kernel.LINE] if line is None else line}: {what}")


_REMEDIES = {
    kernel.BAD_GRADE: (
        f"is not a relevance label; start the line with an integer from 0 to {kernel.MAX_GRADE}, as in '2 qid:1 1:0.5'"
    ),
    kernel.BAD_QUERY: "must be a query id; write it after the relevance label, as in '2 qid:1 1:0.5'",
    kernel.LONG_QUERY: f"is a query id of more than {MAX_QUERY_LENGTH} bytes; use a shorter id",
    kernel.BAD_PAIR: "is not a feature; write index:value, as in '7:0.25', with an index of at least 1",
    kernel.BAD_INDEX: f"has an index outside 1 .. {kernel.MAX_INDEX:,}; number the features from 1",
    kernel.TWICE: "repeats a feature of this line; remove one of the two",
    kernel.BAD_VALUE: "has no number after the colon; write index:value, as in '7:0.25'",
    kernel.NUL: "contains a NUL byte, so the file is not text or is damaged; copy it again",
}


def free_memory() -> int | None:
    """Available memory in bytes; None if the system does not report it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def _fill(stream: BinaryIO, room: memoryview) -> int:
    """Read until the buffer is full or the file ends; return the number of bytes."""
    filled = 0
    while filled < len(room):
        got = cast(Any, stream).readinto(room[filled:])
        if not got:
            break
        filled += got
    return filled


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _is_not_finite(pair: str) -> bool:
    value = pair.partition(":")[2]
    if ".#" in value:  # the notation of Windows: 1.#INF, -1.#IND, 1.#QNAN
        return True
    try:
        return not np.isfinite(float(value))
    except ValueError:
        return False
