"""Which runs certified unlearning covers, and what its certificate says and assumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedrank.data.feature_sets import fixed_ranges, log_features
from fedrank.data.logs import load_log
from fedrank.experiments.runner.cards import sha256
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.folder import Json, Receipt
from fedrank.experiments.runner.position_bias import read_propensities
from fedrank.experiments.runner.traces import ancestors_of
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.sections import DataSpec
from fedrank.files import parse_json, read_bytes
from fedrank.privacy.guarantees import up
from fedrank.ranking.learners import LoggedClicks
from fedrank.ranking.propensity import INTERVENTIONS, OWN, REGRESSION, SHARED, SWAPS
from fedrank.ranking.rankers import Linear
from fedrank.unlearning.certificate import epsilon_together

OTHERWISE = "use --method retrain, or run the experiment again on the remaining data"


def check_certifiable(spec: FederatedExperiment, fold: int) -> None:
    """Raise ValueError if no theorem covers a run, with the setting that is not covered."""
    if (reason := _not_covered(spec, fold)) is not None:
        raise ValueError(f"certified: {reason}, so no theorem covers this run; {OTHERWISE}")


def _not_covered(spec: FederatedExperiment, fold: int) -> str | None:
    learner, data = spec.learner, spec.data
    if not isinstance(learner, LoggedClicks):
        return f"the steps of learner {describe(learner)['name']!r} are not those of a convex loss"
    if not isinstance(learner.ranker, Linear):
        return f"the loss of the ranker {describe(learner.ranker)['name']!r} is not convex"
    if spec.mechanism is not None:
        return "the mechanism protects messages, and the certificate needs the lists themselves"
    if data.propensities in (SHARED, OWN, SWAPS):
        return (
            f'data.propensities = "{data.propensities}" are estimated from the same log, so removed clicks change the '
            "weights of all others (use a file of fixed propensities)"
        )
    if data.bias == "trust":
        return 'data.bias = "trust" gives negative weights to results without a click, so the loss is not convex'
    if data.propensities is not None and (reason := _unusable(Path(data.propensities))):
        return reason
    ranges = None if data.log is None else fixed_ranges(log_features(load_log(data.log)))
    if load_fold(data, fold).train.normalised == "global" and ranges is None:
        return 'normalisation "global" takes the ranges of features from the data of all (use "query" or "none")'
    return None


def _unusable(file: Path) -> str | None:
    """Why a file of propensities is not fixed, if it says so."""
    if read_propensities(file).extra.any():
        return f'{file} has clicks due to trust ("extra"), so weights are negative and the loss is not convex'
    if parse_json(read_bytes(file)).get("how") in (INTERVENTIONS, REGRESSION):
        return (
            f"{file} was estimated from a log, and if that is this log, removed clicks change the weights of all "
            'others (if it is another one, keep only the list "slope" in the file)'
        )
    return None


def removed_people(data: DataSpec) -> list[str]:
    """The numbers of the receipts of people who were removed from a log."""
    if data.log is None:
        return []
    return [str(one.get("receipt", "")) for one in load_log(data.log).facts.get("forgotten", ())]


def completed(certificate: dict[str, Any], spec: FederatedExperiment, settings: dict[str, Any], parent: Path) -> Json:
    """The certificate of a release: its claim, that of all releases of this chain together, and what they assume."""
    before = [receipt.certificate for one in ancestors_of(parent) if (receipt := Receipt.read(one)) is not None]
    multipliers = [found["multiplier"] for found in before if found] + [certificate["multiplier"]]
    together = epsilon_together(multipliers, certificate["delta"])
    return {
        "claim": (
            f"the model is (ε = {certificate['epsilon']:g}, δ = {certificate['delta']:g})-indistinguishable from one "
            "that was trained without the removed data, by the same loss to the same tolerance, with the same noise"
        ),
        **certificate,
        "settings": settings,
        "releases": len(multipliers),
        "epsilon_of_all_releases": together,
        "assumes": list(_assumptions(spec, settings, len(multipliers), up(together))),
    }


def _assumptions(spec: FederatedExperiment, settings: dict[str, Any], releases: int, together: str) -> list[str]:
    file = spec.data.propensities
    weights = f"{Path(file).name}, SHA-256 {sha256(Path(file))}" if file is not None else "weight 1 for every click"
    return [
        "training: the mean softmax loss of the remaining lists, with click weights that are not negative, plus l2 / 2 "
        f"x squared norm, l2 = {settings['l2']:g}, from any start to a gradient of at most {settings['tolerance']:g}, "
        "rounding errors of IEEE double precision included; not a repetition of the rounds of the run",
        f"fixed: click weights ({weights}), features, normalisation and all settings do not depend on the removed "
        "data; what was chosen by looking at results of these data is not covered",
        "observer: sees this model and all remaining data; does not see values before the noise, or the cost and the "
        "times of this run, which depend on the earlier model",
        "earlier models remain known: who has one still knows what it reveals, and learns from the difference to this "
        "model what the difference to a retrained model would reveal",
        f"releases: this is number {releases} in its chain of certified models; for those who see all of them, ε = "
        f"{together} at this δ; other models of the same data count in addition",
    ]
