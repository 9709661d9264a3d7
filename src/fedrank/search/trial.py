"""The trial of a new model: the two steps of the adoption gate on one client.

    replay: the next 30 searches of the current model are withheld from learning until they show whether the new model
            would have been significantly worse; then the model learns from them as usual. The probabilities of the
            lists that were shown are known, so nothing has to be estimated about them
    draft:  rankings of both models are interleaved, and clicks decide

The engine's order stays an opponent of every model in use: a tenth of the lists interleave both, and the model is given
up if the engine wins. Where the memory of clicks moves results, the opponent is the same model without it instead, in
one of 25 such lists; if that wins, earlier clicks no longer count. Decisions use only counts. They are computed from
the database each time, so they are correct after a crash or a deletion.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.gate import Draft, Gate, Team, team_draft
from fedrank.search.impressions import ImpressionRows, best_order
from fedrank.search.results import PAGE_SIZE, SearchError, TrialNews
from fedrank.search.store import Store, marks
from fedrank.seeds import rng_for
from fedrank.types import Impression, Scores

GATE = Gate()
EFFECTIVE = 10.0  # effective sample size below which a replay cannot refuse a model: its interval is too narrow
POSITIONS = 3  # from the top that a replay looks at; weights of longer prefixes vary too much
CLIP = 10.0  # largest weight of a recorded search
FEWEST = 30  # recorded searches below which a replay says nothing
CERTAIN = 1.96  # standard errors on either side of a replay's interval
SHARE = 0.1  # of searches whose lists are interleaved with the engine's order
MEMORY_SHARE = 0.04  # of searches in which memory moves results, interleaved with lists without it; these cost more
ENGINE, FORGETFUL = -1, -2  # as the other model of an interleaved list; the latter is the one in use without memory
OWN_SEARCHES = 200  # that own learning needs before its model is tried
WORSE = "worse than the engine"
Phase = Literal["", "replay", "draft"]


@dataclass(frozen=True)
class Replayed:
    """A recorded search, and how its list was drawn."""

    impression: Impression
    temperature: float
    keep: float  # probability with which the best document stayed first


@dataclass(frozen=True)
class Replay:
    """How the new model would have done on recorded searches: discounted clicks in the first positions of a list."""

    searches: int
    effective: float  # searches that are worth as much as these, since weights differ
    old: float  # mean of what was clicked
    new: float  # what the new model is estimated to get
    low: float  # interval of new - old
    high: float

    @property
    def refused(self) -> bool:
        """Whether the new model is worse beyond doubt."""
        return self.searches >= FEWEST and self.high < 0


def replay(recorded: Sequence[Replayed], scores: Sequence[NDArray[np.floating]]) -> Replay:
    """Estimate the new model's clicks from searches that another one answered; `scores` are the new model's.

    Clipped and self-normalised: position i counts with the probability of the list down to it under the new model,
    divided by that under the old. Clipping pulls towards what was shown, and so away from refusing.
    """
    if len(recorded) != len(scores):
        raise ValueError(
            f"{len(scores)} lists of scores for {len(recorded)} recorded searches: give the new model's scores for "
            "each search"
        )
    weights = np.zeros((len(recorded), POSITIONS))
    clicks = np.zeros((len(recorded), POSITIONS))
    for row, (one, new) in enumerate(zip(recorded, scores, strict=True)):
        shown, clicked = one.impression.shown[:POSITIONS], one.impression.clicked[:POSITIONS]
        before = prefix_probabilities(one.impression.scores, shown, one.temperature, one.keep)
        after = prefix_probabilities(new, shown, one.temperature, one.keep)
        if before[-1] <= 0:
            continue  # cannot have been drawn in this way: the record is not usable
        weights[row, : len(shown)] = np.minimum(after / before, CLIP)
        clicks[row, : len(shown)] = clicked
    discounts = 1 / np.log2(np.arange(POSITIONS) + 2)
    totals = weights.sum(axis=0)
    there = totals > 0
    estimate = np.divide((weights * clicks).sum(axis=0), totals, out=np.zeros(POSITIONS), where=there)
    mean = np.divide(totals, max(len(recorded), 1), out=np.ones(POSITIONS), where=there)
    new_gain, old_gain = float(estimate @ discounts), float(clicks.mean(axis=0) @ discounts) if len(recorded) else 0.0
    # How much each search moved the difference, to first order.
    moved = (weights / mean * (clicks - estimate)) @ discounts - (clicks @ discounts - old_gain)
    error = float(np.std(moved, ddof=1) / math.sqrt(len(moved))) if len(moved) > 1 else math.inf
    first = weights[:, 0]
    effective = float(first.sum() ** 2 / (first @ first)) if first.any() else 0.0
    difference = new_gain - old_gain
    margin = CERTAIN * error
    return Replay(len(recorded), effective, old_gain, new_gain, difference - margin, difference + margin)


def prefix_probabilities(
    scores: NDArray[np.floating], shown: NDArray[np.integer], temperature: float, keep: float
) -> NDArray[np.float64]:
    """[positions]: probability that a drawn list begins with the first 1, 2, ... of the shown documents.

    The best document stays first with probability `keep`; otherwise, and behind it, documents are drawn one after the
    other with probabilities in proportion to e^(score / temperature).
    """
    scaled = np.asarray(scores, np.float64) / temperature
    best = int(np.argmax(scaled))
    rates = np.exp(scaled - scaled[best])
    left = rates.copy()
    found = np.empty(len(shown))
    so_far = 1.0
    for position, document in enumerate(shown):
        total = left.sum()
        chance = left[document] / total if total > 0 else 0.0
        if position == 0:
            chance = keep * (document == best) + (1 - keep) * chance
        so_far *= chance
        found[position] = so_far
        left[document] = 0.0
    return found


class OtherModel(NamedTuple):
    """A model that is not in use: the one on trial, or the engine's order."""

    id: int
    phase: Phase
    weights: NDArray[np.float64]


