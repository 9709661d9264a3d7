"""Sets are found in every layout that publishers use, folds follow the five-part rule, and mistakes are explained."""

from __future__ import annotations

import gzip
import io
import lzma
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedrank.data.catalog import CATALOG, available, describe, intent_grades, load, load_files
from fedrank.data.feature_names import LETOR_4, MSLR
from fedrank.experiments.report.data_output import about_catalog
from fedrank.experiments.report.terminal import show
from tests import needs

REAL = os.environ.get("FEDRANK_DATA")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDRANK_DATA", str(folder))
    return folder


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRANK_DATA", str(REAL))


def lines(queries: Sequence[str], features: int, top: float = 1.0, grade: int = 1) -> str:
    """Two documents a query; their first feature is 0 and `top`, all others are the same."""
    rest = " ".join(f"{column}:0.5" for column in range(2, features + 1))
    return "".join(f"0 qid:{query} 1:0 {rest}\n{grade} qid:{query} 1:{top} {rest}\n" for query in queries)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    opened: Callable[..., bytes] | None = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix)
    path.write_bytes(text.encode() if opened is None else opened(text.encode()))


def parts(folder: Path, ending: str = ".txt", features: int = 46) -> None:
    for part in range(1, 6):
        write(folder / f"S{part}{ending}", lines([f"{part}0", f"{part}1"], features, top=part))


def test_the_catalog_agrees_with_itself() -> None:
    for name, entry in CATALOG.items():
        assert entry.name == name == name.lower()
        assert len(entry.feature_names) in (0, entry.features)
        assert entry.folds == (1 if entry.layout in ("files", "intents") else 5)
        assert entry.publisher
        assert entry.about.endswith(".")


def test_feature_names_stand_at_their_places() -> None:
    assert (len(LETOR_4), len(MSLR)) == (46, 136)
    assert len(set(LETOR_4)) == 46
    assert len(set(MSLR)) == 136
    # Numbers as the publisher counts them, from 1.
    assert LETOR_4[15 - 1] == "TF-IDF of whole document"
    assert LETOR_4[21 - 1] == "BM25 of body"
    assert LETOR_4[41 - 1] == "PageRank"
    assert LETOR_4[19 - 1] == "stream length of URL"
    assert LETOR_4[45 - 1] == "length of URL"
    assert MSLR[11 - 1] == "stream length of body"
    assert MSLR[41 - 1] == "variance of TF of body"
    assert MSLR[46 - 1] == "sum of length-normalised TF of body"
    assert MSLR[96 - 1] == "boolean model of body"
    assert MSLR[108 - 1] == "BM25 of title"
    assert MSLR[126 - 1] == "number of slashes in URL"
    assert MSLR[130 - 1] == "PageRank"


@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".txt.xz"])
def test_folds_of_five_parts_are_cyclic(root: Path, ending: str) -> None:
    parts(root / "some" / "where" / "mq2008", ending)
    fold = load("mq2008", 4, cache=False)
    assert fold.train.query_ids.tolist() == ["40", "41", "50", "51", "10", "11"]
    assert fold.validation is not None
    assert fold.validation.query_ids.tolist() == ["20", "21"]
    assert fold.test.query_ids.tolist() == ["30", "31"]
    assert (fold.name, fold.fold) == ("mq2008", 4)
    assert fold.test.name == "mq2008"
    assert fold.test.top_grade == 2
    assert fold.test.feature_names == LETOR_4
    assert fold.test.normalised == "none"


@pytest.mark.parametrize(
    ("name", "folder", "files", "features"),
    [
        ("mq2008", "MQ2008/Fold2", ("train.txt", "vali.txt", "test.txt"), 46),
        ("mslr-web10k", "MSLR-WEB10K/Fold2", ("train.txt", "vali.txt", "test.txt"), 136),
        ("mslr-web10k", "MSLR_WEB10K/fold2", ("train.txt", "vali.txt", "test.txt"), 136),
        ("ohsumed", "OHSUMED/QueryLevelNorm/Fold2", ("trainingset.txt", "validationset.txt", "testset.txt"), 45),
        ("yahoo", "yahoo/set1", ("set1.train.txt", "set1.valid.txt", "set1.test.txt"), 700),
        ("istella-s", "istella-s-letor/sample", ("train.txt.gz", "vali.txt.gz", "test.txt.gz"), 220),
    ],
)
def test_publishers_layouts(root: Path, name: str, folder: str, files: tuple[str, ...], features: int) -> None:
    for file, query in zip(files, "abc", strict=True):
        write(root / folder / file, lines([query], features))
    fold = load(name, fold=2 if CATALOG[name].folds == 5 else 1, cache=False)
    assert fold.validation is not None
    found = [part.query_ids.tolist() for part in (fold.train, fold.validation, fold.test)]
    assert found == [["a"], ["b"], ["c"]]
    assert fold.train.normalised == CATALOG[name].normalise


