"""One model that travels between organisations, turn by turn; documents, queries and judgements stay at home.

Each has its own documents and judged queries, and of every other a copy of its sketch, or its answers by letter. Whose
turn it is makes its lists as in CS-F-LTR, trains on them, and passes the model on: an ordinary model file, whose notes
say what all have agreed on and who had a turn, or the same in a sealed letter. A turn depends on nothing else: the same
files give the same model, and turns in the order of `CrossSilo` give the weights of the simulation, to the last bit.

The weights tell of the queries and documents that they were trained on, and nothing protects them.
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
from numpy.typing import NDArray

from fedrank.data.collection import Collection
from fedrank.data.text import Tokeniser
from fedrank.files import opened, read_bytes
from fedrank.ranking.measures import Evaluator, average
from fedrank.ranking.model import Model, load_weights, save_model
from fedrank.ranking.rankers import Linear
from fedrank.silo.features import FEATURE_NAMES, Normalisation, ranges_of
from fedrank.silo.files import open_copy
from fedrank.silo.letters import FORMAT, LONGEST, Party, check_name, seal, unseal
from fedrank.silo.partners import Partner, Sketched
from fedrank.silo.protocol import Answered, find_question, joined, read_answer, recall
from fedrank.silo.silos import SilosRule, make_silos
from fedrank.silo.sketch import Sketcher
from fedrank.silo.training import PARAMETERS, Local, SiloLists, silo_lists
from fedrank.types import Weights

LARGEST = 1e6  # of a weight
MAX_PASSES = 10_000  # of all turns together: every party trains as long alone, to compare
MEASURE = "ndcg@10"


@dataclass(frozen=True)
class Agreement:
    """What all train by. Whoever begins sets it, and it travels in the notes of the model."""

    parties: tuple[str, ...]  # fingerprints of their public keys, in order
    key: str  # fingerprint of the shared key, rows and cells
    kind: str  # of the sketches
    tokeniser: str
    top_grade: int  # the highest that anybody gives
    k: int = 150  # documents of partners that join the list of a query, at most
    rate: float = 0.5  # of the SGD
    batch: int = 32  # documents of a step
    seed: int = 1  # of the order of documents, and of which queries are kept for the test
    normalise: Normalisation = "query"  # each list by itself; or "fixed", and the model can be exported

    def __post_init__(self) -> None:
        for name in self.parties:
            check_name(name)
        if len(self.parties) < 2 or list(self.parties) != sorted(set(self.parties)):
            raise ValueError(f"parties are {', '.join(self.parties) or 'none'}; name two or more, each once, in order")
        for name, least, most in (
            ("top_grade", 1, 127),
            ("k", 1, 100_000),
            ("rate", 1e-9, 100.0),
            ("batch", 1, 1_000_000),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not least <= value <= most or (name != "rate" and type(value) is not int):
                raise ValueError(f"{name} = {value!r}; use a number from {least:g} to {most:g}")
        if self.normalise not in get_args(Normalisation):
            raise ValueError(f"normalise = {self.normalise!r}; use {' or '.join(map(repr, get_args(Normalisation)))}")

    def as_dict(self) -> dict[str, Any]:
        """As it travels; what there was no choice about in the first version is left out where it is as it was."""
        usual = {"normalise": "query"}
        return {name: value for name, value in asdict(self).items() if usual.get(name) != value}


@dataclass(frozen=True)
class Turn:
    """Who trained, and how long."""

    party: str
    passes: int  # over its lists


@dataclass(frozen=True)
class TravellingModel:
    """A model on its way, and what it has behind it."""

    weights: Weights  # [17]; the last is the bias
    agreement: Agreement
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        for turn in self.turns:
            if turn.party not in self.agreement.parties or type(turn.passes) is not int or turn.passes < 1:
                raise ValueError(f"a turn of {turn.party!r} with {turn.passes!r} passes; ask for it again")
        if self.passes() > MAX_PASSES:
            raise ValueError(f"{self.passes():,} passes, and a model can have {MAX_PASSES:,}; begin a new one")
        if not (np.isfinite(self.weights).all() and np.abs(self.weights).max() <= LARGEST):
            raise ValueError(f"a weight beyond {LARGEST:,.0f}; ask for the model again, or use a smaller rate")

    def passes(self, party: str | None = None) -> int:
        """Of one party over its lists, or of all."""
        return sum(turn.passes for turn in self.turns if party in (None, turn.party))


@dataclass(frozen=True)
class KnownPartner:
    """Another organisation, as far as we know it."""

    owner: str
    partner: Partner
    sketcher: Sketcher  # of its sketch; an answer by letter does not tell its noise
    fingerprint: bytes  # of key, width and depth
    letters: int = 0  # that told us all of it; 0: a copy of its sketch

    @property
    def settings(self) -> dict[str, str]:
        """What must be the same everywhere."""
        sketcher = self.sketcher
        return {"kind": sketcher.kind, "tokeniser": sketcher.tokeniser.name, "key": self.fingerprint.hex()}


@dataclass(frozen=True)
class Standing:
    """Something that ranks the held-out queries, next to the model as it goes on."""

    name: str
    quality: float  # mean nDCG@10
    better: int  # queries on which the model is better than this
    worse: int


@dataclass(frozen=True)
class TakenTurn:
    """What a turn did, and what it is worth on queries that the own organisation kept aside."""

    model: TravellingModel
    lists: SiloLists
    quality: float  # of the model as it goes on
    next_to: tuple[Standing, ...]


def load_partners(
    paths: Sequence[Path], questions: Sequence[Path], me: Party, key: bytes, queries: Sequence[str]
) -> list[KnownPartner]:
    """Copies of sketches, and letters that answer our questions about the words of queries; in the order of owners."""
    known: dict[str, KnownPartner] = {}
    letters: dict[str, list[Answered]] = {}
    asked = []
    for path in questions:
        with _named(path):
            asked.append(recall(read_letter(path), me, key, queries))
    for path in paths:
        if _is_letter(path):
            with _named(path):
                letter = read_letter(path)
                answered = read_answer(letter, find_question(letter, asked, me), me)
            letters.setdefault(answered.owner, []).append(answered)
            continue
        copy = open_copy(path, me)
        copy.hashing(key)
        assert copy.origin is not None
        owner = copy.origin.owner
        if owner in known:
            raise ValueError(f"{path} is a second sketch of {owner}; give one of each partner")
        known[owner] = KnownPartner(owner, Sketched(copy, key), copy.sketcher, copy.fingerprint)
    for owner, parts in letters.items():
        if owner in known:
            raise ValueError(f"a sketch and letters of {owner}; give one or the other")
        question = parts[0].question
        known[owner] = KnownPartner(owner, joined(parts), question.sketcher, question.fingerprint, len(parts))
    for name, one in known.items():
        if not one.partner.documents:
            raise ValueError(f"{name} holds no documents, so there is nothing to find; leave it out")
    return [known[name] for name in sorted(known)]


def read_letter(path: str | Path) -> bytes:
    """The bytes of a letter; a file that is longer than any letter is not read."""
    size = Path(path).stat().st_size
    if size > max(LONGEST.values()):
        raise ValueError(f"{path} has {size:,} bytes, more than any letter; was it exchanged?")
    return read_bytes(path)


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    """Errors about what a file holds say which file it is."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise ValueError(f"{path} makes no sense ({problem!r}); ask for it again") from None
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}" if str(path) not in str(problem) else str(problem)) from None


