"""What a spec would spend, what a run has spent, and the card that says so next to every model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.data.catalog import describe as describe_data
from fedrank.experiment.families import describe
from fedrank.experiment.federated_spec import Experiment
from fedrank.experiment.spec import Variant
from fedrank.federate.asynchronous import schedule
from fedrank.federate.round import Outcome, expected_cohort
from fedrank.protect.ledger import Ledger
from fedrank.protect.mechanisms import PricedMechanism
from fedrank.protect.promises import Promise, Setting, noise_for, up
from fedrank.protect.spending import BudgetSpentError, Spending

if TYPE_CHECKING:
    from rich.console import Console

HEADINGS = ("against", "protects", "ε each time", "for", "ε in total", "δ")
UNLIKELY = 1e-3  # that anybody takes part more often than was planned for
TARGETS = (1.0, 2.0, 4.0, 8.0)  # values of ε for which people ask what noise they need
NOT_COVERED = (
    "who takes part, and when, is not hidden from the server",
    "people who belong together, or one person with several devices, count as several clients",
    "online quality, rewards, traffic, how many took part in a round, quality by client and the curves of a report are "
    "measured in simulation only; "
    "a deployment must not collect them",
    "settings that were chosen by looking at results of the same people are not counted, nor are other runs on them",
)


@dataclass(frozen=True)
class Price:
    """One promise with what it costs."""

    promise: Promise
    times: int  # how often the client that pays most has paid
    each: float  # ε of one time
    total: float  # ε of all of them
    delta: float


def setting_of(experiment: Experiment, features: int | None = None) -> Setting:
    """What the promises of a concrete experiment depend on."""
    methods, clients = experiment.methods, experiment.clients
    if features is None:
        features = _features(experiment)
    searches = clients.interactions if isinstance(clients.interactions, list) else [clients.interactions]
    gathered = 0 if methods.arrival is None else methods.arrival.gathers  # clients of one secure sum
    return Setting(
        gathered or clients.count,
        methods.learner.ranker.size(features),
        clients.participation,
        tuple(searches[: clients.count]),
        methods.learner,
        methods.aggregator,
    )


def promises_of(experiment: Experiment, features: int | None = None) -> list[Promise]:
    """What a concrete experiment promises; nothing without a mechanism."""
    mechanism = experiment.methods.mechanism
    return [] if mechanism is None else mechanism.promises(setting_of(experiment, features))


def prices(promises: Sequence[Promise], participations: int, rounds: int, delta: float, lost: int = 0) -> list[Price]:
    """What the client that took part most often has paid, against each observer; `lost` rounds were done again."""
    rows = []
    for promise in promises:
        times = promise.times(participations, rounds, lost)
        rows.append(Price(promise, times, promise.epsilon(1, delta), promise.epsilon(times, delta), delta))
    return rows


def planned(experiment: Experiment) -> list[Price]:
    """Before the run: what the client pays that takes part most often, all but surely (99.9 %)."""
    from scipy.stats import binom

    clients, rounds = experiment.clients, experiment.rounds
    # A round has a whole number of clients, at least one, so that each may take part more often than is asked for.
    share = expected_cohort(clients.count, clients.participation, experiment.methods.mechanism) / clients.count
    often = rounds if share >= 1 else int(binom.isf(UNLIKELY / clients.count, rounds, share))
    if experiment.methods.arrival is not None:
        often, rounds = _arrivals(experiment)
    return prices(promises_of(experiment), often, rounds, experiment.privacy.delta)


def noise_needed(experiment: Experiment, targets: Sequence[float] = TARGETS) -> dict[str, list[float]]:
    """For those against whom something can be promised: the noise that keeps each target ε."""
    mechanism = experiment.methods.mechanism
    if mechanism is None or not hasattr(mechanism, "noise"):
        return {}
    setting, delta = setting_of(experiment), experiment.privacy.delta
    found = {}
    for against, row in _alike(planned(experiment)).items():
        if row.promise.event is None:
            continue

        def with_noise(noise: float, against: str = row.promise.against) -> Promise:
            changed: PricedMechanism = replace(mechanism, noise=noise)  # type: ignore[type-var]
            return next(each for each in changed.promises(setting) if each.against == against)

        found[against] = [noise_for(with_noise, row.times, delta, target) for target in targets]
    return found


class Spent:
    """What a run under way has spent: its ledger, where there is a mechanism."""

    def __init__(self, experiment: Experiment, promises: list[Promise], ledger: Ledger | None):
        self._experiment, self._promises, self._ledger = experiment, promises, ledger
        self._done = 0  # rounds that are safe
        privacy = experiment.privacy
        self.journal = None
        if ledger is not None:
            self.journal = Spending(ledger, promises, experiment.rounds, privacy.delta, privacy.budget)

    @classmethod
    @contextmanager
    def open(cls, experiment: Experiment, folder: Path, features: int) -> Iterator[Spent]:
        promises = promises_of(experiment, features)
        if not promises:
            yield cls(experiment, promises, None)
            return
        with Ledger.open(folder / "ledger", experiment.clients.count) as ledger:
            yield cls(experiment, promises, ledger)

    def forget(self, round: int) -> None:
        """All rounds up to this one are safe in the checkpoint."""
        self._done = round
        if self._ledger is not None:
            self._ledger.forget(round)

    def stop(self, round: int) -> None:
        """No round is under way, and all up to this one are safe: what was reserved for later ones is given back."""
        self.forget(round)
        if self._ledger is not None:
            self._ledger.give_back()

    def card(self) -> dict[str, Any]:
        """The privacy card of the model as it is now."""
        often, rounds = 0, 0
        if self._ledger is not None:
            often, rounds = int(self._ledger.participations().max()), self._ledger.rounds()
        lost = max(0, rounds - self._done)
        rows = prices(self._promises, often, rounds, self._experiment.privacy.delta, lost)
        return card(self._experiment, rows, often, rounds)


def until_spent(outcomes: Iterator[Outcome], rounds: int, budget: float | None) -> Iterator[tuple[Outcome, bool]]:
    """Rounds until the last one or until the budget ends, and whether each is the last.

    Whether a budget pays for another round is known only when that is tried, so rounds come one later then.
    """
    if budget is None:
        yield from ((outcome, outcome.round == rounds) for outcome in outcomes)
        return
    before = None
    with suppress(BudgetSpentError):
        for outcome in outcomes:
            if before is not None:
                yield before, False
            before = outcome
    if before is not None:
        yield before, True


def card(experiment: Experiment, rows: Sequence[Price], participations: int, rounds: int) -> dict[str, Any]:
    """The privacy card of a model: `privacy.json`."""
    mechanism = experiment.methods.mechanism
    facts: dict[str, Any] = {
        "format": 1,
        "mechanism": None if mechanism is None else describe(mechanism),
        "who_sees_what": "the server sees every update as it is" if mechanism is None else mechanism.sees,
        "delta": experiment.privacy.delta,
        "budget": experiment.privacy.budget,
        "rounds_charged": rounds,
        "participations_charged": participations,
        "promises": [
            {
                "against": row.promise.against,
                "epsilon": None if math.isinf(row.total) else row.total,
                "epsilon_each_time": None if math.isinf(row.each) else row.each,
                "times": row.times,
                "paid_per": row.promise.paid,
                "delta": row.delta,
                "unit": row.promise.unit,
                "neighbours": row.promise.neighbours,
                "because": row.promise.because,
            }
            for row in rows
        ],
        "not_covered": list(NOT_COVERED),
    }
    if experiment.start is not None:
        facts["not_covered"].append("what the model cost from which the run went on")
    if mechanism is not None and mechanism.hides_cohort and experiment.clients.participation < 1:
        del facts["participations_charged"]  # who took part how often is a secret of the server
        facts["not_covered"].append("ledger/ and history/ tell who took part: they stay with the server")
    if hasattr(experiment.methods.aggregator, "queries"):
        facts["not_covered"].append("the queries that the server learns from itself, which are training queries here")
    if _shares(experiment):
        facts["not_covered"].append("queries that the partition shares with everybody are not protected at all")
    if experiment.data.normalise == "global":
        facts["not_covered"].append(
            "the smallest and largest value of each feature of all clients, which are in model.json"
        )
    if experiment.methods.arrival is not None:
        facts["not_covered"].append(
            "when a client sends, or says that it could, tells when it searched; times are not protected"
        )
    if experiment.record_every:
        facts["kept_updates"] = f"every client's update of every {experiment.record_every}. round, in history/"
        facts["not_covered"].append("recorded updates in history/ are as the server received them; guard them like it")
    return facts | {"summary": summary(facts)}


def summary(card: dict[str, Any]) -> str:
    """The card as a paragraph."""
    if card["mechanism"] is None:
        return (
            "No mechanism: documents, queries and clicks stayed with their clients, but updates left them as they "
            "were, and clicks can be read from an update. Nothing can be claimed against anybody who sees one."
        )
    parts = [f"Mechanism {card['mechanism']['name']}: {card['who_sees_what']}."]
    for row in card["promises"]:
        whom = f"the {row['against']}"
        if row["epsilon"] is None:
            parts.append(f"Against {whom}: nothing can be claimed ({row['because']}).")
        else:
            often = paid_for(row["paid_per"], row["times"])
            claim = f"ε = {up(row['epsilon'])} at δ = {row['delta']:g}, paid {often}"
            parts.append(f"Against {whom}: {claim} ({row['because']}).")
    return " ".join(parts)


def show_privacy(experiment: Experiment, console: Console, targets: Sequence[float] = TARGETS) -> None:
    """Print what every variant would spend, and which noise would keep a target."""
    from rich.text import Text

    groups: dict[str, list[Variant[Experiment]]] = {}  # variants that differ in nothing that matters here are told once
    for variant in experiment.expand():
        one = variant.experiment
        what = None if one.methods.mechanism is None else (describe(one.methods.mechanism), planned(one))
        groups.setdefault(repr(what), []).append(variant)
    for group in groups.values():
        one = group[0].experiment
        mechanism = one.methods.mechanism
        if len(groups) > 1:
            more = f" and {len(group) - 3} more" if len(group) > 4 else ""
            shown = group[:3] if more else group
            console.print(Text("  ".join(variant.name for variant in shown) + more, style="bold"), soft_wrap=True)
        if mechanism is None:
            console.print(Text(summary({"mechanism": None})), soft_wrap=True)
        else:
            console.print(Text(f"{mechanism.sees[0].upper()}{mechanism.sees[1:]}."), soft_wrap=True)
            rows = planned(one)
            show_prices(rows, console)
            for line in _budget_lines(rows, one.privacy.budget):
                console.print(Text(line, style="yellow"), soft_wrap=True)
            _show_needed(one, targets, console)
        console.print()


def show_prices(rows: Sequence[Price], console: Console) -> None:
    """Print a table of what is claimed, and below it why."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right")
    alike = _alike(rows)
    for against, row in alike.items():
        if math.isinf(row.total):
            table.add_row(against, "nothing", "none", "", "none", "")
            continue
        cells = (up(row.each), paid_for(row.promise.paid, row.times), up(row.total), f"{row.delta:g}")
        table.add_row(against, f"one {row.promise.unit}", *cells)
    console.print(table)
    for against, row in alike.items():
        verb = "Nothing can be claimed" if math.isinf(row.total) else "Holds"
        console.print(Text(f"{verb} against {against}: {row.promise.because}.", style="dim"), soft_wrap=True)


