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
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.noise import SecureSource
from fedrank.silo import letters, protocol
from fedrank.silo.features import FIELDS
from fedrank.silo.files import open_sketch, sketch_collection
from fedrank.silo.letters import Party, padded, read_address, seal, unseal
from fedrank.silo.partners import Sketched
from fedrank.silo.protocol import Declined, Owner, answer, ask, choose_decoys, joined, read_answer, recall
from fedrank.silo.rtk import TopKRule
from fedrank.silo.sketch import Sketcher
from fedrank.silo.spending import Limits, SiloLedger
from fedrank.wire import Refused

KEY = bytes(range(32))
PLAIN = Sketcher(width=50, depth=7)
NOISED = replace(PLAIN, noise=0.5)
WORDS = [f"decoy{i}" for i in range(100)]


def texts(many: int = 12) -> list[str]:
    """Document d holds "flu" ten times d times."""
    return [f"word{d} " + "flu " * 10 * d for d in range(many)]


def collection(many: int = 12) -> Documents:
    return Documents([f"d{d}" for d in range(many)], ["a title"] * many, texts(many), [""] * many)


@pytest.fixture
def owner_of(tmp_path, parties):
    """An owner with the files of a."""

    def make(noise: str = "sketch", sketcher: Sketcher | None = None, limits: Limits | None = None, **more) -> Owner:
        sketcher = sketcher or (NOISED if noise == "sketch" else PLAIN)
        rule = TopKRule(alpha=2, k=5)
        file = sketch_collection(
            collection(), KEY, sketcher, tmp_path / "a.sketch", rule=rule, owner="a", limits=limits
        )
        sketches = None
        if noise != "sketch":
            plain = replace(sketcher, noise=0.0)
            fields = {"body": texts(), "title": ["a title"] * 12}
            hashing = sketcher.hashing(KEY)
            sketches = {name: plain.sketch(plain.term_counts(field), hashing) for name, field in fields.items()}
        return Owner(parties["a"], file, SiloLedger(tmp_path / "a.spending"), noise, sketches=sketches, **more)

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
    with pytest.raises(ValueError, match="does not open"):
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
    with pytest.raises(ValueError, match="a letter of 'b', and you are 'a'"):
        unseal(letter, "question", parties["a"], own=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda letter: letter[:20], "cut short"),
        (lambda letter: letter[:-1], "cut short or damaged"),
        (lambda letter: letter + b"x", "cut short or damaged"),
        (lambda letter: b"HTTP" + letter[4:], "no letter between silos"),
        (lambda letter: letter[:4] + b"\x04" + letter[5:], "version 4, and this fedrank reads version 3; update this"),
        (lambda letter: letter[:4] + b"\x02" + letter[5:], "version 2, and this fedrank reads version 3; update the s"),
        (lambda letter: letter[:5] + b"\x04" + letter[6:], "unknown kind 4"),
        (lambda letter: letter[:5] + b"\x09" + letter[6:], "unknown kind 9"),
        (lambda letter: letter + bytes(letters.LONGEST["question"]), "longer than 1,048,576 and was not read"),
        (lambda letter: letter[:6] + b"\xff" * 32 + letter[38:], "no name of a silo"),
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
    with pytest.raises(ValueError, match="promises 1,021 bytes"):
        unseal(forged, "question", parties["a"])


def test_a_letter_too_long_is_not_even_written(parties):
    with pytest.raises(ValueError, match="longer than 1,048,576"):
        seal(bytes(1 << 20), "question", parties["b"], "a")


