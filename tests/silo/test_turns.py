"""A model that travels between organisations: it is that of the simulation, and whatever does not fit is refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedrank import load_model
from fedrank.cli import main
from fedrank.data.collection import Collection, read_collection
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.data.text import Tokeniser
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear
from fedrank.silo import letters, turns
from fedrank.silo.describe import describe_sketch
from fedrank.silo.features import RANGES
from fedrank.silo.files import export_sketch, ledger_of, open_sketch, sketch_collection
from fedrank.silo.keys import new_identity, read_public, read_secret
from fedrank.silo.letters import Party, party, seal
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
    load_partners,
    read_turn,
    save_turn,
    seal_turn,
    take_turn,
    turn_file,
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

    def copy_for(self, other: Organisation) -> Path:
        path = other.folder / f"from-{self.me.name}.sketch"
        if not path.exists():
            export_sketch(self.sketch, self.me, other.me.name, path)
        return path

    def partners(self, *others: Organisation) -> list[KnownPartner]:
        return load_partners([other.copy_for(self) for other in others], [], self.me, KEY, self.collection.queries)


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


def test_two_partners_are_as_in_the_simulation_of_lists(three) -> None:
    """`CrossSilo.lists_with` makes the same lists from the same partners."""
    a, b = three[:2]
    silos = [make_silos(one.collection, SilosRule(1), Tokeniser(), 1)[0] for one in (a, b)]
    partners = [b.partners(a)[0].partner, a.partners(b)[0].partner]  # partner s stands for silo s
    lists = CrossSilo(k=12).lists_with(silos, partners)
    outcome = take_turn(a.collection, a.me, a.partners(b), None, {"k": 12, "top_grade": 2})
    np.testing.assert_array_equal(outcome.lists.train.features, lists.train[0].features)
    np.testing.assert_array_equal(outcome.lists.test.features, lists.test[0].features)
    assert outcome.lists.added > 0


def test_the_outcome_says_what_stands_next_to_the_model(three, first) -> None:
    a, b = three[:2]
    outcome = take_turn(b.collection, b.me, b.partners(a), first, passes=3)
    names = ["BM25", "learning alone", "the model before this turn"]
    assert [other.name for other in outcome.next_to] == names
    assert all(0 < other.quality < 1 for other in outcome.next_to)
    assert all(0 <= other.better + other.worse <= outcome.lists.test.queries for other in outcome.next_to)
    (silo,) = make_silos(b.collection, SilosRule(1), Tokeniser(), 1)
    own, weights, agreement = silo_lists(silo, (), 0, 2), np.zeros(PARAMETERS), first.agreement
    number = agreement.parties.index(b.me.name)
    for round in range(1, 4 + 1):  # as many passes as the model has had in all organisations
        weights = Local(agreement.rate, agreement.batch).train(weights, own.train, number, round, agreement.seed)
    alone = Evaluator(own.test, ["ndcg@10"])(weights[: own.test.features.shape[1]], Linear())[0]
    assert outcome.next_to[1].quality == pytest.approx(float(alone))
    assert outcome.model.passes() == 4
    assert outcome.model.passes(b.me.name) == 3
    begun = take_turn(a.collection, a.me, a.partners(b))
    assert [other.name for other in begun.next_to] == names[:2]  # nobody has trained it before


def letters_of(owner: Organisation, querier: Organisation) -> tuple[list[Path], list[Path]]:
    """Questions and answers about all words of a querier's queries, three words a letter or so."""
    file = open_sketch(owner.sketch)
    questions, answers = [], []
    for number, asked in enumerate(ask_all(querier.collection.queries, owner.me.name, querier.me, file.sketcher, KEY)):
        questions.append(querier.folder / f"question-{owner.me.name}-{number}.letter")
        answers.append(querier.folder / f"answer-{owner.me.name}-{number}.letter")
        questions[-1].write_bytes(asked.letter)
        answers[-1].write_bytes(answer(asked.letter, Owner(owner.me, file, ledger_of(file))))
    return questions, answers


