"""A submission: one TOML file with settings of built-in methods, or one Python file with a class.

The settings of a Python file are read from its text; its code is only executed by `bench run`, in a bounded process.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedrank.experiments.bench.tasks import SETTINGS, SKYLINE, TRIED, cells_of, data_of, task_grid
from fedrank.experiments.spec.grid import Grid
from fedrank.files import read_text
from fedrank.names import did_you_mean
from fedrank.toml import TomlTable, parse_toml, shown, write_toml
from fedrank.value_checks import checked

MODULE = "submission"  # the file of a submission in its folder, without suffix; also the module of its classes
NOTHING = "do nothing"
TOP = ("name", "title", "tried", "tasks")  # keys about the submission itself
NAME = re.compile(r"[\w][\w.+=-]*")
# The rows of what no submission has: true relevance labels, exact unlearning, and three times the passes over silos.
_SKYLINE: TomlTable = {
    "title": "Skyline: true relevance labels; exact retraining; judged lists of all silos",
    "unlearner": {"name": "retrain"},
    "silos": {"method": {"name": "global"}, "rounds": 60},
}


@dataclass(frozen=True)
class Submission:
    """Settings of methods in the tasks that the submission enters."""

    name: str
    text: str  # of its file
    suffix: str  # ".toml" or ".py"
    settings: TomlTable

    @property
    def file(self) -> str:
        return MODULE + self.suffix

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def tried(self) -> int:
        return int(self.settings.get("tried", 1))

    @property
    def is_skyline(self) -> bool:
        return self.name == SKYLINE

    @property
    def tasks(self) -> list[str]:
        """The tasks that it enters: those that it names, or all in which it sets something."""
        if self.is_skyline:
            return [SKYLINE, "unlearning", "silos"]
        named = self.settings.get("tasks", list(SETTINGS))
        return [task for task in SETTINGS if task in named and any(self.parts(task, cell) for cell in cells_of(task))]

    def parts(self, task: str, cell: str) -> TomlTable:
        """What it sets in a cell: its own keys, those of the task, and those of the cell, in this order."""
        own = self.settings.get(task, {})
        if self.is_skyline and task != "unlearning":
            return dict(own)
        return {
            key: value
            for table in (self.settings, own, own.get(data_of(cell)[1], {}))
            for key, value in table.items()
            if key in SETTINGS[task]
        }

    def grid(
        self,
        task: str,
        cells: list[str] | None = None,
        short: bool = False,
        seeds: tuple[int, ...] = (),
        full_check: bool = True,
    ) -> Grid[Any]:
        """Its experiment in a task; without `cells`, in all of them."""
        settings = {cell: self.parts(task, cell) for cell in cells_of(task, short) if cells is None or cell in cells}
        try:
            return task_grid(task, settings, short, seeds, full_check)
        except ValueError as problem:
            raise ValueError("\n".join(f"{self.name}: {task}: {line}" for line in str(problem).splitlines())) from None

    def seeds(self, count: int) -> tuple[int, ...]:
        """Seeds that its author could not choose: derived from the text of the submission."""
        texts = (f"fedrank bench verify {self.digest} {i}" for i in range(count))
        return tuple(int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1 for text in texts)


def read_submission(source: str | Path) -> Submission:
    """Read a submission from its file, or a built-in one by its name, without executing anything."""
    path = Path(source)
    if path.is_dir():
        found = [path / f"{MODULE}{suffix}" for suffix in (".toml", ".py") if (path / f"{MODULE}{suffix}").is_file()]
        if len(found) != 1:
            raise ValueError(f"{path} must contain one submission.toml or submission.py (it has {len(found)})")
        return _checked(path.name, _text(found[0]), found[0].suffix)
    if path.is_file():
        if path.suffix not in (".toml", ".py"):
            raise ValueError(f"a submission must be a .toml or .py file (got {path})")
        return _checked(path.stem, _text(path), path.suffix)
    if str(source) not in builtin_methods():
        raise FileNotFoundError(
            f"{str(source)!r} is not a file or a built-in method{did_you_mean(str(source), builtin_methods())}"
        )
    return _checked(str(source), write_toml(builtin_methods()[str(source)]), ".toml")


@cache
def builtin_methods() -> dict[str, TomlTable]:
    """The built-in methods as submissions, by name."""
    return {SKYLINE: _SKYLINE} | tomllib.loads(resources.files(__package__).joinpath("methods.toml").read_text("utf-8"))


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save it with this encoding") from None


def _checked(name: str, text: str, suffix: str) -> Submission:
    settings = parse_toml(text) if suffix == ".toml" else _settings_in(name, text)
    found = Submission(str(settings.get("name", name)), text, suffix, settings)
    if found.is_skyline and settings == _SKYLINE:
        return found
    if problems := dict.fromkeys(_problems(found)):  # cells of a task have the same ones
        raise ValueError("\n".join(f"{name}: {line}" for line in problems))
    return found


def _settings_in(name: str, text: str) -> TomlTable:
    """The dictionary SUBMISSION of a Python file; names of its classes become references to them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as problem:
        raise ValueError(f"{name}: is not Python: {problem}") from None
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == ["SUBMISSION"]:
            try:
                settings = ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                settings = None
            if isinstance(settings, dict) and all(isinstance(key, str) for key in settings):
                return {key: _with_references(value, classes) for key, value in settings.items()}
            break
    raise ValueError(
        f'{name}: a Python submission must contain SUBMISSION = {{"aggregator": {{"name": "MyClass"}}}}, a dictionary '
        "of plain values"
    )


