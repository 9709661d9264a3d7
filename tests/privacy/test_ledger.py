"""The ledger: what it charges, and that no crash makes it charge less."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedrank.privacy import ledger as module
from fedrank.privacy.ledger import Ledger, LedgerError
from tests import needs

RECORD = 28 + 4 + 4  # bytes of a record without payload: head, its checksum, the payload's checksum
BEGIN = 28 + 4  # bytes in front of the first record


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


# By hand


def test_charges_are_counted_per_client(tmp_path):
    with Ledger.open(tmp_path / "ledger", 4) as ledger:
        ledger.reserve({1: rows(0, 2), 2: rows(2, 3), 3: rows(3, 1, 0, 2), 4: rows()})
        assert ledger.participations().tolist() == [1 + 1, 1, 1 + 1 + 1, 1 + 1]
        assert ledger.rounds() == 4
        assert ledger.reserved(2).tolist() == [2, 3]
        assert ledger.reserved(3).tolist() == [0, 1, 2, 3]
        assert ledger.reserved(4).tolist() == []
        assert ledger.reserved(5) is None


def test_a_kept_change_comes_back_bit_for_bit(tmp_path):
    odd = np.array([0.1, -0.0, 5e-324, np.inf, -np.inf, np.nan, 1 / 3])
    odd.view(np.uint64)[5] |= 0x123  # a NaN with something in it
    large = np.random.default_rng(1).normal(size=200_000)  # longer than what is written in one piece
    with Ledger.open(tmp_path, 9) as ledger:
        ledger.reserve({7: rows(8, 1), 8: np.arange(9), 9: rows(0)})
        ledger.keep(7, odd)
        assert ledger.reserved(7) is None
        ledger.keep(8, large)
        ledger.keep(9, np.zeros(0))
        assert ledger.kept(8).change.tobytes() == large.tobytes()
    with Ledger.open(tmp_path, 9) as again:
        assert again.kept(7).cohort.tolist() == [1, 8]
        assert again.kept(7).change.tobytes() == odd.tobytes()
        assert again.kept(8).cohort.tolist() == list(range(9))
        assert again.kept(8).change.tobytes() == large.tobytes()
        assert again.kept(9).change.shape == (0,)
        assert again.kept(10) is None
        assert again.participations().tolist() == [1 + 1, 1 + 1, 1, 1, 1, 1, 1, 1, 1 + 1]  # replaying costs nothing
        again.kept(7).change[0] = 2  # the caller's own copy
        assert again.kept(7).change.tobytes() == odd.tobytes()


def test_after_a_crash_an_unfinished_round_stays_charged_and_is_charged_again(tmp_path):
    with Ledger.open(tmp_path, 3) as ledger:
        ledger.reserve({1: rows(0, 1), 2: rows(1)})
        ledger.keep(1, np.ones(2))
    with Ledger.open(tmp_path, 3) as ledger:
        assert ledger.reserved(2) is None
        with pytest.raises(LedgerError, match="round 2 is not reserved"):
            ledger.keep(2, np.ones(2))
        ledger.give_back()  # nothing that the crash left may be given back
        ledger.reserve({2: rows(1, 2)})
        assert ledger.reserved(2).tolist() == [1, 2]
        assert ledger.participations().tolist() == [1, 1 + 1 + 1, 1]
        assert ledger.rounds() == 3
    with Ledger.open(tmp_path, 3) as ledger:
        assert ledger.participations().tolist() == [1, 1 + 1 + 1, 1]


def test_a_clean_stop_gives_back_what_was_never_begun(tmp_path):
    with Ledger.open(tmp_path, 3) as ledger:
        ledger.reserve({1: rows(0), 2: rows(1), 3: rows(2), 4: rows(0, 1, 2), 5: rows(0, 1)})
        ledger.keep(1, np.ones(2))
        ledger.keep(3, np.ones(2))  # round 2 was left out: perhaps it failed after its messages were sent
        ledger.give_back()
        assert ledger.participations().tolist() == [1, 1, 1]
        assert ledger.rounds() == 3
        assert ledger.reserved(4) is None
        ledger.reserve({4: rows(0)})
    with Ledger.open(tmp_path, 3) as ledger:
        assert ledger.participations().tolist() == [1 + 1, 1, 1]
        assert ledger.rounds() == 4
        assert ledger.kept(3).cohort.tolist() == [2]


def test_a_round_that_was_begun_is_never_given_back(tmp_path):
    with Ledger.open(tmp_path, 3) as ledger:
        ledger.reserve({1: rows(0), 2: rows(1)})
        ledger.begun(1)
        ledger.reserve({1: rows(0, 2)})  # tried again with others
        ledger.give_back()
        assert ledger.participations().tolist() == [1, 0, 0]
        with pytest.raises(LedgerError, match="round 2 is not reserved"):
            ledger.begun(2)
        ledger.reserve({1: rows(2)})
        ledger.begun(1)
        ledger.give_back()
    with Ledger.open(tmp_path, 3) as ledger:
        assert ledger.participations().tolist() == [1, 0, 1]


def test_changes_of_a_replaced_model_are_not_used(tmp_path):
    with Ledger.open(tmp_path, 2) as ledger:
        ledger.reserve({1: rows(0), 2: rows(0), 3: rows(0)})
        for round in (1, 2, 3):
            ledger.keep(round, np.full(2, round))
        ledger.forget(1)
        ledger.reserve({1: rows(1)})  # the checkpoint was lost: the run begins again
        assert ledger.kept(2) is None
        assert ledger.kept(3) is None
    with Ledger.open(tmp_path, 2) as ledger:
        assert [ledger.kept(round) for round in (1, 2, 3)] == [None, None, None]
        assert ledger.participations().tolist() == [3, 1]


def test_forgetting_shrinks_the_changes_and_never_the_participants(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SLACK", 1000)
    with Ledger.open(tmp_path, 5) as ledger:
        ledger.reserve({round: rows(round % 5) for round in range(1, 11)})
        for round in range(1, 11):
            ledger.keep(round, np.full(50, round / 3))
        before = (tmp_path / "participants.log").read_bytes()
        one = RECORD + 8 * 50
        ledger.forget(2)
        assert (tmp_path / "changes.log").stat().st_size == BEGIN + 10 * one  # two records save less than 1000 bytes
        ledger.forget(4)
        assert (tmp_path / "changes.log").stat().st_size == BEGIN + 10 * one  # copying six to drop four does not pay
        ledger.forget(7)
        assert (tmp_path / "changes.log").stat().st_size == BEGIN + 3 * one
        assert ledger.kept(7) is None
        assert ledger.kept(8).change.tolist() == [8 / 3] * 50
        ledger.reserve({11: rows(4)})
        ledger.keep(11, np.full(50, 11 / 3))
    assert stat.S_IMODE((tmp_path / "changes.log").stat().st_mode) == 0o600
    assert (tmp_path / "participants.log").read_bytes().startswith(before)
    with Ledger.open(tmp_path, 5) as ledger:
        assert ledger.kept(7) is None
        for round in (8, 9, 10, 11):
            assert ledger.kept(round).cohort.tolist() == [round % 5 if round < 11 else 4]
            assert ledger.kept(round).change.tolist() == [round / 3] * 50
        assert ledger.participations().tolist() == [2, 2, 2, 2, 2 + 1]
        ledger.forget(11)  # 4 records are all that is left, and more than 1000 bytes
        assert (tmp_path / "changes.log").stat().st_size == BEGIN


def test_only_the_owner_may_read(tmp_path):
    old = os.umask(0)
    try:
        Ledger.open(tmp_path / "ledger", 3).close()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "ledger").stat().st_mode) == 0o700
    for name in ("participants.log", "changes.log"):
        assert stat.S_IMODE((tmp_path / "ledger" / name).stat().st_mode) == 0o600
    (tmp_path / "ledger" / "participants.log").chmod(0o644)  # as a copy may come back
    Ledger.open(tmp_path / "ledger", 3).close()
    assert stat.S_IMODE((tmp_path / "ledger" / "participants.log").stat().st_mode) == 0o600


def test_cohorts_are_not_held_in_memory(tmp_path):
    import tracemalloc

    clients, rounds = 100_000, 200
    half = np.arange(0, clients, 2)
    with Ledger.open(tmp_path, clients) as ledger:
        tracemalloc.start()
        ledger.reserve(dict.fromkeys(range(1, rounds + 1), half))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < rounds * clients / 8 / 10  # a tenth of the bitmaps
    with Ledger.open(tmp_path, clients) as ledger:
        assert ledger.participations()[:3].tolist() == [rounds, 0, rounds]


# Order of steps


def test_reserve_returns_only_when_its_record_is_on_the_disk(tmp_path, monkeypatch):
    synced: list[tuple[str, int]] = []
    real = os.fsync

    def watched(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((path.name, path.stat().st_size))
        real(handle)

    if not Path("/proc/self/fd").exists():
        needs.skip("system", "/proc is missing")
    monkeypatch.setattr(os, "fsync", watched)
    with Ledger.open(tmp_path / "ledger", 16) as ledger:
        names = [name for name, _ in synced]
        assert names.index("participants.log") < names.index("ledger") < names.index(tmp_path.name)
        synced.clear()
        ledger.reserve({1: rows(3), 2: np.arange(16)})
        assert synced == [
            ("participants.log", BEGIN + (RECORD + 16 // 8) + RECORD)
        ]  # once for the block, and all of it
        synced.clear()
        ledger.keep(1, np.ones(3))
        assert synced == []
        assert (
            tmp_path / "ledger" / "changes.log"
        ).stat().st_size == BEGIN + RECORD + 8 * 3  # a killed process keeps it
        ledger.give_back()
        assert [name for name, _ in synced] == ["participants.log"]


@pytest.mark.parametrize("step", ["reserve", "give_back"])
def test_after_a_failed_write_nothing_goes_on(tmp_path, monkeypatch, step):
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with Ledger.open(tmp_path, 2) as ledger:
        ledger.reserve({1: rows(0), 2: rows(1)})
        ledger.keep(1, np.ones(1))
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space left"):
                ledger.reserve({3: rows(0)}) if step == "reserve" else ledger.give_back()
        assert ledger.participations().tolist() == ([1 + 1, 1] if step == "reserve" else [1, 1])
        assert ledger.reserved(3) is None
        with pytest.raises(LedgerError, match="open the ledger again"):
            ledger.keep(2, np.ones(1))
        with pytest.raises(LedgerError, match="open the ledger again"):
            ledger.reserve({4: rows(0)})


# Crashes


def story(folder: Path) -> list[tuple[int, int, np.ndarray]]:
    """A life of a ledger; after each step: bytes of both files, and what was promised."""
    steps = []
    generator = np.random.default_rng(5)
    for life in range(3):
        with Ledger.open(folder, 11) as ledger:

            def note(ledger=ledger):
                sizes = [(folder / name).stat().st_size for name in ("participants.log", "changes.log")]
                steps.append((*sizes, ledger.participations()))

            note()
            first = 4 * life + 1
            ledger.reserve({r: np.flatnonzero(generator.random(11) < 0.4) for r in range(first, first + 3)})
            note()
            ledger.keep(first, generator.normal(size=3))
            note()
            ledger.reserve({first + 3: np.arange(11)})
            note()
            if life != 1:
                ledger.give_back()
                note()
    return steps


@pytest.mark.long
@pytest.mark.parametrize("rest", ["gone", "zeros"])
def test_cut_anywhere_the_participants_are_never_fewer_than_promised(tmp_path, monkeypatch, rest):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    steps = story(tmp_path / "whole")
    participants, changes = ((tmp_path / "whole" / name).read_bytes() for name in ("participants.log", "changes.log"))
    refused = 0
    for cut in range(BEGIN if rest == "zeros" else 0, len(participants) + 1):
        done = [step for step in steps if step[0] <= cut]
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        size = next((step[0] for step in steps if step[0] > cut), cut)  # as large as the step under way would make it
        (folder / "participants.log").write_bytes(participants[:cut] + (bytes(size - cut) if rest == "zeros" else b""))
        (folder / "changes.log").write_bytes(changes[: done[-1][1] if done else 0])
        try:
            with Ledger.open(folder, 11) as ledger:
                found = ledger.participations()
        except LedgerError:
            refused += 1
            continue
        promised = done[-1][2] if done else np.zeros(11, np.int64)
        assert (found >= promised).all(), cut
        if cut == (done[-1][0] if done else 0):
            assert (found == promised).all(), cut
        with Ledger.open(folder, 11) as ledger:  # what was cut off is gone, and what follows is found
            assert (ledger.participations() == found).all()
            ledger.reserve({99: rows(4)})
        with Ledger.open(folder, 11) as ledger:
            assert (ledger.participations() == found + np.eye(11, dtype=int)[4]).all()
    # With zeros behind it, half a checksum cannot be told from a damaged one: then it is better to ask.
    records = 3 * (3 + 1) + 2
    assert refused <= (2 * 3 * records if rest == "zeros" else 0)


def test_cut_anywhere_the_changes_cost_nothing_but_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    steps = story(tmp_path)
    content = (tmp_path / "changes.log").read_bytes()
    with Ledger.open(tmp_path, 11) as ledger:
        whole = {round: ledger.kept(round) for round in range(1, 15)}
    kept = [round for round in whole if whole[round] is not None]
    assert kept == [1, 5, 9]
    for cut in range(len(content) + 1):
        (tmp_path / "changes.log").write_bytes(content[:cut])
        with Ledger.open(tmp_path, 11) as ledger:
            assert (ledger.participations() == steps[-1][2]).all()
            there = max(0, cut - BEGIN) // (RECORD + 8 * 3)
            for round in kept[:there]:
                assert ledger.kept(round).change.tobytes() == whole[round].change.tobytes()
                assert ledger.kept(round).cohort.tolist() == whole[round].cohort.tolist()
            assert [ledger.kept(round) for round in kept[there:]] == [None] * (len(kept) - there)


def test_any_damaged_byte_of_the_participants_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    story(tmp_path)
    path = tmp_path / "participants.log"
    content = path.read_bytes()
    for at in range(len(content)):
        flip(path, at)
        with pytest.raises(LedgerError, match=r"participants\.log .*another folder"):
            Ledger.open(tmp_path, 11)
        assert len(path.read_bytes()) == len(content)  # nobody tidies up evidence
        path.write_bytes(content)
    Ledger.open(tmp_path, 11).close()


def test_damaged_changes_are_run_and_charged_again(tmp_path):
    with Ledger.open(tmp_path, 3) as ledger:
        ledger.reserve({round: rows(0, 1) for round in (1, 2, 3)})
        for round in (1, 2, 3):
            ledger.keep(round, np.full(4, round))
    flip(tmp_path / "changes.log", BEGIN + RECORD + 8 * 4 + RECORD)
    with pytest.warns(RuntimeWarning, match=r"changes\.log is damaged from byte 100 on"):
        ledger = Ledger.open(tmp_path, 3)
    assert BEGIN + RECORD + 8 * 4 == 100
    with ledger:
        assert ledger.kept(1).change.tolist() == [1, 1, 1, 1]
        assert (ledger.kept(2), ledger.kept(3)) == (None, None)  # the third followed from the second
        assert ledger.participations().tolist() == [3, 3, 0]
    Ledger.open(tmp_path, 3).close()  # in order again, without a warning


def test_a_change_that_is_damaged_while_the_ledger_is_open_is_not_used(tmp_path):
    with Ledger.open(tmp_path, 3) as ledger:
        ledger.reserve({1: rows(0), 2: rows(1)})
        ledger.keep(1, np.ones(4))
        ledger.keep(2, np.ones(4))
        flip(tmp_path / "changes.log", BEGIN + RECORD)
        with pytest.raises(LedgerError, match=r"changes\.log: the change of round 1 was damaged after"):
            ledger.kept(1)
        assert ledger.kept(2).change.tolist() == [1, 1, 1, 1]


def test_participants_that_lost_a_finished_round_are_noticed(tmp_path):
    with Ledger.open(tmp_path, 3) as ledger:
        ledger.reserve({1: rows(0)})
        ledger.reserve({2: rows(1)})
        ledger.keep(1, np.ones(1))
        ledger.keep(2, np.ones(1))
    path = tmp_path / "participants.log"
    path.write_bytes(path.read_bytes()[: BEGIN + RECORD + 1])  # an older copy
    with pytest.raises(LedgerError, match="lacks the reservation of round 2"):
        Ledger.open(tmp_path, 3)
    path.unlink()
    with pytest.raises(LedgerError, match="lacks the reservation of round 1"):
        Ledger.open(tmp_path, 3)


KILLED = """
import sys
from pathlib import Path
import numpy as np
from fedrank.privacy.ledger import Ledger
ledger = Ledger.open(Path(sys.argv[1]), 4000)
first = int(sys.argv[2])
for round in range(first, first + 100000):
    cohort = np.flatnonzero(np.random.default_rng(round).random(4000) < 0.5)
    ledger.reserve({round: cohort})
    print("sent", round, flush=True)
    ledger.keep(round, np.full(1000, float(round)))
    print("used", round, flush=True)
