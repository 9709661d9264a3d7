"""Stems instead of words, for lists and features alike."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrank.data.build_log import LogBuild, build_log
from fedrank.data.lists import ListRules

pytest.importorskip("bm25s")
pytest.importorskip("Stemmer")

TEXTS = ["running", "run and runs", "He runs.", "walks in the park", "ran"]


@pytest.fixture
def files(tmp_path):
    corpus, log = tmp_path / "corpus.jsonl", tmp_path / "log.tsv"
    rows = [{"id": f"d{i}", "title": "Runs", "text": text, "url": "a.example/runs"} for i, text in enumerate(TEXTS)]
    rows = [row | ({"title": "", "url": ""} if i > 2 else {}) for i, row in enumerate(rows)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log.write_text("user\ttime\tquery\tdocument\nann\t10\tRunning\td1\n")
    return log, corpus


def built(files, out, stem):
    return build_log(*files, out, LogBuild(ListRules(length=3, depth=10), stem=stem))


def test_words_that_differ_in_their_ending_match(files, tmp_path):
    with pytest.raises(ValueError, match="no entry has a result list"):
        built(files, tmp_path / "words", "none")  # only d0 has that very word
    log = built(files, tmp_path / "stems", "english")
    shown = [log.documents[document] for document in log.document[log.lists[0]]]
    assert sorted(shown) == ["d0", "d1", "d2"], "English stems know endings, not that ran is of run"
    names = list(log.feature_names)

    def value(document, name):
        return float(log.features[log.lists[0][shown.index(document)], names.index(name)])

    assert [value(one, "sum of TF of body") for one in ("d0", "d1", "d2")] == [1, 2, 1]
    assert [value(one, "sum of TF of title") for one in ("d0", "d1", "d2")] == [1, 1, 1]
    assert value("d0", "sum of TF of URL") == 1
    assert value("d0", "number of slashes in URL") == 1
    assert value("d1", "terms of body") == 3
    assert log.facts["settings"]["stem"] == "english"
    assert np.isfinite(log.features).all()


def test_a_folder_of_words_is_not_one_of_stems(files, tmp_path):
    built(files, tmp_path / "stems", "english")
    with pytest.raises(FileExistsError, match="different settings"):
        built(files, tmp_path / "stems", "none")
    with pytest.raises(ValueError, match="stem must be 'none' or 'english'"):
        LogBuild(stem="german")
