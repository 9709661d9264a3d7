"""Forgetting: finished runs and clients who leave go in, run folders without them come out, each with a receipt.

A parent run is only read, unless it is to be purged. A new run folder appears at once and whole, under a name that no
reader looks at until then: whoever is interrupted has nothing, and types the same command again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrank import __version__
from fedrank.experiment.families import describe
from fedrank.experiment.federated_spec import Experiment, read_experiment
from fedrank.experiment.findings import show
from fedrank.experiment.privacy import card, summary
from fedrank.experiment.run import SECONDS_BETWEEN_NEWS, clients_of, load_fold, queries_csv, start_weights
from fedrank.experiment.spec import to_toml
from fedrank.experiment.store import Run, load_runs, working_on
from fedrank.federate.quality import alike, quality_by_client
from fedrank.federate.round import Federation, State, first_weights, personal_models
from fedrank.files import write_whole
from fedrank.rank.measures import Evaluator
from fedrank.rank.model import Model, load_weights, save_model
from fedrank.seeds import Chance
from fedrank.types import Arrivals, Clients, Learner, Memory, Ranker, Weights
from fedrank.unlearn.history import INDEX, History
from fedrank.unlearn.methods import Case, FedEraser, FedRemove, Retrain, Unlearned, Unlearner
from fedrank.unlearn.verify import Verification, distance_to_retrained, purge_parent, receipt, what_remains

if TYPE_CHECKING:
    from rich.console import Console

MORE_SEEDS = 3  # training seeds besides the run's own, for the spread of retrained models
MOST_POINTS = 1000  # of a curve: models are held until they are evaluated together
SECONDS_BETWEEN_LINES = 10.0  # where progress is plain lines
Tell = Callable[[str, int, int], None]  # (what is done, rounds of it so far, rounds in all)
UNLEARNED = ", unlearned"  # the end of a title
DISTANCES = ("weights", "cosine", "tau", "overlap")


@dataclass(frozen=True)
class Forgotten:
    """What became of one run."""

    parent: Run
    folder: Path  # of the new run
    receipt: dict[str, Any]
    skipped: bool = False  # it was there before


def unlearn_runs(
    folders: Sequence[str | os.PathLike[str]],
    leaving: Sequence[int],
    unlearner: Unlearner,
    out: str | os.PathLike[str] = "runs",
    name: str | None = None,
    *,
    verify: bool = False,
    purge: bool = False,
    threads: int = 1,
    console: Console | None = None,
) -> list[Forgotten]:
    """Let the leaving clients be forgotten by every finished run at or below some folders.

    Everything that can be refused beforehand is refused before the first run is touched. `verify` trains again without
    them, with several seeds, and compares. `purge` deletes the parents' models and the clients' history, after all.
    """
    runs = _to_unlearn(folders)
    plan = [(run, _place(run, unlearner, Path(out), _name(run, name))) for run in runs]
    twice = [folder for i, (_, folder) in enumerate(plan) if folder in [other for _, other in plan[:i]]]
    if twice:
        raise ValueError(
            f"two of these runs would become {twice[0]}; give the experiments one after the other, each with its --name"
        )
    for run in runs:
        _check_known(run, leaving)
    done = [_done_before(run, folder, leaving, unlearner, verify) for run, folder in plan]
    for (run, _), before in zip(plan, done, strict=True):
        if before is not None:
            continue
        case = _request(run, leaving, unlearner, threads).case
        if verify and case.federation.mechanism is not None:
            raise ValueError(
                f"{run.path}: verifying retrains, and this run protects every message at a price that retraining "
                "cannot book; leave out --verify"
            )
    results = []
    with _progress(console) as tell:
        for (run, folder), before in zip(plan, done, strict=True):
            result = before
            if result is None:
                label = f"{folder.parent.name}, fold {run.fold}, seed {run.seed}"
                request = _request(run, leaving, unlearner, threads)
                result = _forget(request, folder, _name(run, name), verify, label, tell)
            results.append(result)
    if purge:
        results = [_purge(result, leaving) for result in results]
    return results


def _check_known(run: Run, leaving: Sequence[int]) -> None:
    """Before anything else is said of a request: whoever never took part cannot leave."""
    kind = run.spec.get("kind", "federated")
    if kind != "federated":
        raise ValueError(
            f'{run.path} is a run of kind "{kind}", and unlearning replays rounds of clients in step; take out the '
            "data of those who leave, and run the experiment again"
        )
    count = run.spec.get("clients", {}).get("count", 0)
    unknown = [client for client in leaving if not 0 <= client < count]
    if unknown:
        raise ValueError(f"no client {unknown[0]} in {run.path}, whose clients are 0 to {count - 1}; name one of these")


def show_forgotten(results: Sequence[Forgotten], console: Console) -> None:
    """Print what came out: cost, and, where it was verified, quality and distances next to retrained models."""
    from rich.table import Table
    from rich.text import Text

    for result in results:
        paid = result.receipt["cost"]
        title = f"{result.folder.parent.name}, fold {result.parent.fold}, seed {result.parent.seed}"
        console.print(Text(title + (" (done before)" if result.skipped else ""), style="bold"), soft_wrap=True)
        cost = f"{paid['interactions']:,} local interactions in {paid['rounds']:,} rounds"
        if paid["share_of_retraining"] is not None:
            cost += f", {100 * paid['share_of_retraining']:.1f} % of retraining"
        cost += f"; {paid['cpu_seconds']:.2f} s of processor time{_against(result.receipt)}"
        console.print(Text(cost), soft_wrap=True)
        quality = result.receipt["quality"]
        table = Table(box=None, pad_edge=False, header_style="dim")
        found = result.receipt["verified"] if "unlearned" in result.receipt["verified"] else None
        columns = [*quality, *(("weights", "cosine", "tau", "top-10 shared") if found else ())]
        for heading in ("model", *columns):
            table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)
        rows = {"parent": "before", "unlearned": "unlearned"} | ({"retrained": "spread"} if found else {})
        for model, distance in rows.items():
            values = [_mean_of(values.get(model)) for values in quality.values()]
            far = (found[distance] or dict.fromkeys(DISTANCES)) if found else {}
            table.add_row(model, *map(_number, values), *(_number(far[key]) for key in DISTANCES if found))
        console.print(table)
        if found:
            console.print(Text(_verdict(found)))
        for line in result.receipt["purged"]:
            console.print(Text(f"purged {line}", style="dim"), soft_wrap=True)
        console.print(Text(f"New run: {result.folder}"), soft_wrap=True)


def _against(receipt: dict[str, Any]) -> str:
    retrained = receipt["verified"].get("retrained_cpu_seconds")
    return "" if retrained is None else f", retraining took {retrained:.2f} s"


def _verdict(found: dict[str, Any]) -> str:
    count = found["retrained"]
    means = (
        f"Distances are to {count} models that were retrained with different seeds; those differ as the last row says."
    )
    if found["within_spread"] is None:
        return means
    out = [name for name, share in found["as_far"].items() if share == 0]
    if found["within_spread"]:
        return f"{means} By every distance, some retrained model lies as far out: within their spread."
    return (
        f"{means} By {', '.join(out)} the unlearned model lies farther out than all of them: not within their spread."
    )


def _mean_of(value: Any) -> float | None:
    values = [one for one in (value if isinstance(value, list) else [value]) if one is not None]
    return float(np.mean(values)) if values else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


@dataclass(frozen=True)
class _Request:
    """All that is known before the first round of unlearning."""

    run: Run
    facts: dict[str, Any]  # run.json of the run
    ancestors: tuple[Path, ...]  # the run, its parent, and so on, to the one that was trained
    asked: Experiment
    model: Model
    case: Case
    unlearner: Unlearner
    gone: tuple[int, ...]  # all who leave now or left before


def _to_unlearn(folders: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """The finished runs; unlearned ones only if there are no others, so that a repeated command does the same."""
    found = load_runs(folders)
    given = {Path(folder).resolve() for folder in folders}
    for run in found:
        if run.status != "finished" and (run.path in given or not len(found.finished)):
            raise ValueError(f"{run.path} is {run.status} ({run.reason}), and only a finished run can be unlearned")
    if not len(found.finished):
        raise ValueError("no runs to unlearn from; give the folder that `fedrank run` wrote to, or one run folder")
    trained = [run for run in found.finished if "unlearned" not in _facts(run.path)]
    return trained or list(found.finished)


def _place(run: Run, unlearner: Unlearner, out: Path, name: str) -> Path:
    return out / name / _variant(run, unlearner)[0] / run.path.name


def _name(run: Run, name: str | None) -> str:
    return name or f"{run.experiment}-unlearned"


def _variant(run: Run, unlearner: Unlearner) -> tuple[str, dict[str, Any]]:
    """Name and settings of the new variant: those of the parent, if it has any, then the method and its settings."""
    method = describe(unlearner)
    plain = run.variant == "only"
    parts = [*([] if plain else [run.variant]), method["name"]]
    parts += [f"{key}={show(value)}" for key, value in method.items() if key != "name"]
    settings = run.settings
    if not plain and (not settings or "method.name" in settings):
        settings = {"variants": run.variant}
    return re.sub(r"[^\w.=,+-]+", "-", ",".join(parts)), settings | {f"method.{key}": v for key, v in method.items()}


def _asked_for(run: Run, folder: Path, leaving: Sequence[int], unlearner: Unlearner) -> dict[str, Any]:
    """What identifies a request, as it stands in run.json."""
    return {
        "parent": os.path.relpath(run.path, folder),
        "clients": sorted({int(client) for client in leaving}),
        "method": describe(unlearner),
    }


def _done_before(
    run: Run, folder: Path, leaving: Sequence[int], unlearner: Unlearner, verify: bool
) -> Forgotten | None:
    """The result of the same request, if it is there; a folder of another one is never overwritten."""
    if not folder.exists():
        return None
    facts = _facts(folder) if (folder / "run.json").exists() else {}
    had = facts.get("unlearned", {})
    if {key: had.get(key) for key in ("parent", "clients", "method")} != _asked_for(run, folder, leaving, unlearner):
        raise FileExistsError(
            f"{folder} holds another run, and nothing is overwritten; choose another --out or --name, or delete that "
            "folder"
        )
    paper = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))
    return None if verify and "unlearned" not in paper["verified"] else Forgotten(run, folder, paper, skipped=True)


def _request(run: Run, leaving: Sequence[int], unlearner: Unlearner, threads: int) -> _Request:
    try:
        return _checked_request(run, leaving, unlearner, threads)
    except ValueError as problem:
        raise ValueError(f"{run.path}: {problem}") from None


def _checked_request(run: Run, leaving: Sequence[int], unlearner: Unlearner, threads: int) -> _Request:
    facts, ancestors = _facts(run.path), _ancestors(run.path)
    before = facts.get("unlearned", {})
    asked = read_experiment(run.path / "spec.toml")
    _check_protection(asked, unlearner)
    everybody = clients_of(asked, run.fold, run.seed)
    clients = everybody.rows(~np.isin(everybody.ids, before.get("gone", [])))
    federation = Federation(
        learner=asked.methods.learner,
        aggregator=asked.methods.aggregator,
        server=asked.methods.server,
        attack=asked.methods.attack if clients.malicious.any() else None,
        mechanism=asked.methods.mechanism,
        participation=asked.clients.participation,
    )
    if not (run.path / "model.json").exists():
        raise ValueError("its model was purged, so nothing is left to unlearn; use the run that was made from it")
    model = load_weights(run.path)
    case = Case(
        federation=federation,
        clients=clients,
        leaving=tuple(leaving),
        seed=run.seed,
        first=first_weights(asked.methods.learner.ranker, clients, run.seed),
        final=model.weights if model.weights.ndim == 1 else model.weights[0],
        rounds=int(before.get("rounds_trained", run.round)),
        history=_history(ancestors[-1]),
        points=max(1, min(MOST_POINTS, len(run.evaluated))),
        threads=threads,
    )
    # Only those who stay may have a part in where training begins: a warm-up is done by one of them.
    case = replace(case, first=_first(asked, case.remaining, run.seed))
    case.somebody(describe(unlearner)["name"])
    if case.history is None and isinstance(unlearner, (FedEraser, FedRemove)):
        raise ValueError(
            f"{describe(unlearner)['name']} needs what clients sent, and this run recorded nothing; run it again with "
            'record_every = 10, or use a method that needs no history: "retrain", "fine-tune", "gradient-ascent"'
        )
    if model.weights.ndim == 2 and not isinstance(unlearner, Retrain):
        raise ValueError(
            "clients keep weights of their own, and the model that they shared was not stored, so nothing can go on "
            "from it; use --method retrain"
        )
    if "last_round" in before:
        case = replace(case, final=State(int(before["last_round"]), model.weights))
    gone = (*before.get("gone", ()), *case.leaving)
    return _Request(run, facts, ancestors, asked, model, case, unlearner, tuple(sorted(gone)))


def _check_protection(asked: Experiment, unlearner: Unlearner) -> None:
    mechanism = asked.methods.mechanism
    if mechanism is None or not mechanism.adds_up:
        return
    place = describe(mechanism)["place"]["name"]
    if place == "secure-sum":
        why = "nobody but the clients ever saw single updates, so none can be taken out again"
    else:
        why = "noise was added to the sum of updates only, so a model made of some of them would be unprotected"
    raise ValueError(
        f"the mechanism has place = {place!r}: {why}; run the experiment again without the clients that leave"
    )


def _first(asked: Experiment, clients: Clients, seed: int) -> Weights:
    weights = start_weights(asked, clients, seed)
    return first_weights(asked.methods.learner.ranker, clients, seed) if weights is None else weights


def _history(folder: Path) -> History | None:
    return History.open(folder / "history") if (folder / "history" / INDEX).exists() else None


def _facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return facts


def _ancestors(path: Path) -> tuple[Path, ...]:
    """A run, its parent, and so on, as far as they are still there."""
    found = [path]
    while "unlearned" in (facts := _facts(found[-1])):
        parent = Path(os.path.normpath(found[-1] / facts["unlearned"]["parent"]))
        if not (parent / "run.json").exists():
            break
        found.append(parent)
    return tuple(found)


@dataclass
class _Counted:
    """A learner that counts what it asks of clients, whichever method asks; in all else it is the learner itself."""

    learner: Learner
    searches: int = 0
    up: int = 0  # bytes
    down: int = 0  # bytes

    @property
    def ranker(self) -> Ranker:
        return self.learner.ranker

    def __getattr__(self, name: str) -> Any:
        if name == "learner":  # while it is being made
            raise AttributeError(name)
        return getattr(self.learner, name)

    def __call__(
        self, start: Weights, memory: Memory, clients: Clients, chance: Chance, threads: int = 1, *more: Any
    ) -> tuple[Arrivals, Memory]:
        arrived, rows = self.learner(start, memory, clients, chance, threads, *more)
        if len(clients) and clients.ids[0] >= 0:  # a server that searches by itself sends nothing
            parameters = start.shape[-1]
            remembering = getattr(self.learner, "bytes_down", None) if memory is not None else None
            down = remembering(parameters) if remembering else 4 * parameters
            self.searches += int(clients.interactions.sum())
            self.up += len(clients) * (arrived.message_bytes or 4 * parameters)
            self.down += len(clients) * down
        return arrived, rows

    @property
    def tally(self) -> tuple[int, int, int]:
        return self.searches, self.up, self.down


@dataclass
class _Watch:
    """Processor time and time on the clock since it was made."""

    clock: float = field(default_factory=time.monotonic)
    cpu: float = field(default_factory=time.process_time)

    @property
    def passed(self) -> tuple[float, float]:
        return time.monotonic() - self.clock, time.process_time() - self.cpu


def _forget(request: _Request, folder: Path, name: str, verify: bool, label: str, tell: Tell) -> Forgotten:
    case, asked, run = request.case, request.asked, request.run
    fold = load_fold(asked.data, run.fold)
    judged = fold.test if asked.data.evaluate_on == "test" else fold.validation
    assert judged is not None  # the run was judged by it
    evaluator, ranker = Evaluator(judged, asked.measures), asked.methods.learner.ranker
    counted = _Counted(asked.methods.learner)
    tallies: dict[int, tuple[int, int, int]] = {}

    def progress(done: int, rounds: int) -> None:
        tallies[done] = counted.tally
        tell(label, done, rounds)

    watch = _Watch()
    federation = replace(case.federation, learner=counted)
    unlearned = request.unlearner(replace(case, federation=federation), progress)
    seconds = watch.passed
    curve = evaluator(np.stack([weights for _, weights in unlearned.curve]), ranker)
    verification: Verification | None = None
    more: dict[str, Any] = {}
    quality = _quality(request, evaluator, unlearned.weights)
    if verify:
        verification, more, retrained = _verify(request, unlearned, label, tell)
        for one, values in _quality_of(evaluator, ranker, np.stack(retrained)).items():
            quality[one]["retrained"] = values
        _on_own_queries(request, quality, unlearned.weights, retrained)
    paper = receipt(case, request.unlearner, unlearned, run.path, verification)
    paper["verified"] |= more
    paper["cost"] |= {
        "seconds": round(seconds[0], 3),
        "cpu_seconds": round(seconds[1], 3),
        "bytes_up": counted.up,
    }
    paper |= {"quality": quality, "parent": os.path.relpath(run.path, folder)}
    paper["remains"] = _remains(request.ancestors, case.leaving)
    files = {
        "spec.toml": to_toml(replace(asked, title=_title(run))),
        "rounds.csv": _rounds_csv(asked.measures, unlearned, curve, tallies),
        "queries.csv": queries_csv(evaluator, asked.measures, unlearned.weights, ranker),
        "timing.csv": f"round,seconds,cpu_seconds\n{unlearned.rounds},{seconds[0]:.3f},{seconds[1]:.3f}\n",
        "privacy.json": _json(_card(request, counted, unlearned)),
        "receipt.json": _json(paper),
        "run.json": _json(_new_facts(request, folder, name, unlearned)),
    }
    notes = request.model.notes | {"unlearned": {"clients": list(request.gone), "method": describe(request.unlearner)}}
    weights = unlearned.weights
    if request.model.weights.ndim == 2:
        weights = personal_models(asked.methods.learner, unlearned.state, case.remaining)
    _appear(folder, files, replace(request.model, weights=weights, notes=notes))
    return Forgotten(run, folder, paper)


def _quality_of(evaluator: Evaluator, ranker: Ranker, models: Weights) -> dict[str, list[float | None]]:
    values = evaluator(models, ranker)
    return {
        str(name): [None if np.isnan(value) else float(value) for value in row]
        for name, row in zip(evaluator.measures, values, strict=True)
    }


def _quality(request: _Request, evaluator: Evaluator, weights: Weights) -> dict[str, dict[str, Any]]:
    """Of the last models, by measure; a curve's end, not the mean of its last points."""
    ranker, before = request.asked.methods.learner.ranker, request.model.weights
    parent = _quality_of(evaluator, ranker, np.atleast_2d(before))
    after = _quality_of(evaluator, ranker, weights[None])
    return {name: {"parent": _mean_of(parent[name]), "unlearned": after[name][0]} for name in after}