"""


@pytest.mark.process
def test_a_killed_process_has_charged_whatever_it_sent(tmp_path):
    promised = np.zeros(4000, np.int64)
    first = 1
    for kill_after in (2, 25):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, tmp_path, str(first)], stdout=subprocess.PIPE, text=True
        )
        lines = [process.stdout.readline() for _ in range(kill_after)]
        process.kill()
        lines += process.stdout.readlines()
        process.stdout.close()
        process.wait()
        words = [line.split() for line in lines if line.endswith("\n")]
        for what, round in words:
            if what == "sent":
                promised[np.random.default_rng(int(round)).random(4000) < 0.5] += 1
        with Ledger.open(tmp_path, 4000) as ledger:
            missing = ledger.participations() - promised
            assert missing.min() >= 0
            assert missing.max() <= 1  # a round that was reserved but perhaps not sent
            promised = ledger.participations()
            used = [int(round) for what, round in words if what == "used"]
            assert used
            for round in used:
                assert ledger.kept(round).change.tolist() == [float(round)] * 1000
            first = max(used) + 3


# Against a plain model of it


class Lives(RuleBasedStateMachine):
    """Everything that can be done to a ledger, next to plain lists that never crash."""

    clients = 10
    number = st.integers(1, 8)

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp())
        self.fsync, os.fsync = os.fsync, lambda handle: None
        self.slack, module.SLACK = module.SLACK, 1
        self.charged: list[list[int]] = []
        self.records: list[int] = []  # rounds, in the order in which they were reserved
        self.position: dict[int, int] = {}  # of the last reservation of each round
        self.pending: dict[int, list[int]] = {}
        self.begun: set[int] = set()
        self.kept: dict[int, tuple[list[int], bytes]] = {}
        self.forgotten: dict[int, tuple[list[int], bytes]] = {}
        self.last = 0
        self.ledger = Ledger.open(self.folder, self.clients)

    def teardown(self):
        if hasattr(self, "ledger"):
            self.ledger.close()
            os.fsync, module.SLACK = self.fsync, self.slack
            shutil.rmtree(self.folder)

    @rule(first=number, cohorts=st.lists(st.sets(st.integers(0, 9)) | st.just(set(range(10))), min_size=1, max_size=4))
    def reserve(self, first, cohorts):
        block = {first + place: sorted(cohort) for place, cohort in enumerate(cohorts)}
        arrays = {round: np.array(cohort[::-1], np.int64) for round, cohort in reversed(block.items())}
        if first in self.kept or any(round in self.pending and round not in self.begun for round in block):
            with pytest.raises(ValueError, match="charge its clients"):
                self.ledger.reserve(arrays)
            return
        self.ledger.reserve(arrays)
        for round in block:
            self.position[round] = len(self.records)
            self.records.append(round)
        self.charged += block.values()
        self.pending |= block
        self.begun -= set(block)
        for stale in [round for round in self.kept | self.forgotten if round >= first]:
            self.kept.pop(stale, None)
            self.forgotten.pop(stale, None)

    @rule(round=number)
    def send(self, round):
        if round in self.pending:
            self.ledger.begun(round)
            self.begun.add(round)

    @rule(round=number, change=st.lists(st.floats(), max_size=6))
    def keep(self, round, change):
        if round not in self.pending:
            with pytest.raises(LedgerError):
                self.ledger.keep(round, np.array(change, float))
            return
        self.ledger.keep(round, np.array(change, float))
        self.kept[round] = self.pending.pop(round), np.array(change, float).tobytes()
        self.begun.discard(round)
        self.last = max(self.last, round)

    @rule(round=number)
    def forget(self, round):
        self.ledger.forget(round)
        for old in [old for old in self.kept if old <= round]:
            self.forgotten[old] = self.kept.pop(old)

    @rule()
    def give_back(self):
        self.ledger.give_back()
        for round, cohort in self.pending.items():
            if round > self.last and round not in self.begun:
                self.charged.remove(cohort)
        self.pending, self.begun = {}, set()

    @rule(torn=st.integers(0, RECORD + 1))
    def crash(self, torn):
        self.ledger.close()
        with (self.folder / "participants.log").open("ab") as file:  # a record that was never finished
            file.write(
                module._checked(module.HEAD.pack(module.SOME, 3, 0, 2))[:torn] + bytes(max(0, torn - RECORD + 4))
            )
        self.ledger = Ledger.open(self.folder, self.clients)
        self.pending, self.begun, self.last = {}, set(), 0
        for round in [*self.kept, *self.forgotten]:
            if any(
                later <= round for later in self.records[self.position[round] + 1 :]
            ):  # it may follow from an old model
                self.kept.pop(round, None)
                self.forgotten.pop(round, None)
        for round, old in self.forgotten.items():  # `forget` may drop a change, but need not do it at once
            if self.ledger.kept(round) is not None:
                self.kept[round] = old
        for round in self.kept:
            self.forgotten.pop(round, None)

    @invariant()
    def agrees(self):
        if not hasattr(self, "ledger"):
            return
        counts = [sum(client in cohort for cohort in self.charged) for client in range(self.clients)]
        assert self.ledger.participations().tolist() == counts
        assert self.ledger.rounds() == len(self.charged)
        for round in range(1, 13):
            reserved, kept = self.ledger.reserved(round), self.ledger.kept(round)
            assert (None if reserved is None else reserved.tolist()) == self.pending.get(round)
            assert (None if kept is None else (kept.cohort.tolist(), kept.change.tobytes())) == self.kept.get(round)


Lives.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestLives = Lives.TestCase


# Refusals


@pytest.mark.parametrize(
    ("cohorts", "message"),
    [
        ({0: rows(1)}, "round must be at least 1"),
        ({1: rows(0, 4)}, "rows 0 to 3"),
        ({1: rows(-1)}, "rows 0 to 3"),
        ({1: rows(2, 2)}, "names a client twice"),
        ({1: np.array([True, False, True, True])}, "array of integers"),
        ({1: np.array([0.5])}, "array of integers"),
        ({1: np.array([[0, 1]])}, "array of integers"),
    ],
)
def test_impossible_cohorts_are_refused_and_charge_nobody(tmp_path, cohorts, message):
    with Ledger.open(tmp_path, 4) as ledger:
        with pytest.raises(ValueError, match=message):
            ledger.reserve({9: rows(0), **cohorts})
        assert ledger.participations().tolist() == [0, 0, 0, 0]
        ledger.reserve({9: rows(0)})  # still in order
    with Ledger.open(tmp_path, 4) as ledger:
        assert ledger.participations().tolist() == [1, 0, 0, 0]


def test_a_change_must_be_flat(tmp_path):
    with Ledger.open(tmp_path, 2) as ledger:
        ledger.reserve({1: rows(0)})
        with pytest.raises(ValueError, match=r"one dimension \(got 2"):
            ledger.keep(1, np.ones((2, 2)))
        ledger.keep(1, np.ones(2))
        with pytest.raises(LedgerError, match="already stored"):
            ledger.keep(1, np.ones(2))


def test_a_ledger_of_others_is_refused(tmp_path):
    Ledger.open(tmp_path, 8).close()
    with pytest.raises(LedgerError, match="made for 8 clients, not for 9"):
        Ledger.open(tmp_path, 9)
    with pytest.raises(ValueError, match="at least 1"):
        Ledger.open(tmp_path, 0)
    path = tmp_path / "participants.log"
    path.write_bytes(module._checked(module.BEGIN.pack(module.COHORTS, 2, 8)))
    with pytest.raises(LedgerError, match="version 2"):
        Ledger.open(tmp_path, 8)
    path.write_bytes(b"something else")
    with pytest.raises(LedgerError, match="lacks the header of a ledger"):
        Ledger.open(tmp_path, 8)
    path.unlink()
    (tmp_path / "changes.log").write_bytes(b"something else")
    with pytest.raises(LedgerError, match="delete it"):
        Ledger.open(tmp_path, 8)
