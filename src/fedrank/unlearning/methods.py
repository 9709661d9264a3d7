"""Unlearners: compute the model as if some clients had never participated.

Only `Retrain` does so exactly; all others approximate it with less work, and `fedrank.unlearning.verify` measures how
closely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.federated.aggregators import Mean
from fedrank.federated.federation import Federation
from fedrank.federated.round import Journal, JournalEntry, first_state
from fedrank.federated.server import State
from fedrank.federated.simulation import federated_round, simulate
from fedrank.seeds import Chance, key_for
from fedrank.types import (
    NO_CORRECTION,
    Change,
    Impressions,
    Learned,
    Learner,
    LocalCorrection,
    Memory,
    Messages,
    Observed,
    OwnChance,
    Ranker,
    SimulatedClients,
    Trait,
    Updates,
    Weights,
    has_trait,
)
from fedrank.unlearning.certificate import ListLoss, ReleaseNoise, minimise
from fedrank.unlearning.history import History, Stored, lengths_of

SERVER = -1  # the id under which a server learns from its own queries (aggregator "trust")
SHORTER_THAN_ANY = 1e-60  # nonzero update: the smallest float32 is 1.4e-45

Went = Callable[[int, int], None]  # called after every round: (rounds done, rounds in total)
# For the given rounds: records the participants, as rows of the remaining clients.
JournalFactory = Callable[[Sequence[int]], Journal]


@dataclass(frozen=True)
class Case:
    """An unlearning request: the run, and the clients to forget.

    A second request is a case whose clients are those that remained after the first.
    """

    federation: Federation
    clients: SimulatedClients  # all clients, including those that leave
    leaving: tuple[int, ...]  # ids of clients
    seed: int  # of the run
    first: Weights  # before round 1
    final: State | Weights  # after the last round
    rounds: int  # of the run, without those of earlier unlearning
    history: History | None = None
    memory: Memory = None  # [clients, m]: the state of clients after the last round
    points: int = 20  # number of intermediate models in the curve
    threads: int = 1
    journal_for: JournalFactory | None = None  # None: the participation of clients is not recorded

    def __post_init__(self) -> None:
        object.__setattr__(self, "leaving", tuple(sorted({int(client) for client in self.leaving})))
        self._check_leaving()
        if has_trait(self.federation.aggregator, "apart"):
            raise ValueError(
                'with the aggregator "none" clients share no model, so one client has no influence on another; '
                "delete the leaving client's own model"
            )
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1 (got {self.rounds}): nothing was learned yet; run first")

    def _check_leaving(self) -> None:
        ids = self.clients.ids
        unknown = [client for client in self.leaving if client not in ids]
        if unknown:
            raise ValueError(
                f"client {unknown[0]} is not among the {len(ids)} clients (ids {ids.min()} to {ids.max()}): it never "
                "participated, or has left already; name another"
            )
        if len(self.leaving) == len(ids):
            raise ValueError(f"all {len(ids)} clients leave, so no client would remain; delete the run instead")

    @property
    def remaining(self) -> SimulatedClients:
        """The clients that stay, with their ids and therefore the same random numbers."""
        return self.clients.rows(~np.isin(self.clients.ids, self.leaving))

    @property
    def without(self) -> Federation:
        """The federation of the remaining clients; without malicious clients, the attack is removed."""
        return self.federation if self.remaining.malicious.any() else replace(self.federation, attack=None)

    @property
    def unlearn_seed(self) -> int:
        """A seed that no round of the run used: otherwise all clients would repeat their first clicks."""
        return int(key_for(self.seed, "unlearn"))

    def recorded(self, method: str) -> History:
        """The history, if it fits the run."""
        history = self.history
        if history is None:
            raise ValueError(
                f"{method} needs the recorded history of the run, which has none; run again with history, or use a "
                'method that needs none: "retrain", "fine-tune", "gradient-ascent"'
            )
        parameters, every = history.index.parameters, history.index.every
        if parameters != self.first.size:
            raise ValueError(
                f"the history has {parameters} parameters, but the model has {self.first.size}: it belongs to another "
                "run; use the one in the run's own folder"
            )
        due = 1 + (self.rounds - 1) // every * every
        if history.last != due:
            raise ValueError(
                f"the history ends with round {history.last}, but that of {self.rounds} rounds with every = {every} "
                f"ends with round {due}: it belongs to another run; use the one in the run's own folder"
            )
        return history

    def check_leaving(self, method: str) -> None:
        """Raise ValueError if no client leaves: the model must then not change."""
        if not self.leaving:
            raise ValueError(
                f"no client leaves, so {method} would only make the model worse; name a client, such as --client 9"
            )

    def asked_again(self, method: str, protected: bool = True) -> None:
        """Raise ValueError for messages that no ledger would charge, or without the protection of the run."""
        if self.federation.mechanism is not None and (self.journal_for is None or not protected):
            raise ValueError(
                f"{method} needs further messages of the remaining clients, and this run protects each message at a "
                "privacy cost that unlearning cannot charge; "
                'use "fed-remove", or run the experiment without the leaving clients'
            )

    def journal(self, rounds: Sequence[int]) -> Journal | None:
        """The journal of the remaining clients for these rounds."""
        return None if self.journal_for is None else self.journal_for(rounds)

    def plain(self, method: str) -> None:
        """Raise ValueError for local methods with client state between rounds: no recorded update contains it."""
        local, ranker = self.federation.local, self.federation.learner.ranker
        if local is not None and local.first(ranker, self.first, 1) is not None:
            raise ValueError(
                f"{method} does not support client state between rounds (personal weights, control variates), so its "
                'model would be wrong; use "retrain" or "fine-tune"'
            )


@dataclass(frozen=True)
class Unlearned:
    """The result of unlearning, and its cost."""

    state: State
    memory: Memory  # of the remaining clients
    rounds: int  # run for it
    interactions: int  # local interactions of all clients together; retraining needs as many as the run itself
    curve: tuple[tuple[int, Weights], ...]  # (round, model after it) at a few points, including the last one
    certificate: dict[str, Any] = field(
        default_factory=dict
    )  # of a certified method: its claim, and how noise gives it

    @property
    def weights(self) -> Weights:
        """The resulting model; where clients have personal weights, with their mean."""
        return self.curve[-1][1]

    @property
    def server(self) -> NDArray[np.float64]:
        return self.state.server


@dataclass(frozen=True)
class RemoteRounds:
    """How an unlearner works in ordinary rounds with clients that are not simulated here."""

    count: int
    steps: int | None = None  # maximum number of local interactions of a client in a round
    continues: bool = False  # starts from the final model instead of the first one
    recorded: tuple[tuple[NDArray[np.int64], NDArray[np.float64]], ...] = ()  # of each round: ids, lengths of updates

    def reshape(self, messages: Messages, clients: SimulatedClients) -> Messages:
        """Give updates the lengths of the recorded ones, where the method asks for it."""
        if not self.recorded:
            return messages
        ids, lengths = self.recorded[messages.round - 1]
        known = dict(zip(ids.tolist(), lengths.tolist(), strict=True))
        own = np.array([known.get(int(id), 0.0) for id in messages.ids])
        sizes = clients.interactions[_rows_of(clients.ids, messages.ids)]
        return replace(messages, updates=rescaled(messages.updates, own), sizes=sizes)

    def outcome(self, state: State, interactions: int) -> Unlearned:
        return Unlearned(state, None, state.round, interactions, ((state.round, state.weights),))


class Unlearner(Protocol):
    """A way to forget clients.

    A method that also works between organisations has `remote(case) -> RemoteRounds`, or needs no client at all.
    """

    def __call__(self, case: Case, progress: Went | None = None) -> Unlearned: ...


@dataclass(frozen=True)
class Retrain:
    """Train again without the leaving clients: exact, and the reference for all other methods, at the full cost.

    All other clients keep their ids and therefore their queries and random numbers.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({"exact"})

    def __call__(self, case: Case, progress: Went | None = None) -> Unlearned:
        case.asked_again("retrain")
        state, memory = first_state(case.without, case.remaining, case.seed, case.first)
        return _train(case, state, memory, case.rounds, progress)

    def remote(self, case: Case) -> RemoteRounds:
        return RemoteRounds(case.rounds)


