"""The command: what each prints and writes, and that mistakes cost one clear line and nothing else."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from fedrank.__main__ import main as started
from fedrank.cli import GROUPS, app, build_app, main
from fedrank.cli.config import MOST_VISIBLE
from fedrank.cli.shared import progress
from fedrank.data.catalog import CATALOG, load
from tests.documents import hook
from tests.oracles import measures as oracle

SPEC = """\
title = "[red]A[/red] small one"
rounds = 20
data.name = "synthetic-mq2007"
clients.count = 3
learner = "pdgd"
[variants.together]
[variants.alone]
"aggregator.name" = "none"
"""
BAD_LETOR = "1 qid:1 1:0.5\n2 qid:1 1:x\n"
GOOD_LETOR = "1 qid:1 1:0.5 2:1 46:1\n0 qid:1 1:0.1 2:3\n0 qid:2 1:0.2 2:4\n1 qid:2 1:0.3 2:5\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every command runs in an empty folder with a spec."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    Path("small.toml").write_text(SPEC, encoding="utf-8")
    Path("empty.toml").write_text("", encoding="utf-8")
    Path("empty.txt").write_text("", encoding="utf-8")
    Path("bad.txt").write_text(BAD_LETOR, encoding="utf-8")
    Path("good.txt").write_text(GOOD_LETOR, encoding="utf-8")


@pytest.fixture
def fedrank(monkeypatch, capsys):
    """Call the command as a shell does: (exit code, standard output, standard error)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The results of the small spec, done once by the command."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(SPEC, encoding="utf-8")
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, ["run", "small.toml", "--workers", "1"])
    assert done.exit_code == 0, done.output
    return folder / "runs" / "small", done


@pytest.fixture
def results(finished):
    """A copy of them that a test may spoil."""
    shutil.copytree(finished[0], "runs/small")
    return Path("runs/small")


def shell(*arguments, **options):
    code = "from fedrank.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, **options
    )


def snapshot():
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


# Mistakes.

