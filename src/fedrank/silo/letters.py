"""Letters between silos: encrypted end to end, so the coordinator that delivers them reads only the address.

A letter is `ENVELOPE` (format, version, kind, sender, addressee, bytes that follow), a nonce, and the content under
ChaCha20-Poly1305 with a key that only sender and addressee can compute, one for each direction and kind. The envelope
is authenticated too. Contents are padded to hide their exact length (at most 12 % are added beyond the first kilobyte,
by the rule "Padmé" of Nikitin et al., PETS 2019). Invalid letters raise `wire.Refused`, as all messages do; the
envelope differs from that of messages, because the coordinator must read names in it and must not see which answer
belongs to which question, and because the cipher detects every change.

The coordinator learns sender, addressee, time and rounded size of each letter. It can hold letters back and repeat
them; an answer names its question. Keys are not renewed within a run: with a stolen secret key, letters that were
recorded before can be read.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedrank.silo.keys import NONCE, aead, fingerprint, pair_key, public_of
from fedrank.wire import Refused

VERSION = 3  # 1 asked about one field at a time, and not for document frequencies; 2 had fingerprints of 64 bits
FORMAT = b"FRSL"
Kind = Literal["question", "answer", "model"]
KINDS: dict[Kind, int] = {"question": 1, "answer": 2, "model": 3}
NAME = 40  # maximum length of a silo's name in bytes: a fingerprint in groups has 39
ENVELOPE = struct.Struct(f"<4sBB{NAME}s{NAME}sI")
LONGEST = {"question": 1 << 20, "answer": 1 << 28, "model": 1 << 20}  # maximum bytes; a longer one may be malicious
SMALLEST = 1024  # bytes that every content is padded to
_LENGTH = struct.Struct("<I")
_TAG = 16  # bytes that the cipher adds


@dataclass(frozen=True)
class Party:
    """A silo that writes letters: its name, its secret key, and the public keys of other silos."""

    name: str
    secret: bytes = field(repr=False)
    others: Mapping[str, bytes]  # by name

    def __post_init__(self) -> None:
        check_name(self.name)

    def key(self, kind: Kind, sender: str, addressee: str) -> bytes:
        other = addressee if sender == self.name else sender
        if other not in self.others:
            raise ValueError(f"{self.name!r} has no public key of {other!r}, so letters with it cannot be read or sent")
        names = (check_name(name).ljust(NAME, b"\0") for name in (sender, addressee))
        purpose = struct.pack("<B", KINDS[kind]) + b"".join(names)
        pair = pair_key(self.secret, self.others[other])
        return hashlib.blake2b(purpose, key=pair, digest_size=32, person=b"fedrank letter").digest()


def party(secret: bytes, others: Sequence[bytes]) -> Party:
    """A silo whose name is the fingerprint of its public key."""
    return Party(fingerprint(public_of(secret)), secret, {fingerprint(public): public for public in others})


@dataclass(frozen=True)
class Address:
    """The part of a letter that is not encrypted."""

    kind: Kind
    sender: str
    addressee: str
    size: int  # bytes of the whole letter


def seal(content: bytes, kind: Kind, sender: Party, addressee: str) -> bytes:
    """A letter that only the addressee can open."""
    plain = _LENGTH.pack(len(content)) + content
    plain += bytes(padded(len(plain)) - len(plain))
    body = NONCE + len(plain) + _TAG
    if ENVELOPE.size + body > LONGEST[kind]:
        raise ValueError(
            f"a {kind} of {ENVELOPE.size + body:,} bytes is longer than {LONGEST[kind]:,}, the maximum size; "
            "ask for fewer terms or documents at a time"
        )
    names = check_name(sender.name), check_name(addressee)
    envelope = ENVELOPE.pack(FORMAT, VERSION, KINDS[kind], *names, body)
    nonce = os.urandom(NONCE)
    key = sender.key(kind, sender.name, addressee)
    return envelope + nonce + aead(key).encrypt(nonce, plain, envelope)


def read_address(letter: bytes) -> Address:
    """The envelope of a letter; one that is too long, truncated, of another version or invalid is refused."""
    if len(letter) < ENVELOPE.size:
        raise Refused(f"{len(letter)} bytes are less than an envelope ({ENVELOPE.size}): the letter is truncated")
    form, version, number, sender, addressee, body = ENVELOPE.unpack_from(letter)
    if form != FORMAT:
        raise Refused(f"the bytes begin with {form!r}, so they are not a letter between silos")
    if version != VERSION:
        older = "this side" if version > VERSION else "the sender"
        raise Refused(f"the letter has version {version}, but this fedrank reads version {VERSION}; update {older}")
    kind = next((name for name, value in KINDS.items() if value == number), None)
    if kind is None:
        raise Refused(
            f"the letter has the unknown kind {number}: it is damaged, or the sender is newer; update fedrank"
        )
    if len(letter) > LONGEST[kind]:
        raise Refused(f"a {kind} of {len(letter):,} bytes is longer than the maximum of {LONGEST[kind]:,}")
    if body != len(letter) - ENVELOPE.size:
        raise Refused(
            f"the {kind} must have {body:,} bytes (got {len(letter) - ENVELOPE.size:,}): it is truncated or damaged; "
            "ask for it again"
        )
    return Address(kind, _name(sender), _name(addressee), len(letter))


def unseal(letter: bytes, kind: Kind, me: Party, own: bool = False) -> tuple[str, bytes]:
    """Sender and content of a letter to `me`; or, of an `own` letter, its addressee and content."""
    address = read_address(letter)
    if address.kind != kind:
        raise Refused(f"expected a letter of kind {kind}, got one of kind {address.kind} from {address.sender!r}")
    mine, other = (address.sender, address.addressee) if own else (address.addressee, address.sender)
    if mine != me.name:
        went = f"a letter to {mine!r} came to {me.name!r}; the coordinator must deliver it there"
        raise Refused(
            f"the letter is from {mine!r}, not from {me.name!r}; give a letter of {me.name!r}" if own else went
        )
    key = me.key(kind, address.sender, address.addressee)
    from cryptography.exceptions import InvalidTag

    nonce, closed = letter[ENVELOPE.size : ENVELOPE.size + NONCE], letter[ENVELOPE.size + NONCE :]
    try:
        plain = aead(key).decrypt(nonce, closed, letter[: ENVELOPE.size])
    except InvalidTag:
        raise Refused(
            f"a letter from {address.sender!r} cannot be decrypted: it was changed, or one side has an old key of "
            "the other; compare fingerprints"
        ) from None
    length = _LENGTH.unpack_from(plain)[0] if len(plain) >= _LENGTH.size else len(plain)
    if length > len(plain) - _LENGTH.size:
        raise Refused(
            f"the letter from {address.sender!r} has fewer than the {length:,} bytes that it declares; ask for it again"
        )
    return other, plain[_LENGTH.size : _LENGTH.size + length]


def padded(length: int) -> int:
    """The padded length: it has so few significant bits that lengths fall into a few classes.

    >>> padded(10), padded(2000), padded(1_000_000)
    (1024, 2048, 1015808)
    """
    if length <= SMALLEST:
        return SMALLEST
    exponent = length.bit_length() - 1
    free = exponent - exponent.bit_length()  # trailing bits that must be 0
    step = 1 << free
    return -(-length // step) * step


def check_name(name: str) -> bytes:
    """The bytes of a silo's name, which must be printable and neither empty nor too long."""
    packed = name.encode()
    if not 1 <= len(packed) <= NAME or not name.isprintable():
        raise ValueError(f"{name!r} is not a valid name of a silo; use 1 to {NAME} bytes of printable text")
    return packed


