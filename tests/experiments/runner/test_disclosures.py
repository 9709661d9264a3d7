"""What `fedrank privacy show` says of silos and forests, and what both commands take and write."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

from fedrank.cli import main
from fedrank.cli.shared import progress
from fedrank.display import json_text
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.privacy_output import about_privacy, privacy_verdict
from fedrank.experiments.runner.disclosures import as_facts, budget_line, cost_of_words, leaving, sketch_noise_needed
from fedrank.experiments.spec.grid import Grid, read_tables
from fedrank.experiments.spec.silo import SiloExperiment
from tests.experiments.runner.test_audit import FOREST, SILOS, SPLIT


def silos(method, **changes):
    return read_tables(SILOS | {"method": method} | changes).base


def said(grid):
    return markdown(about_privacy(grid, [2.0]))


@pytest.mark.parametrize(
    ("method", "claimed"),
    [
        ("local", []),
        ("global", [None]),
        ({"name": "local-plus", "noise": 0.0}, [None, None, None]),
        ({"name": "local-plus", "counts": "exact"}, [None, None, None]),
        ({"name": "local-plus", "noise_in": "paper"}, [None, None, None]),
        ({"name": "local-plus", "noise_in": "lookup"}, [0.5, None, None]),
        ("local-plus", [6.6, None, None]),
        ("cross-silo", [6.6, None, None, None]),
    ],
)
def test_what_leaves_a_silo_and_what_is_claimed_for_it(method, claimed):
    promises = [each.guarantee for each in leaving(silos(method))]
    assert [None if guarantee is None else round(guarantee.epsilon, 1) for guarantee in promises] == claimed


def test_sketches_cost_what_their_sketcher_says_and_noise_keeps_a_target():
    asked = silos({"name": "cross-silo", "noise": 4.0})
    assert cost_of_words(asked) == {k: asked.method.sketcher.privacy(1e-5, k) for k in (1, 2, 5, 10)}
    assert cost_of_words(silos({"name": "cross-silo", "counts": "exact"})) == {}
    [noise] = sketch_noise_needed(asked, [2.0])
    assert 1.99 < silos({"name": "cross-silo", "noise": noise}).method.sketcher.privacy(1e-5) <= 2.0


def test_a_budget_that_a_sketch_exceeds_is_announced():
    strict = silos("cross-silo", privacy={"budget": 2.0})
    assert "A run would be refused" in budget_line(strict)
    assert "6.6" in budget_line(strict)
    assert "A run would be refused" in said(Grid.of(strict))
    assert budget_line(silos("cross-silo", privacy={"budget": 7.0})) == ""


@pytest.mark.parametrize(
    ("merge", "words"),
    [
        (None, ["the forest", "every recipient of the model"]),
        ("alone", ["No data leave the clients"]),
        ("linear", ["the forest of every client", "all other clients", "means of two feature values"]),
        ("stacking", ["the forest of every client", "all other clients"]),
        ("bagged", ["every tree: ", "nDCG@10 on the client's validation queries"]),
        ("cyclic", ["every tree: "]),
        ("histograms", ["histograms of gradients, hessians and rows", "nDCG@10 on validation queries"]),
        ({"name": "histograms", "secure": True}, ["the server, summed over all clients"]),
        (
            {"name": "histograms", "vote": 3},
            ["the 3 features with the highest gain", "for every leaf and 6 elected features"],
        ),
        ("pooled", ["all queries, documents and relevance labels"]),
    ],
)
def test_what_forests_tell_and_to_whom(merge, words):
    text = said(read_tables(FOREST | ({} if merge is None else {"split": SPLIT, "merge": merge})))
    assert all(word in text for word in words)
    assert ("No privacy guarantee" in text) == (merge != "alone")


def test_noised_forests_have_a_price_for_a_query_and_none_for_a_row():
    merge = {"name": "histograms", "private": "random-splits", "noise": 20.0}
    text = said(read_tables(FOREST | {"split": SPLIT, "merge": merge}))
    assert "noised sums of gradients" in text
    assert "never a single row" in text
    assert "No privacy guarantee" not in text


def test_a_client_that_learns_alone_is_not_said_to_send_anything():
    tables = {"rounds": 5, "data": {"name": "synthetic-mq2007"}, "clients": {"count": 4}, "learner": "pdgd"}
    assert "Nothing leaves a client" in said(read_tables(tables | {"aggregator": "none"}))
    assert "Nothing leaves" not in said(read_tables(tables))


@pytest.mark.long
def test_numbers_for_a_file_know_no_infinity():
    mechanism = {"name": "gaussian", "clip": 0.1, "noise": 2.0}
    tables = {"rounds": 5, "data": {"name": "synthetic-mq2007"}, "clients": {"count": 4}, "learner": "pdgd"}
    for grid in (read_tables(tables | {"mechanism": mechanism}), read_tables(tables)):
        facts = json.loads(json_text(as_facts(grid, [2.0])))
        assert "Infinity" not in json.dumps(facts)
        [variant] = facts["variants"]
        assert variant["variant"] == "only"


def test_numbers_of_silos_for_a_file():
    facts = json.loads(json_text(as_facts(read_tables(SILOS), [2.0])))
    [variant] = facts["variants"]
    assert variant["variant"] == "only"
    assert list(variant["epsilon_by_occurrences"]) == ["1", "2", "5", "10"]
    assert variant["epsilon_by_occurrences"]["1"] == pytest.approx(6.59, abs=0.02)
    assert variant["leaves"][0]["guarantee"]["paid_per"] == "once"
    [noise] = variant["noise_for_targets"]
    louder = read_tables(SILOS | {"method": {"name": "local-plus", "noise": noise}}).base
    assert cost_of_words(louder)[1] == pytest.approx(2.0, abs=0.01)


@pytest.fixture
def fedrank(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    methods = (
        '[variants.quiet]\nmethod = "local"\n[variants.exact]\nmethod = { name = "local-plus", counts = "exact" }\n'
    )
    spec = f'kind = "silo"\nrounds = 1\ndata.name = "synthetic-silos"\nmethod.name = "cross-silo"\n{methods}'
    (tmp_path / "silos.toml").write_text(spec, encoding="utf-8")

    def call(command, *arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", "privacy", command, "silos.toml", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


@pytest.mark.parametrize(("command", "name"), [("show", "privacy"), ("audit", "audit")])
def test_one_variant_in_two_files(fedrank, tmp_path, command, name):
    code, out, _ = fedrank(command, "--variant", "quiet", "--out", "found")
    assert code == 0
    assert "each learns alone" in out
    assert "exact" not in out
    facts = json.loads((tmp_path / "found" / f"{name}.json").read_text(encoding="utf-8"))
    assert (facts["kind"], "exact" in json.dumps(facts)) == ("silo", False)
    assert "each learns alone" in (tmp_path / "found" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["show", "audit"])
def test_what_cannot_be_meant_is_refused_before_anything_is_done(fedrank, command):
    code, out, err = fedrank(command, "--out", "found.txt")
    assert code != 0
    assert "use .json, .md, or a folder" in err
    assert "leaves" not in out
    code, _, err = fedrank(command, "--variant", "quite")
    assert code != 0
    assert "unknown variant 'quite'" in err
    assert "quiet" in err


def test_every_kind_of_grid_can_be_narrowed():
    grid = read_tables(SILOS | {"vary": {"method.noise": [1.0, 2.0]}})
    assert grid.only([]) is grid
    narrow = grid.only(["method.noise=2.0"])
    assert [variant.name for variant in narrow.variants] == ["method.noise=2.0"]
    assert isinstance(narrow.base, SiloExperiment)


def test_the_time_left_is_said_as_soon_as_it_can_be_known(monkeypatch):
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr("fedrank.cli.shared.time.monotonic", lambda: next(clock))
    console = Console(file=io.StringIO(), width=100)
    monkeypatch.setattr("fedrank.cli.shared.console", lambda: console)
    with progress() as tell:
        for share in (0.0, 0.01, 0.25, 1.0):
            tell("attack", share, 1)
    assert console.file.getvalue().splitlines() == ["attack: 1%", "attack: 25%, about 2 min 00 s left"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "not protected: every update leaves without noise. Add a mechanism"),
        ({"aggregator": "none"}, "protected: nothing leaves a client."),
        ({"mechanism": {"name": "gaussian", "clip": 0.5, "noise": 40.0}}, "protected at ε = "),
        ({"mechanism": {"name": "gaussian", "clip": 0.5, "noise": 1.0}}, "not protected in practice: ε = "),
        (
            {"mechanism": {"name": "gaussian", "clip": 0.5, "noise": 9.0, "placement": "server"}},
            "no privacy guarantee against the server: it sees every update without noise",
        ),
    ],
)
def test_a_page_on_privacy_ends_with_a_verdict(changes, expected):
    tables = {"rounds": 20, "data": {"name": "synthetic-mq2007"}, "clients": {"count": 10}, "learner": {"name": "pdgd"}}
    grid = read_tables(tables | changes)
    assert privacy_verdict(grid.base).startswith(expected)
    [section] = about_privacy(grid)
    last = markdown([section]).replace("**", "").rstrip().splitlines()[-1]
    assert last.removeprefix("> ").startswith(f"Verdict: {expected}")


def test_a_verdict_names_the_noise_that_would_be_enough():
    mechanism = {"name": "gaussian", "clip": 0.5, "noise": 1.0}
    tables = {"rounds": 20, "data": {"name": "synthetic-mq2007"}, "clients": {"count": 10}, "learner": {"name": "pdgd"}}
    advice = privacy_verdict(read_tables(tables | {"mechanism": mechanism}).base).partition("set mechanism.noise to ")[
        2
    ]
    enough = tables | {"mechanism": mechanism | {"noise": float(advice.rstrip("."))}}
    assert privacy_verdict(read_tables(enough).base).startswith("protected at ε = ")
