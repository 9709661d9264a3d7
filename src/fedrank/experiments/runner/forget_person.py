"""Removes one person's rows from a data set, finds the runs that used them, and writes a receipt.

Removing rows does not change a model that was trained on them. The receipt therefore names every such run, what its
privacy card claims, what its folder still contains, and the command that retrains it without the person.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedrank.data.forget_user import RemovedRows, forget_user, is_left, rows_of_user, sweep
from fedrank.data.held_out import purpose_of, read_window
from fedrank.data.logs import FACTS, SearchLog, load_log
from fedrank.experiments.runner.cards import issuer, log_card, read_card, sha256, versions
from fedrank.experiments.runner.certificates import check_certifiable
from fedrank.experiments.runner.data import clear_log_cache, clients_of, load_fold
from fedrank.experiments.runner.folder import SIMULATED_RUN, Card, Json, Written
from fedrank.experiments.runner.privacy import NOT_COVERED as OF_ALL_CARDS
from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.runner.traces import history_of, what_remains
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.source import read_spec
from fedrank.files import UNFINISHED, now, read_bytes, writing
from fedrank.privacy.guarantees import up
from fedrank.ranking.model_remarks import mark_forgotten

LEARNED, TESTED, NOT_USED, NOT_KNOWN = "learned from them", "was only tested on them", "did not use them", "not known"
NOT_COVERED = (
    "the files that the data set was built from: rebuilding it from them restores the rows",
    "copies of the data set, numbers that `fedrank data check` wrote about it, and backups",
    "models that were shared, exported or deployed to an engine",
    "runs and trials of engines in other folders than those that were searched, and the engines' own logs",
    "queries of other users in which the person is named",
    "conclusions that were already drawn: reports, and settings that were chosen by results",
)
SIMULATED = "simulated, so it did not protect data from the person who ran the simulation"
SPREAD = "it holds for one client, but {:,} clients held their searches: together they reveal more than that"
BROWSER = "other browsers of the same person: the log identifies browsers, not people"


@dataclass(frozen=True)
class AffectedRun:
    """A run on the data set: whether it used the person's rows, and what can be done about it."""

    run: str  # its folder
    status: str
    used: str  # one of the four above
    because: str = ""  # the reason if it is not known
    clients: tuple[int, ...] = ()  # clients that held their searches
    claims: tuple[str, ...] = ()  # of its privacy card; empty: no privacy guarantee
    remains: tuple[Json, ...] = ()  # files with data about them, and which data
    unlearn_command: str = ""  # to be run before rows are removed
    retrain_command: str = ""  # to be run after rows are removed
    certified_command: str = ""  # to be run after rows are removed, where certified unlearning covers the run

    @property
    def holds(self) -> bool:
        """Whether its model may contain information about the person."""
        return self.used in (LEARNED, NOT_KNOWN) and self.status == "finished"

    def json(self) -> Json:
        """The entry of a receipt, without the command that is not usable after rows are removed."""
        values = {name: value for name, value in asdict(self).items() if value and not name.endswith("_command")}
        after = [command for command in (self.certified_command, self.retrain_command) if command]
        return values | ({"after": " or ".join(after)} if after else {})


@dataclass(frozen=True)
class ForgettingPlan:
    """The rows to remove, and the runs that used them."""

    folder: Path
    unit: str  # person, or browser
    removed: RemovedRows
    runs: tuple[AffectedRun, ...]
    trials: tuple[Json, ...] = ()  # folder, searches and clicks of each trial that contained the person


@dataclass(frozen=True, kw_only=True)
class PersonReceipt(Written):
    """What was removed from a data set, and which models were trained on it. It does not identify the person."""

    FILE = "forgotten.json"
    first = ("summary",)

    summary: str
    number: str
    issued: str
    issuer: str
    data: str
    unit: str
    removed: Json
    runs: tuple[Json, ...] = ()
    trials: tuple[Json, ...] = ()  # trials of engines from which rows of the person were removed, with their numbers
    not_covered: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)  # files of the data set after the removal -> SHA-256
    versions: dict[str, str] = field(default_factory=dict)


def plan_forgetting(
    person: str, folder: str | Path, runs: Sequence[str | Path] = (), trust: bool = False
) -> ForgettingPlan:
    """Plan without changes. Without `trust`, runs with external methods are not examined."""
    log = load_log(folder)
    removed = rows_of_user(log, person)
    number = log.users.index(person)
    found = [one for one in (load_runs(list(runs)) if runs else ()) if one.status != "broken"]
    affected = (_affected(run, log, number, trust) for run in found)
    own = tuple(combined_at_the_site(log, number, runs))
    return ForgettingPlan(Path(folder), log.unit, removed, (*(one for one in affected if one is not None), *own))


