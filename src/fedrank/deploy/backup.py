"""Backups of a coordinator's home and of a site's folder, and how they come back.

A backup holds what nobody could make again: the CA, keys, who belongs to the federation, ledgers, outboxes. It may be
made while a site works: what was sent is listed before ledgers are read, so that a copy never says too little.

A restored site has forgotten what it sent since the backup, and its people have paid for it. `restored.json` says so.
Until the coordinator has told the site which rounds are over, the site answers nothing of a run. All rounds up to the
next one then count as charged; those that are over are not answered anew, and the next one, of which something may have
left, is charged once more when it is. Out of step nobody can tell, and the site waits for another run. (A coordinator
that says too little gets a second noise for a round that it has seen. Only a copy made after the last round protects
from that.)

Where a folder is there already, nothing in it is replaced: what is missing comes back, and of two ledgers the one that
says more stays; where each says something that the other does not, both count.

An archive may come from anybody, and holds known names only (`archive`).
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
from fedrank.deploy.sent_log import LEFT
from fedrank.files import (
    is_locked,
    locked,
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
from fedrank.privacy.population import PEOPLE, now

RESTORED = "restored.json"
SKETCHES = "silo"  # of own documents, with a ledger of another kind: charges.log
LOCKS = ("lock", "start.lock", "run.lock", "folder.lock")  # of whoever works in a folder
_SEGMENT = re.compile(r"[A-Za-z0-9_@%+-][A-Za-z0-9_.@%+-]{0,127}")
_DEPTH = 9  # folders above a file
# Files at the top, and folders with all that is in them. Of a kit, what was made for it, not what its engine leaves.
_FILES = {
    "site": {
        "site.toml",
        IDENTITY,
        "seed",
        "partners.json",
        "folder.json",
        "transport.json",
        "invitation.json",
        LEFT,
        RESTORED,
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
    },
}
_FOLDERS = {
    "site": {"people", OUTBOX, SKETCHES, "models", "accepted", "refused", "proposed", "request"},
    "home": {"ca", "people", "invitations"},
}
_KITS = {"site": {"kit"}, "home": {"kit", "admin"}}
_KIT_PARTS = {"startup", "local", "disabled_clients.json"}
_MARKS = {"site": ("site.toml", "folder.json"), "home": ("federation.toml", "federation.json")}


@dataclass(frozen=True)
class Backup:
    """What a backup holds."""

    path: Path
    kind: str  # of a "site" or a "home"
    made: str  # date and time
    files: int
    bytes: int
    working: bool  # whether somebody worked in the folder meanwhile


@dataclass(frozen=True)
class Restoration:
    """What became of a backup that was restored."""

    kind: str
    made: str  # when the backup was
    brought: tuple[str, ...]  # files that came back
    kept: tuple[str, ...]  # files that were there, are other ones, and stayed
    ledgers: tuple[str, ...]  # what was done with ledgers that differed, in a line each


@dataclass(frozen=True)
class Restored:
    """The mark of a folder that came back from a backup."""

    at: str
    backup: str  # when the backup was made
    complete: bool  # whether restoring had ended
    told: Mapping[str, int] = field(default_factory=dict)  # run -> the last round that is over

    @classmethod
    def read(cls, folder: Path) -> Restored | None:
        """The mark of a folder; None where it was never restored."""
        path = Path(folder) / RESTORED
        if not path.exists():
            return None
        try:
            found = parse_json(path.read_bytes())
            told = {str(run): int(round) for run, round in found["told"].items()}
            return cls(str(found["at"]), str(found["backup"]), bool(found["complete"]), told)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise LedgerError(
                f"{path} cannot be read ({problem!r}), so that nobody knows what was sent before it was restored; "
                "restore the backup again"
            ) from None

    def write(self, folder: Path) -> None:
        content = {
            "format": 1,
            "at": self.at,
            "backup": self.backup,
            "complete": self.complete,
            "told": dict(self.told),
        }
        write_atomic(Path(folder) / RESTORED, json.dumps(content, indent=1) + "\n", private=True)

    def objection(self, run: str, round: int, in_step: bool = True) -> str | None:
        """Why a round of which the outbox holds nothing must not be answered; None where it may."""
        if not self.complete:
            return "a backup was not restored to its end; restore it again, then go on"
        if run not in self.told:
            return (
                f"this site was restored from a backup of {self.backup} and does not remember what it sent since; it "
                "answers when the coordinator has said hello, and which rounds are over"
            )
        if not in_step:
            return (
                f"this site was restored from a backup of {self.backup}, and out of step nobody can tell what it sent "
                "since; it takes part in another run"
            )
        if round <= self.told[run]:
            return (
                f"this site was restored from a backup of {self.backup}, and may have answered round {round} before; "
                f"it takes part again from round {self.told[run] + 1} on"
            )
        return None

    def repeats(self, run: str, round: int) -> bool:
        """Whether a round may have been answered before, and is charged once more if it is answered now."""
        return round == self.told.get(run, -1) + 1


def hear_last_round(folder: Path, run: str, round: int) -> Restored | None:
    """Note for a restored site which round was the last that is over; what was heard before is never lowered.

    Rounds up to the next one count as charged: whoever calls this charges those that the ledger does not hold.
    """
    mark = Restored.read(folder)
    if mark is None or mark.told.get(run, -1) >= round:
        return mark
    heard = Restored(mark.at, mark.backup, mark.complete, {**mark.told, run: round})
    heard.write(folder)
    return heard


def backup(folder: str | Path, out: str | Path) -> Backup:
    """Write a backup of a coordinator's home or a site's folder, for its owner's eyes only."""
    folder, out = Path(folder), Path(out)
    kind = kind_of(folder)
    if os.path.lexists(out):
        raise FileExistsError(f"{out} is there already, and a backup replaces no other; choose another name")
    if (mark := Restored.read(folder)) is not None and not mark.complete:
        raise ValueError(
            f"{folder} was not restored to its end, and a copy of it would lack something; restore it again"
        )
    made = now()
    working = any(is_locked(folder / name) for name in LOCKS)
    for last_try in (False, False, True):
        try:
            with writing(out, private=True) as file:
                names = sorted(_names(folder, kind))  # what was sent, before any ledger is read
                size = write_archive(file, folder, names, kind, made)
        except FileNotFoundError:  # somebody at work set a ledger aside, or dropped a plan
            if last_try:
                raise
            continue
        break
    return Backup(out, kind, made, len(names), size, working)


