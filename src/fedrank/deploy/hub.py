"""The coordinator's rounds: ask sites, check their answers, update the model. It does not depend on NVFLARE or data.

A site that does not answer in time is not part of the round. A round ends when `Plan.min_sites` sites have answered;
until then the hub asks again and reports the missing sites. Rounds are those of `fedrank.federated.round`, so the run
folder equals that of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.deploy import protocol, site_calls
from fedrank.deploy.asynchronous_rounds import AsynchronousRounds
from fedrank.deploy.handshake import Handshake
from fedrank.deploy.plan import PlannedSite
from fedrank.deploy.protocol import ASKED
from fedrank.deploy.round_answers import AnswerReader, RoundAnswers, longest_update
from fedrank.deploy.secure_rounds import SecureRounds, has_participated
from fedrank.deploy.site_calls import Exchange, SiteCalls, once_each
from fedrank.federated.asynchronous import Schedule
from fedrank.federated.messages import Message
from fedrank.federated.round import Outcome, evaluated, mean_over, root_update, taking_part
from fedrank.federated.server import Combined, ServerTask, State, advance, settle
from fedrank.types import Memory, Messages, SimulatedClients, has_trait
from fedrank.wire import Label

MAX_PAUSE = 300.0  # maximum seconds before a failed secure aggregation is repeated


@dataclass(frozen=True)
class AskedClients:
    """The clients of a round and their requests."""

    rows: NDArray[np.int64]
    requests: NDArray[Any]  # of ASKED
    searches: NDArray[np.int64]  # per request


@dataclass
class Hub:
    """Performs the rounds of one plan on the coordinator. Call `hub.handshake.hello()` first."""

    calls: SiteCalls
    begin_attempt: Callable[[int], int] = lambda round: 0  # the number of a new attempt, stored durably
    watch: Callable[[Messages], None] | None = None  # receives what reached the coordinator
    reshape: Callable[[Messages], Messages] | None = None  # changes messages before they are aggregated
    simulated: SimulatedClients | None = (
        None  # of a trial, or the coordinator's own queries if an aggregator needs them
    )

    def __post_init__(self) -> None:
        self.plan = plan = self.calls.plan
        self.task = ServerTask(plan.federated, len(plan.clients), plan.experiment.arrival)
        mechanism, secure = plan.experiment.mechanism, plan.secure_sum is not None
        self.handshake = Handshake(self.calls, secure)
        self.reader = AnswerReader(plan, self.task, longest_update(plan), secure)
        self.secure = SecureRounds(self.handshake, self.reader) if secure else None
        self._source: Any = None if mechanism is None else mechanism.source()

    def rounds(self, state: State, memory: Memory, last: int, plan: Schedule | None = None) -> Iterator[Outcome]:
        """Yield the remaining rounds as they complete."""
        if self.task.arrival is not None and not self.task.arrival.together and plan is None:
            for one in AsynchronousRounds(self.handshake, self.reader, self.task, self._source).rounds(state, last):
                yield self._outcome(one.state, None, one.rows, self.plan.searches[one.rows], one.answers, one.traffic)
            return
        while state.round < last:
            self.handshake.over = state.round
            outcome = self._round(state, memory, plan)
            state, memory = outcome.state, outcome.memory
            yield outcome

    def _round(self, state: State, memory: Memory, plan: Schedule | None) -> Outcome:
        number, asked = state.round + 1, self._asked(state.round + 1, plan)
        traffic: list[Exchange] = []
        tries = 0
        while True:
            attempt = self._plain if self.secure is None else self._summed
            after, answers, why = attempt(state, asked, traffic)
            if after is None and self._over(asked, why):
                after = replace(state, round=number)
            if after is not None:
                break
            traffic[:] = once_each(traffic)
            # Clients are charged for masked values even if the aggregation fails: pauses grow with the number of
            # failures.
            pauses = 1.0 if self.secure is None else min(2.0**tries, MAX_PAUSE / site_calls.PAUSE)
            self.calls.pause(number, why, pauses)
            tries += 1
        for one in traffic:
            self.calls.note(number, one)
        return self._outcome(after, memory, asked.rows, asked.searches, answers, traffic)

    def _asked(self, number: int, plan: Schedule | None) -> AskedClients:
        rows = self._cohort(number) if plan is None else plan.cohort(number)
        asked = np.zeros(len(rows), ASKED)
        asked["client"], asked["at"] = np.array(self.plan.clients)[rows], -1
        if plan is None:
            return AskedClients(rows, asked, self.plan.searches_in(number)[rows])
        batches = np.arange(int(plan.edges[number - 1]), int(plan.edges[number]))
        order = [int(batch) for row in rows for batch in batches if plan.rows[batch] == row]
        asked["at"], asked["searches"] = plan.at[order], plan.searches[order]
        return AskedClients(rows, asked, plan.searches[order])

    def _cohort(self, number: int) -> NDArray[np.int64]:
        federation, count = self.plan.federated, len(self.plan.clients)
        if self.plan.turns is not None:
            return np.flatnonzero(self.plan.turns == number)
        if federation.dealt:
            return np.arange(count)
        if has_trait(federation.mechanism, "hides cohort") and self._source is not None:
            return np.flatnonzero(self._source.bernoulli(federation.participation, count))
        return taking_part(count, federation.participation, self.plan.seed, number)

    def _requests(self, kind: str, state: State, asked: AskedClients, attempt: int = 0) -> dict[str, bytes]:
        """The call of a round for each site with a client in the cohort."""
        ids = set(asked.requests["client"].tolist())
        present = [site for site in self.calls.sites() if ids & set(site.clients)]
        return {site.name: self._call(kind, state, site, asked, attempt) for site in present}

    def _call(self, kind: str, state: State, site: PlannedSite, asked: AskedClients, attempt: int) -> bytes:
        own = asked.requests[np.isin(asked.requests["client"], site.clients)]
        row = self.plan.row_of[int(own["client"][0])]
        call = self.task.call(state, self.plan.run, row, len(asked.rows), attempt)
        return protocol.request(kind, self.plan.run, state.round + 1, attempt, call=call.pack(), asked=own.tobytes())

    def _plain(
        self, state: State, asked: AskedClients, traffic: list[Exchange]
    ) -> tuple[State | None, RoundAnswers, dict[str, str]]:
        """None: too few sites answered, and the round must be requested again."""
        requests = self._requests("round", state, asked)
        answers, why = self._gather(requests, state, asked, traffic)
        if not self._enough(requests, why) or (not answers.messages and len(asked.requests)):
            return None, answers, why
        root = self._root(state)
        if answers.messages:
            messages = self.task.gathered(state, answers.messages)
        else:  # the cohort is empty
            nothing = np.zeros((0, state.weights.shape[-1]), np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64)
            messages = Messages(*nothing, state.weights, state.round + 1)
        if root is not None:
            messages = Messages(
                messages.updates, messages.sizes, messages.ids, messages.weights, messages.round, root=root
            )
        if self.watch is not None:
            self.watch(messages)
        if self.reshape is not None:
            messages = self.reshape(messages)
        used = np.array([self.plan.row_of[int(id)] for id in messages.ids], dtype=np.int64)
        return settle(self.task, state, messages, used, self._source, asked.rows), answers, why

    def _gather(
        self, requests: Mapping[str, bytes], state: State, asked: AskedClients, traffic: list[Exchange]
    ) -> tuple[RoundAnswers, dict[str, str]]:
        """Request the messages of all clients and check each one."""

        def read(content: bytes, label: Label) -> tuple[protocol.Answers, list[Message]]:
            clients = self.plan.site_of[label.sender].clients
            mine = [int(id) for id in asked.requests["client"] if id in clients]
            found = self.reader.unpack(content, label, len(mine))
            messages = self.reader.messages(found, state, mine)
            self.reader.check_observed(found, len(mine))
            return found, messages

        found, why = self.handshake.ask_for_round(requests, state.round + 1, read, 0, traffic)
        answers = RoundAnswers()
        for each, messages in found.values():
            answers.messages.extend(messages)
            answers.observe(each, [message.sender for message in messages])
        return answers, why

    def _over(self, asked: AskedClients, why: Mapping[str, str]) -> bool:
        """Whether a failed round cannot be tried again: with a dealt schedule, no site sends a second message."""
        sites = [self.plan.site_of[int(id)].name for id in asked.requests["client"]]
        left = [name for name in sites if not has_participated(self.plan, why.get(name, ""))]
        needed = 1 if self.secure is None else self.plan.sum_terms(Label("sum", self.plan.run, 1))["min_survivors"]
        return len(left) < min(needed, len(sites))

    def _enough(self, requests: Mapping[str, bytes], why: Mapping[str, str]) -> bool:
        """Whether enough sites answered: the plan's minimum, or all of a smaller cohort."""
        cohort = [site for site in self.plan.sites if site.name in requests or site.name in self.calls.left_out]
        cohort = [site for site in cohort if not has_participated(self.plan, why.get(site.name, ""))]
        return len(requests) - len(why) >= min(self.plan.min_sites, max(1, len(cohort)))

    def _root(self, state: State) -> NDArray[np.float32] | None:
        if not has_trait(self.plan.federated.aggregator, "trusted queries"):
            return None
        assert self.simulated is not None
        return root_update(self.plan.federated, state, self.simulated, self.plan.seed)

    def _summed(
        self, state: State, asked: AskedClients, traffic: list[Exchange]
    ) -> tuple[State | None, RoundAnswers, dict[str, str]]:
        """None: the sum could not be opened and must be tried again."""
        assert self.secure is not None
        number = state.round + 1
        attempt = self.begin_attempt(number)
        requests = self._requests("advertise", state, asked, attempt)
        ids = [int(id) for id in asked.requests["client"]]
        one = self.secure.try_sum(number, attempt, requests, ids, traffic)
        if one.total is None:
            return None, one.answers, one.why
        change = self.secure.change(one, int(self.task.cohort(len(asked.rows))))
        used = np.array([self.plan.row_of[id] for id in one.server.survivors()])
        combined = Combined(change, used, None, np.ones(len(used), np.int64), state.rule, state.common)
        return advance(self.task, state, combined, asked.rows), one.answers, one.why

    def _outcome(
        self,
        state: State,
        memory: Memory,
        rows: NDArray[np.int64],
        searches: NDArray[np.int64],
        answers: RoundAnswers,
        traffic: Sequence[Exchange],
    ) -> Outcome:
        weights = self.plan.whole(state.weights)
        ids = [self.plan.clients[int(row)] for row in rows]
        online = np.array([answers.online.get(id, np.nan) for id in ids])
        reward = None
        if has_trait(self.plan.federated.learner, "rewards"):
            reward = mean_over(np.array([answers.reward.get(id, np.nan) for id in ids]), searches)
        if answers.personal and memory is not None:
            memory = memory.copy()
            for id, kept in answers.personal.items():
                memory[self.plan.row_of[id]] = kept
        if memory is not None and self.simulated is not None:
            weights = evaluated(self.plan.federated, state, memory, self.simulated)
        return Outcome(
            state,
            memory,
            weights,
            mean_over(online, searches) if self.plan.simulated else np.nan,
            int(np.add.reduce(searches)),
            sum(one.bytes_up for one in traffic),
            sum(one.bytes_down for one in traffic),
            reward,
        )