def forget_person(
    person: str,
    folder: str | Path,
    runs: Sequence[str | Path] = (),
    out: str | Path | None = None,
    trust: bool = False,
    trials: Callable[[], Sequence[Json]] = lambda: (),
) -> tuple[PersonReceipt, Path]:
    """Remove one person's rows from a data set, and write a receipt into it and, if given, to `out`.

    `trials` removes the person's rows from trials of engines and returns what it removed, for the receipt. It is called
    before the data set changes: a command that is stopped in between can be repeated.
    """
    folder = Path(folder)
    clear_traces(folder)
    if out is not None and Path(out).exists():
        raise FileExistsError(f"{out} already exists, and a receipt never overwrites a file; give another file")
    plan = plan_forgetting(person, folder, runs, trust)
    plan = replace(plan, trials=tuple(trials()))
    number, issued = secrets.token_hex(4), now()
    for run in plan.runs:  # before the data set changes: a stopped command leaves a mark too many, never one too few
        if run.used in (LEARNED, NOT_KNOWN):
            mark_forgotten(run.run, number, issued, run.used == LEARNED)
    name = f"forgotten-{number}.json"
    made: list[PersonReceipt] = []

    def complete(part: Path, removed: RemovedRows) -> None:
        receipt = _receipt(replace(plan, removed=removed), number, issued, sha256(part / FACTS))
        made.append(receipt)
        with writing(part / name, private=True) as file:
            file.write(receipt.json().encode())
        card = log_card(load_log(part))
        replace(card, data=folder.resolve().name).write(part)

    forget_user(folder, person, {"when": issued, "receipt": number}, complete)
    clear_traces(folder)
    clear_log_cache()
    if out is not None:
        with writing(Path(out), private=True, replace=False) as file:
            file.write(read_bytes(folder / name))
    return made[0], Path(out) if out is not None else folder / name


def _affected(run: Run, log: SearchLog, user: int, trust: bool) -> AffectedRun | None:
    """How a run is affected; None for a run on other data."""
    found = AffectedRun(str(run.path), run.status, NOT_KNOWN, claims=_claims(read_card(run.path)))
    try:
        spec = read_spec(run.path / "spec.toml", trust=trust).base
        source = getattr(getattr(spec, "data", None), "log", None)
        if source is None or Path(source).resolve() != log.folder.resolve():
            return None
        found = again = replace(found, retrain_command=_retrain(run))
        if not isinstance(spec, FederatedExperiment):
            return replace(again, because=f'runs of kind "{spec.kind}" do not record whose rows they used')
        found = again = replace(again, certified_command=_certified(run, spec))
        fold = load_fold(spec.data, run.fold)
        if not np.any(fold.train.who == user):
            return replace(found, used=TESTED if np.any(fold.test.who == user) else NOT_USED)
        if run.unlearned is not None and not run.unlearned["clients"]:  # certified, on all rows
            return replace(again, used=LEARNED, remains=tuple(what_remains(run.path, ())))
        clients, alone = _holders(spec, run, user)
        if not clients:
            return replace(found, used=NOT_USED)
        remains = tuple(what_remains(run.path, clients))
        if found.claims and len(clients) > 1:  # ε holds for the data of one client
            again = replace(again, claims=(*found.claims, SPREAD.format(len(clients))))
        unlearn = _unlearn(run, spec, clients) if alone else ""
        return replace(again, used=LEARNED, clients=clients, remains=remains, unlearn_command=unlearn)
    except (ValueError, OSError) as problem:  # an unreadable run is listed, not skipped
        return replace(found, because=str(problem))


def combined_at_the_site(log: SearchLog, user: int, folders: Sequence[str | Path]) -> Iterator[AffectedRun]:
    """Models of a federation that the site of this data set combined with its own one, without noise."""
    window = read_window(log.folder).uses if log.held_out.any() else None  # a gate records there what it judged
    learned = LEARNED if (~log.held_out[log.user == user]).any() else TESTED
    for gate in sorted(path for folder in folders for path in Path(folder).glob("**/gate.json")):
        for model in gate.parent.glob("model*.json"):
            if window is None:
                why = "the data set holds nothing out, so it has no record of models"
                yield AffectedRun(str(model.parent), "finished", NOT_KNOWN, why)
            elif purpose_of(sha256(model)) in {use.get("derived") for use in window}:
                yield AffectedRun(str(model.parent), "finished", learned)


def _holders(spec: FederatedExperiment, run: Run, user: int) -> tuple[tuple[int, ...], bool]:
    """Clients with searches of a user, and whether they have only those."""
    clients = clients_of(spec, run.fold, run.seed)
    if len(clients.data.who) != clients.data.queries:
        raise ValueError("its partition does not record which user made which search")
    theirs = clients.data.who == user
    found, alone = [], True
    for client, pool in zip(clients.ids.tolist(), clients.pool.tolist(), strict=True):
        own = theirs[clients.queries[clients.pools[pool] : clients.pools[pool + 1]]]
        if own.any():
            found.append(client)
            alone &= bool(own.all())
    return tuple(found), alone


