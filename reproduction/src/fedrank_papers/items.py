"""The papers behind fedrank: their tables and figures as experiments, and unlearning after some of them."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedrank.data.catalog import CATALOG
from fedrank.experiments.report.sections import Cell, Section, Span, Table, paragraph
from fedrank.experiments.spec.experiment import to_tables
from fedrank.experiments.spec.families import build
from fedrank.experiments.spec.grid import Grid
from fedrank.experiments.spec.source import QUICK_FORM, builtin_specs, read_spec
from fedrank.files import write_atomic
from fedrank.names import did_you_mean
from fedrank.progress import Progress, quiet
from fedrank.toml import TomlTable, flat, write_toml, write_value

QUICK, ON, UNLEARNED = "-quick", "-on-", "-unlearned"  # parts of a label: thesis/table-6-2-quick-on-mq2008-unlearned
SOON_READ = 200_000  # maximum documents of a data set for a quick form
MADE_UP_LOG = "made-up-log"  # name of the search log that is generated for quick forms
# Keys of a spec that may differ without changing runs of the paper, or that lead to a separate folder.
_FREE = re.compile(
    r"title|measures|seeds|baseline|published|claims|(paper|quick|vary)\..*|quick|"
    r"data\.(name|log|folder|train|test|validation|folds|users)"
)


@dataclass(frozen=True)
class Remark:
    """An observation that contradicts a paper, or that it does not mention."""

    says: str
    evidence: str  # the experiments that show it

    @property
    def experiments(self) -> list[str]:
        """Experiments named by the evidence, whose runs are required."""
        return [name for name in builtin_specs() if re.search(rf"\b{re.escape(name)}(?![\w-])", self.evidence)]


@dataclass(frozen=True)
class Other:
    """A table or figure that is made by a command instead of an experiment."""

    item: str
    command: str


@dataclass(frozen=True)
class Unlearning:
    """What is unlearned after some experiments, and the paper's claims about it."""

    experiments: list[str]  # names within the paper
    client: int  # the client that leaves
    title: str
    methods: dict[str, list[dict[str, Any]]]  # named variant -> unlearners
    claims: list[dict[str, Any]] = field(default_factory=list)  # as in a spec
    published: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # experiment -> as in a spec


@dataclass(frozen=True)
class Paper:
    """A paper whose experiments are included."""

    key: str  # its folder
    title: str
    authors: str
    year: int
    other_data: bool = (
        False  # experiments use other data than the paper: only the order of published values is comparable
    )
    remarks: tuple[Remark, ...] = ()
    other: tuple[Other, ...] = ()
    unlearn: Unlearning | None = None

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """Its tables and figures, in order."""
        names = [name for name in builtin_specs() if name.startswith(f"{self.key}/")]
        items = [Item(name, read_spec(name)) for name in names]
        return tuple(sorted(items, key=lambda item: _order(item.label)))


@dataclass(frozen=True)
class Item:
    """One table or figure, or several with the same experiment."""

    name: str  # of its experiment
    grid: Grid[Any]

    @property
    def label(self) -> str:
        """The name in the paper; for our own experiment about the paper, its title."""
        paper = self.grid.about.paper
        return self.name.partition("/")[2] if paper is None else paper.item

    @property
    def data(self) -> str:
        return data_of(self.grid)

    @cached_property
    def missing(self) -> str:
        """Why it cannot run here as it is; empty if it can."""
        try:
            self.grid.base.data.require()
        except (OSError, ValueError) as problem:
            return str(problem)
        return ""

    @cached_property
    def quick(self) -> Grid[Any] | None:
        """Its small form, if it has one."""
        return read_spec(self.name, quick=True) if self.grid.about.quick else None


@cache
def papers() -> tuple[Paper, ...]:
    """Every paper with included experiments, ordered by year."""
    known = []
    for folder in resources.files("fedrank_papers.specs").iterdir():
        about = folder.joinpath("paper.toml")
        if folder.is_dir() and about.is_file():
            facts = tomllib.loads(about.read_text(encoding="utf-8"))
            remarks = tuple(Remark(**row) for row in facts.pop("remarks", ()))
            other = tuple(Other(**row) for row in facts.pop("other", ()))
            unlearn = Unlearning(**facts.pop("unlearn")) if "unlearn" in facts else None
            known.append(Paper(key=folder.name, remarks=remarks, other=other, unlearn=unlearn, **facts))
    return tuple(sorted(known, key=lambda paper: (paper.year, paper.key)))


