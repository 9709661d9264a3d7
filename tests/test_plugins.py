"""Plug-ins: an installed package adds a command and a method; one that is broken costs a line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrank import cli, plugins
from fedrank.experiments.spec.experiment import to_toml
from fedrank.experiments.spec.listing import search
from fedrank.experiments.spec.source import builtin_specs, read_spec

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"
SPEC = """\
rounds = 2
data.name = "synthetic-mq2007"
clients.count = 3
learner = "pdgd"
aggregator = { name = "shrunk-median", shrink = 0.25 }
"""


def installed(folder, name, module, entries):
    """A package as pip leaves it: a module, and beside it what the package says of itself."""
    (folder / f"{name}.py").write_text(module)
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(entries)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """The plug-in of examples/plugin, installed."""
    monkeypatch.syspath_prepend(tmp_path)
    groups = {"fedrank.commands": "weights = fedrank_lab:app"}
    groups["fedrank.methods"] = "aggregator.shrunk-median = fedrank_lab:ShrunkMedian"
    text = (EXAMPLE / "src" / "fedrank_lab.py").read_text(encoding="utf-8")
    declared = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8").replace('"', "")
    assert all(line in declared for line in groups.values()), "what is tested is what the example declares"
    entries = "".join(f"[{group}]\n{line}\n" for group, line in groups.items())
    installed(tmp_path, "fedrank_lab", text, entries)
    for known in (plugins.commands, plugins.methods):
        known.cache_clear()
    yield tmp_path
    sys.modules.pop("fedrank_lab", None)
    for known in (plugins.commands, plugins.methods):
        known.cache_clear()


def invoked(*words):
    """A command, with the plug-ins that are installed now."""
    return CliRunner().invoke(cli.build_app(), words)


def test_a_method_of_a_plugin_is_named_in_a_spec(lab):
    (lab / "spec.toml").write_text(SPEC)
    [variant] = read_spec(lab / "spec.toml").variants
    rule = variant.experiment.aggregator
    assert (type(rule).__name__, rule.shrink) == ("ShrunkMedian", 0.25)
    assert "fedrank_lab:ShrunkMedian" in to_toml(variant.experiment), "what is kept says which code it was"


def test_its_code_is_not_imported_without_trust(lab):
    (lab / "spec.toml").write_text(SPEC)
    with pytest.raises(ValueError, match="add --trust"):
        read_spec(lab / "spec.toml", trust=False)
    assert "fedrank_lab" not in sys.modules


def test_it_is_listed_and_a_typing_error_is_corrected(lab):
    [found] = search("aggregator", "shrunk-median")
    assert found.meaning == "Method of a plug-in: fedrank_lab:ShrunkMedian"
    (lab / "spec.toml").write_text(SPEC.replace("shrunk-median", "shrunk-medain"))
    with pytest.raises(ValueError, match=r"unknown aggregator 'shrunk-medain'.*shrunk-median"):
        read_spec(lab / "spec.toml")


def test_a_command_of_a_plugin(lab):
    shown = invoked("--help").output
    assert "Plug-ins" in shown
    assert "weights" in shown
    assert "Print the largest weights" in invoked("weights", "--help").output


@pytest.mark.parametrize(
    ("name", "module", "reason"),
    [
        ("broken", "raise RuntimeError('no such\\nthing')", "no such thing"),
        ("search", "import typer; app = typer.Typer()", "fedrank has a command search already"),
        ("run", "import typer; app = typer.Typer()", "fedrank has a command run already"),
        ("empty", "", "has no attribute 'app'"),
        ("text", "app = 'fedrank'", "it must be a typer.Typer (got str)"),
        ("ending", "raise SystemExit('the end')", "the end"),
        (
            "unbuilt",
            "import typer\napp = typer.Typer()\n@app.command()\ndef one(x: 'NoSuch') -> None: ...",
            "name 'NoSuch' is not defined",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_ignored(lab, capsys, name, module, reason):
    installed(lab, "fedrank_other", module, f"[fedrank.commands]\n{name} = fedrank_other:app\n")
    plugins.commands.cache_clear()
    built = cli.build_app()
    sys.modules.pop("fedrank_other", None)
    assert f"note: the plug-in {name} = fedrank_other:app is ignored: " in (err := capsys.readouterr().err)
    assert reason in err
    assert {"search", "deploy", "weights"} <= {group.name for group in built.registered_groups}


def test_a_method_cannot_take_the_name_of_another_or_a_family_of_its_own(lab):
    entries = "[fedrank.methods]\naggregator.mean = os:system\nfamily.qqzz = os:system\nbare = os:system\n"
    installed(lab, "fedrank_other", "", entries)
    plugins.methods.cache_clear()
    assert len(search("aggregator", "mean")) == 1
    with pytest.raises(ValueError, match="no family or method is called 'qqzz'"):
        search("qqzz")
    (lab / "spec.toml").write_text(SPEC.replace('{ name = "shrunk-median", shrink = 0.25 }', '"mean"'))
    [variant] = read_spec(lab / "spec.toml").variants
    assert type(variant.experiment.aggregator).__module__ == "fedrank.federated.aggregators"


def test_specifications_of_a_plugin(tmp_path, monkeypatch):
    """They are named without a path; none takes the place of fedrank's own, and a missing package costs nothing."""
    folder = tmp_path / "fedrank_specs"
    (folder / "group").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "group" / "short.toml").write_text(SPEC.replace('{ name = "shrunk-median", shrink = 0.25 }', '"mean"'))
    (folder / "quickstart.toml").write_text("rounds = 1")
    monkeypatch.syspath_prepend(tmp_path)
    entries = "[fedrank.specs]\nlab = fedrank_specs\nlost = fedrank_no_such_package\n"
    installed(tmp_path, "fedrank_other", "", entries)
    own = read_spec("quickstart")
    for known in (plugins.spec_folders, builtin_specs):
        known.cache_clear()
    try:
        assert read_spec("group/short").base.rounds == 2
        assert read_spec("quickstart").base == own.base
    finally:
        sys.modules.pop("fedrank_specs", None)
        for known in (plugins.spec_folders, builtin_specs):
            known.cache_clear()
