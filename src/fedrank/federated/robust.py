"""Robust aggregators, which limit the influence of a minority of malicious clients.

All of them ignore the number of interactions in a message, since a malicious client could inflate it. `attackers` is an
assumption, not a measurement; the documentation describes the consequences of a wrong value.
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

FEW = 48  # clients; up to this number one compiled loop is faster than library calls
FLATTEST = 0.01  # minimum cosine of a step and its gradient change; below, a pair is mostly noise
MIN_JUDGED = 4  # minimum number of scores; fewer always look like two clusters
ROUNDING = 1e-24  # squared; scores are about 1, and differences below 1e-12 are rounding errors
REFERENCES = 500  # number of reference samples without clusters
_ROBUST: frozenset[Trait] = frozenset({"robust"})
_TINY = float(np.finfo(np.float64).tiny)


class RememberingAggregator(Protocol):
    """An aggregator with state across rounds (trait "remembers"). Its ids are rows of all clients."""

    def first(self, clients: int, parameters: int) -> Arrays: ...
    def __call__(self, messages: Messages, state: Arrays) -> tuple[Change, Arrays]: ...


def assumed_attackers(share: float, clients: int) -> int:
    """The assumed number of malicious clients: the share, rounded half up.

    >>> assumed_attackers(0.25, 10)
    3
    """
    return int(share * clients + 0.5)


@dataclass(frozen=True)
class Krum:
    """The one update that is nearest to its neighbours (Krum; Blanchard et al., NeurIPS 2017).

    A score is the sum of the distances to the n - m - 2 nearest others, for m attackers among n clients. In a tie, the
    lowest row wins.
    """

    attackers: float = 0.2  # assumed share of malicious clients, below 0.5
    distance: Literal["euclidean", "squared"] = "euclidean"  # distance in the sum; the original paper uses squared

    needs: ClassVar[int] = 2  # minimum clients per attacker, plus three, for its guarantee
    traits: ClassVar[frozenset[Trait]] = _ROBUST
    device_bytes: ClassVar[int] = 8  # bytes of GPU shared memory per client

    def __post_init__(self) -> None:
        _check_share(self.attackers)

    def __call__(self, messages: Messages) -> Change:
        return _krum(messages.updates, self.attackers, self.distance == "squared", alone=True)

    def on_device(self, updates: Any) -> Change:
        return _krum_on_device(updates, self.attackers, self.distance == "squared", alone=True)


@dataclass(frozen=True)
class MultiKrum:
    """Mean of the n - m updates that are nearest to their neighbours (Multi-Krum; Blanchard et al., NeurIPS 2017).

    Scores are those of Krum.
    """

    attackers: float = 0.2  # assumed share of malicious clients, below 0.5; as many are left out
    distance: Literal["euclidean", "squared"] = "euclidean"  # distance in the sum; the original paper uses squared

    needs: ClassVar[int] = 2  # minimum clients per attacker, plus three, for its guarantee
    traits: ClassVar[frozenset[Trait]] = _ROBUST
    device_bytes: ClassVar[int] = 8  # bytes of GPU shared memory per client

    def __post_init__(self) -> None:
        _check_share(self.attackers)

    def __call__(self, messages: Messages) -> Change:
        return _krum(messages.updates, self.attackers, self.distance == "squared", alone=False)

    def on_device(self, updates: Any) -> Change:
        return _krum_on_device(updates, self.attackers, self.distance == "squared", alone=False)


@dataclass(frozen=True)
class TrimmedMean:
    """Mean of each parameter without its extreme values (trimmed mean; Yin et al., ICML 2018)."""

    attackers: float = 0.2  # assumed share of malicious clients, below 0.5; as many are dropped at each end

    traits: ClassVar[frozenset[Trait]] = _ROBUST
    device_bytes: ClassVar[int] = 4  # bytes of GPU shared memory per client

    def __post_init__(self) -> None:
        _check_share(self.attackers)

    def __call__(self, messages: Messages) -> Change:
        return _trimmed_mean(messages.updates, self.dropped(len(messages.updates)))

    def on_device(self, updates: Any) -> Change:
        change: Change = updates.trimmed_mean(self.dropped(updates.clients))
        return change

    def dropped(self, clients: int) -> int:
        """Number of values dropped at each end."""
        return _attackers(self.attackers, clients)


@dataclass(frozen=True)
class Median:
    """Median of each parameter; for an even number, the mean of the middle two (Yin et al., ICML 2018)."""

    traits: ClassVar[frozenset[Trait]] = _ROBUST
    device_bytes: ClassVar[int] = 4  # bytes of GPU shared memory per client

    def __call__(self, messages: Messages) -> Change:
        return _trimmed_mean(messages.updates, self.dropped(len(messages.updates)))

    def on_device(self, updates: Any) -> Change:
        change: Change = updates.trimmed_mean(self.dropped(updates.clients))
        return change

    def dropped(self, clients: int) -> int:
        """Number of values dropped at each end: all but the middle one or two."""
        return max(0, (clients - 1) // 2)


@dataclass(frozen=True)
class Bulyan:
    """Krum selects n - 2 m updates in turn; of each parameter, the middle n - 4 m are averaged (Bulyan; El Mhamdi).

    The middle values are those nearest to the median (El Mhamdi et al., ICML 2018, algorithm 1). The guarantee needs
    n >= 4 m + 3.
    """

    attackers: float = 0.2  # assumed share of malicious clients, below 0.25
    distance: Literal["euclidean", "squared"] = "euclidean"  # distance in Krum's sum; the original paper uses squared

    needs: ClassVar[int] = 4  # minimum clients per attacker, plus three, for its guarantee
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
                f"attackers = {self.attackers} means {m} of {n} clients, but Bulyan drops four per attacker; "
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

    tolerance: float = 1e-6  # stops when a step is shorter than this share of the typical distance
    iterations: int = 200  # maximum number of iterations

    traits: ClassVar[frozenset[Trait]] = _ROBUST

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be greater than 0 and less than 1, such as 1e-6 (got {self.tolerance})")
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1 (got {self.iterations})")

    def __call__(self, messages: Messages) -> Change:
        from fedrank.kernels.robust import geometric_median

        updates = _plain(messages.updates)
        point = _trimmed_mean(updates, max(0, (len(updates) - 1) // 2))  # a start that is robust to outliers
        geometric_median(updates, self.tolerance, self.iterations, point)
        return point


@dataclass(frozen=True)
class NormBound:
    """Mean of the updates, clipped to a maximum norm (Sun et al., 2019)."""

    bound: float | Literal["median"] = "median"  # maximum norm; "median": that of this round's norms

    traits: ClassVar[frozenset[Trait]] = _ROBUST

    def __post_init__(self) -> None:
        if not isinstance(self.bound, str) and not 0 < self.bound < np.inf:
            raise ValueError(f'bound must be a finite positive number or "median" (got {self.bound})')

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
    """Mean of the updates, weighted by their cosine with an update of the server (FLTrust; Cao et al., NDSS 2021).

    The server learns from a few trusted queries. A client's weight is the cosine of its update with the server's, or 0
    if that is negative; all updates are scaled to the norm of the server's.
    """

    queries: int = 50  # number of trusted queries of the server

    traits: ClassVar[frozenset[Trait]] = frozenset({"robust", "trusted queries"})

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ValueError(f"queries must be at least 1 (got {self.queries})")

    def __call__(self, messages: Messages) -> Change:
        if messages.root is None:
            raise ValueError(
                "this round has no update of the server, which trust needs; "
                "give Messages a root, or use an aggregator without one"
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
    """Mean of the updates of all clients that are consistent from round to round (FLDetector; Zhang et al., KDD 2022).

    A client's update is predicted from its last one and from the curvature along the model's moves (L-BFGS). The
    prediction error, relative to the others and averaged over a window, is its score. If the gap statistic finds two
    clusters of scores instead of one, the worse cluster is excluded permanently.

    Until then this is the plain mean, so the first malicious update has its full effect. The published test uses one
    standard error and, applied every round, eventually excludes honest clients; hence `errors`. An attacker whose
    updates are as long as honest ones is detected only if curvature exceeds the noise of updates, which few clicks do
    not allow.
    """

    attackers: float = 0.2  # assumed share of malicious clients, below 0.5; a larger cluster is not excluded
    window: int = 10  # number of averaged scores per client, and of stored moves of the model
    errors: float = 6.0  # standard errors by which two clusters must fit better than one; published: 1

    traits: ClassVar[frozenset[Trait]] = frozenset({"robust", "remembers"})

    def __post_init__(self) -> None:
        _check_share(self.attackers)
        if self.window < 1:
            raise ValueError(f"window must be at least 1 (got {self.window})")
        if not 0 <= self.errors < np.inf:
            raise ValueError(f"errors must be a finite number of at least 0, such as 6 (got {self.errors})")

    def first(self, clients: int, parameters: int) -> Arrays:
        """Return the state before the first round."""
        return {
            "rounds": np.zeros(1, dtype=np.int64),  # number of rounds so far
            "weights": np.zeros(parameters),  # the model of the last round
            "change": np.zeros(parameters),  # its aggregated change
            "steps": np.zeros((self.window, parameters)),  # moves of the model, newest last
            "bends": np.zeros((self.window, parameters)),  # differences of changes, newest last
            "updates": np.zeros((clients, parameters), dtype=np.float32),  # each client's last update
            "started": np.zeros((clients, parameters)),  # the model that it started from
            "seen": np.zeros(clients, dtype=np.bool_),  # whether a client has a last update
            "surprises": np.full((clients, self.window), np.nan),  # relative prediction errors, newest last
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
                f"updates of {updates.shape[1]} parameters for a model of shape {weights.shape} do not match the state "
                f"with {parameters} parameters; start again with first({clients}, {updates.shape[1]})"
            )
        after = {name: array.copy() for name, array in state.items()}
        rounds, steps, bends = after["rounds"], after["steps"], after["bends"]
        before, started, seen = after["updates"], after["started"], after["seen"]
        excluded, noted = after["excluded"], after["surprises"]
        first = max(0, self.window + 1 - int(rounds[0]))  # the first move has no predecessor
        scored = record_forecast_errors(
            updates, ids, weights, steps, bends, first, FLATTEST, before, started, seen, excluded, noted
        )
        if scored < 0:
            raise ValueError(
                f"ids from {ids.min()} to {ids.max()} are not rows of the {clients} clients in the state; "
                "number clients from 0, or start again with first"
            )
        if scored > 1:
            self._exclude(noted, excluded)
        change = after["change"]
        record_round(
            updates, ids, weights, excluded, rounds, after["weights"], steps, bends, before, started, seen, change
        )
        return change.copy(), after

    def _exclude(self, noted: NDArray[np.float64], excluded: NDArray[np.bool_]) -> None:
        """Exclude the worse of two clusters of scores, if there are two and it is not too large for attackers."""
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
    """The reference of the gap statistic (Tibshirani et al., 2001), for values without clusters.

    Returns the expected logarithm of the ratio of dispersions of one and two clusters, and the standard error of the
    logarithm of the dispersion of two. The draws are fixed, so the result is deterministic.
    """
    from fedrank.kernels.robust import best_split

    draws = np.random.default_rng(1).random((REFERENCES, min(count, 2000)))
    draws.sort(axis=1)
    spreads = np.array([best_split(values)[1:] for values in draws])
    logs = kernels.elementary.log_each(np.maximum(spreads, _TINY))
    error = float(logs[:, 1].std() * np.sqrt(1 + 1 / REFERENCES))
    return float((logs[:, 0] - logs[:, 1]).mean()), error


def _krum_numbers(attackers: float, n: int, alone: bool) -> tuple[int, int]:
    """(neighbours per score, averaged updates) for n clients; an error if there are too few."""
    m = _attackers(attackers, n)
    neighbours = n - m - 2
    if neighbours < 1:
        raise ValueError(
            f"attackers = {attackers} means {m} of {n} clients, so Krum has no neighbours to compare with "
            f"(n - m - 2 = {neighbours}); use at least {m + 3} clients, or the median"
        )
    if m > 0 and n < 2 * m + 3:
        _warn("Krum", n, m, 2 * m + 3)
    return neighbours, 1 if alone else n - m


def _krum(updates: Updates, attackers: float, squared: bool, alone: bool) -> Change:
    """Mean of the updates with the best scores: one, or all except the assumed number of attackers."""
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
    """Like `_krum`, for `fedrank.ranking.cuda.robust.RobustOnDevice`."""
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
    if columns.base is not None:  # a single row or column may be a view, which must not be sorted in place
        columns = columns.copy()
    columns.sort(axis=1)
    return columns


def _plain(updates: Updates) -> Updates:
    """Return a contiguous array; usually no copy is needed."""
    return np.ascontiguousarray(updates, dtype=np.float32)


def _check_share(attackers: float) -> None:
    if not 0 <= attackers < 0.5:
        raise ValueError(
            f"attackers must be at least 0 and less than 0.5 (got {attackers}); no rule is robust against a majority"
        )


def _attackers(share: float, clients: int) -> int:
    """The assumed number of malicious clients, which must be a minority."""
    count = assumed_attackers(share, clients)
    if 2 * count >= clients > 0:
        raise ValueError(
            f"attackers = {share} means {count} of {clients} clients, but no rule is robust against half or more; "
            "use a smaller share, or more clients"
        )
    return count


@cache
def _warn(rule: str, clients: int, attackers: int, enough: int) -> None:
    """Warn once per process instead of once per round."""
    warnings.warn(_no_guarantee(rule, clients, attackers, enough), stacklevel=4)


def _no_guarantee(rule: str, clients: int, attackers: int, enough: int) -> str:
    return (
        f"{rule} has no guarantee if {attackers} of {clients} clients are attackers; "
        f"use at least {enough} clients, or a smaller share of attackers"
    )


def without_guarantee(rule: Any, clients: int) -> str:
    """Why a rule has no guarantee with this number of clients; empty if it has one."""
    many = getattr(rule, "needs", None)  # the guarantee needs this number per attacker, plus three
    attackers = 0 if many is None else assumed_attackers(rule.attackers, clients)
    if many is None or attackers == 0 or clients >= many * attackers + 3:
        return ""
    return _no_guarantee(type(rule).__name__, clients, attackers, many * attackers + 3)
