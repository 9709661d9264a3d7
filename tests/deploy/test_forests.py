"""Sites that merge forests: equal to the simulation, and nothing that comes from elsewhere is believed."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from fedrank import wire
from fedrank.data.letor import letor_lines
from fedrank.deploy import forests, protocol
from fedrank.deploy.coordinate import coordinate
from fedrank.deploy.folder import FolderSend
from fedrank.deploy.forests import ForestRun, portions_of, read_trees
from fedrank.deploy.identity import new_identity
from fedrank.deploy.make_plans import plan_runs, plan_task
from fedrank.deploy.plan import Plan, PlannedSite
from fedrank.deploy.settings import read_site
from fedrank.deploy.show import about_plan, drafts, look_at
from fedrank.deploy.site import Site
from fedrank.deploy.site_runtime import SiteHome
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import plan as tasks_of
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.source import read_spec
from fedrank.trees.model_files import load_model
from fedrank.wire import Label, Refused
from tests.deploy.plans import letor_file
from tests.deploy.real_trial import without_heads
from tests.deploy.test_cli_deploy import FINGERPRINT, SITES, fedrank, serving, site
from tests.made_up import made_up_data

__all__ = ["fedrank"]  # a fixture

pytest.importorskip("lightgbm")

BOOSTER = """
[booster]
name = "lambdamart"
trees = 6
leaves = 4
min_data_in_leaf = 3
"""
TRIAL = """
name = "{name}"
id = {id}
federation = "trial"
simulated = true
[data]
[policy]
learners = ["lambdamart"]
unprotected = true
min_sites = 1
accept = "within-policy"
"""
REAL = """
name = "{name}"
id = {id}
federation = "clinics"
[data]
letor = "own.txt"
test_share = 0.2
[policy]
learners = ["{learner}"]
unprotected = {unprotected}
largest_epsilon = 8.0
accept = "within-policy"
"""


def write_files(folder: Path) -> None:
    for number, (name, queries) in enumerate((("train", 40), ("validation", 24), ("test", 12)), start=1):
        data = made_up_data(queries=queries, longest=14, seed=number)
        (folder / f"{name}.txt").write_text("".join(letor_lines(data)))


def spec_of(folder: Path, split: str, merge: str = '[merge]\nname = "linear"\n', **more) -> Path:
    if not (folder / "train.txt").exists():
        write_files(folder)
    path = folder / "spec.toml"
    data = '[data]\ntrain = "train.txt"\nvalidation = "validation.txt"\ntest = "test.txt"\n'
    head = "".join(f"{key} = {json.dumps(value)}\n" for key, value in ({"kind": "trees"} | more).items())
    path.write_text(f"{head}{split}{BOOSTER}{merge}{data}")
    return path


class Federation:
    """Sites in this process, and a coordinator that asks them."""

    def __init__(self, folder: Path, spec: Path, sites: int = 2, simulated: bool = True, **policy) -> None:
        self.folder, self.grid = folder, read_spec(spec)
        if simulated:
            [self.task] = tasks_of(self.grid, "trial", folder / "sites-run")
            experiment = self.task.experiment
            count = len(portions_of(experiment, 1, self.task.seed))
            parties = [PlannedSite(f"site-{s}", tuple(range(s, count, sites))) for s in range(sites)]
            self.plan = plan_task(self.task, parties, "trial", simulated=True)
        else:
            parties = [PlannedSite(f"site-{s}", (s,)) for s in range(sites)]
            [(self.task, self.plan)] = plan_runs(self.grid, "trial", folder / "sites-run", parties, "clinics")
        self.folders = {party.name: folder / party.name for party in parties}
        for number, party in enumerate(parties):
            where = self.folders[party.name]
            if where.exists():
                continue
            where.mkdir(mode=0o700)
            new_identity(where)
            if simulated:
                text = TRIAL.format(name=party.name, id=party.clients[0])
            else:
                own = made_up_data(queries=30, longest=14, seed=10 + number)
                (where / "own.txt").write_text("".join(letor_lines(own)))
                said = {"learner": "lambdamart", "unprotected": "true"} | (policy if number == 0 else {})
                text = REAL.format(name=party.name, id=number, **said)
            (where / "site.toml").write_text(text)

    def run(self, between=None, stop=lambda: False) -> str:
        with ExitStack() as open_sites, ThreadPoolExecutor(len(self.folders)) as pool:
            sites = {name: open_sites.enter_context(Site.open(folder)) for name, folder in self.folders.items()}

            def ask(name: str, content: bytes) -> bytes:
                if between is None:
                    return sites[name].answer(content)
                return without_heads(
                    content, sites[name].answer, lambda request, answer: between(name, request, answer())
                )

            def send(name, content, wait):
                return pool.submit(ask, name, content)

            return coordinate(self.task, self.plan, send, stop=stop, patience=20.0)

    def reason(self) -> str:
        return load_runs(self.task.folder)[0].reason


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("fedrank.deploy.site_calls.PAUSE", 0.01)


def files_of(folder: Path) -> dict[str, bytes]:
    names = ("rounds.csv", "clients.csv", "queries.csv", "nothing.csv")
    models = [path.relative_to(folder).as_posix() for path in folder.rglob("model*") if path.is_file()]
    return {name: (folder / name).read_bytes() for name in (*names, *sorted(models))}


SMALL = '[merge.booster]\nname = "lambdamart"\ntrees = 3\nleaves = 3\nmin_data_in_leaf = 2\n'


@pytest.mark.long
@pytest.mark.parametrize("merge", ['[merge]\nname = "linear"\n', f'[merge]\nname = "stacking"\n{SMALL}'])
def test_a_trial_is_equal_to_the_simulation(tmp_path, merge):
    made = Federation(tmp_path, spec_of(tmp_path, '[split]\nname = "dealt"\nclients = 3\n', merge))
    assert made.run() == "finished", made.reason()
    run_experiment(made.grid, "trial", tmp_path / "simulated")
    simulated = tmp_path / "simulated" / made.task.folder.relative_to(tmp_path / "sites-run")
    mine, theirs = files_of(made.task.folder), files_of(simulated)
    assert sorted(mine) == sorted(theirs)
    assert [name for name in mine if mine[name] != theirs[name]] == []
    cards = [json.loads((folder / "privacy.json").read_text()) for folder in (made.task.folder, simulated)]
    assert all(cards[0][key] == cards[1][key] for key in ("what", "who_sees_what", "not_covered", "files", "clients"))


@pytest.mark.long
def test_organisations_get_the_model_that_their_forests_make(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)
    assert made.run() == "finished", made.reason()
    folder = made.task.folder
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["client"], row["queries"]) for row in rows] == [(f"site-{s}", "24") for s in range(3)]
    assert {row["ndcg@10 own before"] for row in rows} <= {"", "nan"}  # nobody says whose kind a test query is
    assert all(float(row["ndcg@10 all after"]) > 0 for row in rows)
    card = json.loads((folder / "privacy.json").read_text())
    assert card["what"] == "deployed run"
    assert "Sites that participated: site-0, site-1, site-2." in card["summary"]
    assert "without noise" in card["who_sees_what"]
    test = load_fold(made.task.experiment.data, 1).test
    for where in made.folders.values():
        [place] = (where / "models").iterdir()
        assert place.stat().st_mode & 0o777 == 0o700
        given, kept = load_model(place / "model.json"), load_model(folder / "model.json")
        np.testing.assert_array_equal(given.score(test), kept.score(test))
        assert json.loads((place / "privacy.json").read_text()) == card
    # Ranges of features would tell of documents, and do not travel.
    local = (folder / "clients" / "1" / "local" / "model.txt").read_text()
    assert set(next(line for line in local.splitlines() if line.startswith("feature_infos="))[14:].split()) == {"none"}


def test_a_coordinator_that_asks_again_gets_the_same_bytes(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)
    sent: dict[str, set[bytes]] = {}

    def once(name, content, answer):
        if wire.read_label(content).kind == "forest":
            sent.setdefault(name, set()).add(answer)
            if name == "site-1" and len(sent) < 3:
                raise RuntimeError("the line broke")
        return answer

    assert made.run(once) == "finished", made.reason()
    with Site.open(made.folders["site-1"]) as site:
        site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
        again = site.answer(protocol.request("forest", made.plan.run, 1))
    assert {again} == sent["site-1"]


@pytest.mark.long
def test_a_forest_that_takes_long_grows_on_when_it_is_asked_for_again(tmp_path, monkeypatch):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)
    monkeypatch.setattr(forests, "SECONDS_AT_A_TIME", 0.0)
    refused = []

    def listen(name, content, answer):
        if wire.read_label(answer).kind == "refused":
            refused.append(answer)
        return answer

    assert made.run(listen) == "finished", made.reason()
    assert any(b"the forest is still being trained (1 trees so far)" in answer for answer in refused)
    slow = files_of(made.task.folder)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("growing.json"))
    other = tmp_path / "other"
    other.mkdir()
    again = Federation(other, spec_of(other, 'split = "sites"\n'), sites=3, simulated=False)
    assert again.run() == "finished", again.reason()
    assert files_of(again.task.folder) == slow


def test_a_site_refuses_by_its_policy_and_the_others_go_on(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False, unprotected="false")
    assert made.run() == "finished", made.reason()
    with (made.task.folder / "clients.csv").open() as file:
        assert [row["client"] for row in csv.DictReader(file)] == ["site-1", "site-2"]
    assert "policy.unprotected = true" in (made.task.folder / "sites.csv").read_text()
    assert "site-0 sent no forest" in " ".join(load_runs(made.task.folder)[0].notes)
    objections = read_site(made.folders["site-0"]).objections(made.plan)
    assert [line.split(":")[0] for line in objections] == ["merge"]


def test_a_booster_must_be_listed(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False, learner="pdgd")
    [line] = read_site(made.folders["site-0"]).objections(made.plan)
    assert line.startswith('booster.name: "lambdamart" is not in policy.learners = ["pdgd"]')
    with Site.open(made.folders["site-0"]) as site:
        answer = site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
        assert b'"lambdamart" is not in policy' in answer
        assert protocol.SAY_HELLO.encode() in site.answer(protocol.request("forest", made.plan.run, 1))


def test_what_a_site_is_shown_says_that_nothing_is_noised(tmp_path):
    spec = spec_of(tmp_path, 'split = "sites"\n')
    made = Federation(tmp_path, spec, sites=3, simulated=False, unprotected="false")
    settings = read_site(made.folders["site-0"])
    view = look_at(made.folders["site-0"], settings, made.plan)
    assert [(one.what, one.covered) for one in view.leaves][:2] == [("forest", False), ("number of queries", False)]
    assert view.refused
    assert view.prices == ()
    text = markdown(about_plan(view))
    assert "forests are sent without noise" in text
    assert "thresholds and leaf values" in text
    [draft] = drafts(spec.read_text(), settings, load_fold(made.task.experiment.data, 1).train)
    assert draft.spec == made.plan.spec


@pytest.mark.parametrize(
    ("split", "merge", "more", "said"),
    [
        ('split = "dealt"\n', '[merge]\nname = "linear"\n', {}, "split: is valid only in a simulation"),
        ('split = "sites"\n', '[merge]\nname = "pooled"\n', {}, 'merge: "pooled"'),
        ('split = "sites"\n', '[merge]\nname = "bagged"\n', {}, 'merge: "bagged"'),
        ("", "", {}, "merge: not set"),
        ('split = "sites"\n', '[merge]\nname = "linear"\n', {"tune": 3}, "tune: is not supported between sites"),
    ],
)
def test_what_is_not_done_between_sites_is_named_before_anything_begins(tmp_path, split, merge, more, said):
    grid = read_spec(spec_of(tmp_path, split, merge, **more))
    parties = [PlannedSite(f"site-{s}", (s,)) for s in range(3)]
    with pytest.raises(SpecError, match=said):
        plan_runs(grid, "trial", tmp_path / "runs", parties, "clinics")


def test_sites_as_a_split_are_for_deployments(tmp_path):
    with pytest.raises(ValueError, match="use `fedrank deploy run`"):
        run_experiment(read_spec(spec_of(tmp_path, 'split = "sites"\n')), "trial", tmp_path / "runs")


# What comes from elsewhere


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A plan, and what an honest site answers to it."""
    tmp_path = tmp_path_factory.mktemp("grown")
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)
    folder = made.folders["site-0"]
    run = ForestRun.open(SiteHome(folder, read_site(folder)), made.plan)
    answer = run.answer(Label("forest", made.plan.run, 1), protocol.request("forest", made.plan.run, 1))
    parts = {"forests": wire.Part("|S", 1 << 20), "queries": wire.Part("<i8", 1)}
    _, found = wire.unpack(answer, Label("answers", made.plan.run, 1, 0, 0), parts)
    [forest] = protocol.unbundle(found["forests"], 1, 1 << 20)
    return made, [tree.decode() for tree in protocol.unbundle(forest, 100, 1 << 20)]


