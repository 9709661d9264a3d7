"""A log becomes a data set that can be checked by eye, in the same bytes however often the build was killed."""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data import build_log as module
from fedrank.data import log_folder
from fedrank.data.build_log import LogBuild, build_log
from fedrank.data.describe_log import notes
from fedrank.data.documents import read_documents
from fedrank.data.feature_sets import Extractor
from fedrank.data.lists import ListRules
from fedrank.data.log_features import FEATURE_NAMES, Statistics, features_of
from fedrank.data.logs import as_ranking, load_log
from fedrank.data.text import tokens
from tests import needs

pytest.importorskip("bm25s")

APPLES, PEARS = 8, 6
FOUR = ListRules(length=4, depth=100)
BY_FOUR = LogBuild(FOUR)


def plain_features(documents):
    """Features that can be checked by eye: the document's row, and the length of the query."""

    def features(queries, query, rows):
        return np.array([[row, len(queries[q])] for q, row in zip(query, rows, strict=True)], dtype=np.float32).reshape(
            -1, 2
        )

    return Extractor(("row", "length"), features, str.split)


def write_collection(folder: Path) -> Path:
    """Documents a0 .. a7 are about apples and p0 .. p5 about pears, the first ones most; all have ten words."""
    path = folder / "corpus.jsonl"
    rows = [
        {"id": f"{fruit[0]}{i}", "text": " ".join([fruit] * (10 - i) + [f"filler{i}"] * i)}
        for fruit, number in (("apple", APPLES), ("pear", PEARS))
        for i in range(number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


HAND_MADE = [
    # user, time, query, document
    ("ann", 10, "apple", "a1"),
    ("ann", 20, "Apple ", "a0"),
    ("bob", 30, "pear", "p5"),
    ("ann", 40, "apple", "a7"),
    ("bob", 50, "pear", "p5"),
    ("cat", 60, "plum", "a3"),  # nothing matches: no list
    ("cat", 70, "pear", "a3"),  # clicked, but it does not match; yet a natural candidate for the others
    ("bob", 80, "apple", "a1"),
]


def write_log(folder: Path, entries=HAND_MADE) -> Path:
    path = folder / "log.tsv"
    path.write_text("user\ttime\tquery\tdocument\n" + "".join("\t".join(map(str, row)) + "\n" for row in entries))
    return path


@pytest.fixture
def files(tmp_path):
    return write_log(tmp_path), write_collection(tmp_path)


def build(files, out, how=BY_FOUR, **more):
    return build_log(*files, out, how, extractor=plain_features, **more)


def shown(log, entry):
    return [log.documents[log.document[pair]] for pair in log.lists[entry]]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_list_by_eye(files, tmp_path):
    log = build(files, tmp_path / "out")
    assert log.time.tolist() == [10, 20, 30, 40, 50, 80]
    assert log.users == ("ann", "bob")  # three each: in order of appearance
    assert log.user.tolist() == [0, 0, 1, 0, 1, 1]
    assert [log.queries[q] for q in log.query] == ["apple", "apple", "pear", "apple", "pear", "apple"]
    assert log.documents == (*(f"a{i}" for i in range(APPLES)), *(f"p{i}" for i in range(PEARS)))
    # Clicked for "apple": a0, a1, a7. Two documents of the ranking without the two others, one of them the click:
    # for a1 of a1 a2 a3 .., where only a2 follows; for a0 the same; for a7 of .. a5 a6 a7, where only a6 precedes.
    assert shown(log, 0) == shown(log, 5) == ["a0", "a1", "a2", "a7"]
    assert shown(log, 1) == ["a0", "a1", "a2", "a7"]
    assert shown(log, 3) == ["a0", "a1", "a6", "a7"]
    # Clicked for "pear": p5, and a3 which does not match and stands last. Three of p0 .. p5 that end with p5.
    assert shown(log, 2) == shown(log, 4) == ["p3", "p4", "p5", "a3"]
    assert log.target.tolist() == [1, 0, 2, 3, 2, 1]
    assert [shown(log, e)[log.target[e]] for e in range(6)] == ["a1", "a0", "p5", "a7", "p5", "a1"]


def test_features_are_those_of_the_pairs_and_each_is_computed_once(files, tmp_path):
    log = build(files, tmp_path / "out")
    # apple: a0 a1 a2 a6 a7; pear: p3 p4 p5 a3
    assert len(log.features) == 9
    assert log.feature_names == ("row", "length")
    for entry in range(len(log)):
        values = log.features[log.lists[entry]]
        assert [log.documents[int(row)] for row in values[:, 0]] == shown(log, entry)
        assert set(values[:, 1]) == {len(log.queries[log.query[entry]])}
    data = as_ranking(log, np.arange(len(log)))
    assert data.grades.reshape(-1, 4).argmax(axis=1).tolist() == log.target.tolist()


def test_all_that_was_dropped_is_told(files, tmp_path):
    log = build(files, tmp_path / "out")
    assert log.facts["counts"] == {
        "rows": 8,
        "sound": 8,
        "entries": 6,
        "pairs": 9,
        "users": 2,
        "queries": 2,
        "documents": 14,
    }
    assert log.facts["dropped"] == {
        "of excluded users": 0,
        "clicked document not among the best of BM25": 2,
        "too few documents match the query": 0,
        "of users that were not chosen": 0,
    }
    assert log.facts["settings"]["seed"] == 1
    assert log.facts["left_out"] == {}
    assert log.facts["heavy_user"] is None
    assert "dropped, clicked document not among the best of BM25: 2" in notes(log.facts)
    assert not any("excluded" in note for note in notes(log.facts))


def test_rows_that_were_left_out_are_told(tmp_path):
    entries = [("ann", "never", "apple", "a1"), *HAND_MADE[::-1]]
    log = build((write_log(tmp_path, entries), write_collection(tmp_path)), tmp_path / "out")
    assert log.facts["left_out"] == {"unreadable time": {"rows": 1, "lines": [2]}}
    assert "left out, unreadable time: 1 (lines 2)" in notes(log.facts)
    assert log.facts["out_of_order"] == 7
    assert "7 entries were out of order; the log was sorted by time" in notes(log.facts)


def test_users_are_chosen_after_lists_are_made(tmp_path):
    entries = [*HAND_MADE, ("ann", 90, "pear", "p0")]
    files = write_log(tmp_path, entries), write_collection(tmp_path)
    everybody = build(files, tmp_path / "all")
    top = build(files, tmp_path / "top", LogBuild(FOUR, users=1))
    least = build(files, tmp_path / "least", LogBuild(FOUR, min_interactions=4))
    # ann has four entries with lists, bob three; cat had two without.
    assert everybody.users == ("ann", "bob")
    assert top.users == least.users == ("ann",)
    assert top.facts["dropped"]["of users that were not chosen"] == 3
    mine = everybody.rows_of(0)
    assert [shown(top, e) for e in range(len(top))] == [shown(everybody, e) for e in mine]
    assert top.time.tolist() == everybody.time[mine].tolist() == [10, 20, 40, 90]


def test_an_excluded_user_leaves_no_trace(tmp_path):
    log = build((write_log(tmp_path), write_collection(tmp_path)), tmp_path / "out", LogBuild(FOUR, exclude=("cat",)))
    # Without cat nobody clicked a3 for "pear": four pears that end with p5.
    assert shown(log, 2) == ["p2", "p3", "p4", "p5"]
    assert log.facts["dropped"]["of excluded users"] == 2


def test_a_user_with_most_of_the_log_is_named(tmp_path):
    entries = [*HAND_MADE, *[("robot", 100 + i, "apple", "a1") for i in range(9)]]
    files = write_log(tmp_path, entries), write_collection(tmp_path)
    log = build(files, tmp_path / "out")
    assert log.facts["heavy_user"] == {"user": "robot", "entries": 9, "share": 0.5294, "next": 3}  # 9 / 17
    assert any("--exclude robot" in note for note in notes(log.facts))
    without = build(files, tmp_path / "without", LogBuild(FOUR, exclude=("robot",)))
    assert without.facts["heavy_user"] is None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (LogBuild(FOUR, exclude=("dan",)), "exclude = 'dan': no user"),
        (LogBuild(FOUR, exclude=("ann", "bob", "cat")), "excludes every user of"),
        (
            LogBuild(FOUR, min_interactions=4),
            "no user has min_interactions = 4 entries; the most active user has 3; use that number or fewer",
        ),
        (LogBuild(ListRules(length=20)), "no entry has a result list .*too few documents match the query: 6"),
    ],
)
def test_a_build_that_would_be_empty_is_refused(files, tmp_path, how, message):
    with pytest.raises(ValueError, match=message):
        build(files, tmp_path / "out", how)


