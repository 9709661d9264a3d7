"""The privacy budget of a site's people before a run: what earlier runs spent, and how much of a plan it covers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrank.deploy.charging import UNLIMITED
from fedrank.deploy.plan import Plan
from fedrank.deploy.releases import release_charges
from fedrank.deploy.settings import Policy, plan_prices, tree_releases
from fedrank.deploy.site_runtime import PEOPLE
from fedrank.privacy.guarantees import up
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.population import Account, LedgerTerms, Population, spent_together
from fedrank.trees.histograms import Histograms

if TYPE_CHECKING:
    from fedrank.experiments.runner.privacy import Price


def charges_of(plan: Plan) -> tuple[int, str]:
    """The number of charges of a plan without repeated requests, and what is charged; 0: nothing is protected."""
    if plan.silos is not None:
        return 0, "sketches"
    if plan.forests is None:
        return (0 if plan.experiment.mechanism is None else plan.rounds), "rounds"
    merge = plan.forests.merge
    return (tree_releases(plan) if isinstance(merge, Histograms) and merge.private != "no" else 0), "releases"


def charged_prices(plan: Plan, delta: float, measures: Sequence[str] = ()) -> list[Price]:
    """The cost of a plan alone; empty if nothing is charged, or if it cannot be computed, which the policy refuses."""
    if not charges_of(plan)[0]:
        return []
    try:
        return plan_prices(plan, delta, measures)
    except ValueError:
        if plan.forests is not None:
            raise
        return []


@dataclass(frozen=True)
class Budget:
    """The budget of the people of a site, of whom other runs have spent a part."""

    population: Population
    terms: LedgerTerms  # of this plan
    others: Sequence[Account]  # charges of all other runs
    releases: Sequence[Account]  # of this plan, besides rounds
    times: int  # maximum number of charges of one person in this plan; 0: nothing is charged
    charges: int
    unit: str  # what is charged

    @classmethod
    def of(cls, folder: Path, policy: Policy, plan: Plan, prices: Sequence[Price]) -> Budget:
        """The budget for a plan with these prices."""
        place, known = folder / PEOPLE, Population.find(folder / PEOPLE)
        others = [] if known is None else known.others(plan.digest[:32])
        people = max((len(one.participations) for one in others), default=1)
        limit = UNLIMITED if policy.largest_epsilon is None else policy.largest_epsilon
        terms = LedgerTerms(1, policy.delta, tuple(price.guarantee for price in prices), plan.digest[:32])
        times = max((price.times for price in prices), default=0)
        population = Population(place, people, policy.delta, limit)
        charges = release_charges(plan, policy.released_measures) if prices else {}
        return cls(population, terms, others, population.account_of_releases(charges), times, *charges_of(plan))

    def account(self, charges: int) -> Account:
        often = np.full(self.population.people, min(charges, self.times), dtype=np.int64)
        return Account(self.terms, often, charges, 0)

    def after(self, charges: int) -> dict[str, float]:
        return spent_together([*self.others, *self.releases, self.account(charges)], self.terms.delta)

    def spending(self) -> tuple[dict[str, float], dict[str, float], int]:
        """ε so far, ε after this run, and the number of its charges within the limit."""
        spent = spent_together(self.others, self.terms.delta)
        if not self.times:
            return spent, {}, self.charges

        def fits(some: int) -> bool:
            return max(self.after(some).values(), default=0.0) <= self.population.limit

        low, high = 0, self.charges
        if fits(high):
            return spent, self.after(high), high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return spent, self.after(self.charges), low

    def objections(self) -> list[str]:
        """Why the site would refuse a charge of this run, as `Charging` decides it."""
        others = [*self.others, *self.releases]
        refusal = self.population.refused(self.account(self.charges), others) if self.times else None
        if refusal is None:
            return []
        _, after, affordable = self.spending()
        cost = max(after.values(), default=0.0)
        if math.isinf(cost):
            return [
                f"ledger: {refusal}, because one of the runs gives none; use the same placement of the noise as the "
                "earlier runs on these people"
            ]
        if cost <= self.population.limit:
            return [f"ledger: {refusal}; use the unit of the earlier runs in the plan"]
        return [
            f"ledger: all runs together would cost ε = {up(cost)}, but policy.largest_epsilon = "
            f"{self.population.limit:g}; it covers {affordable:,} of {self.charges:,} {self.unit}, and the next one is "
            "refused"
        ]


def budget_objections(folder: Path, policy: Policy, plan: Plan) -> list[str]:
    """Why the budget of the people of a site does not cover a plan, or cannot be read."""
    try:
        return Budget.of(
            folder, policy, plan, charged_prices(plan, policy.delta, policy.released_measures)
        ).objections()
    except (LedgerError, OSError, ValueError) as problem:
        return [f"ledger: {problem}"]
