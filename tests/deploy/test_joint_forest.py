"""Sites grow one forest from histograms: the pooled one, through drop-outs and restarts, and no site sends more."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("cryptography")

from fedrank import wire
from fedrank.data.letor import read_letor
from fedrank.data.ranking import RankingData
from fedrank.deploy import protocol
from fedrank.deploy.backup import RestoreMark
from fedrank.deploy.identity import read_identity
from fedrank.deploy.joint_forest import agreed
from fedrank.deploy.make_plans import plan_runs
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.plan import PlannedSite
from fedrank.deploy.settings import read_site
from fedrank.deploy.show import look_at
from fedrank.deploy.site import Site
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.experiment import SpecError
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.population import Account, ledgers_below
from fedrank.trees.binning import grid_edges
from fedrank.trees.boosters import BoosterState
from fedrank.trees.growing import GrowPlan, LocalClients, grow_alone, grow_forest
from fedrank.trees.histograms import Histograms
from fedrank.trees.model_files import load_model
from tests.deploy.test_forests import Federation, files_of, no_pause, spec_of

__all__ = ["no_pause"]  # a fixture
HISTOGRAMS = '[merge]\nname = "histograms"\n'
SECURE = f"{HISTOGRAMS}secure = true\n"
VOTING = f"{SECURE}vote = 1\nbits = 32\n"


def pooled(made: Federation) -> tuple[str, ...]:
    """What one would grow who had the rows of all sites."""
    from fedrank.deploy.data_sources import load_share

    shares = [load_share(read_site(folder).data) for folder in made.folders.values()]
    rows = RankingData.join([share.train for share in shares])
    judged = RankingData.join([share.test for share in shares])
    rules = Histograms.rules(made.task.experiment.booster)
    steps = list(
        grow_alone(rules, rows, judged, made.plan.seed, BoosterState(), grid_edges(made.plan.features, rules.bins))
    )
    best = int(np.argmax([step.validation for step in steps])) + 1
    return tuple(step.tree for step in steps[:best])


def real(folder, merge=HISTOGRAMS, sites=3) -> Federation:
    made = Federation(folder, spec_of(folder, 'split = "sites"\n', merge), sites=sites, simulated=False)
    if "secure" in merge:  # everybody's keys stand in the plan, as people have compared them
        keys = {name: read_identity(where).public for name, where in made.folders.items()}
        parties = [PlannedSite(f"site-{s}", (s,), keys[f"site-{s}"]) for s in range(sites)]
        [(made.task, made.plan)] = plan_runs(made.grid, "trial", folder / "sites-run", parties, "clinics")
    return made


@pytest.mark.parametrize("merge", [HISTOGRAMS, SECURE])
def test_sites_grow_the_forest_of_their_pooled_rows(tmp_path, merge):
    made = real(tmp_path, merge)
    kinds = set()

    def listen(name, content, answer):
        kinds.add(wire.read_label(answer).kind)
        return answer

    assert made.run(listen) == "finished", made.reason()
    assert kinds - {"letters"} == {"facts", "grown"}
    forest = load_model(made.task.folder / "model.json")
    assert forest.trees == pooled(made)
    card = json.loads((made.task.folder / "privacy.json").read_text())
    assert "No privacy guarantee" in card["summary"]
    assert ("sees only" in card["who_sees_what"]) == (merge == SECURE)
    for where in made.folders.values():
        [place] = (where / "models").iterdir()
        assert load_model(place / "model.json").trees == forest.trees


@pytest.mark.parametrize("merge", [HISTOGRAMS, SECURE])
def test_a_line_that_breaks_changes_nothing(tmp_path, merge):
    made = real(tmp_path, merge)
    broken = []

    def once(name, content, answer):
        asked = wire.read_label(content).kind
        if name == "site-1" and asked == "grow" and len(broken) < 12:
            broken.append(name)
            if len(broken) in (4, 9):
                raise RuntimeError("the line broke")
        return answer

    assert made.run(once) == "finished", made.reason()
    assert load_model(made.task.folder / "model.json").trees == pooled(made)


def test_a_stopped_coordinator_goes_on_after_its_last_tree(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0)
    made = real(tmp_path)
    asked: list[str] = []

    def listen(name, content, answer):
        asked.append(wire.read_label(content).kind)
        return answer

    assert made.run(listen, stop=lambda: asked.count("grow") > 40) == "interrupted"
    assert made.run() == "finished", made.reason()
    assert load_model(made.task.folder / "model.json").trees == pooled(made)


def test_a_trial_is_the_simulation(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, '[split]\nname = "dealt"\nclients = 3\n', HISTOGRAMS))
    assert made.run() == "finished", made.reason()
    run_experiment(made.grid, "trial", tmp_path / "simulated")
    simulated = tmp_path / "simulated" / made.task.folder.relative_to(tmp_path / "sites-run")
    mine, theirs = (load_model(folder / "model.json") for folder in (made.task.folder, simulated))
    assert mine.trees == theirs.trees
    assert files_of(made.task.folder)["rounds.csv"] == files_of(simulated)["rounds.csv"]


def test_a_site_sends_nothing_else_and_refuses_what_does_not_fit(tmp_path):
    made = real(tmp_path)
    with Site.open(made.folders["site-0"]) as site:
        hello = protocol.request("hello", made.plan.run, 0, plan=made.plan.dump())
        site.answer(hello)

        def refused(content: bytes) -> str:
            answer = site.answer(content)
            assert wire.read_label(answer).kind == "refused"
            return answer.decode("utf-8", "replace")

        assert "this run grows one forest and does not" in refused(protocol.request("forest", made.plan.run, 1))
        whom = np.array([0], "<i8").tobytes()
        other = np.array([1], "<i8").tobytes()
        assert "unknown kind of message" in refused(
            protocol.request("grow", made.plan.run, 1, whom=whom, message=wire.pack(wire.Label("x", bytes(16), 0), {}))
        )
        assert "this site has [0]" in refused(protocol.request("grow", made.plan.run, 1, whom=other, message=b"x"))
        assert "too short" in refused(protocol.request("grow", made.plan.run, 1, whom=whom, message=b"x"))
    assert read_letor(made.folders["site-0"] / "own.txt").documents > 0


@pytest.mark.long
def test_sites_vote_and_sites_that_vote_for_all_lose_nothing(tmp_path):
    from fedrank.deploy.data_sources import load_share

    for name in ("some", "all"):
        (tmp_path / name).mkdir()
    made = real(tmp_path / "some", VOTING)
    assert made.run() == "finished", made.reason()
    shares = [load_share(read_site(folder).data) for folder in made.folders.values()]
    rules, edges = Histograms.rules(made.task.experiment.booster), grid_edges(made.plan.features)
    plan = GrowPlan(rules, edges, made.plan.seed, made.plan.clients, vote=1)
    grown = list(grow_forest(LocalClients(plan, [plan.store(share.train, share.test) for share in shares])))
    best = int(np.argmax([quality for _, quality in grown])) + 1
    assert load_model(made.task.folder / "model.json").trees == tuple(tree for tree, _ in grown[:best])
    view = look_at(made.folders["site-0"], read_site(made.folders["site-0"]), made.plan)
    assert "for the 1 features with the largest gain on own rows" in view.leaves[1].about
    every = real(tmp_path / "all", f"{HISTOGRAMS}vote = {made.plan.features - 1}\n")
    assert every.run() == "finished", every.reason()
    assert load_model(every.task.folder / "model.json").trees == pooled(every)


def test_what_leaves_is_told_before(tmp_path):
    made = real(tmp_path, SECURE)
    view = look_at(made.folders["site-0"], read_site(made.folders["site-0"]), made.plan)
    assert [one.what for one in view.leaves][:1] == ["histograms"]
    assert "aggregated over all sites" in view.leaves[0].about
    assert not any(one.covered for one in view.leaves)


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        ('edges = "pooled"\n', "cannot be derived from a plan"),
        ('edges = "pooled"\nprivate = "random-splits"\n', "cannot undo"),
        ('private = "random-splits"\nunit = "row"\n', "unit"),
    ],
)
def test_plans_that_cannot_be(tmp_path, merge, message):
    with pytest.raises(SpecError, match=message):
        real(tmp_path, HISTOGRAMS + merge)


def test_a_secure_sum_needs_everybodys_key(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n', SECURE), sites=3, simulated=False)
    assert made.run() != "finished"
    assert "no key of site-0" in made.reason()


# Under noise


NOISED = f'{HISTOGRAMS}private = "histograms"\nunit = "client"\nnoise = 20.0\ndepth = 2\n'
RELEASES = 6 * 3  # trees, and levels of each with its leaves


def noised(folder, secure: bool, unit="client", **policy) -> Federation:
    merge = NOISED.replace("client", unit) + ("secure = true\n" if secure else "")
    folder.mkdir(exist_ok=True)
    made = real(folder, merge)
    for where in made.folders.values():  # what leaves has noise: nobody here lets anything else leave
        text = (where / "site.toml").read_text().replace("unprotected = true", "unprotected = false")
        for key, value in policy.items():
            text = text.replace("[policy]\n", f"[policy]\n{key} = {json.dumps(value)}\n")
        (where / "site.toml").write_text(text)
    return made


def outbox_of(made: Federation, name: str) -> Outbox:
    return Outbox(made.folders[name] / "outbox" / made.plan.digest[:32], made.plan.run)


def charged(made: Federation) -> dict[str, int]:
    accounts = {}
    for name, where in made.folders.items():
        [ledger] = ledgers_below(where / "people")
        accounts[name] = int(Account.read(ledger).participations.max())
    return accounts


def leaf_weights(made: Federation) -> list[list[float]]:
    forest = load_model(made.task.folder / "model.json")
    lines = [dict(line.split("=") for line in tree.split("\n")) for tree in forest.trees]
    return [[float(value) for value in tree["leaf_weight"].split()] for tree in lines]


@pytest.mark.long
@pytest.mark.parametrize("secure", [False, True])
def test_noise_is_written_and_paid_for_before_it_leaves(tmp_path, secure):
    made = noised(tmp_path, secure)
    seen = []

    def listen(name, content, answer):
        if wire.read_label(answer).kind == "grown":  # what has left lies in the outbox, if it has noise
            box = outbox_of(made, name)
            sent = [box.get(number) for number in range(1, box.last + 1)]
            seen.append(any(one.answer == answer for one in sent if one is not None))
        return answer

    assert made.run(listen) == "finished", made.reason()
    assert sum(seen) == 3 * RELEASES
    assert charged(made) == dict.fromkeys(made.folders, RELEASES)
    card = json.loads((made.task.folder / "privacy.json").read_text())
    [guarantee] = card["promises"]
    rho = RELEASES / (2 * 20.0**2)
    assert guarantee["unit"] == "client"
    assert guarantee["times"] == RELEASES
    assert rho < guarantee["epsilon"] <= rho + 2 * np.sqrt(rho * np.log(1e5))
    assert ("sees only" in card["who_sees_what"]) == secure
    for where in made.folders.values():
        [place] = (where / "models").iterdir()
        assert len(load_model(place / "model.json").trees) == 6
    if not secure:  # the forest is made of what the outboxes hold, and of nothing else
        label = wire.Label("noised-sums", agreed(made.plan).run, 0, 0)
        for tree, weights in enumerate(leaf_weights(made)):
            total = np.zeros(8, np.int64)
            for number, name in enumerate(made.folders):
                reply = outbox_of(made, name).get(1 + 3 * tree + 2).answer
                answers = wire.unpack(
                    reply, wire.Label("grown", made.plan.run, 1, 0, number), {"answers": wire.Part("|S", 1 << 20)}
                )[1]["answers"]
                [message] = protocol.unbundle(answers, 1, 1 << 20)
                expected = replace(label, round=tree, sender=number)
                total += wire.unpack(message, expected, {"sums": wire.Part("<i8", 8)})[1]["sums"]
            np.testing.assert_allclose(weights, total.reshape(4, 2)[:, 1] / 2**20)


@pytest.mark.long
def test_lines_that_break_and_restarts_cost_nobody_twice(tmp_path):
    """Without masks the same noise is sent again; each site is asked anew after a stop of the coordinator."""
    made = noised(tmp_path, secure=False)
    asked = []

    def once(name, content, answer):
        if wire.read_label(content).kind == "grow":
            asked.append(name)
            if len(asked) in (9, 23):
                raise RuntimeError("the line broke, after the site had answered")
        return answer

    assert made.run(once, stop=lambda: len(asked) > 40) == "interrupted"
    assert made.run() == "finished", made.reason()
    assert charged(made) == dict.fromkeys(made.folders, RELEASES)


@pytest.mark.long
def test_under_a_secure_sum_a_new_attempt_is_paid_for(tmp_path):
    made = noised(tmp_path, secure=True)
    asked = []

    def once(name, content, answer):
        if wire.read_label(content).kind == "grow" and name == "site-1":
            asked.append(name)
            if len(asked) == 6:
                raise RuntimeError("the line broke, after the site had answered")
        return answer

    assert made.run(once) == "finished", made.reason()
    paid = charged(made)
    assert RELEASES < paid["site-1"] <= RELEASES + 3
    assert max(paid.values()) == paid["site-1"]


@pytest.mark.long
def test_a_site_that_was_killed_between_outbox_and_ledger_pays_once(tmp_path, monkeypatch):
    made = noised(tmp_path, secure=False)
    reserve, killed = Ledger.reserve, []

    def dying(self, rounds):
        if 5 in rounds and not killed:
            killed.append(True)
            raise OSError("killed")
        return reserve(self, rounds)

    monkeypatch.setattr(Ledger, "reserve", dying)
    assert made.run() == "finished", made.reason()
    assert killed
    assert charged(made) == dict.fromkeys(made.folders, RELEASES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "query"}, 'merge.unit: "query" protects less than policy.unit = "site"'),
        ({"unit": "query", "placements": ["secure-aggregation"]}, "placements"),
        ({"largest": 0.1}, "this run alone would cost ε"),
    ],
)
def test_plans_that_a_policy_refuses_by_name(tmp_path, settings, message):
    largest = settings.pop("largest", None)
    made = noised(tmp_path, secure=False, **settings)
    where = made.folders["site-0"]
    if largest is not None:
        text = (where / "site.toml").read_text().replace("largest_epsilon = 8.0", f"largest_epsilon = {largest}")
        (where / "site.toml").write_text(text)
    view = look_at(where, read_site(where), made.plan)
    assert any(message in line for line in view.refused), view.refused
    assert view.leaves[0].what == "noised sums"
    assert view.leaves[0].covered


def test_persons_must_be_named(tmp_path):
    made = noised(tmp_path, secure=False, unit="person")
    for where in made.folders.values():
        text = (where / "site.toml").read_text().replace("[policy]\n", '[policy]\nunit = "person"\n')
        (where / "site.toml").write_text(text)
    assert made.run() != "finished"
    assert "do not record persons" in made.reason()


@pytest.mark.long
def test_a_restored_site_adds_no_noise_to_a_run_that_has_begun(tmp_path):
    made = noised(tmp_path, secure=False)
    RestoreMark("2026-01-02", "2026-01-01", True).write(made.folders["site-2"])
    assert made.run() == "finished", "nothing had left it before this run"
    again = noised(tmp_path / "again", secure=False)
    asked = []

    def listen(name, content, answer):
        asked.append(wire.read_label(content).kind)
        return answer

    assert again.run(listen, stop=lambda: asked.count("grow") > 12) == "interrupted"
    where = again.folders["site-2"]
    RestoreMark("2026-01-02", "2026-01-01", True).write(where)
    shutil.rmtree(where / "outbox")
    with Site.open(where) as site:
        site.answer(protocol.request("hello", again.plan.run, 1, plan=again.plan.dump()))
        message = wire.pack(
            wire.Label("noised-ask", agreed(again.plan).run, 0),
            {"number": np.array([0]), "cuts": b"", "roster": b""},
        )
        request = protocol.request("grow", again.plan.run, 1, whom=np.array([2], "<i8").tobytes(), message=message)
        assert b"the stored message is lost" in site.answer(request)


def test_other_rows_in_the_middle_of_a_forest_are_refused(tmp_path):
    made = real(tmp_path)
    asked = []

    def listen(name, content, answer):
        asked.append(wire.read_label(content).kind)
        return answer

    assert made.run(listen, stop=lambda: asked.count("grow") > 12) == "interrupted"
    own = made.folders["site-1"] / "own.txt"
    own.write_text("".join(own.read_text().splitlines(keepends=True)[:-3]))
    with Site.open(made.folders["site-1"]) as site:
        answer = site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
    assert b"have changed since it started to participate" in answer
