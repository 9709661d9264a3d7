"""The server half of a round: drop invalid updates, aggregate, step. It runs no learner and has no data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.federated.aggregators import part_of, whole_of
from fedrank.federated.asynchronous import Arrival, ArrivalRule, Arrived, mean_of
from fedrank.federated.compatibility import sends_nothing
from fedrank.federated.federation import Federation
from fedrank.federated.messages import Call, ExpectedMessage, Message, payload_of
from fedrank.federated.robust import RememberingAggregator
from fedrank.types import AddingMechanism, Aggregator, Arrays, Change, Messages, Source, Weights, has_trait
from fedrank.wire import Refused


class RoundError(RuntimeError):
    """A round that cannot be completed, with its number and client."""

    def __init__(self, message: str, round: int, client: int | None = None):
        where = f"round {round}" if client is None else f"round {round}, client {client}"
        super().__init__(f"{where}: {message}")
        self.message, self.round, self.client = message, round, client


@dataclass(frozen=True)
class State:
    """The state of a server between rounds."""

    round: int  # number of completed rounds
    weights: Weights  # the model or its shared part; one row per client without aggregation
    common: NDArray[np.float64] | None = None  # [parameters]: additional values of a local method
    server: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # state of the server step
    rule: Arrays = field(default_factory=dict)  # state of the aggregator or the arrival rule
    held: Weights | None = None  # [clients, parameters]: in asynchronous training, the model of each client


@dataclass(frozen=True)
class ServerTask:
    """The methods that a server applies to the messages of every round."""

    federation: Federation
    clients: int  # number of clients
    arrival: ArrivalRule | None = None  # in asynchronous training, replaces aggregator and server step

    def first(self, weights: Weights) -> State:
        """Return the state before round 1, from the shared weights."""
        federation, size = self.federation, weights.shape[-1]
        if self.arrival is not None:
            held = np.tile(weights, (self.clients, 1))
            return State(0, weights, rule=self.arrival.first(self.clients, size), held=held)
        rule: Arrays = {}
        if has_trait(federation.aggregator, "remembers"):
            rule = cast(RememberingAggregator, federation.aggregator).first(self.clients, size)
        common = federation.local.first_common(size) if has_trait(federation.local, "common") else None  # type: ignore[union-attr]
        return State(0, weights, common, federation.server.first(weights.size), rule)

    def cohort(self, present: int) -> float:
        """Return the public number of clients of a round."""
        return present if self.arrival is not None else self.federation.cohort(self.clients)

    def call(self, state: State, run: bytes, client: int, present: int, attempt: int = 0) -> Call:
        """Return the call to one client, by its row, in the next round."""
        weights = state.weights if state.held is None else state.held[client]
        count = self.counts(np.array([client]), state)
        common = None if state.common is None else state.common.astype(np.float32)
        sent, cohort = weights.astype(np.float32), self.cohort(present)
        return Call(run, state.round + 1, sent, cohort, attempt, common, 1.0 if count is None else float(count[0]))

    def expected(self, state: State, run: bytes, asked: Sequence[int], attempt: int = 0) -> ExpectedMessage:
        """Return the expected form of the messages of the next round."""
        federation, size = self.federation, state.weights.shape[-1]
        kind, values = payload_of(federation.learner, federation.mechanism, size)
        return ExpectedMessage(run, state.round + 1, tuple(asked), kind, values, attempt)

    def gathered(self, state: State, received: Sequence[Message], root: Message | None = None) -> Messages:
        """Combine messages into one table, by ids; records of learners are converted to updates.

        `root` is the message of the server's own client, from trusted queries, if a rule needs it.
        """
        if not received:
            raise RoundError("no valid message arrived", state.round + 1)
        ordered = sorted(received, key=lambda message: message.sender)
        ids = np.array([message.sender for message in ordered], dtype=np.int64)
        sizes = np.array([message.size for message in ordered], dtype=np.int64)
        payload = np.stack([message.payload for message in ordered])
        if payload.dtype.names is not None:
            payload = self.federation.learner.read(payload[:, 0], state.weights.shape[-1])  # type: ignore[attr-defined]
        own = None if root is None else root.payload
        return Messages(payload, sizes, ids, state.weights, state.round + 1, root=own)

    def counts(self, rows: NDArray[np.int64], state: State) -> NDArray[np.float64] | None:
        """[rows]: weights of updates by age, if clients must apply them because only a sum is revealed."""
        if self.arrival is None or not self.arrival.gathers or not has_trait(self.federation.mechanism, "adds up"):
            return None
        return self.arrival.counts(rows, state.rule)  # type: ignore[attr-defined, no-any-return]


class Received(NamedTuple):
    """The messages of a round."""

    messages: tuple[Message, ...]
    left_out: tuple[int, ...]  # clients that were asked and sent no valid message
    notes: tuple[str, ...]  # reasons for refused messages and missing clients


def receive(expected: ExpectedMessage, contents: Iterable[bytes]) -> Received:
    """Decode messages. Invalid ones are refused, and the round continues without them."""
    messages: dict[int, Message] = {}
    notes: list[str] = []
    for number, content in enumerate(contents, start=1):
        try:
            message = Message.unpack(content, expected)
            if message.sender in messages:
                raise Refused(f"it is the second message of client {message.sender}")
        except Refused as problem:
            notes.append(f"round {expected.round}: message {number} was refused: {problem}")
        else:
            messages[message.sender] = message
    left_out = tuple(client for client in expected.senders if client not in messages)
    if left_out:
        who = ", ".join(map(str, left_out))
        notes.append(f"round {expected.round}: no valid message from {who}")
    return Received(tuple(messages.values()), left_out, tuple(notes))


class Combined(NamedTuple):
    """The combined messages of a round, before the model moves."""

    change: Change | None  # None: no valid message
    rows: NDArray[np.int64]  # [n]: clients whose messages were used
    updates: NDArray[Any] | None  # [n, parameters]: their messages, if still needed
    sizes: NDArray[np.int64]  # [n]
    rule: Arrays
    common: NDArray[np.float64] | None
    excluded: tuple[int, ...] = ()  # ids of clients whose message was invalid


def settle(
    task: ServerTask,
    state: State,
    messages: Messages,
    rows: NDArray[np.int64] | None = None,
    source: Source | None = None,
    asked: NDArray[np.int64] | None = None,
) -> State:
    """Return the state after a round with these messages. `rows` are those of the senders; by default their ids.

    `asked` are the rows of all called clients, if some did not answer. In asynchronous training, arrays of the state
    are reused by the next one.
    """
    rows = messages.ids if rows is None else rows
    asked = rows if asked is None else asked
    return advance(task, state, combine(task, state, [(messages, rows)], len(asked), source), asked)


def combine(
    task: ServerTask,
    state: State,
    parts: Iterable[tuple[Messages, NDArray[np.int64]]],
    present: int,
    source: Source | None = None,
    *,
    streaming: bool = True,
) -> Combined:
    """Leave out updates that are not finite, and aggregate the rest.

    If the aggregator is a sum, messages may arrive in parts, each with its rows; without `streaming` there is one part,
    and the aggregator itself is called.
    """
    rule = _rule(task, state, present, source)
    sums = streaming and has_trait(rule, "sum")
    total: NDArray[Any] | None = None
    common, kept, change, updates = state.common, state.rule, None, None
    rows_used: list[NDArray[np.int64]] = []
    sizes_used: list[NDArray[np.int64]] = []
    excluded: list[int] = []
    for messages, rows in parts:
        used, rows, left_out = _of_use(messages, rows)
        excluded += left_out
        rows_used.append(rows)
        sizes_used.append(used.sizes)
        updates = used.updates
        if common is not None and state.common is not None:
            common = common + _common_move(task, state.common, used)
        if sums:
            part = part_of(rule, used)
            total = part if total is None else total + part
            continue
        _check_somebody_is_left(task, state, excluded, present)
        try:
            if has_trait(rule, "remembers"):
                # The rule stores rows; ids may have gaps if clients were selected.
                change, kept = cast(RememberingAggregator, rule)(replace(used, ids=rows), state.rule)
                change = _checked(rule, change, state, len(rows))
            elif task.arrival is None:
                change = _checked(rule, rule(used), state, len(rows))
            elif len(rows):
                change = _checked(rule, rule(replace(used, ids=rows)), state, len(rows))
        except ValueError as problem:  # for example, too few clients for this rule
            raise RoundError(str(problem), state.round + 1) from problem
    _check_somebody_is_left(task, state, excluded, present)
    came, min_messages = sum(map(len, rows_used)), getattr(rule, "min_messages", 0)
    if came < min_messages:
        raise RoundError(
            f"only {came} messages are valid, but secure aggregation needs at least {min_messages}; call again",
            state.round + 1,
        )
    if total is not None:
        change = _checked(rule, whole_of(rule, total), state, came)
    rows, sizes = (one[0] if len(one) == 1 else np.concatenate(one) for one in (rows_used, sizes_used))
    return Combined(change, rows, updates, sizes, kept, common, tuple(excluded))


def advance(task: ServerTask, state: State, combined: Combined, present: NDArray[np.int64]) -> State:
    """Move the model by the combined messages."""
    number, change = state.round + 1, combined.change
    if task.arrival is not None:
        return _arrived(task.arrival, state, combined, present)
    assert change is not None
    if state.weights.ndim == 2:
        every = np.zeros_like(state.weights)
        every[combined.rows] = change
        change = every
    weights, server = task.federation.server(state.weights, change, state.server)
    if np.shape(weights) != state.weights.shape:
        raise RoundError(
            f"the server step {method_name(task.federation.server)} returned {_shape_in_words(weights)}, but the model "
            f"has shape {state.weights.shape}; return weights of that shape",
            number,
        )
    return State(number, weights, combined.common, server, combined.rule)


def _arrived(rule: ArrivalRule, state: State, combined: Combined, present: NDArray[np.int64]) -> State:
    """Like `advance` for asynchronous training; arrays are changed in place, since there may be many clients."""
    number, weights, held = state.round + 1, state.weights, state.held
    assert held is not None
    rows = combined.rows
    if combined.change is not None and len(rows):
        model = mean_of(held[rows], combined.sizes) + combined.change
        weights = rule(weights, Arrival(number, rows, combined.change, model), state.rule)
    if not rule.receive:
        assert combined.updates is not None
        held[rows] += combined.updates
    elif rule.together:
        held[:] = weights
    else:
        held[present] = weights
    return replace(state, round=number, weights=weights)


def _rule(task: ServerTask, state: State, present: int, source: Source | None) -> Aggregator:
    """Return how messages are combined: by the aggregator, an arrival rule, or the sum of a mechanism."""
    federation = task.federation
    if has_trait(federation.mechanism, "adds up"):
        mechanism = cast(AddingMechanism, federation.mechanism)
        return mechanism.rule(task.cohort(present), source or mechanism.source())
    if task.arrival is not None:
        return Arrived(task.arrival, state.rule, present)
    return federation.aggregator


def _checked(rule: Aggregator, change: Any, state: State, clients: int) -> Change:
    """Validate the change that a rule returned.

    All its inputs are finite, so values that are not finite come from the rule.
    """
    shape = state.weights.shape if state.weights.ndim == 1 else (clients, state.weights.shape[1])
    if np.shape(change) != shape:
        raise RoundError(
            f"the aggregator {method_name(rule)} returned {_shape_in_words(change)}, but a change has one value per "
            f"parameter ({shape[-1]}); return an array of shape {shape}, such as messages.updates.mean(axis=0)",
            state.round + 1,
        )
    values: Change = np.asarray(change)
    if values.dtype.kind not in "fiub":
        raise RoundError(
            f"the aggregator {method_name(rule)} returned values of type {values.dtype}, but a change must have real "
            "numbers; return an array such as messages.updates.mean(axis=0)",
            state.round + 1,
        )
    if not np.isfinite(values).all():
        bad = np.count_nonzero(~np.isfinite(values))
        raise RoundError(
            f"the aggregator {method_name(rule)} returned {bad:,} of {values.size:,} values that are not finite, from "
            "finite updates; look for a division by zero or an overflow in it, or reduce learner.rate",
            state.round + 1,
        )
    return values


def method_name(method: object) -> str:
    """The name of a method's class; for a user-defined one with its module."""
    kind = type(method)
    return kind.__name__ if kind.__module__.startswith("fedrank.") else f"{kind.__module__}:{kind.__qualname__}"