def test_a_folder_without_validation_has_none(root: Path) -> None:
    for file in ("train.txt", "test.txt"):
        write(root / "istella-x" / file, lines(["1"], 220))
    assert load("istella-x", cache=False).validation is None


def test_fedrank_data_may_be_the_folder_itself(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts(root / "MQ2007")
    monkeypatch.setenv("FEDRANK_DATA", str(root / "MQ2007"))
    assert load("mq2007", cache=False).train.queries == 6


def test_the_search_is_bounded_and_prefers_the_nearest(root: Path) -> None:
    parts(root / "a/b/c/mq2008")
    parts(root / "a/b/c/d/mq2007")
    found = {entry.name: folder for entry, folder in available()}
    assert found["mq2008"] == root / "a/b/c/mq2008"
    assert found["mq2007"] is None
    parts(root / "z/mq2008")
    assert {entry.name: folder for entry, folder in available()}["mq2008"] == root / "z/mq2008"


def test_incomplete_sets_are_not_found(root: Path) -> None:
    parts(root / "mq2008")
    (root / "mq2008" / "S3.txt").unlink()
    with pytest.raises(FileNotFoundError, match="mq2008"):
        load("mq2008")


def test_a_missing_fold_of_a_found_set_is_named(root: Path) -> None:
    write(root / "mq2008/Fold1/train.txt", lines(["1"], 46))
    write(root / "mq2008/Fold1/test.txt", lines(["2"], 46))
    with pytest.raises(FileNotFoundError, match=r"fold 3 of mq2008 was not found; the files Fold3/train\.txt"):
        load("mq2008", 3)


def test_the_missing_value_of_istella_becomes_zero(root: Path) -> None:
    for file in ("train.txt", "vali.txt", "test.txt"):
        text = lines(["1"], 220).replace(" 2:0.5", " 2:1.7976931348623157e+308")
        write(root / "istella-s" / file, text)
    fold = load("istella-s", normalise="none", cache=False)
    assert fold.train.features[:, 1].tolist() == [0, 0]
    assert fold.train.features[:, 2].tolist() == [0.5, 0.5]


def test_global_normalisation_uses_the_training_ranges(root: Path) -> None:
    parts(root / "mq2008")
    fold = load("mq2008", 1, normalise="global", cache=False)
    assert fold.validation is not None
    # Training parts 1 to 3 have a first feature from 0 to 3; parts 4 and 5 reach 4 and 5.
    assert fold.train.features[:, 0].max() == 3 / 3
    assert fold.validation.features[:, 0].max() == np.float32(4 / 3)
    assert fold.test.features[:, 0].max() == np.float32(5 / 3)
    assert {fold.train.normalised, fold.test.normalised} == {"global"}


def test_normalisation_by_query(root: Path) -> None:
    parts(root / "mq2008")
    fold = load("mq2008", 1, normalise="query", cache=False)
    assert fold.train.features[:2, :2].tolist() == [[0, 0], [1, 0]]


def test_other_counts_are_noted(root: Path) -> None:
    parts(root / "mq2008")
    assert load("mq2008", cache=False).notes == (
        "mq2008 has 10 queries, but 784 were published; results may not be comparable",
        "mq2008 has 20 documents, but 15,211 were published; results may not be comparable",
    )


def test_other_features_or_grades_are_refused(root: Path) -> None:
    parts(root / "mq2008", features=45)
    with pytest.raises(ValueError, match="45 features, but 46 were expected"):
        load("mq2008", cache=False)
    parts(root / "mq2008")
    write(root / "mq2008" / "S2.txt", lines(["1"], 46, grade=4))
    with pytest.raises(ValueError, match=r"S2.txt contains relevance label 4, but mq2008 has labels 0 to 2"):
        load("mq2008", cache=False)


def test_sets_without_folds_are_dealt_out(root: Path) -> None:
    write(root / "mslr-sample/queries.txt", lines([str(n) for n in range(12)], 136))
    fold = load("mslr-sample", 2, cache=False)
    # Parts by index mod 5: fold 2 trains on parts 1, 2 and 3.
    assert fold.train.query_ids.tolist() == ["1", "6", "11", "2", "7", "3", "8"]
    assert fold.validation is not None
    assert fold.validation.query_ids.tolist() == ["4", "9"]
    assert fold.test.query_ids.tolist() == ["0", "5", "10"]
    assert fold.train.normalised == "query"


def test_too_few_queries_for_five_parts(root: Path) -> None:
    write(root / "mslr-sample/queries.txt", lines(["1", "2"], 136))
    with pytest.raises(ValueError, match="2 queries, but 5 parts are needed"):
        load("mslr-sample", cache=False)


def intents(folder: Path, judgements: dict[int, str]) -> None:
    rest = " ".join(f"{column}:0.5" for column in range(1, 43))
    documents = (("7", "d1", 4), ("7", "d2", 0), ("9", "d1", 0))
    write(folder / "features.txt", "".join(f"{grade} qid:{q} {rest} # docid = {d} \n" for q, d, grade in documents))
    for intent, text in judgements.items():
        write(folder / f"intent{intent}.qrel.xz", text)


def test_grades_of_intents_come_from_the_judgements(root: Path) -> None:
    unknown = "7 1 d1 -2\n"
    judgements = {0: "9 0 d1 1\n7 0 d1 0\n", 1: "7 1 d2 3\n", 2: "9 2 d1 1\n", 3: unknown, 4: unknown}
    intents(root / "clueweb09-intents", judgements)
    fold = load("clueweb09-intents", cache=False)
    assert fold.train.grades.tolist() == [0, 0, 1]
    assert fold.train.top_grade == 1
    assert fold.validation is None
    assert fold.test is fold.train
    assert fold.notes[0] == "the test queries are the training queries"
    assert "1 documents are relevant to an intent but not to intent 0, 0 only to intent 0" in fold.notes[1]
    assert intent_grades(cache=False).tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]


