"""Arrays in files: read when used, never written, and larger than memory where the system allows it."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.lib.format import open_memmap

from fedrank.data.mapped import open_mapped
from tests import needs


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
