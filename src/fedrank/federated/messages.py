"""What travels between a client and a server: a call goes down, a message comes up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.types import AddingMechanism, Learner, Mechanism, has_trait
from fedrank.wire import Label, Part

MAX_SIZE = 1 << 40  # interactions behind one update; more is nonsense


def payload_of(learner: Learner, mechanism: Mechanism | None, parameters: int) -> tuple[str | np.dtype[Any], int]:
    """Type and number of the values that a client sends: an update, whole steps of a sum, or a learner's own record.

    A record says all of an update in fewer bytes, so it travels only where no mechanism changes updates.
    """
    if has_trait(mechanism, "adds up"):
        return cast(AddingMechanism, mechanism).sends, parameters
    if has_trait(learner, "rewards") and (mechanism is None or has_trait(mechanism, "adds nothing")):
        return cast(Any, learner).message, 1
    return "<f4", parameters


@dataclass(frozen=True)
class Call:
    """What a server asks of a client in a round."""

    run: bytes  # 16 bytes that name the run
    round: int
    weights: NDArray[np.float32]  # the model, or the part of it that is shared
    cohort: float  # how many clients the round has, or has on average: a public number
    attempt: int = 0
    common: NDArray[np.float32] | None = None  # what a local method sends along
    count: float = 1.0  # 0 .. 1: how much an update counts by its age, where clients weigh it themselves

    def pack(self) -> bytes:
        parts: dict[str, wire.Value] = {"weights": self.weights, "numbers": np.array([self.cohort, self.count])}
        if self.common is not None:
            parts["common"] = self.common
        return wire.pack(Label("call", self.run, self.round, self.attempt), parts)

    @classmethod
    def unpack(cls, content: bytes, expected: ExpectedCall) -> Call:
        """A call that fits what the client expects; everything else is refused by name."""
        parts = {"weights": Part("<f4", expected.parameters), "numbers": Part("<f8", 2)}
        if expected.common:
            parts["common"] = Part("<f4", expected.parameters)
        _, found = wire.unpack(content, Label("call", expected.run, expected.round, expected.attempt), parts)
        cohort, count = found["numbers"].tolist()
        if not cohort > 0 or not 0 <= count <= 1:
            raise wire.Refused(f"it names a cohort of {cohort} and a count of {count}, which cannot be")
        return cls(expected.run, expected.round, found["weights"], cohort, expected.attempt, found.get("common"), count)


@dataclass(frozen=True)
class ExpectedCall:
    """What a client knows of a call before it comes."""

    run: bytes
    round: int
    parameters: int  # that travel
    common: bool = False
    attempt: int = 0


@dataclass(frozen=True)
class Message:
    """What a client sends: nothing else leaves it."""

    run: bytes
    round: int
    sender: int
    payload: NDArray[Any]  # float32 or whole steps of a sum [parameters], or the record of a learner
    size: int  # interactions behind it, or 1 where a mechanism hides them
    attempt: int = 0

    def pack(self) -> bytes:
        parts: dict[str, wire.Value] = {"payload": self.payload, "size": np.array([self.size], dtype=np.int64)}
        return wire.pack(Label("message", self.run, self.round, self.attempt, self.sender), parts)

    @classmethod
    def unpack(cls, content: bytes, expected: ExpectedMessage) -> Message:
        """A message that fits what the server expects; everything else is refused by name."""
        parts = {"payload": Part(expected.type, expected.values), "size": Part("<i8", 1)}
        label = Label("message", expected.run, expected.round, expected.attempt)
        sender, found = wire.unpack(content, label, parts, expected.senders)
        size = int(found["size"][0])
        if not 0 <= size <= MAX_SIZE:
            raise wire.Refused(f"it names {size} interactions, which cannot be")
        return cls(expected.run, expected.round, sender, found["payload"], size, expected.attempt)


@dataclass(frozen=True)
class ExpectedMessage:
    """What a server knows of a message before it comes."""

    run: bytes
    round: int
    senders: tuple[int, ...]  # who was asked, and has not answered yet
    type: str | np.dtype[Any]  # of the payload
    values: int
    attempt: int = 0
