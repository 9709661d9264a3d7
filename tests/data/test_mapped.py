"""Arrays in files: read when used, never written, and larger than memory where the system allows it."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from numpy.lib.format import open_memmap

from fedrank.data.logs import write_names
from fedrank.data.mapped import new_mapped, open_mapped, save_array
from fedrank.files import error_message
from tests import needs

try:
    import resource
except ImportError:  # Windows
    resource = None


@pytest.mark.parametrize(
    "values",
    [np.arange(12, dtype="<f4").reshape(4, 3), np.array([], "<i8"), np.ones((2, 3), "|i1", order="F"), np.array(["é"])],
    ids=["rows", "empty", "columns", "text"],
)
def test_it_holds_what_the_file_holds_and_writing_stays_here(tmp_path, values):
    path = tmp_path / "a.npy"
    np.save(path, values)
    before = path.read_bytes()
    found = open_mapped(path)
    assert found.dtype == values.dtype
    assert np.array_equal(found, values)
    assert found.flags.writeable
    assert found.flags.aligned
    if found.size:
        found[0] = found[-1]
        assert np.array_equal(found[0], values[-1])
    assert path.read_bytes() == before
    assert np.array_equal(open_mapped(path), values)


@needs.linux
def test_a_file_larger_than_memory(tmp_path):
    rows = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4096 + 1
    try:
        table = open_memmap(tmp_path / "a.npy", mode="w+", dtype="<f4", shape=(rows, 1024))
    except OSError:
        needs.skip("system", "the file system does not hold a sparse file of that size")
    table[-1] = 7
    del table
    found = open_mapped(tmp_path / "a.npy")
    assert found.nbytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (found[0, 0], found[-1, 5]) == (0, 7)
    os.remove(tmp_path / "a.npy")


@needs.linux
def test_a_new_array_has_its_room_on_the_disk_before_it_is_written(tmp_path):
    made = new_mapped(tmp_path / "a.npy", (1000, 100), "<f4")
    facts = os.stat(tmp_path / "a.npy")
    assert facts.st_blocks * 512 >= facts.st_size > made.nbytes
    made[:] = 3
    made.flush()
    assert (np.load(tmp_path / "a.npy") == 3).all()


def test_no_room_for_a_new_array_is_said_with_its_name(tmp_path, monkeypatch):
    def full(handle, first, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.npy'"):
        new_mapped(tmp_path / "a.npy", (3, 2), "<f4")
    new_mapped(tmp_path / "a.npy", (0, 2), "<f4")  # an empty one needs none


@pytest.mark.parametrize("values", [np.arange(12, dtype="<f4").reshape(4, 3), np.zeros((0, 3)), np.array(7)])
def test_an_array_is_saved_as_numpy_saves_it(tmp_path, values):
    save_array(tmp_path / "ours.npy", values)
    np.save(tmp_path / "theirs.npy", values)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


@needs.posix
@pytest.mark.parametrize("save", [save_array, lambda path, values: write_names(path, values.tolist())])
def test_a_cut_write_names_the_file_and_the_reason(tmp_path, save):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"a\.npy") as caught:
            save(tmp_path / "a.npy", np.arange(5000.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error_message(caught.value).endswith(
        "a.npy: File too large; free disk space, then run the same command again"
    )
