"""The demo: a federation learns, is attacked, forgets, and its messages are read; a story with its own numbers."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedrank.experiment.audit import Finding, audit_experiment
from fedrank.experiment.families import build
from fedrank.experiment.federated_spec import read_experiment
from fedrank.experiment.figures import curves
from fedrank.experiment.findings import Findings, Variant, find
from fedrank.experiment.forget import unlearn_runs
from fedrank.experiment.page import figure_html, shell, table_html
from fedrank.experiment.schedule import run_experiment
from fedrank.experiment.store import load_runs
from fedrank.experiment.tables import Cell, Table, heading, spread
from fedrank.files import write_whole
from fedrank.unlearn.methods import Unlearner

if TYPE_CHECKING:
    from rich.console import Console

READING = "clicks, from one message"  # of what an audit attacks
LIARS = (0, 1, 2)  # as in demo.toml
MESSAGES = 100  # that are attacked; `fedrank audit` takes more
REPEATS = 4_000
RUNS = 400


class DemoStopped(Exception):
    """The user asked it to stop; what is finished is kept."""


def demo(out: Path, report: Path, console: Console) -> None:
    """Do all of it, or what is left of it, and write the story."""
    column = "ndcg@10"
    _say(console, "1  Ten people learn one ranker together; three of them lie")
    results = run_experiment(read_experiment("demo"), "demo", out, workers=os.cpu_count() or 1, console=console)
    if results.interrupted:
        raise DemoStopped
    if results.failed:
        raise RuntimeError(f"{results.failed[0][0].label} failed: {results.failed[0][1]}")
    _say(console, "2  The three leave, and are forgotten")
    forget = build(Unlearner, {"name": "fed-eraser"}, "method")
    unlearn_runs([out / "demo" / "attacked"], LIARS, forget, out, console=console)
    _say(console, "3  What a single message gives away")
    found = audit_experiment(
        read_experiment("demo-privacy"), console, None, messages=MESSAGES, repeats=REPEATS, runs=RUNS
    )
    [learned] = find(load_runs(out / "demo"), by_query=False)
    [forgotten] = find(load_runs(out / "demo-unlearned"), by_query=False)
    write_whole(report, story(learned, forgotten.variants[0], found, column))
    for line in lines(learned, forgotten.variants[0], found, column):
        _say(console, line)


def lines(learned: Findings, forgotten: Variant, found: list[Finding], column: str) -> list[str]:
    """The story in four sentences."""
    told = {variant.name: spread(column, variant.summary(column)) for variant in learned.variants}
    read = {each.variant: each for each in found if each.attacked == READING}
    name = heading(column)
    return [
        f"Together the ten reach {name} {told['together']}; each alone {told['alone']}.",
        f"Three liars bring it down to {told['attacked']}; a rule that expects liars keeps {told['contained']}.",
        f"After the three are forgotten: {spread(column, forgotten.summary(column))}.",
        "Clicks read from single messages: "
        + "; ".join(f"{variant.replace('-', ' ')}: {each.shown}" for variant, each in read.items())
        + ".",
    ]


def story(learned: Findings, forgotten: Variant, found: list[Finding], column: str) -> str:
    """The web page: one picture and one paragraph for each chapter."""
    together, attacked, after, messages = lines(learned, forgotten, found, column)
    rows = [(variant.label, variant) for variant in learned.variants]
    rows.append(("attacked, then forgotten", forgotten))
    table = Table(
        ["what", heading(column), "repeats"],
        [
            [Cell(label), Cell(spread(column, variant.summary(column))), Cell(str(len(variant.repeats)))]
            for label, variant in rows
        ],
        1,
        ["Mean ± standard deviation over seeds, on test queries; final values are means of the last ten evaluations."],
    )
    verdicts = Table(
        ["messages", "attacked", "promised", "shown", "verdict"],
        [
            [
                Cell(each.variant.replace("-", " ")),
                Cell(each.attacked),
                Cell(each.promised),
                Cell(each.shown),
                Cell(each.verdict, tone="worse" if each.verdict in ("VIOLATED", "READ") else ""),
            ]
            for each in found
        ],
        5,
        [f"{MESSAGES} messages; fedrank audit demo-privacy attacks more of them, and says what each verdict means."],
    )
    drawing = curves(learned, column, heading(column))
    parts = [
        "<article><h1>A federation learns, is attacked, and forgets</h1>",
        '<p class="lead">Ten people search. Everybody learns from their own clicks and sends only a change of the '
        "ranker. All data are made up; all numbers were computed when this page was written.</p>",
        f"<h2>They learn</h2><p>{escape(together)}</p>",
        f"<h2>Three of them lie</h2><p>They click on what is not relevant. {escape(attacked)}</p>",
        figure_html(drawing, f"{heading(column)} by round, mean over seeds."),
        f"<h2>They leave</h2><p>{escape(after)} Forgetting replays what was recorded of the others, in a fraction of "
        "the work of training again; <code>fedrank unlearn --verify</code> compares the two.</p>",
        table_html(table),
        f"<h2>What a message gives away</h2><p>{escape(messages)} The published noise protects only the sum of all "
        "messages; noise on the client protects each, at a price in quality.</p>",
        table_html(verdicts),
        "<h2>Next</h2><p><code>fedrank run quickstart</code>, then the tutorial in docs/. (After <code>make demo</code>"
        " that is <code>.venv/bin/fedrank</code>.)</p></article>",
    ]
    return shell("A federation learns, is attacked, and forgets", parts)


def _say(console: Console, text: str) -> None:
    console.print(text, style="bold", markup=False, highlight=False, soft_wrap=True)
