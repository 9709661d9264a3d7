"""The envelope: what fits comes out as it went in, and everything else is refused by name."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from fedrank import wire
from fedrank.wire import Label, Part, Refused, pack, unpack

RECORD = np.dtype([("seed", "<u8"), ("plus", "<f4")])
LABEL = Label("letter", b"a run of 16 byte", 7, 2, 31)
PARTS = {"weights": np.arange(5, dtype=np.float32), "counts": np.array([3, -4]), "note": b"\x00 any bytes \xff"}
EXPECTED = {"weights": Part("<f4", 5), "counts": Part("<i8", 2), "note": Part("|S", 40)}


def resealed(body: bytes) -> bytes:
    """With a checksum that is right, as somebody would send it who knows the format."""
    return body + hashlib.blake2b(body, digest_size=16).digest()


def equal(one, other) -> bool:
    """The same parts, bit by bit."""
    return set(one) == set(other) and all(
        one[name] == other[name]
        if isinstance(one[name], bytes)
        else one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def test_what_was_packed_comes_out():
    sender, found = unpack(pack(LABEL, PARTS), LABEL, EXPECTED)
    assert sender == 31
    assert equal(found, PARTS)
    assert list(found) == list(PARTS)


def test_nothing_and_empty_parts_travel():
    assert unpack(pack(LABEL, {}), LABEL, {}) == (31, {})
    expected = {"none": Part("<f8", 0), "bytes": Part("|S", 0)}
    _, found = unpack(pack(LABEL, {"none": np.empty(0), "bytes": b""}), LABEL, expected)
    assert (len(found["none"]), found["bytes"]) == (0, b"")


def test_records_and_numbers_of_the_other_byte_order_travel():
    record = np.array([(2**64 - 1, 0.5)], dtype=RECORD)
    content = pack(LABEL, {"record": record, "big": np.array([1.5, -2.0], dtype=">f4")})
    _, found = unpack(content, LABEL, {"record": Part(RECORD, 1), "big": Part("<f4", 2)})
    assert found["record"].tolist() == record.tolist()
    assert found["big"].tolist() == [1.5, -2.0]


def test_a_row_that_is_not_contiguous_travels():
    table = np.arange(12.0).reshape(3, 4)
    _, found = unpack(pack(LABEL, {"column": table[:, 1]}), LABEL, {"column": Part("<f8", 3)})
    assert found["column"].tolist() == [1.0, 5.0, 9.0]


def test_the_same_message_has_the_same_bytes_everywhere():
    content = pack(Label("call", bytes(16), 1), {"weights": np.array([1.0], dtype=np.float32)})
    assert content[:6] == b"frnk\x01\x00"
    assert len(content) == 59 + 28 + 4 + 16
    assert content[-16:].hex() == "ced8e3ff576def008756733a62334a78"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "message"}, "of kind letter, but kind message was expected"),
        ({"run": b"another run, 16B"}, "of run .*, but run .* was expected"),
        ({"round": 8}, "of round 7, but round 8 was expected"),
        ({"attempt": 3}, "of attempt 2, but attempt 3 was expected"),
        ({"sender": 30}, "comes from 31, which was not asked"),
    ],
)
def test_a_label_that_is_not_expected_is_refused_by_name(changes, named):
    with pytest.raises(Refused, match=named):
        unpack(pack(LABEL, PARTS), replace(LABEL, **changes), EXPECTED)


def test_another_version_is_refused_by_name(monkeypatch):
    content = pack(LABEL, PARTS)
    monkeypatch.setattr(wire, "VERSION", 2)
    with pytest.raises(Refused, match="of version 1, but version 2 was expected"):
        unpack(content, LABEL, EXPECTED)


@pytest.mark.parametrize(
    ("name", "part", "named"),
    [
        ("weights", Part("<f4", 6), "weights has 5 values of type <f4, but 6"),
        ("weights", Part("<f4", 4), "weights has 5 values of type <f4, but 4"),
        ("weights", Part("<f8", 5), "weights has 5 values of type <f4, but 5 of <f8 were expected"),
        ("weights", Part("<i4", 5), "of type <f4"),
        ("weights", Part(RECORD, 5), "of type <f4"),
        ("weights", Part("|S", 20), "weights has 5 bytes of type"),
        ("note", Part("|S", 3), "too many"),
        ("note", Part("<f4", 10), r"note has .* values of type \|S"),
    ],
)
def test_another_size_or_type_is_refused_by_name(name, part, named):
    with pytest.raises(Refused, match=named):
        unpack(pack(LABEL, PARTS), LABEL, EXPECTED | {name: part})


def test_parts_that_are_missing_too_many_or_others_are_refused():
    content = pack(LABEL, PARTS)
    with pytest.raises(Refused, match="3 parts, but 4 were expected"):
        unpack(content, LABEL, EXPECTED | {"more": Part("<f4", 0)})
    with pytest.raises(Refused, match=r"too many|3 parts, but 2 were expected"):
        unpack(content, LABEL, {name: EXPECTED[name] for name in ("weights", "counts")})
    with pytest.raises(Refused, match="a part b'weights' where bias was expected"):
        unpack(content, LABEL, {"bias": Part("<f4", 5), "counts": EXPECTED["counts"], "note": EXPECTED["note"]})
    with pytest.raises(Refused, match="a part b'weights' where note was expected"):
        unpack(content, LABEL, dict(reversed(EXPECTED.items())))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["<f4", "<f8", RECORD])
def test_values_that_are_not_finite_are_refused_unless_they_may_be(value, kind):
    values = np.array([(1, value)] if kind is RECORD else [1.0, value], dtype=kind)
    content = pack(LABEL, {"values": values})
    with pytest.raises(Refused, match="values has values that are not finite"):
        unpack(content, LABEL, {"values": Part(kind, len(values))})
    _, found = unpack(content, LABEL, {"values": Part(kind, len(values), finite=False)})
    assert found["values"].tobytes() == values.tobytes()


def test_a_wrong_checksum_is_refused_by_name():
    content = bytearray(pack(LABEL, PARTS))
    content[100] ^= 1
    with pytest.raises(Refused, match="checksum is wrong"):
        unpack(bytes(content), LABEL, EXPECTED)


@pytest.mark.parametrize("content", [b"", b"frnk", b"\0" * 200, b"GET / HTTP/1.1\r\n" * 6, None, "text"])
def test_what_is_no_message_is_refused(content):
    with pytest.raises(Refused):
        unpack(content, LABEL, EXPECTED)


def test_no_more_is_read_than_was_expected():
    """A length that a message claims is never believed: it is compared with what was expected."""
    content = bytearray(pack(LABEL, {"weights": np.zeros(2, np.float32)}))
    at = wire._HEAD.size + 20
    content[at : at + 8] = struct.pack("<Q", 2**63)
    body = bytes(content[:-16])
    with pytest.raises(Refused, match=f"weights has {2**63} values"):
        unpack(resealed(body), LABEL, {"weights": Part("<f4", 2)})
    with pytest.raises(Refused, match=f"{2**63} bytes"):
        unpack(resealed(body.replace(b"<f4\0", b"|S\0\0")), LABEL, {"weights": Part("|S", 8)})


@pytest.mark.parametrize(
    "label", [replace(LABEL, run=b"short"), replace(LABEL, kind=""), replace(LABEL, kind="seventeen letters")]
)
def test_labels_that_cannot_travel_are_refused_when_packed(label):
    with pytest.raises(ValueError, match="16 bytes and a kind 1 to 16 letters"):
        pack(label, PARTS)


def mutated(content: bytes, rng: np.random.Generator, reseal: bool) -> bytes:
    """Some bytes flipped, cut off or put in."""
    body = bytearray(content[:-16] if reseal else content)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(body))) if body else 0
        how = rng.integers(5)
        if how == 0 and body:
            body[at] ^= 1 << int(rng.integers(8))
        elif how == 1 and body:
            body[at] = int(rng.integers(256))
        elif how == 2:
            del body[at:]
        elif how == 3:
            body += rng.bytes(int(rng.integers(1, 40)))
        else:
            body[at:at] = rng.bytes(int(rng.integers(1, 9)))
    return resealed(bytes(body)) if reseal else bytes(body)


def test_damaged_messages_are_refused_or_unchanged():
    rng, content = np.random.default_rng(1), pack(LABEL, PARTS)
    passed = 0
    for _ in range(2000):
        damaged = mutated(content, rng, reseal=False)
        try:
            sender, found = unpack(damaged, LABEL, EXPECTED)
        except Refused:
            continue
        passed += 1
        assert damaged == content
        assert sender == 31
        assert equal(found, PARTS)
    assert passed < 100


def test_forged_messages_are_refused_or_fit_what_was_expected():
    """A right checksum proves nothing: still only what was expected comes out, and nothing else is ever raised."""
    rng, content = np.random.default_rng(2), pack(LABEL, PARTS)
    passed = 0
    for _ in range(2000):
        try:
            sender, found = unpack(mutated(content, rng, reseal=True), LABEL, EXPECTED)
        except Refused:
            continue
        passed += 1
        assert sender == 31
        assert found["weights"].shape == (5,)
        assert found["weights"].dtype == np.float32
        assert np.isfinite(found["weights"]).all()
        assert found["counts"].shape == (2,)
        assert len(found["note"]) <= 40
    assert passed > 20


def test_bytes_behind_the_last_part_are_refused_even_under_a_right_checksum():
    with pytest.raises(Refused, match="4 bytes follow its last part"):
        unpack(resealed(pack(LABEL, PARTS)[:-16] + b"junk"), LABEL, EXPECTED)


def test_a_part_of_bytes_that_is_too_long_is_refused_where_the_whole_is_not():
    expected = {"one": Part("|S", 10), "two": Part("|S", 10)}
    with pytest.raises(Refused, match="one"):
        unpack(pack(LABEL, {"one": b"x" * 15, "two": b"yy"}), LABEL, expected)
