"""One model that organisations train in turns; documents, queries and judgements do not leave their organisation.

In its turn, an organisation makes lists as in CS-F-LTR from its own documents and from the answers of its partners,
trains on them, and passes the model on in a sealed letter. The notes of the model contain the agreed settings and the
turns so far. A turn depends on nothing else: the same letters give the same model, and turns in the order of
`CrossSilo` give the weights of the simulation, bit for bit.

The weights reveal information about the queries and documents that they were trained on; they are not protected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np

from fedrank.data.collection import Collection
from fedrank.data.text import Tokeniser
from fedrank.ranking.measures import Evaluator, average
from fedrank.ranking.model import Model, load_weights, save_model
from fedrank.ranking.rankers import Linear
from fedrank.silo.features import FEATURE_NAMES, Normalisation, ranges_of
from fedrank.silo.letters import LONGEST, Party, check_name, seal, unseal
from fedrank.silo.partners import Partner
from fedrank.silo.protocol import Answered, find_question, joined, read_answer, recall
from fedrank.silo.silos import SilosRule, make_silos
from fedrank.silo.sketch import Sketcher
from fedrank.silo.training import PARAMETERS, Local, SiloLists, silo_lists
from fedrank.types import Weights

LARGEST = 1e6  # of a weight
MAX_PASSES = 10_000  # of all turns together: every organisation also trains alone for as many passes, for comparison
MEASURE = "ndcg@10"


@dataclass(frozen=True)
class Agreement:
    """Settings that all organisations share: the first one sets them, and the notes of the model contain them."""

    parties: tuple[str, ...]  # fingerprints of their public keys, in order
    key: str  # fingerprint of the shared key, rows and cells
    kind: str  # of the sketches
    tokeniser: str
    top_grade: int  # highest relevance label of all organisations
    k: int = 150  # maximum number of documents of partners in the list of a query
    rate: float = 0.5  # of the SGD
    batch: int = 32  # documents of a step
    seed: int = 1  # of the order of documents, and of the choice of test queries
    normalise: Normalisation = "query"  # by list; or "fixed", which allows exporting the model

    def __post_init__(self) -> None:
        for name in self.parties:
            check_name(name)
        if len(self.parties) < 2 or list(self.parties) != sorted(set(self.parties)):
            raise ValueError(
                f"parties must be two or more names in order, each once (got {', '.join(self.parties) or 'none'})"
            )
        limits = {"top_grade": (1, 127), "k": (1, 100_000), "rate": (1e-9, 100.0), "batch": (1, 1_000_000)}
        for name, (least, most) in (limits | {"seed": (0, 2**63 - 1)}).items():
            value = getattr(self, name)
            if not least <= value <= most or (name != "rate" and type(value) is not int):
                kind = "a number" if name == "rate" else "an integer"
                raise ValueError(f"{name} must be {kind} from {least:g} to {most:g} (got {value!r})")
        if self.normalise not in get_args(Normalisation):
            raise ValueError(
                f"normalise must be {' or '.join(map(repr, get_args(Normalisation)))} (got {self.normalise!r})"
            )

    def as_dict(self) -> dict[str, Any]:
        """As in the notes of a model; `normalise` is left out where it has the default, as in version 0.1."""
        usual = {"normalise": "query"}
        return {name: value for name, value in asdict(self).items() if usual.get(name) != value}


@dataclass(frozen=True)
class Turn:
    """The training of one organisation."""

    party: str
    passes: int  # over its lists


@dataclass(frozen=True)
class TravellingModel:
    """A model, its settings, and the turns so far."""

    weights: Weights  # [17]; the last is the bias
    agreement: Agreement
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        for turn in self.turns:
            if turn.party not in self.agreement.parties or type(turn.passes) is not int or turn.passes < 1:
                raise ValueError(f"a turn of {turn.party!r} with {turn.passes!r} passes is not valid; ask for it again")
        if self.passes() > MAX_PASSES:
            raise ValueError(f"{self.passes():,} passes are more than the maximum of {MAX_PASSES:,}; begin a new model")
        if not (np.isfinite(self.weights).all() and np.abs(self.weights).max() <= LARGEST):
            raise ValueError(f"a weight exceeds {LARGEST:,.0f}; ask for the model again, or use a smaller rate")

    def passes(self, party: str | None = None) -> int:
        """Number of passes of one organisation, or of all."""
        return sum(turn.passes for turn in self.turns if party in (None, turn.party))


@dataclass(frozen=True)
class KnownPartner:
    """Another organisation, as its answers describe it."""

    owner: str
    partner: Partner
    sketcher: Sketcher  # of its sketch; an answer does not contain its noise
    fingerprint: bytes  # of key, width and depth

    @property
    def settings(self) -> dict[str, str]:
        """Settings that must be the same at all organisations."""
        sketcher = self.sketcher
        return {"kind": sketcher.kind, "tokeniser": sketcher.tokeniser.name, "key": self.fingerprint.hex()}


@dataclass(frozen=True)
class TakenTurn:
    """The model after a turn, and its quality on the held-out queries of this organisation."""

    model: TravellingModel
    quality: float  # mean nDCG@10
    baselines: Mapping[str, float]  # the same for other rankings of these queries


def known_partners(
    answers: Sequence[bytes], questions: Sequence[bytes], me: Party, key: bytes, queries: Sequence[str]
) -> list[KnownPartner]:
    """Partners by the letters that answer our questions about the words of queries, in the order of their names."""
    with _readable():
        asked = [recall(letter, me, key, queries) for letter in questions]
        letters: dict[str, list[Answered]] = {}
        for letter in answers:
            answered = read_answer(letter, find_question(letter, asked, me), me)
            letters.setdefault(answered.owner, []).append(answered)
        known = []
        for owner in sorted(letters):
            partner, question = joined(letters[owner]), letters[owner][0].question
            if not partner.documents:
                raise ValueError(f"{owner} has no documents; leave it out")
            known.append(KnownPartner(owner, partner, question.sketcher, question.fingerprint))
    return known


@contextmanager
def _readable() -> Iterator[None]:
    """Content that cannot be parsed is a ValueError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise ValueError(f"the content cannot be read ({problem!r}); ask for it again") from None


