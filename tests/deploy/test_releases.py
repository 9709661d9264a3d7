"""Noised sums over people that sites release once, and a coordinator without data."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pytest

from fedrank import wire
from fedrank.data.held_out import purpose_of
from fedrank.data.logs import load_log
from fedrank.deploy import consent, coordinate, protocol
from fedrank.deploy.charging import Charging
from fedrank.deploy.data_sources import load_share, open_data_source
from fedrank.deploy.make_plans import gate_of
from fedrank.deploy.objections import objections
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.pooled_sums import NEVER_PASSES, PooledSums
from fedrank.deploy.releases import QUALITY, release_charges, release_of, releases_of
from fedrank.deploy.run_card import against_colluders
from fedrank.deploy.settings import plan_prices, read_site
from fedrank.deploy.show import about_plan, drafts, look_at
from fedrank.deploy.site import Site
from fedrank.deploy.site_releases import FORGED, MODEL_FILES, NO_BIASES, NO_SWAPS, USED, gate_values, gates_in_a_year
from fedrank.deploy.unlearning import named
from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.report.by_query import queries_section
from fedrank.experiments.report.impact import impact, read_assessed
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.privacy_output import about_ledgers
from fedrank.experiments.report.tables import clients_table
from fedrank.experiments.runner.folder import Card
from fedrank.experiments.runner.forget_person import LEARNED, TESTED, combined_at_the_site, forget_person
from fedrank.experiments.runner.not_covered import not_covered_between_sites
from fedrank.experiments.runner.privacy import noise_needed, planned
from fedrank.experiments.runner.releases import BOUND, PersonRelease, PersonReleases, person_quality, quality_of
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.source import read_spec
from fedrank.privacy.guarantees import cost_together
from fedrank.privacy.population import RELEASES, Account, Charge
from fedrank.ranking.gate import CLAIM, PersonSums, decide
from fedrank.ranking.model import load_weights
from fedrank.ranking.model_remarks import remarks_on
from fedrank.ranking.propensity import NotIdentifiable, correct
from fedrank.unlearning.methods import UNLEARNERS
from tests.deploy.log_trial import EXAMINED, PERSON, SUM, LogTrial, spec_text, write_log

QUIET = "[privacy]\nrelease_noise = 0.05\n"  # so little noise that the sums can be compared with the data


def model_parts(value: float = 1.0) -> dict[str, object]:
    return {"weights": np.full(12, value, np.float32), "model": b"0" * 64}


def card_of(trial):
    return json.loads((trial.task.folder / "privacy.json").read_text())


def charges(trial, name: str) -> dict[str, int]:
    folder = trial.folders[name] / "people" / trial.plan.digest[:32] / RELEASES
    return {one.key: one.times for one in Charge.read_all(folder)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    trial = LogTrial(tmp_path_factory.mktemp("finished"), spec_text(more=QUIET + "[gate]\n"))
    assert trial.run() == "finished", (trial.task.folder / "run.json").read_text()
    return trial


# The coordinator has no data


def test_a_spec_without_data_is_not_simulated(tmp_path):
    (tmp_path / "spec.toml").write_text(spec_text())
    grid = read_spec(tmp_path / "spec.toml")
    with pytest.raises(ValueError, match=r"only sites have data.*fedrank deploy run.*--local 3 --log A"):
        run_experiment(grid, "trial", tmp_path / "runs")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            'propensities = "shared"',
            "data.propensities: 'shared' needs the clicks of all sites in one place; use \"swaps\"",
        ),
        ('propensities = "own"\ntest_share = 0.2', "data.test_share: applies only to data of the coordinator"),
        ('propensities = "swaps"\nbias = "trust"', "data.bias: counts of swaps determine position bias alone"),
    ],
)
def test_settings_that_need_data_are_refused(tmp_path, change, message):
    (tmp_path / "spec.toml").write_text(spec_text().replace('propensities = "swaps"', change))
    with pytest.raises(SpecError) as problem:
        read_spec(tmp_path / "spec.toml")
    assert message in str(problem.value)


def test_a_partition_names_the_deployable_form(tmp_path):
    with pytest.raises(SpecError, match=r"clients.partition: .*clients.people is the number of its users.*remove it"):
        LogTrial(tmp_path, spec_text(clients='partition = { name = "users" }\n'))


def test_swaps_need_people_as_the_unit(tmp_path):
    (tmp_path / "spec.toml").write_text(spec_text(mechanism='name = "gaussian"\nclip = 1.0\nnoise = 2.0\n'))
    with pytest.raises(SpecError, match='"swaps" are sums over people with noise'):
        read_spec(tmp_path / "spec.toml")


def test_the_spec_of_the_coordinator_is_what_sites_accept(finished):
    settings = read_site(finished.folders["north"])
    share = None
    share = load_share(settings.data)
    [draft] = drafts((finished.folder / "spec.toml").read_text(), settings, share.train)
    assert draft.spec == finished.plan.spec
    assert "engine-1" not in finished.plan.spec  # a plan says only how many features there are, and a digest


def test_results_come_from_sites(finished):
    [run] = load_runs(finished.task.folder)
    assert run.checked().status == "finished"
    assert list(run.queries[0]) == ["north", "east", "south"]
    assert run.final_values["ndcg@10"] == pytest.approx(run.queries[1]["ndcg@10"].mean())
    assert "noised sums over people" in run.conventions["do nothing"]
    assert run.data["features"] == 12
    assert "the coordinator has no data" in card_of(finished)["data"]


def test_a_report_calls_sites_sites_and_not_queries(finished):
    [analysis] = analyse(load_runs(finished.task.folder))
    [found] = analysis.nothing[0].comparisons["ndcg@10"].values()
    assert (found.contrast.counted, found.contrast.unit) == (3, "sites")
    [section] = queries_section(analysis)
    text = markdown([section])
    assert section.heading == "Site by site"
    assert all(name in text for name in finished.folders)
    assert "quer" not in text
    assert clients_table(analysis).notes[-1].startswith("The final model on the held-out lists of each site")


# Quality


def test_quality_of_a_person_is_a_bounded_mean():
    model, given = np.array([[1.0, 0.0, 0.5, np.nan]]), np.array([[0.5, 0.5, 1.0, 0.0]])
    found = person_quality(model, given, np.array([0, 0, 1, 2]))
    assert found.tolist() == [[0.0, 0.0, BOUND], [-0.5, 0.5, BOUND], [0.0, 0.0, 0.0]]
    [one] = quality_of(found.sum(axis=0).tolist(), 0.0)
    assert (one.model, one.given, one.people) == (0.5, 0.75, 2.0)
    assert np.isnan(quality_of([0.1, 0.1, 0.5], 10.0)[0].model)


def test_the_released_quality_is_that_of_the_lists(finished):
    from fedrank.ranking.measures import Evaluator
    from fedrank.ranking.model import load_weights

    with Site.open(finished.folders["north"]) as site:
        site.answer(finished.hello())
        run = site._runs[finished.plan.run]
        _, test, who = run.held_out
        evaluator = Evaluator(test, ["ndcg@10"])
        values = evaluator.per_query(load_weights(finished.task.folder).weights, run.task.learner.ranker)[0]
        people = [np.nanmean(values[who == person]) for person in np.unique(who)]
    released = float(load_runs(finished.task.folder)[0].queries[1]["ndcg@10"][0])
    assert released == pytest.approx(np.mean(people), abs=0.02)


def test_sums_are_clipped_per_person():
    release = PersonRelease(QUALITY, 2, 1.0, 0.001, 10)
    found = release.sums(np.array([[30.0, 40.0], [0.3, 0.0]]))
    assert found == pytest.approx([0.6 + 0.3, 0.8], abs=0.02)
    assert release.is_plausible(found)
    assert not release.is_plausible([1e6, 0.0])
    assert not release.is_plausible([float("nan"), 0.0])
    assert release.sums(np.empty((0, 2))) != [0.0, 0.0]  # a site without people adds noise, too


def test_plain_sums_need_the_policy_and_are_called_uncovered(tmp_path):
    trial = LogTrial(tmp_path, spec_text(propensities=""), policy={"plain_measures": "true"})
    assert trial.run() == "finished"
    assert "quality" not in charges(trial, "north")
    assert any("leave without noise (policy.plain_measures" in line for line in card_of(trial)["not_covered"])
    with Site.open(trial.folders["north"]) as site:
        site.answer(trial.hello())
        request = wire.pack(wire.Label("quality", trial.plan.run, 2), model_parts(0.0))
        assert wire.read_label(site.answer(request)).kind == "refused"


def test_a_site_that_lists_no_measures_reports_none(tmp_path):
    trial = LogTrial(tmp_path, spec_text(propensities=""), policy={"measures": "[]"})
    assert trial.run() == "finished"
    [run] = load_runs(trial.task.folder)
    assert run.checked().status == "finished"
    assert not (trial.task.folder / "queries.csv").exists()
    assert charges(trial, "north") == {}


# What it costs


def test_each_release_is_charged_once_and_on_the_card(finished):
    for name in finished.names:
        assert charges(finished, name) == {"propensity": 1, "quality": 1, "gate": 1}
        assert finished.paid(name) == 2
    card, plan = card_of(finished), finished.plan
    [price, *_] = plan_prices(plan, 1e-5, ["ndcg@10"])
    own = [promises[0] for promises in releases_of(plan, ["ndcg@10"]).charges.values()]
    rounds = plan.experiment.guarantees(plan.features)[0]
    expected = cost_together([(rounds, 2), *((one, 1) for one in own)], 1e-5)
    assert card["promises"][0]["epsilon"] == pytest.approx(expected)
    assert price.total == pytest.approx(expected)
    assert {one["what"] for one in card["deployment"]["releases"]} == {"propensity", "quality", "gate"}
    assert all(one["epsilon"] > 1 for one in card["deployment"]["releases"])
    assert card["deployment"]["gate"]["outcome"] in MODEL_FILES


def test_releases_count_in_the_ledger_of_the_site(finished):
    folder = finished.folders["north"] / "people" / finished.plan.digest[:32]
    rounds = Account.read(folder / "ledger")
    released = Account.read(folder / RELEASES)
    assert rounds is not None
    assert released is not None
    assert len(released.terms.promises) >= 3
    with Site.open(finished.folders["north"]) as site:
        site.answer(finished.hello())
        charging = site._runs[finished.plan.run].charging
        assert charging.spent()["server"] == pytest.approx(card_of(finished)["promises"][0]["epsilon"])


def test_a_release_beyond_the_limit_is_refused(tmp_path):
    trial = LogTrial(tmp_path, spec_text(more=QUIET), policy={"largest_epsilon": "4.0"})
    found = objections(trial.folders["north"], read_site(trial.folders["north"]), trial.plan)
    assert any("this run alone would cost ε" in line for line in found)
    with Site.open(trial.folders["north"]) as site:
        assert wire.read_label(site.answer(trial.hello())).kind == "refused"


def test_show_lists_releases_with_their_price(finished):
    view = look_at(finished.folders["north"], read_site(finished.folders["north"]), finished.plan)
    sent = {one.what: one for one in view.leaves}
    assert {"noised sums: propensity", "noised sums: quality", "noised sums: gate"} <= set(sent)
    assert all(sent[what].covered for what in sent if what.startswith("noised sums"))
    assert "alone ε = " in sent["noised sums: gate"].about
    assert about_plan(view)
    assert not view.refused


# Propensities


def test_own_propensities_are_not_covered_by_the_epsilon_of_a_person(tmp_path):
    """Changing one person changes everybody's weights: the card says that ε does not cover it."""
    trial = LogTrial(tmp_path, spec_text(propensities='"own"'))
    view = look_at(trial.folders["north"], read_site(trial.folders["north"]), trial.plan)
    assert any(line.startswith("propensities: they are estimated without noise") for line in view.not_covered)
    assert trial.run() == "finished"
    assert any(
        line.startswith("propensities: they are estimated without noise") for line in card_of(trial)["not_covered"]
    )