def test_letters_to_strangers_and_bad_names_are_refused(parties):
    with pytest.raises(ValueError, match="no public key of 'c'"):
        seal(b"", "question", parties["a"], "c")
    for name in ("", "x" * 41, "a\0b"):
        with pytest.raises(ValueError, match="cannot name a silo"):
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
    assert owner.ledger.totals()[-1]["terms answered"] == 0  # paid when it was sketched


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=9, unique=True))
@settings(max_examples=25, deadline=None)
def test_cells_and_signs_arrive_as_they_were_sent(parties, terms):
    asked = question(parties, terms, decoys=["decoy"])
    _, content = unseal(asked.letter, "question", parties["a"])
    got = protocol._read_question(content, "b")
    mine = PLAIN.locate(terms, PLAIN.hashing(KEY))
    wide = PLAIN.wide.locate(terms, PLAIN.wide.hashing(KEY))
    assert (got.sketcher, got.k, len(got.at.cells)) == (PLAIN, 5, len({*terms, "decoy"}))
    at = [asked.terms[term] for term in terms]
    for sent, expected in zip(got.at, (*mine, wide[0]), strict=True):
        np.testing.assert_array_equal(sent[at], expected)
    np.testing.assert_array_equal(mine[1], wide[1])  # so that signs are sent once


def test_a_question_is_recalled_from_its_letter(parties):
    asked = question(parties, ["flu", "cold"], decoys=["decoy"])
    again = recall(asked.letter, parties["b"], KEY, ["cold", "never asked", "flu"])
    assert (again.id, again.owner, again.sketcher, again.terms) == (asked.id, "a", PLAIN, asked.terms)
    np.testing.assert_array_equal(again.signs, asked.signs)
    with pytest.raises(ValueError, match="with another key"):
        recall(asked.letter, parties["b"], bytes(32), ["flu"])
    with pytest.raises(ValueError, match="a letter of 'b'"):
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
    got = exchange(owner, parties, terms=terms, k=0, decoys=WORDS[:5])
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


def test_decoys_are_answered_and_dropped(owner_of, parties):
    owner = owner_of("lookup")
    decoys = choose_decoys(["flu"], 3, WORDS, b"secret")
    asked = question(parties, ["flu", "word3"], decoys=decoys)
    got = read_answer(answer(asked.letter, owner), asked, parties["b"])
    assert set(got.results["body"]) == {"flu", "word3"}
    assert "d11" in named(owner, got.found("flu"))
    assert owner.ledger.spent("b") == pytest.approx(
        (2 + 3) * 2 * 0.5, rel=1e-3
    )  # an owner cannot tell decoys from terms
    places = [tuple(question(parties, ["flu", "word3"], decoys=WORDS[:50]).terms.values()) for _ in range(3)]
    assert len(set(places)) > 1


def test_decoys_of_a_term_are_the_same_every_time_and_secret():
    once = choose_decoys(["flu", "cold"], 4, WORDS, b"secret")
    assert once == choose_decoys(["flu", "cold"], 4, WORDS, b"secret")
    assert once[:4] == choose_decoys(["flu"], 4, WORDS, b"secret")
    assert once != choose_decoys(["flu", "cold"], 4, WORDS, b"another")
    assert len(set(once[:4])) == 4
    assert "flu" not in choose_decoys(["flu"], 3, ["flu", "a", "b", "c"], b"secret")
    assert choose_decoys(["flu"], 0, WORDS, b"secret") == []
    with pytest.raises(ValueError, match="3 of 4 decoys"):
        choose_decoys(["flu"], 4, ["flu", "a", "b", "c"], b"secret")


@pytest.mark.parametrize(("exact", "sensitivity"), [(True, 2), (False, 1)])
def test_lookup_noise_has_the_scale_that_is_paid_for(exact, sensitivity):
    counts = np.arange(20_000) % 7 / 2
    told = protocol.noised_counts(counts, 0.5, exact, SecureSource(bytes(32)))
    away = np.abs(told - counts)
    scale = sensitivity / 0.5
    assert away.mean() == pytest.approx(scale, rel=4 / np.sqrt(20_000))  # mean of |Laplace| is its scale
    assert np.mean(away > 2 * scale) == pytest.approx(np.exp(-2), abs=4 * np.sqrt(np.exp(-2) / 20_000))


