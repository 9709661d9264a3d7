"""What was sent comes back bit by bit, whatever happens in between."""

from __future__ import annotations

import json
import os
import shutil
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.unlearning import history as module
from fedrank.unlearning.history import HEAD, History, HistoryError, HistoryWriter, size_beforehand

CLIENTS, PARAMETERS = 4, 3


def sent(number, clients=CLIENTS, parameters=PARAMETERS):
    """(round, ids, updates, weights) of a round; who takes part changes."""
    rng = np.random.default_rng(number)
    ids = np.sort(rng.choice(clients, size=rng.integers(1, clients + 1), replace=False))
    return number, ids, rng.normal(size=(len(ids), parameters)).astype(np.float32), rng.normal(size=parameters)


def record(folder, rounds, every=2, begin=0, stop_before=None, keep_at=()):
    """Rounds begin + 1 .. `rounds`; a crash just before round `stop_before`."""
    writer = HistoryWriter(folder, CLIENTS, PARAMETERS, every, begin)
    for number in range(begin + 1, rounds + 1):
        if number == stop_before:
            return
        if writer.wants(number):
            writer.add(*sent(number))
        if number in keep_at:
            writer.keep()
    writer.keep()


def assert_holds(folder, rounds, every=2):
    history = History.open(folder)
    expected = list(range(1, rounds + 1, every))
    assert [stored.round for stored in history] == expected
    assert len(history) == len(expected)
    assert history.last == (expected[-1] if expected else 0)
    for stored in history:
        _, ids, updates, weights = sent(stored.round)
        assert stored.ids.tolist() == ids.tolist()
        assert stored.updates.dtype == np.float32
        assert stored.updates.tobytes() == updates.tobytes()
        assert stored.weights.dtype == np.float64
        assert stored.weights.tobytes() == weights.tobytes()


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def raw(folder):
    """All bytes that chunks hold: byte planes put back into numbers."""
    found = b""
    for path in folder.glob("*.chunk"):
        content = path.read_bytes()
        _, rounds, weighed, rows, parameters = HEAD.unpack_from(content)
        body = zlib.decompress(content[HEAD.size :])
        at = 17 * rounds + 8 * rows
        for width, count in ((8, weighed), (4, rows)):
            plane = np.frombuffer(body[at : at + width * count * parameters], np.uint8)
            found += np.ascontiguousarray(plane.reshape(width, -1).T).tobytes()
            at += width * count * parameters
        assert at == len(body)
    return found


def test_every_second_round_comes_back_bit_by_bit(tmp_path):
    record(tmp_path, 201)
    assert_holds(tmp_path, 201)
    assert len(list(tmp_path.glob("*.chunk"))) == 4  # 101 stored rounds, 32 to a chunk: 32 + 32 + 32 + 5


def test_special_numbers_survive(tmp_path):
    updates = np.array([[np.inf, -0.0, np.nan]], dtype=np.float32)
    with HistoryWriter(tmp_path, 1, 3, 1) as writer:
        writer.add(1, np.array([7]), updates, np.array([-0.0, 5e-324, np.inf]))
    (stored,) = History.open(tmp_path)
    assert stored.updates.tobytes() == updates.tobytes()
    assert stored.ids.tolist() == [7]
    assert np.signbit(stored.weights[0])
    assert stored.weights[1] == 5e-324


def test_what_the_writer_was_given_may_change_afterwards(tmp_path):
    number, ids, updates, weights = sent(1)
    with HistoryWriter(tmp_path, CLIENTS, PARAMETERS, 2) as writer:
        copies = ids.copy(), updates.copy(), weights.copy()
        writer.add(number, *copies)
        for copy in copies:
            copy[:] = 0
    assert_holds(tmp_path, 1)


def test_a_round_without_anybody(tmp_path):
    with HistoryWriter(tmp_path, 2, 3, 1) as writer:
        writer.add(1, np.zeros(0, dtype=np.int64), np.zeros((0, 3), dtype=np.float32), np.ones(3))
    (stored,) = History.open(tmp_path)
    assert stored.updates.shape == (0, 3)


