"""Relevance labels from histograms: a bin with one row reveals its gradient, and thus whether the row is relevant.

The server attacks the first message of the first tree. All scores are still equal, so a gradient depends only on the
labels and the order of documents: a negative gradient means that a document should rise, so it is relevant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.attacks.audits import Finding, Plan, PlannedAttack
from fedrank.attacks.click_audit import Share
from fedrank.attacks.forests import ForestAudit
from fedrank.attacks.membership import ShareDone
from fedrank.data.ranking import RankingData
from fedrank.trees.binning import Edges, put_in_bins
from fedrank.trees.boosters import Grower
from fedrank.trees.releases import Layout
from fedrank.trees.row_store import RowStore

GRADES = "relevant documents, in root histograms"


@dataclass(frozen=True)
class Roots:
    """The first message that a server sees: root histograms, of each client or of all together."""

    data: tuple[RankingData, ...]  # one per visible histogram
    edges: Edges
    rules: Grower
    features: NDArray[np.int64] | None = None  # features with histograms; None: all
    seed: int = 0


@dataclass(frozen=True)
class NamedRelevant:
    """The documents that a server identifies as relevant from one or more histograms, and the truth."""

    documents: int
    alone: int  # documents that are alone in a bin of some feature
    named: int  # of these, documents with a negative gradient
    right: int  # of these, documents that are relevant
    relevant: int  # relevant documents in total

    @property
    def by_chance(self) -> int:
        """The expected number of relevant ones among as many random documents."""
        return round(self.named * self.relevant / max(self.documents, 1))


@dataclass(frozen=True)
class HistogramAudit(ForestAudit):
    """The attacks on a forest grown from histograms, and on what the server sees while it grows."""

    roots: Callable[[], Roots] | None = None

    def plan(self) -> Plan:
        return [*super().plan(), PlannedAttack("histograms", self._histograms)]

    def _histograms(self, on_progress: ShareDone) -> list[Finding]:
        assert self.roots is not None
        seen = self.roots()
        found = [read_root(data, seen.edges, seen.rules, seen.features, seen.seed) for data in seen.data]
        on_progress(1.0)
        named, right, chance = (sum(getattr(one, what) for one in found) for what in ("named", "right", "by_chance"))
        alone, documents = sum(one.alone for one in found), sum(one.documents for one in found)
        return [
            self._compared(
                GRADES,
                Share(right, named),
                Share(min(chance, named), named),
                f"documents that the server identifies as relevant, because each is alone in a bin of the root "
                f"({alone:,} of {documents:,} are) and its gradient is negative, {{right}} are relevant",
                "of as many random documents, {guessed} would be",
            )
        ]


def read_root(
    data: RankingData, edges: Edges, rules: Grower, features: NDArray[np.int64] | None = None, seed: int = 0
) -> NamedRelevant:
    """Attack the root histogram of these rows."""
    store = RowStore(data, edges, rules, seed)
    seen = np.arange(edges.features) if features is None else features
    layout = Layout(edges, seen, data.documents.bit_length())
    store.begin(0, layout.shift)
    gradients, _, rows = layout.spread(store.histogram(0))
    alone = np.zeros(data.documents, np.bool_)
    said = np.zeros(data.documents, np.bool_)
    bins = put_in_bins(data, edges).columns
    for feature, first in zip(seen, layout.starts, strict=True):
        # The mapping from bins to documents is only for counting: the server itself needs no more than the bins.
        cell = first + bins[feature].astype(np.int64)
        here = rows[cell] == 1
        alone |= here
        said |= here & (gradients[cell] < 0)
    relevant: NDArray[np.bool_] = data.grades > 0
    return NamedRelevant(
        data.documents, int(alone.sum()), int(said.sum()), int((said & relevant).sum()), int(relevant.sum())
    )


def by_size(
    data: RankingData, sizes: Sequence[int], edges: Edges, rules: Grower, seed: int = 0
) -> dict[int, NamedRelevant]:
    """The same for clients with the given numbers of queries, drawn from some data."""
    rng = np.random.default_rng(seed)
    return {
        size: read_root(data.select(np.sort(rng.choice(data.queries, size, replace=False))), edges, rules)
        for size in sizes
    }
