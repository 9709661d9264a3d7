"""Backups of a coordinator's home or a site's folder, and their restoration.

A backup contains what cannot be created again: the CA, keys, the member list, ledgers and outboxes. It may be made
while a site is running: sent messages are listed before the ledgers are read, so a copy never omits a charge.

A restored site has no record of what it sent after the backup, although its people were charged for it. The file
`restored.json` marks this state. Until the coordinator has reported which rounds are complete, the site answers no
request of a run. Rounds 1 to n + 1 are charged, n being the last completed round. Completed rounds are not answered
again; round n + 1, for which a message may have been sent, is charged again when it is answered. In asynchronous runs
the completed rounds are unknown, and the site waits for another run. The newest head of the journal that a witness
holds (see `heads`) names the last round that the site answered, so a coordinator cannot report too low a round.

If the folder already exists, no file in it is replaced: missing files are restored. Of two ledgers, the one with more
charges stays; if each has charges that the other lacks, both are combined.

Archives are untrusted and may contain only known names (see `archive`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fedrank.deploy.archive import Contents, read_archive, write_archive
from fedrank.deploy.identity import IDENTITY
from fedrank.deploy.outbox import OUTBOX
from fedrank.files import (
    is_locked,
    locked,
    now,
    opened,
    parse_json,
    private_folder,
    private_parents,
    sync,
    write_atomic,
    writing,
)
from fedrank.privacy.ledger import CHARGED, LedgerError
from fedrank.privacy.ledger_copy import LedgerCopy
from fedrank.privacy.population import PEOPLE

RESTORED = "restored.json"
JOURNAL, HEADS = "journal.log", "heads.txt"  # of a site; heads that a site or a coordinator has seen (see `heads`)
SKETCHES = "silo"  # of the site's own documents, with a ledger of another format: charges.log
LOCKS = ("lock", "start.lock", "run.lock", "folder.lock")  # of the processes that work in a folder
_SEGMENT = re.compile(r"[A-Za-z0-9_@%+-][A-Za-z0-9_.@%+-]{0,127}")
_DEPTH = 9  # maximum number of folders above a file
# Files at the top level, and folders with their contents. Of a kit: what was created for it, without runtime files.
_FILES = {
    "site": {
        "site.toml",
        IDENTITY,
        "seed",
        "partners.json",
        "folder.json",
        "transport.json",
        "invitation.json",
        "left.jsonl",  # of earlier versions
        RESTORED,
        JOURNAL,
        HEADS,
    },
    "home": {
        "federation.toml",
        "federation.json",
        "transport.json",
        IDENTITY,
        "sites.json",
        "records.jsonl",
        "active.json",
        "profile.yml",
        HEADS,
    },
}
_FOLDERS = {
    "site": {"people", "deals", OUTBOX, SKETCHES, "models", "accepted", "refused", "proposed", "request"},
    "home": {"ca", "people", "invitations"},
}
_KITS = {"site": {"kit"}, "home": {"kit", "admin"}}
_KIT_PARTS = {"startup", "local", "disabled_clients.json"}
_MARKS = {"site": ("site.toml", "folder.json"), "home": ("federation.toml", "federation.json")}


@dataclass(frozen=True)
class Backup:
    """Description of a backup."""

    path: Path
    kind: str  # "site" or "home"
    made: str  # date and time
    files: int
    bytes: int
    working: bool  # whether another process was working in the folder


@dataclass(frozen=True)
class RestoreResult:
    """Result of restoring a backup."""

    kind: str
    made: str  # when the backup was made
    restored: tuple[str, ...]  # restored files
    kept: tuple[str, ...]  # existing files that differ from the backup and stayed unchanged
    ledgers: tuple[str, ...]  # how differing ledgers were combined, one line each


@dataclass(frozen=True)
class RestoreMark:
    """Marks a folder that was restored from a backup."""

    at: str
    backup: str  # when the backup was made
    complete: bool  # whether restoring was completed
    completed_rounds: Mapping[str, int] = field(default_factory=dict)  # run -> last completed round

    @classmethod
    def read(cls, folder: Path) -> RestoreMark | None:
        """Read the mark of a folder; None if it was never restored."""
        path = Path(folder) / RESTORED
        if not path.exists():
            return None
        try:
            found = parse_json(path.read_bytes())
            completed_rounds = {str(run): int(round) for run, round in found["told"].items()}
            return cls(str(found["at"]), str(found["backup"]), bool(found["complete"]), completed_rounds)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise LedgerError(
                f"{path} cannot be read ({problem!r}), so what was sent before the restoration is unknown; "
                "restore the backup again"
            ) from None

    def write(self, folder: Path) -> None:
        content = {
            "format": 1,
            "at": self.at,
            "backup": self.backup,
            "complete": self.complete,
            "told": dict(self.completed_rounds),
        }
        write_atomic(Path(folder) / RESTORED, json.dumps(content, indent=1) + "\n", private=True)

    def objection(self, run: str, round: int, synchronous: bool = True) -> str | None:
        """Return why a round that is missing in the outbox must not be answered; None if it may be."""
        if not self.complete:
            return "restoring a backup was interrupted; restore it again, then continue"
        if run not in self.completed_rounds:
            return (
                f"this site was restored from a backup of {self.backup} and has no record of what it sent since then; "
                "it answers after the coordinator has sent hello with the number of completed rounds"
            )
        if not synchronous:
            return (
                f"this site was restored from a backup of {self.backup}, and in an asynchronous run it cannot "
                "determine what it sent since then; it participates in the next run"
            )
        if round <= self.completed_rounds[run]:
            return (
                f"this site was restored from a backup of {self.backup} and may have answered round {round} before; "
                f"it participates again from round {self.completed_rounds[run] + 1}"  # prose: ok
            )
        return None

    def repeats(self, run: str, round: int) -> bool:
        """Whether a round may have been answered before; it is charged again if it is answered now."""
        return round == self.completed_rounds.get(run, -1) + 1


def record_completed_round(folder: Path, run: str, round: int) -> RestoreMark | None:
    """Record the last completed round for a restored site; the recorded number never decreases.

    Rounds up to the next one count as charged: the caller charges those that are missing in the ledger.
    """
    mark = RestoreMark.read(folder)
    if mark is None or mark.completed_rounds.get(run, -1) >= round:
        return mark
    updated = RestoreMark(mark.at, mark.backup, mark.complete, {**mark.completed_rounds, run: round})
    updated.write(folder)
    return updated


def backup(folder: str | Path, out: str | Path) -> Backup:
    """Write a backup of a coordinator's home or a site's folder, readable only by its owner."""
    folder, out = Path(folder), Path(out)
    kind = kind_of(folder)
    if os.path.lexists(out):
        raise FileExistsError(f"{out} already exists; choose another file name")
    if (mark := RestoreMark.read(folder)) is not None and not mark.complete:
        raise ValueError(f"{folder} was restored only partially, so a backup would be incomplete; restore it again")
    made = now()
    working = any(is_locked(folder / name) for name in LOCKS)
    for last_try in (False, False, True):
        try:
            with writing(out, private=True) as file:
                names = sorted(_names(folder, kind))  # sent messages, before any ledger is read
                size = write_archive(file, folder, names, kind, made)
        except FileNotFoundError:  # another process moved a ledger or deleted a plan
            if last_try:
                raise
            continue
        break
    return Backup(out, kind, made, len(names), size, working)


def kind_of(folder: Path) -> str:
    """Return the type of a folder: "home" of a coordinator, or folder of a "site"."""
    found = [kind for kind, marks in _MARKS.items() if any((folder / mark).is_file() for mark in marks)]
    if len(found) != 1:
        what = "neither" if not found else "both"
        raise ValueError(
            f"{folder} looks like {what} of a coordinator's home (federation.toml) and a site's folder (site.toml); "
            "give a folder that `fedrank deploy init` or `fedrank deploy join` created"
        )
    return found[0]


def restore(archive: str | Path, folder: str | Path) -> RestoreResult:
    """Restore a backup into a folder, which may already exist: a ledger in it never loses a charge."""
    folder = Path(folder)
    with opened(archive) as file:
        contents = read_archive(file, Path(archive), is_known)
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise ValueError(f"{folder} is not a folder; give a folder or a new path")
        there = folder.exists() and any(path.name not in LOCKS for path in folder.iterdir())
        if there and not (folder / RESTORED).exists() and (known := kind_of(folder)) != contents.kind:
            raise ValueError(f"{folder} is the folder of a {known}, but {archive} is a backup of a {contents.kind}")
        private_folder(folder)
        staging = folder / ".restoring"
        with ExitStack() as held:
            for name in LOCKS:
                held.enter_context(locked(folder / name, str(folder), leave=False))
            if staging.is_symlink():
                raise ValueError(f"{staging} is a symbolic link and could redirect the restored files; remove it")
            shutil.rmtree(staging, ignore_errors=True)
            try:
                contents.extract(file, private_folder(staging))
                return _restore_files(contents, staging, folder, Path(archive))
            finally:
                shutil.rmtree(staging, ignore_errors=True)


def _restore_files(contents: Contents, staging: Path, folder: Path, archive: Path) -> RestoreResult:
    mine, its = folder / IDENTITY, staging / IDENTITY
    if mine.exists() and its.exists() and mine.read_bytes() != its.read_bytes():
        raise ValueError(
            f"{archive} has a different identity than {folder}: it belongs to another site, or the site has joined "
            "again since then; restore into another folder"
        )
    ledgers = sorted({str(PurePosixPath(name).parent) for name in contents.files if _is_ledger(name)})
    if damaged := [name for name in ledgers if not LedgerCopy(staging / name).is_whole()]:
        raise ValueError(f"{damaged[0]} in {archive} is damaged; nothing was restored; use an older backup")
    # Write the mark first: from now on no request is answered. Rounds reported after an earlier restore no longer
    # count.
    RestoreMark(now(), contents.made, False).write(folder)
    restored, kept, lines = [], [], []
    for name in sorted(name for name in contents.files if name != RESTORED and not _is_ledger(name)):
        if _restore_file(staging / name, folder / name, name):
            restored.append(name)
        elif (staging / name).read_bytes() != (folder / name).read_bytes():
            kept.append(name)
    for name in ledgers:
        if line := LedgerCopy(staging / name).restore_into(folder / name):
            lines.append(f"{name}: {line}")
    RestoreMark(now(), contents.made, True).write(folder)
    return RestoreResult(contents.kind, contents.made, tuple(restored), tuple(kept), tuple(lines))


def _restore_file(source: Path, target: Path, name: str) -> bool:
    """Restore a file if it is missing, damaged in the outbox, or contains fewer charges than the copy."""
    if os.path.lexists(target):
        damaged = name.startswith(f"{OUTBOX}/") and target.is_file() and not _sound(target.read_bytes())
        if not (damaged and _sound(source.read_bytes())) and not _says_more(source, target, name):
            return False
    private_parents(target)
    os.replace(source, target)
    sync(target.parent)
    return True


def _says_more(source: Path, target: Path, name: str) -> bool:
    """Whether the copy of the journal, or of the sketches' charges, extends the existing file."""
    sketches = name.startswith(f"{SKETCHES}/") and target.name == CHARGED
    if not (sketches or name == JOURNAL) or not target.is_file():
        return False
    mine, its = target.read_bytes(), source.read_bytes()
    return len(its) > len(mine) and its.startswith(mine)


