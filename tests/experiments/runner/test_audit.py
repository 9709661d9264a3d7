"""What `fedrank privacy audit` does: which attacks it makes, what it says, and what it leaves."""

from __future__ import annotations

import json

import pytest

from fedrank.attacks.audits import Audit, Finding, PlannedAttack
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.privacy_output import about_audit
from fedrank.experiments.report.write import answer_files, write_answer
from fedrank.experiments.runner import audit
from fedrank.experiments.runner.audit import as_facts, audit_experiment
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.source import read_spec
from fedrank.privacy.noise import SecureSource

FEW = {"messages": 12, "repeats": 20_000, "runs": 400}


def spec(**changes):
    return read_tables(
        {
            "rounds": 10,
            "data": {"name": "synthetic-mq2007"},
            "clients": {"count": 20, "interactions": 2, "click_model": "informational"},
            "learner": {"name": "pdgd"},
        }
        | changes
    )


def attacked(grid, **few):
    return audit_experiment(grid, source=SecureSource(bytes(32)), **(FEW | few))


def written(found, grid, out):
    files = answer_files(out, "audit")
    write_answer(files, about_audit(found, grid), lambda: as_facts(found, grid))
    return files


def verdicts(found):
    return {each.attacked: each.verdict for each in found}


@pytest.mark.long
def test_without_a_mechanism_clicks_are_read_and_nothing_is_promised(tmp_path):
    grid = spec()
    found = attacked(grid, messages=25)
    assert verdicts(found) == {
        "clicks, from one message": "READ",
        "clicks, one of two patterns": "READ",
        "membership": "SKIPPED",
    }
    assert "no guarantee" in found[-1].sentence.lower()
    path, words = written(found, grid, tmp_path)
    assert (path, words) == (tmp_path / "audit.json", tmp_path / "audit.md")
    assert "| attacked | promised | shown | by guessing | verdict |" in words.read_text(encoding="utf-8")
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["level"] == 1e-4
    [clicks, patterns, membership] = kept["findings"]
    assert clicks["counts"]["messages"] == 25
    assert patterns["counts"]["right"] == patterns["counts"]["messages"] > 15
    assert clicks["counts"]["matched"]["of"] <= 25
    assert membership["verdict"] == "SKIPPED"


@pytest.mark.long
def test_a_correct_mechanism_is_not_shown_broken_where_the_control_is_caught(tmp_path):
    mechanism = {"name": "laplace", "clip": 0.1, "noise": 0.5, "placement": {"name": "server"}}
    grid = spec(mechanism=mechanism)
    found = attacked(grid, runs=3000)
    assert verdicts(found) == {
        "clicks, from one message": "SKIPPED",
        "membership, mechanism alone": "NOT SHOWN",
        "membership, whole rounds": "NOT SHOWN",
    }
    assert "trusted" in found[0].sentence
    assert found[1].promised == "ε = 2.00"  # 1 / noise
    [path] = written(found, grid, tmp_path / "mine.json")
    counts = json.loads(path.read_text(encoding="utf-8"))["findings"][1]["counts"]
    assert counts["control"]["violated"]
    assert not counts["trial"]["violated"]
    assert counts["epsilon_shown"] <= counts["epsilon_claimed"] < counts["epsilon_largest"]
    assert counts["trial"]["outside"] == FEW["repeats"]
    assert counts["trial"]["level"] == pytest.approx(1e-4 / 7)
    assert "largest ε that this audit could have shown" in found[1].sentence


@pytest.mark.long
def test_the_published_mechanism_is_violated():
    mechanism = {"name": "fpdgd-paper", "epsilon": 1.2, "sensitivity": 3.0}
    found = attacked(spec(mechanism=mechanism, learner={"name": "pdgd", "clip_weights": 1.5}))
    verdict = verdicts(found)
    assert verdict["membership, mechanism alone"] == "VIOLATED"
    assert found[-2].promised == "ε = 1.20"  # what the paper states, not what holds


@pytest.mark.long
def test_where_there_is_no_power_nothing_is_shown():
    mechanism = {"name": "gaussian", "clip": 0.1, "noise": 1000.0}
    found = attacked(spec(mechanism=mechanism), repeats=2000, runs=40)
    one = next(each for each in found if each.attacked == "membership, mechanism alone")
    assert one.verdict == "NO POWER"
    assert one.shown == ""
    assert "inconclusive" in one.sentence


def test_nothing_leaves_clients_who_learn_alone():
    [only] = attacked(spec(aggregator="none"))
    assert only.verdict == "SKIPPED"
    assert "nothing leaves" in only.sentence.lower()


