"""The papers: every table and figure is there, claims are about variants that exist, and the report tells verdicts."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import tomllib
from dataclasses import replace
from html import unescape
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.data import synthetic_log
from fedrank.data.logs import load_log
from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.report.terminal import show
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.grid import measured
from fedrank.experiments.spec.source import read_spec
from fedrank.toml import write_toml
from fedrank_papers import figures as paper_figures
from fedrank_papers.claims_page import write_claims
from fedrank_papers.entries import anchor
from fedrank_papers.items import (
    Item,
    Paper,
    about_papers,
    ask,
    command,
    compared,
    data_of,
    made_up_log,
    named,
    papers,
    unlearn_after,
)
from fedrank_papers.page import in_general, match, summary, write_papers_report
from fedrank_papers.tree_figures import by_step
from tests.experiments.report.made_up_runs import write_experiment, write_run

ROOT = Path(__file__).parents[2]
ITEMS = [(paper, item) for paper in papers() for item in paper.items]
NAMES = [item.name for _, item in ITEMS]

# What the papers compute, by their own numbers; 5.1, 6.1 and the like are drawings.
THESIS = {
    "Table": ["3.1", "4.2", "4.3", "6.2"],
    "Figure": [
        *(f"3.{n}" for n in range(1, 11)),
        *(f"4.{n}" for n in range(3, 10)),
        *(f"5.{n}" for n in range(2, 12)),
        *("6.2", "6.3"),
    ],
}
OTHERS = {
    "noniid-trees": {"Table": [str(n) for n in range(1, 7)], "Figure": ["2", "3"]},
    "selgb": {"Table": ["1", "2"], "Figure": [str(n) for n in range(1, 9)]},
    "cs-f-ltr": {"Table": ["1"], "Figure": ["4", "5", "6"]},
    "aol4foltr": {"Table": [], "Figure": ["2", "3", "4", "5"]},
}


def numbers(labels: list[str], kind: str) -> set[str]:
    """The tables or figures that labels such as "Table 6.2, Figures 6.2 and 6.3" name; "5.5-5.7" are three."""
    found = set()
    for label in labels:
        for part in re.findall(rf"{kind}s? ((?:[\d.]+(?: \([a-z, ]+\))?(?:, | and |-)?)+)", label):
            for first, last in re.findall(r"(\d[\d.]*)(?:-(\d[\d.]*))?", part.replace(" and ", ", ")):
                found.add(first.rstrip("."))
                if last:
                    chapter, _, start = first.rpartition(".")
                    ends = range(int(start), int(last.rpartition(".")[2]) + 1)
                    found |= {f"{chapter}.{n}" if chapter else str(n) for n in ends}
    return found


@pytest.mark.parametrize(("key", "wanted"), [("thesis", THESIS), *OTHERS.items()])
@pytest.mark.parametrize("kind", ["Table", "Figure"])
def test_every_computed_table_and_figure_has_an_experiment_or_a_command(key: str, wanted: dict, kind: str) -> None:
    [paper] = [paper for paper in papers() if paper.key == key]
    labels = [item.label for item in paper.items] + [other.item for other in paper.other]
    assert set(wanted[kind]) <= numbers(labels, kind)


def test_labels_are_read_as_meant() -> None:
    labels = ["Table 6.2, Figures 6.2 and 6.3", "Figure 4.9 (a, c)", "Figures 5.6-5.8 and 5.11"]
    assert numbers(labels, "Figure") == {"6.2", "6.3", "4.9", "5.6", "5.7", "5.8", "5.11"}
    assert numbers(labels, "Table") == {"6.2"}


@pytest.mark.parametrize(("paper", "item"), ITEMS, ids=NAMES)
def test_an_item_says_what_it_is_what_it_costs_and_has_a_quick_form(paper: Paper, item: Item) -> None:
    cost = item.grid.about.paper
    assert cost is not None
    assert cost.minutes
    assert cost.quick_minutes
    assert item.quick is not None
    assert item.quick.title.endswith("(quick form)")
    assert not item.quick.about.published
    whole, quick = (len(grid.variants) * len(grid.repeats()) for grid in (item.grid, item.quick))
    assert quick <= max(whole, 60)


@pytest.mark.parametrize(("paper", "item"), ITEMS, ids=NAMES)
def test_claims_compare_two_different_variants_in_a_measure_that_runs_have(paper: Paper, item: Item) -> None:
    for claim in item.grid.about.claims:
        assert claim.higher != claim.lower
        assert claim.measure is None or claim.measure in measured(item.grid.tables)
    if len(item.grid.about.claims) > 0:
        assert item.quick is not None
        assert item.quick.about.claims, "no claim is left in the quick form"


@pytest.mark.parametrize("name", ["fig-5-2", "fig-5-3", "fig-5-5"])
def test_neural_forms_ask_the_same_of_another_ranker(name: str) -> None:
    linear, neural = (read_spec(f"thesis/{each}").tables for each in (name, f"{name}-neural"))
    assert neural.pop("learner") == linear.pop("learner") | {"ranker": {"name": "mlp"}}
    assert neural.pop("title") == f"{linear.pop('title')}, neural ranker"
    del linear["paper"], neural["paper"]
    assert neural == linear


@pytest.mark.parametrize("name", sorted(paper_figures.FIGURES))
def test_pictures_against_a_number_fit_the_names_of_variants(name: str) -> None:
    pattern = paper_figures.FIGURES[name].pattern
    names = read_spec(name).names
    [paper] = [paper for paper in papers() if paper.key == name.partition("/")[0]]
    if paper.unlearn is not None and (rest := name.partition("/")[2]) in paper.unlearn.experiments:
        names = [row["variant"] for row in paper.unlearn.published[rest]]
    found = [fits.group("x") for variant in names if (fits := re.fullmatch(pattern, variant))]
    assert len(set(found)) >= 2


def test_names_stand_for_one_or_for_many() -> None:
    assert named(["thesis/table-6-2"]) == ["thesis/table-6-2"]
    assert sorted(named(["all", "thesis"])) == sorted(NAMES)
    assert set(named(["selgb"])) == {name for name in NAMES if name.startswith("selgb/")}
    with pytest.raises(
        ValueError, match=r"unknown table or figure 'thesis/table-6-3'; did you mean .?thesis/table-6-2"
    ):
        named(["thesis/table-6-3"])


def test_the_list_names_everything() -> None:
    out = io.StringIO()
    show(about_papers(), Console(file=out, width=250))
    text = out.getvalue()
    for paper, item in ITEMS:
        assert paper.title in text
        assert item.name in text
    assert "fedrank data check" in text
    assert "estimated" in text
    narrow = io.StringIO()
    show(about_papers(), Console(file=narrow, width=80))
    for name in NAMES:
        assert name in narrow.getvalue(), "a name that is cut cannot be typed"
    for _, item in ITEMS:
        assert f"{item.label}: " in text or item.grid.title.casefold() in item.label.casefold()
        assert item.grid.title.partition(f"{item.label.casefold()}: ")[2] in text
        assert item.grid.title.rpartition(": ")[2].casefold() in text.casefold()
    assert "Figure 1: how many negatives LambdaMART needs" in text, "what the label says is not said again"
    assert "Table 1: Who gains from documents of others?" in text


def test_other_data_get_a_folder_of_their_own(tmp_path: Path) -> None:
    name = "thesis/fig-4-8"
    assert ask(name, [], True, tmp_path)[1] == "thesis/fig-4-8-quick"
    asked, label = ask(name, ["data.name=mq2008"], True, tmp_path)
    assert label == "thesis/fig-4-8-quick-on-mq2008"
    assert data_of(asked) == "mq2008"
    assert ask(name, ["rounds=7"], False, tmp_path)[1] == name


def test_a_quick_form_takes_the_real_data_where_they_are_here_and_says_so(tmp_path: Path, monkeypatch) -> None:
    name = "thesis/mq2008-fpdgd"
    monkeypatch.delenv("FEDRANK_DATA", raising=False)
    asked, label = ask(name, [], True, tmp_path)
    made_up = data_of(asked)
    assert made_up.startswith("synthetic-")
    assert label == f"{name}-quick"
    assert asked.title.endswith(f"(quick form, on synthetic data, {made_up})")
    assert asked.title.count("quick form") == 1
    folder = tmp_path / "data" / "mq2008"
    folder.mkdir(parents=True)
    for part in range(1, 6):
        (folder / f"S{part}.txt").write_text("1 qid:1 1:0.5 46:1\n0 qid:1 1:0.1 46:2\n")
    monkeypatch.setenv("FEDRANK_DATA", str(tmp_path / "data"))
    asked, label = ask(name, [], True, tmp_path)
    assert (data_of(asked), label) == ("mq2008", f"{name}-quick-on-mq2008")
    assert asked.title.endswith("(quick form, on mq2008)")
    assert asked.base.rounds == read_spec(name, quick=True).base.rounds
    asked, label = ask(name, [f"data.name={made_up}"], True, tmp_path)  # who names data gets them
    assert (data_of(asked), label) == (made_up, f"{name}-quick")
    assert ask(name, ["title=mine"], True, tmp_path)[0].title == "mine"
    assert ask(name, [], False, tmp_path)[0].title == read_spec(name).title


@pytest.mark.long
def test_what_was_run_stands_first(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "papers.html"
    write_papers_report(runs, out)
    thesis = next(paper for paper in papers() if paper.key == "thesis")
    first = re.sub(r"<[^>]+>", " ", out.read_text())
    assert first.index(thesis.title) == min(first.index(paper.title) for paper in papers())
    assert first.index("thesis/fig-4-8") < first.index("thesis/fig-3-1")


@pytest.mark.long
def test_a_made_up_log_that_was_stopped_halfway_is_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bm25s")
    write = synthetic_log.synthetic_log
    monkeypatch.setattr(synthetic_log, "synthetic_log", lambda out, **_: write(out, users=6))
    asked, label = ask("aol4foltr/fig-5", [], True, tmp_path / "whole")
    assert label == "aol4foltr/fig-5-quick"
    whole = Path(asked.base.data.log)
    assert len(load_log(whole)) > 0

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for what in ("json.dumps", "fedrank.data.build_log.finish"):  # while documents, or the data set, are written
        with monkeypatch.context() as patch:
            patch.setattr(what, stopped)
            with pytest.raises(KeyboardInterrupt):
                made_up_log(tmp_path / "parts")
    parts = made_up_log(tmp_path / "parts")
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in parts.iterdir())
    assert all((whole / name).read_bytes() == (parts / name).read_bytes() for name in names)


def test_a_verdict_takes_what_is_compared_alone(tmp_path: Path) -> None:
    grid, _ = ask("thesis/fig-4-8", [], False, tmp_path)
    changed = replace(grid, about=replace(grid.about, claims=grid.about.claims[:1]))
    one = grid.about.claims[0]
    assert set(compared("thesis/fig-4-8", changed).names) == {one.higher, one.lower}
    assert compared("thesis/fig-4-8", changed).toml() == grid.toml()  # the question stays, so that the rest may follow
    nothing = replace(grid, about=replace(grid.about, claims=()))
    assert compared("thesis/fig-4-8", nothing) == nothing
    unlearned, _ = ask("thesis/table-6-2", [], False, tmp_path)
    assert compared("thesis/table-6-2", unlearned) == unlearned


def test_a_narrower_grid_leaves_out_claims_about_the_rest(tmp_path: Path) -> None:
    name = "thesis/fig-4-6"
    assert len(read_spec(name).about.claims) == 4
    narrow, _ = ask(name, ['vary.clients.click_model=["informational"]'], False, tmp_path)
    informational = {f"{rule},clients.click_model=informational" for rule in ("R2", "IID")}
    assert {claim.higher for claim in narrow.about.claims} == informational
    assert narrow.about.baseline is None
    with pytest.raises(ValueError, match=r"vary.clients.click_model: .*list the values"):
        ask(name, ["vary.clients.click_model=informational"], False, tmp_path)


SETS = ["table-6-2", "table-6-2-mslr-web10k", "table-6-2-yahoo", "table-6-2-istella-s"]


@pytest.mark.parametrize("experiment", SETS)
def test_the_plan_of_unlearning_names_variants_and_methods_that_exist(experiment: str) -> None:
    [paper] = [paper for paper in papers() if paper.key == "thesis"]
    plan = paper.unlearn
    assert plan is not None
    assert plan.experiments == list(plan.published) == SETS
    asked = read_spec(f"thesis/{experiment}")
    assert asked.base.data.name == experiment.removeprefix("table-6-2-").replace("table-6-2", "mq2007")
    made = set()
    for variant in asked.variants:
        for method in plan.methods.get(variant.given, []):
            settings = [f"{key}={value}" for key, value in method.items() if key != "name"]
            made.add(",".join([variant.name, method["name"], *settings]))
    assert set(plan.methods) <= set(asked.about.variants)
    told = {row[role] for row in plan.claims for role in ("higher", "lower")}
    assert told | {row["variant"] for row in plan.published[experiment]} <= made
    assert len(plan.published[experiment]) == 3 + 36 - 2 * (experiment == "table-6-2-istella-s")


@pytest.mark.long
def test_table_6_2_trains_unlearns_and_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "thesis/table-6-2"
    [thesis] = [paper for paper in papers() if paper.key == "thesis"]
    assert thesis.unlearn is not None
    few = {"9H-1M": [{"name": "retrain"}, {"name": "fed-eraser", "steps": 3}]}
    short = replace(thesis, unlearn=replace(thesis.unlearn, methods=few))
    monkeypatch.setattr("fedrank_papers.items.papers", lambda: (short,))
    small = ["rounds=5", "evaluate_every=5", 'vary.clients.click_model=["perfect"]', "data.folds=[1]", "seeds=[1]"]
    asked, label = ask(name, small, True, tmp_path)
    assert not run_experiment(asked, label, tmp_path).failed
    folder = unlearn_after(name, asked, label, tmp_path)
    assert folder == tmp_path / "thesis/table-6-2-quick-unlearned"
    told = tomllib.loads((folder / "experiment.toml").read_text())
    assert "published" not in told
    assert [row["says"].partition(" (")[0] for row in told["claims"]] == ["Unlearning returns to the retrained quality"]
    [found] = analyse(load_runs(folder))
    parent = "9H-1M,clients.click_model=perfect"
    assert {variant.name for variant in found.variants} == {f"{parent},retrain", f"{parent},fed-eraser,steps=3"}
    assert [claim.contrast.repeats for claim in found.claims] == [1]
    done = match((thesis,), analyse(load_runs(tmp_path)))["thesis"]
    shorter = "changed: rounds, evaluate_every"
    forms = [f"quick, {shorter}", f"quick, unlearned, {shorter}"]
    assert [(one.item.name, one.form) for one in done] == [(name, form) for form in forms]
    assert told["title"] == f"{thesis.unlearn.title} (quick form) ({shorter})"
    assert unlearn_after("thesis/fig-4-8", asked, label, tmp_path) is None


CLAIMED = """
[[claims]]
says = "Type 3 hardly matters: cascade users"
higher = "cascade-IID"
lower = "cascade-non-IID"
within = 0.05

