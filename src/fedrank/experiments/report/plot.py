"""Figures for notebooks and papers: functions that take runs, models or clients, and return a Matplotlib figure.

A notebook shows a figure that ends a cell. Matplotlib is imported when the first figure is drawn.

>>> import fedrank as fr
>>> data = fr.synthetic("mq2007", queries=20)
>>> clients = fr.make_clients(data, count=4, partition=fr.partitions.Dirichlet(concentration=0.5))
>>> figure = fr.plot.clients(clients)
>>> [axes.get_ylabel() for axes in figure.axes]
['queries', 'share of documents']
>>> figure.savefig("clients.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedrank.experiments.report.analysis import Analysis, analyse, join
from fedrank.experiments.report.formatting import heading
from fedrank.experiments.report.run_values import RunValues, VariantRuns
from fedrank.experiments.runner.runs import Run, Runs
from fedrank.names import did_you_mean
from fedrank.ranking.model import Model
from fedrank.types import SimulatedClients

if TYPE_CHECKING:
    from fedrank.experiments.report.figures import Picture

__all__ = ["clients", "curves", "final", "weights"]


def __dir__() -> list[str]:
    """What a prompt completes."""
    return __all__


def curves(runs: Runs | Run, column: str | None = None) -> Picture:
    """One column by round: a line for each variant, with a 95% band where there are enough repeats.

    Without a name it is the first measure; "online" is what users saw while models learned.
    """
    from fedrank.experiments.report.figures import curves_figure

    analysis = _found(runs)
    chosen = _column(column, [*analysis.measures, *["online"] * analysis.served])
    return curves_figure(analysis, chosen, heading(chosen))


def final(runs: Runs | Run, column: str | None = None) -> Picture:
    """The final value of one column: a point for each repeat, and the mean of each variant with its 95% interval."""
    from fedrank.experiments.report.figures import final_figure

    analysis = _found(runs)
    chosen = _column(column, analysis.columns)
    return final_figure(analysis, chosen, heading(chosen))


def weights(models: Runs | Run | Model, top: int = 12) -> Picture:
    """The features that weigh most in linear models: of each variant, or of one model."""
    from fedrank.experiments.report.figures import weights_figure

    if isinstance(models, Model):
        if models.ranker.hidden or models.weights.ndim > 1:
            raise ValueError(f"{models} does not have one weight per feature; pass a single linear model")
        return weights_figure([_alone(models)], top)
    shown = [variant for variant in _found(models).variants if variant.weights() is not None]
    if not shown:
        raise ValueError("none of these runs has a linear model, and others have no weight for each feature")
    return weights_figure(shown, top)


def clients(simulated: SimulatedClients) -> Picture:
    """How many queries each client holds, and the share of documents with each relevance label."""
    from fedrank.experiments.report.figures import clients_figure

    data = simulated.data
    shares = np.zeros((len(simulated), data.top_grade + 1))
    for row in range(len(simulated)):
        queries = simulated.queries[simulated.pools[simulated.pool[row]] : simulated.pools[simulated.pool[row] + 1]]
        positions = np.concatenate([np.arange(data.offsets[query], data.offsets[query + 1]) for query in queries])
        shares[row] = np.bincount(simulated.grades[simulated.view[row], positions], minlength=data.top_grade + 1)
    return clients_figure(np.diff(simulated.pools)[simulated.pool], shares / shares.sum(axis=1, keepdims=True))


def _alone(model: Model) -> VariantRuns:
    """A model without a run, as the only repeat of a variant."""
    names = model.feature_names or tuple(f"feature {i + 1}" for i in range(model.features))
    return VariantRuns("", "", {}, {(1, 1): RunValues({}, weights=model.weights, feature_names=names)})


def _found(runs: Runs | Run) -> Analysis:
    """What finished runs of one experiment come to, or of several that were tested on the same queries."""
    if not isinstance(runs, Runs | Run):
        raise TypeError(
            f"{runs!r} must be runs (got {type(runs).__name__}); pass what fedrank.load_runs(folder) returns"
        )
    reported = join(analyse(Runs((runs,)) if isinstance(runs, Run) else runs))
    if len(reported) > 1:
        names = "; ".join(analysis.name for analysis in reported)
        first = [*dict.fromkeys(run.experiment for run in reported[0].runs)]
        raise ValueError(
            f"these experiments were not tested on the same queries ({names}) and cannot be drawn in one figure; "
            f"choose some, as in runs.filter(experiment={first if len(first) > 1 else first[0]!r})"
        )
    return reported[0]


def _column(column: str | None, known: Sequence[str]) -> str:
    if column is None:
        return known[0]
    if column not in known:
        raise ValueError(f"no column {column!r}{did_you_mean(column, known)}")
    return column
