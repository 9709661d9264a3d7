"""The steps of one organisation in training across document collections, for any transport of letters.

    public key -> shared key -> sketch, charged -> questions -> answers -> turns

All organisations use one order of public keys; `index` is the position of the own one. Invalid input raises `Refused`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.collection import Collection
from fedrank.files import private_folder, write_atomic
from fedrank.ranking.model import Model
from fedrank.silo.files import SketchFile, ledger_of, open_sketch, sketch_collection
from fedrank.silo.keys import fingerprint, new_identity, new_key, open_key, read_key, read_public, read_secret, wrap_key
from fedrank.silo.letters import Party, party
from fedrank.silo.protocol import Owner, answer, ask_all
from fedrank.silo.spending import Limits
from fedrank.silo.training import CrossSilo
from fedrank.silo.turns import (
    KnownPartner,
    Turn,
    as_model,
    known_partners,
    open_turn,
    read_open_turn,
    read_turn,
    seal_turn,
    take_turn,
)
from fedrank.wire import Refused

SKETCH, ABOUT, SECRET, SHARED = "own.sketch", "own.json", "silo.secret", "shared.key"
WRAPPED_KEY = 256  # bytes, at most


def turn_order(names: Sequence[str], rounds: int) -> list[Turn]:
    """Turns in the order of the simulation; the last in one round and first in the next has one turn of two passes.

    >>> [(turn.party, turn.passes) for turn in turn_order(["a", "b"], 2)]
    [('b', 1), ('a', 2), ('b', 1)]
    """
    order: list[Turn] = []
    for round in range(1, rounds + 1):
        for silo in np.roll(np.arange(len(names)), -round).tolist():
            if order and order[-1].party == names[silo]:
                order[-1] = replace(order[-1], passes=order[-1].passes + 1)
            else:
                order.append(Turn(names[silo], 1))
    return order


def read_final_model(content: bytes, turns: Sequence[Turn], normalised: str) -> Model:
    """The open model after the last turn; refused if it differs from the plan."""
    try:
        found = read_open_turn(content)
    except ValueError as problem:
        raise Refused(f"the model cannot be read: {problem}") from None
    if list(found.turns) != list(turns):
        raise Refused("the turns of the model differ from those of the plan")
    if ("query" if found.agreement.normalise == "query" else "global") != normalised:
        raise Refused(f"the model has features normalised by {found.agreement.normalise!r}, unlike the plan")
    return as_model(found)


@dataclass(frozen=True)
class SiloMember:
    """An organisation with documents, its keys and its sketch."""

    collection: Collection
    data: bytes  # digest of documents, queries and judgements
    method: CrossSilo
    limits: Limits  # of what its sketches may cost
    home: Path  # of all runs: the key of all sketches, the own sketch and its ledger
    folder: Path  # of this run: the secret that opens letters
    index: int  # of this organisation among all
    log: Callable[[str], None] = lambda line: None

    # Keys

    def own_public(self) -> bytes:
        """The public key for letters of this run; it is created if it does not exist."""
        path = self.folder / SECRET
        if not path.exists():
            path.with_suffix(".public").unlink(missing_ok=True)
            new_identity(path)
        return read_public(path.with_suffix(".public"))

    def wrapped_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """At the first organisation: the shared key, wrapped for each of the others."""
        if keys[self.index] != read_public(self.folder / Path(SECRET).with_suffix(".public")):
            raise Refused("it has another key than this site's own")
        if self.index != 0:
            return []
        path = private_folder(self.home) / SHARED
        shared = read_key(path) if path.exists() else new_key(path)
        secret = read_secret(self.folder / SECRET)
        return [wrap_key(shared, secret, public) for public in keys[1:]]

    def open_shared(self, came: Sequence[bytes], keys: Sequence[bytes]) -> None:
        """Store the shared key of the first organisation.

        Documents that were sketched with another key are sketched again, and charged.
        """
        if len(came) != 1 or len(came[0]) > WRAPPED_KEY:
            raise Refused("it does not contain a wrapped key")
        path, apart = private_folder(self.home) / SHARED, self.folder / SHARED
        apart.unlink(missing_ok=True)
        open_key(came[0], self._party(keys).secret, keys[0], apart)
        apart.replace(path)

    # Letters

    def questions(self, keys: Sequence[bytes]) -> list[bytes]:
        """Questions to all others about the words of own queries, after own documents are sketched and charged."""
        self.sketch()
        me = self._party(keys)
        sketcher, queries = self.method.sketcher, self.collection.queries
        others = [name for name in party_names(keys) if name != me.name]
        return [asked.letter for one in others for asked in ask_all(queries, one, me, sketcher, self._shared())]

    def answers(self, letters: Sequence[bytes], keys: Sequence[bytes]) -> list[bytes]:
        """Answers from the own sketch to the questions of others."""
        file = self.sketch()
        ledger_of(file)  # raises where the ledger of a sketch is missing
        owner = Owner(self._party(keys), file)
        return [answer(letter, owner) for letter in letters]

    def check_answers(self, questions: Sequence[bytes], answers: Sequence[bytes], keys: Sequence[bytes]) -> None:
        """Refuse answers that cannot be read or belong to other questions."""
        self._partners(questions, answers, keys)

    # Training

    def check_turn(self, number: int, came: Sequence[bytes], rounds: int, keys: Sequence[bytes]) -> list[Turn]:
        """All turns, after checking that this one is of this site."""
        turns = turn_order(party_names(keys), rounds)
        if not 0 <= number < len(turns) or turns[number].party != self._party(keys).name:
            raise Refused(f"turn {number + 1} is not of this site")
        if len(came) != min(number, 1):
            raise Refused(f"turn {number + 1} came with {len(came)} models")
        return turns

    def take_turn(
        self,
        number: int,
        turns: Sequence[Turn],
        came: Sequence[bytes],  # the model of the previous turn; none begins a model
        questions: Sequence[bytes],
        answers: Sequence[bytes],
        keys: Sequence[bytes],
        *,
        seed: int,
        top_grade: int,
    ) -> bytes:
        """Train, and return the model: encrypted for the next organisation, or open after the last turn."""
        chosen: dict[str, Any] = {name: getattr(self.method, name) for name in ("k", "rate", "batch", "normalise")}
        chosen |= {"seed": seed, "top_grade": top_grade}
        me, model = self._party(keys), None
        if came:
            model = read_turn(came[0], me)
            if list(model.turns) != list(turns[:number]):
                raise Refused(f"the turns of the model that came differ from the {number} of the plan")
        partners = self._partners(questions, answers, keys)
        taken = take_turn(self.collection, me, partners, model, chosen, turns[number].passes)
        baselines = ", ".join(f"{name} {quality:.4f}" for name, quality in taken.baselines.items())
        self.log(f"turn {number + 1}: nDCG@10 {taken.quality:.4f} on held-out own queries; {baselines}")
        if number + 1 == len(turns):
            return open_turn(taken.model)  # every site and the coordinator get the last one
        return seal_turn(taken.model, me, turns[number + 1].party)

    # Parts

    def sketch(self) -> SketchFile:
        """The own sketch: one for all runs with equal key, settings and documents, since it is charged once."""
        path = private_folder(self.home) / SKETCH
        sketcher, about = self.method.sketcher, path.with_name(ABOUT)
        made = {
            "data": self.data.hex(),
            "key": fingerprint(self._shared()),
            "settings": repr((sketcher, self.method.rule)),
        }
        if path.exists() and about.exists() and json.loads(about.read_bytes()) == made:
            return open_sketch(path)
        about.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        documents, rule = self.collection.documents, self.method.rule
        try:
            sketch_collection(documents, self._shared(), sketcher, path, rule=rule, limits=self.limits)
        except ValueError as problem:
            self.log(f"the documents cannot be sketched: {problem}")
            raise Refused(
                "the documents of this site cannot be sketched, or its privacy budget does not allow it"
            ) from None
        write_atomic(about, json.dumps(made) + "\n", private=True)
        return open_sketch(path)

    def _party(self, keys: Sequence[bytes]) -> Party:
        others = [key for at, key in enumerate(keys) if at != self.index]
        return party(read_secret(self.folder / SECRET), others)

    def _shared(self) -> bytes:
        path = self.home / SHARED
        if not path.exists():
            raise Refused("the shared key has not arrived yet")
        return read_key(path)

    def _partners(
        self, questions: Sequence[bytes], answers: Sequence[bytes], keys: Sequence[bytes]
    ) -> list[KnownPartner]:
        """Partners, by their answers to own questions."""
        return known_partners(answers, questions, self._party(keys), self._shared(), self.collection.queries)


def party_names(keys: Sequence[bytes]) -> list[str]:
    """Names of organisations in letters, in the order of their turns."""
    return sorted(map(fingerprint, keys))
