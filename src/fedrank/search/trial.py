"""The trial of a new model: the two steps of the adoption gate on one client.

    replay: the next 30 searches of the current model are withheld from learning until they show whether the new model
            would have been significantly worse; then the model learns from them as usual
    draft:  rankings of both models are interleaved, and clicks decide

The decision uses only counts. They are computed from the database each time, so they are correct after a crash or a
deletion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.gate import Draft, Gate, Team, team_draft
from fedrank.search.impressions import ImpressionRows, best_order, scores_of
from fedrank.search.replay import FEWEST, Replay, Replayed, replay
from fedrank.search.results import SearchError, TrialNews
from fedrank.seeds import rng_for

GATE = Gate()
EFFECTIVE = 10.0  # effective sample size below which a replay cannot refuse a model: its interval is too narrow
Phase = Literal["", "replay", "draft"]


class OnTrial(NamedTuple):
    """The model on trial."""

    id: int
    phase: Phase
    weights: NDArray[np.float64]


class Trials:
    """The trials in a store, one at a time."""

    def __init__(self, rows: ImpressionRows, clock: Callable[[], float]) -> None:
        self.rows, self.store, self.clock = rows, rows.store, clock

    @property
    def phase(self) -> Phase:
        """The phase of the current trial; "" if there is none."""
        found: Phase = self.store.setting("trial_phase", "")
        return found

    def begin(self, weights: NDArray[np.float64], origin: str) -> None:
        """Start the trial of a new model, which replaces the current one if replay and clicks show that it is better.

        `SearchClient.status().trial` reports the progress. A trial pauses while learning is off or the order is fixed.
        """
        size = len(self.rows.features.names)
        with self.store.turn:
            if self.phase:
                raise SearchError("a model is already on trial; wait until the trial ends, or stop it")
            used, _ = self.rows.model()
            if weights.shape != (size,) or not np.isfinite(weights).all():
                raise SearchError(
                    f"a model for {self.rows.features.version} must have {size} finite weights (got an array of shape "
                    f"{weights.shape})"
                )
            with self.store.writing():
                id = self.rows.new_model(self.clock(), origin, weights)
                self.store.set(model=used, trial=id, trial_phase="replay", trial_from=self._last())

    def knows(self, origin: str) -> bool:
        """Whether a model of this origin was added before."""
        return bool(self.store.count("SELECT count(*) FROM models WHERE origin = ?", origin))

    def stop(self, fate: str = "stopped") -> None:
        """End a trial without adopting the new model."""
        with self.store.writing():
            self.end(fate)

    def on_trial(self) -> OnTrial | None:
        if not (phase := self.phase):
            return None
        id = int(self.store.setting("trial"))
        (weights,) = self.store.one("SELECT weights FROM models WHERE id = ?", id)
        return OnTrial(id, phase, np.frombuffer(weights, "<f8").copy())

    def mixed(
        self, model: OnTrial, features: NDArray[np.float32], scores: NDArray[np.float32], number: int, most: int
    ) -> Draft:
        """An interleaved list of both models."""
        new = best_order(scores_of(model.weights.astype(np.float32), features))
        rng = rng_for(int(self.store.setting("chance")), "draft", number)
        return team_draft(best_order(scores), new, most, rng)

    def judge(self) -> None:
        """Continue with the next phase, adopt or refuse the new model, if the recorded data suffices."""
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

    def news(self) -> TrialNews | None:
        """The progress of the current trial, or the outcome of the last one."""
        id = self.store.setting("trial")
        if id is None:
            return None
        origin, fate = self.store.one("SELECT origin, fate FROM models WHERE id = ?", id)
        wins, losses = self._counts(int(id))
        return TrialNews(
            origin,
            self.phase or fate,
            len(self._withheld_from_learning()) if self.phase == "replay" else 0,
            wins,
            losses,
        )

    def _replay(self, ids: list[int], model: OnTrial) -> Replay:
        recorded, scores = [], []
        for id in ids:
            one = self.rows.get(id)
            impression = self.rows.as_impression(one)
            if impression is not None and len(one.shown):
                first = impression._replace(shown=one.shown[:10], clicked=impression.clicked[:10])
                recorded.append(Replayed(first, one.temperature, one.keep))
                scores.append(scores_of(model.weights.astype(np.float32), impression.features))
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
        wins = losses = 0
        for (id,) in self.store.rows("SELECT id FROM impressions WHERE trial = ? AND state = 'closed'", trial):
            one = self.rows.get(id)
            assert one.teams is not None
            clicked = np.zeros(len(one.teams), bool)
            clicked[[c.position for c in self.rows.clicks(id) if not c.bounced and c.position < len(clicked)]] = True
            winner = Draft(one.shown, one.teams).winner(clicked)
            wins, losses = wins + (winner == Team.NEW), losses + (winner == Team.OLD)
        return wins, losses

    def end(self, fate: str) -> None:
        """End the trial with this outcome; requires a transaction."""
        self.store.db.execute("UPDATE models SET fate = ? WHERE id = ?", (fate, self.store.setting("trial")))
        self.store.set(trial_phase="")

    def _last(self) -> int:
        return self.store.count("SELECT max(id) FROM impressions")
