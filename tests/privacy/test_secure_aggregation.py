"""Sums under masks: they cancel exactly, and nothing but the sum opens."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
import sys
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.privacy import secure_aggregation, shamir
from fedrank.privacy.secure_aggregation import (
    STEPS,
    BadDealing,
    SumClient,
    SumServer,
    TooFewClients,
    finest_step,
    ideal_sum,
    new_identities,
    secure_sum,
    threshold_for,
)
from fedrank.privacy.secure_messages import (
    BOX,
    CLIENT,
    DEALER,
    EVERYBODY,
    HEADER,
    KEYS,
    KINDS,
    LOW_ORDER,
    NO_SHARE,
    OWN_MASK,
    PAIR_MASKS,
    PIECE,
    SIGNATURE,
    SIGNED_KEYS,
    START,
    Identity,
    Terms,
    centred,
    message_bytes,
)

pytest.importorskip("cryptography", reason="secure aggregation needs the package cryptography")

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
    min_survivors: int = 0
    late: tuple[int, ...] = ()  # their numbers reach the server after the list of survivors is final
    absent: tuple[int, ...] = ()  # they share and then vanish
    sent: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def __post_init__(self):
        count, size = self.values.shape
        self.server = SumServer(SESSION, self.round, range(count), self.threshold, self.min_survivors, size, self.bits)
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

    def held(self, holder: int, dealer: int, which: int) -> int:
        return shamir.from_bytes(self.clients[holder]._held[dealer][which - 1])

    def words(self, client: int) -> np.ndarray:
        terms = self.server.terms
        return np.frombuffer(self.sent["masked"][client][START:], dtype=terms.word).astype(np.uint64)

    def without_pair_masks(self, client: int, others: list[int]) -> np.ndarray:
        """Masked numbers less the pairwise masks with some others, whose private keys one has."""
        words = self.words(client)
        public = self.clients[client]._mask_key.public_key()
        for other in others:
            # The mask of the other end is the negative of mine.
            words = words + self.server._bound.pair_mask(self.clients[other]._mask_key, public, other, client)
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


@pytest.mark.long
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
    play.clients[1] = SumClient(1, SESSION, 4, 3, 2, 40, min_survivors=5)
    play.until_masked()
    with pytest.raises(TooFewClients, match="client 1 requires 5"):
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
    own = play.server._bound.own_mask(play.clients[4]._seed, 4)
    assert np.array_equal(residue, play.low(own + np.uint64(7)))
    assert_uniform_bits(residue, 40)
    # The seed of that mask was in no message: every answer about client 4 is a share of its key.
    for message in play.sent["opening"].values():
        about = [(client, which) for client, which, _ in PIECE.iter_unpack(message[START:])]
        assert (4, PAIR_MASKS) in about
        assert (4, OWN_MASK) not in about
    # And the late client itself helps nobody: it is not among the survivors.
    with pytest.raises(ValueError, match="not among the survivors"):
        play.clients[4].unmask(play.request)


def test_the_server_gets_one_of_two_shares_of_every_client():
    play = Play(some_values(6, 2), absent=(2,), late=(5,)).until_opened()
    for sender, message in play.sent["opening"].items():
        pieces = list(PIECE.iter_unpack(message[START:]))
        expected = {c: PAIR_MASKS if c in (2, 5) else OWN_MASK for c in range(6)}
        assert {client: which for client, which, _ in pieces} == expected
        assert len(pieces) == 6
        held = play.clients[sender]._held
        for client, which, share in pieces:
            assert share == held[client][which - 1]
    # The other share of nobody is anywhere in what the server received or passed on.
    everything = b"".join(m for kind in play.sent.values() for m in kind.values()) + b"".join(play.post.values())
    for client in play.clients:
        for about, shares in client._held.items():
            kept = shares[0] if about in (2, 5) else shares[1]
            assert kept not in everything
        assert shamir.to_bytes(client._seed) not in everything
        assert shamir.to_bytes(client._mask_secret) not in everything


def test_colluders_below_the_threshold_open_no_survivor():
    size, colluders, honest = 20_000, [0, 1], [2, 3, 4]
    play = Play(np.zeros((5, size), dtype=np.int64) + 11).until_opened()
    # They know the victim's own mask (opened on purpose) and their pairwise masks with it, not those among the honest.
    own = {c: play.server._bound.own_mask(play.clients[c]._seed, c) for c in honest}
    residue = {c: play.low(play.without_pair_masks(c, colluders) - own[c]) for c in honest}
    assert_uniform_bits(residue[2], 40)
    # All that those residues say is the sum of the honest.
    assert np.array_equal(play.low(residue[2] + residue[3] + residue[4]), np.full(size, 33))
    # For the key they would need, they hold two shares, and three are needed.
    keys = {c + 1: play.held(c, 2, PAIR_MASKS) for c in colluders}
    assert shamir.join(keys) != play.clients[2]._mask_secret
    assert shamir.join(keys | {4: play.held(3, 2, PAIR_MASKS)}) == play.clients[2]._mask_secret


def test_colluders_cannot_read_before_the_survivors_answer():
    play = Play(some_values(5, 3)).until_masked()
    seeds = {c + 1: play.held(c, 2, OWN_MASK) for c in (0, 1)}
    assert shamir.join(seeds) != play.clients[2]._seed
    assert shamir.join(seeds | {5: play.held(4, 2, OWN_MASK)}) == play.clients[2]._seed


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
        assert first.roster[START:] != other.roster[START:]


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
        return clients[0].mask(np.zeros(50, dtype=np.int64), server.routed()[0])[START:]

    assert masked(b"a", 1) == masked(b"a", 1)
    assert len({masked(b"a", 1), masked(b"a", 2), masked(b"b", 1)}) == 3


@pytest.mark.parametrize("other", [1, 4], ids=["another request", "another roster"])
def test_what_clients_with_different_requests_send_looks_like_chance(other):
    """Even to a server that knows every self mask, and for the group with the same request alone."""
    size, bits, everybody = 5000, 16, range(5)
    clients = [
        SumClient(c, SESSION, 0, 3, size, bits, request=b"another" if c == other == 1 else b"same")
        for c in everybody
    ]  # fmt: skip
    server = SumServer(SESSION, 0, everybody, 3, 0, size, bits)
    keys = {client.id: server.terms.unpack("advertisement", client.advertise())[1] for client in clients}

    def roster(known) -> bytes:
        return server.terms.pack("roster", EVERYBODY, b"".join(CLIENT.pack(c) + keys[c] for c in known))

    def total(group) -> np.ndarray:
        """What is left of what they send without their self masks."""
        found = np.zeros(size, np.uint32)
        for c in group:
            found += np.frombuffer(sent[c][START:], "<u4") - clients[c].terms.own_mask(clients[c]._seed, c)
        return centred(found, bits)

    shares = {c: clients[c].share(roster((1, 2, 3, 4) if c == other == 4 else everybody)) for c in everybody}
    boxes: dict[int, list[bytes]] = {c: [] for c in everybody}
    for c, letter in shares.items():
        body = server.terms.unpack("shares", letter)[1]
        for to, *record in BOX.iter_unpack(body[DEALER.size :]):
            boxes[to].append(BOX.pack(c, *record))
    boxes[4] = boxes[4] if other == 1 else boxes[4][1:]  # its roster lacks client 0
    posts = {c: server.terms.pack("post", c, b"".join(found)) for c, found in boxes.items()}
    sent = {c: clients[c].mask(np.zeros(size, dtype=np.int64), posts[c]) for c in everybody}
    for group in (everybody, [c for c in everybody if c != other], [other]):
        left = total(group)
        ones = (left[:, None] >> np.arange(bits) & 1).mean(axis=0)
        assert np.all(np.abs(ones - 0.5) < 6 * 0.5 / size**0.5)
        assert len(np.unique(left)) > 0.9 * size


def test_a_client_refuses_the_roster_of_clients_that_received_another_request():
    who = new_identities(range(4))
    server = SumServer(SESSION, 0, range(4), 3, 0, 2, 40, identities=who[0].publics, request=b"model 1")
    clients = [SumClient(c, SESSION, 0, 3, 2, 40, identity=who[c], request=b"model 1") for c in range(3)]
    victim = SumClient(3, SESSION, 0, 3, 2, 40, identity=who[3], request=b"model 2")
    advertised = victim.advertise()
    with pytest.raises(ValueError, match="received another request"):
        server.receive_advertisement(advertised)
    for client in clients:
        server.receive_advertisement(client.advertise())
    server._keys[3] = server.terms.unpack("advertisement", advertised)[1]
    roster = server.roster()
    for client in (*clients, victim):
        with pytest.raises(ValueError, match="received another request"):
            client.share(roster)


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
    others = [{"session": b"t"}, {"round": 4}, {"threshold": 3}, {"size": 6}, {"bits": 33}, {"signed": True}]
    keys = {Terms(**(base | change)).derive(b"secret", "post", 1, 2) for change in [{}, *others]}
    terms = Terms(**base)
    assert terms.derive(b"secret", "post", 1, 2) == terms.derive(b"secret", "post", 2, 1)
    keys |= {terms.derive(*what) for what in [(b"secret", "pair mask", 1, 2), (b"secret", "post", 1, 3)]}
    keys |= {terms.derive(b"other", "post", 1, 2), terms.derive(b"secret", "post", 2, 2)}
    assert len(keys) == 11


def test_a_pair_adds_and_subtracts_the_same():
    play = Play(some_values(3, 40))
    a, b = play.clients[0], play.clients[2]
    forth = a.terms.pair_mask(a._mask_key, b._mask_key.public_key(), 0, 2)
    back = b.terms.pair_mask(b._mask_key, a._mask_key.public_key(), 2, 0)
    assert np.array_equal(forth, -back)
    # It is the client with the smaller id that adds.
    secret = b._mask_key.exchange(a._mask_key.public_key())
    assert np.array_equal(forth, a.terms.mask(secret, "pair mask", 0, 2))


# SimulatedClients refuse


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


def test_no_two_messages_of_a_pair_have_the_same_nonce():
    pairs = [(sender, to) for sender in range(4) for to in range(4) if sender != to]
    assert len({secure_aggregation._nonce(*pair) for pair in pairs}) == len(pairs)


def test_rosters_that_lie_are_refused():
    play = Play(some_values(4, 2))
    for client in play.clients:
        play.server.receive_advertisement(client.advertise())
    body = play.server.roster()[START:]
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
    with pytest.raises(ValueError, match="roster"):
        client.share(play.server.terms.pack("roster", 1, b"".join(records)))  # addressed to one client
    # After all that the right one is still accepted.
    assert share(*records)


def test_shares_swapped_between_senders_or_sent_back_are_not_taken():
    play = REFERENCE
    terms, post = play.server.terms, {other: rest for other, *rest in BOX.iter_unpack(play.post[1][START:])}
    mine = {other: rest for other, *rest in BOX.iter_unpack(play.sent["shares"][1][START + DEALER.size :])}

    def mask(boxes):
        client = fresh_copy(play.clients[1])
        client.mask(play.values[1], terms.pack("post", 1, b"".join(BOX.pack(c, *rest) for c, rest in boxes.items())))
        return {other for other, shares in client._held.items() if shares is None}

    assert mask(post) == set()
    assert mask({**post, 0: mine[0]}) == {0}
    assert mask({**post, 0: post[2]}) == {0}
    # The right box under the commitments of another, which the server would hold the answer against.
    assert mask({**post, 0: [post[0][0], *post[2][1:]]}) == {0}
    assert mask({**post, 0: [post[0][0], post[0][2], post[0][1]]}) == {0}
    assert mask({**post, 0: post[2], 2: post[0]}) == {0, 2}
    with pytest.raises(TooFewClients, match="only 2 clients shared"):
        mask({0: post[0]})
    with pytest.raises(ValueError, match="not another client"):
        mask({1: post[0]})
    with pytest.raises(ValueError, match="addressed to 0"):
        fresh_copy(play.clients[1]).mask(play.values[1], play.post[0])


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


def sealed(header: bytes, body: bytes) -> bytes:
    """A message as somebody would send it who means it: the checksum fits."""
    return header + hashlib.sha256(header + body).digest()[:16] + body


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
        return sealed(HEADER.pack(*header.values()), message[START:])

    for fields, reason in [
        ({"version": 1}, "version 1"),
        ({"kind": 99}, "unknown kind 99"),
        ({"kind": 2}, "got roster"),
        ({"tag": bytes(16)}, "another session"),
        ({"round": 3}, "of round 3, expected round 4"),
        ({"client": 99}, "no part in this step"),
        ({"client": 0}, "a second|exactly the others"),
    ]:
        with pytest.raises(ValueError, match=reason):
            receive(changed(**fields))
    with pytest.raises(ValueError, match="damaged in transit"):
        receive(message[:-1] + bytes([message[-1] ^ 1]))
    short = message[START:][:-1]
    with pytest.raises(ValueError, match=r"record|numbers|keys"):
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
    with pytest.raises(ValueError, match="of round 4, expected round 5: late or replayed"):
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
    pieces = list(PIECE.iter_unpack(play.clients[0].unmask(request)[START:]))

    def answer(pieces):
        return play.server.receive_opening(
            play.server.terms.pack("opening", 0, b"".join(PIECE.pack(*piece) for piece in pieces))
        )

    with pytest.raises(ValueError, match="must open exactly"):
        answer(pieces[:-1])
    with pytest.raises(ValueError, match="must open exactly"):
        answer([(client, OWN_MASK, share) for client, _, share in pieces])
    with pytest.raises(ValueError, match="names a client twice"):
        answer([*pieces, (3, OWN_MASK, bytes(32))])
    for wrong in (b"\xff" * 32, bytes(32), pieces[0][2]):
        with pytest.raises(ValueError, match="client 0 opened a wrong share of client 3"):
            answer([*pieces[:-1], (3, PAIR_MASKS, wrong)])
    with pytest.raises(ValueError, match="must open exactly"):
        answer([*pieces[:-1], (3, NO_SHARE, pieces[-1][2])])
    assert list(play.server.left_out) == [0]
    assert answer(pieces)
    assert play.server.left_out == {}


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
        ({"min_survivors": 5}, "no sum could ever be opened"),
        ({"bits": 15}, "bits must be .*got 15"),
        ({"bits": 63}, "bits must be .*got 63"),
        ({"size": 0}, "size must be .*got 0"),
        ({"round": -1}, "round must be .*got -1"),
        ({"ids": [1, 2, 2, 3]}, "invited twice"),
        ({"ids": [-1, 2, 3]}, "client id must be .*got -1"),
        ({"ids": [2**32 - 1, 2, 3]}, "client id must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    usual = {"session": SESSION, "round": 1, "ids": range(4), "threshold": 3, "min_survivors": 0, "size": 2, "bits": 40}
    with pytest.raises(ValueError, match=message):
        SumServer(**(usual | change))


@pytest.mark.parametrize("dropped", [{0: "sleep"}, {7: "mask"}])
def test_unknown_drops_are_refused(dropped):
    with pytest.raises(ValueError, match="rows below 3"):
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
    from fedrank.privacy import secure_messages as module

    module.primitives.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.kdf.hkdf", None)
    with pytest.raises(ImportError, match=r"pip install 'fedrank\[privacy\]'"):
        SumClient(0, SESSION, 4, 3, 2, 40)


# Those who break the rules


@dataclass
class Rough:
    """A round in which some break the rules: who refuses, or is refused, is gone, and the others go on."""

    values: np.ndarray
    threshold: int
    signed: bool = False
    absent: tuple[int, ...] = ()  # they share and then vanish
    changes: dict = field(default_factory=dict)  # by kind and client: what becomes of that message on its way
    refused: list[tuple[str, int]] = field(default_factory=list)  # kind, and who sent or got the message

    def __post_init__(self):
        count, size = self.values.shape
        who = new_identities(range(count)) if self.signed else {}
        publics = who[0].publics if self.signed else None
        terms = SESSION, 4
        self.server = SumServer(*terms, range(count), self.threshold, 0, size, 40, identities=publics)
        self.clients = [SumClient(c, *terms, self.threshold, size, 40, identity=who.get(c)) for c in range(count)]

    def each(self, kind: str, clients, make, receive) -> list[int]:
        """Who has done a step: `make` the message of a client, and let the server receive it."""
        done = []
        for client in clients:
            try:
                message = self.carried(kind, client, make(self.clients[client]))
                receive(message)
                done.append(client)
            except ValueError:
                self.refused.append((kind, client))
        return done

    def carried(self, kind: str, client: int, message: bytes) -> bytes:
        return self.changes.get((kind, client), lambda same: same)(message)

    def total(self) -> np.ndarray:
        server, got = self.server, self.carried
        here = self.each("advertisement", range(len(self.clients)), SumClient.advertise, server.receive_advertisement)
        roster = server.roster()
        here = self.each("shares", here, lambda c: c.share(got("roster", c.id, roster)), server.receive_shares)
        post = server.routed()
        here = [client for client in here if client not in self.absent]
        here = self.each(
            "masked",
            here,
            lambda c: c.mask(self.values[c.id], got("post", c.id, post[c.id])),
            server.receive_masked,
        )
        request, consent = server.request(), None
        if self.signed:
            self.each("signature", here, lambda c: c.sign(got("request", c.id, request)), server.receive_signature)
            consent = server.consent()
        self.each(
            "opening",
            here,
            lambda c: c.unmask(got("request", c.id, request), consent and got("consent", c.id, consent)),
            server.receive_opening,
        )
        return server.total()

    def expected(self) -> np.ndarray:
        return ideal_sum(self.values[self.server.survivors()], 40)


def resealed(change):
    """Change the body of a message and make the checksum and the length fit again."""

    def changed(message: bytes) -> bytes:
        body = change(message[START:])
        *fields, _ = HEADER.unpack_from(message)
        return sealed(HEADER.pack(*fields, len(body)), body)

    return changed


def replaced(at: int, new: bytes):
    return resealed(lambda body: body[:at] + new + body[at + len(new) :])


def test_public_keys_of_low_order_by_algebra():
    # On y^2 = u^3 + A u^2 + u, and on its twist, twice a point has the place (u^2 - 1)^2 / (4 u (u^2 + A u + 1)).
    p, a = shamir.PRIME, 486662

    def roots(x: int) -> set[int]:
        root = pow(x, (p + 3) // 8, p)
        tries = {root, root * pow(2, (p - 1) // 4, p) % p}
        return {y for r in tries for y in (r, -r % p) if y * y % p == x % p}

    assert not roots(a * a - 4)  # so that u^2 + A u + 1 is never 0: twice a point is nothing only for u = 0
    order_4 = {1, p - 1}  # twice the point has u = 0
    order_8 = set()
    for sign in (1, -1):  # twice the point has u = sign: with v = u + 1 / u, (v - 2 sign)^2 = 4 (2 + sign A)
        for s in roots(2 + sign * a):
            v = 2 * sign + 2 * s
            order_8 |= {(v + r) * pow(2, -1, p) % p for r in roots(v * v - 4)}
    assert len(order_8) == 2
    assert {0} | order_4 | order_8 == LOW_ORDER


def test_the_exchange_fails_with_keys_of_low_order_only():
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    mine = X25519PrivateKey.generate()
    for u in LOW_ORDER:
        with pytest.raises(ValueError):
            mine.exchange(X25519PublicKey.from_public_bytes(shamir.to_bytes(u)))
    for u in range(2, 50):
        mine.exchange(X25519PublicKey.from_public_bytes(shamir.to_bytes(u)))


BAD_KEYS = [
    *(shamir.to_bytes(u) for u in sorted(LOW_ORDER)),
    shamir.to_bytes(1)[:31] + b"\x80",  # the top bit is ignored by the exchange: 1 in disguise
    shamir.PRIME.to_bytes(32, "little"),  # 0
    (shamir.PRIME + 9).to_bytes(32, "little"),  # 9, in a second spelling
    b"\xff" * 32,
]


@pytest.mark.parametrize("at", [0, 32])
@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: key.hex()[-8:])
def test_a_client_whose_key_makes_no_secret_is_named_and_the_others_go_on(key, at):
    play = Rough(some_values(5, 3, 30), 3, changes={("advertisement", 2): replaced(at, key)})
    assert np.array_equal(play.total(), play.values[[0, 1, 3, 4]].sum(axis=0))
    assert play.refused == [("advertisement", 2)]
    assert list(play.server.left_out) == [2]
    assert "client 2 has a public key that gives no secret" in play.server.left_out[2]


@pytest.mark.parametrize(("at", "of"), [(0, 32), (32, 0), (0, -64), (32, -32), (0, -32)])
def test_a_client_with_the_key_of_another_is_named_and_the_others_go_on(at, of):
    play = Rough(some_values(5, 3, 30), 3)
    first: list[bytes] = []

    def copied(body: bytes) -> bytes:
        key = body[of : of + 32] if of >= 0 else (first[0] * 2)[64 + of :][:32]
        return body[:at] + key + body[at + 32 :]

    play.changes = {
        ("advertisement", 0): lambda message: first.append(message[START:]) or message,
        ("advertisement", 2): resealed(copied),
    }
    assert np.array_equal(play.total(), play.values[[0, 1, 3, 4]].sum(axis=0))
    assert "client 2 occurs twice" in play.server.left_out[2]


def test_a_right_message_after_a_wrong_one_counts():
    play = Play(some_values(3, 2, 30))
    right = play.clients[1].advertise()
    with pytest.raises(ValueError, match="client 1 has a public key that gives no secret"):
        play.server.receive_advertisement(replaced(0, bytes(32))(right))
    assert list(play.server.left_out) == [1]
    assert play.server.receive_advertisement(right)
    assert play.server.left_out == {}


@pytest.mark.parametrize("at", [0, 32])
def test_a_roster_with_a_key_that_makes_no_secret_is_refused_by_name(at):
    play = Play(some_values(4, 2, 30))
    for client in play.clients:
        play.server.receive_advertisement(client.advertise())
    wrong = replaced(2 * KEYS.size + 4 + at, bytes(32))(play.server.roster())
    with pytest.raises(ValueError, match="client 2 has a public key that gives no secret"):
        play.clients[0].share(wrong)


def liar(about: int, by: int = 1):
    """What makes an opening lie about one client: its share is another element."""

    def lie(body: bytes) -> bytes:
        pieces = {client: (which, shamir.from_bytes(share)) for client, which, share in PIECE.iter_unpack(body)}
        which, share = pieces[about]
        pieces[about] = which, (share + by) % shamir.PRIME
        return b"".join(PIECE.pack(c, w, shamir.to_bytes(s)) for c, (w, s) in pieces.items())

    return resealed(lie)


@pytest.mark.parametrize("about", [0, 1, 3, 5], ids=["survivor", "itself", "another", "vanished"])
def test_who_opens_a_wrong_share_is_named_and_left_out(about):
    play = Rough(some_values(6, 3, 30), 4, absent=(5,), changes={("opening", 1): liar(about)})
    assert np.array_equal(play.total(), play.values[:5].sum(axis=0))
    assert play.server.left_out == {
        1: f"client 1 opened a wrong share of client {about}; its answer does not count",
    }
    # With no answer to spare the sum stays closed, and it is said why.
    play = Rough(some_values(6, 3, 30), 5, absent=(5,), changes={("opening", 1): liar(about)})
    with pytest.raises(
        TooFewClients, match=rf"4 clients opened.*5 are needed.*client 1 opened a wrong share of.*{about}"
    ):
        play.total()


def searched_liars(server: SumServer, answers: dict[int, dict[int, int]]) -> set[int]:
    """Who lied, the slow way: of all sets of answers that give the right secret, the one that most others agree with.

    The secret alone is not enough: two liars can choose errors that cancel in it.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    liars = set()
    for dealer, dealt in server._dealt.items():
        off = []
        for chosen in itertools.combinations(sorted(answers), server.terms.threshold):
            known = {by + 1: answers[by][dealer] for by in chosen}
            secret = shamir.join(known)
            key = X25519PrivateKey.from_private_bytes(shamir.to_bytes(secret)).public_key().public_bytes_raw()
            if server._bound.seed_commitment(secret, dealer) == dealt.seed or key == server._keys[dealer][:32]:
                off.append({by for by, said in answers.items() if value_at(by + 1, known) != said[dealer]})
        liars |= min(off, key=len)
    return liars


