"""Checks before a process starts: one line per check, with a remedy.

Certificates are read through `Kits`, so the other checks work without NVFLARE.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedrank.deploy.backup import HEADS
from fedrank.deploy.consent import ACCEPTED, said_of
from fedrank.deploy.data_sources import (
    SiteSplit,
    load_share,
)
from fedrank.deploy.heads import SiteJournal, Witness
from fedrank.deploy.identity import fingerprint, read_identity
from fedrank.deploy.objections import data_objections, ledger_objections, plan_objections
from fedrank.deploy.plan import Plan, names_digest
from fedrank.deploy.settings import FEDERATION, SITE, SiteSettings, no_home, read_federation, read_site
from fedrank.deploy.show import look_at
from fedrank.deploy.site_runtime import PEOPLE
from fedrank.experiments.report.formatting import amount
from fedrank.experiments.report.sections import Cell, Section
from fedrank.files import FULL, error_message, is_locked
from fedrank.privacy.guarantees import up
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.population import Population

if TYPE_CHECKING:
    from fedrank.deploy.flare_certificates import CertificateFacts

State = Literal["fine", "soon", "wrong", "unknown"]
SOON = 30  # days before expiry from which a certificate should be renewed
LEAST_ROOM = 200_000_000  # bytes of free disk space, in addition to what a run stores
FULL_BELOW = 1 << 20  # bytes of free disk space below which a disk counts as full
CLOCK_DIFFERS = timedelta(minutes=5)  # by how much the clock may be behind the newest file in the folder
PATIENCE = 5.0  # seconds for a connection
SHARED, MEMBERSHIP = (
    "federation.json",
    "folder.json",
)  # of a coordinator and of a site that exchange messages through a folder
START_LOCK = "start.lock"  # held by the process that serves a folder
MARKS: dict[State, str] = {"fine": "ok", "soon": "soon", "wrong": "WRONG", "unknown": "?"}


@dataclass(frozen=True)
class CheckLine:
    """The result of one check."""

    what: str
    state: State
    said: str
    remedy: str = ""


class FlareKits:
    """The kits of NVFLARE; tests replace it. Every problem has a remedy."""

    def facts(self, folder: Path) -> CertificateFacts:
        from fedrank.deploy.flare_certificates import certificate_facts
        from fedrank.deploy.flare_kit import KIT

        return certificate_facts(folder / KIT)

    def problems(self, folder: Path, now: datetime) -> Sequence[tuple[str, str]]:
        from fedrank.deploy.flare_kit import folder_problems

        return [(one.what, one.remedy) for one in folder_problems(folder, now)]

    def host_problems(self, folder: Path) -> Sequence[tuple[str, str]]:
        from fedrank.deploy.flare_certificates import host_problems
        from fedrank.deploy.flare_kit import KIT

        return [(one.what, one.remedy) for one in host_problems(folder / KIT)]

    def members(self, home: Path) -> Sequence[tuple[str, str, str]]:
        """Name, state and certificate expiry of each site of a coordinator."""
        from fedrank.deploy.flare_kit import read_members

        return [(one.name, one.state, one.until) for one in read_members(home).values()]


def unreachable(host: str, port: int) -> str:
    """Return why no server can be reached at this address; "" if one is listening."""
    try:
        with socket.create_connection((host, port), timeout=PATIENCE):
            return ""
    except OSError as problem:
        return str(problem)


def taken(port: int) -> str:
    """Return why a server cannot listen on a port; "" if it can."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("", port))
        except OSError as problem:
            return str(problem)
    return ""


def _free(folder: Path) -> int:
    """Free disk space in bytes."""
    return shutil.disk_usage(folder).free


@dataclass(frozen=True)
class Looks:
    """How the environment is inspected; tests replace these functions."""

    kits: FlareKits
    unreachable: Callable[[str, int], str] = unreachable
    taken: Callable[[int], str] = taken
    room: Callable[[Path], int] = _free
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def check(folder: Path, plan: Plan | None = None, looks: Looks | None = None, draft: bool = False) -> list[CheckLine]:
    """Check everything that a site's or coordinator's folder needs; also against a plan if one is given.

    A draft is the plan of a spec, which has no keys of partners yet.
    """
    folder, looks = Path(folder), looks or Looks(FlareKits())
    if (folder / FEDERATION).exists() or (folder / SHARED).exists():
        return _check_coordinator(folder, looks)
    if (folder / SITE).exists() or (folder / "kit").exists():
        return _check_site(folder, plan, looks, draft)
    raise no_home(folder)


