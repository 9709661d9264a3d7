"""Secure sums between real sites: who vanishes when, coordinators that break the rules, and what leaves a site."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from fedrank import wire
from fedrank.deploy import consent, protocol, site_calls, site_data
from fedrank.deploy.plan import Plan
from fedrank.deploy.site import Site
from fedrank.federated.messages import Call
from fedrank.privacy import secure_aggregation, secure_messages
from tests.deploy.active_server import WAYS, ActiveServer
from tests.deploy.real_trial import LINEAR, NOISE, SUM, RealTrial

pytestmark = pytest.mark.usefixtures("unconfirmed")

PHASES = protocol.PHASES


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(site_calls, "PAUSE", 0.01)


def vanishing(phase: str, who: set[str], answered: bool):
    """Nobody hears these sites from a phase on, of the first try; where they `answered`, what they said was lost."""
    gone: set[str] = set()

    def between(name, request, answer):
        label = wire.read_label(request)
        if name in who and label.attempt == 0 and label.kind in PHASES:
            if label.kind == phase:
                gone.add(name)
            if name in gone:
                if answered and label.kind == phase:
                    answer()
                raise TimeoutError("nobody is there")
        return answer()

    return between


def check(trial: RealTrial, attempts: int) -> None:
    """The model is what some outboxes add up to, and every try is charged and counted."""
    size, mechanism, n = trial.plan.sent, trial.task.experiment.mechanism, len(trial.names)
    card = json.loads((trial.task.folder / "privacy.json").read_text())
    assert card["participations_charged"] == attempts + 1
    weights = np.array(json.loads((trial.task.folder / "model.json").read_text())["weights"])
    sent = {name: trial.outbox(name).get(1) for name in trial.names}
    values = {
        name: np.frombuffer(one.values, "<i8")
        for name, one in sent.items()
        if one is not None and one.attempt == attempts
    }
    totals = [sum(values.values(), np.zeros(size, np.int64))]
    totals += [totals[0] - one for one in values.values()]  # of whom the last letter was lost
    scale = mechanism.step(n) / n
    assert any(np.allclose(weights, total * scale, atol=1e-9) for total in totals)
    for name, one in sent.items():
        assert trial.paid(name) == (0 if one is None else len(list(trial.outbox(name).folder.glob("0*-0*")))), name


@pytest.mark.parametrize("n", [3, 4, pytest.param(6, marks=pytest.mark.long)])
@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_site_that_vanishes_in_a_phase(tmp_path, phase, answered, n):
    """Three stop and try again with fresh noise, which is charged; four and six go on without it."""
    trial = RealTrial(tmp_path, LINEAR + SUM, sites=n, rounds=1, min_sites=n - 1)
    assert trial.run(vanishing(phase, {trial.names[1]}, answered)) == "finished"
    check(trial, attempts=1 if n == 3 else 0)


@pytest.mark.parametrize("phase", PHASES)
def test_more_than_the_threshold_allows(tmp_path, phase):
    trial = RealTrial(tmp_path, LINEAR + SUM, sites=4, rounds=1, min_sites=2)
    assert trial.run(vanishing(phase, set(trial.names[:2]), False)) == "finished"
    check(trial, attempts=1)


def test_a_try_after_another_draws_fresh_noise(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM, rounds=1)
    assert trial.run(vanishing("open", {"clinic-a"}, False)) == "finished"
    folder = trial.outbox("clinic-b").folder
    first, second = sorted(folder.glob("0*-0*"))
    size = 8 * trial.plan.sent
    values = []
    for attempt, path in enumerate((first, second)):
        parts = {name: wire.Part("|S", 10_000) for name in ("call", "answer", "values", "memory", "data", "used")}
        found = wire.unpack(path.read_bytes(), wire.Label("sent", trial.plan.run, 1, attempt), parts)[1]
        assert len(found["values"]) == size
        values.append(np.frombuffer(found["values"], "<i8"))
    assert (values[0] != values[1]).any()
    assert trial.paid("clinic-b") == 2


def test_a_plan_with_another_key_for_a_partner_is_refused(tmp_path):
    """Whoever brings the plan could have put a key of its own into it: those that were compared count."""
    trial = RealTrial(tmp_path, LINEAR + SUM)
    content = json.loads(trial.plan.dump())
    content["sites"][1]["identity"] = "ab" * 32
    other = Plan.load(json.dumps(content).encode())
    with Site.open(trial.folders["clinic-a"]) as site:
        answer = site.answer(protocol.request("hello", other.run, plan=other.dump()))
        assert b"differs from the one compared before" in answer
        assert b"say hello first" in site.answer(protocol.request("share", other.run, 1, roster=b""))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("", b"no key of clinic-b"),
        ("own", b"key of this site in the plan is not its own"),
        ("twice", b"same key, so one site could impersonate"),
    ],
)
def test_keys_of_a_plan_that_cannot_be(tmp_path, monkeypatch, change, word):
    trial = RealTrial(tmp_path, LINEAR + SUM)
    content = json.loads(trial.plan.dump())
    which = 0 if change == "own" else 1
    content["sites"][which]["identity"] = {
        "": "", "own": "ab" * 32, "twice": content["sites"][2]["identity"],
    }[change]  # fmt: skip
    other = Plan.load(json.dumps(content).encode())
    monkeypatch.setattr(consent, "objection", lambda *args: None)  # even where somebody said yes to it
    with Site.open(trial.folders["clinic-a"]) as site:
        assert word in site.answer(protocol.request("hello", other.run, plan=other.dump()))


@pytest.mark.long
def test_an_active_server_opens_no_single_update(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM, sites=4, rounds=1)
    with ExitStack() as opened:
        open_sites = {name: opened.enter_context(Site.open(where)) for name, where in trial.folders.items()}
        for site in open_sites.values():
            assert wire.read_label(site.answer(trial.hello())).kind == "facts"
        server = ActiveServer(trial, open_sites, np.random.default_rng(7))
        for number in range(3 * len(WAYS)):
            server.attack(WAYS[number % len(WAYS)])
    assert server.found == []
    assert server.refused > 500
    assert server.sums >= 6  # those in which it kept the rules, or broke them in vain
    for name in trial.names:
        masked = len(list(trial.outbox(name).folder.glob("0*-0*")))
        assert trial.paid(name) == masked  # each try was paid for


@pytest.mark.parametrize("text", [LINEAR + NOISE, LINEAR + NOISE.replace("gaussian", "laplace"), LINEAR + SUM])
def test_what_leaves_is_never_without_noise(tmp_path, monkeypatch, text):
    """Every byte string that leaves a site is searched for its bare update, as floats and as grid steps."""
    trial = RealTrial(tmp_path, text, rounds=3)
    bare, left = [], []
    mechanism = trial.task.experiment.mechanism
    real = type(mechanism).protect

    def protect(self, messages, cohort, source, counts=None):
        step = self.step(cohort)
        from fedrank.privacy.clip import contributions, weights_of

        steps = contributions(messages.updates, weights_of(messages.sizes, self.cap), self.clip, self.norm, step)
        bare.append((messages.updates[0].copy(), steps[0], step))
        return real(self, messages, cohort, source, counts)

    monkeypatch.setattr(type(mechanism), "protect", protect)

    def listen(name, request, answer):
        found = answer()
        left.append(found)
        return found

    assert trial.run(listen) == "finished"
    assert len(bare) == 9
    told = [one for one in bare if one[1].any()]  # some learnt nothing in a round
    assert len(told) > 4
    for update, steps, step in told:
        for pattern in (
            update.astype("<f4").tobytes(), update.astype("<f8").tobytes(), steps.astype("<i8").tobytes(),
            (steps % 2**32).astype("<u4").tobytes(), (steps * step).astype("<f4").tobytes(),
        ):  # fmt: skip
            # No two numbers next to each other, either: noise is on every one.
            pairs = {pattern[at : at + len(pattern) // len(update) * 2] for at in range(0, len(pattern), 4)}
            pairs = {pair for pair in pairs if len(pair) >= 8 and len(set(pair)) > 3}
            assert not [content for content in left if any(pair in content for pair in pairs)]


def test_the_answers_of_evolution_are_flipped_by_chance_that_nobody_knows(tmp_path, monkeypatch):
    """Not by the site's seed, which lies on a disk: two sites with one seed and the same data answer differently."""
    text = '[server]\nname = "adam"\nrate = 0.1\n[learner]\nname = "evolution"\ntruth = 0.5\n'
    trial = RealTrial(tmp_path, text + '[mechanism]\nname = "es-randomised-response"\n', rounds=1)
    drawn = []
    real = site_data.Chance
    monkeypatch.setattr(site_data, "Chance", lambda seed, round: drawn.append(seed) or real(seed, round))
    assert trial.run() == "finished"
    seeds = {int((folder / "seed").read_text()) for folder in trial.folders.values() if (folder / "seed").exists()}
    assert len(set(drawn)) == 3
    assert not seeds & set(drawn)
    assert all(seed.bit_length() > 200 for seed in drawn)


