"""Forests at a site: trained on its own queries, sent as trees only, and merged on the coordinator.

    policy and consent -> grow -> outbox -> answer

Training may take longer than a request waits: a site trains for a while, stores its trees, reports progress, and
continues at the next request. Received trees are read by fedrank's own reader, never by LightGBM's, which does not
validate its input; their headers are not used.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.data.ranking import RankingData
from fedrank.deploy import protocol
from fedrank.deploy.backup import record_completed_round
from fedrank.deploy.outbox import Sent
from fedrank.deploy.plan import Plan, data_problems, names_digest
from fedrank.deploy.site_runtime import (
    CheckedRequest,
    Computed,
    Contribution,
    Handler,
    SiteHome,
    SiteRun,
    digest_of,
    save_result,
)
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.folder import Card
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.files import parse_json, write_atomic
from fedrank.seeds import rng_for
from fedrank.trees.arrays import checked_trees
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown
from fedrank.trees.histograms import Histograms
from fedrank.trees.model_files import load_model
from fedrank.trees.splits import Portion
from fedrank.wire import Label, Part, Refused

ROUND = 1  # forests have one round
GROWS = "the forest is still being trained"  # prefix of the refusal while training continues
SECONDS_AT_A_TIME = 20.0
GROWING = "growing.json"  # next to the sent messages: trees of an incomplete forest
BYTES_OF_A_LEAF = 400  # maximum in a text model, with all columns
MAX_FILES = 1024  # maximum number of files of a merged model
_FILE = re.compile(r"model(-([0-9]{1,4}|final))*\.(json|txt)")


def portions_of(experiment: TreesExperiment, fold: int, seed: int) -> tuple[Portion, ...]:
    """The data of the clients of a trial."""
    assert experiment.split is not None
    return experiment.split(load_fold(experiment.unscaled, fold), rng_for(seed, "split"))


def largest_forest(experiment: TreesExperiment) -> int:
    """Maximum size of one client's trees in bytes."""
    leaves = getattr(experiment.booster, "leaves", BYTES_OF_A_LEAF)
    return min(protocol.MAX_MODEL, experiment.booster.trees * (leaves * BYTES_OF_A_LEAF + protocol.OVERHEAD))


def read_trees(content: bytes, experiment: TreesExperiment, features: int) -> tuple[str, ...]:
    """Read the trees of a received forest; trees that the booster could not have produced are refused."""
    booster, largest = experiment.booster, largest_forest(experiment)
    pieces = protocol.unbundle(content, booster.trees, largest)
    return checked_trees(pieces, features, getattr(booster, "leaves", largest))


class OwnForest(Contribution["ForestRun"]):
    """The trees of every client of this site, for merging."""

    kinds = ("forest",)

    def read(self, label: Label, content: bytes) -> CheckedRequest:
        run, plan = self.run, self.run.plan
        wire.unpack(content, Label("forest", label.run, ROUND), {})
        wanted = {"features": plan.features, "feature_names": plan.feature_names, "normalised": plan.normalised}
        if run.facts != wanted:
            raise Refused("the data of this site do not match the plan; see the answer to hello for the differences")
        return CheckedRequest(label, digest_of(content), ROUND, "the forest of this site")

    def compute(self, request: CheckedRequest) -> Computed:
        run = self.run
        forests = [protocol.bundle([tree.encode() for tree in grown.best]) for grown in self._grown()]
        if max(map(len, forests)) > largest_forest(run.experiment):
            raise Refused(
                f"the forest of this site has {max(map(len, forests)):,} bytes, which is more than the plan allows"
            )
        counts = np.array([train.queries for train, _ in run.held], "<i8")
        answered = Label("answers", request.label.run, ROUND, 0, run.site.settings.id)
        return Computed(wire.pack(answered, {"forests": protocol.bundle(forests), "queries": counts}))

    def store(self, sent: Sent) -> None:
        super().store(sent)
        (self.run.outbox.folder / GROWING).unlink(missing_ok=True)

    def _grown(self) -> list[Grown]:
        """The forests of all clients. When the time is up, store the trees; the next request continues."""
        run, path = self.run, self.run.outbox.folder / GROWING
        until = time.monotonic() + SECONDS_AT_A_TIME

        def turn() -> None:
            if time.monotonic() < until:
                return
            found = {"data": run.data.hex(), "forests": [asdict(grown) for grown in checkpoint.forests]}
            write_atomic(path, json.dumps(found) + "\n", private=True)
            trees = sum(len(grown.all) for grown in checkpoint.forests)
            raise Refused(f"{GROWS} ({trees:,} trees so far); ask again")

        checkpoint = ForestCheckpoint(run.experiment.booster, turn=turn, forests=self._earlier(path))
        threads = 1 if run.plan.simulated else os.cpu_count() or 1
        for train, validation in run.held:
            checkpoint(train, validation, seed=run.plan.seed, threads=threads)
        return checkpoint.forests

    def _earlier(self, path: Path) -> list[Grown]:
        """Trees of earlier requests; unreadable ones and those of other data are trained again."""
        try:
            found = parse_json(path.read_bytes())
            return [Grown(**grown) for grown in found["forests"]] if found["data"] == self.run.data.hex() else []
        except (OSError, ValueError, KeyError, TypeError):
            return []


