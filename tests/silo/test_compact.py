"""Packed cells: they come back bit by bit, are small, tell nothing by their size, and cannot fill a reader's memory."""

from __future__ import annotations

import gzip
import hashlib
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrank.data.documents import Documents
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.silo import array_file, files
from fedrank.silo.array_file import GROWTH, PACKED, PLAIN, SketchFileError
from fedrank.silo.compact import LARGEST, PARTS, compact, expand
from fedrank.silo.files import open_sketch, sketch_collection, write_sketch
from fedrank.silo.rtk import COUNT_MIN, ReverseTopK, TopKRule, build
from fedrank.silo.sketch import Sketcher

KEY = bytes(range(32))
ROOM = 1 << 30


def cells(rng, documents: int, rule: TopKRule, spread: float = 3.0, shape=(4, 90)) -> ReverseTopK:
    """What is kept of made-up sketches, with many equal values."""
    sketches = np.rint(rng.normal(0, spread, (documents, *shape))).astype(np.int32)
    return build([sketches], rule, "count-sketch", *shape)


def assert_comes_back(top: ReverseTopK) -> dict:
    made = compact(top)
    assert made is not None
    documents, values = expand(made, top.sizes, top.rule, ROOM)
    np.testing.assert_array_equal(documents, top.documents)
    np.testing.assert_array_equal(values, top.values)
    return made


@pytest.mark.parametrize("documents", [0, 1, 5, 30, 60, 61, 200])
@pytest.mark.parametrize("rule", [TopKRule(alpha=2, k=15), replace(COUNT_MIN, alpha=2, k=15)], ids=["ends", "largest"])
def test_cells_come_back(documents, rule):
    """30 documents fit into one end; up to 60 are in both ends or in one; of 200 most are in none."""
    made = assert_comes_back(cells(np.random.default_rng(documents), documents, rule))
    each = min(documents, 30 * rule.ends)
    assert len(made["gaps"]) <= 360 * each  # once, though most are at both ends


@pytest.mark.parametrize("spread", [0.6, 50.0, 1e4, 1e7])
def test_any_values_come_back(spread):
    assert_comes_back(cells(np.random.default_rng(1), 50, TopKRule(alpha=1, k=20), spread))


def test_cells_come_back_after_documents_came_and_went():
    rng = np.random.default_rng(2)
    top = cells(rng, 40, TopKRule(alpha=1, k=12))
    for _ in range(4):
        gone = rng.choice(np.flatnonzero(top.present), 9, replace=False)
        top = top.delete(gone)
        assert_comes_back(top)
        top = top.insert(np.rint(rng.normal(0, 3, (6, 4, 90))).astype(np.int32))
        assert_comes_back(top)


def test_cells_come_back_when_equal_values_were_parted_by_other_rows(tmp_path):
    """A copy has new row numbers: of equal values at the edge, those inside are no longer the first ones."""
    rng = np.random.default_rng(3)
    top = cells(rng, 40, TopKRule(alpha=1, k=25), spread=1.0)
    new = rng.permutation(40).astype(np.int32)
    moved = files._renumbered(top, new, 40)
    made = assert_comes_back(moved)
    assert 0 < np.unpackbits(made["ties"]).mean() < 1


@pytest.mark.parametrize(
    "change",
    [
        lambda top: replace(top, rule=replace(top.rule, keep="magnitude"), **_first_end(top)),
        lambda top: replace(top, values=top.values + np.int32(LARGEST)),
        lambda top: replace(top, values=np.stack([top.values[0], top.values[1] - 1])),  # other values at the other end
        lambda top: replace(top, documents=top.documents[..., ::-1].copy()),  # the best ones last
    ],
)
def test_what_would_not_come_back_is_not_packed(change):
    assert compact(change(cells(np.random.default_rng(4), 10, TopKRule(alpha=1, k=20)))) is None


def _first_end(top: ReverseTopK) -> dict:
    return {name: getattr(top, name)[:1] for name in files.TOP_PARTS}


def forged(part: str, change):
    return lambda made: made | {part: change(made[part])}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (forged("held", lambda held: held[:, :-1]), "do not match its settings"),
        (forged("held", lambda held: held + 1), "declared number of documents"),
        (forged("held", lambda held: -held), "declared number of documents"),
        (forged("gaps", lambda gaps: gaps[:-1]), "declared number of documents"),
        (forged("gaps", lambda gaps: gaps * 0), "a document twice"),
        (forged("gaps", lambda gaps: gaps + (1 << 29)), "documents that do not exist"),
        (forged("counts", lambda counts: counts + LARGEST), "too large"),
        (forged("ties", lambda ties: ties[:5]), "too few bits"),
        (forged("ties", lambda ties: ~ties), "do not match the number"),
    ],
)
def test_forged_cells_are_refused(change, told):
    top = cells(np.random.default_rng(5), 40, TopKRule(alpha=1, k=25))
    made = compact(top)
    with pytest.raises(ValueError, match=told):
        expand(change(made), top.sizes, top.rule, ROOM)


