"""The cache of parsed sets: found again, never wrong, never in the way."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedrank.data import cache, letor
from fedrank.data.letor import read_letor
from fedrank.data.ranking import RankingData

TEXT = "2 qid:a 1:1 2:5\n0 qid:a 1:3 2:5\n1 qid:b 1:7\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRANK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "set.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever text is parsed rather than taken from the cache."""
    calls: list[object] = []
    original = letor._read

    def counted(*arguments: object) -> RankingData:
        calls.append(arguments)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(letor, "_read", counted)
    return calls


def entries(file: Path) -> list[Path]:
    return sorted((file.parent / "cache" / "data").iterdir())


def assert_right(data: RankingData) -> None:
    assert data.features.tolist() == [[1, 5], [3, 5], [7, 0]]
    assert data.grades.tolist() == [2, 0, 1]
    assert data.offsets.tolist() == [0, 2, 3]
    assert data.query_ids.tolist() == ["a", "b"]
    assert (data.name, data.top_grade, data.normalised) == ("set", 2, "none")


def memory_mapped(array: object) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def test_the_second_reading_parses_nothing(file: Path, parsed: list[object]) -> None:
    for _ in range(3):
        data = read_letor(file)
        assert_right(data)
        assert memory_mapped(data.features)
    assert len(parsed) == 1
    assert len(entries(file)) == 1
    assert sorted(path.name for path in entries(file)[0].iterdir()) == [
        "features.npy",
        "grades.npy",
        "header.json",
        "offsets.npy",
        "query_ids.npy",
    ]


def test_without_cache_nothing_is_written(file: Path, parsed: list[object]) -> None:
    read_letor(file, cache=False)
    read_letor(file, cache=False)
    assert len(parsed) == 2
    assert not (file.parent / "cache" / "data").exists()


def test_changes_to_a_cached_array_stay_in_memory(file: Path) -> None:
    read_letor(file).features[0, 0] = 99
    assert_right(read_letor(file))


def test_a_changed_file_is_read_again(file: Path, parsed: list[object]) -> None:
    read_letor(file)
    status = file.stat()
    file.write_text(TEXT.replace("1:3", "1:4"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size, same time: the ends must tell
    assert read_letor(file).features[1, 0] == 4
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    read_letor(file)
    assert len(parsed) == 3


def test_every_option_has_its_own_entry(file: Path, parsed: list[object]) -> None:
    assert read_letor(file).features[1, 0] == 3
    assert read_letor(file, normalise="query").features[1, 0] == 1
    assert read_letor(file, normalise="global").features[1, 0] == np.float32((3 - 1) / (7 - 1))
    assert read_letor(file, missing=3).features[1, 0] == 0
    assert read_letor(file, features=2).features.shape == (3, 2)
    assert len(parsed) == 5
    assert read_letor(file, normalise="query").normalised == "query"
    assert len(parsed) == 5


def test_several_files_share_one_entry(file: Path, parsed: list[object]) -> None:
    other = file.with_name("other.txt")
    other.write_text("0 qid:c 1:1\n")
    assert read_letor([file, other]).documents == 4
    assert read_letor([other, file]).grades.tolist() == [0, 2, 0, 1]
    assert read_letor([file, other]).grades.tolist() == [2, 0, 1, 0]
    assert len(parsed) == 2


@pytest.mark.parametrize("name", ["features.npy", "grades.npy", "offsets.npy", "query_ids.npy", "header.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "noise", "longer"])
def test_a_damaged_entry_is_rebuilt(file: Path, parsed: list[object], name: str, damage: str) -> None:
    read_letor(file)
    path = entries(file)[0] / name
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": whole[:-1], "empty": b"", "noise": b"\xff" * len(whole), "longer": whole + b"!"}[damage]
        )
    assert_right(read_letor(file))
    assert len(parsed) == 2
    assert_right(read_letor(file))
    assert len(parsed) == 2
    assert len(entries(file)) == 1
    assert len(list(entries(file)[0].iterdir())) == 5


def test_an_entry_of_other_shape_is_rebuilt(file: Path, parsed: list[object]) -> None:
    read_letor(file)
    path = entries(file)[0] / "features.npy"
    np.save(path, np.zeros((2, 3), np.float32))  # as many bytes as [3, 2]
    assert_right(read_letor(file))
    header = entries(file)[0] / "header.json"
    content = json.loads(header.read_text())
    del content["arrays"]["grades"]
    header.write_text(json.dumps(content))
    assert_right(read_letor(file))
    header.write_text("[]")
    assert_right(read_letor(file))
    assert len(parsed) == 4


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    file: Path, parsed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = file.with_name("blocked")
    blocked.write_text("a file where the cache folder should be")
    monkeypatch.setenv("FEDRANK_CACHE", str(blocked))
    assert_right(read_letor(file))
    assert_right(read_letor(file))
    assert len(parsed) == 2


def test_a_full_disk_leaves_nothing_behind(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert_right(read_letor(file))
    assert entries(file) == []


def test_the_environment_counts_at_the_call(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_letor(file)
    monkeypatch.setenv("FEDRANK_CACHE", str(file.with_name("elsewhere")))
    read_letor(file)
    assert len(list(file.with_name("elsewhere").joinpath("data").iterdir())) == 1


def test_a_file_that_changes_while_it_is_read_is_refused_and_not_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = letor._read

    def disturbed(*arguments: object) -> RankingData:
        data = original(*arguments)  # type: ignore[arg-type]
        file.write_text(TEXT + "0 qid:z 1:1\n")
        return data

    monkeypatch.setattr(letor, "_read", disturbed)
    with pytest.raises(letor.JudgedFileError, match=f"{file} changed while it was read, .* wait until it is written"):
        read_letor(file)
    assert not (file.parent / "cache" / "data").exists()


def test_the_second_of_two_writers_succeeds(file: Path) -> None:
    data = read_letor(file, cache=False)
    assert cache.store("same", data)
    before = (file.parent / "cache" / "data" / "same" / "features.npy").stat().st_ino
    assert cache.store("same", data)
    assert (file.parent / "cache" / "data" / "same" / "features.npy").stat().st_ino == before
    assert [path.name for path in entries(file)] == ["same"]
    found = cache.load("same")
    assert found is not None
    assert_array_equal(found.features, data.features)


@pytest.mark.process
def test_processes_that_write_at_once_all_succeed(file: Path) -> None:
    program = (
        "import sys, time, numpy as np\n"
        "from fedrank.data import cache\n"
        "from fedrank.data.ranking import RankingData\n"
        "features, grades = np.ones((2000, 50), np.float32), np.ones(2000, np.int8)\n"
        "data = RankingData(features, grades, np.array([0, 2000]), np.array(['q']))\n"
        "time.sleep(max(0, float(sys.argv[1]) - time.time()))\n"
        "for turn in range(20):\n"
        "    assert cache.store(f'entry-{turn}', data)\n"
        "    assert cache.load(f'entry-{turn}').documents == 2000\n"
    )
    start = str(time.time() + 1.5)
    writers = [subprocess.Popen([sys.executable, "-c", program, start]) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(entries(file)) == 20


def test_unfinished_entries_of_dead_writers_are_removed(file: Path) -> None:
    folder = file.parent / "cache" / "data"
    old, young = folder / ".unfinished-old", folder / ".unfinished-young"
    old.mkdir(parents=True)
    young.mkdir()
    os.utime(old, (0, 0))
    read_letor(file)
    assert not old.exists()
    assert young.exists()