class ReceivedForest(Handler["ForestRun"]):
    """Receives the files of a merged model and its card."""

    kinds = ("merged",)

    def answer(self, label: Label, content: bytes) -> bytes:
        _, found = wire.unpack(content, Label("merged", label.run, ROUND), {"files": Part("|S", protocol.MAX_MODEL)})
        pieces = protocol.unbundle(found["files"], 2 * MAX_FILES, protocol.MAX_MODEL)
        names = [piece.decode("ascii", "replace") for piece in pieces[::2]]
        if len(pieces) % 2 or len(set(names)) != len(names) or not {"model.json", Card.FILE} <= set(names):
            raise Refused("it must contain model.json and its card, and no file twice")
        if strange := [name for name in names if name != Card.FILE and not _FILE.fullmatch(name)]:
            raise Refused(f"{strange[0][:40]!r} is not a file of a merged model")

        def check(folder: Path) -> None:
            model, features = load_model(folder / "model.json"), self.run.plan.features
            Card.read(folder)
            if model.features != features:
                raise Refused(f"the model has {model.features} features, but the plan has {features}")

        files = dict(zip(names, pieces[1::2], strict=True))
        files["model.json"] = files.pop("model.json")  # written last, because it names the others
        save_result(self.run, files, check)
        return self.reply("facts", label, facts=protocol.facts({"kept": True}))


@dataclass
class ForestRun(SiteRun):
    """A run with forests at a site."""

    held: list[tuple[RankingData, RankingData | None]] = field(kw_only=True)  # per client: training and validation data

    @classmethod
    def open(cls, site: SiteHome, plan: Plan) -> ForestRun:
        experiment, settings = plan.forests, site.settings
        assert experiment is not None
        held: list[tuple[RankingData, RankingData | None]]
        if plan.simulated:
            portions = portions_of(experiment, plan.fold, plan.seed)
            own = [portions[id] for id in plan.party(settings.name).clients]
            held, data = [(one.train, one.validation) for one in own], b""
        else:
            from fedrank.deploy.data_sources import load_share

            if found := data_problems(plan, settings.data):
                raise Refused("; ".join(found))
            share = load_share(settings.data)
            train = share.train
            if getattr(experiment.merge, "unit", "") == "person" and len(share.whose):
                train = replace(train, who=share.whose.astype(np.int32), when=np.zeros(train.queries, np.int64))
            held, data = [(train, share.test)], bytes.fromhex(share.facts().digest)
        train = held[0][0]
        facts = {
            "features": train.features.shape[1],
            "feature_names": names_digest(train.feature_names),
            "normalised": train.normalised,
        }
        outbox = site.outbox(plan, data)
        return cls(site, plan, outbox, facts, data, site.charging(plan, len(held)), held=held)

    @property
    def does(self) -> str:  # type: ignore[override]
        return "grows one forest" if isinstance(self.experiment.merge, Histograms) else "merges forests"

    @property
    def handlers(self) -> tuple[type[Handler[Any]], ...]:  # type: ignore[override]
        if isinstance(self.experiment.merge, Histograms):
            from fedrank.deploy.joint_forest import TreeMessages

            return TreeMessages, ReceivedForest
        return OwnForest, ReceivedForest

    @property
    def experiment(self) -> TreesExperiment:
        assert self.plan.forests is not None
        return self.plan.forests

    def note_rounds_over(self, over: int) -> None:
        """Record whether training with noise has started; without noise, repeated training gives the same trees."""
        if self.charging is not None:
            record_completed_round(self.site.folder, self.plan.run.hex(), over)


def merged_files(folder: Path, card: Path) -> bytes:
    """Pack the files of a model in a folder and its card for transport."""
    paths = [card, *sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))]
    return protocol.bundle([piece for path in paths for piece in (path.name.encode(), path.read_bytes())])
