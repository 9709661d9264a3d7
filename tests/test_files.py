"""Files that are whole or not there, and locks that one process holds at a time."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedrank.files import (
    PATIENCE,
    Locked,
    is_locked,
    is_plain,
    locked,
    opened,
    read_bytes,
    read_text,
    write_atomic,
    writing,
)
from fedrank.names import did_you_mean
from tests import needs


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "new" / "scores.txt"
    write_atomic(file, ["1\n", "2\n"])

    def broken():
        yield "3\n"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_atomic(file, broken())
    assert file.read_text() == "1\n2\n"
    assert names(file.parent) == ["scores.txt"]


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*model\.json'") as caught:
        write_atomic(tmp_path / "model.json", "{}")
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == []


def test_private_files_are_private_from_their_first_byte(tmp_path):
    with writing(tmp_path / "key", private=True) as file:
        [part] = tmp_path.iterdir()
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        file.write(b"secret")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_without_replace_nothing_is_lost(tmp_path):
    (tmp_path / "key").write_text("old")
    with pytest.raises(FileExistsError), writing(tmp_path / "key", replace=False) as file:
        file.write(b"new")
    assert (tmp_path / "key").read_text() == "old"
    assert names(tmp_path) == ["key"]


def test_two_threads_may_write_the_same_file(tmp_path):
    with writing(tmp_path / "a") as file:
        file.write(b"first")
        other = threading.Thread(target=write_atomic, args=(tmp_path / "a", "second"))
        other.start()
        other.join()
        assert (tmp_path / "a").read_text() == "second"
    assert (tmp_path / "a").read_text() == "first"
    assert names(tmp_path) == ["a"]


@pytest.mark.process
def test_what_a_killed_process_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path):
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    (tmp_path / f".a.{ended.stdout.strip()}.part").write_text("half")
    (tmp_path / f".a.{os.getppid()}.part").write_text("being written")
    write_atomic(tmp_path / "a", "whole")
    assert names(tmp_path) == sorted(["a", f".a.{os.getppid()}.part"])


HOLD = """
import sys, time
from fedrank.files import locked
with locked(sys.argv[1], "the folder"):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@needs.posix
@pytest.mark.parametrize("leave", [True, False])
def test_locks_of_windows(tmp_path, monkeypatch, leave):
    """A stand-in for its module locks like Windows: only bytes behind the text, and a locked file cannot be removed."""
    import fcntl

    def locking(handle, mode, count):
        assert (mode, count) == (2, 1)
        assert os.lseek(handle, 0, os.SEEK_CUR) > 1_000
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setattr("fedrank.files.sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr("fedrank.files.PATIENCE", 0.0)
    path = tmp_path / "lock"
    with locked(path, "it", leave=leave):
        assert path.read_text() == f"{os.getpid()}\n"
        assert is_locked(path) is True
        with pytest.raises(Locked, match=f"it is in use by process {os.getpid()}"), locked(path, "it"):
            pass
    assert is_locked(path) is False
    with locked(path, "it"):
        pass


@pytest.mark.process
def test_one_at_a_time_and_the_lock_ends_with_its_holder(tmp_path):
    path = tmp_path / "lock"
    assert is_locked(path) is None
    process = holder(path)
    assert is_locked(path) is True
    with (
        pytest.raises(Locked, match=f"the folder is in use by process {process.pid}; wait"),
        locked(path, "the folder"),
    ):
        pass
    process.kill()
    process.communicate()
    assert is_locked(path) is False
    with locked(path, "the folder"):
        assert is_locked(path) is True
    assert path.exists(), "removed, two could hold it"


@pytest.mark.process
def test_looking_does_not_stop_anybody_from_starting(tmp_path):
    path = tmp_path / "lock"
    path.write_text("")
    look = "import sys\nfrom fedrank.files import is_locked\nwhile True: is_locked(sys.argv[1])"
    looking = subprocess.Popen([sys.executable, "-c", look, str(path)])
    try:
        for _ in range(200):
            with locked(path, "the folder"):
                pass
    finally:
        looking.kill()
        looking.wait()


COUNT = """
import sys, pathlib, time
from fedrank.files import Locked, locked
folder, leave = pathlib.Path(sys.argv[1]), sys.argv[2] == "1"
done = 0
while done < 40:
    try:
        with locked(folder / "lock", "it", leave=leave):
            mark = folder / "inside"
            mark.touch(exist_ok=False)  # fails where two are inside
            time.sleep(0.0005)
            mark.unlink()
            done += 1
    except Locked:
        pass
"""


@pytest.mark.process
@pytest.mark.parametrize("leave", ["0", "1"])
def test_never_two_holders(tmp_path, leave):
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path), leave]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "lock").exists() == (leave == "1")


def test_waiting_for_a_lock_is_bounded(tmp_path, monkeypatch):
    slept: list[float] = []
    with locked(tmp_path / "lock", "it"):
        monkeypatch.setattr("fedrank.files.time.monotonic", lambda: sum(slept))
        monkeypatch.setattr("fedrank.files.time.sleep", slept.append)
        with pytest.raises(Locked), locked(tmp_path / "lock", "it"):
            pass
    assert sum(slept) == pytest.approx(PATIENCE, abs=0.1)


def test_the_nearest_name_or_what_there_is():
    assert did_you_mean("kurm", ["mean", "krum"]) == '; did you mean "krum"?'
    assert did_you_mean("", ["mean", "krum"]) == '; there is "mean", "krum"'
    assert did_you_mean("x", []) == "; there is none"
    assert did_you_mean("zzz", [f"name {i}" for i in range(30)]).endswith('"name 19" and 10 more')


@pytest.mark.parametrize("read", [opened, read_bytes, read_text])
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name, what in (("pipe", "a pipe"), ("zeros", "a device"), (".", "a folder")):
        with pytest.raises(ValueError, match=f"is {what}; name a file"):
            read(tmp_path / name)
    assert is_locked(tmp_path / "pipe") is None
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")


def test_a_file_is_read_as_python_reads_it_up_to_a_size(tmp_path):
    file = tmp_path / "text"
    file.write_bytes("\ufeffa\r\nb\rc\n".encode())
    assert read_text(file) == file.read_text(encoding="utf-8")
    assert read_text(file, "utf-8-sig") == file.read_text(encoding="utf-8-sig") == "a\nb\nc\n"
    assert read_bytes(file, 10) == file.read_bytes()
    with pytest.raises(ValueError, match="has 10 bytes, but at most 9 are allowed"):
        read_bytes(file, 9)
    if sys.platform == "linux":
        assert read_bytes("/proc/self/pagemap") == b""  # a file that has no end, and no size


def test_names_that_lead_elsewhere():
    assert all(map(is_plain, ("model-1.json", "..json", "a b")))
    assert not any(map(is_plain, ("", ".", "..", "../a", "a/b", "/a", "a\\b", "a\0", None, 1, ["a"])))