@pytest.mark.parametrize("terms", [4000, 9])
def test_letters_train_as_copies_do(three, first, monkeypatch, terms) -> None:
    """To the last bit: noise was drawn once, when the documents were sketched."""
    monkeypatch.setattr("fedrank.silo.protocol.MAX_TERMS", terms)
    a, b = three[:2]
    questions, answers = letters_of(a, b)
    assert (len(questions) > 1) == (terms == 9)
    told = load_partners(answers[::-1], questions, b.me, KEY, b.collection.queries)
    assert told[0].letters == len(answers)
    by_letter = take_turn(b.collection, b.me, told, first)
    by_copy = take_turn(b.collection, b.me, b.partners(a), first)
    assert by_letter.model == replace(by_copy.model, weights=by_letter.model.weights)
    assert by_letter.model.weights.tobytes() == by_copy.model.weights.tobytes()
    with pytest.raises(ValueError, match="a sketch and letters"):
        load_partners([*answers, a.copy_for(b)], questions, b.me, KEY, b.collection.queries)
    with pytest.raises(ValueError, match=rf"{answers[0].name}: an answer of {a.me.name} to none of the 0 questions"):
        load_partners(answers, [], b.me, KEY, b.collection.queries)
    with pytest.raises(ValueError, match=f"{a.me.name} was not asked about"):
        take_turn(replace(b.collection, queries=["unheard of words"] * 20), b.me, told, first)


# --- the file


def test_a_model_is_read_as_it_was_written_and_every_command_reads_it(three, first, tmp_path) -> None:
    save_turn(first, tmp_path / "turn-1.json")
    again = read_turn(tmp_path / "turn-1.json", three[1].me)
    assert (again.agreement, again.turns) == (first.agreement, first.turns)
    assert again.weights.tobytes() == first.weights.tobytes()
    save_turn(again, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "turn-1.json").read_bytes()
    assert load_model(tmp_path / "turn-1.json").features == 16


def test_a_model_on_fixed_ranges_says_so_and_can_be_exported(three, first, tmp_path) -> None:
    a, b = three[:2]
    model = take_turn(a.collection, a.me, a.partners(b), None, {"normalise": "fixed"}).model
    path = tmp_path / "turn-1.json"
    save_turn(model, path)
    assert read_turn(path, b.me).agreement.normalise == "fixed"
    assert load_model(path).ranges.tolist() == RANGES.tolist()
    assert export(path, "opensearch", tmp_path / "model.os.json").what == "model/linear for OpenSearch of 16 features"
    with pytest.raises(ValueError, match="normalise = query, and the model was begun with normalise = fixed"):
        take_turn(b.collection, b.me, b.partners(a), model, {"normalise": "query"})
    content = json.loads(path.read_text())
    del content["checksum"]
    for where, value in (("ranges.1.0", 400.0), ("ranges", None), ("normalised", "query")):
        path.write_text(json.dumps(content))
        other = json.loads(path.read_text())
        changed(other, where, value)
        path.write_text(json.dumps(other))
        with pytest.raises(ValueError, match=r"by other ranges than normalise = 'fixed' has|ranges"):
            read_turn(path, b.me)


def test_models_without_that_choice_are_read_and_written_as_before(three, first, tmp_path) -> None:
    """The notes of the first version did not say how features are scaled, and no checksum changes."""
    save_turn(first, tmp_path / "turn-1.json")
    notes = json.loads((tmp_path / "turn-1.json").read_text())["notes"]["silo"]
    assert "normalise" not in notes
    assert set(notes) == {
        *("parties", "key", "kind", "tokeniser", "top_grade", "k", "rate", "batch", "seed"),
        *("bias", "turns", "checksum"),
    }
    assert read_turn(tmp_path / "turn-1.json", three[1].me).agreement.normalise == "query"
    with pytest.raises(ValueError, match="normalise = 'always'; use 'query' or 'fixed'"):
        replace(first.agreement, normalise="always")


