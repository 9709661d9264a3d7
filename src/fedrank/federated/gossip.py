"""Training without a server: clients send each other their models, and check them by their own clicks.

In such a round every client has its own model. The search history by which a client checks is simulated: in each
round it makes further searches with its model, from which nothing is learned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.ranking.impressions import SimulatedImpressions
from fedrank.seeds import Chance, key_for
from fedrank.types import Attack, Change, Learner, Messages, OwnChance, Peers, SimulatedClients, Trait, Weights

_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class RankGuardStyle:
    """No server: a client averages its model with those that explain its own clicks better (RankGuard-style).

    After RankGuard (Gregoriadis et al., arXiv 2606.12246, 2026), of which only the abstract and a short summary were
    available. They say that users exchange models directly, and that a model is aggregated only if it explains the
    private click history, corrected for position bias, significantly better than the local model. The rest are choices
    of fedrank:

    - a history is `searches` lists of the round, drawn around the client's model before the round;
    - a click has the weight rank^eta, the inverse of an examination probability of (1 / rank)^eta;
    - a model explains a list by the sum over clicks of weight / log2(1 + rank), in its own order of that list;
    - it is better if the mean difference to the local model exceeds `errors` standard errors (paired, over lists);
    - the new model is the unweighted mean of the local model and the accepted ones, which are moved towards the local
      one if they are farther away than the median of those received: an order does not show how long a model is;
    - with `neighbours`, client i receives from the next clients in a ring, other ones in each round.

    The quality of a run is the mean over the models of honest clients. Published numbers are not comparable.
    """

    searches: int = 20  # searches of a client by which it checks models; 0: all models are accepted (plain gossip)
    errors: float = 1.0  # standard errors by which a model must explain the clicks better; 0: any difference
    eta: float = 1.0  # assumed position bias: a result at rank r is examined with probability (1 / r)^eta
    neighbours: int = 0  # models that a client receives per round; 0: those of all others

    traits: ClassVar[frozenset[Trait]] = frozenset({"apart", "gossip"})

    def __post_init__(self) -> None:
        for name in ("searches", "errors", "eta", "neighbours"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be a finite number of at least 0 (got {getattr(self, name)})")
        if self.searches == 1:
            raise ValueError("searches must be at least 2, since one list has no standard error, or 0 (got 1)")

    def links(self, clients: int) -> int:
        """Number of models that each of these clients receives."""
        return min(self.neighbours or clients, clients - 1)

    def __call__(self, messages: Messages) -> Change:
        """Return [clients, parameters]: the change of each client's model."""
        peers, start = messages.peers, messages.weights
        if peers is None:
            raise ValueError(
                "this round has no clicks of clients, which rankguard-style needs; give Messages peers, or use an "
                "aggregator with a server"
            )
        models, own = start + messages.updates, start + peers.own
        change: Change = np.empty_like(models)
        for row in range(len(models)):
            others = models[self._senders(row, len(models), messages.round)]
            accepted = self._accepted(own[row], others, peers.rows(slice(row, row + 1)))
            steps = self._bounded(others - own[row])[accepted]
            change[row] = own[row] + np.add.reduce(steps, axis=0) / (1 + len(steps))
        return change - start

    def _senders(self, row: int, clients: int, round: int) -> NDArray[np.int64]:
        """The rows from which a client receives a model."""
        if clients < 2:
            return np.empty(0, dtype=np.int64)
        first = max(round - 1, 0) * self.links(clients)
        return np.sort((row + 1 + (first + np.arange(self.links(clients))) % (clients - 1)) % clients)

    def _accepted(self, own: Weights, others: Weights, peers: Peers) -> NDArray[np.bool_]:
        if not self.searches or not len(others):
            return np.ones(len(others), dtype=np.bool_)
        values = self.explained(np.concatenate([own[None], others]), peers)
        better, lists = values[1:] - values[0], values.shape[1]
        mean = np.add.reduce(better, axis=1) / lists
        variance = np.add.reduce((better - mean[:, None]) ** 2, axis=1) / (lists - 1)
        return np.asarray(mean > self.errors * np.sqrt(variance / lists))

    def _bounded(self, differences: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shorten differences to the median of their lengths; without checks they stay."""
        if not self.searches or not len(differences):
            return differences
        lengths = kernels.sums.lengths(differences)
        limit = np.sort(lengths)[(len(lengths) - 1) // 2]
        return differences * np.where(lengths > limit, limit / np.maximum(lengths, _TINY), 1.0)[:, None]

    def explained(self, models: Weights, peers: Peers) -> NDArray[np.float64]:
        """[models, lists]: how well models explain the clicks on the lists of one client."""
        features, shown, clicked = peers.features[0], peers.shown[0], peers.clicked[0]
        lists, positions = clicked.shape
        scores = peers.ranker.score(models, features.reshape(lists * positions, -1))
        scores = np.where(np.arange(positions) < shown[:, None], scores.reshape(-1, lists, positions), -np.inf)
        ranks = np.argsort(np.argsort(-scores, axis=2, kind="stable"), axis=2)  # in a tie, the upper result is first
        weights = clicked * kernels.elementary.power_each(np.arange(1.0, positions + 1), self.eta)
        found: NDArray[np.float64] = np.add.reduce(weights * kernels.elementary.discounts(positions)[ranks], axis=2)
        return found


def peers_of(rule: RankGuardStyle, learner: Learner, messages: Messages, clients: SimulatedClients, seed: int) -> Peers:
    """What clients know besides the models that they receive: what they learned, and their clicks."""
    size, positions = clients.data.features.shape[1], kernels.show.SHOWN
    features = np.zeros((len(clients), rule.searches, positions, size), dtype=np.float32)
    shown = np.zeros((len(clients), rule.searches), dtype=np.int64)
    clicked = np.zeros((len(clients), rule.searches, positions), dtype=np.bool_)
    chance = Chance(int(key_for(seed, "check peers")), messages.round)
    starts = np.broadcast_to(messages.weights, messages.updates.shape).astype(np.float32)
    for row in range(len(clients)):
        history = SimulatedImpressions(
            clients.rows(slice(row, row + 1)), OwnChance(chance, int(clients.ids[row])), learner
        )
        for number in range(rule.searches):
            one = history.drawn(starts[row], number)
            count = len(one.shown)
            shown[row, number] = count
            features[row, number, :count] = one.features[one.shown]
            clicked[row, number, :count] = one.clicked
    return Peers(messages.updates, features, shown, clicked, learner.ranker)


def attacked(attack: Attack, messages: Messages, malicious: NDArray[np.bool_], rng: np.random.Generator) -> Messages:
    """Let an attack change what malicious clients send; their own models remain those that they learned.

    It sees all models relative to their mean before the round, so it compares models, not steps from separate ones.
    """
    assert messages.peers is not None
    middle = messages.weights.mean(axis=0)
    offsets = messages.weights - middle
    own = (messages.updates + offsets).astype(np.float32)
    seen = replace(messages, updates=own, weights=middle, peers=messages.peers._replace(own=own))
    updates = messages.updates.copy()
    updates[malicious] = (attack(seen, malicious, rng).updates - offsets)[malicious]
    return replace(messages, updates=updates)
