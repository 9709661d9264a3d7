"""A run between sites, on the coordinator: it writes the same run folder as `fedrank run`, plus `sites.csv`.

Every round is written to disk before the next one is requested: the result depends on which sites answered in time,
which cannot be reproduced. After a crash the coordinator repeats only the request of the interrupted round, and sites
answer with the same bytes as before.
"""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.deploy import protocol
from fedrank.deploy.backup import HEADS
from fedrank.deploy.handshake import Handshake
from fedrank.deploy.heads import Witness
from fedrank.deploy.hub import Hub
from fedrank.deploy.plan import Plan
from fedrank.deploy.pooled_sums import PooledSums
from fedrank.deploy.received import ReceivedAnswers
from fedrank.deploy.releases import release_charges
from fedrank.deploy.run_card import data_of, with_what_left
from fedrank.deploy.site_calls import Exchange, Send, SiteCalls
from fedrank.deploy.site_measures import as_columns, as_sums, ask_measures
from fedrank.experiments.runner.cards import issued
from fedrank.experiments.runner.data import clients_of
from fedrank.experiments.runner.federated import FederatedRun
from fedrank.experiments.runner.folder import DEPLOYED_RUN, Card, Receipt
from fedrank.experiments.runner.not_covered import not_covered_between_sites
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.privacy import Price, card
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.writer import News, RunWriter, Task
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.federated.asynchronous import schedule
from fedrank.federated.clients import make_clients
from fedrank.federated.server import ServerTask, State
from fedrank.files import parse_json, write_atomic
from fedrank.ranking.model import load_weights
from fedrank.seeds import rng_for
from fedrank.types import SimulatedClients, has_trait

if TYPE_CHECKING:
    from fedrank.deploy.unlearning import Departure

SITES, STATUS, ATTEMPTS, LEFT_OUT, PLAN = "sites.csv", "sites.json", "attempts.json", "left-out.json", "plan.json"
COLUMNS = ("round", "site", "seconds", "bytes_down", "bytes_up", "refused")
SECONDS_BETWEEN_STATUS = 1.0
MAX_LINE_LENGTH = 1 << 14  # maximum length of a line of sites.csv in bytes


def coordinate(
    task: Task,
    plan: Plan,
    send: Send,
    tell: Callable[[News], None] = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
    patience: float = 60.0,
    departure: Departure | None = None,
    say: Callable[[str], None] = lambda line: None,
    home: Path | None = None,
) -> str:
    """Perform or continue a run between sites; return its status: finished, interrupted or failed.

    `say` receives a message about the sites that the run waits for. With `departure`, the rounds unlearn sites that
    left. `home` stores the newest heads of the sites' journals; without it, the run folder does.
    """

    def performer(experiment: Any, writer: RunWriter) -> None:
        _keep_plan(writer.folder, plan)
        books = Books(writer.folder, say)
        received = None if plan.simulated else ReceivedAnswers(writer.folder)
        recorded = send if received is None else received.recording(send)
        calls = SiteCalls(plan, recorded, patience, books.note, books.waiting, writer.stop, books.left_out())
        calls.witness = Witness((home or writer.folder) / HEADS)
        run = Coordination(writer, plan, calls, books, departure, received)
        if plan.forests is not None:
            from fedrank.deploy.forest_hub import perform_forests

            return perform_forests(experiment, run)
        if plan.silos is not None:
            from fedrank.deploy.silo_hub import perform_silos

            return perform_silos(experiment, run)
        return _perform(experiment, run)

    # A job may be submitted while the one before it finishes: without a checkpoint, it would begin again at round 1.
    if (task.folder / PLAN).exists() and [run.status for run in load_runs(task.folder)] == ["finished"]:
        check_same_plan(task.folder, plan)
        return "finished"
    return perform(task, 1, tell, stop, performer)


