"""What fedrank 0.1 wrote is read, or refused with the reason.

`tests/fixtures/version-0.1.tar.xz` holds folders that fedrank 0.1.0 wrote: runs of several kinds with their population,
one of them stopped, a forest, an index, a trial, three clinics that finished a run through a shared folder, and kits of
a federation on NVFLARE. It is never written again.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedrank.cli import main
from fedrank.cli.renamed import FORMER_SEARCH_COMMANDS, RENAMED, replacement
from fedrank.experiments.runner.folder import checkpoint_round
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.spec.families import with_new_names
from fedrank.experiments.spec.source import read_spec
from fedrank.ranking.model import load_weights
from fedrank.trees.model_files import load_model

ARCHIVE = Path(__file__).parent / "fixtures" / "version-0.1.tar.xz"
RUN = Path("shared-folder/coordinator/runs/first/only/fold-1-seed-1")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("version-0.1")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def written(unpacked, monkeypatch):
    """The folders, to be looked at."""
    monkeypatch.chdir(unpacked)
    return unpacked


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The folders, to be changed."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fedrank", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0


def renamed(path):
    """What the error messages ask for."""
    text = Path(path).read_text().replace("places ", "placements ").replace("fewest_sites", "min_sites")
    Path(path).write_text(text.replace("place =", "placement =").replace("secure-sum", "secure-aggregation"))


def test_ledgers_count_the_same(written, monkeypatch, capsys):
    assert call(monkeypatch, "privacy", "ledger", "runs/populations/town") == 0
    assert "If all of these are the same people: 4.4 against server" in capsys.readouterr().out
    assert call(monkeypatch, "privacy", "ledger", "runs/populations/town", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["epsilon"]["server"] > 0
    assert call(monkeypatch, "privacy", "ledger", "shared-folder/clinic-a/people") == 0
    assert "If all of these are the same people: 0.93 against server" in capsys.readouterr().out


def test_finished_runs_are_read(written):
    found = {run.experiment: run for run in load_runs("runs")}
    assert {name: run.status for name, run in found.items()} == {
        "killed": "interrupted",
        "merge": "finished",
        "neural": "finished",
        "private": "finished",
    }
    assert all(run.version == "0.1.0" for run in found.values())
    [deployed] = load_runs(RUN)
    assert (deployed.status, deployed.round) == ("finished", 5)


@pytest.mark.parametrize(("name", "expected"), [("private", "0.4329"), ("neural", "0.2420")])
def test_models_score_as_they_did(written, monkeypatch, capsys, name, expected):
    """The expected values are those that fedrank 0.1.0 printed."""
    assert call(monkeypatch, "model", "evaluate", f"runs/{name}/only/fold-1-seed-1", "synthetic-mq2007") == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ndcg@10")]
    assert line.split()[1] == expected


def test_a_report_is_made(written, monkeypatch, tmp_path):
    assert call(monkeypatch, "report", "runs/private", "runs/neural", "runs/merge", "--out", tmp_path / "r.md") == 0
    text = (tmp_path / "r.md").read_text()
    assert "private" in text
    assert "merge" in text


def test_a_stopped_run_goes_on(written):
    """Of a simulation; between organisations both sides must have the same version."""
    round = checkpoint_round(Path("runs/killed/only/fold-1-seed-1"))
    assert round is not None
    assert round > 0


def test_models_of_sites_and_forests_are_read(written):
    model = load_weights("shared-folder/clinic-a/models/ae1a7abfdab2a9b4/model.json")
    assert model.features == 46
    assert np.isfinite(model.weights).all()
    assert len(load_model("forest/only/fold-1-seed-1/model.json").trees) == 3


def test_an_index_is_searched(written, monkeypatch, capsys):
    pytest.importorskip("tantivy", reason="search needs the extra fedrank[search]")
    assert call(monkeypatch, "search", "status", "--folder", "index") == 0
    assert "Documents  6 (6 files)" in capsys.readouterr().out


def test_a_trial_is_shown(written, monkeypatch, capsys):
    assert call(monkeypatch, "engine", "trial", "decide", "trial") == 0
    assert "12" in capsys.readouterr().out


def test_the_home_of_a_site_is_opened(own, monkeypatch, capsys):
    """After its policy has the names of this version; before, they are named."""
    assert call(monkeypatch, "deploy", "show", "--home", "shared-folder/clinic-a") == 2
    assert "policy.places: is called placements since version 0.2" in capsys.readouterr().err
    renamed("shared-folder/clinic-a/site.toml")
    assert call(monkeypatch, "deploy", "show", "--home", "shared-folder/clinic-a") == 0
    assert "No plan waits" in capsys.readouterr().out


def test_the_journal_of_a_site_is_written_once_and_explicitly(own, monkeypatch, capsys):
    renamed("shared-folder/clinic-a/site.toml")
    monkeypatch.setenv("XDG_STATE_HOME", str(own / "state"))
    assert call(monkeypatch, "deploy", "check", "--home", "shared-folder/clinic-a") == 1
    assert "journal   WRONG" in capsys.readouterr().out
    assert call(monkeypatch, "privacy", "ledger", "shared-folder/clinic-a", "--upgrade") == 0
    assert "has 7 entries" in capsys.readouterr().out  # its beginning, five messages and their charges
    assert call(monkeypatch, "privacy", "ledger", "shared-folder/clinic-a", "--upgrade") == 2
    assert "already has a journal" in capsys.readouterr().err


def test_an_unfinished_run_between_organisations_is_refused(own, monkeypatch, capsys):
    facts = json.loads((RUN / "run.json").read_text())
    (RUN / "run.json").write_text(json.dumps(facts | {"status": "interrupted"}))
    monkeypatch.chdir("shared-folder")
    renamed("first.toml")
    again = ("deploy", "run", "first.toml", "--home", "coordinator")
    assert call(monkeypatch, *again) == 2
    assert "run `fedrank deploy init --folder SHARED` again" in capsys.readouterr().err
    name = json.loads(Path("coordinator/federation.json").read_text())["name"]
    assert call(monkeypatch, "deploy", "init", "--folder", "shared", "--name", name, "--home", "coordinator") == 0
    capsys.readouterr()
    assert call(monkeypatch, *again) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "its version is 0.1.0" in told
    assert "finish the run with the version that started it, or start a new run with another --name" in told


def test_kits_name_the_classes_of_this_version(own, monkeypatch):
    """`deploy renew` lets them; before, the remedy is named."""
    pytest.importorskip("nvflare", reason="kits need the extra fedrank[deploy]")
    from fedrank.deploy.flare_certificates import kit_problems
    from fedrank.deploy.flare_hardening import CONTROLLER, EXECUTOR, rename_classes

    for name, kind in (("coordinator", CONTROLLER), ("clinic-a", EXECUTOR)):
        kit = own / "network" / name / "kit"
        path = kit / "local" / "resources.json"
        before = json.loads(path.read_text())
        path.write_text(json.dumps(before | {"class_allow_list": ["fedrank.deploy.earlier.Class"]}))
        [problem] = [one for one in kit_problems(kit) if "another version of fedrank" in one.what]
        assert "fedrank deploy renew" in problem.remedy
        rename_classes(kit)
        assert json.loads(path.read_text()) == before | {"class_allow_list": [kind]}
        assert not [one for one in kit_problems(kit) if "another version" in one.what]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"class_allow_list": 5}', '{"class_allow_list": [1]}', "[" * 100_000])
def test_a_damaged_kit_is_named(own, text):
    pytest.importorskip("nvflare", reason="kits need the extra fedrank[deploy]")
    from fedrank.deploy.flare_certificates import kit_problems
    from fedrank.deploy.flare_hardening import rename_classes

    kit = own / "network" / "clinic-a" / "kit"
    path = kit / "local" / "resources.json"
    path.write_text(text)
    assert [one for one in kit_problems(kit) if "resources.json cannot be read" in one.what]
    with pytest.raises(ValueError, match="cannot be read"):
        rename_classes(kit)
    assert path.read_text() == text, "nothing is lost"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("clients.user=perfect", "clients.user: is called click_model since version 0.2; rename it"),
        ("clients.user_per=client", "clients.user_per: is called click_model_per"),
        ("mechanism.place=server", "mechanism.place: is called placement"),
        ("mechanism.placement=secure-sum", '"secure-sum" is called "secure-aggregation"'),
        ("attack={name='poisoned-clicks', user='poison'}", "attack.user: is called click_model"),
    ],
)
def test_a_key_that_was_renamed_is_named(change, told):
    noise = ["mechanism.name=gaussian", "mechanism.clip=1.0", "mechanism.noise=1.0"]
    with pytest.raises(ValueError, match=re.escape(told)):
        read_spec("quickstart", [*(noise if "mechanism" in change else []), change])


@pytest.mark.parametrize("old", RENAMED)
def test_an_earlier_command_or_option_is_an_error_that_names_the_new_one(old, monkeypatch, capsys):
    assert call(monkeypatch, *old.split(), "3") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedrank: `fedrank {old}` ")
    for new in re.findall("`(.*?)`", RENAMED[old]):
        assert f"`fedrank {new}`" in err or new.startswith("--")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "join",
        "join file:shared --name anna",
        "join anna",
        "aggregate --home coordinator --epsilon 4",
        "aggregate anna --home coordinator",
        "leave --because enough",
        "demo",
        "export --ubi log",
    ],
)
def test_an_earlier_command_of_search_is_an_error_that_says_why(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("anna").mkdir()
    assert call(monkeypatch, "search", *words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedrank: `fedrank search {words.split()[0]}` ")
    assert "use `fedrank search -- WORDS`" in err
    if words.startswith(("join", "aggregate")):
        assert "did not rank new searches better" in err
        assert "`fedrank deploy leave`" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", ["join tables", "export controls", "-- join", "leave -draft", "demo*"])
def test_the_name_of_an_earlier_command_may_be_searched_for(words):
    assert replacement(["search", *words.split()]) is None


def test_what_replaces_an_earlier_command_exists():
    from typer.main import get_command

    from fedrank.cli import app

    for text in (*RENAMED.values(), *FORMER_SEARCH_COMMANDS.values()):
        for words in (new.split() for new in re.findall("`(.*?)`", text)):
            if words[0].startswith("--"):
                continue
            command = get_command(app)
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {opt for parameter in command.params for opt in parameter.opts}
            assert not words or not hasattr(command, "commands"), text
            assert {word for word in words if word.startswith("--")} <= known, text


def test_a_folder_may_have_the_name_of_an_earlier_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("places").mkdir()
    assert call(monkeypatch, "data", "check", "places") == 2
    assert "fedrank: places" in capsys.readouterr().err


def test_recorded_specifications_get_new_names_and_lose_nothing():
    tables = {"clients": {"user": "perfect", "count": 3}, "mechanism": {"place": {"name": "secure-sum", "bits": 40}}}
    assert with_new_names(tables) == {
        "clients": {"click_model": "perfect", "count": 3},
        "mechanism": {"placement": {"name": "secure-aggregation", "bits": 40}},
    }
    assert "user" in tables["clients"], "the tables that were given stay as they are"
    both = {"clients": {"user": "perfect", "click_model": "poison"}}
    assert with_new_names(both) == both, "which of the two counts is not for us to say"
    for odd in (
        {"clients": 3},
        {"mechanism": {"placement": {"name": [1]}}},
        {"mechanism": {"placement": "secure-sum"}},
    ):
        assert with_new_names(odd) == odd