[[claims]]
says = "Cascade users are better than position-based ones"
higher = "cascade-IID"
lower = "position-based-IID"

[[published]]
measure = "ndcg@10"
value = 0.45
source = "the figure, <read> off"
variant = "cascade-IID"
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for label in ("thesis/fig-4-8", "thesis/fig-4-8-quick-on-mq2008", "mine/other"):
        for variant, level in (("cascade-IID", 0.45), ("cascade-non-IID", 0.45), ("position-based-IID", 0.60)):
            for seed in (1, 2, 3, 4, 5):
                write_run(tmp_path, label, variant, 1, seed, level=level, settings={"variants": variant})
        write_asked(tmp_path, label)
    return tmp_path


def write_asked(folder: Path, label: str, *changes: str) -> None:
    """What was asked: figure 4.8, with the claims and the published value from above."""
    tables = read_spec("thesis/fig-4-8", changes, quick="-quick" in label).tables
    (folder / label / "experiment.toml").write_text(write_toml(tables | tomllib.loads(CLAIMED)))


def test_runs_find_their_item(runs: Path) -> None:
    done = match(papers(), analyse(load_runs(runs)))
    assert [(one.item.name, one.form, len(one.analysis.published)) for one in done["thesis"]] == [
        ("thesis/fig-4-8", "whole", 1),
        ("thesis/fig-4-8", "quick", 0),  # published values are of other data
    ]
    assert all(not some for key, some in done.items() if key != "thesis")
    assert [len(one.published) for one in done["thesis"]] == [1, 1]
    told = summary(done["thesis"])
    assert told.startswith("4 tests of claims in 2 experiments: 2 hold, 2 do not hold.")
    assert told.endswith("Of 1 published values 1 are within the 95% confidence interval of ours.")