def value_at(at: int, known: dict[int, int]) -> int:
    """The polynomial through the known values, at another point (Lagrange)."""
    total = 0
    for x, y in known.items():
        for other in known:
            if other != x:
                y = y * (at - other) * pow(x - other, -1, shamir.PRIME) % shamir.PRIME
        total += y
    return total % shamir.PRIME


@pytest.mark.long
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_liars_are_those_that_a_search_finds(data):
    absent = (6,) if data.draw(st.booleans()) else ()
    present = [c for c in range(7) if c not in absent]
    lies = data.draw(st.dictionaries(st.sampled_from(present), st.integers(0, 6), max_size=2))
    answers = {}

    def noted(client):
        change = (
            liar(lies[client], data.draw(st.integers(1, shamir.PRIME - 1))) if client in lies else lambda same: same
        )

        def note(message):
            changed = change(message)
            pieces = PIECE.iter_unpack(changed[START:])
            answers[client] = {about: shamir.from_bytes(share) for about, _, share in pieces}
            return changed

        return note

    play = Rough(some_values(7, 2, 30), 4, absent=absent, changes={("opening", c): noted(c) for c in present})
    assert np.array_equal(play.total(), play.values[present].sum(axis=0))
    assert set(play.server.left_out) == set(lies) == searched_liars(play.server, answers)


