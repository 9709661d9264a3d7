"""A dealt schedule: clients, or the persons of organisations, are dealt into rounds once, and take part in one each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.files import parse_json, read_bytes, write_atomic
from fedrank.seeds import Name, rng_for
from fedrank.types import SimulatedClients

DEAL = "deal.json"


@dataclass(frozen=True, eq=False)
class Deal:
    """Who participates in which round."""

    rounds: int
    round_of_each: NDArray[np.int64]  # [clients or persons], from 1

    @classmethod
    def of(cls, count: int, rounds: int, seed: int, *name: Name, which: str = "clients") -> Deal:
        """Deal this many clients or persons, keyed by a seed and a name; the sizes of two rounds differ by at most 1.

        >>> Deal.of(5, 2, 1).round_of_each.tolist()
        [1, 2, 1, 1, 2]
        """
        if count < rounds:
            raise ValueError(
                f"{count} {which} cannot be dealt into {rounds} rounds, because each takes part in one of them; use at "
                f"most {count} rounds"
            )
        groups = np.empty(count, np.int64)
        groups[rng_for(seed, "deal", *name).permutation(count)] = np.arange(count) % rounds + 1
        return cls(rounds, groups)

    @classmethod
    def of_persons(cls, clients: SimulatedClients, rounds: int, seed: int) -> Deal:
        """Every organisation deals its own persons."""
        assert clients.people is not None
        groups = np.empty(len(clients.people), np.int64)
        for id in clients.ids.tolist():
            own = np.flatnonzero(clients.people.client == id)
            groups[own] = cls.of(len(own), rounds, seed, id, which=f"persons of client {id}").round_of_each
        return cls(rounds, groups)

    def rows(self, round: int) -> NDArray[np.int64]:
        """The participants of a round."""
        if round > self.rounds:
            raise ValueError(f"round {round} has no participants: clients were dealt into {self.rounds} rounds")
        return np.flatnonzero(self.round_of_each == round)

    def keep(self, path: Path, data: str = "") -> None:
        """Write the list before anything is learned; refuse another list than the written one.

        `data` is a digest of the data of those who were dealt.
        """
        content = {"format": 1, "rounds": self.rounds, "data": data, "round_of_each": self.round_of_each.tolist()}
        if not path.exists():
            write_atomic(path, json.dumps(content) + "\n", private=True)
            return
        try:
            before = parse_json(read_bytes(path))
        except ValueError:
            before = None
        if before == content:
            return
        raise ValueError(
            f"{path} lists who participates in which round, and {self._difference(before, data)}; nothing was sent, "
            "and nothing is charged"
        )

    def _difference(self, before: object, data: str) -> str:
        if isinstance(before, dict) and isinstance(before.get("round_of_each"), list):
            listed, count = len(before["round_of_each"]), len(self.round_of_each)
            if before.get("rounds") != self.rounds:
                return (
                    f"{before.get('rounds')} rounds were dealt, and now there are {self.rounds}; use the earlier number"
                )
            if listed != count:
                return f"it lists {listed:,} participants, but there are {count:,}; newcomers wait for another run"
            if before.get("data") != data:
                return "the data have changed since then; restore the earlier data, newcomers wait for another run"
        return "it was changed afterwards; restore it from a backup"