def test_changed_settings_are_told_and_nothing_published_is_judged_by_them(runs: Path) -> None:
    write_asked(runs, "thesis/fig-4-8", "rounds=7", "learner.rate=0.5", "seeds=[8]", "data.folds=[2]")
    done = match(papers(), analyse(load_runs(runs)))["thesis"]
    assert [(one.form, len(one.analysis.published)) for one in done] == [
        ("whole, changed: rounds, learner.rate", 0),
        ("quick", 0),
    ]
    assert "published" not in summary(done)


@pytest.mark.parametrize(
    "change", ["clients.interactions=4000", "data.name=mslr-sample", "rounds=200", "data.folds=[1]", "learner.rate=1.0"]
)
def test_what_a_paper_fixed_is_not_compared_with_it_once_it_is_changed(change: str, tmp_path: Path) -> None:
    name = "thesis/mq2008-batch-pdgd"
    usual = read_spec(name)
    assert len(usual.about.published) == 2
    other = read_spec(name, [change])
    assert other.about.published == ()
    told = f" (changed: {change.replace('1.0', '1')})" if "folds" not in change else ""  # more may be added to a folder
    assert other.title == f"{usual.title}{told}"
    assert ask(name, [change], False, tmp_path)[0].about.published == ()
    assert (ask(name, [change], False, tmp_path)[0].title != usual.title) == bool(told)


