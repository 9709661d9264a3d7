"""Many secure aggregations under one key agreement, without dropouts: the histograms of one tree.

Every pair of clients agrees on a secret once, as in `secure_aggregation.py`, and derives a fresh mask from it for every
message; one of the two adds it, the other subtracts it. Secret shares and self masks are not
used: they finish a sum without a client that dropped out, and here a dropout ends the series unopened. A new one begins
with new keys.

The server learns the sum over all clients and nothing else if it follows the protocol, or, with identity keys, in any
case: it cannot invent clients or exchange keys. Every mask also depends on what the client was asked for (`request`):
messages of clients that were asked for different things add up to random numbers. If two series differ by one client,
the difference of their sums reveals its numbers: a series that is restarted must include the same clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from fedrank.privacy.secure_aggregation import SumClient, SumServer
from fedrank.privacy.secure_messages import Identity, Integers, Terms, Words, centred, words_of


class SeriesClient(SumClient):
    """One client in a series: `advertise`, `meet`, and then `masked` as often as there are messages."""

    def __init__(
        self,
        id: int,
        session: bytes,  # names this series; never reused for another one
        clients: int,  # number of clients, all of which are in every message
        bits: int,
        identity: Identity | None = None,
    ) -> None:
        if clients < 2:
            raise ValueError(f"clients must be at least 2 (got {clients}): the sum of one client is its own numbers")
        super().__init__(id, session, 0, clients, 1, bits, min_survivors=clients, identity=identity)
        self.clients = clients
        self._secrets: dict[int, bytes] = {}  # by other client
        self._number = 0  # the smallest allowed number of the next message

    def meet(self, roster: bytes) -> None:
        """Agree on a secret with every client in the roster."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        self._expect("advertise", "share")
        keys = self._read_roster(roster)
        if len(keys) != self.clients:
            raise ValueError(f"the roster has {len(keys)} clients, expected {self.clients}; nothing is sent")
        self._secrets = {
            other: self._mask_key.exchange(X25519PublicKey.from_public_bytes(mask))
            for other, (mask, _) in keys.items()
            if other != self.id
        }
        self.terms = self.terms.with_roster(roster)
        self._advance("advertise", "share")

    def masked(self, number: int, values: Integers, request: bytes = b"") -> bytes:
        """The numbers of message `number` under fresh masks; each message number is used once, in ascending order.

        `request` is what this client was asked for, or its digest, which must be the same for all clients.
        """
        if not self._secrets:
            raise ValueError(f"client {self.id} has no shared secrets yet, so nothing would be hidden; call meet first")
        if number < self._number:
            raise ValueError(
                f"client {self.id} was asked for message {number}; its next message is {self._number} or later"
            )
        terms = _terms(self.terms, number, len(values), request)
        limit = 2 ** (terms.bits - 1) // self.clients
        if len(values) and max(int(values.max()), -int(values.min())) >= limit:
            raise ValueError(
                f"a number of client {self.id} exceeds its part of {terms.bits} bits, so the sum could overflow; "
                "use more bits, or a coarser grid"
            )
        words = words_of(values, terms)
        for other, secret in self._secrets.items():
            mask = terms.mask(secret, "pair mask", self.id, other)
            words += mask if self.id < other else -mask
        self._number = number + 1
        return terms.pack("masked", self.id, (words & terms.word.type(2**terms.bits - 1)).tobytes())


class SeriesServer(SumServer):
    """The server of a series: `receive_advertisement` from each client, `roster`, then one `sum` per message."""

    def __init__(
        self, session: bytes, ids: Iterable[int], bits: int, identities: Mapping[int, bytes] | None = None
    ) -> None:
        clients = sorted(ids)
        if len(clients) < 2:
            raise ValueError(f"ids must name at least 2 clients (got {clients}): the sum of one is its own numbers")
        super().__init__(session, 0, clients, len(clients), len(clients), 1, bits, identities=identities)

    def sum(self, number: int, size: int, messages: Mapping[int, bytes]) -> Integers:
        """The sum of the numbers of all clients."""
        if sorted(messages) != self.ids:
            raise ValueError(f"messages must come from clients {self.ids} (got {sorted(messages)}); nothing is opened")
        terms = _terms(self.terms, number, size)
        total: Words = np.zeros(size, dtype=terms.word)
        for asked, message in messages.items():
            client, body = terms.unpack("masked", message)
            if client != asked:
                raise ValueError(f"client {asked} sent a message of client {client}; nothing is opened")
            if len(body) != size * terms.word.itemsize:
                raise ValueError(f"client {client} sent {len(body)} bytes, expected {size} numbers")
            total += np.frombuffer(body, dtype=terms.word)
        return centred(total, terms.bits)


def _terms(of: Terms, number: int, size: int, request: bytes = b"") -> Terms:
    """The terms of one message: another number, size or request gives other masks."""
    return replace(of, round=number + 1, size=max(size, 1), request=of.request + request)
