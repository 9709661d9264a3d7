"""The demo: a federation learns, is attacked, forgets, and its messages are read; a story with its own numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrank.attacks.audits import READING, Finding
from fedrank.experiments.report.analysis import Analysis, analyse
from fedrank.experiments.report.command_output import findings_table
from fedrank.experiments.report.compose import draw_curves
from fedrank.experiments.report.formatting import heading, spread
from fedrank.experiments.report.html import page
from fedrank.experiments.report.run_values import VariantRuns
from fedrank.experiments.report.sections import Drawing, Section, Span, Table, paragraph
from fedrank.experiments.runner.audit import audit_experiment
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.experiments.spec.families import build
from fedrank.experiments.spec.source import read_experiment
from fedrank.files import write_atomic
from fedrank.progress import Progress, quiet
from fedrank.unlearning.methods import Unlearner

TITLE = "A federation learns, is attacked, and forgets"
LIARS = (0, 1, 2)  # as in demo.toml
MESSAGES = 100  # that are attacked; `fedrank audit` takes more
REPEATS = 4_000
RUNS = 400


class DemoStopped(Exception):
    """The user asked it to stop; what is finished is kept."""


def demo(out: Path, report: Path, tell: Callable[[str], None], progress: Progress = quiet) -> None:
    """Do all of it, or what is left of it, and write the story; `tell` gets its chapters and its last sentences."""
    column = "ndcg@10"
    tell("1  Ten people learn one ranker together; three of them lie")
    results = run_experiment(read_experiment("demo"), "demo", out, workers=os.cpu_count() or 1, progress=progress)
    if results.interrupted:
        raise DemoStopped
    if results.failed:
        raise RuntimeError(f"{results.failed[0][0].label} failed: {results.failed[0][1]}")
    [learned] = analyse(load_runs(out / "demo"))
    write_atomic(report, story(learned, column))
    tell(f"   The learning curves are in {report}; open it now, and reload it when the demo has finished")
    tell("2  The three leave, and are forgotten")
    forget = build(Unlearner, {"name": "fed-eraser"}, "method")
    unlearn_runs([out / "demo" / "attacked"], LIARS, forget, out, progress=progress)
    tell("3  What a single message gives away")
    attacks = audit_experiment(
        read_experiment("demo-privacy"), messages=MESSAGES, repeats=REPEATS, runs=RUNS, progress=progress
    )
    [forgotten] = analyse(load_runs(out / "demo-unlearned"))
    write_atomic(report, story(learned, column, forgotten.variants[0], attacks))
    for line in (*learning(learned, column), *leaving(forgotten.variants[0], attacks, column)):
        tell(line)


def learning(learned: Analysis, column: str) -> tuple[str, str]:
    """Chapters 1 and 2 in a sentence each."""
    quality = {variant.name: spread(column, variant.summary(column)) for variant in learned.variants}
    return (
        f"Together the ten reach {heading(column)} {quality['together']}; each alone {quality['alone']}.",
        f"Three liars bring it down to {quality['attacked']}; a rule that expects liars keeps {quality['contained']}.",
    )


def leaving(forgotten: VariantRuns, attacks: Sequence[Finding], column: str) -> tuple[str, str]:
    """Chapters 3 and 4 in a sentence each."""
    read = [f"{each.variant.replace('-', ' ')}: {each.shown}" for each in attacks if each.attacked == READING]
    return (
        f"After the three are forgotten: {spread(column, forgotten.summary(column))}.",
        f"Clicks read from single messages: {'; '.join(read)}.",
    )


def story(learned: Analysis, column: str, forgotten: VariantRuns | None = None, attacks: Sequence[Finding] = ()) -> str:
    """The web page: one picture and one paragraph for each chapter that has been computed so far."""
    together, attacked = learning(learned, column)
    drawing = Drawing(lambda: draw_curves(learned, column), f"{heading(column)} by round, mean over seeds.")
    chapters = [
        Section("They learn", (paragraph(together),)),
        Section("Three of them lie", (paragraph(f"They click on what is not relevant. {attacked}"), drawing)),
    ]
    if forgotten is None:
        chapters.append(
            Section("Still running", (paragraph("The demo is computing the next chapters. Reload this page."),))
        )
    else:
        chapters += last_chapters(learned, column, forgotten, attacks)
    first = (
        "Ten people search. Everybody learns from their own clicks and sends only a change of the ranker. All data are "
        "made up; all numbers were computed when this page was written."
    )
    return page(TITLE, [Section(TITLE, (paragraph(first, tone="lead"), *chapters))])


def last_chapters(learned: Analysis, column: str, forgotten: VariantRuns, attacks: Sequence[Finding]) -> list[Section]:
    """What is known only at the end: unlearning, what messages reveal, and what to do next."""
    after, messages = leaving(forgotten, attacks, column)
    rows = [*((variant.label, variant) for variant in learned.variants), ("attacked, then forgotten", forgotten)]
    table = Table(
        ["what", heading(column), "repeats"],
        [[label, spread(column, each.summary(column)), str(len(each.repeats))] for label, each in rows],
        notes=[
            "Mean ± standard deviation over seeds, on test queries; final values are means of the last ten evaluations."
        ],
    )
    about = f"{MESSAGES} messages; fedrank audit demo-privacy attacks more of them, and says what each verdict means."
    verdicts = findings_table(attacks)
    verdicts = Table(
        ["messages", *verdicts.header],
        [[each.variant.replace("-", " "), *row] for each, row in zip(attacks, verdicts.rows, strict=True)],
        6,
        [about],
    )
    forgetting = paragraph(
        f"{after} Forgetting replays what was recorded of the others, in a fraction of the work of training again; ",
        Span("fedrank unlearn --verify", "code"),
        " compares the two.",
    )
    noise = (
        f"{messages} The published noise protects only the sum of all messages; noise on the client protects each, at "
        "a price in quality."
    )
    following = paragraph(
        Span("fedrank run quickstart", "code"),
        ", then the tutorial in docs/. (After ",
        Span("make demo", "code"),
        " that is ",
        Span(".venv/bin/fedrank", "code"),
        ".)",
    )
    return [
        Section("They leave", (forgetting, table)),
        Section("What a message gives away", (paragraph(noise), verdicts)),
        Section("Next", (following,)),
    ]
