"""One person leaves: their rows go out of a data set, runs that used these are found, and a receipt says what is left.

Removing rows does not change a model that learned from them. The receipt therefore names every run that did, what its
privacy card claims, what its folder still holds, and which command trains it again without the person.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.forget_user import RemovedRows, forget_user, is_left, rows_of_user, sweep
from fedrank.data.logs import FACTS, SearchLog, load_log
from fedrank.experiments.runner.cards import issuer, log_card, read_card, sha256, versions
from fedrank.experiments.runner.data import clear_log_cache, clients_of, load_fold
from fedrank.experiments.runner.folder import SIMULATED_RUN, Card, Json, Written
from fedrank.experiments.runner.privacy import NOT_COVERED as OF_ALL_CARDS
from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.runner.traces import history_of, what_remains
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.source import read_spec
from fedrank.files import UNFINISHED, read_bytes, writing
from fedrank.privacy.guarantees import up
from fedrank.privacy.population import now
from fedrank.types import has_trait

LEARNED, TESTED, NOT_USED, NOT_KNOWN = "learned from them", "was only tested on them", "did not use them", "not known"
NOT_COVERED = (
    "the files that the data set was built from: whoever builds it from them again brings the rows back",
    "copies of the data set, numbers that logs describe wrote of it, and backups",
    "models that were given away, exported or put into an engine",
    "folders of trials: they hold searches and clicks of browsers under other names, so delete a trial that has ended",
    "runs in other folders than those that were looked through",
    "queries of others in which the person is named",
    "what was already concluded: reports, and settings that were chosen by looking at results",
)
SIMULATED = "simulated, so that it protected nobody from whoever ran it"
SPREAD = "it is for one client, and {:,} held their searches: together they tell more of them than that"
BROWSER = "other browsers of the same person: the log knows browsers, not people"


@dataclass(frozen=True)
class AffectedRun:
    """A run on the data set: whether it used the person's rows, and what can be done."""

    run: str  # its folder
    status: str
    used: str  # one of the four above
    because: str = ""  # why it is not known
    clients: tuple[int, ...] = ()  # that held their searches
    claims: tuple[str, ...] = ()  # of its privacy card; empty: nothing can be claimed
    remains: tuple[Json, ...] = ()  # files that hold something of them, and what
    before: str = ""  # a command that lets its model forget, to be run before rows are removed
    after: str = ""  # a command that trains it again, to be run afterwards

    @property
    def holds(self) -> bool:
        """Whether its model may hold something of the person."""
        return self.used in (LEARNED, NOT_KNOWN) and self.status == "finished"


@dataclass(frozen=True)
class ForgettingPlan:
    """What would be removed, and who used it."""

    folder: Path
    unit: str  # person, or browser
    removed: RemovedRows
    runs: tuple[AffectedRun, ...]


@dataclass(frozen=True, kw_only=True)
class PersonReceipt(Written):
    """What was removed from a data set, and what earlier models still hold. It does not say whose rows they were."""

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
    not_covered: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)  # of the data set as it is now -> SHA-256
    versions: dict[str, str] = field(default_factory=dict)


def plan_forgetting(
    person: str, folder: str | Path, runs: Sequence[str | Path] = (), trust: bool = False
) -> ForgettingPlan:
    """Look, and change nothing. Without `trust`, runs with methods from outside the package are not looked into."""
    log = load_log(folder)
    removed = rows_of_user(log, person)
    number = log.users.index(person)
    found = [one for one in (load_runs(list(runs)) if runs else ()) if one.status != "broken"]
    affected = (_affected(run, log, number, trust) for run in found)
    return ForgettingPlan(Path(folder), log.unit, removed, tuple(one for one in affected if one is not None))


def forget_person(
    person: str, folder: str | Path, runs: Sequence[str | Path] = (), out: str | Path | None = None, trust: bool = False
) -> tuple[PersonReceipt, Path]:
    """Remove one person's rows from a data set, and write a receipt into it; `out` is a second place for that."""
    folder = Path(folder)
    clear_traces(folder)
    if out is not None and Path(out).exists():
        raise FileExistsError(f"{out} is there already, and a receipt replaces nothing; name another file")
    plan = plan_forgetting(person, folder, runs, trust)
    number, issued = secrets.token_hex(4), now()
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
    """What a run has to do with the person; None where it is a run on other data."""
    found = AffectedRun(str(run.path), run.status, NOT_KNOWN, claims=_claims(read_card(run.path)))
    try:
        spec = read_spec(run.path / "spec.toml", trust=trust).base
        source = getattr(getattr(spec, "data", None), "log", None)
        if source is None or Path(source).resolve() != log.folder.resolve():
            return None
        again = replace(found, after=_retrain(run))
        if not isinstance(spec, FederatedExperiment):
            return replace(again, because=f'runs of kind "{spec.kind}" do not say whose rows they used')
        fold = load_fold(spec.data, run.fold)
        if not np.any(fold.train.who == user):
            return replace(found, used=TESTED if np.any(fold.test.who == user) else NOT_USED)
        clients, alone = _holders(spec, run, user)
        if not clients:
            return replace(found, used=NOT_USED)
        remains = tuple(what_remains(run.path, clients))
        if found.claims and len(clients) > 1:  # ε is for what one client holds
            again = replace(again, claims=(*found.claims, SPREAD.format(len(clients))))
        before = _unlearn(run, spec, clients) if alone else ""
        return replace(again, used=LEARNED, clients=clients, remains=remains, before=before)
    except (ValueError, OSError) as problem:  # a run that cannot be understood is named, not passed over
        return replace(found, because=str(problem))


