"""A trial without an engine: sites as objects in this process, requests as bytes, answers in threads."""

from __future__ import annotations

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from fedrank.deploy.coordinate import coordinate
from fedrank.deploy.identity import new_identity
from fedrank.deploy.plan import PlannedSite, make_plan
from fedrank.deploy.site import Site
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.schedule import plan as tasks_of
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from tests.data.test_letor import letor_lines
from tests.made_up import made_up_data

SITE = """
name = "{name}"
id = {id}
federation = "trial"
simulated = true
[data]
[policy]
learners = ["pdgd", "evolution", "lambdarank"]
placements = ["client", "secure-aggregation", "server"]
unit = "person"
unprotected = true
history = true
most_rounds = 1000000
min_sites = 1
accept = "within-policy"
"""


def write_data(folder: Path) -> None:
    for number, name in enumerate(("train", "test"), start=1):
        data = made_up_data(queries=40 if name == "train" else 10, longest=14, seed=number)
        (folder / f"{name}.txt").write_text("".join(letor_lines(data)))


def spec_of(folder: Path, text: str, rounds: int = 4, clients: str = "count = 6\ninteractions = [2, 3]") -> Path:
    """A spec in a folder that has data."""
    path = folder / "spec.toml"
    path.write_text(
        f'rounds = {rounds}\nevaluate_every = 2\n{text}\n[clients]\n{clients}\n[data]\ntrain = "train.txt"\n'
        'test = "test.txt"\n'
    )
    return path


class Trial:
    """The run of a spec by sites, beside the same by simulation."""

    def __init__(self, folder: Path, spec: Path, sites: int = 3) -> None:
        self.folder, self.grid = folder, read_spec(spec)
        [self.task] = tasks_of(self.grid, "trial", folder / "sites-run")
        experiment = self.task.experiment
        train = load_fold(experiment.data, 1).train
        count = experiment.clients.count
        parties = [PlannedSite(f"site-{s}", tuple(range(s, count, sites))) for s in range(sites)]
        self.plan = make_plan(
            experiment, "trial", parties, federation="trial", features=train.features.shape[1],
            feature_names=train.feature_names, normalised=train.normalised, simulated=True,
        )  # fmt: skip
        self.folders = {party.name: folder / party.name for party in parties}
        for party in parties:
            where = self.folders[party.name]
            if not where.exists():
                where.mkdir(mode=0o700, parents=True)
                (where / "site.toml").write_text(SITE.format(name=party.name, id=party.clients[0]))
                new_identity(where)

    @contextmanager
    def sites(self):
        opened = {name: Site.open(folder) for name, folder in self.folders.items()}
        try:
            yield opened
        finally:
            for site in opened.values():
                site.close()

    def run(self, between=None, patience=20.0, stop=lambda: False) -> str:
        """`between` may change or swallow what passes: (site, request, answer) -> answer."""
        with self.sites() as sites, ThreadPoolExecutor(len(sites)) as pool:

            def ask(name: str, content: bytes) -> bytes:
                answer = sites[name].answer(content)
                return answer if between is None else between(name, content, answer)

            return coordinate(
                self.task, self.plan, lambda name, content, wait: pool.submit(ask, name, content), stop=stop,
                patience=patience,
            )  # fmt: skip

    def simulated(self) -> Path:
        run_experiment(self.grid, "trial", self.folder / "simulated")
        return self.folder / "simulated" / self.task.folder.relative_to(self.folder / "sites-run")


def rows(folder: Path) -> list[dict[str, str]]:
    """rounds.csv, but for the columns of bytes."""
    with (folder / "rounds.csv").open() as file:
        return [
            {name: value for name, value in row.items() if name not in ("bytes_up", "bytes_down")}
            for row in csv.DictReader(file)
        ]


def weights(folder: Path):
    return json.loads((folder / "model.json").read_text())["weights"]


def check_equal(one: Path, other: Path) -> None:
    assert rows(one) == rows(other)
    assert weights(one) == weights(other)