def winners(store: Store, which: str, *values: Any) -> Counter[int]:
    """How often each team won an interleaved list, among those with a counted click; `which` is an SQL condition."""
    counts: Counter[int] = Counter()
    for teams, positions in store.rows(
        "SELECT teams, (SELECT group_concat(place) FROM clicks WHERE impression = id AND NOT bounced) FROM impressions "
        f"WHERE kind = 'interleaved' AND teams IS NOT NULL AND {which}",
        *values,
    ):
        team = np.frombuffer(teams, np.int8)
        clicked = np.isin(
            np.arange(len(team)), [int(position) for position in (positions or "").split(",") if position]
        )
        if (team[clicked] != Team.NEITHER).any():
            counts[Draft(np.arange(len(team)), team).winner(clicked)] += 1
    return counts


class Trials:
    """The trials in a store, one at a time."""

    def __init__(self, rows: ImpressionRows, clock: Callable[[], float]) -> None:
        self.rows, self.store, self.clock = rows, rows.store, clock

    @property
    def phase(self) -> Phase:
        """The phase of the current trial; "" if there is none."""
        found: Phase = self.store.setting("trial_phase", "")
        return found

    def begin(self, weights: NDArray[np.float64], origin: str, learned: int = 0) -> None:
        """Start the trial of a new model, which replaces the current one if replay and clicks show that it is better.

        `SearchClient.status().trial` reports the progress. A trial pauses while learning is off or the order is fixed.
        The memory of clicks adds the same to the scores of both models, so it decides nothing.
        """
        size = len(self.rows.features.names)
        with self.store.turn:
            if self.phase:
                raise SearchError("a model is already on trial; wait until the trial ends, or stop it")
            if weights.shape != (size,) or not np.isfinite(weights).all():
                raise SearchError(
                    f"a model for {self.rows.features.version} must have {size} finite weights (got an array of shape "
                    f"{weights.shape})"
                )
            with self.store.writing():
                id = self.rows.new_model(self.clock(), origin, weights, learned)
                self.store.set(trial=id, trial_phase="replay", trial_from=self._last())

    def knows(self, origin: str) -> bool:
        """Whether a model of this origin was added before."""
        return bool(self.store.count("SELECT count(*) FROM models WHERE origin = ?", origin))

    def on_trial(self) -> OtherModel | None:
        if not (phase := self.phase):
            return None
        id = int(self.store.setting("trial"))
        (weights,) = self.store.one("SELECT weights FROM models WHERE id = ?", id)
        return OtherModel(id, phase, np.frombuffer(weights, "<f8").copy())

    def opponent(self, number: int, remembers: bool = False) -> OtherModel | None:
        """The model that search `number` interleaves: the one on trial, or in a small share of searches the engine.

        If the memory of clicks moves results of this search, it is the model in use, to be used without memory.
        """
        model = self.on_trial()
        if model is not None:
            return model if model.phase == "draft" else None
        if rng_for(self._chance, "opponent", number).random() >= (MEMORY_SHARE if remembers else SHARE):
            return None
        weights, used = self.rows.features.start(), self.rows.model()[1]
        if remembers:
            return OtherModel(FORGETFUL, "", used)
        return None if np.array_equal(used, weights) else OtherModel(ENGINE, "", weights)

    def mixed(self, scores: Scores, new: Scores, number: int) -> Draft:
        """An interleaved list of the model in use and another one."""
        rng = rng_for(self._chance, "draft", number)
        return team_draft(best_order(scores), best_order(new), PAGE_SIZE, rng)

    @property
    def _chance(self) -> int:
        return int(self.store.setting("chance"))

    def judge(self, closed: Sequence[int]) -> None:
        """Continue with the next phase, adopt or refuse the new model, if the recorded data suffices.

        `closed` are the impressions that were closed since the last call.
        """
        compared = self.store.rows(f"SELECT DISTINCT trial FROM impressions WHERE id IN ({marks(closed)})", *closed)
        if (ENGINE,) in compared:
            self._compare_with_engine()
        if (FORGETFUL,) in compared and GATE.verdict(*self.against_memory()) == "adopt":
            with self.store.writing():
                self.store.set(remember_after=self._last())
        model = self.on_trial()
        if model is None:
            return
        if model.phase == "replay":
            ids = self._withheld_from_learning()
            if len(ids) < FEWEST:
                return
            replay = self._replay(ids, model)
            refused = replay.refused and replay.effective >= EFFECTIVE
            with self.store.writing():
                if refused:
                    self.end("refused by a replay")
                else:
                    self.store.set(trial_phase="draft")
            return
        ruling = GATE.verdict(*self._counts(model.id))
        if ruling == "undecided":
            return
        with self.store.writing():
            if ruling == "adopt":
                self.store.set(model=model.id)
            self.end("adopted" if ruling == "adopt" else "refused by clicks")

    def _compare_with_engine(self) -> None:
        """Return to the engine's order if it has won against the model in use beyond doubt."""
        used, _ = self.rows.model()
        if GATE.verdict(*self.against_engine(used)) != "adopt":
            return
        with self.store.writing():
            self.store.db.execute("UPDATE models SET fate = ? WHERE id = ?", (WORSE, used))
            start = self.rows.features.start()
            self.store.set(model=self.rows.new_model(self.clock(), "the engine's order, which won", start))
            self.store.set(own_model=0)

    def against_engine(self, model: int) -> tuple[int, int]:
        """(wins, losses) of the engine against a model while it was in use."""
        counts = winners(self.store, "trial = ? AND model = ? AND state = 'closed'", ENGINE, model)
        return counts[Team.NEW], counts[Team.OLD]

    def against_memory(self) -> tuple[int, int]:
        """(wins, losses) of lists without the memory of clicks, since it began or was given up."""
        counts = winners(
            self.store, "trial = ? AND id > ? AND state = 'closed'", FORGETFUL, self.store.setting("remember_after", 0)
        )
        return counts[Team.NEW], counts[Team.OLD]

    def try_own(self) -> None:
        """Start the trial of the model that learned from this person, once it has learned from enough searches."""
        own = self.rows.own_model()
        if own is not None and own[2] >= OWN_SEARCHES and not self.phase:
            self.begin(own[1], f"own searches until {self._last()}", own[2])

    def news(self) -> TrialNews | None:
        """The progress of the current trial, or the outcome of the last one."""
        id = self.store.setting("trial")
        if id is None:
            return None
        origin, fate = self.store.one("SELECT origin, fate FROM models WHERE id = ?", id)
        wins, losses = self._counts(int(id))
        kept = len(self._withheld_from_learning()) if self.phase == "replay" else 0
        return TrialNews(origin, self.phase or fate, kept, wins, losses)

    def _replay(self, ids: list[int], model: OtherModel) -> Replay:
        recorded, scores = [], []
        for id in ids:
            one = self.rows.get(id)
            impression = self.rows.as_impression(one)
            if impression is not None and one.raw is not None and len(one.shown):
                first = impression._replace(shown=one.shown[:10], clicked=impression.clicked[:10])
                recorded.append(Replayed(first, one.temperature, one.keep))
                scores.append(self.rows.scores(model.weights, one.raw, one.memory))
        return replay(recorded, scores)

    def _withheld_from_learning(self) -> list[int]:
        rows = self.store.rows(
            "SELECT id FROM impressions WHERE id > ? AND kind = 'pdgd' AND state IN ('closed', 'abandoned', "
            "'discarded') AND features IS NOT NULL AND length(shown) > 1 ORDER BY id",
            int(self.store.setting("trial_from", 0)),
        )
        return [id for (id,) in rows]

    def _counts(self, trial: int) -> tuple[int, int]:
        """(wins, losses) of the new model in closed lists."""
        counts = winners(self.store, "trial = ? AND state = 'closed'", trial)
        return counts[Team.NEW], counts[Team.OLD]

    def end(self, fate: str) -> None:
        """End the trial with this outcome; requires a transaction."""
        self.store.db.execute("UPDATE models SET fate = ? WHERE id = ?", (fate, self.store.setting("trial")))
        self.store.set(trial_phase="", own_model=0)  # own learning begins again at the model in use

    def _last(self) -> int:
        return self.store.count("SELECT max(id) FROM impressions")
