"""What the watcher takes from the events of a system, and when it looks at everything."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedrank.search import watch as watching
from fedrank.search.watch import Changes, watch
from tests.search.made_up import opened
from tests.search.test_cli_search import wait_for

watchdog = pytest.importorskip("watchdog.observers", reason="pip install 'fedrank[search]'")


def event(kind, path, to="", folder=False):
    return SimpleNamespace(event_type=kind, src_path=path, dest_path=to, is_directory=folder)


@pytest.fixture
def changes(tmp_path):
    made = Changes([Path("/root"), Path("/mail.mbox")], "/root/own")
    made.take()
    return made


@pytest.mark.parametrize(
    ("seen", "taken"),
    [
        (event("modified", "/root/a.txt"), ["/root/a.txt"]),
        (event("modified", b"/root/b.txt"), ["/root/b.txt"]),
        (event("moved", "/root/a", "/root/b", True), ["/root/a", "/root/b"]),
        (event("moved", "/elsewhere/a", "/root/b"), ["/root/b"]),
        (event("opened", "/root/a.txt"), []),
        (event("closed_no_write", "/root/a.txt"), []),
        (event("modified", "/root/own/search.db-wal"), []),
        (event("modified", "/root/.git/index"), []),
        (event("created", "/root/x/node_modules/a.js"), []),
        (event("created", "/root/Mail/.Sent/cur/1:2,S"), ["/root/Mail/.Sent/cur/1:2,S"]),
        (event("modified", "/root/places.sqlite-wal"), ["/root/places.sqlite-wal"]),
        (event("modified", "/mail.mbox"), ["/mail.mbox"]),
        (event("modified", "/mail.mbox-journal"), ["/mail.mbox-journal"]),
        (event("modified", "/other.mbox"), []),
    ],
)
def test_events_are_paths(changes, seen, taken):
    changes.dispatch(seen)
    assert [str(path) for path in changes.take()] == taken
    assert changes.take() == []


def test_a_folder_changes_with_its_entries(changes, monkeypatch):
    for system, taken in (("linux", []), ("darwin", [Path("/root/a")])):
        monkeypatch.setattr(watching.sys, "platform", system)
        changes.dispatch(event("modified", "/root/a", folder=True))
        assert changes.take() == taken


def test_a_root_that_is_a_link_is_known_by_both_names(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    changes = Changes([tmp_path / "link"], "/own")
    changes.take()
    changes.dispatch(event("modified", str(tmp_path / "link" / "a.txt")))
    changes.dispatch(event("modified", str(tmp_path / "real" / "b.txt")))
    assert changes.take() == [tmp_path / "link" / "a.txt", tmp_path / "link" / "b.txt"]


def test_too_many_changes_are_everything(changes, monkeypatch):
    monkeypatch.setattr(watching, "MAX_CHANGES", 3)
    for n in (1, 2, 3, 3, 2):
        changes.add(f"/root/{n}")
    assert len(changes.take()) == 3
    for n in range(100):
        changes.add(f"/root/{n}")
    assert changes.take() is None
    assert changes.take() == []


class Steps:
    """A client that says what it was asked to look at."""

    def __init__(self, client, seconds=0.0):
        self.store, self.folder, self.real = client.store, client.folder, client
        self.asked: list[list[Path] | None] = []

    def index(self, *, progress, changed):
        self.asked.append(changed)
        return self.real.index(progress=progress, changed=changed)


def watched(client, then, **settings):
    """Watch while `then` runs; returns what was looked at."""
    steps, stop, seen = Steps(client), threading.Event(), []
    thread = threading.Thread(target=watch, args=(steps, seen.append, stop), kwargs={"rest": 0.05})
    thread.start()
    try:
        wait_for(lambda: len(steps.asked) == 1)
        then(steps, seen)
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
    assert not logging.getLogger("watchdog").handlers
    return steps.asked


def test_only_what_changed_is_looked_at_after_everything_once(tmp_path):
    with opened(tmp_path, count=5) as client:
        (tmp_path / "documents" / "before.txt").write_text("it came before the watch began")

        def then(steps, seen):
            wait_for(lambda: len(seen) == 1)
            (tmp_path / "documents" / "inner").mkdir()
            (tmp_path / "documents" / "inner" / "new.txt").write_text("an orchard")
            wait_for(lambda: len(seen) == 2)

        first, *rest = watched(client, then)
        assert first is None
        assert rest
        assert all(paths is not None and all("inner" in path.parts for path in paths) for paths in rest)
        assert client.status().documents == 7


def test_lost_events_and_time_are_reasons_to_look_at_everything(tmp_path, monkeypatch):
    with opened(tmp_path, count=5) as client:

        def then(steps, seen):
            logging.getLogger("watchdog.observers.inotify_c").warning("Inotify queue overflowed; events were lost")
            wait_for(lambda: len(steps.asked) == 2)
            monkeypatch.setattr(watching, "EVERYTHING_EVERY", 0.0)

        assert watched(client, then) == [None, None]
        monkeypatch.setattr(watching, "EVERYTHING_EVERY", 0.3)
        assert {*watched(client, lambda steps, seen: wait_for(lambda: len(steps.asked) > 2))} == {None}


def test_a_system_that_cannot_watch_is_asked_again_and_again(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(watchdog.Observer, "schedule", full)
    monkeypatch.setattr(watching, "UNWATCHED_EVERY", 0.3)
    with opened(tmp_path, count=5) as client, pytest.warns(UserWarning, match="inotify watch limit reached"):
        assert {*watched(client, lambda steps, seen: wait_for(lambda: len(steps.asked) > 2))} == {None}