def test_randomised_rewards_are_attacked_through_the_learner():
    experiment = spec(
        learner={"name": "evolution", "truth": 0.6},
        server={"name": "adam"},
        mechanism="es-randomised-response",
    )
    found = attacked(experiment)
    assert verdicts(found) == {
        "clicks, from one message": "SKIPPED",
        "membership, mechanism alone": "NOT SHOWN",
        "membership, whole rounds": "SKIPPED",
    }


def test_every_variant_is_attacked_at_its_share_of_the_level(monkeypatch):
    levels = []
    monkeypatch.setattr(
        Audit, "plan", lambda self: levels.append(self.level) or [PlannedAttack("x", lambda tell: tell(0.5) or [])]
    )
    told = []
    grid = spec(vary={"mechanism.noise": [1.0, 2.0]}, mechanism={"name": "gaussian", "clip": 0.1, "noise": 1.0})
    attacked(grid, progress=lambda what, done, of, detail="": told.append((what, done, of, detail)))
    assert levels == [1e-4 / 14] * 2
    first, second = "attack 1 of 2, mechanism.noise=1.0: x", "attack 2 of 2, mechanism.noise=2.0: x"
    shares = [(0, first), (0.25, first), (0.5, second), (0.75, second)]
    assert told == [*(("audit", done, 1, f"{done:.0%}, {what}") for done, what in shares), ("audit", 1, 1, "")]


def finding(verdict, variant="only"):
    return Finding("membership, whole rounds", "ε = 1", "ε ≥ 2", verdict, "Nothing.", variant=variant)


def test_the_line_of_progress_counts_expected_time_and_an_audit_ends_in_time(monkeypatch):
    now = [0.0]

    def attack(takes):
        def make(tell):
            for share in (0.25, 0.5, 0.75, 1.0):
                now[0] += takes / 4
                tell(share)
            return [finding("NOT SHOWN")]

        return make

    steps = [
        PlannedAttack("quick", attack(10.0), 10.0),
        PlannedAttack("too long", attack(500.0), 500.0),  # known before: it is not begun
        PlannedAttack("slow", attack(300.0), 60.0),  # slower than expected: it is stopped
        PlannedAttack("late", attack(10.0), 10.0),
    ]
    monkeypatch.setattr(Audit, "plan", lambda self: steps)
    grid = spec(mechanism={"name": "gaussian", "clip": 0.1, "noise": 1.0})
    found = audit_experiment(grid, clock=lambda: now[0])
    assert [each.verdict for each in found] == ["NOT SHOWN", "SKIPPED", "SKIPPED", "SKIPPED"]
    assert "does not finish within two minutes; run it without a limit by giving --messages" in found[1].sentence
    assert 110 < now[0] < 200  # an attack ends at its next report of progress
    now[0] = 0.0
    assert [each.verdict for each in audit_experiment(grid, messages=1, clock=lambda: now[0])] == ["NOT SHOWN"] * 4


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["NOT SHOWN", "VIOLATED"], "Verdict: the guarantee does not hold (membership, whole rounds: ε ≥ 2, where"),
        (["READ", "NOT SHOWN"], "Verdict: not protected: messages were read"),
        (["NOT SHOWN", "NO POWER"], "This does not prove the guarantee. 1 of 2 attacks gave no answer."),
        (["NOT READ"], "Verdict: these attacks read nothing"),
        (["NO POWER"], "Verdict: the result is inconclusive"),
        (["SKIPPED"], "Verdict: no attack was made"),
    ],
)
def test_an_audit_ends_with_a_verdict(verdicts, expected):
    grid = spec(mechanism={"name": "gaussian", "clip": 0.1, "noise": 1.0})
    variant = grid.variants[0].name
    [section] = about_audit([finding(verdict, variant) for verdict in verdicts], grid)
    assert expected in markdown([section]).replace("**", "")


SILOS = {"kind": "silo", "rounds": 1, "data": {"name": "synthetic-silos"}, "method": {"name": "cross-silo"}}
FOREST = {
    "kind": "trees",
    "data": {"name": "synthetic-categories"},
    "booster": {"name": "lambdamart", "trees": 8, "leaves": 8},
}
SPLIT = {"name": "categories", "by": "feature:29", "rest": "all", "merge": "validation"}