def test_any_change_of_packed_cells_is_refused_or_makes_cells_that_can_be_read():
    rng = np.random.default_rng(7)
    top = cells(rng, 40, TopKRule(alpha=1, k=25), shape=(2, 20))
    made, refused = compact(top), 0
    for _ in range(400):
        bad = {name: np.array(part) for name, part in made.items()}
        name = rng.choice(PARTS)
        part = bad[name].reshape(-1)
        where = rng.integers(len(part))
        part[where] = (
            rng.choice([0, 1, 255]) if name == "ties" else part[where] + rng.choice([-1, 1, 1 << 20, -(1 << 29)])
        )
        try:
            documents, values = expand(bad, top.sizes, top.rule, ROOM)
        except ValueError:
            refused += 1
            continue
        assert documents.shape == values.shape == top.documents.shape
        assert np.array_equal(documents >= 0, np.arange(documents.shape[3]) < top.sizes[..., None])
    assert 100 < refused < 400


def test_sizes_that_lie_are_refused():
    top = cells(np.random.default_rng(6), 10, TopKRule(alpha=1, k=20))
    made = compact(top)
    for sizes in (top.sizes + 1, top.sizes - 11):
        with pytest.raises(ValueError, match="more documents at an end"):
            expand(made, sizes, top.rule, ROOM)
    with pytest.raises(ValueError, match="too many for a file of this size"):
        expand(made, top.sizes, top.rule, top.documents.nbytes)


# Files


def documents(many: int, words: int) -> Documents:
    whole = synthetic_collection(many, 5, seed=1, length=words).documents
    return Documents(whole.ids, whole.title, whole.text, whole.url)


def made(path: Path, many: int = 40, words: int = 30, **settings) -> Path:
    sketch_collection(documents(many, words), KEY, Sketcher(**{"width": 40, "depth": 6, **settings}), path)
    return path


def version(path: Path) -> int:
    return array_file.BEGIN.unpack_from(path.read_bytes())[1]


@pytest.mark.long
def test_noised_sketches_take_about_as_many_bits_as_their_noise(tmp_path):
    """5.5 bits a document and cell at σ1 = 1 and 30 rows; four bytes each would be 64 for row and value, twice."""
    path = made(tmp_path / "a.sketch", 150, noise=1.0, depth=30, width=200)
    file = open_sketch(path)
    bits = 8 * path.stat().st_size - 8 * sum(frequencies.size for frequencies in file.frequencies.values())
    assert bits / (150 * 2 * 30 * 200) < 6.0
    plain = sum(part.nbytes for part in files._parts(file).values())
    assert path.stat().st_size < plain / 15


def test_a_few_rows_make_a_sketch_about_as_large_as_its_text(tmp_path):
    """What document-collections.md advises: noise errs alike with ten rows, and fewer cells hold less of it."""
    whole = documents(300, 170)  # as long as the abstracts of cranfield
    text = sum(len(part.encode()) for part in (*whole.title, *whole.text))
    path = tmp_path / "a.sketch"
    sketch_collection(whole, KEY, Sketcher(noise=1.0, width=100, depth=10), path)
    assert path.stat().st_size < 2 * text


@pytest.mark.parametrize("noised_lengths", [True, False])
def test_the_size_of_a_file_tells_nothing_that_is_not_noised(tmp_path, noised_lengths):
    """Lengths, ids and squares take as many bytes whatever they are; a file without noise is not packed at all."""
    for noise in (0.0, 1.0):
        short = made(tmp_path / f"short-{noise}.sketch", words=5, noise=noise, exact_lengths=not noised_lengths)
        long = made(tmp_path / f"long-{noise}.sketch", words=300, noise=noise, exact_lengths=not noised_lengths)
        assert version(short) == (PACKED if noise else PLAIN)
        if not noise:
            assert short.stat().st_size == long.stat().st_size
        for path in (short, long):
            for entry in _header(path)["parts"]:
                assert ("packed" in entry) == (noise > 0 and files._kind(entry["name"]) in files.NOISED_PARTS)


def _header(path: Path) -> dict:
    raw = path.read_bytes()
    length = array_file.BEGIN.unpack_from(raw)[2]
    return json.loads(raw[array_file.BEGIN.size :][:length])


def test_packed_and_plain_files_say_the_same(tmp_path, monkeypatch):
    file = open_sketch(made(tmp_path / "a.sketch", noise=1.0))
    monkeypatch.setattr(files, "compact", lambda top: None)
    write_sketch(replace(file, path=tmp_path / "plain.sketch"))
    plain = open_sketch(tmp_path / "plain.sketch")
    assert (version(file.path), version(plain.path)) == (PACKED, PLAIN)
    for name, part in files._parts(file).items():
        np.testing.assert_array_equal(files._parts(plain)[name], part)


