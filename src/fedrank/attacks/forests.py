"""Attacks on shared forests: what thresholds, headers, scores and histograms reveal about the training data.

A bin of a histogram with one row reveals its gradient, and thus whether the row is relevant. The server attacks the
first message of the first tree. All scores are still equal, so a gradient depends only on the labels and the order of
documents: a negative gradient means that a document should rise, so it is relevant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.attacks.audits import Finding, Plan, PlannedAttack, capital, fewest_above, power, skipped, verdict_of
from fedrank.attacks.click_audit import Share
from fedrank.attacks.membership import LEVEL, ShareDone, upper_bound
from fedrank.data.ranking import RankingData
from fedrank.ranking.measures import Evaluator
from fedrank.seeds import rng_for
from fedrank.trees.binning import Edges, put_in_bins
from fedrank.trees.boosters import Grower
from fedrank.trees.forest import Forest
from fedrank.trees.releases import Layout
from fedrank.trees.row_store import RowStore

TESTS = 3  # tests of one forest
MEASURE = "ndcg@10"
ZERO = 1e-34  # LightGBM separates 0 by thresholds next to it, which do not depend on the data
GROWN = 0.9  # fraction of the run time for growing
THRESHOLDS = "training values, in thresholds"
RANGES = "extreme values, in the header"
MEMBERS = "training queries, by ranking quality"
GRADES = "relevant documents, in root histograms"


@dataclass(frozen=True)
class SharedForests:
    """A forest that is shared, and its training data."""

    forest: Forest
    train: tuple[RankingData, ...]  # of each organisation that grew it
    held_out: tuple[RankingData, ...]  # of each, similar data that was not trained on


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
class ForestAudit:
    """The attacks on the forests that leave organisations."""

    # Grows them when they are needed; None: no forest is shared.
    forests: Callable[[ShareDone], Sequence[SharedForests]] | None
    seed: int
    level: float = LEVEL / TESTS  # significance level of one test
    note: str = ""  # differences from the spec, if any
    roots: Callable[[], Roots] | None = None  # what the server sees of a forest grown from histograms without noise

    def plan(self) -> Plan:
        """All attacks that apply, and why others do not."""
        if self.forests is None:
            return [skipped("forests", "no client shares its forest with another")]
        plan: Plan = [PlannedAttack("forests", self._attack)]
        return plan if self.roots is None else [*plan, PlannedAttack("histograms", self._histograms)]

    def _attack(self, on_progress: ShareDone) -> list[Finding]:
        assert self.forests is not None
        shared = self.forests(lambda share: on_progress(GROWN * share))
        return [self._thresholds(shared), self._ranges(shared), self._members(shared)]

    def _thresholds(self, shared: Sequence[SharedForests]) -> Finding:
        right = guessed = of = 0
        for one in shared:
            for column, thresholds in _thresholds_of(one.forest).items():
                of += len(thresholds)
                right += _midway(thresholds, one.train, column)
                guessed += _midway(thresholds, one.held_out, column)
        return self._compared(
            THRESHOLDS,
            Share(right, of),
            Share(guessed, of),
            "different thresholds, {right} are exactly midway between two values of training documents, and so reveal "
            "the mean of the two",
            "{guessed} are midway between values of documents that were not trained on",
        )

    def _ranges(self, shared: Sequence[SharedForests]) -> Finding:
        right = guessed = of = 0
        for one in shared:
            results = re.search(r"^feature_infos=(.*)$", one.forest.text, flags=re.MULTILINE)
            for column, text in enumerate(results.group(1).split() if results else ()):
                if text == "none":
                    continue
                limits = tuple(float(value) for value in text.strip("[]").split(":"))
                of += 1
                right += limits in _limits(one.train, column)
                guessed += limits in _limits(one.held_out, column)
        return self._compared(
            RANGES,
            Share(right, of),
            Share(guessed, of),
            "features that vary, the header reveals the smallest and largest value of training documents for {right}",
            "documents that were not trained on have the same values for {guessed}",
        )

    def _members(self, shared: Sequence[SharedForests]) -> Finding:
        """Given two queries with their labels, one of them trained on, choose the one that is ranked better.

        After Yeom et al. 2018, who identify members by their small loss.
        """
        rng, right, of = rng_for(self.seed, "members"), 0, 0
        for one in shared:
            inside, outside = (_qualities(one.forest, some) for some in (one.train, one.held_out))
            many = min(len(inside), len(outside))
            gap = rng.permutation(inside)[:many] - rng.permutation(outside)[:many]
            right += int(np.count_nonzero(np.where(gap == 0, rng.random(many) < 0.5, gap > 0)))
            of += many
        return self._compared(
            MEMBERS,
            Share(right, of),
            None,
            "pairs of queries, of which one was trained on, that one was identified for {right}",
            "guessing would be right for half",
        )

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

    def _compared(self, what: str, found: Share, guess: Share | None, says: str, but: str) -> Finding:
        """Without a `guess`, guessing succeeds in half of the cases."""
        share = 0.5 if guess is None else upper_bound(guess.right, max(guess.of, 1), self.level)
        needed = fewest_above(found.of, share, self.level)
        said = says.format(right=f"{found.right:,} {found.confidence}")
        unread = "" if guess is None else but.format(guessed=f"{guess.right:,}")
        sentence = f"Of {found.of:,} {said}; {unread or but}. {capital(power(needed, found.of))}."
        if self.note:
            sentence += f" {capital(self.note)}."
        counts = {
            "found": asdict(found),
            "guess": None if guess is None else asdict(guess),
            "needed": needed,
            "level": self.level,
        }
        shown = f"{found.right:,} of {found.of:,}"
        guessed = "half" if guess is None else f"{guess.right:,} of {guess.of:,}"
        return Finding(what, "", shown, verdict_of(found, needed), sentence, counts, guessed)


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


def _thresholds_of(forest: Forest) -> dict[int, NDArray[np.float64]]:
    """By feature, all distinct thresholds of a forest."""
    trees = forest.arrays
    here = np.abs(trees.threshold) > ZERO
    return {
        int(column): np.unique(trees.threshold[here & (trees.feature == column)])
        for column in np.unique(trees.feature[here])
    }


def _midway(thresholds: NDArray[np.float64], parts: Sequence[RankingData], column: int) -> int:
    """Number of thresholds midway between two adjacent values of any of the data sets, up to rounding."""
    found = np.zeros(len(thresholds), dtype=np.bool_)
    for data in parts:
        given = data.features[:, column]
        values = np.unique(given[~np.isnan(given)]).astype(np.float64)
        middles = (values[1:] + values[:-1]) / 2
        if len(middles):
            index = np.searchsorted(middles, thresholds)
            for near in (index - 1, index):
                nearest = middles[np.clip(near, 0, len(middles) - 1)]
                found |= np.isclose(nearest, thresholds, rtol=1e-12, atol=0.0)
    return int(np.count_nonzero(found))


def _limits(parts: Sequence[RankingData], column: int) -> list[tuple[float, float]]:
    """The smallest and the largest value in each data set."""
    values = [data.features[:, column] for data in parts]
    return [(float(np.fmin.reduce(each)), float(np.fmax.reduce(each))) for each in values]


def _qualities(forest: Forest, parts: Sequence[RankingData]) -> NDArray[np.float64]:
    """The quality of every query that has a relevant document."""
    found = []
    for data in parts:
        scores = np.asarray(forest.score(data), dtype=np.float32)
        values = Evaluator(data, [MEASURE]).per_query_of_scores(scores)[0]
        found.append(values[~np.isnan(values)])
    return np.concatenate(found)
