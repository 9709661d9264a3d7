"""Measure how often a trial in a search engine ends wrongly, and how soon it stops a broken model.

    python -m benchmarks.trial_errors [--organisations 1000] [--check]

Organisations have some hundred browsers, of which a few submit most searches. Users prefer the new model's positions in
a given share of the decided searches. Rulings are those of `fedrank engine trial decide`, after every search; and when
events are read once a day, 40 decided searches each. Then one browser floods: half of all decided searches are its own,
all for the new model, or all against it. Last, complete searches: two lists, a team draft, a coin, clicks; through
files; interleaved by a service of the organisation, or by an engine whose log does not contain both lists.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from fedrank.engine.team_draft import click_line, search_line, team_draft
from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_decision import DecidedSearch, Judgement, TrialRules, judge
from fedrank.engine.trial_record import TrialModel, TrialPlan, new_key, now, write_plan

# wins of the new model: maximum share that may adopt it, minimum share that must, maximum median until rejected
FIGURES = {0.2: (0.001, 0.0, 25), 0.45: (0.01, 0.0, None), 0.5: (0.05, 0.0, None), 0.6: (1.0, 0.8, None)}
BROWSERS, A_DAY = 400, 40
SKEW = 1.0  # of the power law of searches by browser
DOCUMENTS, PLACES = 30, 10
Rows = dict[float, tuple[float, float, float]]  # by the share of wins: (adopted, median until adopted, until rejected)


def searches(share: float, rng: np.random.Generator, flood: bool | None = None) -> Iterator[DecidedSearch]:
    """Yield decided searches of one organisation; `flood`: those of one browser always win or lose."""
    chances = (1 + np.arange(BROWSERS)) ** -SKEW
    chances /= chances.sum()
    while True:
        clients = rng.choice(BROWSERS, size=500, p=chances)
        for client, won in zip(clients, rng.random(500) < share, strict=True):
            if flood is not None and rng.random() < 0.5:
                yield DecidedSearch("flood", flood)
            yield DecidedSearch(str(client), bool(won))


def bounded(source: Iterator[DecidedSearch], rules: TrialRules, every: int = 1) -> tuple[Judgement, int]:
    """The ruling and its number of decided searches, if events are read in batches of `every`."""
    taken = list(islice(source, 100))
    longest = 60 * rules.gate.most  # a trial whose browsers are all at their cap cannot end
    while (found := judge(taken, rules)).ruling == "undecided" and len(taken) < longest:
        taken += islice(source, len(taken))
    came_in = found.counted + found.beyond
    return found, found.counted if every == 1 else -(-came_in // every) * every


def table(rules: TrialRules, organisations: int, how: Callable[[float], Iterator[DecidedSearch]], every: int) -> Rows:
    """Print and return how trials end, by the share of wins."""
    rows: Rows = {}
    print(f"{'new model wins':>15} {'adopted':>9} {'median until adopted':>21} {'median until rejected':>21}")
    for share in FIGURES:
        ended = [bounded(how(share), rules, every) for _ in range(organisations)]
        lengths = np.array([length for _, length in ended])
        adopted = np.array([found.ruling == "adopt" for found, _ in ended])
        medians = [float(np.median(lengths[which])) if which.any() else np.nan for which in (adopted, ~adopted)]
        rows[share] = (float(adopted.mean()), medians[0], medians[1])
        print(f"{share:15.0%} {adopted.mean():9.1%} {medians[0]:21.0f} {medians[1]:21.0f}")
    return rows


def through_files(organisations: int, rng: np.random.Generator, to: str) -> dict[str, tuple[float, float, float]]:
    """Shares adopted and won, and decided searches until a ruling, with more, equal or less skill, through files."""
    found = {}
    for name, skill in (("better", 0.85), ("equal", 0.6), ("worse", 0.3)):
        ended: list[Judgement] = []
        won: list[bool] = []  # of all decided searches, including those after a ruling, to avoid a stopping bias
        for _ in range(organisations):
            with tempfile.TemporaryDirectory() as folder:
                trial = organisation(Path(folder), skill, rng, to)
                count = trial.count()
                ended.append(trial.judged(count))
                won += [one.won for one in count.decided]
        adopted = np.mean([one.ruling == "adopt" for one in ended])
        found[name] = float(adopted), float(np.mean(won)), float(np.median([one.counted for one in ended]))
    return found


def organisation(folder: Path, skill: float, rng: np.random.Generator, to: str) -> EngineTrial:
    """One organisation's trial over 3,000 searches in three days."""
    models = TrialModel("old", "old.json", "0" * 64), TrialModel("new", "new.json", "1" * 64)
    plan = TrialPlan("t", to, *models, TrialRules(), now(), "somebody", "", new_key(), PLACES, "c.json")
    write_plan(plan, folder)
    trial = EngineTrial(folder)
    for day in range(3):
        lines = []
        for number in range(1000):
            search, client, time = f"{day}-{number}", f"b{rng.integers(BROWSERS)}", 1e9 + 86_400 * day + 80 * number
            truth = rng.normal(size=DOCUMENTS)
            found = 2 * truth + rng.normal(size=DOCUMENTS)  # shared by both models, so they mostly agree
            old, new = (
                [f"d{one}" for one in np.argsort(-(found + weight * truth + rng.normal(size=DOCUMENTS)))]
                for weight in (0.6, 5 * (skill - 0.6) + 0.6)
            )
            if to == "own":
                mixed = team_draft(old, new, PLACES, plan.key, search)
                lines.append(search_line(mixed, old, new, search, client, time, plan.id))
            else:
                mixed = engine_draft(old, new, rng)
                row = {"search": search, "client": client, "time": time, "shown": [one for one, _ in mixed]}
                lines.append(json.dumps(row | {"teams": [team for _, team in mixed]}))
            for document, _ in mixed:
                if rng.random() < 0.9 / (1 + np.exp(-3 * (truth[int(document[1:])] - 1.2))):
                    lines.append(click_line(search, client, time + 5, document))
                    break
        events = folder / f"day-{day}.jsonl"
        events.write_text("\n".join(lines) + "\n")
        trial.read([events], complete=day == 2)
    return trial