def test_a_log_without_a_sound_entry_is_refused_with_its_reasons(tmp_path):
    files = write_log(tmp_path, [("ann", 1, "apple", "x9")]), write_collection(tmp_path)
    with pytest.raises(ValueError, match=r"no usable entries \(click on an unknown document: 1 \(line 2\)\)"):
        build(files, tmp_path / "out")
    assert not (tmp_path / "out").exists(), "nothing stands in the way of a second try"


@pytest.mark.parametrize("settings_", [{"users": 0}, {"min_interactions": 0}])
def test_settings_that_make_no_sense(settings_):
    with pytest.raises(ValueError, match=r"= 0|got 0"):
        LogBuild(**settings_)


def many_entries(users=6, entries=60):
    rng = np.random.default_rng(3)
    fruits = [("apple", "a", APPLES), ("pear", "p", PEARS), ("apple pear", "a", APPLES), ("filler2", "a", 3)]
    for i in range(entries):
        query, letter, number = fruits[rng.integers(4)]
        yield f"u{rng.integers(users)}", i, query, f"{letter}{rng.integers(number)}"


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    files = write_log(tmp_path, many_entries()), write_collection(tmp_path)
    build(files, tmp_path / "one")
    build(files, tmp_path / "two", threads=2)
    build(files, tmp_path / "three", LogBuild(FOUR, seed=2))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert contents(tmp_path / "one")["lists.npy"] != contents(tmp_path / "three")["lists.npy"]
    assert set(contents(tmp_path / "one")) == {
        *("features.npy", "lists.npy", "target.npy", "user.npy", "time.npy", "query.npy", "document.npy"),
        *("users.txt", "queries.txt", "documents.txt", "facts.json"),
    }