def _sound(message: bytes) -> bool:
    """Whether the checksum of an outbox file is correct (see `fedrank.wire`)."""
    return len(message) > 16 and hashlib.blake2b(message[:-16], digest_size=16).digest() == message[-16:]


def is_known(name: str, kind: str) -> bool:
    """Whether a backup of this kind may contain a file with this name."""
    parts = name.split("/")
    if len(parts) > _DEPTH or not all(_SEGMENT.fullmatch(part) for part in parts):
        return False
    if parts[-1].endswith((".part", ".lock", ".new")) or parts[-1] == "lock":
        return False
    if len(parts) == 1:
        return name in _FILES[kind]
    if kind == "home" and parts[0] == "runs":
        return _is_ledger(name) or parts[-1] == PEOPLE
    if parts[0] in _KITS[kind]:
        return parts[1] in _KIT_PARTS
    return parts[0] in _FOLDERS[kind]


def _is_ledger(name: str) -> bool:
    return not name.startswith(f"{SKETCHES}/") and LedgerCopy.holds(PurePosixPath(name))


def _names(folder: Path, kind: str) -> Iterator[str]:
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and not (Path(here) / name).is_symlink()]
        for file in files:
            path = Path(here) / file
            name = path.relative_to(folder).as_posix()
            if is_known(name, kind) and path.is_file() and not path.is_symlink():
                yield name