def engine_draft(old: list[str], new: list[str], rng: np.random.Generator) -> list[tuple[str, str]]:
    """Team draft as in engines: a document that both would choose goes to one of them, by the coin."""
    mixed: dict[str, str] = {}
    while len(mixed) < PLACES:
        for team, order in sorted((("old", old), ("new", new)), reverse=bool(rng.integers(2))):
            if len(mixed) < PLACES:
                mixed[next(one for one in order if one not in mixed)] = team
    return list(mixed.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--organisations", type=int, default=1000)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    asked = parser.parse_args()
    rng, rules, missed = np.random.default_rng(1), TrialRules(), []
    settings = json.dumps({"gate": vars(rules.gate), "per_client": rules.per_client, "liars": rules.liars})
    print(f"{asked.organisations:,} organisations, {settings}")
    for title, flood, every in (
        ("after every search", None, 1),
        ("read once a day", None, A_DAY),
        ("one browser floods for the new model", True, 1),
        ("one browser floods against it", False, 1),
    ):
        print(f"\n{title}:")
        rows = table(rules, asked.organisations, partial(searches, rng=rng, flood=flood), every)
        for share, (most, least, soon) in FIGURES.items():
            adopted, _, until = rows[share]
            late = soon is not None and until > (soon if every == 1 else every)
            if adopted > most or late or (adopted < least and flood is not False):
                missed.append(f"{title}, wins {share:.0%}: adopted {adopted:.1%}, median until rejected {until:.0f}")
    for to, title in (("own", "the organisation's service"), ("solr", "an engine that does not log both lists")):
        print(f"\nthrough files, 3,000 searches in three days, interleaved by {title}:")
        for name, (adopted, wins, decided) in through_files(max(asked.organisations // 50, 1), rng, to).items():
            print(f"{name:>15}: adopted {adopted:.0%}, after a median of {decided:.0f} decided; won {wins:.1%} of all")
    for line in missed:
        print(f"MISSED: {line}")
    return int(asked.check and bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
