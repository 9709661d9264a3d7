"""Organisations with documents: letters that the coordinator cannot open, and turns."""

from __future__ import annotations

import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrank import wire
from fedrank.data.collection import read_collection
from fedrank.deploy import protocol
from fedrank.deploy.backup import backup, restore
from fedrank.deploy.consent import accept, proposals
from fedrank.deploy.coordinate import coordinate
from fedrank.deploy.folder import FolderSend
from fedrank.deploy.identity import new_identity
from fedrank.deploy.make_plans import plan_runs
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.plan import Plan, PlannedSite
from fedrank.deploy.settings import read_site
from fedrank.deploy.show import about_plan, drafts, look_at
from fedrank.deploy.silos import FIRST_TURN, STEPS
from fedrank.deploy.site import Site
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.source import read_spec
from fedrank.ranking.model import load_weights
from fedrank.silo.features import RANGES
from fedrank.silo.files import ledger_of, open_sketch
from fedrank.silo.keys import read_key, read_public, read_secret
from fedrank.silo.letters import party, read_address, unseal
from fedrank.silo.member import turn_order
from fedrank.silo.partners import Sketched
from fedrank.silo.turns import KnownPartner, take_turn
from fedrank.trees.export import export
from fedrank.wire import Label
from tests.deploy.real_trial import without_heads
from tests.deploy.test_cli_deploy import FINGERPRINT, SITES, fedrank, serving
from tests.silo.test_turns import write_collection

__all__ = ["fedrank"]  # a fixture

SITE = """
name = "{name}"
id = {id}
federation = "hospitals"
[data]
documents = "data/corpus.jsonl"
[policy]
learners = ["{learner}"]
unprotected = {unprotected}
largest_epsilon = {epsilon}
min_sites = 2
"""
SPEC = """
kind = "silo"
rounds = 3
[method]
name = "cross-silo"
width = 128
depth = 7
noise = 1.0
k = 10
rate = 0.4
batch = 16
[silos]
count = {sites}
[data]
folder = "judging"
"""