def test_released_propensities_are_covered(finished):
    assert not any(line.startswith("propensities") for line in card_of(finished)["not_covered"])


def test_all_sites_train_with_the_released_propensities(finished):
    sums = json.loads((finished.task.folder / "releases.json").read_text())["propensity"]
    for folder in finished.folders.values():
        [path] = folder.glob("models/*/propensities.json")
        assert json.loads(path.read_text()) == sums
        with Site.open(folder) as site:
            site.answer(finished.hello())
            run = site._runs[finished.plan.run]
            assert run.estimate is not None
            by, data = run.estimate.propensities, run.site_data.clients.data
            there = (data.grades > 0) & (data.position == 1)
            assert by.known[1]
            assert data.relevance[there] == pytest.approx(1 / by.slope[1])
            assert np.isnan(data.relevance[data.position >= len(by.slope)]).all()
    assert any(note.startswith("propensities at north") for note in load_runs(finished.task.folder)[0].notes)


def test_a_round_before_the_propensities_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path)
    with Site.open(trial.folders["north"]) as site:
        site.answer(trial.hello())
        request = wire.pack(wire.Label("round", trial.plan.run, 1), {"call": b"", "asked": b""})
        assert b"has not received the propensities" in site.answer(request)


def test_other_swaps_or_people_are_other_data(tmp_path):
    share = load_share(read_site(LogTrial(tmp_path).folders["north"]).data)
    changed = [{}, {"swap": -share.swap}, {"test_whose": share.test_whose[::-1]}]
    assert len({replace(share, **one).facts().digest for one in changed}) == 3


