"""The demo: a federation learns, is attacked, forgets clients, and its messages are audited, on one web page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrank.attacks.audits import READING, Finding
from fedrank.experiments.report.analysis import Analysis, analyse
from fedrank.experiments.report.compose import curve_data, draw_curves
from fedrank.experiments.report.formatting import heading, spread
from fedrank.experiments.report.html import page
from fedrank.experiments.report.privacy_output import findings_table
from fedrank.experiments.report.run_values import VariantRuns
from fedrank.experiments.report.sections import Drawing, Interactive, Section, Span, Table, paragraph
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
LIARS = (0, 1, 2)  # malicious clients, as in demo.toml
MESSAGES = 100  # number of attacked messages; `fedrank privacy audit` takes more
REPEATS = 4_000
RUNS = 400


class DemoStopped(Exception):
    """The user asked to stop; finished runs are kept."""


def demo(out: Path, report: Path, tell: Callable[[str], None], progress: Progress = quiet) -> None:
    """Run or resume the demo, and write its page; `tell` receives the chapters and the last sentences."""
    column = "ndcg@10"
    tell("1  Ten clients train one ranker together; three of them are malicious")
    results = run_experiment(read_experiment("demo"), "demo", out, workers=os.cpu_count() or 1, progress=progress)
    if results.interrupted:
        raise DemoStopped
    if results.failed:
        raise RuntimeError(f"{results.failed[0][0].label} failed: {results.failed[0][1]}")
    [learned] = analyse(load_runs(out / "demo"))
    write_atomic(report, story(learned, column))
    tell(f"   The learning curves are in {report}; open it now, and reload it when the demo has finished")
    tell("2  The three malicious clients leave, and are unlearned")
    forget = build(Unlearner, {"name": "fed-eraser"}, "method")
    unlearn_runs([out / "demo" / "attacked"], LIARS, forget, out, progress=progress)
    tell("3  What a single message reveals")
    attacks = audit_experiment(
        read_experiment("demo-privacy"), messages=MESSAGES, repeats=REPEATS, runs=RUNS, progress=progress
    )
    [forgotten] = analyse(load_runs(out / "demo-unlearned"))
    write_atomic(report, story(learned, column, forgotten.variants[0], attacks))
    for line in (*learning(learned, column), *leaving(forgotten.variants[0], attacks, column)):
        tell(line)


def learning(learned: Analysis, column: str) -> tuple[str, str]:
    """Chapters 1 and 2 in one sentence each."""
    quality = {variant.name: spread(column, variant.summary(column)) for variant in learned.variants}
    return (
        f"Together, the ten clients reach {heading(column)} {quality['together']}; each alone {quality['alone']}.",
        f"Three malicious clients reduce it to {quality['attacked']}; a robust rule keeps {quality['contained']}.",
    )


def leaving(forgotten: VariantRuns, attacks: Sequence[Finding], column: str) -> tuple[str, str]:
    """Chapters 3 and 4 in one sentence each."""
    read = [f"{each.variant.replace('-', ' ')}: {each.shown}" for each in attacks if each.attacked == READING]
    return (
        f"After unlearning the three clients: {spread(column, forgotten.summary(column))}.",
        f"Clicks reconstructed from single messages: {'; '.join(read)}.",
    )


def story(learned: Analysis, column: str, forgotten: VariantRuns | None = None, attacks: Sequence[Finding] = ()) -> str:
    """The web page: one figure and one paragraph for each chapter that has been computed so far."""
    together, attacked = learning(learned, column)
    drawing = Drawing(lambda: draw_curves(learned, column), f"{heading(column)} by round, mean over seeds.")
    chart = Interactive("curves", lambda: curve_data(learned, column), (drawing,))
    chapters = [
        Section("They learn", (paragraph(together),)),
        Section("Three of them attack", (paragraph(f"They click on irrelevant documents. {attacked}"), chart)),
    ]
    if forgotten is None:
        chapters.append(
            Section("Still running", (paragraph("The demo is computing the next chapters. Reload this page."),))
        )
    else:
        chapters += last_chapters(learned, column, forgotten, attacks)
    first = (
        "Ten clients search. Each learns from its own clicks and sends only an update of the ranker. All data are "
        "synthetic; all numbers were computed when this page was written."
    )
    return page(TITLE, [Section(TITLE, (paragraph(first, tone="lead"), *chapters))])


def last_chapters(learned: Analysis, column: str, forgotten: VariantRuns, attacks: Sequence[Finding]) -> list[Section]:
    """The chapters that are known only at the end: unlearning, what messages reveal, and next steps."""
    after, messages = leaving(forgotten, attacks, column)
    rows = [*((variant.label, variant) for variant in learned.variants), ("attacked, then unlearned", forgotten)]
    table = Table(
        ["what", heading(column), "repeats"],
        [[label, spread(column, each.summary(column)), str(len(each.repeats))] for label, each in rows],
        notes=[
            "Mean ± standard deviation over seeds, on test queries; final values are means of the last ten evaluations."
        ],
    )
    about = f"{MESSAGES} messages; fedrank privacy audit demo-privacy attacks more of them, and explains each verdict."
    verdicts = findings_table(attacks)
    verdicts = Table(
        ["messages", *verdicts.header],
        [[each.variant.replace("-", " "), *row] for each, row in zip(attacks, verdicts.rows, strict=True)],
        6,
        [about],
    )
    forgetting = paragraph(
        f"{after} Unlearning replays recorded updates of the other clients, with a fraction of the work of "
        "retraining; ",
        Span("fedrank forget client --verify", "code"),
        " compares the two.",
    )
    noise = (
        f"{messages} The published noise protects only the sum of all messages; noise at the client protects each, at "
        "a cost in quality."
    )
    following = [
        paragraph(f"{what}: ", Span(command, "code"))
        for what, command in (
            ("Compare federated, separate and centralised training", "fedrank run quickstart"),
            ("Start a server and three sites on this machine", "fedrank deploy run quickstart --local 3"),
            ("Search generated documents, ordered by what was opened before", "fedrank search serve --demo"),
            ("Read the tutorial", "docs/tutorials/first-experiment.md"),
            ("After make demo, the command is", ".venv/bin/fedrank"),
        )
    ]
    return [
        Section("They leave", (forgetting, table)),
        Section("What a message reveals", (paragraph(noise), verdicts)),
        Section("Next", tuple(following)),
    ]