def test_liars_whose_errors_cancel_in_the_secret_are_found():
    # Four shares at 1, 2, 3, 4 count 4, -6, 4, -1 times: errors of 1 at 1 and of 4 at 4 leave the secret as it is.
    assert shamir.weights_at_zero([1, 2, 3, 4]) == [4, shamir.PRIME - 6, 4, shamir.PRIME - 1]
    play = Rough(some_values(7, 2, 30), 4, changes={("opening", 0): liar(2, 1), ("opening", 3): liar(2, 4)})
    assert np.array_equal(play.total(), play.values.sum(axis=0))
    assert list(play.server.left_out) == [0, 3]


def deals_wrongly(
    dealer: int, holders: tuple[int, ...], monkeypatch, error: int = 1, modulus: int = shamir.PRIME
) -> None:
    """Let a client deal shares to some that are on no polynomial, and commit to them as if they were."""
    split, share = shamir.split, SumClient.share

    def wrong_split(secret, threshold, points, entropy):
        shares = split(secret, threshold, points, entropy)
        return [(s + error) % modulus if x - 1 in holders else s for x, s in zip(points, shares, strict=True)]

    def wrong_share(client, roster):
        if client.id != dealer:
            return share(client, roster)
        with monkeypatch.context() as patch:
            patch.setattr(shamir, "split", wrong_split)
            return share(client, roster)

    monkeypatch.setattr(SumClient, "share", wrong_share)


