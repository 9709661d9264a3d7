"""What a report says about one experiment: all of it for a page, what matters most for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.experiments.report.analysis import FEWEST, Analysis, below_nothing, find, what_final_means
from fedrank.experiments.report.by_query import queries_section
from fedrank.experiments.report.run_values import VariantRuns
from fedrank.experiments.report.sections import (
    Drawing,
    Interactive,
    Listing,
    Pairs,
    Paragraph,
    Part,
    Points,
    Section,
    Span,
    Table,
    say,
)
from fedrank.experiments.report.tables import (
    asked_rows,
    claims_table,
    clients_table,
    comparison_table,
    cost_table,
    final_table,
    heading,
    headline,
    interval_table,
    nothing_table,
    privacy_lines,
    privacy_table,
    promotion_table,
    provenance_rows,
    published_table,
    robustness_table,
    unfinished_table,
    unlearned_table,
)
from fedrank.experiments.runner.failures import alike, several
from fedrank.experiments.runner.folder import LAST
from fedrank.experiments.runner.runs import Runs


def whole(findings: Analysis, anchor: str = "") -> Section:
    """All that a report says about one experiment."""
    over = f"{findings.kind} experiment · {findings.name}" if findings.kind else findings.name
    first: list[Part] = [say(headline(findings), tone="lead"), *_below(findings), *warnings(findings)]
    count = len(findings.unfinished)
    if count:
        runs = f"{count} of {len(findings.runs)} runs {'is' if count == 1 else 'are'}"
        first.append(say(f"{runs} not finished and not counted; see “Unfinished runs” below.", tone="warn"))
    return Section(findings.title, (*first, *_sections(findings)), over, anchor)


def brief(runs: Runs, baseline: str | None = None) -> list[Section]:
    """What a terminal shows after a run: the final table of each experiment, and what must not be overlooked."""
    if not len(runs.finished):
        return [Section("", (say(f"No finished run among {len(runs)}."),))]
    return [_brief(findings) for findings in find(runs, baseline)]


def _brief(findings: Analysis) -> Section:
    parts: list[Part] = [final_table(findings), *_below(findings)]
    parts += [replace(note, tone="quiet") for note in warnings(findings)]
    if findings.claims:
        parts.append(Section("Does it hold?", (replace(claims_table(findings), notes=()),)))
    parts += _with_table("Under attack", robustness_table(findings))
    if (promoted := promotion_table(findings)) is not None:
        parts.append(Section("Promoted", (replace(promoted, notes=()),)))
    parts += map(say, privacy_lines(findings))
    if len(findings.unfinished):
        parts.append(say(f"{len(findings.unfinished)} of {len(findings.runs)} runs are not finished and not counted:"))
        for some in alike(findings.unfinished):
            parts.append(say(f"  {several(some)}: {some[0].status}, {some[0].reason}", tone="warn"))
    return Section(findings.title, tuple(parts))


def warnings(findings: Analysis) -> list[Paragraph]:
    """What to keep in mind."""
    return [say(note, tone="warn") for note in findings.notes]


def _below(findings: Analysis) -> list[Paragraph]:
    """Models that should not be used: what users have without them is better."""
    return [say(line, tone="warn") for line in below_nothing(findings)]


def conventions(findings: Analysis) -> Section:
    """How each number was measured."""
    finished = findings.runs.finished
    sentences: list[str] = []
    for name in (*findings.measures, *{key: None for run in finished for key in run.conventions}):
        meanings = dict.fromkeys(run.conventions[name] for run in finished if name in run.conventions)
        for meaning in meanings:
            if (name, meaning) == ("final", f"mean of the last {LAST} evaluations"):
                continue  # said below, in full
            text = meaning if meaning.lower().startswith(name.lower()) else f"{name}: {meaning}"
            if len(meanings) > 1:
                text += " (Not all runs used this convention: their values are not comparable.)"
            if text not in sentences:
                sentences.append(text)
    sentences += what_final_means(findings)
    sentences += dict.fromkeys(note for run in finished for note in run.notes)
    return Section("How it was measured", (Points(tuple(sentences)),))


def _sections(findings: Analysis) -> Iterator[Section]:
    """In the order in which they are read."""
    yield _asked(findings)
    intervals = tuple(Section(heading(column), (interval_table(findings, column),)) for column in findings.columns)
    folded = Section("Confidence intervals and ranges", intervals, folded=True)
    yield Section("Final quality", (final_table(findings), folded))
    if findings.nothing:
        yield _against_nothing(findings)
    if findings.baseline is not None:
        yield _against_the_baseline(findings)
    yield from _with_table("Does it hold?", claims_table(findings) if findings.claims else None)
    yield from _with_table("Published and measured", published_table(findings) if findings.published else None)
    if charts := curve_drawings(findings):
        lively = tuple(
            Interactive("curves", partial(curve_data, findings, column), (charts[column],)) for column in charts
        )
        yield Section("Learning curves", lively)
    yield from queries_section(findings)
    yield from _with_table("Under attack", robustness_table(findings))
    yield from _with_table("Unlearned", unlearned_table(findings))
    yield from _with_table("Promoted", promotion_table(findings))
    yield from _with_table("Whom it serves", clients_table(findings))
    yield from _privacy(findings)
    yield Section("Cost", (cost_table(findings),))
    yield from _weights(findings)
    yield conventions(findings)
    if len(findings.unfinished):
        left_out = say("These are left out of every table and chart above.")
        yield Section("Unfinished runs", (left_out, unfinished_table(findings.unfinished)))
    yield _provenance(findings)


def _asked(findings: Analysis) -> Section:
    note = say(
        "Settings that have their default are not listed; the experiment in full is under “Provenance”.", tone="note"
    )
    if not findings.parts:
        return Section("What was asked", (Pairs(tuple(asked_rows(findings))), note))
    about = say(
        "These experiments were tested on the same queries, so their variants stand in one table. Values are compared "
        "over the folds and seeds that two variants share; what else differs between experiments is said here, and "
        "nothing corrects for it."
    )
    each = [Section(f"{part.name}: {part.title}", (Pairs(tuple(asked_rows(part))),)) for part in findings.parts]
    return Section("What was asked", (about, *each, note))


def _with_table(name: str, table: Table | None) -> list[Section]:
    return [] if table is None else [Section(name, (table,))]


def _against_nothing(findings: Analysis) -> Section:
    orders = ", ".join(dict.fromkeys(nothing.order for nothing in findings.nothing))
    about = say(
        "What users have without learning: ",
        Span(orders, "strong"),
        ". Differences are of final values, tested as all others are, and corrected for the variants (Holm). One model "
        "may stand for itself here, since it is what users would get: then another seed may give something else.",
    )
    columns = [name for name in findings.measures if any(name in nothing.comparisons for nothing in findings.nothing)]
    tables = [Section(heading(column), (nothing_table(findings, column),)) for column in columns]
    more = [Section("The same for the other measures", tuple(tables[1:]), folded=True)] if tables[1:] else []
    return Section("Against doing nothing", (about, tables[0], *more))


def _against_the_baseline(findings: Analysis) -> Section:
    assert findings.baseline is not None
    first, *rest = findings.columns
    count = sum(found.contrast.tested for found in findings.comparisons[first].values())
    about = say(
        "Baseline: ",
        Span(findings.baseline.label, "strong"),
        f" ({findings.baseline_why}). The difference is the variant minus the baseline, over the folds and seeds that "
        f"both finished; p is corrected for the {count} comparison{'s' if count != 1 else ''} that could be tested "
        "(Holm). All of it is about this data set.",
    )
    tables = [Section(heading(column), (comparison_table(findings, column),)) for column in findings.columns]
    parts: list[Part] = [about, tables[0]]
    if rest:
        names = ", ".join(heading(column) for column in rest)
        parts.append(Section(f"The same for {names}", tuple(tables[1:]), folded=True))
    return Section("Against the baseline", tuple(parts))


def curve_drawings(findings: Analysis) -> dict[str, Drawing]:
    """A chart of every column that has learning curves."""
    charts, trees = {}, findings.kind == "trees"
    if any(len(variant.repeats) >= FEWEST for variant in findings.variants):
        band = " Bands: 95% confidence interval of the mean over repeats."
    else:
        band = f" No bands: they need at least {FEWEST} repeats."
    for column in (*findings.measures, "online"):
        drawn = [curve for variant in findings.variants if (curve := variant.curve(column)) is not None]
        if not drawn or (trees and all(len(curve.rounds) == 1 for curve in drawn)):  # models were merged once
            continue
        name, windows = heading(column), sorted({curve.window for curve in drawn})
        text = f"{name} by {findings.axis}, mean over repeats.{band}"
        if column == "online" and windows == [1]:
            text += " Not smoothed."
        elif column == "online":
            widest = " or ".join(f"{window:,}" for window in windows)
            text += f" Smoothed: each point is the mean of the last {widest} rounds."
        elif trees:
            text += " A line ends with the smallest forest of its repeats."
        else:
            text += " Measured on the test queries, after aggregation."
        if findings.nothing and column in findings.measures:
            text += " Level lines: what users have without learning."
        charts[column] = Drawing(partial(_draw_curves, findings, column), text)
    return charts


def curve_data(findings: Analysis, column: str) -> dict[str, Any]:
    """The same chart as numbers, for a page that lets its reader look closer."""
    from fedrank.experiments.report.figures import line_look

    lines = []
    for i, variant in enumerate(findings.variants):
        curve = variant.curve(column)
        if curve is None:
            continue
        band = curve.repeats >= FEWEST
        lines.append(
            {
                "name": variant.label,
                "rounds": curve.rounds.tolist(),
                "interactions": None if curve.interactions is None else curve.interactions.tolist(),
                "mean": _short(curve.mean),
                "half": _short(curve.half) if band else None,
            }
            | line_look(i)
        )
    levels = [
        {"name": f"{each.values.label}: {each.order}", "value": each.values.summary(column).mean}
        for each in findings.nothing
        if column in each.comparisons
    ]
    return {"title": heading(column), "axis": findings.axis, "lines": lines, "levels": levels}


def _short(values: NDArray[np.float64]) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def _privacy(findings: Analysis) -> list[Section]:
    table = privacy_table(findings)
    if table is not None:
        return _with_table("Privacy", table)
    card = next((card for variant in findings.variants if (card := variant.card) is not None), None)
    if card is None:
        return []
    summary, _, rest = card.summary.partition(" Not covered: ")
    listed: tuple[Part, ...] = (say("Not covered:"), Points(card.not_covered)) if rest else ()
    return [Section("Privacy", (say(summary), *listed))]


def _weights(findings: Analysis) -> list[Section]:
    wanted = [findings.best] if findings.baseline in (None, findings.best) else [findings.best, findings.baseline]
    shown = [variant for variant in wanted if variant is not None and variant.weights() is not None]
    if not shown:
        return []
    text = "Features with the largest mean weight, whatever its sign; lines show one standard deviation over repeats."
    if len(findings.variants) > 1:
        roles = [f"{v.label} ({'highest quality' if v is findings.best else 'baseline'})" for v in shown]
        text += f" Shown: {'; '.join(roles)}."
    text += " Blue raises a document's score, orange lowers it."
    if any(run.data.get("normalised") == "none" for run in findings.runs.finished):
        text += " Features were not normalised by fedrank: compare weights only if they share a scale."
    return [Section("What the linear model learned", (Drawing(partial(_draw_weights, shown), text),))]


def _draw_curves(findings: Analysis, column: str) -> str:
    from fedrank.experiments.report.figures import curves  # matplotlib takes its time

    return curves(findings, column, heading(column))


def _draw_weights(variants: Sequence[VariantRuns]) -> str:
    from fedrank.experiments.report.figures import weight_bars

    return weight_bars(variants)


def _provenance(findings: Analysis) -> Section:
    versions = ", ".join(sorted({run.version for run in findings.runs.finished if run.version})) or "unknown"
    repeats = sum(len(variant.repeats) for variant in findings.variants)
    parts: list[Part] = [say(f"fedrank {versions}, {repeats} finished run{'s' if repeats != 1 else ''}.")]
    if origin := provenance_rows(findings.runs.finished):
        parts.append(Pairs(tuple(origin)))
    for one in findings.parts or (findings,):
        if one.text:
            which = f"The experiment {one.name} in full" if findings.parts else "The experiment in full"
            parts.append(Section(which, (Listing(one.text, "toml"),), folded=True))
    return Section("Provenance", tuple(parts))


def left_out(runs: Runs, reported: Sequence[Analysis]) -> str:
    """Experiments without a single finished run have no section, but are not passed over in silence."""
    folders = {findings.folder for findings in reported}
    missing = [run for run in runs if run.folder not in folders]
    if not missing:
        return ""
    groups = [some for own in Runs(tuple(missing)).group("folder").values() for some in alike(own)]
    said = (f"{some[0].experiment}, {several(some)}: {some[0].status}, {some[0].reason}" for some in groups[:20])
    reasons = "; ".join(said)
    more = f"; and {len(groups) - 20} more" if len(groups) > 20 else ""
    return f"Experiments without a finished run are not reported on: {reasons}{more}."
