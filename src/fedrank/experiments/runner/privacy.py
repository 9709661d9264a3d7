"""The planned ε of a spec, the spent ε of a run, and the privacy card of every model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.catalog import describe as describe_data
from fedrank.data.logs import not_persons
from fedrank.experiments.runner.data import clients_of, fold_without_data, load_fold
from fedrank.experiments.runner.folder import Card, Paid, paid_for
from fedrank.experiments.runner.not_covered import not_covered_between_sites
from fedrank.experiments.runner.recorded_charges import check_recorded
from fedrank.experiments.runner.releases import PersonReleases
from fedrank.experiments.runner.runs import Run, ledgers_of_run
from fedrank.experiments.runner.writer import Stopped, Task
from fedrank.experiments.spec.experiment import to_toml
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.federated.asynchronous import schedule
from fedrank.federated.round import Outcome
from fedrank.federated.server import method_name
from fedrank.federated.traits import from_outside
from fedrank.privacy.guarantees import OBSERVERS, Guarantee, Setting, cost_together, noise_for, up
from fedrank.privacy.ledger import Ledger, LedgerError
from fedrank.privacy.mechanisms import PricedMechanism
from fedrank.privacy.population import (
    FOLDER,
    LEDGER,
    PEOPLE,
    SIMULATED,
    Account,
    BudgetSpentError,
    LedgerTerms,
    Population,
    forgotten,
    open_ledger,
    spent_together,
    totals,
)
from fedrank.privacy.spending import SharedSpending, Spending
from fedrank.ranking.baseline_ranking import GIVEN
from fedrank.ranking.model import load_weights, origin
from fedrank.ranking.propensity import IN_THE_CLEAR, SHARED
from fedrank.types import has_trait

UNPROTECTED = (
    "No mechanism: clients send exact updates, from which clicks can be reconstructed. No privacy guarantee "
    "against an observer who sees an update."
)
TARGETS = (1.0, 2.0, 4.0, 8.0)  # values of ε for which the required noise is shown
NOT_COVERED = (
    "which clients participate, and when, is not hidden from the server",
    "people who belong together, or one person with several devices, count as several clients",
    "online quality, rewards, traffic, the number of clients per round, quality by client and the curves of a report "
    "are measured in simulation only; a deployment must not collect them",
    "settings chosen by results on the same people are not counted, nor are runs on them outside their population",
)


@dataclass(frozen=True)
class Price:
    """One guarantee with its cost."""

    guarantee: Guarantee
    times: int  # payments of the client that pays most
    each: float  # ε of one payment
    total: float  # ε of all payments
    delta: float

    @classmethod
    def of_each(
        cls, promises: Sequence[Guarantee], participations: int, rounds: int, delta: float, lost: int = 0
    ) -> list[Price]:
        """What the client that participated most often has paid, against each observer; `lost` rounds were repeated."""
        rows = []
        for guarantee in promises:
            times = guarantee.times(participations, rounds, lost)
            rows.append(cls(guarantee, times, guarantee.epsilon(1, delta), guarantee.epsilon(times, delta), delta))
        return rows

    def with_releases(self, releases: Iterable[Sequence[Guarantee]]) -> Price:
        """The same with a total that includes other releases on the same people, once each."""
        more = [(one, 1) for each in releases for one in each if one.against == self.guarantee.against]
        if not more:
            return self
        return replace(self, total=cost_together([(self.guarantee, self.times), *more], self.delta))

    @property
    def paid(self) -> Paid:
        """The entry of a card, with None instead of infinity."""
        guarantee = self.guarantee
        return Paid(
            against=guarantee.against,
            epsilon=None if math.isinf(self.total) else self.total,
            epsilon_each_time=None if math.isinf(self.each) else self.each,
            times=self.times,
            paid_per=guarantee.paid,
            delta=self.delta,
            unit=guarantee.unit,
            neighbours=guarantee.neighbours,
            because=guarantee.because,
        )


def setting_of(experiment: FederatedExperiment, features: int | None = None) -> Setting:
    """The settings on which the guarantees of an experiment depend."""
    features = _features(experiment) if features is None else features
    return experiment.setting(features)


def guarantees_of(experiment: FederatedExperiment, features: int | None = None) -> list[Guarantee]:
    """The guarantees of an experiment; none without a mechanism."""
    if experiment.mechanism is None:
        return []
    return experiment.guarantees(_features(experiment) if features is None else features)


def planned(experiment: FederatedExperiment) -> list[Price]:
    """Before the run: the cost of the client that participates most often, with probability 99.9 %.

    If only sites have data, it includes the sums over people that they release besides updates.
    """
    often, rounds = _most_often(experiment, experiment.rounds)
    rows = Price.of_each(guarantees_of(experiment), often, rounds, experiment.privacy.delta)
    releases = _releases(experiment)
    return [one.with_releases(releases) for one in rows]


def _releases(experiment: FederatedExperiment) -> list[Sequence[Guarantee]]:
    """The cost of each sum that sites release besides updates, if only they have data."""
    if not experiment.data.at_sites:
        return []
    return list(PersonReleases(experiment, experiment.clients.count, tuple(experiment.measures)).charges.values())


def _most_often(experiment: FederatedExperiment, rounds: int) -> tuple[int, int]:
    """Upper bound (99.9 %) on the participations of one client in this many rounds, and the number of rounds."""
    if experiment.arrival is not None:
        return _arrivals(replace(experiment, rounds=rounds))
    return experiment.most_participations(rounds), rounds


@dataclass(frozen=True)
class BudgetForecast:
    """The cost of a run for a named population, next to what it has already spent."""

    name: str
    limit: float
    delta: float
    runs: int  # so far
    spent: dict[str, float]  # observer -> ε of all runs so far; inf: no guarantee
    alone: dict[str, float]  # of this run
    after: dict[str, float]  # of all runs including this one, if the same client pays most in each
    rounds: int  # of this run
    paid: int  # rounds that the limit allows
    refusal: str | None  # why not all rounds are allowed

    @property
    def left(self) -> dict[str, float]:
        """The ε that can still be spent. Runs are composed, so a run may cost more alone than it adds."""
        return {against: max(0.0, self.limit - self.spent.get(against, 0.0)) for against in self.after}


def budget_forecast(experiment: FederatedExperiment, home: Path) -> BudgetForecast | None:
    """Forecast for a run on a population with ledgers below `home`; None for simulated clients."""
    budget, delta, folder = experiment.privacy.budget, experiment.privacy.delta, home / FOLDER / experiment.population
    if experiment.population == SIMULATED or budget is None:
        return None
    people = Population(folder, experiment.charged, delta, budget)
    check_recorded(home.absolute(), experiment.population)
    if Population.find(folder) is not None:  # a forecast must not create it
        people = Population.open(folder, people.people, delta, budget)
    others = people.accounts()
    terms = LedgerTerms(people.people, delta, tuple(guarantees_of(experiment)))

    def account(rounds: int) -> Account:
        often, done = _most_often(experiment, rounds)
        return Account(terms, np.full(people.people, often), done, 0)

    whole = account(experiment.rounds)
    refusal = people.refused(whole, others)
    paid, too_many = (0, whole.rounds) if refusal else (whole.rounds, whole.rounds + 1)
    while too_many - paid > 1:
        middle = (paid + too_many) // 2
        paid, too_many = (paid, middle) if people.refused(account(middle), others) else (middle, too_many)
    return BudgetForecast(
        name=people.name,
        limit=budget,
        delta=delta,
        runs=len(others),
        spent=spent_together(others, delta),
        alone=spent_together([whole], delta),
        after=spent_together([*others, whole], delta),
        rounds=whole.rounds,
        paid=paid,
        refusal=refusal,
    )


def noise_needed(experiment: FederatedExperiment, targets: Sequence[float] = TARGETS) -> dict[str, list[float]]:
    """The noise that achieves each target ε, by observer against whom a guarantee is possible."""
    mechanism = experiment.mechanism
    if mechanism is None or not hasattr(mechanism, "noise"):
        return {}
    setting, delta, releases = setting_of(experiment), experiment.privacy.delta, _releases(experiment)
    found = {}
    for against, row in prices_by_observer(planned(experiment)).items():
        if row.guarantee.event is None:
            continue

        def with_noise(noise: float, against: str = row.guarantee.against) -> Guarantee:
            changed: PricedMechanism = replace(mechanism, noise=noise)  # type: ignore[type-var]
            return next(each for each in changed.guarantees(setting) if each.against == against)

        more = [(one, 1) for each in releases for one in each if one.against == row.guarantee.against]
        found[against] = [noise_for(with_noise, row.times, delta, target, more) for target in targets]
    return found


class RunSpending:
    """What an active run has spent: its ledger, if there is a mechanism, and that of its population."""

    def __init__(
        self,
        experiment: FederatedExperiment,
        promises: list[Guarantee],
        ledger: Ledger | None,
        journal: Spending | None,
        population: Population | None = None,
    ) -> None:
        self._experiment, self._promises, self._ledger = experiment, promises, ledger
        self.journal, self._population = journal, population
        self._done = 0  # checkpointed rounds

    @classmethod
    @contextmanager
    def open(cls, experiment: FederatedExperiment, task: Task, features: int) -> Iterator[RunSpending]:
        promises = guarantees_of(experiment, features)
        if not promises:
            yield cls(experiment, promises, None, None)
            return
        privacy, rounds = experiment.privacy, experiment.rounds
        spec = hashlib.sha256(to_toml(task.experiment).encode()).hexdigest()
        terms = LedgerTerms(experiment.charged, privacy.delta, tuple(promises), spec)
        dealt = experiment.clients.schedule == "dealt"
        path, population = task.folder / LEDGER, None
        if experiment.population == SIMULATED:
            _check_is_in_no_population(path)
        else:
            assert privacy.budget is not None
            folder = task.home / FOLDER / experiment.population
            if Population.find(folder) is None:  # a missing population is not created again
                check_recorded(task.home, experiment.population)
            population = Population.open(folder, terms.people, privacy.delta, privacy.budget)
            path = folder / task.folder.absolute().relative_to(task.home) / LEDGER
        with ExitStack() as opened:
            # A ledger that is set aside is moved; a concurrent total of all charges would miss it.
            with nullcontext() if population is None else population.deciding():
                if population is not None:
                    check_recorded(task.home, population.name)
                ledger = opened.enter_context(open_ledger(path, terms, hashed=population is not None))
            if population is None:
                journal = Spending(ledger, promises, rounds, privacy.delta, privacy.budget, dealt)
            else:
                journal = SharedSpending(ledger, terms, rounds, population, path, dealt)
            try:
                yield cls(experiment, promises, ledger, journal, population)
            except Stopped:
                ledger.give_back()
                raise

    def forget(self, round: int) -> None:
        """Record that all rounds up to this one are in the checkpoint."""
        self._done = round
        if self._ledger is not None:
            self._ledger.forget(round)

    def stop(self, round: int) -> None:
        """Release reserved later rounds: no round is in progress, and all up to this one are saved."""
        self.forget(round)
        if self._ledger is not None:
            self._ledger.give_back()

    def card(self) -> Card:
        """The privacy card of the current model."""
        often, rounds = 0, 0
        if self._ledger is not None:
            often, rounds = int(self._ledger.participations().max()), self._ledger.rounds()
        lost = max(0, rounds - self._done)
        rows = Price.of_each(self._promises, often, rounds, self._experiment.privacy.delta, lost)
        return replace(card(self._experiment, rows, often, rounds), population=self._together())

    def _together(self) -> dict[str, Any] | None:
        """The total spending of all runs on the same population; None for simulated clients."""
        return None if self._population is None else population_totals(self._population)


def population_totals(people: Population) -> dict[str, Any]:
    """The total spending of all runs on the same population, for a card."""
    accounts = people.accounts()
    return {
        "name": people.name,
        "limit": people.limit,
        "runs": len(accounts),
        **totals(accounts),
        "forgotten": forgotten(people.folder),
    }


def _check_is_in_no_population(ledger: Path) -> None:
    """Raise an error if the ledger of a run on simulated clients is in a population's folder."""
    for above in ledger.absolute().parents:
        if above.parent.name == FOLDER and (above / PEOPLE).exists():
            raise ValueError(
                f"{ledger.parent} is in the folder of population {above.name!r}, so this run on simulated clients "
                "would be counted as a run on that population; choose another --out or --name"
            )


