"""The protocol to grow one forest across machines: a server decides, clients have rows, messages are bytes.

    server                              client
    plan: edges                   ->    join: rows, or a refusal
    past: trees                   ->    known
    keys (secure aggregation)     ->    advertisement
    begin: tree, roster           ->    histogram of the root
    cut: leaf, feature, bin       ->    histogram of the smaller leaf
    show: leaves, features        ->    their histograms (where `begin` and `cut` are answered with votes)
    end: values of leaves         ->    quality on its validation queries

Kinds of messages begin with "grow-". Messages are numbered within an attempt at a tree. A client answers the next one,
and the last one again with the same bytes; it rejects all others. The format of a message is known before it is read.
Histograms without noise are not private. Secure aggregation reveals only their sum to the server, and only if all
clients received the same messages: masks depend on their digest.

With noise, kinds begin with "noised-", and one message replaces those from `begin` on:

    ask: all splits, number       ->    sums: histograms of leaves or their sums, with the noise of the client

A client needs only the trees so far to answer it, and repeats its bytes if the message is the same. Another
message with the same number is rejected, unless it is a new attempt, whose noise is new and charged. Without secure
aggregation every client adds all of the noise; with it, a part. The number of rows and the quality are not released.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.privacy.secure_messages import Identity
from fedrank.trees.arrays import Trees
from fedrank.trees.boosters import BoosterState
from fedrank.trees.forest import Forest, make_forest
from fedrank.trees.growing import DroppedOut, GrowPlan, grow_forest
from fedrank.trees.noise import Whole
from fedrank.trees.releases import (
    MAX_ROWS,
    NUMBER,
    HistogramRelease,
    Layout,
    NoisedRelease,
    Own,
    Release,
    Total,
    VoteRelease,
    decode_named,
    encode_named,
)
from fedrank.trees.row_store import PrivateRowStore, Voter, Votes
from fedrank.trees.split_finder import LeafSplit, Packed, Reals, Wish
from fedrank.types import Source
from fedrank.wire import Label, Part, Refused, Value, pack, read_label, unpack

MAX_TEXT = 2**31  # bytes of a forest
ADVERTISEMENT, ROSTER = 1024, 2**26  # maximum bytes
HALF = 22  # bits of the lower half of a quality, which is too wide for one number of narrow secure aggregation
NUMBERS_OF_A_SPLIT = 3  # with noise: leaf, feature, bin; the new leaf is the next one
Ask = Callable[[Mapping[int, bytes]], Mapping[int, bytes]]  # requests by client -> the answers that arrived
Sent = tuple[str, dict[str, Value]]  # kind and parts of a message


@dataclass(frozen=True)
class ReleaseRequest:
    """A request for a release with noise."""

    tree: int
    attempt: int
    number: int  # within the tree
    release: int  # within the forest, from 0
    splits: bytes  # of the tree so far
    roster: bytes

    @classmethod
    def read(cls, plan: GrowPlan, content: bytes) -> ReleaseRequest | None:
        """The request in a message; None if it is not for a release with noise."""
        label, noise = read_label(content), plan.noise
        if noise is None or label.kind != "noised-ask":
            return None
        most = 4 * NUMBERS_OF_A_SPLIT * (2**noise.depth - 1)
        parts = {"number": NUMBER, "cuts": Part("|S", most), "roster": Part("|S", ROSTER)}
        found = unpack(content, Label("noised-ask", plan.run, label.round, label.attempt), parts)[1]
        number = int(found["number"][0])
        if not (0 <= label.round < plan.rules.trees and 0 <= number < noise.releases):
            raise Refused(
                f"release {number} of tree {label.round} is requested, but there are {noise.releases} per tree and "
                f"{plan.rules.trees} trees"
            )
        release = label.round * noise.releases + number
        return cls(label.round, label.attempt, number, release, found["cuts"], found["roster"])


class TreeClient:
    """The client side: `answer` takes the server's bytes and returns its own.

    `Refused` means that a message was invalid; nothing was done or sent.
    """

    def __init__(
        self,
        id: int,
        plan: GrowPlan,
        train: RankingData,
        validation: RankingData | None = None,
        identity: Identity | None = None,  # for secure aggregation; without it the server must be trusted with keys
        attempts: Callable[[int], int] = lambda release: -1,  # the last one answered before, with noise; -1: none
        source: Source | None = None,  # of noise; None: the secure source of the system
        agreed: bytes = b"",  # digest of what clients agreed on besides the plan; masks depend on it
    ) -> None:
        if id not in plan.clients:
            raise ValueError(f"client {id} is not in the plan, whose clients are {plan.clients}")
        self.id, self.plan, self.identity, self._attempts = id, plan, identity, attempts
        self.store = plan.store(train, validation, source)
        self.trees = 0  # number of trees that it has
        self._series: Any = None
        self._last: tuple[bytes, bytes] | None = None  # the last message, and the answer to it
        # Digests of the messages that led to the forest so far, to the current state, and to the answer being made.
        # Masks depend on the last one: the answers of clients with different ones do not add up.
        self._agreed = self._forest = self._asked = self._asking = agreed
        self._answered: dict[int, int] = {}  # by release with noise: the last attempt
        self._tree: tuple[int, int] | None = None  # the current tree and attempt
        self._number = 0  # of the next message
        self._leaves = 0
        self._layout: Layout  # since the current tree began
        self._voter = Voter(self.store, plan.vote, len(plan.clients)) if plan.elects else None
        self._voted: tuple[int, ...] = ()  # leaves of the last vote, until their histograms are requested
        steps = {"plan": self._join, "past": self._take_past, "keys": self._advertise}
        if plan.noise is not None:
            steps |= {"ask": self._release}
        else:
            steps |= {"begin": self._begin, "cut": self._cut, "end": self._end, "show": self._show}
        self._steps = {_kind(plan, name): step for name, step in steps.items()}

    def answer(self, content: bytes) -> bytes:
        """The answer to a message of the server."""
        if self._last is not None and content == self._last[0]:
            return self._last[1]
        label = read_label(content)
        if label.kind not in self._steps:
            raise Refused(f"unknown kind of message {label.kind!r}; known are {', '.join(self._steps)}")
        self._asking = _chained(self._asked, content)
        kind, parts = self._steps[label.kind](content, label)
        self._asked = self._asking
        own = Label(_kind(self.plan, kind), self.plan.run, label.round, label.attempt, self.id)
        self._last = content, pack(own, parts)
        return self._last[1]

    def _open(self, content: bytes, label: Label, parts: Mapping[str, Part]) -> dict[str, Any]:
        expected = Label(label.kind, self.plan.run, label.round, label.attempt)
        return unpack(content, expected, parts)[1]

    def _join(self, content: bytes, label: Label) -> Sent:
        own, noised = self.plan.edges, self.plan.noise is not None
        expected = {} if noised else {"features": NUMBER}
        found = self._open(content, label, {**expected, "edges": Part("|S", 16)})
        if found["edges"] != own.digest or found.get("features", [own.features])[0] != own.features:
            raise Refused(f"the server and client {self.id} have different bin edges or features; agree on one file")
        return "join", {} if noised else {"rows": np.array([self.store.train.documents])}

    def _take_past(self, content: bytes, label: Label) -> Sent:
        noised = self.plan.noise is not None
        expected = {"first": NUMBER} if noised else {}
        found = self._open(content, label, {**expected, "trees": Part("|S", MAX_TEXT)})
        first = int(found["first"][0]) if noised else 0
        if first not in (0, self.trees):
            raise Refused(f"trees from {first} on were sent, but client {self.id} has {self.trees}; send all of them")
        texts = [text for text in found["trees"].decode("ascii", "replace").split("\n\n") if text]
        trees = [Trees.read([text]) for text in texts]
        if any(tree.reaches > self.plan.edges.features for tree in trees):
            raise Refused(f"a previous tree uses more than the {self.plan.edges.features} features that exist")
        if first == 0:
            self.store.forget()
        for tree in trees:
            self.store.add(tree)
        self._forest = _chained(self._agreed if first == 0 else self._forest, content)
        self.trees, self._tree = first + len(trees), None
        known: dict[str, Value] = {"trees": np.array([self.trees])}
        if self.plan.noise is not None:
            release = self.trees * self.plan.noise.releases
            known["attempt"] = np.array([max(self._attempts(release), self._answered.get(release, -1))])
        return "known", known

    def _advertise(self, content: bytes, label: Label) -> Sent:
        from fedrank.privacy.secure_series import SeriesClient

        self._open(content, label, {})
        if not self.plan.secure:
            raise Refused("secure aggregation was not agreed on, so keys are not needed")
        if self.plan.noise is None:
            self._check_attempt(label)
        session = self.plan.session(label.round, label.attempt)
        self._series = SeriesClient(self.id, session, len(self.plan.clients), self.plan.bits, self.identity)
        self._tree = None
        return "keyed", {"keys": self._series.advertise()}

    def _meet(self, tree: int, attempt: int, roster: bytes, first: bool = True) -> None:
        """Take the keys of the others, before anything is masked."""
        if not self.plan.secure:
            if roster:
                raise Refused("a roster was sent, but secure aggregation was not agreed on")
            return
        if self._series is None or self._series.terms.session != self.plan.session(tree, attempt):
            raise Refused(f"tree {tree} was started without new keys; request them first")
        if first:
            try:
                self._series.meet(roster)
            except ValueError as problem:
                raise Refused(str(problem)) from None  # it contains keys, never data

    def _sent(self, release: Release[Own, Total], found: Own) -> Sent:
        """A release, encoded or masked."""
        self._number = release.number + 1
        if self.plan.secure:
            return release.kind, {"masked": self._series.masked(release.number, release.numbers(found), self._asking)}
        return release.kind, release.encode(found)

    # Without noise

    def _begin(self, content: bytes, label: Label) -> Sent:
        found = self._open(content, label, {"shift": NUMBER, "roster": Part("|S", ROSTER)})
        shift = int(found["shift"][0])
        if not self.store.train.documents.bit_length() <= shift <= MAX_ROWS.bit_length():
            raise Refused(f"{shift} bits do not fit the number of rows that all clients announced")
        self._check_attempt(label)
        self._meet(label.round, label.attempt, found["roster"])
        self._asking = _chained(self._forest, content)
        self._tree, self._number, self._leaves = (label.round, label.attempt), 0, 1
        self._layout = self.plan.layout(label.round, shift)
        self.store.begin(label.round, shift)
        return self._votes((0,)) if self._voter is not None else self._histogram(0)

    def _cut(self, content: bytes, label: Label) -> Sent:
        found = self._numbered(content, label, {"cut": Part("<i4", 5)})
        split = LeafSplit(*found["cut"].tolist())
        plan, wanted = self.plan, (-1, split.leaf, split.new)
        fits = (
            0 <= split.leaf < self._leaves == split.new < plan.rules.leaves and split.feature in self._layout.features
        )
        if not (fits and 0 <= split.bin < plan.edges.counts[split.feature] and split.wanted in wanted):
            raise Refused(f"{split} is not a valid split of a tree with {self._leaves} leaves")
        self._leaves += 1
        self.store.split(split)
        if split.wanted < 0:
            self._number += 1
            return "cut-done", {"number": np.array([self._number])}
        return self._votes((split.leaf, split.new)) if self._voter is not None else self._histogram(split.wanted)

    def _show(self, content: bytes, label: Label) -> Sent:
        """Histograms of elected features, once, for the leaves of the last vote."""
        if self._voter is None or not self._voted:
            raise Refused("histograms of some features were requested before a vote; request votes first")
        features, leaves = self._layout.features, self._voted
        most = len(leaves) * -(-len(features) // 8)
        found = self._numbered(content, label, {"features": Part("|S", most)})
        named = decode_named(found["features"], len(leaves), len(features), 2 * self.plan.vote * len(leaves))
        self._voted = ()
        release = HistogramRelease(self._number, tuple(self._layout.of(features[one]) for one in named), elected=True)
        return self._sent(release, [(self.store.rows_in(leaf), self._voter.histogram(leaf)) for leaf in leaves])

    def _end(self, content: bytes, label: Label) -> Sent:
        found = self._numbered(content, label, {"values": Part("<f8", self._leaves)})
        self.store.end(found["values"])
        self._forest = self._asking
        self.trees, self._tree = self.trees + 1, None
        total, counted = self.store.quality()
        if self.plan.secure:
            parts = np.array([total >> HALF, total & (1 << HALF) - 1, counted])
            return "quality", {"masked": self._series.masked(self._number, parts, self._asking)}
        return "quality", {"quality": np.array([total, counted])}

    def _histogram(self, leaf: int) -> Sent:
        release = HistogramRelease(self._number, (self._layout,))
        return self._sent(release, [(self.store.rows_in(leaf), self.store.histogram(leaf))])

    def _votes(self, leaves: tuple[int, ...]) -> Sent:
        assert self._voter is not None
        self._voted = leaves
        release = VoteRelease(self._number, len(leaves), len(self._layout.features), self.plan.vote)
        return self._sent(release, self._voter.ballots(leaves))

    def _check_attempt(self, label: Label) -> None:
        self._check_tree(label.round)
        if self._tree is not None and label.attempt <= self._tree[1]:
            raise Refused(
                f"attempt {label.attempt} at tree {label.round} is over, the last one was {self._tree[1]}: replayed"
            )

    def _check_tree(self, tree: int) -> None:
        if tree != self.trees:
            raise Refused(
                f"tree {tree} was requested, but client {self.id} has {self.trees} trees; send it the forest so far"
            )

    def _numbered(self, content: bytes, label: Label, parts: Mapping[str, Part]) -> dict[str, Any]:
        if (label.round, label.attempt) != self._tree:
            raise Refused(f"attempt {label.attempt} at tree {label.round} is not the current one, {self._tree}")
        found = self._open(content, label, {"number": NUMBER, **parts})
        if found["number"][0] != self._number:
            raise Refused(
                f"message {found['number'][0]} of a tree was sent, expected {self._number}: replayed, or too early"
            )
        return found

    # With noise

    def _release(self, content: bytes, label: Label) -> Sent:
        request, store = ReleaseRequest.read(self.plan, content), self.store
        assert request is not None
        assert isinstance(store, PrivateRowStore)
        self._check_tree(request.tree)
        if request.attempt <= self._answered.get(request.release, -1):
            raise Refused(
                f"release {request.number} of tree {request.tree} was answered in attempt {request.attempt} or later, "
                "and is not answered again with other noise; start a new attempt"
            )
        splits = self._read_splits(request)
        self._meet(request.tree, request.attempt, request.roster, request.number == 0)
        self._asking = _chained(self._forest, content)  # it contains all splits of the tree
        store.begin(request.tree, 0)
        for split in splits:
            store.split(split)
        found = store.released(request.number)
        self._answered[request.release] = request.attempt
        return self._sent(NoisedRelease(request.number, found.shape, len(self.plan.clients)), found)

    def _read_splits(self, request: ReleaseRequest) -> list[LeafSplit]:
        edges, noise = self.plan.edges, self.plan.noise
        assert noise is not None
        expected = noise.leaves(request.number) - 1
        if len(request.splits) != 4 * NUMBERS_OF_A_SPLIT * expected:
            raise Refused(
                f"release {request.number} of a tree follows {expected} splits (got {len(request.splits)} bytes)"
            )
        splits = []
        table = np.frombuffer(request.splits, "<i4").reshape(-1, NUMBERS_OF_A_SPLIT).tolist()
        for place, (leaf, feature, bin) in enumerate(table):
            if not (0 <= leaf <= place and 0 <= feature < edges.features and 0 <= bin < edges.counts[feature]):
                raise Refused(f"split {place} (leaf {leaf}, feature {feature}, bin {bin}) is not valid for its tree")
            splits.append(LeafSplit(leaf, place + 1, feature, bin))
        return splits


class TreeServer:
    """The server side, which decides: a `ClientGroup` of growing.py.

    `refused` names clients that sent invalid messages; they are left out of that tree, as are those without an answer.
    """

    def __init__(
        self,
        plan: GrowPlan,
        ask: Ask,
        identities: Mapping[int, bytes] | None = None,
        charge: Callable[[int], None] = lambda tree: None,  # called before clients release anything of a tree
    ) -> None:
        self.plan, self.ask, self.identities, self.charge = plan, ask, identities, charge
        self.announced: dict[int, int] = {}  # rows of each client
        self.refused: dict[int, str] = {}
        self.bytes_up, self.bytes_down = 0, 0
        self.releases = 0  # requested releases with noise: each is charged, whether it arrived or not
        self._texts: list[str] = []
        self._known: dict[int, int] = {}  # by client: number of its trees
        self._attempts: dict[int, int] = {}  # by client, with noise: the last one answered at the next tree
        self._present: list[int] = []
        self._out: set[int] = set()  # clients that sent something invalid in this tree
        self._tree, self._attempt, self._number = 0 if plan.noise is None else -1, 0, 0
        self._rows: dict[int, dict[int, int]] = {}  # by client and leaf, as far as known
        self._pending: tuple[str, dict[str, Value]] | None = None  # a message that the next release answers
        self._split: LeafSplit | None = None  # the last one
        self._voted: tuple[int, ...] = ()  # leaves of the last vote
        self._splits: list[LeafSplit] = []  # of a tree with noise
        self._roster = b""
        self._layout: Layout  # since the current tree began
        self._series: Any = None

    @property
    def rows(self) -> int:
        return sum(self.announced.values())

    @property
    def present(self) -> int:
        return len(self._present)

    def forest(self, trees: Sequence[str] = (), validation: Sequence[float] = ()) -> Iterator[tuple[str, float]]:
        """Trees, each with nDCG@10 on the clients' validation queries; continues after the given trees."""
        self._join()
        self._texts, self._known = list(trees), {}
        for text, quality in grow_forest(self, BoosterState(tuple(trees), tuple(validation))):
            self._texts.append(text)
            yield text, quality

    def begin(self, tree: int, shift: int) -> None:
        noised = self.plan.noise is not None
        again = tree == self._tree
        if not again:
            self._attempt, self._out = -1, set()
        self._tree, self._number, self._splits = tree, 0, []
        if not noised:
            self._attempt += 1
        self._hand_out(self.plan.clients)
        self._present = [client for client in self.plan.clients if self._known.get(client) == len(self._texts)]
        away = sorted(set(self.plan.clients) - set(self._present))
        if not self._present or (self.plan.secure and away):
            raise ValueError(
                f"clients {away} are not available; the {len(self._texts)} trees so far are saved; continue when "
                f"{'all are' if self.plan.secure else 'at least one is'} available"
            )
        if noised:
            last = max(self._attempts.get(client, -1) for client in self._present)
            # Without masks the last attempt can be requested again, at no further charge if requests are the same.
            self._attempt = max(self._attempt, last) + 1 if again or self.plan.secure else max(last, 0)
        self.charge(tree)
        self._roster = self._exchange_keys() if self.plan.secure else b""
        self._rows = {client: {} for client in self._present}
        self._layout, self._split = self.plan.layout(tree, shift), None
        self._pending = "begin", {"shift": np.array([shift]), "roster": self._roster}

    def split(self, split: LeafSplit) -> None:
        if self.plan.noise is not None:
            self._splits.append(split)
            return
        self._split = split
        numbers = np.array([split.leaf, split.new, split.feature, split.bin, split.wanted], dtype=np.int32)
        parts: dict[str, Value] = {"number": np.array([self._number]), "cut": numbers}
        if split.wanted >= 0:
            self._pending = "cut", parts
            return
        found = self._asked("cut", self._present, parts, "cut-done", {"number": NUMBER})
        self._number += 1
        self._keep(found)

    def histogram(self, leaf: int) -> Packed:
        assert self._pending is not None
        kind, parts = self._pending
        split = self._split if kind == "cut" else None
        release = HistogramRelease(self._number, (self._layout,), rows=self.rows)

        def read(client: int, found: dict[str, Any]) -> list[Packed]:
            before = self._check_rows(client, (leaf,), leaf if split is None else split.leaf, found["rows"].tolist())
            if split is not None:
                self._rows[client][split.new if leaf == split.leaf else split.leaf] = before - self._rows[client][leaf]
            return release.decode(found)

        return self._sum(kind, parts, release, read)[0]

    def votes(self, leaves: tuple[int, ...]) -> Votes:
        assert self._pending is not None
        self._voted = leaves
        features = len(self._layout.features)
        release = VoteRelease(self._number, len(leaves), features, self.plan.vote, len(self._present))
        return self._sum(*self._pending, release)

    def elected(self, wishes: Sequence[Wish]) -> list[Packed]:
        drawn, wanted, leaves = self._layout.features, dict(wishes), self._voted
        named = np.array([np.isin(drawn, wanted.get(leaf, drawn[:0])) for leaf in leaves])
        layouts = tuple(self._layout.of(drawn[one]) for one in named)
        release = HistogramRelease(self._number, layouts, elected=True, rows=self.rows)

        def read(client: int, found: dict[str, Any]) -> list[Packed]:
            self._check_rows(client, leaves, leaves[0], found["rows"].tolist())
            return release.decode(found)

        parts: dict[str, Value] = {"number": np.array([self._number]), "features": encode_named(named)}
        histograms = self._sum("show", parts, release, read)
        return [histograms[leaves.index(leaf)] for leaf, _ in wishes]

    def noised(self, number: int) -> Whole:
        noise, edges = self.plan.noise, self.plan.edges
        assert noise is not None
        shape = (2,) if noise.is_last(number) else (edges.features, edges.bins, 2)
        table = np.array([[split.leaf, split.feature, split.bin] for split in self._splits], "<i4")
        parts: dict[str, Value] = {"number": np.array([number]), "cuts": table.tobytes()}
        parts["roster"] = self._roster if number == 0 else b""
        self.releases += 1
        return self._sum("ask", parts, NoisedRelease(number, (noise.leaves(number), *shape), len(self.plan.clients)))

    def end(self, values: Reals) -> tuple[int, int]:
        if self.plan.noise is not None:
            return 0, 0  # clients receive the tree with the next one
        parts = {"number": np.array([self._number]), "values": values}
        expected = {"masked": Part("|S", 4096)} if self.plan.secure else {"quality": Part("<i8", 2)}
        found = self._asked("end", self._present, parts, "quality", expected)
        self._known = dict.fromkeys(found, len(self._texts) + 1)
        if self.plan.secure:
            if set(found) != set(self.plan.clients):
                return 0, 0  # the tree stays; its quality is unknown, because not all clients sent their part
            masked = {client: one["masked"] for client, one in found.items()}
            high, low, counted = self._series.sum(self._number, 3, masked)
            return (int(high) << HALF) + int(low), int(counted)
        for client in [client for client, one in found.items() if np.any(one["quality"] < 0)]:
            self._refuse(client, "it sent a negative quality")
            del found[client]
        total, counted = np.sum([one["quality"] for one in found.values()], axis=0) if found else (0, 0)
        return int(total), int(counted)

    def _join(self) -> None:
        """All clients must have the same edges; without noise they announce their number of rows."""
        edges, noised = self.plan.edges, self.plan.noise is not None
        parts: dict[str, Value] = {} if noised else {"features": np.array([edges.features])}
        expected = {} if noised else {"rows": NUMBER}
        where, parts = (0, 0), parts | {"edges": edges.digest}
        joined = self._asked("plan", self.plan.clients, parts, "join", expected, where)
        if not noised:
            for client, found in joined.items():
                if not 0 < (rows := int(found["rows"][0])) <= MAX_ROWS:
                    self._refuse(client, f"it announced {rows} rows")
                    continue
                self.announced[client] = rows
        if missing := sorted(set(self.plan.clients) - set(joined if noised else self.announced)):
            why = "; ".join(f"client {client}: {self.refused.get(client, 'no answer')}" for client in missing)
            raise ValueError(
                f"not all clients of the plan joined: {why}; contact them, or agree on a new plan with the others"
            )

    def _hand_out(self, clients: Sequence[int]) -> None:
        """Send every client the trees that it lacks; without noise, all of them.

        In secure aggregation all clients must have received the same messages: if some lack trees that others have,
        all clients receive all trees.
        """
        noised, groups = self.plan.noise is not None, dict[int, list[int]]()
        if self.plan.secure and len({self._known.get(client) for client in clients}) > 1:
            self._known = {}
        for client in clients:
            if self._known.get(client) != len(self._texts) and client not in self._out:
                groups.setdefault(self._known.get(client, 0) if noised else 0, []).append(client)
        for first, group in groups.items():
            parts: dict[str, Value] = {"first": np.array([first])} if noised else {}
            parts["trees"] = "\n\n".join(self._texts[first:]).encode()
            expected = {"trees": NUMBER, "attempt": NUMBER} if noised else {"trees": NUMBER}
            where = self._tree, 0 if noised else self._attempt
            found = self._asked("past", group, parts, "known", expected, where)
            for client in group:
                self._known.pop(client, None)  # a client without an answer receives all of them the next time
            for client, one in found.items():
                self._known[client] = int(one["trees"][0])
                if noised:
                    self._attempts[client] = int(one["attempt"][0])

    def _exchange_keys(self) -> bytes:
        from fedrank.privacy.secure_series import SeriesServer

        session = self.plan.session(self._tree, self._attempt)
        self._series = SeriesServer(session, self.plan.clients, self.plan.bits, self.identities)
        found = self._asked("keys", self._present, {}, "keyed", {"keys": Part("|S", ADVERTISEMENT)})
        self._checked(found, lambda client, one: self._series.receive_advertisement(one["keys"]))
        return bytes(self._series.roster())

    def _sum(
        self,
        kind: str,
        parts: Mapping[str, Value],
        release: Release[Any, Total],
        read: Callable[[int, dict[str, Any]], Total] | None = None,  # decodes the release of one client
    ) -> Total:
        """The sum of the releases of all clients."""
        self._pending = None
        secure = self.plan.secure
        expected = {"masked": Part("|S", 1024 + 8 * release.size)} if secure else release.parts
        found = self._asked(kind, self._present, parts, release.kind, expected)
        missing = [client for client in self._present if client not in found and client not in self._out]
        if missing and self.plan.noise is not None and not secure:
            # A restarted client lacks only the trees so far; a new attempt would be new noise for all clients.
            for client in missing:
                self._known.pop(client, None)
            self._hand_out(missing)
            found |= self._asked(kind, missing, parts, release.kind, expected)
        self._number = release.number + 1
        if not secure:
            decode = read or (lambda client, one: release.decode(one))
            return release.add(list(self._checked(found, decode).values()))
        self._keep(found)
        try:
            masked = {client: one["masked"] for client, one in found.items()}
            return release.total(np.asarray(self._series.sum(release.number, release.size, masked)))
        except ValueError as problem:
            raise ValueError(
                f"the releases of clients for tree {self._tree} have no valid sum: {problem}; secure aggregation does "
                "not reveal which client is at fault; the trees so far are saved"
            ) from None

    def _check_rows(self, client: int, leaves: tuple[int, ...], parent: int, rows: list[int]) -> int:
        """Reject numbers of rows in leaves that exceed their parent; returns the number in the parent."""
        known = self._rows[client]
        before = known.get(parent, self.announced[client])
        whole = sum(rows) == before if len(leaves) > 1 else sum(rows) <= before
        if min(rows) < 0 or not whole:
            raise Refused(f"it has {rows} rows in leaves {list(leaves)}, where it announced {before:,}")
        known.update(zip(leaves, rows, strict=True))
        return before

    def _checked(
        self, found: Mapping[int, dict[str, Any]], read: Callable[[int, dict[str, Any]], Total]
    ) -> dict[int, Total]:
        """The decoded messages; clients with invalid ones are refused."""
        fitting = {}
        for client, one in found.items():
            try:
                fitting[client] = read(client, one)
            except ValueError as problem:
                self._refuse(client, str(problem))
        self._keep(fitting)
        return fitting

    def _refuse(self, client: int, why: str) -> None:
        self.refused[client] = why
        self._out.add(client)

    def _keep(self, found: Mapping[int, Any]) -> None:
        """Continue with the clients that answered; raises DroppedOut if one did not."""
        gone = [client for client in self._present if client not in found]
        if not gone:
            return
        self._present = [client for client in self._present if client in found]
        for client in gone:
            self._known.pop(client, None)
        raise DroppedOut(", ".join(map(str, gone)))

    def _asked(
        self,
        kind: str,
        clients: Sequence[int],
        parts: Mapping[str, Value],
        answer: str,
        expected: Mapping[str, Part],
        where: tuple[int, int] | None = None,  # tree and attempt; None: the current ones
    ) -> dict[int, dict[str, Any]]:
        """The valid answers, by client."""
        tree, attempt = (self._tree, self._attempt) if where is None else where
        run = self.plan.run
        content = pack(Label(_kind(self.plan, kind), run, tree, attempt), parts)
        answers = self.ask(dict.fromkeys(clients, content)) if clients else {}
        self.bytes_down += len(content) * len(clients)
        found: dict[int, dict[str, Any]] = {}
        for client in clients:
            if client not in answers:
                continue
            self.bytes_up += len(answers[client])
            try:
                wanted = Label(_kind(self.plan, answer), run, tree, attempt, client)
                found[client] = unpack(answers[client], wanted, expected)[1]
            except Refused as problem:
                self._refuse(client, str(problem))
        return found


def _chained(before: bytes, content: bytes) -> bytes:
    """The digest of one more message after the others."""
    return hashlib.sha256(before + hashlib.sha256(content).digest()).digest()


def _kind(plan: GrowPlan, name: str) -> str:
    """The kind of a message on the wire."""
    return f"{'grow' if plan.noise is None else 'noised'}-{name}"


def in_process(clients: Mapping[int, TreeClient]) -> Ask:
    """Clients in this process, called through bytes; a refusal counts as no answer."""

    def ask(requests: Mapping[int, bytes]) -> dict[int, bytes]:
        answers = {}
        for client, content in requests.items():
            try:
                answers[client] = clients[client].answer(content)
            except Refused:
                continue
        return answers

    return ask


def forest_from(texts: Sequence[str], like: RankingData, plan: GrowPlan) -> Forest:
    """A forest of trees that were grown together, for data like these; it contains no ranges of features."""
    notes = {"clients": list(plan.clients), "secure sum": plan.secure}  # persisted names; prose: ok
    return make_forest(texts, like, notes, with_ranges=False)