def test_more_repeats_fewer_variants_and_the_same_value_change_nothing_that_a_paper_fixed() -> None:
    usual = read_spec("thesis/mq2008-batch-pdgd")
    for changes in (["seeds=[1, 2]"], ["rounds=10000"], ["data.name=mq2008", "learner.rate=0.1"]):
        same = read_spec("thesis/mq2008-batch-pdgd", changes)
        assert same.title == usual.title
        assert same.about.published == usual.about.published
    narrow = read_spec("thesis/table-3-1", ['vary.clients.click_model=["perfect"]'])
    assert narrow.title == read_spec("thesis/table-3-1").title


def test_an_experiment_of_nobodys_paper_keeps_its_title() -> None:
    assert read_spec("quickstart", ["rounds=5"]).title == read_spec("quickstart").title


def test_one_training_of_a_forest_is_not_tested_either(tmp_path: Path) -> None:
    for seed, verdict in ((1, "undecided"), (2, "holds")):
        for variant, level in (("selgb", 0.6), ("lambdamart", 0.4)):
            write_run(tmp_path, "selgb/synthetic", variant, 1, seed, level=level, settings={"variants": variant})
        grid = read_spec("selgb/synthetic")
        tables = {key: value for key, value in grid.tables.items() if key != "claims"}
        claimed = {"says": "SelGB is better", "higher": "selgb", "lower": "lambdamart"}
        text = write_toml(tables | {"claims": [claimed]})
        (tmp_path / "selgb" / "synthetic" / "experiment.toml").write_text(text)
        [analysis] = analyse(load_runs(tmp_path))
        assert analysis.kind == "trees"
        assert [claim.verdict for claim in analysis.claims] == [verdict]
        assert ("trained once" in analysis.claims[0].reason) == (seed == 1)


