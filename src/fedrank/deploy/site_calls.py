"""Calls to sites: send requests, read the answers, and exclude sites that repeatedly send invalid ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from fedrank import wire
from fedrank.deploy import heads, protocol
from fedrank.deploy.plan import Plan, PlannedSite
from fedrank.deploy.records import printable
from fedrank.wire import Label, Refused

Send = Callable[[str, bytes, float], "Future[bytes]"]  # site, request, patience in seconds
MAX_REFUSALS = 3  # consecutive, after which a site is excluded until an operator readmits it
PAUSE = 2.0  # seconds before a round is requested again
LATE = 5.0  # minimum seconds for the remaining sites after enough have answered
SLOW = 5.0  # seconds without an answer after which the hub reports the missing sites, repeatedly
LOOK = 0.25  # seconds between checks for a request to stop
WITNESSES = 3  # sites that sign the head of another site with each answer: more would lengthen messages
MAX_WITNESSES = 30  # the same after a start, when some of them may not be online
GRACE = 2.0  # seconds beyond the patience, for a transport that does not enforce it


class Silent(Exception):
    """A site did not answer; the text gives the reason, if known."""


class Exchange(NamedTuple):
    """The outcome of one request."""

    site: str
    bytes_down: int
    bytes_up: int
    seconds: float
    reason: str = ""  # why the answer could not be used; "" if it could


@dataclass
class SiteCalls:
    """Sends requests to the sites of a plan."""

    plan: Plan
    send: Send
    patience: float = 60.0  # seconds for a site to answer a request
    note: Callable[[int, Exchange], None] = lambda round, asked: None  # called after every request
    waiting: Callable[[int, Mapping[str, str]], None] = lambda round, why: (
        None
    )  # called with the sites that a round waits for
    stop: Callable[[], bool] = lambda: False
    left_out: dict[str, str] = field(default_factory=dict)  # sites that an operator must readmit, and why
    witness: heads.Witness | None = None  # stores the newest heads of the sites; None: heads are not used
    _challenges: dict[int, bytes] = field(default_factory=dict)  # of sites, by id
    _statements: dict[int, dict[int, heads.Statement]] = field(default_factory=dict)  # about a site, by witness
    _refused: dict[str, int] = field(default_factory=dict)  # consecutive invalid answers
    _nonces: WeakKeyDictionary[Future[bytes], bytes] = field(default_factory=WeakKeyDictionary)  # of open requests

    def sites(self) -> list[PlannedSite]:
        """The sites that are asked."""
        return [site for site in self.plan.sites if site.name not in self.left_out]

    @property
    def keys(self) -> dict[int, str]:
        """Public keys of the sites that sign heads, by id."""
        return {site.clients[0]: site.identity for site in self.plan.sites if site.identity and not self.plan.simulated}

    def request(self, name: str, content: bytes) -> tuple[Future[bytes], int]:
        """Send a request with a new nonce and the newest heads of all sites; return also its number of bytes."""
        nonce, keys = heads.new_nonce(), self.keys
        if self.witness is not None and keys:
            site, known = self.plan.party(name).clients[0], tuple(self.witness.of(keys.values()))
            others = sorted(set(self._challenges) - {site}, key=lambda id: (id < site, id))  # the next ones first
            others = others[: MAX_WITNESSES if wire.read_label(content).kind == "witness" else WITNESSES]
            stated = [
                one for one in self._statements.get(site, {}).values() if one.challenge == self._challenges.get(site)
            ]
            stated = sorted(stated, key=lambda one: one.head.counter)[-WITNESSES:]
            challenges = tuple((id, self._challenges[id]) for id in others)
            content = heads.Seen(nonce, known, challenges, tuple(stated)).behind(content)
        future = self.send(name, content, self.patience)
        self._nonces[future] = nonce
        return future, len(content)

    def _check_heads(self, future: Future[bytes], content: bytes, label: Label) -> bytes:
        """The answer without its heads, which `store_heads` stores before the answer is used."""
        answer, seen = heads.split(content)
        if self.witness is None or not self.keys or wire.read_label(answer).kind == "refused":
            return answer
        if seen is None or not any(head.site == label.sender for head in seen.heads):
            if self.witness.of([self.keys.get(label.sender, "")]):
                raise Refused("its answer contains no head of its journal, although earlier ones did")
            return answer
        # A shared folder may return the answer to the same request of an earlier process.
        if not getattr(self.send, "keeps_requests", False):
            own = [head.nonce for head in seen.heads if head.site == label.sender]
            if own != [self._nonces.get(future)]:
                raise Refused("the head of its journal belongs to another request")
        keys = self.keys
        self.witness.keep(seen.heads, keys, label.sender)
        for id, challenge in seen.challenges:
            if id == label.sender:
                self._challenges[id] = challenge
        for one in seen.statements:
            about = keys.get(one.head.site)
            if one.witness != label.sender or not about or not one.is_of(keys[label.sender]):
                continue
            if one.head == self.witness.heads.get(about) or one.head.is_of(about):  # known heads were verified
                self._statements.setdefault(one.head.site, {})[one.witness] = one
        return answer

    def ask(
        self,
        requests: Mapping[str, bytes],
        round: int,
        read: Callable[[bytes, Label], Any],
        kind: str,
        attempt: int = 0,
        traffic: list[Exchange] | None = None,
        enough: int | None = None,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Answers of sites, read and checked; and why the other sites did not answer.

        Once `enough` sites have answered, the others get only a little more time.
        """
        self.check_stop()
        began = time.monotonic()
        asked = {name: self.request(name, content) for name, content in requests.items()}
        sent = {name: future for name, (future, _) in asked.items()}
        self._wait_for(sent, round, began, enough)
        found: dict[str, Any] = {}
        why: dict[str, str] = {}
        for site in self.plan.sites:
            if site.name not in sent:
                continue
            label = Label(kind, self.plan.run, round, attempt, site.clients[0])
            one, answer = self.read_answer(site.name, sent[site.name], label, read, began, asked[site.name][1])
            if one.reason:
                why[site.name] = one.reason
            else:
                found[site.name] = answer
            if traffic is not None:
                traffic.append(one)
            elif one.reason:
                self.note(round, one)
        self.store_heads()
        return found, why

    def store_heads(self) -> None:
        """Store the heads of the answers read so far durably; call this before an answer is used."""
        if self.witness is not None:
            self.witness.write()

    def read_answer(
        self,
        name: str,
        future: Future[bytes],
        label: Label,
        read: Callable[[bytes, Label], Any],
        began: float,
        bytes_down: int,
    ) -> tuple[Exchange, Any]:
        """Read and check the answer to a request; if it has not arrived yet, stop waiting."""
        up, found, reason = 0, None, ""
        try:
            if not future.done():
                future.cancel()
                raise Silent(f"no answer within {time.monotonic() - began:.3g} s")
            content = future.result()
            up = len(content)
            found = read(self._check_heads(future, content, label), label)
            self._refused[name] = 0  # earlier refusals no longer count
        except Exception as problem:
            reason = self.blame(name, problem)
        return Exchange(name, bytes_down, up, time.monotonic() - began, reason), found

    def _wait_for(self, sent: Mapping[str, Future[bytes]], round: int, began: float, enough: int | None) -> None:
        pending, deadline, came, reported = set(sent.values()), began + self.patience + GRACE, 0, began
        while pending and time.monotonic() < deadline:
            self.check_stop()
            left = deadline - time.monotonic()
            done, pending = wait(pending, timeout=max(0.0, min(left, LOOK)), return_when=FIRST_COMPLETED)
            came += sum(future.exception() is None for future in done)
            now = time.monotonic()
            if enough is not None and came >= enough:
                deadline, enough = min(deadline, now + max(LATE, 2 * (now - began))), None
            if pending and now - reported > SLOW:
                reported = now
                slow = [name for name, future in sent.items() if future in pending]
                self.waiting(round, self.left_out | dict.fromkeys(slow, f"no answer for {now - began:.0f} s"))

    def blame(self, name: str, problem: Exception) -> str:
        """Return why a site's answer cannot be used; exclude a site after three consecutive invalid answers.

        A site that does not answer, or that refuses by its own decision, is asked again: it may answer later.
        """
        reason = printable(str(problem) or type(problem).__name__)
        if isinstance(problem, Refused) and not isinstance(problem, protocol.Objection):
            self._refused[name] = self._refused.get(name, 0) + 1
            if self._refused[name] >= MAX_REFUSALS:
                self.left_out[name] = (
                    f"excluded after {MAX_REFUSALS} consecutive invalid answers, the last one: {reason}"
                )
        return reason

    def give(self, round: int, parts: Mapping[str, bytes], names: Sequence[str] | None = None) -> dict[str, str]:
        """Send a result to these sites (None: to all); return why sites did not accept it."""
        content = wire.pack(Label("result", self.plan.run, round), parts)
        to = [site.name for site in self.sites() if names is None or site.name in names]
        return self.ask(dict.fromkeys(to, content), round, protocol.read_facts, "facts")[1]

    def pause(self, round: int, why: Mapping[str, str], pauses: float = 1.0) -> None:
        """Report the sites that the run waits for, and pause."""
        self.waiting(round, {**self.left_out, **why})
        until = time.monotonic() + pauses * PAUSE
        while time.monotonic() < until:
            self.check_stop()
            time.sleep(0.05)

    def check_stop(self) -> None:
        """Stop the run if requested."""
        if self.stop():
            from fedrank.experiments.runner.writer import Stopped

            raise Stopped


def once_each(traffic: Sequence[Exchange]) -> list[Exchange]:
    """Requests, with failures for the same reason listed once: a run may wait for days."""
    found = {(one.site, one.reason) if one.reason else number: one for number, one in enumerate(traffic)}
    return list(found.values())
