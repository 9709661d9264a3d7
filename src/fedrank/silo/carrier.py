"""Delivery of sealed letters between organisations: only their addresses are read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedrank.silo.keys import fingerprint
from fedrank.silo.letters import read_address
from fedrank.wire import Refused


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