def changed(tree: str, key: str, value: str) -> str:
    """A tree with another first value of a line."""
    lines = dict(line.split("=", 1) for line in tree.split("\n"))
    lines[key] = " ".join([value, *lines[key].split(" ")[1:]])
    return "\n".join(f"{key}={values}" for key, values in lines.items())


BAD = {
    "a child that is not there": (lambda trees: [changed(trees[0], "left_child", "99")], "cannot be read"),
    "a walk that never ends": (lambda trees: [changed(trees[0], "left_child", "0")], "cannot be read"),
    "a feature beyond all": (lambda trees: [changed(trees[0], "split_feature", "500")], "uses feature 501"),
    "a threshold that is none": (lambda trees: [changed(trees[0], "threshold", "nan")], "not a name with numbers"),
    "a word among numbers": (lambda trees: [changed(trees[0], "split_gain", "x/../y")], "not a name with numbers"),
    "a leaf beyond all numbers": (lambda trees: [changed(trees[0], "leaf_value", "1e999")], "only finite numbers"),
    "a line that no tree has": (lambda trees: [f"{trees[0]}\nparameters=1"], "cannot be read"),
    "other letters": (lambda trees: [trees[0].replace("num_leaves", "num_leav\u0435s")], "cannot be read"),
    "more trees than were asked for": (lambda trees: trees * 7, "more than 6 pieces"),
    "no tree": (lambda trees: [], "has no tree"),
    "nonsense": (lambda trees: ["tree\nversion=v4"], "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_forest_that_nobody_grew_is_refused(grown, name):
    made, trees = grown
    spoil, said = BAD[name]
    content = protocol.bundle([tree.encode() for tree in spoil(trees)])
    with pytest.raises(Refused, match=said):
        read_trees(content, made.plan.forests, made.plan.features)


def test_more_leaves_than_the_booster_has_are_refused(grown):
    made, trees = grown
    content = protocol.bundle([tree.encode() for tree in trees])
    assert read_trees(content, made.plan.forests, made.plan.features) == tuple(trees)
    smaller = Plan.load(made.plan.dump().replace(b"leaves = 4", b"leaves = 2"))
    with pytest.raises(Refused, match=r"leaves, the maximum is 2"):
        read_trees(content, smaller.forests, smaller.features)


def test_whoever_sends_nonsense_is_left_out_and_named(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)

    def spoil(name, content, answer):
        label = wire.read_label(content)
        if name == "site-2" and label.kind == "forest":
            forest = protocol.bundle([protocol.bundle([b"num_leaves=1\nleaf_value=1\n" + b"x" * 100])])
            told = Label("answers", label.run, 1, 0, 2)
            return wire.pack(told, {"forests": forest, "queries": np.array([5])})
        return answer

    assert made.run(spoil) == "finished", made.reason()
    assert (
        "excluded after 3 consecutive invalid answers"
        in json.loads((made.task.folder / "left-out.json").read_text())["site-2"]
    )
    with (made.task.folder / "clients.csv").open() as file:
        assert [row["client"] for row in csv.DictReader(file)] == ["site-0", "site-1"]


def test_a_forest_that_is_too_large_is_refused_unread(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)
    largest = forests.largest_forest(made.plan.forests)

    def spoil(name, content, answer):
        label = wire.read_label(content)
        if name == "site-2" and label.kind == "forest":
            parts = {"forests": b"x" * (largest + 100), "queries": np.array([5])}
            return wire.pack(Label("answers", label.run, 1, 0, 2), parts)
        return answer

    assert made.run(spoil) == "finished", made.reason()
    assert "bytes are too many for a message of kind answers" in (made.task.folder / "sites.csv").read_text()


def test_sites_of_other_features_stop_the_run_before_a_forest_grows(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)
    own = made_up_data(queries=10, features=made.plan.features + 2, seed=3)
    (made.folders["site-1"] / "own.txt").write_text("".join(letor_lines(own)))
    assert made.run() == "failed"
    assert f"site-1 has features {made.plan.features + 2}, the plan {made.plan.features}" in made.reason()
    assert not list(tmp_path.rglob("0000*"))


def test_changed_data_are_noticed(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)
    assert made.run() == "finished", made.reason()
    own = made_up_data(queries=30, longest=14, seed=99)
    (made.folders["site-1"] / "own.txt").write_text("".join(letor_lines(own)))
    with Site.open(made.folders["site-1"]) as site:
        answer = site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
    assert b"the data of this site have changed" in answer


MERGED = {
    "a path": ({"../model.json": b"{}"}, "is not a file of a merged model"),
    "another file": ({"site.toml": b""}, "is not a file of a merged model"),
    "no model": ({}, "must contain model.json"),
    "a model that cannot be read": ({"model.json": b"{}"}, "cannot be read"),
}


@pytest.mark.parametrize("name", MERGED)
def test_a_merged_model_that_makes_no_sense_is_not_kept(tmp_path, name):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)
    files, said = MERGED[name]
    if name in ("a path", "another file"):
        files = files | {"model.json": b"{}"}
    files = files | {"privacy.json": b"{}"}
    content = protocol.bundle([piece for file, text in files.items() for piece in (file.encode(), text)])
    with Site.open(made.folders["site-0"]) as site:
        site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
        answer = site.answer(protocol.request("merged", made.plan.run, 1, files=content))
    assert said.encode() in answer
    assert not list(tmp_path.glob("site-0/models/*/*"))
    assert not (tmp_path / "site-0" / "models" / "model.json").exists()


def test_kinds_of_requests_keep_apart(tmp_path):
    made = Federation(tmp_path, spec_of(tmp_path, 'split = "sites"\n'), sites=3, simulated=False)
    with Site.open(made.folders["site-0"]) as site:
        site.answer(protocol.request("hello", made.plan.run, 0, plan=made.plan.dump()))
        for kind in ("round", "advertise", "share", "measure", "result"):
            assert b"this run merges forests" in site.answer(protocol.request(kind, made.plan.run, 1)), kind
        assert b"it is of round 2" in site.answer(protocol.request("forest", made.plan.run, 2))


@pytest.mark.process
def test_forests_travel_through_a_shared_folder_by_the_commands(tmp_path, fedrank, monkeypatch):
    """Nobody is online together: what a site is asked lies in the folder, and the answer of each is signed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedrank.deploy.folder.folder_send", lambda shared, home: FolderSend(shared, home, every=0.05))
    _, out, _ = fedrank("init", "--folder", "shared", "--name", "clinics", "--home", "hub")
    coordinator = FINGERPRINT.search(out)[0]
    for id, name in enumerate(SITES):
        _, out, _ = fedrank("join", "shared", "--name", name, "--id", id, "--fingerprint", coordinator, "--home", name)
        own = FINGERPRINT.search(out)[0]
        fedrank("approve", name, "--id", id, "--fingerprint", own, "--home", "hub")
        site(name, id, seed=id, accept='"within-policy"', learners='["lambdamart"]', unprotected="true")
    letor_file(Path("train.txt"), seed=9)
    letor_file(Path("validation.txt"), seed=7)
    letor_file(Path("test.txt"), seed=8)
    spec_of(tmp_path, 'split = "sites"\n')
    code, out, err = fedrank("show", "spec.toml", "--home", SITES[0])
    assert (code, "forests are sent without noise" in out) == (0, True), out + err
    with serving():
        code, out, err = fedrank("run", "spec.toml", "--home", "hub")
    assert code == 0, out + err
    [run] = load_runs("hub/runs/spec")
    assert run.status == "finished"
    report = [sys.executable, "-m", "fedrank", "report", "hub/runs/spec", "--out", "report.md"]
    assert subprocess.run(report, capture_output=True, check=True).returncode == 0
    assert "before" in Path("report.md").read_text()
    rows = (run.path / "sites.csv").read_text().splitlines()
    assert {row.split(",")[1] for row in rows[1:]} == set(SITES)
    for name in SITES:
        [model] = Path(name, "models").glob("*/model.json")
        assert model.read_bytes() == (run.path / "model.json").read_bytes()
