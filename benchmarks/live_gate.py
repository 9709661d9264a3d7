"""Measure how often the adoption gate admits a model, and how soon it stops a broken one.

    python -m benchmarks.live_gate [--clients 1000] [--check]

Bets: 1,000 clients, whose users prefer the new model's positions in a given share of the decided searches; alone, and
groups of ten clients whose counts are added up after every ten searches of each. Replays: 1,000 clients with 100
recorded searches each, among 30 synthetic documents of which users click the relevant ones; the new model is better,
equally good in another way, the same, noisy, random, or reversed. Only the bets have targets: a replay can only reject.

Protected: how many users must pool their results once, so at least 80 % of federations adopt a model that wins 60 %,
if noise protects each contribution at ε = 1 or 4 (δ = 1e-5). Each user has 40 decided searches. They report the numbers
of wins and losses, or only a vote. Noise is added by each of them, or distributed under secure aggregation. fedrank
does not pool counts; this shows what it would take.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from fedrank.privacy.accounting import GaussianEvent
from fedrank.privacy.guarantees import Guarantee, noise_for
from fedrank.ranking.gate import Gate, Team, team_draft
from fedrank.search.trial import Replayed, replay
from fedrank.types import Impression

# wins of the new model: maximum share that may adopt it, minimum share that must, maximum median until rejected
FIGURES = {0.2: (0.001, 0.0, 25), 0.45: (0.01, 0.0, None), 0.5: (0.05, 0.0, None), 0.6: (1.0, 0.8, None)}
CANDIDATES, SEARCHES, PLACES = 30, 100, 10
TEMPERATURE, KEEP = 0.3, 0.9
PEOPLE = (3, 10, 20, 30, 50, 100, 200, 300, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000)
DECIDED, FEDERATIONS = 40, 100  # searches per user; simulated federations
SKILL = 0.5  # correlation of the old model's scores with relevance
SURE_OF_NOISE = 3.0  # standard deviations of the noise that are assumed against the new model


def bets(gate: Gate, share: float, clients: int, rng: np.random.Generator, pooled: int = 1, every: int = 1):
    """Verdicts, and the number of decided searches per client until each."""
    verdicts, lengths = [], []
    for _ in range(clients):
        wins = losses = 0
        verdict = "undecided"
        while verdict == "undecided":
            won = int(rng.binomial(pooled * every, share))
            wins, losses = wins + won, losses + pooled * every - won
            verdict = gate.verdict(wins, losses)
        verdicts.append(verdict)
        lengths.append((wins + losses) / pooled)
    return np.array(verdicts), np.array(lengths)


def _adopts(gate: Gate, wins: float, losses: float, noise: float) -> bool:
    """Whether the gate adopts a model by two counts with noise of this standard deviation, at their worst."""
    slack = SURE_OF_NOISE * noise
    _, against = gate.evidence(wins + slack, max(losses - slack, 0.0))
    return against < -math.log(gate.harm) and gate.verdict(max(wins - slack, 0.0), losses + slack) == "adopt"


def people_needed(epsilon: float, votes: bool, summed: bool, rng: np.random.Generator) -> int:
    """The smallest number of users at which protected counts adopt a model that wins 60 %."""
    multiplier = noise_for(lambda noise: Guarantee("server", GaussianEvent(noise), ""), 1, 1e-5, epsilon)
    for people in PEOPLE:
        noise = multiplier * (1 if votes else DECIDED) * (1 if summed else math.sqrt(people))
        gate, adopted = Gate(most=people * DECIDED + 1), 0
        for _ in range(FEDERATIONS):
            each = rng.binomial(DECIDED, 0.6, size=people)
            won, lost = each.sum(), (DECIDED - each).sum()
            if votes:
                won, lost = (2 * each > DECIDED).sum(), (2 * each < DECIDED).sum()
            told = rng.normal([won, lost], noise)
            adopted += _adopts(gate, *told, noise)
        if adopted >= 0.8 * FEDERATIONS:
            return people
    raise AssertionError("no size is large enough")


def searches(rng: np.random.Generator):
    """One client's recorded searches: true relevance, and the lists of the old model."""
    for _ in range(SEARCHES):
        truth = rng.normal(size=CANDIDATES)
        scores = (SKILL * truth + np.sqrt(1 - SKILL**2) * rng.normal(size=CANDIDATES)).astype(np.float32)
        noisy = scores / TEMPERATURE + rng.gumbel(size=CANDIDATES)
        if rng.random() < KEEP:
            noisy[np.argmax(scores)] = np.inf
        shown = np.argsort(-noisy)[:PLACES]
        yield truth, Impression(np.zeros((CANDIDATES, 1), np.float32), scores, shown, click(truth, shown, rng))