def about_papers() -> list[Section]:
    """Every table and figure: its experiment, its data, whether they are available, and the running time."""
    sections = []
    for paper in papers():
        rows = []
        for item in paper.items:
            cost = item.grid.about.paper
            times = (None, None) if cost is None else (cost.minutes, cost.quick_minutes)
            here = Cell("no", tone="warn") if item.missing else Cell("yes", tone="better")
            cells = [Cell(captioned(item.label, item.grid.title)), Cell(item.name, tone="name"), Cell(item.data), here]
            rows.append([*cells, *(Cell(_minutes(time)) for time in times)])
        table = Table(
            ["item", "experiment", "data", "here", "whole", "quick"], rows, 4, unbroken_column=1
        )  # users type this name
        others = [paragraph(f"{other.item}:  ", Span(other.command, "code")) for other in paper.other]
        sections.append(Section(paper.title, (table, *others), f"{paper.authors}, {paper.year}"))
    last = (
        "Times are estimated from short runs on two otherwise idle cores. `fedrank papers run NAME` runs one "
        "experiment; with --quick its small form, on the real data if they are available and not too large, and on "
        "synthetic data of the same shape otherwise. --set data.name=... selects other data."
    )
    return [*sections, Section("", (paragraph(last, tone="quiet"),))]


def captioned(label: str, title: str) -> str:
    """The name of an item and what it shows, without repetition.

    >>> captioned("Figure 1", "SelGB, figure 1: how many negatives")
    'Figure 1: how many negatives'
    >>> captioned("Ours: few queries", "Few queries")
    'Ours: few queries'
    """
    before, _, shows = title.partition(": ")
    title = shows if before.casefold().endswith(label.casefold()) else title
    return label if label.casefold().endswith(title.casefold()) else f"{label}: {title}"


def papers_facts() -> list[dict[str, Any]]:
    """The same as `about_papers`, as JSON values."""
    return [
        {
            "key": paper.key,
            "title": paper.title,
            "authors": paper.authors,
            "year": paper.year,
            "items": [
                {
                    "item": item.label,
                    "caption": item.grid.title,
                    "experiment": item.name,
                    "data": item.data,
                    "here": not item.missing,
                    "missing": item.missing,
                    "minutes": getattr(item.grid.about.paper, "minutes", None),
                    "quick_minutes": getattr(item.grid.about.paper, "quick_minutes", None),
                }
                for item in paper.items
            ],
        }
        for paper in papers()
    ]


def named(names: Sequence[str]) -> list[str]:
    """Experiments of the papers by name; `all` and the key of a paper stand for several."""
    known = [name for paper in papers() for name in builtin_specs() if name.startswith(f"{paper.key}/")]
    chosen: list[str] = []
    for name in names:
        some = known if name == "all" else [each for each in known if each == name or each.startswith(f"{name}/")]
        if not some:
            raise ValueError(
                f"unknown table or figure {name!r}{did_you_mean(name, known)}; `fedrank papers list` shows them"
            )
        chosen += some
    return list(dict.fromkeys(chosen))


def ask(name: str, changes: Sequence[str], quick: bool, runs: Path) -> tuple[Grid[Any], str]:
    """An experiment of a paper ready to run, and the folder of its results within the folder of runs.

    A quick form uses the paper's data if they are available and small enough; its title names the data. A quick form
    that needs a search log gets a generated one, which is stored there as well.
    """
    usual, changes = read_spec(name, quick=quick), list(changes)
    own = any(change.startswith("data.") for change in changes)
    if quick and not own and (real := _real_data(name, usual)):
        changes.append(f"data.name={real}")
    grid = read_spec(name, changes, quick=quick)
    if Path(getattr(grid.base.data, "log", None) or "").name == MADE_UP_LOG:
        changes.append(f"data.log={made_up_log(runs / MADE_UP_LOG)}")
    elsewhere = f"{ON}{data_of(grid)}" if data_of(grid) != data_of(usual) else ""
    if (quick or elsewhere) and not any(change.startswith("title=") for change in changes):
        form = f"({QUICK_FORM}, on {_called(grid)})" if quick else f"(on {_called(grid)})"
        title = f"{usual.title.removesuffix(f' ({QUICK_FORM})')} {form}"
        if others := changed(name, grid, quick):
            title += f" (changed: {', '.join(others)})"
        changes.append(f"title={json.dumps(title, ensure_ascii=False)}")
    return read_spec(name, changes, quick=quick), name + QUICK * quick + re.sub(r"[^\w.+=,-]+", "-", elsewhere)


def _real_data(name: str, quick: Grid[Any]) -> str:
    """The paper's data, if the quick form uses others and these are available and small; else empty."""
    full = read_spec(name)
    real: str | None = full.base.data.name
    if real is None or data_of(full) != real or data_of(quick) == real:
        return ""
    if real in CATALOG and not 0 < CATALOG[real].documents <= SOON_READ:
        return ""
    try:
        full.base.data.require()
        read_spec(name, [f"data.name={real}"], quick=True)  # it may lack these folds
    except (OSError, ValueError):
        return ""
    return real


def _called(grid: Grid[Any]) -> str:
    """The data of an experiment, for a title."""
    names = data_of(grid)
    made_up = names.startswith("synthetic-") or names == MADE_UP_LOG
    return f"synthetic data, {names}" if made_up else names


