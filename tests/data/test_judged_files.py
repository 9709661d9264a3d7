"""One table decides which reader reads a file of judged queries."""

from __future__ import annotations

import numpy as np
import pytest

import fedrank as fr
from fedrank.data.check import check_files
from fedrank.data.judged_files import COMMENT_READERS, READERS, JudgedFileError, comments_of, read_judged
from fedrank.data.ranking import RankingData
from fedrank.data.rows import Column, RowFormat, RowReader
from fedrank.data.values import parse_number

ROWS = RowFormat(
    {name: Column((name,), parse_number, "not a number") for name in ("query", "grade", "first", "second")},
    kind="csv",
)


def read_table(paths, *, features, normalise, missing, cache):
    reader = RowReader(paths, ROWS)
    rows = [list(row.values()) for _, row in reader]
    if reader.left_out.found:
        raise JudgedFileError(f"{paths}: {reader.left_out.all()}")
    table = np.array(rows)
    queries, starts = np.unique(table[:, 0], return_index=True)
    return RankingData(
        table[:, 2:].astype(np.float32), table[:, 1].astype(np.int8), np.append(starts, len(table)), queries.astype(str)
    )


def test_a_new_format_is_an_entry_in_a_table(tmp_path, monkeypatch):
    for name, rows in (("train.judged-test", "1,0,.5,1\n1,2,.1,2\n"), ("test.judged-test", "2,1,.4,1\n2,0,.2,1\n")):
        (tmp_path / name).write_text("query,grade,first,second\n" + rows)
    with pytest.raises(ValueError, match="is not a relevance label"):
        fr.load_files(tmp_path / "train.judged-test", tmp_path / "test.judged-test")
    monkeypatch.setitem(READERS, ".judged-test", read_table)
    fold = fr.load_files(tmp_path / "train.judged-test", tmp_path / "test.judged-test")
    assert fold.train.grades.tolist() == [0, 2]
    assert fold.test.features.tolist() == np.array([[0.4, 1], [0.2, 1]], np.float32).tolist()
    (tmp_path / "bad.judged-test").write_text("query,grade,first,second\n1,0,x,1\n")
    sound, unsound = check_files([tmp_path / "train.judged-test", tmp_path / "bad.judged-test"])
    assert (sound.sound, sound.documents, unsound.sound) == (True, 2, False)


@pytest.mark.parametrize("name", ["judged.txt", "judged", "judged.dat", "judged.v2.txt"])
def test_all_other_files_are_letor(tmp_path, name):
    (tmp_path / name).write_text("2 qid:7 1:0.5\n0 qid:7 1:0.25\n")
    assert read_judged(tmp_path / name, cache=False).grades.tolist() == [2, 0]
    assert read_judged([tmp_path / name], cache=False).grades.tolist() == [2, 0]
    with pytest.raises(ValueError, match="name at least one"):
        read_judged([])


def test_comments_come_from_the_reader_of_the_format(tmp_path, monkeypatch):
    file = tmp_path / "judged.judged-test"
    file.write_text("2 qid:7 1:0.5 # a\n0 qid:7 1:0.25\n")
    assert comments_of(file, 2) == ["a", ""]
    with pytest.raises(JudgedFileError, match="2 comments were read for 3 documents"):
        comments_of(file, 3)
    monkeypatch.setitem(READERS, ".judged-test", read_table)
    assert comments_of(file, 2) is None
    monkeypatch.setitem(COMMENT_READERS, ".judged-test", lambda paths: ["x", "y"])
    assert comments_of(file, 2) == ["x", "y"]