def _verify(
    request: _Request, unlearned: Unlearned, label: str, tell: Tell
) -> tuple[Verification, dict[str, Any], list[Weights]]:
    """Compare with models that never knew the leaving clients; clients and their queries stay, chance is another."""
    case, asked, run = request.case, request.asked, request.run
    exact = isinstance(request.unlearner, Retrain)  # then it is the first of the retrained ones itself
    seeds = [run.seed + i for i in range(int(exact), MORE_SEEDS + 1)]
    models, watch = [], _Watch()
    for i, seed in enumerate(seeds, 1):
        again = replace(case, seed=seed, first=_first(asked, case.remaining, seed), points=1)
        models.append(Retrain()(again, partial(tell, f"{label}, retraining {i} of {len(seeds)}")).weights)
    cpu = watch.passed[1] / len(seeds)
    fold = load_fold(asked.data, run.fold)
    before = request.model.weights if request.model.weights.ndim == 1 else None
    verification = distance_to_retrained(
        unlearned.weights, np.stack(models), asked.methods.learner.ranker, fold.test, before
    )
    return verification, {"seeds": seeds, "retrained_cpu_seconds": round(cpu, 3)}, models


def _on_own_queries(
    request: _Request, quality: dict[str, dict[str, Any]], weights: Weights, retrained: Sequence[Weights]
) -> None:
    """Quality for those who left, on the queries that only they may have: a model that served them better knew them."""
    case, asked = request.case, request.asked
    if alike(case.clients) or request.model.weights.ndim == 2:
        return
    leaving = case.clients.rows(np.isin(case.clients.ids, case.leaving))
    measure, ranker = asked.measures[:1], asked.methods.learner.ranker

    def served(model: Weights) -> float | None:
        values = quality_by_client(measure, model, ranker, leaving)[0]
        return None if np.isnan(values).all() else float(np.nanmean(values))

    quality[f"{measure[0]} for the leaving"] = {
        "parent": served(request.model.weights),
        "unlearned": served(weights),
        "retrained": [served(model) for model in retrained],
    }


