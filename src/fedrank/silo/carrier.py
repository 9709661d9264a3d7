"""Whoever carries letters between organisations: it cannot open them, and checks and follows their addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedrank.silo.keys import fingerprint
from fedrank.silo.letters import read_address
from fedrank.wire import Refused


@dataclass
class LetterCarrier:
    """Knows organisations by name and public key, in their order."""

    publics: Mapping[str, bytes]
    name_of: dict[str, str] = field(init=False)  # by the fingerprint that letters are addressed to

    def __post_init__(self) -> None:
        self.name_of = {fingerprint(key): name for name, key in self.publics.items()}

    def check(self, kind: str, sent: Sequence[bytes], name: str) -> None:
        """Refuse letters that do not come from whom they say, or go to nobody else who takes part."""
        me = fingerprint(self.publics[name])
        for letter in sent:
            address = read_address(letter)
            if address.kind != kind or address.sender != me or address.addressee not in self.name_of.keys() - {me}:
                raise Refused(f"a letter of kind {address.kind} from or to somebody else")
        if kind == "model" and len(sent) != 1:
            raise Refused(f"{len(sent)} models came, and one was expected")

    def deliver(self, sent: Mapping[str, Sequence[bytes]]) -> dict[str, list[bytes]]:
        """Letters by whom they are for, in the order of senders."""
        boxes: dict[str, list[bytes]] = {name: [] for name in self.publics}
        for name in self.publics:
            for letter in sent[name]:
                boxes[self.name_of[read_address(letter).addressee]].append(letter)
        return boxes
