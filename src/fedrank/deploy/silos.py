"""Organisations with documents: sketches told by sealed letters, and a model that goes from one to the next.

    keys -> shared key -> sketch, charged -> questions -> answers -> turns

The coordinator carries letters that it cannot open: sites seal them with keys of this run, which each has signed with
the identity that the plan names and that somebody has compared. Each step is answered once: what leaves lies in the
outbox before, and whoever asks again gets the same bytes. A turn is that of `fedrank silo train`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.data.collection import Collection, read_collection
from fedrank.deploy import protocol
from fedrank.deploy.identity import IdentityKey, verify
from fedrank.deploy.outbox import Outbox, Sent
from fedrank.deploy.plan import Plan, PlannedSite, check_plan, names_digest, silo_problems
from fedrank.deploy.settings import SiteSettings
from fedrank.experiments.spec.experiment import SpecError, to_tables
from fedrank.experiments.spec.federated import ELSEWHERE
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.toml import write_toml
from fedrank.files import private_folder, write_whole
from fedrank.silo.features import FEATURE_NAMES
from fedrank.silo.files import SketchFile, ledger_of, open_owned, sketch_collection
from fedrank.silo.keys import fingerprint, new_identity, new_key, open_key, read_key, read_public, read_secret, wrap_key
from fedrank.silo.letters import Party, party
from fedrank.silo.protocol import Owner, ask_all
from fedrank.silo.protocol import answer as answer_letter
from fedrank.silo.spending import Limits
from fedrank.silo.training import CrossSilo
from fedrank.silo.turns import Turn, load_partners, read_turn, save_turn, seal_turn, take_turn
from fedrank.wire import Label, Part, Refused

STEPS = {"silo-key": 1, "silo-meet": 2, "silo-open": 3, "silo-ask": 4, "silo-answer": 5, "silo-hear": 6}
FIRST_TURN = 7  # and one more for each turn
SIGNED_KEY = 32 + 64  # bytes: a public key, and its signature
WRAPPED_KEY = 256  # bytes, at most
MOST_LETTERS = 4096  # that come together
SILO, SKETCH, ABOUT, SECRET, SHARED = "silo", "own.sketch", "own.json", "silo.secret", "shared.key"


def silo_plan(
    experiment: SiloExperiment,
    name: str,
    sites: Sequence[PlannedSite],
    *,
    federation: str,
    fold: int = 1,
    seed: int = 1,
) -> Plan:
    """The plan of a run in which organisations train through sketches; nobody may be missing."""
    if found := silo_problems(experiment, len(sites)):
        raise SpecError(found)
    method = experiment.method
    assert isinstance(method, CrossSilo)
    plan = Plan(
        federation,
        name,
        write_toml(to_tables(experiment) | {"data": {"name": ELSEWHERE}}),
        fold,
        seed,
        tuple(sorted(sites, key=lambda site: site.clients)),
        len(FEATURE_NAMES),
        names_digest(FEATURE_NAMES),
        "query" if method.normalise == "query" else "global",
        len(sites),
    )
    check_plan(plan)
    return plan


def turns_of(names: Sequence[str], rounds: int) -> list[Turn]:
    """Who trains when, in the order of the simulation: last in one round and first in the next is one turn of two."""
    order: list[Turn] = []
    for round in range(1, rounds + 1):
        for silo in np.roll(np.arange(len(names)), -round).tolist():
            if order and order[-1].party == names[silo]:
                order[-1] = replace(order[-1], passes=order[-1].passes + 1)
            else:
                order.append(Turn(names[silo], 1))
    return order


def checked_keys(plan: Plan, pieces: Sequence[bytes]) -> list[bytes]:
    """The public keys of all sites, in their order, each signed by the identity that the plan names."""
    if len(pieces) != len(plan.sites):
        raise Refused(f"{len(pieces)} keys came for {len(plan.sites)} sites")
    for site, piece in zip(plan.sites, pieces, strict=True):
        if len(piece) != SIGNED_KEY or not verify(site.identity, _signed(plan, piece[:32]), piece[32:]):
            raise Refused(f"the key of {site.name} for letters is not signed by the identity that the plan has of it")
    keys = [piece[:32] for piece in pieces]
    if len(set(keys)) != len(keys):
        raise Refused("two sites have one key for letters, so that one pretends to be two")
    return keys


def _signed(plan: Plan, public: bytes) -> bytes:
    return b"fedrank key for letters of a run\n" + plan.run + public


@dataclass
class SiloRun:
    """What a site has open of one run of organisations with documents."""

    folder: Path
    settings: SiteSettings
    plan: Plan
    experiment: SiloExperiment
    outbox: Outbox
    identity: IdentityKey
    log: Callable[[str], None]
    collection: Collection
    data: bytes  # digest of documents, queries and judgements

    place = None  # nothing is added up
    reported = ()  # no measures of own queries are told

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: SiteSettings,
        plan: Plan,
        outbox: Outbox,
        identity: IdentityKey,
        log: Callable[[str], None],
    ) -> SiloRun:
        experiment, documents = plan.silos, settings.data.documents
        assert experiment is not None
        if documents is None:
            raise Refused("this site has no documents to sketch: its site.toml names none")
        if unknown := [site.name for site in plan.sites if not site.identity]:
            raise Refused(f"the plan has no key of {', '.join(unknown)}, and letters need everybody's")
        if plan.party(settings.name).identity != identity.public:
            raise Refused("the plan has another key for this site than its own")
        home = Path(documents).parent
        data = _digest(home)
        if (last := outbox.get(outbox.last)) is not None and last.data != data:
            raise Refused(
                "the data of this site have changed since it took part in this run; bring back those of before, or "
                "begin another run"
            )
        return cls(folder, settings, plan, experiment, outbox, identity, log, read_collection(home), data)

    @property
    def facts(self) -> dict[str, Any]:
        plan, top = self.plan, max(self.collection.top_grade, 1)
        names, normalised = plan.feature_names, plan.normalised  # which fedrank itself computes, alike everywhere
        return {"features": plan.features, "feature_names": names, "normalised": normalised, "top_grade": top}

    @property
    def steps(self) -> int:
        """Requests of this run that have a number."""
        return FIRST_TURN - 1 + len(turns_of([site.name for site in self.plan.sites], self.experiment.rounds))

    def close(self) -> None:
        """Nothing is open."""

    def hear(self, over: int) -> None:
        """What was told was paid when it was sketched, and the ledger lies beside the sketch."""

    def complete(self, path: Path) -> None:
        """The model is the same for everybody."""

    def answer(self, label: Label, content: bytes) -> bytes:
        """One step of the run; what leaves is on the disk before, and the same when it is asked for again."""
        number = STEPS.get(label.kind, label.round)
        if label.round != number or (label.kind == "silo-turn") != (number >= FIRST_TURN):
            raise Refused(f"it is of step {label.round}, and {label.kind} is not")
        asked, before = hashlib.sha256(content).digest(), self.outbox.get(number)
        if before is not None and before.call != asked:
            raise Refused(f"step {number} was answered here for another request, and is not answered twice")
        if before is not None:
            return before.answer
        parts = {"letters": Part("|S", protocol.LARGEST_MODEL), "top": Part("<i8", 1)}
        _, found = wire.unpack(content, Label(label.kind, label.run, number), parts)
        came = protocol.unbundle(found["letters"], MOST_LETTERS, protocol.LARGEST_MODEL)
        try:
            sent = _DOES[label.kind](self, came, number - FIRST_TURN, int(found["top"][0]))
        except Refused:
            raise
        except ValueError as problem:
            self.log(f"{label.kind}: {problem}")
            raise Refused(f"{label.kind} cannot be done here; the log of this site says why") from None
        made = protocol.reply("letters", label, self.settings.id, letters=protocol.bundle(sent))
        kept = found["letters"] if label.kind in ("silo-meet", "silo-hear") else b""
        self.outbox.put(Sent(number, 0, asked, made, kept, np.empty(0), self.data))
        return made

    # The steps: what came, the number of the turn, the highest grade of all -> what leaves

    def _key(self, came: list[bytes], turn: int, top: int) -> list[bytes]:
        path = self.outbox.folder / SECRET
        if not path.exists():
            path.with_suffix(".public").unlink(missing_ok=True)
            new_identity(path)
        public = read_public(path.with_suffix(".public"))
        return [public + self.identity.sign(_signed(self.plan, public))]

    def _meet(self, came: list[bytes], turn: int, top: int) -> list[bytes]:
        """Take everybody's keys for letters; the first site wraps the key of all sketches for the others."""
        keys = checked_keys(self.plan, came)
        own = read_public(self.outbox.folder / Path(SECRET).with_suffix(".public"))
        if keys[self._place] != own:
            raise Refused("it brings another key than this site's own")
        if self._place != 0:
            return []
        path = private_folder(self.folder / SILO) / SHARED
        shared = read_key(path) if path.exists() else new_key(path)
        secret = read_secret(self.outbox.folder / SECRET)
        return [wrap_key(shared, secret, public) for public in keys[1:]]

    def _open(self, came: list[bytes], turn: int, top: int) -> list[bytes]:
        """Take the key of all sketches. What was sketched under another one is sketched anew, and charged."""
        if self._place == 0:
            return []
        if len(came) != 1 or len(came[0]) > WRAPPED_KEY:
            raise Refused("it brings no wrapped key")
        path, apart = private_folder(self.folder / SILO) / SHARED, self.outbox.folder / SHARED
        apart.unlink(missing_ok=True)
        open_key(came[0], self.me.secret, self._keys[0], apart)
        apart.replace(path)
        return []

    def _ask(self, came: list[bytes], turn: int, top: int) -> list[bytes]:
        """Questions to all others about the words of own queries, after the own documents were sketched and charged."""
        self._sketch()
        sketcher, queries = self.method.sketcher, self.collection.queries
        others = [name for name in self.names if name != self.me.name]
        return [asked.letter for one in others for asked in ask_all(queries, one, self.me, sketcher, self.shared)]

    def _answer(self, came: list[bytes], turn: int, top: int) -> list[bytes]:
        file = self._sketch()
        owner = Owner(self.me, file, ledger_of(file))
        return [answer_letter(letter, owner) for letter in came]

    def _hear(self, came: list[bytes], turn: int, top: int) -> list[bytes]:
        with TemporaryDirectory(dir=self.outbox.folder) as apart:
            self._partners(Path(apart), came)
        return []

    def _turn(self, came: list[bytes], turn: int, top: int) -> list[bytes]:
        turns = turns_of(self.names, self.experiment.rounds)
        if not 0 <= turn < len(turns) or turns[turn].party != self.me.name:
            raise Refused(f"turn {turn + 1} is not that of this site")
        if len(came) != min(turn, 1):
            raise Refused(f"{len(came)} models came with turn {turn + 1}")
        heard = self.outbox.get(STEPS["silo-hear"])
        if heard is None:
            raise Refused("no answers of partners have come yet")
        method = self.method
        chosen: dict[str, Any] = {name: getattr(method, name) for name in ("k", "rate", "batch", "normalise")}
        chosen |= {"seed": self.plan.seed, "top_grade": top}
        with TemporaryDirectory(dir=self.outbox.folder) as apart:
            answers = protocol.unbundle(heard.values, MOST_LETTERS, protocol.LARGEST_MODEL)
            partners = self._partners(Path(apart), answers)
            path, model = Path(apart) / "turn", None
            if came:
                path.write_bytes(came[0])
                model = read_turn(path, self.me)
                if list(model.turns) != turns[:turn]:
                    raise Refused(f"the model that came has other turns behind it than the {turn} of the plan")
            taken = take_turn(self.collection, self.me, partners, model, chosen, turns[turn].passes)
            rivals = ", ".join(f"{one.name} {one.quality:.4f}" for one in taken.next_to)
            self.log(f"turn {turn + 1}: nDCG@10 {taken.quality:.4f} on own queries that were kept aside; {rivals}")
            save_turn(taken.model, path)
            if turn + 1 == len(turns):
                return [path.read_bytes()]  # the last one is everybody's, and the coordinator's
            return [seal_turn(path, self.me, turns[turn + 1].party)]

    # What they need

    @property
    def method(self) -> CrossSilo:
        assert isinstance(self.experiment.method, CrossSilo)
        return self.experiment.method

    @cached_property
    def _place(self) -> int:
        return [site.name for site in self.plan.sites].index(self.settings.name)

    @property
    def _keys(self) -> list[bytes]:
        met = self.outbox.get(STEPS["silo-meet"])
        if met is None:
            raise Refused("keys of partners have not come yet")
        return [piece[:32] for piece in protocol.unbundle(met.values, len(self.plan.sites), SIGNED_KEY)]

    @cached_property
    def me(self) -> Party:
        keys = self._keys
        return party(
            read_secret(self.outbox.folder / SECRET), [key for at, key in enumerate(keys) if at != self._place]
        )

    @cached_property
    def names(self) -> list[str]:
        """By which parties know each other in letters, in the order in which they take turns."""
        return sorted(map(fingerprint, self._keys))

    @property
    def shared(self) -> bytes:
        path = self.folder / SILO / SHARED
        if not path.exists():
            raise Refused("the key of all sketches has not come yet")
        return read_key(path)

    def _sketch(self) -> SketchFile:
        """The own sketch: one for all runs with this key, these settings and documents, since noise is paid once."""
        path = private_folder(self.folder / SILO) / SKETCH
        sketcher, about = self.method.sketcher, path.with_name(ABOUT)
        made = {
            "data": self.data.hex(),
            "key": fingerprint(self.shared),
            "settings": repr((sketcher, self.method.rule)),
        }
        if path.exists() and about.exists() and json.loads(about.read_bytes()) == made:
            return open_owned(path)
        about.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        policy = self.settings.policy
        limits = Limits(total=policy.largest_epsilon, delta=policy.delta)
        try:
            sketch_collection(
                self.collection.documents, self.shared, sketcher, path, rule=self.method.rule, limits=limits
            )
        except ValueError as problem:
            self.log(f"the documents cannot be sketched: {problem}")
            raise Refused("the documents of this site cannot be sketched, or its budget does not pay for it") from None
        write_whole(about, json.dumps(made) + "\n", private=True)
        return open_owned(path)

    def _partners(self, apart: Path, answers: Sequence[bytes]) -> Any:
        """What others answered to our questions."""
        asked = self.outbox.get(STEPS["silo-ask"])
        if asked is None:
            raise Refused("nothing was asked here")
        label = Label("letters", self.plan.run, STEPS["silo-ask"], 0, self.settings.id)
        sent = protocol.read(asked.answer, label, {"letters": Part("|S", protocol.LARGEST_MODEL)})["letters"]
        questions = protocol.unbundle(sent, MOST_LETTERS, protocol.LARGEST_MODEL)
        files: dict[str, list[Path]] = {"question": [], "answer": []}
        for kind, pieces in (("question", questions), ("answer", answers)):
            for number, piece in enumerate(pieces):
                files[kind].append(apart / f"{kind}-{number}")
                files[kind][-1].write_bytes(piece)
        return load_partners(files["answer"], files["question"], self.me, self.shared, self.collection.queries)


_DOES: dict[str, Callable[[SiloRun, list[bytes], int, int], list[bytes]]] = {
    "silo-key": SiloRun._key,
    "silo-meet": SiloRun._meet,
    "silo-open": SiloRun._open,
    "silo-ask": SiloRun._ask,
    "silo-answer": SiloRun._answer,
    "silo-hear": SiloRun._hear,
    "silo-turn": SiloRun._turn,
}


def _digest(folder: Path) -> bytes:
    """Of documents, queries and judgements, as the files of a collection hold them."""
    made = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name.startswith(("corpus.jsonl", "queries.jsonl", "qrels")):
            with path.open("rb") as file:
                made.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return made.digest()
