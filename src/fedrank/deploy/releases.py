"""What a site releases in a plan besides updates: noised sums over its people (`experiments/runner/releases.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedrank.experiments.runner.releases import PersonReleases as PersonReleases

if TYPE_CHECKING:
    from fedrank.deploy.plan import Plan

PROPENSITY, QUALITY, GATE = "propensity", "quality", "gate"  # wire kinds, keys of charges, and file names
WORDS = {
    PROPENSITY: "clicks in randomly swapped pairs of positions",
    QUALITY: "measures on held-out lists, of the model and of the logged order",
    GATE: "estimated clicks on held-out lists, of the model against the logged order",
}


def releases_of(plan: Plan, measures: Sequence[str] = ()) -> PersonReleases | None:
    """What a site releases besides updates, if its policy lists these measures; None in other kinds of runs."""
    if plan.simulated or plan.forests is not None or plan.silos is not None:
        return None
    return PersonReleases(plan.experiment, len(plan.sites), tuple(measures))


def release_of(plan: Plan, kind: str, measures: Sequence[str] = ()) -> Any:
    """The release of a kind; None if the plan has none."""
    found = releases_of(plan, measures)
    return None if found is None else found.find(kind)


def release_charges(plan: Plan, measures: Sequence[str] = ()) -> dict[str, Any]:
    """The cost of each release, by kind, if a site reports these measures."""
    found = releases_of(plan, measures)
    return {} if found is None else found.charges
