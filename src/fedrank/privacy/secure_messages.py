"""Messages of secure aggregation: their format, and the keys, masks and commitments in them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedrank.extras import missing_extra
from fedrank.privacy import shamir

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = 3
KINDS = {
    "advertisement": 1,  # client: two public keys
    "roster": 2,  # server, to all: the public keys of all clients
    "shares": 3,  # client: for every other client, an encrypted pair of shares
    "post": 4,  # server, to one: the encrypted shares that are addressed to it
    "masked": 5,  # client: its masked numbers
    "request": 6,  # server, to all: the clients whose numbers arrived
    "opening": 7,  # client: one share of every client
    "signature": 8,  # client: its signature of the list of survivors; only with identity keys
    "consent": 9,  # server, to all: the signatures of the list; only with identity keys
}
HEADER = struct.Struct("<BB16sQII")  # version, kind, tag of the terms, round, client, bytes of the body
CHECKSUM = 16  # bytes after the header, over header and body: detects damage
START = HEADER.size + CHECKSUM  # where the body begins
EVERYBODY = 2**32 - 1  # replaces the client in a message of the server to all
KEYS = struct.Struct("<I32s32s")  # client, public key of masks, public key of share encryption
SIGNED_KEYS = struct.Struct("<I32s32s64s")  # the same, and a signature by the client's identity
# Commitments of a dealer: to its seed, to its own share of the seed, and to its own share of the mask key.
DEALER = struct.Struct("<32s16s16s")
# The other client; both shares for it, 64 bytes and a tag of 16; commitments to both.
BOX = struct.Struct("<I80s16s16s")
PIECE = struct.Struct("<IB32s")  # client, which of its two secrets, share
SIGNATURE = struct.Struct("<I64s")
CLIENT = struct.Struct("<I")
PAIR = struct.Struct("<II")
LABEL = struct.Struct("<IIB")  # subject of a commitment: dealer, holder, which secret
OWN_MASK, PAIR_MASKS = 1, 2  # which secret of a client a share belongs to
NO_SHARE = 0  # instead of them: the share could not be read, or differs from the commitment
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

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[Any]  # uint32 or uint64, modulo 2^bits


@dataclass(frozen=True)
class Identity:
    """A client's long-term identity: its signing key, and the public keys of all clients it may meet."""

    secret: bytes = field(repr=False)  # Ed25519, 32 bytes
    publics: Mapping[int, bytes]  # by client, Ed25519; must not come from the server, which could invent clients

    def sign(self, statement: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(statement)


@dataclass(frozen=True)
class Terms:
    """The parameters that all parties of one sum must agree on before it starts."""

    session: bytes  # names the training; never reused for another one
    round: int  # from 0, below 2^64
    threshold: int  # number of clients that together can open a secret; fewer cannot
    size: int  # numbers per client
    bits: int  # sums are modulo 2^bits, 16 to 62
    signed: bool = False  # all clients have identity keys and sign keys of the round and lists of survivors
    request: bytes = b""  # what the client was asked for, or its digest; clients with another one get other masks

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if not 0 <= self.round < 2**64:
            raise ValueError(f"round must be between 0 and 2^64 - 1 (got {self.round})")
        if self.threshold < 2:
            raise ValueError(
                f"threshold must be at least 2, or one client alone could open secrets (got {self.threshold})"
            )
        if not 1 <= self.size < 2**28:
            raise ValueError(f"size must be between 1 and 2^28 - 1 numbers (got {self.size})")

    @cached_property
    def digest(self) -> bytes:
        """Binds masks, keys, shares and signatures to the agreed parameters and the request (32 bytes)."""
        fixed = struct.pack("<BIIB?Q", VERSION, self.threshold, self.size, self.bits, self.signed, self.round)
        asked = CLIENT.pack(len(self.session)) + self.session + self.request
        return hashlib.sha256(b"fedrank secure sum" + fixed + asked).digest()  # a frozen label; prose: ok

    @cached_property
    def tag(self) -> bytes:
        # Without round and request, so a message of another round can be distinguished from one of another session.
        fixed = struct.pack("<BIIB?", VERSION, self.threshold, self.size, self.bits, self.signed)
        return hashlib.sha256(b"fedrank secure sum terms" + fixed + self.session).digest()[:16]  # frozen; prose: ok

    def with_roster(self, roster: bytes) -> Terms:
        """The same terms from the roster on: clients that received another one derive other masks."""
        return replace(self, request=self.request + hashlib.sha256(roster).digest())

    @cached_property
    def word(self) -> np.dtype[Any]:
        """The integer type of one coordinate in a message."""
        return np.dtype("<u4" if self.bits <= 32 else "<u8")

    def pack(self, kind: str, client: int, body: bytes) -> bytes:
        header = HEADER.pack(VERSION, KINDS[kind], self.tag, self.round, client, len(body))
        return header + _checksum(header, body) + body

    def unpack(self, kind: str, message: bytes) -> tuple[int, bytes]:
        """Sender (or addressee, for messages of the server) and body of a message of the expected kind."""
        if len(message) < START:
            raise ValueError(f"{kind} message is truncated: it has {len(message)} bytes, its header alone {START}")
        version, number, tag, round_, client, length = HEADER.unpack_from(message)
        if version != VERSION:
            raise ValueError(f"{kind} message has version {version}, expected {VERSION}; update the older side")
        if number != KINDS[kind]:
            found = next((name for name, value in KINDS.items() if value == number), f"unknown kind {number}")
            raise ValueError(f"expected a message of kind {kind}, got {found}: it belongs to another step")
        if tag != self.tag:
            raise ValueError(
                f"{kind} message belongs to another session, or has other terms (threshold, size, bits or signed)"
            )
        if round_ != self.round:
            raise ValueError(f"{kind} message is of round {round_}, expected round {self.round}: late or replayed")
        if length != len(message) - START:
            raise ValueError(
                f"{kind} message has {len(message) - START} bytes, its header says {length}: truncated or damaged"
            )
        body = message[START:]
        if message[HEADER.size : START] != _checksum(message[: HEADER.size], body):
            raise ValueError(f"{kind} message was damaged in transit: its checksum differs; send it again")
        return client, body

    def derive(self, secret: bytes, purpose: str, first: int, second: int) -> bytes:
        """A key of 32 bytes for one purpose of one pair of clients, the same for both (HKDF-SHA256)."""
        hkdf, sha256, _ = primitives()
        info = self.digest + PAIR.pack(min(first, second), max(first, second)) + purpose.encode()
        return hkdf(algorithm=sha256, length=32, salt=None, info=info).derive(secret)

    def mask(self, secret: bytes, purpose: str, first: int, second: int) -> Words:
        """A secret expanded to one uniform word per coordinate: the key stream of ChaCha20."""
        _, _, cipher = primitives()
        length = self.size * self.word.itemsize
        # Encrypts zeros: the package's plain ChaCha20 has the same stream and takes longer to set up. The key is used
        # for this one stream only, so the nonce may be constant.
        stream = cipher(self.derive(secret, purpose, first, second)).encrypt(bytes(12), bytes(length), None)
        return np.frombuffer(stream, dtype=self.word, count=self.size)

    def pair_mask(self, mine: X25519PrivateKey, other: X25519PublicKey, me: int, you: int) -> Words:
        """The mask that `me` adds for the pair; the other client adds its negative."""
        mask = self.mask(mine.exchange(other), "pair mask", me, you)
        return mask if me < you else -mask

    def own_mask(self, seed: int, client: int) -> Words:
        return self.mask(shamir.to_bytes(seed), "own mask", client, client)

    def commitment(self, share: bytes, dealer: int, holder: int, which: int) -> bytes:
        """A hash that identifies a dealt share without revealing it: it is one of 2^255.

        Half a hash is enough. A dealer could find two shares with the same one in 2^64 tries, but the secret that
        such shares would open is checked against a full hash.
        """
        return hashlib.sha256(self.digest + LABEL.pack(dealer, holder, which) + share).digest()[:16]

    def seed_commitment(self, seed: int, client: int) -> bytes:
        return hashlib.sha256(self.digest + b"seed" + CLIENT.pack(client) + shamir.to_bytes(seed)).digest()

    def keys_statement(self, client: int, keys: bytes) -> bytes:
        """The statement that a client signs with its identity, so its keys of the round cannot be replaced."""
        return b"fedrank secure sum: keys of the round" + self.digest + CLIENT.pack(client) + keys  # frozen; prose: ok

    def survivors_statement(self, survivors: Sequence[int]) -> bytes:
        """The statement that a client signs about these survivors of the roster in the terms."""
        label = b"fedrank secure sum: survivors"  # frozen; prose: ok
        return label + self.digest + b"".join(map(CLIENT.pack, survivors))


def message_bytes(count: int, size: int, bits: int, signed: bool = False) -> int:
    """Bytes that each of `count` clients sends in a round without dropouts, all messages together."""
    word = 4 if bits <= 32 else 8
    keys = KEYS.size - CLIENT.size
    signatures = 64 + START + 64 if signed else 0  # of the keys, and of the survivors in a separate message
    return 4 * START + keys + DEALER.size + (count - 1) * BOX.size + size * word + count * PIECE.size + signatures


def words_of(values: Integers, terms: Terms) -> Words:
    """Signed numbers as words modulo 2^bits."""
    if values.shape != (terms.size,) or values.dtype != np.int64:
        raise ValueError(
            f"values must be int64 of shape ({terms.size},) (got {values.dtype} {values.shape}); "
            "round them to the grid first"
        )
    return wrap(values.astype(np.uint64), terms.bits).astype(terms.word)


def wrap(words: Words, bits: int) -> Words:
    wrapped: Words = words & words.dtype.type(2**bits - 1)
    return wrapped


def centred(words: Words, bits: int) -> Integers:
    half = 2 ** (bits - 1)
    centred: Integers = (wrap(words, bits).astype(np.int64) ^ half) - half
    return centred


def parse_records(kind: str, layout: struct.Struct, body: bytes) -> Sequence[tuple[Any, ...]]:
    """The records of a body; the first field of each is a client, which may occur once."""
    if len(body) % layout.size:
        raise ValueError(
            f"{kind} message is truncated: {len(body)} bytes are not a multiple of the record size {layout.size}"
        )
    records = list(layout.iter_unpack(body))
    if len({record[0] for record in records}) != len(records):
        raise ValueError(f"{kind} message names a client twice; each client must have one record")
    return records


def _checksum(header: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(body)
    return digest.digest()[:CHECKSUM]


def check_addressee(kind: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{kind} message is addressed to {found}, expected {expected}: it went to the wrong client")


def check_keys(client: int, keys: bytes) -> None:
    """Reject public keys that give no secret, or that are a second encoding of another key."""
    for key in (keys[:32], keys[32:]):
        # The first kind would make the exchange fail for all clients; the second could be a copy of another's key.
        if not shamir.is_element(key) or int.from_bytes(key, "little") in LOW_ORDER:
            raise ValueError(f"client {client} has a public key that gives no secret: it cannot participate")


def check_signature(publics: Mapping[int, bytes], client: int, statement: bytes, signature: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if client not in publics:
        raise ValueError(f"client {client} has no known identity: it may be invented; exchange identity keys first")
    try:
        Ed25519PublicKey.from_public_bytes(publics[client]).verify(signature, statement)
    except InvalidSignature:
        raise ValueError(
            f"the signature of client {client} is invalid: it is by another key or of another statement, for example "
            "because the client received another request"
        ) from None


def check_ids(ids: Iterable[int]) -> None:
    for client in ids:
        if not 0 <= client < EVERYBODY:
            raise ValueError(f"client id must be between 0 and 2^32 - 2 (got {client})")


def check_bits(bits: int) -> None:
    if not 16 <= bits <= 62:
        raise ValueError(f"bits must be between 16 and 62 (got {bits}); 32 is usual")


@cache
def primitives() -> tuple[type[HKDF], SHA256, type[ChaCha20Poly1305]]:
    """The primitives that are called for every pair of clients; imported once, since an import statement takes time."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise missing_extra("secure aggregation needs the package cryptography", "privacy") from error
    return HKDF, SHA256(), ChaCha20Poly1305