@pytest.mark.parametrize("absent", [(), (2,)], ids=["survives", "vanishes"])
def test_who_deals_shares_that_do_not_fit_is_named_and_nothing_is_added_up(absent, monkeypatch):
    play = Rough(some_values(6, 3, 30), 3, absent=absent)
    deals_wrongly(2, (0, 4), monkeypatch)
    with pytest.raises(
        BadDealing, match=r"shares of client 2 do not give the secret.*a new round without it"
    ) as caught:
        play.total()
    assert caught.value.dealer == 2
    assert play.server.left_out == {}


def test_shares_that_do_not_fit_and_are_not_needed_do_no_harm(monkeypatch):
    play = Rough(some_values(6, 3, 30), 3)
    deals_wrongly(2, (4, 5), monkeypatch)
    assert np.array_equal(play.total(), play.values.sum(axis=0))


def test_who_was_dealt_something_that_is_no_share_is_not_blamed_for_it(monkeypatch):
    # The same number in a second spelling, which the server would refuse, with a commitment that fits.
    play = Rough(some_values(6, 3, 30), 3)
    deals_wrongly(2, (0, 4), monkeypatch, shamir.PRIME, 2**256)
    assert np.array_equal(play.total(), play.values.sum(axis=0))
    assert play.server.left_out == {}
    assert play.clients[4]._held[2] is None


