"""Calls to sites: send requests, wait for answers, read them, and leave out sites that keep sending invalid ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.plan import Plan, PlannedSite
from fedrank.deploy.records import printable
from fedrank.wire import Label, Refused

Send = Callable[[str, bytes, float], "Future[bytes]"]  # site, request, patience in seconds
MAX_REFUSALS = 3  # in a row, after which a site is left out until an operator says otherwise
PAUSE = 2.0  # seconds before a round is asked for again
LATE = 5.0  # seconds, at least, that the others have when enough have answered
SLOW = 5.0  # seconds without an answer after which the hub says for whom it waits, and again and again
LOOK = 0.25  # seconds between checks for a request to stop
GRACE = 2.0  # seconds beyond the patience, for an engine that keeps no time


class Silent(Exception):
    """A site that did not answer; the text says why, as far as is known."""


class Exchange(NamedTuple):
    """What became of one request."""

    site: str
    bytes_down: int
    bytes_up: int
    seconds: float
    reason: str = ""  # why it was of no use; "": it was


@dataclass
class SiteCalls:
    """How a coordinator asks the sites of a plan."""

    plan: Plan
    send: Send
    patience: float = 60.0  # seconds that a site has for a request
    note: Callable[[int, Exchange], None] = lambda round, asked: None  # told of every request
    waiting: Callable[[int, Mapping[str, str]], None] = lambda round, why: None  # told for whom a round waits
    stop: Callable[[], bool] = lambda: False
    left_out: dict[str, str] = field(default_factory=dict)  # sites that an operator must let in again, and why
    _refused: dict[str, int] = field(default_factory=dict)  # in a row

    def sites(self) -> list[PlannedSite]:
        """Who is asked at all."""
        return [site for site in self.plan.sites if site.name not in self.left_out]

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
        """What sites answered, read and checked; and of those who did not, why.

        Where so many are `enough`, the others are not waited for much longer than those took.
        """
        self.check_stop()
        began = time.monotonic()
        sent = {name: self.send(name, content, self.patience) for name, content in requests.items()}
        self._wait_for(sent, round, began, enough)
        found: dict[str, Any] = {}
        why: dict[str, str] = {}
        for site in self.plan.sites:
            if site.name not in sent:
                continue
            label = Label(kind, self.plan.run, round, attempt, site.clients[0])
            one, answer = self.read_answer(site.name, sent[site.name], label, read, began, len(requests[site.name]))
            if one.reason:
                why[site.name] = one.reason
            else:
                found[site.name] = answer
            if traffic is not None:
                traffic.append(one)
            elif one.reason:
                self.note(round, one)
        return found, why

    def read_answer(
        self,
        name: str,
        future: Future[bytes],
        label: Label,
        read: Callable[[bytes, Label], Any],
        began: float,
        bytes_down: int,
    ) -> tuple[Exchange, Any]:
        """The answer to a request, read and checked; one that is not here by now is not waited for."""
        up, found, reason = 0, None, ""
        try:
            if not future.done():
                future.cancel()
                raise Silent(f"no answer within {time.monotonic() - began:.3g} s")
            content = future.result()
            up = len(content)
            found = read(content, label)
            self._refused[name] = 0  # earlier refusals no longer count
        except Exception as problem:
            reason = self.blame(name, problem)
        return Exchange(name, bytes_down, up, time.monotonic() - began, reason), found

    def _wait_for(self, sent: Mapping[str, Future[bytes]], round: int, began: float, enough: int | None) -> None:
        pending, deadline, came, told = set(sent.values()), began + self.patience + GRACE, 0, began
        while pending and time.monotonic() < deadline:
            self.check_stop()
            left = deadline - time.monotonic()
            done, pending = wait(pending, timeout=max(0.0, min(left, LOOK)), return_when=FIRST_COMPLETED)
            came += sum(future.exception() is None for future in done)
            now = time.monotonic()
            if enough is not None and came >= enough:
                deadline, enough = min(deadline, now + max(LATE, 2 * (now - began))), None
            if pending and now - told > SLOW:
                told = now
                slow = [name for name, future in sent.items() if future in pending]
                self.waiting(round, self.left_out | dict.fromkeys(slow, f"no answer for {now - began:.0f} s"))

    def blame(self, name: str, problem: Exception) -> str:
        """Why a site's answer cannot be used. A site that sends invalid answers three times in a row is left out.

        A site that is silent, or that refuses by its own decision, is asked again: it may answer later.
        """
        reason = printable(str(problem) or type(problem).__name__)
        if isinstance(problem, Refused) and not isinstance(problem, protocol.Objection):
            self._refused[name] = self._refused.get(name, 0) + 1
            if self._refused[name] >= MAX_REFUSALS:
                self.left_out[name] = f"left out after {MAX_REFUSALS} refusals in a row, the last: {reason}"
        return reason

    def give(self, round: int, **parts: bytes) -> dict[str, str]:
        """Give a result to every site; of those who did not take it, why."""
        content = wire.pack(Label("result", self.plan.run, round), parts)
        return self.ask({site.name: content for site in self.sites()}, round, protocol.read_facts, "facts")[1]

    def pause(self, round: int, why: Mapping[str, str], pauses: float = 1.0) -> None:
        """Say for whom the run waits, and give them time."""
        self.waiting(round, {**self.left_out, **why})
        until = time.monotonic() + pauses * PAUSE
        while time.monotonic() < until:
            self.check_stop()
            time.sleep(0.05)

    def check_stop(self) -> None:
        """End the run here if somebody asked for that."""
        if self.stop():
            from fedrank.experiments.runner.writer import Stopped

            raise Stopped


def once_each(traffic: Sequence[Exchange]) -> list[Exchange]:
    """Requests, those that failed for the same reason once each: a run may wait for days."""
    found = {(one.site, one.reason) if one.reason else number: one for number, one in enumerate(traffic)}
    return list(found.values())