def about_checks(lines: Iterable[CheckLine]) -> list[Section]:
    """The lines as a table."""
    tones = {"wrong": "worse", "soon": "warn"}
    rows = [
        [
            Cell(one.what, tone="name"),
            Cell(MARKS[one.state], tone=tones.get(one.state, "")),
            one.said,
            one.remedy,
        ]
        for one in lines
    ]
    return [Section("").table(["", "", "found", "what to do"], rows, 4, bare=True)]


def is_fine(lines: Iterable[CheckLine]) -> bool:
    """Whether no check failed."""
    return all(line.state != "wrong" for line in lines)


def _check_site(folder: Path, plan: Plan | None, looks: Looks, draft: bool) -> list[CheckLine]:
    met = (folder / MEMBERSHIP).exists()
    lines = [*(_key(folder, looks) if met else _certificates(folder, looks)), _folder(folder)]
    try:
        settings = read_site(folder)
    except (ValueError, OSError) as problem:
        lines.append(CheckLine("policy", "wrong", error_message(problem), f"correct {SITE}"))
        return [*lines, _disk(folder, looks, 0)]
    share, line = _data(folder, settings)
    lines += [line, *_features(settings, share, plan)]
    lines += [*_policy(folder, settings, plan, share, draft), *_ledger(folder, settings, plan)]
    lines += [] if settings.simulated else [_journal(folder, settings)]
    kept = 0 if plan is None else sum(one.bytes_in_all for one in look_at(folder, settings, plan, share).leaves)
    return [*lines, _disk(folder, looks, kept)]


def _check_coordinator(home: Path, looks: Looks) -> list[CheckLine]:
    if not (home / FEDERATION).exists():
        return [*_key(home, looks), _folder(home), _disk(home, looks, 0)]
    lines = [*_certificates(home, looks, serves=True), _folder(home)]
    try:
        federation = read_federation(home / FEDERATION)
        said = f"federation {federation.name!r} with {len(federation.sites)} sites"
        lines.append(CheckLine("policy", "fine", f"{said}; each site has its own policy, and enforces it"))
    except (ValueError, OSError) as problem:
        lines.append(CheckLine("policy", "wrong", error_message(problem), f"correct {FEDERATION}"))
    return [*lines, *_members(home, looks), _disk(home, looks, 0)]


def _certificates(folder: Path, looks: Looks, serves: bool = False) -> Iterable[CheckLine]:
    try:
        facts = looks.kits.facts(folder)
        # The dates are checked separately.
        middle = facts.not_before + (facts.not_after - facts.not_before) / 2
        problems = looks.kits.problems(folder, middle)
    except (OSError, ValueError, KeyError, ImportError) as problem:
        yield CheckLine("chain", "wrong", error_message(problem), "restore the kit from a backup, or join again")
        for what in ("expiry", "clock", "host", "port"):
            yield CheckLine(what, "unknown", "unknown without a certificate")
        return
    for said, remedy in problems or [("", "")]:
        name = facts.subject
        yield CheckLine("chain", "wrong" if said else "fine", said or f"certificate of {name!r} and its CA", remedy)
    now = looks.now()
    yield _expiry(facts, now, serves)
    yield _clock(folder, facts, now)
    hosts = looks.kits.host_problems(folder)
    for said, remedy in hosts or [("", "")]:
        yield CheckLine("host", "wrong" if said else "fine", said or f"{facts.host} resolves to an address", remedy)
    yield _server_port(folder, facts, looks) if serves else _client_port(facts, looks, bool(hosts))


def _key(folder: Path, looks: Looks) -> Iterable[CheckLine]:
    """In a federation that uses a shared folder, a key replaces certificates."""
    try:
        yield CheckLine("key", "fine", fingerprint(read_identity(folder).public))
    except (OSError, ValueError, ImportError) as problem:
        said, _, remedy = error_message(problem).partition("; ")
        yield CheckLine("key", "wrong", said, remedy)
    yield _clock(folder, None, looks.now())


def _expiry(facts: CertificateFacts, now: datetime, serves: bool) -> CheckLine:
    days = (facts.not_after - now).days
    until = f"{facts.path.name} expires on {facts.not_after:%Y-%m-%d}"
    renew = "`fedrank deploy renew`" if serves else "`fedrank deploy renew`, then ask the coordinator to approve"
    if now > facts.not_after:
        return CheckLine("expiry", "wrong", f"{facts.path} expired on {facts.not_after:%Y-%m-%d}", renew)
    if days < SOON:
        return CheckLine("expiry", "soon", f"{until}, in {_days(days)}", renew)
    return CheckLine("expiry", "fine", f"{until}, in {_days(days)}")


