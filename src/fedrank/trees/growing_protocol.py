"""Growing one forest between machines: a server half that decides, a client half that holds rows, bytes between them.

    server                              client
    plan: rules, edges, seed      ->    join: rows, or a refusal
    past: the forest so far       ->    known
    keys (secure sum only)        ->    advertisement
    begin: tree, roster           ->    histogram of the root
    cut: leaf, feature, bin       ->    histogram of the smaller leaf
    look: leaf                    ->    its histogram (after a drop-out)
    show: leaves, features        ->    their histograms (where `begin` and `cut` are answered with votes)
    end: values of leaves         ->    quality on its validation queries

Messages are numbered within an attempt at a tree. A client answers the next one, and the last one again with the same
bytes; all others are refused. What a message may be is known before it is read.

Bare histograms are not private. A secure sum shows the server their sum alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.privacy.secure_aggregation import Identity
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import Edges
from fedrank.trees.boosters import Grower, Past, SelectiveGrower
from fedrank.trees.cuts import LeafCut, Reals
from fedrank.trees.drawing import drawn_features
from fedrank.trees.forest import Forest, transplanted
from fedrank.trees.growing_loop import DroppedOut, grow_forest
from fedrank.trees.histogram_messages import Integers, Layout, check_histogram, decode, encode
from fedrank.trees.row_store import RowStore
from fedrank.trees.split_finder import Packed, Wish
from fedrank.trees.voting import Ballots, Voter, Votes, check_votes, decode_named, encode_named
from fedrank.wire import Label, Part, Refused, Value, label_of, pack, unpack

VERSION = 2  # of these messages
MOST_ROWS = 2**40
MOST_TEXT = 2**31  # bytes of a forest
ADVERTISEMENT, ROSTER = 1024, 2**26  # bytes at most
NUMBER = Part("<i8", 1)
HALF = 22  # bits in the lower half of a quality, which as a whole is too wide for narrow secure sums
_RULES = {Grower: "Grower", SelectiveGrower: "SelectiveGrower"}  # in the name of a run: never rename a text
Read = TypeVar("Read")
Ask = Callable[[Mapping[int, bytes]], Mapping[int, bytes]]  # requests by client -> answers of those who answered


@dataclass(frozen=True)
class GrowPlan:
    """What all who grow a forest together agree on."""

    rules: Grower
    edges: Edges
    seed: int
    clients: tuple[int, ...]
    secure: bool = False  # whether the server sees sums of histograms alone
    bits: int = 62  # of a secure sum
    dropouts: Literal["again", "continue"] = "again"  # what becomes of a tree in which somebody drops out
    vote: int = 0  # for how many features of a leaf each votes, before histograms of some are sent; 0: all are sent

    def __post_init__(self) -> None:
        if not self.clients or len(set(self.clients)) != len(self.clients) or min(self.clients) < 0:
            raise ValueError(f"clients {self.clients}: give each a number of its own, from 0")
        if self.secure and len(self.clients) < 2:
            raise ValueError("one client alone is its own sum: a secure sum hides nothing; use two or more clients")
        if self.secure and self.dropouts != "again":
            raise ValueError(
                'dropouts = "continue" shows under a secure sum what the one held who is gone; use "again"'
            )
        if self.vote < 0:
            raise ValueError(f"vote = {self.vote} is no number of features; use 1 or more, or 0 to send all features")
        if self.vote and self.dropouts != "again":
            raise ValueError(
                f'vote = {self.vote}, dropouts = "continue": leaves would be counted anew without those who voted; use '
                '"again", or vote = 0'
            )

    @property
    def run(self) -> bytes:
        """16 bytes that name what was agreed on, so that nothing of another agreement fits."""
        agreed = asdict(self.rules) | {"rules": _RULES[type(self.rules)], "seed": self.seed, "version": VERSION}
        agreed |= {"clients": self.clients, "secure": self.secure, "bits": self.bits, "dropouts": self.dropouts}
        agreed |= {"vote": self.vote}
        content = json.dumps(agreed, sort_keys=True).encode() + self.edges.digest
        return hashlib.blake2b(content, digest_size=16).digest()

    def layout(self, tree: int, shift: int) -> Layout:
        """The bins of a tree's histograms."""
        drawn = drawn_features(self.edges.features, self.rules.feature_share, self.seed, tree)
        return Layout(self.edges, drawn, shift)

    @property
    def elects(self) -> bool:
        """Whether there are votes: everybody would vote for all features otherwise."""
        drawn = drawn_features(self.edges.features, self.rules.feature_share, self.seed, 0)
        return 0 < self.vote < len(drawn)

    def session(self, tree: int, attempt: int) -> bytes:
        """Names one series of secure sums."""
        return self.run + tree.to_bytes(8, "little") + attempt.to_bytes(8, "little")