def test_in_general_is_judged_over_data_sets(tmp_path: Path) -> None:
    for data, gain in (("a", 0.15), ("b", 0.14), ("c", 0.17), ("d", 0.12)):
        label = f"thesis/fig-4-8-on-{data}"
        for variant, level in (("cascade-IID", 0.45 + gain), ("cascade-non-IID", 0.45), ("position-based-IID", 0.45)):
            for seed in (1, 2):
                settings = {"variants": variant}
                write_run(tmp_path, label, variant, 1, seed, level=level, settings=settings, data={"name": data})
        write_asked(tmp_path, label)
    done = match(papers(), analyse(load_runs(tmp_path)))["thesis"]
    found = in_general(done)
    assert [(claim.verdict, claim.contrast.counted, claim.contrast.unit) for claim in found.values()] == [
        ("does not hold", 4, "data sets"),
        ("holds", 4, "data sets"),
    ]
    assert all(claim.contrast.unit == "data sets" for claim in found.values())
    differences = [one.analysis.claims[1].contrast.difference for one in done]
    assert list(found.values())[1].contrast.difference == pytest.approx(np.mean(differences))


def test_the_page_of_claims_is_written_from_run_folders_alone(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "claims.md"
    for file in runs.glob("thesis/*/*/*/run.json"):
        facts = json.loads(file.read_text())
        file.write_text(json.dumps(facts | {"processor": "an abacus", "ended": "2026-01-02T03:04:05"}))
    done = CliRunner().invoke(app, ["papers", "report", "--runs", str(runs), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("4 tests of claims in 2 experiments")
    text = out.read_text()
    assert text.startswith("# Claims of the papers, and their verdicts\n")
    assert "45 runs of 3 experiments took " in text  # one of them belongs to no paper, and has claims all the same
    assert "on an abacus" in text
    rows = [line for line in text.splitlines() if "Type 3 hardly matters: cascade users" in line]
    assert len(rows) == 3
    names = ["thesis/fig-4-8", "thesis/fig-4-8-quick-on-mq2008", "mine/other"]
    for row, name in zip(rows, names, strict=True):
        assert row.startswith(f"| Type 3 hardly matters: cascade users | {name}, ndcg@10 | **holds** | ")
    thesis = next(paper for paper in papers() if paper.key == "thesis")
    headings = ["How to read and recompute a row", thesis.title, "Experiments without a paper"]
    assert re.findall("^## (.+)$", text, re.MULTILINE)[:3] == headings
    notes = (tmp_path / "claims-notebook.md").read_text()
    assert "\nfedrank papers run thesis/fig-4-8 --quick" in notes
    assert "\nfedrank run mine/other/experiment.toml\n" in notes
    assert "## Published and measured" in text
    assert (tmp_path / "claims-notebook.md").read_text().count("the last on 2026-01-02") == 2
    assert str(tmp_path) not in text


def test_verdicts_are_counted_paper_by_paper_and_reasons_stand_below(runs: Path, tmp_path: Path) -> None:
    write_claims(runs, tmp_path / "claims.md", tmp_path / "notebook.md")
    text = (tmp_path / "claims.md").read_text()
    thesis = next(paper for paper in papers() if paper.key == "thesis")
    counted = [line.split(" | ") for line in text.splitlines() if line.startswith(f"| {thesis.title} |")]
    assert [cells[1:5] for cells in counted] == [["2", "2", "0", "0"]]
    for file in runs.glob("thesis/fig-4-8/*/fold-1-seed-[2345]"):
        shutil.rmtree(file)  # with one training of each nothing can be told
    write_claims(runs, tmp_path / "claims.md", tmp_path / "notebook.md")
    section = (tmp_path / "claims.md").read_text().split(f"## {thesis.title}\n")[1].partition("\n## ")[0]
    assert section.count("| this design cannot decide (1) |") == 2
    assert (
        section.count("\n(1) Each variant was trained once, so the method cannot be separated from random variation")
        == 1
    )


def recomputed(difference: float, numbers: str) -> tuple[float, float]:
    """The interval, as a reader gets it from the printed numbers with nothing but Student's distribution."""
    over, _, named = numbers.partition(": ")
    found = {name: float(value) for name, value in (part.split(" ") for part in named.split(", ")[:-1])}
    n = int(over.split(" ")[0].replace(",", ""))
    if "queries" not in over:
        assert found["SE"] ** 2 == pytest.approx(found["s"] ** 2 / n + found["c"] ** 2, abs=3e-7, rel=0.02)
    t = float(stats.t.isf(0.05 / found["k"] / 2, found["df"]))
    assert found["t"] == pytest.approx(t, abs=0.006, rel=0.01)
    return difference - t * found["SE"], difference + t * found["SE"]


def printed_claims(page: str) -> list[tuple[float, tuple[float, float], str]]:
    """Difference, interval and numbers of every tested row of the page of claims."""
    rows = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and ": s " in line and len(cells) == 8:
            low, high = (float(value.replace(",", "")) for value in cells[4].split(" to "))
            rows.append((float(cells[3].replace(",", "")), (low, high), cells[7]))
    return rows


def test_every_printed_interval_follows_from_the_printed_numbers(runs: Path, tmp_path: Path) -> None:
    for page in (ROOT / "reproduction" / "claims.md", tmp_path / "claims.md"):
        if not page.exists():
            write_claims(runs, page, tmp_path / "notebook.md")
        rows = printed_claims(page.read_text())
        assert len(rows) >= 6
        for difference, (low, high), numbers in rows:
            # Four printed digits of a difference, and five of a standard error times up to a few dozen.
            slack = 1e-4 + 5e-6 * float(numbers.partition(" t ")[2].partition(",")[0])
            scale = 1 if max(abs(low), abs(high)) < 3 else 100
            assert recomputed(difference, numbers) == pytest.approx((low, high), abs=slack * scale, rel=0.01)


def test_one_experiment_run_again_replaces_only_itself(runs: Path, tmp_path: Path) -> None:
    out, notes = tmp_path / "claims.md", tmp_path / "notebook.md"
    write_claims(runs, out, notes)
    page, details = out.read_text(), notes.read_text()
    (tmp_path / "nothing").mkdir()
    write_claims(tmp_path / "nothing", out, notes)  # the page is a function of claims.json
    assert (out.read_text(), notes.read_text()) == (page, details)
    label = "thesis/fig-4-8"
    shutil.copytree(runs / label, tmp_path / "again" / label)
    for folder in (tmp_path / "again" / label).glob("*/fold-1-seed-[2345]"):
        shutil.rmtree(folder)
    write_claims(tmp_path / "again", out, notes)
    rows = [line for line in out.read_text().splitlines() if line.startswith("| Type 3 hardly matters: cascade users")]
    assert ["**holds**" in row for row in rows] == [False, True, True]
    assert [row in page for row in rows] == [False, True, True]
    assert notes.read_text().count("\n### ") == details.count("\n### ") == 3
    assert "- repeats: 1 fold x 1 seed" in notes.read_text()
    (tmp_path / "claims.json").write_text('{"version": 0}')
    with pytest.raises(ValueError, match=r"claims.json: version must be 1 \(got 0\); write it again from runs"):
        write_claims(runs, out, notes)


@pytest.mark.long
def test_the_notebook_has_the_values_and_both_pages_lead_to_each_other(runs: Path, tmp_path: Path) -> None:
    out, details = tmp_path / "claims.md", tmp_path / "more" / "notebook.md"
    done = CliRunner().invoke(
        app, ["papers", "report", "--runs", str(runs), "--out", str(out), "--details", str(details)]
    )
    assert done.exit_code == 0, done.output
    claims, notes = out.read_text(), details.read_text()
    thesis = next(paper for paper in papers() if paper.key == "thesis")
    ours = [analyse(load_runs(runs / label))[0] for label in ("thesis/fig-4-8", "mine/other")]
    for label, findings in zip(("thesis/fig-4-8", "mine/other"), ours, strict=True):
        section = notes.split(f"### {label}\n")[1].partition("\n### ")[0]
        for variant in findings.variants:
            values = [reading.values["ndcg@10"] for reading in variant.repeats.values()]
            assert f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" in section
        assert "▲" in section
        assert "| mrr@10" not in section  # no claim is about it
        assert f"runs: 15, {15 * 40 / 25:.0f} s of processor time" in section
        assert f"| {label}, ndcg@10 |" in claims
        title = thesis.title if label.startswith("thesis") else "Experiments without a paper"
        assert f"(../claims.md#{anchor(title)})" in section
    assert str(tmp_path) not in notes
    assert not any(remark.says in notes for paper in papers() for remark in paper.remarks if remark.experiments)
    beside = CliRunner().invoke(app, ["papers", "report", "--runs", str(runs), "--out", str(tmp_path / "c.md")])
    assert beside.exit_code == 0
    assert (tmp_path / "c-notebook.md").exists()


def test_remarks_stand_next_to_runs_that_show_them_once(runs: Path, tmp_path: Path) -> None:
    for label in ("thesis/mq2008-foltr-es", "thesis/mq2008-foltr-es-quick"):
        write_run(runs, label, "only")
    write_claims(runs, tmp_path / "claims.md", tmp_path / "notebook.md")
    sections = re.split("^### ", (tmp_path / "notebook.md").read_text(), flags=re.MULTILINE)
    thesis = next(paper for paper in papers() if paper.key == "thesis")
    [seen] = [row.says for row in thesis.remarks if row.experiments == ["thesis/mq2008-foltr-es"]]
    assert [section.partition("\n")[0] for section in sections if seen in section] == ["thesis/mq2008-foltr-es"]
    assert [("mrr@10" in section) for section in sections if section.startswith("thesis/mq2008")] == [True, True]


def test_details_go_with_claims_only(tmp_path: Path) -> None:
    words = ["papers", "report", "--out", str(tmp_path / "papers.html"), "--details", "notebook.md"]
    with pytest.raises(ValueError, match=r"--details notebook.md needs a .md file as --out"):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize(
    "changes",
    [
        ["rounds=7"],
        ["seeds=[1, 2]", 'vary.clients.click_model=["perfect"]'],
        ["data.name=mslr-sample", "learner.rate=0.5"],
        [],
    ],
)
def test_a_command_asks_for_the_same_runs(changes: list[str]) -> None:
    grid = read_spec("thesis/mq2008-fpdgd", changes)
    words = shlex.split(command("thesis/mq2008-fpdgd", grid, False))
    assert words[:4] == ["fedrank", "papers", "run", "thesis/mq2008-fpdgd"]
    again = read_spec("thesis/mq2008-fpdgd", [words[i + 1] for i, word in enumerate(words) if word == "--set"])
    assert [each.experiment for each in again.variants] == [each.experiment for each in grid.variants]


def test_what_failed_is_told_from_what_was_not_run(tmp_path: Path) -> None:
    asked = tmp_path / "runs"
    broke = {"message": "the disk <was> full", "round": 3, "client": None}
    for seed in (1, 2):
        write_run(asked / "thesis", "fig-4-3-quick", "only", seed=seed, status="failed", error=broke)
    write_run(asked / "thesis", "fig-4-4", "only", status="interrupted")
    out = tmp_path / "papers.html"
    assert write_papers_report(asked, out).startswith("No claim has been tested yet")
    for page in (out, tmp_path / "papers-thesis.html"):
        text = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page.read_text())))
        assert text.count("failed: 2 runs, the disk <was> full (round 3)") == 1
        assert text.count("interrupted: 1 run") == 1
        assert "not run" in text


