"""Files that one writes and another reads where anybody may write: signed, whole, and of known size.

    magic, signature, bytes of the address, bytes of the content | address | content

The address says what a file is, from whom, to whom, and under which name, and is signed with the content: a file that
is copied to another place fits nowhere. A reader knows the address it expects and the key of the sender. Whatever does
not fit is ignored, with the reason.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from fedrank.deploy.identity import SIGNATURE, IdentityKey, verify
from fedrank.files import UNFINISHED, opened, parse_json, write_atomic

MAGIC = b"fedrank-signed-1"
_HEAD = struct.Struct(f"<{len(MAGIC)}s{SIGNATURE}sIQ")
MAX_ADDRESS = 4096  # bytes
MAX_FILES = 10_000  # of a folder that are looked at: whoever may write there may flood it

NO_FILE = "no plain file"  # a link, a folder, a pipe
TOO_LARGE = "too large"
UNWHOLE = "not whole: still being copied, or cut short"
NOT_OURS = "no message of ours"
NOT_SIGNED = "not signed by its sender"
ELSEWHERE = "belongs elsewhere"  # another federation, run, round, sender: a replay, or a misplaced copy
COPY = "a conflict copy"
FOREIGN_NAME = "a foreign name"
TOO_MANY = f"more than {MAX_FILES:,} files in one folder"


class Unusable(ValueError):
    """A file that is ignored, and why."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason


@dataclass(frozen=True)
class FileAddress:
    """What a signed file is, and where it belongs."""

    federation: str
    kind: str
    sender: str
    receiver: str
    name: str

    def pack(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


class Ignoring:
    """How many files were ignored, by reason; each is counted once, however often one looks."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int], str] = {}  # path, size, time of the last change

    def count(self, path: Path, reason: str) -> None:
        try:
            found = path.lstat()
            key = (str(path), found.st_size, found.st_mtime_ns)
        except OSError:
            key = (str(path), -1, -1)
        if len(self._seen) < MAX_FILES:
            self._seen[key] = reason

    @property
    def reasons(self) -> dict[str, int]:
        return dict(sorted(Counter(self._seen.values()).items()))


def write_signed(path: Path, key: IdentityKey, address: FileAddress, content: bytes) -> None:
    """Write a file whole: whoever looks finds all of it or nothing."""
    packed = address.pack()
    lengths = struct.pack("<IQ", len(packed), len(content))
    signature = key.sign(MAGIC + lengths + packed + content)
    write_atomic(path, b"".join((MAGIC, signature, lengths, packed, content)))


def read_signed(path: Path, address: FileAddress, public: str | None, largest: int) -> bytes:
    """The content of a file that fits; FileNotFoundError where there is none. Without a key, the content is the key."""
    if path.is_symlink():
        raise Unusable(NO_FILE, "a link")
    try:
        file = opened(path)
    except FileNotFoundError:
        raise
    except (ValueError, OSError) as problem:
        raise Unusable(NO_FILE, str(problem)) from None
    with file:
        most = _HEAD.size + MAX_ADDRESS + largest
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise Unusable(TOO_LARGE, f"{size:,} bytes")
        content = file.read(most)  # no more than that, should it grow meanwhile
    if not any(content[: _HEAD.size]) or (len(content) < _HEAD.size and content.startswith(MAGIC[: len(content)])):
        raise Unusable(UNWHOLE, f"{len(content)} bytes")
    if len(content) < _HEAD.size or not content.startswith(MAGIC):
        raise Unusable(NOT_OURS)
    _, signature, of_address, of_content = _HEAD.unpack_from(content)
    if of_address > MAX_ADDRESS or of_content > largest:
        raise Unusable(TOO_LARGE, f"it promises {of_address + of_content:,} bytes")
    end = _HEAD.size + of_address + of_content
    if len(content) < end:
        raise Unusable(UNWHOLE, f"{len(content):,} of {end:,} bytes")
    if len(content) > end:
        raise Unusable(NOT_OURS, f"{len(content) - end:,} bytes follow its end")
    found = content[_HEAD.size : _HEAD.size + of_address]
    body = content[_HEAD.size + of_address :]
    by = body.decode("ascii", "replace") if public is None else public
    if not verify(by, MAGIC + content[len(MAGIC) + SIGNATURE :], signature):
        raise Unusable(NOT_SIGNED, address.sender)
    if found != address.pack():
        raise Unusable(ELSEWHERE, _difference(found, address))
    return body


def looked_at(folder: Path, ignoring: Ignoring) -> list[Path]:
    """Files of a folder in order, without those that somebody is writing; too many are not looked at."""
    try:
        found = list(islice(folder.iterdir(), MAX_FILES + 1))
    except FileNotFoundError:
        return []
    if len(found) > MAX_FILES:
        ignoring.count(folder, TOO_MANY)
    return sorted(path for path in found[:MAX_FILES] if not path.name.endswith(UNFINISHED))


def own_folder(shared: Path, *names: str) -> Path:
    """A folder below the shared one, made if need be. A link there could lead to anything of ours, and is refused."""
    folder = shared
    for name in names:
        folder = folder / name
        if folder.is_symlink():
            raise ValueError(f"{folder} is a link, and what is written there could land anywhere; remove it")
        folder.mkdir(exist_ok=True)
    return folder


def _difference(found: bytes, expected: FileAddress) -> str:
    """In which field the address of a file that its sender signed is another one."""
    try:
        values = parse_json(found)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return "no address"
    for field, wanted in asdict(expected).items():
        if values.get(field) != wanted:
            return f"{field} {str(values.get(field))[:100]!r} instead of {wanted!r}"
    return "written otherwise"