def _alike(rows: Sequence[Price]) -> dict[str, Price]:
    """Rows by those against whom they hold, with those that say the same together."""
    if all(_same(row.promise, rows[0].promise) for row in rows):
        return {"everybody": rows[0]} if rows else {}
    found: dict[str, Price] = {}
    for row in rows:
        key = next((key for key, other in found.items() if _same(other.promise, row.promise)), None)
        if key is None:
            found[row.promise.against] = row
        else:
            found[f"{key}, {row.promise.against}"] = found.pop(key)
    return found


def _same(one: Promise, other: Promise) -> bool:
    return replace(one, against=other.against) == other


def _budget_lines(rows: Sequence[Price], budget: float | None) -> list[str]:
    """Where a budget will end a run before its last round."""
    lines = []
    for row in rows:
        if budget is None or row.promise.event is None or row.total <= budget:
            continue
        times = row.promise.affordable(row.delta, budget, row.times)
        lines.append(
            f"The budget of ε = {budget:g} pays for {paid_for(row.promise.paid, times)} of {row.times:,}: the run will "
            "stop by itself then."
        )
    return list(dict.fromkeys(lines))


def _show_needed(experiment: Experiment, targets: Sequence[float], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    needed = noise_needed(experiment, targets)
    if not needed:
        return
    have = getattr(experiment.methods.mechanism, "noise", math.nan)
    console.print(Text(f"Noise for a target ε in total, in multiples of clip (this spec has {have:g}):"))
    table = Table(box=None, pad_edge=False)
    table.add_column("against")
    for target in targets:
        table.add_column(f"ε = {target:g}", justify="right")
    for against, values in needed.items():
        table.add_row(against, *("none" if math.isinf(value) else _enough(value) for value in values))
    console.print(table)


def paid_for(paid: str, times: int) -> str:
    """How often a client paid, in words."""
    if paid == "once" and times <= 1:
        return "once"
    unit = "round" if paid == "round" else "time"
    return f"{times:,} {unit}{'' if times == 1 else 's'}"


def _enough(noise: float) -> str:
    """Noise, rounded up to three digits: less would not keep the target.

    >>> _enough(18.61), _enough(118.04), _enough(0.51234), _enough(2.0)
    ('18.7', '119', '0.513', '2')
    """
    unit = 10.0 ** (math.floor(math.log10(noise)) - 2)
    return f"{math.ceil(noise / unit - 1e-9) * unit:.3g}"


def _features(experiment: Experiment) -> int:
    if experiment.data.name is not None:
        return describe_data(experiment.data.name).features
    from fedrank.experiment.run import load_fold

    return int(load_fold(experiment.data, experiment.data.folds[0]).train.features.shape[1])


def _arrivals(experiment: Experiment) -> tuple[int, int]:
    """Of kind "async": how often the busiest client sends, which the log decides, and how many rounds there are."""
    from fedrank.experiment.run import clients_of

    rule = experiment.methods.arrival
    assert rule is not None
    clients = clients_of(experiment, experiment.data.folds[0], experiment.seeds[0])
    plan = schedule(clients, rule)
    return int(plan.participations(experiment.rounds, len(clients)).max()), min(experiment.rounds, plan.rounds)


def _shares(experiment: Experiment) -> bool:
    return hasattr(experiment.methods.partition, "warm_up")