def test_a_site_that_spoils_sums_is_left_out(tmp_path):
    """Who dealt shares that nobody can read is known at the end, when all have paid: that happens three times."""
    trial = RealTrial(tmp_path, LINEAR + SUM, sites=4, rounds=1, min_sites=3)

    def spoil(name, request, answer):
        found, label = answer(), wire.read_label(request)
        if name != "clinic-d" or label.kind != "share":
            return found
        call = Call(label.run, label.round, np.zeros(trial.plan.sent, np.float32), 4.0, label.attempt)
        agreed = trial.plan.sum_terms(call)
        agreed.pop("min_survivors")
        terms = secure_messages.Terms(**agreed, signed=True)
        content = wire.unpack(found, wire.read_label(found), {"letters": wire.Part("|S", 1 << 20)})[1]["letters"]
        [letter] = protocol.unbundle(content, 1, 1 << 20)
        _, body = terms.unpack("shares", letter)
        size = secure_messages.DEALER.size
        boxes = [
            secure_messages.BOX.pack(to, bytes(80), *committed)
            for to, _, *committed in secure_messages.BOX.iter_unpack(body[size:])
        ]
        letter = terms.pack("shares", 40, body[:size] + b"".join(boxes))
        return protocol.reply("letters", label, 40, letters=protocol.bundle([letter]))

    assert trial.run(spoil) == "finished"
    left_out = json.loads((trial.task.folder / "left-out.json").read_text())
    assert list(left_out) == ["clinic-d"]
    assert "excluded after spoiling 3 sums" in left_out["clinic-d"]
    assert trial.paid("clinic-a") == 4
    assert json.loads((trial.task.folder / "privacy.json").read_text())["participations_charged"] == 4


