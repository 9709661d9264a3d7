"""Data sets of lists as they were shown."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrank.data import log_fold as log_fold_module
from fedrank.data.log_fold import log_fold
from fedrank.data.log_folder import ShownLists, write_shown
from fedrank.data.logs import FACTS, as_ranking, load_log
from fedrank.data.ranking import RankingData
from tests.made_up import made_up_log, made_up_shown

CLICK_MODELS = [1, 0, 1, 2, 1, 0, 1, 0, 1, 2]


def small(**others):
    """Three pages of two queries: ann's with two clicks, bob's first page with none and his second with one."""
    about = {
        "features": np.arange(12, dtype=np.float32).reshape(6, 2),
        "lists": np.array([[2, 0, 1], [3, 4, -1], [5, -1, -1]]),
        "clicks": np.array([[1, 0, 1], [0, 0, 0], [1, 0, 0]]),
        "first": np.array([0, 0, 2]),
        "user": np.array([0, 1, 1]),
        "time": np.array([30, 10, 20]),
        "query": np.array([0, 1, 1]),
        "document": np.array([0, 1, 2, 0, 3, 4]),
        "users": ["ann", "bob"],
        "queries": ["x", "y"],
        "documents": list("abcde"),
        "feature_names": ["f", "g"],
    }
    return ShownLists(**about | others)


def test_entries_stand_in_order_of_time_and_users_by_their_entries(tmp_path):
    log = write_shown(tmp_path / "log", small(), {"features": "own"})
    assert log.is_shown
    assert log.target is None
    assert log.time.tolist() == [10, 20, 30]
    assert log.users == ("bob", "ann")
    assert log.user.tolist() == [0, 0, 1]
    assert log.lists.tolist() == [[3, 4, -1], [5, -1, -1], [2, 0, 1]]
    assert log.first.tolist() == [0, 2, 0]
    assert log.clicked().tolist() == [5, 2, 1], "several clicks of a list, in order of places"
    assert log.clicked(np.array([2, 0])).tolist() == [2, 1]
    assert (log.given, log.unit, log.drawn) == ("file", "person", None)
    assert (tmp_path / "log" / "clicks.npy").stat().st_mode & 0o077 == 0


def test_shown_lists_as_ranking_data(tmp_path):
    log = write_shown(tmp_path / "log", small(), {"features": "own"})
    data = as_ranking(log, [2, 1])
    assert data.offsets.tolist() == [0, 3, 4]
    assert data.features[:, 0].tolist() == [4, 0, 2, 10]
    assert data.grades.tolist() == [1, 0, 1, 1]
    assert data.position.tolist() == [0, 1, 2, 2], "the second page of two begins at place 2"
    assert data.position.dtype == np.int32
    assert (data.given, data.top_grade) == ("file", 1)


def test_places_stay_with_their_documents(tmp_path):
    train = log_fold(made_up_shown(tmp_path / "log", CLICK_MODELS).folder).train
    some = train.select([6, 1])
    own = slice(train.offsets[1], train.offsets[2])
    second_page = some.position[some.offsets[1] :].tolist()
    assert second_page == train.position[own].tolist() == [10 + place for place in range(len(second_page))]
    both = RankingData.join([train, some])
    assert both.position.tolist() == [*train.position, *some.position]
    without = as_ranking(load_log(made_up_log(tmp_path / "old", CLICK_MODELS)), [0])
    assert not len(without.position), "made-up lists were shown to nobody"
    assert not len(RankingData.join([as_ranking(load_log(tmp_path / "log"), [0]), without]).position)
    with pytest.raises(ValueError, match="1 values of position for"):
        RankingData(train.features, train.grades, train.offsets, train.query_ids, position=np.zeros(1, np.int32))


@pytest.mark.parametrize("how", ["none", "query", "global"])
def test_features_of_a_large_shown_log_are_the_same_and_stay_on_disk(tmp_path, monkeypatch, how):
    folder = made_up_shown(tmp_path / "log", CLICK_MODELS).folder
    expected = log_fold(folder, how=how)
    monkeypatch.setenv("FEDRANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(log_fold_module, "IN_MEMORY", 0)
    monkeypatch.setattr(log_fold_module, "_SOME", 3)
    fold = log_fold(folder, how=how)
    for part, other in ((fold.train, expected.train), (fold.test, expected.test)):
        assert np.array_equal(part.features, other.features)
        assert np.array_equal(part.position, other.position)
        assert np.array_equal(part.offsets, other.offsets)


def test_lists_that_lie_one_after_the_other_stay_in_their_file(tmp_path):
    together = small(lists=np.array([[3, 4, 5], [0, 1, -1], [2, -1, -1]]))
    log = write_shown(tmp_path / "log", together, {"features": "own"})
    assert np.shares_memory(as_ranking(log, [0, 1]).features, log.features)
    assert as_ranking(log, [0, 1]).features[:, 0].tolist() == [0, 2, 4]


def test_dwell_and_draws(tmp_path):
    dwell = np.array([[3.5, np.nan, 60], [np.nan] * 3, [np.nan] * 3])
    scores = np.array([[2.0, 1, 0], [1, 0.5, 0], [1, 0, 0]])
    draws = {"dwell": dwell, "scores": scores, "temperature": 0.3, "keep": 0.5, "unit": "browser"}
    log = write_shown(tmp_path / "log", small(**draws), {"features": "own"})
    assert log.drawn == (0.3, 0.5)
    assert log.unit == "browser"
    assert log.dwell[2].tolist()[::2] == [3.5, 60]
    assert log.scores[0].tolist() == [1, 0.5, 0]
    with pytest.raises(ValueError, match="scores need temperature and keep"):
        small(scores=scores)
    with pytest.raises(ValueError, match="unit must be one of"):
        small(unit="household")


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("lists", [[3, -1, 4], [5, -1, -1], [2, 0, 1]], "-1 within one"),
        ("lists", [[-1, -1, -1], [5, -1, -1], [2, 0, 1]], "an empty list"),
        ("lists", [[3, 6, -1], [5, -1, -1], [2, 0, 1]], "values outside -1 to 5"),
        ("clicks", [[0, 0, 1], [1, 0, 0], [1, 0, 1]], "clicks after the end"),
        ("clicks", [[0, 2, 0], [1, 0, 0], [1, 0, 1]], "values outside 0 to 1"),
        ("first", [0, -1, 0], "values outside 0"),
        ("time", [10, 30, 20], "is not sorted"),
        ("time", [10, 20, 10**12], "values outside"),
        ("first", [0, 2_000_000_000, 0], "values outside 0"),
        ("dwell", [[0, -1, np.nan], [1, np.nan, np.nan], [0, 0, 0]], "negative"),
        ("dwell", [[0, np.inf, np.nan], [1, np.nan, np.nan], [0, 0, 0]], "infinite"),
        ("dwell", [[0, 1, 2], [1, np.nan, np.nan], [0, 0, 0]], "after the end"),
        ("scores", [[0, np.nan, 0], [1, 0, 0], [0, 0, 0]], "not finite"),
    ],
)
def test_what_cannot_have_been_shown_is_refused(tmp_path, name, values, problem):
    draws = {"dwell": np.full((3, 3), np.nan), "scores": np.zeros((3, 3)), "temperature": 1.0, "keep": 0.0}
    log = write_shown(tmp_path / "log", small(**draws), {"features": "own"})
    np.save(tmp_path / "log" / f"{name}.npy", np.array(values).astype(getattr(log, name).dtype))
    with pytest.raises(ValueError, match=problem):
        load_log(tmp_path / "log")


@pytest.mark.parametrize(
    "facts",
    [{"temperature": 0}, {"temperature": "hot"}, {"keep": 1.5}, {"keep": None}, {"temperature": True}],
)
def test_impossible_draws_are_refused(tmp_path, facts):
    draws = {"scores": np.zeros((3, 3)), "temperature": 1.0, "keep": 0.0}
    write_shown(tmp_path / "log", small(**draws), {"features": "own"})
    path = tmp_path / "log" / FACTS
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    with pytest.raises(ValueError, match="which are invalid"):
        load_log(tmp_path / "log")


def test_arrays_of_other_lengths_are_refused(tmp_path):
    write_shown(tmp_path / "log", small(), {"features": "own"})
    path = tmp_path / "log" / FACTS
    facts = json.loads(path.read_text())
    facts["shapes"]["clicks"] = [3, 2]
    path.write_text(json.dumps(facts))
    np.save(tmp_path / "log" / "clicks.npy", np.zeros((3, 2), np.uint8))
    with pytest.raises(ValueError, match="differ in length"):
        load_log(tmp_path / "log")


def test_a_folder_that_was_left_half_written_is_written_again(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def dying(path, names):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("fedrank.data.log_folder.write_names", dying)
        with pytest.raises(Killed):
            write_shown(tmp_path / "log", small(), {"features": "own"})
    with pytest.raises(FileExistsError, match="different settings"):
        write_shown(tmp_path / "log", small(), {"features": "others"})
    write_shown(tmp_path / "whole", small(), {"features": "own"})
    write_shown(tmp_path / "log", small(), {"features": "own"})
    found = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    assert found == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    write_shown(tmp_path / "log", small(), {"features": "own"})
    with pytest.raises(FileExistsError, match="contains other files"):
        write_shown(tmp_path / "log", small(), {"features": "own"})