@pytest.mark.long
def test_the_report_says_what_came_out(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "papers.html"
    told = write_papers_report(runs, out)
    overview = unescape(re.sub(r"<[^>]+>", " ", out.read_text()))
    assert told in overview
    assert "2 do not hold" in told
    page = (tmp_path / "papers-thesis.html").read_text()
    text = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))
    assert "Type 3 hardly matters: cascade users" in text
    assert "the figure, <read> off" in text
    assert "<read>" not in page
    assert "gain 2^grade - 1" in text
    assert "Findings over several data sets" in text
    assert "tested on one data set; for other data sets, this design cannot decide." in text
    [thesis] = [paper for paper in papers() if paper.key == "thesis"]
    assert f"{len(thesis.remarks)} more remarks rest on experiments that were not run here." in text
    assert "other data or settings: only the order is comparable" in text
    assert "not run: its data are missing; not tested here" in text or "not run; not tested here" in text
    assert page.count("<svg") >= 2
    for paper in papers():
        other = (tmp_path / f"papers-{paper.key}.html").read_text()
        assert not any(remark.says in unescape(other) for remark in paper.remarks)
        assert f'href="papers-{paper.key}.html"' in out.read_text()


def test_without_runs_the_report_says_so(tmp_path: Path) -> None:
    assert "No claim has been tested yet" in write_papers_report(tmp_path / "nowhere", tmp_path / "papers.html")
    assert summary([]).startswith("No claim")


