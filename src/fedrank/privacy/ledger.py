"""The ledger of a run: who took part in which round, so that nobody's privacy is spent twice and booked once.

Two files lie in its folder. `participants.log` is only ever appended to and stays for ever; `changes.log` holds the
noised changes since the last checkpoint, so that a crash does not cost the clients those rounds a second time.

Both begin with `BEGIN` (what file this is, version, number of clients, checksum). Records follow, little-endian:
`HEAD` (kind, round, place, bytes of payload), its CRC-32, the payload, and the payload's CRC-32. Kinds:

    some  reserved for some clients; payload: a bit for each client (numpy.packbits)
    all   reserved for every client; no payload
    back  reservations given back; payload: the offset of each one's record (uint64)
    keep  the change of a round (float64); place: the offset of its reservation in participants.log

Where charges are not rounds of one run, `charges.log` takes the place of both: records of kind `cost`, each with a text
that says what was charged (`fedrank.privacy.population: Charge`).

The order of steps makes it safe: a reservation is on the disk before anything is sent, a change is written before
anything uses it, and only a clean stop takes a reservation back. So a crash can only make the ledger say too much.
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
BEGIN = struct.Struct("<16sIQ")  # name of the format, version, clients
HEAD = struct.Struct("<4sQQQ")  # kind, round, place, bytes of payload
CRC = struct.Struct("<I")
SOME, ALL, BACK, KEEP, COST = b"some", b"all\0", b"back", b"keep", b"cost"
COHORTS, CHANGES, CHARGES = b"fedrank cohorts\n", b"fedrank changes\n", b"fedrank charges\n"  # names of the formats
SLACK = 4 << 20  # bytes: changes.log is not rewritten to save less than this
CHUNK = 1 << 20  # bytes
PARTICIPANTS, CHANGED, CHARGED = "participants.log", "changes.log", "charges.log"
_WITHOUT_PAYLOAD = HEAD.size + CRC.size + CRC.size  # bytes of a record


class LedgerError(ValueError):
    """The ledger cannot be trusted, or would no longer be right."""


class KeptRound(NamedTuple):
    """A finished round that can be used again without asking anybody."""

    cohort: NDArray[np.int64]  # rows of the clients that took part, ascending
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
    """A file of checked records that is only appended to."""

    def __init__(self, path: Path, name: bytes, clients: int, write: bool = True) -> None:
        self.path = path
        self.begin = _checked(BEGIN.pack(name, VERSION, clients))
        self.file = _private(path) if write else cast(io.FileIO, opened(path).detach())
        self.size = os.fstat(self.file.fileno()).st_size
        found = _read(self.file, len(self.begin))
        if found != self.begin:
            # Creating the file had not ended, so it holds nothing yet: a beginning of ours, or space never written to.
            # A log that is only read was created long ago, and has lost its records if it is shorter than that.
            if not write or self.size > len(found) or (found != self.begin[: len(found)] and any(found)):
                self.file.close()
                raise LedgerError(_unfit(path, found, name, clients))
            self.file.seek(0)
            _write(self.file, self.begin)
            self.file.truncate(len(self.begin))
            self.sync()
            self.size = len(self.begin)
        self.end = len(self.begin)  # of what is known to be whole

    def records(self) -> Iterator[_Record]:
        """Read from the beginning up to the first record that is not whole; `end` is then where it starts."""
        while (record := self.read(self.end)) is not None:
            self.end = record.end
            yield record

    def read(self, at: int) -> _Record | None:
        """One record; None where there is no whole one."""
        head = self.head(at)
        if head is None:
            return None
        kind, round, offset, length = head
        payload = _unchecked(_read(self.file, length + CRC.size))
        return None if payload is None else _Record(at, kind, round, offset, payload)

    def head(self, at: int) -> tuple[bytes, int, int, int] | None:
        """Kind, round, place and length of the record at an offset; None where the file does not hold all of it."""
        if at > self.size:  # a place that somebody made up, and that no file can have
            return None
        self.file.seek(at)
        head = _unchecked(_read(self.file, HEAD.size + CRC.size))
        if head is None or len(head) < HEAD.size:
            return None
        kind, round, offset, length = HEAD.unpack(head)
        return (kind, round, offset, length) if at + _WITHOUT_PAYLOAD + length <= self.size else None

    def torn(self) -> bool:
        """Whether what lies behind `end` is a record whose writing was cut short, and nothing else.

        Such a record lacks its end: the file stops before it, or (after a power cut some file systems have grown a file
        without filling it) has only zeros from its checksum on. The head has a checksum of its own; otherwise a damaged
        length would look just like a file that stops too early, and hide all records behind it.
        """
        self.file.seek(self.end)
        head = _unchecked(_read(self.file, HEAD.size + CRC.size))
        last = self.end + HEAD.size  # of the last checksum that must be there
        if head is not None and len(head) == HEAD.size:
            last += CRC.size + HEAD.unpack(head)[3]
        if last + CRC.size > self.size:
            return True
        self.file.seek(last)
        return not any(any(chunk) for chunk in iter(lambda: self.file.read(CHUNK), b""))

    def cut(self) -> None:
        """Drop what lies behind `end`."""
        self.file.truncate(self.end)
        self.size = self.end
        self.sync()

    def append(self, kind: bytes, round: int, offset: int, payload: bytes | memoryview = b"") -> int:
        """Write a record that outlives this process; whether it outlives a power cut, `sync` decides."""
        at, length, crc = self.end, len(payload), zlib.crc32(payload)
        self.file.seek(at)
        parts = [_checked(HEAD.pack(kind, round, offset, length)), payload, CRC.pack(crc)]
        if length < CHUNK:  # one call costs less than three; only large payloads cost more to copy
            parts = [b"".join(parts)]
        for part in parts:
            _write(self.file, part)
        self.end = self.size = at + _WITHOUT_PAYLOAD + length
        return at

    def sync(self) -> None:
        os.fsync(self.file.fileno())

    def rewrite(self, records: Iterable[tuple[int, int]]) -> list[int]:
        """Keep only the records at these (beginning, end), durably and all at once; returns where they begin now."""
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
    """Who was charged how often, according to `participants.log`."""

    def __init__(self, log: _Log | None, clients: int) -> None:
        self.clients, self.rounds = clients, 0
        self.by_round: Counter[int] = Counter()  # how often each round is charged: again after every crash that took it
        self._log = log
        self._counts = np.zeros(clients, np.int64)  # charged to single clients
        self._everybody = 0  # charged to all of them

    @classmethod
    def read(cls, folder: Path, clients: int) -> Charges:
        """What a ledger says that others may be writing to at this moment; nothing is changed.

        A log that is missing, or shorter than `changes.log` shows that it was, is an error.
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
        """[clients]: how often each client is charged."""
        return self._counts + self._everybody

    @property
    def lost(self) -> int:
        """Rounds that were charged again, because a crash took them."""
        return self.rounds - len(self.by_round)

    def take(self, record: _Record) -> None:
        """Count one more record of the log."""
        if record.kind == BACK:
            for offset in np.frombuffer(record.payload, "<u8"):
                self.take_back(int(offset))
        else:
            self._charge(record, 1)

    def add(self, round: int, rows: NDArray[np.int64]) -> None:
        """Count a round that is about to be written."""
        if len(rows) == self.clients:
            self._everybody += 1
        else:
            self._counts[rows] += 1
        self._count(round, 1)

    def take_back(self, offset: int) -> None:
        record = None if self._log is None else self._log.read(offset)
        if record is None:
            raise self.untrusted(f"gives back a reservation at byte {offset} that is not there")
        self._charge(record, -1)

    def _charge(self, record: _Record, times: int) -> None:
        bits = (self.clients + 7) // 8
        if record.kind == ALL and not record.payload:
            self._everybody += times
        elif record.kind == SOME and len(record.payload) == bits:
            mask = np.unpackbits(np.frombuffer(record.payload, np.uint8), count=self.clients)
            np.add(self._counts, times, out=self._counts, where=mask.view(np.bool_))
        else:
            raise self.untrusted(f"holds something unknown at byte {record.at} ({record.kind!r})")
        self._count(record.round, times)

    def _count(self, round: int, times: int) -> None:
        self.rounds += times
        self.by_round[round] += times
        if not self.by_round[round]:
            del self.by_round[round]

    def check_all_found(self, changes: Mapping[int, int]) -> None:
        """Raise where a change has no reservation in the log; `changes`: place of the reservation -> round."""
        for offset, round in changes.items():
            raise self.untrusted(
                f"does not hold the reservation of round {round}, which {CHANGED} places at byte {offset}: it was "
                "shortened or exchanged"
            )

    def untrusted(self, what: str) -> LedgerError:
        return _untrusted("the ledger" if self._log is None else self._log.path, what)