class TreeClient:
    """The half that holds rows: `answer` takes the server's bytes and gives its own.

    `Refused` means that a message did not fit and nothing was done or given away.
    """

    def __init__(
        self,
        id: int,
        plan: GrowPlan,
        train: RankingData,
        validation: RankingData | None = None,
        identity: Identity | None = None,  # under a secure sum, so that the server need not be trusted with keys
    ) -> None:
        if id not in plan.clients:
            raise ValueError(f"client {id} is none of those who agreed, {plan.clients}")
        self.id, self.plan, self.identity = id, plan, identity
        self.holder = RowStore(train, plan.edges, plan.rules, plan.seed, validation)
        self.trees = 0  # that it knows
        self._tree: tuple[int, int] | None = None  # the tree that grows, and the attempt
        self._number = 0  # of the next message
        self._leaves = 0
        self._layout: Layout | None = None
        self._series: Any = None
        self._voter = Voter(self.holder, plan.vote, len(plan.clients)) if plan.elects else None
        self._shown: tuple[int, ...] = ()  # leaves that were voted for, until their histograms are asked for
        self._last: tuple[bytes, bytes] | None = None  # what was asked last, and the answer

    def answer(self, content: bytes) -> bytes:
        """The answer to a message of the server."""
        if self._last is not None and content == self._last[0]:
            return self._last[1]
        label = label_of(content)
        steps = {
            "grow-plan": self._join, "grow-past": self._take_past, "grow-keys": self._advertise,
            "grow-begin": self._begin, "grow-cut": self._cut, "grow-look": self._look, "grow-end": self._end,
            "grow-show": self._show,
        }  # fmt: skip
        if label.kind not in steps:
            raise Refused(f"a message of kind {label.kind!r} is none of growing; known are {', '.join(steps)}")
        kind, parts = steps[label.kind](content, label)
        if kind in ("grow-counts", "grow-votes"):
            self._number += 1
        own = Label(kind, self.plan.run, label.round, label.attempt, self.id)
        self._last = content, pack(own, parts)
        return self._last[1]

    def _open(self, content: bytes, label: Label, parts: Mapping[str, Part]) -> dict[str, Any]:
        expected = Label(label.kind, self.plan.run, label.round, label.attempt)
        return unpack(content, expected, parts)[1]

    def _join(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        said = self._open(content, label, {"features": NUMBER, "edges": Part("|S", 16)})
        own = self.plan.edges
        if said["features"][0] != own.features or said["edges"] != own.digest:
            raise Refused(
                f"the server has bin edges of {said['features'][0]} features that are not those of client {self.id}, "
                f"of {own.features}; agree on one file"
            )
        return "grow-join", {"rows": np.array([self.holder.train.documents])}

    def _take_past(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        said = self._open(content, label, {"trees": Part("|S", MOST_TEXT)})
        texts = [text for text in said["trees"].decode("ascii", "replace").split("\n\n") if text]
        trees = [Trees.read([text]) for text in texts]
        if any(tree.reaches > self.plan.edges.features for tree in trees):
            raise Refused(f"a tree of the past reads more than the {self.plan.edges.features} features that there are")
        self.holder.forget()
        for tree in trees:
            self.holder.add(tree)
        self.trees, self._tree = len(trees), None
        return "grow-known", {"trees": np.array([self.trees])}

    def _advertise(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        from fedrank.privacy.secure_series import SeriesClient

        self._open(content, label, {})
        if not self.plan.secure:
            raise Refused("a secure sum was not agreed on; nobody needs keys")
        self._next_attempt(label)
        session = self.plan.session(label.round, label.attempt)
        self._series = SeriesClient(self.id, session, len(self.plan.clients), self.plan.bits, self.identity)
        self._tree, self._layout = None, None
        return "grow-keyed", {"keys": self._series.advertise()}

    def _begin(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        said = self._open(content, label, {"shift": NUMBER, "roster": Part("|S", ROSTER)})
        shift = int(said["shift"][0])
        if not self.holder.train.documents.bit_length() <= shift <= MOST_ROWS.bit_length():
            raise Refused(
                f"{shift} bits are no room for the rows of all; they are announced, and counted by the server"
            )
        self._next_attempt(label)
        if self.plan.secure:
            if self._series is None or self._series.terms.session != self.plan.session(label.round, label.attempt):
                raise Refused(f"tree {label.round} is begun without new keys; ask for them first")
            self._series.meet(said["roster"])
        elif said["roster"]:
            raise Refused("a roster came, and a secure sum was not agreed on")
        self._tree, self._number, self._leaves = (label.round, label.attempt), 0, 1
        self._layout = self.plan.layout(label.round, shift)
        if self._voter is not None:
            return self._voted(self._voter.begin(label.round, shift), (0,))
        return self._told(self.holder.begin(label.round, shift), 0)

    def _cut(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        said = self._numbered(content, label, {"cut": Part("<i4", 5)})
        cut = LeafCut(*said["cut"].tolist())
        assert self._layout is not None
        fits = 0 <= cut.leaf < self._leaves == cut.new < self.plan.rules.leaves and cut.feature in self._layout.features
        if not (fits and 0 <= cut.bin < self.plan.edges.counts[cut.feature] and cut.wanted in (-1, cut.leaf, cut.new)):
            raise Refused(f"{cut} cuts nothing of a tree with {self._leaves} leaves by features that were drawn")
        self._leaves += 1
        if cut.wanted < 0:
            self.holder.cut(cut)
            self._number += 1
            return "grow-cut-done", {"number": np.array([self._number])}
        if self._voter is not None:
            return self._voted(self._voter.cut(cut), (cut.leaf, cut.new))
        return self._told(self.holder.divided(cut), cut.wanted)

    def _show(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        """Histograms of elected features, once, of the leaves that were voted for last."""
        if self._voter is None or not self._shown:
            raise Refused("histograms of some features are asked for, and nobody has voted; ask for votes first")
        assert self._layout is not None
        features, leaves = self._layout.features, self._shown
        most = len(leaves) * -(-len(features) // 8)
        said = self._numbered(content, label, {"features": Part("|S", most)})
        named = decode_named(said["features"], len(leaves), len(features), 2 * self.plan.vote * len(leaves))
        layouts = [self._layout.of(features[one]) for one in named]
        self._shown = ()
        counted = [self._voter.histogram(leaf) for leaf in leaves]
        if self.plan.secure:
            values = [layout.spread(packed).reshape(-1) for packed, layout in zip(counted, layouts, strict=True)]
            return "grow-counts", {"masked": self._series.masked(self._number, np.concatenate(values))}
        parts: dict[str, Value] = {"number": np.array([self._number])}
        parts["rows"] = np.array([self.holder.rows_in(leaf) for leaf in leaves])
        for place, (packed, layout) in enumerate(zip(counted, layouts, strict=True)):
            parts[f"counts {place}"] = encode(packed, layout) if layout.bins else b""
        return "grow-counts", parts

    def _voted(self, ballots: Ballots, leaves: tuple[int, ...]) -> tuple[str, dict[str, Value]]:
        self._shown = leaves
        if self.plan.secure:
            masked = self._series.masked(self._number, ballots.astype(np.int64).reshape(-1))
            return "grow-votes", {"masked": masked}
        return "grow-votes", {"number": np.array([self._number]), "votes": encode_named(ballots)}

    def _look(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        leaf = int(self._numbered(content, label, {"leaf": NUMBER})["leaf"][0])
        if self.plan.dropouts != "continue":
            raise Refused("leaves were looked at again where a tree is begun again; that was not agreed on")
        if not 0 <= leaf < self._leaves:
            raise Refused(f"there is no leaf {leaf} in a tree of {self._leaves} leaves")
        return self._told(self.holder.histogram(leaf), leaf)

    def _end(self, content: bytes, label: Label) -> tuple[str, dict[str, Value]]:
        said = self._numbered(content, label, {"values": Part("<f8", self._leaves)})
        self.holder.end(said["values"])
        self.trees, self._tree = self.trees + 1, None
        total, counted = self.holder.quality()
        if self.plan.secure:
            found = np.array([total >> HALF, total & (1 << HALF) - 1, counted])
            return "grow-quality", {"masked": self._series.masked(self._number, found)}
        return "grow-quality", {"quality": np.array([total, counted])}

    def _next_attempt(self, label: Label) -> None:
        if label.round != self.trees:
            raise Refused(
                f"tree {label.round} is asked for and client {self.id} knows {self.trees} trees; send it the forest so "
                "far"
            )
        if self._tree is not None and label.attempt <= self._tree[1]:
            raise Refused(
                f"attempt {label.attempt} at tree {label.round} is over, {self._tree[1]} was the last; replayed"
            )

    def _numbered(self, content: bytes, label: Label, parts: Mapping[str, Part]) -> dict[str, Any]:
        if (label.round, label.attempt) != self._tree:
            raise Refused(f"attempt {label.attempt} at tree {label.round} is not the one that grows: {self._tree}")
        said = self._open(content, label, {"number": NUMBER, **parts})
        if said["number"][0] != self._number:
            raise Refused(
                f"message {said['number'][0]} of a tree came, expected was {self._number}: replayed, or too early"
            )
        return said

    def _told(self, packed: Packed, leaf: int) -> tuple[str, dict[str, Value]]:
        assert self._layout is not None
        if self.plan.secure:
            values = self._layout.spread(packed).reshape(-1)
            return "grow-counts", {"masked": self._series.masked(self._number, values)}
        number, rows = np.array([self._number]), np.array([self.holder.rows_in(leaf)])
        return "grow-counts", {"number": number, "rows": rows, "counts": encode(packed, self._layout)}


class TreeServer:
    """The half that decides, and asks clients for sums: a `Gathering` of `growth.py`.

    `refused` says who sent what does not fit; they are out of that tree, as are those who do not answer.
    """

    def __init__(self, plan: GrowPlan, ask: Ask, identities: Mapping[int, bytes] | None = None) -> None:
        self.plan, self.ask, self.identities = plan, ask, identities
        self.dropouts, self.vote = plan.dropouts, plan.vote
        self.announced: dict[int, int] = {}  # rows of each client
        self.refused: dict[int, str] = {}
        self.bytes_up, self.bytes_down = 0, 0
        self._texts: list[str] = []
        self._behind: set[int] = set()  # clients that lack trees
        self._present: list[int] = []
        self._out: set[int] = set()  # who sent something in this tree that does not fit
        self._tree, self._attempt, self._number = 0, 0, 0
        self._rows: dict[int, dict[int, int]] = {}  # by client and leaf, as far as known
        self._parts: tuple[int, ...] = ()  # leaves that were voted for last
        self._layout: Layout | None = None
        self._series: Any = None

    @property
    def rows(self) -> int:
        return sum(self.announced.values())

    def forest(self, past: Past = Past()) -> Iterator[tuple[str, float]]:  # noqa: B008 (frozen)
        """Trees, each with nDCG@10 on the clients' validation queries; goes on after those of the past."""
        self.join()
        self._texts, self._behind = list(past.trees), set(self.plan.clients)
        for text, quality in grow_forest(self, self.plan.rules, self.plan.edges, self.plan.seed, past):
            self._texts.append(text)
            yield text, quality

    def join(self) -> None:
        """Ask everybody who agreed how many rows they have."""
        edges = self.plan.edges
        said = self._asked(
            "grow-plan", self.plan.clients, {"features": np.array([edges.features]), "edges": edges.digest},
            "grow-join", {"rows": NUMBER}, tree=0,
        )  # fmt: skip
        for client, parts in said.items():
            rows = int(parts["rows"][0])
            if not 0 < rows <= MOST_ROWS:
                self._refuse(client, f"it announced {rows} rows")
                continue
            self.announced[client] = rows
        missing = sorted(set(self.plan.clients) - set(self.announced))
        if missing:
            why = "; ".join(f"client {client}: {self.refused.get(client, 'no answer')}" for client in missing)
            raise ValueError(f"not all who agreed joined: {why}; ask them, or agree with the others on a new plan")

    def begin(self, tree: int, shift: int) -> Packed:
        return self._sum("grow-begin", self._begun(tree, shift), leaf=0)

    def begin_with_votes(self, tree: int, shift: int) -> Votes:
        return self._votes("grow-begin", self._begun(tree, shift), (0,))

    def _begun(self, tree: int, shift: int) -> dict[str, Value]:
        """Gather all who are there for one more attempt at a tree; what they are told."""
        if tree != self._tree:
            self._attempt, self._out = -1, set()
        self._attempt += 1
        self._tree, self._number = tree, 0
        self._hand_out_past()
        self._layout = self.plan.layout(tree, shift)
        roster = self._exchange_keys() if self.plan.secure else b""
        self._rows = {client: {} for client in self._present}
        return {"shift": np.array([shift]), "roster": roster}

    def cut(self, cut: LeafCut) -> Packed | None:
        numbers = _numbers(cut)
        if cut.wanted >= 0:
            return self._sum("grow-cut", {"cut": numbers}, cut.wanted, cut)
        parts = {"number": np.array([self._number]), "cut": numbers}
        said = self._asked("grow-cut", self._present, parts, "grow-cut-done", {"number": NUMBER})
        self._number += 1
        self._keep(said)
        return None

    def cut_with_votes(self, cut: LeafCut) -> Votes:
        return self._votes("grow-cut", {"cut": _numbers(cut)}, (cut.leaf, cut.new))

    def show(self, wishes: Sequence[Wish]) -> list[Packed]:
        assert self._layout is not None
        drawn, asked = self._layout.features, dict(wishes)
        named = np.array([np.isin(drawn, asked.get(leaf, drawn[:0])) for leaf in self._parts])
        layouts = [self._layout.of(drawn[one]) for one in named]
        sizes = [3 * layout.bins for layout in layouts]
        expected = {"number": NUMBER, "rows": Part("<i8", len(layouts))}
        expected |= {f"counts {place}": Part("|S", layout.most_bytes) for place, layout in enumerate(layouts)}
        if self.plan.secure:
            expected = {"masked": Part("|S", 1024 + 8 * sum(sizes))}
        parts: dict[str, Value] = {"number": np.array([self._number]), "features": encode_named(named)}
        said = self._asked("grow-show", self._present, parts, "grow-counts", expected)
        number, self._number = self._number, self._number + 1
        if self.plan.secure:
            self._keep(said)
            values = self._opened(number, layouts, {client: one["masked"] for client, one in said.items()})
            found = [layout.pack(one) for layout, one in zip(layouts, values, strict=True)]
        else:
            shown = self._checked(said, lambda client, one: self._shown(client, one, number, layouts))
            found = [np.sum(each, axis=0) for each in zip(*shown.values(), strict=True)]
        return [found[self._parts.index(leaf)] for leaf, _ in wishes]

    def look(self, leaf: int) -> Packed:
        return self._sum("grow-look", {"leaf": np.array([leaf])}, leaf)

    def end(self, values: Reals) -> tuple[int, int]:
        parts = {"number": np.array([self._number]), "values": values}
        expected = {"masked": Part("|S", 4096)} if self.plan.secure else {"quality": Part("<i8", 2)}
        said = self._asked("grow-end", self._present, parts, "grow-quality", expected)
        self._behind |= set(self.plan.clients) - set(said)
        if not self.plan.secure:
            for client in [client for client, one in said.items() if np.any(one["quality"] < 0)]:
                self._refuse(client, "it has a negative quality")
                del said[client]
            total, counted = np.sum([one["quality"] for one in said.values()], axis=0) if said else (0, 0)
            return int(total), int(counted)
        if set(said) != set(self.plan.clients):
            return 0, 0  # the tree stands; how good it is stays unknown, because not all told their part
        high, low, counted = self._series.sum(self._number, 3, {client: one["masked"] for client, one in said.items()})
        return (int(high) << HALF) + int(low), int(counted)

    def _hand_out_past(self) -> None:
        """Everybody begins with the same forest; who does not answer is not in this tree."""
        self._present = [client for client in self.plan.clients if client not in self._behind]
        late = sorted(self._behind - self._out)
        if late:
            text = "\n\n".join(self._texts).encode()
            expected = {"trees": NUMBER}
            said = self._asked("grow-past", late, {"trees": text}, "grow-known", expected)
            right = {client for client, one in said.items() if one["trees"][0] == len(self._texts)}
            self._behind -= right
            self._present = sorted({*self._present, *right})
        if not self._present or (self.plan.secure and len(self._present) < len(self.plan.clients)):
            away = sorted(set(self.plan.clients) - set(self._present))
            raise ValueError(
                f"clients {away} are away; the {len(self._texts)} trees so far stay, go on when "
                f"{'all are' if self.plan.secure else 'somebody is'} there"
            )

    def _exchange_keys(self) -> bytes:
        from fedrank.privacy.secure_series import SeriesServer

        session = self.plan.session(self._tree, self._attempt)
        self._series = SeriesServer(session, self.plan.clients, self.plan.bits, self.identities)
        said = self._asked("grow-keys", self._present, {}, "grow-keyed", {"keys": Part("|S", ADVERTISEMENT)})
        for client, parts in said.items():
            try:
                self._series.receive_advertisement(parts["keys"])
            except ValueError as problem:
                self._refuse(client, str(problem))
        self._keep({client: parts for client, parts in said.items() if client not in self._series.left_out})
        return bytes(self._series.roster())

    def _sum(self, kind: str, parts: dict[str, Value], leaf: int, cut: LeafCut | None = None) -> Packed:
        """What all say of a leaf, added up."""
        assert self._layout is not None
        layout, numbered = self._layout, {} if kind == "grow-begin" else {"number": np.array([self._number])}
        bins = 3 * layout.bins
        expected = {"number": NUMBER, "rows": NUMBER, "counts": Part("|S", layout.most_bytes)}
        if self.plan.secure:
            expected = {"masked": Part("|S", 1024 + 8 * bins)}
        said = self._asked(kind, self._present, numbered | parts, "grow-counts", expected)
        number, self._number = self._number, self._number + 1
        if self.plan.secure:
            self._keep(said)
            [values] = self._opened(number, [layout], {client: one["masked"] for client, one in said.items()})
            return layout.pack(values)
        histograms = self._checked(said, lambda client, one: self._histogram(client, one, number, leaf, cut))
        return np.sum(list(histograms.values()), axis=0) if len(histograms) > 1 else next(iter(histograms.values()))

    def _votes(self, kind: str, parts: dict[str, Value], leaves: tuple[int, ...]) -> Votes:
        """[leaves, features]: how many vote for each."""
        assert self._layout is not None
        self._parts, features = leaves, len(self._layout.features)
        numbered = {} if kind == "grow-begin" else {"number": np.array([self._number])}
        size, vote = len(leaves) * features, self.plan.vote
        expected = {"number": NUMBER, "votes": Part("|S", len(leaves) * -(-features // 8))}
        if self.plan.secure:
            expected = {"masked": Part("|S", 1024 + 8 * size)}
        said = self._asked(kind, self._present, numbered | parts, "grow-votes", expected)
        number, self._number = self._number, self._number + 1
        if self.plan.secure:
            self._keep(said)
            with self._adding_up():
                votes = self._series.sum(number, size, {client: one["masked"] for client, one in said.items()})
                votes = votes.reshape(len(leaves), features)
                check_votes(votes, vote, len(self._present))
            return np.asarray(votes)

        def ballot(client: int, one: dict[str, Any]) -> Ballots:
            _check_number(one, number)
            named = decode_named(one["votes"], len(leaves), features, vote * len(leaves))
            check_votes(named.astype(np.int64), vote, 1)
            return named

        return np.asarray(np.sum(list(self._checked(said, ballot).values()), axis=0))

    def _shown(self, client: int, said: dict[str, Any], number: int, layouts: Sequence[Layout]) -> list[Packed]:
        _check_number(said, number)
        known, rows = self._rows[client], said["rows"].tolist()
        before = known.get(self._parts[0], self.announced[client])
        whole = sum(rows) == before if self._parts[0] in known else sum(rows) <= before
        if min(rows) < 0 or not whole:
            raise Refused(f"it has {rows} rows in leaves {list(self._parts)}, where it announced {before:,}")
        histograms = [
            decode(said[f"counts {place}"], layout, rows[place]) if layout.bins else layout.pack(np.zeros((3, 0), int))
            for place, layout in enumerate(layouts)
        ]
        known.update(zip(self._parts, rows, strict=True))
        return histograms

    def _histogram(self, client: int, said: dict[str, Any], number: int, leaf: int, cut: LeafCut | None) -> Packed:
        assert self._layout is not None
        _check_number(said, number)
        known, rows = self._rows[client], int(said["rows"][0])
        most = known.get(leaf if cut is None else cut.leaf, self.announced[client])
        if not 0 <= rows <= most:
            raise Refused(f"it has {rows:,} rows in leaf {leaf}, where it announced {most:,}")
        histogram = decode(said["counts"], self._layout, rows)
        known[leaf] = rows
        if cut is not None:
            known[cut.new if leaf == cut.leaf else cut.leaf] = most - rows
        return histogram

    def _opened(self, number: int, layouts: Sequence[Layout], masked: Mapping[int, bytes]) -> list[Integers]:
        """The sums of all in a message with a histogram, or several."""
        sizes = [3 * layout.bins for layout in layouts]
        with self._adding_up():
            values = self._series.sum(number, sum(sizes), masked)
            found = [part.reshape(3, -1) for part in np.split(values, np.cumsum(sizes)[:-1])]
            for one, layout in zip(found, layouts, strict=True):
                if not layout.bins:
                    continue
                rows = int(one[2, : layout.edges.counts[layout.features[0]] + 1].sum())
                if rows > self.rows:
                    raise Refused(f"the sum has {rows:,} rows, and {self.rows:,} were announced")
                check_histogram(one, layout, rows)
        return found

    @contextmanager
    def _adding_up(self) -> Iterator[None]:
        try:
            yield
        except ValueError as problem:
            raise ValueError(
                f"what clients sent for tree {self._tree} does not add up: {problem}; under a secure sum nobody can "
                "tell who it was; the forest so far stays"
            ) from None

    def _checked(
        self, said: Mapping[int, dict[str, Any]], read: Callable[[int, dict[str, Any]], Read]
    ) -> dict[int, Read]:
        """What was said by those who said what fits; the others are refused."""
        found = {}
        for client, one in said.items():
            try:
                found[client] = read(client, one)
            except Refused as problem:
                self._refuse(client, str(problem))
        self._keep(found)
        return found

    def _refuse(self, client: int, why: str) -> None:
        self.refused[client] = why
        self._out.add(client)

    def _keep(self, said: Mapping[int, Any]) -> None:
        """Go on with those who answered; DroppedOut where somebody did not."""
        gone = [client for client in self._present if client not in said]
        if not gone:
            return
        self._present = [client for client in self._present if client in said]
        self._behind |= set(gone)
        if not self._present:
            raise ValueError(f"all clients dropped out of tree {self._tree}; the forest so far stays")
        raise DroppedOut(", ".join(map(str, gone)))

    def _asked(
        self,
        kind: str,
        clients: Sequence[int],
        parts: Mapping[str, Value],
        answer: str,
        expected: Mapping[str, Part],
        tree: int | None = None,
    ) -> dict[int, dict[str, Any]]:
        """What those said whose answers fit."""
        label = Label(kind, self.plan.run, self._tree if tree is None else tree, self._attempt)
        content = pack(label, parts)
        said: dict[int, dict[str, Any]] = {}
        answers = self.ask(dict.fromkeys(clients, content))
        self.bytes_down += len(content) * len(clients)
        for client in clients:
            if client not in answers:
                continue
            self.bytes_up += len(answers[client])
            try:
                wanted = Label(answer, self.plan.run, label.round, label.attempt, client)
                said[client] = unpack(answers[client], wanted, expected)[1]
            except Refused as problem:
                self._refuse(client, str(problem))
        return said


def _numbers(cut: LeafCut) -> NDArray[np.int32]:
    return np.array([cut.leaf, cut.new, cut.feature, cut.bin, cut.wanted], dtype=np.int32)


def _check_number(said: Mapping[str, Any], number: int) -> None:
    if said["number"][0] != number:
        raise Refused(f"histogram {said['number'][0]} came, expected was {number}: replayed, or too early")


def forest_from(texts: Sequence[str], like: RankingData, plan: GrowPlan) -> Forest:
    """A forest of trees that were grown together, for data like these; it knows no ranges of features."""
    return transplanted(texts, like, {"clients": list(plan.clients), "secure sum": plan.secure})
