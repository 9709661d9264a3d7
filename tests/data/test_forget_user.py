"""A user leaves a data set: nothing of them is left, nothing else changes, and no moment leaves half a folder."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time as clock

import numpy as np
import pytest

from fedrank import files
from fedrank.data import forget_user as module
from fedrank.data.forget_user import GONE, expired_rows, forget_expired, forget_user, rows_of_user, sweep
from fedrank.data.logs import FACTS, as_ranking, load_log
from tests import needs
from tests.made_up import made_up_log, made_up_shown

CLICK_MODELS = [1, 0, 1, 2, 1, 0, 1, 0, 1, 2, 2]


def lists_of(log, without=None):
    """Everything that a data set says of its entries, by names and not by numbers."""
    found = []
    for entry in range(len(log)):
        if log.users[log.user[entry]] == without:
            continue
        data = as_ranking(log, [entry])
        rows = [row for row in log.lists[entry].tolist() if row >= 0]
        more = [getattr(log, name) for name in ("first", "dwell", "scores", "target")]
        found.append(
            (
                log.users[log.user[entry]],
                log.queries[log.query[entry]],
                int(log.time[entry]),
                [log.documents[log.document[row]] for row in rows],
                data.features.tolist(),
                data.grades.tolist(),
                [None if one is None else str(np.asarray(one[entry]).tolist()) for one in more],  # NaN is not NaN
            )
        )
    return found


@pytest.fixture(params=["made up around clicks", "as shown", "drawn, with dwell"])
def log(request, tmp_path):
    if request.param == "made up around clicks":
        return load_log(made_up_log(tmp_path / "log", CLICK_MODELS))
    more = {}
    if request.param == "drawn, with dwell":
        rng = np.random.default_rng(2)
        shape = (len(CLICK_MODELS), 10)
        dwell = np.full(shape, np.nan)
        dwell[:, 0] = rng.random(len(CLICK_MODELS))
        more = {"scores": rng.random(shape), "dwell": dwell, "temperature": 0.3, "keep": 0.5}
    return made_up_shown(tmp_path / "log", CLICK_MODELS, unit="browser", **more)


def test_what_is_left_is_what_others_had(log):
    name = log.users[1]
    before, other_users = lists_of(log, name), [one for one in log.users if one != name]
    removed = forget_user(log.folder, name)
    after = load_log(log.folder)
    assert lists_of(after) == before
    assert list(after.users) == other_users
    assert removed.entries == CLICK_MODELS.count(int(name[-1]))
    assert len(after) == len(CLICK_MODELS) - removed.entries
    assert after.facts["counts"]["entries"] == len(after)
    assert after.facts["forgotten"] == [{"entries": removed.entries}]


def with_period(log, days, oldest):
    """The data set with this retention period; this many of its entries ended it long ago."""
    facts = json.loads((log.folder / FACTS).read_text())
    facts.setdefault("settings", {})["keep_days"] = days
    (log.folder / FACTS).write_text(json.dumps(facts))
    now = int(clock.time())
    np.save(log.folder / "time.npy", np.where(np.arange(len(log)) < oldest, now - (days + 1) * 86_400, now))
    return load_log(log.folder)


def test_entries_older_than_the_retention_period_are_deleted(log):
    log = with_period(log, 30, 4)  # of users 1, 0, 1 and 2
    with pytest.raises(ValueError, match="4 entries that are older than its retention period of 30 days"):
        log.check_retention()
    before = lists_of(log)[4:]
    assert expired_rows(log).entries == 4
    assert forget_expired(log.folder).entries == 4
    after = load_log(log.folder)
    after.check_retention()
    assert lists_of(after) == before
    assert expired_rows(after) is None
    assert [one["entries"] for one in after.facts["expired"]] == [4]
    with pytest.raises(ValueError, match="nothing was deleted"):
        forget_expired(log.folder)
    with pytest.raises(ValueError, match="delete the folder instead"):
        expired_rows(with_period(after, 30, len(after)))


def test_a_user_whose_entries_are_all_expired_is_not_named_any_more(tmp_path):
    log = with_period(load_log(made_up_log(tmp_path / "log", [2, 2, 1, 0, 1])), 30, 2)
    facts = json.loads((log.folder / FACTS).read_text())
    (log.folder / FACTS).write_text(json.dumps(facts | {"heavy_user": {"user": "users2", "entries": 2}}))
    forget_expired(log.folder)
    assert "users2" not in load_log(log.folder).users
    assert all(b"users2" not in path.read_bytes() for path in log.folder.iterdir())


def test_no_file_names_the_user_or_what_only_they_asked(tmp_path):
    folder = made_up_log(tmp_path / "log", CLICK_MODELS)
    facts = json.loads((folder / FACTS).read_text())
    facts["counts"]["clicks"] = 11
    facts |= {"heavy_user": {"user": "users1", "entries": 5}, "noticed": {"users1": ["users1", "users10"]}}
    (folder / FACTS).write_text(json.dumps(facts))
    (folder / "privacy.json").write_text("{}")
    asked = [f"queries{entry}\n" for entry, user in enumerate(CLICK_MODELS) if user == 1]
    size = (folder / "features.npy").stat().st_size
    forget_user(folder, "users1", {"when": "today"})
    texts = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(texts) == sorted([f"{name}.npy" for name in facts["shapes"]] + list(_others))
    assert not any(b"users1\n" in text or b'"users1"' in text for text in texts.values())
    assert not any(one.encode() in texts["queries.txt"] for one in asked)
    assert len(texts["features.npy"]) < size
    told = json.loads(texts[FACTS])
    assert told["heavy_user"] is None
    assert told["counts"]["clicks"] == 6
    assert told["noticed"] == {GONE: [GONE, "users10"]}
    assert told["forgotten"] == [{"entries": 5, "when": "today"}]
    assert list(tmp_path.iterdir()) == [folder]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.iterdir()))


_others = (FACTS, "users.txt", "queries.txt", "documents.txt", "privacy.json")


def test_several_leave_one_after_the_other(log):
    last = log.users[0]
    for name in log.users[1:]:
        forget_user(log.folder, name)
    left = load_log(log.folder)
    assert left.users == (last,)
    assert len(left.facts["forgotten"]) == 2
    with pytest.raises(ValueError, match="delete the folder"):
        forget_user(log.folder, last)


def test_somebody_who_is_not_there(log):
    with pytest.raises(ValueError, match=f"has no user 'nobody'; users are identified by the {log.unit} ids"):
        rows_of_user(log, "nobody")
    forget_user(log.folder, log.users[1])
    with pytest.raises(ValueError, match="1 users were removed earlier"):
        forget_user(log.folder, log.users[1])


def forgotten_until(folder, moment: int) -> int:
    """Forget in a process that dies at its so-manieth deed with files; returns how many it lived through, if all."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        done = 0

        def count(event, args):
            nonlocal done
            if event.split(".")[0] in ("open", "os", "shutil", "ctypes"):
                done += 1
                if done == moment:
                    os._exit(9)

        sys.addaudithook(count)
        try:
            forget_user(folder, "user1")
            os.write(writing, str(done).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        return int(pipe.read() or 0)


@pytest.mark.process
@needs.fork
@pytest.mark.parametrize("atomic", [True, False])
def test_killed_at_any_moment_it_is_the_old_or_the_new_folder(tmp_path, monkeypatch, atomic):
    """Every file that is opened, renamed or deleted is a moment to die; those around the exchange are all tried."""
    if not atomic:
        monkeypatch.setattr(files, "_swapped", lambda new, old: False)
    kept = tmp_path / "kept"
    made_up_shown(kept, CLICK_MODELS)
    folder = tmp_path / "here" / "log"
    shutil.copytree(kept, folder)
    old, new = lists_of(load_log(kept)), lists_of(load_log(kept), "user1")
    all_of_them = forgotten_until(folder, -1)
    assert all_of_them > 100
    assert lists_of(load_log(folder)) == new
    seen = {"old": 0, "new": 0, "mended": 0}
    for moment in sorted({*range(1, all_of_them, 9), *range(all_of_them - 40, all_of_them + 1)}):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        assert not forgotten_until(folder, moment)
        if not (folder / FACTS).exists():
            assert not atomic
            seen["mended"] += 1
            sweep(folder)
        found = lists_of(load_log(folder))
        assert found in (old, new)
        seen["old" if found == old else "new"] += 1
        if found == new:  # nothing is left of them once the same command was given again
            with pytest.raises(ValueError, match="has no user"):
                forget_user(folder, "user1")
        else:
            forget_user(folder, "user1")
        assert lists_of(load_log(folder)) == new
        assert [path.name for path in folder.parent.iterdir()] == ["log"]
    assert seen["old"] > 10
    assert seen["new"] > 1
    assert bool(seen["mended"]) == (not atomic)


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_is_being_worked_on_is_left_alone(tmp_path):
    from fedrank.data.log_folder import working_on

    folder = made_up_shown(tmp_path / "log", CLICK_MODELS).folder
    with working_on(folder), pytest.raises(files.Locked, match="is in use by process"):
        forget_user(folder, "user1")


def test_what_does_not_open_takes_nobodys_place(tmp_path, monkeypatch):
    folder = made_up_shown(tmp_path / "log", CLICK_MODELS).folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def broken(part, removed):
        (part / "user.npy").write_bytes(b"")

    with pytest.raises(ValueError, match="user"):
        forget_user(folder, "user1", complete=broken)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]


def test_blocks_are_put_together(tmp_path, monkeypatch):
    folder = made_up_shown(tmp_path / "log", CLICK_MODELS).folder
    expected = lists_of(load_log(folder), "user0")
    monkeypatch.setattr(module, "_SOME", 3)
    forget_user(folder, "user0")
    assert lists_of(load_log(folder)) == expected
