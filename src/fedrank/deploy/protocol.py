"""Messages between coordinator and site, in the envelope of `fedrank.wire`. Unexpected content is refused.

hello    -> facts       the plan of a run and completed rounds; facts about the site
witness  -> letters     nothing; statements about journals follow the answer, as in every answer (see `heads`)
partners -> letters     public keys of all sites, before secure aggregation
round    -> answers     the call of a round; one message per client of the site
advertise, share, mask, sign, open -> letters      a round of secure aggregation, phase by phase
forest   -> answers     the trees of every client of the site, if sites merge forests
grow     -> grown       a message of the server half; histograms, if sites train one forest together
silo-key, silo-meet, silo-open, silo-ask, silo-answer, silo-hear, silo-turn -> letters     sealed letters to forward
merged   -> facts       the files of a merged model and its card, at the end
measure  -> measured    sums of measures of a model on the site's own queries, if its policy allows it
propensity, quality, gate -> facts      noised sums over the people of the site, released once (see `releases`)
propensities -> facts   the released swaps of all sites
result   -> facts       the model and its card, at the end; or the receipt of a site that left
anything -> refused     the reason, in one line
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
MAX_MODEL = 64 << 20  # maximum size of a model with its card, or of a forest, in bytes
# Both are compared by value.
NOT_CONFIRMED = "no other site has confirmed the journal of this site lately; ask the other sites for their statements"
SAY_HELLO = "no hello of this run was answered since the site was started; say hello first"
# The beginning of a refusal with a dealt schedule: what this site sent in this round is its only message.
PARTICIPATED = "this site has participated in this round"
# Prefixes of the refusals of a site that cannot work with its settings, data or folder until they are corrected.
SITE_FAILS = ("something is wrong at this site", "the site cannot be opened")
# Prefixes of a decision against a plan, which holds until a user of the site changes it.
REFUSED = ("this site refused run", "the policy of this site refuses the plan")
OVERHEAD = 4096  # bytes of a message besides its numbers
_LENGTH = struct.Struct("<I")
ASKED = np.dtype([("client", "<i8"), ("at", "<i8"), ("searches", "<i8")])  # at -1: it draws its queries
OBSERVED = np.dtype([("online", "<f8"), ("reward", "<f8")])


class Objection(Refused):
    """A site's refusal, with the reason it sent."""


@dataclass(frozen=True)
class Answers:
    """A site's answers to the call of a round."""

    messages: tuple[bytes, ...]
    observed: NDArray[Any]  # [clients] of OBSERVED, if people are simulated
    personal: NDArray[np.float64]  # state of the clients, one after the other, if people are simulated

    def pack(self, label: Label) -> bytes:
        parts = {"messages": bundle(self.messages), "observed": self.observed.tobytes()}
        return wire.pack(label, parts | {"personal": self.personal.tobytes()})

    @classmethod
    def unpack(cls, content: bytes, expected: Label, clients: int, largest: int, simulated: bool) -> Answers:
        """`largest` is the maximum size of a single message."""
        parts = {
            "messages": Part("|S", clients * (largest + _LENGTH.size)),
            "observed": Part("|S", clients * OBSERVED.itemsize if simulated else 0),
            "personal": Part("|S", clients * (2 * largest + OVERHEAD) if simulated else 0),
        }
        found = read(content, expected, parts)
        observed = np.frombuffer(found["observed"], OBSERVED) if len(found["observed"]) % 16 == 0 else None
        if observed is None or len(found["personal"]) % 8:
            raise Refused("its observations do not have the size of whole records")
        personal = np.frombuffer(found["personal"], "<f8").copy()
        return cls(tuple(unbundle(found["messages"], clients, largest)), observed, personal)


def request(kind: str, run: bytes, round: int = 0, attempt: int = 0, **parts: bytes) -> bytes:
    """A request of the coordinator."""
    return wire.pack(Label(kind, run, round, attempt), parts)


def reply(kind: str, to: Label, sender: int, **parts: bytes) -> bytes:
    return wire.pack(Label(kind, to.run, to.round, to.attempt, sender), parts)


def refusal(to: Label, sender: int, reason: str) -> bytes:
    """A refusal with its reason in one line of limited length."""
    text = " ".join(reason.split()).encode()[:MAX_REASON_LENGTH]
    return reply("refused", to, sender, reason=text)


def read(content: bytes, expected: Label, parts: Mapping[str, Part]) -> dict[str, Any]:
    """The parts of an answer; a site's refusal is raised with its reason."""
    label = wire.read_label(content)
    if label.kind == "refused":
        asked = Label("refused", expected.run, expected.round, expected.attempt, expected.sender)
        _, found = wire.unpack(content, asked, {"reason": Part("|S", MAX_REASON_LENGTH)})
        raise Objection(printable(found["reason"].decode("utf-8", "replace")))
    _, found = wire.unpack(content, expected, parts)
    return found


def facts(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found, sort_keys=True, ensure_ascii=False).encode()


def sums(found: Sequence[float]) -> bytes:
    """Facts with the sums of a release; their length does not depend on the numbers."""
    return f'{{"sums": [{", ".join(f"{one: .16e}" for one in found)}]}}'.encode()


def read_facts(content: bytes, expected: Label) -> dict[str, Any]:
    """Facts that a site reports; the caller checks each value."""
    text = read(content, expected, {"facts": Part("|S", MAX_FACTS)})["facts"]
    try:
        found = parse_json(text)
    except ValueError as problem:
        raise Refused(f"its facts cannot be read: {problem}") from None
    if not isinstance(found, dict):
        raise Refused("its facts must be a JSON object")
    return found


def bundle(pieces: Sequence[bytes]) -> bytes:
    """Pack several pieces into one."""
    return b"".join(_LENGTH.pack(len(piece)) + piece for piece in pieces)


def unbundle(content: bytes, most: int, largest: int) -> list[bytes]:
    """Unpack the pieces, at most `most`, each at most `largest` bytes long."""
    pieces: list[bytes] = []
    at = 0
    while at < len(content):
        if len(pieces) == most or at + _LENGTH.size > len(content):
            raise Refused(f"it contains more than {most} pieces, or its end is missing")
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        if length > largest or at + length > len(content):
            raise Refused(f"a piece is too long ({length} bytes; at most {largest})")
        pieces.append(content[at : at + length])
        at += length
    return pieces