def _is_letter(path: str | Path) -> bool:
    with opened(path) as file:
        return file.read(len(FORMAT)) == FORMAT


def take_turn(
    collection: Collection,
    me: Party,
    partners: Sequence[KnownPartner],
    model: TravellingModel | None = None,  # None: begin one
    chosen: Mapping[str, Any] | None = None,  # settings of an agreement; with a model they must be its own
    passes: int = 1,
) -> TakenTurn:
    """Train a model on own lists, with documents of partners among them, and see what it is worth at home."""
    if not 1 <= passes <= MAX_PASSES:
        raise ValueError(f"passes = {passes} is out of range; use 1 to {MAX_PASSES:,}")
    if not partners:
        raise ValueError("no partner, so that this would be training alone; give the sketch of another organisation")
    chosen = {name: value for name, value in (chosen or {}).items() if value is not None}
    if model is None:
        model = _begun(collection, me, partners, chosen)
    agreement = model.agreement
    _check_agreement(agreement, me, partners, chosen, collection)
    if model.turns and model.turns[-1].party == me.name:
        raise ValueError(
            f"turn {len(model.turns)}, the last of this model, was yours; pass it on, and go on when it comes back"
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
    alone = trained(np.zeros(PARAMETERS), own, 1, after.passes())  # as many as the model has had, in all organisations
    values = _each_query(after.weights, lists)
    rivals = {
        "BM25": Evaluator(own.test, [MEASURE]).per_query_of_scores(own.bm25)[0],
        "learning alone": _each_query(alone, own),
    }
    if model.turns:
        rivals["the model before this turn"] = _each_query(model.weights, lists)
    next_to = tuple(
        Standing(name, float(average(theirs)), int(np.sum(values > theirs)), int(np.sum(values < theirs)))
        for name, theirs in rivals.items()
    )
    return TakenTurn(after, lists, float(average(values)), next_to)


def _each_query(weights: Weights, lists: SiloLists) -> NDArray[Any]:
    """[held-out queries]; the bias moves no document."""
    values: NDArray[Any] = Evaluator(lists.test, [MEASURE]).per_query(weights[:-1], Linear())[0]
    return values


def _begun(
    collection: Collection, me: Party, partners: Sequence[KnownPartner], chosen: Mapping[str, Any]
) -> TravellingModel:
    """A model that nobody has trained, with what we and our partners agree on."""
    settings: dict[str, Any] = {"top_grade": max(collection.top_grade, 1), **partners[0].settings, **chosen}
    parties = sorted([me.name, *(one.owner for one in partners)])
    return TravellingModel(np.zeros(PARAMETERS), Agreement(tuple(parties), **settings))


def _check_agreement(
    agreement: Agreement,
    me: Party,
    partners: Sequence[KnownPartner],
    chosen: Mapping[str, Any],
    collection: Collection,
) -> None:
    """Refuse what does not fit together, by its name."""
    owners = {one.owner for one in partners}
    missing, strange = set(agreement.parties) - owners - {me.name}, owners - set(agreement.parties)
    if me.name not in agreement.parties:
        raise ValueError(f"you are {me.name}, and the model is of {', '.join(agreement.parties)}; begin one with you")
    if missing or strange:
        what = f"give a sketch of {min(missing)}, too" if missing else f"{min(strange)} is none of them: leave it out"
        raise ValueError(f"the model is of {', '.join(agreement.parties)}; {what}")
    for one in partners:
        for name, theirs in one.settings.items():
            if theirs != getattr(agreement, name):
                raise ValueError(
                    f"the {name} of {one.owner} is {theirs}, and that of the model or of others is "
                    f"{getattr(agreement, name)}, so that counts cannot be compared; make sketches alike"
                    + (", with one key, and as many rows and cells" if name == "key" else "")
                )
    for name, value in chosen.items():
        if value != getattr(agreement, name):
            raise ValueError(
                f"{name} = {value}, and the model was begun with {name} = {getattr(agreement, name)}, which all must "
                "keep; leave it out"
            )
    if collection.top_grade > agreement.top_grade:
        raise ValueError(
            f"your judgements go up to grade {collection.top_grade}, and the model was begun for up to "
            f"{agreement.top_grade}; begin it anew with a top grade of {collection.top_grade}"
        )


def turn_file(folder: str | Path, model: TravellingModel | None) -> Path:
    """Where the turn that follows on a model will lie; a turn that was taken already is refused."""
    number = 1 + (len(model.turns) if model else 0)
    path = Path(folder) / f"turn-{number}.json"
    if path.exists():
        raise FileExistsError(
            f"{path} exists, so that you took turn {number} already; pass that on, or give another folder to begin anew"
        )
    return path


def save_turn(model: TravellingModel, path: str | Path) -> None:
    """Write a model, whole or not at all, as `model.json`, which every command of fedrank reads."""
    notes: dict[str, Any] = {
        **model.agreement.as_dict(),
        "bias": float(model.weights[-1]),
        "turns": [asdict(turn) for turn in model.turns],
        "checksum": _checksum(model),
    }
    ranking = np.ascontiguousarray(model.weights[:-1])
    ranges = ranges_of(model.agreement.normalise)
    how = "query" if ranges is None else "global"
    save_model(Model(Linear(), ranking, len(FEATURE_NAMES), how, FEATURE_NAMES, {"silo": notes}, ranges), path)


def seal_turn(path: str | Path, me: Party, addressee: str) -> bytes:
    """A model of ours as a letter that only one other can open, and that proves who trained it last."""
    _check_last(read_turn(path, me), me.name)
    return seal(read_bytes(path), "model", me, addressee)


def read_turn(path: str | Path, me: Party) -> TravellingModel:
    """Read a model that somebody passed on, as a file or as a letter; nothing in it is believed before it was checked.

    The checksum of a file finds damage; that it comes from whom it says, only a letter proves.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size > LONGEST["model"]:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, more than such a model can have; ask for it again")
    with _named(path):
        if not path.is_file() or not _is_letter(path):
            return read_open_turn(path)
        sender, content = unseal(read_letter(path), "model", me)
        with TemporaryDirectory() as folder:
            (Path(folder) / "model.json").write_bytes(content)
            model = read_open_turn(Path(folder) / "model.json")
        _check_last(model, sender)
        return model


def read_open_turn(path: str | Path) -> TravellingModel:
    """Read a model that was passed on as a file, with all that it says checked; who wrote it is not known."""
    return _travelling(load_weights(path))


def _check_last(model: TravellingModel, sender: str) -> None:
    last = model.turns[-1].party
    if last != sender:
        raise ValueError(f"a letter of {sender} about a model that {last} trained last; let {last} pass it on")


def _travelling(model: Model) -> TravellingModel:
    if not isinstance(model.ranker, Linear) or model.weights.shape != (len(FEATURE_NAMES),):
        kind = type(model.ranker).__name__
        raise ValueError(f"a {kind} model on {model.features} features; turns pass on a linear one of organisations")
    if tuple(model.feature_names) != FEATURE_NAMES:
        raise ValueError("a model of other features; turns need those of silos")
    if "silo" not in model.notes:
        raise ValueError("its notes say nothing of turns; begin a new one without --model")
    notes = dict(model.notes["silo"])
    bias, turns, checksum = float(notes.pop("bias")), notes.pop("turns"), notes.pop("checksum")
    if {"normalise", *notes} != {field.name for field in fields(Agreement)}:
        raise ValueError("its notes are of another version of fedrank; let all use the same")
    if not isinstance(turns, list) or not 1 <= len(turns) <= MAX_PASSES or not isfinite(bias):
        raise ValueError(f"no list of 1 to {MAX_PASSES:,} turns, or a bias of {bias}; ask for it again")
    agreement = Agreement(**{**notes, "parties": tuple(notes["parties"])})
    ranges = ranges_of(agreement.normalise)
    if model.normalised != ("query" if ranges is None else "global") or not np.array_equal(model.ranges, ranges):  # type: ignore[arg-type]
        raise ValueError(
            f"features scaled by {model.normalised!r}, or by other ranges than normalise = {agreement.normalise!r} "
            "has; let all use the same version of fedrank"
        )
    done = tuple(Turn(turn["party"], turn["passes"]) for turn in turns)
    found = TravellingModel(np.append(model.weights, bias), agreement, done)
    if _checksum(found) != checksum:
        raise ValueError("its checksum is wrong: a weight, a turn or the agreement was changed; ask for it again")
    return found


def _checksum(model: TravellingModel) -> str:
    as_dict = [model.weights.tolist(), model.agreement.as_dict(), [asdict(turn) for turn in model.turns]]
    return hashlib.blake2b(json.dumps(as_dict, sort_keys=True).encode(), digest_size=16).hexdigest()
