"""A sum that the server learns without learning what was added (Bonawitz et al., CCS 2017, with double masking).

Every pair of clients agrees on a mask that one adds and the other subtracts; every client adds one more mask of its
own. All masks have keys that are fresh each round. Shares of both secrets lie with the other clients: of those who sent
their numbers the server may open the own mask, of those who vanished the key of the pairwise masks, never both.

What it protects from:

- Without identity keys, a server that follows the protocol and reads everything it gets, together with fewer than
  `threshold` clients who tell it all they know (semi-honest). They learn the sum of the others' numbers and who took
  part, nothing else. Public keys must reach the clients unchanged: whoever carries them is trusted not to swap them.
- With identity keys, also a server that breaks the rules (active), together with up to a third of the clients. Clients
  sign the keys of the round, so that none can be exchanged and nobody invented, and the list of survivors, and open
  nothing before `threshold` of them have signed the same list. The threshold is then above two thirds (see
  `threshold_for`): two different lists cannot both get that many signatures.

A client that breaks the rules is named and left out: one with a public key that makes no secret, on arrival; one that
opens a wrong share, because every share is committed to by a hash when it is dealt, and every secret, too. Who dealt
shares that do not fit is known only at the end: the round then stops and says so. There is no wrong sum of what was
sent. (Feldman's commitments would show bad dealing earlier, and take longer than all the rest of the protocol.)

What it does not protect from: clients that add nonsense. What a client sends under its masks is its own choice, and it
can spoil the sum unnoticed. And anybody can make a round fail; numbers stay closed then.

The sum itself is given away: who knows all other numbers knows the last. Noise is what protects from that.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedrank.extras import missing_extra
from fedrank.privacy import shamir

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = 2
KINDS = {
    "advertisement": 1,  # client: two public keys
    "roster": 2,  # server, to all: everybody's public keys
    "shares": 3,  # client: for every other client, an encrypted pair of shares
    "post": 4,  # server, to one: the encrypted shares that are addressed to it
    "masked": 5,  # client: its numbers under masks
    "request": 6,  # server, to all: whose numbers arrived
    "opening": 7,  # client: one share of every client
    "signature": 8,  # client: it was shown this list of survivors; only with identity keys
    "consent": 9,  # server, to all: who signed the list; only with identity keys
}
HEADER = struct.Struct("<BB16sQII")  # version, kind, tag of the terms, round, client, bytes of the body
CHECKSUM = 16  # bytes after the header, of header and body: damage is told from what was sent
START = HEADER.size + CHECKSUM  # where the body begins
EVERYBODY = 2**32 - 1  # in the place of the client, in a message of the server to all
KEYS = struct.Struct("<I32s32s")  # client, public key of masks, public key of the post
SIGNED_KEYS = struct.Struct("<I32s32s64s")  # the same, and a signature by the client's identity
# Commitments of a dealer: to its seed, to its own share of the seed, and to its own share of the mask key.
DEALER = struct.Struct("<32s16s16s")
# The other client; both shares for it, 64 bytes and a tag of 16; commitments to either.
BOX = struct.Struct("<I80s16s16s")
PIECE = struct.Struct("<IB32s")  # client, which of its two secrets, share
SIGNATURE = struct.Struct("<I64s")
CLIENT = struct.Struct("<I")
PAIR = struct.Struct("<II")
LABEL = struct.Struct("<IIB")  # what a commitment is to: dealer, holder, which secret
OWN_MASK, PAIR_MASKS = 1, 2  # which secret of a client a share belongs to
NO_SHARE = 0  # in their place: what the client dealt could not be read, or was not what it committed to
# Public keys of X25519 with which every exchange gives zero (order 1, 2, 4 or 8, on the curve or its twist).
LOW_ORDER = frozenset(
    (
        0,
        1,
        shamir.PRIME - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    )
)

Step = Literal["nothing", "advertise", "share", "mask"]
STEPS: tuple[Step, ...] = ("nothing", "advertise", "share", "mask")

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[Any]  # uint32 or uint64, counted modulo 2^bits


class TooFewClients(ValueError):
    """Too few clients are left to open the sum; the round ends without one."""


class BadDealing(ValueError):
    """The secret of a client cannot be opened because of the shares it dealt; the round ends without a sum."""

    def __init__(self, dealer: int, reason: str) -> None:
        super().__init__(f"{reason}; nothing is added up")
        self.dealer = dealer


def threshold_for(count: int, colluders: int = 0, active: bool = False) -> int:
    """The least threshold of `count` clients of whom so many may work with the server.

    Against a server that follows the protocol, more than those are enough. An active one may ask some for a client's
    one secret and others for its second; colluders answer twice, honest clients once. So twice the threshold must
    exceed count + colluders: above two thirds, that holds for up to a third of colluders.

    >>> threshold_for(10, 2), threshold_for(10, 2, active=True), threshold_for(10, 6, active=True)
    (3, 7, 9)
    """
    if not 0 <= colluders < count:
        raise ValueError(f"{colluders} of {count} clients colluding leave nobody to protect; use fewer")
    if not active:
        return max(2, colluders + 1)
    return max(2 * count // 3, (count + colluders) // 2) + 1


@dataclass(frozen=True)
class Identity:
    """Who a client is from round to round: the key that it signs with, and the public keys of all it may meet."""

    secret: bytes = field(repr=False)  # Ed25519, 32 bytes
    publics: Mapping[int, bytes]  # by client, Ed25519; must not come from the server, which could invent some

    def sign(self, statement: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(statement)


@dataclass(frozen=True)
class Terms:
    """What all parties of one sum must agree on before it starts."""

    session: bytes  # names the training; never used for another one
    round: int  # from 0, below 2^64
    threshold: int  # so many clients together can open a secret, fewer cannot
    size: int  # numbers per client
    bits: int  # sums count modulo 2^bits, 16 to 62
    signed: bool = False  # all have identity keys: keys of the round and lists of survivors are signed

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
        """Binds messages, keys and signatures to all that is agreed on (32 bytes)."""
        fixed = struct.pack("<BIIB?Q", VERSION, self.threshold, self.size, self.bits, self.signed, self.round)
        return hashlib.sha256(b"fedrank secure sum" + fixed + self.session).digest()

    @cached_property
    def tag(self) -> bytes:
        # Without the round: a message of another round can then be told from one of another session.
        fixed = struct.pack("<BIIB?", VERSION, self.threshold, self.size, self.bits, self.signed)
        return hashlib.sha256(b"fedrank secure sum terms" + fixed + self.session).digest()[:16]

    @cached_property
    def word(self) -> np.dtype[Any]:
        """The kind of number that carries one coordinate in a message."""
        return np.dtype("<u4" if self.bits <= 32 else "<u8")

    def pack(self, kind: str, client: int, body: bytes) -> bytes:
        header = HEADER.pack(VERSION, KINDS[kind], self.tag, self.round, client, len(body))
        return header + _checksum(header, body) + body

    def unpack(self, kind: str, message: bytes) -> tuple[int, bytes]:
        """Sender (or addressee, of the server's messages) and body of a message of the expected kind."""
        if len(message) < START:
            raise ValueError(f"{kind} message of {len(message)} bytes is truncated: its header takes {START}")
        version, number, tag, round_, client, length = HEADER.unpack_from(message)
        if version != VERSION:
            raise ValueError(f"{kind} message has version {version}, this is version {VERSION}; update the older side")
        if number != KINDS[kind]:
            found = next((name for name, value in KINDS.items() if value == number), f"unknown kind {number}")
            raise ValueError(f"expected a message of kind {kind}, got {found}: it belongs to another step")
        if tag != self.tag:
            raise ValueError(f"{kind} message is of another session, or has other terms: threshold, size, bits, signed")
        if round_ != self.round:
            raise ValueError(f"{kind} message is of round {round_}, this is round {self.round}: late or replayed")
        if length != len(message) - START:
            raise ValueError(
                f"{kind} message promises {length} bytes and has {len(message) - START}: truncated or damaged"
            )
        body = message[START:]
        if message[HEADER.size : START] != _checksum(message[: HEADER.size], body):
            raise ValueError(f"{kind} message was damaged on the way: its checksum differs; send it again")
        return client, body

    def derive(self, secret: bytes, purpose: str, first: int, second: int) -> bytes:
        """A key of 32 bytes for one purpose of one pair of clients, the same at either end (HKDF-SHA256)."""
        hkdf, sha256, _ = primitives()
        info = self.digest + PAIR.pack(min(first, second), max(first, second)) + purpose.encode()
        return hkdf(algorithm=sha256, length=32, salt=None, info=info).derive(secret)

    def mask(self, secret: bytes, purpose: str, first: int, second: int) -> Words:
        """A secret stretched to one uniform word per coordinate: the key stream of ChaCha20."""
        _, _, cipher = primitives()
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

    def commitment(self, share: bytes, dealer: int, holder: int, which: int) -> bytes:
        """What tells a share that was dealt from any other, and nobody what it is: it is one of 2^255.

        Half a hash will do. Two shares with the same one take 2^64 tries and a dealer that wants them; but what such
        shares would open is held against the whole hash of the secret.
        """
        return hashlib.sha256(self.digest + LABEL.pack(dealer, holder, which) + share).digest()[:16]

    def seed_commitment(self, seed: int, client: int) -> bytes:
        return hashlib.sha256(self.digest + b"seed" + CLIENT.pack(client) + shamir.to_bytes(seed)).digest()

    def keys_statement(self, client: int, keys: bytes) -> bytes:
        """What a client signs with its identity, so that nobody can exchange its keys of the round."""
        return b"fedrank secure sum: keys of the round" + self.digest + CLIENT.pack(client) + keys

    def survivors_statement(self, roster: bytes, survivors: Sequence[int]) -> bytes:
        """What a client signs that was shown these survivors, of this roster (32 bytes)."""
        return b"fedrank secure sum: survivors" + self.digest + roster + b"".join(map(CLIENT.pack, survivors))


class SumClient:
    """One client in one round of a secure sum: advertise, share, mask, unmask, each once and in this order.

    With identity keys it signs the list of survivors before it unmasks.

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
        min_survivors: int = 0,  # this client opens nothing for fewer survivors, whatever the server says
        identity: Identity | None = None,  # with one, all must have one, and the server need not be trusted
        entropy: shamir.Entropy = os.urandom,  # another source is for tests only
    ) -> None:
        primitives()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        _check_ids([id])
        self.id = id
        self.terms = Terms(session, round, threshold, size, bits, signed=identity is not None)
        self.min_survivors = max(threshold, min_survivors)
        self.identity = identity
        self._entropy = entropy
        self._seed = shamir.random_element(entropy)
        self._mask_secret = shamir.random_element(entropy)
        self._mask_key = X25519PrivateKey.from_private_bytes(shamir.to_bytes(self._mask_secret))
        self._post_key = X25519PrivateKey.from_private_bytes(entropy(32))
        self._done: Step = "nothing"
        self._roster = b""  # hash of the one that was answered
        self._mask_keys: dict[int, bytes] = {}  # public keys of all who advertised, by client
        self._post_secrets: dict[int, bytes] = {}  # keys of the post with every other client
        self._held: dict[int, tuple[bytes, bytes] | None] = {}  # by client: my shares of its seed and of its mask key
        self._survivors: list[int] | None = None  # of the one list that was signed or answered

    def advertise(self) -> bytes:
        """The public keys of this round."""
        self._advance("nothing", "advertise")
        keys = self._public_keys()
        signature = self.identity.sign(self.terms.keys_statement(self.id, keys)) if self.identity else b""
        return self.terms.pack("advertisement", self.id, keys + signature)

    def share(self, roster: bytes) -> bytes:
        """Shares of both secrets for everybody who advertised, encrypted so that only the addressee reads them."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        _, _, cipher = primitives()
        self._expect("advertise", "share")
        keys = self._read_roster(roster)
        secrets = {
            other: self.terms.derive(
                self._post_key.exchange(X25519PublicKey.from_public_bytes(post)), "post", self.id, other
            )
            for other, (_, post) in keys.items()
            if other != self.id
        }
        # Bound to the roster: clients that were shown different ones cannot read each other's boxes.
        bound = self.terms.digest + _hash(roster)
        points = [_point(client) for client in keys]
        seeds = shamir.split(self._seed, self.terms.threshold, points, self._entropy)
        mask_secrets = shamir.split(self._mask_secret, self.terms.threshold, points, self._entropy)
        boxes = []
        for other, *shares in zip(keys, map(shamir.to_bytes, seeds), map(shamir.to_bytes, mask_secrets), strict=True):
            committed = self._commitments(self.id, other, *shares)
            if other == self.id:
                own, held = committed, (shares[0], shares[1])
                continue
            closed = cipher(secrets[other]).encrypt(_nonce(self.id, other), b"".join(shares), bound)
            boxes.append(BOX.pack(other, closed, *committed))
        self._roster = _hash(roster)
        self._mask_keys = {client: mask for client, (mask, _) in keys.items()}
        self._post_secrets = secrets
        self._held = {self.id: held}
        self._advance("advertise", "share")
        dealer = DEALER.pack(self.terms.seed_commitment(self._seed, self.id), *own)
        return self.terms.pack("shares", self.id, dealer + b"".join(boxes))

    def mask(self, values: Integers, post: bytes) -> bytes:
        """The numbers under masks, once the shares of the others have come."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        self._expect("share", "mask")
        # Twice under the same masks would give the difference away: hence once.
        masked = words_of(values, self.terms)
        held = self._read_post(post)
        masked += self.terms.own_mask(self._seed, self.id)
        for other in held:
            public = X25519PublicKey.from_public_bytes(self._mask_keys[other])
            masked += self.terms.pair_mask(self._mask_key, public, self.id, other)
        self._held |= held
        self._advance("share", "mask")
        return self.terms.pack("masked", self.id, _wrap(masked, self.terms.bits).tobytes())

    def sign(self, request: bytes) -> bytes:
        """Sign the list of survivors, so that others can see that all were shown the same; with identity keys only."""
        if self.identity is None:
            raise ValueError(f"client {self.id} has no identity key to sign with; give it one, or call unmask at once")
        survivors = self._settle(request)
        signature = self.identity.sign(self.terms.survivors_statement(self._roster, survivors))
        return self.terms.pack("signature", self.id, signature)

    def unmask(self, request: bytes, consent: bytes | None = None) -> bytes:
        """For every client one share: of the own mask if it survived, of the mask key if it vanished.

        With identity keys only after as many as the threshold signed this very list, which `consent` shows.
        """
        if (consent is None) != (self.identity is None):
            raise ValueError(
                f"client {self.id} opens nothing: signatures of a list of survivors belong to identity keys; "
                "use both or neither"
            )
        if consent is not None:
            self._check_consent(consent, self._read_request(request))
        survivors = set(self._settle(request))
        pieces = []
        for client, shares in sorted(self._held.items()):
            which = OWN_MASK if client in survivors else PAIR_MASKS
            pieces.append(PIECE.pack(client, which, shares[which - 1]) if shares else PIECE.pack(client, NO_SHARE, b""))
        return self.terms.pack("opening", self.id, b"".join(pieces))

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
        records = _records("roster", SIGNED_KEYS if self.identity else KEYS, body)
        keys = {client: (mask, post) for client, mask, post, *_ in records}
        _check_ids(keys)
        for client, mask, post, *signature in records:
            _check_keys(client, mask + post)
            if self.identity:
                _check_signed(self.identity.publics, client, self.terms.keys_statement(client, mask + post), *signature)
        if b"".join(keys.get(self.id, ())) != self._public_keys():
            raise ValueError(f"the roster lacks client {self.id} or has other keys for it: nothing is shared")
        if len({key for pair in keys.values() for key in pair}) != 2 * len(keys):
            raise ValueError("a public key is twice in the roster: somebody pretends to be two; nothing is shared")
        self._check_enough(len(keys), "advertised")
        if self.identity:
            _check_active(self.terms.threshold, len(keys))
        return keys

    def _commitments(self, dealer: int, holder: int, seed: bytes, mask_secret: bytes) -> tuple[bytes, bytes]:
        commitment = self.terms.commitment
        return commitment(seed, dealer, holder, OWN_MASK), commitment(mask_secret, dealer, holder, PAIR_MASKS)

    def _read_post(self, post: bytes) -> dict[int, tuple[bytes, bytes] | None]:
        """By sender, both shares; None where they cannot be read or are not those that the sender committed to."""
        addressee, body = self.terms.unpack("post", post)
        _check_addressee("post", addressee, self.id)
        held = {}
        for sender, box, *committed in _records("post", BOX, body):
            if sender not in self._post_secrets:
                raise ValueError(f"post from client {sender}, who is not one of the others in the roster")
            held[sender] = self._open_box(sender, box, committed)
        # Who dealt nonsense is still somebody to mask with: one such client must not stop the others here.
        self._check_enough(len(held) + 1, "shared their secrets")
        return held

    def _open_box(self, sender: int, box: bytes, committed: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        from cryptography.exceptions import InvalidTag

        _, _, cipher = primitives()
        bound = self.terms.digest + self._roster
        try:
            plain = cipher(self._post_secrets[sender]).decrypt(_nonce(sender, self.id), box, bound)
        except InvalidTag:
            return None
        shares = plain[:32], plain[32:]
        if self._commitments(sender, self.id, *shares) != tuple(committed) or not all(map(shamir.is_element, shares)):
            return None
        return shares

    def _read_request(self, request: bytes) -> list[int]:
        if self._done != "mask":
            raise ValueError(f"client {self.id} has sent no numbers: it opens nothing; call mask first")
        addressee, body = self.terms.unpack("request", request)
        _check_addressee("request", addressee, EVERYBODY)
        survivors = sorted(client for (client,) in _records("request", CLIENT, body))
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
        return survivors

    def _settle(self, request: bytes) -> list[int]:
        """The one list of survivors that this client signs and answers."""
        survivors = self._read_request(request)
        if self._survivors is None:
            self._survivors = survivors
        if self._survivors != survivors:
            raise ValueError(
                f"client {self.id} was asked for a second list of survivors: answering both could open both secrets "
                "of a client; ask again with the first list, or start a new round"
            )
        return survivors

    def _check_consent(self, consent: bytes, survivors: list[int]) -> None:
        assert self.identity is not None
        addressee, body = self.terms.unpack("consent", consent)
        _check_addressee("consent", addressee, EVERYBODY)
        statement = self.terms.survivors_statement(self._roster, survivors)
        signatures = _records("consent", SIGNATURE, body)
        for client, signature in signatures:
            if client not in survivors:
                raise ValueError(f"client {client} signed and is not among the survivors: nothing is opened")
            _check_signed(self.identity.publics, client, statement, signature)
        if len(signatures) < self.terms.threshold:
            raise TooFewClients(
                f"only {len(signatures)} clients signed the list of survivors, {self.terms.threshold} are needed: "
                f"others may have been shown another one; client {self.id} opens nothing"
            )

    def _check_enough(self, count: int, what: str) -> None:
        if count < self.min_survivors:
            raise TooFewClients(
                f"only {count} clients {what}, client {self.id} asks for {self.min_survivors}: it stops here"
            )


class SumServer:
    """The server in one round of a secure sum; it carries messages and learns the total.

    `receive_...` takes what a client sent and says whether it counts: what comes after its step was closed does not.
    A ValueError means that a message was refused. The round goes on without its sender, whom `left_out` names, unless
    a right message comes in time. Handing out `roster()`, `routed()`, `request()` and `consent()` closes a step.
    """

    def __init__(
        self,
        session: bytes,
        round: int,
        ids: Iterable[int],  # who was invited
        threshold: int,
        min_survivors: int,  # the sum of fewer survivors is never opened; colluding ones count, so add them
        size: int,
        bits: int,
        *,
        identities: Mapping[int, bytes] | None = None,  # public keys of all clients (Ed25519), if they sign
    ) -> None:
        primitives()
        self.terms = Terms(session, round, threshold, size, bits, signed=identities is not None)
        self.ids = sorted(ids)
        self.min_survivors = max(threshold, min_survivors)
        _check_ids(self.ids)
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("a client is invited twice: its numbers cannot be told apart; name each id once")
        if self.min_survivors > len(self.ids):
            raise ValueError(
                f"threshold = {threshold} and min_survivors = {min_survivors} with {len(self.ids)} clients: no sum "
                "could ever be opened; invite more, or lower them"
            )
        if identities is not None:
            _check_active(threshold, len(self.ids))
        self.identities = identities
        self.left_out: dict[int, str] = {}  # clients whose message was refused, and why
        self._keys: dict[int, bytes] = {}  # public keys of the masks and of the post, and their signature, by client
        self._dealt: dict[int, _Dealt] = {}
        self._masked: dict[int, Words] = {}
        self._signatures: dict[int, bytes] = {}
        self._openings: dict[int, dict[int, int | None]] = {}  # by who answered, then whose share
        self._steps = ["advertisement", "shares", "masked", *(["signature"] if self.terms.signed else []), "opening"]
        self._closed = 0  # steps that are over

    def receive_advertisement(self, message: bytes) -> bool:
        client, body = self._open("advertisement", message, self.ids, self._keys)
        with self._blaming(client):
            expected = 128 if self.terms.signed else 64
            if len(body) != expected:
                raise ValueError(f"advertisement of client {client} has {len(body)} bytes of keys, expected {expected}")
            _check_keys(client, body[:64])
            known = {key for keys in self._keys.values() for key in (keys[:32], keys[32:64])}
            if body[:32] == body[32:64] or not known.isdisjoint((body[:32], body[32:64])):
                raise ValueError(f"a public key of client {client} is there twice: it pretends to be somebody else")
            self._check_signed(client, self.terms.keys_statement(client, body[:64]), body[64:])
        return self._keep("advertisement", self._keys, client, body)

    def roster(self) -> bytes:
        """Everybody's public keys, for everybody."""
        self._close("advertisement", self._keys, "advertised")
        records = (CLIENT.pack(client) + keys for client, keys in sorted(self._keys.items()))
        return self.terms.pack("roster", EVERYBODY, b"".join(records))

    def receive_shares(self, message: bytes) -> bool:
        client, body = self._open("shares", message, self._keys, self._dealt)
        with self._blaming(client):
            if len(body) < DEALER.size:
                raise ValueError(f"shares message of client {client} lacks its commitments: truncated records")
            seed, *own = DEALER.unpack_from(body)
            records = _records("shares", BOX, body[DEALER.size :])
            if {other for other, *_ in records} != set(self._keys) - {client}:
                raise ValueError(f"client {client} did not share with exactly the others in the roster: it is left out")
            boxes = {other: BOX.pack(client, *record) for other, *record in records}
            commitments = {client: own, **{other: committed for other, _, *committed in records}}
        return self._keep("shares", self._dealt, client, _Dealt(seed, boxes, commitments))

    def routed(self) -> dict[int, bytes]:
        """For every client that shared its secrets, the shares addressed to it."""
        self._close("shares", self._dealt, "shared their secrets")
        post = {}
        for to in self._dealt:
            records = (dealt.boxes[to] for sender, dealt in self._dealt.items() if sender != to)
            post[to] = self.terms.pack("post", to, b"".join(records))
        return post

    def receive_masked(self, message: bytes) -> bool:
        client, body = self._open("masked", message, self._dealt, self._masked)
        with self._blaming(client):
            if len(body) != self.terms.size * self.terms.word.itemsize:
                raise ValueError(f"client {client} sent {len(body)} bytes of numbers, not {self.terms.size} numbers")
            words = np.frombuffer(body, dtype=self.terms.word)
            if np.any(words != _wrap(words, self.terms.bits)):
                raise ValueError(
                    f"client {client} sent numbers of more than {self.terms.bits} bits: it counts differently"
                )
        return self._keep("masked", self._masked, client, words)

    def survivors(self) -> list[int]:
        """Whose numbers arrived in time."""
        return sorted(self._masked)

    def request(self) -> bytes:
        """The final list of survivors, for all of them: which shares they are to open, or the list they are to sign."""
        self._close("masked", self._masked, "survived")
        return self.terms.pack("request", EVERYBODY, b"".join(map(CLIENT.pack, self.survivors())))

    def receive_signature(self, message: bytes) -> bool:
        client, body = self._open("signature", message, self._masked, self._signatures)
        with self._blaming(client):
            if len(body) != 64:
                raise ValueError(f"client {client} signed with {len(body)} bytes, expected 64")
            self._check_signed(client, self.terms.survivors_statement(_hash(self.roster()), self.survivors()), body)
        return self._keep("signature", self._signatures, client, body)

    def consent(self) -> bytes:
        """Who signed the list of survivors, for all of them: now they may open."""
        self._close("signature", self._signatures, "signed the list of survivors", self.terms.threshold)
        enough = sorted(self._signatures.items())[: self.terms.threshold]
        records = (SIGNATURE.pack(*item) for item in enough)
        return self.terms.pack("consent", EVERYBODY, b"".join(records))

    def receive_opening(self, message: bytes) -> bool:
        client, body = self._open("opening", message, self._masked, self._openings)
        with self._blaming(client):
            pieces = _records("opening", PIECE, body)
            if {about for about, *_ in pieces} != set(self._dealt):
                raise ValueError(f"client {client} did not open exactly the one share of every client")
            opened = {about: self._checked_share(client, about, which, share) for about, which, share in pieces}
        return self._keep("opening", self._openings, client, opened)

    def total(self) -> Integers:
        """The sum of the survivors' numbers, from -2^(bits-1) up to 2^(bits-1) - 1."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

        if self._closed < self._step("opening"):
            raise ValueError("the list of survivors is not final, so no mask can be opened; call request first")
        if len(self._openings) < self.terms.threshold:
            raise TooFewClients(
                f"{len(self._openings)} clients opened shares, {self.terms.threshold} are needed: the sum stays closed"
                + "".join(f"; {why}" for client, why in self.left_out.items() if client in self._masked)
            )
        secrets = self._secrets()
        total = np.zeros(self.terms.size, dtype=self.terms.word)
        for words in self._masked.values():
            total += words
        for client, secret in secrets.items():
            if client in self._masked:
                total -= self.terms.own_mask(secret, client)
                continue
            key = X25519PrivateKey.from_private_bytes(shamir.to_bytes(secret))
            for other in self._masked:
                # What the vanished client would have added cancels what the survivor did add.
                total += self.terms.pair_mask(
                    key, X25519PublicKey.from_public_bytes(self._keys[other][:32]), client, other
                )
        return centred(total, self.terms.bits)

    def _checked_share(self, holder: int, dealer: int, which: int, share: bytes) -> int | None:
        if which == NO_SHARE and not any(share):
            return None
        if which != (OWN_MASK if dealer in self._masked else PAIR_MASKS):
            raise ValueError(f"client {holder} did not open exactly the one share of client {dealer} it was asked for")
        committed = self._dealt[dealer].commitments[holder][which - 1]
        if self.terms.commitment(share, dealer, holder, which) != committed:
            raise ValueError(f"client {holder} opened a wrong share of client {dealer}: its answer does not count")
        return shamir.from_bytes(share)

    def _secrets(self) -> dict[int, int]:
        """By client, what was opened: its seed, or its mask key if it vanished."""
        weights: dict[tuple[int, ...], list[int]] = {}  # mostly the same clients hold all shares
        secrets = {}
        for dealer in self._dealt:
            shares = {
                by: share for by, opened in sorted(self._openings.items()) if (share := opened[dealer]) is not None
            }
            holders = tuple(shares)[: self.terms.threshold]
            if len(holders) < self.terms.threshold:
                others = sorted(set(self._openings) - set(shares))
                raise BadDealing(
                    dealer,
                    f"clients {others} say that what client {dealer} dealt cannot be read, and {len(holders)} of "
                    f"{self.terms.threshold} needed shares are left: it lies or they do; start a new round without "
                    "either",
                )
            if holders not in weights:
                weights[holders] = shamir.weights_at_zero([_point(by) for by in holders])
            secrets[dealer] = shamir.weighted([shares[by] for by in holders], weights[holders])
            self._check_secret(dealer, secrets[dealer])
        return secrets

    def _check_secret(self, dealer: int, secret: int) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if dealer in self._masked:
            right = self.terms.seed_commitment(secret, dealer) == self._dealt[dealer].seed
        else:
            key = X25519PrivateKey.from_private_bytes(shamir.to_bytes(secret))
            right = key.public_key().public_bytes_raw() == self._keys[dealer][:32]
        if not right:
            # All shares are those that were committed to, so it is nobody else.
            raise BadDealing(
                dealer,
                f"the shares that client {dealer} dealt do not give the secret that it committed to; start a new round "
                "without it",
            )

    def _check_signed(self, client: int, statement: bytes, signature: bytes) -> None:
        if self.identities is not None:
            _check_signed(self.identities, client, statement, signature)

    def _open(self, kind: str, message: bytes, allowed: Collection[int], seen: Collection[int]) -> tuple[int, bytes]:
        client, body = self.terms.unpack(kind, message)
        if self._closed < self._step(kind):
            raise ValueError(f"{kind} message of client {client} before the server asked for it: somebody made it up")
        if client not in allowed:
            raise ValueError(f"{kind} message of client {client}, who has no part in this step")
        if client in seen:
            raise ValueError(f"a second {kind} message of client {client}: the first one counts")
        return client, body

    @contextmanager
    def _blaming(self, client: int) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            self.left_out[client] = str(error)
            raise

    def _keep(self, kind: str, store: dict[int, Any], client: int, what: Any) -> bool:
        if self._closed > self._step(kind):
            return False
        self.left_out.pop(client, None)
        store[client] = what
        return True

    def _close(self, kind: str, store: Collection[int], what: str, min_survivors: int | None = None) -> None:
        step, min_survivors = self._step(kind), self.min_survivors if min_survivors is None else min_survivors
        if self._closed < step:
            raise ValueError(
                f"step {step + 1} cannot end before step {step} has ended; call roster, routed, request, consent"
            )
        if len(store) < min_survivors:
            raise TooFewClients(f"only {len(store)} clients {what}, {min_survivors} are needed: nothing is opened")
        self._closed = max(self._closed, step + 1)

    def _step(self, kind: str) -> int:
        if kind not in self._steps:
            raise ValueError(f"there is no {kind} in a round without identity keys; give them to all, or leave it out")
        return self._steps.index(kind)


@dataclass(frozen=True)
class _Dealt:
    """What a client dealt: boxes for the others, and commitments to its seed and to all shares."""

    seed: bytes
    boxes: Mapping[int, bytes]  # by addressee
    commitments: Mapping[int, Sequence[bytes]]  # by holder, itself included: share of the seed, of the mask key


def secure_sum(
    values: Integers,  # [clients, size]
    bits: int,
    threshold: int,
    min_survivors: int = 0,
    dropped_after: Mapping[int, Step] | None = None,  # row -> the last step it did
    session: bytes = b"simulation",
    round: int = 0,
    signed: bool = False,  # with identity keys, made for the occasion
) -> Integers:
    """The whole protocol in one process; the sum over the rows that at least sent their masked numbers."""
    count, size = values.shape
    dropped = dict(dropped_after or {})
    for row, step in dropped.items():
        if step not in STEPS or not 0 <= row < count:
            raise ValueError(f"dropped_after {row}: {step!r} is no step of one of {count} rows; steps are {STEPS}")
    last = [STEPS.index(dropped.get(row, "mask")) for row in range(count)]
    identities = new_identities(range(count)) if signed else {}
    publics = identities[0].publics if signed else None
    server = SumServer(session, round, range(count), threshold, min_survivors, size, bits, identities=publics)
    clients = [
        SumClient(row, session, round, threshold, size, bits, min_survivors=min_survivors, identity=identities.get(row))
        for row in range(count)
    ]
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
    request, consent = server.request(), None
    staying = [clients[survivor] for survivor in server.survivors() if survivor not in dropped]
    if signed:
        for client in staying:
            server.receive_signature(client.sign(request))
        consent = server.consent()
    for client in staying:
        server.receive_opening(client.unmask(request, consent))
    return server.total()


def new_identities(ids: Iterable[int]) -> dict[int, Identity]:
    """Identities of clients that know each other, for simulations: in a deployment, secrets never meet in one place."""
    primitives()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    keys = {client: Ed25519PrivateKey.generate() for client in ids}
    publics = {client: key.public_key().public_bytes_raw() for client, key in keys.items()}
    return {client: Identity(key.private_bytes_raw(), publics) for client, key in keys.items()}


def ideal_sum(values: Integers, bits: int) -> Integers:
    """What the secure sum of the rows gives, without the protocol: the same wrapping, none of the cost."""
    _check_bits(bits)
    if values.dtype != np.int64:
        raise ValueError(f"values are {values.dtype}, the sum is over int64; round them to the grid first")
    return centred(values.astype(np.uint64).sum(axis=0, dtype=np.uint64), bits)


def message_bytes(count: int, size: int, bits: int, signed: bool = False) -> int:
    """Bytes that each of `count` clients sends in a round in which nobody drops, all messages together."""
    word = 4 if bits <= 32 else 8
    keys = KEYS.size - CLIENT.size
    signatures = 64 + START + 64 if signed else 0  # of the keys, and of the survivors in a message of its own
    return 4 * START + keys + DEALER.size + (count - 1) * BOX.size + size * word + count * PIECE.size + signatures


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


def words_of(values: Integers, terms: Terms) -> Words:
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


def centred(words: Words, bits: int) -> Integers:
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


def _checksum(header: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(body)
    return digest.digest()[:CHECKSUM]


def _hash(roster: bytes) -> bytes:
    return hashlib.sha256(roster).digest()


def _point(client: int) -> int:
    """Where the shares of a client lie; 0 is the place of the secret."""
    return client + 1


def _nonce(sender: int, to: int) -> bytes:
    # Either end of a pair encrypts once with their common key, each under its own nonce.
    return struct.pack("<III", sender, to, 0)


def _check_addressee(kind: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{kind} message is addressed to {found}, expected {expected}: it went to the wrong client")


def _check_keys(client: int, keys: bytes) -> None:
    """Refuse public keys that make no secret, or that are a second spelling of another key."""
    for key in (keys[:32], keys[32:]):
        # The exchange would fail with the first kind, for everybody; the second could be somebody else's in disguise.
        if not shamir.is_element(key) or int.from_bytes(key, "little") in LOW_ORDER:
            raise ValueError(f"client {client} has a public key that makes no secret: it cannot take part")


def _check_signed(publics: Mapping[int, bytes], client: int, statement: bytes, signature: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if client not in publics:
        raise ValueError(f"client {client} has no known identity: somebody may have invented it; exchange keys first")
    try:
        Ed25519PublicKey.from_public_bytes(publics[client]).verify(signature, statement)
    except InvalidSignature:
        raise ValueError(
            f"the signature of client {client} is not for this: it signed something else, or somebody else signed"
        ) from None


def _check_active(threshold: int, count: int) -> None:
    if threshold < threshold_for(count, active=True):
        raise ValueError(
            f"threshold = {threshold} of {count} clients: two different lists of survivors could get so many "
            f"signatures; use at least {threshold_for(count, active=True)}"
        )


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
def primitives() -> tuple[type[HKDF], SHA256, type[ChaCha20Poly1305]]:
    """What is called for every pair of clients; imported once, since even looking an import up takes time there."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise missing_extra("secure sums need the package cryptography", "privacy") from error
    return HKDF, SHA256(), ChaCha20Poly1305