def _clock(folder: Path, facts: CertificateFacts | None, now: datetime) -> CheckLine:
    here = f"the clock shows {now:%Y-%m-%d %H:%M} UTC"
    if facts is not None and now < facts.not_before:
        said = f"{here}, and {facts.path} is not valid before {facts.not_before:%Y-%m-%d %H:%M}"
        return CheckLine("clock", "wrong", said, "set the clock, or wait")
    written = max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
    last = datetime.fromtimestamp(written, UTC)
    if last - now > CLOCK_DIFFERS:
        said = f"{here}, but a file in this folder was written on {last:%Y-%m-%d %H:%M}"
        return CheckLine("clock", "wrong", said, "set the clock")
    return CheckLine("clock", "fine", here)


def _client_port(facts: CertificateFacts, looks: Looks, nowhere: bool) -> CheckLine:
    where = f"{facts.host}:{facts.port}"
    if nowhere:
        return CheckLine("port", "unknown", f"{where} cannot be tested without an address")
    if why := looks.unreachable(facts.host, facts.port):
        remedy = (
            "ask the coordinator whether the server is running, and check that your network allows outgoing connections"
        )
        return CheckLine("port", "wrong", f"{where} cannot be reached ({why})", remedy)
    return CheckLine("port", "fine", f"a server is listening at {where}")


def _server_port(home: Path, facts: CertificateFacts, looks: Looks) -> CheckLine:
    if is_locked(home / START_LOCK):
        return CheckLine("port", "fine", f"the server of this home is running on port {facts.port}")
    if why := looks.taken(facts.port):
        remedy = "stop the process that uses it, or create a federation with another port"
        return CheckLine("port", "wrong", f"port {facts.port} cannot be used ({why})", remedy)
    return CheckLine("port", "fine", f"port {facts.port} is free; sites must be able to reach it")