def together(runs: Iterable[Run]) -> str | None:
    """What runs on simulated clients, each priced alone, would cost real people together; None for a single run."""
    try:
        accounts = [found for run in runs for ledger in ledgers_of_run(run.path) if (found := Account.read(ledger))]
    except LedgerError as problem:
        return f"The total cost of all runs for real people is not known: {problem}"
    if len(accounts) < 2:
        return None
    delta = min(account.terms.delta for account in accounts)
    groups = [[one for one in accounts if one.terms.people == n] for n in {one.terms.people for one in accounts}]
    spent = [spent_together(group, delta) for group in groups]
    most = {
        against: max(each.get(against, 0.0) for each in spent)
        for against in OBSERVERS
        if any(against in each for each in spent)
    }
    costs: dict[str, list[str]] = {}
    for against, cost in most.items():
        costs.setdefault("an infinite ε" if math.isinf(cost) else f"ε = {up(cost)}", []).append(against)
    costs_text = "; ".join(f"{cost} against {', '.join(observers)}" for cost, observers in costs.items())
    return (
        f"Clients are simulated, and each run is priced separately. For real people, all {len(accounts):,} runs "
        f"together would cost {costs_text or 'nothing'}, at δ = {delta:g}; tuning and other experiments would add to "
        "that"
    )