def test_a_log_without_swaps_is_named_before_the_run(tmp_path):
    trial = LogTrial(tmp_path, logs={"swaps": False})
    settings = read_site(trial.folders["north"])
    found = objections(trial.folders["north"], settings, trial.plan, load_share(settings.data))
    assert any("log query_attributes.swap" in line for line in found)


def test_other_propensities_are_refused_in_a_started_run(finished, monkeypatch):
    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    sums = json.loads((finished.task.folder / "releases.json").read_text())["propensity"]
    with Site.open(finished.folders["east"]) as site:
        site.answer(finished.hello())
        for changed, words in (
            ({"north": sums["north"]}, b"has received other propensities"),
            ({"nobody": sums["north"]}, b"has received other propensities"),
        ):
            content = {"sums": json.dumps(changed).encode()}
            assert words in site.answer(wire.pack(wire.Label("propensities", finished.plan.run, 0), content))


def test_sums_under_the_own_name_are_those_that_were_sent(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path)
    counts = [float(600 * EXAMINED[(place + 1) // 2]) for place in range(18)]

    def given(sums):
        content = {"sums": json.dumps({"north": sums, "east": counts}).encode()}
        return site.answer(wire.pack(wire.Label("propensities", trial.plan.run, 0), content))

    with Site.open(trial.folders["north"]) as site:
        site.answer(trial.hello())
        assert FORGED.encode() in given(counts)
        sent = site.answer(wire.pack(wire.Label("propensity", trial.plan.run, 0), {}))
        own = protocol.read_facts(sent, wire.read_label(sent))["sums"]
        assert FORGED.encode() in given(counts)
        assert wire.read_label(given(own)).kind == "facts"


# The gate


def test_the_error_of_released_propensities_is_part_of_the_gate(finished):
    with Site.open(finished.folders["north"]) as site:
        site.answer(finished.hello())
        by, trust = site._runs[finished.plan.run].biases
    assert trust is None
    assert by.low[1] < by.slope[1] < by.high[1]
    releases = releases_of(finished.plan)
    one = np.array([30.0, 10.0, 5.0, 4.0, 0.0, 0.0])  # of 60 people, with an error of propensities
    read = [PersonSums.read(one, releases.known("gate").deviation, comparisons=1)] * 3
    total = PersonSums.pooled(read, shared=True)
    expected = decide(total.sums[0], total.squares, total.count, total.sigma, 0.0, 0.05 / 4)
    assert releases.decision({name: one.tolist() for name in finished.names}).pooled == expected


def test_a_veto_of_another_site_counts_here(finished):
    """The newest result replaces the files of an earlier one."""
    model = (finished.task.folder / "model.json").read_bytes()
    card = (finished.task.folder / "privacy.json").read_text()
    [path] = finished.folders["north"].glob("models/*/gate.json")
    before = path.read_bytes()
    vetoed = json.loads(card)
    vetoed["deployment"]["gate"] |= {"outcome": "veto", "pooled": "pass"}
    for content, outcome in ((json.dumps(vetoed), "veto"), (card, json.loads(before)["outcome"])):
        parts = {"model": model, "card": content.encode(), "receipt": b""}
        with Site.open(finished.folders["north"]) as site:
            site.answer(finished.hello())
            answer = site.answer(wire.pack(wire.Label("result", finished.plan.run, 2), parts))
        assert wire.read_label(answer).kind == "facts"
        assert json.loads(path.read_text())["outcome"] == outcome
        [used] = path.parent.glob("model*.json")
        assert used.name == MODEL_FILES[outcome]
        assert any("the gate vetoed" in line for line in remarks_on(used)) is (outcome == "veto")


def view_of(trial, name="north"):
    settings = read_site(trial.folders[name])
    return look_at(trial.folders[name], settings, trial.plan, load_share(settings.data))


def test_show_card_and_impact_name_the_same_limits(finished):
    shown, card = view_of(finished).not_covered, card_of(finished)["not_covered"]
    assert list(shown) == card
    assert all(line in card_of(finished)["summary"] for line in shown)
    assessed = read_assessed(finished.folder / "spec.toml")
    text = markdown(impact(assessed))
    unknown = not_covered_between_sites(finished.plan.experiment)
    assert set(shown) == set(unknown) - {line for line in unknown if "declare that users" in line}
    for line in unknown:
        assert line in text


def test_show_tells_the_bytes_that_the_card_counts(finished):
    left = {one["request"]: one for one in card_of(finished)["deployment"]["left"]}
    shown = {one.what: one for one in view_of(finished).leaves}
    names = {
        "round": "update", "hello": "facts", "witness": "statements about journals of other sites",
        **{kind: f"noised sums: {kind}" for kind in ("propensity", "quality", "gate")},
    }  # fmt: skip
    for request, name in names.items():
        assert shown[name].bytes_in_all * 3 == left[request]["bytes"], request
    assert shown["confirmations"].bytes_each * 3 == left["propensities"]["bytes"]
    heads = shown["signed heads"]
    assert left["heads"]["times"] == 3 * (heads.times - 1), "the confirmation of the model follows the card"
    assert left["heads"]["bytes"] <= 3 * heads.bytes_in_all
    assert set(left) == {*names, "propensities", "heads"}


def test_the_ledger_of_a_site_names_sums_besides_updates(finished):
    [section] = about_ledgers([finished.folders["north"]])
    rows = section.parts[0].cells
    assert [row[0].text.endswith(", sums besides updates") for row in rows] == [False, True]
    assert {row[1].text for row in rows} == {"all of a site"}


def test_sites_of_browsers_are_named_on_the_card(tmp_path):
    trial = LogTrial(tmp_path, spec_text(more=QUIET), data={"person": '"browser"'})
    assert trial.run() == "finished"
    card = card_of(trial)
    assert "ε is for one browser, not for one person, at north, east, south." in card["summary"]
    assert any("a browser, not a person" in line for line in card["not_covered"])
    assert card["deployment"]["sites"]["north"]["unit"] == "browser"
    assert list(view_of(trial).not_covered) == [
        line.replace("(at north, east, south)", "(at north)") for line in card["not_covered"]
    ]
    text = markdown(impact(read_assessed(trial.task.folder)))
    assert "users of the log of north are browsers" in text


def test_a_gate_that_every_site_refuses_is_reported_with_reasons(tmp_path):
    trial = LogTrial(tmp_path, spec_text(more=QUIET + "[gate]\n"))

    def between(name, request, answer):
        if wire.read_label(request).kind == "gate":
            label = wire.read_label(request)
            return protocol.refusal(label, trial.plan.party(name).clients[0], USED)
        return answer()

    assert trial.run(between) == "finished"
    gate = gate_of(trial.task)
    assert (gate["outcome"], gate["released"]) == ("inconclusive", [])
    assert all(f"{name}: {USED}" in gate["words"][0] for name in trial.names)


def test_the_card_says_what_the_gate_claims(finished):
    words = card_of(finished)["deployment"]["gate"]["words"]
    assert NEVER_PASSES in words
    assert CLAIM in words[0]


def test_a_site_combines_the_received_model_with_its_own_and_judges_the_result(finished, monkeypatch):
    """The mean of directions, .75 own and .25 received; the gate of the site is about it, and its window knows it."""
    for name, folder in finished.folders.items():
        [path] = folder.glob("models/*/gate.json")
        [model] = path.parent.glob("model*.json")
        received = path.parent / "received.json"
        assert received.read_bytes() == (finished.task.folder / "model.json").read_bytes()
        with Site.open(folder) as site:
            site.answer(finished.hello())
            run = site._runs[finished.plan.run]
            own = run.releases.alone(run.own_clients, site.seed)
            theirs, used = (load_weights(file).weights for file in (received, model))
            expected = 0.75 * own / np.linalg.norm(own) + 0.25 * theirs / np.linalg.norm(theirs)
            np.testing.assert_allclose(used, expected, rtol=1e-12)
            judged = gate_values(run, used, None).sum(axis=0)
            found = json.loads(path.read_text())["here"]["doing nothing"]
            assert found["interval"] == pytest.approx(run.releases.site_decision(judged, gains=True).interval)
        assert load_weights(model).notes["combined at"] == name
        assert "no ε covers it; use it in the engine of that site" in remarks_on(model)[0]
        vetoed = model.name == "model-vetoed.json"  # which noise decides
        assert len(remarks_on(model)) == 1 + vetoed
        copied = shutil.copy(model, folder / "candidate.json")
        assert f"gate.json at {name} says whether the gate vetoed it" in remarks_on(copied)[1]
        assert len(remarks_on(received)) == vetoed
        card = Card.read(path.parent)
        assert card.summary.startswith("This card is about received.json.")
        assert card.files == {"received.json": hashlib.sha256(received.read_bytes()).hexdigest()}


def test_a_combined_model_that_learned_from_a_forgotten_person_says_so(finished, tmp_path, monkeypatch):
    data = shutil.copytree(finished.folders["north"] / "log", tmp_path / "log")
    models = shutil.copytree(finished.folders["north"] / "models", tmp_path / "models")
    [gate] = models.glob("*/gate.json")
    [model] = gate.parent.glob("model*.json")
    assert not any("was forgotten since" in remark for remark in remarks_on(model))
    receipt, _ = forget_person(load_log(data).users[0], data, [models])  # it holds nothing out, so models are not known
    assert f"The model in {gate.parent} may be trained on them" in receipt.summary
    assert "may have learned from a person who was forgotten since" in remarks_on(model)[0]
    judged = purpose_of(hashlib.sha256(model.read_bytes()).hexdigest())
    log = SimpleNamespace(folder=data, user=np.arange(2), held_out=np.array([False, True]))
    for derived, found in ((judged, [LEARNED, TESTED]), ("another model", [])):
        window = SimpleNamespace(uses=({"derived": derived},))
        monkeypatch.setattr("fedrank.experiments.runner.forget_person.read_window", lambda _, window=window: window)
        runs = [run for user in (0, 1) for run in combined_at_the_site(log, user, [models])]
        assert [run.used for run in runs] == found


def test_the_own_model_learns_with_propensities_from_own_clicks_without_noise(finished, monkeypatch):
    from fedrank.experiments.runner.position_bias import positions_of_log

    with Site.open(finished.folders["north"]) as site:
        site.answer(finished.hello())
        run = site._runs[finished.plan.run]
        data = run.site_data.clients.data
        by = positions_of_log(run.log, "position", data.query_ids.astype(np.int64))
        clicked = data.grades > 0
        expected = correct(clicked, data.position, by).relevance
        np.testing.assert_array_equal(run.own_clients.data.relevance, expected)
        assert not np.array_equal(data.relevance, expected, equal_nan=True)

        def unknown(*_):
            raise NotIdentifiable("1,400 drawn pairs are too few", "log more")

        monkeypatch.setattr("fedrank.experiments.runner.position_bias.positions_of_log", unknown)
        assert run.own_clients is run.site_data.clients
    assert "own model: " in (finished.folders["north"] / "site.log").read_text()


def test_the_own_model_is_the_mean_of_models_that_differ_in_chance(finished, monkeypatch):
    seeds, weights = [], iter(np.eye(12)[:4] * [[1.0], [2.0], [3.0], [4.0]])

    def simulate(federation, clients, rounds, seed):
        assert federation.mechanism is None
        assert (federation.learner.rate, clients.people, clients.interactions.tolist()) == (0.03, None, [1000])
        seeds.append(seed)
        yield SimpleNamespace(weights=next(weights))

    monkeypatch.setattr("fedrank.experiments.runner.releases.simulate", simulate)
    clients = clients_of_north(finished)
    found = releases_of(finished.plan).alone(clients, 7)
    assert found.tolist() == [0.25] * 4 + [0.0] * 8
    assert len(set(seeds)) == 4


def clients_of_north(trial):
    settings = read_site(trial.folders["north"])
    return open_data_source(settings, trial.plan).clients


def test_each_site_writes_its_decision_beside_the_model(finished):
    for folder in finished.folders.values():
        [path] = folder.glob("models/*/gate.json")
        found = json.loads(path.read_text())
        assert [one.name for one in path.parent.glob("model*.json")] == [MODEL_FILES[found["outcome"]]]
        assert set(found["here"]) in ({"doing nothing", "the own model alone"}, set())
        assert found["all sites"] == card_of(finished)["deployment"]["gate"]


def test_a_cap_on_plans_in_a_year(tmp_path, monkeypatch):
    """Every plan with released sums counts, also without a result, and a charge without its message, too."""
    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path, spec_text(propensities='"own"', more="[gate]\n"))
    for number, age in enumerate((1, 30, 364, 400)):
        where = trial.folders["north"] / "outbox" / f"{number:032d}" / "releases"
        where.mkdir(parents=True)
        (where / "00000003-0000").touch()
        at = (datetime.now(UTC) - timedelta(days=age)).timestamp()
        os.utime(where / "00000003-0000", times=(at, at))
    request = wire.pack(wire.Label("gate", trial.plan.run, 2), model_parts(0.0))
    with Site.open(trial.folders["north"]) as site:
        site.answer(trial.hello())
        run = site._runs[trial.plan.run]
        assert gates_in_a_year(run.site.folder, run.plan) == 3
        promises = run.releases.promises(run.releases.find("gate"))
        assert run.charging.population.release("f" * 32, "gate", promises, 1, lambda: None) is None
        assert b"was used for 4 plans in the last year, and policy.plans_per_year = 4" in site.answer(request)
    trial.plan = replace(trial.plan, name="another")
    consent.accept(trial.folders["north"], trial.plan)
    assert any("was used for 4 plans" in line for line in view_of(trial).refused)
    with Site.open(trial.folders["north"]) as site:
        assert b"was used for 4 plans" in site.answer(trial.hello()), "before anything is charged"


def test_a_plan_that_divides_the_error_rate_by_too_few_is_refused(tmp_path):
    trial = LogTrial(tmp_path, spec_text(propensities='"own"', more="[gate]\nplans = 2\n"))
    found = objections(trial.folders["north"], read_site(trial.folders["north"]), trial.plan)
    assert any("gate.plans: the error rate of a year is divided by 2" in line for line in found)


def test_a_gate_needs_people_and_propensities(tmp_path):
    (tmp_path / "spec.toml").write_text(spec_text(propensities="", more="[gate]\n"))
    with pytest.raises(SpecError, match="gate: estimated clicks need propensities"):
        read_spec(tmp_path / "spec.toml")


def test_a_model_other_than_the_one_that_the_gate_judged_is_refused(finished, tmp_path):
    from dataclasses import replace

    from fedrank.ranking.model import load_weights, save_model

    model = load_weights(finished.task.folder)
    save_model(replace(model, weights=-model.weights), tmp_path / "model.json")
    card = (finished.task.folder / "privacy.json").read_bytes()
    for path, refused in ((tmp_path, True), (finished.task.folder, False)):
        parts = {"model": (path / "model.json").read_bytes(), "card": card, "receipt": b""}
        with Site.open(finished.folders["north"]) as site:
            site.answer(finished.hello())
            answer = site.answer(wire.pack(wire.Label("result", finished.plan.run, 2), parts))
        assert (b"is not the one on which the gate of this site decided" in answer) is refused


def test_a_held_out_window_is_used_for_one_model(tmp_path, monkeypatch):
    """It is the window of the data set, not the site's test share; the same model may be estimated there, too."""
    from fedrank.data.held_out import HoldOut, begin_window, read_window, use_window

    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path, spec_text(more="[gate]\n"))
    folder = trial.folders["north"] / "log"
    log = load_log(folder)
    held = np.asarray(log.user) % 4 == 0
    np.save(folder / "held_out.npy", held.astype("|u1"))
    facts = json.loads((folder / "facts.json").read_text())
    facts["shapes"]["held_out"] = [len(log)]
    (folder / "facts.json").write_text(json.dumps(facts))
    begin_window(folder, HoldOut(None, 0.25, "00" * 16), int(log.time[-1]))
    with Site.open(trial.folders["north"]) as site:
        site.answer(trial.hello())
        run = site._runs[trial.plan.run]
        assert run.held_out.lists.queries == held.sum()
        assert run.site_data.clients.data.queries == (~held).sum()
        request = wire.pack(wire.Label("quality", trial.plan.run, 2), model_parts())
        assert wire.read_label(site.answer(request)).kind == "facts"
        other = wire.pack(wire.Label("gate", trial.plan.run, 2), model_parts() | {"model": b"1" * 64})
        assert USED.encode() in site.answer(other)
    assert not any("held-out lists were used" in line for line in view_of(trial).refused), "the plan has started"
    trial.plan = replace(trial.plan, name="another")
    consent.accept(trial.folders["north"], trial.plan)
    assert any("held-out lists were used" in line for line in view_of(trial).refused)
    with Site.open(trial.folders["north"]) as site:
        assert b"build a new data set" in site.answer(trial.hello()), "before anything is charged"
    [use] = read_window(folder).uses
    assert use["purpose"] == purpose_of("0" * 64)
    assert not use_window(folder, purpose_of("0" * 64))
    with pytest.raises(ValueError, match="were used on"):
        use_window(folder, purpose_of("1" * 64))


def test_the_command_names_what_is_missing(tmp_path):
    from fedrank.cli.deploy import _run_local

    (tmp_path / "spec.toml").write_text(spec_text())
    grid = read_spec(tmp_path / "spec.toml")
    with pytest.raises(ValueError, match="--local 3 needs one --log per site, or none \\(got 2\\)"):
        _run_local(grid, "trial", tmp_path, 3, True, [tmp_path, tmp_path])
    with pytest.raises(ValueError, match="give the data set of each of 3 sites with --log FOLDER"):
        _run_local(grid, "trial", tmp_path, 3, True, [])


# All together under secure aggregation, with people dealt into rounds


def test_secure_aggregation_and_a_dealt_schedule(tmp_path):
    clients = 'schedule = "dealt"\n'
    trial = LogTrial(tmp_path, spec_text(mechanism=SUM, more=QUIET + "[gate]\n", clients=clients))
    assert trial.run() == "finished", (trial.task.folder / "run.json").read_text()
    for name in trial.names:
        assert charges(trial, name) == {"propensity": 1, "quality": 1, "gate": 1}
    card = card_of(trial)
    assert card["participations_charged"] == 1
    plan = trial.plan
    own = [promises[0] for promises in releases_of(plan, ["ndcg@10"]).charges.values()]
    rounds = plan.experiment.guarantees(plan.features)[0]
    assert card["promises"][0]["epsilon"] == pytest.approx(
        cost_together([(rounds, 1), *((one, 1) for one in own)], 1e-5)
    )


# Kills


class Killed(BaseException):
    """Ends the process at this point."""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["propensity", "quality", "gate"])
