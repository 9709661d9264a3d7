"""A federation through a shared folder (a synced folder, a network share, a USB drive), without a server.

    federation.json             members, signed by the coordinator (`folder_members`)
    joining/SITE, left/SITE     sites that want to join, sites that left
    plans/RUN.plan              the plan of a run
    to/SITE/RUN-ROUND-ATTEMPT-REQUEST-ASKED       a request: digest of its bytes, and number of repetitions
    from/SITE/the same name                       its answer

Every file is signed by its sender, written atomically, and removed only by its sender. A request is open while its file
exists: a device that was offline for days finds it, and its answer is used if the coordinator still waits or repeats
the request. The same request has the same name, so a restarted coordinator finds answers that arrived meanwhile; a site
that is asked twice sends the same bytes (`Site`). Every reader of the folder can read every message: noise must be
added on the client, and secure aggregation, which needs all sites online, is refused.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.backup import RestoreMark
from fedrank.deploy.folder_members import (
    COORDINATOR,
    FolderMember,
    FolderMembership,
    membership_state,
    note_departures,
    publish,
)
from fedrank.deploy.heads import split
from fedrank.deploy.identity import IdentityKey, fingerprint, read_identity
from fedrank.deploy.plan import LARGEST as MAX_PLAN
from fedrank.deploy.plan import Plan
from fedrank.deploy.signed_files import (
    COPY,
    FOREIGN_NAME,
    FileAddress,
    Ignoring,
    Unusable,
    looked_at,
    own_folder,
    read_signed,
    write_signed,
)
from fedrank.deploy.site_calls import Silent
from fedrank.experiments.spec.families import name_of
from fedrank.files import error_message, locked
from fedrank.privacy.mechanisms import AtServer
from fedrank.types import has_trait
from fedrank.wire import Part

TO, FROM, PLANS = "to", "from", "plans"
LOCK = "folder.lock"
LARGEST = protocol.MAX_MODEL + (1 << 20)  # bytes of a request or an answer
ONLINE = ("partners", *protocol.PHASES)  # kinds of requests that cannot be answered a day later
SECONDS_BETWEEN_LOOKS = 1.0  # of a coordinator
SECONDS_BETWEEN_COUNTS = 5.0  # until a coordinator counts unexpected files
_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{1,19})-([0-9]{1,10})-([0-9a-f]{32})-([0-9]{1,9})")


_ENDED = {"expelled": "was expelled", "left": "left"}


class Answering(Protocol):
    """Answers requests of a site: see `fedrank.deploy.site.Site`."""

    def answer(self, content: bytes, /) -> bytes: ...

    def hear(self, content: bytes, /) -> None: ...


class RequestName(NamedTuple):
    """The name of a request, and of its answer."""

    run: str  # hexadecimal
    round: int
    attempt: int
    request: str  # digest of its bytes, hexadecimal
    asked: int  # number of earlier requests: a refused request may be repeated

    def __str__(self) -> str:
        return f"{self.run}-{self.round}-{self.attempt}-{self.request}-{self.asked}"

    @classmethod
    def read(cls, name: str) -> RequestName | None:
        found = _NAME.fullmatch(name)
        made = None if found is None else cls(found[1], int(found[2]), int(found[3]), found[4], int(found[5]))
        return made if str(made) == name else None

    @classmethod
    def of(cls, content: bytes, asked: int = 0) -> RequestName:
        label = wire.read_label(content)
        request, _ = split(content)  # the same request has the same name, regardless of its heads
        return cls(label.run.hex(), label.round, label.attempt, hashlib.sha256(request).hexdigest()[:32], asked)


@dataclass(frozen=True)
class FolderAnswer:
    """A request that a site answered."""

    run: str
    round: int
    attempt: int
    kind: str
    refused: str = ""  # the reason that the coordinator receives; "" if the request was answered


def refuse_online_plan(plan: Plan) -> None:
    """Refuse a run whose protection does not work in a folder or needs all sites online at once."""
    mechanism: Any = getattr(plan.question, "mechanism", None)
    if has_trait(mechanism, "adds up"):
        why = "it needs all sites online at once"
        if isinstance(mechanism.placement, AtServer):
            why = "noise would be added too late: every reader of the folder can read every message"
        raise ValueError(
            f"run {plan.name!r} protects its sum with placement = {name_of(mechanism.placement)!r}, which is not "
            f'possible in a folder: {why}; use placement = "client", or a federation over a network'
        )


def read_plans(shared: Path, site_folder: Path) -> list[Plan]:
    """Runs that the coordinator announced in the folder."""
    me, ignoring = FolderMembership.read(site_folder), Ignoring()
    found = []
    for path in looked_at(Path(shared) / PLANS, ignoring):
        if not re.fullmatch(r"[0-9a-f]{32}\.plan", path.name):
            ignoring.count(path, _foreign(path.name))
        elif (plan := _read_plan(Path(shared), me, path.stem, ignoring)) is not None:
            found.append(Plan.load(plan))
    return found


@dataclass
class _Waiting:
    """A request that has not been answered yet."""

    member: FolderMember
    name: RequestName
    answer: Future[bytes]
    deadline: float
    patience: float


class FolderSend:
    """Sends requests through a folder and waits for answers. Close it: it holds a lock and a thread."""

    keeps_requests = True  # an answer may be to the same request of an earlier process

    def __init__(self, shared: Path, home: Path, every: float = SECONDS_BETWEEN_LOOKS) -> None:
        self.shared, self.home, self.every = Path(shared), Path(home), every
        self.ignoring = Ignoring()
        self._open = ExitStack()
        self._open.enter_context(locked(self.home / LOCK, f"the federation of {self.home}"))
        try:
            self._key = read_identity(self.home)
            self.federation = publish(self.shared, self.home)
            self._note_departures()
        except BaseException:
            self._open.close()
            raise
        self._turn = threading.RLock()  # a callback that receives an answer may send the next request at once
        self._waiting: list[_Waiting] = []
        self._in_step: set[str] = set()  # synchronous runs, whose rounds have the same number at all sites
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem = ""  # of the last read
        self._swept = ("", -1)  # run and round whose first request withdrew obsolete ones
        self._unusable: dict[tuple[str, RequestName], str] = {}  # why a file at the place of an answer was ignored
        self._counted = 0.0

    def __enter__(self) -> FolderSend:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop waiting. Requests stay open, so a run that continues later finds answers that arrived meanwhile."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._turn:
            for one in self._waiting:
                _fail(one.answer, "the coordinator stopped waiting")
            self._waiting.clear()
        self._open.close()

    def __call__(self, site: str, request: bytes, patience: float) -> Future[bytes]:
        """Send a request; the future gets the answer, or `Silent` with the reason. A cancelled request is withdrawn."""
        answer: Future[bytes] = Future()
        member = self.federation.site(site)
        if member is None or member.state != "joined":
            _fail(answer, f"site {site!r} does not participate in {self.federation.name!r}: {_state(member)}")
            return answer
        label = wire.read_label(request)
        if label.kind in ONLINE:
            _fail(answer, f"secure aggregation needs all sites online at once, but {site!r} uses a shared folder")
            return answer
        with self._turn:
            if label.kind == "hello":
                self._announce(request)
            name = self._name(member, RequestName.of(request))
            self._withdraw(member, name)
            if (found := self._answer(member, name)) is not None:
                answer.set_result(found)
                return answer
            path = own_folder(self.shared, TO, site) / str(name)
            if not self._is_there(path, member, name, request):
                write_signed(path, self._key, _request(self.federation.federation, site, name), request)
            own_folder(self.shared, FROM, site)
            self._waiting.append(_Waiting(member, name, answer, time.monotonic() + patience, patience))
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="fedrank-folder", daemon=True)
                self._thread.start()
        return answer

    @property
    def ignored(self) -> dict[str, int]:
        """Number of ignored files, by reason."""
        return self.ignoring.reasons

    def _announce(self, request: bytes) -> None:
        """Write the plan of a hello request for sites that are not running at the moment."""
        label = wire.read_label(request)
        hello = wire.Label("hello", label.run, label.round)
        _, found = wire.unpack(split(request)[0], hello, {"plan": Part("|S", MAX_PLAN)})
        plan = Plan.load(found["plan"])
        refuse_online_plan(plan)
        if getattr(plan.question, "arrival", None) is None:
            self._in_step.add(label.run.hex())
        path = own_folder(self.shared, PLANS) / f"{label.run.hex()}.plan"
        address = _plan(self.federation.federation, label.run.hex())
        try:
            if read_signed(path, address, self._key.public, MAX_PLAN) == found["plan"]:
                return
        except (FileNotFoundError, Unusable):
            pass
        write_signed(path, self._key, address, found["plan"])

    def _name(self, member: FolderMember, name: RequestName) -> RequestName:
        """The name for a request: the same as before while it is open, unless its answer was unusable.

        A refused request may succeed now, and a withdrawn one is repeated with a new name: its old answer may still
        exist.
        """
        requests = [one.asked for _, one in self._names(TO, member.name) if one._replace(asked=0) == name]
        if not requests:
            answers = [one.asked for _, one in self._names(FROM, member.name) if one._replace(asked=0) == name]
            return name._replace(asked=max(answers, default=-1) + 1)
        before = name._replace(asked=max(requests))
        found = self._answer(member, before)
        if found is not None and _refusal(found):
            return before._replace(asked=before.asked + 1)
        return before

    def _withdraw(self, member: FolderMember, name: RequestName) -> None:
        """Withdraw obsolete requests: others to this site, those of other runs, and of completed rounds.

        Otherwise a returning site would answer them, and its people would be charged for unused answers.
        """
        awaited = {(one.member.name, one.name) for one in self._waiting if not one.answer.done()}
        now = (name.run, name.round)
        for site in self.federation.sites if self._swept != now else (member,):  # all sites once per round
            for path, other in self._names(TO, site.name):
                mine = site.name == member.name and other != name
                over = other.run != name.run or (name.run in self._in_step and other.round < name.round)
                if (mine or over) and (site.name, other) not in awaited:
                    path.unlink(missing_ok=True)
        self._swept = now

    def _names(self, where: str, site: str) -> Iterator[tuple[Path, RequestName]]:
        for path in looked_at(self.shared / where / site, self.ignoring):
            if (name := RequestName.read(path.name)) is not None:
                yield path, name

    def _is_there(self, path: Path, member: FolderMember, name: RequestName, request: bytes) -> bool:
        try:
            address = _request(self.federation.federation, member.name, name)
            return split(read_signed(path, address, self._key.public, LARGEST))[0] == split(request)[0]
        except (FileNotFoundError, Unusable):
            return False

    def _answer(self, member: FolderMember, name: RequestName) -> bytes | None:
        path = self.shared / FROM / member.name / str(name)
        try:
            return read_signed(path, _reply(self.federation.federation, member.name, name), member.public, LARGEST)
        except FileNotFoundError:
            return None
        except Unusable as problem:
            self.ignoring.count(path, problem.reason)
            self._unusable[member.name, name] = problem.reason
            return None

    def _look(self) -> None:
        while not self._stop.wait(self._pause()):
            with self._turn:
                try:
                    self._look_once()
                    self._problem = ""
                except OSError as problem:  # a network share may be unavailable temporarily
                    self._problem = error_message(problem)
                self._expire()

    def _pause(self) -> float:
        """Seconds until the next read or the next deadline."""
        with self._turn:
            first = min((one.deadline for one in self._waiting), default=float("inf"))
        return max(0.0, min(self.every, first - time.monotonic()))

    def _look_once(self) -> None:
        for one in list(self._waiting):
            if one.answer.cancelled():
                (self.shared / TO / one.member.name / str(one.name)).unlink(missing_ok=True)
                self._waiting.remove(one)
            elif (found := self._answer(one.member, one.name)) is not None:
                self._waiting.remove(one)
                with suppress(InvalidStateError):  # cancelled meanwhile
                    one.answer.set_result(found)
        if time.monotonic() - self._counted > SECONDS_BETWEEN_COUNTS:
            self._counted = time.monotonic()
            self._note_departures()
            self._count_others()

    def _expire(self) -> None:
        for one in [one for one in self._waiting if time.monotonic() >= one.deadline]:
            self._waiting.remove(one)
            why = f"; {self._problem}" if self._problem else ""
            if reason := self._unusable.pop((one.member.name, one.name), ""):
                why += f"; the file at the place of its answer is ignored: {reason}"
            _fail(
                one.answer,
                f"site {one.member.name!r} has not answered round {one.name.round} within {one.patience:g} s; its "
                f"request stays open{why}",
            )

    def _note_departures(self) -> None:
        if note_departures(self.shared, self.home):
            self.federation = publish(self.shared, self.home)

    def _count_others(self) -> None:
        """Count files that are never read."""
        for site in self.federation.sites:
            for path in looked_at(self.shared / FROM / site.name, self.ignoring):
                if RequestName.read(path.name) is None:
                    self.ignoring.count(path, _foreign(path.name))


def folder_send(shared: Path, home: Path, every: float = SECONDS_BETWEEN_LOOKS) -> FolderSend:
    """Sends requests of a coordinator's home through its shared folder; use it in a `with` statement."""
    return FolderSend(shared, home, every)


