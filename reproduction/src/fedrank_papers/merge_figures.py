"""Tables and figures of the paper on merging: client data, chosen settings, categories, feature importance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.figures import COLOURS, LOOK, QUIET, as_svg, plain
from fedrank.experiments.report.sections import Cell, Drawing, Part, Table
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.runs import Run
from fedrank.seeds import rng_for
from fedrank.trees.categories import query_categories, tallies
from fedrank.trees.forest import Forest
from fedrank.trees.mixtures import Stacked
from fedrank.trees.model_files import load_model
from fedrank.trees.splits import Categories

MOST = 12  # maximum features in a figure
SETTINGS = ("rate", "leaves", "min_data_in_leaf", "min_sum_hessian")
PARTS = ("train", "validation", "test", "merge")


def held(analysis: Analysis) -> Iterator[Part]:
    """Table 2: queries, documents and relevant documents of every client, for each split, in the first fold."""
    rows: dict[tuple[str, str, str], list[Cell]] = {}
    for run in _first_repeats(analysis):
        name = ", ".join(str(run.settings[key]) for key in run.settings if key.startswith("split."))
        for portion in run.portions or ():
            for part in PARTS:
                counts = portion.get(part)
                if counts is not None:
                    key = (name, portion["client"], part)
                    numbers = (counts["queries"], counts["relevant"], counts["documents"])
                    rows.setdefault(key, [*map(Cell, key), *(Cell(f"{number:,}") for number in numbers)])
    if rows:
        header = ["split", "client", "part", "queries", "relevant documents", "documents"]
        yield Table(header, list(rows.values()), 3, ['Fold 1. Client "all" is the whole data set before the split.'])


def chosen_settings(analysis: Analysis) -> Iterator[Part]:
    """Table 6: the settings that Optuna chose for the model of every client, and for the merged models."""
    rows = []
    for run in _first_repeats(analysis):
        clients = [portion["client"] for portion in run.portions or () if portion["client"] != "all"]
        for number, tuned in enumerate(run.tuned or ()):
            owner = clients[number] if number < len(clients) else f"merged, {number - len(clients) + 1}"
            settings = [f"{tuned[key]:.4g}" if key in tuned else "-" for key in SETTINGS]
            counts = [f"{tuned[key]:,}" for key in ("trees", "trials")]
            rows.append([*map(Cell, (run.variant, owner, *settings, *counts))])
    if rows:
        header = ["variant", "client", "rate", "leaves", "documents per leaf", "hessian per leaf", "trees", "tried"]
        yield Table(
            header,
            rows,
            2,
            ["Fold 1, first seed. Tried: number of settings, compared by nDCG@10 on the validation queries."],
        )


def category_shares(analysis: Analysis) -> Iterator[Part]:
    """Figure 2: the fraction of each category among relevant documents, and among queries, of the training set."""
    run = next(iter(_first_repeats(analysis)), None)
    if run is None or not isinstance(run.spec.split, Categories):  # type: ignore[attr-defined]
        return
    split: Categories = run.spec.split  # type: ignore[attr-defined]
    train = load_fold(run.spec.unscaled, run.fold).train  # type: ignore[attr-defined]
    count = tallies(split.by, split.bins, [train])
    tally = count(train)
    of_query = query_categories(tally, "tie-breaking", rng_for(run.seed, "split"))
    documents = tally.relevant.sum(axis=0)
    queries = np.bincount(of_query[of_query >= 0], minlength=len(count.names))
    shares = [each / max(each.sum(), 1) for each in (documents, queries)]
    yield Drawing(
        partial(draw_shares, count.names, *shares),
        "Fraction of each category among the relevant documents and among the queries of the training set.",
    )


@mpl.rc_context(LOOK)
def draw_shares(names: Sequence[str], documents: NDArray[np.float64], queries: NDArray[np.float64]) -> str:
    """Two bars for each category."""
    at = np.arange(len(names))
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.bar(at - 0.2, documents, width=0.4, color=COLOURS[0], label="relevant documents")
    axes.bar(at + 0.2, queries, width=0.4, color=COLOURS[1], label="queries")
    axes.set_xticks(at, names)
    axes.set_xlabel("category")
    axes.set_ylabel("share")
    axes.legend()
    return as_svg(figure)


def looked_at(analysis: Analysis) -> Iterator[Part]:
    """Figure 3: feature importance of stacked models; their last features are the scores of the local models."""
    for run in _first_repeats(analysis):
        models = [load_model(folder) for folder in sorted(run.path.glob("clients/*/merged"))]
        finals = [
            (number, model)
            for number, model in enumerate(models, start=1)
            if isinstance(model, Stacked) and isinstance(model.final, Forest)
        ]
        if finals:
            gains = {f"client {number}": _named_gains(model) for number, model in finals}
            yield Drawing(
                partial(draw_gains, gains),
                f"{run.variant}: fraction of each feature in the total split gain of a stacked model; the {MOST} "
                "largest.",
            )


def _named_gains(model: Stacked) -> dict[str, float]:
    """Fraction of the total split gain of a stacked model by column name."""
    assert isinstance(model.final, Forest)
    gains = importance(model.final)
    own = model.features if model.inputs == "both" else 0
    names = [f"feature {column + 1}" for column in range(own)]
    names += [f"score of model {number + 1}" for number in range(len(model.parts))]
    return dict(zip(names, (gains / max(gains.sum(), 1e-300)).tolist(), strict=True))


def importance(forest: Forest) -> NDArray[np.float64]:
    """[features]: the total gain of all splits at each feature, like LightGBM's importance by gain."""
    total = np.zeros(forest.features)
    for tree in forest.trees:
        lines = dict(line.split("=", 1) for line in tree.splitlines() if "=" in line)
        features = [int(feature) for feature in lines["split_feature"].split()]
        gains = [float(gain) for gain in lines["split_gain"].split()]
        np.add.at(total, features, gains)
    return total


@mpl.rc_context(LOOK)
def draw_gains(gains: dict[str, dict[str, float]]) -> str:
    """A panel for each client, the largest fraction on top; scores of models are highlighted."""
    figure = Figure(figsize=(10.2, 3.6), layout="constrained")
    panels = figure.subplots(1, len(gains), squeeze=False)[0]
    for axes, (client, shares) in zip(panels, gains.items(), strict=True):
        largest = sorted(shares.items(), key=lambda pair: -pair[1])[:MOST][::-1]
        colours = [COLOURS[0] if name.startswith("score") else QUIET for name, _ in largest]
        axes.barh([name for name, _ in largest], [share for _, share in largest], color=colours)
        axes.set_xlabel("fraction of gain")
        plain(axes.set_title(client, loc="left"))
    return as_svg(figure)


def _first_repeats(analysis: Analysis) -> Iterator[Run]:
    """One run of each variant: the first fold and seed."""
    for variant in analysis.variants:
        mine = [run for run in analysis.runs.finished if run.variant == variant.name]
        yield min(mine, key=lambda run: run.repeat)