@dataclass(frozen=True)
class FedEraser:
    """Repeat the stored rounds with little local work, rescaled to the stored norms (FedEraser; Liu et al., 2021).

    As adapted to rankers by Wang et al. (ECIR 2024): starting from the initial weights, each remaining client learns
    from a few interactions in every stored round, and sends an update with the new direction and the norm of its stored
    update. These norms still carry a trace of the clients that left.
    """

    steps: int = 3  # n': local interactions per client in every stored round, at most

    traits: ClassVar[frozenset[Trait]] = frozenset({"history"})

    def __post_init__(self) -> None:
        _at_least_one("steps", self.steps)

    def __call__(self, case: Case, progress: Went | None = None) -> Unlearned:
        case.check_leaving("fed-eraser")
        case.plain("fed-eraser")
        history = case.recorded("fed-eraser")
        case.asked_again("fed-eraser")
        remaining = case.remaining
        shorter = replace(remaining, interactions=np.minimum(remaining.interactions, self.steps))
        learner = _Calibrated(case.federation.learner, remaining)
        federation, cohort, seed = replace(case.without, learner=learner), _Cohort(remaining), case.unlearn_seed
        state, memory = first_state(federation, remaining, case.seed, case.first)
        way = _Way(case.points, len(history), progress)
        cohort.book(case, {number: ids for number, ids, _ in history.lengths()})
        for number, ids, lengths in history.lengths():
            if cohort.takes_part(ids):
                learner.lengths[cohort.present] = lengths[cohort.rows]
                before = replace(state, round=number - 1)
                outcome = federated_round(federation, before, shorter, seed, memory, case.threads, journal=cohort)
                state, memory = outcome.state, outcome.memory
                way.interactions += outcome.interactions
            way.went(state.weights)
        return way.end(replace(state, round=case.rounds), None)

    def remote(self, case: Case) -> RemoteRounds:
        recorded = tuple((ids.copy(), lengths.copy()) for _, ids, lengths in case.recorded("fed-eraser").lengths())
        return RemoteRounds(len(recorded), steps=self.steps, recorded=recorded)


