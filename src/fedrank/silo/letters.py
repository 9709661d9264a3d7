"""Letters between silos: sealed end to end, so that the relay in between reads the address and nothing else.

A letter is `ENVELOPE` (format, version, kind, sender, addressee, bytes that follow), a nonce, and the content under
ChaCha20-Poly1305 with a key that only sender and addressee can compute, one for each direction and kind. The envelope
is authenticated too. Contents are padded, so that their length is told only roughly (at most 12 % are added beyond the
first kilobyte, by the rule "Padmé" of Nikitin et al., PETS 2019). What does not fit is `wire.Refused`, as of everything
that travels; the envelope is another one, because a relay must read names in it and must not see which answer belongs
to which question, and because the cipher finds every change.

The relay learns who writes to whom, when, and how much, rounded up. It can hold letters back and repeat them: an owner
answers no question twice, and an answer names its question. Keys are not renewed: who steals a secret key can read the
letters that were recorded before; make new ones now and then.
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
NAME = 40  # bytes of a silo's name, at most: a fingerprint in groups has 39
ENVELOPE = struct.Struct(f"<4sBB{NAME}s{NAME}sI")
LONGEST = {
    "question": 1 << 20,
    "answer": 1 << 28,
    "model": 1 << 20,
}  # bytes of a letter; the sender of a longer one wants to harm us
SMALLEST = 1024  # bytes that every content is padded to
_LENGTH = struct.Struct("<I")
_TAG = 16  # bytes that the cipher adds


@dataclass(frozen=True)
class Party:
    """A silo that writes letters: its name, its secret key, and the public keys of those it knows."""

    name: str
    secret: bytes = field(repr=False)
    others: Mapping[str, bytes]  # by name

    def __post_init__(self) -> None:
        check_name(self.name)

    def key(self, kind: Kind, sender: str, addressee: str) -> bytes:
        other = addressee if sender == self.name else sender
        if other not in self.others:
            raise ValueError(
                f"{self.name!r} has no public key of {other!r}, so no letter of theirs can be read or sent"
            )
        names = (check_name(name).ljust(NAME, b"\0") for name in (sender, addressee))
        purpose = struct.pack("<B", KINDS[kind]) + b"".join(names)
        pair = pair_key(self.secret, self.others[other])
        return hashlib.blake2b(purpose, key=pair, digest_size=32, person=b"fedrank letter").digest()


def party(secret: bytes, others: Sequence[bytes]) -> Party:
    """A silo that is known by its key alone: names are fingerprints of public keys."""
    return Party(fingerprint(public_of(secret)), secret, {fingerprint(public): public for public in others})


@dataclass(frozen=True)
class Address:
    """What everybody reads on a letter."""

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
            f"a {kind} of {ENVELOPE.size + body:,} bytes is longer than {LONGEST[kind]:,}, and nobody would read it; "
            "ask for fewer terms or documents at a time"
        )
    names = check_name(sender.name), check_name(addressee)
    envelope = ENVELOPE.pack(FORMAT, VERSION, KINDS[kind], *names, body)
    nonce = os.urandom(NONCE)
    key = sender.key(kind, sender.name, addressee)
    return envelope + nonce + aead(key).encrypt(nonce, plain, envelope)


def read_address(letter: bytes) -> Address:
    """The envelope of a letter; one that is too long, cut short, of another version or no letter at all is refused."""
    if len(letter) < ENVELOPE.size:
        raise Refused(f"{len(letter)} bytes are less than an envelope ({ENVELOPE.size}): the letter was cut short")
    form, version, number, sender, addressee, body = ENVELOPE.unpack_from(letter)
    if form != FORMAT:
        raise Refused(f"begins with {form!r}, so it is no letter between silos; send it elsewhere")
    if version != VERSION:
        older = "this side" if version > VERSION else "the sender"
        raise Refused(f"a letter of version {version}, and this fedrank reads version {VERSION}; update {older}")
    kind = next((name for name, value in KINDS.items() if value == number), None)
    if kind is None:
        raise Refused(f"a letter of the unknown kind {number}; it was damaged, or the sender is newer: update")
    if len(letter) > LONGEST[kind]:
        raise Refused(f"a {kind} of {len(letter):,} bytes is longer than {LONGEST[kind]:,} and was not read")
    if body != len(letter) - ENVELOPE.size:
        raise Refused(
            f"a {kind} that promises {body:,} bytes and has {len(letter) - ENVELOPE.size:,}: cut short or damaged; "
            "ask for it again"
        )
    return Address(kind, _name(sender), _name(addressee), len(letter))


def unseal(letter: bytes, kind: Kind, me: Party, own: bool = False) -> tuple[str, bytes]:
    """Sender and content of a letter to me; or, if it is my `own`, its addressee and content."""
    address = read_address(letter)
    if address.kind != kind:
        raise Refused(f"expected a letter of kind {kind}, got one of kind {address.kind} from {address.sender!r}")
    mine, other = (address.sender, address.addressee) if own else (address.addressee, address.sender)
    if mine != me.name:
        went = f"a letter to {mine!r} came to {me.name!r}; the relay should send it there"
        raise Refused(f"a letter of {mine!r}, and you are {me.name!r}; give your own" if own else went)
    key = me.key(kind, address.sender, address.addressee)
    from cryptography.exceptions import InvalidTag

    nonce, closed = letter[ENVELOPE.size : ENVELOPE.size + NONCE], letter[ENVELOPE.size + NONCE :]
    try:
        plain = aead(key).decrypt(nonce, closed, letter[: ENVELOPE.size])
    except InvalidTag:
        raise Refused(
            f"a letter from {address.sender!r} does not open: it was changed on the way, or one of you holds an old "
            "public key of the other; compare fingerprints"
        ) from None
    length = _LENGTH.unpack_from(plain)[0] if len(plain) >= _LENGTH.size else len(plain)
    if length > len(plain) - _LENGTH.size:
        raise Refused(f"a letter from {address.sender!r} promises {length:,} bytes of content and has fewer")
    return other, plain[_LENGTH.size : _LENGTH.size + length]


def padded(length: int) -> int:
    """The length that is sent in the place of this one: so few bits are left that lengths fall into a few classes.

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
    """The bytes of a silo's name; one that is empty, too long or hides something is refused."""
    packed = name.encode()
    if not 1 <= len(packed) <= NAME or not name.isprintable():
        raise ValueError(f"{name!r} cannot name a silo: use 1 to {NAME} bytes of text that can be printed")
    return packed


def _name(packed: bytes) -> str:
    try:
        name = packed.rstrip(b"\0").decode()
        check_name(name)
    except ValueError:
        raise Refused(f"{packed!r} is no name of a silo: the letter was damaged; ask for it again") from None
    return name
