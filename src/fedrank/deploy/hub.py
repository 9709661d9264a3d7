"""The coordinator's rounds: ask sites, check what they answer, settle, go on. It knows no engine and has no data.

`send` carries bytes to a site and gives its answer later; whoever does not answer in time is left out of the round. A
round ends when `Plan.fewest` sites have answered; until then the hub asks again, and says for whom it waits. Rounds
are those of `fedrank.federated.round`, so that a run folder comes out as from a simulation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.deploy import protocol, site_calls
from fedrank.deploy.plan import PROTOCOL, PlannedSite
from fedrank.deploy.protocol import ASKED, Answers
from fedrank.deploy.site import sum_terms
from fedrank.deploy.site_calls import MOST_REFUSALS, Exchange, SiteCalls, once_each
from fedrank.federated.asynchronous import Schedule
from fedrank.federated.messages import Message
from fedrank.federated.round import Outcome, mean_over, root_update, taking_part
from fedrank.federated.server import Combined, ServerTask, State, advance, receive, settle
from fedrank.privacy.mechanisms import AtServer, SecureAggregation
from fedrank.types import Memory, Messages, SimulatedClients, Weights, has_trait
from fedrank.wire import Label, Refused

LONGEST_PAUSE = 300.0  # seconds before a secure sum that failed again and again is tried once more
MOST_QUERIES = 1 << 40  # behind a sum of measures; more is nonsense


class Differs(Exception):
    """Sites that do not fit together, so that no round begins; the text lists who has what."""


class RoundAnswers(NamedTuple):
    """What came in a round."""

    messages: list[Message]
    online: dict[int, float]
    reward: dict[int, float]
    personal: dict[int, NDArray[np.float64]]


@dataclass
class Hub(SiteCalls):
    """A coordinator at work on one plan."""

    begin_attempt: Callable[[int], int] = lambda round: 0  # the number of a new attempt, durable when it returns
    watch: Callable[[Messages], None] | None = None  # shown what reached the coordinator
    reshape: Callable[[Messages], Messages] | None = None  # changes what came, before it is added up
    crowd: SimulatedClients | None = None  # of a trial, or the coordinator's own queries where a rule needs them
    identities: dict[int, bytes] = field(default_factory=dict)
    _dealt_badly: dict[str, int] = field(default_factory=dict)  # sums that a site spoiled
    _over: int = 0  # rounds that are over
    _reporting: set[str] = field(default_factory=set)  # sites that tell measures of their own queries

    def __post_init__(self) -> None:
        self.task = ServerTask(self.plan.federated, len(self.plan.clients), self.plan.experiment.arrival)
        self._row = {id: row for row, id in enumerate(self.plan.clients)}
        self._site = {id: site for site in self.plan.sites for id in site.clients}
        mechanism: Any = self.plan.experiment.mechanism
        place = getattr(mechanism, "place", None)
        self.place = place if isinstance(place, SecureAggregation) and place.sum == "protocol" else None
        if self.place is not None and not self.plan.simulated:
            self.identities = {site.clients[0]: bytes.fromhex(site.identity) for site in self.plan.sites}
        self._source = None if mechanism is None else mechanism.source()
        self._longest = np.inf
        if isinstance(place, AtServer):
            from fedrank.experiments.runner.privacy import setting_of

            self._longest = 1.0001 * mechanism.reach(setting_of(self.plan.experiment, self.plan.features))

    # Before the first round

    def hello(self, over: int = 0) -> None:
        """Greet every site until enough have answered. Sites that differ stop the run. `over` rounds are over."""
        self._over, greeted = over, set[str]()
        while True:
            why = self._greet([site for site in self.sites() if site.name not in greeted], greeted)
            if len(greeted) >= self.plan.fewest and not (self._unknown and why):
                break
            self._wait(over, why)

    @property
    def _unknown(self) -> bool:
        """Whether keys of a secure sum come from the sites: those of real ones stand in the plan."""
        return self.place is not None and self.plan.simulated

    def _greet(self, sites: Sequence[PlannedSite], greeted: set[str]) -> dict[str, str]:
        """Say hello to these, note who answered, and tell them everybody's keys; of the others, why not."""
        content = protocol.request("hello", self.plan.run, self._over, plan=self.plan.dump())
        found, why = self._ask({site.name: content for site in sites}, self._over, protocol.read_facts, "facts")
        self._compare(found)
        greeted |= set(found)
        self._reporting |= {name for name, facts in found.items() if facts.get("measures")}
        if self._unknown:
            for name, facts in found.items():
                self._meet(name, facts.get("identities", {}))
            if len(self.identities) == len(self.plan.clients):
                why |= self._introduce()
        return why

    def greet_once(self, over: int) -> dict[str, str]:
        """Greet every site after so many rounds, without waiting for those who do not answer; why they did not."""
        self._over = over
        return self._greet(self.sites(), set())

    def _compare(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        plan = self.plan
        expected = {"protocol": PROTOCOL, "version": plan.version, "features": plan.features}
        expected |= {"feature_names": plan.feature_names, "normalised": plan.normalised}
        lines = [
            f"{name} has {key} {protocol.printable(str(facts[key]))[:80] or 'none'}, the plan {value or 'none'}"
            for name, facts in found.items()
            for key, value in expected.items()
            if key in facts and facts[key] != value
        ]
        lines += [
            f"{name} does not say its {key}"
            for name, facts in found.items()
            for key in expected
            if key not in facts and facts.get("version") == plan.version
        ]
        if lines:
            raise Differs("sites do not fit together, so that no round begins: " + "; ".join(lines))

    def _meet(self, name: str, keys: Any) -> None:
        try:
            mine = {id: bytes.fromhex(keys[str(id)]) for id in self.plan.party(name).clients}
        except (KeyError, TypeError, ValueError):
            raise Differs(f"{name} brings no keys to sign with, and a secure sum needs them") from None
        self.identities |= mine

    def _introduce(self) -> dict[str, str]:
        """The public keys of all clients of a trial, to everybody; why some did not take them."""
        keys = protocol.facts({str(id): key.hex() for id, key in self.identities.items()})
        content = protocol.request("partners", self.plan.run, keys=keys)
        return self._ask({site.name: content for site in self.sites()}, 0, _read_letters, "letters")[1]

    # Rounds

    def rounds(self, state: State, memory: Memory, last: int, plan: Schedule | None = None) -> Iterator[Outcome]:
        """The rounds that are left, each as it ends."""
        if self.task.arrival is not None and not self.task.arrival.together and plan is None:
            yield from self._as_they_come(state, last)
            return
        while state.round < last:
            self._over = state.round
            outcome = self._round(state, memory, plan)
            state, memory = outcome.state, outcome.memory
            yield outcome

    def _round(self, state: State, memory: Memory, plan: Schedule | None) -> Outcome:
        number = state.round + 1
        rows = self._cohort(number) if plan is None else plan.cohort(number)
        asked = np.zeros(len(rows), ASKED)
        asked["client"], asked["at"] = np.array(self.plan.clients)[rows], -1
        searches = self.searches[rows]
        if plan is not None:
            batches = np.arange(int(plan.edges[number - 1]), int(plan.edges[number]))
            order = [int(batch) for row in rows for batch in batches if plan.rows[batch] == row]
            asked["at"], asked["searches"] = plan.at[order], plan.searches[order]
            searches = plan.searches[order]
        traffic: list[Exchange] = []
        tries = 0
        while True:
            if self.place is not None:
                after, answers, why = self._secure(state, asked, rows, traffic)
            else:
                after, answers, why = self._plain(state, asked, rows, traffic)
            if after is not None:
                break
            traffic[:] = once_each(traffic)
            # Whoever masked numbers in a sum that failed has paid for them: the longer it fails, the longer the pause.
            self._wait(number, why, 1.0 if self.place is None else min(2.0**tries, LONGEST_PAUSE / site_calls.PAUSE))
            tries += 1
        for one in traffic:
            self.note(number, one)
        return self._outcome(after, memory, rows, searches, answers, traffic)

    def _cohort(self, number: int) -> NDArray[np.int64]:
        federation, count = self.plan.federated, len(self.plan.clients)
        if has_trait(federation.mechanism, "hides cohort") and self._source is not None:
            return np.flatnonzero(self._source.bernoulli(federation.participation, count))
        return taking_part(count, federation.participation, self.plan.seed, number)

    @property
    def searches(self) -> NDArray[np.int64]:
        """[clients]: searches a round, which the plan says by their ids."""
        clients = self.plan.experiment.clients
        each = np.asarray(clients.searches, dtype=np.int64)
        found: NDArray[np.int64] = each[np.array(self.plan.clients) % len(each)] * clients.people
        return found

    def _plain(
        self, state: State, asked: NDArray[Any], rows: NDArray[np.int64], traffic: list[Exchange]
    ) -> tuple[State | None, RoundAnswers, dict[str, str]]:
        """A round whose messages the coordinator sees. None: too few came, so that it has to be asked for again."""
        calls = {site.name: self._call("round", state, site, asked, rows) for site in self._present(asked)}
        answers, why = self._gather(calls, state, asked, traffic)
        if not self._enough(calls, why) or (not answers.messages and len(asked)):
            return None, answers, why
        root = self._root(state)
        if answers.messages:
            messages = self.task.gathered(state, answers.messages)
        else:  # nobody was drawn, which is nobody's business
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
        used = np.array([self._row[int(id)] for id in messages.ids], dtype=np.int64)
        return settle(self.task, state, messages, used, self._source, rows), answers, why

    def _root(self, state: State) -> NDArray[np.float32] | None:
        if not has_trait(self.plan.federated.aggregator, "trusted queries"):
            return None
        assert self.crowd is not None
        return root_update(self.plan.federated, state, self.crowd, self.plan.seed)

    def _present(self, asked: NDArray[Any]) -> list[PlannedSite]:
        ids = set(asked["client"].tolist())
        return [site for site in self.sites() if ids & set(site.clients)]

    def _enough(self, calls: Mapping[str, bytes], why: Mapping[str, str]) -> bool:
        """Whether as many answered as a round needs: those of the plan, or all whom a small cohort has."""
        cohort = [site for site in self.plan.sites if site.name in calls or site.name in self.left_out]
        return len(calls) - len(why) >= min(self.plan.fewest, max(1, len(cohort)))

    def _call(
        self, kind: str, state: State, site: PlannedSite, asked: NDArray[Any], rows: NDArray[np.int64], attempt: int = 0
    ) -> bytes:
        own = asked[np.isin(asked["client"], site.clients)]
        row = self._row[int(own["client"][0])]
        call = self.task.call(state, self.plan.run, row, len(rows), attempt)
        return protocol.request(kind, self.plan.run, state.round + 1, attempt, call=call.pack(), asked=own.tobytes())

    def _gather(
        self, calls: Mapping[str, bytes], state: State, asked: NDArray[Any], traffic: list[Exchange]
    ) -> tuple[RoundAnswers, dict[str, str]]:
        """Ask sites for the messages of their clients, and check each one."""

        def read(content: bytes, label: Label) -> tuple[Answers, list[Message]]:
            site = next(one for one in self.plan.sites if one.clients[0] == label.sender)
            mine = [int(id) for id in asked["client"] if id in site.clients]
            found = self._answers(content, label, len(mine))
            expected = self.task.expected(state, self.plan.run, mine)
            came = receive(expected, found.messages)
            if came.notes:
                raise Refused("; ".join(came.notes))
            for message in came.messages:
                self._check_message(message)
            self._check_observed(found, len(mine))
            return found, sorted(came.messages, key=lambda message: mine.index(message.sender))

        found, why = self._ask_known(calls, state.round + 1, read, traffic=traffic)
        answers = RoundAnswers([], {}, {}, {})
        for each, messages in found.values():
            answers.messages.extend(messages)
            self._observe(answers, each, [message.sender for message in messages])
        return answers, why

    def _answers(self, content: bytes, label: Label, clients: int) -> Answers:
        largest = 8 * self.plan.sent + protocol.OVERHEAD
        if self.place is not None:
            largest += 512 * len(self.plan.clients)
        return Answers.unpack(content, label, clients, largest, self.plan.simulated)

    def _check_observed(self, found: Answers, clients: int) -> None:
        """What a trial observes is of as many clients as were asked; what they keep, as long as it is at first."""
        kept = self.plan.parameters - self.plan.sent
        if self.plan.simulated and (len(found.observed), len(found.personal)) != (clients, kept * clients):
            raise Refused(
                f"{len(found.observed)} observations and {len(found.personal)} numbers came of {clients} clients, "
                f"where {clients} and {kept * clients} were expected"
            )

    def _observe(self, answers: RoundAnswers, found: Answers, ids: Sequence[int]) -> None:
        if not self.plan.simulated:
            return
        personal = found.personal.reshape(len(ids), -1) if len(ids) else found.personal
        for place, id in enumerate(ids):
            answers.online[id] = float(found.observed["online"][place])
            answers.reward[id] = float(found.observed["reward"][place])
            if personal.size:
                answers.personal[id] = personal[place]

    def _check_message(self, message: Message) -> None:
        """Refuse what no honest client sends: more searches than were asked for, or more than noise is made for."""
        most = self._most_searches(message.sender)
        if message.size > most:
            raise Refused(f"it names {message.size} interactions, and was asked for {most}")
        if np.isfinite(self._longest):
            mechanism: Any = self.plan.experiment.mechanism
            length = float(np.linalg.norm(message.payload.astype(np.float64), ord=mechanism.norm))
            if length > self._longest:
                raise Refused(
                    f"its update has length {length:.4g}, and no honest one is longer than {self._longest:.4g}"
                )

    def _most_searches(self, id: int) -> int:
        """How many interactions a client can have behind its message: its weight in a mean, where nothing hides it."""
        return int(self.searches[self._row[id]])

    # A secure sum

    def _secure(
        self, state: State, asked: NDArray[Any], rows: NDArray[np.int64], traffic: list[Exchange]
    ) -> tuple[State | None, RoundAnswers, dict[str, str]]:
        """A round of which the coordinator sees the sum alone; whoever drops out in a phase is left out of the rest."""
        from fedrank.privacy.secure_aggregation import BadDealing, SumServer

        assert self.place is not None
        number, run = state.round + 1, self.plan.run
        attempt = self.begin_attempt(number)
        label = Label("sum", run, number, attempt)
        terms = sum_terms(self.plan, self.place, label)
        ids = [int(id) for id in asked["client"]]
        server = SumServer(ids=ids, identities={id: self.identities[id] for id in ids}, **terms)
        answers, why = RoundAnswers([], {}, {}, {}), {}

        def phase(
            kind: str, requests: Mapping[str, bytes], take: Callable[[bytes], bool], clients: Mapping[str, list[int]]
        ) -> None:
            def read(content: bytes, at: Label) -> int:
                site = next(one for one in self.plan.sites if one.clients[0] == at.sender)
                mine = clients[site.name]
                if kind == "advertise":
                    found = self._answers(content, at, len(mine))
                    self._check_observed(found, len(mine))
                    self._observe(answers, found, mine)
                    pieces = list(found.messages)
                else:
                    parts = {"letters": wire.Part("|S", len(mine) * (self._largest_letter + 4))}
                    pieces = protocol.unbundle(
                        protocol.read(content, at, parts)["letters"], len(mine), self._largest_letter
                    )
                for piece in pieces:
                    try:
                        take(piece)
                    except ValueError as problem:
                        raise Refused(f"secure sum: {problem}") from None
                return len(pieces)

            if kind == "advertise":
                _, missing = self._ask_known(requests, number, read, attempt, traffic)
            else:
                _, missing = self._ask(requests, number, read, "letters", attempt, traffic)
            why.update(missing)

        def of_sites(some: Iterable[int]) -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            for id in some:
                site = self._site[id]
                if site.name not in why and site.name not in self.left_out:
                    found.setdefault(site.name, []).append(id)
            return found

        try:
            calls = {
                site.name: self._call("advertise", state, site, asked, rows, attempt) for site in self._present(asked)
            }
            phase("advertise", calls, server.receive_advertisement, of_sites(ids))
            roster = server.roster()
            here = of_sites(ids)
            phase("share", self._same("share", here, number, attempt, roster=roster), server.receive_shares, here)
            posts = server.routed()
            here = of_sites(ids)
            some = {
                name: protocol.request("mask", run, number, attempt, posts=protocol.bundle([posts[id] for id in mine]))
                for name, mine in here.items()
                if all(id in posts for id in mine)
            }
            phase("mask", some, server.receive_masked, here)
            ask = server.request()
            here = of_sites(server.survivors())
            phase("sign", self._same("sign", here, number, attempt, request=ask), server.receive_signature, here)
            consent = server.consent()
            here = of_sites(server.survivors())
            requests = self._same("open", here, number, attempt, request=ask, consent=consent)
            phase("open", requests, server.receive_opening, here)
            total = server.total()
        except BadDealing as problem:  # found out at the end, when everybody has paid
            name = self._site[problem.dealer].name
            self._dealt_badly[name] = self._dealt_badly.get(name, 0) + 1
            if self._dealt_badly[name] >= MOST_REFUSALS:
                self.left_out[name] = f"left out after {MOST_REFUSALS} sums that it spoiled, the last: {problem}"
            return None, answers, why | {name: str(problem)}
        except ValueError as problem:  # too few are left
            return None, answers, why or {"everybody": str(problem)}
        mechanism: Any = self.plan.experiment.mechanism
        cohort = int(self.task.cohort(len(rows)))
        change = total.astype(np.float64) * (mechanism.step(cohort) / mechanism.people / cohort)
        used = np.array([self._row[id] for id in server.survivors()])
        combined = Combined(change, used, None, np.ones(len(used), np.int64), state.rule, state.common)
        return advance(self.task, state, combined, rows), answers, why

    @property
    def _largest_letter(self) -> int:
        return protocol.OVERHEAD + 512 * len(self.plan.clients) + 16 * self.plan.sent

    def _same(self, kind: str, here: Mapping[str, Any], round: int, attempt: int, **parts: bytes) -> dict[str, bytes]:
        return dict.fromkeys(here, protocol.request(kind, self.plan.run, round, attempt, **parts))

    # Afterwards

    def measured(self, weights: Weights, round: int) -> dict[str, dict[str, tuple[float, float, int]]]:
        """Sums of measures from sites whose policy lists them: of the model, of what users had, and of how many."""
        content = wire.pack(
            Label("measure", self.plan.run, round), {"weights": weights[: self.plan.sent].astype(np.float32)}
        )
        asked = {site.name: content for site in self.sites() if site.name in self._reporting}
        found, _ = self._ask(asked, round, protocol.read_facts, "facts")
        tables = {}
        for name, facts in found.items():
            table, known = facts.get("measures"), self.plan.experiment.measures
            if isinstance(table, dict) and set(table) <= set(known) and all(_is_sum(row) for row in table.values()):
                tables[name] = {measure: tuple(row) for measure, row in table.items()}
        return tables

    def give(self, round: int, **parts: bytes) -> dict[str, str]:
        """Give something to every site; of those who did not take it, why."""
        content = wire.pack(Label("result", self.plan.run, round), parts)
        _, why = self._ask({site.name: content for site in self.sites()}, round, protocol.read_facts, "facts")
        return why

    # Out of step

    def _as_they_come(self, state: State, last: int) -> Iterator[Outcome]:
        """Sites answer when they are ready: a slow one blocks nobody.

        A request is numbered by the round in which its site was last heard, so that it is the same when a coordinator
        that was killed asks again.
        """
        rule = self.task.arrival
        assert rule is not None
        count = len(self.plan.clients)
        gathers = max(1, rule.gathers)
        heard = state.rule.get("heard", np.zeros(count, dtype=np.int64))
        pending: dict[Future[bytes], tuple[PlannedSite, Label, float, int]] = {}
        later: dict[str, float] = {}  # sites that were of no use, and when they are asked again
        ready: dict[int, tuple[Message, Exchange]] = {}

        def ask(site: PlannedSite) -> None:
            row = self._row[site.clients[0]]
            number = int(heard[row]) * count + row + 1
            one = np.array([(site.clients[0], -1, 0)], ASKED)
            # Nobody knows how old an update will be when it comes, so that its site counts it fully; and a request
            # must not change when it is asked for again.
            call = replace(self.task.call(_renumbered(state, number - 1), self.plan.run, row, gathers), count=1.0)
            content = protocol.request("round", self.plan.run, number, call=call.pack(), asked=one.tobytes())
            label = Label("answers", self.plan.run, number, 0, site.clients[0])
            pending[self.send(site.name, content, self.patience)] = site, label, time.monotonic(), len(content)

        for site in self.sites():
            ask(site)
        while state.round < last:
            self._check_stop()
            self._over = state.round
            for name in [name for name, when in later.items() if when <= time.monotonic()]:
                del later[name]
                ask(self.plan.party(name))
            if not pending and not later:
                raise Differs(f"nobody is left to ask: {'; '.join(self.left_out.values())}")
            done = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED).done if pending else set()
            if not pending:
                time.sleep(0.05)
            for future in done:
                site, label, began, down = pending.pop(future)
                one, message = self._arrived(future, site, label, began, down, state)
                if message is not None:
                    ready[self._row[site.clients[0]]] = message, one
                    continue
                self.note(state.round + 1, one)
                if one.reason == protocol.SAY_HELLO:
                    self._greet_again([site])
                self.waiting(state.round + 1, {**self.left_out, site.name: one.reason})
                if site.name not in self.left_out:
                    later[site.name] = time.monotonic() + (0 if one.reason == protocol.SAY_HELLO else site_calls.PAUSE)
            while len(ready) >= min(gathers, len(self.sites())) and ready and state.round < last:
                rows = np.array(list(ready)[:gathers])
                taken = [ready.pop(int(row)) for row in rows]
                for _, one in taken:
                    self.note(state.round + 1, one)
                heard = heard.copy()
                heard[rows] = state.round + 1
                messages = self.task.gathered(state, [message for message, _ in taken])
                order = np.array([self._row[int(id)] for id in messages.ids])
                state = settle(self.task, state, messages, order, self._source, rows)
                state.rule["heard"] = heard
                answers = RoundAnswers([message for message, _ in taken], {}, {}, {})
                traffic = [one for _, one in taken]
                yield self._outcome(state, None, rows, self.searches[rows], answers, traffic)
                for row in rows:
                    ask(self._site[self.plan.clients[int(row)]])

    def _arrived(
        self, future: Future[bytes], site: PlannedSite, label: Label, began: float, down: int, state: State
    ) -> tuple[Exchange, Message | None]:
        up = 0
        try:
            content = future.result()
            up = len(content)
            found = self._answers(content, label, 1)
            kind = self.task.expected(_renumbered(state, label.round - 1), self.plan.run, site.clients)
            came = receive(kind, found.messages)
            if came.notes:
                raise Refused("; ".join(came.notes))
            self._check_message(came.messages[0])
        except Exception as problem:
            return Exchange(site.name, down, up, time.monotonic() - began, self._blame(site.name, problem)), None
        self._refused[site.name] = 0
        return Exchange(site.name, down, up, time.monotonic() - began), came.messages[0]

    # Asking

    def _ask_known(
        self,
        requests: Mapping[str, bytes],
        round: int,
        read: Callable[[bytes, Label], Any],
        attempt: int = 0,
        traffic: list[Exchange] | None = None,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask for a round; whoever was started meanwhile and knows nothing of the run is greeted, and asked again."""
        enough = self.plan.fewest if self.place is None else None
        found, why = self._ask(requests, round, read, "answers", attempt, traffic, enough)
        strangers = [site for site in self.plan.sites if why.get(site.name) == protocol.SAY_HELLO]
        if strangers:
            why |= self._greet_again(strangers)
            again = {site.name: requests[site.name] for site in strangers if why[site.name] == protocol.SAY_HELLO}
            more, still = self._ask(again, round, read, "answers", attempt, traffic)
            found |= more
            why = {name: reason for name, reason in why.items() if name not in again} | still
        return found, why

    def _greet_again(self, sites: Sequence[PlannedSite]) -> dict[str, str]:
        """The same in the middle of a run, where a site that no longer fits is no reason for the others to stop."""
        try:
            return self._greet(sites, set())
        except Differs as problem:
            return {site.name: str(problem) for site in sites}

    # What a round left behind

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
                memory[self._row[id]] = kept
        if memory is not None and self.crowd is not None:
            from fedrank.federated.round import evaluated

            weights = evaluated(self.plan.federated, state, memory, self.crowd)
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


def _read_letters(content: bytes, label: Label) -> bytes:
    found: bytes = protocol.read(content, label, {"letters": wire.Part("|S", 0)})["letters"]
    return found


def _is_sum(row: Any) -> bool:
    """Whether a row is two sums, and of how many queries."""
    if not isinstance(row, list) or len(row) != 3 or type(row[2]) is not int or not 0 <= row[2] < MOST_QUERIES:
        return False
    return all(isinstance(value, (int, float)) and 0 <= value <= row[2] * 1e9 for value in row[:2])


def _renumbered(state: State, round: int) -> State:
    """The same state under another round: out of step, requests have numbers of their own."""
    return replace(state, round=round)