def test_a_file_of_version_3_is_read_still(tmp_path):
    """Written by the version before, with noise: its arrays by their checksums."""
    path = tmp_path / "old.sketch"
    path.write_bytes(gzip.decompress((Path(__file__).parent / "version-3.sketch.gz").read_bytes()))
    assert version(path) == PLAIN
    file = open_sketch(path)
    assert (file.noised, file.ids, file.lengths["body"].tolist()) == (True, ["d0", "d1", "d2"], [40, 21, 3])
    found, signs = file.sketcher.locate(["flu"], file.hashing(KEY))
    rows, counts = file.fields["body"].query(found[0], signs[0])
    assert (rows.tolist(), counts.tolist()) == ([0, 1], [40, 19])
    top = file.fields["body"]
    arrays = [getattr(top, name) for name in files.TOP_PARTS] + [file.frequencies["body"]]
    sums = [hashlib.blake2b(np.ascontiguousarray(one).tobytes(), digest_size=8).hexdigest() for one in arrays]
    assert sums == ["959b00f1fbba92b1", "d911334875fcec28", "2db35d8f07533e63", "754b1ff1d0d47faa", "777b845102cb1ab8"]
    write_sketch(replace(file, path=tmp_path / "new.sketch"))
    assert version(tmp_path / "new.sketch") == PACKED
    for name, part in files._parts(open_sketch(tmp_path / "new.sketch")).items():
        np.testing.assert_array_equal(part, files._parts(file)[name])


def rewritten(path: Path, out: Path, **parts) -> None:
    """The same file with some packed parts exchanged, and right checksums."""
    header, found = array_file.read_arrays(path, files.TYPES)
    content = {**found, **parts}
    packed = {entry["name"] for entry in header["parts"] if "packed" in entry}
    planes = {name: array_file.pack(name, content[name], files.TYPES) for name in packed}
    settings = {name: value for name, value in header.items() if name != "parts"}
    array_file.write_arrays(out, settings, content, files.TYPES, planes=planes)


@pytest.mark.long
def test_a_small_file_cannot_fill_the_memory_of_whoever_opens_it(tmp_path):
    path = made(tmp_path / "a.sketch", noise=1.0)
    rewritten(path, tmp_path / "same.sketch")
    open_sketch(tmp_path / "same.sketch")
    bad = tmp_path / "bad.sketch"
    rewritten(path, bad, **{"body.gaps": np.ones(40_000_000, np.int32)})  # a thousandth of that in the file
    assert GROWTH * bad.stat().st_size < 160_000_000
    with pytest.raises(SketchFileError, match="may be malicious"):
        open_sketch(bad)
    file = open_sketch(path)
    top = file.fields["body"]
    held, sizes = np.zeros((6, 40), np.int32), np.zeros_like(top.sizes)
    held[0, 0] = sizes[:, 0, 0] = 200_000  # one cell of many documents makes room for as many in every cell
    clients = {"held": held, "gaps": np.ones(200_000, np.int32), "counts": np.zeros(200_000, np.int32), "sizes": sizes}
    rewritten(path, bad, **{f"body.{name}": part for name, part in clients.items()})
    with pytest.raises(SketchFileError, match="too many for a file of this size"):
        open_sketch(bad)


def test_a_crowd_at_no_end_of_its_cell_takes_no_room(tmp_path):
    """A cell that says it holds many makes all that are read with it as wide: 80,000 times the bytes of the file."""
    path, bad = made(tmp_path / "a.sketch", noise=1.0), tmp_path / "bad.sketch"
    top = open_sketch(path).fields["body"]
    held, many = np.zeros((6, 40), np.int32), 100_000
    held[0, 0] = many
    sizes, ones = np.zeros_like(top.sizes), np.ones(many, np.int32)
    clients = {"held": held, "gaps": ones, "counts": 0 * ones, "sizes": sizes}
    rewritten(path, bad, **{f"body.{name}": part for name, part in clients.items()})
    tracemalloc.start()
    try:
        with pytest.raises(SketchFileError, match="at none of its ends"):
            open_sketch(bad)
        assert tracemalloc.get_traced_memory()[1] < 2 * GROWTH * bad.stat().st_size
    finally:
        tracemalloc.stop()


def test_planes_that_lie_are_refused(tmp_path):
    path = made(tmp_path / "a.sketch", noise=1.0)
    header, parts = array_file.read_arrays(path, files.TYPES)
    settings = {name: value for name, value in header.items() if name != "parts"}
    names = [entry["name"] for entry in header["parts"] if "packed" in entry]
    right = {name: array_file.pack(name, parts[name], files.TYPES) for name in names}
    shorter = array_file.pack("body.gaps", parts["body.gaps"][:-1], files.TYPES)
    longer = array_file.pack("body.gaps", np.append(parts["body.gaps"], 1), files.TYPES)
    first, *rest = right["body.gaps"]
    for planes, told in (
        (shorter, "a plane has"),
        (longer, "a plane has"),
        ([b"x" * 40, *rest], "cannot be unpacked"),
        ([first[:-8], *rest], "a plane has"),
        ([first + b"x", *rest], "a plane has"),
        (rest, "3 planes for numbers of 4 bytes"),
    ):
        bad = tmp_path / "bad.sketch"
        array_file.write_arrays(bad, settings, parts, files.TYPES, planes=right | {"body.gaps": planes})
        with pytest.raises(SketchFileError, match=told):
            open_sketch(bad)
    assert set(map(files._kind, names)) == {*PARTS, "sizes", "lost", "frequencies"}