def click(truth: np.ndarray, shown: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Read from the top, click by relevance, leave after a click."""
    clicked = rng.random(len(shown)) < 0.9 / (1 + np.exp(-3 * (truth[shown] - 1.2)))
    after = np.cumsum(clicked) - clicked > 0
    return clicked & ~after


def models(truth: np.ndarray, scores: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    noise = rng.normal(size=CANDIDATES)
    return {
        "better": scores + truth,
        "equally good": SKILL * truth + np.sqrt(1 - SKILL**2) * noise,
        "same": scores,
        "noisy": scores + 2 * noise,
        "random": noise,
        "turned around": -scores,
    }


def replays(clients: int, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """Share of rejections by replay, and share of decided interleaved lists that the new model wins."""
    refused: dict[str, list[bool]] = {}
    won: dict[str, list[int]] = {}
    for _ in range(clients):
        recorded = []
        scores: dict[str, list[np.ndarray]] = {}
        for truth, one in searches(rng):
            recorded.append(Replayed(one, TEMPERATURE, KEEP))
            for name, new in models(truth, one.scores, rng).items():
                scores.setdefault(name, []).append(new)
                if len(recorded) <= 3:  # per client, which is enough in total
                    draft = team_draft(np.argsort(-one.scores), np.argsort(-new), PLACES, rng)
                    winner = draft.winner(click(truth, draft.shown, rng))
                    if winner != Team.NEITHER:
                        won.setdefault(name, []).append(winner == Team.NEW)
        for name, new in scores.items():
            refused.setdefault(name, []).append(replay(recorded, new).refused)
    return {name: (float(np.mean(refused[name])), float(np.mean(won.get(name, [np.nan])))) for name in refused}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    asked = parser.parse_args()
    rng, gate, missed = np.random.default_rng(1), Gate(), []
    print(f"{asked.clients:,} clients, {gate}")
    print(f"{'new model wins':>15} {'adopted':>9} {'median until adopted':>21} {'median until rejected':>21}")
    for share, (most, least, soon) in FIGURES.items():
        verdicts, lengths = bets(gate, share, asked.clients, rng)
        adopted, refused = verdicts == "adopt", verdicts == "refuse"
        until = float(np.median(lengths[refused])) if refused.any() else float("nan")
        adopt_time = f"{np.median(lengths[adopted]):.0f}" if adopted.any() else "-"
        print(f"{share:15.0%} {adopted.mean():9.1%} {adopt_time:>21} {until:21.0f}")
        if not least <= adopted.mean() <= most or (soon is not None and until > soon):
            missed.append(f"wins {share:.0%}: adopted {adopted.mean():.1%}, median until rejected {until:.0f}")
    print("\nten clients whose counts are added up after every ten decided searches of each:")
    together = Gate(most=4000)
    for share in (*FIGURES, 0.53):
        verdicts, lengths = bets(together, share, asked.clients, rng, pooled=10, every=10)
        adopted = verdicts == "adopt"
        print(f"{share:15.0%} {adopted.mean():9.1%}   median of one client until decided {np.median(lengths):.0f}")
    print(f"\nusers who must pool {DECIDED} decided searches each, once, for a model that wins 60 %:")
    print(f"{'':>15} {'each adds noise':>18} {'secure agg.':>12}")
    for epsilon in (1.0, 4.0):
        for votes in (False, True):
            needed = [people_needed(epsilon, votes, summed, rng) for summed in (False, True)]
            print(f"ε = {epsilon:g}, {'votes' if votes else 'counts':>8} {needed[0]:18,} {needed[1]:12,}")
    print(f"\nreplay of {SEARCHES} searches: {'rejected':>9} {'interleaved wins':>20}")
    for name, (refused_share, wins) in replays(asked.clients, rng).items():
        print(f"{name:>24} {refused_share:12.1%} {wins:20.1%}")
    for line in missed:
        print(f"MISSED: {line}")
    return int(asked.check and bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