def test_without_intent_zero_the_union_counts(root: Path) -> None:
    intents(root / "clueweb09-intents", {1: "7 1 d2 1", 2: "9 2 d1 1", 3: "7 3 d2 1", 4: "7 4 d2 0"})
    assert load("clueweb09-intents", cache=False).train.grades.tolist() == [0, 1, 1]


def test_bad_judgements_are_named(root: Path) -> None:
    good = "7 1 d1 1"
    intents(root / "clueweb09-intents", {1: good, 2: "7 2 d1", 3: good, 4: good})
    with pytest.raises(ValueError, match=r"intent2.qrel.xz, line 1: '7 2 d1' is not a judgement"):
        load("clueweb09-intents", cache=False)
    intents(root / "clueweb09-intents", {2: "8 2 d1 1"})
    with pytest.raises(ValueError, match=r"intent2.qrel.xz judges none of the documents"):
        load("clueweb09-intents", cache=False)
    with pytest.raises(ValueError, match="mq2008 has no judgements by intent"):
        intent_grades("mq2008")


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown data set 'MQ208'; did you mean \"mq2008\"\\?"):
        load("MQ208")
    with pytest.raises(ValueError, match='there is "mq2007", "mq2008"'):
        describe("?")


@pytest.mark.parametrize(("name", "fold", "folds"), [("mq2008", 6, "folds 1 to 5"), ("yahoo", 0, "only fold 1")])
def test_a_bad_fold_names_the_folds(name: str, fold: int, folds: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no fold {fold}; it has {folds}"):
        load(name, fold)


def test_a_bad_normalisation_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ValueError, match="unknown normalisation 'sideways'"):
        load("synthetic-mslr", normalise="sideways")


def test_a_set_that_is_not_here_says_where_to_get_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError) as error:
        load("yahoo")
    for word in (
        "Webscope",
        "on request",
        str(root),
        "the folder FEDRANK_DATA/yahoo",
        "set1.train.txt, set1.valid.txt, set1.test.txt",
    ):
        assert word in str(error.value)
    monkeypatch.setenv("FEDRANK_DATA", str(root / "nowhere"))
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load("mq2007")
    monkeypatch.delenv("FEDRANK_DATA")
    with pytest.raises(FileNotFoundError, match=r"FEDRANK_DATA is not set.*S1\.txt to S5\.txt"):
        load("mq2007")


@pytest.mark.long
@pytest.mark.parametrize("name", ["synthetic-mq2007", "synthetic-mslr"])
def test_built_in_sets_are_always_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDRANK_DATA")
    folds = [load(name, fold) for fold in range(1, 6)]
    tested = [query for fold in folds for query in fold.test.query_ids.tolist()]
    assert sorted(tested, key=int) == [str(n + 1) for n in range(CATALOG[name].queries or 0)]
    for fold in folds:
        assert fold.validation is not None
        together = [*fold.train.query_ids, *fold.validation.query_ids, *fold.test.query_ids]
        assert len(set(together)) == len(together) == CATALOG[name].queries
        assert fold.train.normalised == CATALOG[name].normalise
        assert fold.train.features.min() == 0
        assert fold.train.features.max() == 1
        assert not fold.notes