def test_signed_statements_differ_by_everything_they_are_about():
    terms, other = Terms(b"s", 3, 3, 5, 32, signed=True), Terms(b"s", 4, 3, 5, 32, signed=True)
    keys = {terms.keys_statement(1, bytes(64)), terms.keys_statement(2, bytes(64)), terms.keys_statement(1, b"1" * 64)}
    known = [terms.with_roster(roster) for roster in (b"", b"1")]
    lists = {one.survivors_statement(some) for one in known for some in ([1, 2], [1, 3])}
    again = {other.keys_statement(1, bytes(64)), other.with_roster(b"").survivors_statement([1, 2])}
    asked = replace(terms, request=b"another model")
    again |= {asked.keys_statement(1, bytes(64)), asked.with_roster(b"").survivors_statement([1, 2])}
    assert len(keys | lists | again) == 11
    # Nor is a statement of the one kind ever one of the other, whatever it is about.
    assert not any(one.startswith(b"fedrank secure sum: survivors") for one in keys)


@pytest.mark.parametrize("absent", [(), (2,)], ids=["survives", "vanishes"])
@pytest.mark.parametrize("field", [4, 84, 100], ids=["box", "commitment to the seed's", "to the key's"])
def test_a_box_that_cannot_be_read_stops_nobody(absent, field):
    def spoil(body: bytes) -> bytes:
        at = DEALER.size + field  # of the first box, which is for client 0
        return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]

    play = Rough(some_values(6, 3, 30), 4, absent=absent, changes={("shares", 2): resealed(spoil)})
    assert np.array_equal(play.total(), play.expected())
    assert play.clients[0]._held[2] is None
    assert play.server._openings[0][2] is None
    assert play.server.left_out == {}


