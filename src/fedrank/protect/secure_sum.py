"""A sum that the server learns without learning what was added (Bonawitz et al., CCS 2017, with double masking).

Every pair of clients agrees on a mask that one adds and the other subtracts; every client adds one more mask of its
own. All masks have keys that are fresh each round. Shares of both secrets lie with the other clients: of those who sent
their numbers the server may open the own mask, of those who vanished the key of the pairwise masks, never both.

What it protects from: a server that follows the protocol and reads everything it gets, together with fewer than
`threshold` clients who tell it all they know (semi-honest). They learn the sum of the others' numbers and who took
part, nothing else. Public keys must reach the clients unchanged: a deployment has to authenticate them.

What it does not protect from, the `active` threat model: a server that breaks the rules. Survivor lists are not signed,
so such a server can tell some clients that somebody vanished and others that the same one is still there; with
`threshold` answers to each it holds both secrets of that client and reads its numbers. A client notices only a second
list that it gets itself. Such a server can also invent clients, or exchange public keys and sit between all pairs. And
nobody is kept from adding nonsense: a client can spoil the sum unnoticed.

The sum itself is given away: who knows all other numbers knows the last. Noise is what protects from that.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedrank.protect import shamir

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = 1
KINDS = {
    "advertisement": 1,  # client: two public keys
    "roster": 2,  # server, to all: everybody's public keys
    "shares": 3,  # client: for every other client, an encrypted pair of shares
    "post": 4,  # server, to one: the encrypted shares that are addressed to it
    "masked": 5,  # client: its numbers under masks
    "request": 6,  # server, to all: whose numbers arrived
    "opening": 7,  # client: one share of every client
}
HEADER = struct.Struct("<BB16sQII")  # version, kind, tag of the terms, round, client, bytes that follow
EVERYBODY = 2**32 - 1  # in the place of the client, in a message of the server to all
KEYS = struct.Struct("<I32s32s")  # client, public key of masks, public key of the post
BOX = struct.Struct("<I80s")  # the other client; share of the seed and of the mask key, 64 bytes and a tag of 16
PIECE = struct.Struct("<IB32s")  # client, which of its two secrets, share
CLIENT = struct.Struct("<I")
PAIR = struct.Struct("<II")
OWN_MASK, PAIR_MASKS = 1, 2  # which secret of a client a share belongs to

Step = Literal["nothing", "advertise", "share", "mask"]
STEPS: tuple[Step, ...] = ("nothing", "advertise", "share", "mask")

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[Any]  # uint32 or uint64, counted modulo 2^bits


class TooFewClients(ValueError):
    """Too few clients are left to open the sum; the round ends without one."""


@dataclass(frozen=True)
class Terms:
    """What all parties of one sum must agree on before it starts."""

    session: bytes  # names the training; never used for another one
    round: int  # from 0, below 2^64
    threshold: int  # so many clients together can open a secret, fewer cannot
    size: int  # numbers per client
    bits: int  # sums count modulo 2^bits, 16 to 62

    def __post_init__(self) -> None:
        _check_bits(self.bits)
        if not 0 <= self.round < 2**64:
            raise ValueError(f"round = {self.round} does not fit a message; count rounds from 0")
        if self.threshold < 2:
            raise ValueError(f"threshold = {self.threshold}: one client alone could open secrets; use at least 2")
        if not 1 <= self.size < 2**28:
            raise ValueError(f"size = {self.size} numbers do not fit a message; use 1 to 2^28 - 1")

    @cached_property
    def digest(self) -> bytes:
        """Binds messages and keys to this session, round, threshold, size and width (32 bytes)."""
        fixed = struct.pack("<BIIBQ", VERSION, self.threshold, self.size, self.bits, self.round)
        return hashlib.sha256(b"fedrank secure sum" + fixed + self.session).digest()

    @cached_property
    def tag(self) -> bytes:
        # Without the round: a message of another round can then be told from one of another session.
        fixed = struct.pack("<BIIB", VERSION, self.threshold, self.size, self.bits)
        return hashlib.sha256(b"fedrank secure sum terms" + fixed + self.session).digest()[:16]

    @cached_property
    def word(self) -> np.dtype[Any]:
        """The kind of number that carries one coordinate in a message."""
        return np.dtype("<u4" if self.bits <= 32 else "<u8")

    def pack(self, kind: str, client: int, body: bytes) -> bytes:
        return HEADER.pack(VERSION, KINDS[kind], self.tag, self.round, client, len(body)) + body

    def unpack(self, kind: str, message: bytes) -> tuple[int, bytes]:
        """Sender (or addressee, of the server's messages) and body of a message of the expected kind."""
        if len(message) < HEADER.size:
            raise ValueError(f"{kind} message of {len(message)} bytes is truncated: its header takes {HEADER.size}")
        version, number, tag, round_, client, length = HEADER.unpack_from(message)
        if version != VERSION:
            raise ValueError(f"{kind} message has version {version}, this is version {VERSION}; update the older side")
        if number != KINDS[kind]:
            found = next((name for name, value in KINDS.items() if value == number), f"unknown kind {number}")
            raise ValueError(f"expected a message of kind {kind}, got {found}: it belongs to another step")
        if tag != self.tag:
            raise ValueError(f"{kind} message is of another session, or has another threshold, size or bits")
        if round_ != self.round:
            raise ValueError(f"{kind} message is of round {round_}, this is round {self.round}: late or replayed")
        if length != len(message) - HEADER.size:
            raise ValueError(
                f"{kind} message promises {length} bytes and has {len(message) - HEADER.size}: truncated or damaged"
            )
        return client, message[HEADER.size :]

    def derive(self, secret: bytes, purpose: str, first: int, second: int) -> bytes:
        """A key of 32 bytes for one purpose of one pair of clients, the same at either end (HKDF-SHA256)."""
        hkdf, sha256, _ = _primitives()
        info = self.digest + PAIR.pack(min(first, second), max(first, second)) + purpose.encode()
        return hkdf(algorithm=sha256, length=32, salt=None, info=info).derive(secret)

    def mask(self, secret: bytes, purpose: str, first: int, second: int) -> Words:
        """A secret stretched to one uniform word per coordinate: the key stream of ChaCha20."""
        _, _, cipher = _primitives()
        length = self.size * self.word.itemsize
        # Zeros, encrypted: the package's plain ChaCha20 has the same stream and takes longer to set up. The key serves
        # for this one stream only, so the nonce may be constant.
        stream = cipher(self.derive(secret, purpose, first, second)).encrypt(bytes(12), bytes(length), None)
        return np.frombuffer(stream, dtype=self.word, count=self.size)

    def pair_mask(self, mine: X25519PrivateKey, other: X25519PublicKey, me: int, you: int) -> Words:
        """What `me` adds for the pair; the other end gets the negative of it."""
        mask = self.mask(mine.exchange(other), "pair mask", me, you)
        return mask if me < you else -mask

    def own_mask(self, seed: int, client: int) -> Words:
        return self.mask(shamir.to_bytes(seed), "own mask", client, client)


class SumClient:
    """One client in one round of a secure sum: advertise, share, mask, unmask, each once and in this order.

    A ValueError means that a message was refused and nothing was given away; the client may wait for the right one.
    """

    def __init__(
        self,
        id: int,  # 0 to 2^32 - 2
        session: bytes,
        round: int,
        threshold: int,
        size: int,
        bits: int,
        *,
        fewest: int = 0,  # this client opens nothing for fewer survivors, whatever the server says
        entropy: shamir.Entropy = os.urandom,  # another source is for tests only
    ) -> None:
        _primitives()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        _check_ids([id])
        self.id = id
        self.terms = Terms(session, round, threshold, size, bits)
        self.fewest = max(threshold, fewest)
        self._entropy = entropy
        self._seed = shamir.random_element(entropy)
        self._mask_secret = shamir.random_element(entropy)
        self._mask_key = X25519PrivateKey.from_private_bytes(shamir.to_bytes(self._mask_secret))
        self._post_key = X25519PrivateKey.from_private_bytes(entropy(32))
        self._done: Step = "nothing"
        self._mask_keys: dict[int, bytes] = {}  # public keys of all who advertised, by client
        self._post_secrets: dict[int, bytes] = {}  # keys of the post with every other client
        self._held: dict[int, tuple[int, int]] = {}  # by client: my shares of its seed and of its mask key
        self._answered: tuple[list[int], bytes] | None = None  # survivors and what was said about them

    def advertise(self) -> bytes:
        """The public keys of this round."""
        self._advance("nothing", "advertise")
        return self.terms.pack("advertisement", self.id, self._public_keys())

    def share(self, roster: bytes) -> bytes:
        """Shares of both secrets for everybody who advertised, encrypted so that only the addressee reads them."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        _, _, cipher = _primitives()
        self._expect("advertise", "share")
        keys = self._read_roster(roster)
        secrets = {
            other: self.terms.derive(
                self._post_key.exchange(X25519PublicKey.from_public_bytes(post)), "post", self.id, other
            )
            for other, (_, post) in keys.items()
            if other != self.id
        }
        points = [_point(client) for client in keys]
        seeds = shamir.split(self._seed, self.terms.threshold, points, self._entropy)
        mask_secrets = shamir.split(self._mask_secret, self.terms.threshold, points, self._entropy)
        boxes, held = [], {}
        for other, seed, mask_secret in zip(keys, seeds, mask_secrets, strict=True):
            if other == self.id:
                held[other] = seed, mask_secret
                continue
            plain = shamir.to_bytes(seed) + shamir.to_bytes(mask_secret)
            closed = cipher(secrets[other]).encrypt(_nonce(self.id, other), plain, self.terms.digest)
            boxes.append(BOX.pack(other, closed))
        self._mask_keys = {client: mask for client, (mask, _) in keys.items()}
        self._post_secrets = secrets
        self._held = held
        self._advance("advertise", "share")
        return self.terms.pack("shares", self.id, b"".join(boxes))

    def mask(self, values: Integers, post: bytes) -> bytes:
        """The numbers under masks, once the shares of the others have come."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        self._expect("share", "mask")
        # Twice under the same masks would give the difference away: hence once.
        masked = _words(values, self.terms)
        held = self._read_post(post)
        masked += self.terms.own_mask(self._seed, self.id)
        for other in held:
            public = X25519PublicKey.from_public_bytes(self._mask_keys[other])
            masked += self.terms.pair_mask(self._mask_key, public, self.id, other)
        self._held |= held
        self._advance("share", "mask")
        return self.terms.pack("masked", self.id, _wrap(masked, self.terms.bits).tobytes())

    def unmask(self, request: bytes) -> bytes:
        """For every client one share: of the own mask if it survived, of the mask key if it vanished."""
        if self._done != "mask":
            raise ValueError(f"client {self.id} has sent no numbers: it opens nothing; call mask first")
        addressee, body = self.terms.unpack("request", request)
        survivors = sorted(client for (client,) in _records("request", CLIENT, body))
        self._check_survivors(addressee, survivors)
        if self._answered is None:
            pieces = []
            alive = set(survivors)
            for client, (seed, mask_secret) in sorted(self._held.items()):
                which, share = (OWN_MASK, seed) if client in alive else (PAIR_MASKS, mask_secret)
                pieces.append(PIECE.pack(client, which, shamir.to_bytes(share)))
            self._answered = survivors, self.terms.pack("opening", self.id, b"".join(pieces))
        if self._answered[0] != survivors:
            raise ValueError(
                f"client {self.id} was asked for a second list of survivors: answering both could open both secrets "
                "of a client; ask again with the first list, or start a new round"
            )
        return self._answered[1]

    def _public_keys(self) -> bytes:
        return self._mask_key.public_key().public_bytes_raw() + self._post_key.public_key().public_bytes_raw()

    def _expect(self, done: Step, next_: Step) -> None:
        if self._done != done:
            raise ValueError(
                f"client {self.id} cannot {next_} now: the last step it did is {self._done}; each step once"
            )

    def _advance(self, done: Step, next_: Step) -> None:
        self._expect(done, next_)
        self._done = next_

    def _read_roster(self, roster: bytes) -> dict[int, tuple[bytes, bytes]]:
        addressee, body = self.terms.unpack("roster", roster)
        _check_addressee("roster", addressee, EVERYBODY)
        keys = {client: (mask, post) for client, mask, post in _records("roster", KEYS, body)}
        _check_ids(keys)
        if b"".join(keys.get(self.id, ())) != self._public_keys():
            raise ValueError(f"the roster lacks client {self.id} or has other keys for it: nothing is shared")
        if len({key for pair in keys.values() for key in pair}) != 2 * len(keys):
            raise ValueError("a public key is twice in the roster: somebody pretends to be two; nothing is shared")
        self._check_enough(len(keys), "advertised")
        return keys

    def _read_post(self, post: bytes) -> dict[int, tuple[int, int]]:
        from cryptography.exceptions import InvalidTag

        _, _, cipher = _primitives()
        addressee, body = self.terms.unpack("post", post)
        _check_addressee("post", addressee, self.id)
        held = {}
        for sender, box in _records("post", BOX, body):
            if sender not in self._post_secrets:
                raise ValueError(f"post from client {sender}, who is not one of the others in the roster")
            try:
                plain = cipher(self._post_secrets[sender]).decrypt(_nonce(sender, self.id), box, self.terms.digest)
            except InvalidTag:
                raise ValueError(f"shares from client {sender} were changed on the way: nothing is sent") from None
            held[sender] = shamir.from_bytes(plain[:32]), shamir.from_bytes(plain[32:])
        self._check_enough(len(held) + 1, "shared their secrets")
        return held

    def _check_survivors(self, addressee: int, survivors: list[int]) -> None:
        _check_addressee("request", addressee, EVERYBODY)
        unknown = set(survivors) - set(self._held)
        if unknown:
            raise ValueError(
                f"survivors {sorted(unknown)} never shared secrets with client {self.id}: nothing is opened"
            )
        if self.id not in survivors:
            raise ValueError(
                f"client {self.id} sent its numbers and is not among the survivors: to answer would help to read them"
            )
        self._check_enough(len(survivors), "survived")

    def _check_enough(self, count: int, what: str) -> None:
        if count < self.fewest:
            raise TooFewClients(f"only {count} clients {what}, client {self.id} asks for {self.fewest}: it stops here")


class SumServer:
    """The server in one round of a secure sum; it carries messages and learns the total.

    `receive_...` takes what a client sent and says whether it counts: what comes after its step was closed does not.
    Handing out `roster()`, `routed()` and `request()` closes a step.
    """

    def __init__(
        self,
        session: bytes,
        round: int,
        ids: Iterable[int],  # who was invited
        threshold: int,
        fewest: int,  # the sum of fewer survivors is never opened; colluding ones count, so add them
        size: int,
        bits: int,
    ) -> None:
        _primitives()
        self.terms = Terms(session, round, threshold, size, bits)
        self.ids = sorted(ids)
        self.fewest = max(threshold, fewest)
        _check_ids(self.ids)
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("a client is invited twice: its numbers cannot be told apart; name each id once")
        if self.fewest > len(self.ids):
            raise ValueError(
                f"threshold = {threshold} and fewest = {fewest} with {len(self.ids)} clients: no sum could ever be "
                "opened; invite more, or lower them"
            )
        self._keys: dict[int, bytes] = {}  # public keys of the masks and of the post, by client
        self._boxes: dict[int, dict[int, bytes]] = {}  # by sender, then addressee
        self._masked: dict[int, Words] = {}
        self._openings: dict[int, dict[int, int]] = {}  # by who answered, then whose share
        self._closed = 0  # steps that are over

    def receive_advertisement(self, message: bytes) -> bool:
        client, body = self._open(0, "advertisement", message, self.ids, self._keys)
        if len(body) != 64:
            raise ValueError(f"advertisement of client {client} has {len(body)} bytes of keys, expected 64")
        return self._keep(0, self._keys, client, body)

    def roster(self) -> bytes:
        """Everybody's public keys, for everybody."""
        self._close(0, self._keys, "advertised")
        records = (KEYS.pack(client, key[:32], key[32:]) for client, key in sorted(self._keys.items()))
        return self.terms.pack("roster", EVERYBODY, b"".join(records))

    def receive_shares(self, message: bytes) -> bool:
        client, body = self._open(1, "shares", message, self._keys, self._boxes)
        boxes = dict(_records("shares", BOX, body))
        if set(boxes) != set(self._keys) - {client}:
            raise ValueError(f"client {client} did not share with exactly the others in the roster: it is left out")
        return self._keep(1, self._boxes, client, boxes)

    def routed(self) -> dict[int, bytes]:
        """For every client that shared its secrets, the shares addressed to it."""
        self._close(1, self._boxes, "shared their secrets")
        post = {}
        for to in self._boxes:
            records = (BOX.pack(sender, boxes[to]) for sender, boxes in self._boxes.items() if sender != to)
            post[to] = self.terms.pack("post", to, b"".join(records))
        return post

    def receive_masked(self, message: bytes) -> bool:
        client, body = self._open(2, "masked", message, self._boxes, self._masked)
        if len(body) != self.terms.size * self.terms.word.itemsize:
            raise ValueError(f"client {client} sent {len(body)} bytes of numbers, not {self.terms.size} numbers")
        words = np.frombuffer(body, dtype=self.terms.word)
        if np.any(words != _wrap(words, self.terms.bits)):
            raise ValueError(f"client {client} sent numbers of more than {self.terms.bits} bits: it counts differently")
        return self._keep(2, self._masked, client, words)

    def survivors(self) -> list[int]:
        """Whose numbers arrived in time."""
        return sorted(self._masked)

    def request(self) -> bytes:
        """The final list of survivors, for all of them: which shares they are to open."""
        self._close(2, self._masked, "survived")
        return self.terms.pack("request", EVERYBODY, b"".join(map(CLIENT.pack, self.survivors())))

    def receive_opening(self, message: bytes) -> bool:
        client, body = self._open(3, "opening", message, self._masked, self._openings)
        pieces = _records("opening", PIECE, body)
        expected = {about: OWN_MASK if about in self._masked else PAIR_MASKS for about in self._boxes}
        if {about: which for about, which, _ in pieces} != expected:
            raise ValueError(f"client {client} did not open exactly the one share of every client that was asked for")
        return self._keep(3, self._openings, client, {about: shamir.from_bytes(share) for about, _, share in pieces})

    def total(self) -> Integers:
        """The sum of the survivors' numbers, from -2^(bits-1) up to 2^(bits-1) - 1."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

        if self._closed < 3:
            raise ValueError("the list of survivors is not final, so no mask can be opened; call request first")
        answered = sorted(self._openings)[: self.terms.threshold]
        if len(answered) < self.terms.threshold:
            raise TooFewClients(
                f"{len(answered)} clients opened shares, {self.terms.threshold} are needed: the sum stays closed"
            )
        weights = shamir.weights_at_zero([_point(client) for client in answered])
        total = np.zeros(self.terms.size, dtype=self.terms.word)
        for words in self._masked.values():
            total += words
        for client in self._boxes:
            secret = shamir.weighted([self._openings[by][client] for by in answered], weights)
            if client in self._masked:
                total -= self.terms.own_mask(secret, client)
                continue
            key = X25519PrivateKey.from_private_bytes(shamir.to_bytes(secret))
            if key.public_key().public_bytes_raw() != self._keys[client][:32]:
                raise ValueError(
                    f"the opened shares of client {client} do not give its key: a client sent a wrong share"
                )
            for other in self._masked:
                # What the vanished client would have added cancels what the survivor did add.
                total += self.terms.pair_mask(
                    key, X25519PublicKey.from_public_bytes(self._keys[other][:32]), client, other
                )
        return _centred(total, self.terms.bits)

    def _open(
        self, step: int, kind: str, message: bytes, allowed: Collection[int], seen: Collection[int]
    ) -> tuple[int, bytes]:
        client, body = self.terms.unpack(kind, message)
        if self._closed < step:
            raise ValueError(f"{kind} message of client {client} before the server asked for it: somebody made it up")
        if client not in allowed:
            raise ValueError(f"{kind} message of client {client}, who has no part in this step")
        if client in seen:
            raise ValueError(f"a second {kind} message of client {client}: the first one counts")
        return client, body

    def _keep(self, step: int, store: dict[int, Any], client: int, what: Any) -> bool:
        if self._closed > step:
            return False
        store[client] = what
        return True

    def _close(self, step: int, store: Collection[int], what: str) -> None:
        if self._closed < step:
            raise ValueError(f"step {step + 1} cannot end before step {step} has ended; call roster, routed, request")
        if len(store) < self.fewest:
            raise TooFewClients(f"only {len(store)} clients {what}, {self.fewest} are needed: nothing is opened")
        self._closed = max(self._closed, step + 1)


def secure_sum(
    values: Integers,  # [clients, size]
    bits: int,
    threshold: int,
    fewest: int = 0,
    dropped_after: Mapping[int, Step] | None = None,  # row -> the last step it did
    session: bytes = b"simulation",
    round: int = 0,
) -> Integers:
    """The whole protocol in one process; the sum over the rows that at least sent their masked numbers."""
    count, size = values.shape
    dropped = dict(dropped_after or {})
    for row, step in dropped.items():
        if step not in STEPS or not 0 <= row < count:
            raise ValueError(f"dropped_after {row}: {step!r} is no step of one of {count} rows; steps are {STEPS}")
    last = [STEPS.index(dropped.get(row, "mask")) for row in range(count)]
    server = SumServer(session, round, range(count), threshold, fewest, size, bits)
    clients = [SumClient(row, session, round, threshold, size, bits, fewest=fewest) for row in range(count)]
    for client in clients:
        if last[client.id] >= 1:
            server.receive_advertisement(client.advertise())
    roster = server.roster()
    for client in clients:
        if last[client.id] >= 2:
            server.receive_shares(client.share(roster))
    for to, post in server.routed().items():
        if last[to] >= 3:
            server.receive_masked(clients[to].mask(values[to], post))
    request = server.request()
    for survivor in server.survivors():
        if survivor not in dropped:
            server.receive_opening(clients[survivor].unmask(request))
    return server.total()


def ideal_sum(values: Integers, bits: int) -> Integers:
    """What the secure sum of the rows gives, without the protocol: the same wrapping, none of the cost."""
    _check_bits(bits)
    if values.dtype != np.int64:
        raise ValueError(f"values are {values.dtype}, the sum is over int64; round them to the grid first")
    return _centred(values.astype(np.uint64).sum(axis=0, dtype=np.uint64), bits)


def message_bytes(count: int, size: int, bits: int) -> int:
    """Bytes that each of `count` clients sends in a round in which nobody drops, all four messages together."""
    word = 4 if bits <= 32 else 8
    return 4 * HEADER.size + KEYS.size - CLIENT.size + (count - 1) * BOX.size + size * word + count * PIECE.size


def check_range(count: int, largest: float, step: float, deviation: float, bits: int) -> None:
    """Refuse settings under which a sum could wrap around.

    `largest` bounds every coordinate of every client, `deviation` is that of all noise in the sum; both in the unit of
    the values, of which a `step` is one grid step. Coordinates are taken as rounded up to the grid.
    """
    _check_bounds(count, largest, deviation, bits)
    if not 0 < step < math.inf:
        raise ValueError(f"step = {step} is no grid; use a positive number")
    reach = _reach(count, largest, step, deviation)
    if not reach < 2.0 ** (bits - 1):
        raise ValueError(
            f"{count} clients with coordinates up to {largest:g} and noise of deviation {deviation:g}, in steps of "
            f"{step:g}, reach {reach:.4g}, and {bits} bits hold less than {2 ** (bits - 1)}: the sum would wrap around "
            f"to a wrong number; use more bits (at most 62) or a coarser step"
        )


def finest_step(count: int, largest: float, deviation: float, bits: int) -> float:
    """The smallest power of two that is a safe grid step.

    >>> finest_step(3, 1.0, 0.0, 16) == 2.0**-13  # 3 * 2^13 < 2^15 <= 3 * 2^14
    True
    """
    _check_bounds(count, largest, deviation, bits)
    # Starts one binary order below what the plain bound needs, so that the first step is surely too fine.
    order = math.frexp(count * largest + 12 * deviation)[1] - bits - 1
    step = math.ldexp(1.0, max(order, -1000))
    while not _reach(count, largest, step, deviation) < 2.0 ** (bits - 1):
        step *= 2
    return step


def _reach(count: int, largest: float, step: float, deviation: float) -> float:
    return count * float(np.ceil(largest / step)) + 12 * deviation / step


def _words(values: Integers, terms: Terms) -> Words:
    """Signed numbers as words modulo 2^bits."""
    if values.shape != (terms.size,) or values.dtype != np.int64:
        raise ValueError(
            f"values are {values.dtype} {values.shape}, the sum is over int64 ({terms.size},); "
            "round them to the grid first"
        )
    return _wrap(values.astype(np.uint64), terms.bits).astype(terms.word)


def _wrap(words: Words, bits: int) -> Words:
    wrapped: Words = words & words.dtype.type(2**bits - 1)
    return wrapped


def _centred(words: Words, bits: int) -> Integers:
    half = 2 ** (bits - 1)
    centred: Integers = (_wrap(words, bits).astype(np.int64) ^ half) - half
    return centred


def _records(kind: str, layout: struct.Struct, body: bytes) -> Sequence[tuple[Any, ...]]:
    """The records that a body consists of; the first field of each is a client, who may occur once."""
    if len(body) % layout.size:
        raise ValueError(
            f"{kind} message has {len(body)} bytes, no whole number of records of {layout.size}: truncated"
        )
    records = list(layout.iter_unpack(body))
    if len({record[0] for record in records}) != len(records):
        raise ValueError(f"{kind} message names a client twice: which record counts cannot be told")
    return records


def _point(client: int) -> int:
    """Where the shares of a client lie; 0 is the place of the secret."""
    return client + 1


def _nonce(sender: int, to: int) -> bytes:
    # Either end of a pair encrypts once with their common key, each under its own nonce.
    return struct.pack("<III", sender, to, 0)


def _check_addressee(kind: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{kind} message is addressed to {found}, expected {expected}: it went to the wrong client")


def _check_ids(ids: Iterable[int]) -> None:
    for client in ids:
        if not 0 <= client < EVERYBODY:
            raise ValueError(f"client id {client} does not fit a message; use 0 to 2^32 - 2")


def _check_bounds(count: int, largest: float, deviation: float, bits: int) -> None:
    _check_bits(bits)
    # Beyond 1e100 no step follows that a double could still count in.
    if count < 1 or not (0 < largest < 1e100 and 0 <= deviation < 1e100):
        raise ValueError(
            f"count = {count}, largest = {largest}, deviation = {deviation}: no range follows from these; "
            "use at least one client, the (positive) clipping bound and a finite deviation"
        )


def _check_bits(bits: int) -> None:
    if not 16 <= bits <= 62:
        raise ValueError(f"bits = {bits}: sums of fewer than 16 or more than 62 bits are not offered; 32 suits most")


@cache
def _primitives() -> tuple[type[HKDF], SHA256, type[ChaCha20Poly1305]]:
    """What is called for every pair of clients; imported once, since even looking an import up takes time there."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise ImportError("secure sums need the package cryptography: pip install 'fedrank[privacy]'") from error
    return HKDF, SHA256(), ChaCha20Poly1305
