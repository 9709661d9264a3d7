"""Sites and a coordinator, without an engine, come to what a simulation comes to; nothing else gets through."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.plan import Plan
from fedrank.federated.aggregators import AGGREGATORS
from fedrank.federated.server_optimizers import SERVER_OPTIMIZERS
from fedrank.types import has_trait
from tests.deploy.trial import Trial, check_equal, rows, spec_of, weights, write_data
from tests.made_up import made_up_log

LINEAR = '[learner]\nname = "pdgd"\n'
NEURAL = '[learner]\nname = "pdgd"\nranker = { name = "mlp", hidden = 3 }\n'
EVOLUTION = '[server]\nname = "adam"\nrate = 0.1\n[learner]\nname = "evolution"\n'
MEAN_NOISE = '[mechanism]\nname = "gaussian"\nclip = 0.5\nnoise = 1.0\n'
SUMMED = 'placement = { name = "secure-aggregation", honest = 0.5, colluding = 0.0 }\n'


@pytest.fixture
def folder(tmp_path):
    write_data(tmp_path)
    return tmp_path


CASES = {
    "linear": LINEAR,
    "batch": LINEAR + "batch = true\n",
    "neural": NEURAL,
    "grades": '[learner]\nname = "lambdarank"\n',
    "evolution": EVOLUTION,
    "evolution, flipped": '[server]\nname = "adam"\nrate = 0.1\n[learner]\nname = "evolution"\ntruth = 0.5\n',
    "fedprox": LINEAR + '[local]\nname = "fedprox"\n',
    "fedper": NEURAL + '[local]\nname = "fedper"\n',
    "scaffold": NEURAL + '[local]\nname = "scaffold"\n',
} | {
    name: f'[aggregator]\nname = "{name}"\n{"attackers = 0.1" if name == "bulyan" else ""}\n' + LINEAR
    for name, kind in AGGREGATORS.items()
    if not has_trait(kind, "apart") and name != "mean"
} | {f"step {name}": f'[server]\nname = "{name}"\n' + LINEAR for name in SERVER_OPTIMIZERS}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_sites_come_to_what_a_simulation_comes_to(folder, case):
    trial = Trial(folder, spec_of(folder, CASES[case]))
    assert trial.run() == "finished", (trial.task.folder / "run.json").read_text()
    check_equal(trial.task.folder, trial.simulated())
    for where in trial.folders.values():
        kept = where / "models" / trial.plan.digest[:16]
        assert (kept / "model.json").read_bytes() == (trial.task.folder / "model.json").read_bytes()


@pytest.mark.parametrize("local", ["", '[local]\nname = "fedper"\n', '[local]\nname = "scaffold"\n'])
def test_some_take_part(folder, local):
    spec = spec_of(folder, NEURAL + local, rounds=6, clients="count = 6\nparticipation = 0.4")
    trial = Trial(folder, spec)
    assert trial.run() == "finished"
    check_equal(trial.task.folder, trial.simulated())


def test_organisations_with_people(folder):
    trial = Trial(folder, spec_of(folder, LINEAR, clients="count = 3\npeople = 4"))
    assert trial.run() == "finished"
    check_equal(trial.task.folder, trial.simulated())


@pytest.mark.parametrize("rule", ['"sync"', '"fedasync"', '"fedbuff"\nsize = 2'])
def test_out_of_step_trials_follow_the_log(tmp_path, rule):
    log = made_up_log(tmp_path / "log", np.random.default_rng(3).choice(6, size=120).tolist())
    spec = tmp_path / "spec.toml"
    spec.write_text(
        f'kind = "async"\nrounds = 10\nevaluate_every = 2\n{LINEAR}[arrival]\nname = {rule}\n'
        f'[clients]\ncount = 6\ninteractions = 3\npartition = {{ name = "users" }}\n[data]\nlog = "{log}"\n'
    )
    trial = Trial(tmp_path, spec)
    assert trial.run() == "finished", (trial.task.folder / "run.json").read_text()
    check_equal(trial.task.folder, trial.simulated())


@pytest.mark.parametrize("place", ["", SUMMED, 'placement = { name = "server" }\n'])
def test_noise(folder, place):
    """Noise comes from the secure source, so that no two runs are equal; what left adds up to the model."""
    trial = Trial(folder, spec_of(folder, LINEAR + MEAN_NOISE + place))
    assert trial.run() == "finished", (trial.task.folder / "run.json").read_text()
    assert len(rows(trial.task.folder)) == 4
    if "server" not in place:
        assert np.allclose(weights(trial.task.folder), rebuilt(trial), atol=1e-6)
    card = json.loads((trial.task.folder / "privacy.json").read_text())
    assert card["participations_charged"] == 4
    for where in trial.folders.values():
        for path in [where, *where.rglob("*")]:
            if path.name != "site.toml":  # which the test wrote
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def rebuilt(trial: Trial):
    """The model, from the outboxes of all sites."""
    mechanism, size = trial.task.experiment.mechanism, trial.plan.sent
    total = np.zeros(size)
    for round in range(1, trial.task.experiment.rounds + 1):
        updates = []
        for party in trial.plan.sites:
            sent = Outbox(trial.folders[party.name] / "outbox" / trial.plan.digest[:32], trial.plan.run).get(round)
            if sent.values:
                updates += list(np.frombuffer(sent.values, "<i8").reshape(-1, size) * mechanism.step(6))
                continue
            label = wire.Label("answers", trial.plan.run, round, 0, party.clients[0])
            found = protocol.Answers.unpack(sent.answer, label, len(party.clients), 10_000, True)
            for content in found.messages:
                updates.append(np.frombuffer(content[-16 - 8 - 28 - 4 * size : -16 - 8 - 28], "<f4"))
        assert len(updates) == 6
        total += np.sum(updates, axis=0) / 6
    return total


def test_a_run_that_is_stopped_goes_on_with_the_same_bytes(folder):
    trial = Trial(folder, spec_of(folder, NEURAL + '[local]\nname = "scaffold"\n', rounds=8))
    seen = []
    assert (
        trial.run(lambda site, request, answer: seen.append(site) or answer, stop=lambda: len(seen) > 15)
        == "interrupted"
    )
    assert trial.run() == "finished"
    check_equal(trial.task.folder, trial.simulated())


def test_a_site_that_is_asked_again_sends_the_same_and_pays_once(folder):
    trial = Trial(folder, spec_of(folder, LINEAR + MEAN_NOISE, rounds=3))
    asked = {}

    def keep(site, request, answer):
        asked[site, request] = answer
        return answer

    assert trial.run(keep) == "finished"
    with trial.sites() as sites:
        for name, site in sites.items():
            site.answer(protocol.request("hello", trial.plan.run, plan=trial.plan.dump()))
            before = site._runs[trial.plan.run].charging.ledger.participations().tolist()
            for (whose, request), answer in asked.items():
                if whose == name and wire.read_label(request).kind == "round":
                    assert site.answer(request) == answer
            assert site._runs[trial.plan.run].charging.ledger.participations().tolist() == before == [3, 3]


def test_a_silent_site_is_left_out_of_its_round(folder):
    trial = Trial(folder, spec_of(folder, LINEAR, rounds=4))

    def silent(site, request, answer):
        label = wire.read_label(request)
        if site == "site-1" and label.kind == "round" and label.round == 2:
            raise TimeoutError("nobody is there")
        return answer

    assert trial.run(silent) == "finished"
    text = (trial.task.folder / "sites.csv").read_text()
    assert "nobody is there" in text
    assert text.count("nobody") == 1


def test_a_site_that_sends_nonsense_is_named_and_left_out(folder):
    trial = Trial(folder, spec_of(folder, LINEAR, rounds=6))

    def damaged(site, request, answer):
        return answer[:-1] if site == "site-2" and wire.read_label(request).kind == "round" else answer

    assert trial.run(damaged) == "finished"
    text = (trial.task.folder / "sites.csv").read_text()
    assert text.count("site-2") == 3
    assert "excluded after 3 consecutive invalid answers" in (trial.task.folder / "run.json").read_text()
    assert json.loads((trial.task.folder / "left-out.json").read_text()).keys() == {"site-2"}


def test_a_limit_is_a_refusal_in_words(folder):
    trial = Trial(folder, spec_of(folder, LINEAR + MEAN_NOISE, rounds=5))
    path = trial.folders["site-0"] / "site.toml"
    path.write_text(path.read_text() + "largest_epsilon = 4.0\n")
    seen = []

    def listen(site, request, answer):
        if wire.read_label(answer).kind == "refused":
            seen.append(answer)
        return answer

    trial.run(listen, stop=lambda: len(seen) > 0)
    assert b"largest_epsilon" in seen[0] or b"limit" in seen[0]


def test_a_plan_that_was_changed_is_another_run(folder):
    trial = Trial(folder, spec_of(folder, LINEAR))
    content = json.loads(trial.plan.dump())
    for key, value in (
        ("protocol", 9),
        ("version", "9.9"),
        ("min_sites", 99),
        ("features", 0),
        ("seed", "1"),
        ("x", 1),
    ):
        with pytest.raises(wire.Refused):
            Plan.load(json.dumps(content | {key: value}).encode())
    other = Plan.load(json.dumps(content | {"seed": 2}).encode())
    assert other.run != trial.plan.run
    with trial.sites() as sites:
        answer = sites["site-0"].answer(protocol.request("hello", trial.plan.run, plan=other.dump()))
    assert b"name different runs" in answer


def test_foreign_words_of_a_site_do_not_leave_it(folder, monkeypatch):
    trial = Trial(folder, spec_of(folder, LINEAR))
    with trial.sites() as sites:
        site = sites["site-0"]

        def broken(*args):
            raise RuntimeError("patient Miller, room 7")

        monkeypatch.setattr("fedrank.deploy.site_updates.open_site_data", broken)
        answer = site.answer(protocol.request("hello", trial.plan.run, plan=trial.plan.dump()))
    assert b"Miller" not in answer
    assert b"RuntimeError" in answer
    assert "Miller" in (trial.folders["site-0"] / "site.log").read_text()
