"""Unlearning: creates run folders without clients who leave, from finished runs, each with a receipt.

A parent run is only read, unless it is to be purged. A new run folder appears complete, by renaming: after an
interruption there is none, and the same command can be repeated.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.forget_user import is_left
from fedrank.experiments.runner.cards import issued_receipt, sha256
from fedrank.experiments.runner.certificates import check_certifiable, completed, removed_people
from fedrank.experiments.runner.data import clients_of, described, evaluation_queries, load_fold
from fedrank.experiments.runner.federated import per_query, start_weights
from fedrank.experiments.runner.folder import Card, Facts, Paid, Receipt
from fedrank.experiments.runner.privacy import card, population_totals, summary
from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.runner.traces import ancestors_of, history_of, purge_traces, what_remains
from fedrank.experiments.runner.unlearning_charges import UnlearningCharges, population_of
from fedrank.experiments.runner.writer import RunWriter, Task, Totals
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.source import read_spec
from fedrank.federated.partition import Iid
from fedrank.federated.quality import alike
from fedrank.federated.round import first_weights, personal_models
from fedrank.federated.server import State
from fedrank.privacy.population import SIMULATED
from fedrank.progress import Progress, by_rounds, quiet
from fedrank.ranking.baseline_ranking import baseline_order
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.model import Model, load_weights, save_model
from fedrank.toml import readable
from fedrank.types import SimulatedClients, Weights, has_trait
from fedrank.unlearning.methods import Case, Unlearned, Unlearner
from fedrank.unlearning.verify import (
    Forgetting,
    distance_to_retrained,
    forget,
    quality_for_the_leaving,
    quality_of,
    receipt,
    retrain,
)

MAX_POINTS = 1000  # maximum points of a curve: models stay in memory until they are evaluated together
UNLEARNED = ", unlearned"  # the suffix of a title
ROUNDS = "row r is the model after round r of unlearning, with as many evaluations as the training"
OF_RECORDED = "the model is computed from recorded messages, so it reveals at most what the server could learn"
NOBODY_ASKED = "unlearning contacted no clients: it aggregated recorded messages again"
CERTIFIED = "unlearning read the remaining lists; receipt.json has the certificate, which is not an ε per client"


@dataclass(frozen=True)
class Forgotten:
    """The result of unlearning for one run."""

    parent: Run
    folder: Path  # of the new run
    receipt: Receipt
    skipped: bool = False  # it existed before


def unlearn_runs(
    folders: Sequence[str | os.PathLike[str]],
    leaving: Sequence[int],
    unlearner: Unlearner,
    out: str | os.PathLike[str] = "runs",
    name: str | None = None,
    *,
    verify: bool = False,
    purge: bool = False,
    trust: bool = False,
    progress: Progress = quiet,
) -> list[Forgotten]:
    """Make every finished run in some folders forget the leaving clients.

    All errors that can be detected in advance are raised before the first run is changed; whether a named population
    can pay is known only when the run's turn comes. `verify` retrains without the clients, with several seeds, and
    compares. `purge` then deletes the parents' models and the clients' history. Without `trust`, runs with external
    methods are refused before these are imported.
    """
    requests = [_request(run, leaving, unlearner, Path(out), name, trust) for run in _to_unlearn(folders)]
    targets = [request.task.folder for request in requests]
    if twice := [folder for i, folder in enumerate(targets) if folder in targets[:i]]:
        raise ValueError(
            f"two of these runs would be written to {twice[0]}; process the experiments separately, each with its "
            "own --name"
        )
    done = [request.done_before(verify) for request in requests]
    for request, before in zip(requests, done, strict=True):
        if before is None:
            request.case()
            if verify and request.certified:
                raise ValueError(
                    "--verify compares with repetitions of the run, and certified trains in another way; remove "
                    "--verify: the receipt has the certificate"
                )
            if verify and request.spec.mechanism is not None:
                raise ValueError(
                    f"{request.run.path}: --verify retrains, but this run protects every message, and retraining "
                    "cannot be charged to its ledger; remove --verify"
                )
    results = [
        _forget(request, verify, progress) if before is None else before
        for request, before in zip(requests, done, strict=True)
    ]
    return [_purge(result, requests[0].leaving) for result in results] if purge else results


def _to_unlearn(folders: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """The finished runs; unlearned ones only without others, so a repeated command does the same."""
    found = load_runs(folders)
    given = {Path(folder).resolve() for folder in folders}
    for run in found:
        if run.status != "finished" and (run.path in given or not len(found.finished)):
            raise ValueError(f"{run.path} is {run.status} ({run.reason}); only finished runs can be unlearned")
    if not len(found.finished):
        raise ValueError("no runs were found; give the folder that `fedrank run` wrote to, or one run folder")
    trained = [run for run in found.finished if run.unlearned is None]
    return trained or list(found.finished)


@dataclass(frozen=True)
class _Request:
    """Which clients a run is to forget, and how."""

    run: Run
    spec: FederatedExperiment  # of the run
    leaving: tuple[int, ...]
    unlearner: Unlearner
    task: Task  # the new run

    @property
    def certified(self) -> bool:
        """Whether the method gives a certificate, and also forgets people who were removed from the data set."""
        return has_trait(self.unlearner, "certified")

    @property
    def data(self) -> dict[str, Any]:
        """The description of the data as they are now; people may have been removed from a log since the run."""
        if self.spec.data.log is None:
            return self.run.data
        fold = load_fold(self.spec.data, self.run.fold)
        return described(fold.name, fold.train.queries, fold.test.queries, fold.train)

    @property
    def before(self) -> dict[str, Any]:
        """The result of an earlier request, if any."""
        return self.run.unlearned or {}

    @property
    def gone(self) -> list[int]:
        """All clients who leave now or left before."""
        return sorted((*self.before.get("gone", ()), *self.leaving))

    @property
    def asked(self) -> dict[str, Any]:
        """The entries of run.json that identify a request."""
        asked = {
            "parent": os.path.relpath(self.run.path, self.task.folder),
            "clients": list(self.leaving),
            "method": describe(self.unlearner),
        }
        people = removed_people(self.spec.data) if self.certified else []
        return asked | ({"people": people} if people else {})

    def done_before(self, verify: bool) -> Forgotten | None:
        """The result of the same request, if it exists; a folder of another run is never overwritten."""
        folder = self.task.folder
        if not folder.exists():
            return None
        facts = Facts.read(folder)
        had = (facts.unlearned if facts is not None else None) or {}
        if {key: had.get(key) for key in self.asked} != self.asked:
            raise FileExistsError(
                f"{folder} contains another run, which is not overwritten; choose another --out or --name, or delete "
                "that folder"
            )
        paper = Receipt.read(folder)
        return None if paper is None or (verify and not paper.is_verified) else Forgotten(self.run, folder, paper, True)

    def first(self, clients: SimulatedClients, seed: int) -> Weights:
        """The model before round 1. Only remaining clients may influence it, so one of them does a warm-up."""
        weights = start_weights(self.spec, clients, seed)
        return first_weights(self.spec.learner.ranker, clients, seed) if weights is None else weights

    def case(self) -> tuple[Case, Model]:
        """The original run, if this method can unlearn it, and its model."""
        try:
            return self._case()
        except ValueError as problem:
            raise ValueError(f"{self.run.path}: {problem}") from None

    def _case(self) -> tuple[Case, Model]:
        run, spec, before = self.run, self.spec, self.before
        _check_protection(spec)
        if spec.population != SIMULATED:
            population_of(spec, ancestors_of(run.path)[-1])
        if self.certified:
            check_certifiable(spec, run.fold)
        spec = self._with_remaining_lists()
        everybody = clients_of(spec, run.fold, run.seed)
        simulated = everybody.rows(~np.isin(everybody.ids, before.get("gone", [])))
        if not (run.path / "model.json").exists():
            raise ValueError("its model was purged; use the run that was unlearned from it")
        model = load_weights(run.path)
        personal = model.weights.ndim == 2
        rounds = int(before.get("rounds_trained", run.round))
        final = model.weights[0] if personal else model.weights
        case = Case(
            federation=spec.federation(attacked=bool(simulated.malicious.any())),
            clients=simulated,
            leaving=self.leaving,
            seed=run.seed,
            first=first_weights(spec.learner.ranker, simulated, run.seed),
            final=State(int(before.get("last_round", rounds)), final),
            rounds=rounds,
            history=history_of(ancestors_of(run.path)[-1]),
            points=max(1, min(MAX_POINTS, len(run.evaluated))),
        )
        case = replace(case, first=self.first(case.remaining, run.seed))
        name = describe(self.unlearner)["name"]
        if not self.certified:
            case.check_leaving(name)
        if case.history is None and has_trait(self.unlearner, "history"):
            raise ValueError(
                f"{name} needs recorded updates, and this run has none; run it again with record_every = 10, "
                'or use a method without history: "retrain", "fine-tune", "gradient-ascent"'
            )
        if personal and not has_trait(self.unlearner, "exact"):
            raise ValueError(
                "clients have personal weights, and the shared model was not stored, so it cannot be continued; "
                "use --method retrain"
            )
        return case, model

    def _with_remaining_lists(self) -> FederatedExperiment:
        """The experiment, whose clients have the lists to train on; without a leaving client, those of the data set."""
        changed = any(self.data[part] != self.run.data.get(part) for part in ("train_queries", "test_queries"))
        if self.leaving and changed:
            raise ValueError(
                "the data set has changed since this run, so the numbers of its clients may belong to others; run the "
                "experiment again, or use --method certified without --client after `fedrank forget person`"
            )
        if self.leaving or not self.certified:
            return self.spec
        if not changed:
            raise ValueError(
                "no client leaves, and the data set has not changed since this run; name a client, such as "
                "--client 9, or remove a person's rows first with `fedrank forget person`"
            )
        if self.gone:
            raise ValueError(
                f"clients {', '.join(map(str, self.gone))} left this run before, and their lists are still in the "
                "changed data set; remove their rows, and start from the run that they left"
            )
        return replace(self.spec, clients=replace(self.spec.clients, count=1, partition=Iid()))


def _request(
    run: Run, leaving: Sequence[int], unlearner: Unlearner, out: Path, name: str | None, trust: bool
) -> _Request:
    """Check a request first: only clients of the run can leave it."""
    spec = read_spec(run.path / "spec.toml", trust=trust).base
    if not isinstance(spec, FederatedExperiment) or spec.kind != "federated":
        raise ValueError(
            f'{run.path} is a run of kind "{spec.kind}", but unlearning replays synchronous rounds; remove '
            "the data of those who leave, and run the experiment again"
        )
    if spec.clients.schedule == "dealt" and not has_trait(unlearner, "asks nobody"):  # prose: ok
        raise ValueError(
            f"{describe(unlearner)['name']} asks clients again, but {run.path} has a dealt schedule, in which each "
            "participates once; use fed-remove, or run the experiment again without those who leave"
        )
    count = spec.clients.count
    unknown = [client for client in leaving if not 0 <= client < count]
    if unknown:
        raise ValueError(f"client {unknown[0]} does not exist in {run.path}; its clients are 0 to {count - 1}")
    name = name or f"{run.experiment}-unlearned"
    variant, settings = _variant(run, unlearner)
    title = run.title or run.experiment
    renamed = replace(spec, title=title if title.endswith(UNLEARNED) else title + UNLEARNED)
    task = Task(out / name / variant / run.path.name, renamed, name, variant, settings, run.fold, run.seed)
    return _Request(run, spec, tuple(sorted({int(client) for client in leaving})), unlearner, task)


def _variant(run: Run, unlearner: Unlearner) -> tuple[str, dict[str, Any]]:
    """Name and settings of the new variant: those of the parent, if it has any, then the method and its settings."""
    method = describe(unlearner)
    plain = run.variant == "only"
    own = [method["name"], *(f"{key}={readable(value)}" for key, value in method.items() if key != "name")]
    if run.unlearned is not None and f",{run.variant}".endswith(f",{_name_of(own)}"):
        return run.variant, run.settings  # names of a long chain stay short
    parts = [*([] if plain else [run.variant]), *own]
    settings = run.settings
    if not plain and (not settings or "method.name" in settings):
        settings = {"variants": run.variant}
    return _name_of(parts), settings | {f"method.{key}": v for key, v in method.items()}


def _name_of(parts: Sequence[str]) -> str:
    return re.sub(r"[^\w.=,+-]+", "-", ",".join(parts))


def _check_protection(spec: FederatedExperiment) -> None:
    """Raise an error if single updates were never visible, or only their sum was protected."""
    if spec.clients.people > 1:
        raise ValueError(
            f"clients have {spec.clients.people} people each, and unlearning supports only one person per client; "
            "run the experiment again without those who leave"
        )
    if not has_trait(spec.mechanism, "adds up"):
        return
    placement = describe(spec.mechanism)["placement"]["name"]
    reason = "noise was added only to the sum of updates, so a model computed from some of them would be unprotected"
    if placement == "secure-aggregation":
        reason = "the server never saw single updates, so none can be removed"
    raise ValueError(
        f"the mechanism has placement = {placement!r}: {reason}; run the experiment again without the leaving clients"
    )


def _forget(request: _Request, verify: bool, progress: Progress) -> Forgotten:
    """Create the new run."""
    case, model = request.case()
    with _charges_for(request, case) as charges:
        if charges is not None:
            case = replace(case, journal_for=charges.journal_for(case.remaining))
        evaluator = _evaluator(request.task)
        done = forget(case, request.unlearner, by_rounds(progress, request.task.label))
        if request.certified:
            settings = {key: value for key, value in describe(request.unlearner).items() if key != "name"}
            certificate = completed(done.unlearned.certificate, request.spec, settings, request.run.path)
            done = replace(done, unlearned=replace(done.unlearned, certificate=certificate))
        paper = _receipt(request, case, model, done, evaluator, verify, progress)
        weights = done.unlearned.weights
        if model.weights.ndim == 2:
            weights = personal_models(case.without, done.unlearned.state, done.unlearned.memory, case.remaining)
        notes = model.notes | {"unlearned": {"clients": request.gone, "method": describe(request.unlearner)}}
        changed = replace(model, weights=weights, notes=notes)
        facts = _facts(request, case, done) | {"card": _card(request, done, charges)}
        paper = _write_run(request.task, request.run, done, changed, paper, evaluator, **facts)
    return Forgotten(request.run, request.task.folder, paper)


def _charges_for(request: _Request, case: Case) -> AbstractContextManager[UnlearningCharges | None]:
    """The ledger that is charged for updates of a named population; None if simulated, or if no client is contacted."""
    if request.spec.population == SIMULATED or has_trait(request.unlearner, "asks nobody"):  # prose: ok
        return nullcontext()
    parents = ancestors_of(request.run.path)
    known = {key: request.asked[key] for key in ("clients", "method")}
    known |= {"parent": sha256(request.run.path / "model.json")}
    return UnlearningCharges.open(request.spec, case.remaining, parents, request.task.folder, known)


def unlearn_recorded(
    parent: Run, case: Case, unlearner: Unlearner, task: Task, asked: Mapping[str, Any], progress: Progress = quiet
) -> None:
    """Write the run of a model that recorded updates alone give; `asked` describes the request in its run.json."""
    done = forget(case, unlearner, by_rounds(progress, task.label))
    had = parent.card  # the new model tells at most what the coordinator could learn
    _write_run(
        task,
        parent,
        done,
        replace(load_weights(parent.path), weights=done.unlearned.weights),
        _plain_receipt(parent.path, case, unlearner, done.unlearned, task.folder),
        _evaluator(task),
        online=False,
        card=None if had is None else replace(had, not_covered=(*had.not_covered, NOBODY_ASKED)),
        asked=done.unlearned.rounds,
        data=parent.data,
        conventions=parent.conventions,
        unlearned={**asked, "last_round": done.unlearned.rounds},
    )


def issue_receipt(parent: Path, case: Case, unlearner: Unlearner, unlearned: Unlearned, folder: Path) -> Receipt:
    """Write the receipt of a run that unlearned in rounds with clients that are not simulated."""
    paper = issued_receipt(_plain_receipt(parent, case, unlearner, unlearned, folder), folder, parent)
    paper.write(folder)
    return paper


def _plain_receipt(parent: Path, case: Case, unlearner: Unlearner, unlearned: Unlearned, folder: Path) -> Receipt:
    remains = tuple(what_remains(parent, case.leaving))
    return Receipt(**receipt(case, unlearner, unlearned), parent=os.path.relpath(parent, folder), remains=remains)


def _evaluator(task: Task) -> Evaluator:
    spec = task.experiment
    assert isinstance(spec, FederatedExperiment)
    return Evaluator(evaluation_queries(load_fold(spec.data, task.fold), spec.data), spec.measures)


def _write_run(
    task: Task,
    parent: Run,
    done: Forgetting,
    model: Model,
    paper: Receipt,
    evaluator: Evaluator,
    online: bool = True,
    **facts: Any,
) -> Receipt:
    """Write a run folder, complete or not at all; return its receipt as issued."""
    spec = task.experiment
    assert isinstance(spec, FederatedExperiment)
    ranker = spec.learner.ranker
    with atomic_run_folder(task.folder) as part, RunWriter(replace(task, folder=part)) as writer:
        writer.begin(lambda models: evaluator(models, ranker), online=online)
        writer.totals = Totals(seconds=done.seconds, cpu_seconds=done.cpu_seconds)
        for point in done.points:
            writer.add(
                point.round,
                interactions=point.interactions,
                bytes_up=point.bytes_up,
                bytes_down=point.bytes_down,
                model=point.weights,
            )
        save_model(model, part / "model.json")
        writer.finish(
            done.unlearned.rounds,
            queries=(evaluator.data.query_ids.tolist(), per_query(evaluator, done.unlearned.weights, ranker)),
            baseline=baseline_order(evaluator, spec.data.given),
            **facts,
        )
        paper = issued_receipt(paper, part, parent.path)
        paper.write(part)
    return paper


def _receipt(
    request: _Request, case: Case, parent: Model, done: Forgetting, evaluator: Evaluator, verify: bool, tell: Progress
) -> Receipt:
    """What was done, and the distance to retrained models if verification is requested."""
    spec, unlearner, weights = request.spec, request.unlearner, done.unlearned.weights
    ranker, shared = spec.learner.ranker, parent.weights if parent.weights.ndim == 1 else None
    again = found = None
    if verify:
        again = retrain(case, unlearner, partial(request.first, case.remaining), request.task.label, tell)
        test = load_fold(spec.data, request.run.fold).test
        found = distance_to_retrained(weights, again.models, ranker, test, shared)
    paper = receipt(case, unlearner, done.unlearned, found)
    times = {"seconds": round(done.seconds, 3), "cpu_seconds": round(done.cpu_seconds, 3)}
    paper["cost"] |= times | {"bytes_up": done.bytes_up}
    retrained = None if again is None else again.models
    quality = quality_of(evaluator, ranker, parent.weights, weights, retrained)
    if again is not None:
        paper["verified"] |= {"seeds": list(again.seeds), "retrained_cpu_seconds": round(again.cpu_seconds, 3)}
        if shared is not None and not alike(case.clients):
            name, models = spec.measures[0], (shared, weights, again.models)
            quality[f"{name} for the leaving"] = quality_for_the_leaving(case, name, ranker, *models)
    if request.certified:
        paper["verified"] = {"how": "not compared with retrained models: the certificate bounds the difference"}
        paper["cost"] |= {"retraining_interactions": None, "share_of_retraining": None}  # training is another one
        if people := request.asked.get("people"):
            paper["removed"] = {"clients": list(request.leaving), "people": people}
    remains = tuple(what_remains(request.run.path, case.leaving))
    return Receipt(**paper, parent=request.asked["parent"], remains=remains, quality=quality)


def _facts(request: _Request, case: Case, done: Forgetting) -> dict[str, Any]:
    """The facts of the new run about its parent, and how it was created."""
    run, leaving = request.run, request.leaving
    clients = f"client {leaving[0]} was" if len(leaving) == 1 else f"clients {', '.join(map(str, leaving))} were"
    clients = clients if leaving else "people who were removed from the data set were"
    exact = "" if has_trait(request.unlearner, "exact") or request.certified else "; only retrain is exact"
    conventions = {key: text for key, text in run.conventions.items() if key not in ("online", "reward")}
    return {
        "asked": done.unlearned.rounds,
        "data": request.data,
        "conventions": conventions | {"rounds": ROUNDS},
        "notes": (*run.notes, f"{clients} unlearned by {readable(describe(request.unlearner))}{exact}"),
        "unlearned": request.asked
        | {
            "gone": request.gone,  # also by earlier requests
            "rounds_trained": case.rounds,
            "last_round": done.unlearned.state.round,  # randomness up to this round has been used
        },
    }


def _card(request: _Request, done: Forgetting, charges: UnlearningCharges | None) -> Card:
    """The privacy card of the new model: the parent's, as far as it still holds, and what unlearning added."""
    had, made = request.run.card, card(replace(request.spec, record_every=0), [], 0, 0)
    rounds: int | None
    often: int | None
    if charges is not None:
        rounds, often = charges.rounds, charges.participations
        made = replace(made, rounds_charged=rounds, participations_charged=often, promises=charges.paid())
    elif had is not None:
        rounds, often = had.rounds_charged, had.participations_charged
        made = replace(made, rounds_charged=rounds, participations_charged=often, promises=_promises(had.promises))
    if request.spec.population != SIMULATED:
        people, _ = population_of(request.spec, ancestors_of(request.run.path)[-1])
        made = replace(made, population=population_totals(people))
    added = CERTIFIED if request.certified else NOBODY_ASKED
    more = f"unlearning requested updates of {done.unlearned.rounds:,} more rounds from the remaining clients"
    if charges is not None:
        added = f"{more}, protected like those of the run and charged to population {charges.population.name!r}"
    elif done.bytes_up:
        added = f"{more}, without protection; no guarantee holds for these either"
    parent = "the parent run, as far as it still exists; receipt.json lists its contents"
    return replace(
        made,
        unlearned={"clients": request.gone, "method": describe(request.unlearner), "added": added},
        not_covered=(*made.not_covered, added, parent),
        summary=f"{summary(made)} The model was made without clients that left: {added}.",
    )


