"""How often does a trial adopt a model that is not better?

Clients with fixed tastes always prefer the same model, each model with probability one half: the models are equal, but
searches of one client are not independent. Coordinated clients always prefer the new model.

    python -m benchmarks.trial_level
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from fedrank.engine.trial_decision import DecidedSearch, TrialRules, judge

TRIALS = 2000
SEARCHES = 3000  # decided searches of a trial, more than it needs


def searches_of(
    rng: np.random.Generator, clients: int, fixed: bool, coordinated: int = 0, wins: float = 0.5
) -> Iterator[DecidedSearch]:
    """Decided searches of clients that return; `coordinated` of them always prefer the new model."""
    taste = rng.random(clients) < wins
    for client, chance in zip(rng.integers(clients, size=SEARCHES), rng.random(SEARCHES), strict=True):
        won = client < coordinated or (bool(taste[client]) if fixed else bool(chance < wins))
        yield DecidedSearch(str(client), bool(won))


def adopted(
    rules: TrialRules, clients: int = 300, fixed: bool = True, coordinated: int = 0, wins: float = 0.5,
    trials: int = TRIALS, seed: int = 1,
) -> float:  # fmt: skip
    """Share of trials that adopt."""
    rng = np.random.default_rng(seed)
    found = [judge(searches_of(rng, clients, fixed, coordinated, wins), rules).ruling == "adopt" for _ in range(trials)]
    return float(np.mean(found))


def looked_at(order: str, trials: int = TRIALS, seed: int = 3, files: int = 8) -> float:
    """Share of trials that adopt if the decision is looked at after each file, in the order of time or in any order.

    Every look counts all searches read so far in the order of time, as if no file were missing.
    """
    rng, rules, searches, found = np.random.default_rng(seed), TrialRules.for_wins(0.6, liars=0), 1200, 0
    file = np.repeat(np.arange(files), searches // files)
    for _ in range(trials):
        clients, won = rng.integers(500, size=searches), rng.random(searches) < 0.5
        decided = [DecidedSearch(str(client), bool(wins)) for client, wins in zip(clients, won, strict=True)]
        read = np.arange(files) if order == "time" else rng.permutation(files)
        looks = (np.flatnonzero(np.isin(file, read[: count + 1])) for count in range(files))
        found += any(judge([decided[one] for one in look], rules).ruling == "adopt" for look in looks)
    return found / trials


RULES = {
    "5 searches per client, 1 liar": TrialRules.for_wins(0.6, per_client=5, liar_share=0.0),
    "5 searches per client, 5 % liars": TrialRules.for_wins(0.6, per_client=5),
    "1 search per client, 1 liar": TrialRules.for_wins(0.6, per_client=1, liar_share=0.0),
    "1 search per client, 5 % liars": TrialRules.for_wins(0.6),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS, help="simulated trials of each kind")
    trials = parser.parse_args().trials
    for name, rules in RULES.items():
        fixed = adopted(rules, trials=trials)
        few = adopted(rules, clients=60, trials=trials)
        ten = adopted(rules, coordinated=10, trials=trials)
        better = adopted(rules, fixed=False, wins=0.6, trials=min(trials, 300))
        print(
            f"{name}: equal models, fixed tastes: {fixed:.1%} of 300 clients, {few:.1%} of 60; ten coordinated clients "
            f"of 300: {ten:.1%}; a model that wins 60 %: {better:.1%}",
            flush=True,
        )
    print(
        f"equal models, a look after each of eight files: {looked_at('time', trials):.1%} read in the order of time, "
        f"{looked_at('any', trials):.1%} in any order (hence an adoption rests on searches that cannot change)"
    )


if __name__ == "__main__":
    main()