@pytest.mark.parametrize("threshold", [2, 4, 6])
def test_who_deals_nonsense_to_everybody_is_named(threshold):
    def spoil(body: bytes) -> bytes:
        boxes = [list(box) for box in BOX.iter_unpack(body[DEALER.size :])]
        return body[: DEALER.size] + b"".join(BOX.pack(to, bytes(80), *rest) for to, _, *rest in boxes)

    play = Rough(some_values(6, 3, 30), threshold, changes={("shares", 2): resealed(spoil)})
    said = rf"clients \[0, 1, 3, 4, 5\] report that the shares of client 2 cannot be read, and 1 of {threshold} needed"
    with pytest.raises(BadDealing, match=said):
        play.total()


def test_who_claims_to_hold_no_share_only_counts_for_nothing():
    def silent(body: bytes) -> bytes:
        return b"".join(PIECE.pack(client, NO_SHARE, b"") for client, *_ in PIECE.iter_unpack(body))

    play = Rough(some_values(5, 3, 30), 4, changes={("opening", 1): resealed(silent)})
    assert np.array_equal(play.total(), play.values.sum(axis=0))
    play = Rough(some_values(5, 3, 30), 5, changes={("opening", 1): resealed(silent)})
    with pytest.raises(
        BadDealing, match=r"clients \[1\] report that the shares of client 0 cannot be read, and 4 of 5"
    ):
        play.total()


