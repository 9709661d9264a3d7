"""The steps of organisations with documents, carried by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrank.data.collection import read_collection
from fedrank.silo.files import ledger_of
from fedrank.silo.member import SKETCH, SiloMember, party_names, turn_order
from fedrank.silo.spending import Limits
from fedrank.silo.training import CrossSilo
from fedrank.silo.turns import Turn, read_open_turn
from fedrank.wire import Refused
from tests.silo.test_turns import write_collection

METHOD = CrossSilo(width=128, depth=7, noise=0.3, k=12)


@pytest.fixture
def members(tmp_path):
    """Two, before any step."""
    made = []
    for place in range(2):
        write_collection(tmp_path / f"data-{place}", place, 2)
        (tmp_path / f"run-{place}").mkdir()
        made.append(
            SiloMember(
                read_collection(tmp_path / f"data-{place}"), bytes([place]), METHOD, Limits(),
                tmp_path / f"home-{place}", tmp_path / f"run-{place}", place,
            )
        )  # fmt: skip
    return made


@pytest.fixture
def keys(members):
    """Both have met, and share the key of all sketches."""
    found = [one.own_public() for one in members]
    (wrapped,) = members[0].wrapped_keys(found)
    assert members[1].wrapped_keys(found) == []
    members[1].open_shared([wrapped], found)
    return found


def test_letters_and_turns_end_in_an_open_model(members, keys):
    questions = [one.questions(keys) for one in members]
    answers = [members[1].answers(questions[0], keys), members[0].answers(questions[1], keys)]
    for place, one in enumerate(members):
        one.check_answers(questions[place], answers[place], keys)
    names = party_names(keys)
    by_name = dict(zip(names, sorted(range(2), key=lambda place: party_names([keys[place]])), strict=True))
    came = []
    for number, turn in enumerate(turn_order(names, 2)):
        place = by_name[turn.party]
        turns = members[place].check_turn(number, came, 2, keys)
        with pytest.raises(Refused, match="is not of this site"):
            members[1 - place].check_turn(number, came, 2, keys)
        taken = members[place].take_turn(
            number, turns, came, questions[place], answers[place], keys, seed=1, top_grade=2
        )
        came = [taken]
    model = read_open_turn(came[0])
    assert list(model.turns) == turn_order(names, 2)
    assert (model.agreement.k, model.agreement.top_grade) == (12, 2)


def test_turns_are_in_the_order_of_the_simulation():
    assert turn_order(["a", "b"], 2) == [Turn("b", 1), Turn("a", 2), Turn("b", 1)]
    assert turn_order(["a", "b", "c"], 1) == [Turn("b", 1), Turn("c", 1), Turn("a", 1)]


def test_a_public_key_stays_that_of_the_run(members):
    assert members[0].own_public() == members[0].own_public() != members[1].own_public()


def test_keys_that_lack_the_own_one_are_refused(members, keys):
    with pytest.raises(Refused, match="another key than this site's own"):
        members[0].wrapped_keys(keys[::-1])


@pytest.mark.parametrize("came", [[], [b"x" * 257], [b"x", b"y"]])
def test_what_is_no_wrapped_key_is_refused(members, keys, came):
    with pytest.raises(Refused, match="does not contain a wrapped key"):
        members[1].open_shared(came, keys)


def test_a_sketch_is_made_and_paid_once_until_its_data_change(members, keys):
    one = members[0]
    spent = ledger_of(one.sketch()).spent()
    content = (one.home / SKETCH).read_bytes()
    one.sketch()
    assert (one.home / SKETCH).read_bytes() == content
    changed = replace(one, data=b"other").sketch()
    assert (one.home / SKETCH).read_bytes() != content  # other noise
    assert ledger_of(changed).spent() > spent


def test_a_budget_that_does_not_pay_for_a_sketch_is_told_in_the_log_alone(members, keys):
    lines = []
    poor = replace(members[0], limits=Limits(total=0.01), log=lines.append)
    with pytest.raises(Refused, match="its privacy budget does not allow it"):
        poor.questions(keys)
    assert len(lines) == 1
    assert "cannot be sketched" in lines[0]


def test_without_the_shared_key_nothing_is_asked(members):
    found = [one.own_public() for one in members]
    with pytest.raises(Refused, match="has not arrived yet"):
        members[1].questions(found)


@pytest.mark.parametrize(("number", "came", "word"), [(9, [], "turn 10 is not"), (-1, [], "turn 0 is not")])
def test_a_turn_that_is_none_is_refused(members, keys, number, came, word):
    with pytest.raises(Refused, match=word):
        members[0].check_turn(number, came, 2, keys)