class Ledger:
    """Append-only record of who took part in which round, which survives crashes and never says too little.

    A round is charged to its cohort from `reserve` on. After a crash every reservation without a kept change stays
    charged, since its messages may have been sent; such a round has to be reserved anew and is then charged twice.
    Only counters are held in memory, never the cohorts. One process at a time: the run folder has the lock.
    """

    def __init__(self, participants: _Log, changes: _Log, clients: int) -> None:
        self.clients = clients
        self._participants, self._changes = participants, changes
        self._charges = Charges(participants, clients)
        self._pending: dict[int, int] = {}  # round -> its reservation in participants.log
        self._begun: set[int] = set()  # pending rounds of which something may have been sent
        self._kept: dict[int, tuple[int, int]] = {}  # round -> beginning and end of its record in changes.log
        self._last = 0  # the last round kept since `open`
        self._broken = False

    @classmethod
    def open(cls, folder: Path, clients: int) -> Ledger:
        """Create a ledger, or read what is there; only the owner may read its files, since a cohort may be secret."""
        if clients < 1:
            raise ValueError(f"a ledger for {clients} clients has nobody to charge; give at least 1")
        folder = Path(folder).absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            participants = _Log(folder / PARTICIPANTS, COHORTS, clients)
            opened.callback(participants.file.close)
            changes = _Log(folder / CHANGED, CHANGES, clients)
            opened.callback(changes.file.close)
            # A file that its folder does not know after a power cut would be a reservation forgotten.
            sync(folder)
            for above in folder.parents:
                with contextlib.suppress(OSError):  # not ours to open
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
        """Close the files; gives nothing back."""
        try:
            self._participants.file.close()
        finally:
            self._changes.file.close()

    def reserve(self, cohorts: Mapping[int, NDArray[np.int64]]) -> None:
        """Charge rounds to the clients that will take part; nothing of these rounds may be sent before this returns.

        Changes kept from the first of these rounds on no longer count: they followed from a model that is now replaced.
        Rounds that were reserved before and come later may still be kept, but `open` cannot tell their changes from
        such ones and drops them, so that they are charged again: too much, never too little. Reserve in order.
        """
        rounds = sorted(cohorts)
        for round in rounds:
            self._check(round, cohorts[round])
        if not rounds:
            return
        if rounds[0] in self._kept:
            raise ValueError(
                f"round {rounds[0]} has a kept change, reserving it would charge its clients again for nothing; "
                f"use kept({rounds[0]}) and reserve the rounds after the last kept one"
            )
        with self._writing():
            offsets = {}
            for round in rounds:
                rows = np.asarray(cohorts[round], np.int64)
                # Counted first: whatever goes wrong from here on, the counters say too much rather than too little.
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
        """Rows, ascending, of a round that is reserved since `open`, not yet kept and not given back."""
        return self._cohort(self._pending[round]) if round in self._pending else None

    def begun(self, round: int) -> None:
        """Say that messages of a reserved round are about to be sent: whatever becomes of it, it is never given back.

        Costs nothing (memory only): after a crash all reservations stay charged anyway.
        """
        if round not in self._pending:
            raise LedgerError(self._not_reserved(round))
        self._begun.add(round)

    def keep(self, round: int, change: NDArray[np.float64]) -> None:
        """Write the noised change of a reserved round, before anything uses it.

        It survives the end of this process, but is not forced to the disk: where a power cut takes it, the round has to
        be reserved and charged again.
        """
        if round not in self._pending:
            raise LedgerError(self._not_reserved(round))
        values = np.ascontiguousarray(change, "<f8")
        if values.ndim != 1:
            raise ValueError(f"the change of round {round} has {values.ndim} dimensions; a ledger keeps a flat one")
        with self._writing():
            at = self._changes.append(KEEP, round, self._pending[round], values.data.cast("B") if values.size else b"")
            self._kept[round] = (at, self._changes.end)
            del self._pending[round]
            self._begun.discard(round)
            self._last = max(self._last, round)

    def kept(self, round: int) -> KeptRound | None:
        """A finished round after the last checkpoint: to be used again after a crash, which costs nobody anything."""
        if round not in self._kept:
            return None
        record = self._changes.read(self._kept[round][0])
        if record is None:
            raise LedgerError(
                f"{self._changes.path}: the change of round {round} has been damaged since it was written"
            )
        return KeptRound(self._cohort(record.offset), np.frombuffer(record.payload, "<f8").astype(np.float64))

    def give_back(self) -> None:
        """At a clean stop: rounds reserved after the last kept one, and never begun, no longer count.

        Only to be called when no round is under way.
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
        """A durable checkpoint covers all rounds up to this one: their changes may go, their participants never do."""
        for old in [kept for kept in self._kept if kept <= round]:
            del self._kept[old]
        live = sum(end - at for at, end in self._kept.values())
        waste = self._changes.end - len(self._changes.begin) - live
        # As much goes as has to be copied, at least: over a run, a byte is copied once on average.
        if waste < max(live, SLACK):
            return
        with self._writing():
            old_offsets = sorted(self._kept.items(), key=lambda item: item[1])
            new_offsets = self._changes.rewrite(offset for _, offset in old_offsets)
            self._kept = {
                kept: (new, new + end - at) for (kept, (at, end)), new in zip(old_offsets, new_offsets, strict=True)
            }

    def participations(self) -> NDArray[np.int64]:
        """[clients]: how often each client is charged."""
        return self._charges.participations

    def rounds(self) -> int:
        """How many rounds are charged; one that was reserved again after a crash counts again."""
        return self._charges.rounds

    def times(self, round: int) -> int:
        """How often a round is charged."""
        return self._charges.by_round[round]

    def _load(self) -> None:
        """Derive the totals from the log, and find the changes that can still be used."""
        changes = {record.offset: (record.round, record.at, record.end) for record in self._changes.records()}
        if self._changes.end < self._changes.size:
            # Changes are not forced to the disk, so a power cut may lose any of them, and the later ones followed from
            # the lost one. Dropping them never says too little: what is charged stands in participants.log alone.
            if not self._changes.torn():
                warnings.warn(
                    f"{self._changes.path} is damaged from byte {self._changes.end} on (a power cut can do that): "
                    "the rounds from there on will be run, and charged, again",
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
            # Cutting off a record that was cut short never says too little: its writing had not ended, so the `reserve`
            # that wrote it had not returned and nothing was sent; or it was a `give_back`, and its rounds stay charged.
            # Any other damage may hide rounds that were sent.
            if not self._participants.torn():
                raise self._charges.untrusted(f"is damaged at byte {self._participants.end}")
            self._participants.cut()
        self._charges.check_all_found({offset: round for offset, (round, _, _) in changes.items()})
        # What a process that was killed left in the system's memory, and is counted now, must not vanish later.
        self._participants.sync()

    def _cohort(self, offset: int) -> NDArray[np.int64]:
        record = self._participants.read(offset)
        if record is None:
            raise self._charges.untrusted(f"has been damaged at byte {offset} since it was written")
        if record.kind == ALL:
            return np.arange(self.clients, dtype=np.int64)
        bits = np.unpackbits(np.frombuffer(record.payload, np.uint8), count=self.clients)
        return np.flatnonzero(bits).astype(np.int64)

    def _check(self, round: int, cohort: NDArray[np.int64]) -> None:
        if round < 1:
            raise ValueError(f"round {round} cannot be reserved: rounds count from 1")
        if round in self._pending and round not in self._begun:
            raise ValueError(
                f"round {round} is reserved already, reserving it again would charge its clients twice; "
                f"run it with reserved({round}), or call give_back() first"
            )
        rows = np.asarray(cohort)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise ValueError(
                f"the cohort of round {round} has shape {rows.shape} and type {rows.dtype}; "
                "give the row numbers of its clients, as one flat array of whole numbers"
            )
        if rows.size and not (rows.min() >= 0 and rows.max() < self.clients):
            raise ValueError(
                f"the cohort of round {round} goes from row {rows.min()} to {rows.max()}, "
                f"but this ledger is for rows 0 to {self.clients - 1}"
            )
        mask = np.zeros(self.clients, np.bool_)
        mask[rows.astype(np.int64)] = True
        if np.count_nonzero(mask) != rows.size:
            raise ValueError(
                f"the cohort of round {round} names a client twice, but charges it only once; name each client once"
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """After a failed write nobody knows what is on the disk, so nothing may be built on it."""
        if self._broken:
            raise LedgerError(
                f"an earlier write to {self._participants.path.parent} failed or was interrupted; "
                "stop here and open the ledger again, which puts it in order"
            )
        self._broken = True
        yield
        self._broken = False

    def _not_reserved(self, round: int) -> str:
        if round in self._kept:
            return f"round {round} is kept already; use kept({round}) instead of running it again"
        return f"round {round} is not reserved, so its clients are not charged; call reserve before anything is sent"


def is_charged(folder: Path) -> bool:
    """Whether a log in this folder holds records, of whatever kind."""
    logs = (Path(folder) / name for name in (PARTICIPANTS, CHANGED, CHARGED))
    return any(log.exists() and log.stat().st_size > BEGIN.size + CRC.size for log in logs)


def _reserved_by_changes(path: Path, clients: int) -> dict[int, int]:
    """Place in `participants.log` -> round, for every change in this file, up to one that is not whole.

    Changes may be lost, since their rounds are then charged again; so a file that is missing or damaged says nothing.
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
        f"{where} {what}. It is the only record of what was spent. "
        "Restore it from a copy made after the last round; without one, treat the privacy of all its clients "
        "as spent, keep the files, and start a new run in another folder"
    )