def test_lookup_answers_the_best_of_noised_counts_and_pays_for_every_number(owner_of, parties):
    owner = owner_of("lookup", epsilon=2.0)
    got = exchange(owner, parties, terms=["flu", "word1"], k=12)
    counts = named(owner, got.found("flu"))
    assert len(counts) == 12
    assert all(abs(counts[f"d{d}"] - 10 * d) < 30 for d in range(12))  # scale 1: exp(-20) or so
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    frequencies = got.frequencies(["flu", "word1"])["body"]
    assert frequencies.shape == (2, 1)
    assert np.abs(frequencies[:, 0] - [11, 1]).max() < 30
    # Two terms; for each its counts, and how many documents hold it: the file has no noise that would cover that.
    assert owner.ledger.spent("b") == pytest.approx(2 * 2 * 2.0, rel=1e-3)
    again = exchange(owner, parties, terms=["flu"], k=12)
    assert sorted(named(owner, again.found("flu")).values()) != sorted(counts.values())  # fresh noise


def test_frequencies_of_a_noised_file_are_paid_already(owner_of, parties):
    owner = owner_of("lookup", NOISED)
    before = owner.ledger.spent("b")
    got = exchange(owner, parties)
    assert owner.ledger.spent("b") == pytest.approx(before + 0.5, rel=1e-3)
    at = protocol.locate(["flu"], NOISED, NOISED.hashing(KEY), NOISED.wide.hashing(KEY))
    assert got.frequencies(["flu"])["body"].tolist() == owner.file.frequency_rows(at)["body"].tolist()


def test_which_documents_are_named_depends_on_noised_counts_only(owner_of, parties):
    """All titles hold the word once: by true counts the first would be named, and their order would tell more."""
    owner = owner_of("lookup", source=SecureSource(bytes(32)))
    source = SecureSource(bytes(32))
    protocol.noised_counts(np.ones(12), 0.5, True, source)  # of the body, which comes first
    expected = protocol.noised_counts(np.ones(12), 0.5, True, source)
    order = np.argsort(-expected, kind="stable")
    assert set(order[:5]) != set(range(5))
    found = exchange(owner, parties, terms=["title"]).found("title", "title")
    assert named(owner, found) == {f"d{row}": expected[row] for row in order[:5]}


def test_documents_of_equal_counts_are_named_in_an_order_that_tells_nothing(owner_of, parties, monkeypatch):
    owner = owner_of("lookup")
    monkeypatch.setattr(protocol, "noised_counts", lambda counts, *_: counts)
    names, counts = exchange(owner, parties, terms=["title"], k=12).found("title", "title")
    assert counts.tolist() == [1.0] * 12
    assert names.tolist() == sorted(names)


@pytest.mark.parametrize("epsilon", [10.0, 0.5, 0.01])
def test_whole_and_half_counts_give_answers_on_one_grid(epsilon):
    """A median of an even number of rows may end in a half; were all noise whole, the answer would tell."""
    noise = protocol.noised_counts(np.zeros(2000), epsilon, True, SecureSource(bytes(32)))
    assert np.any(noise % 1 == 0)
    assert np.any(noise % 1 == 0.5)


@pytest.mark.parametrize("exact", [True, False])
def test_an_owner_who_publishes_lengths_adds_the_noise_for_that(owner_of, parties, exact):
    """With exact lengths a neighbour replaces a word, and that moves a count by two."""
    sketcher = replace(PLAIN, exact_lengths=exact)
    owner = owner_of("lookup", sketcher, source=SecureSource(bytes(32)))
    cells, signs = sketcher.locate(["flu"], sketcher.hashing(KEY))
    true = sketcher.estimate(owner.sketches["body"][:, np.arange(7), cells[0]], signs[0])
    expected = protocol.noised_counts(true, 0.5, exact, SecureSource(bytes(32)))
    got = exchange(owner, parties, k=12).found("flu")
    assert got[1].tolist() == sorted(expected.astype(np.float32), reverse=True)


def test_past_the_budget_the_owner_answers_that_it_refuses(owner_of, parties):
    owner = owner_of("lookup", limits=Limits(querier=2.0))
    exchange(owner, parties, terms=["flu", "word1"])
    told = refusal(owner, parties)
    assert "a refuses: the answer is refused: towards querier 'b' ε would come to 3.0, and the budget is ε = 2" in told
    assert owner.ledger.spent("b") == pytest.approx(2.0, rel=1e-3)