def _shape_in_words(value: Any) -> str:
    shape = np.shape(value)
    if shape == ():
        return "nothing" if value is None else f"a single value ({type(value).__name__})"
    return f"{shape[0]:,} values" if len(shape) == 1 else f"an array of shape {shape}"


def _common_move(task: ServerTask, common: NDArray[np.float64], used: Messages) -> NDArray[np.float64]:
    local: Any = task.federation.local
    learner: Any = task.federation.learner
    move: NDArray[np.float64] = local.common_move(common, used, float(learner.rate), task.clients)
    return move


def _of_use(messages: Messages, rows: NDArray[np.int64]) -> tuple[Messages, NDArray[np.int64], list[int]]:
    """Return the finite updates, their rows, and the clients whose update is not finite."""
    if messages.updates.dtype.kind != "f":
        return messages, rows, []
    with np.errstate(invalid="ignore"):  # infinities of both signs give NaN
        total = np.add.reduce(messages.updates, axis=None, dtype=np.float64)
    if math.isfinite(total):
        return messages, rows, []
    sound = np.isfinite(messages.updates).all(axis=1)
    if sound.all():  # only their sum overflowed
        return messages, rows, []
    return messages.rows(sound), rows[sound], messages.ids[~sound].tolist()


def _check_somebody_is_left(task: ServerTask, state: State, excluded: list[int], present: int) -> None:
    """The round continues without excluded clients, unless none are left or each client has its own model."""
    out_of_step = task.arrival is not None and not task.arrival.together
    if excluded and not out_of_step and (len(excluded) == present or sends_nothing(task.federation.aggregator)):
        problem = "the update is not finite; reduce learner.rate, or normalise the features"
        raise RoundError(problem, state.round + 1, excluded[0])