def _folder(folder: Path) -> CheckLine:
    """Check that only the owner can read the folder."""
    if os.name == "posix" and (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o077:
        return CheckLine(
            "folder", "wrong", f"{folder} is accessible to other users (mode {mode:o})", f"chmod 700 {folder}"
        )
    return CheckLine("folder", "fine", f"{folder} is accessible only to its owner")


def _data(folder: Path, settings: SiteSettings) -> tuple[SiteSplit | None, CheckLine]:
    if settings.simulated:
        return None, CheckLine("data", "fine", "people are simulated")
    if not settings.data.learns:
        return None, CheckLine("data", "fine", f"documents for sketches only: {settings.data.documents}")
    try:
        share = load_share(settings.data)
    except (ValueError, OSError) as problem:
        return None, CheckLine("data", "wrong", error_message(problem), f"correct the data, or [data] in {SITE}")
    said = f"{share.train.queries:,} queries, {share.train.documents:,} documents for training"
    said += f"; {share.test.queries:,} queries for evaluation" if share.test is not None else ""
    unit = "browsers, which are not people" if settings.data.are_browsers else "people"
    said += f"; {share.people:,} {unit}" if share.people else ""
    if not share.train.grades.any():
        remedy = "a model cannot be trained on it; check that it is the right file"
        return share, CheckLine("data", "wrong", f"{said}, but no document is relevant or clicked", remedy)
    return share, CheckLine("data", "fine", said)


def _features(settings: SiteSettings, share: SiteSplit | None, plan: Plan | None) -> Iterable[CheckLine]:
    found = [] if plan is None else data_objections(settings, plan, share)
    if share is None and not found:
        yield CheckLine("features", "unknown", "the site has no data to check")
        return
    for line in found:
        said, _, remedy = line.partition("; ")
        yield CheckLine("features", "wrong", said, remedy)
    if not found:
        assert share is not None
        width, names = share.train.features.shape[1], names_digest(share.train.feature_names)
        said = f"{width} features, normalisation: {share.train.normalised}"
        said += f", names {names[:12]}" if names else ", without names"
        yield CheckLine("features", "fine", said + (", as in the plan" if plan is not None else ""))


def _policy(
    folder: Path, settings: SiteSettings, plan: Plan | None, share: SiteSplit | None, draft: bool
) -> Iterable[CheckLine]:
    policy = settings.policy
    if plan is not None:
        for line in plan_objections(folder, settings, plan, share, draft):
            said, _, remedy = line.partition("; ")
            yield CheckLine("policy", "wrong", said, remedy)
        if said_of(folder, plan) != ACCEPTED and policy.accept == "listed":
            remedy = "review it with `fedrank deploy show`, then accept or refuse it"
            yield CheckLine("policy", "wrong", f"run {plan.name!r} has not been accepted at this site", remedy)
    limit = "no limit" if policy.largest_epsilon is None else f"ε up to {policy.largest_epsilon:g}"
    said = f"{', '.join(policy.learners)}; noise at {', '.join(policy.placements)}; {limit}; accepts: {policy.accept}"
    if policy.unprotected:
        yield CheckLine("policy", "soon", f"{said}; updates may be sent WITHOUT NOISE", "set unprotected = false")
    else:
        yield CheckLine("policy", "fine", said)


def _ledger(folder: Path, settings: SiteSettings, plan: Plan | None) -> Iterable[CheckLine]:
    found = ledger_objections(folder, settings, plan)
    try:
        known = Population.find(folder / PEOPLE)
        spent = {} if known is None else known.spent()
    except (LedgerError, ValueError, OSError) as problem:
        known, found = None, found or [error_message(problem)]
    for line in found:
        said, _, remedy = line.removeprefix("ledger: ").partition("; ")
        yield CheckLine("ledger", "wrong", said, remedy or "restore it from a backup")
    if found:
        return
    if known is None:
        yield CheckLine("ledger", "fine", "nothing has been charged yet")
        return
    largest, most = settings.policy.largest_epsilon, max(spent.values(), default=0.0)
    limit = known.limit if largest is None else largest
    said = f"ε = {up(most)} of {limit:g} spent in {'1 run' if known.runs == 1 else f'{known.runs:,} runs'}"
    if most >= limit:
        remedy = "the budget of these people is spent: do not participate in further runs"
        yield CheckLine("ledger", "wrong", said, remedy)
    else:
        yield CheckLine("ledger", "fine", said)


def _journal(folder: Path, settings: SiteSettings) -> CheckLine:
    try:
        journal = SiteJournal(folder, settings)
        journal.check(None)
        journal.check_files(begin=False)
        others = Witness(folder / HEADS)
    except (LedgerError, ValueError, OSError, ImportError) as problem:
        said, _, remedy = error_message(problem).partition("; ")
        return CheckLine("journal", "wrong", said, remedy or "restore it from a backup")
    seen = "no head of another site was seen yet"
    if others.path.exists():
        at = datetime.fromtimestamp(others.path.stat().st_mtime, UTC)
        seen = f"heads of {len(others.heads)} other sites, the last one seen on {at:%Y-%m-%d %H:%M}"
    said = f"{journal.head.counter:,} entries; second place: {journal.second}; {seen}"
    return CheckLine("journal", "fine", said)


def _members(home: Path, looks: Looks) -> Iterable[CheckLine]:
    try:
        members = looks.kits.members(home)
    except (OSError, ValueError) as problem:
        yield CheckLine("sites", "wrong", error_message(problem), "restore it from a backup")
        return
    waiting = [name for name, state, _ in members if state == "invited"]
    if waiting:
        remedy = "wait for their requests, then `fedrank deploy approve`"
        yield CheckLine("sites", "soon", f"not joined yet: {', '.join(waiting)}", remedy)
    ends = [
        (name, (datetime.fromisoformat(until) - looks.now()).days)
        for name, state, until in members
        if state == "joined" and until
    ]
    for name, days in ends:
        if days < SOON:
            said = (
                f"the certificate of {name} expires in {_days(days)}"
                if days >= 0
                else f"the certificate of {name} has expired"
            )
            yield CheckLine("sites", "soon" if days >= 0 else "wrong", said, f"ask {name} to `fedrank deploy renew`")
    if not waiting and all(days >= SOON for _, days in ends):
        yield CheckLine("sites", "fine", f"{len(ends)} sites have joined")


def _disk(folder: Path, looks: Looks, kept: int) -> CheckLine:
    """Check free disk space: nothing is sent before it is written to disk, so a full disk stops a run."""
    free, needed = looks.room(folder), LEAST_ROOM + 2 * kept
    said = f"{amount('bytes', free)} free"
    probe = folder / f".probe-{os.getpid()}"
    try:
        with open(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write("x")
        probe.unlink()
    except OSError as problem:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
        remedy = "free disk space" if problem.errno in FULL else "make it writable"
        return CheckLine("disk", "wrong", f"{folder} cannot be written to ({problem.strerror})", remedy)
    if free < needed:
        return CheckLine("disk", "wrong", f"{said}, {amount('bytes', needed)} needed", "free disk space")
    return CheckLine("disk", "fine", said)


def storage_problem(folder: Path) -> str:
    """Why a folder cannot store what is sent, determined without writing; "" if it can."""
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written to, so nothing is sent or recorded; make it writable"
    free = _free(folder)
    if free >= LEAST_ROOM:
        return ""
    said = "is full" if free < FULL_BELOW else f"has only {amount('bytes', free)} left"
    return f"the disk of {folder} {said}; nothing is sent before it is written to disk: free disk space"


def _days(days: int) -> str:
    return "1 day" if days == 1 else f"{days:,} days"