def test_a_repeated_letter_tells_nothing_more(owner_of, parties):
    owner = owner_of("lookup")
    asked = question(parties)
    read_answer(answer(asked.letter, owner), asked, parties["b"])
    with pytest.raises(Declined, match="answered before"):
        read_answer(answer(asked.letter, owner), asked, parties["b"])
    assert owner.ledger.spent() == pytest.approx(1.0, rel=1e-3)


def test_a_damaged_ledger_is_the_owners_trouble_and_no_answer(owner_of, parties):
    owner = owner_of("lookup")
    with (owner.ledger.path / "ledger" / "charges.log").open("ab") as file:
        file.write(b"nonsense, and more of it than a record that was cut short would have\n")
    with pytest.raises(LedgerError, match="is damaged at byte"):
        answer(question(parties).letter, owner)


def test_published_noise_is_one_draw_for_all_rows(owner_of, parties):
    owner = owner_of("paper")
    values = np.arange(24.0).reshape(4, 6)
    told = protocol.published_answers(values, 0.5, SecureSource(bytes(32)))
    assert np.ptp(told - values, axis=1).tolist() == [0] * 4
    assert len(set((told - values)[:, 0])) == 4
    got = exchange(owner, parties)
    assert "d11" in named(owner, got.found("flu"))
    assert owner.ledger.totals()[0]["epsilon"] == "none"


def test_lengths_that_are_not_published_are_not_told(owner_of, parties):
    owner = owner_of("lookup", replace(PLAIN, exact_lengths=False))
    got = exchange(owner, parties)
    assert got.lengths is None
    assert got.words == {"body": 0.0, "title": 0.0}
    with pytest.raises(ValueError, match="does not tell how long documents are"):
        got.counts(["flu"])


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"key": bytes(32)}, "your key"),
        ({"sketcher": replace(PLAIN, width=49)}, "your width is 49, and this owner's is 50"),
        ({"sketcher": replace(PLAIN, depth=8)}, "your depth is 8, and this owner's is 7"),
        ({"sketcher": replace(PLAIN, kind="count-min")}, "your kind is count-min"),
        ({"sketcher": replace(PLAIN, tokeniser=Tokeniser("english"))}, "your tokeniser is words-1-english"),
        ({"k": 6}, "up to 5"),
    ],
)
def test_a_question_with_other_settings_is_refused_by_letter(owner_of, parties, more, told):
    assert told in refusal(owner_of(), parties, **more)


def test_an_answer_that_would_be_too_long_is_refused_and_not_charged(owner_of, parties, monkeypatch):
    owner = owner_of("lookup")
    monkeypatch.setitem(letters.LONGEST, "answer", 2 * (2 * 12 * 8 - 1))  # two fields of 12 documents, 8 bytes each
    asked = question(parties, k=12)
    monkeypatch.setattr(protocol, "seal", lambda content, *_: content)
    assert b"an answer of 192 bytes is too long" in answer(asked.letter, owner)
    assert owner.ledger.spent() == 0
    monkeypatch.setitem(letters.LONGEST, "answer", 2 * 192)
    assert b"too long" not in answer(asked.letter, owner)
    assert owner.ledger.spent() > 0


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
    with pytest.raises(ValueError, match="nothing to ask"):
        question(parties, [])
    with pytest.raises(ValueError, match="at most 4000"):
        question(parties, [f"w{i}" for i in range(4001)])
    assert len(question(parties, [f"w{i}" for i in range(4000)], Sketcher()).letter) < letters.LONGEST["question"]
    owner = replace(owner_of("lookup"), epsilon=1000.0)
    assert np.all(exchange(owner, parties, terms=["unheard"]).found("unheard")[1] <= 1)
    assert len(exchange(owner_of_plain(owner), parties, terms=["unheard"]).found("unheard")[0]) <= 5