@dataclass(frozen=True)
class Coordination:
    """A run between sites of any kind, as performed by its coordinator."""

    writer: RunWriter
    plan: Plan
    calls: SiteCalls
    books: Books
    departure: Departure | None = None
    received: ReceivedAnswers | None = None  # None in a trial, whose people are simulated

    def issue(
        self, card: Card, data: str, gate: Mapping[str, Any] | None = None, releases: Collection[str] = ()
    ) -> None:
        """Write the model card. Sites receive it with the model, before the run counts as finished."""
        if self.received is None:
            issued(card, self.writer.folder, data).write(self.writer.folder)
            return
        card = with_what_left(card, self.plan, self.received, gate, releases)
        whose, by = data_of(self.plan, self.received, data), f"the coordinator of {self.plan.federation}"
        issued(card, self.writer.folder, whose, by=by).write(self.writer.folder)

    def give_result(self, round: int, handshake: Handshake) -> dict[str, str]:
        """Send the model, its card and a receipt to every site; return why sites did not accept them."""
        files = {"model": "model.json", "card": Card.FILE, "receipt": Receipt.FILE}
        paths = {part: self.writer.folder / name for part, name in files.items()}
        content = {part: path.read_bytes() if path.exists() else b"" for part, path in paths.items()}
        why = self.calls.give(round, content)
        if protocol.SAY_HELLO in why.values():  # sites that were restarted after the last round
            handshake.over = round
            why = handshake.greet_strangers(why)
            again = [name for name, reason in why.items() if reason == protocol.SAY_HELLO]
            why = {name: reason for name, reason in why.items() if name not in again}
            why |= self.calls.give(round, content, again)
        return why


def site_notes(left_out: Mapping[str, str], undelivered: Mapping[str, str]) -> list[str]:
    """Notes in the run folder about sites that were excluded or that did not accept the result."""
    notes = [f"{name}: {reason}" for name, reason in left_out.items()]
    return notes + [f"{name} did not receive the result: {reason}" for name, reason in undelivered.items()]


def deployed(card: Card, plan: Plan, clients: Collection[int] | None = None) -> Card:
    """The card of a model that sites trained; `clients` participated (None: all). A trial has a simulation's card."""
    if plan.simulated:
        return card
    sites = ", ".join(site.name for site in plan.sites if clients is None or site.clients[0] in clients)
    summary = f"{card.summary} Sites that participated: {sites}."
    return replace(card, what=DEPLOYED_RUN, summary=summary, not_covered=not_covered_between_sites(plan.question))


def _keep_plan(folder: Path, plan: Plan) -> None:
    """Store the plan that sites accepted; raise ValueError if the run folder belongs to another plan."""
    check_same_plan(folder, plan)
    if not (folder / PLAN).exists():
        write_atomic(folder / PLAN, plan.dump(), private=True)