def test_final_quality_is_drawn_against_the_share_of_attackers(tmp_path: Path) -> None:
    for rule in ("mean", "krum"):
        for malicious in (0, 1, 3):
            for seed in (1, 2, 3):
                variant = f"{rule}-{malicious},clients.click_model=navigational"
                settings = {"variants": f"{rule}-{malicious}", "clients.click_model": "navigational"}
                write_run(tmp_path, "thesis/fig-5-2", variant, 1, seed, level=0.5 - malicious / 20, settings=settings)
    write_experiment(tmp_path, "", "thesis/fig-5-2")
    [found] = analyse(load_runs(tmp_path))
    pictures = list(paper_figures.drawings("thesis/fig-5-2", found))
    assert len(pictures) == 2
    svg = pictures[0].draw()
    assert "malicious clients (of ten)" in svg
    assert all(f">{text}<" in svg for text in ("krum", "mean", "navigational"))
    assert pictures[0].caption.startswith("Final ndcg@10 against malicious clients (of ten)")
    assert ">mean-3<" in pictures[1].draw()
    assert paper_figures.draw_against(found, paper_figures.Against(r"nothing-(?P<x>\d)", "x"), "ndcg@10") == ""


def test_gain_is_told_by_length_of_the_list() -> None:
    mean, count = by_step(np.array([99, 100, 199, 350]), np.array([0.1, 0.2, 0.4, -0.3]))
    assert mean == pytest.approx([0.1, (0.2 + 0.4) / 2, 0.0, -0.3])
    assert count.tolist() == [1, 2, 0, 1]


