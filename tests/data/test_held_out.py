"""Entries that are held out before training, and windows that are used once."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedrank.data import build_shown as module
from fedrank.data import held_out
from fedrank.data.build_shown import COUNTED, ShownBuild, build_shown
from fedrank.data.describe_log import notes
from fedrank.data.forget_user import forget_user
from fedrank.data.held_out import HELD_OUT, HoldOut, NoNewEntries, continued, read_window, use_window
from fedrank.data.log_fold import log_fold
from fedrank.data.logs import load_log
from fedrank.deploy.data_sources import load_share
from fedrank.deploy.settings import SiteData
from fedrank.experiments.runner.position_bias import positions_of_log, shown_results
from fedrank.experiments.runner.scoring import _latest
from tests.data.test_build_shown import ALL_TEXTS, DAY, NOW, documents, table, words_extractor

HOLD_OUT = HoldOut(days=2, users=0.3, key="test")


def rows(days, users=20):
    """One search of every user per day, the last on the day of NOW."""
    return [
        (f"u{user}", NOW - day * DAY + user, "red shoes", ["d1", "d0", "d5"], ["d0"])
        for day in reversed(range(days))
        for user in range(users)
    ]


def built(folder, days=10, out="out", hold_out=HOLD_OUT, until=0, **more):
    log = table(folder, [row for row in rows(days) if row[1] <= NOW - until * DAY + 99], f"{out}.jsonl")
    how = ShownBuild(redaction=ALL_TEXTS, hold_out=hold_out, **more)
    return build_shown(log, documents(folder), folder / out, how, extractor=words_extractor)


def names_of(log, which):
    return {log.users[user] for user in log.user[which]}


def test_a_model_that_was_derived_from_the_judged_one_belongs_to_its_use(tmp_path):
    held_out.begin_window(tmp_path, HoldOut(7.0), 1_700_000_000)
    with pytest.raises(ValueError, match="were not used for 'the model'"):
        held_out.extend_use(tmp_path, "the model", "the mean")
    use_window(tmp_path, "the model")
    for _ in range(2):
        held_out.extend_use(tmp_path, "the model", "the mean")
    assert not use_window(tmp_path, "the mean")
    assert not use_window(tmp_path, "the model")
    with pytest.raises(ValueError, match="were not used for 'the model', or for another model"):
        held_out.extend_use(tmp_path, "the model", "a second mean")
    with pytest.raises(ValueError, match="a window is used for one purpose only"):
        use_window(tmp_path, "a second mean")
    assert len(read_window(tmp_path).uses) == 1


def test_the_latest_days_and_some_users_are_held_out(tmp_path):
    log = built(tmp_path)
    theirs = HOLD_OUT.chosen(log.users)
    assert 2 <= theirs.sum() <= 10
    last = int(log.time.max())
    expected = (log.time > last - 2 * DAY) | theirs[log.user]
    assert np.array_equal(log.held_out, expected)
    assert log.training_rows().tolist() == np.flatnonzero(~expected).tolist()
    assert not names_of(log, ~log.held_out) & {name for name, held in zip(log.users, theirs, strict=True) if held}
    assert log.facts["held_out"]["entries"] == expected.sum()
    assert any("are held out of training: all entries since" in note for note in notes(log.facts))
    assert "test" not in json.dumps(log.facts["settings"]["hold_out"]), "the key is in one file only"


def test_users_stay_held_out_when_others_join_and_other_keys_choose_others():
    few, many = [f"u{i}" for i in range(50)], [f"u{i}" for i in range(5000)]
    assert np.array_equal(HOLD_OUT.chosen(few), HOLD_OUT.chosen(many)[:50])
    assert HOLD_OUT.chosen(many).mean() == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 5000) ** 0.5)
    assert (replace(HOLD_OUT, key="other").chosen(many) != HOLD_OUT.chosen(many)).any()


def test_training_propensities_and_sites_never_see_them(tmp_path):
    log = built(tmp_path)
    train = set(log.training_rows().tolist())
    fold = log_fold(log.folder, test_share=0.25)
    simulated = [set(part.query_ids.astype(int).tolist()) for part in (fold.train, fold.test)]
    assert simulated[0] | simulated[1] == train
    assert fold.notes[0].endswith(f"; {log.held_out.sum():,} entries that the log holds out are in neither part")
    share = load_share(SiteData(log=str(log.folder), person="user", test_share=0.25))
    assert set(share.train.query_ids.astype(int)) == train
    assert set(share.test.query_ids.astype(int)) == set(np.flatnonzero(log.held_out).tolist())
    alone = load_share(SiteData(log=str(log.folder), person="user"))
    assert set(alone.train.query_ids.astype(int)) == train
    assert alone.people == len(names_of(log, log.training_rows()))
    most = log_fold(log.folder, users=alone.people, test_share=0.25)
    assert most.train.queries + most.test.queries == len(train)
    with pytest.raises(ValueError, match="users were requested"):
        log_fold(log.folder, users=alone.people + 1)
    assert set(_latest(str(log.folder))[1].tolist()) <= train, "`fedrank model evaluate` on the folder"


def test_propensities_of_a_log_are_those_of_its_training_entries(tmp_path, monkeypatch):
    log, seen = built(tmp_path), []
    from fedrank.experiments.runner import position_bias

    monkeypatch.setattr(position_bias, "propensities_of", lambda shown, *rest: seen.append(shown))
    positions_of_log(log)
    expected = shown_results(log, log.training_rows())
    assert len(seen[0].search) == len(expected.search) < len(shown_results(log).search)


def test_a_window_is_used_once_and_recorded_before(tmp_path):
    folder = built(tmp_path).folder
    assert use_window(folder, "model 1")
    assert read_window(folder).uses[0]["purpose"] == "model 1", "on disk when the call returns"
    assert not use_window(folder, "model 1"), "the same answer may be repeated"
    with pytest.raises(ValueError, match=r"were used on 20.* for 'model 1'.*got 'model 2'.*--previous"):
        use_window(folder, "model 2")
    assert len(read_window(folder).uses) == 1
    assert oct((folder / HELD_OUT).stat().st_mode & 0o777) == "0o600"


def test_a_use_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    folder = built(tmp_path).folder

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(held_out, "write_atomic", full)
    with pytest.raises(OSError, match="No space"):
        use_window(folder, "model 1")


def test_a_longer_log_opens_a_window_after_the_one_that_was_used(tmp_path):
    old = built(tmp_path, until=3)
    use_window(old.folder, "model 1")
    new = built(tmp_path, out="new", hold_out=continued(old.folder))
    used_until = int(old.time.max())
    theirs = HOLD_OUT.chosen(new.users)[new.user]
    assert not (theirs & (new.time <= used_until)).any(), "entries of held-out users count in one window"
    assert new.facts["dropped"][COUNTED] == (HOLD_OUT.chosen(old.users)[old.user]).sum()
    assert (new.time[new.held_out] > used_until).all()
    assert names_of(new, new.held_out & theirs) == names_of(old, old.held_out & HOLD_OUT.chosen(old.users)[old.user])
    assert set(old.time[old.held_out & ~HOLD_OUT.chosen(old.users)[old.user]]) <= set(new.time[~new.held_out])
    assert use_window(new.folder, "model 2")


def test_an_unused_window_is_closed_when_a_data_set_continues_it(tmp_path):
    old = built(tmp_path, until=1)
    new = built(tmp_path, out="new", hold_out=continued(old.folder))
    assert new.facts["dropped"].get(COUNTED, 0) == 0
    with pytest.raises(ValueError, match="belong to the data set 'new'"):
        use_window(old.folder, "model 1")
    assert use_window(new.folder, "model 1")


def test_a_log_without_later_entries_opens_no_window_of_days(tmp_path):
    old = built(tmp_path, hold_out=HoldOut(days=2, key="test"))
    use_window(old.folder, "model 1")
    with pytest.raises(NoNewEntries, match="none of the 200 entries is later than"):
        built(tmp_path, out="new", hold_out=continued(old.folder))
    assert not (tmp_path / "new").exists()


def test_a_stopped_build_continues_with_the_same_users(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAIRS", 2)

    def stop(what, done, of, detail=""):
        if what == "features" and done >= 2:
            raise KeyboardInterrupt

    how = ShownBuild(redaction=ALL_TEXTS, hold_out=HoldOut(users=0.5))
    args = table(tmp_path, rows(3)), documents(tmp_path), tmp_path / "out", how
    with pytest.raises(KeyboardInterrupt):
        build_shown(*args, progress=stop, extractor=words_extractor)
    key = json.loads((tmp_path / "out" / "begun.json").read_text())["done"]["key"]
    before = np.load(tmp_path / "out" / "held_out.npy")
    log = build_shown(*args, extractor=words_extractor)
    assert read_window(log.folder).hold_out.key == key
    assert np.array_equal(log.held_out, before)
    assert np.array_equal(log.held_out, read_window(log.folder).hold_out.chosen(log.users)[log.user])


@pytest.mark.parametrize("held", [True, False])
def test_a_person_is_forgotten_in_both_parts(tmp_path, held):
    log = built(tmp_path)
    use_window(log.folder, "model 1")
    name = next(one for one, is_held in zip(log.users, HOLD_OUT.chosen(log.users), strict=True) if is_held == held)
    others = log.user != log.users.index(name)
    forget_user(log.folder, name)
    after = load_log(log.folder)
    assert np.array_equal(after.held_out, log.held_out[others])
    assert after.facts["held_out"]["entries"] == after.held_out.sum()
    with pytest.raises(ValueError, match="'model 1'"):
        use_window(log.folder, "model 2")


def test_a_log_without_a_split_holds_nothing_out(tmp_path):
    log = built(tmp_path, hold_out=None)
    assert not log.held_out.any()
    assert len(log.training_rows()) == len(log)
    assert "hold_out" not in log.facts["settings"], "older data sets and new ones without a split are the same"
    with pytest.raises(ValueError, match="holds no entries out"):
        use_window(log.folder, "model 1")
    assert not (log.folder / HELD_OUT).exists()


def test_what_cannot_be(tmp_path):
    for wrong in ({}, {"days": 0}, {"users": 1.0}, {"days": float("nan")}):
        with pytest.raises(ValueError, match="hold"):
            HoldOut(**wrong)
    with pytest.raises(ValueError, match="all of the 200 entries would be held out"):
        built(tmp_path, hold_out=HoldOut(days=100))
    folder = built(tmp_path).folder
    for purpose in ("", "x" * 501, "a\nb"):
        with pytest.raises(ValueError, match="printable characters"):
            use_window(folder, purpose)
    for damage in (b"[]", b"{}", b"{", json.dumps({"format": "fedrank-held-out", "version": 2}).encode()):
        (folder / HELD_OUT).write_bytes(damage)
        with pytest.raises(ValueError, match="cannot be read"):
            use_window(folder, "model 1")
