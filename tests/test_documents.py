"""What the documents promise is true: links lead somewhere, specs are valid, commands exist, code and examples run."""

from __future__ import annotations

import dataclasses
import importlib
import re
import runpy
import shlex
import sys
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import fedrank
from fedrank.experiment.toml import write_toml

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCS, *(path for name in ("README.md", "CONTRIBUTING.md") if (path := ROOT / name).exists())]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WHOLE = {"rounds", "data", "clients", "learner"}  # a spec without these is a fragment
SMALLEST = {"rounds": 1, "data": {"name": "mq2008"}, "clients": {"count": 4}, "learner": {"name": "pdgd"}}


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(*kinds: str) -> list[Block]:
    return [block for page in DOCS for block in _blocks(page) if block.kind in kinds]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, with the modules that the documents tell readers to write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in blocks("python"):
        if match := re.match(r"# (\S+\.py)\n", block.text):
            path = tmp_path / match[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    importlib.invalidate_caches()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_write_only_where_they_are_told(
    example: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 60
    before = set(folder.iterdir())
    out = folder / "out"
    monkeypatch.setattr(sys, "argv", [str(example), str(out), "20"])
    runpy.run_path(str(example), run_name="__main__")
    assert set(folder.iterdir()) == before | {out}
    assert any(out.iterdir())
    assert "out" in capsys.readouterr().out, "an example says what it wrote"


def test_there_are_documents_and_examples() -> None:
    assert len(DOCS) >= 10
    assert len(EXAMPLES) >= 3
    assert blocks("toml")
    assert blocks("python")
    assert _commands()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for text, target in re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.exists(), f"[{text}]({target}) leads nowhere"
        assert ROOT in path.resolve().parents, f"[{text}]({target}) leads out of the project"
        if anchor:
            assert anchor in _anchors(path), f"[{text}]({target}): {path.name} has no such heading"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in DOCS:
        assert page.name == "index.md" or f"({page.name})" in index, f"{page.name} is not in the index"


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_specs_are_valid(block: Block, folder: Path) -> None:
    tables = tomllib.loads(block.text)
    named = [tables.get("data", {}).get(key) for key in ("train", "test", "validation")]
    for file in filter(None, [*named, tables.get("start")]):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    text = block.text
    if not tables.keys() >= WHOLE:
        text = write_toml(_merged(SMALLEST, tables))
    (folder / "spec.toml").write_text(text, encoding="utf-8")
    experiment = fedrank.read_experiment(folder / "spec.toml")
    assert experiment.expand()


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {**below, **above}
    return {
        key: _merged(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in both.items()
    }


def test_tutorial_shows_the_built_in_experiment() -> None:
    source = ROOT / "src" / "fedrank" / "papers" / "quickstart.toml"
    shown = next(block for block in blocks("toml") if block.page.name == "tutorial.md")
    assert tomllib.loads(shown.text) == tomllib.loads(source.read_text(encoding="utf-8"))


def test_every_key_of_a_spec_is_documented() -> None:
    page = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", page, re.MULTILINE))
    hints = typing.get_type_hints(fedrank.Experiment)
    kinds = {
        "Top level": fedrank.Experiment,
        "data": hints["data"],
        "clients": hints["clients"],
        "privacy": hints["privacy"],
    }
    kinds["Published"] = typing.get_args(hints["published"])[0]
    for section, kind in kinds.items():
        rows = dict(re.findall(r"^\| `(\w+)` \| .+? \| (.+?) \|", sections[section], re.MULTILINE))
        fields = {field.name: field for field in dataclasses.fields(kind)}
        assert rows.keys() == fields.keys(), f"docs/spec.md, {section}"
        for name, field in fields.items():
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            assert (rows[name] == "required") == required, f"docs/spec.md, {section}: {name}"
            default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
            if isinstance(default, (int, float, str)):
                assert tomllib.loads(f"value = {rows[name].strip('`')}") == {"value": default}, f"{section}: {name}"


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_code_runs(block: Block, folder: Path) -> None:
    exec(compile(block.text, str(block), "exec", dont_inherit=True), {"__name__": "document"})


def _commands() -> list[tuple[str, str, bool]]:
    """(where, command line, whether it is complete): lines of console blocks, and code within sentences."""
    found = []
    for block in blocks("console"):
        for line in block.text.splitlines():
            if match := re.match(r"\$ (?:\w+=\S* )*(fedrank .*)", line):
                found.append((str(block), match[1], True))
    for page in DOCS:
        found += [(page.name, text, False) for text in re.findall(r"`(fedrank [^`]+)`", _prose(page))]
    return found


@pytest.mark.parametrize(("where", "line", "complete"), _commands())
def test_commands_exist(where: str, line: str, complete: bool) -> None:
    from fedrank.cli import app
    from fedrank.experiment.families import methods

    command: Any = typer.main.get_command(app)
    words = shlex.split(re.split(r" [|>] ", line)[0])[1:]
    while words and words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"{where}: {line}"
    if hasattr(command, "commands"):
        assert all(word.startswith("--") or word.isupper() for word in words), f"{where}: no such command: {line}"
    elif complete and "--help" not in words:
        parsed = command.make_context(command.name, list(words)).params  # raises where something is missing or odd
        if command.name == "run" and not parsed["spec"].endswith(".toml"):
            fedrank.read_experiment(parsed["spec"], parsed["set_"] or [])
    elif command.name == "methods":
        assert not words or any((row.family, row.name)[: len(words)] == tuple(words) for row in methods()), line
