"""Questions and answers between silos: what comes through, what is refused, what the relay sees."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.documents import Documents
from fedrank.data.text import Tokeniser
from fedrank.silo import letters, protocol
from fedrank.silo.features import FIELDS
from fedrank.silo.files import sketch_collection
from fedrank.silo.letters import Party, padded, read_address, seal, unseal
from fedrank.silo.partners import Sketched
from fedrank.silo.protocol import Declined, Owner, answer, ask, joined, read_answer, recall
from fedrank.silo.rtk import TopKRule
from fedrank.silo.sketch import Sketcher
from fedrank.wire import Refused

KEY = bytes(range(32))
PLAIN = Sketcher(width=50, depth=7)
NOISED = replace(PLAIN, noise=0.5)


def texts(many: int = 12) -> list[str]:
    """Document d holds "flu" ten times d times."""
    return [f"word{d} " + "flu " * 10 * d for d in range(many)]


def collection(many: int = 12) -> Documents:
    return Documents([f"d{d}" for d in range(many)], ["a title"] * many, texts(many), [""] * many)


@pytest.fixture
def owner_of(tmp_path, parties):
    """An owner with the files of a."""

    def make(sketcher: Sketcher = NOISED) -> Owner:
        rule = TopKRule(alpha=2, k=5)
        return Owner(parties["a"], sketch_collection(collection(), KEY, sketcher, tmp_path / "a.sketch", rule=rule))

    return make


def question(parties, terms=("flu",), sketcher=PLAIN, key=KEY, **more):
    return ask(terms, "a", parties["b"], sketcher, key, **{"k": 5, **more})


def exchange(owner, parties, **more):
    asked = question(parties, **more)
    return read_answer(answer(asked.letter, owner), asked, parties["b"])


def refusal(owner, parties, **more):
    with pytest.raises(Declined) as told:
        exchange(owner, parties, **more)
    return str(told.value)


def named(owner, found, querier="b"):
    """What was found, by id."""
    ids = dict(zip(owner.file.pseudonyms_for(querier).tolist(), owner.file.ids, strict=True))
    return {ids[int(name)]: count for name, count in zip(*found, strict=True)}


# --- letters


def test_a_letter_opens_for_its_addressee_only(parties):
    letter = seal(b"hello", "question", parties["b"], "a")
    assert unseal(letter, "question", parties["a"]) == ("b", b"hello")
    assert b"hello" not in letter
    with pytest.raises(ValueError, match="a letter to 'a' came to 'c'"):
        unseal(letter, "question", parties["c"])
    impostor = Party("a", parties["c"].secret, parties["c"].others)
    with pytest.raises(ValueError, match="cannot be decrypted"):
        unseal(letter, "question", impostor)


def test_every_changed_byte_of_a_letter_is_noticed(parties):
    letter = bytearray(seal(b"hello", "question", parties["b"], "a"))
    for place in [*range(letters.ENVELOPE.size + 20), len(letter) - 1]:
        letter[place] ^= 1
        with pytest.raises(ValueError):
            unseal(bytes(letter), "question", parties["a"])
        letter[place] ^= 1
    assert unseal(bytes(letter), "question", parties["a"])[1] == b"hello"


def test_an_answer_cannot_be_sent_back_as_a_question(parties):
    letter = seal(b"hello", "question", parties["b"], "a")
    with pytest.raises(ValueError, match="expected a letter of kind answer"):
        unseal(letter, "answer", parties["a"])
    assert parties["a"].key("question", "b", "a") == parties["b"].key("question", "b", "a")
    directions = {parties["a"].key(kind, *way) for kind in letters.KINDS for way in (("a", "b"), ("b", "a"))}
    assert len(directions) == 2 * len(letters.KINDS)


def test_a_sender_can_read_its_own_letter_and_nobody_else_can_pretend_to_be_it(parties):
    letter = seal(b"hello", "question", parties["b"], "a")
    assert unseal(letter, "question", parties["b"], own=True) == ("a", b"hello")
    with pytest.raises(ValueError, match="the letter is from 'b', not from 'a'"):
        unseal(letter, "question", parties["a"], own=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda letter: letter[:20], "truncated"),
        (lambda letter: letter[:-1], "truncated or damaged"),
        (lambda letter: letter + b"x", "truncated or damaged"),
        (lambda letter: b"HTTP" + letter[4:], "not a letter between silos"),
        (lambda letter: letter[:4] + b"\x04" + letter[5:], "version 4, but this fedrank reads version 3; update this"),
        (lambda letter: letter[:4] + b"\x02" + letter[5:], "version 2, but this fedrank reads version 3; update the s"),
        (lambda letter: letter[:5] + b"\x04" + letter[6:], "unknown kind 4"),
        (lambda letter: letter[:5] + b"\x09" + letter[6:], "unknown kind 9"),
        (lambda letter: letter + bytes(letters.LONGEST["question"]), "longer than the maximum of 1,048,576"),
        (lambda letter: letter[:6] + b"\xff" * 32 + letter[38:], "not a valid name of a silo"),
    ],
)
def test_a_letter_that_cannot_be_right_is_named(parties, change, told):
    letter = change(seal(b"hello", "question", parties["b"], "a"))
    with pytest.raises(Refused, match=told):
        read_address(letter)


def test_a_content_that_promises_more_than_it_has_is_refused(parties):
    letter = seal(b"hello", "question", parties["b"], "a")
    key = parties["b"].key("question", "b", "a")
    envelope, nonce = letter[: letters.ENVELOPE.size], bytes(12)
    plain = struct.pack("<I", 1021) + bytes(1020)
    forged = envelope + nonce + letters.aead(key).encrypt(nonce, plain, envelope)
    with pytest.raises(ValueError, match="fewer than the 1,021 bytes"):
        unseal(forged, "question", parties["a"])


def test_a_letter_too_long_is_not_even_written(parties):
    with pytest.raises(ValueError, match="longer than 1,048,576"):
        seal(bytes(1 << 20), "question", parties["b"], "a")


def test_letters_to_strangers_and_bad_names_are_refused(parties):
    with pytest.raises(ValueError, match="no public key of 'c'"):
        seal(b"", "question", parties["a"], "c")
    for name in ("", "x" * 41, "a\0b"):
        with pytest.raises(ValueError, match="is not a valid name of a silo"):
            Party(name, bytes(32), {})


@given(st.integers(0, 1 << 28))
@settings(max_examples=200, deadline=None)
def test_padding_tells_lengths_roughly_and_costs_little(length):
    assert padded(length) >= max(length, 1024)
    assert padded(length) <= max(1.12 * length, 1024)
    assert padded(padded(length)) == padded(length)


def test_few_lengths_are_ever_seen():
    assert len({padded(length) for length in range(1, 1 << 16)}) < 120


def test_the_relay_sees_who_and_how_much_and_nothing_else(parties):
    short = seal(b"flu", "question", parties["b"], "a")
    long = seal(b"influenza " * 50, "question", parties["b"], "a")
    seen = [read_address(letter) for letter in (short, long)]
    assert seen[0] == seen[1] == letters.Address("question", "b", "a", len(short))
    assert short[letters.ENVELOPE.size :] != seal(b"flu", "question", parties["b"], "a")[letters.ENVELOPE.size :]


# --- questions and answers


def test_the_best_documents_come_back_under_pseudonyms(owner_of, parties):
    owner = owner_of()
    got = exchange(owner, parties)
    found = got.found("flu")
    assert set(named(owner, found)) == {"d11", "d10", "d9", "d8", "d7"}
    assert found[1].tolist() == sorted(found[1], reverse=True)
    told = got.counts(["flu"])
    assert dict(zip(told.documents.tolist(), told.counts["body"][:, 0], strict=True)) == {
        name: named(owner, found).get(f"d{row}", 0.0)
        for row, name in enumerate(owner.file.pseudonyms_for("b").tolist())
        if name in told.documents
    }


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=9, unique=True))
@settings(max_examples=25, deadline=None)
def test_cells_and_signs_arrive_as_they_were_sent(parties, terms):
    asked = question(parties, terms)
    _, content = unseal(asked.letter, "question", parties["a"])
    got = protocol._read_question(content, "b")
    mine = PLAIN.locate(terms, PLAIN.hashing(KEY))
    wide = PLAIN.wide.locate(terms, PLAIN.wide.hashing(KEY))
    assert (got.sketcher, got.k, len(got.at.cells)) == (PLAIN, 5, len(terms))
    at = [asked.terms[term] for term in terms]
    for sent, expected in zip(got.at, (*mine, wide[0]), strict=True):
        np.testing.assert_array_equal(sent[at], expected)
    np.testing.assert_array_equal(mine[1], wide[1])  # so that signs are sent once


def test_a_question_is_recalled_from_its_letter(parties):
    asked = question(parties, ["flu", "cold"])
    again = recall(asked.letter, parties["b"], KEY, ["cold", "never asked", "flu"])
    assert (again.id, again.owner, again.sketcher, again.terms) == (asked.id, "a", PLAIN, asked.terms)
    np.testing.assert_array_equal(again.signs, asked.signs)
    with pytest.raises(ValueError, match="with another key"):
        recall(asked.letter, parties["b"], bytes(32), ["flu"])
    with pytest.raises(ValueError, match="from 'b', not"):
        recall(asked.letter, parties["a"], KEY, ["flu"])


def alike(one, other, terms):
    """Two partners that tell the same, to the last bit."""
    assert (one.kind, one.documents, one.words) == (other.kind, other.documents, other.words)
    mine, theirs = one.counts(terms), other.counts(terms)
    for name in FIELDS:
        assert one.frequencies(terms)[name].tolist() == other.frequencies(terms)[name].tolist()
        assert mine.counts[name].tolist() == theirs.counts[name].tolist()
        assert mine.lengths[name].tolist() == theirs.lengths[name].tolist()
    return mine, theirs


def test_letters_tell_what_a_copy_of_the_sketch_tells(owner_of, parties, tmp_path):
    """The same documents in the same order, ties among them: all titles are alike."""
    owner = owner_of()
    terms = ["flu", "title", "word3", "nowhere"]
    got = exchange(owner, parties, terms=terms, k=0)
    copy = owner.file.copy_for("b")
    for some in (terms, terms[1:3], [], terms[::-1]):
        mine, theirs = alike(got, Sketched(copy, KEY), some)
        assert mine.documents.tolist() == copy.pseudonyms[theirs.documents].tolist()


def test_several_letters_are_as_good_as_one(owner_of, parties):
    owner = owner_of()
    one, two = (exchange(owner, parties, terms=terms) for terms in (["flu", "word3"], ["title", "flu"]))
    whole = exchange(owner, parties, terms=["flu", "title", "word3"])
    alike(joined([one, two]), whole, ["flu", "title", "word3"])
    with pytest.raises(ValueError, match="was not asked about 'word3'"):
        two.counts(["word3"])
    with pytest.raises(ValueError, match="changed its documents"):
        joined([one, replace(two, documents=11)])


def test_an_owner_without_titles_is_read_like_any_other(owner_of, parties, tmp_path):
    bodies = replace(collection(), title=[""] * 12)
    owner = replace(owner_of(), file=sketch_collection(bodies, KEY, NOISED, tmp_path / "bodies.sketch"))
    got = exchange(owner, parties, terms=["title", "flu"], k=0)
    copy = owner.file.copy_for("b")
    alike(got, Sketched(copy, KEY), ["title", "flu"])
    assert not got.counts(["flu"]).counts["title"].any()
    assert got.words["title"] == 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"key": bytes(32)}, "your key"),
        ({"sketcher": replace(PLAIN, width=49)}, "your width is 49, but the owner has 50"),
        ({"sketcher": replace(PLAIN, depth=8)}, "your depth is 8, but the owner has 7"),
        ({"sketcher": replace(PLAIN, kind="count-min")}, "your kind is count-min"),
        ({"sketcher": replace(PLAIN, tokeniser=Tokeniser("english"))}, "your tokeniser is words-1-english"),
        ({"k": 6}, "at most 5"),
    ],
)
def test_a_question_with_other_settings_is_refused_by_letter(owner_of, parties, more, told):
    assert told in refusal(owner_of(), parties, **more)


def test_an_answer_that_would_be_too_long_is_refused(owner_of, parties, monkeypatch):
    owner = owner_of()
    monkeypatch.setitem(letters.LONGEST, "answer", 2 * (2 * 5 * 8 - 1))  # two fields of 5 documents, 8 bytes each
    asked = question(parties)
    monkeypatch.setattr(protocol, "seal", lambda content, *_: content)
    assert b"an answer of 80 bytes is too long" in answer(asked.letter, owner)
    monkeypatch.setitem(letters.LONGEST, "answer", 2 * 80)
    assert b"too long" not in answer(asked.letter, owner)


def test_a_question_of_nonsense_is_refused_by_letter(owner_of, parties):
    owner = owner_of()
    asked = question(parties)
    _, content = unseal(asked.letter, "question", parties["a"])
    cell = protocol.QUESTION.size
    wide = cell + 4 * 7
    for wrong in (
        b"",
        content[:30],
        content[:-1],
        content[:cell] + struct.pack("<I", 50) + content[cell + 4 :],  # a cell beyond the width
        content[:wide] + struct.pack("<H", 4096) + content[wide + 2 :],
        content[:24] + b"\x07" + content[25:],  # an unknown kind
    ):
        letter = answer(seal(wrong, "question", parties["b"], "a"), owner)
        _, back = unseal(letter, "answer", parties["b"])
        assert protocol.ANSWER.unpack_from(back)[1] == protocol.REFUSED


def test_a_query_without_words_is_not_sent_and_one_of_unknown_words_finds_nothing(owner_of, parties):
    with pytest.raises(ValueError, match="has no words"):
        question(parties, [])
    with pytest.raises(ValueError, match="at most 4000"):
        question(parties, [f"w{i}" for i in range(4001)])
    assert len(question(parties, [f"w{i}" for i in range(4000)], Sketcher()).letter) < letters.LONGEST["question"]
    owner = owner_of(replace(PLAIN, noise=0.1))
    assert len(exchange(owner, parties, terms=["unheard"]).found("unheard")[0]) <= 5


def test_an_answer_to_another_question_is_refused(owner_of, parties):
    owner = owner_of()
    one, two = question(parties), question(parties)
    with pytest.raises(ValueError, match="another question"):
        read_answer(answer(one.letter, owner), two, parties["b"])
    _, content = unseal(answer(one.letter, owner), "answer", parties["b"])
    with pytest.raises(ValueError, match="the answer of 'c' belongs to another question"):
        read_answer(seal(content, "answer", parties["c"], "b"), one, parties["b"])


def test_a_short_answer_is_noticed(owner_of, parties):
    owner = owner_of()
    asked = question(parties)
    _, content = unseal(answer(asked.letter, owner), "answer", parties["b"])
    for wrong in (content[:-1], content[: protocol.ANSWER.size + 3], content[:16]):
        with pytest.raises(ValueError, match="is truncated"):
            read_answer(seal(wrong, "answer", parties["a"], "b"), asked, parties["b"])
    empty = protocol.ANSWER.pack(asked.id, protocol.ANSWERED, 0, 0, 1, 12, 0, 1)
    with pytest.raises(ValueError, match="about 1 terms"):
        read_answer(seal(empty, "answer", parties["a"], "b"), asked, parties["b"])


FINE = {
    "status": 0,
    "noise": 0,
    "fields": 1,
    "documents": 2,
    "names": [3, 9],
    "words": 1.0,
    "rows": 1,
    "numbers": 1,
    "frequency": 1.0,
    "size": 1,
    "place": 1,
    "count": 1.0,
    "with lengths": 1,
}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, ""),
        ({"status": 7}, "unknown kind"),
        ({"noise": 1}, "unknown kind"),
        ({"with lengths": 0}, "unknown kind"),
        ({"fields": 0}, "unknown kind"),
        ({"fields": 2}, "unknown kind"),
        ({"fields": 5}, "unknown kind"),
        ({"fields": 3}, "is truncated"),
        ({"documents": 1}, "more documents than exist"),
        ({"names": [9, 3]}, "names a document twice"),
        ({"names": [3, 3]}, "names a document twice"),
        ({"numbers": 0}, "got 1 and 0"),
        ({"rows": 0}, "got 0 and 1"),
        ({"rows": 6}, "got 6 and 1"),
        ({"numbers": 7}, "got 1 and 7"),
        ({"size": 2**32 - 1}, "is truncated"),
        ({"place": 2}, "without a document"),
        ({"count": float("nan")}, "not finite"),
        ({"count": float("inf")}, "not finite"),
        ({"words": float("nan")}, "not finite"),
        ({"frequency": float("inf")}, "not finite"),
    ],
)
def test_an_answer_of_nonsense_is_refused(parties, wrong, told):
    asked = question(parties)
    a = FINE | wrong
    content = protocol.ANSWER.pack(
        asked.id, a["status"], a["noise"], 1, a["fields"], a["documents"], len(a["names"]), a["with lengths"]
    )
    content += struct.pack("<2Q", *a["names"]) + protocol.FIELD.pack(a["words"], a["rows"], a["numbers"])
    content += struct.pack(f"<{a['rows']}d", *[a["frequency"]] * a["rows"]) + struct.pack("<2i", 4, 5)
    content += struct.pack("<IIf", a["size"], a["place"], a["count"])
    letter = seal(content, "answer", parties["a"], "b")
    if not told:
        documents, counts = read_answer(letter, asked, parties["b"]).found("flu")
        assert (documents.tolist(), counts.tolist()) == ([9], [1.0])
        return
    with pytest.raises(Refused, match=told):
        read_answer(letter, asked, parties["b"])


def test_a_refusal_cannot_play_tricks_with_a_terminal(parties):
    asked = question(parties)
    content = protocol.ANSWER.pack(asked.id, protocol.REFUSED, 0, 0, 0, 0, 0, 0) + b"no \x1b[2J\xff more"
    with pytest.raises(Declined) as told:
        read_answer(seal(content, "answer", parties["a"], "b"), asked, parties["b"])
    assert str(told.value) == "a refuses: no  [2J\ufffd more"


def test_an_owner_without_noise_does_not_answer(owner_of):
    with pytest.raises(ValueError, match="would reveal the documents"):
        owner_of(PLAIN)