def _unlearn(run: Run, spec: FederatedExperiment, clients: Sequence[int]) -> str:
    """The command that unlearns clients from a run, if there is one besides retraining."""
    if run.status != "finished" or spec.kind != "federated" or spec.clients.people > 1 or spec.mechanism is not None:
        return ""
    if history_of(run.path) is None:
        return ""
    flags = " ".join(f"--client {client}" for client in clients)
    return f"fedrank forget client {shlex.quote(str(run.path))} {flags} --method fed-eraser --verify"


def _certified(run: Run, spec: FederatedExperiment) -> str:
    """The command that gives a certificate once rows are removed, if the run is one that it covers."""
    if run.status != "finished" or spec.kind != "federated" or spec.clients.people > 1:
        return ""
    try:
        check_certifiable(spec, run.fold)
    except ValueError:
        return ""
    return f"fedrank forget client {shlex.quote(str(run.path))} --method certified"


def _retrain(run: Run) -> str:
    """The command that repeats an experiment on the remaining data."""
    source = run.folder / "experiment.toml"
    if not source.exists():
        source = run.path / "spec.toml"
    name = shlex.quote(f"{run.experiment}-again")
    return f"fedrank run {shlex.quote(str(source))} --out {shlex.quote(str(run.folder.parent))} --name {name}"


def _claims(card: Card | None) -> tuple[str, ...]:
    """The guarantees of a card, with observers of equal ε combined."""
    against: dict[tuple[str, float, str], list[str]] = {}
    for paid in card.promises if card is not None else ():
        if paid.epsilon is not None:
            against.setdefault((up(paid.epsilon), paid.delta, paid.unit), []).append(f"the {paid.against}")
    claims = [
        f"ε = {epsilon} at δ = {delta:g} for a {unit}, against {' and '.join(observers)}"
        for (epsilon, delta, unit), observers in against.items()
    ]
    if card is None or not claims:
        return ()
    except_for = [f"not covered: {one}" for one in card.not_covered if one not in OF_ALL_CARDS]
    return (*claims, *except_for, *([SIMULATED] if card.what == SIMULATED_RUN else []))


def _receipt(plan: ForgettingPlan, number: str, issued: str, digest: str) -> PersonReceipt:
    others = NOT_COVERED if plan.unit == "person" else (BROWSER, *NOT_COVERED)
    return PersonReceipt(
        summary=" ".join(_sentences(plan)),
        number=number,
        issued=issued,
        issuer=issuer(),
        data=plan.folder.resolve().name,
        unit=plan.unit,
        removed=asdict(plan.removed) | {"first": _day(plan.removed.first), "last": _day(plan.removed.last)},
        runs=tuple(run.json() for run in plan.runs),
        trials=plan.trials,
        not_covered=others,
        files={FACTS: digest},
        versions=versions(),
    )


def _sentences(plan: ForgettingPlan) -> Iterator[str]:
    """What was removed and what remains."""
    removed = plan.removed
    yield (
        f"{removed.entries:,} lists of one {plan.unit}, from {_day(removed.first)} to {_day(removed.last)}, with "
        f"{removed.clicks:,} clicks, {removed.queries:,} queries that only this {plan.unit} asked and "
        f"{removed.pairs:,} feature rows that only these needed, were removed from the data set "
        f"{plan.folder.resolve().name}."
    )
    holding = [run for run in plan.runs if run.holds]
    if not plan.runs:
        yield "No run on it was found in the folders that were searched."
    elif not holding:
        yield f"None of {len(plan.runs):,} runs on it has a model that was trained on them."
    for run in holding:
        under = f"with {'; '.join(run.claims)}" if run.claims else "and no privacy guarantee limits that"
        verb = "was trained on them and still contains" if run.used == LEARNED else "may be trained on them and contain"
        yield f"The model in {run.run} {verb} what it learned from them, {under}."
    for one in plan.trials:
        yield f"{one['searches']:,} searches and {one['clicks']:,} clicks were removed from {one['trial']}."
    yield "Shared copies, and the files it was built from, are not affected."


def _day(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return f"second {seconds}"


def clear_traces(folder: Path) -> int:
    """Delete leftovers that may contain forgotten people; returns the number of deleted folders next to the data set.

    A killed command leaves the old folder. Cached features, complete or not, may belong to any person.
    """
    from fedrank.kernels.compile import cache_folder

    cached = cache_folder() / "logs"
    for path in (*cached.glob("*.npy"), *filter(is_left, cached.glob(f".*.npy.*{UNFINISHED}"))):
        path.unlink(missing_ok=True)
    return sweep(folder.resolve())