def check_same_plan(folder: Path, plan: Plan) -> None:
    """Raise ValueError if a run folder was started with another plan: sites accepted that one, not this one."""
    path = folder / PLAN
    if not path.exists():
        return
    before, now = parse_json(path.read_bytes()), parse_json(plan.dump())
    if differ := [key for key in now if before.get(key) != now[key]]:
        key = "version" if "version" in differ else differ[0]
        way_out = (
            "finish the run with the version that started it, or start a new run with another --name"
            if key == "version"
            else "restore the previous spec and --set, or start a new run with another --name; sites must accept it"
        )
        was, is_now = before.get(key), now[key]
        if key == "spec":
            pairs = zip_longest(str(was).splitlines(), str(is_now).splitlines(), fillvalue="nothing")
            was, is_now = next((pair for pair in pairs if pair[0] != pair[1]), (was, is_now))
        raise ValueError(
            f"{folder} was started with another plan: its {key} is {_short(was)}, but now it is {_short(is_now)}; "
            f"{way_out}"
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _perform(experiment: FederatedExperiment, run: Coordination) -> None:
    writer, plan, books, departure = run.writer, run.plan, run.books, run.departure
    task, folder = writer.task, FederatedRun(experiment, writer)
    simulated = clients_of(experiment, task.fold, task.seed) if plan.simulated else None
    last, arrivals = experiment.rounds, None
    if experiment.arrival is not None and simulated is not None:
        arrivals = schedule(simulated, experiment.arrival)
        last = min(last, arrivals.rounds)
    folder.describe(last)
    own = simulated
    if own is None and has_trait(plan.federated.aggregator, "trusted queries"):
        own = make_clients(folder.fold.train, 1)  # the coordinator's queries, by which the aggregator estimates trust
    hub = Hub(run.calls, begin_attempt=books.attempt, simulated=own)
    state, memory, _ = folder.begin()
    if departure is not None:
        hub.reshape = departure.reshape
    if state is None:
        start = departure.start if departure is not None else _start(experiment, folder, simulated)
        if simulated is not None:
            state, memory = folder.first(plan.federated, simulated, start)
        else:
            state = state_before(plan, start)
    folder.record_updates(len(plan.clients), plan.sent)
    if folder.history is not None:
        hub.watch = folder.history.watch
    hub.handshake.hello(state.round)
    books.progress(plan, state.round, last)
    pooled = PooledSums(writer.folder, hub.handshake)
    if notes := pooled.propensities():
        writer.update_facts(notes=notes)
    for outcome in hub.rounds(state, memory, last, arrivals):
        state, memory = outcome.state, outcome.memory
        ends = outcome.round == last
        folder.add(outcome, ends, _measured(folder, pooled, outcome) if ends else None)
        # Write this round to disk before requesting the next one: the result depends on which sites answered in time.
        writer.save_checkpoint(outcome.round, folder.checkpoint(state, memory))
        books.keep_left_out(run.calls.left_out)
        books.progress(plan, outcome.round, last)
        writer.report_progress(outcome.round, last)
        if not ends:
            writer.stop_if_requested()
    _finish(run, folder, hub, (state, memory), simulated, pooled)


def _measured(folder: FederatedRun, pooled: PooledSums, outcome: Any) -> list[float] | None:
    """The quality of the final model as sites released it, means over sites; None if the coordinator has data.

    Sites take the place of queries in the files of the run.
    """
    experiment = folder.experiment
    if not experiment.data.at_sites:
        return None
    folder.save_model(outcome.weights, None, pooled.plan.features)
    found = pooled.quality(outcome.weights, outcome.round, folder.writer.folder / "model.json")
    return folder.measured_by_sites(found) if found else None


def _finish(
    run: Coordination,
    folder: FederatedRun,
    hub: Hub,
    reached: tuple[Any, Any],
    simulated: SimulatedClients | None,
    pooled: PooledSums,
) -> None:
    """Evaluate the model, write its card, and send both to every site."""
    writer, plan, departure, (state, memory) = run.writer, run.plan, run.departure, reached
    if simulated is not None:
        weights, models, clients = folder.final(plan.federated, state, memory, simulated)
    else:
        weights, models = plan.whole(state.weights), None
        clients = {}
    folder.save_model(weights, models, plan.features)
    model = writer.folder / "model.json"
    if simulated is None:
        plain = ask_measures(hub.handshake, weights, state.round)
        clients = as_columns(plain | as_sums(pooled.quality(weights, state.round, model)), plan) or {}
    gate = pooled.gate(weights, state.round, model)
    # Write and send everything before the run counts as finished: a run that stops here continues.
    evaluated = "" if folder.experiment.data.at_sites else folder.fold.name
    priced = card_of(folder.experiment, plan, run.books.charged(state.round), pooled.requested)
    run.issue(priced, evaluated, gate, pooled.requested)
    if departure is not None:
        departure.write_receipt(writer.folder, plan, state, plan.searches)
    why = run.give_result(state.round, hub.handshake)
    if departure is not None:
        why |= departure.tell_those_who_left(run.calls.send, writer.folder)
    unlearned = None if departure is None else {**departure.asked(writer.folder), "last_round": state.round}
    notes = site_notes(run.calls.left_out, why)
    if gate is not None:
        notes += [f"gate: {gate['outcome']}", *(f"gate: {line}" for line in gate["words"])]
    folder.finish(state, weights, notes=notes, clients=clients, unlearned=unlearned)
    run.books.progress(plan, state.round, state.round)


def state_before(plan: Plan, start: Any = None) -> State:
    """The coordinator's state before round 1."""
    weights = plan.experiment.learner.ranker.first(plan.features, rng_for(plan.seed, "first"))
    task = ServerTask(plan.federated, len(plan.clients), plan.experiment.arrival)
    return task.first((weights if start is None else start)[: plan.sent])


def _start(experiment: FederatedExperiment, folder: FederatedRun, simulated: SimulatedClients | None) -> Any:
    """The initial model, if the coordinator names one."""
    if simulated is not None:
        return folder.start(simulated)
    return None if experiment.start is None else load_weights(experiment.start).weights


def card_of(experiment: FederatedExperiment, plan: Plan, charged: int, releases: Collection[str] = ()) -> Card:
    """The privacy card of a model that sites trained, with the cost of the sums that were requested from them.

    It is that of a deployment, unless the sites are simulated.
    """
    often, delta = min(1, charged) if plan.federated.dealt else charged, experiment.privacy.delta
    rows = Price.of_each(experiment.guarantees(plan.features), often, charged, delta)
    charges = [promises for kind, promises in release_charges(plan, experiment.measures).items() if kind in releases]
    rows = [one.with_releases(charges) for one in rows]
    return deployed(card(experiment, rows, often, charged, plan.simulated), plan)


class Books:
    """Files that a coordinator writes besides the run: exchanges, attempts at secure aggregation, waiting sites."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.folder, self._told, self._refusal, self._say, self._said = folder, 0.0, "", say, ""
        self._attempts: dict[str, int] = self._read(ATTEMPTS, int)
        self._rows: list[tuple[Any, ...]] = []
        self._left_out: dict[str, str] = {}
        self._contact: dict[str, float] = {}  # when each site last sent something

    def note(self, round: int, asked: Exchange) -> None:
        self._rows.append((round, asked.site, f"{asked.seconds:.4f}", asked.bytes_down, asked.bytes_up, asked.reason))
        if asked.bytes_up:
            self._contact[asked.site] = time.time()
        if asked.reason and asked.reason != protocol.SAY_HELLO:
            self._refusal = f"round {round}, {asked.site}: {asked.reason}"

    def waiting(self, round: int, why: Mapping[str, str]) -> None:
        self._status({"round": round, "waiting": dict(why)}, now=True)
        line = f"waiting in round {round:,}: " + "; ".join(f"{name}: {reason}" for name, reason in why.items())
        if line != self._said:
            self._said = line
            self._say(line)

    def progress(self, plan: Plan, round: int, last: int) -> None:
        self._write_rows()
        self._status({"run": plan.name, "round": round, "rounds": last, "waiting": {}}, now=round == last)

    def attempt(self, round: int) -> int:
        """The number of a new attempt at secure aggregation, stored before any request: each is charged."""
        number = self._attempts.get(str(round), -1) + 1
        self._attempts[str(round)] = number
        if number or len(self._attempts) > 1:
            self._attempts = {key: value for key, value in self._attempts.items() if value or key == str(round)}
        write_atomic(self.folder / ATTEMPTS, json.dumps(self._attempts) + "\n")
        return number

    def charged(self, rounds: int) -> int:
        """Maximum number of charges of a site that was never absent."""
        return rounds + sum(self._attempts.values())

    def left_out(self) -> dict[str, str]:
        self._left_out = {str(name): str(why) for name, why in self._read(LEFT_OUT, str).items()}
        return dict(self._left_out)

    def keep_left_out(self, left_out: Mapping[str, str]) -> None:
        """Store the sites that stay excluded until an operator readmits them, also after a restart."""
        if left_out == self._left_out:
            return
        for name in left_out.keys() - self._left_out.keys():
            self._say(f"{name}: {left_out[name]}")
        self._left_out = dict(left_out)
        write_atomic(self.folder / LEFT_OUT, json.dumps(dict(left_out), ensure_ascii=False, indent=1) + "\n")

    def _read(self, name: str, kind: type) -> dict[str, Any]:
        path = self.folder / name
        try:
            found = parse_json(path.read_bytes()) if path.exists() else {}
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(type(value) is kind for value in found.values()):
            raise ValueError(f"{path} is damaged, and the run cannot continue without it; restore it from a backup")
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
            file.seek(max(0, end - MAX_LINE_LENGTH))
            tail = file.read()
            file.truncate(end - len(tail) + tail.rfind(b"\n") + 1)  # remove a line that a crash left incomplete
            file.seek(0, os.SEEK_END)
            writer.writerows(self._rows)
            file.write(text.getvalue().encode())
        self._rows.clear()

    def _status(self, found: Mapping[str, Any], now: bool) -> None:
        clock = time.monotonic()
        if not now and clock - self._told < SECONDS_BETWEEN_STATUS:
            return
        self._told = clock
        content = {"at": time.time(), **found, "last_refusal": self._refusal, "contact": self._contact}
        write_atomic(self.folder / STATUS, json.dumps(content, ensure_ascii=False) + "\n", private=True)
