"""A federation of real sites without an engine: each has its own file, seed, policy and consent, and knows no other."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from fedrank.deploy import consent, protocol
from fedrank.deploy.coordinate import coordinate
from fedrank.deploy.heads import split
from fedrank.deploy.identity import new_identity, read_identity
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.plan import PlannedSite, make_plan
from fedrank.deploy.site import Site
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.schedule import plan as tasks_of
from fedrank.experiments.spec.source import read_spec
from fedrank.privacy.population import Account
from tests.deploy.plans import letor_file
from tests.made_up import made_up_log

POLICY = {
    "learners": '["pdgd", "evolution", "lambdarank"]',
    "placements": '["client", "secure-aggregation", "server"]',
    "unit": '"person"',
    "largest_epsilon": "1000.0",
    "unprotected": "true",
    "history": "true",
    "min_sites": "2",
    "accept": '"within-policy"',
}
LINEAR = '[learner]\nname = "pdgd"\n'
NOISE = '[mechanism]\nname = "gaussian"\nclip = 0.5\nnoise = 2.0\n'
SUM = NOISE + 'placement = { name = "secure-aggregation", honest = 0.5, colluding = 0.0 }\n'


def without_heads(content, answering, between):
    """What passes between hub and site without heads: (request, answer of the site) -> answer; the heads follow."""
    request, behind = split(content)[0], []

    def answer() -> bytes:
        whole = answering(content)
        found = split(whole)[0]
        behind.append(whole[len(found) :])
        return found

    found = between(request, answer)
    return found + behind[-1] if behind and isinstance(found, bytes) else found


class RealTrial:
    """Sites with ids 10, 20, 30 ...; `policy` and `data` change keys of site.toml, for all or one by name."""

    def __init__(
        self, folder: Path, text: str = LINEAR, sites: int = 3, rounds: int = 4, clients: str = "", policy=None,
        data=None, min_sites: int | None = None, rule: str = "", top: str = "",
    ) -> None:  # fmt: skip
        self.folder = folder
        for number, name in enumerate(("train", "test"), start=100):
            letor_file(folder / f"{name}.txt", queries=10, longest=8, seed=number)
        spec = folder / "spec.toml"
        own = '[data]\ntrain = "train.txt"\ntest = "test.txt"\n'
        if rule:  # out of step: the coordinator judges by a log, as in a simulation
            log = made_up_log(folder / "log", [0, 1, 2] * 20)
            top, own = f'{top}\nkind = "async"', f'partition = {{ name = "users" }}\n[data]\nlog = "{log}"\n'
            text += f"[arrival]\nname = {rule}\n"
        spec.write_text(
            f"rounds = {rounds}\nevaluate_every = 2\n{top}\n{text}\n[clients]\ncount = {sites}\n"
            f"{clients or 'interactions = 3'}\n{own}"
        )
        self.grid = read_spec(spec)
        [self.task] = tasks_of(self.grid, "trial", folder / "run")
        self.names = [f"clinic-{chr(97 + place)}" if sites <= 26 else f"clinic-{place:04d}" for place in range(sites)]
        self.folders = {name: folder / name for name in self.names}
        for place, name in enumerate(self.names):
            self._make(name, 10 * (place + 1), (policy or {}).get(name, {}), (data or {}).get(name, {}))
        train = load_fold(self.task.experiment.data, 1).train
        parties = [
            PlannedSite(name, (10 * (place + 1),), read_identity(self.folders[name]).public)
            for place, name in enumerate(self.names)
        ]
        self.plan = make_plan(
            self.task.experiment, "trial", parties, federation="clinics", features=train.features.shape[1],
            feature_names=train.feature_names, normalised=train.normalised, min_sites=min_sites,
        )  # fmt: skip
        for where in self.folders.values():
            consent.accept(where, self.plan)

    def _make(self, name: str, id: int, policy: dict[str, str], data: dict[str, str]) -> None:
        where = self.folders[name]
        where.mkdir(mode=0o700)
        letor_file(where / "train.txt", queries=12, longest=8, seed=id, comment="patient = {query}")
        new_identity(where)
        own = {"letor": '"train.txt"'}
        if self.task.experiment.arrival is not None:
            own = {"log": f'"{made_up_log(where / "searches", [0] * 30, seed=id).name}"'}
        tables = {"data": own | data, "policy": POLICY | policy}
        lines = [f'name = "{name}"', f"id = {id}", 'federation = "clinics"']
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{key} = {value}" for key, value in values.items())]
        (where / "site.toml").write_text("\n".join(lines) + "\n")

    def hello(self, over: int = 0) -> bytes:
        return protocol.request("hello", self.plan.run, over, plan=self.plan.dump())

    def outbox(self, name: str) -> Outbox:
        return Outbox(self.folders[name] / "outbox" / self.plan.digest[:32], self.plan.run)

    def paid(self, name: str) -> int:
        """How often the people of a site have paid for this run."""
        found = Account.read(self.folders[name] / "people" / self.plan.digest[:32] / "ledger")
        assert found is not None
        return int(found.participations.max())

    def run(self, between=None, stop=lambda: False, patience: float = 20.0, **more) -> str:
        """`between` stands between hub and sites: (name, request, answer of the site) -> answer, or raises."""
        with ExitStack() as opened:
            sites = {name: opened.enter_context(Site.open(where)) for name, where in self.folders.items()}
            return self.run_with({name: site.answer for name, site in sites.items()}, between, stop, patience, **more)

    def run_with(self, answering, between=None, stop=lambda: False, patience: float = 20.0, **more) -> str:
        with ThreadPoolExecutor(min(2 * len(self.names), 64)) as pool:

            def ask(name: str, content: bytes) -> bytes:
                if between is None:
                    return answering[name](content)
                if getattr(between, "with_heads", False):
                    return between(name, content, lambda: answering[name](content))
                return without_heads(content, answering[name], lambda *passed: between(name, *passed))

            def send(name: str, content: bytes, wait: float) -> Future[bytes]:
                return pool.submit(ask, name, content)

            return coordinate(self.task, self.plan, send, stop=stop, patience=patience, **more)
