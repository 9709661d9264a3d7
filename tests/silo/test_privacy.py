"""What the ε of a sketch file covers, computed once more: neighbours, their distances, Gaussian noise."""

from __future__ import annotations

import re
from dataclasses import replace
from math import exp, sqrt

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedrank.data.documents import Documents
from fedrank.privacy.noise import SecureSource
from fedrank.silo import array_file, files
from fedrank.silo.describe import describe_sketch
from fedrank.silo.files import add_documents, open_sketch, sketch_collection
from fedrank.silo.partners import sketch_fields
from fedrank.silo.rtk import build
from fedrank.silo.sketch import LENGTH_NOISE, Sketcher
from fedrank.silo.spending import SiloLedger
from fedrank.silo.terms import TermCounts

KEY = bytes(range(32))
EXACT = Sketcher(width=8, depth=6, noise=1.0)
HIDDEN = replace(EXACT, exact_lengths=False)


def epsilon_by_hand(shift: float, delta: float = 1e-5) -> float:
    """ε of Gaussian noise with sensitivity / deviation = shift (Balle and Wang 2018), by looking for it."""

    def excess(epsilon: float) -> float:
        return norm.cdf(shift / 2 - epsilon / shift) - exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift) - delta

    return brentq(excess, 0.0, 500.0, xtol=1e-12)


def releases(texts: list[str], sketcher: Sketcher) -> np.ndarray:
    """Every number of one field that is noised before it is told, without its noise and in deviations of it."""
    counts = TermCounts.of(texts, sketcher.tokeniser)
    plain, wide = replace(sketcher, noise=0.0), replace(sketcher, noise=0.0).wide
    parts = [
        plain.sketch(counts, plain.hashing(KEY)) / sketcher.deviation,
        wide.sketch(counts.as_document(), wide.hashing(KEY)) / sketcher.deviation,
    ]
    if not sketcher.exact_lengths:
        parts.append(counts.lengths / (LENGTH_NOISE * sketcher.noise))
    return np.concatenate([part.ravel() for part in parts])


@pytest.mark.long
@pytest.mark.parametrize("sketcher", [EXACT, HIDDEN, replace(EXACT, kind="count-min")])
def test_no_neighbour_is_further_away_than_is_paid_for(sketcher: Sketcher) -> None:
    """One occurrence of one term in one document is replaced (lengths are exact), or left out (they are noised).

    Over many pairs of collections the distance stays below the shift that ε is computed from, and some come near it.
    Without signs (Count-Min) two words never pull one cell apart, and ε is larger than it need be.
    """
    rng = np.random.default_rng(1)
    words = [f"w{i}" for i in range(2000)]
    bound, furthest = 1 / sketcher.multiplier, 0.0
    for _ in range(400):
        documents = [list(rng.choice(words, rng.integers(1, 6))) for _ in range(3)]
        neighbours = [list(document) for document in documents]
        which = rng.integers(3)
        place = rng.integers(len(documents[which]))
        if sketcher.exact_lengths:
            neighbours[which][place] = str(rng.choice(words))
        else:
            del neighbours[which][place]
        both = [releases([" ".join(words) for words in each], sketcher) for each in (documents, neighbours)]
        distance = float(np.linalg.norm(both[0] - both[1]))
        assert distance <= bound * (1 + 1e-12)
        furthest = max(furthest, distance)
    assert furthest > (0.8 if sketcher.kind == "count-sketch" else 0.7) * bound


def test_the_worst_pair_of_words_is_as_far_apart_as_is_paid_for(monkeypatch) -> None:
    """Two words that share every cell with opposite signs, in sketches of one column: ε could not be smaller."""
    monkeypatch.setattr("fedrank.silo.sketch.WIDE", 1)
    sketcher = replace(EXACT, width=1)
    words = [f"w{i}" for i in range(1000)]
    signs = sketcher.locate(words, sketcher.hashing(KEY))[1]
    other = next(place for place in range(1, 1000) if np.all(signs[place] == -signs[0]))
    both = [releases([word], sketcher) for word in (words[0], words[other])]
    assert np.linalg.norm(both[0] - both[1]) == pytest.approx(1 / sketcher.multiplier)