def test_own_files(tmp_path: Path) -> None:
    write(tmp_path / "mine.txt", lines(["1", "2"], 3, top=2.0))
    write(tmp_path / "yours.txt.gz", "3 qid:5 1:1 4:1\n0 qid:5 2:1\n")
    write(tmp_path / "ours.txt", lines(["8"], 4))
    fold = load_files(tmp_path / "ours.txt", tmp_path / "yours.txt.gz", cache=False)
    assert (fold.name, fold.fold, fold.validation, fold.notes) == ("ours", 1, None, ())
    assert fold.train.top_grade == fold.test.top_grade == 3
    with pytest.raises(ValueError, match="3 features, but 4 were expected"):
        load_files(tmp_path / "mine.txt", tmp_path / "ours.txt", cache=False)


def test_own_files_normalised(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", lines(["1"], 2, top=2.0))
    write(tmp_path / "test.txt", lines(["2"], 2, top=3.0))
    train, test = tmp_path / "train.txt", str(tmp_path / "test.txt")
    fold = load_files(train, test, validation=test, normalise="global", cache=False)
    assert fold.validation is not None
    assert fold.test.features[:, 0].tolist() == fold.validation.features[:, 0].tolist() == [0, 3 / 2]
    assert load_files(train, test, normalise="query", cache=False).test.features[:, 0].tolist() == [0, 1]
    same = load_files(train, train, cache=False)
    [note] = same.notes
    assert note.startswith("1 of 1 test queries have the id of a training query; if they are the same queries, ")


def test_queries_that_training_and_test_files_share_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", lines(["1", "2", "3"], 2, top=2.0))
    write(tmp_path / "test.txt", lines(["3", "4"], 2, top=2.0))
    [note] = load_files(tmp_path / "train.txt", tmp_path / "test.txt", cache=False).notes
    assert note.startswith("1 of 2 test queries have the id of a training query")


def test_own_sparse_files_may_leave_out_the_last_features(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", "1 qid:1 1:1\n0 qid:1 2:1\n")
    write(tmp_path / "test.txt", "1 qid:2 1:1 3:1\n0 qid:2 2:1\n")
    fold = load_files(tmp_path / "train.txt", tmp_path / "test.txt", cache=False)
    assert fold.train.features.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_the_table_shows_what_is_here_and_where_to_get_the_rest(root: Path) -> None:
    parts(root / "mq2008")
    console = Console(file=io.StringIO(), width=80)  # names and addresses are whole even here
    show(about_catalog(available()), console)
    table, places = console.file.getvalue().split("Location, or where to get them")  # type: ignore[attr-defined]
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line}
    assert set(CATALOG) <= set(rows)
    assert rows["mq2008"] == ["mq2008", "784", "15,211", "46", "0-2", "5", "yes"]
    assert rows["istella-s"][-1] == "no"
    assert rows["synthetic-mslr"][-2:] == ["built", "in"]
    lines = places.splitlines()
    assert f"mq2008: {root / 'mq2008'}" in lines
    assert "istella-s: Istella: https://istella.ai/data/letor-dataset/; not for commercial use" in lines
    assert not any(line.startswith("synthetic") for line in lines)


@needs.data
@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("name", ["mq2008", "ohsumed", "mslr-sample"])
def test_real_sets_have_the_published_counts(name: str) -> None:
    if {entry.name: folder for entry, folder in available()}[name] is None:
        needs.skip("data", f"{name} is not below FEDRANK_DATA")
    fold = load(name, 5)
    assert fold.notes == ()
    assert fold.train.top_grade == CATALOG[name].grades - 1
    assert fold.train.grades.max() == fold.train.top_grade


@pytest.mark.long
@needs.data
@pytest.mark.usefixtures("real")
def test_real_intents() -> None:
    if {entry.name: folder for entry, folder in available()}["clueweb09-intents"] is None:
        needs.skip("data", "clueweb09-intents is not below FEDRANK_DATA")
    grades = intent_grades()
    assert grades.shape == (5, 26_646)
    # Counted in the judgement files with other tools.
    assert grades.sum(axis=1).tolist() == [6009, 3937, 2765, 2449, 884]
    np.testing.assert_array_equal(load("clueweb09-intents").train.grades, grades[0])
