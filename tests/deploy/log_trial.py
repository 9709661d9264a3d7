"""A federation of sites with search logs of known truth, and a coordinator without data."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from fedrank.data.engine_features import ENGINE_1
from fedrank.data.log_folder import ShownLists, write_shown
from fedrank.deploy import consent
from fedrank.deploy.identity import new_identity, read_identity
from fedrank.deploy.make_plans import plan_task
from fedrank.deploy.plan import PlannedSite
from fedrank.experiments.runner.schedule import plan as tasks_of
from fedrank.experiments.spec.source import read_spec
from tests.deploy.real_trial import RealTrial

NAMES = ("north", "east", "south")
EXAMINED = np.array([1.0, 0.8, 0.5, 0.45, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1])
PERSON = 'name = "gaussian"\nunit = "person"\nclip = 0.2\nnoise = 2.0\n'
SUM = PERSON + 'placement = { name = "secure-aggregation", honest = 0.5, colluding = 0.0 }\n'
POLICY = {
    "learners": '["logged-clicks", "pdgd"]',
    "unit": '"person"',
    "largest_epsilon": "100000.0",
    "measures": '["ndcg@10"]',
    "accept": '"within-policy"',
}


def write_log(
    folder: Path, seed: int = 1, searches: int = 2000, people: int = 40, swaps: bool = True, examined=EXAMINED
) -> Path:
    """Lists of ten documents in the order of one feature, with random swaps and clicks that depend on another one."""
    rng, width = np.random.default_rng(seed), len(ENGINE_1.names)
    queries, documents = 30, 10
    features = (rng.random((queries * documents, width)) * ENGINE_1.ranges[1]).astype(np.float32)
    scaled = features / ENGINE_1.ranges[1]
    relevance = 0.1 + 0.8 * scaled[:, 1]
    order = np.argsort(-scaled[:, 0].reshape(queries, documents), axis=1, kind="stable")
    query = rng.integers(0, queries, searches)
    lists = order[query] + documents * query[:, None]
    upper, swapped = rng.integers(0, 9, searches), rng.random(searches) < 0.5
    if swaps:
        for row in np.flatnonzero(swapped):
            lists[row, [upper[row], upper[row] + 1]] = lists[row, [upper[row] + 1, upper[row]]]
    clicks = rng.random(lists.shape) < examined * relevance[lists]
    write_shown(
        folder,
        ShownLists(
            features=features,
            lists=lists,
            clicks=clicks,
            user=rng.integers(0, people, searches),
            time=1_700_000_000 + 60 * np.arange(searches),
            query=query,
            document=np.arange(queries * documents),
            users=[f"{folder.name}-{person}" for person in range(people)],
            queries=[f"query {number}" for number in range(queries)],
            documents=[f"d{number}" for number in range(queries * documents)],
            feature_names=ENGINE_1.names,
            swap=np.where(swapped, -1, 1) * (upper + 1) if swaps else None,
        ),
        {"features": "engine-1"},
    )
    return folder


def spec_text(
    propensities: str = '"swaps"', mechanism: str = PERSON, rounds: int = 2, more: str = "", clients=""
) -> str:
    named = f"propensities = {propensities}\n" if propensities else ""
    return (
        f'rounds = {rounds}\nmeasures = ["ndcg@10"]\n[data]\nfeatures = "engine-1"\n{named}'
        f"[clients]\ncount = 3\npeople = 60\ninteractions = 2\n{clients}"
        f'[learner]\nname = "logged-clicks"\nrate = 0.05\n[server]\nname = "add"\nrate = 20.0\n'
        f"[mechanism]\n{mechanism}{more}"
    )


class LogTrial(RealTrial):
    """Three sites with logs; `policy` and `data` change keys of all site.toml."""

    def __init__(self, folder: Path, text: str | None = None, policy=None, data=None, logs=None) -> None:
        self.folder, spec = folder, folder / "spec.toml"
        spec.write_text(text or spec_text())
        self.grid = read_spec(spec)
        [self.task] = tasks_of(self.grid, "trial", folder / "run")
        self.names = list(NAMES)
        self.folders = {name: folder / name for name in NAMES}
        for id, (name, where) in enumerate(self.folders.items()):
            where.mkdir(mode=0o700)
            new_identity(where)
            write_log(where / "log", seed=id, **(logs or {}))
            own = {"log": '"log"', "person": '"user"', "test_share": "0.3"} | (data or {})
            lines = [
                f'name = "{name}"',
                f"id = {id}",
                'federation = "clinics"',
                f'second_place = "{folder / "second"}"',
            ]
            for table, values in {"data": own, "policy": POLICY | (policy or {})}.items():
                lines += [f"[{table}]", *(f"{key} = {value}" for key, value in values.items())]
            (where / "site.toml").write_text("\n".join(lines) + "\n")
        parties = [PlannedSite(name, (id,), read_identity(self.folders[name]).public) for id, name in enumerate(NAMES)]
        self.plan = plan_task(self.task, parties, "clinics")
        for where in self.folders.values():
            consent.accept(where, self.plan)

    def run(self, between=None, stop=lambda: False, patience: float = 60.0, **more) -> str:
        """A run that waits for sites in vain is interrupted, so a test fails instead of hanging."""
        waits = self.task.folder / "sites.json"
        since: list[float] = []

        def hopeless() -> bool:
            if waits.exists() and json.loads(waits.read_text())["waiting"]:
                since.append(time.monotonic())
            return stop() or (bool(since) and since[-1] - since[0] > 60)

        return super().run(between, hopeless, patience, **more)