def begin_charges(folder: Path) -> None:
    """An empty `charges.log`, on the disk, where there is none."""
    path = Path(folder) / CHARGED
    with _Log(path, CHARGES, 0).file:
        # A file that its folder does not know after a power cut would be charges forgotten.
        for each in (path.parent, *path.parent.absolute().parents[:2]):
            sync(each)


def read_charges(folder: Path) -> list[bytes]:
    """What `charges.log` says, charge by charge, while others may be writing to it; nothing is changed."""
    log = _Log(Path(folder) / CHARGED, CHARGES, 0, write=False)
    with log.file:
        return _costs(log)


def add_charge(folder: Path, text: bytes) -> None:
    """Add to `charges.log`; it is on the disk when this returns. Only for whoever holds the lock of the ledger."""
    log = _Log(Path(folder) / CHARGED, CHARGES, 0)
    with log.file:
        _costs(log)
        if log.end < log.size:  # its writing had not ended, so that nothing followed from it
            log.cut()
        log.append(COST, 0, 0, text)
        log.sync()


def _costs(log: _Log) -> list[bytes]:
    """All records up to the end, or up to one whose writing was cut short."""
    found = list(log.records())
    unknown = [record.at for record in found if record.kind != COST]
    if unknown or (log.end < log.size and not log.torn()):
        at = unknown[0] if unknown else log.end
        raise LedgerError(
            f"{log.path} is damaged at byte {at}, so that more may have been spent than we know; restore it from a "
            "copy that has the last charge, and let nothing leave until then"
        )
    return [record.payload for record in found]