def serve_once(
    shared: Path, site_folder: Path, site: Answering | None = None, ignoring: Ignoring | None = None
) -> list[FolderAnswer]:
    """Answer every open request to a site once. Without `site`, the site of the folder is opened."""
    shared, site_folder = Path(shared), Path(site_folder)
    ignoring = Ignoring() if ignoring is None else ignoring
    state = membership_state(shared, site_folder)
    if state == "waiting":
        return []
    if state != "joined":
        raise ValueError(f"this site {_ENDED[state]}, so its messages are not sent; join again, or remove its folder")
    me, key = FolderMembership.read(site_folder), read_identity(site_folder)
    wanted = list(_open_requests(shared, me, key, ignoring))
    answered = []
    if wanted:
        with nullcontext(site) if site is not None else _opened_site(site_folder) as at_work:
            known = ""  # the run that the site has loaded
            for name, request in wanted:
                if wire.read_label(request).kind != "hello" and name.run != known:
                    _introduce(shared, me, name.run, _over(site_folder, name), request, at_work, ignoring)
                known = name.run
                answered.append(_answer_one(shared, me, key, name, request, at_work))
    _tidy(shared, me)
    return answered


def serve(
    shared: Path,
    site_folder: Path,
    every: float = 5.0,  # seconds
    stop: Callable[[], bool] = lambda: False,
    site: Answering | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, int]:
    """Answer open requests until `stop` returns True; return the number of ignored files by reason.

    The folder may be unavailable at times: a removed USB drive, an unmounted share.
    """
    ignoring, problem = Ignoring(), ""
    with nullcontext(site) if site is not None else _opened_site(Path(site_folder)) as at_work:
        while not stop():
            try:
                if why := not_approved(shared, site_folder):
                    raise ValueError(why)
                for one in serve_once(shared, site_folder, at_work, ignoring):
                    tell(f"round {one.round}: {one.kind} {f'refused: {one.refused}' if one.refused else 'answered'}")
                problem = ""
            except (OSError, ValueError) as found:
                if error_message(found) != problem:  # do not repeat the same message every five seconds
                    problem = error_message(found)
                    tell(problem)
            wake = time.monotonic() + every
            while not stop() and time.monotonic() < wake:
                time.sleep(min(0.2, every))
    return ignoring.reasons


