"""Secure aggregation between sites: five phases, after which the coordinator knows only the sum.

    advertise -> share -> mask -> sign -> open

A site that does not answer in a phase is excluded from the rest. If too few are left, or a site distributed invalid
shares, the sum is not opened, and the round must be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.handshake import Handshake
from fedrank.deploy.plan import Plan
from fedrank.deploy.round_answers import AnswerReader, RoundAnswers
from fedrank.deploy.site_calls import MAX_REFUSALS, Exchange
from fedrank.privacy.secure_aggregation import BadDealing, SumServer
from fedrank.wire import Label, Refused


@dataclass
class SumAttempt:
    """One attempt to open a sum: the answers, and why sites dropped out."""

    number: int  # of the round
    attempt: int
    server: SumServer
    traffic: list[Exchange]  # receives every request
    answers: RoundAnswers = field(default_factory=RoundAnswers)
    why: dict[str, str] = field(default_factory=dict)
    total: NDArray[Any] | None = None  # None: the sum could not be opened


@dataclass
class SecureRounds:
    """Secure aggregation of a run. A site that spoils three sums is excluded."""

    handshake: Handshake
    reader: AnswerReader
    spoiled: dict[str, int] = field(default_factory=dict)  # by site: number of sums that it spoiled

    @property
    def plan(self) -> Plan:
        return self.handshake.calls.plan

    def try_sum(
        self, number: int, attempt: int, calls: Mapping[str, bytes], ids: Sequence[int], traffic: list[Exchange]
    ) -> SumAttempt:
        """Try to aggregate the messages of these clients; `calls` are the requests of the first phase, by site."""
        terms = self.plan.sum_terms(Label("sum", self.plan.run, number, attempt))
        identities = self.handshake.identities
        server = SumServer(ids=ids, identities={id: identities[id] for id in ids}, **terms)
        outcome = SumAttempt(number, attempt, server, traffic)
        try:
            self._phases(outcome, calls, ids)
        except BadDealing as problem:  # detected at the end, after all clients were charged
            self._spoiled_by(outcome, problem)
        except ValueError as problem:  # too few clients are left
            outcome.why = outcome.why or {"all sites": str(problem)}
        return outcome

    def _phases(self, attempt: SumAttempt, calls: Mapping[str, bytes], ids: Sequence[int]) -> None:
        server = attempt.server
        self._advertise(attempt, calls, self._remaining_clients(attempt, ids))
        roster, remaining = server.roster(), self._remaining_clients(attempt, ids)
        self._ask(
            attempt, self._same_request(attempt, "share", remaining, roster=roster), server.receive_shares, remaining
        )
        posts, remaining = server.routed(), self._remaining_clients(attempt, ids)
        waiting = [name for name in calls if not has_participated(self.plan, attempt.why.get(name, ""))]
        if self.plan.federated.dealt and len(remaining) < min(self.plan.min_sites, len(waiting)):
            raise ValueError("sites are missing, and a masked message cannot be sent a second time")
        posted = {
            name: self._request(attempt, "mask", posts=protocol.bundle([posts[id] for id in mine]))
            for name, mine in remaining.items()
            if all(id in posts for id in mine)
        }
        self._ask(attempt, posted, server.receive_masked, remaining)
        request, remaining = server.request(), self._remaining_clients(attempt, server.survivors())
        self._ask(
            attempt,
            self._same_request(attempt, "sign", remaining, request=request),
            server.receive_signature,
            remaining,
        )
        consent, remaining = server.consent(), self._remaining_clients(attempt, server.survivors())
        opening = self._same_request(attempt, "open", remaining, request=request, consent=consent)
        self._ask(attempt, opening, server.receive_opening, remaining)
        attempt.total = server.total()

    def _advertise(self, attempt: SumAttempt, calls: Mapping[str, bytes], remaining: Mapping[str, list[int]]) -> None:
        """The first phase: answers to the call of the round, with the observations of a trial."""

        def read(content: bytes, label: Label) -> int:
            mine = remaining[self.plan.site_of[label.sender].name]
            found = self.reader.unpack(content, label, len(mine))
            self.reader.check_observed(found, len(mine))
            attempt.answers.observe(found, mine)
            return _receive_all(found.messages, attempt.server.receive_advertisement)

        attempt.why |= self.handshake.ask_for_round(calls, attempt.number, read, attempt.attempt, attempt.traffic)[1]

    def _ask(
        self,
        attempt: SumAttempt,
        requests: Mapping[str, bytes],
        take: Callable[[bytes], bool],
        remaining: Mapping[str, list[int]],
    ) -> None:
        """A later phase: one message of every remaining client."""
        largest = self.plan.longest_letter

        def read(content: bytes, label: Label) -> int:
            mine = remaining[self.plan.site_of[label.sender].name]
            parts = {"letters": wire.Part("|S", len(mine) * (largest + 4))}
            letters = protocol.read(content, label, parts)["letters"]
            return _receive_all(protocol.unbundle(letters, len(mine), largest), take)

        calls = self.handshake.calls
        attempt.why |= calls.ask(requests, attempt.number, read, "letters", attempt.attempt, attempt.traffic)[1]

    def _remaining_clients(self, attempt: SumAttempt, ids: Iterable[int]) -> dict[str, list[int]]:
        """The clients whose sites have answered so far, by site."""
        found: dict[str, list[int]] = {}
        for id in ids:
            name = self.plan.site_of[id].name
            if name not in attempt.why and name not in self.handshake.calls.left_out:
                found.setdefault(name, []).append(id)
        return found

    def _request(self, attempt: SumAttempt, kind: str, **parts: bytes) -> bytes:
        return protocol.request(kind, self.plan.run, attempt.number, attempt.attempt, **parts)

    def _same_request(
        self, attempt: SumAttempt, kind: str, remaining: Mapping[str, Any], **parts: bytes
    ) -> dict[str, bytes]:
        return dict.fromkeys(remaining, self._request(attempt, kind, **parts))

    def _spoiled_by(self, attempt: SumAttempt, problem: BadDealing) -> None:
        name = self.plan.site_of[problem.dealer].name
        self.spoiled[name] = self.spoiled.get(name, 0) + 1
        if self.spoiled[name] >= MAX_REFUSALS:
            why = f"excluded after spoiling {MAX_REFUSALS} sums, the last one: {problem}"
            self.handshake.calls.left_out[name] = why
        attempt.why[name] = str(problem)

    def change(self, attempt: SumAttempt, cohort: int) -> NDArray[np.float64]:
        """The change of the model: the sum as a mean over the cohort."""
        assert attempt.total is not None
        mechanism: Any = self.plan.experiment.mechanism
        return np.asarray(attempt.total.astype(np.float64) * (mechanism.step(cohort) / mechanism.people / cohort))


def has_participated(plan: Plan, refusal: str) -> bool:
    """Whether a site refuses because a dealt schedule gives it no second message in this round."""
    return bool(plan.federated.dealt) and refusal.startswith(protocol.PARTICIPATED)


def _receive_all(pieces: Sequence[bytes], take: Callable[[bytes], bool]) -> int:
    for piece in pieces:
        try:
            take(piece)
        except ValueError as problem:
            raise Refused(f"secure aggregation: {problem}") from None
    return len(pieces)