@settings(max_examples=15, deadline=None)
@given(
    rounds=st.integers(1, 150),
    every=st.integers(1, 4),
    stops=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 40)), max_size=3),
)
def test_stopped_runs_leave_the_same_bytes(tmp_path_factory, rounds, every, stops):
    """Each stop: the last checkpoint, and how many rounds later the crash comes."""
    once, often = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("often")
    record(once, rounds, every)
    begin = 0
    for checkpoint, more in sorted(stops):
        if begin <= checkpoint < rounds:
            record(often, rounds, every, begin, stop_before=checkpoint + more + 1, keep_at=(checkpoint,))
            begin = checkpoint
    record(often, rounds, every, begin)
    assert files(often) == files(once)
    assert_holds(often, rounds, every)


class Killed(BaseException):
    pass


@pytest.mark.long
def test_a_crash_at_any_step_on_the_disk_loses_nothing_that_was_kept(tmp_path, monkeypatch):
    """Chunks of three rounds; the process dies before or after each of its steps on the disk."""
    monkeypatch.setattr(module, "ROUNDS_IN_CHUNK", 3)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a hundred crashes need no disk
    rounds, kept = 11, 7  # with every = 1: chunks of rounds 1-3, 4-6, 7-9, 10-11; the checkpoint lies within one
    whole = tmp_path / "whole"
    record(whole, rounds, 1)
    before, path_type = tmp_path / "before", type(tmp_path)
    steps = [(os, "replace"), (path_type, "unlink"), (path_type, "write_bytes"), (module, "sync")]
    real = {name: getattr(owner, name) for owner, name in steps}
    record(before, kept, 1)

    def crash(folder, step, early):
        left = [step]

        def dying(act_really):
            def act(*given, **named):
                left[0] -= 1
                if left[0] == 0 and early:
                    raise Killed
                act_really(*given, **named)
                if left[0] == 0:
                    raise Killed

            return act

        with monkeypatch.context() as patch:
            for owner, name in steps:
                patch.setattr(owner, name, dying(real[name]))
            try:
                record(folder, rounds, 1, kept, keep_at=(8, 9, 10))
            except Killed:
                return True
        return False

    step, crashes = 1, 0
    while True:
        went_on = False
        for early in (True, False):
            folder = tmp_path / f"{step}-{early}"
            shutil.copytree(before, folder)
            if crash(folder, step, early):
                went_on, crashes = True, crashes + 1
                held = [stored.round for stored in History.open(folder)]
                assert held == list(range(1, len(held) + 1))
                assert len(held) >= kept
                record(folder, rounds, 1, kept)
            assert files(folder) == files(whole)
        if not went_on:
            break
        step += 1
    assert crashes >= 30


def test_a_torn_new_file_is_not_read(tmp_path):
    record(tmp_path, 70)
    (tmp_path / "00000001-00000099.0.chunk").write_bytes(b"torn")
    (tmp_path / "index.json.part").write_bytes(b"{")
    assert_holds(tmp_path, 70)
    HistoryWriter(tmp_path, CLIENTS, PARAMETERS, 2, 70)
    assert not list(tmp_path.glob("*.part"))
    assert not (tmp_path / "00000001-00000099.0.chunk").exists()


def test_round_zero_begins_anew(tmp_path):
    record(tmp_path, 90)
    record(tmp_path, 10)
    assert_holds(tmp_path, 10)


def test_forgetting_removes_the_bytes_of_the_client_and_of_the_models(tmp_path):
    record(tmp_path, 140)
    updates = {client: [] for client in range(CLIENTS)}
    for number in range(1, 141, 2):
        _, ids, rows, _ = sent(number)
        for client, row in zip(ids, rows, strict=True):
            updates[client].append(row.tobytes())
    before = raw(tmp_path)
    assert all(row in before for rows in updates.values() for row in rows)
    history = History.open(tmp_path)
    assert history.holds(2)
    history.forget(2)
    after = raw(tmp_path)
    assert not any(row in after for row in updates.pop(2))
    assert all(row in after for rows in updates.values() for row in rows)
    assert not any(sent(number)[3].tobytes() in after for number in range(3, 141, 2))
    history = History.open(tmp_path)
    assert not history.holds(2)
    assert history.holds(1)
    assert {path.name for path in tmp_path.iterdir()} == {
        "index.json",
        *(chunk.file for chunk in history.index.chunks),
    }
    stored = next(iter(history))
    assert stored.weights.tobytes() == sent(1)[3].tobytes()  # before round 1 nobody had shaped them
    assert all(later.weights is None for later in list(history)[1:])


