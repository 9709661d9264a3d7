"""Contributions of a site besides updates: noised sums over its people, each charged once per run.

propensity    before round 1; then the coordinator sends the sums of all sites, from which each site corrects clicks
quality, gate of one model, on held-out lists; from the gate's sums the site decides what it does with the model
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from abc import abstractmethod
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.backup import RestoreMark
from fedrank.deploy.outbox import OUTBOX, Outbox, Sent
from fedrank.deploy.plan import Plan
from fedrank.deploy.releases import GATE, PROPENSITY, QUALITY, release_of, releases_of
from fedrank.deploy.settings import SiteSettings
from fedrank.deploy.site_runtime import PEOPLE, CheckedRequest, Computed, Contribution, Handler, digest_of
from fedrank.experiments.runner.folder import Card
from fedrank.files import now, parse_json, write_atomic
from fedrank.privacy.population import Population
from fedrank.ranking.model import load_weights, save_model
from fedrank.types import Weights
from fedrank.wire import Label, Part, Refused

if TYPE_CHECKING:
    from fedrank.deploy.site_updates import UpdateRun

RELEASES, PROPENSITIES, GATE_FILE = "releases", "propensities.json", "gate.json"
NUMBERS = {PROPENSITY: 1, QUALITY: 2, GATE: 3}  # in the outbox of releases
USED = "the held-out lists of this site were used for another model, and a window is used once; build a new data set"
NO_SWAPS = "swaps are not logged in lists of this site, or were not drawn with probability 1/2; its log says more"
NO_BIASES = (
    "the gate: this site cannot estimate propensities from its clicks, or not from enough positions; see its log"
)
FORGED = "the propensities have sums under the name of this site that it did not send"
WAITING = "this site has not received the propensities of this run yet"
YEAR = timedelta(days=365)
RECEIVED = "received.json"  # the model as it was received, where a site uses one that it combined
OF_COMBINED = (
    "The other model in this folder is a mean of it and of the site's own model, which learned from the site's people "
    "without noise: no ε covers it."
)
# By the decision of the gate: the name of the model's file at a site.
MODEL_FILES = {"pass": "model.json", "inconclusive": "model-trial-only.json", "veto": "model-vetoed.json"}
ROWS = np.zeros(1, np.int64)  # of the ledger: one row for all people of a site


class ReleasedSums(Contribution["UpdateRun"]):
    """A sum over people that is released once in a run."""

    def __init__(self, run: UpdateRun) -> None:
        super().__init__(run)
        self.outbox = Outbox(run.outbox.folder / RELEASES, run.plan.run)

    @property
    def release(self) -> Any:
        [kind] = self.kinds
        found = release_of(self.run.plan, kind, self.run.site.settings.policy.released_measures)
        if found is None or self.run.charging is None or self.run.clients is None:
            raise Refused(f"this site does not release sums of kind {kind!r} in this run")
        return found

    @abstractmethod
    def values(self, weights: Weights) -> NDArray[np.float64]:
        """[people, numbers]: what each person adds."""

    def read(self, label: Label, content: bytes) -> CheckedRequest:
        [kind], _ = self.kinds, self.release
        parts = {"weights": Part("<f4", self.run.plan.sent), "model": Part("|S", 64)}
        _, found = wire.unpack(content, Label(kind, label.run, label.round), {} if kind == PROPENSITY else parts)
        if not re.fullmatch(b"[0-9a-f]{64}", found.get("model", b"0" * 64)):
            raise Refused("its digest of the model is not valid")
        name, attempt = f"the sum of kind {kind!r}", 0 if self._key[0] == kind else 1
        return CheckedRequest(label, digest_of(content), NUMBERS[kind], name, ROWS, attempt, found)

    def sent(self, request: CheckedRequest) -> Sent | None:
        return self.outbox.get(request.number)

    def store(self, sent: Sent) -> None:
        self.outbox.put(sent)

    def check_new(self, request: CheckedRequest, before: Sent | None) -> None:
        """Refuse to draw new noise for a sum that has been charged and may have left."""
        assert self.run.charging is not None
        mark, plan = RestoreMark.read(self.run.site.folder), self.run.plan
        if mark is not None and (why := mark.objection(plan.run.hex(), plan.last_number + 1)) is not None:
            raise Refused(why)
        if self.run.charging.released(self._key[0]):
            raise Refused(f"{request.name} has been charged, but the message is lost; restore the outbox from a backup")

    def charge(self, request: CheckedRequest, first: Any = lambda: None) -> None:
        """Charge it once; after each restoration twice more, because it may have been released before."""
        assert self.run.charging is not None
        key, times = self._key
        self.run.charging.release(key, self.run.releases.promises(self.release), times, first)

    def charge_once(self, request: CheckedRequest) -> None:
        """Charge a stored message under the key that it had when it was made: attempt 1 is that of a restored site."""
        sent = self.sent(request)
        assert sent is not None
        assert self.run.charging is not None
        key, times = self._key if sent.attempt else (self.release.kind, 1)
        self.run.charging.release(key, self.run.releases.promises(self.release), times)

    def compute(self, request: CheckedRequest) -> Computed:
        weights, found = np.empty(0), request.content
        if found:
            weights = self.run.own_model(found["weights"].astype(np.float64))
            try:
                self.run.releases.use_window(self.run.held_out.log, found["model"].decode())
            except ValueError as problem:  # it names a folder
                self.run.site.log(str(problem))
                raise Refused(USED) from None
        sums = self.release.sums(self.values(weights))
        answer = self.reply("facts", request.label, facts=protocol.sums(sums))
        return Computed(answer, np.array(sums).astype("<f8").tobytes())

    @property
    def _key(self) -> tuple[str, int]:
        """The key under which it is charged, and how often: a restored site has lost charges and messages."""
        [kind], mark = self.kinds, RestoreMark.read(self.run.site.folder)
        return (kind, 1) if mark is None else (f"{kind}@{mark.at}", 2)


class PropensitySums(ReleasedSums):
    """Clicks in pairs of results that the engine swapped at random."""

    kinds = (PROPENSITY,)
    record = PROPENSITY

    def values(self, weights: Weights) -> NDArray[np.float64]:
        run = self.run
        try:
            return run.releases.swap_values(run.log, run.site_data.clients.data, run.site_data.whose)
        except ValueError as problem:  # it has counts without noise
            run.site.log(str(problem))
            raise Refused(NO_SWAPS) from None


class QualitySums(ReleasedSums):
    """Measures of one model on held-out lists, means over the lists of a person."""

    kinds = (QUALITY,)
    record = QUALITY

    def values(self, weights: Weights) -> NDArray[np.float64]:
        return self.run.releases.quality_values(self.run.held_out, weights, self.run.site.settings.data.given)


class GateSums(ReleasedSums):
    """Estimated clicks of one model on held-out lists, against the order of the engine."""

    kinds = (GATE,)
    record = GATE

    def check_new(self, request: CheckedRequest, before: Sent | None) -> None:
        super().check_new(request, before)
        if (why := too_many_gates(self.run.site.folder, self.run.site.settings, self.run.plan)) is not None:
            raise Refused(why)

    def values(self, weights: Weights) -> NDArray[np.float64]:
        return gate_values(self.run, weights, None)


class ReceivedPropensities(Handler["UpdateRun"]):
    """Receives the noised sums of all sites, from which this site corrects its clicks."""

    kinds = ("propensities",)

    def answer(self, label: Label, content: bytes) -> bytes:
        run = self.run
        parts = {"sums": Part("|S", protocol.MAX_FACTS)}
        _, found = wire.unpack(content, Label("propensities", label.run, label.round), parts)
        if release_of(run.plan, PROPENSITY) is None:
            raise Refused("this run does not use propensities of swaps")
        path = run.site.models(run.plan) / PROPENSITIES
        if path.exists() and path.read_bytes() != found["sums"]:
            raise Refused("this site has received other propensities of this run, and it uses one set in all rounds")
        sums, name = read_sums(found["sums"], run.plan), run.site.settings.name
        own = PropensitySums(run).outbox.get(NUMBERS[PROPENSITY])
        if name in sums and (own is None or np.array(sums[name], "<f8").tobytes() != own.values):
            raise Refused(FORGED)
        write_atomic(path, found["sums"], private=True)
        run.use_propensities()
        return self.reply("facts", label, facts=protocol.facts({"kept": True}))


def read_sums(content: bytes, plan: Plan) -> dict[str, list[float]]:
    """The released counts of swaps of all sites, by name; from outside, so everything is checked."""
    release = release_of(plan, PROPENSITY)
    assert release is not None
    try:
        sums = parse_json(content)
    except ValueError as problem:
        raise Refused(f"the propensities cannot be read: {problem}") from None
    names = {site.name for site in plan.sites}
    known = isinstance(sums, dict) and bool(sums) and set(sums) <= names
    if not known or not all(map(release.is_plausible, sums.values())):
        raise Refused("the propensities are not noised sums of sites of this plan")
    return dict(sums)


# The gate


def gate_values(run: UpdateRun, weights: Weights, against: Weights | None) -> NDArray[np.float64]:
    """What each person adds to the comparison of a model with another one, or with the order of the engine."""
    try:
        return run.releases.gate_values(run.held_out, weights, run.biases, against)
    except Refused:
        raise
    except ValueError as problem:  # such as propensities that clicks do not determine; it may have counts
        run.site.log(str(problem))
        raise Refused(NO_BIASES) from None


def gates_in_a_year(folder: Path, plan: Plan) -> int:
    """Other plans for which a site released the sums of its gate in the last year, with or without a result."""
    stored = folder.glob(f"{OUTBOX}/*/{RELEASES}/{NUMBERS[GATE]:08d}-*")
    at = {path.parent.parent.name: path.stat().st_mtime for path in stored}
    if (people := Population.find(folder / PEOPLE)) is not None:
        for charged in people.folder.glob("*/"):  # a charge whose message is lost counts as one of this year
            if any(key.partition("@")[0] == GATE for key in people.released(charged.name)):
                at.setdefault(charged.name, math.inf)
    since = (datetime.now(UTC) - YEAR).timestamp()
    return sum(one > since for name, one in at.items() if name != plan.digest[:32])


def too_many_gates(folder: Path, settings: SiteSettings, plan: Plan) -> str | None:
    """Why the gate of a site decides on no further plan; None: it does."""
    made, most = gates_in_a_year(folder, plan), settings.policy.plans_per_year
    if made < most:
        return None
    return (
        f"the gate of this site was used for {made} plans in the last year, and policy.plans_per_year = {most}: more "
        "decisions would exceed the error rate of a year; wait, or decide by a trial"
    )


def gate_objections(folder: Path, settings: SiteSettings, plan: Plan) -> list[str]:
    """Why the gate of a plan could not decide, so nothing is charged for it; a plan that has started continues."""
    releases = releases_of(plan)
    if releases is None or releases.find(GATE) is None or (folder / OUTBOX / plan.digest[:32]).is_dir():
        return []
    found = [] if (why := too_many_gates(folder, settings, plan)) is None else [f"gate: {why}"]
    if settings.data.log and (day := releases.window_used(settings.data.log)):
        found.append(
            f"data.log: its held-out lists were used for a model on {day}, and a gate needs lists that no model has "
            "used; build a new data set with `fedrank data build --previous`, and name it in site.toml"
        )
    return found


def write_decision(run: UpdateRun, folder: Path, card: Card | None, asked: bytes) -> dict[str, str]:
    """Make the model that this site would use, decide on it, and return the names of its files.

    The released sums of all sites are about the received model. Each site combines that model with its own one, and
    judges the result: it must gain against doing nothing, and lose at most the margin against its own model. Both
    comparisons stay here, because no noise covers the own model. `asked` is the request for the gate of that model.
    """
    sent, model = GateSums(run).outbox.get(NUMBERS[GATE]), folder / "model.json"
    parts, files = dict[str, Any](), dict[str, str]()
    if sent is not None:
        if sent.call != asked:
            raise Refused("the received model is not the one on which the gate of this site decided")
        received, content = load_weights(model), model.read_bytes()
        alone = run.releases.alone(run.own_clients, run.site.seed)
        used = run.releases.combined(alone, received, run.site.settings.name)
        if used is not None:
            write_atomic(folder / RECEIVED, content, private=True)
            files[RECEIVED] = RECEIVED
            save_model(used, model)
            os.chmod(model, 0o600)
            digest, derived = (hashlib.sha256(one).hexdigest() for one in (content, model.read_bytes()))
            run.releases.use_window_also(run.held_out.log, digest, derived)
            if card is not None:
                summary = f"This card is about {RECEIVED}. {card.summary} {OF_COMBINED}"
                replace(card, files={RECEIVED: digest}, summary=summary).write(folder)
        for what, against in (("doing nothing", None), ("the own model alone", alone)):
            sums = gate_values(run, (used or received).weights, against).sum(axis=0)
            parts[what] = run.releases.site_decision(sums, gains=against is None)
    pooled = ((card.deployment or {}).get("gate") or {}) if card is not None else {}
    outcomes = [one.outcome for one in parts.values()] + [str(pooled.get("outcome", "inconclusive"))]
    if sent is None:
        outcomes.append("inconclusive")
    outcome = "veto" if "veto" in outcomes else "pass" if set(outcomes) == {"pass"} else "inconclusive"
    decision = {
        "outcome": outcome,
        "at": now(),
        "plan": run.plan.digest,
        "here": {what: asdict(one) for what, one in parts.items()},
        "all sites": pooled,
        "words": {
            "pass": "the model may be exported; a trial decides on its adoption",
            "inconclusive": "trial only: the estimate does not show that the model is good enough to be exported",
            "veto": "the model is estimated to be worse here, or at another site; do not use it",
        }[outcome],
    }
    write_atomic(folder / GATE_FILE, json.dumps(decision, indent=1, ensure_ascii=False) + "\n", private=True)
    for other in set(MODEL_FILES.values()) - {MODEL_FILES[outcome]}:  # of an earlier result
        (run.site.models(run.plan) / other).unlink(missing_ok=True)
    return {**files, "model.json": MODEL_FILES[outcome], GATE_FILE: GATE_FILE}


def request_of_gate(plan: Plan, model: Path) -> bytes:
    """The digest of the request by which the coordinator asked for the gate of a model after the last round."""
    digest = hashlib.sha256(model.read_bytes()).hexdigest().encode()
    parts: dict[str, Any] = {"weights": load_weights(model).weights[: plan.sent].astype(np.float32), "model": digest}
    return digest_of(wire.pack(Label(GATE, plan.run, plan.rounds), parts))