@pytest.mark.long
def test_which_negatives_are_chosen_is_drawn_from_the_run_and_its_data(tmp_path: Path) -> None:
    changes = ["booster.trees=3", "data.name=synthetic-categories", "booster.leaves=4", "data.folds=[1]"]
    asked = read_spec("selgb/fig-7", changes, quick=True)
    assert not run_experiment(asked, "selgb/fig-7", tmp_path).failed
    [found] = analyse(load_runs(tmp_path))
    pictures = {drawing.caption: drawing.draw() for drawing in paper_figures.drawings("selgb/fig-7", found)}
    assert [caption.split(" by ")[0].split(",")[0] for caption in pictures] == [
        "How often each document was chosen",
        "Fraction of all choices among the first documents of a query.",
        "ndcg@10",
    ]
    assert all(svg.startswith("<svg") for svg in pictures.values())
    assert any(caption.startswith("ndcg@10 by number of trees") for caption in pictures)
    for file in tmp_path.glob("**/spec.toml"):
        file.write_text(file.read_text().replace("synthetic-categories", "mslr-web30k"))
    assert len(list(paper_figures.drawings("selgb/fig-7", found))) >= 1


def test_paper_toml_files_have_nothing_that_is_not_read() -> None:
    for paper in papers():
        file = resources.files("fedrank_papers.specs").joinpath(paper.key, "paper.toml")
        known = {"title", "authors", "year", "other_data", "remarks", "other", "unlearn"}
        assert set(tomllib.loads(file.read_text(encoding="utf-8"))) <= known
        for other in paper.other:
            words = shlex.split(other.command)
            if words[:2] == ["fedrank", "run"]:
                assert read_spec(words[2], [words[i + 1] for i, word in enumerate(words) if word == "--set"])
            else:
                script = f"{words[2].replace('.', '/')}.py"  # python -m benchmarks.NAME
                assert words[:3] == ["fedrank", "data", "check"] or (ROOT / script).is_file()


def test_a_folder_of_runs_that_is_not_there_writes_over_no_page(tmp_path: Path) -> None:
    out = tmp_path / "claims.md"
    out.write_text("what was told before")
    with pytest.raises(FileNotFoundError, match=r"folder .*rnus does not exist.* with --runs"):
        write_claims(tmp_path / "rnus", out, tmp_path / "notebook.md")
    assert out.read_text() == "what was told before"
    assert not (tmp_path / "notebook.md").exists()
