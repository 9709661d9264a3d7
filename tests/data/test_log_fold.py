"""A search log as training and test queries."""

from __future__ import annotations

import mmap
import shutil

import numpy as np
import pytest

from fedrank.data import log_fold as module
from fedrank.data.log_fold import log_fold
from fedrank.data.logs import load_log
from tests.made_up import made_up_log

CLICK_MODELS = [0, 1, 0, 2, 0, 1, 0, 1, 0, 2]  # user 0: 5 entries, user 1: 3, user 2: 2


def test_the_latest_entries_are_the_test_set(tmp_path):
    folder = made_up_log(tmp_path / "log", CLICK_MODELS)
    fold = log_fold(folder, test_share=0.25, how="none")  # 2.5 of 10: rounded down
    assert fold.train.query_ids.tolist() == [str(entry) for entry in range(8)]
    assert fold.test.query_ids.tolist() == ["8", "9"]
    assert fold.train.who.tolist() == CLICK_MODELS[:8]
    assert fold.train.when.tolist() == [1_000_000 + 60 * entry for entry in range(8)]
    log = load_log(folder)
    for part in (fold.train, fold.test):
        for place, entry in enumerate(part.query_ids.astype(int)):
            own = slice(part.offsets[place], part.offsets[place + 1])
            assert part.grades[own].tolist() == [int(i == log.target[entry]) for i in range(12)]
            assert np.array_equal(part.features[own], log.features[log.lists[entry]])


def test_only_the_most_active_users(tmp_path):
    fold = log_fold(made_up_log(tmp_path / "log", CLICK_MODELS), users=2, test_share=0.5)
    assert fold.train.query_ids.tolist() == ["0", "1", "2", "4"], "entry 3 is of user 2"
    assert fold.test.query_ids.tolist() == ["5", "6", "7", "8"]
    assert fold.train.normalised == fold.test.normalised == "query"
    assert fold.train.features.max() == 1.0
    assert fold.notes == ("temporal split: 4 entries of 2 users for training, the latest 4 for testing",)


def test_test_queries_are_normalised_by_the_training_set(tmp_path):
    folder = made_up_log(tmp_path / "log", CLICK_MODELS)
    raw, scaled = log_fold(folder, how="none"), log_fold(folder, how="global")
    low, high = raw.train.features.min(axis=0), raw.train.features.max(axis=0)
    assert scaled.test.features == pytest.approx((raw.test.features - low) / (high - low), abs=1e-6)


def test_selections_keep_users_and_times(tmp_path):
    train = log_fold(made_up_log(tmp_path / "log", CLICK_MODELS)).train
    some = train.select([6, 1])
    assert some.who.tolist() == [0, 1]
    assert some.when.tolist() == [1_000_360, 1_000_060]
    assert not len(train.join([train, some]).who)


def test_what_cannot_be(tmp_path):
    folder = made_up_log(tmp_path / "log", CLICK_MODELS)
    with pytest.raises(ValueError, match=r"4 users were requested, but .* has entries of 3"):
        log_fold(folder, users=4)
    with pytest.raises(ValueError, match="10 for training and 0 for testing"):
        log_fold(folder, test_share=0.05)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("how", ["none", "query", "global"])
@pytest.mark.parametrize("users", [None, 2])
def test_features_of_a_large_log_are_the_same_and_stay_on_disk(tmp_path, monkeypatch, how, users, shuffled):
    folder = made_up_log(tmp_path / "log", CLICK_MODELS)
    if shuffled:  # lists of a log that was built name pairs in any order, some of them in common
        rng = np.random.default_rng(1)
        np.save(folder / "lists.npy", rng.integers(0, 120, size=(10, 12)))
    expected = log_fold(folder, users, how=how)
    monkeypatch.setenv("FEDRANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    monkeypatch.setattr(module, "_SOME", 3)
    for fold in (log_fold(folder, users, how=how), log_fold(folder, users, how=how)):
        for part, other in ((fold.train, expected.train), (fold.test, expected.test)):
            assert np.array_equal(part.features, other.features)
            assert np.array_equal(part.grades, other.grades)
            assert np.array_equal(part.offsets, other.offsets)
            assert np.array_equal(part.who, other.who)
            assert part.query_ids.tolist() == other.query_ids.tolist()
            assert part.normalised == other.normalised == how
            assert np.array_equal(part.ranges, other.ranges) if how == "global" else part.ranges is None
            assert on_disk(part.features)
    written = sorted((tmp_path / "cache" / "logs").glob("*")) if (tmp_path / "cache").exists() else []
    in_place = how == "none" and not shuffled  # the last entries of two users are not neighbours: 4, 5, 6, 7, 8
    assert len(written) == (0 if in_place and users is None else 1 if in_place else 2)


def on_disk(features) -> bool:
    while isinstance(features.base, np.ndarray):
        features = features.base
    return isinstance(features.base, mmap.mmap)


def test_files_of_the_cache_are_those_of_this_log(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    folder = made_up_log(tmp_path / "log", CLICK_MODELS)
    before = np.array(log_fold(folder).train.features)
    shutil.rmtree(folder)
    made_up_log(folder, CLICK_MODELS, seed=1)
    after = log_fold(folder).train.features
    assert not np.array_equal(before, after)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDRANK_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"needs .* GB for features .* FEDRANK_CACHE"):
        log_fold(folder)
