"""Who holds what, as table and picture."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedrank.experiments.report import charts
from fedrank.experiments.report.charts import draw_clients
from fedrank.experiments.report.data_output import about_clients
from fedrank.experiments.report.terminal import show
from fedrank.experiments.runner.client_summary import MAX_VARIANTS, describe_clients
from fedrank.experiments.runner.data import clients_of
from fedrank.experiments.spec.grid import read_tables
from tests import needs
from tests.made_up import made_up_data


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """Makes experiments on a small file."""
    data = made_up_data(queries=60, longest=8)
    query = np.repeat(data.query_ids, np.diff(data.offsets))
    rows = zip(data.grades, query, data.features, strict=True)
    file = tmp_path_factory.mktemp("data") / "small.txt"
    file.write_text("".join(f"{g} qid:{q} 1:{x[0]:.3f} 2:{x[1]:.3f}\n" for g, q, x in rows), encoding="utf-8")

    def make(**changes):
        tables = {
            "rounds": 1,
            "data": {"train": str(file), "test": str(file)},
            "clients": {"count": 3, "click_model": ["perfect", "poison"], "interactions": [1, 4]},
            "learner": {"name": "pdgd"},
            "seeds": [7, 8],
        }
        return read_tables(tables | changes)

    return make


@pytest.fixture(scope="module")
def skewed(spec):
    return spec(
        variants={
            "all": {},
            "all again": {"learner.rate": 0.5},
            "labels": {"clients.partition": {"name": "labels"}},
            "own [3]": {"clients.partition": "own"},
        }
    )


@pytest.fixture(scope="module")
def who(skewed):
    return describe_clients(skewed)


def printed(who, width=160):
    file = io.StringIO()
    show(about_clients(who), Console(file=file, width=width))
    return file.getvalue()


def test_variants_with_the_same_clients_are_one_group(who):
    assert [group.variants for group in who.groups] == [("all", "all-again"), ("labels",), ("own-3",)]
    assert (who.data, who.fold, who.seed, who.left_out) == ("small", 1, 7, 0)


def test_the_seed_can_be_chosen(spec, skewed, who):
    skew = spec(clients={"count": 4, "partition": {"name": "dirichlet"}})
    other = describe_clients(skew, seed=3)
    made = clients_of(skew.base, 1, 3)
    assert other.seed == 3
    assert other.groups[0].found.queries.tolist() == np.diff(made.pools).tolist()
    assert other.groups[0].found.queries.tolist() != describe_clients(skew).groups[0].found.queries.tolist()
    again = describe_clients(skewed)
    for mine, theirs in zip(who.groups, again.groups, strict=True):
        assert repr(mine.found.distances) == repr(theirs.found.distances)


def test_at_most_eight_groups(spec):
    many = spec(
        clients={"count": 2, "partition": {"name": "dirichlet"}},
        vary={"clients.partition.concentration": [float(c) for c in range(1, 11)]},
    )
    found = describe_clients(many)
    assert (len(found.groups), found.left_out) == (MAX_VARIANTS, 10 - MAX_VARIANTS)
    assert "2 more kinds of clients are not shown" in printed(found)


def test_table_names_every_client_and_measure(who):
    text = printed(who)
    assert "small, fold 1, seed 7" in text
    assert "all, all-again" in text
    assert (
        "3 clients, partition labels (each = 1, overlap = false, normalise_after = false), 1 to 4 interactions" in text
    )
    labels = who.groups[1].found
    for c in range(3):
        counts = [f"{n:,}" for n in (labels.queries[c], labels.without[c], labels.documents[c], *labels.grades[c])]
        click_model = ["perfect", "poison", "perfect"][c]
        row = [str(c), *counts, str([1, 4, 1][c]), f"{labels.from_all[c]:.3f}", click_model]
        assert row in [line.split() for line in text.splitlines()]
    for one in labels.distances:
        assert any(line.startswith(one.name) and f"{one.mean_by_chance:.3f}" in line for line in text.splitlines())
        assert f"{one.name}: " in text, "what it means"


def test_long_tables_are_cut_in_the_middle(spec):
    text = printed(describe_clients(spec(clients={"count": 50})))
    first = [line.split()[0] for line in text.splitlines() if line.split()]
    assert "0" in first
    assert "49" in first
    assert "…" in first
    assert "30" not in first


def test_one_client_has_no_pairs(spec):
    found = describe_clients(spec(clients={"count": 1}))
    (line,) = [line for line in printed(found).splitlines() if line.startswith("queries in common ")]
    assert line.split() == ["queries", "in", "common", "-", "-", "-", "-"]


def test_a_user_that_all_share_is_named_once_and_the_table_stays_narrow(spec):
    text = printed(describe_clients(spec(clients={"count": 1, "click_model": "informational"})), width=80)
    assert text.count("informational") == 1
    assert re.search(r"^1 client, partition .*, user informational$", text, re.MULTILINE)
    assert "…" not in text


@pytest.mark.long
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_picture(who, tmp_path, ending):
    path = tmp_path / f"clients.{ending}"
    draw_clients(who, path)
    start = path.read_bytes()[:500]
    assert start.startswith(b"\x89PNG") if ending == "png" else b"<svg" in start
    assert path.stat().st_size > 5_000
    if ending == "svg":
        text = path.read_text(encoding="utf-8")
        for said in ("labels", "label 2", "Difference in relevance labels", "Queries in common", "by chance"):
            assert said in text


def test_the_more_relevant_the_darker(who, monkeypatch):
    drawn = []
    monkeypatch.setattr(charts, "save_picture", lambda figure, path: drawn.append(figure))
    draw_clients(replace(who, groups=who.groups[:1]), "clients.svg")
    bars, *_ = drawn[0].subfigs[0].axes
    handles, labels = bars.get_legend_handles_labels()
    assert labels == ["label 0", "label 1", "label 2"]
    light = [sum(bar[0].get_facecolor()[:3]) for bar in handles]
    assert light == sorted(light, reverse=True)
    assert len(set(light)) == 3


@pytest.mark.long
def test_picture_of_many_or_one(spec, tmp_path):
    draw_clients(describe_clients(spec(clients={"count": 60, "partition": "own"})), tmp_path / "many.png")
    draw_clients(describe_clients(spec(clients={"count": 1})), tmp_path / "one.png")
    assert (tmp_path / "many.png").stat().st_size > (tmp_path / "one.png").stat().st_size


def test_bad_partitions_say_what_fits(spec):
    with pytest.raises(ValueError, match=r"clients.count = 3 or a multiple of it"):
        describe_clients(spec(clients={"count": 4, "partition": "labels"}))


@pytest.mark.long
@needs.data
def test_intents_differ_in_judgements_alone(spec, tmp_path):
    intents = spec(
        data={"name": "clueweb09-intents"},
        clients={"count": 4, "partition": {"name": "intents"}},
        vary={"clients.partition.mixed": [True, False]},
    )
    found = describe_clients(intents)
    mixed, apart = found.groups
    judged = {one.name: one for one in apart.found.distances}
    assert judged["judged differently"].mean > 0.5
    assert judged["features, from all"].mean == 0
    assert judged["queries in common"].mean == 1
    assert not np.any(mixed.found.judgement_pairs)
    draw_clients(found, tmp_path / "clients.svg")
    assert "Judged differently" in (tmp_path / "clients.svg").read_text(encoding="utf-8")
