"""Drift of features and of click rates against an earlier log."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from fedrank.cli import main
from fedrank.data.drift import THRESHOLD, drift, stability
from fedrank.data.log_folder import ShownLists, write_shown

RNG = np.random.default_rng(1)


def a_log(folder, seed=1, begin=0, lists=3000, shift=0.0, rates=(0.4, 0.2, 0.1), names=("a", "b")):
    """Lists of three documents; the first feature is shifted, and positions are clicked at these rates."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(3 * lists, 2)).astype(np.float32)
    features[:, 0] += shift
    shown = ShownLists(
        features=features,
        lists=np.arange(3 * lists).reshape(lists, 3),
        clicks=(rng.random((lists, 3)) < rates).astype(np.uint8),
        user=np.arange(lists) % 50,
        time=begin + np.arange(lists),
        query=np.zeros(lists, int),
        document=np.zeros(3 * lists, int),
        users=[f"u{i}" for i in range(50)],
        queries=["q"],
        documents=["d"],
        feature_names=names,
    )
    return write_shown(folder, shown, {"features": "made up"})


def test_stability_by_hand():
    old = np.arange(100.0)  # edges at 9.9, 19.8, ..., 89.1: ten values in each bin
    new = np.concatenate([old[:50], old[:50]])  # two tenths in the lower bins, none in the upper ones
    expected = 5 * (0.2 - 0.1) * math.log(0.2 / 0.1) + 5 * (1e-4 - 0.1) * math.log(1e-4 / 0.1)
    assert stability(old, new) == pytest.approx(expected)
    assert stability(old, old) == 0
    assert stability(np.zeros(50), np.zeros(90)) == 0
    assert stability(np.zeros(50), np.ones(90)) > 5, "a constant feature that gets another value"
    assert stability(RNG.random(5000), RNG.random(5000)) < 0.02


def test_equal_logs_do_not_drift(tmp_path):
    found = drift(a_log(tmp_path / "new", seed=2), a_log(tmp_path / "old"))
    assert found.drifted == []
    assert max(psi for _, psi in found.features) < 0.05
    assert [one.position for one in found.rates] == [1, 2, 3]


def test_a_shifted_feature_and_another_click_rate_are_named(tmp_path):
    new = a_log(tmp_path / "new", seed=2, shift=1.0, rates=(0.4, 0.3, 0.1))
    found = drift(new, a_log(tmp_path / "old"))
    assert found.features[0][0] == "a"
    assert found.features[0][1] > THRESHOLD > found.features[1][1]
    words = found.drifted
    assert words[0].startswith("a (PSI ")
    assert [one.position for one in found.rates if one.drifted] == [2]
    assert len(words) == 2


def test_only_later_lists_of_a_log_that_continues_are_compared(tmp_path):
    old = a_log(tmp_path / "old")
    found = drift(a_log(tmp_path / "new", begin=2500, shift=1.0), old)
    assert (found.lists, found.since) == (2500, 2999)
    assert drift(a_log(tmp_path / "apart", begin=5000), old).since is None, "all lists are later"


def test_other_features_cannot_be_compared(tmp_path):
    with pytest.raises(ValueError, match="different features"):
        drift(a_log(tmp_path / "new", names=("a", "c")), a_log(tmp_path / "old"))


def test_the_command(tmp_path, monkeypatch, capsys):
    old, same = a_log(tmp_path / "old"), a_log(tmp_path / "same", seed=2)
    other = a_log(tmp_path / "other", seed=2, shift=1.0)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["fedrank", "data", "check", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, " ".join(capsys.readouterr().out.split())

    code, said = call(same.folder, "--against", old.folder, "--out", tmp_path / "drift.png")
    assert (code, "No drift (3,000 of all lists compared)." in said) == (0, True)
    assert (tmp_path / "drift.png").read_bytes().startswith(b"\x89PNG")
    code, said = call(other.folder, "--against", old.folder)
    assert (code, "Drift: a (PSI" in said) == (1, True)
    code, said = call(other.folder, "--against", old.folder, "--json")
    assert json.loads(said)["drifted"][0].startswith("a (PSI")
