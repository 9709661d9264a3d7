"""What no ε covers in a run between sites: one list for `deploy show`, the privacy card and the impact assessment."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from fedrank.data.logs import BROWSERS
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.privacy.mechanisms import SecureAggregation
from fedrank.types import has_trait

PARTICIPATION = (
    "that a site participates, in which rounds, when it answers and how many bytes it sends, which sites.csv and "
    "received.csv of the coordinator contain",
    "that a site refuses a request, with a reason that has no data",
)
ALWAYS_OPEN = (
    "settings, or an initial model, that were chosen by looking at results of the same people",
    "runs on the same people elsewhere, which are not in the ledger of a site",
)


def not_covered_between_sites(
    question: Experiment,
    *,
    logs: bool | None = None,
    browsers: Collection[str] | None = None,
    plain: Collection[str] = (),
) -> tuple[str, ...]:
    """What the stated ε does not cover, from a spec and what is known of sites.

    `logs`: whether a site learns from a search log; None: as the spec says. `browsers`: sites that declare that users
    of their logs are browsers; None: not known yet. `plain`: sites that report measures without noise.
    """
    own: Iterator[str]
    if isinstance(question, TreesExperiment):
        own = _of_forests(question)
    elif isinstance(question, SiloExperiment):
        own = _of_silos()
    else:
        assert isinstance(question, FederatedExperiment)
        own = _of_updates(question, logs, browsers, plain)
    return (*own, *PARTICIPATION)


def _of_updates(
    experiment: FederatedExperiment,
    logs: bool | None,
    browsers: Collection[str] | None,
    plain: Collection[str],
) -> Iterator[str]:
    mechanism: Any = experiment.mechanism
    logs = has_trait(experiment.learner, "logged") if logs is None else logs
    person = getattr(mechanism, "unit", "client") == "person"
    if mechanism is None:
        yield "anything: updates are sent without noise and reveal clicks"
    elif person and getattr(mechanism, "sites", 1) == 1:
        yield "people at several sites: the costs of the sites add up"
    if person and logs and browsers is None:
        yield "persons, at sites that declare that users of their logs are browsers (data.person in site.toml)"
    elif person and browsers:
        yield f"{BROWSERS} (at {', '.join(browsers)})"
    if logs and getattr(mechanism, "unit", "client") != "client":
        yield "what a site computes from all its people before: a popularity that counts clicks, limits against robots"
    if (line := experiment.uncovered_propensities) is not None:
        yield line
    if plain:
        yield (
            f"sums of measures over the own queries of {', '.join(plain)}, which leave without noise "
            "(policy.plain_measures = true); clients.csv of the coordinator contains their means"
        )
    if experiment.gate is not None:
        yield (
            "the model that a site then uses: a mean of the received model and of one that the site trains alone, from "
            "its people without noise; it and the events of a trial stay there, but it shapes the lists of later logs"
        )
    if hasattr(experiment.aggregator, "queries"):
        yield "the queries by which the coordinator itself trains"
    if experiment.record_every:
        yield f"updates that the coordinator stores for unlearning, every {experiment.record_every} rounds"
    if isinstance(getattr(mechanism, "placement", None), SecureAggregation) and experiment.clients.schedule != "dealt":
        yield "a repeated attempt at a round, which draws new noise and is charged again"
    yield from ALWAYS_OPEN


def _of_forests(experiment: TreesExperiment) -> Iterator[str]:
    from fedrank.experiments.runner.merge import PERSON_AT_SEVERAL, ForestDisclosure
    from fedrank.trees.histograms import Histograms

    assert experiment.merge is not None
    if isinstance(experiment.merge, Histograms) and experiment.merge.private != "no":
        yield PERSON_AT_SEVERAL
    else:
        yield "anything: forests are sent without noise"
        yield from ForestDisclosure.of(experiment.merge).not_covered


def _of_silos() -> Iterator[str]:
    from fedrank.experiments.runner.silo import NOT_COVERED, WEIGHTS

    yield from NOT_COVERED
    yield WEIGHTS
