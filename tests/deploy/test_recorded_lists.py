"""Recorded lists: written whole, checked on reading, gone when they are forgotten."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedrank.deploy.recorded_lists import RecordedFolder, RecordedImpressions, RecordedList, RecordError
from fedrank.types import Impression


def a_list(seed=1, candidates=12, features=34, **changes) -> RecordedList:
    rng = np.random.default_rng(seed)
    shown = rng.permutation(candidates)[:10].astype(np.int64)
    one = Impression(
        rng.normal(size=(candidates, features)).astype(np.float32),
        rng.normal(size=candidates).astype(np.float32),
        shown,
        rng.random(len(shown)) < 0.3,
    )
    return RecordedList(one._replace(**changes), 0.3, 0.9)


def test_a_list_comes_back_as_it_was_shown(tmp_path):
    folder = RecordedFolder(tmp_path / "lists")
    for number in (7, 3, 123_456_789_012_345):
        folder.add(number, a_list(number))
    assert folder.numbers() == [3, 7, 123_456_789_012_345]
    found, made = folder.get(7), a_list(7)
    assert (found.temperature, found.keep, found.version) == (0.3, 0.9, "live-1")
    for mine, its in zip(made.impression, found.impression, strict=True):
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine, its)
    assert folder.folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.folder.iterdir())


def test_the_same_list_again_is_one_list(tmp_path):
    folder = RecordedFolder(tmp_path)
    folder.add(1, a_list())
    before = (tmp_path / "000000000001").read_bytes()
    folder.add(1, a_list())
    assert folder.numbers() == [1]
    assert (tmp_path / "000000000001").read_bytes() == before


def test_what_is_forgotten_is_gone(tmp_path):
    folder = RecordedFolder(tmp_path)
    folder.add(1, a_list())
    assert folder.forget(1)
    assert not folder.forget(1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RecordError, match="000000000001"):
        folder.get(1)


def test_what_is_still_being_written_does_not_count(tmp_path):
    (tmp_path / f".000000000001.{os.getpid()}.part").write_bytes(b"half")
    assert RecordedFolder(tmp_path).numbers() == []


@pytest.mark.parametrize("name", ["notes.txt", "1", "00000000000000000001", "000000000001 (copy)"])
def test_a_foreign_file_is_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"hello")
    with pytest.raises(RecordError, match="is not a recorded list") as told:
        RecordedFolder(tmp_path).numbers()
    assert name in str(told.value)


def test_every_damaged_byte_is_noticed(tmp_path):
    folder = RecordedFolder(tmp_path)
    folder.add(1, a_list(candidates=3, features=2))
    path = tmp_path / "000000000001"
    sound = path.read_bytes()
    for place in range(len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        with pytest.raises(RecordError, match="000000000001"):
            folder.get(1)
    for size in (0, 10, len(sound) - 1):
        path.write_bytes(sound[:size])
        with pytest.raises(RecordError, match="000000000001"):
            folder.get(1)


def test_a_list_under_another_number_and_a_pipe_are_refused(tmp_path):
    folder = RecordedFolder(tmp_path)
    folder.add(1, a_list())
    os.rename(tmp_path / "000000000001", tmp_path / "000000000002")
    with pytest.raises(RecordError, match="round 1, but round 2 was expected"):
        folder.get(2)
    os.mkfifo(tmp_path / "000000000003")
    with pytest.raises(RecordError, match="pipe"):
        folder.get(3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shown": np.array([0, 0])}, "do not match"),
        ({"shown": np.zeros(10, np.int64)}, "twice"),
        ({"shown": np.arange(10) + 3}, "not among its 12"),
        ({"scores": np.full(12, np.nan, np.float32)}, "not finite"),
        ({"scores": np.zeros(11, np.float32)}, "do not match"),
    ],
)
def test_a_list_that_makes_no_sense_is_not_written(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        RecordedFolder(tmp_path).add(1, a_list(**changes))
    assert list(tmp_path.iterdir()) == []


def test_they_give_what_was_drawn_and_nothing_else():
    found = RecordedImpressions((a_list(1), a_list(2)))
    assert len(found) == 2
    assert found.drawn(np.ones(34, np.float32), 1) is found.lists[1].impression
    with pytest.raises(ValueError, match="pdgd"):
        found.best(np.ones(34, np.float32), 0)
    with pytest.raises(ValueError, match="no relevance labels"):
        found.judged(0)