def test_commitments_differ_by_everything_they_are_to():
    terms, other = Terms(b"s", 3, 2, 5, 32), Terms(b"s", 4, 2, 5, 32)
    share = bytes(range(32))
    different = [
        (share, 1, 2, OWN_MASK),
        (share, 2, 1, OWN_MASK),
        (share, 1, 2, PAIR_MASKS),
        (bytes(32), 1, 2, OWN_MASK),
    ]
    made = {terms.commitment(*what) for what in different} | {other.commitment(*different[0])}
    assert len(made) == 5
    label = (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + b"\x01"
    assert terms.commitment(*different[0]) == hashlib.sha256(terms.digest + label + share).digest()[:16]
    assert len({terms.seed_commitment(7, 1), terms.seed_commitment(7, 2), terms.seed_commitment(8, 1)}) == 3


# Signed lists of survivors


@pytest.mark.parametrize("count", [2, 3, 7, 12])
def test_signed_sums_are_the_same(count):
    values = some_values(count, 5, 30)
    assert np.array_equal(secure_sum(values, 40, threshold_for(count, active=True), signed=True), ideal_sum(values, 40))


@pytest.mark.parametrize("step", STEPS)
def test_signed_sums_with_dropouts(step):
    values = some_values(7, 2, 30)
    arrived = range(7) if step == "mask" else range(2, 7)
    assert np.array_equal(secure_sum(values, 40, 5, 0, {0: step, 1: step}, signed=True), values[arrived].sum(axis=0))
    with pytest.raises(TooFewClients):
        secure_sum(values, 40, 5, 0, {0: step, 1: step, 2: step}, signed=True)


def test_thresholds_by_hand():
    assert [threshold_for(n, active=True) for n in range(2, 11)] == [2, 3, 3, 4, 5, 5, 6, 7, 7]
    assert [threshold_for(10, c) for c in range(4)] == [2, 2, 3, 4]
    assert threshold_for(10, 3, active=True) == 7
    assert threshold_for(10, 5, active=True) == 8  # (10 + 5) / 2 = 7.5: five honest ones, split 3 and 2, make 8 and 7
    for colluders in (-1, 10):
        with pytest.raises(ValueError, match="colluders must be"):
            threshold_for(10, colluders)


def test_two_lists_never_both_get_the_active_threshold():
    for count in range(2, 40):
        for colluders in range(count):
            t = threshold_for(count, colluders, active=True)
            honest = count - colluders
            # All ways to show one list to some honest clients and another to the rest; colluders sign both.
            reached = max(min(colluders + some, colluders + honest - some) for some in range(honest + 1))
            assert reached < t
            assert colluders < t
            if 3 * colluders <= count:
                assert t == math.floor(2 * count / 3 + 1e-9) + 1


def two_faced(play: Play, first: list[int], second: list[int], groups: tuple[list[int], list[int]]) -> list[bytes]:
    """Requests for two lists of survivors, and what those two groups of clients answer."""
    requests = [
        play.server.terms.pack("request", 2**32 - 1, b"".join(map(CLIENT.pack, one))) for one in (first, second)
    ]
    return [play.clients[c].unmask(request) for request, group in zip(requests, groups, strict=True) for c in group]


def test_without_signatures_a_server_with_two_lists_reads_a_client_and_a_higher_threshold_stops_it():
    everybody, without = list(range(6)), [1, 2, 3, 4, 5]
    groups = [0, 1, 2], [3, 4, 5]

    def stolen(threshold: int) -> tuple[Play, list[int], list[int]]:
        play = Play(some_values(6, 3, 30), threshold).until_masked()
        shares: dict[int, dict[int, int]] = {OWN_MASK: {}, PAIR_MASKS: {}}
        for client, answer in zip(range(6), two_faced(play, everybody, without, groups), strict=True):
            for about, which, share in PIECE.iter_unpack(answer[START:]):
                if about == 0:
                    shares[which][client + 1] = shamir.from_bytes(share)
        return play, shamir.join(shares[OWN_MASK]), shamir.join(shares[PAIR_MASKS])

    play, seed, key = stolen(3)  # the semi-honest threshold for up to two colluders
    assert (seed, key) == (play.clients[0]._seed, play.clients[0]._mask_secret)
    residue = play.without_pair_masks(0, without) - play.server._bound.own_mask(seed, 0)
    assert np.array_equal(play.low(residue), play.low(play.values[0].astype(np.uint64)))
    play, seed, key = stolen(threshold_for(6, active=True))
    assert seed != play.clients[0]._seed
    assert key != play.clients[0]._mask_secret


class Signing(Play):
    """A round by hand, with identity keys."""

    def __post_init__(self):
        count, size = self.values.shape
        self.who = new_identities(range(count))
        terms = SESSION, self.round
        self.server = SumServer(
            *terms, range(count), self.threshold, self.min_survivors, size, self.bits, identities=self.who[0].publics
        )
        self.clients = [
            SumClient(c, *terms, self.threshold, size, self.bits, identity=self.who[c]) for c in range(count)
        ]

    def until_signed(self) -> Signing:
        self.until_masked()
        self.request = self.server.request()
        self.sent["signature"] = {c: self.clients[c].sign(self.request) for c in self.server.survivors()}
        for message in self.sent["signature"].values():
            assert self.server.receive_signature(message)
        self.consent = self.server.consent()
        return self

    def until_opened(self) -> Signing:
        self.until_signed()
        self.sent["opening"] = {c: self.clients[c].unmask(self.request, self.consent) for c in self.server.survivors()}
        for message in self.sent["opening"].values():
            assert self.server.receive_opening(message)
        return self

    def asking(self, survivors) -> bytes:
        return self.server.terms.pack("request", 2**32 - 1, b"".join(map(CLIENT.pack, survivors)))

    def showing(self, signatures: dict[int, bytes]) -> bytes:
        records = (SIGNATURE.pack(client, message[START:]) for client, message in signatures.items())
        return self.server.terms.pack("consent", 2**32 - 1, b"".join(records))


def test_a_server_that_shows_two_lists_gets_nothing_opened():
    play = Signing(some_values(6, 3, 30), 5).until_masked()
    first, second = play.asking(range(6)), play.asking([1, 2, 3, 4, 5])
    signed = {c: play.clients[c].sign(first if c < 3 else second) for c in range(6)}
    # Two of the clients work with the server and sign what it likes.
    for colluder in (1, 4):
        list_ = [*range(6)] if colluder == 4 else [1, 2, 3, 4, 5]
        terms = play.server.terms.with_roster(play.roster)
        made_up = play.who[colluder].sign(terms.survivors_statement(list_))
        signed[10 + colluder] = play.server.terms.pack("signature", colluder, made_up)
    for request, group, signers in (
        (first, (0, 2), {0: 0, 1: 1, 2: 2, 4: 14}),
        (second, (3, 5), {3: 3, 4: 4, 5: 5, 1: 11}),
    ):
        for client in group:
            with pytest.raises(TooFewClients, match="only 4 clients signed the list of survivors, 5 are needed"):
                play.clients[client].unmask(request, play.showing({c: signed[at] for c, at in signers.items()}))
            # Filling up with signatures for the other list does not help.
            with pytest.raises(ValueError, match="is invalid"):
                play.clients[client].unmask(request, play.showing({c: signed[c] for c in range(1, 6)}))


def test_only_signatures_for_the_very_list_count():
    play = Signing(some_values(6, 2, 30), 5).until_masked()
    request = play.server.request()
    signed = {c.id: c.sign(request) for c in play.clients}
    client = play.clients[0]
    with pytest.raises(ValueError, match="use both or neither"):
        client.unmask(request)
    for few in range(5):
        with pytest.raises(TooFewClients, match=f"only {few} clients signed"):
            client.unmask(request, play.showing({c: signed[c] for c in range(few)}))
    with pytest.raises(ValueError, match="client 3 is invalid"):
        client.unmask(request, play.showing({**signed, 3: signed[4]}))
    with pytest.raises(ValueError, match="client 9 signed but is not among the survivors"):
        client.unmask(request, play.showing({**signed, 9: signed[4]}))
    with pytest.raises(ValueError, match="second list of survivors"):
        client.sign(play.asking([0, 1, 2, 3, 4]))
    # Signatures of another round, session or roster, for the same survivors.
    for other in (Signing(play.values, 5, round=5), Signing(play.values, 5)):
        other.who = play.who
        for c, who in play.who.items():
            other.clients[c].identity = who
        other.server.identities = play.who[0].publics
        other.until_masked()
        late = {c.id: c.sign(other.server.request()) for c in other.clients}
        with pytest.raises(ValueError, match="is invalid"):
            client.unmask(request, play.showing(late))
    answer = client.unmask(request, play.showing({c: signed[c] for c in range(1, 6)}))
    assert client.unmask(request, play.showing(signed)) == answer


def test_a_list_that_was_not_signed_by_others_binds_nobody():
    play = Signing(some_values(6, 2, 30), 5, absent=(5,)).until_masked()
    client = play.clients[0]
    with pytest.raises(TooFewClients):
        client.unmask(play.asking([0, 1, 2, 3, 4]), play.showing({}))
    assert client.sign(play.asking([0, 1, 2, 3, 4]))


def test_keys_of_the_round_cannot_be_exchanged_or_invented():
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    play = Signing(some_values(4, 2, 30), 3)
    for client in play.clients:
        play.server.receive_advertisement(client.advertise())
    roster, client = play.server.roster(), play.clients[0]
    mine = X25519PrivateKey.generate().public_key().public_bytes_raw()
    for at in (4, 36):
        with pytest.raises(ValueError, match="signature of client 1 is invalid"):
            client.share(replaced(SIGNED_KEYS.size + at, mine)(roster))
    stranger = new_identities([7])[7]
    keys = mine + X25519PrivateKey.generate().public_key().public_bytes_raw()
    record = CLIENT.pack(7) + keys + stranger.sign(play.server.terms.keys_statement(7, keys))
    with pytest.raises(ValueError, match="client 7 has no known identity"):
        client.share(resealed(lambda body: body + record)(roster))
    # What a client signed in another round is no good in this one.
    other = Signing(play.values, 3, round=5)
    other.clients[1].identity = play.who[1]
    old = other.clients[1].advertise()[START:]
    with pytest.raises(ValueError, match="signature of client 1 is invalid"):
        client.share(replaced(SIGNED_KEYS.size + 4, old)(roster))
    assert client.share(roster)


def test_the_server_names_who_signs_wrongly_and_goes_on():
    play = Rough(some_values(7, 3, 30), 5, signed=True)
    play.changes = {("advertisement", 1): replaced(64, bytes(64)), ("signature", 3): replaced(0, bytes(64))}
    assert np.array_equal(play.total(), play.expected())
    assert play.server.survivors() == [0, 2, 3, 4, 5, 6]
    assert list(play.server.left_out) == [1]  # client 3 opened its shares all the same
    assert play.refused == [("advertisement", 1), ("signature", 3)]


def test_too_few_signatures_open_nothing():
    play = Signing(some_values(4, 2, 30), 3).until_masked()
    request = play.server.request()
    with pytest.raises(ValueError, match="before the server asked"):
        play.server.receive_opening(play.server.terms.pack("opening", 0, b""))
    for client in play.clients[:2]:
        play.server.receive_signature(client.sign(request))
    with pytest.raises(TooFewClients, match="only 2 clients signed the list of survivors, 3 are needed"):
        play.server.consent()
    with pytest.raises(ValueError, match="not final"):
        play.server.total()


def test_signed_lists_want_the_active_threshold():
    with pytest.raises(ValueError, match=r"two different lists of survivors.*use at least 5"):
        Signing(some_values(6, 2, 30), 4)
    # Neither does a client believe a server that invited more than it should have.
    play = Signing(some_values(4, 2, 30), 3)
    for client in play.clients:
        play.server.receive_advertisement(client.advertise())
    more = Signing(some_values(6, 2, 30), 5)
    keys = play.clients[0].terms
    extra = b""
    for c in (4, 5):
        pair = more.clients[c]._public_keys()
        extra += CLIENT.pack(c) + pair + more.who[c].sign(keys.keys_statement(c, pair))
    everybody = {**play.who[0].publics, 4: more.who[4].publics[4], 5: more.who[5].publics[5]}
    play.clients[0].identity = Identity(play.who[0].secret, everybody)
    with pytest.raises(ValueError, match="threshold = 3 of 6 clients"):
        play.clients[0].share(resealed(lambda body: body + extra)(play.server.roster()))


def test_with_and_without_identity_keys_do_not_mix():
    signing, plain = Signing(some_values(4, 2, 30), 3), Play(some_values(4, 2, 30), 3)
    with pytest.raises(ValueError, match=r"has other terms \(threshold, size, bits or signed"):
        plain.server.receive_advertisement(signing.clients[0].advertise())
    with pytest.raises(ValueError, match="no identity key to sign with"):
        plain.clients[0].sign(b"")
    with pytest.raises(ValueError, match="use both or neither"):
        plain.clients[0].unmask(b"", b"")
    with pytest.raises(ValueError, match="without identity keys has no signature step"):
        plain.server.receive_signature(plain.server.terms.pack("signature", 0, bytes(64)))
    with pytest.raises(ValueError, match="without identity keys has no signature step"):
        plain.server.consent()


def test_a_secret_key_is_not_printed():
    who = new_identities([1])[1]
    assert repr(who.secret)[2:-1] not in repr(who)


@pytest.mark.parametrize("count", [3, 6])
def test_message_bytes_of_signed_rounds_are_what_is_sent(count):
    play = Signing(some_values(count, 5, 30), threshold_for(count, active=True)).until_opened()
    for client in range(count):
        assert message_bytes(count, 5, 40, signed=True) == sum(len(sent[client]) for sent in play.sent.values())


# Changed messages


def test_every_flipped_bit_of_every_message_is_refused():
    play = Signing(some_values(4, 2, 30), 3).until_opened()
    messages = {kind: sent[1] for kind, sent in play.sent.items()}
    messages |= {"roster": play.roster, "post": play.post[1], "request": play.request, "consent": play.consent}
    assert set(messages) == set(KINDS)
    for kind, message in messages.items():
        play.server.terms.unpack(kind, message)
        for at, bit in itertools.product(range(len(message)), range(8)):
            flipped = bytearray(message)
            flipped[at] ^= 1 << bit
            with pytest.raises(ValueError):
                play.server.terms.unpack(kind, bytes(flipped))


STRIDE = 5  # of the bytes of a message, one in so many is changed; with 1, this takes half a minute


LIES = [  # signatures and consents exist only with identity keys; what a client adds ("masked") is its own choice
    pytest.param(kind, signed, id=f"{kind}-{'signed' if signed else 'plain'}")
    for kind in KINDS
    for signed in (False, True)
    if kind != "masked" and (signed or kind not in ("signature", "consent"))
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "signed"), LIES)
def test_what_a_liar_writes_is_refused_or_harmless_and_never_gives_a_wrong_sum(kind, signed):
    # With a checksum that fits.
    rng = np.random.default_rng(KINDS[kind])
    changed = []

    def play(at: int | None, absent: tuple[int, ...]) -> Rough:
        def flip(body: bytes) -> bytes:
            changed.append(len(body))
            if at is None:
                return body
            here = at % len(body)  # with one absent, some are shorter
            return body[:here] + bytes([body[here] ^ 1 << rng.integers(8)]) + body[here + 1 :]

        return Rough(some_values(5, 2, 30), 4, signed, absent, {(kind, 1): resealed(flip)})

    whole = play(None, ())
    assert np.array_equal(whole.total(), whole.values.sum(axis=0))
    places = range(int(rng.integers(STRIDE)), changed[0], STRIDE)
    opened = 0
    for at in places:
        changed.clear()
        one = play(at, (4,) if rng.integers(2) else ())
        try:
            total = one.total()
        except (TooFewClients, BadDealing):
            pass
        else:
            assert np.array_equal(total, one.expected()), at
            opened += 1
        assert changed
    # With nobody absent there is one client to spare, who may be left out.
    assert opened


# The range


def test_range_by_hand():
    # 100 * 1 / 2^-8 + 12 * 2 / 2^-8 = 124 * 256 = 31744 < 2^15; with a deviation of 3 it is not
    assert finest_step(100, 1.0, 2.0, 16) == 2.0**-8
    assert finest_step(100, 1.0, 3.0, 16) == 2.0**-7
    # exactly 2^15 is too much
    assert finest_step(128, 1.0, 0.0, 16) == 2.0**-7
    # 3 * 10922.4 is below 2^15, but rounded to the grid 3 * 10923 = 32769 is not
    assert finest_step(3, 10922.4, 0.0, 16) == 2.0


def reach(count, largest, step, deviation):
    """The largest sum, in steps: coordinates are rounded up to the grid."""
    return count * math.ceil(largest / step) + 12 * deviation / step


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
    assert reach(count, largest, step, deviation) < 2 ** (bits - 1) <= reach(count, largest, step / 2, deviation)


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
    with pytest.raises(ValueError, match="count must be at least 1"):
        finest_step(*arguments)


REFERENCE = Play(some_values(4, 2)).until_opened()