def _with_references(value: Any, classes: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_references(inner, classes) for key, inner in value.items()}
    return f"{MODULE}:{value}" if isinstance(value, str) and value in classes else value


def _problems(found: Submission) -> Iterator[str]:
    """Why a submission is refused; nothing is imported for that."""
    settings = found.settings
    if not NAME.fullmatch(found.name) or found.name in (SKYLINE, NOTHING):
        yield f"name: {shown(found.name)} cannot be used; use letters, digits, - and _, and not {SKYLINE!r}"
    known = dict.fromkeys(key for keys in SETTINGS.values() for key in keys)
    for key in settings:
        if key not in (*TOP, *known, *SETTINGS):
            yield f"{key}: a submission cannot set it{did_you_mean(key, (*TOP, *known, *SETTINGS))}"
    try:
        checked(int, settings.get("tried", 1), "tried")
        if not 1 <= settings.get("tried", 1) <= TRIED:
            yield f"tried: must be 1 to {TRIED}, the same budget for all submissions (got {settings['tried']})"
        for task in checked(tuple[str, ...], settings.get("tasks", []), "tasks"):
            if task not in SETTINGS:
                yield f"tasks: unknown task {task!r}{did_you_mean(task, SETTINGS)}"
    except ValueError as problem:
        yield str(problem)
        return
    for task, allowed in SETTINGS.items():
        own = settings.get(task, {})
        if not isinstance(own, Mapping):
            yield f"{task}: {shown(own)} is not a table; write [{task}]"
            return
        rests = {data_of(cell)[1] for cell in cells_of(task)} - {""}
        if wrong := [rest for rest in rests if not isinstance(own.get(rest, {}), Mapping)]:
            yield f"{task}.{wrong[0]}: {shown(own[wrong[0]])} is not a table; write [{task}.{wrong[0]}]"
            return
        tables = [(task, own), *((f"{task}.{rest}", own[rest]) for rest in rests if rest in own)]
        for location, table in tables:
            for key in table:
                if key not in allowed and not (location == task and key in rests):
                    yield f"{location}.{key}: a submission cannot set it{did_you_mean(key, (*allowed, *rests))}"
        for cell in cells_of(task):
            yield from _refused(task, found.parts(task, cell))
    if not found.tasks:
        yield f"it enters no task; set one of {', '.join(known)}"


def _refused(task: str, parts: TomlTable) -> Iterator[str]:
    names = {key: value.get("name", "") if isinstance(value, dict) else value for key, value in parts.items()}
    if names.get("learner") == "lambdarank":
        yield f"{task}: learner: lambdarank uses the true relevance labels, which only the skyline has; use clicks"
    if task == "private" and ":" in str(names.get("mechanism", "")):
        yield "private: mechanism: a class of the submission would state its own ε; use a built-in mechanism"
    method = parts.get("method")
    if task == "silos" and ":" in str(names.get("method", "")):
        yield "silos: method: a class of the submission would see the documents of all silos; use a built-in method"
    if isinstance(method, dict) and method.get("counts") == "exact":
        yield 'silos: method.counts: "exact" reads the documents of other silos; use "sketch"'