def _holders(spec: FederatedExperiment, run: Run, user: int) -> tuple[tuple[int, ...], bool]:
    """Clients that hold searches of a user, and whether they hold nobody else's."""
    clients = clients_of(spec, run.fold, run.seed)
    if len(clients.data.who) != clients.data.queries:
        raise ValueError("its clients were made in a way that does not keep whose searches are whose")
    theirs = clients.data.who == user
    found, alone = [], True
    for client, pool in zip(clients.ids.tolist(), clients.pool.tolist(), strict=True):
        own = theirs[clients.queries[clients.pools[pool] : clients.pools[pool + 1]]]
        if own.any():
            found.append(client)
            alone &= bool(own.all())
    return tuple(found), alone


def _unlearn(run: Run, spec: FederatedExperiment, clients: Sequence[int]) -> str:
    """The command that lets a run forget clients, where there is one that is no retraining."""
    if run.status != "finished" or spec.kind != "federated" or spec.clients.people > 1 or spec.mechanism is not None:
        return ""
    if history_of(run.path) is None or has_trait(spec.mechanism, "adds up"):
        return ""
    who = " ".join(f"--client {client}" for client in clients)
    return f"fedrank unlearn {shlex.quote(str(run.path))} {who} --method fed-eraser --verify"


def _retrain(run: Run) -> str:
    """The command that does an experiment again, on what is left."""
    source = run.folder / "experiment.toml"
    if not source.exists():
        source = run.path / "spec.toml"
    name = shlex.quote(f"{run.experiment}-again")
    return f"fedrank run {shlex.quote(str(source))} --out {shlex.quote(str(run.folder.parent))} --name {name}"


def _claims(card: Card | None) -> tuple[str, ...]:
    """What a card claims, observers with the same ε together."""
    against: dict[tuple[str, float, str], list[str]] = {}
    for paid in card.promises if card is not None else ():
        if paid.epsilon is not None:
            against.setdefault((up(paid.epsilon), paid.delta, paid.unit), []).append(f"the {paid.against}")
    claims = [
        f"ε = {epsilon} at δ = {delta:g} for a {unit}, against {' and '.join(who)}"
        for (epsilon, delta, unit), who in against.items()
    ]
    if card is None or not claims:
        return ()
    except_for = [f"not covered: {one}" for one in card.not_covered if one not in OF_ALL_CARDS]
    return (*claims, *except_for, *([SIMULATED] if card.what == SIMULATED_RUN else []))


def _receipt(plan: ForgettingPlan, number: str, issued: str, digest: str) -> PersonReceipt:
    others = NOT_COVERED if plan.unit == "person" else (BROWSER, *NOT_COVERED)
    return PersonReceipt(
        summary=receipt_summary(plan),
        number=number,
        issued=issued,
        issuer=issuer(),
        data=plan.folder.resolve().name,
        unit=plan.unit,
        removed=asdict(plan.removed) | {"first": _day(plan.removed.first), "last": _day(plan.removed.last)},
        runs=tuple(_as_json(run) for run in plan.runs),
        not_covered=others,
        files={FACTS: digest},
        versions=versions(),
    )


def _as_json(run: AffectedRun) -> Json:
    values: dict[str, Any] = asdict(run)
    return {key: value for key, value in values.items() if value and key != "before"}


def receipt_summary(plan: ForgettingPlan) -> str:
    """What was removed and what is left, in plain sentences."""
    removed = plan.removed
    parts = [
        f"{removed.entries:,} lists of one {plan.unit}, from {_day(removed.first)} to {_day(removed.last)}, with "
        f"{removed.clicks:,} clicks, {removed.queries:,} queries that nobody else asked and {removed.pairs:,} rows of "
        f"features that nobody else needed, are no longer in the data set {plan.folder.resolve().name}."
    ]
    holding = [run for run in plan.runs if run.holds]
    if not plan.runs:
        parts.append("No run on it was found in the folders that were looked through.")
    elif not holding:
        parts.append(f"None of {len(plan.runs):,} runs on it has a model that learned from them.")
    for run in holding:
        under = f"under {'; '.join(run.claims)}" if run.claims else "and nothing can be claimed that would hide it"
        sure = "learned from them and still holds" if run.used == LEARNED else "may have learned from them and hold"
        parts.append(f"The model in {run.run} {sure} what it took from them, {under}.")
    parts.append("Copies that were given away, and the files it was built from, are not affected.")
    return " ".join(parts)


def _day(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return f"second {seconds}"


def clear_traces(folder: Path) -> int:
    """Delete what may still hold people who were forgotten; returns how many folders lay beside the data set.

    A command that was killed leaves the old folder there. Features that were kept on disk to save time, whole or not,
    may be those of anybody.
    """
    from fedrank.kernels.compile import cache_folder

    cached = cache_folder() / "logs"
    for path in (*cached.glob("*.npy"), *filter(is_left, cached.glob(f".*.npy.*{UNFINISHED}"))):
        path.unlink(missing_ok=True)
    return sweep(folder.resolve())