def not_approved(shared: Path, site_folder: Path) -> str:
    """Why a site is asked nothing yet; "" if the coordinator has approved it."""
    if membership_state(Path(shared), Path(site_folder)) != "waiting":
        return ""
    name, key = FolderMembership.read(site_folder).site, fingerprint(read_identity(site_folder).public)
    return (
        f"site {name!r} with the key {key} is not approved; ask the coordinator to run `fedrank deploy approve`, or "
        "restore identity.key and folder.json if they were changed"
    )


def _open_requests(
    shared: Path, me: FolderMembership, key: IdentityKey, ignoring: Ignoring
) -> Iterator[tuple[RequestName, bytes]]:
    """Requests of the coordinator that have not been answered yet, in order."""
    names = []
    for path in looked_at(shared / TO / me.site, ignoring):
        if (name := RequestName.read(path.name)) is None:
            ignoring.count(path, _foreign(path.name))
        else:
            names.append((name, path))
    for name, path in sorted(names):
        try:
            request = read_signed(path, _request(me.federation, me.site, name), me.coordinator, LARGEST)
            if RequestName.of(request, name.asked) != name:
                ignoring.count(path, "its name does not match its content")
                continue
        except FileNotFoundError:
            continue  # withdrawn meanwhile
        except wire.Refused as problem:
            ignoring.count(path, str(problem))
            continue
        except Unusable as problem:
            ignoring.count(path, problem.reason)
            continue
        try:
            read_signed(shared / FROM / me.site / str(name), _reply(me.federation, me.site, name), key.public, LARGEST)
        except (FileNotFoundError, Unusable):
            yield name, request


