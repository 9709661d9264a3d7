"""Answers of sites to the call of a round: read, and checked against what an honest site can send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.deploy import protocol
from fedrank.deploy.plan import Plan
from fedrank.deploy.protocol import Answers
from fedrank.federated.messages import Message
from fedrank.federated.server import ServerTask, State, receive
from fedrank.wire import Label, Refused


@dataclass
class RoundAnswers:
    """The answers of a round; everything except the messages is observed only in a trial."""

    messages: list[Message] = field(default_factory=list)
    online: dict[int, float] = field(default_factory=dict)
    reward: dict[int, float] = field(default_factory=dict)
    personal: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def observe(self, found: Answers, ids: Sequence[int]) -> None:
        """Store the observations of a trial for these clients, in the order of the answers."""
        if not len(found.observed):
            return
        personal = found.personal.reshape(len(ids), -1) if len(ids) else found.personal
        for place, id in enumerate(ids):
            self.online[id] = float(found.observed["online"][place])
            self.reward[id] = float(found.observed["reward"][place])
            if personal.size:
                self.personal[id] = personal[place]


@dataclass(frozen=True)
class AnswerReader:
    """Reads answers to the calls of a plan; content that an honest site never sends is `Refused`."""

    plan: Plan
    task: ServerTask
    longest_update: float = np.inf  # norm that an honest update does not exceed
    secure: bool = False  # whether messages are those of secure aggregation, with keys of all partners

    def unpack(self, content: bytes, label: Label, clients: int) -> Answers:
        """Read the answers of the clients of a site and check everything except the messages."""
        largest = 8 * self.plan.sent + protocol.OVERHEAD
        if self.secure:
            largest += 512 * len(self.plan.clients)
        return Answers.unpack(content, label, clients, largest, self.plan.simulated)

    def check_observed(self, found: Answers, clients: int) -> None:
        """Check that a trial has one observation per client, and state of the initial size."""
        kept = self.plan.parameters - self.plan.sent
        if self.plan.simulated and (len(found.observed), len(found.personal)) != (clients, kept * clients):
            raise Refused(
                f"received {len(found.observed)} observations and {len(found.personal)} numbers from {clients} clients "
                f"(expected {clients} and {kept * clients})"
            )

    def messages(self, found: Answers, state: State, ids: Sequence[int]) -> list[Message]:
        """The messages in answers to the call after `state`, one per client."""
        came = receive(self.task.expected(state, self.plan.run, ids), found.messages)
        if came.notes:
            raise Refused("; ".join(came.notes))
        for message in came.messages:
            self.check_message(message)
        return sorted(came.messages, key=lambda message: ids.index(message.sender))

    def check_message(self, message: Message) -> None:
        """Refuse what an honest client never sends: more interactions than requested, or too long an update."""
        most = int(self.plan.searches[self.plan.row_of[message.sender]])  # its weight in a mean, if visible
        if message.size > most:
            raise Refused(f"it reports {message.size} interactions, but {most} were requested")
        if np.isfinite(self.longest_update):
            mechanism: Any = self.plan.experiment.mechanism
            length = float(np.linalg.norm(message.payload.astype(np.float64), ord=mechanism.norm))
            if length > self.longest_update:
                raise Refused(
                    f"its update has norm {length:.4g}, but an honest one has at most {self.longest_update:.4g}"
                )


def longest_update(plan: Plan) -> float:
    """The maximum norm of an honest update; infinite if no mechanism limits it, or if updates are masked."""
    mechanism: Any = plan.experiment.mechanism
    if not hasattr(mechanism, "longest_message"):
        return np.inf
    return float(mechanism.longest_message(plan.experiment.setting(plan.features)))
