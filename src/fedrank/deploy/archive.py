"""Archives from untrusted sources: an uncompressed tar file of regular files, with a manifest at its end.

Only headers of one type are read, and their sizes are checked against the size of the archive. Links, devices,
compression and extensions of the format are refused. The caller decides which names are allowed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

from fedrank import __version__
from fedrank.files import opened, parse_json, private_parents, writing

MANIFEST = "backup.json"
MAX_FILE = 1 << 30  # bytes
MAX_MANIFEST = 64 << 20  # bytes
MAX_FILES = 200_000
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Contents:
    """The contents of an archive. Everything is checked except the bytes of the files."""

    kind: str
    made: str  # date and time
    files: Mapping[str, tuple[int, int, str]]  # name -> offset, size, SHA-256

    def extract(self, file: BinaryIO, folder: Path) -> None:
        """Write all files below a folder, readable only by its owner; raise an error if one is damaged."""
        for name, (at, size, expected) in self.files.items():
            file.seek(at)
            reader, rest = _Digesting(file), size
            private_parents(folder / name)
            with writing(folder / name, private=True) as target:
                while rest and (chunk := reader.read(min(rest, _CHUNK))):
                    target.write(chunk)
                    rest -= len(chunk)
            if rest or reader.digest.hexdigest() != expected:
                raise ValueError(
                    f"{name} in the backup is damaged; nothing was restored; use another copy of the backup"
                )


def write_archive(file: BinaryIO, folder: Path, names: Iterable[str], kind: str, made: str) -> int:
    """Write files of a folder in this order; return their total size in bytes."""
    listed: dict[str, dict[str, object]] = {}
    total = 0
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in names:
            with opened(folder / name) as source:
                size = os.fstat(source.fileno()).st_size  # a log may grow while it is copied: copy its present content
                if size > MAX_FILE:
                    raise ValueError(
                        f"{folder / name} has {size:,} bytes (at most {MAX_FILE:,}); move it out of the folder"
                    )
                reader = _Digesting(source)
                archive.addfile(_header(name, size), cast("IO[bytes]", reader))
            listed[name] = {"size": size, "sha256": reader.digest.hexdigest()}
            total += size
        if len(listed) > MAX_FILES:
            raise ValueError(
                f"{folder} has {len(listed):,} files (a backup holds at most {MAX_FILES:,}); remove old runs"
            )
        content = {"format": 1, "kind": kind, "made": made, "fedrank": __version__, "files": listed}
        text = (json.dumps(content, indent=1) + "\n").encode()
        archive.addfile(_header(MANIFEST, len(text)), io.BytesIO(text))
    return total


def read_archive(file: BinaryIO, path: Path, known: Callable[[str, str], bool]) -> Contents:
    """Read the manifest of an archive; `known` returns whether a kind of backup may contain a name."""
    with _naming(path):
        members = list(_members(file))
        names = [name for name, _, _ in members]
        if not members or names[-1] != MANIFEST or len(set(names)) < len(names):
            raise ValueError(f"its last file is not {MANIFEST}, or two files have the same name")
        _, at, size = members.pop()
        if size > MAX_MANIFEST:
            raise ValueError(f"its {MANIFEST} has {size:,} bytes (at most {MAX_MANIFEST:,})")
        file.seek(at)
        listed = parse_json(file.read(size))
        if not isinstance(listed, dict) or listed.get("format") != 1 or listed.get("kind") not in ("site", "home"):
            raise ValueError(f"its {MANIFEST} does not describe a backup of this version")
        kind, made, said = listed["kind"], str(listed.get("made"))[:40], listed.get("files")
        if not isinstance(said, dict) or set(said) != {name for name, _, _ in members} or not made.isprintable():
            raise ValueError(f"its {MANIFEST} does not list the files that it contains")
        files = {}
        for name, at, size in members:
            if not known(name, kind):
                raise ValueError(f"{name!r} cannot be part of a backup of a {kind}")
            row = said[name]
            if not isinstance(row, dict) or row.get("size") != size or not isinstance(row.get("sha256"), str):
                raise ValueError(f"{name!r} does not match its entry in {MANIFEST}")
            if above := {str(folder) for folder in PurePosixPath(name).parents} & set(said):
                raise ValueError(f"{above.pop()!r} is both a file and a folder")
            files[name] = at, size, row["sha256"]
        return Contents(kind, made, files)


class _Digesting:
    """Reads a file and computes the digest of the bytes read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        found = self._file.read(size)
        self.digest.update(found)
        return found


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o600
    return header


def _members(file: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of each file; entries that are not regular files are refused."""
    whole = os.fstat(file.fileno()).st_size
    count = 0
    while any(block := file.read(_BLOCK)):
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as problem:
            raise ValueError(f"{problem} at byte {file.tell() - len(block):,}") from None
        if header.type != tarfile.REGTYPE or header.linkname:
            raise ValueError(f"{header.name!r} is not a regular file")
        at, count = file.tell(), count + 1
        if not 0 <= header.size <= MAX_FILE or at + header.size > whole or count > MAX_FILES + 1:
            raise ValueError(
                f"{header.name!r} has {header.size:,} bytes, which is too large, or there are too many files"
            )
        yield header.name, at, header.size
        file.seek(at + -(-header.size // _BLOCK) * _BLOCK)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as problem:
        raise ValueError(f"{path} cannot be used as a backup: {problem}; nothing was restored") from None
