from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.kernels.sketch import line
from fedrank.silo.hashing import PRIME, Hashing
from tests.oracles import sketch as oracle

KEY = bytes(range(32))
NUMBER = st.one_of(st.integers(0, PRIME - 1), st.sampled_from([0, 1, 2**30, 2**31 - 1, 2**31, PRIME - 2, PRIME - 1]))


@settings(deadline=None, max_examples=300)
@given(NUMBER, NUMBER, NUMBER)
def test_lines_are_those_of_whole_numbers(slope, x, start):
    assert int(line(np.uint64(slope), np.uint64(x), np.uint64(start))) == oracle.line(slope, x, start)


def test_same_key_same_places_and_another_key_others():
    words = [f"word {i}" for i in range(50)]
    cells, signs = Hashing(KEY).locate(words)
    assert np.array_equal(cells, Hashing(KEY).locate(words)[0])
    assert np.array_equal(signs, Hashing(KEY).locate(words)[1])
    assert np.array_equal(cells[7], Hashing(KEY).locate(["word 7"])[0][0])
    other = Hashing(bytes(32)).locate(words)[0]
    # Two unrelated keys agree in 1 of 200 cells: 7.5 of 1,500, so that 40 would be a wonder.
    assert np.count_nonzero(cells == other) < 40


def test_places_stay_what_they_are():
    # Files that were written once must be read for ever: these numbers may change only with the version of the format.
    cells, signs = Hashing(KEY, width=1000, depth=4).locate(["term", ""])
    assert cells.tolist() == [[229, 887, 399, 30], [336, 293, 80, 845]]
    assert signs.tolist() == [[1, 1, -1, -1], [-1, 1, 1, -1]]


@settings(deadline=None, max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.text(max_size=20), st.integers(1, 5000))
def test_places_are_those_of_the_definition(key, term, width):
    cells, signs = Hashing(key, width, 3).locate([term])
    assert (cells[0].tolist(), signs[0].tolist()) == oracle.locate(key, term, 3, width)


def test_no_terms_have_no_places():
    cells, signs = Hashing(KEY).locate([])
    assert cells.shape == signs.shape == (0, 30)


def test_a_broken_character_is_a_term_like_any_other():
    assert Hashing(KEY).locate(["\ud800"])[0].shape == (1, 30)


def test_fingerprint_tells_keys_and_sizes_apart_and_shows_nothing():
    same = Hashing(KEY).fingerprint
    assert len(same) == 16, "a collision of 64 bits can be searched for"
    assert same == Hashing(KEY, 200, 30).fingerprint
    others = {Hashing(KEY, 201).fingerprint, Hashing(KEY, 200, 29).fingerprint, Hashing(bytes(32)).fingerprint}
    assert len(others | {same}) == 4
    assert repr(KEY) not in repr(Hashing(KEY))


def test_two_terms_are_placed_independently():
    """Over many keys the pair of cells of two terms is uniform over w x w, and so are their signs."""
    keys, width = 3000, 4
    rng = np.random.default_rng(1)
    pairs = np.zeros((width, width))
    signs = np.zeros((2, 2))
    for _ in range(keys // 30):
        cells, sign = Hashing(rng.bytes(32), width, 30).locate(["apple", "apples"])
        np.add.at(pairs, (cells[0], cells[1]), 1)
        np.add.at(signs, ((sign[0] + 1) // 2, (sign[1] + 1) // 2), 1)
    # Chi-squared with 15 and 3 degrees of freedom: 1 in 10^5 above 50 and 26.
    assert np.sum((pairs - keys / 16) ** 2 / (keys / 16)) < 50
    assert np.sum((signs - keys / 4) ** 2 / (keys / 4)) < 26


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="32 bytes \\(got 31\\)"):
        Hashing(bytes(31))
    with pytest.raises(ValueError, match="width must be"):
        Hashing(KEY, 0)
    with pytest.raises(ValueError, match="depth must be"):
        Hashing(KEY, 10, 0)


UNCOMPILED = """
import sys
import numpy as np
from fedrank.silo.rtk import TopKRule, build, naive
from fedrank.silo.sketch import Sketcher

out = {}
texts = ["a b b c d d d", "", "b b b e", "a a a a d", "c e e", "f a b"]
for kind, rule in (
    ("count-sketch", TopKRule(alpha=1.5, k=2)),
    ("count-sketch", TopKRule(alpha=1, k=2, keep="magnitude")),
    ("count-min", TopKRule(alpha=1, k=2, keep="largest", missing="threshold")),
):
    sketcher = Sketcher(kind, width=5, depth=4)
    hashing = sketcher.hashing(bytes(range(32)))
    sketches = sketcher.sketch(sketcher.term_counts(texts), hashing)
    built = build([sketches[:3], sketches[3:]], rule, kind, 4, 5).delete([1])
    out[f"{kind}-{rule.keep}"] = built.documents * 1000 + built.values
    cells, signs = sketcher.locate(list("abcdef"), hashing)
    for i in range(6):
        for name, (rows, counts) in {
            "rtk": built.query(cells[i], signs[i]), "naive": naive(sketches, cells[i], signs[i], 2, kind)
        }.items():
            out[f"{kind}-{rule.keep}-{name}-{i}"] = np.stack([rows, counts])
np.savez(sys.argv[1], **out)
"""


@pytest.mark.process
def test_uncompiled_equals_compiled(tmp_path):
    results = []
    for disable in ("0", "1"):
        file = tmp_path / f"{disable}.npz"
        environment = os.environ | {"NUMBA_DISABLE_JIT": disable}
        subprocess.run([sys.executable, "-c", UNCOMPILED, str(file)], env=environment, check=True, cwd=os.getcwd())
        results.append(np.load(file))
    compiled, plain = results
    assert set(compiled.files) == set(plain.files)
    assert all(np.array_equal(compiled[name], plain[name]) for name in compiled.files)
    assert sum(compiled[name].size for name in compiled.files if "rtk" in name) > 20