@pytest.mark.long
def test_noise_hides_words_of_documents_and_not_words_of_questions():
    found = audit_experiment(read_tables(SILOS), source=SecureSource(bytes(32)))
    held, swapped, asked, weights = found
    assert [each.verdict for each in found] == ["READ", "NOT SHOWN", "READ", "SKIPPED"]
    assert held.counts["without noise"]["right"] > 0.95 * held.counts["without noise"]["of"]
    assert 0.5 < held.counts["as it is"]["right"] / held.counts["as it is"]["of"] < 0.7
    assert held.guessed == "half"
    assert swapped.promised == "ε = 4.38"  # σ1 = 1: the sketch of a document alone
    assert 0.5 < swapped.counts["found"]["right"] / swapped.counts["found"]["of"] < swapped.counts["bound"]
    assert asked.shown == "300 of 300"
    assert asked.counts["guess"]["right"] < 30
    assert "no guarantee" in weights.sentence.lower()


@pytest.mark.long
@pytest.mark.parametrize("method", [{"noise": 0.0}, {"counts": "exact"}])
def test_without_noise_words_of_documents_are_read(method):
    grid = read_tables(SILOS | {"method": {"name": "local-plus", **method}})
    held, swapped, _ = audit_experiment(grid)
    assert held.verdict == "READ"
    assert held.counts["as it is"]["right"] > 0.95 * held.counts["as it is"]["of"]
    assert swapped.verdict == "SKIPPED"


def test_silos_that_tell_nothing_cannot_be_attacked():
    [only] = audit_experiment(read_tables(SILOS | {"method": {"name": "local"}}))
    assert (only.verdict, only.sentence) == ("SKIPPED", "Silos send each other nothing.")


def test_a_forest_tells_training_values_and_who_was_trained_on():
    pytest.importorskip("lightgbm")
    told = []
    grid = read_tables(FOREST | {"split": SPLIT, "merge": "linear"})
    found = audit_experiment(grid, progress=lambda what, done, of, detail="": told.append(done))
    thresholds, ranges, members = found
    assert (thresholds.verdict, ranges.verdict) == ("READ", "READ")
    assert thresholds.counts["found"]["right"] == thresholds.counts["found"]["of"] > 50
    assert thresholds.counts["guess"]["right"] < 0.2 * thresholds.counts["guess"]["of"]
    assert ranges.counts["found"]["right"] == ranges.counts["found"]["of"]
    assert members.guessed == "half"
    assert "are significantly better than guessing" in members.sentence
    assert told == sorted(told)
    assert len(told) > 16, "every tree is told"


@pytest.mark.parametrize("merge", ["bagged", "cyclic", {"name": "histograms", "edges": "pooled"}, "pooled"])
def test_a_forest_of_all_tells_values_of_each(merge):
    pytest.importorskip("lightgbm")
    thresholds, *_ = audit_experiment(read_tables(FOREST | {"split": SPLIT, "merge": merge}))
    assert thresholds.counts["found"]["right"] == thresholds.counts["found"]["of"] > 20


def test_a_server_sees_histograms_of_elected_features_alone():
    merge = {"name": "histograms", "vote": 2}
    roots = audit._roots(read_tables(FOREST | {"split": SPLIT, "merge": merge}).base, 1, 1)
    assert len(roots.features) == 4
    every = audit._roots(read_tables(FOREST | {"split": SPLIT, "merge": "histograms"}).base, 1, 1)
    assert len(every.features) == every.edges.features > 4
    drawn = {"name": "grower", "trees": 4, "feature_share": 0.5}
    half = audit._roots(read_tables(FOREST | {"split": SPLIT, "merge": merge, "booster": drawn}).base, 1, 1)
    assert len(half.features) == 4


def test_a_forest_that_nobody_gets_is_not_attacked_and_a_large_one_in_part():
    [only] = audit_experiment(read_tables(FOREST | {"split": SPLIT, "merge": "alone"}))
    assert only.verdict == "SKIPPED"
    large = read_tables(FOREST | {"booster": {"name": "lambdamart", "trees": 500}, "tune": 5}).base
    assert audit._smaller(large) == (
        "attacked forests have at most 100 trees, forests of a run at most 500; settings were not tuned"
    )


def test_an_audit_of_quickstart_is_planned_to_end_within_two_minutes():
    """By the cost of a message that was measured on a busy machine."""
    grid, seconds = read_spec("quickstart"), 0.0
    for variant in grid.variants:
        for step in audit._plan(variant, grid, {"messages": None, "repeats": 10, "runs": 10, "source": None}):
            seconds += step.seconds if isinstance(step, PlannedAttack) else 0.0
    assert 0 < seconds < audit.SECONDS