MODEL = "runs/small/together/fold-1-seed-1"
WRONG = [
    (("run", "quickstrat"), "'quickstrat' is not a file or a built-in experiment; did you mean \"quickstart\"?"),
    (("run", "no.toml"), "spec no.toml does not exist; write one with `fedrank new no.toml`"),
    (("run", "nothing-like-it"), "give a TOML file, or the name of an experiment such as quickstart"),
    (("run", "demo", "--set", "rounds=3"), "fedrank run demo takes only --out, --quiet and --config"),
    (("watch", "runs", "--clean"), "--clean needs --list; add it, or remove --clean"),
    (("run", "empty.toml"), "empty.toml: is empty; "),
    (("run", "bad.txt"), "bad.txt: is not TOML: "),
    (("run", "small.toml", "--set", "ruonds=3"), 'small.toml: ruonds: no such key; did you mean "rounds"?'),
    (("run", "small.toml", "--on", "slrum"), "--on slrum: unknown executor 'slrum'; did you mean \"slurm\"?"),
    (("run", "small.toml", "--on", "dask://node7"), "--on dask://node7 is not the address of a scheduler; write"),
    (("run", "small.toml", "--sbatch", "mem=2G"), "--sbatch mem=2G needs --on slurm; add it"),
    (
        ("run", "small.toml", "--on", "slurm", "--sbatch", "memm=2G"),
        "unknown or unsupported option 'memm'; did you mean",
    ),
    (("run", "small.toml", "--set", "rounds"), "such as rounds=100"),
    (("run", "small.toml", "--name", "../x"), "--name '../x' does not name a folder below OUT; use letters"),
    (("run", "small.toml", "--name", "/x"), "--name '/x' does not name"),
    (("run", "small.toml", "--name", ""), "--name '' does not name"),
    (("run", "small.toml", "--name", "a/../../x"), "--name 'a/../../x' does not name"),
    (("run", "small.toml", "--name", "a\\b"), "--name 'a\\\\b' does not name"),
    (("run", "small.toml", "--out", "good.txt"), "good.txt is a file; --out and --name must lead to a folder"),
    (("watch", "nowhere", "--list"), "folder nowhere does not exist; give a folder of runs, or one run folder"),
    (("run", "small.toml", "--set", "aggregator.name=maen"), "unknown aggregator 'maen'; did you mean \"mean\"?"),
    (("run", "small.toml", "--set", "learner.name=lab.ideas.Mine"), "for your own class, write lab.ideas:Mine"),
    (("report", "nowhere"), "folder nowhere does not exist"),
    (("report", "empty.toml"), "empty.toml is a file; give a folder of runs"),
    (("data", "check", "goood.txt"), 'file goood.txt does not exist; did you mean "good.txt"?'),
    (
        ("report", "runs/small", "--out", "x.pdf"),
        "x.pdf ends in '.pdf', which is not a report format; use .html, .md or .csv",
    ),
    (("report", "runs/small", "--out", "x.md", "--baseline", "alon"), "no variant 'alon' to compare with"),
    (("model", "score", "nowhere", "good.txt"), "nowhere"),
    (("model", "score", "good.txt", "good.txt"), "good.txt is not a valid model: "),
    (("model", "score", "empty.txt", "good.txt"), "empty.txt is not a valid model: it is empty"),
    (("model", "score", MODEL, "empty.txt", "--out", "s.txt"), "empty.txt: the file contains no documents"),
    (("model", "score", MODEL, "bad.txt", "--out", "s.txt"), "bad.txt, line 2"),
    (("model", "score", MODEL, "nowhere", "--out", "s.txt"), "'nowhere' is not a file or a data set"),
    (
        ("model", "score", MODEL, "good.txt", "--trec", "two words"),
        "the tag 'two words' of a TREC run must be one word",
    ),
    (("model", "score", MODEL, "good.txt", "--client", "1"), "holds one model for all clients; remove client = 1"),
    (("model", "evaluate", MODEL, "good.txt", "--measure", "ndgc"), "unknown measure 'ndgc'; did you mean \"ndcg\"?"),
    (("model", "evaluate", MODEL, "synthetic-mq2008"), "'synthetic-mq2008' is not a file or a data set; did you mean"),
    (("model", "evaluate", MODEL, "goood.txt"), 'file goood.txt does not exist; did you mean "good.txt"?'),
    (("model", "evaluate", MODEL, "no/file"), "file no/file does not exist; check its name and folder"),
    (("model", "evaluate", "empty.toml", "good.txt"), "empty.toml is not a valid model: "),
    (("methods", "lerner"), "no family or method is called 'lerner' or mentions it; did you mean \"learner\"?"),
    (("methods", "learner", "pdg"), "unknown learner 'pdg'; did you mean \"pdgd\"?"),
]


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_a_mistake_is_one_clear_line_and_changes_nothing(fedrank, arguments, message):
    before = snapshot()
    code, out, err = fedrank(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("fedrank: ")
    assert message in err
    assert err.count("\n") == 1
    assert snapshot() == before


def test_a_run_says_that_it_compiles(fedrank, monkeypatch, tmp_path):
    from fedrank.kernels import compile

    words, line = ("run", "small.toml", "--workers", "1", "--set", "rounds=2"), "Compiling the inner loops"
    monkeypatch.setattr(compile, "COMPILED_IN", str(tmp_path / "compiled"))
    assert line in fedrank(*words, "--name", "first")[1]
    assert line not in fedrank(*words, "--name", "quiet", "--quiet")[1]
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "measures.dcg-1.nbc").touch()
    assert line not in fedrank(*words, "--name", "second")[1]


@pytest.mark.long
def test_a_typo_in_a_command_or_an_option(fedrank):
    for arguments in (
        ["rnu"],
        ["run", "small.toml", "--wrkers", "2"],
        ["run"],
        ["run", "small.toml", "--workers", "0"],
    ):
        code, out, err = fedrank(*arguments)
        assert (code, out) == (2, "")
        assert "Usage" in err


