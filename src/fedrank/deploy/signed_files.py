"""Signed files in a folder where any party may write: complete, authenticated, and of limited size.

    magic, signature, bytes of the address, bytes of the content | address | content

The address names type, sender, recipient and file name, and is signed with the content: a file copied to another place
is not valid there. A reader knows the expected address and the sender's key. Other files are ignored with a reason.
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
MAX_FILES = 10_000  # maximum number of files read in a folder, which others could flood

NO_FILE = "not a regular file"  # a link, a folder, a pipe
TOO_LARGE = "too large"
UNWHOLE = "incomplete: still being copied, or truncated"
NOT_OURS = "not a message of fedrank"
NOT_SIGNED = "not signed by its sender"
ELSEWHERE = "has another address"  # of another federation, run, round or sender: a replay, or a misplaced copy
COPY = "a conflict copy"
FOREIGN_NAME = "an unknown name"
TOO_MANY = f"more than {MAX_FILES:,} files in one folder"


class Unusable(ValueError):
    """A file that is ignored, with the reason."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason


@dataclass(frozen=True)
class FileAddress:
    """The type of a signed file, and where it belongs."""

    federation: str
    kind: str
    sender: str
    receiver: str
    name: str

    def pack(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


class Ignoring:
    """Number of ignored files by reason; each file is counted once."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int], str] = {}  # path, size, modification time

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
    """Write a file atomically: readers find it complete or not at all."""
    packed = address.pack()
    lengths = struct.pack("<IQ", len(packed), len(content))
    signature = key.sign(MAGIC + lengths + packed + content)
    write_atomic(path, b"".join((MAGIC, signature, lengths, packed, content)))


def read_signed(path: Path, address: FileAddress, public: str | None, largest: int) -> bytes:
    """Read a valid file; FileNotFoundError if there is none. Without a key, the content is the key."""
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
        raise Unusable(TOO_LARGE, f"it declares {of_address + of_content:,} bytes")
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
    """Files of a folder in order, without incomplete ones; further files of a folder with too many are ignored."""
    try:
        found = list(islice(folder.iterdir(), MAX_FILES + 1))
    except FileNotFoundError:
        return []
    if len(found) > MAX_FILES:
        ignoring.count(folder, TOO_MANY)
    return sorted(path for path in found[:MAX_FILES] if not path.name.endswith(UNFINISHED))


def own_folder(shared: Path, *names: str) -> Path:
    """A folder below the shared one, created if necessary. A symbolic link could lead anywhere and is refused."""
    folder = shared
    for name in names:
        folder = folder / name
        if folder.is_symlink():
            raise ValueError(f"{folder} is a symbolic link and could redirect what is written there; remove it")
        folder.mkdir(exist_ok=True)
    return folder


def _difference(found: bytes, expected: FileAddress) -> str:
    """The field in which the address of a signed file differs."""
    try:
        values = parse_json(found)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return "no valid address"
    for field, wanted in asdict(expected).items():
        if values.get(field) != wanted:
            return f"{field} {str(values.get(field))[:100]!r} instead of {wanted!r}"
    return "encoded differently"