def _rounds_csv(
    measures: Sequence[str], unlearned: Unlearned, values: Any, tallies: dict[int, tuple[int, int, int]]
) -> str:
    """Rows of evaluated rounds only; nobody is served while a model is unlearned, so there is no online quality."""
    lines = [",".join(["round", "online", "interactions", "bytes_up", "bytes_down", *measures])]
    for (done, _), column in zip(unlearned.curve, values.T, strict=True):
        cells = ("" if np.isnan(value) else repr(float(value)) for value in column)
        lines.append(",".join([str(done), "", *map(str, tallies[done]), *cells]))
    return "\n".join(lines) + "\n"


def _title(run: Run) -> str:
    title = run.title or run.experiment
    return title if title.endswith(UNLEARNED) else title + UNLEARNED


def _new_facts(request: _Request, folder: Path, name: str, unlearned: Unlearned) -> dict[str, Any]:
    run, method = request.run, describe(request.unlearner)
    variant, settings = _variant(run, request.unlearner)
    conventions = {key: text for key, text in run.conventions.items() if key not in ("online", "reward")}
    conventions["rounds"] = (
        "row r is the model after round r of unlearning, which has as many evaluations as the training had"
    )
    leaving = request.case.leaving
    who = f"client {leaving[0]} was" if len(leaving) == 1 else f"clients {', '.join(map(str, leaving))} were"
    exact = "" if isinstance(request.unlearner, Retrain) else "; only retrain is exact"
    parent = os.path.relpath(run.path, folder)
    return {
        "format": 1,
        "fedrank": __version__,
        "experiment": name,
        "title": _title(run),
        "variant": variant,
        "settings": settings,
        "fold": run.fold,
        "seed": run.seed,
        "status": "finished",
        "round": unlearned.rounds,
        "rounds": unlearned.rounds,
        "data": run.data,
        "conventions": conventions,
        "pid": os.getpid(),
        "error": None,
        "notes": [*run.notes, f"{who} unlearned by {show(method)}{exact}"],
        "unlearned": {
            "parent": parent,
            "clients": list(request.case.leaving),
            "method": method,
            "gone": list(request.gone),  # also by earlier requests
            "rounds_trained": request.case.rounds,
            "last_round": unlearned.state.round,  # chance up to here is used up
        },
    }


