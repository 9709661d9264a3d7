"""Sums under masks: they cancel exactly, and nothing but the sum opens."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.protect import shamir
from fedrank.protect.secure_sum import (
    BOX,
    CLIENT,
    HEADER,
    KEYS,
    OWN_MASK,
    PAIR_MASKS,
    PIECE,
    STEPS,
    SumClient,
    SumServer,
    Terms,
    TooFewClients,
    check_range,
    finest_step,
    ideal_sum,
    message_bytes,
    secure_sum,
)

pytest.importorskip("cryptography", reason="secure sums need the package cryptography")

SESSION = b"a test"


def some_values(count: int, size: int, bits: int = 40, seed: int = 1) -> np.ndarray:
    half = 2 ** (bits - 1)
    return np.random.default_rng(seed).integers(-half, half, (count, size))


@dataclass
class Play:
    """A round that is played by hand, with everything that was sent."""

    values: np.ndarray
    threshold: int = 3
    bits: int = 40
    round: int = 4
    fewest: int = 0
    late: tuple[int, ...] = ()  # their numbers reach the server after the list of survivors is final
    absent: tuple[int, ...] = ()  # they share and then vanish
    sent: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def __post_init__(self):
        count, size = self.values.shape
        self.server = SumServer(SESSION, self.round, range(count), self.threshold, self.fewest, size, self.bits)
        self.clients = [SumClient(c, SESSION, self.round, self.threshold, size, self.bits) for c in range(count)]

    def until_masked(self) -> Play:
        self.sent["advertisement"] = {c.id: c.advertise() for c in self.clients}
        for message in self.sent["advertisement"].values():
            assert self.server.receive_advertisement(message)
        self.roster = self.server.roster()
        self.sent["shares"] = {c.id: c.share(self.roster) for c in self.clients}
        for message in self.sent["shares"].values():
            assert self.server.receive_shares(message)
        self.post = self.server.routed()
        self.sent["masked"] = {
            c.id: c.mask(self.values[c.id], self.post[c.id]) for c in self.clients if c.id not in self.absent
        }
        for client, message in self.sent["masked"].items():
            if client not in self.late:
                assert self.server.receive_masked(message)
        return self

    def until_opened(self) -> Play:
        self.until_masked()
        self.request = self.server.request()
        for client in self.late:
            assert self.server.receive_masked(self.sent["masked"][client]) is False
        self.sent["opening"] = {c: self.clients[c].unmask(self.request) for c in self.server.survivors()}
        for message in self.sent["opening"].values():
            assert self.server.receive_opening(message)
        return self

    def words(self, client: int) -> np.ndarray:
        terms = self.server.terms
        return np.frombuffer(self.sent["masked"][client][HEADER.size :], dtype=terms.word).astype(np.uint64)

    def without_pair_masks(self, client: int, others: list[int]) -> np.ndarray:
        """Masked numbers less the pairwise masks with some others, whose private keys one has."""
        words = self.words(client)
        public = self.clients[client]._mask_key.public_key()
        for other in others:
            # The mask of the other end is the negative of mine.
            words = words + self.server.terms.pair_mask(self.clients[other]._mask_key, public, other, client)
        return words

    def low(self, words: np.ndarray) -> np.ndarray:
        return words & np.uint64(2**self.bits - 1)


def assert_uniform_bits(words: np.ndarray, bits: int) -> None:
    """Every bit is set in half of the words, to six standard errors."""
    ones = [(words >> np.uint64(bit) & np.uint64(1)).sum() for bit in range(bits)]
    assert np.abs(np.array(ones, dtype=float) - len(words) / 2).max() < 6 * np.sqrt(len(words)) / 2
    # Neighbouring bits and words do not go together either.
    top, second = words >> np.uint64(bits - 1) & np.uint64(1), words >> np.uint64(bits - 2) & np.uint64(1)
    for agree in ((top == second), (top[1:] == top[:-1])):
        assert abs(agree.sum() - len(agree) / 2) < 6 * np.sqrt(len(agree)) / 2


@pytest.mark.parametrize(
    ("count", "size", "bits"),
    [*itertools.product([2, 3, 10], [50], [16, 32, 33, 62]), (30, 20, 24), (30, 20, 62), (100, 3, 40)],
)
def test_protocol_equals_ideal_sum(count, size, bits):
    values = some_values(count, size, 63)
    assert np.array_equal(secure_sum(values, bits, max(2, 2 * count // 3)), ideal_sum(values, bits))


def test_ideal_sum_by_hand():
    values = np.array([[1, 32767, -32768, 65536 + 5, -3], [2, 1, -1, 1, -4]])
    # 32768 and -32769 wrap at 16 bits; 65542 is 6 modulo 65536
    assert ideal_sum(values, 16).tolist() == [3, -32768, 32767, 6, -7]
    assert ideal_sum(values, 20).tolist() == [3, 32768, -32769, 65542, -7]
    extremes = np.array([[2**63 - 1], [2**63 - 1], [-(2**63)]])
    assert ideal_sum(extremes, 62).tolist() == [-2]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=2), min_size=1), st.integers(16, 62))
def test_ideal_sum_is_the_sum_of_whole_numbers_wrapped(rows, bits):
    half = 2 ** (bits - 1)
    expected = [(sum(column) + half) % 2**bits - half for column in zip(*rows, strict=True)]
    assert ideal_sum(np.array(rows, dtype=np.int64), bits).tolist() == expected


def test_every_pattern_of_dropouts():
    values = some_values(5, 2, 30)
    opened = 0
    for pattern in itertools.product([*STEPS, None], repeat=5):
        dropped = {row: step for row, step in enumerate(pattern) if step}
        if sum(step is None for step in pattern) >= 3:
            arrived = [row for row, step in enumerate(pattern) if step in (None, "mask")]
            assert np.array_equal(secure_sum(values, 40, 3, 0, dropped), values[arrived].sum(axis=0)), pattern
            opened += 1
        elif len(dropped) == 3:
            with pytest.raises(TooFewClients):
                secure_sum(values, 40, 3, 0, dropped)
    assert opened == 1 + 5 * 4 + 10 * 16


@pytest.mark.parametrize("step", ["nothing", "advertise", "share"])
def test_fewest_survivors_refuse_a_sum_that_the_threshold_allows(step):
    values = some_values(6, 2, 30)
    assert np.array_equal(secure_sum(values, 40, 3, 5, {0: step}), values[1:].sum(axis=0))
    with pytest.raises(TooFewClients, match=r"only 4 clients .*, 5 are needed"):
        secure_sum(values, 40, 3, 5, {0: step, 3: step})


def test_too_few_survivors_open_nothing():
    play = Play(some_values(5, 2), absent=(0, 1, 2)).until_masked()
    with pytest.raises(TooFewClients, match="only 2 clients survived, 3 are needed"):
        play.server.request()
    with pytest.raises(ValueError, match="not final"):
        play.server.total()
    # A made-up request gets no answer from a client either.
    forged = play.server.terms.pack("request", 2**32 - 1, b"".join(map(CLIENT.pack, [3, 4])))
    for client in play.clients[3:]:
        with pytest.raises(TooFewClients, match="only 2 clients survived"):
            client.unmask(forged)


def test_too_few_answers_open_nothing():
    play = Play(some_values(5, 2)).until_masked()
    request = play.server.request()
    for client in play.clients[:2]:
        play.server.receive_opening(client.unmask(request))
    with pytest.raises(TooFewClients, match="2 clients opened shares, 3 are needed"):
        play.server.total()
    play.server.receive_opening(play.clients[4].unmask(request))
    assert np.array_equal(play.server.total(), ideal_sum(play.values, 40))


def test_a_client_may_ask_for_more_survivors_than_the_server():
    play = Play(some_values(5, 2), absent=(0,))
    play.clients[1] = SumClient(1, SESSION, 4, 3, 2, 40, fewest=5)
    play.until_masked()
    with pytest.raises(TooFewClients, match="client 1 asks for 5"):
        play.clients[1].unmask(play.server.request())


def test_late_numbers_stay_unreadable():
    size = 20_000
    play = Play(np.zeros((5, size), dtype=np.int64) + 7, late=(4,), absent=(0,)).until_opened()
    assert play.server.survivors() == [1, 2, 3]
    assert np.array_equal(play.server.total(), np.full(size, 21))
    # The server has opened the mask key of the late client, and can take off all pairwise masks.
    weights = shamir.weights_at_zero([2, 3, 4])
    key = shamir.weighted([play.server._openings[by][4] for by in (1, 2, 3)], weights)
    assert key == play.clients[4]._mask_secret
    residue = play.low(play.without_pair_masks(4, [0, 1, 2, 3]))
    own = play.server.terms.own_mask(play.clients[4]._seed, 4)
    assert np.array_equal(residue, play.low(own + np.uint64(7)))
    assert_uniform_bits(residue, 40)
    # The seed of that mask was in no message: every answer about client 4 is a share of its key.
    for message in play.sent["opening"].values():
        about = [(client, which) for client, which, _ in PIECE.iter_unpack(message[HEADER.size :])]
        assert (4, PAIR_MASKS) in about
        assert (4, OWN_MASK) not in about
    # And the late client itself helps nobody: it is not among the survivors.
    with pytest.raises(ValueError, match="not among the survivors"):
        play.clients[4].unmask(play.request)


def test_the_server_gets_one_of_two_shares_of_every_client():
    play = Play(some_values(6, 2), absent=(2,), late=(5,)).until_opened()
    for sender, message in play.sent["opening"].items():
        pieces = list(PIECE.iter_unpack(message[HEADER.size :]))
        expected = {c: PAIR_MASKS if c in (2, 5) else OWN_MASK for c in range(6)}
        assert {client: which for client, which, _ in pieces} == expected
        assert len(pieces) == 6
        held = play.clients[sender]._held
        for client, which, share in pieces:
            assert shamir.from_bytes(share) == held[client][which - 1]
    # The other share of nobody is anywhere in what the server received or passed on.
    everything = b"".join(m for kind in play.sent.values() for m in kind.values()) + b"".join(play.post.values())
    for client in play.clients:
        for about, shares in client._held.items():
            kept = shares[0] if about in (2, 5) else shares[1]
            assert shamir.to_bytes(kept) not in everything
        assert shamir.to_bytes(client._seed) not in everything
        assert shamir.to_bytes(client._mask_secret) not in everything


def test_colluders_below_the_threshold_open_no_survivor():
    size, colluders, honest = 20_000, [0, 1], [2, 3, 4]
    play = Play(np.zeros((5, size), dtype=np.int64) + 11).until_opened()
    # They know the victim's own mask (opened on purpose) and their pairwise masks with it, not those among the honest.
    own = {c: play.server.terms.own_mask(play.clients[c]._seed, c) for c in honest}
    residue = {c: play.low(play.without_pair_masks(c, colluders) - own[c]) for c in honest}
    assert_uniform_bits(residue[2], 40)
    # All that those residues say is the sum of the honest.
    assert np.array_equal(play.low(residue[2] + residue[3] + residue[4]), np.full(size, 33))
    # For the key they would need, they hold two shares, and three are needed.
    keys = {c + 1: play.clients[c]._held[2][1] for c in colluders}
    assert shamir.join(keys) != play.clients[2]._mask_secret
    assert shamir.join(keys | {4: play.clients[3]._held[2][1]}) == play.clients[2]._mask_secret


def test_colluders_cannot_read_before_the_survivors_answer():
    play = Play(some_values(5, 3)).until_masked()
    seeds = {c + 1: play.clients[c]._held[2][0] for c in (0, 1)}
    assert shamir.join(seeds) != play.clients[2]._seed
    assert shamir.join(seeds | {5: play.clients[4]._held[2][0]}) == play.clients[2]._seed


@pytest.mark.parametrize("bits", [16, 20, 32, 40, 62])
def test_masked_numbers_are_uniform(bits):
    play = Play(np.zeros((3, 20_000), dtype=np.int64), bits=bits).until_masked()
    for client in range(3):
        assert_uniform_bits(play.words(client), bits)
        assert play.words(client).max() < 2**bits


def test_same_numbers_look_different_each_round():
    values = np.zeros((3, 1000), dtype=np.int64)
    first, second = Play(values, round=1).until_masked(), Play(values, round=2).until_masked()
    # The same session and round again still has fresh keys.
    again = Play(values, round=1).until_masked()
    for other in (second, again):
        assert (first.words(0) == other.words(0)).sum() == 0
        assert first.roster[HEADER.size :] != other.roster[HEADER.size :]


def test_a_round_bound_into_the_keys_changes_them_even_with_the_same_chance():
    def chance():
        stream, at = hashlib.shake_128(b"test").digest(100_000), [0]

        def entropy(count: int) -> bytes:
            at[0] += count
            return stream[at[0] - count : at[0]]

        return entropy

    def masked(session: bytes, round_: int) -> bytes:
        server = SumServer(session, round_, range(3), 2, 0, 50, 40)
        source = chance()
        clients = [SumClient(c, session, round_, 2, 50, 40, entropy=source) for c in range(3)]
        for client in clients:
            server.receive_advertisement(client.advertise())
        roster = server.roster()
        for client in clients:
            server.receive_shares(client.share(roster))
        return clients[0].mask(np.zeros(50, dtype=np.int64), server.routed()[0])[HEADER.size :]

    assert masked(b"a", 1) == masked(b"a", 1)
    assert len({masked(b"a", 1), masked(b"a", 2), masked(b"b", 1)}) == 3


def test_keys_are_those_of_rfc_5869():
    terms = Terms(b"s", 3, 2, 5, 32)
    info = terms.digest + (4).to_bytes(4, "little") + (9).to_bytes(4, "little") + b"post"
    extracted = hmac.digest(bytes(32), b"secret", "sha256")
    assert terms.derive(b"secret", "post", 9, 4) == hmac.digest(extracted, info + b"\x01", "sha256")


def test_masks_are_the_stream_of_chacha20():
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    for bits, word in ((32, "<u4"), (33, "<u8")):
        terms = Terms(b"s", 3, 2, 100, bits)
        # Block 0 is not part of the stream in RFC 8439; counter 1 and a nonce of zeros.
        cipher = Cipher(ChaCha20(terms.derive(b"secret", "own mask", 7, 7), bytes([1] + [0] * 15)), mode=None)
        stream = cipher.encryptor().update(bytes(100 * np.dtype(word).itemsize))
        assert np.array_equal(terms.mask(b"secret", "own mask", 7, 7), np.frombuffer(stream, dtype=word))


def test_keys_differ_by_everything_they_are_for():
    base = {"session": b"s", "round": 3, "threshold": 2, "size": 5, "bits": 32}
    others = [{"session": b"t"}, {"round": 4}, {"threshold": 3}, {"size": 6}, {"bits": 33}]
    keys = {Terms(**(base | change)).derive(b"secret", "post", 1, 2) for change in [{}, *others]}
    terms = Terms(**base)
    assert terms.derive(b"secret", "post", 1, 2) == terms.derive(b"secret", "post", 2, 1)
    keys |= {terms.derive(*what) for what in [(b"secret", "pair mask", 1, 2), (b"secret", "post", 1, 3)]}
    keys |= {terms.derive(b"other", "post", 1, 2), terms.derive(b"secret", "post", 2, 2)}
    assert len(keys) == 10


def test_a_pair_adds_and_subtracts_the_same():
    play = Play(some_values(3, 40))
    a, b = play.clients[0], play.clients[2]
    forth = a.terms.pair_mask(a._mask_key, b._mask_key.public_key(), 0, 2)
    back = b.terms.pair_mask(b._mask_key, a._mask_key.public_key(), 2, 0)
    assert np.array_equal(forth, -back)
    # It is the client with the smaller id that adds.
    secret = b._mask_key.exchange(a._mask_key.public_key())
    assert np.array_equal(forth, a.terms.mask(secret, "pair mask", 0, 2))


# Clients refuse


def test_numbers_are_masked_once():
    play = Play(some_values(3, 2)).until_masked()
    with pytest.raises(ValueError, match="cannot mask now"):
        play.clients[0].mask(play.values[1], play.post[0])


def test_steps_come_once_and_in_order():
    play = Play(some_values(3, 2))
    client = play.clients[0]
    with pytest.raises(ValueError, match="cannot share now"):
        client.share(b"")
    with pytest.raises(ValueError, match="cannot mask now"):
        client.mask(play.values[0], b"")
    with pytest.raises(ValueError, match="sent no numbers"):
        client.unmask(b"")
    play.until_masked()
    with pytest.raises(ValueError, match="cannot advertise now"):
        client.advertise()
    with pytest.raises(ValueError, match="cannot share now"):
        client.share(play.roster)


def test_one_list_of_survivors_is_answered():
    play = Play(some_values(6, 2), absent=(5,)).until_masked()
    client = play.clients[0]

    def request(survivors):
        return play.server.terms.pack("request", 2**32 - 1, b"".join(map(CLIENT.pack, survivors)))

    with pytest.raises(ValueError, match="not among the survivors"):
        client.unmask(request([1, 2, 3, 4]))
    with pytest.raises(TooFewClients):
        client.unmask(request([0, 1]))
    with pytest.raises(ValueError, match=r"\[17\] never shared"):
        client.unmask(request([0, 1, 2, 17]))
    with pytest.raises(ValueError, match="names a client twice"):
        client.unmask(request([0, 1, 2, 2]))
    answer = client.unmask(request([0, 1, 2, 3, 4]))
    assert client.unmask(request([4, 3, 2, 1, 0])) == answer
    with pytest.raises(ValueError, match="second list of survivors"):
        client.unmask(request([0, 1, 2, 3]))
    with pytest.raises(ValueError, match="second list of survivors"):
        client.unmask(request([0, 1, 2, 3, 4, 5]))


@pytest.mark.parametrize(
    "values", [np.zeros(3, dtype=np.int64), np.zeros(2), np.zeros((1, 2), dtype=np.int64), np.zeros(2, dtype=np.int32)]
)
def test_numbers_of_another_kind_are_refused_and_nothing_is_lost(values):
    play = Play(some_values(3, 2))
    mask, tried = SumClient.mask, []

    def first_wrong(client, right, post):
        with pytest.raises(ValueError, match="round them to the grid"):
            mask(client, values, post)
        tried.append(client.id)
        return mask(client, right, post)

    for client in play.clients:
        client.mask = first_wrong.__get__(client)
    play.until_opened()
    assert tried == [0, 1, 2]
    assert np.array_equal(play.server.total(), ideal_sum(play.values, 40))


def test_rosters_that_lie_are_refused():
    play = Play(some_values(4, 2))
    for client in play.clients:
        play.server.receive_advertisement(client.advertise())
    body = play.server.roster()[HEADER.size :]
    records = [body[k : k + KEYS.size] for k in range(0, len(body), KEYS.size)]
    client = play.clients[0]

    def share(*records):
        return client.share(play.server.terms.pack("roster", 2**32 - 1, b"".join(records)))

    with pytest.raises(ValueError, match="lacks client 0"):
        share(*records[1:])
    with pytest.raises(ValueError, match="other keys"):
        share(records[0][:4] + records[1][4:], *records[1:])
    with pytest.raises(ValueError, match="twice in the roster"):
        share(*records, CLIENT.pack(9) + records[1][4:])
    with pytest.raises(ValueError, match="names a client twice"):
        share(*records, records[1])
    with pytest.raises(TooFewClients, match="only 2 clients advertised"):
        share(*records[:2])
    # After all that the right one is still accepted.
    assert share(*records)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_shares_that_were_changed_are_noticed(data):
    play = REFERENCE
    post = bytearray(play.post[1])
    client = fresh_copy(play.clients[1])
    post[data.draw(st.integers(0, len(post) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError):
        client.mask(play.values[1], bytes(post))
    assert client.mask(play.values[1], play.post[1]) == play.sent["masked"][1]


def test_shares_swapped_between_senders_or_sent_back_are_noticed():
    play = REFERENCE
    terms, client = play.server.terms, fresh_copy(play.clients[1])
    boxes = dict(BOX.iter_unpack(play.post[1][HEADER.size :]))
    mine = dict(BOX.iter_unpack(play.sent["shares"][1][HEADER.size :]))
    for forged in ({**boxes, 0: boxes[2], 2: boxes[0]}, {**boxes, 0: mine[0]}):
        body = b"".join(BOX.pack(*item) for item in forged.items())
        with pytest.raises(ValueError, match="changed on the way"):
            client.mask(play.values[1], terms.pack("post", 1, body))
    with pytest.raises(ValueError, match="not one of the others"):
        client.mask(play.values[1], terms.pack("post", 1, BOX.pack(1, boxes[0])))
    with pytest.raises(ValueError, match="addressed to 0"):
        client.mask(play.values[1], play.post[0])
    with pytest.raises(TooFewClients, match="only 2 clients shared"):
        client.mask(play.values[1], terms.pack("post", 1, BOX.pack(0, boxes[0])))


def fresh_copy(client: SumClient) -> SumClient:
    """The client as it was before it masked its numbers."""
    twin = object.__new__(SumClient)
    twin.__dict__ |= client.__dict__
    twin._done, twin._held = "share", {client.id: client._held[client.id]}
    return twin


# The server refuses


def receivers(server: SumServer) -> dict:
    return {
        "advertisement": server.receive_advertisement,
        "shares": server.receive_shares,
        "masked": server.receive_masked,
        "opening": server.receive_opening,
    }


def waiting_server(kind: str) -> SumServer:
    """A server that waits for such messages of the reference round and has all but that of client 1."""
    server = SumServer(SESSION, 4, range(4), 3, 0, 2, 40)
    closing = {"advertisement": server.roster, "shares": server.routed, "masked": server.request}
    for step, sent in REFERENCE.sent.items():
        for client, message in sent.items():
            if step != kind or client != 1:
                receivers(server)[step](message)
        if step == kind:
            break
        closing[step]()
    return server


@pytest.mark.parametrize("kind", ["advertisement", "shares", "masked", "opening"])
def test_malformed_messages_are_refused_with_the_reason(kind):
    message = REFERENCE.sent[kind][1]
    # A server at the right step, which has not heard of client 1 in it.
    server = waiting_server(kind)
    receive = receivers(server)[kind]
    for length in range(len(message)):
        with pytest.raises(ValueError, match="truncated"):
            receive(message[:length])
    with pytest.raises(ValueError, match="truncated or damaged"):
        receive(message + b"\0")

    def changed(**fields) -> bytes:
        names = ["version", "kind", "tag", "round", "client", "length"]
        header = dict(zip(names, HEADER.unpack_from(message), strict=True)) | fields
        return HEADER.pack(*header.values()) + message[HEADER.size :]

    for fields, reason in [
        ({"version": 2}, "version 2"),
        ({"kind": 9}, "unknown kind 9"),
        ({"kind": 2}, "got roster"),
        ({"tag": bytes(16)}, "another session"),
        ({"round": 3}, "of round 3, this is round 4"),
        ({"client": 99}, "no part in this step"),
        ({"client": 0}, "a second|exactly the others"),
    ]:
        with pytest.raises(ValueError, match=reason):
            receive(changed(**fields))
    short = message[HEADER.size :][:-1]
    with pytest.raises(ValueError, match=r"records|numbers|keys"):
        receive(server.terms.pack(kind, 1, short))
    # The server counts what it refused as never sent: the message itself is still taken.
    assert receive(message)


@pytest.mark.parametrize("kind", ["shares", "masked", "opening"])
def test_messages_before_their_step_are_refused(kind):
    server = Play(some_values(4, 2)).server
    with pytest.raises(ValueError, match="before the server asked for it"):
        receivers(server)[kind](REFERENCE.sent[kind][1])


def test_replays_are_refused_at_every_step():
    play = Play(some_values(4, 2)).until_masked()
    play.server.request()
    opening = play.clients[0].unmask(play.server.request())
    play.server.receive_opening(opening)
    for kind, message in [*((kind, sent[0]) for kind, sent in play.sent.items()), ("opening", opening)]:
        with pytest.raises(ValueError, match=f"second {kind} message of client 0"):
            receivers(play.server)[kind](message)
    # The message of another round, word for word, is told by its round.
    other = Play(some_values(4, 2), round=5)
    with pytest.raises(ValueError, match="of round 4, this is round 5: late or replayed"):
        other.server.receive_advertisement(play.sent["advertisement"][0])


def test_what_comes_too_late_does_not_count():
    values = some_values(4, 2)
    server = SumServer(SESSION, 4, range(4), 2, 0, 2, 40)
    clients = [SumClient(c, SESSION, 4, 2, 2, 40) for c in range(4)]
    hello = [c.advertise() for c in clients]
    assert all(server.receive_advertisement(m) for m in hello[:3])
    roster = server.roster()
    assert server.receive_advertisement(hello[3]) is False
    assert server.roster() == roster
    shares = [c.share(roster) for c in clients[:3]]
    assert all(server.receive_shares(m) for m in shares[:2])
    post = server.routed()
    assert server.receive_shares(shares[2]) is False
    assert set(post) == {0, 1}
    for to, message in post.items():
        server.receive_masked(clients[to].mask(values[to], message))
    for to in post:
        server.receive_opening(clients[to].unmask(server.request()))
    assert np.array_equal(server.total(), ideal_sum(values[:2], 40))


def test_answers_that_open_something_else_are_refused():
    play = Play(some_values(4, 2), absent=(3,)).until_masked()
    request = play.server.request()
    pieces = list(PIECE.iter_unpack(play.clients[0].unmask(request)[HEADER.size :]))

    def answer(pieces):
        return play.server.receive_opening(
            play.server.terms.pack("opening", 0, b"".join(PIECE.pack(*piece) for piece in pieces))
        )

    with pytest.raises(ValueError, match="exactly the one share"):
        answer(pieces[:-1])
    with pytest.raises(ValueError, match="exactly the one share"):
        answer([(client, OWN_MASK, share) for client, _, share in pieces])
    with pytest.raises(ValueError, match="names a client twice"):
        answer([*pieces, (3, OWN_MASK, bytes(32))])
    with pytest.raises(ValueError, match="damaged"):
        answer([*pieces[:-1], (3, PAIR_MASKS, b"\xff" * 32)])
    assert answer(pieces)


def test_a_wrong_share_of_a_key_is_noticed():
    play = Play(some_values(4, 2), absent=(3,)).until_masked()
    request = play.server.request()
    seed, key = play.clients[0]._held[3]
    play.clients[0]._held[3] = seed, (key + 2**20) % shamir.PRIME
    for client in play.clients[:3]:
        play.server.receive_opening(client.unmask(request))
    with pytest.raises(ValueError, match="shares of client 3 do not give its key"):
        play.server.total()


def test_numbers_beyond_the_width_are_refused():
    play = Play(some_values(4, 2), absent=(1,)).until_masked()
    with pytest.raises(ValueError, match="more than 40 bits"):
        play.server.receive_masked(play.server.terms.pack("masked", 1, (2**40).to_bytes(8, "little") * 2))


def test_steps_of_the_server_come_in_order():
    server = SumServer(SESSION, 4, range(4), 2, 0, 2, 40)
    for step in (server.routed, server.request):
        with pytest.raises(ValueError, match="cannot end before"):
            step()
    with pytest.raises(TooFewClients, match="only 0 clients advertised, 2 are needed"):
        server.roster()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 1}, "one client alone"),
        ({"threshold": 5}, "no sum could ever be opened"),
        ({"fewest": 5}, "no sum could ever be opened"),
        ({"bits": 15}, "bits = 15"),
        ({"bits": 63}, "bits = 63"),
        ({"size": 0}, "size = 0"),
        ({"round": -1}, "round = -1"),
        ({"ids": [1, 2, 2, 3]}, "invited twice"),
        ({"ids": [-1, 2, 3]}, "client id -1"),
        ({"ids": [2**32 - 1, 2, 3]}, "does not fit"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    usual = {"session": SESSION, "round": 1, "ids": range(4), "threshold": 3, "fewest": 0, "size": 2, "bits": 40}
    with pytest.raises(ValueError, match=message):
        SumServer(**(usual | change))


@pytest.mark.parametrize("dropped", [{0: "sleep"}, {7: "mask"}])
def test_unknown_drops_are_refused(dropped):
    with pytest.raises(ValueError, match="is no step of one of 3 rows"):
        secure_sum(some_values(3, 2), 40, 2, dropped_after=dropped)


def test_ids_may_be_large_and_come_in_any_order():
    ids = [2**32 - 2, 5, 1_000_000]
    values = {c: some_values(1, 3, seed=k)[0] for k, c in enumerate(ids)}
    server = SumServer(SESSION, 2**64 - 1, ids, 2, 0, 3, 40)
    clients = {c: SumClient(c, SESSION, 2**64 - 1, 2, 3, 40) for c in ids}
    for client in clients.values():
        server.receive_advertisement(client.advertise())
    roster = server.roster()
    for client in clients.values():
        server.receive_shares(client.share(roster))
    for to, post in server.routed().items():
        if to != 5:
            server.receive_masked(clients[to].mask(values[to], post))
    for survivor in server.survivors():
        server.receive_opening(clients[survivor].unmask(server.request()))
    assert np.array_equal(server.total(), ideal_sum(np.array([values[ids[0]], values[ids[2]]]), 40))


@pytest.mark.parametrize(("count", "size", "bits"), [(3, 5, 20), (6, 11, 33)])
def test_message_bytes_are_what_is_sent(count, size, bits):
    play = Play(some_values(count, size), bits=bits).until_opened()
    for client in range(count):
        assert message_bytes(count, size, bits) == sum(len(sent[client]) for sent in play.sent.values())


def test_a_missing_package_is_named(monkeypatch):
    from fedrank.protect import secure_sum as module

    module._primitives.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.kdf.hkdf", None)
    with pytest.raises(ImportError, match=r"pip install 'fedrank\[privacy\]'"):
        SumClient(0, SESSION, 4, 3, 2, 40)


# The range


def test_range_by_hand():
    # 100 * 1 / 2^-8 + 12 * 2 / 2^-8 = 124 * 256 = 31744 < 2^15; half the step does not fit, nor does a deviation of 3
    check_range(100, 1.0, 2.0**-8, 2.0, 16)
    with pytest.raises(
        ValueError, match=r"reach 6\.349e\+04, and 16 bits hold less than 32768.*more bits.*coarser step"
    ):
        check_range(100, 1.0, 2.0**-9, 2.0, 16)
    with pytest.raises(ValueError, match="wrap around"):
        check_range(100, 1.0, 2.0**-8, 3.0, 16)
    # exactly 2^15 is too much
    with pytest.raises(ValueError, match="wrap around"):
        check_range(128, 1.0, 2.0**-8, 0.0, 16)
    # 3 * 10922.4 is below 2^15, but rounded to the grid 3 * 10923 = 32769 is not
    with pytest.raises(ValueError, match="wrap around"):
        check_range(3, 10922.4, 1.0, 0.0, 16)


@settings(deadline=None, max_examples=100)
@given(
    count=st.integers(1, 100_000),
    largest=st.floats(1e-6, 1e6),
    deviation=st.floats(0, 1e6),
    bits=st.integers(24, 62),
)
def test_finest_step_is_the_finest(count, largest, deviation, bits):
    step = finest_step(count, largest, deviation, bits)
    assert np.frexp(step)[0] == 0.5
    assert count * largest / step + 12 * deviation / step < 2 ** (bits - 1)
    check_range(count, largest, step, deviation, bits)
    with pytest.raises(ValueError, match="wrap around"):
        check_range(count, largest, step / 2, deviation, bits)


def test_a_sum_at_the_edge_of_the_range_is_exact():
    step = finest_step(7, 1.0, 0.0, 16)
    assert step == 2.0**-12  # 7 * 2^12 < 2^15 <= 7 * 2^13
    values = np.full((7, 2), round(1.0 / step)) * np.array([1, -1])
    assert secure_sum(values, 16, 4).tolist() == [7 * 4096, -7 * 4096]


@pytest.mark.parametrize(
    "arguments",
    [(0, 1.0, 0.0, 32), (5, 0.0, 0.0, 32), (5, np.nan, 0.0, 32), (5, np.inf, 1.0, 32), (5, 1.0, np.nan, 32)],
)
def test_bounds_that_bound_nothing_are_refused(arguments):
    with pytest.raises(ValueError, match="no range follows"):
        finest_step(*arguments)
    count, largest, deviation, bits = arguments
    with pytest.raises(ValueError, match="no range follows"):
        check_range(count, largest, 1.0, deviation, bits)


@pytest.mark.parametrize("step", [0.0, -1.0, np.nan, np.inf])
def test_steps_that_are_no_grid_are_refused(step):
    with pytest.raises(ValueError, match="is no grid"):
        check_range(5, 1.0, step, 0.0, 32)


REFERENCE = Play(some_values(4, 2)).until_opened()