@dataclass(frozen=True)
class FedRemove:
    """Aggregate the stored updates again without those of the leaving clients (FedRemove; Tao et al., SIGIR 2025).

    No client does any work. Our reading of the paper: starting from the initial weights, every stored round is
    aggregated again from the updates of the remaining clients, followed by the server step; a stored round also stands
    for the rounds after it that were not stored. The updates of other clients started from models that the leaving
    clients had influenced, and are not changed. (The public code averages the stored models of the remaining clients,
    which removes only the last round of the others.)
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({"history", "asks nobody"})  # prose: ok

    def __call__(self, case: Case, progress: Went | None = None) -> Unlearned:
        case.plain("fed-remove")
        history = case.recorded("fed-remove")
        remaining = case.remaining
        learner, cohort = _Recorded(case.federation.learner), _Cohort(remaining)
        # The stored updates were attacked and protected already.
        federation = replace(case.federation, learner=learner, local=None, attack=None, mechanism=None)
        state, _ = first_state(federation, remaining, case.seed, case.first)
        way = _Way(case.points, case.rounds, progress)
        for stored in history:
            took_part, learner.stored = cohort.takes_part(stored.ids), stored
            for number in range(stored.round, min(stored.round + history.index.every, case.rounds + 1)):
                if took_part and number == stored.round:
                    before = replace(state, round=number - 1)
                    state = federated_round(federation, before, remaining, case.seed, journal=cohort).state
                elif took_part:
                    weights, server = federation.server(state.weights, cohort.change, state.server)
                    state = replace(state, weights=weights, server=server)
                way.went(state.weights)
        return way.end(replace(state, round=case.rounds), None)


@dataclass(frozen=True)
class FineTune:
    """Continue training from the final model without the leaving clients, so their influence fades.

    The state of the server optimizer is reset, because it contains the updates of the leaving clients.
    """

    rounds: int = 1000  # after those of the run

    def __post_init__(self) -> None:
        _at_least_one("rounds", self.rounds)

    def __call__(self, case: Case, progress: Went | None = None) -> Unlearned:
        case.check_leaving("fine-tune")
        case.asked_again("fine-tune")
        return _train(case, *_final_state(case), self.rounds, progress)

    def remote(self, case: Case) -> RemoteRounds:
        return RemoteRounds(self.rounds, continues=True)


@dataclass(frozen=True)
class GradientAscent:
    """Leaving clients reverse their updates, then the others train (projected gradient ascent; Halimi et al., 2022).

    The reference is the mean of the remaining clients' models after one local round from the final model. The leaving
    clients run separate rounds from the final model and step in the opposite direction, each time projected into a ball
    around the reference. It needs no history, but it needs the leaving clients, and assumes that they are honest.
    """

    steps: int = 10  # rounds of the leaving clients, with the same number of interactions as in the run
    radius: float = 0.2  # of the ball, relative to the norm of the reference
    rounds: int = 1000  # of the remaining clients afterwards

    def __post_init__(self) -> None:
        _at_least_one("steps", self.steps)
        _at_least_one("rounds", self.rounds)
        if not 0 < self.radius < np.inf:
            raise ValueError(f"radius must be finite and above 0 (got {self.radius}); use a number such as 0.2")

    def __call__(self, case: Case, progress: Went | None = None) -> Unlearned:
        case.check_leaving("gradient-ascent")
        case.asked_again("gradient-ascent", protected=False)
        case.plain("gradient-ascent")
        remaining = case.remaining
        leaving = case.clients.rows(np.isin(case.clients.ids, case.leaving))
        (final, memory), learner, local = _final_state(case), case.federation.learner, case.federation.local
        chance = Chance(case.unlearn_seed, 0)
        correction = NO_CORRECTION if local is None else local.correction(None, None)

        def mean(weights: Weights, clients: SimulatedClients, chance: Chance) -> Change:
            updates = learner(weights, clients, chance, correction, case.threads).updates
            return Mean()(Messages(updates, clients.interactions, clients.ids, weights))

        reference = final.weights + mean(final.weights, remaining, chance)
        farthest = self.radius * kernels.sums.length(reference)
        weights = _into_ball(final.weights, reference, farthest)
        for step in range(1, self.steps + 1):
            taught = mean(weights, leaving, chance._replace(round=step))
            weights = _into_ball(weights - taught, reference, farthest)
        spent = int(remaining.interactions.sum() + self.steps * leaving.interactions.sum())
        start = replace(final, weights=weights)
        return _train(case, start, memory, self.rounds, progress, spent)


@dataclass(frozen=True)
class Certified:
    """Train the lists that remain until the gradient is tiny, and add noise (descent-to-delete; Neel et al., ALT 2021).

    Needs a linear ranker on logged clicks with weights that are not negative, whose softmax loss with `l2` has a single
    minimum. For those who see only the released model, it is (ε, δ)-indistinguishable from one that was trained in the
    same way without the removed data. Between organisations it is not available: sites would see models without noise.
    """

    l2: float = 1e-3  # of the loss: l2 / 2 x squared norm of the model; a smaller value needs more noise
    tolerance: float = 1e-8  # norm of the gradient of the mean loss of a list, at most; includes rounding errors
    epsilon: float = 0.1  # ε of this release; a tiny tolerance makes a small one almost free
    delta: float = 1e-6  # δ of this release

    traits: ClassVar[frozenset[Trait]] = frozenset({"certified"})

    def __post_init__(self) -> None:
        for name in ("l2", "tolerance", "epsilon"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be finite and above 0 (got {getattr(self, name)})")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be above 0 and below 1 (got {self.delta})")

    def __call__(self, case: Case, progress: Went | None = None) -> Unlearned:
        case.asked_again("certified", protected=False)
        learner, remaining = case.federation.learner, case.remaining
        if not has_trait(learner, "logged") or learner.ranker.hidden:
            raise ValueError(
                "certified needs a linear ranker and the learner logged-clicks: the steps of others are not those of a "
                'convex loss, and no theorem covers them; use "retrain"'
            )
        queries = _queries_of(remaining)
        leaving = case.clients.rows(np.isin(case.clients.ids, case.leaving))
        if len(case.leaving) and np.isin(_queries_of(leaving), queries).any():
            raise ValueError(
                "clients share lists, so those of a leaving client remain with others; use a partition that assigns "
                'each list to one client, such as { name = "users" }'
            )
        loss = ListLoss(remaining.data, queries, self.l2)
        start = case.final.weights if isinstance(case.final, State) else case.final
        noise = ReleaseNoise(2 * self.tolerance / self.l2, len(start), self.epsilon, self.delta)
        model, passes = minimise(loss, start, self.tolerance)
        released = noise.release(model)
        if progress is not None:
            progress(passes, passes)
        certificate = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "sensitivity": noise.sensitivity,
            "noise": noise.deviation,
            "multiplier": noise.multiplier,
            "lists": len(queries),
        }
        state = replace(_final_state(case)[0], weights=released)
        return Unlearned(state, None, passes, passes * len(queries), ((passes, released),), certificate)


UNLEARNERS: dict[str, type[Unlearner]] = {
    "retrain": Retrain,
    "fed-eraser": FedEraser,
    "fed-remove": FedRemove,
    "fine-tune": FineTune,
    "gradient-ascent": GradientAscent,
    "certified": Certified,
}


def retraining_interactions(case: Case) -> int:
    """Local interactions of training again without the leaving clients, with full participation in every round."""
    return case.rounds * int(case.remaining.interactions.sum())


@dataclass
class _Way:
    """Collects intermediate models, counts interactions and reports progress."""

    points: int
    rounds: int
    progress: Went | None
    interactions: int = 0
    done: int = 0
    curve: list[tuple[int, Weights]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._marks = set(np.linspace(0, self.rounds, self.points + 1).round().astype(int).tolist())

    def went(self, weights: Weights) -> None:
        self.done += 1
        if self.done in self._marks or self.done == self.rounds:
            self.curve.append((self.done, weights))
        if self.progress is not None:
            self.progress(self.done, self.rounds)

    def end(self, state: State, memory: Memory) -> Unlearned:
        return Unlearned(state, memory, self.rounds, self.interactions, tuple(self.curve))


@dataclass
class _Cohort:
    """A journal in which the participants of a repeated round are those of the recorded one that remain."""

    clients: SimulatedClients  # the remaining clients
    ids: NDArray[np.int64] | None = None  # of the recorded round
    present: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # rows of `clients`
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # their rows in that round
    change: Change = field(default_factory=lambda: np.zeros(0))  # of the last repeated round
    journal: Journal | None = None  # charges the remaining clients where they send messages again

    def book(self, case: Case, recorded: Mapping[int, NDArray[np.int64]]) -> None:
        """Charge all recorded rounds, given by the ids of their clients, where there is a journal."""
        rounds = [round for round, ids in recorded.items() if self.takes_part(ids)]
        self._recorded, self.journal = recorded, case.journal(rounds)

    def takes_part(self, ids: NDArray[np.int64]) -> bool:
        """Move to a round of these clients; returns whether any remaining client participated."""
        if self.ids is None or len(ids) != len(self.ids) or (ids != self.ids).any():  # usually unchanged
            self.present = np.flatnonzero(np.isin(self.clients.ids, ids))
            self.ids, self.rows = ids, _rows_of(ids, self.clients.ids[self.present])
        return len(self.present) > 0

    def kept(self, round: int) -> JournalEntry | None:
        return None if self.journal is None else self.journal.kept(round)

    def cohort(self, round: int, draw: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
        return self.present if self.journal is None else self.journal.cohort(round, self._present_in)

    def _present_in(self, round: int) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(self.clients.ids, self._recorded[round]))

    def keep(self, round: int, change: Change) -> None:
        self.change = change
        if self.journal is not None:
            self.journal.keep(round, change)


@dataclass
class _FromHistory:
    """A learner whose updates depend on the history of a run, as subclasses define."""

    learner: Learner

    @property
    def ranker(self) -> Ranker:
        return self.learner.ranker

    def from_impressions(
        self, start: Any, impressions: Impressions, own: OwnChance, correction: LocalCorrection = NO_CORRECTION
    ) -> Learned:
        raise TypeError("a history contains all clients; a learner from history cannot run for one client")


@dataclass
class _Calibrated(_FromHistory):
    """A learner whose updates are rescaled to the norms of the stored ones, with the same weights."""

    clients: SimulatedClients  # the remaining clients, with their interactions in the run
    lengths: NDArray[np.float64] = field(init=False)  # [clients]

    def __post_init__(self) -> None:
        self.lengths = np.zeros(len(self.clients))

    @property
    def traits(self) -> Any:
        return getattr(self.learner, "traits", ())

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        if clients.ids[0] == SERVER:
            honest = np.argmin(self.clients.malicious)  # as many interactions as in the run: none of them is sent
            server = replace(clients, interactions=self.clients.interactions[honest, None])
            return self.learner(start, server, chance, correction, threads)
        learned = self.learner(start, clients, chance, correction, threads)
        rows = slice(None) if len(clients) == len(self.clients) else _rows_of(self.clients.ids, clients.ids)
        sizes = self.clients.interactions[rows]
        return learned._replace(updates=rescaled(learned.updates, self.lengths[rows]), sizes=sizes)


@dataclass
class _Recorded(_FromHistory):
    """A learner that returns the stored updates."""

    stored: Stored | None = None

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        if clients.ids[0] == SERVER:
            return self.learner(start, clients, chance, correction, threads)
        assert self.stored is not None
        updates = self.stored.updates[_rows_of(self.stored.ids, clients.ids)]
        return Learned(updates, Observed(np.zeros(len(clients))))


def rescaled(updates: Updates, lengths: NDArray[np.float64]) -> Updates:
    """Updates with the same directions and these norms, row by row; a zero update stays zero."""
    have = np.maximum(lengths_of(updates), SHORTER_THAN_ANY)
    stretched: Updates = (updates * (lengths / have)[:, None]).astype(np.float32)
    return stretched


def _train(case: Case, state: State, memory: Memory, rounds: int, progress: Went | None, spent: int = 0) -> Unlearned:
    """Plain rounds with the remaining clients."""
    way, last = _Way(case.points, rounds, progress, interactions=spent), state.round + rounds
    journal = case.journal(range(state.round + 1, last + 1))
    for outcome in simulate(
        case.without, case.remaining, last, case.seed, state=state, memory=memory, threads=case.threads, journal=journal
    ):
        state, memory = outcome.state, outcome.memory
        way.interactions += outcome.interactions
        way.went(outcome.weights)
    return way.end(state, memory)


def _final_state(case: Case) -> tuple[State, Memory]:
    """Where the remaining clients continue: the final model, their own state, and a reset server optimizer.

    Its round is later than any before, including those of an earlier fine-tuning, so no random number is used twice.
    """
    final = case.final if isinstance(case.final, State) else State(case.rounds, case.final)
    state, memory = first_state(case.without, case.remaining, case.seed)
    state = replace(state, round=max(case.rounds, final.round), weights=final.weights)
    if case.memory is not None:
        memory = case.memory[~np.isin(case.clients.ids, case.leaving)]
    if has_trait(case.federation.local, "common"):  # that of the server still contains the leaving clients
        state = replace(state, common=case.federation.local.common_of(memory))  # type: ignore[union-attr]
    return state, memory


def _rows_of(all_ids: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of these ids among all ids, in any order."""
    order = np.argsort(all_ids)
    return order[np.searchsorted(all_ids, ids, sorter=order)]


def _queries_of(clients: SimulatedClients) -> NDArray[np.int64]:
    """The queries of these clients, each once."""
    pools = [clients.queries[clients.pools[pool] : clients.pools[pool + 1]] for pool in np.unique(clients.pool)]
    return np.unique(np.concatenate(pools)).astype(np.int64)


def _into_ball(weights: Weights, centre: Weights, radius: float) -> Weights:
    away = weights - centre
    distance = kernels.sums.length(away)
    return weights if distance <= radius else centre + away * (radius / distance)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1 (got {value})")
