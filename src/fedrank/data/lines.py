"""Read lines of plain and compressed files with bounded memory per line."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from fedrank.files import opened

MAX_LINE_LENGTH = 16 << 20  # bytes; enough for ten thousand hits, the most that an engine returns
KINDS = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "tsv", ".txt": "tsv"}
PACKED = (".gz", ".xz")


def file_kind(path: Path) -> str:
    """Return the format of a file by its name: "json", "csv" or "tsv"."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in PACKED]
    if not suffixes or suffixes[-1] not in KINDS:
        raise ValueError(
            f"{path}: unknown file format; the name must end in .jsonl, .csv, .tsv or .txt, optionally followed by "
            ".gz or .xz"
        )
    return KINDS[suffixes[-1]]


def bounded_lines(path: Path, longest: int = MAX_LINE_LENGTH) -> Iterator[tuple[int, bytes | None]]:
    """Yield line numbers from 1, and lines without line ends; None for a line longer than `longest` bytes.

    The file may be plain, `.gz` or `.xz`. Empty lines are skipped.
    """
    with unpacked_file(path) as file:
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            if len(line) > longest and not line.endswith(b"\n"):
                while (rest := file.readline(longest)) and not rest.endswith(b"\n"):
                    pass
                yield number, None
            elif line.strip():
                yield number, line.rstrip(b"\r\n")


@contextlib.contextmanager
def unpacked_file(path: Path, error: type[ValueError] = ValueError) -> Iterator[BinaryIO]:
    """Open a plain, `.gz` or `.xz` file for reading; a damaged archive raises `error`."""
    with opened(path) as file:
        try:
            with _unpacked(file, path.suffix) as stream:
                yield stream
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as problem:
            raise error(
                f"{path}: the archive is damaged or truncated ({problem}); copy or download it again"
            ) from problem


def _unpacked(file: BinaryIO, suffix: str) -> BinaryIO:
    """Detect compression by the first bytes as well, since archives are often renamed."""
    start = file.read(6)
    file.seek(0)
    if suffix == ".gz" or start.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if suffix == ".xz" or start == b"\xfd7zXZ\x00":
        return cast(BinaryIO, io.BufferedReader(_Xz(file), 1 << 16))
    return file


class _Xz(io.RawIOBase):
    """The contents of an .xz file; unlike `lzma.LZMAFile`, it reports trailing garbage as an error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._stream, self._rest, self._ended = file, lzma.LZMADecompressor(lzma.FORMAT_XZ), b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        while not self._ended:
            if self._stream.needs_input and not self._rest:
                self._rest = self._file.read(1 << 16)
                if not self._rest:
                    raise EOFError("it ends within a stream")
            got = self._stream.decompress(self._rest, len(room))
            self._rest = b""
            if self._stream.eof:
                self._next()
            if got:
                room[: len(got)] = got
                return len(got)
        return 0

    def _next(self) -> None:
        """After a stream: zero padding, then another stream or the end of the file."""
        rest = self._stream.unused_data
        while not rest.strip(b"\0"):
            rest = self._file.read(1 << 16)
            if not rest:
                self._ended = True
                return
        self._rest = rest.lstrip(b"\0")
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
