"""A search log as training and test queries."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.log_fold import log_fold
from fedrank.data.logs import load_log
from tests.made_up import made_up_log

USERS = [0, 1, 0, 2, 0, 1, 0, 1, 0, 2]  # user 0: 5 entries, user 1: 3, user 2: 2


def test_the_latest_entries_are_the_test_set(tmp_path):
    folder = made_up_log(tmp_path / "log", USERS)
    fold = log_fold(folder, test_share=0.25, how="none")  # 2.5 of 10: rounded down
    assert fold.train.query_ids.tolist() == [str(entry) for entry in range(8)]
    assert fold.test.query_ids.tolist() == ["8", "9"]
    assert fold.train.who.tolist() == USERS[:8]
    assert fold.train.when.tolist() == [1_000_000 + 60 * entry for entry in range(8)]
    log = load_log(folder)
    for part in (fold.train, fold.test):
        for place, entry in enumerate(part.query_ids.astype(int)):
            own = slice(part.offsets[place], part.offsets[place + 1])
            assert part.grades[own].tolist() == [int(i == log.target[entry]) for i in range(12)]
            assert np.array_equal(part.features[own], log.features[log.lists[entry]])


def test_only_the_most_active_users(tmp_path):
    fold = log_fold(made_up_log(tmp_path / "log", USERS), users=2, test_share=0.5)
    assert fold.train.query_ids.tolist() == ["0", "1", "2", "4"], "entry 3 is of user 2"
    assert fold.test.query_ids.tolist() == ["5", "6", "7", "8"]
    assert fold.train.normalised == fold.test.normalised == "query"
    assert fold.train.features.max() == 1.0
    assert fold.notes == ("temporal split: 4 entries of 2 users to learn from, the latest 4 to test on",)


def test_test_queries_are_normalised_by_the_training_set(tmp_path):
    folder = made_up_log(tmp_path / "log", USERS)
    raw, scaled = log_fold(folder, how="none"), log_fold(folder, how="global")
    low, high = raw.train.features.min(axis=0), raw.train.features.max(axis=0)
    assert scaled.test.features == pytest.approx((raw.test.features - low) / (high - low), abs=1e-6)


def test_selections_keep_users_and_times(tmp_path):
    train = log_fold(made_up_log(tmp_path / "log", USERS)).train
    some = train.select([6, 1])
    assert some.who.tolist() == [0, 1]
    assert some.when.tolist() == [1_000_360, 1_000_060]
    assert not len(train.join([train, some]).who)


def test_what_cannot_be(tmp_path):
    folder = made_up_log(tmp_path / "log", USERS)
    with pytest.raises(ValueError, match=r"4 users asked for, but .* has entries of 3"):
        log_fold(folder, users=4)
    with pytest.raises(ValueError, match="10 to learn from and 0 to test on"):
        log_fold(folder, test_share=0.05)
