"""The journal of a site and its signed heads, which reveal a deleted, truncated or restored copy of the site.

    HOME/journal.log            one line per message or charge: entry, hash of the chain, signature of the head
    SECOND PLACE/KEY.heads      the same lines, outside the home; an officer may copy this file anywhere

An entry is on disk in both files after its message and charge, and before the message is sent. The head (counter, hash)
of the last entry is part of every answer. The coordinator stores the newest head of each site and adds the heads of all
sites to every request, so sites are witnesses for each other. A site that meets a newer or different head of itself
than its own refuses all requests: its folder is an old copy, and an answer could repeat a round with fresh noise.

A coordinator could withhold heads. So every answer also contains a challenge, which is new after every start of the
site, and the other sites sign it together with the newest head of this site that they hold (`Statement`). A site sends
nothing new before another site has signed, after the start, a head that is at most `MAX_LAG` entries behind its own.

A folder restored with `fedrank deploy restore` continues from the newest head instead: a round before the last one in
that head is never answered again, and as many charges as entries are missing are made again.

Heads travel behind the message (see `join` and `split`), so a repeated request or answer keeps its bytes and digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fedrank.deploy.backup import JOURNAL, SKETCHES, RestoreMark, record_completed_round
from fedrank.deploy.identity import IDENTITY, IdentityKey, read_identity, verify
from fedrank.deploy.outbox import OUTBOX, Outbox, Sent
from fedrank.deploy.protocol import NOT_CONFIRMED
from fedrank.deploy.records import log_line
from fedrank.deploy.settings import SiteSettings, read_site
from fedrank.files import locked, opened, parse_json, private_folder, read_bytes, sync, write_atomic
from fedrank.privacy.ledger import CHARGED, LedgerError
from fedrank.privacy.population import Population
from fedrank.wire import Refused

PEOPLE, LOCK, LOG = "people", "lock", "site.log"
LABEL, STATED, MAGIC = b"fedrank head 1\0", b"fedrank statement 1\0", b"frnkhea2"
MESSAGES = ("sent", "measure", "propensity", "quality", "gate")  # kinds of entries about a message
MAX_HEADS = 1000  # in a message
MAX_LAG = 4  # entries that no other site has confirmed yet
NONCE = 16  # bytes
_BODY = struct.Struct("<qQ32s16sQ16s")  # site, counter, hash, run, number, nonce
_SIZE = _BODY.size + 64  # with the signature
_CHALLENGE = struct.Struct("<q16s")  # site, its challenge; also the start of a statement: witness, challenge
_STATEMENT = _CHALLENGE.size + _SIZE + 64  # with a head and the signature
_END = struct.Struct("<16sIII8s")  # nonce, numbers of heads, challenges and statements, MAGIC
_TAIL = 4096  # bytes: a line of the journal is shorter
RESTORE = "`fedrank deploy backup OLD.backup`, then `fedrank deploy restore OLD.backup`"


class RolledBack(Refused):
    """The folder of a site is older than, or different from, what a witness has seen."""


@dataclass(frozen=True)
class Head:
    """The state of a journal after an entry, as its site signed it."""

    site: int
    counter: int
    hash: bytes
    run: bytes  # of the last entry
    number: int  # the last one of that run
    nonce: bytes = bytes(NONCE)  # of the request that was answered; zeros in a file
    signature: bytes = bytes(64)

    def pack(self) -> bytes:
        return self._body() + self.signature

    @classmethod
    def unpack(cls, content: bytes) -> Head:
        site, counter, hash, run, number, nonce = _BODY.unpack_from(content)
        return cls(site, counter, hash, run, number, nonce, content[_BODY.size : _SIZE])

    def sign(self, key: IdentityKey, nonce: bytes = bytes(NONCE)) -> Head:
        head = replace(self, nonce=nonce)
        return replace(head, signature=key.sign(LABEL + head._body()))

    def is_of(self, public: str) -> bool:
        """Whether the holder of this key signed the head."""
        return verify(public, LABEL + self._body(), self.signature)

    def _body(self) -> bytes:
        return _BODY.pack(self.site, self.counter, self.hash, self.run, self.number, self.nonce)


@dataclass(frozen=True)
class Statement:
    """The newest head of a site that another site holds, signed by the latter with the challenge of the former."""

    witness: int
    challenge: bytes
    head: Head
    signature: bytes = bytes(64)

    def pack(self) -> bytes:
        return self._body() + self.signature

    @classmethod
    def unpack(cls, content: bytes) -> Statement:
        (witness, challenge), at = _CHALLENGE.unpack_from(content), _CHALLENGE.size + _SIZE
        return cls(witness, challenge, Head.unpack(content[_CHALLENGE.size : at]), content[at:])

    def sign(self, key: IdentityKey) -> Statement:
        return replace(self, signature=key.sign(STATED + self._body()))

    def is_of(self, public: str) -> bool:
        """Whether the holder of this key signed the statement."""
        return verify(public, STATED + self._body(), self.signature)

    def _body(self) -> bytes:
        return _CHALLENGE.pack(self.witness, self.challenge) + self.head.pack()


class Seen(NamedTuple):
    """What a message carries besides its content."""

    nonce: bytes
    heads: tuple[Head, ...]
    challenges: tuple[tuple[int, bytes], ...] = ()  # of sites
    statements: tuple[Statement, ...] = ()

    def behind(self, content: bytes) -> bytes:
        """A message with this behind it."""
        parts = [head.pack() for head in self.heads]
        parts += [_CHALLENGE.pack(*one) for one in self.challenges] + [one.pack() for one in self.statements]
        counts = len(self.heads), len(self.challenges), len(self.statements)
        return content + b"".join(parts) + _END.pack(self.nonce, *counts, MAGIC)


def split(content: bytes) -> tuple[bytes, Seen | None]:
    """A message without its heads, and the heads; None if it has none."""
    if not isinstance(content, bytes) or len(content) < _END.size or not content.endswith(MAGIC):
        return content, None
    nonce, *counts, _ = _END.unpack(content[-_END.size :])
    sizes = [count * size for count, size in zip(counts, (_SIZE, _CHALLENGE.size, _STATEMENT), strict=True)]
    start = len(content) - _END.size - sum(sizes)
    if max(counts) > MAX_HEADS or start < 0:
        raise Refused(f"it declares {max(counts)} heads, which it does not contain (at most {MAX_HEADS} are allowed)")
    first, second, third = start + sizes[0], start + sizes[0] + sizes[1], start + sum(sizes)
    heads = tuple(Head.unpack(content[at : at + _SIZE]) for at in range(start, first, _SIZE))
    challenges = tuple(_CHALLENGE.iter_unpack(content[first:second]))
    places = range(second, third, _STATEMENT)
    statements = tuple(Statement.unpack(content[at : at + _STATEMENT]) for at in places)
    return content[:start], Seen(nonce, heads, challenges, statements)


def most_bytes(sites: int, witnesses: int = 3) -> int:
    """Maximum size of the heads behind an answer of one of these sites, and of statements of this many witnesses."""
    return sites * _SIZE + _CHALLENGE.size + min(sites - 1, witnesses) * _STATEMENT + _END.size


@dataclass(frozen=True)
class Entry:
    """One line of a journal."""

    counter: int
    run: str  # hexadecimal
    kind: str  # one of MESSAGES, "begun", "sketch", "over", "ledger" or "restored"
    number: int
    attempt: int
    charges: int  # of the ledger, made for this entry
    digest: str  # of the stored message; of a restoration, its date
    previous: str = ""  # hash before this entry, if it is not that of the line before


def digest_of_sent(sent: Sent) -> str:
    """The digest of a stored message."""
    return hashlib.sha256(sent.call + (sent.answer or sent.values)).hexdigest()


class SiteJournal:
    """The journal of one site; only the process that holds the lock of the site writes to it."""

    def __init__(self, folder: Path, settings: SiteSettings, key: IdentityKey | None = None) -> None:
        self.folder, self.site = Path(folder), settings.id
        self.key = key or read_identity(folder)
        self.path = self.folder / JOURNAL
        self.second = second_place(self.folder, settings) / f"{self.key.public[:32]}.heads"
        self.entries: list[Entry] = []
        self.head = Head(self.site, 0, bytes(32), bytes(16), 0)
        self.charged: Counter[str] = Counter()  # by run
        self._hashes: dict[int, bytes] = {}
        self._last: dict[tuple[str, str, int], Entry] = {}
        self._highest: dict[str, int] = {}  # run -> last number
        self._line = b""
        self._end = 0
        self.challenge, self._confirmed = new_nonce(), 0  # entries that another site has confirmed since the start
        self._load()

    def find(self, run: bytes, kind: str, number: int) -> Entry | None:
        """The last entry of a message."""
        return self._last.get((run.hex(), kind, number))

    def note(
        self,
        run: bytes,
        kind: str,
        number: int,
        attempt: int = 0,
        digest: str = "",
        charges: int = 0,
        after: Head | None = None,
    ) -> None:
        """Append an entry to both files, unless it is the last one with this number already."""
        known = self.find(run, kind, number)
        if known is not None and (known.attempt, known.digest) == (attempt, digest) and kind in MESSAGES:
            return
        before = after or self.head
        previous = "" if after is None else after.hash.hex()
        entry = Entry(before.counter + 1, run.hex(), kind, number, attempt, charges, digest, previous)
        body = json.dumps(vars(entry), separators=(",", ":")).encode()
        hash = hashlib.sha256(LABEL + before.hash + body).digest()
        highest = max(0 if kind == "sketch" else number, self._highest.get(entry.run, 0))
        head = Head(self.site, entry.counter, hash, run, highest).sign(self.key)
        line = body + b"\t" + head.pack().hex().encode() + b"\n"
        if not self.second.exists() and not self.entries:
            _append(self.second, b"", 0)
        _append(self.path, line, self._end)
        self._add(entry, head, line)
        _append(self.second, line)

    def answer(self, content: bytes, seen: Seen, others: Sequence[Head]) -> bytes:
        """An answer with the head of this site, bound to the nonce of the request, and heads that the request lacks."""
        asked, received = dict(seen.challenges), set(seen.heads)
        known = (self.head.sign(self.key, seen.nonce), *(head for head in others if head not in received))
        stated = [Statement(self.site, asked[head.site], head).sign(self.key) for head in others if head.site in asked]
        return Seen(seen.nonce, known, ((self.site, self.challenge),), tuple(stated)).behind(content)

    def check_confirmed(self, statements: Iterable[Statement], keys: Mapping[int, str]) -> None:
        """Refuse unless one of these other sites has confirmed the journal since the start, and lately."""
        for one in statements:
            public = keys.get(one.witness)
            if public and one.challenge == self.challenge and one.head.site == self.site and one.is_of(public):
                self._confirmed = max(self._confirmed, one.head.counter)
        if not self._confirmed or self.head.counter - self._confirmed > MAX_LAG:
            raise Refused(NOT_CONFIRMED)

    def check(self, seen: Seen | None) -> None:
        """Refuse if a witness has a newer or different head, or if no witness confirms the journal."""
        self._check_unchanged()
        given = () if seen is None else (*seen.heads, *(one.head for one in seen.statements))
        own = [head for head in given if head.site == self.site]
        for head in own:
            if not head.is_of(self.key.public):
                raise Refused(
                    "the request contains a head of this site that the site did not sign; if id in site.toml or "
                    f"{IDENTITY} is not this site's own, restore it, otherwise ask the coordinator"
                )
        witnesses = [(head, "the coordinator or another site") for head in own]
        if (second := self.read_second()) is not None:
            witnesses.append((second, "the second place of this site"))
        for head, who in sorted(witnesses, key=lambda one: -one[0].counter):
            if head.counter > self.head.counter and not self._continue_from(head):
                raise RolledBack(
                    f"the journal of this site has {self.head.counter} entries, but {who} has seen {head.counter}: the "
                    "folder of this site is an old copy, or files were deleted; put the newest folder back, or mark "
                    f"this one as restored: {RESTORE}; then the site continues after the rounds that it sent"
                )
            if self._hashes.get(head.counter, head.hash) != head.hash:
                raise RolledBack(
                    f"entry {head.counter} of the journal of this site differs from the one that {who} has seen: two "
                    "copies of this site were used; put the newest folder back"
                )
        self._check_confirmed(own, second)

    def read_second(self) -> Head | None:
        """The newest head in the second place; None if there is none."""
        try:
            with opened(self.second) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return None
        if not lines:
            return None
        try:
            head = Head.unpack(bytes.fromhex(lines[-1].rpartition(b"\t")[2].decode()))
        except (ValueError, struct.error):
            head = None
        if head is None or not head.is_of(self.key.public):
            raise RolledBack(
                "the last line in the second place of this site is damaged or not signed by this site; put back the "
                "file or, if it is lost, move it away and run `fedrank deploy start --confirm-head`"
            )
        return head

    def confirm(self) -> None:
        """Write the newest head to the second place, because an officer confirmed that no entry is missing."""
        self.check_files()
        private_folder(self.second.parent)
        _append(self.second, self._line)

    def check_files(self, begin: bool = True) -> None:
        """Begin the journal of a new site; refuse if messages or charges are missing that have entries."""
        if not self.entries:
            if _has_messages(self.folder) or Population.charges_by_run(self.folder / PEOPLE):
                raise RolledBack(
                    "this site has messages or charges, but no journal: it was deleted, or the site is from an earlier "
                    "version; restore it from a backup, or run `fedrank privacy ledger HOME --upgrade` once"
                )
            if begin:
                self.note(bytes(16), "begun", 0)
        mark = RestoreMark.read(self.folder)
        if mark is None and any(entry.kind == "restored" for entry in self.entries):
            raise RolledBack("restored.json of this site is missing; restore the backup again")
        gone = [entry for entry in self._last.values() if entry.kind == "sent" and not self._stored(entry).exists()]
        if gone and mark is None:
            raise RolledBack(
                f"{len(gone)} messages that this site sent are missing in its outbox, the first one of round "
                f"{gone[0].number}; restore the outbox from a backup, or mark this folder as restored: {RESTORE}"
            )
        found = Population.charges_by_run(self.folder / PEOPLE)
        for run, charges in self.charged.items():
            if found.get(run, 0) < charges:
                raise RolledBack(
                    f"the ledger of run {run[:12]} has {found.get(run, 0):g} charges, but {charges} were made; "
                    "restore the ledger from a backup made after them; without one, treat the privacy budget of these "
                    "people as spent"
                )

    def check_sketches(self) -> None:
        """Refuse if the charges for sketches of documents are fewer than, or differ from, those in the journal."""
        last = next((entry for entry in reversed(self.entries) if entry.kind == "sketch"), None)
        if last is not None and _digest_of_charges(self.folder, last.number) != last.digest:
            raise RolledBack(
                "the charges for sketches of this site were truncated or replaced; restore them from a backup"
            )

    def note_sketches(self, run: bytes) -> None:
        """Append the length and digest of the charges for sketches."""
        size = sum(path.stat().st_size for path in _sketch_charges(self.folder))
        known = self.find(run, "sketch", size)
        if size and known is None:
            self.note(run, "sketch", size, digest=_digest_of_charges(self.folder, size))

    def missing_charges(self, run: bytes) -> int:
        """How many charges of this run a restored site must still make: one for each entry that it has lost."""
        for place in range(len(self.entries) - 1, -1, -1):
            if (entry := self.entries[place]).kind == "restored" and entry.run == run.hex():
                before = self.entries[place - 1].counter if place else 0
                made = sum(one.charges for one in self.entries[place:] if one.kind == "over" and one.run == entry.run)
                return max(0, entry.counter - 1 - before - made)
        return 0

    def _continue_from(self, head: Head) -> bool:
        """Continue from a newer head if the folder was restored since the last time; return whether it was."""
        mark = RestoreMark.read(self.folder)
        if mark is None or not mark.complete:
            return False
        if any(entry.kind == "restored" and entry.digest == mark.at for entry in self.entries):
            return False
        record_completed_round(self.folder, head.run.hex(), max(head.number - 1, 0))
        self.note(head.run, "restored", head.number, digest=mark.at, after=head)
        return True

    def _check_confirmed(self, own: Sequence[Head], second: Head | None) -> None:
        if not self.entries or (second is not None and second.counter == self.head.counter):
            return
        begun = self.second.exists() and self.head.counter == 1  # killed between the first entry and its copy
        if second is None and not begun and not any(head.counter == self.head.counter for head in own):
            raise RolledBack(
                "the second place of this site is missing or empty, and no witness confirms that its "
                f"{self.head.counter} entries are all: put it back, or, if you are sure that this is the newest "
                "folder, run `fedrank deploy start --confirm-head` once"
            )
        _append(self.second, self._line)

    def _check_unchanged(self) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._end:
            raise RolledBack("the journal of this site was deleted or truncated while the site was running")

    def _stored(self, entry: Entry) -> Path:
        return self.folder / OUTBOX / entry.run / f"{entry.number:08d}-{entry.attempt:04d}"

    def _load(self) -> None:
        content = read_bytes(self.path) if self.path.exists() else b""
        for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
            body, _, signed = line.rstrip(b"\n").partition(b"\t")
            try:
                entry, head = Entry(**parse_json(body)), Head.unpack(bytes.fromhex(signed.decode()))
                before = bytes.fromhex(entry.previous) or self.head.hash
                if hashlib.sha256(LABEL + before + body).digest() != head.hash or entry.counter != head.counter:
                    raise ValueError("its hash is wrong")
                if not entry.previous and entry.counter != self.head.counter + 1:
                    raise ValueError("entries are missing before it")
            except (ValueError, TypeError, struct.error) as problem:
                raise LedgerError(
                    f"{self.path}: line {len(self.entries) + 1} is damaged ({problem}); move the file away, then "
                    "restore it from a backup"
                ) from None
            self._add(entry, head, line)
        if self.entries and not self.head.is_of(self.key.public):
            raise LedgerError(f"{self.path} was written by another site; restore both this file and {IDENTITY}")

    def _add(self, entry: Entry, head: Head, line: bytes) -> None:
        self.entries.append(entry)
        self.head, self._line, self._end = head, line, self._end + len(line)
        self.charged[entry.run] += entry.charges
        self._hashes[entry.counter] = head.hash
        if entry.previous:
            self._hashes[entry.counter - 1] = bytes.fromhex(entry.previous)
        self._last[entry.run, entry.kind, entry.number] = entry
        self._highest[entry.run] = head.number


class Witness:
    """The newest heads of other sites, in a file of a coordinator or a site."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.heads: dict[str, Head] = {}  # by public key
        self._unwritten = False
        if self.path.exists():
            try:
                for line in read_bytes(self.path, 2 * MAX_HEADS * (66 + 2 * _SIZE)).decode("ascii").splitlines():
                    public, _, packed = line.partition(" ")
                    self.heads[public] = Head.unpack(bytes.fromhex(packed))
            except (ValueError, struct.error) as problem:
                raise ValueError(f"{self.path} is damaged ({problem}); restore it from a backup") from None

    def of(self, publics: Iterable[str]) -> list[Head]:
        """The newest heads of these sites."""
        return [self.heads[public] for public in publics if public in self.heads][:MAX_HEADS]

    def keep(self, heads: Sequence[Head], keys: Mapping[int, str], sender: int | None = None) -> None:
        """Add newer heads of known sites; the sender's own must not be older than the known one. Call `write` next."""
        newer: dict[str, Head] = {}
        for head in heads:
            if not (public := keys.get(head.site)):
                continue
            known = newer.get(public) or self.heads.get(public)
            if known is not None and head.counter <= known.counter and head.site != sender:
                continue  # without looking at its signature, which takes most of the time with many sites
            if not head.is_of(public):
                raise Refused(f"the head of site {head.site} is not signed by this site")
            if known is not None and (known.counter, known.hash) == (head.counter, head.hash):
                continue
            if known is not None and head.counter <= known.counter:
                raise Refused(
                    f"its journal has {head.counter} entries, but {known.counter} with another hash were seen "
                    "before: the site answers from an old copy"
                )
            newer[public] = head
        self.heads |= newer
        self._unwritten |= bool(newer)

    def write(self) -> None:
        """Store durably what `keep` has added; do so before an answer is used."""
        if self._unwritten:
            lines = [f"{public} {head.pack().hex()}\n" for public, head in sorted(self.heads.items())]
            write_atomic(self.path, lines[-2 * MAX_HEADS :], private=True)
            self._unwritten = False


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE)