def take_turn(
    collection: Collection,
    me: Party,
    partners: Sequence[KnownPartner],
    model: TravellingModel | None = None,  # None: begin one
    chosen: Mapping[str, Any] | None = None,  # settings of an agreement; with a model they must be its own
    passes: int = 1,
) -> TakenTurn:
    """Train a model on own lists with documents of partners, and evaluate it on own held-out queries."""
    if not 1 <= passes <= MAX_PASSES:
        raise ValueError(f"passes must be between 1 and {MAX_PASSES:,} (got {passes})")
    if not partners:
        raise ValueError("give at least one partner to train with")
    chosen = {name: value for name, value in (chosen or {}).items() if value is not None}
    if model is None:
        model = _begun(collection, me, partners, chosen)
    agreement = model.agreement
    _check_agreement(agreement, me, partners, chosen, collection)
    if model.turns and model.turns[-1].party == me.name:
        raise ValueError(
            f"turn {len(model.turns)}, the last of this model, was of this organisation; another one must train next"
        )
    number, done = agreement.parties.index(me.name), model.passes(me.name)
    method = Local(agreement.rate, agreement.batch)
    (silo,) = make_silos(collection, SilosRule(1), Tokeniser.named(agreement.tokeniser), agreement.seed)
    how = agreement.normalise
    lists = silo_lists(silo, [one.partner for one in partners], agreement.k, agreement.top_grade, how=how)
    own = silo_lists(silo, (), 0, agreement.top_grade, how=how)

    def trained(weights: Weights, lists: SiloLists, first: int, last: int) -> Weights:
        for round in range(first, last + 1):
            weights = method.train(weights, lists.train, number, round, agreement.seed)
        return weights

    turns = (*model.turns, Turn(me.name, passes))
    after = TravellingModel(trained(model.weights, lists, done + 1, done + passes), agreement, turns)
    # As many passes as the model has had at all organisations.
    alone = trained(np.zeros(PARAMETERS), own, 1, after.passes())
    bm25 = Evaluator(own.test, [MEASURE]).per_query_of_scores(own.bm25)[0]
    baselines = {"BM25": float(average(bm25)), "learning alone": _quality(alone, own)}
    if model.turns:
        baselines["the model before this turn"] = _quality(model.weights, lists)
    return TakenTurn(after, _quality(after.weights, lists), baselines)


def _quality(weights: Weights, lists: SiloLists) -> float:
    """Mean over the held-out queries; the bias does not change the order."""
    return float(average(Evaluator(lists.test, [MEASURE]).per_query(weights[:-1], Linear())[0]))


def _begun(
    collection: Collection, me: Party, partners: Sequence[KnownPartner], chosen: Mapping[str, Any]
) -> TravellingModel:
    """An untrained model with the settings of this organisation and its partners."""
    settings: dict[str, Any] = {"top_grade": max(collection.top_grade, 1), **partners[0].settings, **chosen}
    parties = sorted([me.name, *(one.owner for one in partners)])
    return TravellingModel(np.zeros(PARAMETERS), Agreement(tuple(parties), **settings))


