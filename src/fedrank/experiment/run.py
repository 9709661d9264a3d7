"""One run: a concrete experiment on one fold with one seed goes in, a run folder comes out.

A run can be stopped at any moment, even by `kill -9`. Every few seconds the rows of `rounds.csv` are made durable and
`checkpoint.npz` is replaced by one that says how many bytes of it belong to it; a resumed run cuts off what came later
and goes on. Chance is keyed by round, so what follows is what would have followed. Noise that protects people is not:
rounds that had been noised before a stop are taken from the ledger, so that nobody pays for them twice.
"""

from __future__ import annotations

import io
import json
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedrank import __version__, kernels
from fedrank.attack.poison import Promote, promotion
from fedrank.data.catalog import Fold, load, load_files
from fedrank.data.log_fold import TEST_SHARE, log_fold
from fedrank.experiment.federated_spec import Experiment
from fedrank.experiment.privacy import Spent, setting_of, until_spent
from fedrank.experiment.spec import Question, to_toml
from fedrank.experiment.store import working_on
from fedrank.federate.asynchronous import schedule, simulate_arrivals
from fedrank.federate.clients import make_clients
from fedrank.federate.quality import alike, quality_by_client
from fedrank.federate.robust import without_promise
from fedrank.federate.round import (
    Federation,
    Outcome,
    RoundError,
    State,
    cohort_size,
    first_weights,
    personal_models,
    simulate,
)
from fedrank.files import write_whole
from fedrank.rank.learners import fine_tune, warm_up
from fedrank.rank.measures import EMPTY, MEASURES, MODELS, Evaluator, average, measure
from fedrank.rank.model import Model, load_weights, save_model
from fedrank.types import Arrivals, Clients, Ranker, Weights
from fedrank.unlearn.history import HistoryWriter, size_beforehand

SECONDS_BETWEEN_CHECKPOINTS = 2.0
SECONDS_BETWEEN_NEWS = 0.1

CONVENTIONS = {
    "online": "nDCG@10 of the lists that users were shown, mean over a client's interactions, then over clients; "
    "queries without a relevant document count as 0",
    "reward": "mean over clients of the true rewards of the models they tried (known only in simulation)",
    "rounds": "row r is the model after the aggregation of round r",
    "final": "mean of the last 10 evaluations",
    "ties": "equal scores are ordered by a fixed shuffle of positions, which favours no order of the file",
}


@dataclass(frozen=True)
class Task:
    """One run to be done."""

    folder: Path  # the run folder
    experiment: Question  # concrete: one variant, one fold, one seed
    name: str  # of the whole experiment
    variant: str
    settings: dict[str, Any]  # what this variant varies
    fold: int
    seed: int

    @property
    def label(self) -> str:
        return f"{self.variant}, fold {self.fold}, seed {self.seed}"


@dataclass(frozen=True)
class News:
    """How far a run has come."""

    round: int
    rounds: int
    quality: float  # last value of the first measure; NaN before the first evaluation
    interactions: int  # since this process took the run up
    seconds: float  # likewise
    seconds_left: float


@dataclass(frozen=True)
class Tally:
    """What adds up over rounds."""

    interactions: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def perform(
    task: Task,
    threads: int = 1,
    tell: Callable[[News], None] = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
) -> str:
    """Do a run, or what is left of it; returns its status: finished, interrupted or failed.

    A failure is written into the run folder and does not leave this function: other runs go on.
    """
    task.folder.mkdir(parents=True, exist_ok=True)
    with working_on(task.folder):
        return _perform_or_fail(task, threads, tell, stop)


def _perform_or_fail(task: Task, threads: int, tell: Callable[[News], None], stop: Callable[[], bool]) -> str:
    write_whole(task.folder / "spec.toml", to_toml(task.experiment))
    facts = _facts(task)
    try:
        write_facts(task.folder, facts | {"status": "running"})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* promises nothing where ")  # it stands in the notes
            return _performer(task.experiment)(task, facts, threads, tell, stop)
    except Exception as problem:
        at = getattr(problem, "round", None)
        message = problem.message if isinstance(problem, RoundError) else f"{problem}"
        error = {"message": message or type(problem).__name__, "round": at, "client": getattr(problem, "client", None)}
        done = _read_round(task.folder)
        write_facts(task.folder, facts | {"status": "failed", "round": done, "error": error})
        return "failed"


Performer = Callable[[Task, dict[str, Any], int, Callable[[News], None], Callable[[], bool]], str]