def test_forgetting_several_and_again(tmp_path):
    record(tmp_path, 30, 1)
    History.open(tmp_path).forget([0, 3])
    stale = History.open(tmp_path)
    stale.forget([1])
    stale.forget([1])
    assert {client for stored in History.open(tmp_path) for client in stored.ids.tolist()} == {2}
    for stored in History.open(tmp_path):
        _, ids, updates, _ = sent(stored.round)
        assert stored.updates.tobytes() == updates[ids == 2].tobytes()


def test_forgetting_can_be_cut_off_and_repeated(tmp_path, monkeypatch):
    record(tmp_path, 140)

    def dying(*given):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)  # all new chunks are there, and no index names them
        with pytest.raises(Killed):
            History.open(tmp_path).forget(2)
    assert len(list(tmp_path.glob("*.1.chunk"))) == 3
    assert_holds(tmp_path, 140)
    History.open(tmp_path).forget(2)
    assert not any(row.tobytes() in raw(tmp_path) for row in sent(1)[2][sent(1)[1] == 2])
    assert not History.open(tmp_path).holds(2)


@pytest.mark.parametrize(
    ("clients", "parameters", "rounds", "every"), [(10, 46, 330, 5), (3, 2, 7, 1), (40, 3000, 30, 2)]
)
def test_size_is_told_beforehand(tmp_path, clients, parameters, rounds, every):
    rng = np.random.default_rng(0)
    with HistoryWriter(tmp_path, clients, parameters, every) as writer:
        for number in range(1, rounds + 1, every):
            noise = rng.integers(0, 1 << 32, (clients, parameters), dtype=np.uint32).view(np.float32)
            weights = rng.integers(0, 1 << 63, parameters, dtype=np.int64).view(np.float64)
            writer.add(number, np.arange(clients), noise, weights)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    told = size_beforehand(clients, parameters, rounds, every)
    assert size <= told
    assert told - size < 1500 + 0.05 * told  # noise cannot be compressed, so little more was told


def test_real_updates_take_less(tmp_path):
    """Exponents of updates are alike."""
    rng = np.random.default_rng(0)
    with HistoryWriter(tmp_path, 10, 136, 1) as writer:
        for number in range(1, 33):
            writer.add(number, np.arange(10), rng.normal(size=(10, 136)).astype(np.float32), np.zeros(136))
    assert History.open(tmp_path).bytes < 0.9 * 32 * 10 * 136 * 4


def test_wrong_rounds_are_refused(tmp_path):
    writer = HistoryWriter(tmp_path, CLIENTS, PARAMETERS, 5)
    assert [number for number in range(1, 20) if writer.wants(number)] == [1, 6, 11, 16]
    with pytest.raises(HistoryError, match="round 6 is out of order: with every = 5 the next is 1"):
        writer.add(*sent(6))
    writer.add(*sent(1))
    with pytest.raises(HistoryError, match="the next is 6"):
        writer.add(*sent(1))


def test_wrong_shapes_are_refused(tmp_path):
    writer = HistoryWriter(tmp_path, 2, 3, 1)
    one, two = np.array([0]), np.array([1, 1])
    with pytest.raises(HistoryError, match="do not fit 3 parameters"):
        writer.add(1, one, np.zeros((1, 4), np.float32), np.zeros(4))
    with pytest.raises(HistoryError, match="do not fit"):
        writer.add(1, one, np.zeros((1, 3), np.float32), np.zeros((1, 3)))
    with pytest.raises(HistoryError, match="2 updates of 1 of 2 clients"):
        writer.add(1, two, np.zeros((2, 3), np.float32), np.zeros(3))
    with pytest.raises(HistoryError, match="every must be at least 1"):
        HistoryWriter(tmp_path, 2, 3, 0)