@pytest.mark.long
@pytest.mark.parametrize(("when", "published"), [("before", False), ("after", True)])
def test_killed_at_any_mark_it_continues_with_the_same_bytes(tmp_path, monkeypatch, when, published):
    monkeypatch.setattr(module, "QUERIES", 1)
    monkeypatch.setattr(module, "PAIRS", 40)
    files = write_log(tmp_path, many_entries(entries=30)), write_collection(tmp_path)
    how = LogBuild(FOUR, published=published)
    build(files, tmp_path / "whole", how)
    write = log_folder.write_atomic
    for fatal in count():
        written = 0

        def dies(path, text, private=False, fatal=fatal):
            nonlocal written
            written += 1
            if when == "after":
                write(path, text, private)
            if written == fatal + 1:
                raise KeyboardInterrupt
            if when == "before":
                write(path, text, private)

        out = tmp_path / f"killed-{fatal}"
        monkeypatch.setattr(log_folder, "write_atomic", dies)
        try:
            build(files, out, how)
            break
        except KeyboardInterrupt:
            pass
        if not (out / "facts.json").exists():
            with pytest.raises((ValueError, FileNotFoundError), match=r"incomplete|not a data set"):
                load_log(out)
        monkeypatch.setattr(log_folder, "write_atomic", write)
        build(files, out, how)
        assert contents(out) == contents(tmp_path / "whole"), f"killed at mark {fatal}"
    assert fatal > 7, "a build has many marks"


def test_work_that_was_done_is_not_done_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "QUERIES", 1)
    monkeypatch.setattr(module, "PAIRS", 8)
    files = write_log(tmp_path, many_entries()), write_collection(tmp_path)
    steps = []

    def stop(step, done, of):
        steps.append((step, done, of))
        if (step, done) == ("features", 16):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(files, tmp_path / "out", progress=stop)
    assert ("lists", 4, 4) in steps
    again = []
    build(files, tmp_path / "out", progress=lambda *step: again.append(step))
    assert [step for step in again if step[0] == "lists"] == []
    assert next(done for step, done, _ in again if step == "features") == 16
    build(files, tmp_path / "out", progress=again.append)  # complete: nothing is reported at all


