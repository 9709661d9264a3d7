"""A model that travels between organisations: it is that of the simulation, and whatever does not fit is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedrank import load_model
from fedrank.data.collection import Collection, read_collection
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.data.text import Tokeniser
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear
from fedrank.silo.features import RANGES
from fedrank.silo.files import open_sketch, sketch_collection
from fedrank.silo.keys import new_identity, read_public, read_secret
from fedrank.silo.letters import Party, party, seal
from fedrank.silo.partners import Sketched
from fedrank.silo.protocol import Owner, answer, ask_all
from fedrank.silo.rtk import TopKRule
from fedrank.silo.silos import SilosRule, make_silos
from fedrank.silo.sketch import Sketcher
from fedrank.silo.training import PARAMETERS, CrossSilo, Lists, Local, silo_lists
from fedrank.silo.turns import (
    Agreement,
    KnownPartner,
    TravellingModel,
    Turn,
    known_partners,
    open_turn,
    read_open_turn,
    read_turn,
    seal_turn,
    take_turn,
)
from fedrank.trees.export import export

KEY = bytes(range(32))
NOISED = Sketcher(width=128, depth=7, noise=0.3)
RULE = TopKRule(k=20)
WHOLE = synthetic_collection(180, 60, seed=1, topics=6, length=20)


@dataclass(frozen=True)
class Organisation:
    """What one has at home."""

    me: Party
    folder: Path  # documents, queries, judgements, own sketch
    collection: Collection

    @property
    def sketch(self) -> Path:
        return self.folder / "own.sketch"

    def partners(self, *others: Organisation) -> list[KnownPartner]:
        letters = [letters_of(other, self) for other in others]
        questions, answers = ([one for pair in letters for one in pair[place]] for place in (0, 1))
        return known_partners(answers, questions, self.me, KEY, self.collection.queries)


def letters_of(
    owner: Organisation, querier: Organisation, sketch: Path | None = None
) -> tuple[list[bytes], list[bytes]]:
    """Questions and answers about all words of a querier's queries."""
    file = open_sketch(sketch or owner.sketch)
    asked = ask_all(querier.collection.queries, owner.me.name, querier.me, file.sketcher, KEY)
    questions = [one.letter for one in asked]
    return questions, [answer(letter, Owner(owner.me, file)) for letter in questions]