def changed(name: str, grid: Grid[Any], quick: bool) -> list[str]:
    """Settings, by dotted key, that differ from the included experiment.

    Other data have a separate folder, and fewer variants or other repeats do not change runs: they do not count.
    """
    usual, mine = (_settings(one) for one in (read_spec(name, quick=quick), grid))
    return [key for key, value in mine.items() if not _FREE.fullmatch(key) and usual.get(key) != value]


def command(name: str, grid: Grid[Any], quick: bool) -> str:
    """The command that executes these runs."""
    usual, mine = (_settings(one) | flat({"vary": one.about.vary}) for one in (read_spec(name, quick=quick), grid))
    sets = [
        f"--set {shlex.quote(f'{key}={_typed(value)}')}"
        for key, value in mine.items()
        if key != "title" and usual.get(key) != value
    ]
    return " ".join(["fedrank papers run", name, *["--quick"] * quick, *sets])


def _typed(value: Any) -> str:
    """A value as it is typed; for a file, only its name."""
    if isinstance(value, str):
        return Path(value).name if "/" in value else value
    return write_value(value)


def other_folds(name: str, grid: Grid[Any], quick: bool) -> bool:
    """Whether an experiment has other folds than the included one, and so another mean."""
    usual, mine = (_settings(one).get("data.folds") for one in (read_spec(name, quick=quick), grid))
    return usual != mine


def _settings(grid: Grid[Any]) -> TomlTable:
    return flat(to_tables(grid.base) | {"variants": grid.about.variants})


def made_up_log(folder: Path) -> Path:
    """A synthetic search log as a data set, generated or completed if necessary."""
    from fedrank.data.build_log import LogBuild, build_log
    from fedrank.data.lists import ListRules
    from fedrank.data.synthetic_log import CORPUS, LOG, synthetic_log

    files = folder / "files"
    folder.mkdir(parents=True, exist_ok=True)
    if not files.exists():
        with TemporaryDirectory(dir=folder) as fresh:  # an incomplete log must not be mistaken for a complete one
            synthetic_log(Path(fresh) / files.name, users=200, least=20)
            (Path(fresh) / files.name).rename(files)
    return build_log(files / LOG, files / CORPUS, folder / "data" / MADE_UP_LOG, LogBuild(ListRules())).folder


def compared(name: str, grid: Grid[Any]) -> Grid[Any]:
    """The variants that the claims of an experiment compare; all of them if the paper unlearns or has no claims."""
    key, _, rest = name.partition("/")
    [unlearning] = [paper.unlearn for paper in papers() if paper.key == key]
    if unlearning is not None and rest in unlearning.experiments:
        return grid
    spoken = {variant for claim in grid.about.claims for variant in (claim.higher, claim.lower)}
    return grid.only([variant for variant in grid.names if variant in spoken])


def unlearn_after(name: str, grid: Grid[Any], label: str, runs: Path, progress: Progress = quiet) -> Path | None:
    """Unlearn from the finished runs of an experiment as in the paper; returns the folder, or None.

    The request is written next to the results, which lets reports judge the paper's claims about it.
    """
    key, _, rest = name.partition("/")
    [plan] = [paper.unlearn for paper in papers() if paper.key == key]
    if plan is None or rest not in plan.experiments:
        return None
    from fedrank.experiments.runner.unlearning import unlearn_runs
    from fedrank.unlearning.methods import Unlearner

    made = set()
    for variant in grid.variants:
        for method in plan.methods.get(variant.given, ()):
            unlearner = build(Unlearner, method, "unlearn.methods")
            parents = [runs / label / variant.name]
            for result in unlearn_runs(parents, [plan.client], unlearner, runs, progress=progress):
                made.add(result.folder.parent.name)
    folder = runs / f"{label}{UNLEARNED}"
    other = changed(name, grid, QUICK in label)
    form = f" ({QUICK_FORM})" * (QUICK in label) + f" (changed: {', '.join(other)})" * bool(other)
    tables = to_tables(grid.base) | {"title": f"{plan.title}{form}"}
    tables["claims"] = [row for row in plan.claims if {row["higher"], row["lower"]} <= made]
    if label == name and not other:  # published values belong to the whole form on the paper's data
        tables["published"] = [row for row in plan.published.get(rest, ()) if row["variant"] in made]
    write_atomic(folder / "experiment.toml", write_toml({key: value for key, value in tables.items() if value != []}))
    return folder


def data_of(grid: Grid[Any]) -> str:
    """The names of the data of an experiment."""
    names = []
    for variant in grid.variants:
        data = variant.experiment.data
        others = (getattr(data, kind, None) for kind in ("log", "collection", "folder"))
        names.append(data.name or next(filter(None, others), "files"))
    return ", ".join(dict.fromkeys(Path(name).name if "/" in name else name for name in names))


def _minutes(minutes: float | None) -> str:
    if minutes is None:
        return "-"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _order(label: str) -> tuple[Any, ...]:
    """Sort key: tables and figures by number, our own experiments last."""
    numbers = re.search(r"(?:Tables?|Figures?) (\d+)(?:\.(\d+))?", label)
    return (numbers is None, *(int(number or 0) for number in (numbers.groups() if numbers else ())), label)