class Hospitals:
    """Sites in this process, and a coordinator that asks them."""

    def __init__(self, folder: Path, sites: int = 3, **policy) -> None:
        self.folder, names = folder, [f"hospital-{place}" for place in range(sites)]
        self.folders = {name: folder / name for name in names}
        keys = {}
        for place, (name, home) in enumerate(self.folders.items()):
            home.mkdir(mode=0o700)
            keys[name] = new_identity(home)
            write_collection(home / "data", place, sites + 1)
            said = {"learner": "cross-silo", "unprotected": "true", "epsilon": "40.0"} | (policy if place == 0 else {})
            (home / "site.toml").write_text(SITE.format(name=name, id=place, **said))
        write_collection(folder / "judging", sites, sites + 1)
        spec = folder / "spec.toml"
        spec.write_text(SPEC.format(sites=sites))
        self.grid = read_spec(spec)
        parties = [PlannedSite(name, (place,), keys[name]) for place, name in enumerate(names)]
        [(self.task, self.plan)] = plan_runs(self.grid, "trial", folder / "runs", parties, "hospitals")
        for home in self.folders.values():
            accept(home, self.plan)

    def run(self, between=None, stop=lambda: False) -> str:
        with ExitStack() as open_sites, ThreadPoolExecutor(len(self.folders)) as pool:
            sites = {name: open_sites.enter_context(Site.open(home)) for name, home in self.folders.items()}

            def ask(name: str, content: bytes) -> bytes:
                if between is None:
                    return sites[name].answer(content)
                return without_heads(
                    content, sites[name].answer, lambda request, answer: between(name, request, answer())
                )

            def send(name, content, wait):
                return pool.submit(ask, name, content)

            return coordinate(self.task, self.plan, send, stop=stop, patience=60.0)

    def reason(self) -> str:
        return load_runs(self.task.folder)[0].reason

    def outbox(self, name: str) -> Outbox:
        return Outbox(self.folders[name] / "outbox" / self.plan.digest[:32], self.plan.run)

    def parties(self) -> dict[str, object]:
        """The parties of letters, by their sites; only a test holds all secrets."""
        homes = {name: self.outbox(name).folder for name in self.folders}
        public = {name: read_public(home / "silo.public") for name, home in homes.items()}
        return {
            name: party(read_secret(home / "silo.secret"), [key for other, key in public.items() if other != name])
            for name, home in homes.items()
        }


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("fedrank.deploy.site_calls.PAUSE", 0.01)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run that is over, and all that passed through the coordinator."""
    made, passed = Hospitals(tmp_path_factory.mktemp("hospitals")), []

    def listen(name, content, answer):
        passed.append((name, content, answer))
        return answer

    assert made.run(listen) == "finished", made.reason()
    return made, passed


@pytest.mark.long
def test_turns_are_those_of_sketches_that_were_not_sent(done):
    """The same sketches as each partner may see them, without letters, turn by turn."""
    made, _ = done
    parties, model = made.parties(), None
    home = {one.name: made.folders[name] for name, one in parties.items()}
    of = {one.name: one for one in parties.values()}
    for turn in turn_order(sorted(of), 3):
        me, collection = of[turn.party], read_collection(home[turn.party] / "data")
        key = read_key(home[turn.party] / "silo" / "shared.key")
        partners = []
        for other in sorted(of.keys() - {me.name}):
            file = open_sketch(home[other] / "silo" / "own.sketch")
            partners.append(KnownPartner(other, Sketched(file.copy_for(me.name), key), file.sketcher, file.fingerprint))
        chosen = {"k": 10, "rate": 0.4, "batch": 16, "seed": 1, "top_grade": 2}
        model = take_turn(collection, me, partners, model, chosen, turn.passes).model
    found = load_weights(made.task.folder / "model.json")
    assert found.weights.tolist() == model.weights[:-1].tolist()
    assert [turn["party"] for turn in found.notes["silo"]["turns"]] == [turn.party for turn in model.turns]


@pytest.mark.long
def test_on_fixed_ranges_everybody_gets_a_model_that_can_be_exported(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SPEC", SPEC.replace("batch = 16", 'batch = 16\nnormalise = "fixed"'))
    made = Hospitals(tmp_path, sites=2)
    assert made.plan.normalised == "global"
    assert made.run() == "finished", made.reason()
    for folder in (made.task.folder, next((made.folders["hospital-1"] / "models").iterdir())):
        model = load_weights(folder / "model.json")
        assert (model.normalised, model.notes["silo"]["normalise"]) == ("global", "fixed")
        assert model.ranges.tolist() == RANGES.tolist()
        assert export(folder, "solr", folder / "solr.json").what == "LinearModel for Solr of 16 features"


def test_the_run_folder_is_that_of_a_run(done):
    made, _ = done
    folder = made.task.folder
    lines = (folder / "rounds.csv").read_text().splitlines()
    assert len(lines) == 4
    card = json.loads((folder / "privacy.json").read_text())
    assert card["what"] == "deployed run"
    assert card["promises"][0]["epsilon"] == pytest.approx(6.6, abs=0.2)
    assert any("weights that a silo sends" in line for line in card["not_covered"])
    for home in made.folders.values():
        [place] = (home / "models").iterdir()
        assert (place / "model.json").read_bytes() == (folder / "model.json").read_bytes()
        assert (place / "privacy.json").exists()
        assert "on held-out own queries" in (home / "site.log").read_text()


def test_the_coordinator_cannot_open_what_it_carries(done):
    made, passed = done
    shared = read_key(made.folders["hospital-0"] / "silo" / "shared.key")
    words = {word.encode() for home in made.folders.values() for q in read_collection(home / "data").queries
             for word in q.split() if len(word) > 5}  # fmt: skip
    kinds = []
    for _, content, answer in passed:
        assert shared not in content + answer
        if wire.read_label(content).kind in ("silo-ask", "silo-answer", "silo-hear"):
            assert not any(word in content + answer for word in words)
        if wire.read_label(answer).kind == "letters" and wire.read_label(content).kind in ("silo-ask", "silo-answer"):
            kinds += [read_address(letter).kind for letter in letters_of(answer)]
    assert set(kinds) == {"question", "answer"}
    sealed = [answer for _, content, answer in passed if wire.read_label(content).kind == "silo-turn"]
    assert [b'"weights"' in answer for answer in sealed] == [False] * (len(sealed) - 1) + [True]


def letters_of(answer: bytes) -> list[bytes]:
    _, found = wire.unpack(answer, wire.read_label(answer), {"letters": wire.Part("|S", 1 << 26)})
    return protocol.unbundle(found["letters"], 4096, 1 << 26)


def test_letters_are_for_one_other_site_alone(done):
    made, passed = done
    parties = made.parties()
    [letter, *_] = letters_of(
        next(answer for _, content, answer in passed if wire.read_label(content).kind == "silo-ask")
    )
    address = read_address(letter)
    for one in parties.values():
        if one.name == address.addressee:
            assert unseal(letter, "question", one)[0] == address.sender
        elif one.name != address.sender:
            with pytest.raises(ValueError, match="the coordinator must deliver it there"):
                unseal(letter, "question", one)


@pytest.mark.usefixtures("unconfirmed")
def test_asked_again_a_site_sends_the_same_bytes_and_pays_once(done):
    made, passed = done
    spent = {name: ledger_of(open_sketch(home / "silo" / "own.sketch")).spent() for name, home in made.folders.items()}
    assert all(6 < cost < 7 for cost in spent.values())
    for name, home in made.folders.items():
        with Site.open(home) as site:
            for other, content, answer in passed:
                if other == name and wire.read_label(content).kind in ("hello", *STEPS, "silo-turn"):
                    again = site.answer(content)
                    assert again == answer or wire.read_label(content).kind == "hello"
        assert ledger_of(open_sketch(home / "silo" / "own.sketch")).spent() == spent[name]


def test_deleted_or_truncated_charges_of_sketches_are_noticed(done, tmp_path):
    made, _ = done
    home = tmp_path / "hospital-1"
    hello = protocol.request("hello", made.plan.run, 0, plan=made.plan.dump())
    shutil.copytree(made.folders["hospital-1"], home)
    [log] = (home / "silo").rglob("charges.log")
    with Site.open(home) as site:
        assert wire.read_label(site.answer(hello)).kind == "facts"
    log.write_bytes(log.read_bytes()[:-1])
    with Site.open(home) as site:
        assert b"charges for sketches of this site were truncated" in site.answer(hello)
    shutil.rmtree(home / "silo")
    with Site.open(home) as site:
        assert b"charges for sketches of this site were truncated" in site.answer(hello)


@pytest.mark.usefixtures("unconfirmed")
def test_another_request_for_the_same_step_is_refused(done):
    made, _ = done
    with Site.open(made.folders["hospital-1"]) as site:
        site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
        for kind, number in [*STEPS.items(), ("silo-turn", None)]:
            if number is None:
                number = made.outbox("hospital-1").last
            request = wire.pack(
                Label(kind, made.plan.run, number), {"letters": protocol.bundle([b"other"]), "top": np.array([2])}
            )
            assert b"is not answered twice" in site.answer(request), kind
        free = next(n for n in range(FIRST_TURN, FIRST_TURN + 20) if made.outbox("hospital-1").get(n) is None)
        request = wire.pack(
            Label("silo-turn", made.plan.run, free), {"letters": protocol.bundle([b"x"]), "top": np.array([2])}
        )
        assert b"is not of this site" in site.answer(request)
        assert b"this run trains with sketches" in site.answer(protocol.request("round", made.plan.run, 1))


@pytest.mark.long
def test_a_coordinator_that_is_stopped_goes_on(tmp_path):
    made, asked = Hospitals(tmp_path, sites=2), []

    def count(name, content, answer):
        asked.append(wire.read_label(content).kind)
        return answer

    assert made.run(count, stop=lambda: "silo-answer" in asked) == "interrupted"
    assert "silo-turn" not in asked
    assert made.run(count) == "finished", made.reason()
    for home in made.folders.values():
        assert 6 < ledger_of(open_sketch(home / "silo" / "own.sketch")).spent() < 7


@pytest.mark.usefixtures("unconfirmed")
def test_a_key_that_the_coordinator_made_is_refused(tmp_path):
    """A server in the middle would read everything with keys of its own."""
    made = Hospitals(tmp_path, sites=2)
    for home in made.folders.values():
        with Site.open(home) as site:
            site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
            request = wire.pack(Label("silo-key", made.plan.run, 1), {"letters": b"", "top": np.array([2])})
            [own] = letters_of(site.answer(request))
            forged = [own, bytes(32) + own[32:]] if home.name == "hospital-0" else [bytes(32) + own[32:], own]
            request = wire.pack(
                Label("silo-meet", made.plan.run, 2), {"letters": protocol.bundle(forged), "top": np.array([2])}
            )
            assert b"is not signed by its identity" in site.answer(request)
    assert not list(tmp_path.rglob("shared.key"))
    assert not list(tmp_path.rglob("own.sketch"))


@pytest.mark.parametrize("kind", ["silo-ask", "silo-answer", "silo-turn"])
def test_a_site_that_sends_what_is_no_letter_is_named(tmp_path, kind):
    made = Hospitals(tmp_path, sites=2)

    def spoil(name, content, answer):
        label = wire.read_label(content)
        if name == "hospital-1" and label.kind == kind:
            return protocol.reply("letters", label, 1, letters=protocol.bundle([b"nonsense" * 40]))
        return answer

    assert made.run(spoil) == "failed"
    assert "hospital-1" in (made.task.folder / "sites.csv").read_text()
    assert "excluded after 3 consecutive invalid answers" in made.reason()


def test_a_policy_decides(tmp_path):
    plan = Hospitals(tmp_path, sites=2).plan

    def said(**policy):
        values = {"learner": "cross-silo", "unprotected": "true", "epsilon": "40.0"} | policy
        (tmp_path / "hospital-0" / "site.toml").write_text(SITE.format(name="hospital-0", id=0, **values))
        return " ".join(read_site(tmp_path / "hospital-0").objections(plan))

    assert said() == ""
    assert said(learner="pdgd").startswith('method.name: "cross-silo" is not in policy.learners')
    assert "the weights that sites pass on have none" in said(unprotected="false")
    assert "a sketch costs ε = 6." in said(epsilon="5.0")


@pytest.mark.usefixtures("unconfirmed")
@pytest.mark.long
def test_a_budget_that_is_spent_pays_for_no_second_sketch(tmp_path):
    made = Hospitals(tmp_path, sites=2, epsilon="8.0")
    assert made.run() == "finished", made.reason()
    corpus = tmp_path / "hospital-0" / "data" / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace('"text": "', '"text": "changed '))
    again = Plan.load(made.plan.dump().replace(b'"seed": 1,', b'"seed": 2,'))
    accept(made.folders["hospital-0"], again)
    with Site.open(made.folders["hospital-0"]) as site:
        answer = site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
        assert b"the data of this site have changed" in answer
        site.answer(protocol.request("hello", again.run, 0, plan=again.dump()))
        empty = {"letters": b"", "top": np.array([2])}
        [own] = letters_of(site.answer(wire.pack(Label("silo-key", again.run, 1), empty)))
        with Site.open(made.folders["hospital-1"]) as other:
            accept(made.folders["hospital-1"], again)
            other.answer(protocol.request("hello", again.run, 0, plan=again.dump()))
            [theirs] = letters_of(other.answer(wire.pack(Label("silo-key", again.run, 1), empty)))
        keys = {"letters": protocol.bundle([own, theirs]), "top": np.array([2])}
        assert len(letters_of(site.answer(wire.pack(Label("silo-meet", again.run, 2), keys)))) == 1
        assert b"its privacy budget does not allow it" in site.answer(wire.pack(Label("silo-ask", again.run, 4), empty))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("noise = 1.0", "noise = 0.0", "method.noise: 0 would reveal"),
        ("noise = 1.0", 'noise_in = "paper"', 'method.noise_in: must be "sketch" between sites'),
        ("noise = 1.0", 'scaling = "together"', 'method.scaling: must be "own" between sites'),
        ("noise = 1.0", "k_share = 0.1", "method.k_share: is supported only in a simulation"),
        ("noise = 1.0", "steps = 5", "method.steps: is supported only in a simulation"),
        ("count = 2", "count = 2\nof = 3", "silos.of: is valid only in a simulation"),
        ("noise = 1.0", 'combine = "mean"', "method.combine"),
        ("noise = 1.0", 'counts = "exact"', "method.counts"),
        ("count = 2", 'count = 2\nsplit = "topics"', "silos.split: is valid only in a simulation"),
        ("count = 2", "count = 3", "silos.count: 3, but 2 sites participate"),
    ],
)
def test_what_is_not_done_between_sites_is_named_before_anything_begins(tmp_path, old, new, said):
    write_collection(tmp_path / "judging", 0, 3)
    (tmp_path / "spec.toml").write_text(SPEC.format(sites=2).replace(old, new))
    parties = [PlannedSite(f"hospital-{place}", (place,), "ab" * 32) for place in range(2)]
    with pytest.raises(SpecError, match=said):
        plan_runs(read_spec(tmp_path / "spec.toml"), "trial", tmp_path / "runs", parties, "hospitals")


def test_a_plan_without_identities_is_refused(tmp_path):
    made = Hospitals(tmp_path, sites=2)
    nameless = replace(made.plan, sites=tuple(replace(site, identity="") for site in made.plan.sites))
    accept(made.folders["hospital-0"], nameless)
    with Site.open(made.folders["hospital-0"]) as site:
        answer = site.answer(protocol.request("hello", nameless.run, 0, plan=nameless.dump()))
    assert b"the plan has no key of hospital-0, hospital-1" in answer


def test_keys_of_partners_must_have_been_compared(tmp_path):
    made = Hospitals(tmp_path, sites=2)
    (made.folders["hospital-0"] / "partners.json").unlink()
    with Site.open(made.folders["hospital-0"]) as site:
        answer = site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
    assert b"have not been compared at this site" in answer


def test_what_a_site_is_shown(done):
    made, _ = done
    home = made.folders["hospital-0"]
    settings = read_site(home)
    view = look_at(home, settings, made.plan)
    assert {one.what: one.covered for one in view.leaves} == {
        "answers": True, "questions": False, "model": False, "facts": False, "confirmations": False,
        "statements about journals of other sites": False, "signed heads": False, "refusals": False,
    }  # fmt: skip
    assert view.refused == ()
    assert view.prices[0].total == pytest.approx(ledger_of(open_sketch(home / "silo" / "own.sketch")).spent())
    assert view.after == view.spent  # the same sketch is paid once
    text = markdown(about_plan(view))
    assert "one occurrence" in text
    assert "the weights that a silo sends" in text
    [draft] = drafts((made.folder / "spec.toml").read_text(), settings, None)
    assert draft.spec == made.plan.spec


def test_a_backup_holds_sketches_and_what_they_cost(done, tmp_path):
    made, _ = done
    home = made.folders["hospital-1"]
    backup(home, tmp_path / "backup.tar")
    restore(tmp_path / "backup.tar", tmp_path / "back")
    sketch, ledger = tmp_path / "back" / "silo" / "own.sketch", tmp_path / "back" / "silo" / "own.spending" / "ledger"
    assert sketch.read_bytes() == (home / "silo" / "own.sketch").read_bytes()
    spent = ledger_of(open_sketch(home / "silo" / "own.sketch")).spent()
    assert ledger_of(open_sketch(sketch)).spent() == spent > 6
    # A ledger that says less than its copy is made to say as much; one that says more stays.
    whole = (ledger / "charges.log").read_bytes()
    (ledger / "charges.log").write_bytes(whole[:16])
    restore(tmp_path / "backup.tar", tmp_path / "back")
    assert (ledger / "charges.log").read_bytes() == whole
    ledger_of(open_sketch(sketch)).charge_sketches(["new"], 1.0)
    longer = (ledger / "charges.log").read_bytes()
    restore(tmp_path / "backup.tar", tmp_path / "back")
    assert (ledger / "charges.log").read_bytes() == longer


@pytest.mark.long
def test_letters_travel_through_a_shared_folder_by_the_commands(tmp_path, fedrank, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedrank.deploy.folder.folder_send", lambda shared, home: FolderSend(shared, home, every=0.05))
    _, out, _ = fedrank("init", "--folder", "shared", "--name", "hospitals", "--home", "hub")
    coordinator = FINGERPRINT.search(out)[0]
    for id, name in enumerate(SITES):
        _, out, _ = fedrank("join", "shared", "--name", name, "--id", id, "--fingerprint", coordinator, "--home", name)
        own = FINGERPRINT.search(out)[0]
        fedrank("approve", name, "--id", id, "--fingerprint", own, "--home", "hub")
        write_collection(Path(name, "data"), id, 4)
        said = {"learner": "cross-silo", "unprotected": "true", "epsilon": "40.0"}
        Path(name, "site.toml").write_text(SITE.format(name=name, id=id, **said))
    write_collection(Path("judging"), 3, 4)
    Path("spec.toml").write_text(SPEC.format(sites=3).replace("rounds = 3", "rounds = 1"))
    code, out, err = fedrank("show", "spec.toml", "--home", SITES[0])
    assert (code, "sealed letters that it cannot read" in out) == (0, True), out + err
    threading.Thread(target=accept_when_it_comes, args=(SITES,), daemon=True).start()
    with serving():
        code, out, err = fedrank("run", "spec.toml", "--home", "hub")
    assert code == 0, out + err
    [run] = load_runs("hub/runs/spec")
    for name in SITES:
        [model] = Path(name, "models").glob("*/model.json")
        assert model.read_bytes() == (run.path / "model.json").read_bytes()


def accept_when_it_comes(names) -> None:
    """What people at the sites do, when they have compared the keys of the plan by telephone."""
    left = [Path(name).absolute() for name in names]
    while left:
        for home in list(left):
            if found := proposals(home):
                accept(home, found[0])
                left.remove(home)
        time.sleep(0.05)
