"""A made-up log has the character of a real one."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.click_log import read_clicks
from fedrank.data.describe_log import burstiness, power_law
from fedrank.data.documents import read_documents
from fedrank.data.synthetic_log import LARGEST, synthetic_log


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    log, corpus = synthetic_log(tmp_path_factory.mktemp("log"), users=300, seed=1, documents=600, topics=6)
    documents = read_documents(corpus)
    return read_clicks(log, documents), documents


@pytest.mark.long
def test_it_is_a_sound_log(made_up):
    clicks, documents = made_up
    assert len(documents) == 600
    assert clicks.left_out == {}
    assert clicks.out_of_order == 0
    assert set(clicks.users) == {f"u{i}" for i in range(300)}
    assert (clicks.time[-1] - clicks.time[0]) / 86400 < 95


def test_the_same_seed_gives_the_same_files(tmp_path):
    files = [
        synthetic_log(tmp_path / str(i), users=20, seed=seed, documents=100, topics=3)
        for i, seed in enumerate((1, 1, 2))
    ]
    one, two, three = ([path.read_bytes() for path in pair] for pair in files)
    assert one == two
    assert one[0] != three[0]
    assert one[1] != three[1]


def test_activity_follows_the_asked_power_law(made_up):
    counts = np.bincount(made_up[0].user)
    assert counts.min() == 5
    law = power_law(counts)
    assert law is not None
    assert law.exponent == pytest.approx(2.0, abs=0.3)


def test_users_search_in_bursts(made_up):
    clicks = made_up[0]
    values = [burstiness(clicks.time[clicks.user == user]) for user in range(300) if (clicks.user == user).sum() >= 20]
    assert np.median(values) > 0.45  # at random it would be about 0


def test_users_have_few_topics_and_share_queries(made_up):
    clicks, documents = made_up
    # Words belong to topics, so that a user of few topics asks few different words of all that are asked.
    words = {word for query in clicks.queries for word in query.split()}
    active = [user for user in range(300) if (clicks.user == user).sum() >= 20]
    shares = []
    for user in active:
        asked = {word for query in clicks.query[clicks.user == user] for word in clicks.queries[query].split()}
        shares.append(len(asked) / min(len(words), (clicks.user == user).sum()))
    everybody = np.random.default_rng(1).permutation(clicks.user)
    mixed = []
    for user in active:
        asked = {word for query in clicks.query[everybody == user] for word in clicks.queries[query].split()}
        mixed.append(len(asked) / min(len(words), (clicks.user == user).sum()))
    assert np.mean(shares) < 0.8 * np.mean(mixed)
    searchers = [len(np.unique(clicks.user[clicks.query == query])) for query in range(len(clicks.queries))]
    assert max(searchers) > 20
    found = [clicks.queries[q].split() for q in clicks.query]
    texts = [{*documents.title[d].split(), *documents.text[d].split()} for d in clicks.document]
    assert all(set(query) & text for query, text in zip(found, texts, strict=True)), "clicks are on what matches"


def test_a_log_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "log.tsv").write_text("mine")
    with pytest.raises(FileExistsError, match="already exists with other contents"):
        synthetic_log(tmp_path, users=2, documents=20, topics=2)
    assert (tmp_path / "log.tsv").read_text() == "mine"
    assert not (tmp_path / "corpus.jsonl").exists()


@pytest.mark.parametrize("done", [(), ("corpus.jsonl",), ("corpus.jsonl", "log.tsv")])
def test_a_command_that_was_stopped_is_given_again(tmp_path, done):
    log, corpus = synthetic_log(tmp_path / "whole", users=3, documents=20, topics=2)
    (tmp_path / "stopped").mkdir()
    for name in done:
        (tmp_path / "stopped" / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    again = synthetic_log(tmp_path / "stopped", users=3, documents=20, topics=2)
    assert [path.read_bytes() for path in again] == [log.read_bytes(), corpus.read_bytes()]


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in LARGEST),
        *({name: value + 1} for name, value in LARGEST.items()),
        {"exponent": 1.0},
        {"taste": 0.0},
        {"users": 99999999999999999999},
    ],
)
def test_settings_that_make_no_sense(tmp_path, wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=rf"{name} (must be|greater) .*\(got {value}\)"):
        synthetic_log(tmp_path, **wrong)