def test_every_part_of_a_file_is_paid_for_or_secret_or_said_not_to_be_covered(tmp_path) -> None:
    """A new part of the file has to be put into one of these lists, and to be paid for."""
    file = sketch_collection(collection(), KEY, EXACT, tmp_path / "a.sketch")
    header, parts = array_file.read_arrays(file.path, files.TYPES)
    # Computed from noised cells alone: see below. How small packed parts get is told, so that only noised ones are.
    cells = {"held", "gaps", "counts", "ties", "sizes", "lost"}
    secret = {"ids", "squares", "pseudonym-key"}
    packed = {entry["name"].rpartition(".")[2] for entry in header["parts"] if "packed" in entry}
    assert packed == cells | {"frequencies"}
    assert {name.rpartition(".")[2] for name in parts} == cells | {"frequencies", "lengths"} | secret
    # Settings, and shapes and checksums of the parts.
    assert set(header) == {"secret", "sketcher", "rule", "fingerprint", "fields", "removed", "parts"}
    copy = file.copy_for("b")
    assert vars(copy).keys() == {"sketcher", "fields", "lengths", "frequencies", "pseudonyms"}
    assert describe_sketch(file.path)["not covered"] == "that a document exists, and how many words it has"
    hidden = sketch_collection(collection(), KEY, HIDDEN, tmp_path / "hidden.sketch")
    assert describe_sketch(hidden.path)["not covered"] == "that a document exists"


def collection() -> Documents:
    return Documents(["x", "y"], ["a title", "b"], ["flu flu cold", "arm"], ["", ""])


def test_the_best_of_every_cell_are_those_of_noised_cells() -> None:
    texts = {"body": TermCounts.of(["flu flu cold", "arm", "leg arm"], EXACT.tokeniser)}
    rule = files.TopKRule(k=2, alpha=1)
    told = sketch_fields(texts, EXACT, rule, KEY, SecureSource(bytes(32)))
    source = SecureSource(bytes(32))
    noised = EXACT.sketch(texts["body"], EXACT.hashing(KEY), source)
    expected = build([noised], rule, EXACT.kind, EXACT.depth, EXACT.width)
    for part in files.TOP_PARTS:
        np.testing.assert_array_equal(getattr(told.fields["body"], part), getattr(expected, part))
    counted = EXACT.wide.sketch(texts["body"].as_document(), EXACT.wide.hashing(KEY), source)[0]
    np.testing.assert_array_equal(told.frequencies["body"], counted)


@pytest.mark.parametrize(("sketcher", "shift"), [(EXACT, sqrt(2)), (HIDDEN, sqrt(2 + 1 / 225))])
def test_describe_states_the_epsilon_of_all_of_it(tmp_path, sketcher, shift) -> None:
    """Two sketches, each moved by one deviation, and a length by 1/15; rounded up, never down."""
    file = sketch_collection(collection(), KEY, sketcher, tmp_path / "a.sketch")
    told = describe_sketch(file.path)
    stated = float(re.match(r"ε = ([\d.]+) at", told["privacy"])[1])
    assert 0 <= stated - epsilon_by_hand(shift) < 0.1
    for times, cost in re.findall(r"(\d+) times: ([\d.]+)", told["for more"]):
        assert 0 <= float(cost) - epsilon_by_hand(int(times) * shift) < 0.01 * float(cost) + 0.1
    assert SiloLedger(tmp_path / "a.spending").spent() == pytest.approx(epsilon_by_hand(shift), abs=1e-6)


def test_what_is_added_later_has_noise_of_its_own_in_the_frequencies(tmp_path) -> None:
    """The difference of two files is what was added, and must be as noisy as if it had been sketched alone."""
    before = sketch_collection(collection(), KEY, EXACT, tmp_path / "a.sketch").frequencies["body"].copy()
    more = Documents(["z"], ["c"], ["flu"], [""])
    after = add_documents(tmp_path / "a.sketch", more, KEY).frequencies["body"]
    difference = after.astype(float) - before
    # 6 x 4,096 cells of noise and one word: the deviation is known within 2 %.
    assert difference.std() == pytest.approx(EXACT.deviation, rel=0.02)
    assert len(open_sketch(tmp_path / "a.sketch")) == 3