def second_place(folder: Path, settings: SiteSettings) -> Path:
    """The folder of the second place: `second_place` in site.toml, or the state folder of this user."""
    if settings.second_place:
        return (Path(folder) / settings.second_place).absolute()
    state = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA")
    if not state:
        if sys.platform == "win32":
            raise ValueError("the second place of the journal is unknown; set second_place in site.toml")
        import pwd  # processes of NVFLARE have another HOME

        state = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".local", "state")
    return Path(state) / "fedrank" / "heads"


def confirm(folder: Path) -> str:
    """Confirm that a site's folder is its newest copy, although its second place is missing; return a log line."""
    with locked(Path(folder) / LOCK, f"the site of {folder}"):
        journal = SiteJournal(folder, read_site(folder))
        if (second := journal.read_second()) is not None and second.counter > journal.head.counter:
            journal.check(None)
        journal.confirm()
    line = f"an officer confirmed the journal with {journal.head.counter} entries; second place: {journal.second}"
    log_line(Path(folder) / LOG, line)
    return line


def upgrade(folder: Path) -> int:
    """Write the journal of a site from an earlier version; return the number of entries."""
    settings = read_site(folder)  # before a lock is written into a folder of something else
    with locked(Path(folder) / LOCK, f"the site of {folder}"):
        return _upgrade(SiteJournal(folder, settings))