def until_spent(outcomes: Iterator[Outcome], rounds: int, budget: float | None) -> Iterator[tuple[Outcome, bool]]:
    """Rounds until the last one or the end of the budget, with a flag for the last.

    Whether a budget allows another round is known only after trying, so with a budget rounds are delayed by one.
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


NOT_VERIFIED = "not verified"  # the beginning of a line of a card


def card(
    experiment: FederatedExperiment, rows: Sequence[Price], participations: int, rounds: int, simulated: bool = True
) -> Card:
    """The privacy card of a model, without its summary."""
    mechanism = experiment.mechanism
    not_covered = list(NOT_COVERED)
    if from_outside(mechanism):
        not_covered.append(f"{NOT_VERIFIED}: whether {method_name(mechanism)} achieves what it claims")
    if experiment.start not in (None, GIVEN):
        not_covered.append(f"the cost of the initial model: {_origin_of_start(str(experiment.start))}")
    secret = has_trait(mechanism, "hides cohort") and experiment.clients.participation < 1
    if secret:
        not_covered.append("ledger/ and history/ reveal which clients participated: they must stay at the server")
    if hasattr(experiment.aggregator, "queries"):
        not_covered.append("the queries on which the server trains itself, which are training queries here")
    if hasattr(experiment.clients.partition, "warm_up"):
        not_covered.append("queries that the partition shares with all clients are not protected")
    if experiment.data.normalise == "global":
        not_covered.append("the smallest and largest value of each feature over all clients, which are in model.json")
    if experiment.data.propensities == SHARED:
        not_covered.append(IN_THE_CLEAR)
    if (line := experiment.uncovered_propensities) is not None:
        not_covered.append(line)
    if experiment.arrival is not None:
        not_covered.append(
            "the time at which a client sends an update reveals when it searched; times are not protected"
        )
    not_covered += not_persons(experiment.data.log)
    recorded = None
    if experiment.record_every:
        recorded = f"the updates of all clients, recorded every {experiment.record_every} rounds, in history/"
        not_covered.append("recorded updates in history/ are as sensitive as those the server received; protect them")
    made = Card(
        mechanism=None if mechanism is None else describe(mechanism),
        who_sees_what="the server sees every update as it is" if mechanism is None else mechanism.sees,
        delta=experiment.privacy.delta,
        budget=experiment.privacy.budget,
        rounds_charged=rounds,
        participations_charged=None if secret else participations,  # participation is known to the server only
        promises=tuple(row.paid for row in rows),
        not_covered=tuple(not_covered) if simulated else not_covered_between_sites(experiment),
        kept_updates=recorded,
        clients=experiment.clients.count,
    )
    return replace(made, summary=summary(made))


def _origin_of_start(start: str) -> str:
    """Where the initial model of a run comes from, and whether it has a privacy card."""
    try:
        model = load_weights(start)
    except (OSError, ValueError):
        return "its file is no longer here, so its origin is not known"
    folder = Path(start) if Path(start).is_dir() else Path(start).parent
    own = "its own privacy card" if (folder / Card.FILE).is_file() else "no privacy card beside it"
    return f"{origin(model.notes) or f'{Path(start).name}, which does not name its origin'}; {own}"


def summary(card: Card) -> str:
    """The card as a paragraph."""
    if card.mechanism is None:
        return UNPROTECTED
    parts = [f"Mechanism {card.mechanism['name']}: {card.who_sees_what}."]
    if any(line.startswith(NOT_VERIFIED) for line in card.not_covered):
        parts.insert(
            0, "Not verified: the mechanism is not part of fedrank; the following guarantees are claims of its author."
        )
    for row in card.promises:
        if row.epsilon is None:
            parts.append(f"Against the {row.against}: no privacy guarantee ({row.because}).")
        else:
            claim = f"ε = {up(row.epsilon)} at δ = {row.delta:g}, paid {row.often}"
            parts.append(f"Against the {row.against}: {claim} ({row.because}).")
    return " ".join(parts)


def prices_by_observer(rows: Sequence[Price]) -> dict[str, Price]:
    """Rows by observer, with equal rows combined."""
    if all(_same(row.guarantee, rows[0].guarantee) for row in rows):
        return {"every observer": rows[0]} if rows else {}
    found: dict[str, Price] = {}
    for row in rows:
        key = next((key for key, other in found.items() if _same(other.guarantee, row.guarantee)), None)
        if key is None:
            found[row.guarantee.against] = row
        else:
            found[f"{key}, {row.guarantee.against}"] = found.pop(key)
    return found


def _same(one: Guarantee, other: Guarantee) -> bool:
    return replace(one, against=other.against) == other


def budget_lines(rows: Sequence[Price], budget: float | None) -> list[str]:
    """Sentences about budgets that end a run before its last round."""
    lines = []
    for row in rows:
        if budget is None or row.guarantee.event is None or row.total <= budget:
            continue
        times = row.guarantee.affordable(row.delta, budget, row.times)
        lines.append(
            f"The budget of ε = {budget:g} allows {paid_for(row.guarantee.paid, times)} of {row.times:,}; the run "
            "will then stop."
        )
    return list(dict.fromkeys(lines))


def enough(noise: float) -> str:
    """Noise, rounded up to three digits so the target is still met.

    >>> enough(18.61), enough(118.04), enough(0.51234), enough(2.0)
    ('18.7', '119', '0.513', '2')
    """
    unit = 10.0 ** (math.floor(math.log10(noise)) - 2)
    return f"{math.ceil(noise / unit - 1e-9) * unit:.3g}"


def _features(experiment: FederatedExperiment) -> int:
    if experiment.data.at_sites:
        return int(fold_without_data(experiment.data).train.features.shape[1])
    if experiment.data.name is not None:
        return describe_data(experiment.data.name).features
    return int(load_fold(experiment.data, experiment.data.folds[0]).train.features.shape[1])


def _arrivals(experiment: FederatedExperiment) -> tuple[int, int]:
    """For kind "async": the updates of the busiest client, which the log determines, and the number of rounds."""
    assert experiment.arrival is not None
    clients = clients_of(experiment, experiment.data.folds[0], experiment.seeds[0])
    plan = schedule(clients, experiment.arrival)
    return int(plan.participations(experiment.rounds, len(clients)).max()), min(experiment.rounds, plan.rounds)
