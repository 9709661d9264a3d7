"""Your own method for each of six families, each in at most twelve lines.

    python examples/my_methods.py                     checks them
    fedrank run examples/my_methods.toml              runs them: the specification beside this file names them

Copy what you need into a file beside your specification.
"""

from dataclasses import dataclass, replace

import numpy as np

import fedrank as fr
from fedrank.federated.partition import Split
from fedrank.privacy.guarantees import OBSERVERS, Guarantee
from fedrank.privacy.noise import SecureSource


@dataclass(frozen=True)
class RootMean:
    """Aggregator: the mean of updates, weighted by the square root of their interactions."""

    traits = frozenset({"mean"})  # combined in chunks, and many rounds per compiled call

    def client_weights(self, sizes):
        return np.sqrt(sizes)

    def __call__(self, messages):
        weights = self.client_weights(messages.sizes)
        return weights @ messages.updates.astype(np.float64) / weights.sum()


@dataclass(frozen=True)
class Perceptron(fr.ImpressionLearner):
    """Learner: moves towards the mean clicked result, away from the mean result without a click."""

    rate: float = 0.1

    def step(self, weights, impression):
        shown, clicked = impression.features[impression.shown], impression.clicked
        if clicked.all() or not clicked.any():
            return weights
        return weights + self.rate * (shown[clicked].mean(axis=0) - shown[~clicked].mean(axis=0))


@dataclass(frozen=True)
class Dcm:
    """Click model: the dependent click model, in which a user may leave after a click, sooner at low ranks."""

    leave: float = 0.6  # probability to leave after a click on the first result

    def __call__(self, labels, draws):
        clicks = draws[::2] < np.array([0.05, 0.5, 0.95])[np.minimum(labels, 2)]
        leaves = clicks & (draws[1::2] < self.leave ** np.arange(1, len(labels) + 1))
        return clicks & (np.cumsum(leaves) - leaves == 0)


@dataclass(frozen=True)
class Choir:
    """Attack: malicious clients send the opposite of what they learned on average."""

    loudness: float = 2.0  # how many times as long

    def __call__(self, messages, malicious, rng):
        updates = messages.updates.copy()
        if malicious.any():
            updates[malicious] = -self.loudness * updates[malicious].mean(axis=0)
        return replace(messages, updates=updates)


@dataclass(frozen=True)
class Clip:
    """Mechanism: updates are shortened to a length, without noise; it claims no privacy."""

    length: float = 1.0
    traits, source, sees = frozenset(), SecureSource, "the server sees every update, shortened"

    def protect(self, messages, cohort, source, counts=None):
        norms = np.linalg.norm(messages.updates, axis=1, keepdims=True)
        return replace(messages, updates=messages.updates * np.minimum(1, self.length / np.maximum(norms, 1e-12)))

    def guarantees(self, setting):
        return [Guarantee(observer, None, "clipping alone hides nothing") for observer in OBSERVERS]


@dataclass(frozen=True)
class InTurn:
    """Partition: client c holds queries c, c + count, c + 2 count and so on."""

    def __call__(self, data, count, rng):
        pools = [np.arange(client, data.queries, count, dtype=np.int32) for client in range(count)]
        return Split(tuple(pools), np.arange(count, dtype=np.int32))


if __name__ == "__main__":
    fr.testing.check_aggregator(RootMean())
    fr.testing.check_learner(Perceptron())
    fr.testing.check_click_model(Dcm())
    fr.testing.check_attack(Choir())
    fr.testing.check_mechanism(Clip())
    fr.testing.check_partition(InTurn())
    print("All six methods keep their contracts.")