@pytest.mark.process
def test_mistakes_in_a_real_shell_have_no_traceback(tmp_path):
    done = shell("run", "small.toml", "--set", "learner.rat=1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'fedrank: small.toml: learner.rat: no such setting of pdgd; did you mean "rate"?\n'
    assert not (tmp_path / "runs").exists()


def test_bugs_can_be_looked_into(fedrank, monkeypatch):
    monkeypatch.setenv("FEDRANK_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["fedrank", "run", "no.toml"])
    with pytest.raises(FileNotFoundError):
        main()


# Running.


def test_run_prints_what_it_does_and_where_results_lie(finished):
    folder, done = finished
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "[red]A[/red] small one"
    assert lines[1] == "2 runs of 20 rounds, into runs/small"
    assert lines[-1] == "Charts and significance tests: fedrank report runs/small --out report.html"
    for variant in ("together", "alone"):
        run = folder / variant / "fold-1-seed-1"
        assert json.loads((run / "run.json").read_text(encoding="utf-8"))["status"] == "finished"
        assert variant in done.stdout


def test_run_again_skips_and_another_spec_is_not_overwritten(fedrank, results):
    before = {path: content for path, content in snapshot().items() if path.name != "experiment.toml"}
    code, out, err = fedrank("run", "small.toml", "--workers", "1")
    assert (code, err) == (0, "")
    assert "2 of 2 runs were already finished" in out
    code, out, err = fedrank("run", "small.toml", "--workers", "1", "--set", "learner.rate=0.5")
    assert code == 2
    assert re.fullmatch(r"fedrank: runs/small/.* contains a run of another spec, which is not overwritten; .*\n", err)
    after = snapshot()
    assert all(after[path] == content for path, content in before.items())


def test_run_under_another_name_with_changes(fedrank):
    Path("odd name!.toml").write_text(SPEC, encoding="utf-8")
    code, out, _ = fedrank("run", "odd name!.toml", "--set", "rounds=2", "--set", "variants={}", "--workers", "1")
    assert code == 0
    assert "1 run of 2 rounds, into runs/odd-name" in out
    assert Path("runs/odd-name/only/fold-1-seed-1/model.json").exists()
    arguments = ("run", "odd name!.toml", "--set", "rounds=2", "--set", "variants={}", "--workers", "1")
    assert fedrank(*arguments, "--name", "a/b.c", "--out", "elsewhere")[0] == 0
    assert Path("elsewhere/a/b.c/only/fold-1-seed-1/model.json").exists()


def test_a_run_that_fails_says_why_and_the_others_go_on(fedrank):
    spec = SPEC.replace('[variants.alone]\n"aggregator.name" = "none"', '[variants.far]\n"learner.rate" = 1e300')
    Path("fails.toml").write_text(spec, encoding="utf-8")
    code, out, err = fedrank("run", "fails.toml", "--workers", "1")
    assert (code, err) == (1, "")
    assert "failed far, fold 1, seed 1: the update is not finite; " in out
    assert Path("runs/fails/together/fold-1-seed-1/model.json").exists()


def test_what_cannot_succeed_is_told_before_anything_runs(fedrank):
    spec = SPEC.replace(
        '[variants.alone]\n"aggregator.name" = "none"', '[variants.many]\nclients = { count = 9999, partition = "own" }'
    )
    Path("fails.toml").write_text(spec, encoding="utf-8")
    code, _, err = fedrank("run", "fails.toml", "--set", "rounds=2", "--workers", "1")
    assert code == 2
    assert err.startswith("fedrank: variant many: 9999 clients need at least as many queries")
    assert not Path("runs").exists()


# Looking at runs.


def test_runs_lists_and_cleans_only_what_is_not_finished(fedrank, results):
    facts = results / "alone/fold-1-seed-1/run.json"
    content = json.loads(facts.read_text(encoding="utf-8"))
    facts.write_text(json.dumps(content | {"status": "interrupted", "round": 7}), encoding="utf-8")
    code, out, _ = fedrank("watch", "runs", "--list")
    assert code == 0
    assert "finished" in out
    assert "interrupted" in out
    code, out, _ = fedrank("watch", "runs", "--list", "--clean", "--yes")
    assert code == 0
    assert re.search(r"^Deleted .*runs/small/alone/fold-1-seed-1$", out, re.MULTILINE)
    assert not facts.exists()
    assert Path(MODEL, "model.json").exists()
    assert "No runs to delete." in fedrank("watch", "runs", "--list", "--clean")[1]


@pytest.mark.process
def test_runs_asks_before_it_deletes(results):
    facts = results / "alone/fold-1-seed-1/run.json"
    facts.write_text("{", encoding="utf-8")
    done = shell("watch", "runs", "--list", "--clean", input="n\n")
    assert "Delete 1 run?" in done.stdout
    assert facts.exists()


@pytest.mark.parametrize("name", ["report.html", "deep/er/report.md", "report.csv"])
def test_reports(fedrank, results, name):
    code, out, err = fedrank("report", results, "--out", name, "--baseline", "alone")
    assert (code, err, out) == (0, "", f"Report: {name}\n")
    text = Path(name).read_text(encoding="utf-8")
    assert "together" in text
    assert "ndcg@10" in text.lower()
    if name.endswith(".csv"):
        rows = list(csv.DictReader(text.splitlines()))
        assert {row["variant"] for row in rows} == {"together", "alone", "nothing"}


# Using a model.


@pytest.mark.long
def test_scores_and_measures_agree_with_each_other_and_with_an_independent_computation(fedrank, results):
    code, out, err = fedrank("model", "score", MODEL, "synthetic-mq2007")
    assert (code, err) == (0, "")
    scores = [float(line) for line in out.splitlines()]
    model = json.loads(Path(MODEL, "model.json").read_text(encoding="utf-8"))
    test = load("synthetic-mq2007", normalise=model["normalised"]).test
    assert scores == pytest.approx((test.features.astype(float) @ np.array(model["weights"])).tolist(), abs=1e-4)

    measures = ("--measure", "ndcg@5", "--measure", "map")
    code, out, err = fedrank("model", "evaluate", MODEL, "synthetic-mq2007", *measures, "--per-query", "new/values.csv")
    assert (code, err) == (0, "")
    assert out.endswith("Values per query: new/values.csv\n")
    rows = list(csv.DictReader(Path("new/values.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["query"] for row in rows] == list(test.query_ids)
    slow = {"ndcg@5": [], "map": []}
    for row, begin, end in zip(rows, test.offsets[:-1], test.offsets[1:], strict=True):
        for text, (name, cutoff) in {"ndcg@5": ("ndcg", 5), "map": ("map", None)}.items():
            value = oracle.value(name, cutoff, scores[begin:end], test.grades[begin:end].tolist(), test.top_grade)
            assert row[text] == "" if value is None else float(row[text]) == pytest.approx(value)
            slow[text] += [] if value is None else [value]
    for text, values in slow.items():
        assert re.search(rf"^{text} +{sum(values) / len(values):.4f} +{len(values)} ", out, re.MULTILINE)


def test_a_trec_run_ranks_by_score(fedrank, results):
    code, out, err = fedrank("model", "score", MODEL, "good.txt", "--trec", "mine", "--out", "mine.run")
    assert (code, out, err) == (0, "Scores: mine.run\n", "")
    rows = [line.split() for line in Path("mine.run").read_text(encoding="utf-8").splitlines()]
    assert [(row[0], row[1], row[3], row[5]) for row in rows] == [
        ("1", "Q0", "1", "mine"), ("1", "Q0", "2", "mine"), ("2", "Q0", "1", "mine"), ("2", "Q0", "2", "mine"),
    ]  # fmt: skip
    assert {row[2] for row in rows} == {"1-1", "1-2", "2-1", "2-2"}
    assert float(rows[0][4]) >= float(rows[1][4])
    plain = [float(line) for line in fedrank("model", "score", MODEL, "good.txt")[1].splitlines()]
    assert {row[2]: float(row[4]) for row in rows} == dict(zip(["1-1", "1-2", "2-1", "2-2"], plain, strict=True))


def test_models_of_single_clients(fedrank, results):
    alone = results / "alone/fold-1-seed-1"
    first, second = (fedrank("model", "score", alone, "good.txt", "--client", client)[1] for client in (0, 1))
    assert len(first.splitlines()) == 4
    assert first != second
    code, _, err = fedrank("model", "evaluate", alone, "good.txt")
    assert code == 2
    assert "3 models, one per client" in err


@pytest.mark.process
def test_a_reader_that_has_seen_enough(results):
    code = "from fedrank.cli import main; main()"
    command = f'"{sys.executable}" -c "{code}" model score {MODEL} synthetic-mq2007 | head -n 1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


# Data and methods.


def test_data_check(fedrank):
    code, out, err = fedrank("data", "check", "good.txt")
    assert (code, err) == (0, "")
    assert "good.txt" in out
    code, out, err = fedrank("data", "check", "good.txt", "bad.txt")
    assert (code, err) == (1, "")
    assert "bad.txt" in out
    assert "line 2" in out
    assert fedrank("data", "check", "empty.txt")[0] == 1


def test_data_list(fedrank, monkeypatch):
    monkeypatch.delenv("FEDRANK_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = fedrank("data", "list")
    assert (code, err) == (0, "")
    assert all(name in out for name in CATALOG)


def test_methods(fedrank):
    code, out, _ = fedrank("methods")
    assert code == 0
    assert all(word in out for word in ("learner", "pdgd", "aggregator", "mean", "user", "navigational", "ndcg"))
    one = fedrank("methods", "learner", "pdgd")[1]
    assert "rate: float = 0.1" in one
    assert "lambdarank" not in one


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("fedavg", "mean"),
        ("FLTrust", "trust"),
        ("fldetector", "reputation"),
        ("scaffold", "scaffold"),
        ("fedprox", "fedprox"),
        ("fedper", "fedper"),
    ],
)
def test_methods_are_found_by_what_their_papers_call_them(fedrank, word, name):
    code, out, err = fedrank("methods", word)
    assert (code, err) == (0, "")
    assert re.search(rf"^{name} ", out, re.MULTILINE)
    assert "lambdarank" not in out


@pytest.mark.parametrize(("code", "done"), [(1, 3), (130, 1)])
def test_papers_go_on_after_a_failure_and_not_after_a_stop(fedrank, monkeypatch, code, done):
    asked = []

    def ends(experiment, label, *_):
        asked.append(label)
        if len(asked) == 1:
            raise typer.Exit(code)

    monkeypatch.setattr("fedrank_papers.cli.run_and_print", ends)
    names = ["thesis/fig-4-6", "thesis/fig-4-8", "thesis/fig-4-9"]
    ended, out, err = fedrank("papers", "run", *names, "--quick")
    assert (ended, err) == (code, "")
    assert asked == [f"{name}-quick" for name in names[:done]]
    assert ("Runs failed in thesis/fig-4-6; the reasons are above." in out) == (code == 1)


def test_version(fedrank):
    code, out, _ = fedrank("--version")
    assert (code, re.fullmatch(r"fedrank \d+\.\d+\.\d+(\.dev\d+)?\n", out) is not None) == (0, True)


COMMANDS = [
    ["new"], ["run"], ["tune"], ["report"], ["watch"], ["methods"],
    ["bench", "run"], ["bench", "compare"],
    ["data", "list"], ["data", "check"], ["data", "build"], ["data", "propensities"],
    ["data", "sketch"], ["data", "redact"], ["data", "synth"], ["data", "fetch"],
    ["model", "score"], ["model", "evaluate"], ["model", "export"], ["model", "estimate"],
    ["trees", "split"], ["trees", "merge"], ["trees", "grow"],
    ["privacy", "show"], ["privacy", "plan"], ["privacy", "audit"], ["privacy", "impact"], ["privacy", "filter"],
    ["privacy", "ledger"],
    ["forget", "client"], ["forget", "person"], ["forget", "expired"],
    ["deploy", "init"], ["deploy", "invite"], ["deploy", "join"], ["deploy", "approve"], ["deploy", "renew"],
    ["deploy", "expel"], ["deploy", "leave"], ["deploy", "check"], ["deploy", "show"], ["deploy", "accept"],
    ["deploy", "refuse"], ["deploy", "start"], ["deploy", "stop"], ["deploy", "run"], ["deploy", "forget"],
    ["deploy", "status"], ["deploy", "backup"], ["deploy", "restore"],
    ["engine", "features"], ["engine", "read-log"], ["engine", "compare"], ["engine", "refresh"],
    ["engine", "trial", "plan"], ["engine", "trial", "read"], ["engine", "trial", "decide"],
    ["engine", "trial", "adopt"], ["engine", "trial", "rollback"],
    ["search", "index"], ["search", "serve"], ["search", "status"], ["search", "forget"], ["search", "learn"],
    ["search", "find"], ["search", "mcp"],
    ["rerank", "serve"], ["rerank", "key"], ["rerank", "status"], ["rerank", "forget"], ["rerank", "mcp"],
    ["rerank", "join"],
]  # fmt: skip
PLUG_INS = [["papers", "list"], ["papers", "convert"], ["papers", "run"], ["papers", "report"]]


def commands_below(command, words=()):
    if not hasattr(command, "commands"):
        return {words: command}
    return {
        path: found
        for name, inner in command.commands.items()
        for path, found in commands_below(inner, (*words, name)).items()
    }


hidden_options = hook("cli_pages")["hidden_options"]


def options_of(command):
    return [one for one in command.params if one.opts[0].startswith("--") and one.opts[0] != "--help"]


def test_every_command_is_known_to_these_tests(tree):
    found = sorted(map(list, commands_below(tree)))
    assert found == sorted([*COMMANDS, *PLUG_INS])


def test_there_are_few_commands(tree):
    """As many as can be learned: 16 on the top level and 72 in all, without plug-ins."""
    assert len({command[0] for command in COMMANDS}) <= 16
    assert len(COMMANDS) <= 72


def test_help_lists_at_most_eight_options_and_a_file_sets_the_others(tree):
    for path, command in commands_below(tree).items():
        options = options_of(command)
        visible = [one for one in options if not one.hidden]
        assert len(visible) <= MOST_VISIBLE, path
        takes_file = any(one.opts[0] == "--config" for one in options)
        assert takes_file == (len(options) > MOST_VISIBLE), path
        assert all(one.help for one in visible), path
        assert all(hidden_options(command).get(one.name) for one in options if one.hidden), path


def test_options_that_occur_in_many_commands_mean_the_same(tree):
    meanings = {}
    for command in commands_below(tree).values():
        for one in options_of(command):
            meanings.setdefault(one.opts[0], set()).add(one.help or hidden_options(command)[one.name])
    for option in ("--json", "--yes", "--quiet", "--config", "--port", "--trust"):
        assert len(meanings[option]) == 1, meanings[option]


@pytest.fixture(scope="module")
def tree():
    """All commands, made once: that takes longer than any of them takes to print its help."""
    return get_command(app)


@pytest.mark.parametrize("command", [*COMMANDS, *PLUG_INS], ids=" ".join)
def test_help_has_an_example(tree, monkeypatch, capsys, command):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit) as end:
        tree.main([*command, "--help"], prog_name="fedrank")
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    assert re.search(rf"Examples?:.*fedrank {' '.join(command)}", " ".join(out.split()))
    assert max(map(len, out.splitlines())) <= 60


@pytest.mark.long
@pytest.mark.usefixtures("results")
def test_a_narrow_terminal(fedrank, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for arguments in (
        ["methods"], ["data", "list"], ["data", "check", "good.txt"], ["watch", "runs", "--list"],
        ["model", "evaluate", MODEL, "good.txt"],
    ):  # fmt: skip
        code, out, err = fedrank(*arguments)
        assert (code, err) == (0, "")
        out = out.partition("Location, or where to get them")[0]  # addresses and folders stay whole
        assert max(map(len, out.splitlines())) <= 60, arguments
    assert "Report: " in fedrank("report", "runs/small", "--out", f"{'long-' * 20}.md")[1]


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(
    "arguments",
    [
        ("watch", "runs", "--list"), ("data", "check", "small.toml"), ("privacy", "show", "small.toml"),
        ("data", "list"), ("data", "check", "good.txt"), ("papers", "list"), ("methods",),
        ("methods", "aggregator", "krum"), ("model", "evaluate", MODEL, "good.txt"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_answers_as_json(fedrank, arguments):
    code, out, err = fedrank(*arguments, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out, parse_constant=lambda word: pytest.fail(word))


@pytest.mark.long
@pytest.mark.usefixtures("results")
def test_json_says_what_is_known(fedrank, monkeypatch, tmp_path):
    first = json.loads(fedrank("watch", "runs", "--list", "--json")[1])[0]
    assert (first["status"], first["variant"], first["round"]) == ("finished", "alone", 20)
    assert 0 < first["finals"]["ndcg@10"] < 1
    assert "cannot be combined with --clean" in fedrank("watch", "runs", "--list", "--json", "--clean")[2]
    [group] = json.loads(fedrank("data", "check", "small.toml", "--json")[1])["groups"]
    assert len(group["found"]["queries"]) == 3
    [krum] = json.loads(fedrank("methods", "aggregator", "krum", "--json")[1])
    assert krum["settings"][0]["name"] == "attackers"
    folder = tmp_path / "data" / "texts" / "mine"
    folder.mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl.gz", "qrels.tsv"):
        (folder / name).touch()
    (tmp_path / "data" / "no-texts").mkdir()
    monkeypatch.setenv("FEDRANK_DATA", str(tmp_path / "data"))
    texts = json.loads(fedrank("data", "list", "--json")[1])["collections"]
    assert texts == [{"name": "synthetic-silos", "folder": None}, {"name": "mine", "folder": str(folder)}]
    shown = fedrank("data", "list")[1]
    assert f"mine: {folder}" in shown
    assert "synthetic-silos: built in" in shown


@pytest.mark.process
@pytest.mark.usefixtures("results")
def test_what_goes_into_a_file_is_as_wide_as_it_needs(finished):
    done = shell("methods", cwd=finished[0])
    assert max(map(len, done.stdout.splitlines())) > 120
    table = shell("report", str(finished[0]), "--out", "x.csv", cwd=Path.cwd())
    assert table.returncode == 0


def test_help_is_grouped(fedrank):
    out = fedrank("--help")[1]
    headings = re.findall(r"╭─ ([A-Z][^─]*) ─", out)
    assert headings[:2] == ["Options", "Experiments"]
    assert "Commands" not in headings  # nothing without a group


def test_the_called_group_is_complete_and_the_others_have_their_help():
    """Only the called group is imported; the help of the command is the same."""

    def commands(group):
        return {one.name for one in group.typer_instance.registered_commands}

    whole = {group.name: group for group in build_app().registered_groups}
    for called in ("data", "deploy"):
        partial = {group.name: group for group in build_app(called).registered_groups}
        assert {name: group.help for name, group in partial.items()} == {n: g.help for n, g in whole.items()}
        assert {name for name, group in partial.items() if name in GROUPS and commands(group)} == {called}
        assert commands(partial[called]) == commands(whole[called])


@pytest.mark.process
def test_a_shell_completes_commands_and_specs(fedrank):
    def completed(line):
        environment = {**os.environ, "_FEDRANK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "2"}
        code = "import sys; sys.argv = ['fedrank']; from fedrank.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
        )
        return done.stdout.split()

    assert "quickstart" in completed("fedrank run qui")
    assert completed("fedrank run sma") == ["small.toml"]
    assert "list" in completed("fedrank data ")
    assert "complete" in fedrank("--help")[1]


@pytest.mark.long
def test_new_writes_a_spec_that_runs(fedrank):
    code, out, err = fedrank("new", "mine.toml")
    assert (code, err) == (0, "")
    assert "fedrank run mine.toml" in out
    assert json.loads(Path("fedrank-spec.schema.json").read_text())["title"]
    assert fedrank("run", "mine.toml", "--set", "rounds=2", "--workers", "1")[0] == 0
    assert "exists and is not overwritten" in fedrank("new", "mine.toml")[2]
    assert "must end in .toml" in fedrank("new", "mine")[2]
    assert 'did you mean "trees"' in fedrank("new", "other.toml", "--kind", "tree")[2]
    assert not Path("other.toml").exists()


def test_the_bar_of_progress_stays_on_a_narrow_terminal(monkeypatch):
    out = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.setattr("fedrank.cli.shared.console", lambda: out)
    with progress() as tell:
        tell(
            f"a variant with quite a long name, {'and more ' * 8}",
            3,
            10,
            "round 3 of 10, ndcg@10 0.4512, 120,000 a second",
        )
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in out.file.getvalue().splitlines()]
    shown = [line for line in lines if "━" in line]
    assert shown
    assert all(line.count("━") + line.count("╸") + line.count("╺") == 12 for line in shown)
    assert all(len(line.rstrip()) <= 80 for line in shown)


def test_a_bar_of_a_task_whose_size_is_not_known_yet(monkeypatch):
    out = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.setattr("fedrank.cli.shared.console", lambda: out)
    with progress() as tell:
        for done in range(50):  # the bar is drawn at the end, with the speed of these
            tell("folder", done, math.inf, f"{done} files")
    assert "49 files" in out.file.getvalue()


def test_the_size_of_recorded_updates_is_told_beforehand(fedrank):
    Path("recorded.toml").write_text(
        'rounds = 6\nrecord_every = 2\nlearner = "pdgd"\n[data]\nname = "synthetic-mq2007"\n[clients]\ncount = 4\n'
    )
    code, out, err = fedrank("run", "recorded.toml")
    assert (code, err) == (0, "")
    told = re.search(r"Recorded updates need at most ([\d.]+) kB there", out)
    kept = sum(file.stat().st_size for file in Path("runs/recorded").rglob("history/*"))
    assert 0 < kept <= float(told[1]) * 1000 + 50


@pytest.mark.long
def test_clients_shows_who_holds_what(fedrank):
    code, out, err = fedrank("data", "check", "small.toml", "--out", "clients.png")
    assert (code, err) == (0, "")
    assert "queries" in out
    assert Path("clients.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = fedrank("data", "check", "quickstrat")
    assert code == 2
    assert 'did you mean "quickstart"' in err


@pytest.mark.long
def test_tune_chooses_and_writes_a_spec(fedrank):
    code, out, err = fedrank("tune", "small.toml", "--over", "learner.rate=[0.05,0.1]", "--workers", "1")
    assert (code, err) == (0, "")
    assert "chosen" in out
    [tuned] = Path().rglob("tuned.toml")
    code, out, err = fedrank("run", str(tuned), "--workers", "1")
    assert (code, err) == (0, "")
    code, out, err = fedrank("tune", "small.toml", "--over", "learner.rate=0.1")
    assert code == 2
    assert "must list the values to try" in err


@pytest.mark.parametrize("place", ["fedrank.cli.build_app", "fedrank.cli.main"])
def test_ctrl_c_outside_a_command_is_no_traceback(monkeypatch, capsys, place):
    """While commands are built from their signatures, or modules are imported."""

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, stopped)
    with pytest.raises(SystemExit) as end:
        (main if place.endswith("app") else started)()
    assert end.value.code == 130
    assert capsys.readouterr() == ("", "")


# Files of options.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"leevs = 3", 'trees grow`; did you mean "leaves"?'),
        (b"config = 'c.toml'", "'config' is not an option of"),
        (b"leaves = '4'", 'leaves: "4" cannot be used; give an integer'),
        (b"leaves = true", "leaves: true cannot be used; give an integer"),
        (b"leaves = 2.5", "leaves: 2.5 cannot be used; give an integer"),
        (b"leaves = 1", "leaves: "),
        (b"leaves = [4]", "leaves: [4] cannot be used; give an integer"),
        (b"rate = 'high'", 'rate: "high" cannot be used; give a number'),
        (b"secure = 1", "secure: 1 cannot be used; give true or false"),
        (b"silo = 'a.txt'", 'silo: "a.txt" cannot be used; give a list in brackets'),
        (b"silo = [1]", "silo[0]: 1 cannot be used; give text in quotes"),
        (b"out = 2026-01-31", "out: 2026-01-31 cannot be used; give text in quotes"),
        (b"[trees]\nleaves = 4", "trees: { leaves = 4 } cannot be used; give an integer"),
        (b"[grow]\nleaves = 4", "'grow' is not an option of"),
        (b"min-data-in-leaf = 3\nmin_data_in_leaf = 4", "'min_data_in_leaf' is set twice"),
        (b"leaves = = 3", "is not a TOML file: "),
        (b"\xff\xfe", "is not a TOML file: "),
        (b"x = " + b"[" * 5000, "is not a TOML file: "),
        (b"# long\n" * 1_500_000, "is larger than 1,000,000 bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_file_of_options_that_is_wrong_is_refused_by_name(fedrank, text, message):
    Path("options.toml").write_bytes(text)
    before = snapshot()
    words = ("trees", "grow", "--silo", "good.txt", "--silo", "good.txt", "--out", "forest")
    code, out, err = fedrank(*words, "--config", "options.toml")
    assert (code, out) == (2, "")
    assert err.startswith("fedrank: options.toml")
    assert message in err
    assert err.count("\n") == 1
    assert len(err) < 500
    assert snapshot() == before


def test_a_file_sets_options_and_the_command_line_has_precedence(fedrank):
    Path("options.toml").write_text('out = "elsewhere"\nset = ["rounds=2", "variants={}"]\nworkers = 1\nthreads = 2\n')
    code, out, err = fedrank("run", "small.toml", "--config", "options.toml", "--quiet")
    assert (code, err) == (0, "")
    assert "1 run of 2 rounds, into elsewhere/small" in out
    assert fedrank("run", "small.toml", "--config", "options.toml", "--out", "here")[0] == 0
    assert Path("here/small").is_dir()
    assert "no.toml" in fedrank("run", "small.toml", "--config", "no.toml")[2]


def test_a_short_run_is_the_first_part_of_the_whole(fedrank):
    words = (
        "run",
        "small.toml",
        "--set",
        "rounds=2",
        "--set",
        "seeds=[4, 2]",
        "--set",
        "data.folds=[3, 1]",
        "--workers",
        "1",
    )
    code, out, err = fedrank(*words, "--short")
    assert (code, err) == (0, "")
    assert "2 runs of 2 rounds, into runs/small" in out
    assert [path.name for path in Path("runs/small/alone").iterdir()] == ["fold-3-seed-4"]
    first = Path("runs/small/alone/fold-3-seed-4/rounds.csv").stat()
    assert "finished (3 of 8)" in fedrank(*words)[1]
    assert Path("runs/small/alone/fold-3-seed-4/rounds.csv").stat() == first
    assert sorted(path.name for path in Path("runs/small/alone").iterdir()) == [
        "fold-1-seed-2", "fold-1-seed-4", "fold-3-seed-2", "fold-3-seed-4",
    ]  # fmt: skip


def test_quiet_prints_no_progress(capsys):
    with progress(quiet=True) as tell:
        tell("a run", 1, 1, "finished")
    assert capsys.readouterr().out == ""


def test_a_warning_of_python_is_one_note(fedrank, monkeypatch):
    def warn(*_):
        warnings.warn("krum has no guarantee\nwith 3 clients", stacklevel=1)
        warnings.warn("of a library", DeprecationWarning, stacklevel=1)
        raise typer.Exit

    monkeypatch.setattr("fedrank.experiments.spec.listing.search", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, out, err = fedrank("methods")
    assert (code, out, err) == (0, "", "note: krum has no guarantee with 3 clients\n")


def test_the_demo_is_a_run(fedrank, monkeypatch):
    asked = []
    monkeypatch.setattr("fedrank.experiments.builtin.demo.demo", lambda out, page, *_: asked.append((out, page)))
    code, out, err = fedrank("run", "demo", "--out", "elsewhere")
    assert (code, err, asked) == (0, "", [(Path("elsewhere"), Path("demo.html"))])
    assert "demo.html" in out


def test_privacy_filter_says_what_is_left_before_it_is_installed(fedrank, tmp_path):
    pytest.importorskip("nvflare", reason="pip install 'fedrank[deploy]'")
    settings, kit = tmp_path / "filter.toml", tmp_path / "site-1"
    (kit / "local").mkdir(parents=True)
    settings.write_text('unit = "site"\nshapes = { model = [7000, 1000] }\nclip = 1.0\nepsilon = 1.0\nrounds = 1\n')
    code, out, _ = fedrank("privacy", "filter", settings)
    assert code == 0
    assert "expected cosine with the true update: at most 0.0000 for one site" in out
    code, _, err = fedrank("privacy", "filter", settings, "--kit", kit)
    assert code == 2
    assert "below 0.1" in err
    assert not list((kit / "local").iterdir())
    assert fedrank("privacy", "filter", settings, "--kit", kit, "--anyway")[0] == 0
    assert (kit / "local/privacy.json").exists()