def kind_of(folder: Path) -> str:
    """What a folder is: a coordinator's "home", or the folder of a "site"."""
    found = [kind for kind, marks in _MARKS.items() if any((folder / mark).is_file() for mark in marks)]
    if len(found) != 1:
        what = "neither" if not found else "both"
        raise ValueError(
            f"{folder} looks like {what} of a coordinator's home (federation.toml) and a site's folder (site.toml); "
            "give one of those that `fedrank deploy` made"
        )
    return found[0]


def restore(archive: str | Path, folder: str | Path) -> Restoration:
    """Bring a backup back into a folder, which may be there: no ledger in it ever says less than before."""
    folder = Path(folder)
    with opened(archive) as file:
        contents = read_archive(file, Path(archive), is_known)
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise ValueError(f"{folder} is no folder; restore into a folder, or where there is nothing")
        there = folder.exists() and any(path.name not in LOCKS for path in folder.iterdir())
        if there and not (folder / RESTORED).exists() and (known := kind_of(folder)) != contents.kind:
            raise ValueError(f"{folder} is that of a {known}, and {archive} was made of a {contents.kind}")
        private_folder(folder)
        staging = folder / ".restoring"
        with ExitStack() as held:
            for name in LOCKS:
                held.enter_context(locked(folder / name, str(folder), leave=False))
            if staging.is_symlink():
                raise ValueError(f"{staging} is a link, and what is written there could land anywhere; remove it")
            shutil.rmtree(staging, ignore_errors=True)
            try:
                contents.extract(file, private_folder(staging))
                return _bring_back(contents, staging, folder, Path(archive))
            finally:
                shutil.rmtree(staging, ignore_errors=True)


def _bring_back(contents: Contents, staging: Path, folder: Path, archive: Path) -> Restoration:
    mine, its = folder / IDENTITY, staging / IDENTITY
    if mine.exists() and its.exists() and mine.read_bytes() != its.read_bytes():
        raise ValueError(
            f"{archive} has another identity than {folder}: it is somebody else's backup, or that of a site that "
            "joined anew since; restore into another folder"
        )
    ledgers = sorted({str(PurePosixPath(name).parent) for name in contents.files if _is_ledger(name)})
    if damaged := [name for name in ledgers if not LedgerCopy(staging / name).is_whole()]:
        raise ValueError(f"{damaged[0]} in {archive} is no whole ledger; nothing was restored; use an older backup")
    # First: nothing is answered from now on. What was heard after an earlier restore says nothing of rounds since then.
    Restored(now(), contents.made, False).write(folder)
    brought, kept, lines = [], [], []
    for name in sorted(name for name in contents.files if name != RESTORED and not _is_ledger(name)):
        if _take(staging / name, folder / name, name):
            brought.append(name)
        elif (staging / name).read_bytes() != (folder / name).read_bytes():
            kept.append(name)
    for name in ledgers:
        if line := LedgerCopy(staging / name).bring_back(folder / name):
            lines.append(f"{name}: {line}")
    Restored(now(), contents.made, True).write(folder)
    return Restoration(contents.kind, contents.made, tuple(brought), tuple(kept), tuple(lines))


def _take(source: Path, target: Path, name: str) -> bool:
    """Put a file where there is none; where what a site sent is damaged, and the copy is not; or where it says less."""
    if os.path.lexists(target):
        damaged = name.startswith(f"{OUTBOX}/") and target.is_file() and not _sound(target.read_bytes())
        if not (damaged and _sound(source.read_bytes())) and not _says_more(source, target, name):
            return False
    private_parents(target)
    os.replace(source, target)
    sync(target.parent)
    return True


def _says_more(source: Path, target: Path, name: str) -> bool:
    """Whether a copy of what sketches were charged goes on where the file ends."""
    if not name.startswith(f"{SKETCHES}/") or target.name != CHARGED or not target.is_file():
        return False
    mine, its = target.read_bytes(), source.read_bytes()
    return len(its) > len(mine) and its.startswith(mine)


def _sound(message: bytes) -> bool:
    """Whether the checksum of a file of an outbox fits (see `fedrank.wire`)."""
    return len(message) > 16 and hashlib.blake2b(message[:-16], digest_size=16).digest() == message[-16:]


# Names


def is_known(name: str, kind: str) -> bool:
    """Whether a backup of this kind may hold a file of this name."""
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