def _check_agreement(
    agreement: Agreement, me: Party, partners: Sequence[KnownPartner], chosen: Mapping[str, Any], collection: Collection
) -> None:
    """Raise ValueError if settings, partners or labels do not fit."""
    owners = {one.owner for one in partners}
    missing, strange = set(agreement.parties) - owners - {me.name}, owners - set(agreement.parties)
    if me.name not in agreement.parties:
        raise ValueError(f"{me.name} is not among the organisations of the model: {', '.join(agreement.parties)}")
    if missing or strange:
        what = f"{min(missing)} is missing" if missing else f"{min(strange)} is not among them"
        raise ValueError(f"the organisations of the model are {', '.join(agreement.parties)}; {what}")
    for one in partners:
        for name, theirs in one.settings.items():
            if theirs != getattr(agreement, name):
                raise ValueError(
                    f"the {name} of {one.owner} is {theirs}, but the model or other organisations have "
                    f"{getattr(agreement, name)}, so counts cannot be compared; use equal sketches"
                    + (", with the same key, rows and cells" if name == "key" else "")
                )
    for name, value in chosen.items():
        if value != getattr(agreement, name):
            raise ValueError(
                f"{name} is {value}, but the model has {getattr(agreement, name)}; use the value of the model"
            )
    if collection.top_grade > agreement.top_grade:
        raise ValueError(
            f"relevance labels of this organisation go up to {collection.top_grade}, those of the model only to "
            f"{agreement.top_grade}; begin a new model with top_grade = {collection.top_grade}"
        )


def as_model(model: TravellingModel) -> Model:
    """The same as an ordinary model."""
    notes: dict[str, Any] = {
        **model.agreement.as_dict(),
        "bias": float(model.weights[-1]),
        "turns": [asdict(turn) for turn in model.turns],
        "checksum": _checksum(model),
    }
    ranking = np.ascontiguousarray(model.weights[:-1])
    ranges = ranges_of(model.agreement.normalise)
    how = "query" if ranges is None else "global"
    return Model(Linear(), ranking, len(FEATURE_NAMES), how, FEATURE_NAMES, {"silo": notes}, ranges)


def open_turn(model: TravellingModel) -> bytes:
    """The content of `model.json`, not encrypted."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        save_model(as_model(model), path)
        return path.read_bytes()


def seal_turn(model: TravellingModel, me: Party, addressee: str) -> bytes:
    """An own model as a letter to one organisation, which proves the sender."""
    _check_last(model, me.name)
    return seal(open_turn(model), "model", me, addressee)


def read_turn(letter: bytes, me: Party) -> TravellingModel:
    """The model in a letter, checked: its sender must have trained it last."""
    sender, content = unseal(letter, "model", me)
    model = read_open_turn(content)
    _check_last(model, sender)
    return model


def read_open_turn(content: bytes) -> TravellingModel:
    """The model in the content of a `model.json`, checked; its checksum finds damage but does not prove its origin."""
    if len(content) > LONGEST["model"]:
        raise ValueError(f"the model has {len(content):,} bytes (at most {LONGEST['model']:,}); ask for it again")
    with _readable(), TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_bytes(content)
        return _travelling(load_weights(path))


def _check_last(model: TravellingModel, sender: str) -> None:
    last = model.turns[-1].party
    if last != sender:
        raise ValueError(f"the letter is from {sender}, but {last} trained the model last; ask {last} for it")


def _travelling(model: Model) -> TravellingModel:
    if not isinstance(model.ranker, Linear) or model.weights.shape != (len(FEATURE_NAMES),):
        kind = type(model.ranker).__name__
        raise ValueError(
            f"it must be a linear model on the features of silos (got {kind} on {model.features} features)"
        )
    if tuple(model.feature_names) != FEATURE_NAMES:
        raise ValueError("its features are not those of silos; begin a new model")
    if "silo" not in model.notes:
        raise ValueError("its notes do not describe turns; begin a new model")
    notes = dict(model.notes["silo"])
    bias, turns, checksum = float(notes.pop("bias")), notes.pop("turns"), notes.pop("checksum")
    if {"normalise", *notes} != {field.name for field in fields(Agreement)}:
        raise ValueError("its notes are of another version of fedrank; use the same version everywhere")
    if not isinstance(turns, list) or not 1 <= len(turns) <= MAX_PASSES or not isfinite(bias):
        raise ValueError(
            f"the model must have 1 to {MAX_PASSES:,} turns and a finite bias (got {bias}); ask for it again"
        )
    agreement = Agreement(**{**notes, "parties": tuple(notes["parties"])})
    ranges = ranges_of(agreement.normalise)
    if model.normalised != ("query" if ranges is None else "global") or not np.array_equal(model.ranges, ranges):  # type: ignore[arg-type]
        raise ValueError(
            f"its features are scaled by {model.normalised!r}, or by other ranges than those of normalise = "
            f"{agreement.normalise!r}; use the same version of fedrank everywhere"
        )
    done = tuple(Turn(turn["party"], turn["passes"]) for turn in turns)
    found = TravellingModel(np.append(model.weights, bias), agreement, done)
    if _checksum(found) != checksum:
        raise ValueError("its checksum is wrong: it was changed or damaged; ask for it again")
    return found


def _checksum(model: TravellingModel) -> str:
    as_dict = [model.weights.tolist(), model.agreement.as_dict(), [asdict(turn) for turn in model.turns]]
    return hashlib.blake2b(json.dumps(as_dict, sort_keys=True).encode(), digest_size=16).hexdigest()
