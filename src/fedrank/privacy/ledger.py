"""The ledger of a run: which client participated in which round, so every use of privacy is charged.

Its folder has two files. `participants.log` is append-only and permanent; `changes.log` holds the noised changes since
the last checkpoint, so a crash does not charge the clients for those rounds a second time.

Both begin with `BEGIN` (format name, version, number of clients, checksum). Records follow, little-endian:
`HEAD` (kind, round, place, bytes of payload), its CRC-32, the payload, and the payload's CRC-32. Kinds:

    some  reserved for some clients; payload: one bit per client (numpy.packbits)
    all   reserved for every client; no payload
    back  reservations returned; payload: the offset of the record of each (uint64)
    keep  the change of a round (float64); place: the offset of its reservation in participants.log

Where charges are not rounds of one run, `charges.log` replaces both: records of kind `cost`, each with a text
that says what was charged (`fedrank.privacy.population: Charge`).

The order of steps makes it safe: a reservation is on disk before anything is sent, a change is written before
it is used, and only a clean stop returns a reservation. A crash can therefore only overstate what was spent.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.files import check_is_file, opened, sync

VERSION = 1
BEGIN = struct.Struct("<16sIQ")  # format name, version, clients
HEAD = struct.Struct("<4sQQQ")  # kind, round, place, bytes of payload
CRC = struct.Struct("<I")
SOME, ALL, BACK, KEEP, COST = b"some", b"all\0", b"back", b"keep", b"cost"
COHORTS, CHANGES, CHARGES = b"fedrank cohorts\n", b"fedrank changes\n", b"fedrank charges\n"  # format names
SLACK = 4 << 20  # bytes: changes.log is not rewritten to save less than this
CHUNK = 1 << 20  # bytes
PARTICIPANTS, CHANGED, CHARGED = "participants.log", "changes.log", "charges.log"
_WITHOUT_PAYLOAD = HEAD.size + CRC.size + CRC.size  # bytes of a record


class LedgerError(ValueError):
    """The ledger cannot be trusted, or would become wrong."""


class KeptRound(NamedTuple):
    """A finished round that can be reused without contacting any client."""

    cohort: NDArray[np.int64]  # rows of the participating clients, ascending
    change: NDArray[np.float64]  # [parameters], with its noise


@dataclass(frozen=True)
class _Record:
    at: int  # bytes from the beginning of the file
    kind: bytes
    round: int
    offset: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.at + _WITHOUT_PAYLOAD + len(self.payload)


class _Log:
    """An append-only file of records with checksums."""

    def __init__(self, path: Path, name: bytes, clients: int, write: bool = True) -> None:
        self.path = path
        self.begin = _checked(BEGIN.pack(name, VERSION, clients))
        self.file = _private(path) if write else cast(io.FileIO, opened(path).detach())
        self.size = os.fstat(self.file.fileno()).st_size
        found = _read(self.file, len(self.begin))
        if found != self.begin:
            # The file was being created, so it is still empty: it holds a prefix of our header, or unwritten space.
            # A log opened for reading was created earlier; if it is shorter than its header, it has lost its records.
            if not write or self.size > len(found) or (found != self.begin[: len(found)] and any(found)):
                self.file.close()
                raise LedgerError(_unfit(path, found, name, clients))
            self.file.seek(0)
            _write(self.file, self.begin)
            self.file.truncate(len(self.begin))
            self.sync()
            self.size = len(self.begin)
        self.end = len(self.begin)  # end of the part known to be complete

    def records(self) -> Iterator[_Record]:
        """Read up to the first incomplete record; `end` is then where that record starts."""
        while (record := self.read(self.end)) is not None:
            self.end = record.end
            yield record

    def read(self, at: int) -> _Record | None:
        """One record; None where no complete record starts."""
        head = self.head(at)
        if head is None:
            return None
        kind, round, offset, length = head
        payload = _unchecked(_read(self.file, length + CRC.size))
        return None if payload is None else _Record(at, kind, round, offset, payload)

    def head(self, at: int) -> tuple[bytes, int, int, int] | None:
        """Kind, round, place and length of the record at an offset; None where the file does not contain all of it."""
        if at > self.size:  # an offset that no file can have
            return None
        self.file.seek(at)
        head = _unchecked(_read(self.file, HEAD.size + CRC.size))
        if head is None or len(head) < HEAD.size:
            return None
        kind, round, offset, length = HEAD.unpack(head)
        return (kind, round, offset, length) if at + _WITHOUT_PAYLOAD + length <= self.size else None

    def torn(self) -> bool:
        """Whether the data after `end` is one record whose writing was interrupted, and nothing else.

        Such a record lacks its end: the file stops before it, or (some file systems extend a file without filling it
        after a power failure) contains only zeros from its checksum on. The head has a separate checksum; otherwise a
        damaged length would look like a file that stops too early, and hide all later records.
        """
        self.file.seek(self.end)
        head = _unchecked(_read(self.file, HEAD.size + CRC.size))
        last = self.end + HEAD.size  # position of the last checksum that must exist
        if head is not None and len(head) == HEAD.size:
            last += CRC.size + HEAD.unpack(head)[3]
        if last + CRC.size > self.size:
            return True
        self.file.seek(last)
        return not any(any(chunk) for chunk in iter(lambda: self.file.read(CHUNK), b""))

    def cut(self) -> None:
        """Truncate the file at `end`."""
        self.file.truncate(self.end)
        self.size = self.end
        self.sync()

    def append(self, kind: bytes, round: int, offset: int, payload: bytes | memoryview = b"") -> int:
        """Write a record that survives the end of this process; surviving a power failure needs `sync`."""
        at, length, crc = self.end, len(payload), zlib.crc32(payload)
        self.file.seek(at)
        parts = [_checked(HEAD.pack(kind, round, offset, length)), payload, CRC.pack(crc)]
        if length < CHUNK:  # one call is cheaper than three; copying is expensive only for large payloads
            parts = [b"".join(parts)]
        for part in parts:
            _write(self.file, part)
        self.end = self.size = at + _WITHOUT_PAYLOAD + length
        return at

    def sync(self) -> None:
        os.fsync(self.file.fileno())

    def rewrite(self, records: Iterable[tuple[int, int]]) -> list[int]:
        """Retain only the records at these (begin, end), durably and atomically; returns their new offsets."""
        part = self.path.with_name(self.path.name + ".part")
        offsets, end = [], len(self.begin)
        with _private(part) as new:
            new.truncate(0)
            _write(new, self.begin)
            for at, until in records:
                offsets.append(end)
                self.file.seek(at)
                for begin in range(at, until, CHUNK):
                    _write(new, _read(self.file, min(CHUNK, until - begin)))
                end += until - at
            os.fsync(new.fileno())
        self.file.close()
        os.replace(part, self.path)
        sync(self.path.parent)
        self.file = _private(self.path)
        self.end = self.size = end
        return offsets


class Charges:
    """How often each client was charged, according to `participants.log`."""

    def __init__(self, log: _Log | None, clients: int) -> None:
        self.clients, self.rounds = clients, 0
        self.by_round: Counter[int] = Counter()  # charges of each round: one more after every crash that lost it
        self._log = log
        self._counts = np.zeros(clients, np.int64)  # rounds charged to some clients, by client
        self._all = 0  # rounds charged to all clients

    @classmethod
    def read(cls, folder: Path, clients: int) -> Charges:
        """Read a ledger that another process may be writing to; nothing is changed.

        It is an error if the log is missing, or shorter than `changes.log` shows it was.
        """
        path = Path(folder) / PARTICIPANTS
        changes = _reserved_by_changes(Path(folder) / CHANGED, clients)  # first: it is written after the reservation
        try:
            log = _Log(path, COHORTS, clients, write=False)
        except FileNotFoundError:
            raise _untrusted(path, "is missing") from None
        with log.file:
            charges = cls(log, clients)
            for record in log.records():
                charges.take(record)
                changes.pop(record.at, None)
            if log.end < log.size and not log.torn():
                raise charges.untrusted(f"is damaged at byte {log.end}")
            charges.check_all_found(changes)
        return charges

    @property
    def participations(self) -> NDArray[np.int64]:
        """[clients]: number of rounds charged to each client."""
        return self._counts + self._all

    @property
    def lost(self) -> int:
        """Rounds that were charged again because a crash lost them."""
        return self.rounds - len(self.by_round)

    def take(self, record: _Record) -> None:
        """Count one record of the log."""
        if record.kind == BACK:
            for offset in np.frombuffer(record.payload, "<u8"):
                self.take_back(int(offset))
        else:
            self._charge(record, 1)

    def add(self, round: int, rows: NDArray[np.int64]) -> None:
        """Count a round that is about to be written."""
        if len(rows) == self.clients:
            self._all += 1
        else:
            self._counts[rows] += 1
        self._count(round, 1)

    def take_back(self, offset: int) -> None:
        record = None if self._log is None else self._log.read(offset)
        if record is None:
            raise self.untrusted(f"returns a reservation at byte {offset}, which does not exist")
        self._charge(record, -1)

    def _charge(self, record: _Record, times: int) -> None:
        bits = (self.clients + 7) // 8
        if record.kind == ALL and not record.payload:
            self._all += times
        elif record.kind == SOME and len(record.payload) == bits:
            mask = np.unpackbits(np.frombuffer(record.payload, np.uint8), count=self.clients)
            np.add(self._counts, times, out=self._counts, where=mask.view(np.bool_))
        else:
            raise self.untrusted(f"has an unknown record at byte {record.at} ({record.kind!r})")
        self._count(record.round, times)

    def _count(self, round: int, times: int) -> None:
        self.rounds += times
        self.by_round[round] += times
        if not self.by_round[round]:
            del self.by_round[round]

    def check_all_found(self, changes: Mapping[int, int]) -> None:
        """Raise if a change has no reservation in the log; `changes`: offset of the reservation -> round."""
        for offset, round in changes.items():
            raise self.untrusted(
                f"lacks the reservation of round {round}, which {CHANGED} expects at byte {offset}: it was "
                "truncated or replaced"
            )

    def untrusted(self, what: str) -> LedgerError:
        return _untrusted("the ledger" if self._log is None else self._log.path, what)


class Ledger:
    """Append-only record of the participants of each round, which survives crashes and never understates the spending.

    A round is charged to its cohort from `reserve` on. After a crash every reservation without a stored change stays
    charged, since its messages may have been sent; such a round must be reserved again and is then charged twice.
    Only counters are in memory, never the cohorts. One process at a time: the run folder has the lock.
    """

    def __init__(self, participants: _Log, changes: _Log, clients: int) -> None:
        self.clients = clients
        self._participants, self._changes = participants, changes
        self._charges = Charges(participants, clients)
        self._pending: dict[int, int] = {}  # round -> its reservation in participants.log
        self._begun: set[int] = set()  # pending rounds of which something may have been sent
        self._kept: dict[int, tuple[int, int]] = {}  # round -> begin and end of its record in changes.log
        self._last = 0  # the last round stored since `open`
        self._broken = False

    @classmethod
    def open(cls, folder: Path, clients: int) -> Ledger:
        """Create or load a ledger; only the owner may read its files, since a cohort may be secret."""
        if clients < 1:
            raise ValueError(f"clients must be at least 1 (got {clients})")
        folder = Path(folder).absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            participants = _Log(folder / PARTICIPANTS, COHORTS, clients)
            opened.callback(participants.file.close)
            changes = _Log(folder / CHANGED, CHANGES, clients)
            opened.callback(changes.file.close)
            # If a power failure removes the file from its folder, its reservations are lost, so sync the folders, too.
            sync(folder)
            for above in folder.parents:
                with contextlib.suppress(OSError):  # no permission
                    sync(above)
            ledger = cls(participants, changes, clients)
            ledger._load()
            opened.pop_all()
        return ledger

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; no reservation is returned."""
        try:
            self._participants.file.close()
        finally:
            self._changes.file.close()

    def reserve(self, cohorts: Mapping[int, NDArray[np.int64]]) -> None:
        """Charge rounds to the clients that will participate; nothing of these rounds may be sent before this returns.

        Stored changes from the first of these rounds on no longer count: they came from a model that is now replaced.
        Rounds reserved before that come later may still be stored, but `open` cannot distinguish their changes from
        replaced ones and drops them, so they are charged again: too much, never too little. Reserve in order.
        """
        rounds = sorted(cohorts)
        for round in rounds:
            self._check(round, cohorts[round])
        if not rounds:
            return
        if rounds[0] in self._kept:
            raise ValueError(
                f"round {rounds[0]} has a stored change; reserving it would charge its clients again for nothing. "
                f"Use kept({rounds[0]}) and reserve the rounds after the last stored one"
            )
        with self._writing():
            offsets = {}
            for round in rounds:
                rows = np.asarray(cohorts[round], np.int64)
                # Counted first: after any failure from here on, the counters are too high rather than too low.
                self._charges.add(round, rows)
                if len(rows) == self.clients:
                    offsets[round] = self._participants.append(ALL, round, 0)
                    continue
                mask = np.zeros(self.clients, np.bool_)
                mask[rows] = True
                offsets[round] = self._participants.append(SOME, round, 0, np.packbits(mask).data)
            self._participants.sync()
            self._pending.update(offsets)
            self._begun.difference_update(rounds)
            for round in [round for round in self._kept if round >= rounds[0]]:
                del self._kept[round]

    def reserved(self, round: int) -> NDArray[np.int64] | None:
        """Rows, ascending, of a round reserved since `open` whose change is not stored and which was not returned."""
        return self._cohort(self._pending[round]) if round in self._pending else None

    def begun(self, round: int) -> None:
        """Mark that messages of a reserved round are about to be sent: it can no longer be returned.

        In memory only: after a crash all reservations stay charged anyway.
        """
        if round not in self._pending:
            raise LedgerError(self._not_reserved(round))
        self._begun.add(round)

    def keep(self, round: int, change: NDArray[np.float64]) -> None:
        """Write the noised change of a reserved round, before it is used.

        It survives the end of this process, but is not forced to the disk: if a power failure loses it, the round must
        be reserved and charged again.
        """
        if round not in self._pending:
            raise LedgerError(self._not_reserved(round))
        values = np.ascontiguousarray(change, "<f8")
        if values.ndim != 1:
            raise ValueError(f"the change of round {round} must have one dimension (got {values.ndim})")
        with self._writing():
            at = self._changes.append(KEEP, round, self._pending[round], values.data.cast("B") if values.size else b"")
            self._kept[round] = (at, self._changes.end)
            del self._pending[round]
            self._begun.discard(round)
            self._last = max(self._last, round)

    def kept(self, round: int) -> KeptRound | None:
        """A finished round after the last checkpoint, which a resumed run reuses at no further charge."""
        if round not in self._kept:
            return None
        record = self._changes.read(self._kept[round][0])
        if record is None:
            raise LedgerError(
                f"{self._changes.path}: the change of round {round} was damaged after it was written; "
                "open the ledger again to run the rounds from there on again"
            )
        return KeptRound(self._cohort(record.offset), np.frombuffer(record.payload, "<f8").astype(np.float64))

    def give_back(self) -> None:
        """At a clean stop: rounds reserved after the last stored one, and never begun, no longer count.

        Call it only when no round is in progress.
        """
        unused = [r for r in self._pending if r > self._last and r not in self._begun]
        if unused:
            offsets = [self._pending[round] for round in unused]
            with self._writing():
                self._participants.append(BACK, 0, 0, np.array(offsets, "<u8").data.cast("B"))
                self._participants.sync()
                for offset in offsets:
                    self._charges.take_back(offset)
        self._pending.clear()
        self._begun.clear()

    def forget(self, round: int) -> None:
        """Drop the changes up to a round that a durable checkpoint covers; the participants remain recorded."""
        for old in [kept for kept in self._kept if kept <= round]:
            del self._kept[old]
        live = sum(end - at for at, end in self._kept.values())
        waste = self._changes.end - len(self._changes.begin) - live
        # At least as much is removed as is copied: over a run, each byte is copied once on average.
        if waste < max(live, SLACK):
            return
        with self._writing():
            old_offsets = sorted(self._kept.items(), key=lambda item: item[1])
            new_offsets = self._changes.rewrite(offset for _, offset in old_offsets)
            self._kept = {
                kept: (new, new + end - at) for (kept, (at, end)), new in zip(old_offsets, new_offsets, strict=True)
            }

    def participations(self) -> NDArray[np.int64]:
        """[clients]: number of rounds charged to each client."""
        return self._charges.participations

    def rounds(self) -> int:
        """Number of charged rounds; a round reserved again after a crash counts again."""
        return self._charges.rounds

    def times(self, round: int) -> int:
        """Number of times a round is charged."""
        return self._charges.by_round[round]

    def _load(self) -> None:
        """Compute the totals from the log, and find the changes that can still be used."""
        changes = {record.offset: (record.round, record.at, record.end) for record in self._changes.records()}
        if self._changes.end < self._changes.size:
            # Changes are not forced to the disk, so a power failure may lose any of them, and later ones depend on the
            # lost one. Dropping them never understates the spending: charges are in participants.log alone.
            if not self._changes.torn():
                warnings.warn(
                    f"{self._changes.path} is damaged from byte {self._changes.end} on, possibly by a power failure; "
                    "the rounds from there on will be run and charged again",
                    RuntimeWarning,
                    stacklevel=3,
                )
            self._changes.cut()
        for record in self._participants.records():
            self._charges.take(record)
            if record.kind == BACK:
                continue
            while self._kept and next(reversed(self._kept)) >= record.round:  # replaced, as in `reserve`
                self._kept.popitem()
            if record.at in changes and changes[record.at][0] == record.round:
                _, at, end = changes.pop(record.at)
                self._kept[record.round] = (at, end)
        if self._participants.end < self._participants.size:
            # Truncating an interrupted record never understates the spending: the `reserve` that wrote it had not
            # returned, so nothing was sent; or it was a `give_back`, and its rounds stay charged.
            # Any other damage may hide rounds that were sent.
            if not self._participants.torn():
                raise self._charges.untrusted(f"is damaged at byte {self._participants.end}")
            self._participants.cut()
        self._charges.check_all_found({offset: round for offset, (round, _, _) in changes.items()})
        # Records that a killed process left only in the page cache are counted now and must not be lost later.
        self._participants.sync()

    def _cohort(self, offset: int) -> NDArray[np.int64]:
        record = self._participants.read(offset)
        if record is None:
            raise self._charges.untrusted(f"was damaged at byte {offset} after it was written")
        if record.kind == ALL:
            return np.arange(self.clients, dtype=np.int64)
        bits = np.unpackbits(np.frombuffer(record.payload, np.uint8), count=self.clients)
        return np.flatnonzero(bits).astype(np.int64)

    def _check(self, round: int, cohort: NDArray[np.int64]) -> None:
        if round < 1:
            raise ValueError(f"round must be at least 1 (got {round})")
        if round in self._pending and round not in self._begun:
            raise ValueError(
                f"round {round} is already reserved; reserving it again would charge its clients twice. "
                f"Run it with reserved({round}), or call give_back() first"
            )
        rows = np.asarray(cohort)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise ValueError(
                f"the cohort of round {round} must be a one-dimensional array of integers, the rows of its clients "
                f"(got shape {rows.shape} and type {rows.dtype})"
            )
        if rows.size and not (rows.min() >= 0 and rows.max() < self.clients):
            raise ValueError(
                f"the cohort of round {round} must have rows 0 to {self.clients - 1} (got rows {rows.min()} to "
                f"{rows.max()})"
            )
        mask = np.zeros(self.clients, np.bool_)
        mask[rows.astype(np.int64)] = True
        if np.count_nonzero(mask) != rows.size:
            raise ValueError(
                f"the cohort of round {round} names a client twice, but would charge it once; name each client once"
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse further writes after a failed one: the state of the disk is then unknown."""
        if self._broken:
            raise LedgerError(
                f"an earlier write to {self._participants.path.parent} failed or was interrupted; "
                "stop and open the ledger again, which repairs it"
            )
        self._broken = True
        yield
        self._broken = False

    def _not_reserved(self, round: int) -> str:
        if round in self._kept:
            return f"the change of round {round} is already stored; use kept({round}) instead of running it again"
        return f"round {round} is not reserved, so its clients are not charged; call reserve before sending anything"


def is_charged(folder: Path) -> bool:
    """Whether any log in this folder has records."""
    logs = (Path(folder) / name for name in (PARTICIPANTS, CHANGED, CHARGED))
    return any(log.exists() and log.stat().st_size > BEGIN.size + CRC.size for log in logs)


def _reserved_by_changes(path: Path, clients: int) -> dict[int, int]:
    """Offset in `participants.log` -> round, for every change in this file up to the first incomplete one.

    A missing or damaged file is not an error: if changes are lost, their rounds are charged again.
    """
    try:
        log = _Log(path, CHANGES, clients, write=False)
    except (FileNotFoundError, LedgerError):
        return {}
    found = {}
    with log.file:
        while (head := log.head(log.end)) is not None:
            _, round, offset, length = head
            found[offset] = round
            log.end += _WITHOUT_PAYLOAD + length
    return found


def _untrusted(where: str | Path, what: str) -> LedgerError:
    return LedgerError(
        f"{where} {what}. It is the only record of the privacy spent. "
        "Restore it from a copy made after the last round; without one, treat the privacy of all its clients "
        "as spent, keep the files, and start a new run in another folder"
    )


def begin_charges(folder: Path) -> None:
    """Create an empty `charges.log` on disk, if it does not exist."""
    path = Path(folder) / CHARGED
    with _Log(path, CHARGES, 0).file:
        # If a power failure removes the file from its folder, its charges are lost, so sync the folders, too.
        for each in (path.parent, *path.parent.absolute().parents[:2]):
            sync(each)


def read_charges(folder: Path) -> list[bytes]:
    """The charges of `charges.log`, which another process may be writing to; nothing is changed."""
    log = _Log(Path(folder) / CHARGED, CHARGES, 0, write=False)
    with log.file:
        return _costs(log)


def add_charge(folder: Path, text: bytes) -> None:
    """Append to `charges.log`; it is on disk when this returns. The caller must hold the lock of the ledger."""
    log = _Log(Path(folder) / CHARGED, CHARGES, 0)
    with log.file:
        _costs(log)
        if log.end < log.size:  # its writing was interrupted, so nothing depends on it
            log.cut()
        log.append(COST, 0, 0, text)
        log.sync()


def _costs(log: _Log) -> list[bytes]:
    """All records up to the end, or up to an interrupted one."""
    found = list(log.records())
    unknown = [record.at for record in found if record.kind != COST]
    if unknown or (log.end < log.size and not log.torn()):
        at = unknown[0] if unknown else log.end
        raise LedgerError(
            f"{log.path} is damaged at byte {at}, so more privacy may have been spent than is recorded; restore it "
            "from a copy that has the last charge, and release nothing until then"
        )
    return [record.payload for record in found]


def _checked(content: bytes) -> bytes:
    return content + CRC.pack(zlib.crc32(content))


def _unchecked(content: bytes) -> bytes | None:
    """The content before its checksum; None where the checksum does not match."""
    if len(content) < CRC.size:
        return None
    body = content[: -CRC.size]
    return body if CRC.pack(zlib.crc32(body)) == content[-CRC.size :] else None


def _private(path: Path) -> io.FileIO:
    """Open for reading and writing, create if necessary; only the owner may read it.

    Unbuffered: after a failure, half a record in a buffer would be written later, over something else.
    """

    def owner_only(name: str, flags: int) -> int:
        handle = os.open(name, flags, 0o600)
        check_is_file(handle, name)
        return handle

    file = io.FileIO(path, "r+" if path.exists() else "x+", opener=owner_only)
    os.chmod(path, 0o600)
    return file


def _write(file: io.FileIO, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while len(rest):
        rest = rest[file.write(rest) :]


def _read(file: io.FileIO, length: int) -> bytes:
    """This many bytes, or fewer at the end of the file."""
    pieces = []
    while length and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unfit(path: Path, found: bytes, name: bytes, clients: int) -> str:
    """Why a file with this header cannot be used."""
    begin = _unchecked(found)
    if begin is not None and len(begin) == BEGIN.size:
        its_name, version, its_clients = BEGIN.unpack(begin)
        if its_name == name and version != VERSION:
            return f"{path} has format version {version}, this fedrank reads {VERSION}; use the fedrank that wrote it"
        if its_name == name and its_clients != clients:
            return (
                f"{path} was made for {its_clients} clients, not for {clients}, so its rows mean other people. "
                "Run it with the spec it was made with, or start the new spec in another folder"
            )
    if name == CHANGES:
        return f"{path} lacks the header of a change log; delete it, and its rounds will be run and charged again"
    return (
        f"{path} lacks the header of a ledger, so what was spent cannot be read. Restore it from a copy; without one, "
        "treat the privacy of all clients of this run as spent, and start a new run in another folder"
    )
