"""The sections of a report: all of them for a page, the most important for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.display import count_of
from fedrank.experiments.report import tables
from fedrank.experiments.report.analysis import FEWEST, Analysis, about_replay, analyse, below_nothing, what_final_means
from fedrank.experiments.report.by_query import queries_section
from fedrank.experiments.report.formatting import heading
from fedrank.experiments.report.sections import Drawing, Interactive, Listing, Paragraph, Part, Section, Span, paragraph
from fedrank.experiments.runner.failures import alike, several
from fedrank.experiments.runner.folder import LAST
from fedrank.experiments.runner.runs import Runs


def whole(analysis: Analysis, anchor: str = "") -> Section:
    """All sections on one experiment."""
    over = f"{analysis.kind} experiment · {analysis.name}" if analysis.kind else analysis.name
    drawings = curve_drawings(analysis)
    charts = [
        Interactive("curves", partial(curve_data, analysis, column), (drawings[column],))
        for column in sorted(drawings, key=lambda column: column != analysis.main)  # the main measure comes first
    ]
    replay = map(paragraph, about_replay(analysis))
    first: list[Part] = [*replay, paragraph(tables.headline(analysis), tone="lead"), *_below(analysis), *charts[:1]]
    return Section(analysis.title, (*first, *_sections(analysis, charts[1:])), over, anchor)


def brief(runs: Runs, baseline: str | None = None) -> list[Section]:
    """What a terminal shows after a run: the final table of each experiment and its warnings."""
    if not len(runs.finished):
        return [Section("", (paragraph(f"No finished run among {len(runs)}."),))]
    return [_brief(analysis) for analysis in analyse(runs, baseline)]


def _brief(analysis: Analysis) -> Section:
    parts: list[Part] = [*map(paragraph, about_replay(analysis)), tables.final_table(analysis), *_below(analysis)]
    parts += [replace(note, tone="quiet") for note in warnings(analysis)]
    if analysis.claims:
        parts.append(Section("Does it hold?", (replace(tables.claims_table(analysis), notes=()),)))
    parts += _with_table("Under attack", tables.robustness_table(analysis))
    if (promoted := tables.promotion_table(analysis)) is not None:
        parts.append(Section("Promoted", (replace(promoted, notes=()),)))
    parts += map(paragraph, tables.privacy_lines(analysis))
    if count := len(analysis.unfinished):
        parts.append(paragraph(f"{count} of {len(analysis.runs)} runs are not finished and not included:"))
        for some in alike(analysis.unfinished):
            parts.append(paragraph(f"  {several(some)}: {some[0].status}, {some[0].reason}", tone="warn"))
    return Section(analysis.title, tuple(parts))


def warnings(analysis: Analysis) -> list[Paragraph]:
    """Notes that limit the conclusions."""
    return [paragraph(note, tone="warn") for note in analysis.notes]


def _below(analysis: Analysis) -> list[Paragraph]:
    """Models that are worse than doing nothing."""
    return [paragraph(line, tone="warn") for line in below_nothing(analysis)]


def conventions(analysis: Analysis) -> Section:
    """How each number was measured."""
    finished = analysis.runs.finished
    sentences: list[str] = []
    for name in (*analysis.measures, *{key: None for run in finished for key in run.conventions}):
        meanings = dict.fromkeys(run.conventions[name] for run in finished if name in run.conventions)
        for meaning in meanings:
            if (name, meaning) == ("final", f"mean of the last {LAST} evaluations"):
                continue  # said below, in full
            text = meaning if meaning.lower().startswith(name.lower()) else f"{name}: {meaning}"
            if len(meanings) > 1:
                text += " (Not all runs used this convention: their values are not comparable.)"
            if text not in sentences:
                sentences.append(text)
    sentences += what_final_means(analysis)
    sentences += dict.fromkeys(note for run in finished for note in run.notes)
    return Section("How it was measured").points(sentences)


def _sections(analysis: Analysis, charts: Sequence[Interactive]) -> Iterator[Section]:
    """In reading order: the table, its limits, tests, details, settings."""
    intervals = tuple(
        Section(heading(column), (tables.interval_table(analysis, column),)) for column in analysis.columns
    )
    folded = Section("Confidence intervals and ranges", intervals, folded=True)
    notes = warnings(analysis)
    if count := len(analysis.unfinished):
        runs = f"{count} of {len(analysis.runs)} runs {'is' if count == 1 else 'are'}"
        text = f"{runs} not finished and not included; see “Unfinished runs” below."
        notes.insert(0, paragraph(text, tone="warn"))
    yield Section("Final quality", (tables.final_table(analysis), folded, *notes))
    if charts:
        yield Section("Other learning curves", tuple(charts))
    if analysis.nothing:
        yield _against_nothing(analysis)
    if analysis.baseline is not None:
        yield _against_the_baseline(analysis)
    yield from _with_table("Does it hold?", tables.claims_table(analysis) if analysis.claims else None)
    yield from _with_table("Published and measured", tables.published_table(analysis) if analysis.published else None)
    yield from queries_section(analysis)
    yield from _with_table("Under attack", tables.robustness_table(analysis))
    yield from _with_table("Unlearned", tables.unlearned_table(analysis))
    yield from _with_table("Promoted", tables.promotion_table(analysis))
    yield from _with_table("Whom it serves", tables.clients_table(analysis))
    yield from _privacy(analysis)
    yield Section("Cost", (tables.cost_table(analysis),))
    yield from _weights(analysis)
    yield _settings_section(analysis)
    yield conventions(analysis)
    if len(analysis.unfinished):
        left_out = paragraph("These are left out of every table and chart above.")
        yield Section("Unfinished runs", (left_out, tables.unfinished_table(analysis.unfinished)))
    yield _provenance(analysis)


def _settings_section(analysis: Analysis) -> Section:
    note = paragraph(
        "Settings that have their default are not listed; the experiment in full is under “Provenance”.", tone="note"
    )
    if not analysis.parts:
        return Section("Settings").pairs(tables.settings_rows(analysis)).add(note)
    about = paragraph(
        "These experiments were tested on the same queries, so one table shows their variants. Values are compared "
        "over the folds and seeds that two variants share. Other differences between the experiments are listed here; "
        "the comparison does not correct for them."
    )
    each = [Section(f"{part.name}: {part.title}").pairs(tables.settings_rows(part)) for part in analysis.parts]
    return Section("Settings", (about, *each, note))


def _with_table(name: str, table: Part | None) -> list[Section]:
    return [] if table is None else [Section(name, (table,))]


def _against_nothing(analysis: Analysis) -> Section:
    orders = ", ".join(dict.fromkeys(nothing.order for nothing in analysis.nothing))
    about = paragraph(
        "What users have without learning: ",
        Span(orders, "strong"),
        ". Differences of final values are tested like all others and corrected for the number of variants (Holm). One "
        "training is enough for this test; another seed may give another result.",
    )
    columns = [name for name in analysis.measures if any(name in nothing.comparisons for nothing in analysis.nothing)]
    first, *rest = [Section(heading(column), (tables.nothing_table(analysis, column),)) for column in columns]
    more = [Section("The same for the other measures", tuple(rest), folded=True)] if rest else []
    return Section("Against doing nothing", (about, first, *more))


def _against_the_baseline(analysis: Analysis) -> Section:
    assert analysis.baseline is not None
    count = sum(found.contrast.tested for found in analysis.comparisons[analysis.main].values())
    about = paragraph(
        "Baseline: ",
        Span(analysis.baseline.label, "strong"),
        f" ({analysis.baseline_reason}). The difference is the variant minus the baseline, over the folds and seeds "
        f"that both finished; p is corrected for the {count_of(count, 'comparison')} that could be tested (Holm). "
        "The conclusions are about this data set.",
    )
    first, *rest = [
        Section(heading(column), (tables.comparison_table(analysis, column),)) for column in analysis.columns
    ]
    names = ", ".join(section.heading for section in rest)
    more = [Section(f"The same for {names}", tuple(rest), folded=True)] if rest else []
    return Section("Against the baseline", (about, first, *more))


def curve_drawings(analysis: Analysis) -> dict[str, Drawing]:
    """A chart of every column that has learning curves."""
    charts, trees = {}, analysis.kind == "trees"
    if any(len(variant.repeats) >= FEWEST for variant in analysis.variants):
        band = " Bands: 95% confidence interval of the mean over repeats."
    else:
        band = f" No bands: they need at least {FEWEST} repeats."
    for column in (*analysis.measures, "online"):
        drawn = [curve for variant in analysis.variants if (curve := variant.curve(column)) is not None]
        if not drawn or (trees and all(len(curve.rounds) == 1 for curve in drawn)):  # models were merged once
            continue
        name, windows = heading(column), sorted({curve.window for curve in drawn})
        text = f"{name} by {analysis.axis}, mean over repeats.{band}"
        if column == "online" and windows == [1]:
            text += " Not smoothed."
        elif column == "online":
            widest = " or ".join(f"{window:,}" for window in windows)
            text += f" Smoothed: each point is the mean of the last {widest} rounds."
        elif trees:
            text += " A line ends with the smallest forest of its repeats."
        else:
            text += " Measured on the test queries, after aggregation."
        if analysis.nothing and column in analysis.measures:
            text += " Dotted lines: doing nothing."
        charts[column] = Drawing(partial(draw_curves, analysis, column), text)
    return charts


def curve_data(analysis: Analysis, column: str) -> dict[str, Any]:
    """The data of a chart, for the interactive page."""
    from fedrank.experiments.report.figures import line_look

    lines = []
    for i, variant in enumerate(analysis.variants):
        curve = variant.curve(column)
        if curve is None:
            continue
        drawn = {
            "name": variant.label,
            "rounds": curve.rounds.tolist(),
            "interactions": None if curve.interactions is None else curve.interactions.tolist(),
            "mean": _short(curve.mean),
            "half": _short(curve.half) if curve.repeats >= FEWEST else None,
        }
        lines.append(drawn | line_look(i))
    levels = [
        {"name": f"{each.values.label}: {each.order}", "value": each.values.summary(column).mean}
        for each in analysis.nothing
        if column in each.comparisons
    ]
    return {"title": heading(column), "axis": analysis.axis, "lines": lines, "levels": levels}


def _short(values: NDArray[np.float64]) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def _privacy(analysis: Analysis) -> list[Section]:
    table = tables.privacy_table(analysis)
    if table is not None:
        return _with_table("Privacy", table)
    card = next((card for variant in analysis.variants if (card := variant.card) is not None), None)
    if card is None:
        return []
    summary, _, rest = card.summary.partition(" Not covered: ")
    section = Section("Privacy").paragraph(summary)
    return [section.paragraph("Not covered:").points(card.not_covered) if rest else section]


def _weights(analysis: Analysis) -> list[Section]:
    wanted = [analysis.best] if analysis.baseline in (None, analysis.best) else [analysis.best, analysis.baseline]
    shown = [variant for variant in wanted if variant is not None and variant.weights() is not None]
    if not shown:
        return []
    text = "Features with the largest absolute mean weight; lines show one standard deviation over repeats."
    if len(analysis.variants) > 1:
        roles = [f"{v.label} ({'highest quality' if v is analysis.best else 'baseline'})" for v in shown]
        text += f" Shown: {'; '.join(roles)}."
    text += " Blue raises a document's score, orange lowers it."
    if any(run.data.get("normalised") == "none" for run in analysis.runs.finished):
        text += " Features were not normalised by fedrank: compare weights only if they share a scale."

    def draw() -> str:
        from fedrank.experiments.report.figures import as_svg, weights_figure

        return as_svg(weights_figure(shown))

    return [Section("What the linear model learned", (Drawing(draw, text),))]


def draw_curves(analysis: Analysis, column: str) -> str:
    """The learning curves of one column as SVG."""
    from fedrank.experiments.report.figures import as_svg, curves_figure  # matplotlib is slow to import

    return as_svg(curves_figure(analysis, column, heading(column)))


def _provenance(analysis: Analysis) -> Section:
    versions = ", ".join(sorted({run.version for run in analysis.runs.finished if run.version})) or "unknown"
    repeats = sum(len(variant.repeats) for variant in analysis.variants)
    section = Section("Provenance").paragraph(f"fedrank {versions}, {count_of(repeats, 'finished run')}.")
    if origin := tables.provenance_rows(analysis.runs.finished):
        section = section.pairs(origin)
    for one in analysis.parts or (analysis,):
        if one.text:
            which = f"The experiment {one.name} in full" if analysis.parts else "The experiment in full"
            section = section.add(Section(which, (Listing(one.text, "toml"),), folded=True))
    return section


def left_out(runs: Runs, reported: Sequence[Analysis]) -> str:
    """A note on experiments without a finished run, which have no section."""
    folders = {analysis.folder for analysis in reported}
    missing = [run for run in runs if run.folder not in folders]
    if not missing:
        return ""
    groups = [some for own in Runs(tuple(missing)).group("folder").values() for some in alike(own)]
    reasons = [f"{some[0].experiment}, {several(some)}: {some[0].status}, {some[0].reason}" for some in groups[:20]]
    reasons += [f"and {len(groups) - 20} more"] if len(groups) > 20 else []
    return f"Experiments without a finished run are not in this report: {'; '.join(reasons)}."
