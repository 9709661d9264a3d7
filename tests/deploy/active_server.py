"""A coordinator that breaks the rules of a secure sum, against real sites: what it tries, and what it comes to know.

It swaps keys, sends one site another model, shows different rosters and different lists of survivors, delivers to some
and not to others, replays what it has from before, asks twice and out of order. A single update would be open if it
came to know both secrets of a site in one attempt, or sums of the same numbers over two lists of survivors.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.protocol import ASKED, Answers
from fedrank.deploy.site import Site
from fedrank.federated.messages import Call
from fedrank.privacy import secure_messages
from fedrank.privacy.secure_messages import (
    BOX,
    CLIENT,
    DEALER,
    EVERYBODY,
    OWN_MASK,
    PAIR_MASKS,
    PIECE,
    SIGNATURE,
    Terms,
)
from fedrank.wire import Part

KEYS = secure_messages.SIGNED_KEYS
WAYS = (
    "honest", "swapped keys", "borrowed keys", "old keys", "two rosters", "withheld posts", "swapped posts",
    "old posts", "masks twice", "second list", "short list", "mixed consent", "forged consent", "old consent",
    "advertise again", "out of order", "other model",
)  # fmt: skip


@dataclass
class ActiveServer:
    """All that a hostile coordinator has, and what it does with it."""

    trial: object
    sites: dict[str, Site]
    rng: np.random.Generator
    attempt: int = -1
    left: list[bytes] = field(default_factory=list)  # every byte string that left a site
    sums: int = 0  # that were opened as they should be
    refused: int = 0
    before: dict[str, dict[int, bytes]] = field(default_factory=dict)  # letters of earlier attempts, by kind and site
    found: list[str] = field(default_factory=list)  # updates that it could read

    def __post_init__(self) -> None:
        plan = self.trial.plan
        self.plan = plan
        self.ids = {name: plan.party(name).clients[0] for name in self.sites}
        self.names = {id: name for name, id in self.ids.items()}

    def ask(self, id: int, kind: str, **parts: bytes) -> bytes | None:
        """One letter of a site; None where it refused."""
        answer = self.sites[self.names[id]].answer(protocol.request(kind, self.plan.run, 1, self.attempt, **parts))
        self.left.append(answer)
        label = wire.read_label(answer)
        if label.kind == "refused":
            self.refused += 1
            return None
        if kind == "advertise":
            return Answers.unpack(answer, label, 1, 100_000, False).messages[0]
        content = wire.unpack(answer, label, {"letters": Part("|S", 1 << 20)})[1]["letters"]
        [letter] = protocol.unbundle(content, 1, 1 << 20)
        return letter

    def call(self, weight: float = 0.0) -> Call:
        weights = np.full(self.plan.sent, weight, np.float32)
        return Call(self.plan.run, 1, weights, float(len(self.ids)), self.attempt)

    def advertise(self, id: int, weight: float = 0.0) -> bytes | None:
        asked = np.array([(id, -1, 0)], ASKED).tobytes()
        return self.ask(id, "advertise", call=self.call(weight).pack(), asked=asked)

    def attack(self, way: str) -> None:
        """One attempt at a round, in which it does something that it must not."""
        self.attempt += 1
        agreed = self.plan.sum_terms(self.call())
        terms = Terms(agreed["session"], 1, agreed["threshold"], agreed["size"], agreed["bits"], signed=True)
        self.terms, self.min_survivors = terms, agreed["min_survivors"]
        self.opened: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.lists: dict[tuple[int, ...], set[int]] = defaultdict(set)
        everybody = sorted(self.names)
        victim = int(self.rng.choice(everybody))

        keys = {id: self._body("advertisement", self.advertise(id)) for id in everybody}
        if way == "advertise again":
            keys[victim] = self._body("advertisement", self.advertise(victim))
        if way == "other model":
            keys[victim] = self._body("advertisement", self.advertise(victim, 1.0))
        if way == "out of order":
            for kind, parts in (
                ("mask", {"posts": protocol.bundle([b""])}), ("sign", {"request": self._list(everybody)}),
                ("open", {"request": self._list(everybody), "consent": b""}),
            ):  # fmt: skip
                assert self.ask(victim, kind, **parts) is None
        rosters = self._rosters(way, keys, victim)
        shares = {id: self.ask(id, "share", roster=rosters[id]) for id in everybody}
        if way == "other model":
            assert set(shares.values()) == {None}  # every site sees that another one was asked for something else
        posts = self._posts(way, shares, victim)
        masked = {}
        for id in everybody:
            if id in posts:
                masked[id] = self.ask(id, "mask", posts=protocol.bundle([posts[id]]))
                if way == "masks twice":
                    other = {at: post for at, post in posts.items() if at != victim}
                    assert self.ask(id, "mask", posts=protocol.bundle([other.get(id, posts[id])])) is None
        survivors = [id for id in everybody if masked.get(id) is not None]
        signatures = self._sign(way, survivors, victim)
        self._open(way, survivors, signatures, victim)
        for kind, found in (("keys", keys), ("posts", posts), ("signatures", signatures)):
            self.before[kind] = {id: one for id, one in found.items() if one is not None}
        self._judge(way)

    def _body(self, kind: str, letter: bytes | None) -> bytes | None:
        return None if letter is None else self.terms.unpack(kind, letter)[1]

    def _roster(self, keys: dict[int, bytes | None]) -> bytes:
        records = (CLIENT.pack(id) + one for id, one in sorted(keys.items()) if one is not None)
        return self.terms.pack("roster", EVERYBODY, b"".join(records))

    def _list(self, survivors: list[int]) -> bytes:
        return self.terms.pack("request", EVERYBODY, b"".join(map(CLIENT.pack, survivors)))

    def _rosters(self, way: str, keys: dict[int, bytes | None], victim: int) -> dict[int, bytes]:
        """What each site is shown."""
        true, other = self._roster(keys), None
        if way == "swapped keys":  # own ones, under the old signature
            other = self._roster(
                keys | {victim: self.rng.bytes(31) + b"\0" + self.rng.bytes(31) + b"\0" + keys[victim][64:]}
            )
        elif way == "borrowed keys":
            friend = next(id for id in keys if id != victim)
            other = self._roster(keys | {victim: keys[friend]})
        elif way == "old keys" and self.before.get("keys"):
            other = self._roster(keys | {victim: self.before["keys"].get(victim, keys[victim])})
        elif way == "two rosters":
            other = self._roster({id: one for id, one in keys.items() if id != victim})
        if other is None:
            return dict.fromkeys(keys, true)
        some = set(self.rng.choice(sorted(keys), size=int(self.rng.integers(1, len(keys) + 1)), replace=False).tolist())
        return {id: other if id in some else true for id in keys}

    def _posts(self, way: str, shares: dict[int, bytes | None], victim: int) -> dict[int, bytes]:
        boxes: dict[int, list[bytes]] = defaultdict(list)
        for sender, letter in shares.items():
            if letter is not None:
                body = self._body("shares", letter)
                for to, *record in BOX.iter_unpack(body[DEALER.size :]):
                    boxes[to].append(BOX.pack(sender, *record))
        if way == "withheld posts" and boxes[victim]:
            boxes[victim].pop()
        if way == "swapped posts":
            friend = next(id for id in shares if id != victim)
            boxes[victim], boxes[friend] = boxes[friend], boxes[victim]
        posts = {to: self.terms.pack("post", to, b"".join(found)) for to, found in boxes.items()}
        if way == "old posts":
            posts |= {victim: self.before.get("posts", posts).get(victim, b"")}
        return posts

    def _sign(self, way: str, survivors: list[int], victim: int) -> dict[int, bytes | None]:
        """Signatures of lists of survivors; of a second one where it tries that."""
        without = [id for id in survivors if id != victim]
        found: dict[int, bytes | None] = {}
        for id in survivors:
            shown = survivors
            if way in ("second list", "mixed consent") and self.rng.random() < 0.5 and id in without:
                shown = without
            if way == "short list":
                shown = [id]
            found[id] = self._body("signature", self.ask(id, "sign", request=self._list(shown)))
            if way == "second list":
                second = without if shown is survivors else survivors
                again = self.ask(id, "sign", request=self._list(second))
                assert again is None or second == shown
        return found

    def _open(self, way: str, survivors: list[int], signatures: dict[int, bytes | None], victim: int) -> None:
        """Ask everybody to open, for every list and with everything that looks like a consent."""
        without = [id for id in survivors if id != victim]
        signed = {id: one for id, one in signatures.items() if one is not None}
        if way == "forged consent":
            signed |= {id: self.rng.bytes(64) for id in survivors[:2]}
        if way == "old consent":
            signed = {id: self.before.get("signatures", signed).get(id, bytes(64)) for id in survivors}
        consents = [signed, {id: one for id, one in signed.items() if id != victim}]
        if way != "honest":
            consents.append(dict.fromkeys(signed, next(iter(signed.values()), bytes(64))))
        for shown in (survivors, without, survivors[:2]):
            for some in consents:
                body = b"".join(SIGNATURE.pack(id, one) for id, one in sorted(some.items()))
                consent = self.terms.pack("consent", EVERYBODY, body)
                for id in survivors:
                    letter = self.ask(id, "open", request=self._list(shown), consent=consent)
                    if letter is None:
                        continue
                    self.lists[tuple(shown)].add(id)
                    for about, which, _ in PIECE.iter_unpack(self._body("opening", letter)):
                        self.opened[about][which].add(id)

    def _judge(self, way: str) -> None:
        """What it knows now."""
        threshold = self.terms.threshold
        for about, pieces in self.opened.items():
            if len(pieces[OWN_MASK]) >= threshold and len(pieces[PAIR_MASKS]) >= threshold:
                self.found.append(f"{way}, attempt {self.attempt}: both secrets of {about}")
        opened = [shown for shown, by in self.lists.items() if len(by) >= threshold]
        if len(opened) > 1 or any(len(shown) < self.min_survivors for shown in opened):
            self.found.append(f"{way}, attempt {self.attempt}: sums of {opened}")
        self.sums += len(opened)
