"""Forests at a site: grown on its own queries, sent as trees and nothing else, and merged elsewhere.

    policy and consent -> grow -> outbox -> answer

A forest takes as long as it takes, and whoever asks does not wait for ever: a site grows for a while, keeps what it
has, says so, and goes on when it is asked again. Trees that come from elsewhere are read by fedrank's own reader, never
by LightGBM's, which believes what it is told; no header of theirs is taken over.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.data.ranking import RankingData
from fedrank.deploy import protocol
from fedrank.deploy.backup import hear_last_round
from fedrank.deploy.charging import Charging
from fedrank.deploy.outbox import Outbox, Sent
from fedrank.deploy.plan import Plan, PlannedSite, check_plan, forest_problems, names_digest
from fedrank.deploy.settings import SiteSettings
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.folder import Card
from fedrank.experiments.runner.trees import data_of
from fedrank.experiments.spec.experiment import SpecError, to_tables
from fedrank.experiments.spec.federated import ELSEWHERE
from fedrank.experiments.spec.toml import write_toml
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.files import parse_json, private_folder, sync, write_whole
from fedrank.seeds import rng_for
from fedrank.trees.arrays import BY_CATEGORY, Trees
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown
from fedrank.trees.histograms import Histograms
from fedrank.trees.model_files import load_model
from fedrank.trees.splits import Portion
from fedrank.trees.together import useful
from fedrank.wire import Label, Part, Refused

ROUND = 1  # there is one
GROWS = "a forest grows here"  # how a site begins that has not finished yet
SECONDS_AT_A_TIME = 20.0
GROWING = "growing.json"  # beside what was sent: trees of a forest that is not whole yet
BYTES_OF_A_LEAF = 400  # in a text model, with all columns, at most
MOST_FILES = 1024  # of a merged model
_FILE = re.compile(r"model(-([0-9]{1,4}|final))*\.(json|txt)")
_LINE = re.compile(r"[a-z_]+=[-+.0-9eE ]*")  # of a tree: a name, and numbers


def forest_plan(
    experiment: TreesExperiment,
    name: str,
    sites: Sequence[PlannedSite],
    like: RankingData,
    *,
    federation: str,
    fold: int = 1,
    seed: int = 1,
    simulated: bool = False,
) -> Plan:
    """The plan of a run in which sites merge forests on features as some data have them. In a trial nobody may miss."""
    if found := forest_problems(experiment, simulated):
        raise SpecError(found)
    tables = to_tables(experiment)
    if not simulated:
        tables["data"] = {"name": ELSEWHERE}
    plan = Plan(
        federation,
        name,
        write_toml(tables),
        fold,
        seed,
        tuple(sorted(sites, key=lambda site: site.clients)),
        like.features.shape[1],
        names_digest(like.feature_names),
        like.normalised,
        len(sites) if simulated else len(sites) // 2 + 1,
        simulated,
    )
    check_plan(plan)
    return plan


def portions_of(experiment: TreesExperiment, fold: int, seed: int) -> tuple[Portion, ...]:
    """What the clients of a trial hold."""
    assert experiment.split is not None
    return experiment.split(load_fold(data_of(experiment), fold), rng_for(seed, "split"))


def largest_forest(experiment: TreesExperiment) -> int:
    """Bytes of the trees of one client, at most."""
    leaves = getattr(experiment.booster, "leaves", BYTES_OF_A_LEAF)
    return min(protocol.LARGEST_MODEL, experiment.booster.trees * (leaves * BYTES_OF_A_LEAF + protocol.OVERHEAD))


def read_trees(content: bytes, experiment: TreesExperiment, features: int) -> tuple[str, ...]:
    """The trees of a forest that came from elsewhere; whatever its booster could not have grown is refused."""
    booster, largest = experiment.booster, largest_forest(experiment)
    leaves = getattr(booster, "leaves", largest)
    trees = []
    for number, piece in enumerate(protocol.unbundle(content, booster.trees, largest)):
        try:
            text = piece.decode("ascii")
            if not all(map(_LINE.fullmatch, text.split("\n"))):
                raise ValueError("a line of it is no name with numbers")
            tree = Trees.read([text])
        except ValueError as problem:
            raise Refused(f"tree {number + 1} of its forest cannot be read: {problem}") from None
        if tree.reaches > features:
            raise Refused(f"tree {number + 1} of its forest reads feature {tree.reaches}, and there are {features}")
        if len(tree.value) > leaves:
            raise Refused(f"tree {number + 1} of its forest has {len(tree.value)} leaves, and at most {leaves} may be")
        if tree.is_linear.any() or (tree.kind == BY_CATEGORY).any():
            raise Refused(f"tree {number + 1} of its forest has leaves or splits of a kind that nobody grows here")
        trees.append(text)
    if not trees:
        raise Refused("its forest has no tree")
    return tuple(trees)


@dataclass
class ForestRun:
    """What a site has open of one run in which forests are merged."""

    folder: Path
    settings: SiteSettings
    plan: Plan
    experiment: TreesExperiment
    outbox: Outbox
    facts: dict[str, Any]
    held: list[tuple[RankingData, RankingData | None]]  # of each client: queries to learn from, and to stop by
    data: bytes  # digest of them; empty where people are simulated
    charging: Charging | None = None  # where trees grow under noise

    place = None  # nothing is added up
    reported = ()  # no measures of own queries are told

    @classmethod
    def open(
        cls, folder: Path, settings: SiteSettings, plan: Plan, outbox: Outbox, charging: Charging | None = None
    ) -> ForestRun:
        experiment = plan.forests
        assert experiment is not None
        held: list[tuple[RankingData, RankingData | None]]
        if plan.simulated:
            portions = portions_of(experiment, plan.fold, plan.seed)
            own = [portions[id] for id in plan.party(settings.name).clients]
            held, data = [(one.train, one.validation) for one in own], b""
        else:
            from fedrank.deploy.data_sources import load_share

            if settings.data.letor is None:
                raise Refused("forests learn from grades, and this site has no LETOR file with them")
            share = load_share(settings.data)
            train = share.train
            if getattr(experiment.merge, "unit", "") == "person" and len(share.whose):
                train = replace(train, who=share.whose.astype(np.int32), when=np.zeros(train.queries, np.int64))
            held, data = [(train, share.test)], bytes.fromhex(share.facts().digest)
        if (last := outbox.get(ROUND)) is not None and last.data != data:
            raise Refused(
                "the data of this site have changed since it took part in this run; bring back those of before, or "
                "begin another run"
            )
        train = held[0][0]
        facts = {
            "features": train.features.shape[1],
            "feature_names": names_digest(train.feature_names),
            "normalised": train.normalised,
        }
        return cls(folder, settings, plan, experiment, outbox, facts, held, data, charging)

    def close(self) -> None:
        if self.charging is not None:
            self.charging.close()

    def hear(self, over: int) -> None:
        """Take note whether trees have begun to grow under noise, where this site came back from a backup.

        A forest without noise that is grown again is the same, so that nothing hangs on what was sent before.
        """
        if self.charging is not None:
            hear_last_round(self.folder, self.plan.run.hex(), over)

    def answer(self, label: Label, content: bytes) -> bytes:
        """The trees of every client of this site: on the disk before they leave, and the same when asked again."""
        plan = self.plan
        if isinstance(self.experiment.merge, Histograms):
            raise Refused("this run grows one forest from histograms, and the forest of this site alone is not sent")
        wire.unpack(content, Label("forest", label.run, ROUND), {})
        wanted = {"features": plan.features, "feature_names": plan.feature_names, "normalised": plan.normalised}
        if self.facts != wanted:
            raise Refused("the data of this site do not fit the plan; the answer to hello says in what")
        if (before := self.outbox.get(ROUND)) is not None:
            return before.answer
        forests = [protocol.bundle([tree.encode() for tree in grown.best]) for grown in self._grown()]
        if max(map(len, forests)) > largest_forest(self.experiment):
            raise Refused(f"the forest of this site has {max(map(len, forests)):,} bytes, more than anybody takes")
        counts = np.array([train.queries for train, _ in self.held], "<i8")
        answered = Label("answers", label.run, ROUND, 0, self.settings.id)
        made = wire.pack(answered, {"forests": protocol.bundle(forests), "queries": counts})
        self.outbox.put(Sent(ROUND, 0, hashlib.sha256(content).digest(), made, b"", np.empty(0), self.data))
        (self.outbox.folder / GROWING).unlink(missing_ok=True)
        return made

    def _grown(self) -> list[Grown]:
        """The forests of all clients. When time is up what there is lies on the disk, and the next call goes on."""
        path = self.outbox.folder / GROWING
        until = time.monotonic() + SECONDS_AT_A_TIME

        def turn() -> None:
            if time.monotonic() < until:
                return
            found = {"data": self.data.hex(), "forests": [asdict(grown) for grown in forestry.forests]}
            write_whole(path, json.dumps(found) + "\n", private=True)
            trees = sum(len(grown.all) for grown in forestry.forests)
            raise Refused(f"{GROWS}, and has {trees:,} trees by now; ask again")

        forestry = ForestCheckpoint(self.experiment.booster, turn=turn, forests=self._kept(path))
        threads = 1 if self.plan.simulated else os.cpu_count() or 1
        for train, validation in self.held:
            forestry(train, useful(validation), seed=self.plan.seed, threads=threads)
        return forestry.forests

    def _kept(self, path: Path) -> list[Grown]:
        """Trees of before. Those that cannot be read, or of other data, are grown again."""
        try:
            found = parse_json(path.read_bytes())
            return [Grown(**grown) for grown in found["forests"]] if found["data"] == self.data.hex() else []
        except (OSError, ValueError, KeyError, TypeError):
            return []


def keep_merged(run: ForestRun, models: Path, label: Label, content: bytes) -> None:
    """Take over the files of a merged model and its card, which are read before they lie where somebody uses them."""
    _, found = wire.unpack(content, Label("merged", label.run, ROUND), {"files": Part("|S", protocol.LARGEST_MODEL)})
    pieces = protocol.unbundle(found["files"], 2 * MOST_FILES, protocol.LARGEST_MODEL)
    names = [piece.decode("ascii", "replace") for piece in pieces[::2]]
    if len(pieces) % 2 or len(set(names)) != len(names) or not {"model.json", Card.FILE} <= set(names):
        raise Refused("it brings no model.json with its card, or a file twice")
    if strange := [name for name in names if name != Card.FILE and not _FILE.fullmatch(name)]:
        raise Refused(f"{strange[0][:40]!r} is no file of a merged model")
    folder = private_folder(private_folder(models) / run.plan.digest[:16])
    with tempfile.TemporaryDirectory(dir=folder) as apart:
        for name, piece in zip(names, pieces[1::2], strict=True):
            write_whole(Path(apart) / name, piece, private=True)
        try:
            model = load_model(Path(apart) / "model.json")
            Card.read(Path(apart))
        except (ValueError, KeyError, TypeError, OSError) as problem:
            raise Refused(f"what was made together cannot be read: {problem}") from None
        if model.features != run.plan.features:
            raise Refused(f"it reads {model.features} features, and those of the plan are {run.plan.features}")
        for name in sorted(names, key=lambda name: name == "model.json"):  # the last one, which names the others
            os.replace(Path(apart) / name, folder / name)
    sync(folder)


def merged_files(folder: Path, card: Path) -> bytes:
    """The files of a model in a folder with its card, as they travel."""
    paths = [card, *sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))]
    return protocol.bundle([piece for path in paths for piece in (path.name.encode(), path.read_bytes())])
