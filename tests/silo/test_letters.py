"""What a carrier of letters checks."""

from __future__ import annotations

import pytest

from fedrank.silo.keys import new_identity, read_public, read_secret
from fedrank.silo.letters import LetterCarrier, party, seal
from fedrank.wire import Refused


@pytest.fixture
def three(tmp_path):
    """Their carrier, and each as a party."""
    publics = {name: read_public(new_identity(tmp_path / f"{name}.secret")) for name in ("a", "b", "c")}
    parties = {
        name: party(read_secret(tmp_path / f"{name}.secret"), [key for other, key in publics.items() if other != name])
        for name in publics
    }
    return LetterCarrier(publics), parties


def letter(parties, sender, addressee, kind="question") -> bytes:
    return seal(b"words", kind, parties[sender], parties[addressee].name)


def test_letters_go_to_whom_they_are_for_in_the_order_of_senders(three):
    carrier, parties = three
    sent = {
        "a": [letter(parties, "a", "c"), letter(parties, "a", "b")],
        "b": [letter(parties, "b", "c")],
        "c": [],
    }
    for name, letters in sent.items():
        carrier.check("question", letters, name)
    assert carrier.deliver(sent) == {"a": [], "b": [sent["a"][1]], "c": [sent["a"][0], sent["b"][0]]}


def test_a_letter_of_another_kind_or_under_another_name_is_refused(three):
    carrier, parties = three
    for sent, kind, name in (
        (letter(parties, "a", "b"), "answer", "a"),
        (letter(parties, "a", "b"), "question", "b"),
    ):
        with pytest.raises(Refused, match="another sender or addressee"):
            carrier.check(kind, [sent], name)


def test_a_letter_to_a_stranger_is_refused(three):
    carrier, parties = three
    without = LetterCarrier({name: key for name, key in carrier.publics.items() if name != "c"})
    with pytest.raises(Refused, match="another sender or addressee"):
        without.check("question", [letter(parties, "a", "c")], "a")


@pytest.mark.parametrize("count", [0, 2])
def test_one_model_travels_at_a_time(three, count):
    carrier, parties = three
    with pytest.raises(Refused, match=rf"expected one model \(got {count}\)"):
        carrier.check("model", [letter(parties, "a", "b", "model")] * count, "a")