def _promises(had: Sequence[Paid]) -> tuple[Paid, ...]:
    """The guarantees for remaining clients: the new model reveals at most what the server could learn."""
    server = next((row for row in had if row.against == "server"), None)
    claims: dict[str, Any] = {"epsilon": None, "epsilon_each_time": None}
    if server is not None:
        names = ("epsilon", "epsilon_each_time", "times", "paid_per", "neighbours")
        claims = {name: getattr(server, name) for name in names}
    return tuple(replace(row, because=OF_RECORDED, **claims) for row in had)


def _purge(result: Forgotten, leaving: Sequence[int]) -> Forgotten:
    """Delete data of the leaving clients in the run and its ancestors, and record that in the receipt."""
    parent = result.parent.path
    purged = dict.fromkeys((*result.receipt.purged, *purge_traces(parent, leaving)))
    paper = issued_receipt(replace(result.receipt, purged=tuple(purged), remains=tuple(what_remains(parent, leaving))))
    paper.write(result.folder)
    return replace(result, receipt=paper)


@contextmanager
def atomic_run_folder(folder: Path) -> Iterator[Path]:
    """A run folder under a temporary name, which is renamed at the end: it appears complete or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*"):  # of a killed process: a model never released
        if is_left(left):
            shutil.rmtree(left)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=f".{os.getpid()}"))
    try:
        yield part
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o777 & ~mask)  # mkdtemp makes private folders; a run has the usual permissions
        if folder.exists():  # the same request, now verified
            os.rename(folder, old := part.with_name(f"{part.name}.old"))
            os.rename(part, folder)
            shutil.rmtree(old)
        else:
            os.rename(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
