"""Messages between client and server: a call goes to the client, a message comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.types import AddingMechanism, Learner, Mechanism, has_trait
from fedrank.wire import Label, Part

MAX_SIZE = 1 << 40  # maximum number of interactions of one update


def payload_of(learner: Learner, mechanism: Mechanism | None, parameters: int) -> tuple[str | np.dtype[Any], int]:
    """Return type and number of the values that a client sends: an update, integer steps, or a learner's record.

    A record represents an update in fewer bytes. It is sent only if no mechanism changes updates.
    """
    if has_trait(mechanism, "adds up"):
        return cast(AddingMechanism, mechanism).sends, parameters
    if has_trait(learner, "rewards") and (mechanism is None or has_trait(mechanism, "adds nothing")):
        return cast(Any, learner).message, 1
    return "<f4", parameters


@dataclass(frozen=True)
class Call:
    """The request of a server to a client in a round."""

    run: bytes  # 16 bytes that identify the run
    round: int
    weights: NDArray[np.float32]  # the model, or the part of it that is shared
    cohort: float  # number of clients of the round, or its expected value; public
    attempt: int = 0
    common: NDArray[np.float32] | None = None  # additional values of a local method
    count: float = 1.0  # 0 .. 1: weight of an update by its age, if clients apply it

    def pack(self) -> bytes:
        parts: dict[str, wire.Value] = {"weights": self.weights, "numbers": np.array([self.cohort, self.count])}
        if self.common is not None:
            parts["common"] = self.common
        return wire.pack(Label("call", self.run, self.round, self.attempt), parts)

    @classmethod
    def unpack(cls, content: bytes, expected: ExpectedCall) -> Call:
        """Decode a call that matches the expectation; anything else raises `Refused`."""
        parts = {"weights": Part("<f4", expected.parameters), "numbers": Part("<f8", 2)}
        if expected.common:
            parts["common"] = Part("<f4", expected.parameters)
        _, found = wire.unpack(content, Label("call", expected.run, expected.round, expected.attempt), parts)
        cohort, count = found["numbers"].tolist()
        if not cohort > 0 or not 0 <= count <= 1:
            raise wire.Refused(f"it has an invalid cohort {cohort} or count {count}")
        return cls(expected.run, expected.round, found["weights"], cohort, expected.attempt, found.get("common"), count)


@dataclass(frozen=True)
class ExpectedCall:
    """What a client expects of a call."""

    run: bytes
    round: int
    parameters: int  # number of parameters that are sent
    common: bool = False
    attempt: int = 0


@dataclass(frozen=True)
class Message:
    """The only data that a client sends."""

    run: bytes
    round: int
    sender: int
    payload: NDArray[Any]  # float32 or integer steps of a sum [parameters], or the record of a learner
    size: int  # number of interactions, or 1 if a mechanism hides it
    attempt: int = 0

    def pack(self) -> bytes:
        parts: dict[str, wire.Value] = {"payload": self.payload, "size": np.array([self.size], dtype=np.int64)}
        return wire.pack(Label("message", self.run, self.round, self.attempt, self.sender), parts)

    @classmethod
    def unpack(cls, content: bytes, expected: ExpectedMessage) -> Message:
        """Decode a message that matches the expectation; anything else raises `Refused`."""
        parts = {"payload": Part(expected.type, expected.values), "size": Part("<i8", 1)}
        label = Label("message", expected.run, expected.round, expected.attempt)
        sender, found = wire.unpack(content, label, parts, expected.senders)
        size = int(found["size"][0])
        if not 0 <= size <= MAX_SIZE:
            raise wire.Refused(f"it has an invalid number of interactions, {size}")
        return cls(expected.run, expected.round, sender, found["payload"], size, expected.attempt)


@dataclass(frozen=True)
class ExpectedMessage:
    """What a server expects of a message."""

    run: bytes
    round: int
    senders: tuple[int, ...]  # clients that were asked and have not answered
    type: str | np.dtype[Any]  # of the payload
    values: int
    attempt: int = 0