def _upgrade(journal: SiteJournal) -> int:
    folder = journal.folder
    if journal.entries or journal.read_second() is not None:
        raise ValueError(f"{folder} already has a journal or a second place, so it is not from an earlier version")
    journal.note(bytes(16), "begun", 0)
    for place in sorted((folder / OUTBOX).glob("*/")):
        run = bytes.fromhex(place.name)
        for sent in Outbox(place, run).every():
            journal.note(run, "sent", sent.round, sent.attempt, digest_of_sent(sent))
    for name, charges in Population.charges_by_run(folder / PEOPLE).items():
        if 0 < charges < math.inf:
            journal.note(bytes.fromhex(name), "ledger", 0, charges=int(charges))
    return len(journal.entries)


def _has_messages(folder: Path) -> bool:
    return any(path.name.replace("-", "").isdigit() for path in (folder / OUTBOX).glob("*/*"))


def _sketch_charges(folder: Path) -> list[Path]:
    return sorted((folder / SKETCHES).rglob(CHARGED))


def _digest_of_charges(folder: Path, size: int) -> str:
    content = b"".join(read_bytes(path) for path in _sketch_charges(folder))
    return hashlib.sha256(content[:size]).hexdigest() if len(content) >= size else ""


def _append(path: Path, line: bytes, end: int | None = None) -> None:
    """Append a line durably at `end`, or after the last complete line."""
    new = not path.exists()
    if new:
        private_folder(path.parent)
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        if end is None:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            tail = file.read()
            end = size - len(tail) + tail.rfind(b"\n") + 1
        file.truncate(end)
        file.seek(end)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(path.parent)