def test_a_turn_that_breaks_off_leaves_nothing_and_can_be_taken_again(three, first, tmp_path, monkeypatch) -> None:
    path = turn_file(tmp_path, None)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save_turn(first, path)
    assert list(tmp_path.iterdir()) == []
    again = take_turn(three[0].collection, three[0].me, three[0].partners(three[1])).model
    assert again.weights.tobytes() == first.weights.tobytes()
    save_turn(again, turn_file(tmp_path, None))


def test_no_turn_is_taken_twice(three, first, tmp_path) -> None:
    a, b = three[:2]
    with pytest.raises(ValueError, match="turn 1, the last of this model, was yours"):
        take_turn(a.collection, a.me, a.partners(b), first)
    second = take_turn(b.collection, b.me, b.partners(a), first).model
    save_turn(second, turn_file(tmp_path, first))
    with pytest.raises(FileExistsError, match=r"turn-2\.json exists, so that you took turn 2 already"):
        turn_file(tmp_path, first)
    assert turn_file(tmp_path, second).name == "turn-3.json"


def test_a_model_by_letter_proves_who_trained_it(three, first, tmp_path) -> None:
    a, b, c = three
    save_turn(first, tmp_path / "turn-1.json")
    letter = tmp_path / "turn-1.letter"
    letter.write_bytes(seal_turn(tmp_path / "turn-1.json", a.me, b.me.name))
    assert read_turn(letter, b.me).weights.tobytes() == first.weights.tobytes()
    with pytest.raises(ValueError, match=f"a letter to '{b.me.name}' came to '{c.me.name}'"):
        read_turn(letter, c.me)
    with pytest.raises(ValueError, match=f"that {a.me.name} trained last"):
        seal_turn(tmp_path / "turn-1.json", c.me, b.me.name)
    forged = tmp_path / "forged.letter"
    forged.write_bytes(seal((tmp_path / "turn-1.json").read_bytes(), "model", c.me, b.me.name))
    with pytest.raises(ValueError, match=rf"forged.letter: a letter of {c.me.name} about a model that {a.me.name}"):
        read_turn(forged, b.me)
    forged.write_bytes(seal(b"{", "model", a.me, b.me.name))
    with pytest.raises(ValueError, match=r"forged.letter: .* is not a valid model"):
        read_turn(forged, b.me)
    broken = bytearray(letter.read_bytes())
    broken[-1] ^= 1
    forged.write_bytes(broken)
    with pytest.raises(ValueError, match=r"forged.letter: .* does not open"):
        read_turn(forged, b.me)


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
        ("notes.silo.turns.0.passes", 20_000, "20,000 passes, and a model can have 10,000"),
        ("notes.silo.turns.0.passes", 0, "with 0 passes"),
        ("notes.silo.turns.0.passes", 1.5, "with 1.5 passes"),
        ("notes.silo.turns.0.party", "somebody", "a turn of 'somebody'"),
        ("notes.silo.turns", [], "no list of 1 to 10,000 turns"),
        ("notes.silo.turns", "none", "no list of 1 to 10,000 turns"),
        ("notes.silo.turns", [3], "makes no sense"),
        ("notes.silo.bias", float("nan"), "a bias of nan"),
        ("notes.silo.bias", 1e9, "a weight beyond 1,000,000"),
        ("notes.silo.bias", "much", "could not convert"),
        ("weights.0", float("inf"), "not finite"),
        ("weights.0", 1e300, "a weight beyond"),
        ("weights", [0.0] * 15, "it has 15 weights"),
        ("weights", [[0.0] * 16] * 2, "a Linear model on 16 features"),
        ("features", 15, "it has 16 weights"),
        ("feature_names.2", "colour", "of other features"),
        ("normalised", "none", "scaled by 'none'"),
        ("notes.silo", None, "say nothing of turns"),
        ("notes.silo", 3, "makes no sense"),
        ("notes.silo.bias", None, "makes no sense"),
        ("notes.silo.parties", ["a"], "name two or more"),
        ("notes.silo.parties", ["b", "a"], "each once, in order"),
        ("notes.silo.parties", [1, 2], "makes no sense"),
        ("notes.silo.rate", -1.0, "rate = -1.0; use a number from"),
        ("notes.silo.rate", "fast", "makes no sense"),
        ("notes.silo.batch", 1.5, "batch = 1.5; use a number from"),
        ("notes.silo.seed", True, "seed = True"),
        ("notes.silo.more", 1, "of another version"),
        ("notes.silo.k", None, "of another version"),
        ("format", "theirs", "not a model file of fedrank"),
        ("version", 99, "newer than this version of fedrank"),
    ],
)
def test_a_model_that_was_changed_is_refused_by_name(three, first, tmp_path, where, value, told) -> None:
    path = tmp_path / "turn-1.json"
    save_turn(first, path)
    content = json.loads(path.read_text())
    del content["checksum"]  # of the file, which would be wrong, too
    changed(content, where, value)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=told) as error:
        read_turn(path, three[1].me)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", "[" * 100_000, "x" * (1 << 21)])
def test_a_file_that_is_no_model_is_refused_by_name(three, tmp_path, content) -> None:
    path = tmp_path / "turn-1.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"turn-1\.json"):
        read_turn(path, three[1].me)
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        read_turn(tmp_path / "none.json", three[1].me)


# --- who does not fit


def test_a_turn_of_somebody_else_or_with_others_is_refused(three, first) -> None:
    a, b, c = three
    with pytest.raises(ValueError, match=f"you are {c.me.name}, and the model is of"):
        take_turn(c.collection, c.me, c.partners(a), first)
    with pytest.raises(ValueError, match=f"{c.me.name} is none of them: leave it out"):
        take_turn(b.collection, b.me, b.partners(a, c), first)
    all_three = take_turn(a.collection, a.me, a.partners(b, c)).model
    with pytest.raises(ValueError, match=f"give a sketch of {c.me.name}, too"):
        take_turn(b.collection, b.me, b.partners(a), all_three)
    with pytest.raises(ValueError, match="no partner"):
        take_turn(b.collection, b.me, [], first)


def test_another_agreement_is_refused(three, first) -> None:
    a, b = three[:2]
    known = b.partners(a)[0]
    for name, other in (
        ("kind", replace(known, sketcher=replace(NOISED, kind="count-min"))),
        ("tokeniser", replace(known, sketcher=replace(NOISED, tokeniser=Tokeniser("english")))),
        ("key", replace(known, fingerprint=bytes(16))),
    ):
        with pytest.raises(ValueError, match=f"the {name} of {a.me.name} is .*make sketches alike"):
            take_turn(b.collection, b.me, [other], first)
    with pytest.raises(ValueError, match="k = 20, and the model was begun with k = 150"):
        take_turn(b.collection, b.me, [known], first, {"k": 20, "rate": None})
    assert take_turn(b.collection, b.me, [known], first, {"k": 150}).model.agreement == first.agreement
    graded = replace(b.collection, grades=np.full_like(b.collection.grades, 4))
    with pytest.raises(ValueError, match="go up to grade 4, and the model was begun for up to 2"):
        take_turn(graded, b.me, [known], first)
    for wrong in ({"k": 0}, {"rate": 0.0}, {"batch": 0}, {"seed": -1}, {"top_grade": 200}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} = .*use a number from"):
            take_turn(b.collection, b.me, [known], None, wrong)


def test_partners_are_who_they_say(three, tmp_path) -> None:
    a, b, c = three
    copy = a.copy_for(b)
    with pytest.raises(ValueError, match=f"was made for {b.me.name}, and you are {c.me.name}"):
        load_partners([copy], [], c.me, KEY, [])
    with pytest.raises(ValueError, match="was made with another key"):
        load_partners([copy], [], b.me, bytes(32), [])
    second = shutil.copy(copy, tmp_path / "second.sketch")
    with pytest.raises(ValueError, match="a second sketch"):
        load_partners([copy, Path(second)], [], b.me, KEY, [])
    with pytest.raises(ValueError, match="an owner's own file"):
        load_partners([a.sketch], [], b.me, KEY, [])
    nothing = tmp_path / "empty.sketch"
    documents = replace(a.collection.documents, ids=[], title=[], text=[], url=[])
    sketch_collection(documents, KEY, NOISED, nothing, rule=RULE)
    export_sketch(nothing, a.me, b.me.name, tmp_path / "empty-for-b.sketch")
    with pytest.raises(ValueError, match="holds no documents"):
        load_partners([tmp_path / "empty-for-b.sketch"], [], b.me, KEY, [])


def test_a_file_longer_than_any_letter_is_not_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(letters.LONGEST, "answer", 10)
    monkeypatch.setitem(letters.LONGEST, "question", 10)
    monkeypatch.setitem(letters.LONGEST, "model", 10)
    (tmp_path / "long.letter").write_bytes(bytes(11))
    with pytest.raises(ValueError, match="more than any letter"):
        turns.read_letter(tmp_path / "long.letter")


def test_an_agreement_needs_two() -> None:
    with pytest.raises(ValueError, match="name two or more"):
        Agreement((), "00", "count-sketch", "words-1", 2)


# --- two organisations, from documents to a model, by commands alone


@dataclass(frozen=True)
class Desk:
    """Where one organisation works: its own folder, and the commands that it runs there."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str, code: int = 0) -> str:
        """What a command says: its output, or its error where it should fail."""
        self.monkeypatch.chdir(self.folder)
        self.monkeypatch.setattr(sys, "argv", ["fedrank", "silo", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self.capsys.readouterr()
        assert (end.value.code or 0) == code, f"{words}\n{out}{err}"
        return " ".join((err if code else out).split())

    def send(self, name: str, other: Desk) -> None:
        shutil.copy(self.folder / name, other.folder)


@pytest.mark.long
@pytest.mark.parametrize("by", ["copy", "letter"])
def test_two_organisations_train_from_documents_to_a_model(tmp_path, monkeypatch, capsys, by) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    a, b = (Desk(tmp_path / name, monkeypatch, capsys) for name in "ab")
    for place, desk in enumerate((a, b)):
        write_collection(desk.folder / "data", place, 2)
    a("key", "identity", "a.secret"), b("key", "identity", "b.secret")
    a.send("a.public", b), b.send("b.public", a)
    for desk, mine, other in ((a, "a", "b"), (b, "b", "a")):
        desk("key", "agree", "--secret", f"{mine}.secret", "--public", f"{other}.public", "--out", "shared.key")
        settings = ["--noise", "0.5", "--width", "100", "--depth", "9"]
        desk("sketch", "--docs", "data/corpus.jsonl", "--key", "shared.key", *settings, "--out", f"{mine}.sketch")
    assert (a.folder / "shared.key").read_bytes() == (b.folder / "shared.key").read_bytes()
    told = {}
    for desk, mine, other, to in ((a, "a", "b", b), (b, "b", "a", a)):
        me = ["--identity", f"{mine}.secret"]
        if by == "copy":
            file = f"{mine}-for-{other}.sketch"
            desk("export", f"{mine}.sketch", *me, "--to", f"{other}.public", "--out", file)
            desk.send(file, to)
            told[other] = ["--partner", file]
        else:
            question, reply = f"question-of-{mine}.letter", f"answer-of-{other}.letter"
            own = ["--sketch", f"{mine}.sketch", "--key", "shared.key"]
            desk("ask", "data", *own, *me, "--to", f"{other}.public", "--out", question)
            desk.send(question, to)
            theirs = ["--sketch", f"{other}.sketch", "--identity", f"{other}.secret", "--to", f"{mine}.public"]
            to("answer", question, *theirs, "--out", reply)
            to.send(reply, desk)
            told[mine] = ["--partner", reply, "--asked", question]

    def train(desk: Desk, mine: str, other: str, *more: str, code: int = 0) -> str:
        own = ["--sketch", f"{mine}.sketch", "--key", "shared.key", "--identity", f"{mine}.secret"]
        return desk(
            "train", "data", *own, "--public", f"{other}.public", *told[mine], "--out", "turns", *more, code=code
        )

    said = train(a, "a", "b", "--k", "20")
    assert "BM25" in said
    assert "the model before this turn" not in said
    assert "turns/turn-1.json: pass it on" in said
    assert load_model(a.folder / "turns" / "turn-1.json").normalised == "global"  # which engines can do
    stated = re.search(r"what copies and answers from a\.sketch tell: (ε = [\d.]+ at δ = 1e-05)", said)
    assert describe_sketch(a.folder / "a.sketch")["privacy"].startswith(stated[1])
    assert "and how many documents hold a word" in said
    assert ("by a copy; ε = " if by == "copy" else "by 1 letter; what that costs") in said
    assert ("the words of your queries" in said) == (by == "letter")
    assert "turns/turn-1.json exists, so that you took turn 1 already" in train(a, "a", "b", code=2)

    a("seal", "turns/turn-1.json", "--identity", "a.secret", "--to", "b.public", "--out", "turn-1.letter")
    again = a(
        "seal", "turns/turn-1.json", "--identity", "a.secret", "--to", "b.public", "--out", "turn-1.letter", code=2
    )
    assert "turn-1.letter exists" in again
    a.send("turn-1.letter", b)
    said = train(b, "b", "a", "--model", "turn-1.letter", "--passes", "2")
    assert "the model before this turn" in said
    assert "3 passes of all parties so far" in said
    (a.folder / "came.json").write_bytes((b.folder / "turns/turn-2.json").read_bytes())
    said = train(a, "a", "b", "--model", "came.json")
    quality = float(re.search(r"the model now (0\.\d+)", said)[1])
    assert quality > 0.3
    turns = ["turn-1.json", "turn-3.json"]
    cards = [f"{name}.privacy.json" for name in turns]
    assert [path.name for path in sorted((a.folder / "turns").iterdir())] == sorted([*turns, *cards])
    card = json.loads((a.folder / "turns" / cards[-1]).read_text())
    assert (next(iter(card)), card["what"]) == ("what", "deployed run")
    assert list(card["files"]) == ["turn-3.json"]
    assert "Not covered: the weights" in card["summary"]
    assert "was yours" in train(a, "a", "b", "--model", "turns/turn-3.json", "--out", "others", code=2)
    shutil.copy(a.folder / "turns/turn-3.json", b.folder / "came.json")
    told_off = train(b, "b", "a", "--model", "came.json", "--k", "30", code=2)
    assert "k = 30, and the model was begun with k = 20" in told_off
    # Nothing that one organisation reads lies in the other's folder.
    texts = read_collection(a.folder / "data").documents.text[:20]
    for path in b.folder.rglob("*"):
        if path.is_file() and "data" not in path.parts:
            assert not any(text.encode() in path.read_bytes() for text in texts)


@pytest.mark.long
def test_a_sketch_that_is_not_ones_own_is_refused(three, tmp_path, monkeypatch, capsys) -> None:
    a, b = three[:2]
    desk = Desk(tmp_path, monkeypatch, capsys)
    for name in ("mine", "theirs"):
        desk("key", "identity", f"{name}.secret")
    desk("key", "new", "other.key")
    words = ["train", str(b.folder), "--key", "other.key", "--identity", "mine.secret", "--public", "theirs.public"]
    words += ["--partner", str(a.copy_for(b)), "--out", "turns"]
    assert "is a copy for a querier" in desk(*words, "--sketch", str(a.copy_for(b)), code=2)
    assert "was made with another key" in desk(*words, "--sketch", str(b.sketch), code=2)
    assert not (tmp_path / "turns").exists()
