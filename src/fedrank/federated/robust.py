"""Robust aggregators: changes that a few dishonest clients cannot bend at will.

All ignore how many interactions a client names: a dishonest one could inflate its own. `attackers` is an assumption,
never a measurement; docs say what follows where it is wrong.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.types import Arrays, Change, Messages, Trait, Updates

FEW = 48  # clients; up to here one compiled loop beats calls of libraries
FLATTEST = 0.01  # cosine of a move and its bend; below, a pair tells more about noise than about curvature
MIN_JUDGED = 4  # scores; fewer always look like two clusters
ROUNDING = 1e-24  # squared; scores are about 1, and differences below 1e-12 come from rounding
REFERENCES = 500  # sets of values without clusters
_ROBUST: frozenset[Trait] = frozenset({"robust"})
_TINY = float(np.finfo(np.float64).tiny)


class RememberingAggregator(Protocol):
    """A rule that looks at more than one round: it "remembers". Its ids are rows of the clients that there are."""

    def first(self, clients: int, parameters: int) -> Arrays: ...
    def __call__(self, messages: Messages, state: Arrays) -> tuple[Change, Arrays]: ...


def assumed_attackers(share: float, clients: int) -> int:
    """How many of these clients are assumed to be malicious: the share, rounded, halves up.

    >>> assumed_attackers(0.25, 10)
    3
    """
    return int(share * clients + 0.5)


@dataclass(frozen=True)
class Krum:
    """The one update that lies nearest to its neighbours (Blanchard et al., NeurIPS 2017).

    A score is the sum of the distances to the n - m - 2 nearest others, m of n clients being attackers. Of equal
    scores the lowest row wins.
    """

    attackers: float = 0.2  # share of clients assumed malicious, below 0.5
    distance: Literal["euclidean", "squared"] = "euclidean"  # what is summed; the original paper squares

    needs: ClassVar[int] = 2  # clients for each attacker, and three more, before it promises anything
    traits: ClassVar[frozenset[Trait]] = _ROBUST
    device_bytes: ClassVar[int] = 8  # of a card's fast memory for each client

    def __post_init__(self) -> None:
        _check_share(self.attackers)

    def __call__(self, messages: Messages) -> Change:
        return _krum(messages.updates, self.attackers, self.distance == "squared", alone=True)

    def on_device(self, updates: Any) -> Change:
        return _krum_on_device(updates, self.attackers, self.distance == "squared", alone=True)


@dataclass(frozen=True)
class MultiKrum:
    """Mean of the n - m updates that lie nearest to their neighbours (Blanchard et al., NeurIPS 2017).

    Scores are those of Krum.
    """

    attackers: float = 0.2  # share of clients assumed malicious, below 0.5; as many are left out
    distance: Literal["euclidean", "squared"] = "euclidean"  # what is summed; the original paper squares

    needs: ClassVar[int] = 2  # clients for each attacker, and three more, before it promises anything
    traits: ClassVar[frozenset[Trait]] = _ROBUST
    device_bytes: ClassVar[int] = 8  # of a card's fast memory for each client

    def __post_init__(self) -> None:
        _check_share(self.attackers)

    def __call__(self, messages: Messages) -> Change:
        return _krum(messages.updates, self.attackers, self.distance == "squared", alone=False)

    def on_device(self, updates: Any) -> Change:
        return _krum_on_device(updates, self.attackers, self.distance == "squared", alone=False)


@dataclass(frozen=True)
class TrimmedMean:
    """Mean of each parameter without its extremes (Yin et al., ICML 2018)."""

    attackers: float = 0.2  # share of clients assumed malicious, below 0.5; as many are dropped at either end

    traits: ClassVar[frozenset[Trait]] = _ROBUST
    device_bytes: ClassVar[int] = 4  # of a card's fast memory for each client

    def __post_init__(self) -> None:
        _check_share(self.attackers)

    def __call__(self, messages: Messages) -> Change:
        return _trimmed_mean(messages.updates, self.dropped(len(messages.updates)))

    def on_device(self, updates: Any) -> Change:
        change: Change = updates.trimmed_mean(self.dropped(updates.clients))
        return change

    def dropped(self, clients: int) -> int:
        """Values at either end that do not count."""
        return _attackers(self.attackers, clients)


@dataclass(frozen=True)
class Median:
    """Middle value of each parameter; of an even number, the mean of the middle two (Yin et al., ICML 2018)."""

    traits: ClassVar[frozenset[Trait]] = _ROBUST
    device_bytes: ClassVar[int] = 4  # of a card's fast memory for each client

    def __call__(self, messages: Messages) -> Change:
        return _trimmed_mean(messages.updates, self.dropped(len(messages.updates)))

    def on_device(self, updates: Any) -> Change:
        change: Change = updates.trimmed_mean(self.dropped(updates.clients))
        return change

    def dropped(self, clients: int) -> int:
        """Values at either end that do not count: all but the middle one, or two."""
        return max(0, (clients - 1) // 2)


@dataclass(frozen=True)
class Bulyan:
    """Krum chooses n - 2 m updates, one after the other; of each parameter the middle n - 4 m count (El Mhamdi, 2018).

    The middle are those nearest to the median (ICML 2018, algorithm 1). Promises something only for n >= 4 m + 3.
    """

    attackers: float = 0.2  # share of clients assumed malicious, below 0.25
    distance: Literal["euclidean", "squared"] = "euclidean"  # what Krum sums; the original paper squares

    needs: ClassVar[int] = 4  # clients for each attacker, and three more, before it promises anything
    traits: ClassVar[frozenset[Trait]] = _ROBUST

    def __post_init__(self) -> None:
        _check_share(self.attackers)

    def __call__(self, messages: Messages) -> Change:
        from fedrank.kernels.robust import bulyan_choice, means_around_medians

        updates = _plain(messages.updates)
        n = len(updates)
        m = _attackers(self.attackers, n)
        change = np.zeros(updates.shape[1])
        if n == 0:
            return change
        if n - 4 * m < 1:
            raise ValueError(
                f"attackers = {self.attackers} means {m} of {n} clients, and Bulyan drops four for each; "
                f"use less than 0.25, or more than {4 * m} clients"
            )
        if m > 0 and n < 4 * m + 3:
            _warn("Bulyan", n, m, 4 * m + 3)
        distances = _distances(updates, self.distance == "squared")
        chosen = np.empty(n - 2 * m, dtype=np.int64)
        bulyan_choice(np.sort(distances, axis=1), distances, m, len(chosen), chosen)
        means_around_medians(_sorted_columns(updates[chosen]), n - 4 * m, change)
        return change


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the smallest sum of distances to all updates (RFA; Pillutla et al., IEEE TSP 2022)."""

    tolerance: float = 1e-6  # ends when a step is shorter than this share of the typical distance
    iterations: int = 200  # at most

    traits: ClassVar[frozenset[Trait]] = _ROBUST

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance = {self.tolerance} never ends, or ends at once; use a number such as 1e-6")
        if self.iterations < 1:
            raise ValueError(f"iterations = {self.iterations} would leave the median of each parameter; use 1 or more")

    def __call__(self, messages: Messages) -> Change:
        from fedrank.kernels.robust import geometric_median

        updates = _plain(messages.updates)
        point = _trimmed_mean(updates, max(0, (len(updates) - 1) // 2))  # no outlier can send the start far away
        geometric_median(updates, self.tolerance, self.iterations, point)
        return point


@dataclass(frozen=True)
class NormBound:
    """Mean of the updates, longer ones shortened to a bound (Sun et al., 2019)."""

    bound: float | Literal["median"] = "median"  # largest length; "median": that of this round's lengths

    traits: ClassVar[frozenset[Trait]] = _ROBUST

    def __post_init__(self) -> None:
        if not isinstance(self.bound, str) and not 0 < self.bound < np.inf:
            raise ValueError(f'bound = {self.bound} keeps nothing, or everything; use a positive number or "median"')

    def __call__(self, messages: Messages) -> Change:
        updates = _plain(messages.updates)
        n = len(updates)
        if n == 0:
            return np.zeros(updates.shape[1])
        lengths = kernels.sums.lengths(updates)
        if isinstance(self.bound, str):
            ordered = np.sort(lengths)
            bound = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        else:
            bound = self.bound
        return kernels.sums.weighted_sum(bound / np.maximum(lengths, max(bound, _TINY)), updates) / n


@dataclass(frozen=True)
class Trust:
    """Mean of the updates, each counted by how far it points where the server's own does (FLTrust; Cao, NDSS 2021).

    The server learns from a few queries that it trusts. A client counts by the cosine of its update with the
    server's, or not at all if that is negative; all updates are given the length of the server's.
    """

    queries: int = 50  # trusted queries of the server

    traits: ClassVar[frozenset[Trait]] = frozenset({"robust", "trusted queries"})

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ValueError(f"queries = {self.queries} gives the server nothing to trust; use 1 or more")

    def __call__(self, messages: Messages) -> Change:
        if messages.root is None:
            raise ValueError(
                "no update of the server's own came with this round, so nobody can be trusted; "
                "give Messages a root, or use a rule without one"
            )
        root = messages.root.astype(np.float64)
        directions = messages.updates / np.maximum(kernels.sums.lengths(_plain(messages.updates)), _TINY)[:, None]
        long = kernels.sums.length(root)
        way = root / max(long, _TINY)
        trust = np.maximum(kernels.sums.products(directions, way[None])[:, 0], 0.0)
        total = float(np.add.reduce(trust))
        if total == 0:
            return np.zeros(len(root))
        return kernels.sums.weighted_sum(trust * (long / total), directions)


@dataclass(frozen=True)
class Reputation:
    """Mean of the updates of all clients that stayed consistent from round to round (FLDetector; Zhang, KDD 2022).

    A client's update is forecast from its last one and from how updates bend when the model moves (L-BFGS). How far
    off it is, relative to the others and averaged over a window, is its score. When the gap statistic says that
    scores form two clusters rather than one, the worse cluster is excluded, for good.

    Until then this is the plain mean: a first blow of any size goes through. The published test asks for one standard
    error and, asked every round, excludes honest clients sooner or later; hence `errors`. An attacker whose updates
    are as long as honest ones is found only where updates bend more than they scatter, which few clicks do not allow.
    """

    attackers: float = 0.2  # share of clients assumed malicious, below 0.5; a larger worse cluster is let be
    window: int = 10  # scores of a client that are averaged, and moves of the model that are remembered
    errors: float = 6.0  # standard errors by which two clusters must beat one; published: 1

    traits: ClassVar[frozenset[Trait]] = frozenset({"robust", "remembers"})

    def __post_init__(self) -> None:
        _check_share(self.attackers)
        if self.window < 1:
            raise ValueError(f"window = {self.window} remembers nothing to forecast from; use 1 or more")
        if not 0 <= self.errors < np.inf:
            raise ValueError(f"errors = {self.errors} excludes everybody, or nobody; use a number such as 6")

    def first(self, clients: int, parameters: int) -> Arrays:
        """Before the first round."""
        return {
            "rounds": np.zeros(1, dtype=np.int64),  # seen so far
            "weights": np.zeros(parameters),  # the model of the last round
            "change": np.zeros(parameters),  # what came out of it
            "steps": np.zeros((self.window, parameters)),  # moves of the model, newest last
            "bends": np.zeros((self.window, parameters)),  # changes of the change, newest last
            "updates": np.zeros((clients, parameters), dtype=np.float32),  # each client's last one
            "started": np.zeros((clients, parameters)),  # the model it began from
            "seen": np.zeros(clients, dtype=np.bool_),  # whether there is a last one
            "surprises": np.full((clients, self.window), np.nan),  # relative forecast errors, newest last
            "excluded": np.zeros(clients, dtype=np.bool_),
        }

    def __call__(self, messages: Messages, state: Arrays) -> tuple[Change, Arrays]:
        from fedrank.kernels.robust import record_forecast_errors, record_round

        updates, ids = _plain(messages.updates), messages.ids
        _attackers(self.attackers, len(updates))
        weights = np.asarray(messages.weights, dtype=np.float64)
        clients, parameters = state["updates"].shape
        if weights.shape != (parameters,) or updates.shape[1] != parameters:
            raise ValueError(
                f"updates of {updates.shape[1]} parameters to a model of shape {weights.shape} do not fit what is "
                f"remembered, {parameters} parameters; begin again with first({clients}, {updates.shape[1]})"
            )
        after = {name: array.copy() for name, array in state.items()}
        rounds, steps, bends = after["rounds"], after["steps"], after["bends"]
        before, started, seen = after["updates"], after["started"], after["seen"]
        excluded, noted = after["excluded"], after["surprises"]
        first = max(0, self.window + 1 - int(rounds[0]))  # the first of all moves starts from nowhere
        scored = record_forecast_errors(
            updates, ids, weights, steps, bends, first, FLATTEST, before, started, seen, excluded, noted
        )
        if scored < 0:
            raise ValueError(
                f"ids from {ids.min()} to {ids.max()} are not rows of the {clients} clients that are remembered; "
                "number clients from 0, or begin again with first"
            )
        if scored > 1:
            self._exclude(noted, excluded)
        change = after["change"]
        record_round(
            updates, ids, weights, excluded, rounds, after["weights"], steps, bends, before, started, seen, change
        )
        return change.copy(), after

    def _exclude(self, noted: NDArray[np.float64], excluded: NDArray[np.bool_]) -> None:
        """Exclude the worse of two clusters of scores, if there are two and it is no larger than attackers can be."""
        from fedrank.kernels.robust import best_split, mean_forecast_errors

        room = assumed_attackers(self.attackers, len(excluded)) - int(np.count_nonzero(excluded))
        if room < 1:
            return
        judged, scores = np.empty(len(excluded), dtype=np.int64), np.empty(len(excluded))
        count = mean_forecast_errors(noted, excluded, judged, scores)
        if count < MIN_JUDGED:
            return
        order = np.argsort(scores[:count], kind="stable")
        cut, one, two = best_split(scores[order])
        if count - cut > room or one <= count * ROUNDING:
            return
        expected, error = _uniform_clusters(count)
        if two == 0 or kernels.elementary.log(one / two) > expected + self.errors * error:
            excluded[judged[order[cut:]]] = True


@cache
def _uniform_clusters(count: int) -> tuple[float, float]:
    """What the gap statistic compares with (Tibshirani et al., 2001), for values without any clusters.

    Expected logarithm of how many times two clusters are tighter than one, and the standard error of the logarithm of
    the tightness of two. Always the same draws: a verdict must not depend on chance.
    """
    from fedrank.kernels.robust import best_split

    draws = np.random.default_rng(1).random((REFERENCES, min(count, 2000)))
    draws.sort(axis=1)
    spreads = np.array([best_split(values)[1:] for values in draws])
    logs = kernels.elementary.log_each(np.maximum(spreads, _TINY))
    error = float(logs[:, 1].std() * np.sqrt(1 + 1 / REFERENCES))
    return float((logs[:, 0] - logs[:, 1]).mean()), error


def _krum_numbers(attackers: float, n: int, alone: bool) -> tuple[int, int]:
    """(nearest others that a score sums, updates that are averaged) of n clients; refused where there are too few."""
    m = _attackers(attackers, n)
    neighbours = n - m - 2
    if neighbours < 1:
        raise ValueError(
            f"attackers = {attackers} means {m} of {n} clients, which leaves Krum no neighbour to compare with "
            f"(n - m - 2 = {neighbours}); use at least {m + 3} clients, or the median"
        )
    if m > 0 and n < 2 * m + 3:
        _warn("Krum", n, m, 2 * m + 3)
    return neighbours, 1 if alone else n - m


def _krum(updates: Updates, attackers: float, squared: bool, alone: bool) -> Change:
    """Mean of the updates with the best scores: of one, or of all but as many as there are attackers."""
    from fedrank.kernels.robust import krum_of_few

    updates = _plain(updates)
    n = len(updates)
    change = np.zeros(updates.shape[1])
    if n == 0:
        return change
    neighbours, count = _krum_numbers(attackers, n, alone)
    if n <= FEW:
        krum_of_few(updates, neighbours, count, squared, change)
        return change
    distances = _distances(updates, squared)
    distances.partition(neighbours - 1, axis=1)
    best = np.argsort(np.add.reduce(distances[:, :neighbours], axis=1), kind="stable")[:count]
    np.add.reduce(updates[best], axis=0, dtype=np.float64, out=change)
    change /= count
    return change


def _krum_on_device(updates: Any, attackers: float, squared: bool, alone: bool) -> Change:
    """The same for `fedrank.ranking.cuda.robust.RobustOnDevice`."""
    neighbours, count = _krum_numbers(attackers, updates.clients, alone)
    scores = updates.krum_scores(neighbours, squared)
    change: Change = updates.mean_of(np.argsort(scores, kind="stable")[:count])
    return change


def _distances(updates: Updates, squared: bool) -> NDArray[np.float64]:
    """[n, n]: symmetric; infinite from a client to itself."""
    from fedrank.kernels.robust import distances_from_products, distances_of_few

    n = len(updates)
    if n <= FEW:
        distances = np.empty((n, n))
        distances_of_few(updates, squared, distances)
        return distances
    wide = updates.astype(np.float64)
    distances = np.empty((n, n))
    distances_from_products(updates, kernels.sums.products(wide, wide, lower=True), squared, distances)
    return distances


def _trimmed_mean(updates: Updates, drop: int) -> Change:
    """Mean of each column without its `drop` smallest and largest values."""
    from fedrank.kernels.robust import trimmed_mean_of_few

    updates = _plain(updates)
    n = len(updates)
    change = np.zeros(updates.shape[1])
    if n == 0:
        return change
    if n <= FEW:
        trimmed_mean_of_few(updates, drop, change)
        return change
    kept = _sorted_columns(updates)[:, drop : n - drop]
    np.add.reduce(kept, axis=1, dtype=np.float64, out=change)
    change /= n - 2 * drop
    return change


def _sorted_columns(updates: Updates) -> Updates:
    """[parameters, n]: ascending."""
    columns = np.ascontiguousarray(updates.T)
    if columns.base is not None:  # one row or one column is contiguous either way, and must not be sorted in place
        columns = columns.copy()
    columns.sort(axis=1)
    return columns


def _plain(updates: Updates) -> Updates:
    """As kernels read it; mostly it is so already."""
    return np.ascontiguousarray(updates, dtype=np.float32)


def _check_share(attackers: float) -> None:
    if not 0 <= attackers < 0.5:
        raise ValueError(
            f"attackers = {attackers}: no rule can tell honest clients from half or more of all; "
            "use 0 or more, and less than 0.5"
        )


def _attackers(share: float, clients: int) -> int:
    """How many are assumed malicious; refused unless they are a minority."""
    count = assumed_attackers(share, clients)
    if 2 * count >= clients > 0:
        raise ValueError(
            f"attackers = {share} means {count} of {clients} clients, and no rule can tell honest clients from half "
            "or more of all; use a smaller share, or more clients"
        )
    return count


@cache
def _warn(rule: str, clients: int, attackers: int, enough: int) -> None:
    """Once for each process, not once a round."""
    warnings.warn(_no_guarantee(rule, clients, attackers, enough), stacklevel=4)


def _no_guarantee(rule: str, clients: int, attackers: int, enough: int) -> str:
    return (
        f"{rule} promises nothing where {attackers} of {clients} clients are attackers; "
        f"use at least {enough} clients, or a smaller share of attackers"
    )


def without_guarantee(rule: Any, clients: int) -> str:
    """Why a rule promises nothing with so many clients; empty where it does."""
    many = getattr(rule, "needs", None)  # a promise needs this times the attackers, and three
    attackers = 0 if many is None else assumed_attackers(rule.attackers, clients)
    if many is None or attackers == 0 or clients >= many * attackers + 3:
        return ""
    return _no_guarantee(type(rule).__name__, clients, attackers, many * attackers + 3)
