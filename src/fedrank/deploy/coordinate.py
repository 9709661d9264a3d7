"""A run between sites, seen from the coordinator: the same run folder as from `fedrank run`, and `sites.csv`.

Every round is on the disk before the next one is asked for: who answered in time decides what follows, and nobody
could repeat that. So a coordinator that is killed asks again for the one round that was under way, and sites answer
with the bytes that they sent before.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.deploy.hub import Hub
from fedrank.deploy.plan import Plan
from fedrank.deploy.site_calls import Exchange, Send
from fedrank.experiments.runner.cards import issued
from fedrank.experiments.runner.data import clients_of, described, judged, load_fold
from fedrank.experiments.runner.federated import (
    by_client,
    conventions_of,
    parts_of,
    per_query,
    record,
    start_weights,
    state_of,
)
from fedrank.experiments.runner.folder import DEPLOYED_RUN, Card
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.privacy import card, prices, promises_of
from fedrank.experiments.runner.writer import News, RunWriter, Task
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.federated.asynchronous import schedule
from fedrank.federated.clients import make_clients
from fedrank.federated.round import evaluated, first_state, personal_models
from fedrank.files import parse_json, write_whole
from fedrank.ranking.baseline_ranking import baseline_order
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.model import Model, save_model
from fedrank.seeds import rng_for
from fedrank.types import SimulatedClients, has_trait
from fedrank.unlearning.history import HistoryWriter

if TYPE_CHECKING:
    from fedrank.deploy.unlearning import Departure

SITES, STATUS, ATTEMPTS, LEFT_OUT, PLAN = "sites.csv", "sites.json", "attempts.json", "left-out.json", "plan.json"
COLUMNS = ("round", "site", "seconds", "bytes_down", "bytes_up", "refused")
SECONDS_BETWEEN_STATUS = 1.0
LONGEST_LINE = 1 << 14  # bytes of one of sites.csv


def coordinate(
    task: Task,
    plan: Plan,
    send: Send,
    tell: Callable[[News], None] = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
    patience: float = 60.0,
    departure: Departure | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> str:
    """Do a run between sites, or what is left of it; its status: finished, interrupted or failed.

    `say` is told in words for whom the run waits. With `departure` its rounds unlearn who left another run.
    """

    def performer(experiment: Any, writer: RunWriter) -> None:
        _keep_plan(writer.folder, plan)
        if plan.forests is not None:
            from fedrank.deploy.forest_hub import perform_forests

            return perform_forests(experiment, writer, plan, send, patience, say)
        if plan.silos is not None:
            from fedrank.deploy.silo_hub import perform_silos

            return perform_silos(experiment, writer, plan, send, patience, say)
        return _perform(experiment, writer, plan, send, patience, departure, say)

    return perform(task, 1, tell, stop, performer)


def _keep_plan(folder: Path, plan: Plan) -> None:
    """A run folder belongs to one plan: what sites accepted, and what their outboxes answer."""
    path = folder / PLAN
    if not path.exists():
        write_whole(path, plan.dump(), private=True)
        return
    before, now = parse_json(path.read_bytes()), parse_json(plan.dump())
    if differ := [key for key in now if before.get(key) != now[key]]:
        key = "version" if "version" in differ else differ[0]
        way_out = (
            "finish the run with the version it began with, or begin a new one under another --name"
            if key == "version"
            else "plan it as before, or begin a new run under another --name"
        )
        raise ValueError(
            f"{folder} was begun with another plan: its {key} is {_short(before.get(key))}, and now "
            f"{_short(now[key])}; {way_out}"
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _perform(
    experiment: FederatedExperiment,
    writer: RunWriter,
    plan: Plan,
    send: Send,
    patience: float,
    departure: Departure | None,
    say: Callable[[str], None],
) -> None:
    task, books = writer.task, Books(writer.folder, say)
    fold = load_fold(experiment.data, task.fold)
    crowd = clients_of(experiment, task.fold, task.seed) if plan.simulated else None
    federation, ranker, features = plan.federated, experiment.learner.ranker, plan.features
    last, arrivals = experiment.rounds, None
    if experiment.arrival is not None and crowd is not None:
        arrivals = schedule(crowd, experiment.arrival)
        last = min(last, arrivals.rounds)
    writer.know(
        notes=fold.notes,
        conventions=conventions_of(experiment),
        data=described(fold.name, fold.train.queries, fold.test.queries, fold.train),
        asked=last,
    )
    evaluator = Evaluator(judged(fold, experiment.data), experiment.measures)
    hub = Hub(
        plan,
        send,
        patience,
        note=books.note,
        waiting=books.waiting,
        stop=writer.stop,
        begin_attempt=books.attempt,
        left_out=books.left_out(),
        crowd=crowd if crowd is not None else _own_queries(fold, federation),
    )
    kept = writer.begin(lambda models: evaluator(models, ranker), reward=has_trait(experiment.learner, "rewards"))
    if departure is not None:
        hub.reshape = departure.reshape
    if kept is None and departure is not None:
        state, memory = first_state_of(plan, departure.start, crowd)
    elif kept is None:
        start = start_weights(experiment, crowd, task.seed) if crowd is not None else _start(experiment)
        state, memory = first_state_of(plan, start, crowd)
    else:
        state, memory = state_of(kept), kept.get("memory")
    history = None
    if experiment.record_every:
        clients, size = len(plan.clients), federation.sent(ranker.size(features))
        history = HistoryWriter(writer.folder / "history", clients, size, experiment.record_every, writer.round)
        hub.watch = history.watch
    hub.hello(state.round)
    books.progress(plan, state.round, last)
    for outcome in hub.rounds(state, memory, last, arrivals):
        state, memory = outcome.state, outcome.memory
        ends = outcome.round == last
        record(outcome, writer, evaluate=outcome.round % experiment.evaluate_every == 0 or ends)
        if history is not None:
            history.keep()
        # Before the next round is asked for, this one is on the disk: what follows depends on who came in time.
        writer.keep(outcome.round, parts_of(state, memory))
        books.keep_left_out(hub.left_out)
        books.progress(plan, outcome.round, last)
        writer.say(outcome.round, last)
        if not ends:
            writer.check()
    _finish(experiment, writer, plan, hub, fold, evaluator, state, memory, crowd, books, departure)


def _finish(
    experiment: FederatedExperiment,
    writer: RunWriter,
    plan: Plan,
    hub: Hub,
    fold: Any,
    evaluator: Evaluator,
    state: Any,
    memory: Any,
    crowd: SimulatedClients | None,
    books: Books,
    departure: Departure | None,
) -> None:
    """Judge the model, issue its card, and give both to every site."""
    federation, ranker = plan.federated, experiment.learner.ranker
    weights, models = plan.whole(state.weights), None
    if crowd is not None:
        weights = evaluated(federation, state, memory, crowd)
        if has_trait(federation.local, "shared part"):
            models = personal_models(federation, state, memory, crowd)
    origin = writer.origin(fold.name)
    train = fold.train
    shape = plan.features, train.normalised, train.feature_names, origin, train.ranges
    save_model(Model(ranker, weights if models is None else models, *shape), writer.folder / "model.json")
    notes = [f"{name}: {why}" for name, why in hub.left_out.items()]
    clients = by_client(experiment, weights, models, crowd, writer.task.seed, 1) if crowd is not None else None
    if crowd is None:
        clients = _measured(hub, experiment, weights, state.round)
    # All that sites get is written and given before the run counts as finished: whoever is stopped here comes back.
    issued(card_of(experiment, plan, books.charged(state.round)), writer.folder, fold.name).write(writer.folder)
    if departure is not None:
        departure.write_receipt(writer.folder, plan, state, hub.searches)
    why = give_result(hub, writer.folder, state.round)
    if departure is not None:
        why |= departure.tell_those_who_left(hub.send, writer.folder)
    notes += [f"{name} has not been given the result: {reason}" for name, reason in why.items()]
    writer.finish(
        state.round,
        notes=notes,
        queries=(evaluator.data.query_ids.tolist(), per_query(evaluator, weights, ranker)),
        nothing=baseline_order(evaluator, experiment.data.given),
        clients=clients,
        unlearned=None if departure is None else departure.facts(writer.folder, state.round),
    )
    books.progress(plan, state.round, state.round)


def first_state_of(plan: Plan, start: Any, crowd: SimulatedClients | None) -> tuple[Any, Any]:
    """The state before round 1, and what simulated clients keep."""
    if crowd is not None:
        return first_state(plan.federated, crowd, plan.seed, start, plan.experiment.arrival)
    from fedrank.federated.server import ServerTask

    ranker = plan.experiment.learner.ranker
    weights = ranker.first(plan.features, rng_for(plan.seed, "first")) if start is None else start
    task = ServerTask(plan.federated, len(plan.clients), plan.experiment.arrival)
    return task.first(weights[: plan.sent]), None


def _start(experiment: FederatedExperiment) -> Any:
    """The model that the coordinator begins with, if it names one."""
    if experiment.start is None:
        return None
    from fedrank.ranking.model import load_weights

    return load_weights(experiment.start).weights


def _own_queries(fold: Any, federation: Any) -> SimulatedClients | None:
    """The coordinator's own client, where a rule learns from queries that it trusts."""
    if not has_trait(federation.aggregator, "trusted queries"):
        return None
    return make_clients(fold.train, 1)


