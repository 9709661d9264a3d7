"""Asynchronous rounds: sites answer when they are ready, and a slow site does not delay the others.

A request is numbered by the last round to which its site contributed. A coordinator that restarts therefore sends the
same request again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.deploy import protocol, site_calls
from fedrank.deploy.handshake import Differs, Handshake
from fedrank.deploy.plan import PlannedSite
from fedrank.deploy.protocol import ASKED
from fedrank.deploy.round_answers import AnswerReader, RoundAnswers
from fedrank.deploy.site_calls import Exchange
from fedrank.federated.messages import Message
from fedrank.federated.server import ServerTask, State, settle
from fedrank.wire import Label


class AsynchronousRound(NamedTuple):
    """A completed round."""

    state: State
    rows: NDArray[np.int64]  # clients whose messages it used
    answers: RoundAnswers
    traffic: list[Exchange]


class Pending(NamedTuple):
    """A request that has not been answered yet."""

    site: PlannedSite
    label: Label  # of the expected answer
    began: float
    bytes_down: int


@dataclass
class AsynchronousRounds:
    """Performs a step as soon as enough sites have answered, then asks those sites again."""

    handshake: Handshake
    reader: AnswerReader
    task: ServerTask
    source: Any = None  # of the coordinator's privacy noise
    _pending: dict[Future[bytes], Pending] = field(default_factory=dict)
    _later: dict[str, float] = field(default_factory=dict)  # sites without a usable answer, and when to ask them again
    _ready: dict[int, tuple[Message, Exchange]] = field(
        default_factory=dict
    )  # by row: messages that no step has used yet

    def rounds(self, state: State, last: int) -> Iterator[AsynchronousRound]:
        """Yield the remaining rounds as they complete."""
        calls, plan, rule = self.handshake.calls, self.handshake.calls.plan, self.task.arrival
        assert rule is not None
        gathers = max(1, rule.gathers)
        heard = state.rule.get("heard", np.zeros(len(plan.clients), dtype=np.int64))
        for site in calls.sites():
            self._ask(site, state, heard)
        while state.round < last:
            calls.check_stop()
            self.handshake.over = state.round
            for name in [name for name, when in self._later.items() if when <= time.monotonic()]:
                del self._later[name]
                self._ask(plan.party(name), state, heard)
            if not self._pending and not self._later:
                raise Differs(f"no site is left to ask: {'; '.join(calls.left_out.values())}")
            self._collect(state)
            while len(self._ready) >= min(gathers, len(calls.sites())) and self._ready and state.round < last:
                rows = np.array(list(self._ready)[:gathers])
                taken = [self._ready.pop(int(row)) for row in rows]
                for _, one in taken:
                    calls.note(state.round + 1, one)
                heard = heard.copy()
                heard[rows] = state.round + 1
                messages = self.task.gathered(state, [message for message, _ in taken])
                order = np.array([plan.row_of[int(id)] for id in messages.ids])
                state = settle(self.task, state, messages, order, self.source, rows)
                state.rule["heard"] = heard
                answers = RoundAnswers([message for message, _ in taken])
                yield AsynchronousRound(state, rows, answers, [one for _, one in taken])
                for row in rows:
                    self._ask(plan.site_of[plan.clients[int(row)]], state, heard)

    def _ask(self, site: PlannedSite, state: State, heard: NDArray[np.int64]) -> None:
        calls, plan, rule = self.handshake.calls, self.handshake.calls.plan, self.task.arrival
        assert rule is not None
        row = plan.row_of[site.clients[0]]
        number = int(heard[row]) * len(plan.clients) + row + 1
        one = np.array([(site.clients[0], -1, 0)], ASKED)
        # The age of the update is unknown until it arrives, so its site gives it full weight; and a request must not
        call = self.task.call(_renumbered(state, number - 1), plan.run, row, max(1, rule.gathers))
        content = protocol.request("round", plan.run, number, call=replace(call, count=1.0).pack(), asked=one.tobytes())
        label = Label("answers", plan.run, number, 0, site.clients[0])
        future, size = calls.request(site.name, content)
        self._pending[future] = Pending(site, label, time.monotonic(), size)

    def _collect(self, state: State) -> None:
        """Wait briefly for answers; sites without a usable answer are asked again later."""
        calls = self.handshake.calls
        if not self._pending:
            time.sleep(0.05)
            return

        def read(content: bytes, label: Label) -> Message:
            found, clients = self.reader.unpack(content, label, 1), calls.plan.site_of[label.sender].clients
            [message] = self.reader.messages(found, _renumbered(state, label.round - 1), clients)
            return message

        for future in wait(self._pending, timeout=0.2, return_when=FIRST_COMPLETED).done:
            pending = self._pending.pop(future)
            site = pending.site
            one, message = calls.read_answer(site.name, future, pending.label, read, pending.began, pending.bytes_down)
            calls.store_heads()
            if message is not None:
                self._ready[calls.plan.row_of[site.clients[0]]] = message, one
                continue
            calls.note(state.round + 1, one)
            stranger = one.reason in (protocol.SAY_HELLO, protocol.NOT_CONFIRMED)
            self.handshake.greet_strangers({site.name: one.reason})
            calls.waiting(state.round + 1, {**calls.left_out, site.name: one.reason})
            if site.name not in calls.left_out:
                self._later[site.name] = time.monotonic() + (0 if stranger else site_calls.PAUSE)


def _renumbered(state: State, round: int) -> State:
    """The same state with another round number: asynchronous requests have separate numbers."""
    return replace(state, round=round)