@pytest.mark.parametrize("where", [(Outbox, "put"), (Charging, "release"), (Charge, "write")])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_around_a_release_loses_nothing_and_charges_once(tmp_path, monkeypatch, kind, where, after):
    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path, spec_text(more="[gate]\n"))
    parts = {} if kind == "propensity" else model_parts()
    request = wire.pack(wire.Label(kind, trial.plan.run, 0 if kind == "propensity" else 2), parts)
    real = getattr(*where)

    def kill(*args, **named):
        if after:
            real(*args, **named)
        raise Killed

    counts = [float(600 * EXAMINED[(place + 1) // 2]) for place in range(18)]
    pooled = {"sums": json.dumps(dict.fromkeys(("east", "south"), counts)).encode()}
    with Site.open(trial.folders["north"]) as site, monkeypatch.context() as patch:
        site.answer(trial.hello())
        site.answer(wire.pack(wire.Label("propensities", trial.plan.run, 0), pooled))
        patch.setattr(*where, kill)
        with pytest.raises(Killed):
            site.answer(request)
    stored = list(trial.folders["north"].glob("outbox/*/releases/*"))
    before = stored[0].read_bytes() if stored else b""
    answers = set()
    for _ in range(2):
        with Site.open(trial.folders["north"]) as site:
            site.answer(trial.hello())
            answers.add(site.answer(request))
            assert wire.read_label(next(iter(answers))).kind == "facts"
    assert len(answers) == 1
    assert charges(trial, "north") == {kind: 1}
    if before:  # what may have left is what leaves
        assert stored[0].read_bytes() == before


def test_another_model_is_not_measured(finished, monkeypatch):
    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    with Site.open(finished.folders["north"]) as site:
        site.answer(finished.hello())
        for kind in ("quality", "gate"):
            content = wire.pack(wire.Label(kind, finished.plan.run, 2), model_parts())
            assert b"was already answered for a different request" in site.answer(content)
    assert charges(finished, "north") == {"propensity": 1, "quality": 1, "gate": 1}


def test_a_lost_message_is_not_drawn_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path)
    request = wire.pack(wire.Label("propensity", trial.plan.run, 0), {})
    with Site.open(trial.folders["north"]) as site:
        site.answer(trial.hello())
        site.answer(request)
    for path in trial.folders["north"].glob("outbox/*/releases/*"):
        path.unlink()
    with Site.open(trial.folders["north"]) as site:
        site.answer(trial.hello())
        assert wire.read_label(site.answer(request)).kind == "refused"
    assert charges(trial, "north") == {"propensity": 1}


# A printed ε must hold


@pytest.fixture(scope="module")
def summed(tmp_path_factory):
    """A plan with secure aggregation and all releases; it is not run."""
    more = "[privacy]\nrelease_noise = 1.0\n[gate]\n"  # releases cost more than rounds
    return LogTrial(tmp_path_factory.mktemp("summed"), spec_text(mechanism=SUM, more=more))


def test_colluders_pay_for_releases_too(summed):
    """A site that colludes with the coordinator weakens the noise of rounds; releases cost the same and still count."""
    plan, kinds = summed.plan, release_charges(summed.plan, ["ndcg@10"])
    card = coordinate.card_of(plan.experiment, plan, 2, kinds)
    [server, one, two] = [row["epsilon"] for row in against_colluders(card, plan, kinds)]
    rounds, *_ = [row["epsilon"] for row in against_colluders(coordinate.card_of(plan.experiment, plan, 2), plan, {})]
    assert server == card.promises[0].epsilon > rounds
    assert server <= one < two


def test_sums_that_did_not_arrive_are_priced(summed, tmp_path):
    handshake = SimpleNamespace(calls=SimpleNamespace(plan=summed.plan), noised={"north": ["ndcg@10"]})
    pooled = PooledSums(tmp_path, handshake)
    assert pooled.requested == ["propensity", "quality", "gate"]
    card = coordinate.card_of(summed.plan.experiment, summed.plan, 2, pooled.requested)
    assert card.promises[0].epsilon == pytest.approx(plan_prices(summed.plan, 1e-5, ["ndcg@10"])[0].total)
    handshake.noised = {}
    assert pooled.requested == ["propensity", "gate"]


def test_a_resumed_coordinator_uses_sums_of_sites_that_have_not_answered_hello_again(tmp_path):
    trial = LogTrial(tmp_path, spec_text(rounds=1, more=QUIET))
    assert trial.run() == "finished"
    calls = SimpleNamespace(plan=trial.plan, sites=lambda: trial.plan.sites)
    resumed = PooledSums(trial.task.folder, SimpleNamespace(calls=calls, noised={}))
    found = resumed.quality(np.zeros(12, np.float32), 1, trial.task.folder / "model.json")
    assert {name: list(table) for name, table in found.items()} == {name: ["ndcg@10"] for name in trial.names}


def test_a_site_that_answered_no_hello_is_greeted_before_quality_is_asked(tmp_path):
    trial, late = LogTrial(tmp_path, spec_text(rounds=1, more=QUIET)), []

    def between(name, request, answer):
        kind = wire.read_label(request).kind
        if name == "east" and not late:
            raise TimeoutError("offline")
        if name == "north" and kind == "round":
            late.append(name)
        return answer()

    assert trial.run(between) == "finished"
    released = Charge.read_all(trial.folders["east"] / "people" / trial.plan.digest[:32] / RELEASES)
    assert "quality" in {one.key for one in released}


def test_the_price_is_that_of_the_numbers_that_leave(summed):
    release = release_of(summed.plan, "gate")
    with pytest.raises(ValueError, match="people must add 6 numbers each to 'gate'"):
        release.sums(np.zeros((2, release.numbers + 1)))


def test_the_price_of_a_spec_includes_releases(summed):
    experiment = summed.grid.base
    [price, *_] = planned(experiment)
    assert price.total == pytest.approx(plan_prices(summed.plan, 1e-5, ["ndcg@10"])[0].total)
    noises = noise_needed(experiment, [0.5, 20.0])
    assert all(each[0] == math.inf for each in noises.values())  # releases alone cost more
    enough = max(each[1] for each in noises.values())
    stronger = replace(experiment, mechanism=replace(experiment.mechanism, noise=enough))
    assert max(one.total for one in planned(stronger)) <= 20.0


def test_a_person_at_two_sites_pays_for_both_releases(tmp_path):
    (tmp_path / "spec.toml").write_text(spec_text(mechanism=PERSON + "sites = 2\n"))
    [twice], [once] = (
        PersonReleases(read_spec(path).base, 3).charges.values()
        for path in (tmp_path / "spec.toml", _written(tmp_path / "one.toml", spec_text()))
    )
    assert twice[0].epsilon(1, 1e-5) == pytest.approx(once[0].epsilon(2, 1e-5), rel=1e-3)


def _written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", ["propensity", "gate"])
def test_reasons_of_a_refusal_have_no_counts(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path, spec_text(propensities='"swaps"' if kind == "propensity" else '"own"', more="[gate]\n"))
    folder = trial.folders["north"]
    if kind == "propensity":  # no pair was swapped
        np.save(folder / "log" / "swap.npy", np.abs(np.load(folder / "log" / "swap.npy")))

    def unknown(*_):
        raise NotIdentifiable("1,400 drawn pairs are too few", "log more")

    monkeypatch.setattr("fedrank.experiments.runner.releases.positions_of_log", unknown)
    with Site.open(folder) as site:
        site.answer(trial.hello())
        request = wire.pack(
            wire.Label(kind, trial.plan.run, 2 if kind == "gate" else 0), model_parts() if kind == "gate" else {}
        )
        answer = site.answer(request)
    assert (NO_SWAPS if kind == "propensity" else NO_BIASES).encode() in answer
    assert b"drawn pairs" not in answer
    assert "drawn pairs" in (folder / "site.log").read_text()
    assert charges(trial, "north") == {}


def test_no_release_where_the_site_is_the_unit(tmp_path):
    trial = LogTrial(
        tmp_path,
        spec_text(propensities='"own"', mechanism='name = "gaussian"\nclip = 1.0\nnoise = 5.0\n'),
        policy={"unit": '"site"'},
    )
    assert list(releases_of(trial.plan, ["ndcg@10"])) == []
    assert release_of(trial.plan, QUALITY, ["ndcg@10"]) is None


@pytest.mark.process
def test_three_logs_on_one_machine(tmp_path, monkeypatch):
    """Everything through NVFLARE: releases, secure aggregation, people dealt into rounds, the gate."""
    from fedrank.deploy.local import run_local_logs

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    logs = [write_log(tmp_path / f"log-{number}", seed=number) for number in range(3)]
    (tmp_path / "spec.toml").write_text(
        spec_text(mechanism=SUM, more=QUIET + "[gate]\n", clients='schedule = "dealt"\n')
    )
    said: list[str] = []
    results = run_local_logs(
        read_spec(tmp_path / "spec.toml"), "trial", tmp_path / "runs", logs, say=said.append, folder=tmp_path / "here"
    )
    assert [task.variant for task in results.finished] == ["only"], (results, said)
    [run] = load_runs(tmp_path / "runs")
    assert run.checked().status == "finished"
    assert list(run.queries[0]) == ["site-1", "site-2", "site-3"]
    card = json.loads((run.path / "privacy.json").read_text())
    assert {one["what"] for one in card["deployment"]["releases"]} == {"propensity", "quality", "gate"}
    assert card["participations_charged"] == 1
    for number in (1, 2, 3):
        home = tmp_path / "here" / f"site-{number}"
        [gate] = home.glob("models/*/gate.json")
        assert (gate.parent / MODEL_FILES[json.loads(gate.read_text())["outcome"]]).exists()
        [ledger] = home.glob(f"people/*/{RELEASES}")
        assert {one.key: one.times for one in Charge.read_all(ledger)} == {"propensity": 1, "quality": 1, "gate": 1}


@pytest.mark.long
def test_a_restored_site_repeats_a_release_or_is_charged_for_both(tmp_path, monkeypatch):
    import shutil

    from fedrank.deploy.backup import backup, restore

    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path)
    folder, request = trial.folders["north"], wire.pack(wire.Label("propensity", trial.plan.run, 0), {})
    shutil.copytree(folder / "log", tmp_path / "log")
    with Site.open(folder) as site:
        site.answer(trial.hello())
        backup(folder, tmp_path / "before")
        first = site.answer(request)
        backup(folder, tmp_path / "after")
    for which, times in (("after", 1), ("before", 2)):
        shutil.rmtree(folder)
        restore(tmp_path / which, folder)
        shutil.copytree(tmp_path / "log", folder / "log")
        with Site.open(folder) as site:
            site.answer(trial.hello())
            assert (site.answer(request) == first) is (times == 1)
        made = charges(trial, "north")
        assert sum(made.values()) == times
        assert ("propensity" in made) is (times == 1)


@pytest.mark.long
def test_a_restored_site_with_its_ledger_is_charged_for_new_noise(tmp_path, monkeypatch):
    """The ledger has the earlier charge, but the message is lost, so another one is drawn."""
    import shutil

    from fedrank.deploy.backup import backup, restore

    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path)
    folder, request = trial.folders["north"], wire.pack(wire.Label("propensity", trial.plan.run, 0), {})
    backup(folder, tmp_path / "before")
    with Site.open(folder) as site:
        site.answer(trial.hello())
        site.answer(request)
    shutil.rmtree(folder / "outbox")
    (folder / "journal.log").unlink()
    restore(tmp_path / "before", folder)
    with Site.open(folder) as site:
        site.answer(trial.hello())
        assert len({site.answer(request) for _ in range(2)}) == 1
    made = charges(trial, "north")
    assert made.pop("propensity") == 1
    assert list(made.values()) == [2]


