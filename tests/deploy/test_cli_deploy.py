"""`fedrank deploy`: what each command prints, asks and writes; a whole federation through a folder, and mistakes."""

from __future__ import annotations

import json
import re
import stat
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedrank.cli import main
from fedrank.deploy import consent
from fedrank.deploy.check import CheckLine
from fedrank.deploy.folder import FolderSend
from fedrank.deploy.identity import fingerprint
from fedrank.deploy.settings import read_site, site_template
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.spec.experiment import to_toml
from fedrank.experiments.spec.source import read_spec
from tests.deploy.plans import letor_file, made_plan

SPEC = """\
rounds = 4
evaluate_every = 2
[data]
train = "train.txt"
test = "test.txt"
[clients]
count = 3
interactions = 4
[learner]
name = "pdgd"
[mechanism]
name = "gaussian"
clip = 1.0
noise = 8.0
"""
SITES = ("clinic-a", "clinic-b", "clinic-c")
FINGERPRINT = re.compile(r"SHA256:\S+")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("my.toml").write_text(SPEC)
    letor_file(Path("train.txt"), seed=9)
    letor_file(Path("test.txt"), seed=8)


@pytest.fixture
def fedrank(monkeypatch, capsys):
    """Call the command as a shell does: (exit code, standard output, standard error)."""

    def call(*arguments, typed=""):
        import io

        monkeypatch.setattr(sys, "argv", ["fedrank", "deploy", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


def site(name="clinic-a", id=0, seed=0, **changes):
    """The folder of a site with data of its own; `changes` are lines of its policy."""
    folder = Path(name)
    folder.mkdir(mode=0o700, exist_ok=True)
    letor_file(folder / "train.txt", seed=seed)
    text = site_template(name, id, "clinics").replace('# letor      = "train.txt"', 'letor = "train.txt"')
    for key, value in {"largest_epsilon": "20.0", **changes}.items():
        text = re.sub(rf"^{key} .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    (folder / "site.toml").write_text(text)
    return folder


def coordinators_home():
    """The home of a coordinator with NVFLARE whose sites have joined."""
    home = Path("hub")
    home.mkdir()
    (home / "federation.toml").write_text(
        'name = "f"\nhost = "localhost"\nport = 1\n[[sites]]\nname = "a"\norganisation = "A"\nid = 0\n'
    )
    members = {
        name: {"name": name, "organisation": "A", "id": id, "state": "joined", "identity": "01" * 32}
        for id, name in enumerate(SITES)
    }
    (home / "sites.json").write_text(json.dumps(members))
    return home


def test_every_command_has_help_and_an_example(fedrank):
    from typer.main import get_command

    from fedrank.cli.deploy import deploy_app

    commands = get_command(deploy_app).commands
    belonging = {"init", "invite", "approve", "join", "renew", "expel", "leave"}
    working = {"check", "show", "accept", "refuse", "start", "stop", "run", "status", "forget", "backup", "restore"}
    assert belonging | working == set(commands)
    for command in commands.values():
        assert command.help
        assert "Example" in command.epilog


@pytest.mark.long
def test_a_federation_through_a_folder_from_the_first_word_to_the_model(fedrank, monkeypatch):
    """What a stranger does: begin, join, compare, fill in, look, accept, run, and read."""
    monkeypatch.setattr("fedrank.deploy.folder.folder_send", lambda shared, home: FolderSend(shared, home, every=0.05))
    _, out, _ = fedrank("init", "--folder", "shared", "--name", "clinics", "--home", "hub")
    coordinator = FINGERPRINT.search(out)[0]
    for id, name in enumerate(SITES):
        code, out, _ = fedrank(
            "join", "shared", "--name", name, "--id", id, "--fingerprint", coordinator, "--home", name
        )
        assert code == 0
        own = FINGERPRINT.search(out)[0]
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o700
        code, out, _ = fedrank("approve", name, "--id", id, "--fingerprint", own, "--home", "hub")
        assert (code, out) == (0, f"{name} participates with id {id}\n")
        site(name, id, seed=id, measures='["ndcg@10"]', plain_measures="true")
        text = Path(name, "site.toml").read_text().replace("# test_share", "test_share")
        Path(name, "site.toml").write_text(text)
    for name in SITES[:2]:
        code, out, _ = fedrank("accept", "my.toml", "--home", name, typed="y\n")
        assert code == 0
        assert "Accepted:" in out
    code, out, _ = fedrank("check", "my.toml", "--home", SITES[0])
    assert code == 0, out
    assert all(f"{what} " in out for what in ("key", "clock", "data", "features", "policy", "ledger", "disk"))
    with serving():
        code, out, err = fedrank("run", "my.toml", "--home", "hub")
    assert code == 0, out + err
    assert "do nothing" in out
    assert "fedrank report hub/runs/my" in out
    [run] = load_runs("hub/runs/my")
    assert run.status == "finished"
    rows = (run.path / "sites.csv").read_text().splitlines()
    assert rows[0] == "round,site,seconds,bytes_down,bytes_up,refused"
    assert any("clinic-c" in row and "has not been accepted at this site" in row for row in rows)
    assert len((run.path / "clients.csv").read_text().splitlines()) == 3  # two sites report their quality
    for name in SITES[:2]:
        [model] = Path(name, "models").glob("*/model.json")
        assert model.read_bytes() == (run.path / "model.json").read_bytes()
    card = json.loads((run.path / "privacy.json").read_text())
    assert card["what"] == "deployed run"
    _, out, _ = fedrank("status", "--home", "hub")
    assert re.search(r"state +finished", out)
    _, out, _ = fedrank("status", "--home", SITES[0], "--json")
    assert json.loads(out)["round"] == 4
    assert json.loads(out)["spent"]["server"] == pytest.approx(card["promises"][0]["epsilon"])
    digits = consent.proposals(Path(SITES[2]))[0].digest[:12]
    _, out, _ = fedrank("show", "--home", SITES[2])
    assert digits in out
    code, out, err = fedrank("run", "my.toml", "--home", "hub")  # nothing is done twice
    assert code == 0, out + err


@pytest.mark.long
def test_a_plan_that_every_site_refused_ends_the_run_with_the_reasons(fedrank, monkeypatch):
    monkeypatch.setattr("fedrank.deploy.folder.folder_send", lambda shared, home: FolderSend(shared, home, every=0.05))
    _, out, _ = fedrank("init", "--folder", "shared", "--name", "clinics", "--home", "hub")
    coordinator = FINGERPRINT.search(out)[0]
    for id, name in enumerate(SITES):
        _, out, _ = fedrank("join", "shared", "--name", name, "--id", id, "--fingerprint", coordinator, "--home", name)
        fedrank("approve", name, "--id", id, "--fingerprint", FINGERPRINT.search(out)[0], "--home", "hub")
        site(name, id, seed=id, **({"most_rounds": "3"} if id else {}))
    assert fedrank("refuse", "my.toml", "--because", "not our question", "--home", SITES[0])[0] == 0
    with serving():
        code, out, err = fedrank("run", "my.toml", "--home", "hub")
    assert code == 1
    said = " ".join((out + err).split())
    assert "clinic-a: this site refused run" in said
    assert "not our question" in said
    assert "clinic-b: the policy of this site refuses the plan: rounds: 4 is more than policy.most_rounds = 3" in said


@pytest.mark.long
def test_a_site_leaves_and_the_model_forgets_it(fedrank, monkeypatch):
    monkeypatch.setattr("fedrank.deploy.folder.folder_send", lambda shared, home: FolderSend(shared, home, every=0.05))
    _, out, _ = fedrank("init", "--folder", "shared", "--name", "clinics", "--home", "hub")
    coordinator = FINGERPRINT.search(out)[0]
    for id, name in enumerate(SITES):
        _, out, _ = fedrank("join", "shared", "--name", name, "--id", id, "--fingerprint", coordinator, "--home", name)
        own = FINGERPRINT.search(out)[0]
        fedrank("approve", name, "--id", id, "--fingerprint", own, "--home", "hub")
        site(name, id, seed=id, accept='"within-policy"', min_sites="2", history="true")
    Path("my.toml").write_text("record_every = 1\n" + SPEC.replace("rounds = 4", "rounds = 2"))
    with serving():
        code, out, err = fedrank("run", "my.toml", "--home", "hub")
        assert code == 0, out + err
        [run] = load_runs("hub/runs/my")
        leaving = ("forget", run.path, "--site", "clinic-c", "--home", "hub")
        code, out, err = fedrank(*leaving)
    assert code == 0, out + err
    receipt = Path(re.search(r"Receipt: (.*)", out)[1])
    assert json.loads(receipt.read_text())["removed"]["clients"] == [2]
    assert len(list(Path("clinic-c").glob("models/*/receipt.json"))) == 1  # the one who left has it, too
    for name in SITES[:2]:
        assert len(list(Path(name).glob("models/*/model.json"))) == 2
    code, out, err = fedrank(*leaving, "--method", "fed-remove", "--name", "removed")
    assert code == 0, out + err
    code, _, err = fedrank(*leaving[:2], "--site", "clinic-x", "--home", "hub")
    assert (code, "does not participate" in err) == (2, True)


def test_a_home_stores_its_shared_folder(fedrank, monkeypatch, tmp_path):
    """Every later command reads it, from any working directory; a home without it says what to do."""
    _, out, _ = fedrank("init", "--folder", "shared", "--name", "clinics", "--home", "hub")
    coordinator = FINGERPRINT.search(out)[0]
    assert "--name SITE --id NUMBER --fingerprint ..." in " ".join(out.split())
    joined = ("join", "shared", "--name", "clinic-a", "--id", 0, "--fingerprint", coordinator, "--home", "clinic-a")
    code, out, _ = fedrank(*joined)
    own = FINGERPRINT.search(out)[0]
    assert code == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    hub, clinic = tmp_path / "hub", tmp_path / "clinic-a"
    code, _, err = fedrank("approve", "clinic-b", "--home", hub)
    assert (code, "no request of site 'clinic-b'" in err) == (2, True)
    code, out, _ = fedrank("approve", "clinic-a", "--home", hub, typed="n\n")
    assert (code, own in out) == (1, True)
    code, _, err = fedrank("approve", "clinic-a", "--fingerprint", coordinator, "--home", hub)
    assert (code, "uses the key" in err) == (2, True)
    code, out, _ = fedrank("approve", "clinic-a", "--home", hub, typed="y\n")
    assert (code, "clinic-a participates with id 0" in out) == (0, True)
    assert fedrank("start", "--once", "--home", clinic)[:2] == (0, "")
    for command, said in (
        (("start", "--home", hub), "a shared folder needs no server"),
        (("stop", "--home", clinic), "stop is for NVFLARE"),
        (("renew", "--home", clinic), "renew is for NVFLARE"),
        (("invite", "clinic-b", "B", 1, "--home", hub), "invite is for NVFLARE"),
        (("leave", "--site", "clinic-a", "--home", hub), "leave --site is for NVFLARE"),
    ):
        code, out, err = fedrank(*command)
        assert (code, out, said in err) == (2, "", True), err
    code, _, err = fedrank("start", "--unit", "--home", clinic)  # the template of site.toml is not complete
    assert (code, "site.toml" in err) == (2, True)
    assert fedrank("backup", "a.backup", "--home", clinic)[0] == 0
    assert fedrank("restore", "a.backup", "--home", "again")[0] == 0
    assert Path("again", "transport.json").read_text() == (clinic / "transport.json").read_text()
    assert fedrank("leave", "--home", clinic, "--yes")[0] == 0
    assert (tmp_path / "shared" / "left" / "clinic-a").exists()
    code, out, _ = fedrank("expel", "clinic-a", "--because", "sends noise", "--home", hub, "--yes")
    assert (code, "clinic-a is expelled" in out) == (0, True)
    (hub / "transport.json").write_text("{")
    assert "cannot be read" in fedrank("expel", "clinic-a", "--because", "x", "--home", hub, "--yes")[2]
    (hub / "transport.json").unlink()
    code, _, err = fedrank("expel", "clinic-a", "--because", "x", "--home", hub, "--yes")
    assert (code, "run `fedrank deploy init --folder SHARED` again" in err) == (2, True)
    monkeypatch.chdir(tmp_path)
    assert fedrank("init", "--folder", "shared", "--name", "clinics", "--home", "hub")[0] == 0
    assert (hub / "transport.json").exists()


def test_join_decides_by_what_it_is_given(fedrank, monkeypatch):
    asked = []
    monkeypatch.setattr("fedrank.cli.deploy._request", lambda *given: asked.append(("invitation", *given)))
    monkeypatch.setattr("fedrank.cli.deploy._join_signed", lambda *given: asked.append(("signed", *given)))
    Path("a.json").write_text("{}")
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("a.crt", "")
    assert fedrank("join", "a.json", "--home", "a")[0] == 0
    assert fedrank("join", "a.zip", "--fingerprint", "SHA256:ab")[0] == 0
    assert asked == [("invitation", Path("a.json"), Path("a")), ("signed", Path("a.zip"), Path(), "SHA256:ab")]


class serving:
    """Sites that answer what lies in the folder, in threads, until the block ends."""

    def __enter__(self):
        from fedrank.deploy.folder import serve

        self.stop = threading.Event()
        self.threads = [
            threading.Thread(
                target=serve, args=("shared", name), kwargs={"every": 0.05, "stop": self.stop.is_set}, daemon=True
            )
            for name in SITES
        ]
        for thread in self.threads:
            thread.start()

    def __exit__(self, *problem):
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.long
def test_show_before_and_accept_after(fedrank):
    folder = site()
    plan = made_plan(identities=("01" * 32, "02" * 32, "03" * 32))
    consent.propose(folder, plan)
    code, out, _ = fedrank("show", "first", "--home", folder)
    assert code == 0
    for said in ("What this site sends", "What would be refused", "What it costs", "What is not covered"):
        assert said in out
    assert f"fedrank deploy accept first --home {folder}" in out
    _, out, _ = fedrank("show", "first", "--home", folder, "--json")
    assert json.loads(out)[0]["digest"] == plan.digest
    code, out, _ = fedrank("accept", plan.digest[:12], "--home", folder, typed="n\n")
    assert code == 1
    assert "SHA256:" in out
    assert consent.said_of(folder, plan) is None
    code, out, _ = fedrank("accept", plan.digest[:12], "--home", folder, typed="y\n")
    assert (code, consent.said_of(folder, plan)) == (0, "accepted")
    assert "(not compared yet)" in out
    _, out, _ = fedrank("show", "first", "--home", folder)
    assert ("fedrank deploy refuse first" in out, "To participate" in out) == (True, False)
    assert set(consent.partners(folder)) == set(SITES)
    changed = made_plan(identities=("01" * 32, "0a" * 32, "03" * 32))
    consent.propose(folder, changed)
    code, _, err = fedrank("accept", changed.digest[:12], "--home", folder, "--yes")
    assert code == 2
    assert "the key of 'clinic-b' differs" in err
    code, _, _ = fedrank("accept", changed.digest[:12], "--home", folder, "--yes", "--new-key", "clinic-b")
    assert code == 0
    code, _, _ = fedrank("refuse", plan.digest[:12], "--because", "the board said no", "--home", folder)
    assert code == 0
    assert consent.said_of(folder, plan) == "refused"
    _, out, _ = fedrank("show", "--home", folder)
    assert out == "No plan waits for a decision of this site.\n"


@pytest.mark.long
def test_what_the_policy_forbids_cannot_be_accepted(fedrank):
    folder = site(most_rounds="3")
    code, out, _ = fedrank("show", "my.toml", "--home", folder)
    assert code == 1
    assert "policy.most_rounds = 3" in out
    assert "To participate" not in out
    code, _, err = fedrank("accept", "my.toml", "--home", folder, "--yes")
    assert code == 2
    assert "rounds: 4 is more than policy.most_rounds = 3" in err
    code, _, _ = fedrank("refuse", "my.toml", "--because", "too long", "--home", folder)
    assert code == 0


@pytest.mark.long
def test_check_ends_with_its_verdict(fedrank, monkeypatch):
    lines = [CheckLine("chain", "fine", "all is well"), CheckLine("port", "wrong", "nobody there", "start the server")]
    monkeypatch.setattr("fedrank.deploy.check.check", lambda home, plan, **more: lines)
    code, out, _ = fedrank("check")
    assert code == 1
    assert "start the server" in out
    code, out, _ = fedrank("check", "--json")
    assert (code, json.loads(out)[1]["remedy"]) == (1, "start the server")
    lines.pop()
    assert fedrank("check")[0] == 0


def test_init_names_the_line(fedrank):
    Path("federation.toml").write_text(
        'name = "f"\nhost = "localhost"\nport = 1\n' + '[[sites]]\nname = "a"\norganisation = "A"\nid = 0\n' * 2
    )
    code, _, err = fedrank("init", "federation.toml")
    assert code == 2
    assert "federation.toml: line 9: sites[1].name:" in err
    assert "federation.toml: line 11: sites[1].id:" in err
    assert not Path("f").exists()


@pytest.mark.long
def test_approve_shows_and_asks_before_it_signs(fedrank, monkeypatch):
    signed = []
    applicant = SimpleNamespace(
        name="clinic-a", id=0, organisation="A", fingerprint=fingerprint("01" * 32), renewal=False
    )
    monkeypatch.setattr("fedrank.deploy.flare_kit.approve", lambda path, home: applicant)
    monkeypatch.setattr("fedrank.deploy.flare_kit.sign", lambda one, home: signed.append(one) or Path("signed.zip"))
    code, out, _ = fedrank("approve", "a.zip", typed="n\n")
    assert code == 1
    assert signed == []
    assert all(word in out for word in ("clinic-a", "Organisation: A", "SHA256:"))
    code, out, _ = fedrank("approve", "a.zip", typed="y\n")
    assert (code, signed) == (0, [applicant])
    assert "signed.zip" in out
    assert fedrank("approve", "a.zip", "--yes")[0] == 0
    assert fedrank("approve", "a.zip", "--fingerprint", fingerprint("01" * 32))[0] == 0
    code, _, err = fedrank("approve", "a.zip", "--fingerprint", fingerprint("02" * 32), "--yes")
    assert (code, "do not approve it" in err) == (2, True)


@pytest.mark.long
def test_expel_and_leave_ask_first_and_leave_a_record(fedrank, monkeypatch):
    done = []

    def go(home, name, why):
        done.append((name, why))
        return SimpleNamespace(name=name, state="expelled")

    monkeypatch.setattr("fedrank.deploy.flare_kit.expel", go)
    monkeypatch.setattr("fedrank.deploy.flare_kit.leave", go)
    assert fedrank("expel", "clinic-c", "--because", "stolen key", typed="n\n")[0] == 1
    assert done == []
    assert fedrank("expel", "clinic-c", "--because", "stolen key", typed="y\n")[0] == 0
    assert fedrank("leave", "--site", "clinic-b", "--because", "moved", "--yes")[0] == 0
    assert done == [("clinic-c", "stolen key"), ("clinic-b", "moved")]
    folder = site()
    code, _, err = fedrank("leave", "--home", folder, "--yes")
    assert code == 2
    assert "has no kit" in err
    (folder / "kit").mkdir()
    code, _, _ = fedrank("leave", "--home", folder, "--because", "the study ended", "--yes")
    assert code == 0
    assert not (folder / "kit").exists()
    record = json.loads((folder / "records.jsonl").read_text())
    assert (record["what"], record["because"]) == ("leave", "the study ended")


def test_invite_checks_names_like_init(fedrank, monkeypatch):
    invited = []
    monkeypatch.setattr("fedrank.deploy.flare_kit.invite", lambda home, entry: invited.append(entry) or Path("d.json"))
    code, _, err = fedrank("invite", "clinic d", "D", 3)
    assert code == 2
    assert "certificates allow at most 64 letters" in err
    code, out, _ = fedrank("invite", "clinic-d", "D", 3)
    assert (code, out) == (0, "Send: d.json\n")
    assert (invited[0].name, invited[0].id) == ("clinic-d", 3)


@pytest.mark.long
def test_start_serves_and_prints_a_unit(fedrank, monkeypatch):
    folder = site()
    served = []

    def serve(home, learners, tell, stop):
        tell("started, process 7")
        served.append((home, learners))

    monkeypatch.setattr("fedrank.deploy.flare_processes.serve", serve)
    code, out, _ = fedrank("start", "--home", folder)
    assert (code, out, served) == (0, "started, process 7\n", [(folder, read_site(folder).policy.learners)])
    code, out, _ = fedrank("start", "--home", folder, "--unit")
    assert "[Service]" in out
    assert str(folder.absolute()) in out
    code, out, _ = fedrank("stop", "--home", folder)
    assert out == "No process runs here.\n"


@pytest.mark.long
def test_run_refuses_before_anything_is_submitted(fedrank):
    home = coordinators_home()
    members = json.loads((home / "sites.json").read_text())
    for change, said in (
        ("clients.click_model=navigational", "clients.click_model: is valid only in a simulation"),
        ("clients.count=4", "clients.count: 4, but 3 participate"),
        ("aggregator.name=my_lab:Mine", "my_lab:Mine"),
        ("aggregator.name=krum", "aggregator:"),
    ):
        code, _, err = fedrank("run", "my.toml", "--home", home, "--set", change)
        assert code == 2
        assert said in err
    assert not (home / "runs").exists()
    for one in members.values():
        one["state"] = "left"
    (home / "sites.json").write_text(json.dumps(members))
    code, _, err = fedrank("run", "my.toml", "--home", home)
    assert (code, "no site has joined federation 'f'" in err) == (2, True)


def test_run_hands_every_run_with_its_plan_to_the_engine(fedrank, monkeypatch):
    home = coordinators_home()
    asked = []

    def run_deployed(home, task, plan, tell, stop, say):
        asked.append((task, plan))
        say("the server is away")
        if plan.seed == 2:
            raise RuntimeError("3 consecutive jobs made no progress")
        return "interrupted"

    monkeypatch.setattr("fedrank.deploy.flare_jobs.run_deployed", run_deployed)
    code, out, _ = fedrank("run", "my.toml", "--home", home, "--set", "seeds=[1,2]")
    assert code == 130
    assert [plan.seed for _, plan in asked] == [1, 2]
    assert {site.name for site in asked[0][1].sites} == set(SITES)
    assert asked[0][1].sites[0].identity == "01" * 32
    assert "the server is away" in out
    assert "3 consecutive jobs made no progress" in out
    assert "Stopped. 1 run is not finished" in out


def test_a_run_whose_gate_every_site_refused_says_why_and_fails(fedrank, monkeypatch):
    from fedrank.experiments.runner.schedule import Results

    why = "no site released its sums, so nothing is known, and a trial decides (clinic-a: the lists were used)"
    gate = {"outcome": "inconclusive", "words": [why], "released": []}
    monkeypatch.setattr("fedrank.deploy.make_plans.do_runs", lambda *_: Results())
    monkeypatch.setattr("fedrank.deploy.make_plans.gate_of", lambda task: gate)
    code, out, _ = fedrank("run", "my.toml", "--home", coordinators_home())
    assert (code, out) == (1, f"gate: inconclusive\n  {why}\n")
    monkeypatch.setattr("fedrank.deploy.make_plans.gate_of", lambda task: gate | {"released": ["clinic-b"]})
    assert fedrank("run", "my.toml", "--home", "hub")[0] == 0


def test_the_name_of_local_runs_is_reserved(fedrank):
    Path("federation.toml").write_text(
        'name = "local"\nhost = "localhost"\nport = 1\n[[sites]]\nname = "a"\norganisation = "A"\nid = 0\n'
    )
    for words in (("--folder", "shared", "--name", "local"), ("federation.toml",)):
        code, _, err = fedrank("init", *words, "--home", "hub")
        assert (code, '"local" is the federation of `fedrank deploy run --local`' in err) == (2, True)


def test_local_calls_the_trial(fedrank, monkeypatch):
    from fedrank.experiments.runner.schedule import Results, run_experiment

    called = []

    def run_local(grid, name, out, sites, progress, stop, say):
        called.append((name, out, sites))
        return run_experiment(grid, name, out) if sites == 3 else Results()

    monkeypatch.setattr("fedrank.deploy.local.run_local", run_local)
    code, out, _ = fedrank("run", "my.toml", "--local", 3)
    assert (code, called) == (0, [("my", Path("runs"), 3)])
    assert "fedrank report runs/my" in out


@pytest.mark.long
def test_readmit(fedrank, monkeypatch):
    home = coordinators_home()
    monkeypatch.setattr("fedrank.deploy.flare_jobs.run_deployed", lambda *_: "interrupted")
    run = home / "runs/my/only/fold-1-seed-1"
    run.mkdir(parents=True)
    again = ("run", "my.toml", "--home", home, "--readmit", "clinic-b")
    code, _, err = fedrank(*again)
    assert (code, "fold-1-seed-1" in err) == (2, True)
    (run / "spec.toml").write_text(to_toml(read_spec("my.toml").base))
    (run / "left-out.json").write_text(
        json.dumps({"clinic-b": "excluded after 3 consecutive invalid answers", "clinic-c": "too"})
    )
    code, out, _ = fedrank(*again)
    assert code == 130
    assert "excluded after 3 consecutive invalid answers" in out
    assert json.loads((run / "left-out.json").read_text()) == {"clinic-c": "too"}
    code, _, err = fedrank(*again)
    assert (code, "clinic-c" in err) == (2, True)


def test_backup_and_restore(fedrank):
    folder = site()
    code, out, err = fedrank("backup", "a.backup", "--home", folder)
    assert code == 0, err
    assert "a.backup" in out
    code, out, err = fedrank("restore", "a.backup", "--home", "again")
    assert code == 0, err
    assert Path("again", "site.toml").read_text() == (folder / "site.toml").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status", "--home", "nowhere"), "neither site.toml nor federation.toml"),
        (("check", "--home", "nowhere"), "neither site.toml nor federation.toml"),
        (("stop", "--home", "nowhere"), "neither site.toml nor federation.toml"),
        (("start", "--home", "nowhere"), "neither site.toml nor federation.toml"),
        (("start", "--unit", "--home", "nowhere"), "neither site.toml nor federation.toml"),
        (("show", "--home", "nowhere"), "nowhere has no site.toml"),
        (("show", "abcdef123456", "--home", "nowhere"), "nowhere has no site.toml"),
        (("show", "abcdef123456", "--home", "clinic-a"), "plans received at this site: none"),
        (("refuse", "abcdef123456", "--because", "x", "--home", "clinic-a"), "plans received at this site: none"),
        (("accept", "no.toml", "--home", "clinic-a"), "no.toml"),
        (("init", "--folder", "shared", "--name", "a b", "--home", "hub"), "certificates allow at most 64 letters"),
        (("init", "no.toml"), "has no no.toml"),
        (("init",), "give federation.toml for NVFLARE, or --folder SHARED and --name NAME"),
        (("init", "--folder", "shared"), "needs --folder SHARED and --name NAME"),
        (("join", "no.json"), "no file or folder no.json"),
        (("join", "my.toml"), "my.toml"),
        (("join", "my.toml", "--name", "clinic-a"), "--name is for a shared folder"),
        (("join", "."), "needs --name and --id of this site, and --fingerprint of the coordinator"),
        (("start", "--home", "clinic-a", "--once"), "--once is for a shared folder, and clinic-a uses NVFLARE"),
    ],
)
def test_mistakes_cost_one_clear_line(fedrank, words, said):
    site()
    code, out, err = fedrank(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