def _name(packed: bytes) -> str:
    try:
        name = packed.rstrip(b"\0").decode()
        check_name(name)
    except ValueError:
        raise Refused(f"{packed!r} is not a valid name of a silo: the letter is damaged; ask for it again") from None
    return name


@dataclass
class LetterCarrier:
    """Delivers letters between organisations, which it knows by name and public key."""

    publics: Mapping[str, bytes]
    name_of: dict[str, str] = field(init=False)  # by the fingerprint that letters are addressed to

    def __post_init__(self) -> None:
        self.name_of = {fingerprint(key): name for name, key in self.publics.items()}

    def check(self, kind: str, sent: Sequence[bytes], name: str) -> None:
        """Refuse letters with a wrong kind or sender, or whose addressee does not participate."""
        me = fingerprint(self.publics[name])
        for letter in sent:
            address = read_address(letter)
            if address.kind != kind or address.sender != me or address.addressee not in self.name_of.keys() - {me}:
                raise Refused(f"a letter of kind {address.kind} has another sender or addressee than expected")
        if kind == "model" and len(sent) != 1:
            raise Refused(f"expected one model (got {len(sent)})")

    def deliver(self, sent: Mapping[str, Sequence[bytes]]) -> dict[str, list[bytes]]:
        """Letters by addressee, in the order of senders."""
        boxes: dict[str, list[bytes]] = {name: [] for name in self.publics}
        for name in self.publics:
            for letter in sent[name]:
                boxes[self.name_of[read_address(letter).addressee]].append(letter)
        return boxes