def _card(request: _Request, counted: _Counted, unlearned: Unlearned) -> dict[str, Any]:
    """The privacy card of the new model: the parent's, as far as it still holds, and what unlearning added."""
    file = request.run.path / "privacy.json"
    had: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    facts = card(replace(request.asked, record_every=0), [], 0, 0)
    facts |= {key: had[key] for key in ("rounds_charged", "participations_charged", "promises") if key in had}
    for row in facts["promises"]:
        # The new model is made of the recorded messages alone, so whoever sees it learns at most what the server could.
        whole = next((other for other in facts["promises"] if other["against"] == "server"), None)
        claims = ("epsilon", "epsilon_each_time", "times", "paid_per", "neighbours")
        row |= (
            {key: whole[key] for key in claims} if whole is not None else {"epsilon": None, "epsilon_each_time": None}
        )
        row["because"] = "the model is made of recorded messages, so it tells at most what the server could learn"
    if counted.up:
        added = (
            f"unlearning asked remaining clients for updates of {unlearned.rounds:,} more rounds, which left them as "
            "they were; nothing is claimed for these either"
        )
    else:
        added = "unlearning asked no client for anything: it added up recorded messages again"
    facts["unlearned"] = {"clients": list(request.gone), "method": describe(request.unlearner), "added": added}
    facts["not_covered"].append(added)
    facts["not_covered"].append("the parent run, as far as it still exists; see receipt.json for what it holds")
    return facts | {"summary": f"{summary(facts)} A model without clients that left: {added}."}