@pytest.mark.process
def test_a_process_that_dies_leaves_what_another_continues(tmp_path):
    files = write_log(tmp_path), write_collection(tmp_path)
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.data import test_build_log as t\n"
        "t.module.PAIRS = 4\n"
        "die = lambda step, done, of: os._exit(9) if (step, done) == ('features', 4) else None\n"
        "t.build((t.Path(sys.argv[2]), t.Path(sys.argv[3])), sys.argv[4], progress=die)\n"
    )
    root = str(Path(__file__).parents[2])
    died = subprocess.run([sys.executable, "-c", code, root, *map(str, files), str(tmp_path / "out")], check=False)
    assert died.returncode == 9
    assert (tmp_path / "out" / "begun.json").exists()
    build(files, tmp_path / "out")  # in larger steps: how they are cut does not matter
    build(files, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.process
def test_a_second_process_is_refused(files, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.data import test_build_log as t\n"
        "t.build((t.Path(sys.argv[2]), t.Path(sys.argv[3])), sys.argv[4])\n"
    )
    second = [sys.executable, "-c", code, str(Path(__file__).parents[2]), *map(str, files), str(tmp_path / "out")]
    ends = []

    def meanwhile(step, done, of):
        if (step, done) == ("features", 0):
            ends.append(subprocess.run(second, check=False, capture_output=True, text=True))

    log = build(files, tmp_path / "out", progress=meanwhile)
    assert [end.returncode for end in ends] == [1]
    assert "is in use by process" in ends[0].stderr
    assert len(log) == 6


def test_a_folder_with_something_else_is_left_alone(files, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match="contains other files"):
        build(files, out)
    assert contents(out) == {"thesis.tex": b"mine"}
    with pytest.raises(NotADirectoryError):
        build(files, out / "thesis.tex")


def test_what_a_process_left_that_was_killed_at_its_first_mark_is_no_obstacle(files, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / f".{log_folder.BEGUN}.{2**22}.part").write_text('{"asked": ')
    (out / "lock.unfinished").touch()
    build(files, out)
    build(files, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("finished", [True, False])
def test_other_settings_or_files_do_not_mix(files, tmp_path, finished):
    out = tmp_path / "out"

    def stop(step, done, of):
        if step == "features" and not finished:
            raise KeyboardInterrupt

    try:
        build(files, out, progress=stop)
    except KeyboardInterrupt:
        assert not finished
    before = contents(out)
    with pytest.raises(FileExistsError, match=r"different settings \(seed\)"):
        build(files, out, LogBuild(FOUR, seed=5))
    write_log(tmp_path, HAND_MADE[1:])
    with pytest.raises(FileExistsError, match="another version of these files"):
        build(files, out)
    assert contents(out) == before


def test_unsound_features_stop_the_build(files, tmp_path):
    def broken(documents):
        sound = plain_features(documents)
        return sound._replace(features=lambda *pairs: sound.features(*pairs) * np.float32("nan"))

    with pytest.raises(ValueError, match="not finite"):
        build_log(*files, tmp_path / "out", LogBuild(FOUR), extractor=broken)


def test_published_features_get_whole_lists(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAIRS", 10)  # two lists of four at a time
    asked = []

    def watching(documents):
        plain = plain_features(documents)

        def features(queries, query, rows):
            asked.append((list(queries), query.tolist(), rows.tolist()))
            return plain.features(queries, query, rows)

        return plain._replace(features=features)

    files = write_log(tmp_path), write_collection(tmp_path)
    log = build_log(*files, tmp_path / "out", LogBuild(FOUR, published=True), extractor=watching)
    assert [queries for queries, _, _ in asked] == [["apple", "apple"], ["pear", "apple"], ["pear", "apple"]]
    assert all(query == [0] * 4 + [1] * 4 for _, query, _ in asked)
    assert log.features.shape == (6 * 4, 2)  # no two entries share a pair
    assert shown(log, 3) == ["a0", "a1", "a6", "a7"]
    assert [shown(log, e)[log.target[e]] for e in range(6)] == ["a1", "a0", "p5", "a7", "p5", "a1"]


@pytest.mark.parametrize("published", [False, True])
def test_fedranks_own_features_are_those_of_every_list(tmp_path, monkeypatch, published):
    monkeypatch.setattr(module, "PAIRS", 8)
    files = write_log(tmp_path), write_collection(tmp_path)
    log = build_log(*files, tmp_path / "out", LogBuild(FOUR, published=published))
    assert log.feature_names == FEATURE_NAMES
    statistics = Statistics.of(read_documents(files[1]))
    for entry in range(len(log)):
        pairs = log.lists[entry]
        expected = features_of(log.queries[log.query[entry]], log.document[pairs], statistics, published=published)
        assert log.features[pairs].tolist() == expected.tolist()


@pytest.mark.long
@settings(deadline=None, max_examples=25)
@given(
    entries=st.lists(
        st.tuples(
            st.sampled_from(["u", "v", "w"]),
            st.integers(0, 50),
            st.sampled_from(["apple", "pear", "apple pear", "filler3"]),
            st.sampled_from([*(f"a{i}" for i in range(APPLES)), *(f"p{i}" for i in range(PEARS))]),
        ),
        min_size=1,
        max_size=25,
    ),
    length=st.integers(2, 6),
    window=st.sampled_from(["ranked", "shuffled"]),
    published=st.booleans(),
)
def test_any_log_keeps_its_promises(tmp_path_factory, entries, length, window, published):
    folder = tmp_path_factory.mktemp("log")
    files = write_log(folder, entries), write_collection(folder)
    how = LogBuild(ListRules(length, 50, window, "fill"), published=published)
    with contextlib.suppress(ValueError):
        build(files, folder / "out", how)
    if not (folder / "out" / "facts.json").exists():
        with pytest.raises(ValueError, match="no entry has a result list"):
            build(files, folder / "out", how)
        return
    log = load_log(folder / "out")
    ordered = sorted(entries, key=lambda entry: entry[1])
    found = [
        (log.users[log.user[e]], log.time[e], log.queries[log.query[e]], shown(log, e)[log.target[e]])
        for e in range(len(log))
    ]
    remaining = iter(ordered)
    assert all(any(entry == other for other in remaining) for entry in found), "entries in their order, some missing"
    dropped = sum(log.facts["dropped"].values())
    assert len(log) + dropped == len(entries)
    for entry in range(len(log)):
        documents = shown(log, entry)
        assert len(set(documents)) == length
        natural = {document for _, _, query, document in entries if query == log.queries[log.query[entry]]}
        assert natural <= set(documents) or set(documents) <= natural
    assert len(np.unique(log.lists)) == len(log.features), "every pair is used"


@pytest.mark.long
@needs.data
def test_a_real_collection_from_end_to_end(tmp_path):
    folder = Path(os.environ["FEDRANK_DATA"]) / "text" / "nfcorpus"
    if not folder.exists():
        needs.skip("data", "nfcorpus is not below FEDRANK_DATA")
    texts = {}
    for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        texts[row["_id"]] = " ".join(row["text"].split())
    judged = lzma.decompress((folder / "qrels-test.tsv.xz").read_bytes()).decode().splitlines()[1:]
    rng = np.random.default_rng(1)
    entries = []
    for time, line in enumerate(rng.permutation(judged)[:300]):
        query, document, _ = line.split("\t")
        entries.append((f"u{rng.integers(20)}", time, texts[query], document))
    log = build_log(write_log(tmp_path, entries), folder / "corpus.jsonl.xz", tmp_path / "out")
    counts, dropped = log.facts["counts"], log.facts["dropped"]
    assert counts["rows"] == counts["sound"] == 300
    assert counts["entries"] + sum(dropped.values()) == 300
    assert counts["entries"] > 50
    assert log.features.shape == (counts["pairs"], 103)
    assert np.isfinite(log.features).all()
    assert log.lists.shape == (counts["entries"], 20)
    assert all(len(set(row)) == 20 for row in log.lists.tolist())
    read = read_documents(folder / "corpus.jsonl.xz")
    words = {read.ids[row]: set(tokens(f"{read.title[row]} {read.text[row]}")) for row in range(len(read))}
    clicked = {(user, time, query.lower(), document) for user, time, query, document in entries}
    for e in range(len(log)):
        document = log.documents[log.document[log.clicked()[e]]]
        assert (log.users[log.user[e]], int(log.time[e]), log.queries[log.query[e]], document) in clicked
        assert words[document] & set(tokens(log.queries[log.query[e]])), "what is found shares a word with the query"
