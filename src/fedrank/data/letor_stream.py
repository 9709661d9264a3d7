"""Stream LETOR files that are larger than memory: blocks of complete queries, from any byte where a query begins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.values import parse_whole_number
from fedrank.files import opened
from fedrank.types import Features

BLOCK = 8 << 20  # bytes of text in memory at a time
_ROWS = 16_384  # documents parsed at a time
_MAX_QID_LENGTH = 20  # bytes


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
    """Yield blocks of complete queries, from a byte where a query begins."""
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