def _performer(asked: Question) -> Performer:
    """What does a run of this kind; the others build on this module."""
    if asked.kind == "silo":
        from fedrank.experiment.silo_run import perform_silo

        return perform_silo
    if asked.kind == "trees":
        from fedrank.experiment.trees_run import perform_trees

        return perform_trees
    return perform_federated


def perform_federated(
    task: Task, facts: dict[str, Any], threads: int, tell: Callable[[News], None], stop: Callable[[], bool]
) -> str:
    asked = task.experiment
    assert isinstance(asked, Experiment)
    facts["conventions"] |= _conventions(asked)
    fold = load_fold(asked.data, task.fold)
    ranker = asked.methods.learner.ranker
    federation = Federation(
        learner=asked.methods.learner,
        aggregator=asked.methods.aggregator,
        server=asked.methods.server,
        attack=asked.methods.attack if asked.clients.malicious else None,
        mechanism=asked.methods.mechanism,
        participation=asked.clients.participation,
    )
    clients = clients_of(asked, task.fold, task.seed)
    facts |= {
        "data": {
            "name": fold.name,
            "train_queries": fold.train.queries,
            "test_queries": fold.test.queries,
            "features": fold.train.features.shape[1],
            "normalised": fold.train.normalised,
            "top_grade": fold.train.top_grade,
        },
        "notes": list(fold.notes),
    }
    weak = without_promise(federation.aggregator, cohort_size(len(clients), federation.participation))
    facts["notes"] += [weak] if weak else []
    last, rule = asked.rounds, asked.methods.arrival
    if rule is not None:
        last = facts["rounds"] = min(last, schedule(clients, rule).rounds)
        if last < asked.rounds:
            facts["notes"].append(f"{last:,} of {asked.rounds:,} rounds: the log has no more complete updates")
    write_facts(task.folder, facts | {"status": "running", "round": _read_round(task.folder)})
    judged = fold.test if asked.data.evaluate_on == "test" else fold.validation
    if judged is None:
        raise ValueError(f"{fold.name} has no validation queries to tune on; name a file as data.validation")
    evaluator = Evaluator(judged, asked.measures)
    with (
        Record(
            task.folder,
            asked.measures,
            lambda models: evaluator(models, ranker),
            rewarded=hasattr(asked.methods.learner, "reward"),
        ) as record,
        Spent.open(replace(asked, rounds=last), task.folder, fold.train.features.shape[1]) as spent,
    ):
        state, began, told = record.state, time.monotonic(), 0.0
        first, resumed = record.tally.interactions, 0 if state is None else state.round
        start = start_weights(asked, clients, task.seed) if state is None else None
        parameters = ranker.size(fold.train.features.shape[1])
        history = _history(task.folder, asked.record_every, len(clients), parameters, resumed)
        if rule is None:
            rounds = simulate(
                federation,
                clients,
                last,
                task.seed,
                start=start,
                state=state,
                threads=threads,
                journal=spent.journal,
                watch=None if history is None else partial(_remember, history),
            )
        else:
            rounds = simulate_arrivals(
                federation.learner,
                rule,
                clients,
                last,
                task.seed,
                start=start,
                state=state,
                threads=threads,
                mechanism=federation.mechanism,
                journal=spent.journal,
            )
        for outcome, ends in until_spent(rounds, last, asked.privacy.budget):
            state = outcome.state
            for client in outcome.excluded:
                since, times = record.excluded.get(str(client), (outcome.round, 0))
                record.excluded[str(client)] = since, times + 1
            record.add(outcome, evaluate=outcome.round % asked.evaluate_every == 0 or ends)
            now = time.monotonic()
            if now - told >= SECONDS_BETWEEN_NEWS or ends:
                told = now
                done = record.tally.interactions - first
                left = (now - began) / (outcome.round - resumed) * (last - outcome.round)
                tell(News(outcome.round, last, record.quality, done, now - began, left))
                if not ends and stop():
                    _keep(history)
                    record.keep(state)
                    spent.stop(state.round)
                    write_facts(task.folder, facts | {"status": "interrupted", "round": outcome.round})
                    return "interrupted"
                if now - record.kept >= record.pause:
                    _keep(history)
                    record.keep(state)
                    spent.forget(state.round)
        assert state is not None
        _keep(history)
        record.keep(state)
        spent.stop(state.round)
        card = spent.card()
    facts["notes"] += [
        f"client {client} was left out of {times:,} round{'' if times == 1 else 's'}, first of round {since:,}: "
        "its update was not finite"
        for client, (since, times) in record.excluded.items()
    ]
    if state.round < last:
        facts["notes"].append(
            f"stopped by itself after round {state.round:,} of {last:,}: another one would exceed the privacy "
            f"budget of ε = {asked.privacy.budget:g}"
        )
    personal = getattr(asked.methods.learner, "personal", "none") != "none"
    model = Model(
        ranker,
        personal_models(asked.methods.learner, state, clients) if personal else state.weights,
        fold.train.features.shape[1],
        fold.train.normalised,
        fold.train.feature_names,
        {"experiment": task.name, "variant": task.variant, "fold": task.fold, "seed": task.seed, "data": fold.name},
        fold.train.ranges,
    )
    save_model(model, task.folder / "model.json")
    write_whole(task.folder / "queries.csv", queries_csv(evaluator, asked.measures, state.weights, ranker))
    qualities = _by_client(asked, state, clients, task.seed, threads)
    if qualities:
        write_whole(task.folder / "clients.csv", _clients_csv(qualities, clients))
    if isinstance(asked.methods.attack, Promote):
        facts["promotion"] = promotion(state.weights, ranker, judged, asked.methods.attack.features)
    write_whole(task.folder / "privacy.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    write_facts(task.folder, facts | {"status": "finished", "round": state.round})
    (task.folder / "checkpoint.npz").unlink(missing_ok=True)
    return "finished"


@dataclass
class Record:
    """The growing files of a run. Models to be evaluated are gathered: many at once cost little more than one."""

    folder: Path
    measures: list[str]
    evaluate: Callable[[Weights], Any]  # models -> [measures, models]
    state: State | None = None  # where a resumed run goes on
    tally: Tally = field(default_factory=Tally)
    quality: float = float("nan")
    kept: float = field(default_factory=time.monotonic)  # when the last checkpoint was written
    pause: float = 0.0  # seconds until the next one
    rewarded: bool = False  # whether the learner has a reward, which gets a column of its own
    # client -> the first round in which its update was of no use, and how many there were
    excluded: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __enter__(self) -> Record:
        self._rows: list[str] = []
        self._models: list[Weights] = []  # waiting for evaluation
        self._places: list[int] = []  # the rows that wait for their values
        self._rewards: list[str] = []  # their last cells
        self._file = self._open()
        self.pause = SECONDS_BETWEEN_CHECKPOINTS
        self._clock, self._cpu = time.monotonic(), time.process_time()
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def add(self, outcome: Outcome, evaluate: bool) -> None:
        old = self.tally
        self.tally = Tally(
            old.interactions + outcome.interactions,
            old.bytes_up + outcome.bytes_up,
            old.bytes_down + outcome.bytes_down,
            old.seconds,
            old.cpu_seconds,
        )
        now = self.tally
        online = "" if math.isnan(outcome.online) else repr(outcome.online)
        row = f"{outcome.round},{online},{now.interactions},{now.bytes_up},{now.bytes_down}"
        if not evaluate:
            self._rows.append(row + "," * (len(self.measures) + self.rewarded))
            return
        self._places.append(len(self._rows))
        self._rewards.append("" if outcome.reward is None else f",{outcome.reward!r}")
        self._rows.append(row)
        self._models.append(outcome.weights)
        if len(self._models) == MODELS:
            self._evaluate()

    def keep(self, state: State) -> None:
        """Make everything so far durable."""
        self._evaluate()
        clock, cpu = time.monotonic(), time.process_time()
        self.tally = Tally(
            **{
                **asdict(self.tally),
                "seconds": self.tally.seconds + clock - self._clock,
                "cpu_seconds": self.tally.cpu_seconds + cpu - self._cpu,
            }
        )
        self._clock, self._cpu = clock, cpu
        self._file.write("".join(row + "\n" for row in self._rows).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._rows.clear()
        timing = self.folder / "timing.csv"
        with timing.open("a", encoding="utf-8") as file:
            if file.tell() == 0:
                file.write("round,seconds,cpu_seconds\n")
            file.write(f"{state.round},{self.tally.seconds:.3f},{self.tally.cpu_seconds:.3f}\n")
        content = io.BytesIO()
        memory = {} if state.memory is None else {"memory": state.memory}
        memory |= {f"rule.{name}": array for name, array in state.rule.items()}
        parts: dict[str, Any] = dict(
            round=state.round,
            weights=state.weights,
            server=state.server,
            csv_bytes=self._file.tell(),
            quality=self.quality,
            tally=json.dumps(asdict(self.tally)),
            excluded=json.dumps(self.excluded),
            **memory,
        )
        np.savez(content, **parts)
        write_whole(self.folder / "checkpoint.npz", content.getvalue())
        now = time.monotonic()
        self.kept = now
        self.pause = max(SECONDS_BETWEEN_CHECKPOINTS, 20 * (now - clock))  # writing a large memory takes its time

    def _evaluate(self) -> None:
        if not self._models:
            return
        if self._models[0].ndim == 2:  # every client has its own model: their mean is what people get
            values = np.stack([self.evaluate(models).mean(axis=1) for models in self._models], axis=1)
        else:
            values = self.evaluate(np.stack(self._models))
        for place, column, reward in zip(self._places, values.T, self._rewards, strict=True):
            cells = ("" if np.isnan(value) else repr(float(value)) for value in column)
            self._rows[place] += "," + ",".join(cells) + reward
        self.quality = float(values[0, -1])
        self._models.clear()
        self._places.clear()
        self._rewards.clear()

    def _open(self) -> io.BufferedRandom:
        path, kept = self.folder / "rounds.csv", _read_checkpoint(self.folder)
        if kept is not None and path.exists() and path.stat().st_size >= int(kept["csv_bytes"]):
            rule = {name.removeprefix("rule."): array for name, array in kept.items() if name.startswith("rule.")}
            self.state = State(int(kept["round"]), kept["weights"], kept.get("memory"), kept["server"], rule)
            self.tally = Tally(**json.loads(str(kept["tally"])))
            self.excluded = {client: tuple(told) for client, told in json.loads(str(kept["excluded"])).items()}
            self.quality = float(kept["quality"])
            file = path.open("r+b")
            file.truncate(int(kept["csv_bytes"]))
            file.seek(int(kept["csv_bytes"]))
            return file
        # The ledger stays: what was sent was sent.
        for old in ("timing.csv", "queries.csv", "clients.csv", "model.json", "privacy.json", "checkpoint.npz"):
            (self.folder / old).unlink(missing_ok=True)
        file = path.open("w+b")
        file.write(
            (
                ",".join(
                    [
                        "round",
                        "online",
                        "interactions",
                        "bytes_up",
                        "bytes_down",
                        *self.measures,
                        *["reward"] * self.rewarded,
                    ]
                )
                + "\n"
            ).encode()
        )
        return file


def clients_of(asked: Experiment, fold: int, seed: int) -> Clients:
    """The clients of a concrete experiment."""
    return make_clients(
        load_fold(asked.data, fold).train,
        asked.clients.count,
        partition=asked.methods.partition,
        user=asked.methods.users,
        interactions=asked.clients.interactions,
        user_per=asked.clients.user_per,
        malicious=asked.clients.malicious,
        malicious_user=getattr(asked.methods.attack, "user", None),
        seed=seed,
    )


def load_fold(data: Any, fold: int) -> Fold:
    """The fold of a spec's [data]; kept, because runs that differ in their seed share it."""
    if data.log is not None:
        share = TEST_SHARE if data.test_share is None else data.test_share
        return _load_log(data.log, data.users, share, data.normalise or "query")
    if data.name is not None:
        return _load_named(data.name, fold, data.normalise)
    return _load_files(data.train, data.test, data.validation, data.normalise or "none")


_load_named = lru_cache(maxsize=2)(load)
_load_files = lru_cache(maxsize=2)(load_files)
_load_log = lru_cache(maxsize=2)(log_fold)


def recorded_bytes(asked: Question) -> int:
    """What the recorded updates of one run of a concrete experiment take on disk, at most."""
    if not isinstance(asked, Experiment) or not asked.record_every:
        return 0
    return size_beforehand(asked.clients.count, setting_of(asked).parameters, asked.rounds, asked.record_every)


def _history(folder: Path, every: int, clients: int, parameters: int, round: int) -> HistoryWriter | None:
    """Where updates are recorded, if they are to be."""
    return HistoryWriter(folder / "history", clients, parameters, every, round) if every else None


def _remember(history: HistoryWriter, arrived: Arrivals) -> None:
    if history.wants(arrived.round):
        history.add(arrived.round, arrived.ids, arrived.updates, arrived.weights)


def _keep(history: HistoryWriter | None) -> None:
    if history is not None:
        history.keep()


def start_weights(asked: Experiment, clients: Clients, seed: int) -> Weights | None:
    """What the federation begins with, if not with the ranker's own first weights."""
    learner, weights = asked.methods.learner, None
    if asked.start is not None:
        model = load_weights(asked.start)
        if model.ranker.hidden != learner.ranker.hidden or model.weights.ndim != 1:
            raise ValueError(
                f"start = {asked.start!r} is not a model of the same ranker as learner.ranker; choose the one it has"
            )
        weights = model.weights
    if interactions := getattr(asked.methods.partition, "warm_up", 0):
        if weights is None:
            weights = first_weights(learner.ranker, clients, seed)
        weights = warm_up(learner, weights, clients, seed, interactions)
    return weights


def queries_csv(evaluator: Evaluator, measures: list[str], weights: Weights, ranker: Ranker) -> str:
    values = evaluator.per_query(weights, ranker)
    if weights.ndim == 2:
        values = average(np.moveaxis(values, 1, -1))
    lines = [",".join(["query", *measures])]
    for query, column in zip(evaluator.data.query_ids, values.T, strict=True):
        quoted = f'"{query}"' if "," in query else str(query)
        lines.append(",".join([quoted, *("" if np.isnan(v) else repr(float(v)) for v in column)]))
    return "\n".join(lines) + "\n"


def _by_client(
    asked: Experiment, state: State, clients: Clients, seed: int, threads: int
) -> dict[str, NDArray[np.float64]]:
    """Quality of every client with the final model, with its personal one, and after fine-tuning, where these exist."""
    learner = asked.methods.learner
    models = {"": state.weights}
    if state.memory is not None and getattr(learner, "personal", "none") != "none":
        models = {" averaged": state.weights, " personal": personal_models(learner, state, clients)}
    if asked.fine_tune:
        last = list(models.values())[-1]
        models[" fine-tuned"] = fine_tune(learner, last, clients, seed, asked.fine_tune, threads)
    if alike(clients) and len(models) == 1:
        return {}
    return {
        f"{name}{kind}": values
        for kind, weights in models.items()
        for name, values in zip(
            asked.measures, quality_by_client(asked.measures, weights, learner.ranker, clients), strict=True
        )
    }


def _clients_csv(qualities: dict[str, NDArray[np.float64]], clients: Clients) -> str:
    queries = np.diff(clients.pools)[clients.pool]
    lines = [",".join(["client", "queries", "interactions", *qualities])]
    for c in range(len(clients)):
        cells = ("" if np.isnan(values[c]) else repr(float(values[c])) for values in qualities.values())
        lines.append(",".join([str(clients.ids[c]), str(queries[c]), str(clients.interactions[c]), *cells]))
    return "\n".join(lines) + "\n"


def _conventions(asked: Experiment) -> dict[str, str]:
    """How the numbers of a federation came about, beyond what its measures mean."""
    conventions = dict(CONVENTIONS)
    if not hasattr(asked.methods.learner, "reward"):
        del conventions["reward"]
    rule = asked.methods.arrival
    if rule is not None:
        what = "the next update of every client that has one" if rule.together else "the arrival of one update"
        what = f"a sum of {rule.gathers} clients' updates" if rule.gathers else what
        conventions["rounds"] = f"row r is the model after round r; a round is {what}"
    if asked.methods.mechanism is not None:
        conventions["noise"] = "from the system's secure source: a repeated run gives other numbers"
    return conventions


def _facts(task: Task) -> dict[str, Any]:
    measured = map(measure, task.experiment.measures)
    conventions = {str(one): f"{MEASURES[one.name]}; {EMPTY[one.empty]}" for one in measured}
    machine = kernels.compile.compiled_for()
    if not kernels.compile.same_bytes_here():
        conventions["machine"] = (
            f"computed on {machine}: the last digits may differ from those on x86-64 and 64-bit ARM, where every "
            "processor gives the same"
        )
    return {
        "format": 1,
        "fedrank": __version__,
        "compiled_for": machine,
        "experiment": task.name,
        "title": task.experiment.title,
        "variant": task.variant,
        "settings": task.settings,
        "fold": task.fold,
        "seed": task.seed,
        "round": 0,
        "rounds": task.experiment.rounds_asked,
        "data": {},
        "conventions": conventions,
        "pid": os.getpid(),
        "error": None,
        "notes": [],
    }


def _read_round(folder: Path) -> int:
    """Rounds that are safe in the checkpoint."""
    kept = _read_checkpoint(folder)
    return 0 if kept is None else int(kept["round"])


def _read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Contents of the checkpoint; None where there is none, or one that cannot be read: then the run begins again."""
    try:
        with np.load(folder / "checkpoint.npz", allow_pickle=False) as kept:
            return dict(kept)
    except (OSError, ValueError, EOFError, BadZipFile):
        return None


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    write_whole(folder / "run.json", json.dumps(facts, indent=1) + "\n")
