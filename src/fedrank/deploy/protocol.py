"""What coordinator and site say to each other, on the envelope of `fedrank.wire`. Whatever does not fit is refused.

hello    -> facts       who takes part in what; does it fit?
partners -> letters     public keys of everybody, before a secure sum
round    -> answers     the call of a round; a message of every client of the site
advertise, share, mask, sign, open -> letters      a round of a secure sum, phase by phase
forest   -> answers     the trees that every client of the site has grown, where sites merge forests
grow     -> grown       a message of the half that decides splits; histograms, where sites grow one forest together
silo-key, silo-meet, silo-open, silo-ask, silo-answer, silo-hear, silo-turn -> letters     sealed ones, to carry
merged   -> facts       the files of a merged model and its card, at the end
measure  -> measured    sums of measures of a model on the site's own queries, where its policy allows it
result   -> facts       the model and its card, at the end; or the receipt of somebody who left
anything -> refused     why not, in one line
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.deploy.records import printable
from fedrank.files import parse_json
from fedrank.wire import Label, Part, Refused

PHASES = ("advertise", "share", "mask", "sign", "open")
MAX_REASON_LENGTH = 2000  # bytes
MAX_FACTS = 1 << 20  # bytes
MAX_MODEL = 64 << 20  # bytes of a model with its card, or of a forest
SAY_HELLO = "no hello of this run was answered since the site was started; say hello first"
# How a site begins that cannot work with its own settings, data or folder until its administrator corrects them.
SITE_FAILS = ("something is wrong at this site", "the site cannot be opened")
OVERHEAD = 4096  # bytes that a message may have besides its numbers
_LENGTH = struct.Struct("<I")
ASKED = np.dtype([("client", "<i8"), ("at", "<i8"), ("searches", "<i8")])  # at -1: it draws its queries
OBSERVED = np.dtype([("online", "<f8"), ("reward", "<f8")])


class Objection(Refused):
    """A site's own refusal: its reason, as it came over the wire."""


@dataclass(frozen=True)
class Answers:
    """What a site answers to the call of a round."""

    messages: tuple[bytes, ...]
    observed: NDArray[Any]  # [clients] of OBSERVED, where people are simulated
    personal: NDArray[np.float64]  # what clients keep, one after the other, where people are simulated

    def pack(self, label: Label) -> bytes:
        parts = {"messages": bundle(self.messages), "observed": self.observed.tobytes()}
        return wire.pack(label, parts | {"personal": self.personal.tobytes()})

    @classmethod
    def unpack(cls, content: bytes, expected: Label, clients: int, largest: int, simulated: bool) -> Answers:
        """`largest` is the longest that a single message can be."""
        parts = {
            "messages": Part("|S", clients * (largest + _LENGTH.size)),
            "observed": Part("|S", clients * OBSERVED.itemsize if simulated else 0),
            "personal": Part("|S", clients * (2 * largest + OVERHEAD) if simulated else 0),
        }
        found = read(content, expected, parts)
        observed = np.frombuffer(found["observed"], OBSERVED) if len(found["observed"]) % 16 == 0 else None
        if observed is None or len(found["personal"]) % 8:
            raise Refused("what it observed are no whole numbers of records")
        personal = np.frombuffer(found["personal"], "<f8").copy()
        return cls(tuple(unbundle(found["messages"], clients, largest)), observed, personal)


def request(kind: str, run: bytes, round: int = 0, attempt: int = 0, **parts: bytes) -> bytes:
    """What a coordinator sends."""
    return wire.pack(Label(kind, run, round, attempt), parts)


def reply(kind: str, to: Label, sender: int, **parts: bytes) -> bytes:
    return wire.pack(Label(kind, to.run, to.round, to.attempt, sender), parts)


def refusal(to: Label, sender: int, reason: str) -> bytes:
    """Why not, in one line, and no longer than anybody wants to read."""
    text = " ".join(reason.split()).encode()[:MAX_REASON_LENGTH]
    return reply("refused", to, sender, reason=text)


def read(content: bytes, expected: Label, parts: Mapping[str, Part]) -> dict[str, Any]:
    """The parts of an answer; a site's refusal is raised with its words."""
    label = wire.label_of(content)
    if label.kind == "refused":
        asked = Label("refused", expected.run, expected.round, expected.attempt, expected.sender)
        _, found = wire.unpack(content, asked, {"reason": Part("|S", MAX_REASON_LENGTH)})
        raise Objection(printable(found["reason"].decode("utf-8", "replace")))
    _, found = wire.unpack(content, expected, parts)
    return found


def facts(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found, sort_keys=True, ensure_ascii=False).encode()


def read_facts(content: bytes, expected: Label) -> dict[str, Any]:
    """What a site says of itself; whoever uses a value checks it."""
    text = read(content, expected, {"facts": Part("|S", MAX_FACTS)})["facts"]
    try:
        found = parse_json(text)
    except ValueError as problem:
        raise Refused(f"its facts cannot be read: {problem}") from None
    if not isinstance(found, dict):
        raise Refused("its facts are no table")
    return found


def bundle(pieces: Sequence[bytes]) -> bytes:
    """Several pieces as one."""
    return b"".join(_LENGTH.pack(len(piece)) + piece for piece in pieces)


def unbundle(content: bytes, most: int, largest: int) -> list[bytes]:
    """The pieces again: at most so many, each at most so long."""
    pieces: list[bytes] = []
    at = 0
    while at < len(content):
        if len(pieces) == most or at + _LENGTH.size > len(content):
            raise Refused(f"it bundles more than {most} pieces, or ends within one")
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        if length > largest or at + length > len(content):
            raise Refused(f"a piece of {length} bytes is too long: at most {largest}")
        pieces.append(content[at : at + length])
        at += length
    return pieces