def test_a_history_behind_its_checkpoint_is_refused(tmp_path):
    record(tmp_path, 9, 2)
    HistoryWriter(tmp_path, CLIENTS, PARAMETERS, 2, 10)  # round 10 is none to be stored
    with pytest.raises(
        HistoryError, match="ends with round 9, but the run is resumed after round 11: round 11 is miss"
    ):
        HistoryWriter(tmp_path, CLIENTS, PARAMETERS, 2, 11)
    with pytest.raises(HistoryError, match="cannot be continued"):
        HistoryWriter(tmp_path, CLIENTS, PARAMETERS, 3, 9)


def test_damage_is_told(tmp_path):
    with pytest.raises(HistoryError, match="no recorded history"):
        History.open(tmp_path)
    record(tmp_path, 140)
    chunk = sorted(tmp_path.glob("*.chunk"))[1]
    content = chunk.read_bytes()
    for place in (0, 30, len(content) // 2, len(content) - 1):
        chunk.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(HistoryError, match="checksum differs"):
            list(History.open(tmp_path))
    chunk.write_bytes(content[:-1])
    with pytest.raises(HistoryError, match="checksum"):
        list(History.open(tmp_path))
    chunk.unlink()
    with pytest.raises(HistoryError, match="rounds 65 to 127 are missing"):
        list(History.open(tmp_path))
    index = tmp_path / "index.json"
    found = json.loads(index.read_text())
    index.write_text(json.dumps(found | {"chunks": found["chunks"][::2]}))
    with pytest.raises(HistoryError, match="round 129 follows round 63"):
        History.open(tmp_path)
    index.write_text(json.dumps(found | {"format": 2}))
    with pytest.raises(HistoryError, match="has format 2"):
        History.open(tmp_path)
    for odd in ("../model.json", "..", "/model.json", "", 1, None):  # forgetting deletes chunks
        chunks = [found["chunks"][0] | {"file": odd}, *found["chunks"][1:]]
        index.write_text(json.dumps(found | {"chunks": chunks}))
        with pytest.raises(HistoryError, match=f"{odd!r} is not the name of a chunk"):
            History.open(tmp_path)
    for odd in ({"clients": "5"}, {"parameters": 2.5}, {"every": None}):
        index.write_text(json.dumps(found | odd))
        with pytest.raises(HistoryError, match="not integers"):
            History.open(tmp_path)
    for text in ("{", "[]", "{}", '{"format": 1, "chunks": [{"file": 1}]}'):
        index.write_text(text)
        with pytest.raises(HistoryError, match="damaged"):
            History.open(tmp_path)


def test_a_chunk_of_another_history_is_refused(tmp_path):
    """Even if somebody mended the checksum in the index."""
    record(tmp_path, 10)
    other = tmp_path / "other"
    with HistoryWriter(other, CLIENTS, 2, 2) as writer:
        for number in range(1, 11, 2):
            writer.add(*sent(number, parameters=2))
    content = next(other.glob("*.chunk")).read_bytes()
    next(tmp_path.glob("*.chunk")).write_bytes(content)
    found = json.loads((tmp_path / "index.json").read_text())
    found["chunks"][0] |= {"bytes": len(content), "crc": zlib.crc32(content)}
    (tmp_path / "index.json").write_text(json.dumps(found))
    with pytest.raises(HistoryError, match="does not belong to this history"):
        list(History.open(tmp_path))


def test_chunks_of_large_rounds_hold_fewer(tmp_path):
    """Four bytes a parameter, at most 4 MiB a chunk: 2^22 / (4 x 8 x 65536) = 2 rounds."""
    with HistoryWriter(tmp_path, 8, 65536, 1) as writer:
        for number in range(1, 6):
            writer.add(number, np.arange(8), np.zeros((8, 65536), np.float32), np.zeros(65536))
    assert [chunk.rounds for chunk in History.open(tmp_path).index.chunks] == [2, 2, 1]