def owner_of_plain(owner):
    """The same owner with next to no noise."""
    path = owner.file.path.with_name("quiet.sketch")
    file = sketch_collection(collection(), KEY, replace(PLAIN, noise=0.1), path, rule=TopKRule(alpha=2, k=5))
    return replace(owner, file=file, noise="sketch", sketches=None)


def test_an_answer_to_another_question_is_refused(owner_of, parties):
    owner = owner_of()
    one, two = question(parties), question(parties)
    with pytest.raises(ValueError, match="another question"):
        read_answer(answer(one.letter, owner), two, parties["b"])
    _, content = unseal(answer(one.letter, owner), "answer", parties["b"])
    with pytest.raises(ValueError, match="an answer of 'c' to another question"):
        read_answer(seal(content, "answer", parties["c"], "b"), one, parties["b"])


def test_a_short_answer_is_noticed(owner_of, parties):
    owner = owner_of()
    asked = question(parties)
    _, content = unseal(answer(asked.letter, owner), "answer", parties["b"])
    for wrong in (content[:-1], content[: protocol.ANSWER.size + 3], content[:16]):
        with pytest.raises(ValueError, match="ends too early"):
            read_answer(seal(wrong, "answer", parties["a"], "b"), asked, parties["b"])
    empty = protocol.ANSWER.pack(asked.id, protocol.ANSWERED, 0, 0, 1, 12, 0, 0)
    with pytest.raises(ValueError, match="about 0 terms, and 1 were asked"):
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
}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, ""),
        ({"status": 7}, "unknown kind"),
        ({"noise": 3}, "unknown kind"),
        ({"fields": 0}, "unknown kind"),
        ({"fields": 2}, "unknown kind"),
        ({"fields": 5}, "unknown kind"),
        ({"fields": 3}, "ends too early"),
        ({"documents": 1}, "more than it holds"),
        ({"names": [9, 3]}, "names a document twice"),
        ({"names": [3, 3]}, "names a document twice"),
        ({"numbers": 0}, "for 1 and 0 rows, and 1 were asked"),
        ({"rows": 0}, "for 0 and 1 rows"),
        ({"rows": 6}, "for 6 and 1 rows"),
        ({"noise": 1, "numbers": 7}, "for 1 and 7 rows, and 1 were asked"),
        ({"noise": 2}, "for 1 and 1 rows, and 7 were asked"),
        ({"size": 2**32 - 1}, "ends too early"),
        ({"place": 2}, "of no document"),
        ({"count": float("nan")}, "no number"),
        ({"count": float("inf")}, "no number"),
        ({"words": float("nan")}, "no number"),
        ({"frequency": float("inf")}, "no number"),
    ],
)
def test_an_answer_of_nonsense_is_refused(parties, wrong, told):
    asked = question(parties)
    a = FINE | wrong
    content = protocol.ANSWER.pack(
        asked.id, a["status"], a["noise"], 1, a["fields"], a["documents"], len(a["names"]), 0
    )
    content += struct.pack("<2Q", *a["names"]) + protocol.FIELD.pack(a["words"], a["rows"], a["numbers"])
    content += struct.pack(f"<{a['rows']}d", *[a["frequency"]] * a["rows"])
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


def test_an_owner_without_noise_or_sketches_does_not_start(owner_of, parties, tmp_path):
    owner = owner_of("lookup")
    with pytest.raises(ValueError, match="give the documents away"):
        replace(owner, noise="sketch")
    with pytest.raises(ValueError, match="needs the sketches"):
        replace(owner, sketches=None)
    for epsilon in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="allows no answer"):
            replace(owner, epsilon=epsilon)
    fewer = {name: sketches[1:] for name, sketches in owner.sketches.items()}
    with pytest.raises(ValueError, match="others than the file's documents"):
        replace(owner, sketches=fewer)
    with pytest.raises(ValueError, match="'sketch' or 'lookup' or 'paper'"):
        replace(owner, noise="loud")
    sketch_collection(collection(), KEY, NOISED, tmp_path / "b.sketch")
    copy = open_sketch(tmp_path / "b.sketch").copy_for("b")
    with pytest.raises(ValueError, match="a copy for a querier"):
        replace(owner, file=copy)
