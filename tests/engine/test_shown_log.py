"""Logged features and UBI together: lists as they were shown, with the features that the engine had for them."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.engine_features import ENGINE_1, NAMES
from fedrank.data.feature_sets import log_features
from fedrank.data.logs import as_ranking, load_log
from fedrank.engine.read_log import (
    NOT_LOGGED,
    OTHER_FEATURES,
    as_letor,
    join_ubi,
    read_logged,
    set_of,
    write_joined,
)
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.spec.sections import DataSpec
from tests.engine.conftest import TIME, value


def test_grades_are_clicks_in_the_order_that_was_logged(files):
    log, queries, events, shown = files
    logged = read_logged(log)
    joined = join_ubi(logged, queries, events)
    data = as_letor(logged, joined.grades)
    for search, documents in shown.items():
        own = slice(*data.offsets[[search, search + 1]])
        clicked = [logged.documents[row] for row in range(own.start, own.stop) if data.grades[row]]
        assert clicked == ([] if search == 4 else [f"d{documents[search % 3]}"])
    assert joined.not_logged == 1


def test_a_data_set_has_lists_as_shown_with_logged_features(files, tmp_path):
    log, queries, events, shown = files
    logged = read_logged(log)
    data = write_joined(tmp_path / "data", logged, join_ubi(logged, queries, events))
    assert data.unit == "browser"
    assert data.feature_names == NAMES
    assert log_features(data) == "engine-1"
    assert data.facts["dropped"][NOT_LOGGED] == 1
    assert sum(data.facts["redacted"].values()) == sum(one.startswith("[redacted") for one in data.queries) > 0
    searches = [search for search in shown if search != 4]
    assert data.time.tolist() == [TIME + search for search in searches]
    for entry, search in enumerate(searches):
        lists = as_ranking(data, [entry])
        assert lists.features[:, 0].tolist() == [np.float32(value(search, one)) for one in shown[search]]
        assert np.flatnonzero(lists.grades).tolist() == [search % 3]
        assert [data.documents[data.document[row]] for row in data.lists[entry]] == [f"d{d}" for d in shown[search]]
    assert load_log(tmp_path / "data").users == ("browser 1", "browser 0")


def test_a_spec_takes_it_with_fixed_ranges(files, tmp_path):
    log, queries, events, _ = files
    logged = read_logged(log)
    write_joined(tmp_path / "data", logged, join_ubi(logged, queries, events))
    fold = load_fold(DataSpec(log=str(tmp_path / "data"), features="engine-1"), 1)
    assert fold.train.normalised == "global"
    np.testing.assert_array_equal(fold.train.ranges, ENGINE_1.ranges)


def test_features_of_others_are_called_so(files, tmp_path):
    log, queries, events, _ = files
    names = tuple(reversed(NAMES))
    logged = read_logged(log, names)
    assert set_of(logged) == OTHER_FEATURES
    write_joined(tmp_path / "data", logged, join_ubi(logged, queries, events))
    assert load_fold(DataSpec(log=str(tmp_path / "data")), 1).train.normalised == "none"


def test_lists_that_were_never_logged(files, tmp_path):
    log, queries, events, _ = files
    log.write_text(log.read_text().replace(': "q', ': "p'))
    logged = read_logged(log)
    joined = join_ubi(logged, queries, events)
    assert joined.not_logged == 6
    assert not joined.grades.any()
    with pytest.raises(ValueError, match="contains no usable lists"):
        write_joined(tmp_path / "data", logged, joined)
    assert not (tmp_path / "data").exists()