def card_of(experiment: FederatedExperiment, plan: Plan, charged: int) -> Card:
    """The privacy card of a model that sites made: deployed, unless they simulated their people."""
    rows = prices(promises_of(experiment, plan.features), charged, charged, experiment.privacy.delta)
    made = card(experiment, rows, charged, charged)
    if plan.simulated:
        return made
    sites = ", ".join(site.name for site in plan.sites)
    return replace(made, what=DEPLOYED_RUN, not_covered=(*made.not_covered, f"which sites took part: {sites}"))


def _measured(hub: Hub, experiment: FederatedExperiment, weights: Any, round: int) -> dict[str, Any] | None:
    """Quality at the sites that report it: sums of measures, next to what their users had before."""
    found = hub.measured(weights, round)
    if not found:
        return None
    columns: dict[str, list[Any]] = {"client": [], "queries": []}
    for name, table in found.items():
        columns["client"].append(hub.plan.party(name).clients[0])
        columns["queries"].append(max((row[2] for row in table.values()), default=0))
        for measure in experiment.measures:
            model, given, count = table.get(measure, (math.nan, math.nan, 0))
            columns.setdefault(measure, []).append(model / count if count else math.nan)
            columns.setdefault(f"{measure} given", []).append(given / count if count else math.nan)
    return columns