@pytest.mark.long
def test_two_total_losses_are_charged_for_all_three_messages(tmp_path, monkeypatch):
    """Both times the same backup is restored, from before the release; the second place knows what was lost."""
    import shutil

    from fedrank.deploy.backup import backup, restore

    monkeypatch.setattr("fedrank.deploy.heads.SiteJournal.check_confirmed", lambda *_: None)
    trial = LogTrial(tmp_path)
    folder, request = trial.folders["north"], wire.pack(wire.Label("propensity", trial.plan.run, 0), {})
    shutil.copytree(folder / "log", tmp_path / "log")
    left = set()
    for losses in range(3):
        with Site.open(folder) as site:
            site.answer(trial.hello())
            if not losses:
                backup(folder, tmp_path / "before")
            left.add(site.answer(request))
        made = charges(trial, "north")
        rounds = Account.read(folder / "people" / trial.plan.digest[:32] / "ledger")
        assert sum(made.values()) + rounds.rounds >= len(left) == losses + 1
        if losses < 2:
            shutil.rmtree(folder)
            restore(tmp_path / "before", folder)
            shutil.copytree(tmp_path / "log", folder / "log")


@pytest.mark.long
def test_sites_are_unlearned_from_a_run_without_data_at_the_coordinator(tmp_path):
    text = spec_text(more=QUIET + "[gate]\n").replace("rounds = 2\n", "rounds = 2\nrecord_every = 1\n")
    trial = LogTrial(tmp_path, text, policy={"min_sites": "2", "history": "true"})
    assert trial.run() == "finished"
    with pytest.raises(ValueError, match="fed-remove measures the new model on queries of the coordinator"):
        named(trial.task.folder, ["south"], UNLEARNERS["fed-remove"]())
    trial.task, trial.plan = (asked := named(trial.task.folder, ["south"], UNLEARNERS["retrain"]())).planned(tmp_path)
    for name in ("north", "east"):
        consent.accept(trial.folders[name], trial.plan)
    assert trial.run(departure=asked) == "finished", (trial.task.folder / "run.json").read_text()
    assert json.loads((trial.task.folder / "receipt.json").read_text())["method"]["exact"]
