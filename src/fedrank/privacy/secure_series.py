"""Many secure sums under one agreement on keys, where nobody may drop out: histograms of one tree, one after the other.

Every pair of clients agrees on a secret once, as in `secure_sum.py`, and derives a fresh mask from it for every
message; one of both adds it, the other subtracts it. There are no shares and no masks of one's own: they are for sums
that go on when somebody vanishes, and here such a series ends, unopened, and a new one begins with new keys.

The server learns the sum of all and nothing else, if it follows the protocol, or, with identity keys, in any case: it
cannot invent clients or exchange keys. It is a sum of what each was asked for: a server that asks clients for different
things chooses what is in it. Two series of which one lacks a client tell its numbers by their difference:
whoever begins again must begin with the same clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from fedrank.privacy.secure_aggregation import Identity, Integers, SumClient, SumServer, Terms, Words, centred, words_of


class SeriesClient(SumClient):
    """One client in a series: `advertise`, `meet`, and then `masked` as often as there are messages."""

    def __init__(
        self,
        id: int,
        session: bytes,  # names this series; never used for another one
        clients: int,  # so many take part, all of them in every message
        bits: int,
        identity: Identity | None = None,
    ) -> None:
        if clients < 2:
            raise ValueError("one client alone is its own sum: nothing would be hidden; use two or more")
        super().__init__(id, session, 0, clients, 1, bits, min_survivors=clients, identity=identity)
        self.clients = clients
        self._secrets: dict[int, bytes] = {}  # by other client
        self._number = 0  # of the next message, at least

    def meet(self, roster: bytes) -> None:
        """Agree with everybody in the roster on a secret."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        self._expect("advertise", "share")
        keys = self._read_roster(roster)
        if len(keys) != self.clients:
            raise ValueError(
                f"{len(keys)} clients are in the roster, {self.clients} were to take part; nothing is sent"
            )
        self._secrets = {
            other: self._mask_key.exchange(X25519PublicKey.from_public_bytes(mask))
            for other, (mask, _) in keys.items()
            if other != self.id
        }
        self._advance("advertise", "share")

    def masked(self, number: int, values: Integers) -> bytes:
        """The numbers of message `number` under masks of their own; each number is used once, and they rise."""
        if not self._secrets:
            raise ValueError(f"client {self.id} has met nobody yet: nothing would be hidden; call meet first")
        if number < self._number:
            raise ValueError(
                f"client {self.id} was asked for message {number}, its next one is {self._number} or later"
            )
        terms = _terms(self.terms, number, len(values))
        limit = 2 ** (terms.bits - 1) // self.clients
        if len(values) and max(int(values.max()), -int(values.min())) >= limit:
            raise ValueError(
                f"a number of client {self.id} has more than its part of {terms.bits} bits, so that the sum could be "
                "wrong; use more bits, or a coarser grid"
            )
        words = words_of(values, terms)
        for other, secret in self._secrets.items():
            mask = terms.mask(secret, "pair mask", self.id, other)
            words += mask if self.id < other else -mask
        self._number = number + 1
        return terms.pack("masked", self.id, (words & terms.word.type(2**terms.bits - 1)).tobytes())


class SeriesServer(SumServer):
    """The server of a series: `receive_advertisement` of each, `roster`, and then a `total` of every message."""

    def __init__(
        self, session: bytes, ids: Iterable[int], bits: int, identities: Mapping[int, bytes] | None = None
    ) -> None:
        everybody = sorted(ids)
        if len(everybody) < 2:
            raise ValueError("one client alone is its own sum: nothing would be hidden; use two or more")
        super().__init__(session, 0, everybody, len(everybody), len(everybody), 1, bits, identities=identities)

    def sum(self, number: int, size: int, messages: Mapping[int, bytes]) -> Integers:
        """What the numbers of all clients add up to."""
        if sorted(messages) != self.ids:
            raise ValueError(f"messages of clients {sorted(messages)} arrived, of {self.ids} are needed: nothing opens")
        terms = _terms(self.terms, number, size)
        total: Words = np.zeros(size, dtype=terms.word)
        for asked, message in messages.items():
            client, body = terms.unpack("masked", message)
            if client != asked:
                raise ValueError(f"client {asked} sent a message of client {client}: nothing opens")
            if len(body) != size * terms.word.itemsize:
                raise ValueError(f"client {client} sent {len(body)} bytes of numbers, not {size} numbers")
            total += np.frombuffer(body, dtype=terms.word)
        return centred(total, terms.bits)


def _terms(of: Terms, number: int, size: int) -> Terms:
    """What belongs to one message: another number or size makes other masks."""
    return Terms(of.session, number + 1, of.threshold, max(size, 1), of.bits, of.signed)