def _answer_one(
    shared: Path, me: FolderMembership, key: IdentityKey, name: RequestName, request: bytes, site: Answering
) -> FolderAnswer:
    answer = site.answer(request)
    write_signed(own_folder(shared, FROM, me.site) / str(name), key, _reply(me.federation, me.site, name), answer)
    kind = wire.read_label(request).kind
    return FolderAnswer(name.run, name.round, name.attempt, kind, _refusal(answer))


def _introduce(
    shared: Path, me: FolderMembership, run: str, over: int, request: bytes, site: Answering, ignoring: Ignoring
) -> None:
    """Send hello for the coordinator, with the heads of its request: a site that was started later lacks the run."""
    plan = _read_plan(shared, me, run, ignoring)
    if plan is not None:
        hello = protocol.request("hello", bytes.fromhex(run), over, plan=plan)
        site.hear(hello + request[len(split(request)[0]) :])


def _over(site_folder: Path, name: RequestName) -> int:
    """The last completed round, for a site that was restored from a backup and has no information about this run.

    A coordinator that requests a round, with its signature, has completed all earlier rounds.
    """
    mark = RestoreMark.read(site_folder)
    return 0 if mark is None or name.run in mark.completed_rounds else max(0, name.round - 1)


def _tidy(shared: Path, me: FolderMembership) -> None:
    """Remove own answers whose requests no longer exist."""
    for path in looked_at(shared / FROM / me.site, Ignoring()):
        if RequestName.read(path.name) is not None and not (shared / TO / me.site / path.name).exists():
            path.unlink(missing_ok=True)


