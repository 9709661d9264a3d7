"""The output of commands about models as sections: quality, estimates, unlearning, merged and grown forests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrank.experiments.report.formatting import signed
from fedrank.experiments.report.sections import Cell, Part, Points, Row, Section, Span, Table, paragraph
from fedrank.experiments.report.statistics import randomisation_test
from fedrank.experiments.runner.folder import Receipt
from fedrank.ranking.measures import average, measure
from fedrank.unlearning.verify import mean_of

if TYPE_CHECKING:
    from fedrank.experiments.runner.scoring import Quality
    from fedrank.experiments.runner.unlearning import Forgotten
    from fedrank.ranking.estimate import ClickEstimate, Interval
    from fedrank.ranking.model import Scorer
    from fedrank.trees.growing_files import GrownFile
    from fedrank.trees.merge_files import MergedFile
    from fedrank.trees.split_folder import SplitMade


def about_quality(quality: Quality) -> list[Section]:
    """The mean of each measure, and what it means."""
    rows = []
    for text, values, mean in zip(quality.measures, quality.values, average(quality.values), strict=True):
        parsed, skipped = measure(text), int(np.isnan(values).sum())
        shown = "-" if np.isnan(mean) else f"{mean:.4f}"
        rows.append([text, shown, str(len(values) - skipped), str(skipped), parsed.about])
    return [Section("", (Table(["measure", "mean", "queries", "skipped", "meaning"], rows),))]


def about_estimate(found: ClickEstimate) -> list[Section]:
    """The verdict, the estimates under both biases, and their limits."""
    rows: list[Row] = []
    for row in found.rows:
        name = Cell(row.name, tone="warn" if row.note else "")
        values = [row.logged, row.compared, row.model.value] if found.engine else [row.logged, row.model.value]
        difference = signed("", row.difference.value), _between(row.difference, "+")
        rows.append([name, row.bias or "none", row.unit, *(f"{value:.4f}" for value in values), *difference])
    engine = ["engine"] if found.engine else []
    headings = ["estimate", "bias", "unit", "as shown", *engine, "model", "difference", "95 % interval"]
    if found.engine:
        order = (
            f"the engine's order is known from the {found.engine} for {found.known:.0%} of the searches, which count"
        )
    else:
        order = (
            "the log does not reveal the engine's order, so the model is compared with the lists shown; these are "
            "usually worse than the engine's, so a model that is better than them may be worse than the engine"
        )
    trust = f"trust bias cannot be estimated from this log: {found.no_trust}" if found.no_trust else ""
    points = [
        order,
        *([trust] if trust else []),
        f"{found.searches:,} lists of {found.queries:,} queries, an effective sample size of {found.effective:,.0f} "
        f"queries; {found.clicks:,} clicks in the first {found.positions} positions; intervals are over queries, and "
        "that of the verdict covers both biases",
        f"propensities from {found.propensities.how}; {found.clipped:.1%} of clicks had their weight clipped, "
        f"{found.unseen:.1%} of the model's top results were never shown at a known position",
        f"the model moves {found.moved:.0%} of all results within their list",
        *(f"{row.name} is {row.note}" for row in found.rows if row.note),
        *found.notes,
    ]
    verdict = paragraph(f"{found.verdict[0].upper()}{found.verdict[1:]}.")
    return [Section("", (verdict, Table(headings, rows, 3), Points(tuple(points))))]


def _between(one: Interval, sign: str = "") -> str:
    return f"{one.low:{sign}.4f} to {one.high:{sign}.4f}"


def about_forgotten(results: Sequence[Forgotten]) -> list[Section]:
    """Results of unlearning: cost and, if verified, quality and distances compared with retrained models."""
    return [_forgotten(result) for result in results]


def _forgotten(result: Forgotten) -> Section:
    receipt, parent = result.receipt, result.parent
    paid, retrained = receipt.cost, receipt.verified.get("retrained_cpu_seconds")
    cost = f"{paid['interactions']:,} local interactions in {paid['rounds']:,} rounds"
    if lists := receipt.certificate.get("lists"):
        cost = f"{paid['rounds']:,} passes over {lists:,} lists"
    if paid["share_of_retraining"] is not None:
        cost += f", {100 * paid['share_of_retraining']:.1f} % of retraining"
    cost += f"; {paid['cpu_seconds']:.2f} s of processor time"
    cost += "" if retrained is None else f", retraining took {retrained:.2f} s"
    parts: list[Part] = [paragraph(receipt.sentence), paragraph(cost), _before_and_after(receipt)]
    if receipt.is_verified:
        parts.append(paragraph(_verdict(receipt.verified)))
    if receipt.certificate:
        parts += [paragraph("The certificate assumes:"), Points(tuple(receipt.certificate["assumes"]))]
    parts += [paragraph("purged ", Span(line, "code"), tone="quiet") for line in receipt.purged]
    parts.append(paragraph("New run: ", Span(str(result.folder), "code")))
    title = f"{result.folder.parent.name}, fold {parent.fold}, seed {parent.seed}"
    return Section(title + (" (done before)" if result.skipped else ""), tuple(parts))


def _before_and_after(receipt: Receipt) -> Table:
    """Quality of the models before and after, and how far they are from retrained ones."""
    distances = {"weights": "weights", "cosine": "cosine", "tau": "tau", "overlap": "top-10 shared"}
    models = {"parent": "before", "unlearned": "unlearned"}
    if receipt.is_verified:
        models["retrained"] = "spread"
    rows = []
    for model, distance in models.items():
        found = [quality.get(model) for quality in receipt.quality.values()]  # of several seeds: a list
        values = [mean_of(each if isinstance(each, list) else [each]) for each in found]
        if receipt.is_verified:
            apart = receipt.verified[distance] or {}
            values += [apart.get(key) for key in distances]
        rows.append([model, *("-" if value is None else f"{value:.4f}" for value in values)])
    return Table(["model", *receipt.quality, *(distances.values() if receipt.is_verified else ())], rows)


def _verdict(verified: Mapping[str, Any]) -> str:
    count, within = verified["retrained"], verified["within_spread"]
    seeds = "were retrained with different seeds"
    text = f"Distances are to {count} models that {seeds}; those differ as the last row says."
    if within is None:
        return text
    if within:
        return f"{text} Every distance is within the spread of the retrained models."
    out = ", ".join(name for name, share in verified["as_far"].items() if share == 0)
    return f"{text} By {out} the unlearned model is farther away than all of them: not within their spread."


def about_split(made: SplitMade) -> list[Section]:
    """How much every client holds, and how different they are."""
    from fedrank.experiments.runner.client_summary import MEANINGS
    from fedrank.trees.split_folder import PARTS, sizes

    rows = []
    for number, portion in enumerate(made.portions, start=1):
        for part in PARTS:
            queries = getattr(portion, part)
            if queries is not None:
                client = f"{number}: {portion.name}" if part == PARTS[0] else ""
                rows.append([client, part, *(f"{size:,}" for size in sizes(queries).values())])
    apart = [
        [one.name, f"{one.mean:.3f}", f"{one.mean_by_chance:.3f}", MEANINGS[one.name]]
        for one in made.distances[:2]  # no query belongs to two clients, and all clients have the same relevance labels
    ]
    return [
        Section("").table(["client", "set", "queries", "documents", "relevant"], rows, 2),
        Section("").table(["how different", "mean", "by chance", "meaning"], apart).add(_written_to(made.folder)),
    ]


def about_merged(made: Sequence[MergedFile]) -> list[Section]:
    """What every merged model is made of, and who gains and who loses by it."""
    from fedrank.trees.merge_files import MEASURES as COLUMNS

    sections = []
    for one in made:
        rows = []
        for name, values in one.values.items():
            parts = values.shape[1] - 1
            compared = randomisation_test(values[0, :parts], values[0, parts])
            for position in range(parts + 1):
                label, p = "merged", ""
                if position < parts:
                    label = f"model {position + 1}{' (own)' if position == one.own else ''}"
                    p = f"{compared[position]:.4f}"
                cells = [f"{value:.4f}" for value in average(values[:, position])]
                rows.append([name if position == 0 else "", label, *cells, p])
        table = Table(["queries", "model", *COLUMNS, f"p ({COLUMNS[0]})"], rows, 2)
        title = f"{one.client or 'merged model'}: {_made_of(one.model)}"
        sections.append(Section(title, (table, _written_to(one.file))))
    last = Section("").paragraph("p: randomisation test over queries, each model against the merged one", tone="quiet")
    last = last.paragraph("on the merge set, weights and stacked models look better than they are", tone="quiet")
    return [*sections, last]


def _made_of(model: Scorer) -> str:
    from fedrank.trees.mixtures import LinearMix, Stacked

    if isinstance(model, LinearMix):
        return " + ".join(f"{weight:g} x model {number}" for number, weight in enumerate(model.weights, start=1))
    if isinstance(model, Stacked):
        inputs = "features and scores" if model.inputs == "both" else "scores"
        return f"trees on the {inputs} of {len(model.parts)} models"
    return "trees on the features of the merge set alone"


def about_grown(made: GrownFile) -> list[Section]:
    """The clients of a forest, its cost and its quality."""
    rows = [[name, f"{data.queries:,}", f"{data.documents:,}"] for name, data in made.silos.items()]
    section = Section("one forest, grown together").table(["silo", "queries", "documents"], rows, 1)
    size = len(made.forest)
    section = section.paragraph(f"{size:,} trees" + (f", the best of {made.grown:,}" if size < made.grown else ""))
    if made.finished_before:
        section = section.paragraph("already finished: nothing was done", tone="quiet")
    else:
        if made.resumed:
            section = section.paragraph(f"{made.resumed:,} of them were grown earlier", tone="quiet")
        fresh = max(made.grown - made.resumed, 1) * len(made.silos)
        section = section.paragraph(f"{made.bytes_up / fresh / 1e6:.2f} MB sent per tree and client")
    for name, value in made.test.items():
        section = section.paragraph(f"nDCG@10 {value:.4f} on ", Span(name, "code"))
    about = "histograms of few rows reveal relevance labels: growing trees is not private without noise"
    return [section.paragraph(about, tone="quiet").add(_written_to(made.file))]


def _written_to(path: Path) -> Part:
    return paragraph("written to ", Span(str(path), "code"))