def test_masks_depend_on_the_whole_plan_and_call(tmp_path):
    plan = RealTrial(tmp_path, LINEAR + SUM, sites=4, rounds=1).plan
    call = Call(plan.run, 1, np.zeros(plan.sent, np.float32), 4.0)
    others = [
        (plan, replace(call, weights=np.ones(plan.sent, np.float32))),
        (plan, replace(call, cohort=5.0)),
        (plan, replace(call, common=call.weights)),
        (replace(plan, spec=plan.spec + "# other\n"), call),
        (replace(plan, seed=plan.seed + 1), call),
        (replace(plan, sites=(*plan.sites[:-1], replace(plan.sites[-1], identity="0" * 64))), call),
    ]
    requests = {one.sum_terms(asked)["request"] for one, asked in [(plan, call), *others]}
    assert len(requests) == 1 + len(others)


def test_the_active_server_would_find_sites_that_keep_no_rules(tmp_path, monkeypatch):
    """So that what it does not find above is not there."""
    monkeypatch.setattr(secure_aggregation.SumClient, "_settle", secure_aggregation.SumClient._read_request)
    monkeypatch.setattr(secure_aggregation.SumClient, "_check_consent", lambda *args: None)
    trial = RealTrial(tmp_path, LINEAR + SUM, sites=4, rounds=1)
    with ExitStack() as opened:
        open_sites = {name: opened.enter_context(Site.open(where)) for name, where in trial.folders.items()}
        for site in open_sites.values():
            site.answer(trial.hello())
        server = ActiveServer(trial, open_sites, np.random.default_rng(7))
        server.attack("honest")
    assert "both secrets" in server.found[0]
    assert "sums of" in server.found[-1]