def _read_plan(shared: Path, me: FolderMembership, run: str, ignoring: Ignoring) -> bytes | None:
    path = shared / PLANS / f"{run}.plan"
    try:
        return read_signed(path, _plan(me.federation, run), me.coordinator, MAX_PLAN)
    except FileNotFoundError:
        return None
    except Unusable as problem:
        ignoring.count(path, problem.reason)
        return None


def _opened_site(folder: Path) -> AbstractContextManager[Answering]:
    from fedrank.deploy.site import Site  # imports data and learners, which a coordinator does not need

    return Site.open(folder)


def _request(federation: str, site: str, name: RequestName) -> FileAddress:
    return FileAddress(federation, "request", COORDINATOR, site, str(name))


def _reply(federation: str, site: str, name: RequestName) -> FileAddress:
    return FileAddress(federation, "answer", site, COORDINATOR, str(name))


def _plan(federation: str, run: str) -> FileAddress:
    return FileAddress(federation, "plan", COORDINATOR, "everybody", run)  # signed; prose: ok


def _foreign(name: str) -> str:
    """Why a name is ignored: synchronisation programs append a number or a word to the name of a copy."""
    return COPY if _NAME.match(name) else FOREIGN_NAME


def _refusal(answer: bytes) -> str:
    """The reason in a refusal, or why an answer cannot be read; "" if it is neither."""
    try:
        label = wire.read_label(answer)
        if label.kind == "refused":
            protocol.read(split(answer)[0], label, {})
    except wire.Refused as problem:
        return str(problem)
    return ""


def _state(member: FolderMember | None) -> str:
    return "no site with this name was approved" if member is None else f"it {_ENDED[member.state]}"


def _fail(answer: Future[bytes], why: str) -> None:
    with suppress(InvalidStateError):
        answer.set_exception(Silent(why))