def write_collection(folder: Path, place: int, parts: int) -> None:
    """One part of a collection as files: every so manyth document and query."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = WHOLE.documents
    rows = range(place, len(documents), parts)
    corpus = [{"_id": documents.ids[d], "title": documents.title[d], "text": documents.text[d]} for d in rows]
    asked = range(place, len(WHOLE.queries), parts)
    queries = [{"_id": WHOLE.query_ids[q], "text": WHOLE.queries[q]} for q in asked]
    judged = [
        f"{WHOLE.query_ids[q]}\t{documents.ids[row]}\t{grade}\n"
        for q in asked
        for row, grade in zip(*WHOLE.judgements(q), strict=True)
        if row in rows
    ]
    for name, lines in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "qrels.tsv").write_text("query\tdocument\tgrade\n" + "".join(judged), encoding="utf-8")


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> list[Organisation]:
    """Three organisations, in the order of their names, with a sketch each."""
    folder = tmp_path_factory.mktemp("silos")
    public = [read_public(new_identity(folder / f"{place}.secret")) for place in range(3)]
    secret = [read_secret(folder / f"{place}.secret") for place in range(3)]
    made = sorted(
        (party(one, [p for p in public if p != public[n]]) for n, one in enumerate(secret)), key=lambda p: p.name
    )
    found = []
    for place, me in enumerate(made):
        write_collection(folder / str(place), place, 3)
        collection = read_collection(folder / str(place))
        sketch_collection(collection.documents, KEY, NOISED, folder / str(place) / "own.sketch", rule=RULE)
        found.append(Organisation(me, folder / str(place), collection))
    return found


@pytest.fixture(scope="module")
def first(three) -> TravellingModel:
    """What the first of two passes on to the second."""
    return take_turn(three[0].collection, three[0].me, three[0].partners(three[1])).model


@pytest.mark.long
@pytest.mark.parametrize(("many", "how"), [(2, "query"), (3, "query"), (2, "fixed")])
def test_turns_are_the_simulation_to_the_last_bit(three, many, how) -> None:
    here, rounds = three[:many], 4
    method = CrossSilo(k=10, rate=0.4, batch=16, normalise=how)
    others = [[other for other in here if other is not one] for one in here]
    silos = [make_silos(one.collection, SilosRule(1), Tokeniser(), 7)[0] for one in here]
    parts = [
        silo_lists(silo, [known.partner for known in one.partners(*them)], 10, 2, how=how)
        for silo, one, them in zip(silos, here, others, strict=True)
    ]
    lists = Lists(tuple(part.train for part in parts), tuple(part.test for part in parts), np.zeros(many))
    expected = np.zeros(PARAMETERS)
    order: list[Turn] = []
    for round in range(1, rounds + 1):
        expected = method.step(expected, lists, round, 7)
        for silo in np.roll(np.arange(many), -round):
            name = here[silo].me.name
            if order and order[-1].party == name:  # last in a round and first in the next: one turn of two passes
                order[-1] = replace(order[-1], passes=order[-1].passes + 1)
            else:
                order.append(Turn(name, 1))
    model, chosen = None, {"k": 10, "rate": 0.4, "batch": 16, "top_grade": 2, "seed": 7, "normalise": how}
    for turn in order:
        one = next(one for one in here if one.me.name == turn.party)
        them = [other for other in here if other is not one]
        model = take_turn(one.collection, one.me, one.partners(*them), model, chosen, turn.passes).model
    assert model.turns == tuple(order)
    assert model.weights.tobytes() == expected.tobytes()


def test_the_outcome_says_what_stands_next_to_the_model(three, first) -> None:
    a, b = three[:2]
    outcome = take_turn(b.collection, b.me, b.partners(a), first, passes=3)
    names = ["BM25", "learning alone", "the model before this turn"]
    assert list(outcome.baselines) == names
    assert all(0 < quality < 1 for quality in outcome.baselines.values())
    (silo,) = make_silos(b.collection, SilosRule(1), Tokeniser(), 1)
    own, weights, agreement = silo_lists(silo, (), 0, 2), np.zeros(PARAMETERS), first.agreement
    number = agreement.parties.index(b.me.name)
    for round in range(1, 4 + 1):  # as many passes as the model has had in all organisations
        weights = Local(agreement.rate, agreement.batch).train(weights, own.train, number, round, agreement.seed)
    alone = Evaluator(own.test, ["ndcg@10"])(weights[: own.test.features.shape[1]], Linear())[0]
    assert outcome.baselines["learning alone"] == pytest.approx(float(alone))
    assert outcome.model.passes() == 4
    assert outcome.model.passes(b.me.name) == 3
    begun = take_turn(a.collection, a.me, a.partners(b))
    assert list(begun.baselines) == names[:2]  # nobody has trained it before


@pytest.mark.parametrize("terms", [4000, 9])
def test_letters_train_as_the_sketch_itself(three, first, monkeypatch, terms) -> None:
    """To the last bit: noise was drawn once, when the documents were sketched."""
    monkeypatch.setattr("fedrank.silo.protocol.MAX_TERMS", terms)
    a, b = three[:2]
    questions, answers = letters_of(a, b)
    assert (len(questions) > 1) == (terms == 9)
    told = known_partners(answers[::-1], questions, b.me, KEY, b.collection.queries)
    by_letter = take_turn(b.collection, b.me, told, first)
    file = open_sketch(a.sketch)
    known = KnownPartner(a.me.name, Sketched(file.copy_for(b.me.name), KEY), file.sketcher, file.fingerprint)
    by_sketch = take_turn(b.collection, b.me, [known], first)
    assert by_letter.model.weights.tobytes() == by_sketch.model.weights.tobytes()
    with pytest.raises(ValueError, match=rf"an answer of {a.me.name} belongs to none of the 0 given questions"):
        known_partners(answers, [], b.me, KEY, b.collection.queries)
    with pytest.raises(ValueError, match=f"{a.me.name} was not asked about"):
        take_turn(replace(b.collection, queries=["unheard of words"] * 20), b.me, told, first)


# --- the file


def test_a_model_is_read_as_it_was_written_and_every_command_reads_it(first, tmp_path) -> None:
    content = open_turn(first)
    again = read_open_turn(content)
    assert (again.agreement, again.turns) == (first.agreement, first.turns)
    assert again.weights.tobytes() == first.weights.tobytes()
    assert open_turn(again) == content
    (tmp_path / "turn-1.json").write_bytes(content)
    assert load_model(tmp_path / "turn-1.json").features == 16


def test_a_model_on_fixed_ranges_says_so_and_can_be_exported(three, first, tmp_path) -> None:
    a, b = three[:2]
    model = take_turn(a.collection, a.me, a.partners(b), None, {"normalise": "fixed"}).model
    path = tmp_path / "turn-1.json"
    path.write_bytes(open_turn(model))
    assert read_open_turn(path.read_bytes()).agreement.normalise == "fixed"
    assert load_model(path).ranges.tolist() == RANGES.tolist()
    assert export(path, "opensearch", tmp_path / "model.os.json").what == "model/linear for OpenSearch of 16 features"
    with pytest.raises(ValueError, match="normalise is query, but the model has fixed"):
        take_turn(b.collection, b.me, b.partners(a), model, {"normalise": "query"})
    content = json.loads(path.read_text())
    del content["checksum"]
    for where, value in (("ranges.1.0", 400.0), ("ranges", None), ("normalised", "query")):
        other = json.loads(json.dumps(content))
        changed(other, where, value)
        with pytest.raises(ValueError, match=r"by other ranges than normalise = 'fixed' has|ranges"):
            read_open_turn(json.dumps(other).encode())


def test_models_without_that_choice_are_read_and_written_as_before(first) -> None:
    """The notes of the first version did not say how features are scaled, and no checksum changes."""
    content = open_turn(first)
    notes = json.loads(content)["notes"]["silo"]
    assert "normalise" not in notes
    assert set(notes) == {
        *("parties", "key", "kind", "tokeniser", "top_grade", "k", "rate", "batch", "seed"),
        *("bias", "turns", "checksum"),
    }
    assert read_open_turn(content).agreement.normalise == "query"
    with pytest.raises(ValueError, match="normalise must be 'query' or 'fixed'"):
        replace(first.agreement, normalise="always")


def test_no_turn_is_taken_twice(three, first) -> None:
    a, b = three[:2]
    with pytest.raises(ValueError, match="turn 1, the last of this model, was of this organisation"):
        take_turn(a.collection, a.me, a.partners(b), first)


def test_a_model_by_letter_proves_who_trained_it(three, first) -> None:
    a, b, c = three
    letter = seal_turn(first, a.me, b.me.name)
    assert read_turn(letter, b.me).weights.tobytes() == first.weights.tobytes()
    with pytest.raises(ValueError, match=f"a letter to '{b.me.name}' came to '{c.me.name}'"):
        read_turn(letter, c.me)
    with pytest.raises(ValueError, match=f"{a.me.name} trained the model last"):
        seal_turn(first, c.me, b.me.name)
    with pytest.raises(ValueError, match=rf"the letter is from {c.me.name}, but {a.me.name} trained"):
        read_turn(seal(open_turn(first), "model", c.me, b.me.name), b.me)
    with pytest.raises(ValueError, match=r"is not a valid model"):
        read_turn(seal(b"{", "model", a.me, b.me.name), b.me)
    with pytest.raises(ValueError, match=r"cannot be decrypted"):
        read_turn(letter[:-1] + bytes([letter[-1] ^ 1]), b.me)
    with pytest.raises(ValueError, match=r"not a letter between silos"):
        read_turn(open_turn(first), b.me)


def changed(content: dict, where: str, value: object) -> None:
    """Set a value deep in a model file."""
    *way, last = where.split(".")
    for step in way:
        content = content[int(step) if isinstance(content, list) else step]
    if value is None:
        del content[last]
    else:
        content[int(last) if isinstance(content, list) else last] = value


@pytest.mark.parametrize(
    ("where", "value", "told"),
    [
        ("weights.3", 0.25, "its checksum is wrong"),
        ("notes.silo.bias", 0.25, "its checksum is wrong"),
        ("notes.silo.k", 149, "its checksum is wrong"),
        ("notes.silo.turns.0.passes", 2, "its checksum is wrong"),
        ("notes.silo.checksum", "0" * 32, "its checksum is wrong"),
        ("notes.silo.turns.0.passes", 20_000, "20,000 passes are more than the maximum of 10,000"),
        ("notes.silo.turns.0.passes", 0, "with 0 passes"),
        ("notes.silo.turns.0.passes", 1.5, "with 1.5 passes"),
        ("notes.silo.turns.0.party", "somebody", "a turn of 'somebody'"),
        ("notes.silo.turns", [], "must have 1 to 10,000 turns"),
        ("notes.silo.turns", "none", "must have 1 to 10,000 turns"),
        ("notes.silo.turns", [3], "cannot be read"),
        ("notes.silo.bias", float("nan"), "finite bias \\(got nan\\)"),
        ("notes.silo.bias", 1e9, "a weight exceeds 1,000,000"),
        ("notes.silo.bias", "much", "could not convert"),
        ("weights.0", float("inf"), "not finite"),
        ("weights.0", 1e300, "a weight exceeds"),
        ("weights", [0.0] * 15, "it has 15 weights"),
        ("weights", [[0.0] * 16] * 2, "got Linear on 16 features"),
        ("features", 15, "it has 16 weights"),
        ("feature_names.2", "colour", "not those of silos"),
        ("normalised", "none", "scaled by 'none'"),
        ("notes.silo", None, "do not describe turns"),
        ("notes.silo", 3, "cannot be read"),
        ("notes.silo.bias", None, "cannot be read"),
        ("notes.silo.parties", ["a"], "two or more"),
        ("notes.silo.parties", ["b", "a"], "in order, each once"),
        ("notes.silo.parties", [1, 2], "cannot be read"),
        ("notes.silo.rate", -1.0, "rate must be a number from"),
        ("notes.silo.rate", "fast", "cannot be read"),
        ("notes.silo.batch", 1.5, "batch must be an integer from"),
        ("notes.silo.seed", True, "got True"),
        ("notes.silo.more", 1, "of another version"),
        ("notes.silo.k", None, "of another version"),
        ("format", "theirs", "not a model file of fedrank"),
        ("version", 99, "newer than this version of fedrank"),
    ],
)
def test_a_model_that_was_changed_is_refused(first, where, value, told) -> None:
    content = json.loads(open_turn(first))
    del content["checksum"]  # of the file, which would be wrong, too
    changed(content, where, value)
    with pytest.raises(ValueError, match=told):
        read_open_turn(json.dumps(content).encode())


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", "[" * 100_000, "x" * (1 << 21)])
def test_what_is_no_model_is_refused(content) -> None:
    with pytest.raises(ValueError, match=r"is not a valid model|the model has 2,097,152 bytes"):
        read_open_turn(content.encode())


# --- who does not fit


def test_a_turn_of_somebody_else_or_with_others_is_refused(three, first) -> None:
    a, b, c = three
    with pytest.raises(ValueError, match=f"{c.me.name} is not among the organisations of the model"):
        take_turn(c.collection, c.me, c.partners(a), first)
    with pytest.raises(ValueError, match=f"{c.me.name} is not among them"):
        take_turn(b.collection, b.me, b.partners(a, c), first)
    all_three = take_turn(a.collection, a.me, a.partners(b, c)).model
    with pytest.raises(ValueError, match=f"{c.me.name} is missing"):
        take_turn(b.collection, b.me, b.partners(a), all_three)
    with pytest.raises(ValueError, match="at least one partner"):
        take_turn(b.collection, b.me, [], first)


def test_another_agreement_is_refused(three, first) -> None:
    a, b = three[:2]
    known = b.partners(a)[0]
    for name, other in (
        ("kind", replace(known, sketcher=replace(NOISED, kind="count-min"))),
        ("tokeniser", replace(known, sketcher=replace(NOISED, tokeniser=Tokeniser("english")))),
        ("key", replace(known, fingerprint=bytes(16))),
    ):
        with pytest.raises(ValueError, match=f"the {name} of {a.me.name} is .*use equal sketches"):
            take_turn(b.collection, b.me, [other], first)
    with pytest.raises(ValueError, match="k is 20, but the model has 150"):
        take_turn(b.collection, b.me, [known], first, {"k": 20, "rate": None})
    assert take_turn(b.collection, b.me, [known], first, {"k": 150}).model.agreement == first.agreement
    graded = replace(b.collection, grades=np.full_like(b.collection.grades, 4))
    with pytest.raises(ValueError, match="go up to 4, those of the model only to 2"):
        take_turn(graded, b.me, [known], first)
    for wrong in ({"k": 0}, {"rate": 0.0}, {"batch": 0}, {"seed": -1}, {"top_grade": 200}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            take_turn(b.collection, b.me, [known], None, wrong)


def test_a_partner_without_documents_is_refused(three, tmp_path) -> None:
    a, b = three[:2]
    documents = replace(a.collection.documents, ids=[], title=[], text=[], url=[])
    sketch_collection(documents, KEY, NOISED, tmp_path / "empty.sketch", rule=RULE)
    questions, answers = letters_of(a, b, tmp_path / "empty.sketch")
    with pytest.raises(ValueError, match="has no documents"):
        known_partners(answers, questions, b.me, KEY, b.collection.queries)


def test_an_agreement_needs_two() -> None:
    with pytest.raises(ValueError, match="two or more"):
        Agreement((), "00", "count-sketch", "words-1", 2)