def give_result(hub: Hub, folder: Path, round: int) -> dict[str, str]:
    """Give the model and its card to every site that answers; of the others, why they have it not."""
    parts = {"model": folder / "model.json", "card": folder / "privacy.json", "receipt": folder / "receipt.json"}
    content = {name: path.read_bytes() if path.exists() else b"" for name, path in parts.items()}
    return hub.give(round, **content)


class Books:
    """What a coordinator writes down besides the run: who answered, how often a secure sum was tried, who waits."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.folder, self._told, self._refusal, self._say, self._said = folder, 0.0, "", say, ""
        self._attempts: dict[str, int] = self._read(ATTEMPTS, int)
        self._rows: list[tuple[Any, ...]] = []
        self._left_out: dict[str, str] = {}

    def note(self, round: int, asked: Exchange) -> None:
        self._rows.append((round, asked.site, f"{asked.seconds:.4f}", asked.bytes_down, asked.bytes_up, asked.reason))
        if asked.reason:
            self._refusal = f"round {round}, {asked.site}: {asked.reason}"

    def waiting(self, round: int, why: Mapping[str, str]) -> None:
        self._status({"round": round, "waiting": dict(why)}, now=True)
        line = f"waits, in round {round:,}: " + "; ".join(f"{name}: {reason}" for name, reason in why.items())
        if line != self._said:
            self._said = line
            self._say(line)

    def progress(self, plan: Plan, round: int, last: int) -> None:
        self._write_rows()
        self._status({"run": plan.name, "round": round, "rounds": last, "waiting": {}}, now=round == last)

    def attempt(self, round: int) -> int:
        """The number of a new attempt at a secure sum, noted before anybody is asked: each is charged."""
        number = self._attempts.get(str(round), -1) + 1
        self._attempts[str(round)] = number
        if number or len(self._attempts) > 1:
            self._attempts = {key: value for key, value in self._attempts.items() if value or key == str(round)}
        write_whole(self.folder / ATTEMPTS, json.dumps(self._attempts) + "\n")
        return number

    def charged(self, rounds: int) -> int:
        """How often a site that was always there has paid, at most."""
        return rounds + sum(self._attempts.values())

    def left_out(self) -> dict[str, str]:
        self._left_out = {str(name): str(why) for name, why in self._read(LEFT_OUT, str).items()}
        return dict(self._left_out)

    def keep_left_out(self, left_out: Mapping[str, str]) -> None:
        """Who stays out until an operator lets them in again: what the coordinator decided outlives it."""
        if left_out == self._left_out:
            return
        self._left_out = dict(left_out)
        write_whole(self.folder / LEFT_OUT, json.dumps(dict(left_out), ensure_ascii=False, indent=1) + "\n")

    def _read(self, name: str, kind: type) -> dict[str, Any]:
        path = self.folder / name
        try:
            found = parse_json(path.read_bytes()) if path.exists() else {}
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(type(value) is kind for value in found.values()):
            raise ValueError(f"{path} is damaged, and the run cannot go on without it; restore it from a backup")
        return found

    def _write_rows(self) -> None:
        if not self._rows:
            return
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        path = self.folder / SITES
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            if not end:
                writer.writerow(COLUMNS)
            file.seek(max(0, end - LONGEST_LINE))
            tail = file.read()
            file.truncate(end - len(tail) + tail.rfind(b"\n") + 1)  # of a line that a crash cut short nothing is known
            file.seek(0, os.SEEK_END)
            writer.writerows(self._rows)
            file.write(text.getvalue().encode())
        self._rows.clear()

    def _status(self, found: Mapping[str, Any], now: bool) -> None:
        clock = time.monotonic()
        if not now and clock - self._told < SECONDS_BETWEEN_STATUS:
            return
        self._told = clock
        told = {"at": time.time(), **found, "last_refusal": self._refusal}
        write_whole(self.folder / STATUS, json.dumps(told, ensure_ascii=False) + "\n", private=True)
