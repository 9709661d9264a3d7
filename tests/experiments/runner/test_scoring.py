"""A trained model on new data: scores, TREC runs and measures, against arithmetic by hand and slow oracles."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from fedrank.data.judged_files import READERS
from fedrank.data.logs import load_log, pairs_of
from fedrank.data.synthetic_shown import made_up_queries, simulate_shown
from fedrank.experiments.report.model_output import about_quality
from fedrank.experiments.runner.scoring import evaluate_model, score_lines
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from tests.oracles import measures as oracle

FILE = """\
0 qid:7 1:1 2:4 # docid = A inc = 1
2 qid:7 1:2 2:0 # docid = B inc = 1
1 qid:7 1:0 2:2 # docid = C inc = 1
0 qid:8 1:3 # docid = D inc = 1
0 qid:8 2:1 # docid = E inc = 1
1 qid:9 1:1 2:1 # docid = F inc = 1
"""
WEIGHTS = np.array([2.0, -0.5])
SCORES = [2 * 1 - 0.5 * 4, 2 * 2 - 0.5 * 0, 2 * 0 - 0.5 * 2, 2 * 3, -0.5 * 1, 2 * 1 - 0.5 * 1]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data.txt").write_text(FILE, encoding="utf-8")
    return str(tmp_path / "data.txt")


def model_file(folder, weights=WEIGHTS, normalised="none"):
    save_model(Model(Linear(), np.asarray(weights), 2, normalised), folder / "model.json")
    return folder / "model.json"


def test_scores_by_hand_from_a_file_or_a_run_folder(tmp_path, data):
    assert [float(line) for line in score_lines(model_file(tmp_path), data)] == SCORES
    assert list(score_lines(tmp_path, data)) == list(score_lines(tmp_path / "model.json", data))


def test_scores_are_written_in_full(tmp_path, data):
    third = np.float32(1 / 3)
    lines = list(score_lines(model_file(tmp_path, [third, 0.0]), data))
    assert np.float32(lines[0]) == third


def test_features_are_normalised_as_the_model_expects(tmp_path, data):
    # In query 7 feature 1 runs from 0 to 2 and feature 2 from 0 to 4; in query 9 nothing differs, which gives 0.
    scores = [float(line) for line in score_lines(model_file(tmp_path, normalised="query"), data)]
    expected = [2 * 1 / 2 - 0.5 * 4 / 4, 2 * 2 / 2 - 0.5 * 0, 2 * 0 - 0.5 * 2 / 4, 2 * 1 - 0.5 * 0, -0.5 * 1, 0.0]
    assert scores == pytest.approx(expected)


def test_data_with_fewer_features_than_the_model_reads_are_refused(tmp_path):
    save_model(Model(Linear(), np.array([2.0, -0.5, 1.0]), 3), tmp_path / "three.json")
    (tmp_path / "dense.txt").write_text("0 qid:1 1:1 2:1\n1 qid:1 1:2 2:0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="the model has 3 features, but the data have 2; use data with the features"):
        list(score_lines(tmp_path / "three.json", str(tmp_path / "dense.txt")))
    with pytest.raises(ValueError, match="the model has 3 features, but the data have 46; use data with the features"):
        evaluate_model(tmp_path / "three.json", "synthetic-mq2007", ["ndcg@10"])
    # A sparse file may leave out its last feature in some lines, not in all.
    (tmp_path / "sparse.txt").write_text("0 qid:1 1:1 3:1\n1 qid:1 1:2\n", encoding="utf-8")
    assert [float(line) for line in score_lines(tmp_path / "three.json", str(tmp_path / "sparse.txt"))] == [3.0, 4.0]


def test_a_search_log_is_scored_and_measured_by_its_latest_entries(tmp_path):
    folder, told = tmp_path / "log", []
    simulate_shown(made_up_queries(50, seed=5), 200, people=4).write(folder)
    log = load_log(folder)
    width = log.features.shape[1]
    save_model(Model(Linear(), np.ones(width), width), tmp_path / "ones.json")
    entries = np.arange(len(log))[-(len(log) // 5) :]
    expected = log.features[pairs_of(log, entries)].sum(axis=1)
    scores = [float(line) for line in score_lines(tmp_path / "ones.json", str(folder), tell=told.append)]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    assert "its last 40 entries are used, with relevance label 1 for clicked documents" in told[0]
    quality = evaluate_model(tmp_path / "ones.json", str(folder), ["mrr@10"])
    assert len(quality.query_ids) == len(entries)
    line = next(iter(score_lines(tmp_path / "ones.json", str(folder), trec="mine")))
    assert line.split()[2] in log.documents
    with pytest.raises(FileNotFoundError, match="is not a data set of a search log"):
        evaluate_model(tmp_path / "ones.json", str(tmp_path), ["mrr@10"])


def test_a_trec_run_by_hand(tmp_path, data):
    assert "".join(score_lines(model_file(tmp_path), data, trec="mine")) == (
        "7 Q0 B 1 4 mine\n7 Q0 A 2 0 mine\n7 Q0 C 3 -1 mine\n8 Q0 D 1 6 mine\n8 Q0 E 2 -0.5 mine\n9 Q0 F 1 1.5 mine\n"
    )


def test_a_trec_run_is_measured_as_the_model_that_wrote_it(tmp_path, data):
    model, run = model_file(tmp_path), tmp_path / "mine.run"
    run.write_text("".join(score_lines(model, data, trec="mine")), encoding="utf-8")
    measures = ["ndcg@2", "map", "mrr@10/zero"]
    np.testing.assert_array_equal(
        evaluate_model(run, data, measures).values, evaluate_model(model, data, measures).values
    )


def test_the_score_of_a_trec_run_counts_and_missing_documents_rank_last(tmp_path, data):
    run, told = tmp_path / "other.trec", []
    run.write_text("7 Q0 C 9 5e3 t\n7 Q0 B 1 4999.9999 t\n9 Q0 F 1 -3 t\n9 Q0 Z 1 1 t\n", encoding="utf-8")
    found = evaluate_model(run, data, ["mrr@10", "p@1"], tell=told.append)
    assert found.values[0].tolist() == pytest.approx([1, np.nan, 1], nan_ok=True)
    scores = [float(line) for line in score_lines(run, data, tell=told.append)]
    assert np.argsort(scores[:3]).tolist() == [0, 1, 2]  # A is missing, then B, then C
    assert told[0].endswith("3 documents are not in it and rank last; 1 others are ignored")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("7 Q0 A 1 4", r"bad.run:2: must be query Q0 document rank score tag \(got '7 Q0 A 1 4'\)"),
        ("7 Q0 A 1 nan t", "bad.run:2: must be query Q0 document rank score tag"),
        ("7 Q0 B 1 5 t", "bad.run:2: document B of query 7 has two scores; remove one"),
    ],
)
def test_a_damaged_trec_run_is_refused_with_its_line(tmp_path, data, line, reason):
    (tmp_path / "bad.run").write_text(f"7 Q0 B 1 4 t\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=reason):
        evaluate_model(tmp_path / "bad.run", data, ["map"])


def test_a_trec_run_of_other_data_is_refused(tmp_path, data):
    (tmp_path / "far.run").write_text("99 Q0 A 1 4 t\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no document of the data is in this run"):
        evaluate_model(tmp_path / "far.run", data, ["map"])
    with pytest.raises(ValueError, match="a TREC run, which has no clients; remove client = 1"):
        evaluate_model(tmp_path / "far.run", data, ["map"], client=1)


def test_documents_without_ids_are_named_by_query_and_position(tmp_path):
    plain = tmp_path / "plain.txt"
    plain.write_text("".join(line.partition("#")[0] + "\n" for line in FILE.splitlines()), encoding="utf-8")
    lines = list(score_lines(model_file(tmp_path), str(plain), trec="t"))
    assert [line.split()[2] for line in lines] == ["7-2", "7-1", "7-3", "8-1", "8-2", "9-1"]


def test_the_ids_of_another_format_are_not_read_as_letor_comments(tmp_path, monkeypatch):
    other = tmp_path / "other.judged-test"
    other.write_text(FILE, encoding="utf-8")
    monkeypatch.setitem(READERS, ".judged-test", READERS[""])
    lines = list(score_lines(model_file(tmp_path), str(other), trec="t"))
    assert [line.split()[2] for line in lines] == ["7-2", "7-1", "7-3", "8-1", "8-2", "9-1"]


@pytest.mark.parametrize("tag", ["", "two words", " x", "x\n"])
def test_a_tag_is_one_word(tmp_path, data, tag):
    with pytest.raises(ValueError, match="must be one word"):
        score_lines(model_file(tmp_path), data, trec=tag)


def test_measures_agree_with_the_oracle_and_skip_where_they_say(tmp_path, data):
    quality = evaluate_model(model_file(tmp_path), data, ["ndcg@2", "map", "mrr@10/zero"])
    assert quality.measures == ("ndcg@2", "map", "mrr@10/zero")
    assert list(quality.query_ids) == ["7", "8", "9"]
    queries = [(SCORES[:3], [0, 2, 1]), (SCORES[5:], [1])]
    for row, (name, cutoff) in zip(quality.values, [("ndcg", 2), ("map", None), ("mrr", 10)], strict=True):
        assert row[[0, 2]] == pytest.approx([oracle.value(name, cutoff, *query, 2) for query in queries])
    assert np.isnan(quality.values[:2, 1]).all()
    assert quality.values[2, 1] == 0
    rows = list(csv.reader(io.StringIO(quality.csv())))
    assert rows[0] == ["query", "ndcg@2", "map", "mrr@10/zero"]
    assert rows[2] == ["8", "", "", "0.0"]
    assert [float(cell) for cell in rows[1][1:]] == quality.values[:, 0].tolist()


def test_a_table_of_quality(tmp_path, data):
    [section] = about_quality(evaluate_model(model_file(tmp_path), data, ["map"]))
    mean = (oracle.value("map", None, SCORES[:3], [0, 2, 1], 2) + 1) / 2
    [row] = section.parts[0].cells
    assert [cell.text for cell in row[:4]] == ["map", f"{mean:.4f}", "2", "1"]


def test_models_of_single_clients(tmp_path, data):
    own = model_file(tmp_path, [[2.0, -0.5], [0.0, 1.0]])
    assert [float(line) for line in score_lines(own, data, client=1)] == [4, 0, 2, 0, 1, 1]
    with pytest.raises(ValueError, match="2 models, one per client"):
        score_lines(own, data)
    with pytest.raises(ValueError, match="one model for all clients; remove client = 1"):
        score_lines(model_file(tmp_path), data, client=1)


def test_ranges_of_the_training_data_travel_with_the_model(tmp_path, data):
    ranges = np.array([[0.0, 1.0], [4.0, 5.0]], np.float32)
    save_model(Model(Linear(), WEIGHTS, 2, "global", ranges=ranges), tmp_path / "model.json")
    scaled = [(a / 4, (b - 1) / 4) for a, b in ((1, 4), (2, 0), (0, 2), (3, 0), (0, 1), (1, 1))]
    expected = [2 * a - 0.5 * b for a, b in scaled]
    assert [float(line) for line in score_lines(tmp_path / "model.json", data)] == pytest.approx(expected)
    with pytest.raises(ValueError, match="the model has 2 features, but the data have 46; use data with the features"):
        score_lines(tmp_path / "model.json", "synthetic-mq2007")


def test_what_cannot_be_used(tmp_path, data):
    model = model_file(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"'mq2009' is not a file or a data set; did you mean .mq2008.\?"):
        evaluate_model(model, "mq2009", ["map"])
    with pytest.raises(FileNotFoundError, match="is not a data set of a search log"):
        evaluate_model(model, str(tmp_path), ["map"])
    with pytest.raises(ValueError, match="unknown measure 'mpa'"):
        evaluate_model(model, data, ["mpa"])
    with pytest.raises(ValueError, match='normalise = "global" but has no feature ranges'):
        evaluate_model(model_file(tmp_path, normalised="global"), data, ["map"])
