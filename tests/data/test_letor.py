"""Reading LETOR files: what is read right, and what is refused with which words."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from fedrank.data import letor
from fedrank.data.judged_files import JudgedFileError
from fedrank.data.letor import letor_lines, read_comments, read_letor
from fedrank.data.ranking import RankingData
from tests import needs
from tests.made_up import made_up_data
from tests.oracles.letor import read_text

DATA = os.environ.get("FEDRANK_DATA")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRANK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path, text: str | bytes, name: str = "set.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes, **options: object) -> RankingData:
    return read_letor(write(folder, text), cache=False, **options)  # type: ignore[arg-type]


def same(a: RankingData, b: RankingData) -> bool:
    return (
        np.array_equal(a.features, b.features)
        and np.array_equal(a.grades, b.grades)
        and np.array_equal(a.offsets, b.offsets)
        and np.array_equal(a.query_ids, b.query_ids)
    )


def test_a_small_file_by_hand(tmp_path: Path) -> None:
    data = read(tmp_path, "2 qid:a 1:0.5 3:-2e1\n0 qid:a 2:1\n31 qid:b 3:.25 1:7. # docid = 1:2\n")
    assert_array_equal(data.features, np.array([[0.5, 0, -20], [0, 1, 0], [7, 0, 0.25]], np.float32))
    assert data.features.dtype == np.float32
    assert data.features.flags.c_contiguous
    assert data.grades.tolist() == [2, 0, 31]
    assert data.grades.dtype == np.int8
    assert data.offsets.tolist() == [0, 2, 3]
    assert data.query_ids.tolist() == ["a", "b"]
    assert (data.top_grade, data.normalised, data.name) == (31, "none", "set")


@pytest.mark.parametrize(
    "text",
    [
        "1 qid:q 1:0.5 2:3\r\n0 qid:q 1:1\r\n",
        "\ufeff1 qid:q 1:0.5 2:3\n0 qid:q 1:1\n",
        "1 qid:q 1:0.5 2:3 # a: b:c 9:9 qid:z\n0 qid:q 1:1#9:9\n",
        "1 qid:q 2:3 1:0.5\n0 qid:q 1:1\n",
        "1 qid:q 1:0.5 2:3\n0 qid:q 1:1",
        "1 qid:q 1:0.5 2:3\n0 qid:q 1:1\r",
        "# head\n\n  \n1 qid:q 1:0.5 2:3\n\t\r\n0 qid:q 1:1\n\n   # tail",
        "1\tqid:q   1:0.5\t \t2:3  \t\n  0 qid:q\t1:1 \n",
        "1 qid:q 1:0.5 2:3\n0 qid:q 1:1 2:0\n",
        "1 qid:q 1:5e-01 2:+3.000E+00\n0 qid:q 1:0000000000000000000000000001.0000000000000000000000 2:-0.0\n",
    ],
    ids=["crlf", "bom", "comments", "unsorted", "no-newline", "cr-at-end", "blank", "tabs", "zero", "exponents"],
)
def test_harmless_oddities_are_read_right(tmp_path: Path, text: str) -> None:
    data = read(tmp_path, text)
    assert data.features.tolist() == [[0.5, 3], [1, 0]]
    assert data.grades.tolist() == [1, 0]
    assert data.query_ids.tolist() == ["q"]


GOOD = "1 qid:1 1:0.5 2:3\n"
LARGEST = "1.7976931348623157e308"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 1:0.5 2:3", "'1:0.5' must be a query id"),
        ("1", "must be a query id"),
        ("1 qid: 1:0.5", "'qid:' must be a query id"),
        ("1 quid:1 1:0.5", "'quid:1' must be a query id"),
        ("2.0 qid:1 1:0.5", "'2.0' is not a relevance label"),
        ("+1 qid:1 1:0.5", r"'\+1' is not a relevance label"),
        ("-1 qid:1 1:0.5", "'-1' is not a relevance label"),
        ("x qid:1 1:0.5", "'x' is not a relevance label"),
        ("32 qid:1 1:0.5", "'32' is not a relevance label.*0 to 31"),
        ("99999999999999999999 qid:1 1:0.5", "is not a relevance label"),
        ("1 qid:1 1:0.5 2", "'2' is not a feature"),
        ("1 qid:1 1:0.5 2;3", "'2;3' is not a feature"),
        ("1 qid:1 1:0.5 :3", "':3' is not a feature"),
        ("1 qid:1 1:0.5 -2:3", "'-2:3' is not a feature"),
        ("1 qid:1 a:3", "'a:3' is not a feature"),
        ("1 qid:1 0:0.5", "'0:0.5' has an index outside 1"),
        ("1 qid:1 100001:0.5", "'100001:0.5' has an index outside 1 .. 100,000"),
        ("1 qid:1 18446744073709551617:0.5", "has an index outside 1"),
        ("1 qid:1 1:0.5 1:0.5", "'1:0.5' repeats a feature of this line"),
        ("1 qid:1 2:1 1:0.5 2:3", "'2:3' repeats a feature of this line"),
        ("1 qid:1 9:1 7:0.5 9:3", "'9:3' repeats a feature of this line"),
        ("1 qid:1 1:", "'1:' has no number"),
        ("1 qid:1 1: 0.5", "'1:' has no number"),
        ("1 qid:1 1:0.5x", "'1:0.5x' has no number"),
        ("1 qid:1 1:1.2.3", "'1:1.2.3' has no number"),
        ("1 qid:1 1:1e", "'1:1e' has no number"),
        ("1 qid:1 1:.", "'1:.' has no number"),
        ("1 qid:1 1:-", "'1:-' has no number"),
        ("1 qid:1 1:1,5", "'1:1,5' has no number"),
        ("1 qid:1 1:0x10", "'1:0x10' has no number"),
        ("1 qid:1 1:nan", "'1:nan' is not a finite float32"),
        ("1 qid:1 1:-inf", "'1:-inf' is not a finite float32"),
        ("1 qid:1 1:Infinity", "'1:Infinity' is not a finite float32"),
        ("1 qid:1 1:1e39", "'1:1e39' is not a finite float32.*missing="),
        ("1 qid:1 1:-1e999", "'1:-1e999' is not a finite float32"),
        ("1 qid:1 1:3.4028235677973366e38", "is not a finite float32"),
        (f"1 qid:1 1:{LARGEST}", "is not a finite float32"),
        ("1 qid:1 1:0.5\0", "NUL"),
        ("1 qid:1 1:0.5 # docid\0", "NUL"),
        ("\0", "NUL"),
        ("1 qid:1\0 1:0.5", "NUL"),
        ("1 qid:" + "x" * 1001 + " 1:0.5", "'qid:xxx.* is a query id of more than 1000 bytes"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_text_and_remedy(tmp_path: Path, line: str, words: str) -> None:
    path = write(tmp_path, "# head\n" + GOOD + line + "\n" + GOOD)
    with pytest.raises(JudgedFileError, match=words) as caught:
        read_letor(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: ")
    assert len(message) < len(str(path)) + 220
    assert not (tmp_path / "cache" / "data").exists()


def test_a_query_that_comes_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JudgedFileError, match=r"line 3: qid:1 has occurred before.*sort the lines by query"):
        read(tmp_path, "1 qid:1 1:1\n1 qid:2 1:1\n1 qid:1 1:1\n")


def test_a_query_id_must_be_utf8(tmp_path: Path) -> None:
    assert read(tmp_path, "1 qid:\u00e4\u4e2d 1:1\n").query_ids.tolist() == ["\u00e4\u4e2d"]
    with pytest.raises(JudgedFileError, match=r"line 1: .*UTF-8"):
        read(tmp_path, b"1 qid:\xe4 1:1\n")


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "\ufeff", " "])
def test_a_file_without_documents_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(JudgedFileError, match="no documents"):
        read(tmp_path, text)
    with pytest.raises(JudgedFileError, match=r"empty\.txt: the file contains no documents"):
        read_letor([write(tmp_path, GOOD), write(tmp_path, text, "empty.txt")])


def test_documents_without_any_feature_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JudgedFileError, match="no document has a feature"):
        read(tmp_path, "1 qid:1\n0 qid:1\n")


def test_a_wrong_number_of_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JudgedFileError, match="line 1: feature 2 is above the expected number of features, 1"):
        read(tmp_path, GOOD, features=1)
    with pytest.raises(JudgedFileError, match="every document has 2 features, but 3 were expected"):
        read(tmp_path, GOOD, features=3)
    assert read(tmp_path, GOOD, features=2).features.shape == (1, 2)
    with pytest.raises(ValueError, match="features must be from 1"):
        read(tmp_path, GOOD, features=0)


def test_a_sparse_file_may_leave_out_its_last_features(tmp_path: Path) -> None:
    data = read(tmp_path, "1 qid:1 1:1 3:3\n0 qid:1 2:2\n", features=5)
    assert data.features.tolist() == [[1, 0, 3, 0, 0], [0, 2, 0, 0, 0]]


def test_features_may_widen_line_by_line(tmp_path: Path) -> None:
    text = "".join(f"0 qid:{i // 7} {i}:{i}.5 {3 * i}:1e-3\n" for i in range(1, 60))
    features, _, _ = read_text(text)
    assert_array_equal(read(tmp_path, text).features, features)


def test_the_highest_index_allowed(tmp_path: Path) -> None:
    text = "1 qid:1 99999:3\n1 qid:1 100000:7\n"
    data = read(tmp_path, text, features=100_000)
    assert data.features.shape == (2, 100_000)
    assert data.features[1, -1] == 7
    with pytest.raises(JudgedFileError, match=r"line 1: feature 99999 is above 10,000, .* features=99999"):
        read(tmp_path, text)


def test_an_index_that_rises_at_the_limit(tmp_path: Path) -> None:
    data = read(tmp_path, "0 qid:1 9000:1\n1 qid:1 9001:1\n0 qid:1 10000:2\n")  # a quarter more would be too many
    assert data.features.shape == (3, 10_000)


def test_memory_is_measured_before_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letor, "free_memory", lambda: 100 << 20)
    text = "".join(f"0 qid:{i} 9999:1\n" for i in range(10_000))  # 400 MB from 160 kB
    tracemalloc.start()
    with pytest.raises(JudgedFileError, match=r"documents of 9,999 features need over .* GB"):
        read(tmp_path, text)
    assert tracemalloc.get_traced_memory()[1] < 250 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ["txt", "txt.gz", "txt.xz"])
def test_a_few_bytes_cannot_take_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(letor, "SMALL", 1 << 20)
    path = tmp_path / f"data.{kind}"
    text = ("0 qid:1 10000:1\n" * 1_000).encode()  # 40 MB from 16 kB
    path.write_bytes({"txt": bytes, "txt.gz": gzip.compress, "txt.xz": lzma.compress}[kind](text))
    with pytest.raises(
        JudgedFileError, match=r"documents of 10,000 features would take .* set the number of features: features=N"
    ):
        read_letor(path, cache=False)
    assert read_letor(path, features=10_000, cache=False).features.shape == (1_000, 10_000)


def test_sparse_files_are_read_whatever_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """700 features of which 3 % are listed, in any order: real files list ten times as many."""
    monkeypatch.setattr(letor, "SMALL", 0)
    rng = np.random.default_rng(1)
    rows = [rng.choice(np.arange(1, 701), 21, replace=False) for _ in range(2_000)]
    text = "".join(f"0 qid:1 {' '.join(f'{index}:0.5' for index in row)}\n" for row in rows)
    assert read(tmp_path, text).features.sum() == 0.5 * 21 * 2_000


@pytest.mark.parametrize("value", ["1.#INF", "-1.#IND", "1.#QNAN", "+1.#INF00"])
def test_what_windows_writes_for_no_number_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(JudgedFileError, match=r"line 2: .*is not a finite float32"):
        read(tmp_path, f"1 qid:1 1:1 2:1\n1 qid:1 1:{value} 2:5\n")


def test_a_comment_may_follow_a_number_at_once(tmp_path: Path) -> None:
    assert read(tmp_path, "1 qid:1 1:0.5#docid = d\n").features.tolist() == [[0.5]]


@pytest.mark.parametrize("behind", [b"garbage", b"\0\0\0\0garbage", b"1 qid:1 1:5\n"])
def test_what_follows_an_archive_is_not_passed_over(tmp_path: Path, behind: bytes) -> None:
    file = tmp_path / "data.txt.xz"
    whole = lzma.compress(b"1 qid:1 1:1\n")
    file.write_bytes(whole + behind)
    with pytest.raises(JudgedFileError, match="the archive is damaged"):
        read_letor(file, cache=False)
    file.write_bytes(whole + b"\0\0\0\0" + lzma.compress(b"0 qid:1 1:2\n"))  # two streams, padded: one archive
    assert read_letor(file, cache=False).features.tolist() == [[1], [2]]


@needs.posix
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    for read_it in (read_letor, read_comments):
        with pytest.raises(ValueError, match=r"pipe.txt is a pipe; name a file"):
            read_it(pipe)
    with pytest.raises(ValueError, match="is a folder; name a file"):
        read_letor(tmp_path)


@pytest.mark.parametrize("spelling", [LARGEST, "1.79769313486231570000e+308", "179769313486231570000000" + "0" * 285])
def test_a_named_sentinel_is_read_as_zero(tmp_path: Path, spelling: str) -> None:
    data = read(tmp_path, f"1 qid:1 1:{spelling} 2:3\n", missing=sys.float_info.max)
    assert data.features.tolist() == [[0, 3]]
    with pytest.raises(JudgedFileError, match="not a finite"):
        read(tmp_path, f"1 qid:1 1:-{spelling} 2:3\n", missing=sys.float_info.max)


def test_a_small_sentinel_is_exact(tmp_path: Path) -> None:
    data = read(tmp_path, "1 qid:1 1:-1 2:-1.0 3:-1.000001 4:1 5:-10e-1\n", missing=-1)
    assert data.features[0].tolist() == [0, 0, np.float32(-1.000001), 1, 0]


def packed(text: bytes, suffix: str) -> bytes:
    return gzip.compress(text) if suffix == ".gz" else lzma.compress(text)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_archives_are_read_and_cut_ones_refused(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    text = "".join(f"1 qid:{i} 1:{v}\n" for i, v in enumerate(rng.random(3000))).encode()
    plain = read(tmp_path, text)
    whole = packed(text, suffix)
    assert same(read_letor(write(tmp_path, whole, f"set.txt{suffix}"), cache=False), plain)
    assert same(read_letor(write(tmp_path, whole, "renamed.txt"), cache=False), plain)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 255
    for bad in (whole[: len(whole) // 2], whole[:-3], whole[:5], bytes(damaged)):
        path = write(tmp_path, bad, f"bad.txt{suffix}")
        with pytest.raises(JudgedFileError, match=f"bad.txt{suffix}: .*download it again"):
            read_letor(path)
    assert not (tmp_path / "cache" / "data").exists()


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    a = write(tmp_path, "1 qid:1 1:1\n0 qid:2 1:2", "a.txt")
    b = write(tmp_path, packed(b"2 qid:2 1:3\n0 qid:3 2:4\n", ".gz"), "b.txt.gz")
    data = read_letor([a, str(b)], cache=False)
    assert data.features.tolist() == [[1, 0], [2, 0], [3, 0], [0, 4]]
    assert data.offsets.tolist() == [0, 1, 3, 4]
    assert data.name == "a+b"
    with pytest.raises(JudgedFileError, match=r"a.txt, line 1: qid:1 has occurred before"):
        read_letor([a, b, a], cache=False)
    with pytest.raises(ValueError, match="name at least one"):
        read_letor([])


def test_a_missing_file_and_an_unknown_normalisation(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_letor(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match="'none', 'query' or 'global'"):
        read_letor(tmp_path / "nowhere.txt", normalise="minmax")


def test_normalisation_on_reading(tmp_path: Path) -> None:
    text = "1 qid:1 1:2 2:5\n0 qid:1 1:4 2:5\n0 qid:2 1:10 2:1\n"
    assert read(tmp_path, text, normalise="query").features.tolist() == [[0, 0], [1, 0], [0, 0]]
    data = read(tmp_path, text, normalise="global")
    assert_array_equal(data.features, np.array([[0, 1], [(4 - 2) / (10 - 2), 1], [1, 0]], np.float32))
    assert data.normalised == "global"


def test_comments_of_documents(tmp_path: Path) -> None:
    a = write(tmp_path, "\ufeff# head\n1 qid:1 1:1 #docid = GX000 inc = 1\r\n\n0 qid:1 1:1\n", "a.txt")
    b = write(tmp_path, packed(b"0 qid:2 1:1 # docid = x # y \n", ".xz"), "b.txt.xz")
    assert read_comments([a, b]) == ["docid = GX000 inc = 1", "", "docid = x # y"]
    assert read_comments(a) == ["docid = GX000 inc = 1", ""]
    bom_only = write(tmp_path, "\ufeff\n0 qid:2 1:1 # x", "c.txt")
    assert len(read_comments(bom_only)) == read_letor(bom_only).documents


def test_lines_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    text = "".join(
        f"{i % 5} qid:{'long' * (i // 400)}{i // 9} 1:{i} 2:{rng.random()} # {'c' * (i % 50)}\n" for i in range(2000)
    )
    whole = read(tmp_path, text)
    features, grades, queries = read_text(text)
    for block in (200, 257, 4096):
        monkeypatch.setattr(letor, "BLOCK", block)
        monkeypatch.setattr(letor, "_GROWTH", 6400)
        data = read(tmp_path, text)
        assert same(data, whole)
        assert_array_equal(data.features, features)
        assert data.grades.tolist() == grades
        assert np.repeat(data.query_ids, np.diff(data.offsets)).tolist() == queries
        bad = text + "0 qid:1 1:1 # back again\n"
        with pytest.raises(JudgedFileError, match="line 2001: qid:1 has"):
            read(tmp_path, bad)


def test_a_line_longer_than_a_block_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letor, "BLOCK", 100)
    with pytest.raises(JudgedFileError, match="line 2: the line is longer than 100 bytes"):
        read(tmp_path, GOOD + "1 qid:1 1:1 # " + "x" * 300)


def test_more_queries_than_the_kernel_lists_at_once(tmp_path: Path) -> None:
    text = "".join(f"1 qid:{i} 1:1\n" for i in range(40_000))
    data = read(tmp_path, text)
    assert data.query_ids.tolist() == [str(i) for i in range(40_000)]
    assert_array_equal(data.offsets, np.arange(40_001))


def test_memory_for_text_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letor, "BLOCK", 1 << 16)
    monkeypatch.setattr(letor, "_GROWTH", 1 << 16)
    line = "1 qid:1 1:1 # " + "x" * 2000 + "\n"
    read(tmp_path, GOOD)
    path = write(tmp_path, line * 5000)
    tracemalloc.start()
    try:
        read_letor(path, cache=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 10_000_000
    assert peak < 6_000_000


plain_values = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.floats(-1e6, 1e6, width=32).map(lambda v: f"{v:.6f}"),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-3.4e38, 3.4e38).map(repr),
    st.floats(-1e6, 1e6).map(lambda v: f"{v:.25e}"),
)
spaces = st.sampled_from([" ", "  ", "\t", " \t "])
row = st.tuples(
    st.integers(0, 31),
    st.lists(st.tuples(st.integers(1, 12), plain_values), max_size=6, unique_by=lambda pair: pair[0]),
    st.sampled_from(["", "#", "# x:y 1:2", " # docid = 7"]),
    spaces,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.booleans(),
)
def test_reads_like_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, queries: list[list[tuple]], newline: str, last: bool
) -> None:
    lines = [
        space.join([str(grade), f"qid:q{number}", *(f"{index}:{value}" for index, value in pairs)]) + comment
        for number, rows in enumerate(queries)
        for grade, pairs, comment, space in rows
    ]
    text = "1 qid:first 1:1" + newline + newline.join(lines) + (newline if last else "")
    features, grades, ids = read_text(text)
    data = read(tmp_path_factory.mktemp("generated"), text)
    assert_array_equal(data.features, features)
    assert data.grades.tolist() == grades
    assert np.repeat(data.query_ids, np.diff(data.offsets)).tolist() == ids


WHOLE = b"2 qid:ab 1:0.5 12:1e-05 3:-7 # d:1\n0 qid:ab 1:1.5\r\n\n1 qid:c 2:123456789.25\n0 qid:d 1:3 2:4"
bytes_that_matter = st.sampled_from(list(b"0123456789 .:-+e#qid\n\r\t\0nax\xff"))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), bytes_that_matter), min_size=1, max_size=3), st.booleans())
def test_a_damaged_file_is_refused_or_read_like_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: bool
) -> None:
    text = bytearray(WHOLE)
    for place, byte in changes:
        text[place] = byte
    if cut:
        text = text[: changes[0][0] + 1]
    try:
        data = read(tmp_path_factory.getbasetemp(), bytes(text))
    except JudgedFileError:
        return
    features, grades, ids = read_text(text.decode(errors="replace"))
    assert_array_equal(data.features, features)
    assert data.grades.tolist() == grades
    assert np.repeat(data.query_ids, np.diff(data.offsets)).tolist() == ids


def test_reads_like_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import load_svmlight_file

    rng = np.random.default_rng(5)
    text = "".join(
        f"{rng.integers(5)} qid:{i // 10} " + " ".join(f"{j}:{rng.normal():.{j}g}" for j in range(1, 18)) + " # x\n"
        for i in range(300)
    )
    path = write(tmp_path, text)
    features, grades, queries = load_svmlight_file(str(path), query_id=True)
    data = read_letor(path, cache=False)
    assert_array_equal(data.features, features.toarray().astype(np.float32))
    assert_array_equal(data.grades, grades)
    assert_array_equal(np.repeat(data.query_ids, np.diff(data.offsets)).astype(int), queries)


@needs.data
def test_real_files() -> None:
    folder = Path(DATA or "") / "letor"
    mq = read_letor(folder / "mq2008" / "S1.txt.xz", features=46, cache=False)
    assert mq.documents == 2933
    comments = read_comments(folder / "mq2008" / "S1.txt.xz")
    assert len(comments) == 2933
    assert all(comment.startswith("docid = GX") for comment in comments)
    mslr = read_letor(folder / "mslr-sample" / "queries.txt.xz", features=136)
    assert (mslr.queries, mslr.documents, mslr.top_grade) == (177, 19_281, 4)
    with pytest.raises(JudgedFileError, match="every document has 46 features, but 136 were expected"):
        read_letor(folder / "mq2008" / "S1.txt.xz", features=136)


@needs.data
def test_real_file_like_the_oracle() -> None:
    path = Path(DATA or "") / "letor" / "ohsumed" / "S1.txt.xz"
    features, grades, queries = read_text(lzma.decompress(path.read_bytes()).decode())
    data = read_letor(path, cache=False)
    assert_array_equal(data.features, features)
    assert data.grades.tolist() == grades
    assert np.repeat(data.query_ids, np.diff(data.offsets)).tolist() == queries


def test_lines_of_a_letor_file():
    data = made_up_data(2, features=3, longest=2)
    data.features[:2] = [[0.5, 0, 1e-7], [-3, 0.1, 1]]
    lines = list(letor_lines(data))
    assert lines[0] == f"{data.grades[0]} qid:0 1:0.5 2:0 3:1.00000001e-07\n"  # nine digits tell float32 apart
    assert lines[1] == f"{data.grades[1]} qid:1 1:-3 2:0.100000001 3:1\n"