def _checked(content: bytes) -> bytes:
    return content + CRC.pack(zlib.crc32(content))


def _unchecked(content: bytes) -> bytes | None:
    """The content in front of its checksum; None where that does not fit."""
    if len(content) < CRC.size:
        return None
    body = content[: -CRC.size]
    return body if CRC.pack(zlib.crc32(body)) == content[-CRC.size :] else None


def _private(path: Path) -> io.FileIO:
    """Open for reading and writing, create if need be; nobody but the owner may read it.

    Without a buffer: half a record left in one after a failure would be written later, over something else.
    """

    def for_us(name: str, flags: int) -> int:
        handle = os.open(name, flags, 0o600)
        check_is_file(handle, name)
        return handle

    file = io.FileIO(path, "r+" if path.exists() else "x+", opener=for_us)
    os.chmod(path, 0o600)
    return file


def _write(file: io.FileIO, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while len(rest):
        rest = rest[file.write(rest) :]


def _read(file: io.FileIO, length: int) -> bytes:
    """That many bytes, or fewer at the end of the file."""
    pieces = []
    while length and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unfit(path: Path, found: bytes, name: bytes, clients: int) -> str:
    """Why a file that begins like this cannot be used."""
    begin = _unchecked(found)
    if begin is not None and len(begin) == BEGIN.size:
        its_name, version, its_clients = BEGIN.unpack(begin)
        if its_name == name and version != VERSION:
            return (
                f"{path} has version {version} of the format, this fedrank reads {VERSION}; use the one that wrote it"
            )
        if its_name == name and its_clients != clients:
            return (
                f"{path} was made for {its_clients} clients, not for {clients}: its rows mean other people. "
                "Run it with the spec it was made with, or start the new spec in another folder"
            )
    if name == CHANGES:
        return f"{path} does not begin like one of ours; delete it, and its rounds will be run, and charged, again"
    return (
        f"{path} does not begin like a ledger, so what was spent cannot be read. Restore it from a copy; without one, "
        "treat the privacy of all clients of this run as spent, and start a new run in another folder"
    )
