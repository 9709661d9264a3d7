"""Reading text collections: what is kept, what is named, what is refused."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from fedrank.data.collection import Collection, find_collection, load_collection, read_collection
from fedrank.data.documents import Documents
from tests import needs


def write(folder: Path, qrels: str, name: str = "qrels.tsv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"_id": "d1", "title": "Cats", "text": "cats sleep"}, {"_id": "d2", "title": "", "text": "dogs run"}]
    (folder / "corpus.jsonl.xz").write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "cats"}\n{"_id": "q2", "text": "dogs"}\n')
    (folder / name).write_text(qrels)
    return folder


def test_grades_lie_with_their_query(tmp_path: Path) -> None:
    found = read_collection(write(tmp_path / "pets", "query-id\tcorpus-id\tscore\nq2\td2\t3\nq2\td1\t1\n"))
    assert (found.name, found.query_ids, found.queries) == ("pets", ["q1", "q2"], ["cats", "dogs"])
    assert found.documents.title == ["Cats", ""]
    rows, grades = found.judgements(1)
    assert (rows.tolist(), grades.tolist()) == ([0, 1], [1, 3])
    assert len(found.judgements(0)[0]) == 0
    assert found.top_grade == 3


def test_all_judgement_files_count_and_the_higher_grade_wins(tmp_path: Path) -> None:
    folder = write(tmp_path, "query\tdocument\tgrade\nq1\td1\t2\nq1\td2\t-1\n", "qrels-train.tsv")
    (folder / "qrels-test.tsv.xz").write_bytes(
        lzma.compress(b"query\tdocument\tgrade\nq1\td1\t1\nq9\td1\t1\nq1\tzz\t1\n")
    )
    found = read_collection(folder)
    rows, grades = found.judgements(0)
    assert (rows.tolist(), grades.tolist()) == ([0, 1], [2, 0])
    assert found.unknown == 2


def test_a_first_line_that_is_a_judgement_counts(tmp_path: Path) -> None:
    found = read_collection(write(tmp_path, "q1\td1\t2\nq1\td2\t1\n"))
    assert found.judgements(0)[1].tolist() == [2, 1]


@pytest.mark.parametrize("line", ["q1\td1", "q1\td1\tgood", "q1\td1\t128", "q1 d1 1"])
def test_a_line_that_is_no_judgement_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match=r"qrels\.tsv, line 3: .* is not a judgement"):
        read_collection(write(tmp_path, f"query\tdocument\tgrade\nq1\td1\t1\n{line}\n"))


def test_a_folder_that_lacks_a_file_says_which(tmp_path: Path) -> None:
    folder = write(tmp_path, "query\tdocument\tgrade\nq1\td1\t1\n")
    (folder / "qrels.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"contains no qrels\*\.tsv"):
        read_collection(folder)
    (folder / "queries.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"contains no queries\.jsonl"):
        read_collection(folder)


def test_collections_are_found_by_name_below_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "text" / "pets", "query\tdocument\tgrade\nq1\td1\t1\n")
    monkeypatch.setenv("FEDRANK_DATA", str(tmp_path))
    assert find_collection("pets") == folder
    assert find_collection(str(folder)) == folder
    assert find_collection("synthetic-silos") is None
    for missing in ("pest", str(tmp_path / "pest")):
        with pytest.raises(FileNotFoundError, match="no text collection"):
            load_collection(missing)


def test_a_collection_needs_a_table_of_grades_for_every_query() -> None:
    with pytest.raises(ValueError, match="1 ids, 1 texts and 0 tables"):
        Collection.of("x", Documents(["d"], [""], ["a"], [""]), ["q"], ["a"], [])


@needs.data
def test_cranfield_is_read_whole() -> None:
    try:
        found = load_collection("cranfield")
    except FileNotFoundError:
        needs.skip("data", "cranfield is not below FEDRANK_DATA")
    assert (len(found.documents), len(found.queries), len(found.judged), found.top_grade) == (1400, 225, 1837, 4)
    assert found.unknown == 0
    assert np.diff(found.offsets).min() >= 1
