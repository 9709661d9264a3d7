"""What sites answer to the call of a round: read, and checked against what an honest site can send."""

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
from fedrank.privacy.mechanisms import AtServer
from fedrank.wire import Label, Refused


@dataclass
class RoundAnswers:
    """What came in a round; all but the messages is observed in a trial only."""

    messages: list[Message] = field(default_factory=list)
    online: dict[int, float] = field(default_factory=dict)
    reward: dict[int, float] = field(default_factory=dict)
    personal: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def observe(self, found: Answers, ids: Sequence[int]) -> None:
        """Note what a trial observes of these clients, who stand in the answers in this order."""
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
    """Reads answers to the calls of a plan; whatever no honest site sends is `Refused`."""

    plan: Plan
    task: ServerTask
    longest_update: float = np.inf  # more than noise at the coordinator is made for
    secure: bool = False  # whether messages are those of a secure sum, with keys of all partners

    def unpack(self, content: bytes, label: Label, clients: int) -> Answers:
        """The answers of so many clients of a site, with everything checked but their messages."""
        largest = 8 * self.plan.sent + protocol.OVERHEAD
        if self.secure:
            largest += 512 * len(self.plan.clients)
        return Answers.unpack(content, label, clients, largest, self.plan.simulated)

    def check_observed(self, found: Answers, clients: int) -> None:
        """What a trial observes is of as many clients as were asked; what they keep, as long as it is at first."""
        kept = self.plan.parameters - self.plan.sent
        if self.plan.simulated and (len(found.observed), len(found.personal)) != (clients, kept * clients):
            raise Refused(
                f"{len(found.observed)} observations and {len(found.personal)} numbers came of {clients} clients, "
                f"where {clients} and {kept * clients} were expected"
            )

    def messages(self, found: Answers, state: State, ids: Sequence[int]) -> list[Message]:
        """The messages in answers to the call after `state`, one of each of these clients."""
        came = receive(self.task.expected(state, self.plan.run, ids), found.messages)
        if came.notes:
            raise Refused("; ".join(came.notes))
        for message in came.messages:
            self.check_message(message)
        return sorted(came.messages, key=lambda message: ids.index(message.sender))

    def check_message(self, message: Message) -> None:
        """Refuse what no honest client sends: more searches than were asked for, or more than noise is made for."""
        most = int(self.plan.searches[self.plan.row_of[message.sender]])  # its weight in a mean, where nothing hides it
        if message.size > most:
            raise Refused(f"it names {message.size} interactions, and was asked for {most}")
        if np.isfinite(self.longest_update):
            mechanism: Any = self.plan.experiment.mechanism
            length = float(np.linalg.norm(message.payload.astype(np.float64), ord=mechanism.norm))
            if length > self.longest_update:
                raise Refused(
                    f"its update has length {length:.4g}, and no honest one is longer than {self.longest_update:.4g}"
                )


def longest_update(plan: Plan) -> float:
    """The length that no honest update exceeds, where the coordinator adds noise for it; otherwise infinite."""
    mechanism: Any = plan.experiment.mechanism
    if not isinstance(getattr(mechanism, "placement", None), AtServer):
        return np.inf
    return float(1.0001 * mechanism.reach(plan.experiment.setting(plan.features)))
