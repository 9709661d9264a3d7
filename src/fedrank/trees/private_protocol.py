"""Growing under noise between machines: the halves of `private_growth.py`, with bytes between them.

    server                                   client
    noised-plan: edges                  ->   noised-join
    noised-past: trees it lacks         ->   noised-known: how many it has, attempts at the next that it answered
    noised-keys (secure sum only)       ->   noised-keyed
    noised-ask: cuts, number            ->   noised-sums: histograms or sums of leaves, with its noise

A client holds no more than the trees so far: a question says all cuts of the tree, and what it answers has noise before
anybody sees it. Asked the same again it gives the same bytes. Another question with the same number is refused, unless
it is a new attempt, whose noise is new and paid for.

Without a secure sum every client adds all of the noise, so that nobody needs to be trusted. Under one it adds a share.
How many rows there are and how good the forest is are told to nobody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.privacy.secure_aggregation import Identity
from fedrank.trees.arrays import Trees
from fedrank.trees.cuts import LeafCut, Reals
from fedrank.trees.growing_loop import DroppedOut
from fedrank.trees.growing_protocol import ADVERTISEMENT, MOST_TEXT, NUMBER, ROSTER, Ask, GrowPlan
from fedrank.trees.private_growing import PrivateRowStore, TreeNoise, Whole, grow_noised
from fedrank.types import Source
from fedrank.wire import Label, Part, Refused, Value, label_of, pack, unpack

NUMBERS_OF_A_CUT = 3  # leaf, feature, bin; the new leaf is the next one


@dataclass(frozen=True)
class NoisedPlan(GrowPlan):
    """What all who grow a forest together under noise agree on."""

    noise: TreeNoise = field(default_factory=TreeNoise)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise.shares > 1 and not self.secure:
            raise ValueError(
                f"{self.noise.shares} shares of noise add up only under a secure sum, and without one a server sees "
                "each with too little; use shares = 1, or secure = true"
            )
        if self.noise.shares > len(self.clients):
            raise ValueError(
                f"the noise of {self.noise.shares} clients is needed and {len(self.clients)} take part, so that there "
                "would be too little; use fewer shares, or more clients"
            )

    @property
    def run(self) -> bytes:
        agreed = json.dumps(asdict(self.noise), sort_keys=True).encode()
        return hashlib.blake2b(super().run + agreed, digest_size=16).digest()

    def release(self, tree: int, number: int) -> int:
        """The number of a release in the whole forest, from 0."""
        return tree * self.noise.releases + number

    def is_sums(self, number: int) -> bool:
        """Whether the so-manieth release of a tree is that of its leaves, and so the last."""
        return number == self.noise.releases - 1

    def cuts_of(self, number: int) -> int:
        """How many cuts a tree has before one of its releases."""
        return int(2 ** (self.noise.depth if self.is_sums(number) else number)) - 1

    def shape(self, number: int) -> tuple[int, ...]:
        """Of the numbers of a release."""
        leaves = self.cuts_of(number) + 1
        return (leaves, 2) if self.is_sums(number) else (leaves, self.edges.features, self.edges.bins, 2)


@dataclass(frozen=True)
class AskedRelease:
    """A release that a client is asked for."""

    tree: int
    attempt: int
    number: int  # within the tree
    release: int  # within the forest


def asked_in(plan: NoisedPlan, content: bytes) -> AskedRelease | None:
    """What a message asks for, as far as it says; None: it asks for nothing that has noise."""
    label = label_of(content)
    if label.kind != "noised-ask":
        return None
    parts = {"number": NUMBER, "cuts": Part("|S", _bytes_of_cuts(plan)), "roster": Part("|S", ROSTER)}
    said = unpack(content, Label("noised-ask", plan.run, label.round, label.attempt), parts)[1]
    number = int(said["number"][0])
    if not (0 <= label.round < plan.rules.trees and 0 <= number < plan.noise.releases):
        raise Refused(
            f"release {number} of tree {label.round} is asked for, and there are {plan.noise.releases} of each of "
            f"{plan.rules.trees} trees"
        )
    return AskedRelease(label.round, label.attempt, number, plan.release(label.round, number))


class NoisedClient:
    """The half that holds rows: `answer` takes the server's bytes and gives its own; `Refused` gives nothing away."""

    def __init__(
        self,
        id: int,
        plan: NoisedPlan,
        train: RankingData,
        identity: Identity | None = None,
        attempts: Callable[[int], int] = lambda tree: -1,  # the last at a tree that was answered before; -1: none
        source: Source | None = None,  # of noise; None: the system's
    ) -> None:
        if id not in plan.clients:
            raise ValueError(f"client {id} is none of those who agreed, {plan.clients}")
        self.id, self.plan, self.identity, self._attempts = id, plan, identity, attempts
        self.holder = PrivateRowStore(train, plan.edges, plan.rules, plan.noise, source)
        self.trees = 0  # that it knows
        self._answered: dict[int, int] = {}  # by release: the last attempt
        self._series: Any = None
        self._last: tuple[bytes, bytes] | None = None  # what was asked last, and the answer

    def answer(self, content: bytes) -> bytes:
        """The answer to a message of the server."""
        if self._last is not None and content == self._last[0]:
            return self._last[1]
        label = label_of(content)
        steps = {
            "noised-plan": self._join, "noised-past": self._take_past, "noised-keys": self._advertise,
            "noised-ask": self._release,
        }  # fmt: skip
        if label.kind not in steps:
            raise Refused(f"a message of kind {label.kind!r} is none of growing under noise; known: {', '.join(steps)}")
        kind, parts = steps[label.kind](content, label)
        self._last = content, pack(Label(kind, self.plan.run, label.round, label.attempt, self.id), parts)
        return self._last[1]

    def _open(self, content: bytes, label: Label, parts: Mapping[str, Part]) -> dict[str, Any]:
        return unpack(content, Label(label.kind, self.plan.run, label.round, label.attempt), parts)[1]

    def _join(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        said, own = self._open(content, label, {"edges": Part("|S", 16)}), self.plan.edges
        if said["edges"] != own.digest:
            raise Refused(f"the server has other bin edges than client {self.id}; agree on one file")
        return "noised-join", {}

    def _take_past(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        said = self._open(content, label, {"first": NUMBER, "trees": Part("|S", MOST_TEXT)})
        first = int(said["first"][0])
        if first not in (0, self.trees):
            raise Refused(f"trees from {first} on came, and client {self.id} has {self.trees}; send all of them")
        texts = [text for text in said["trees"].decode("ascii", "replace").split("\n\n") if text]
        trees = [Trees.read([text]) for text in texts]
        if any(tree.reaches > self.plan.edges.features for tree in trees):
            raise Refused(f"a tree of the past reads more than the {self.plan.edges.features} features that there are")
        if first == 0:
            self.holder.scores[:] = 0.0
        for tree in trees:
            self.holder.add(tree)
        self.trees = first + len(trees)
        last = max(self._attempts(self.trees), self._answered.get(self.plan.release(self.trees, 0), -1))
        return "noised-known", {"trees": np.array([self.trees]), "attempt": np.array([last])}

    def _advertise(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        from fedrank.privacy.secure_series import SeriesClient

        self._open(content, label, {})
        if not self.plan.secure:
            raise Refused("a secure sum was not agreed on; nobody needs keys")
        session = self.plan.session(label.round, label.attempt)
        self._series = SeriesClient(self.id, session, len(self.plan.clients), self.plan.bits, self.identity)
        return "noised-keyed", {"keys": self._series.advertise()}

    def _release(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        asked = asked_in(self.plan, content)
        assert asked is not None
        if asked.tree != self.trees:
            raise Refused(
                f"tree {asked.tree} is asked for and client {self.id} knows {self.trees} trees; send it the forest so "
                "far"
            )
        if asked.attempt <= self._answered.get(asked.release, -1):
            raise Refused(
                f"release {asked.number} of tree {asked.tree} was answered in attempt {asked.attempt} or later, and is "
                "not answered twice with other noise; begin a new attempt"
            )
        said = self._open(
            content,
            label,
            {"number": NUMBER, "cuts": Part("|S", _bytes_of_cuts(self.plan)), "roster": Part("|S", ROSTER)},
        )
        cuts = self._cuts(said["cuts"], asked.number)
        self._meet(asked, said["roster"])
        self.holder.begin()
        for cut in cuts:
            self.holder.cut(cut)
        leaves = len(cuts) + 1
        found = self.holder.sums(leaves) if self.plan.is_sums(asked.number) else self.holder.histograms(leaves)
        self._answered[asked.release] = asked.attempt
        if self.plan.secure:
            return "noised-sums", {"masked": self._series.masked(asked.number, found.reshape(-1))}
        return "noised-sums", {"sums": found.reshape(-1)}

    def _cuts(self, content: bytes, number: int) -> list[LeafCut]:
        edges, expected = self.plan.edges, self.plan.cuts_of(number)
        if len(content) != 4 * NUMBERS_OF_A_CUT * expected:
            raise Refused(f"release {number} of a tree follows {expected} cuts, and {len(content)} bytes of cuts came")
        table = np.frombuffer(content, "<i4").reshape(-1, NUMBERS_OF_A_CUT).tolist()
        cuts = []
        for place, (leaf, feature, bin) in enumerate(table):
            if not (0 <= leaf <= place and 0 <= feature < edges.features and 0 <= bin < edges.counts[feature]):
                raise Refused(f"cut {place} (leaf {leaf}, feature {feature}, bin {bin}) cuts nothing of its tree")
            cuts.append(LeafCut(leaf, place + 1, feature, bin))
        return cuts

    def _meet(self, asked: AskedRelease, roster: bytes) -> None:
        if not self.plan.secure:
            if roster:
                raise Refused("a roster came, and a secure sum was not agreed on")
            return
        if self._series is None or self._series.terms.session != self.plan.session(asked.tree, asked.attempt):
            raise Refused(f"tree {asked.tree} is begun without new keys; ask for them first")
        if asked.number == 0:
            try:
                self._series.meet(roster)
            except ValueError as problem:
                raise Refused(str(problem)) from None  # it speaks of keys, never of data


class NoisedServer:
    """The half that decides, and asks clients for noised sums: a `Noised` of `private_growth.py`."""

    def __init__(
        self,
        plan: NoisedPlan,
        ask: Ask,
        identities: Mapping[int, bytes] | None = None,
        charge: Callable[[int], None] = lambda tree: None,  # called before anybody is asked for anything of a tree
    ) -> None:
        self.plan, self.ask, self.identities, self.charge = plan, ask, identities, charge
        self.refused: dict[int, str] = {}
        self.bytes_up, self.bytes_down = 0, 0
        self.releases = 0  # that clients were asked for: each is paid for, whether it came or not
        self._texts: list[str] = []
        self._known: dict[int, int] = {}  # by client: trees that it has
        self._attempts: dict[int, int] = {}  # by client: the last at the next tree that it answered
        self._present: list[int] = []
        self._tree, self._attempt, self._number = -1, -1, 0
        self._cuts: list[LeafCut] = []
        self._roster = b""
        self._series: Any = None

    def forest(self, past: Sequence[str] = ()) -> Iterator[str]:
        """Trees; goes on after those of the past."""
        edges, plan = self.plan.edges, self.plan
        joined = self._asked("noised-plan", plan.clients, {"edges": edges.digest}, "noised-join", {}, (0, 0))
        if missing := sorted(set(plan.clients) - set(joined)):
            why = "; ".join(f"client {client}: {self.refused.get(client, 'no answer')}" for client in missing)
            raise ValueError(f"not all who agreed joined: {why}; ask them, or agree with the others on a new plan")
        self._texts = list(past)
        for text in grow_noised(self, plan.rules, edges, plan.noise, plan.seed, len(self._texts)):
            self._texts.append(text)
            yield text

    @property
    def clients(self) -> int:
        return len(self._present)

    def begin(self, tree: int) -> None:
        again = tree == self._tree
        self._hand_out(self.plan.clients)
        self._present = [client for client in self.plan.clients if self._known.get(client) == len(self._texts)]
        away = sorted(set(self.plan.clients) - set(self._present))
        if not self._present or (self.plan.secure and away):
            raise ValueError(
                f"clients {away} are away; the {len(self._texts)} trees so far stay, go on when "
                f"{'all are' if self.plan.secure else 'somebody is'} there"
            )
        last = max(self._attempts.get(client, -1) for client in self._present)
        if again:
            self._attempt = max(self._attempt, last) + 1
        else:
            # Without masks the last attempt can be asked for again, and costs nothing where it is the same questions.
            self._attempt = last + 1 if self.plan.secure else max(last, 0)
        self._tree, self._number, self._cuts = tree, 0, []
        self.charge(tree)
        self._roster = self._exchange_keys() if self.plan.secure else b""

    def cut(self, cut: LeafCut) -> None:
        self._cuts.append(cut)

    def histograms(self, leaves: int) -> Whole:
        return self._released()

    def sums(self, leaves: int) -> Whole:
        self._number = self.plan.noise.releases - 1
        return self._released()

    def end(self, values: Reals) -> None:
        """Clients are told with the next tree."""

    def _released(self) -> Whole:
        """What all say, added up."""
        shape, number = self.plan.shape(self._number), self._number
        size = int(np.prod(shape))
        table = np.array([[cut.leaf, cut.feature, cut.bin] for cut in self._cuts], "<i4")
        parts: dict[str, Value] = {"number": np.array([number]), "cuts": table.tobytes()}
        parts["roster"] = self._roster if number == 0 else b""
        expected = {"masked": Part("|S", 1024 + 8 * size)} if self.plan.secure else {"sums": Part("<i8", size)}
        self.releases += 1
        said = self._asked("noised-ask", self._present, parts, "noised-sums", expected)
        if (missing := [one for one in self._present if one not in said]) and not self.plan.secure:
            for client in missing:  # somebody who was started anew has only to learn the forest so far
                self._known.pop(client, None)
            self._hand_out(missing)
            said |= self._asked("noised-ask", missing, parts, "noised-sums", expected)
        limit = 2**62 // len(self.plan.clients)
        for client in [one for one in said if not self.plan.secure and _reaches(said[one]["sums"], limit)]:
            self.refused[client] = "it sent sums that no rows and no noise add up to"
            del said[client]
        self._number += 1
        if gone := [client for client in self._present if client not in said]:
            for client in gone:
                self._known.pop(client, None)
            raise DroppedOut(", ".join(map(str, gone)))
        if not self.plan.secure:
            return np.asarray(np.sum([one["sums"] for one in said.values()], axis=0).reshape(shape))
        masked = {client: one["masked"] for client, one in said.items()}
        return np.asarray(self._series.sum(number, size, masked).reshape(shape))

    def _hand_out(self, clients: Sequence[int]) -> None:
        """Everybody gets the trees that they lack."""
        groups: dict[int, list[int]] = {}
        for client in clients:
            first = self._known.get(client, 0)
            if first < len(self._texts) or client not in self._known:
                groups.setdefault(first, []).append(client)
        for first, group in groups.items():
            parts: dict[str, Value] = {
                "first": np.array([first]), "trees": "\n\n".join(self._texts[first:]).encode(),
            }  # fmt: skip
            where = (len(self._texts), 0)
            expected = {"trees": NUMBER, "attempt": NUMBER}
            said = self._asked("noised-past", group, parts, "noised-known", expected, where)
            for client in group:
                self._known.pop(client, None)  # who did not answer gets all of them, the next time
            for client, one in said.items():
                self._known[client], self._attempts[client] = int(one["trees"][0]), int(one["attempt"][0])

    def _exchange_keys(self) -> bytes:
        from fedrank.privacy.secure_series import SeriesServer

        session = self.plan.session(self._tree, self._attempt)
        self._series = SeriesServer(session, self.plan.clients, self.plan.bits, self.identities)
        said = self._asked("noised-keys", self._present, {}, "noised-keyed", {"keys": Part("|S", ADVERTISEMENT)})
        for client, parts in said.items():
            try:
                self._series.receive_advertisement(parts["keys"])
            except ValueError as problem:
                self.refused[client] = str(problem)
        if gone := [one for one in self._present if one not in said or one in self._series.left_out]:
            for client in gone:
                self._known.pop(client, None)
            raise DroppedOut(", ".join(map(str, gone)))
        return bytes(self._series.roster())

    def _asked(
        self,
        kind: str,
        clients: Sequence[int],
        parts: Mapping[str, Value],
        answer: str,
        expected: Mapping[str, Part],
        where: tuple[int, int] | None = None,  # tree and attempt; None: those that grow
    ) -> dict[int, dict[str, Any]]:
        """What those said whose answers fit."""
        tree, attempt = (self._tree, self._attempt) if where is None else where
        content = pack(Label(kind, self.plan.run, tree, attempt), parts)
        answers = self.ask(dict.fromkeys(clients, content)) if clients else {}
        self.bytes_down += len(content) * len(clients)
        said: dict[int, dict[str, Any]] = {}
        for client in clients:
            if client not in answers:
                continue
            self.bytes_up += len(answers[client])
            try:
                said[client] = unpack(answers[client], Label(answer, self.plan.run, tree, attempt, client), expected)[1]
            except Refused as problem:
                self.refused[client] = str(problem)
        return said


def _reaches(values: Whole, limit: int) -> bool:
    return int(values.max()) >= limit or int(values.min()) <= -limit


def _bytes_of_cuts(plan: NoisedPlan) -> int:
    return int(4 * NUMBERS_OF_A_CUT * (2**plan.noise.depth - 1))