def _remains(ancestors: Sequence[Path], leaving: Sequence[int]) -> list[dict[str, str]]:
    """What the run and those before it still hold of the leaving clients."""
    return [
        row | ({} if i == 0 else {"run": os.path.relpath(folder, ancestors[0])})
        for i, folder in enumerate(ancestors)
        for row in what_remains(folder, leaving)
    ]


def _purge(result: Forgotten, leaving: Sequence[int]) -> Forgotten:
    """Delete what the run and those before it hold of the leaving clients; the receipt says so."""
    ancestors, purged = _ancestors(result.parent.path), []
    for i, folder in enumerate(ancestors):
        with working_on(folder):
            lines = purge_parent(folder, sorted(set(leaving)))
        purged += lines if i == 0 else [f"{os.path.relpath(folder, ancestors[0])}/{line}" for line in lines]
    paper = result.receipt | {
        "purged": list(dict.fromkeys([*result.receipt["purged"], *purged])),
        "remains": _remains(ancestors, sorted(set(leaving))),
    }
    write_whole(result.folder / "receipt.json", _json(paper))
    return replace(result, receipt=paper)


def _appear(folder: Path, files: dict[str, str], model: Model) -> None:
    """Write a run folder under another name and rename it: it is there as a whole, or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        for name, content in files.items():
            write_whole(part / name, content)
        save_model(model, part / "model.json")
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o777 & ~mask)  # mkdtemp makes private folders; a run is like any other
        if folder.exists():  # the same request, now verified
            os.rename(folder, old := part.with_name(f"{part.name}.old"))
            os.rename(part, folder)
            shutil.rmtree(old)
        else:
            os.rename(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@contextmanager
def _progress(console: Console | None) -> Iterator[Tell]:
    """A bar on a terminal, a line now and then elsewhere."""
    if console is None:
        yield lambda text, done, rounds: None
    elif console.is_terminal:
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=12), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(compact=True), console=console, transient=True) as progress:
            bar = progress.add_task("", total=None)
            yield _now_and_then(
                SECONDS_BETWEEN_NEWS,
                lambda text, done, rounds: progress.update(bar, description=escape(text), completed=done, total=rounds),
            )
    else:
        yield _now_and_then(
            SECONDS_BETWEEN_LINES,
            lambda text, done, rounds: console.print(
                f"{text}, round {done:,} of {rounds:,}", soft_wrap=True, highlight=False, markup=False
            ),
        )


def _now_and_then(seconds: float, tell: Tell) -> Tell:
    told = time.monotonic()

    def maybe(text: str, done: int, rounds: int) -> None:
        nonlocal told
        if time.monotonic() - told >= seconds:
            told = time.monotonic()
            tell(text, done, rounds)

    return maybe
