"""What the documents promise is true: links lead somewhere, specs are valid, commands exist, code and examples run."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import typing
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.cli.refresh import read_settings
from fedrank.cli.renamed import RENAMED
from fedrank.deploy.settings import read_federation, read_site
from fedrank.experiments.bench.submission import read_submission
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.grid import About
from fedrank.experiments.spec.kinds import KINDS
from fedrank.experiments.spec.listing import ListedMethod, methods, search
from fedrank.experiments.spec.source import read_spec
from fedrank.kernels.compile import same_bytes_here
from fedrank.privacy.updates import UpdatePrivacy
from fedrank.toml import write_toml
from fedrank_papers.items import named
from tests.documents import hook
from tests.notebooks import forget_modules

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*DOCS, *(path for name in ("README.md", "CONTRIBUTING.md") if (path := ROOT / name).exists())]
# tests/test_testing.py runs my_methods.
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem != "my_methods"]
TUTORIAL = ROOT / "docs" / "tutorials" / "first-experiment.md"
ORGANISATIONS = ROOT / "docs" / "tutorials" / "organisations.md"
CLICK_LOGS = ROOT / "docs" / "how-to" / "click-logs.md"
FOLLOWED = (TUTORIAL, ORGANISATIONS, CLICK_LOGS)  # their code needs what precedes it
SHORT = ["rounds=10", "seeds=[1]", "data.folds=[1]"]  # the same experiment, in seconds
WHOLE = {"rounds", "data", "clients", "learner"}  # a spec without these is a fragment
OTHER_FILES: dict[str, Callable[[Path], object]] = {
    "shapes": UpdatePrivacy.read,  # by a key
    "sites": read_federation,
    "policy": read_site,
    "trial": read_settings,
}
SMALLEST = {"rounds": 1, "data": {"name": "mq2008"}, "clients": {"count": 4}, "learner": {"name": "pdgd"}}


def _place(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{_place(self.page)}:{self.line}"


@cache
def _methods() -> list[ListedMethod]:
    return methods()


def blocks(*kinds: str) -> list[Block]:
    return [block for page in DOCS for block in _blocks(page) if block.kind in kinds]


def _blocks(page: Path, text: str | None = None) -> Iterator[Block]:
    text = text or page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


@cache
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
    forget_modules(tmp_path, before)


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_write_only_where_they_are_told(
    example: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    if "pyterrier" in text:
        pytest.importorskip("pyterrier", reason="package: python-terrier is not installed")
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


@pytest.mark.parametrize("page", PAGES, ids=_place)
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


@cache
def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_that_are_named_elsewhere_exist() -> None:
    """In messages, docstrings, specs and tests."""
    sources = [path for name in ("src", "reproduction", "benchmarks", "examples", "tests") for path in _sources(name)]
    named = {(path, page) for path in sources for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text("utf-8"))}
    assert len(named) >= 5
    assert [(path, page) for path, page in named if not (ROOT / page).is_file()] == []


def _sources(folder: str) -> Iterator[Path]:
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in (".py", ".toml", ".md", ".sh"):
            yield path


def test_index_names_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    text = index.read_text(encoding="utf-8")
    for page in DOCS:
        assert page == index or f"({page.relative_to(index.parent).as_posix()})" in text, f"{page} is not in the index"


def test_pages_are_in_folders_by_kind() -> None:
    assert len(DOCS) <= 30
    kinds = {page.parent.name for page in DOCS if page.name != "index.md"}
    assert kinds == {"tutorials", "how-to", "reference", "explanation"}


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_specs_are_valid(block: Block, folder: Path) -> None:
    _check_spec(block, folder)


def _check_spec(block: Block, folder: Path) -> None:
    tables = tomllib.loads(block.text)
    if reader := next((read for key, read in OTHER_FILES.items() if key in tables), None):
        text = re.sub(r'^(log *= *)"\.\./.*"', r'\1"."', block.text, flags=re.MULTILINE)
        (folder / "other.toml").write_text(re.sub(r'"\.\./data/.*"', '"other.toml"', text), encoding="utf-8")
        assert reader(folder / "other.toml")
        return
    data = tables.get("data", {})
    named = [data.get(key) for key in ("train", "test", "validation")]
    named += [one for one in [data.get("propensities")] if one is not None and one.endswith(".json")]
    for file in filter(None, [*named, tables.get("start")]):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    text = block.text
    if not tables.keys() >= WHOLE and tables.get("kind") not in ("silo", "trees"):
        text = write_toml(_merged(SMALLEST, tables))
    (folder / "spec.toml").write_text(text, encoding="utf-8")
    assert read_spec(folder / "spec.toml").variants


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {**below, **above}
    return {
        key: _merged(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in both.items()
    }


def test_tutorial_shows_the_built_in_experiment() -> None:
    source = ROOT / "src" / "fedrank" / "experiments" / "builtin" / "quickstart.toml"
    shown = next(block for block in blocks("toml") if block.page == TUTORIAL)
    assert tomllib.loads(shown.text) == tomllib.loads(source.read_text(encoding="utf-8"))


def test_every_key_of_a_spec_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "spec.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", page, re.MULTILINE))
    federated, about = KINDS["federated"].spec, typing.get_type_hints(About)
    hints = typing.get_type_hints(federated)
    kinds = {
        "Top level": (federated, About),
        "data": (hints["data"],),
        "clients": (hints["clients"],),
        "privacy": (hints["privacy"],),
        "gate": (typing.get_args(hints["gate"])[0],),
        "Published": (typing.get_args(about["published"])[0],),
        "Claims": (typing.get_args(about["claims"])[0],),
        "Kind silo": (KINDS["silo"].spec,),
        "Kind trees": (KINDS["trees"].spec,),
    }
    common = {field.name for field in dataclasses.fields(Experiment)}
    for section, classes in kinds.items():
        rows = dict(re.findall(r"^\| `(\w+)` \| .+? \| (.+?) \|", sections[section], re.MULTILINE))
        fields = {field.name: field for kind in classes for field in dataclasses.fields(kind)}
        if section.startswith("Kind"):
            fields = {name: field for name, field in fields.items() if name not in common}
        assert rows.keys() == fields.keys(), f"docs/reference/spec.md, {section}"
        for name, field in fields.items():
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            assert (rows[name] == "required") == required, f"docs/reference/spec.md, {section}: {name}"
            default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
            if isinstance(default, (int, float, str)):
                assert tomllib.loads(f"value = {rows[name].strip('`')}") == {"value": default}, f"{section}: {name}"


@pytest.mark.long
@pytest.mark.parametrize("block", [block for block in blocks("python") if block.page not in FOLLOWED], ids=str)
def test_code_runs(block: Block, folder: Path) -> None:
    exec(compile(block.text, str(block), "exec", dont_inherit=True), {"__name__": "document"})


@pytest.mark.long
def test_tutorial_can_be_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _follow(TUTORIAL, folder, monkeypatch)
    assert {"interactions.toml", "own.toml", "report.html", "own.run", "ranker.json"} <= {
        path.name for path in folder.iterdir()
    }


@pytest.mark.long
def test_a_click_log_can_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _follow(CLICK_LOGS, folder, monkeypatch)
    assert (folder / "shop" / "log.png").is_file()
    assert {"propensities.json", "estimate.png"} <= {path.name for path in folder.iterdir()}


@pytest.mark.long
def test_two_methods_can_be_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _follow(ROOT / "docs" / "how-to" / "compare-methods.md", folder, monkeypatch, until="## Grids")
    assert (folder / "report.html").is_file()


def _follow(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, until: str | None = None) -> None:
    """From top to bottom, or to a heading: files are written, code runs, and commands print what is shown."""
    monkeypatch.setenv("COLUMNS", "200")
    lines = page.read_text(encoding="utf-8").splitlines()
    last = len(lines) if until is None else lines.index(until)
    printed = ""
    for block in _blocks(page):
        if block.line > last:
            break
        if block.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(block.text, str(block), "exec", dont_inherit=True), {"__name__": "document"})
            printed = said.getvalue()
        elif block.kind == "text" and printed:
            _check_shown("python", block.text.splitlines(), printed)
        elif block.kind == "toml":
            names = re.findall(r"`(\w+\.toml)`", "\n".join(lines[block.line - 4 : block.line]))
            for name in names:
                (folder / name).write_text(block.text, encoding="utf-8")
        elif block.kind == "console":
            for line, *shown in (part.splitlines() for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]):
                program, *words = shlex.split(line)
                if program == "fedrank":
                    done = CliRunner().invoke(app, words)
                    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
                    _check_shown(line, shown, done.output)
                elif program == "head":
                    _check_shown(line, shown, Path(words[-1]).read_text(encoding="utf-8"))
                elif program == "cd":
                    monkeypatch.chdir(words[0])
                elif program == "cp":
                    shutil.copy(*words)


def _check_shown(command: str, shown: list[str], said: str) -> None:
    """Every line that a page shows was said, to the last digit: but for which run ended first."""
    if not same_bytes_here():
        return
    words = " ".join(said.split())
    for text in shown:
        if not re.search(r": finished \(\d+ of \d+\)", text):
            assert " ".join(text.removesuffix("...").split()) in words, f"{command}\n{said}"


def _commands() -> list[tuple[str, str, bool]]:
    """(where, command line, whether it is complete): lines of console blocks, and code within sentences."""
    found = []
    for block in blocks("console"):
        for line in block.text.splitlines():
            if match := re.match(r"\$ (?:\w+=\S* )*(fedrank .*)", line):
                found.append((str(block), match[1], True))
    for page in DOCS:
        found += [(_place(page), text, False) for text in re.findall(r"`(fedrank [^`]+)`", _prose(page))]
    return found


@pytest.mark.parametrize(("where", "line", "complete"), _commands())
def test_commands_exist(where: str, line: str, complete: bool) -> None:
    _check_command(where, line, complete)


def _other_commands() -> Iterator[tuple[str, str]]:
    """(where, command line) of everything that shows one elsewhere: pages, docstrings, examples, and `--help`."""
    sources = [*PAGES, *sorted((ROOT / "benchmarks").glob("*.py")), *sorted((ROOT / "examples").glob("*.sh"))]
    for source in sources:
        text = source.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^ *(?:later )?(fedrank [a-z].*)$", text, re.MULTILINE):
            if line.split()[1] in (*_root().commands, *(words.split()[0] for words in RENAMED)):
                yield source.name, re.split(r"\s+#\s", line)[0]
    yield from _epilogs(_root(), "fedrank")


def _epilogs(command: Any, name: str) -> Iterator[tuple[str, str]]:
    for example in (command.epilog or "").partition("Examples:")[2].split("·"):
        line = " ".join(example.rpartition(": ")[2].split())
        if line.startswith("fedrank "):
            yield f"{name} --help", line
    for inner, one in getattr(command, "commands", {}).items():
        yield from _epilogs(one, f"{name} {inner}")


@cache
def _root() -> Any:
    return typer.main.get_command(app)


def test_commands_that_are_shown_elsewhere_exist() -> None:
    lines = dict.fromkeys(_other_commands())
    assert len({where for where, _ in lines if where.endswith("--help")}) > 20
    for where, line in lines:
        try:
            _check_command(where, line, "..." not in line and "$FEDRANK" not in line)
        except typer._click.exceptions.ClickException as problem:
            raise AssertionError(f"{where}: {line}: {problem.format_message()}") from None


def _check_command(where: str, line: str, complete: bool) -> None:
    command: Any = _root()
    words = shlex.split(re.split(r" (?:[|>] |&$)", line)[0])[1:]
    while words and words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    if command.name == "search" and words and words != ["--help"]:
        command = command.commands["find"]  # words that are not a command are a query
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    for word in words:
        if word.startswith("--") and word != "--":
            assert word.partition("=")[0] in known, f"{where}: {line}"
    if hasattr(command, "commands"):
        assert all(word.startswith("--") or word.isupper() for word in words), f"{where}: no such command: {line}"
    elif complete and "--help" not in words:
        parsed = command.make_context(command.name, list(words)).params  # raises where something is missing or odd
        if "names" in parsed:
            assert named(parsed["names"])
        elif "submission" in parsed:
            assert parsed["submission"].endswith((".toml", ".py")) or read_submission(parsed["submission"])
        elif command.name == "run" and not parsed["spec"].endswith(".toml"):
            read_spec(parsed["spec"], parsed["set_"] or [])
    elif command.name == "methods":
        assert search(*words), line


@cache
def _generated() -> dict[str, str]:
    return hook("build")["method_pages"]()


def test_every_method_has_its_place_on_a_generated_page() -> None:
    pages = _generated()
    for row in _methods():
        page = pages[f"reference/methods/{row.family}.md"]
        assert f"\n## {row.name}\n" in page
        section = page.partition(f"\n## {row.name}\n")[2].partition("\n## ")[0]
        for setting in row.settings:
            assert f"| `{setting.name}` | `{setting.kind}` |" in section
    assert len(pages) == 1 + len({row.family for row in _methods()})


def test_generated_pages_show_how_a_method_is_named(folder: Path) -> None:
    for path, text in _generated().items():
        family = Path(path).stem
        shown = list(_blocks(ROOT / "docs" / path, text))
        assert len(shown) == (family != "index")
        for block in shown:
            if block.kind == "toml":
                _check_spec(block, folder)
                assert any(row.name in block.text for row in _methods() if row.family == family), path
            else:
                for line in block.text.splitlines():
                    _check_command(path, line.removeprefix("$ "), True)


def test_pages_for_files_hold_what_is_linked() -> None:
    pages = hook("build")["linked_files"](DOCS)
    for example in EXAMPLES:
        assert example.read_text(encoding="utf-8") in pages[f"files/examples/{example.name}.md"]
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert pages["files/CONTRIBUTING.md"] == contributing.replace("](docs/", "](../")


@pytest.mark.build
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install 'fedrank[docs]'")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    done = subprocess.run([*build, "--site-dir", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in DOCS]
    assert all((tmp_path / page).is_file() for page in pages)
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|<link[^>]+href)=["']https?:""", front), "it opens without a network"
    for page in pages:
        assert f'href="{page.as_posix()}"' in front, f"{page} is not in the navigation"
    assert "FedBuff" in (tmp_path / "reference" / "methods" / "arrival.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", DOCS, ids=_place)
def test_a_page_begins_with_its_title(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert sum(line.startswith("# ") for line in _prose(page).splitlines()) == 1
