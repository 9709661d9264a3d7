"""Secure aggregation: the server learns a sum but not its terms (Bonawitz et al., CCS 2017, with double masking).

Every pair of clients agrees on a mask that one adds and the other subtracts; every client also adds a self mask. The
keys of all masks are fresh each round. Both secrets of a client are secret-shared among the other clients. For a client
whose numbers arrived, the server may open its self mask; for one that dropped out, the key of its pairwise masks; never
both.

Threat model:

- Without identity keys: a server that follows the protocol but reads everything it receives, together with fewer than
  `threshold` colluding clients (semi-honest). They learn the sum of the others' numbers and who participated, nothing
  else. Public keys must reach the clients unchanged: the party that transports them is trusted not to replace them.
- With identity keys: also a server that deviates from the protocol (active), together with up to a third of the
  clients. Clients sign the keys of the round, so keys cannot be replaced and clients cannot be invented. They also sign
  the list of survivors, and open nothing before `threshold` of them have signed the same list. The threshold is then
  above two thirds (see `threshold_for`): two different lists cannot both have that many signatures.

All masks, shares and signatures are bound to a digest of the request that the client received (`request`) and to the
roster. With identity keys, a client refuses the roster of clients that received another request. Without them, its
masks do not cancel: the sum of a group that received the same request stays hidden by the masks that its members share
with every honest client outside the group, because the server can open the key of a client only if that client's own
numbers stay hidden by its self mask. A separate roster of a group needs `threshold` clients. A crafted request
that all clients receive is not detected: only noise protects against it.

A client that deviates from the protocol is identified and excluded: on arrival, if its public key gives no secret; at
the opening, if it opens a wrong share, since the dealer committed to every share and every secret by a hash.
Inconsistent shares are detected only at the end: the round then stops and names the dealer. A wrong sum of what was
sent is never returned. (Feldman's commitments would detect inconsistent shares earlier, and take longer than the rest
of the protocol.)

Out of scope: false inputs. A client chooses what it sends under its masks and can corrupt the sum undetected. And any
client can make a round fail; the numbers then stay hidden.

The sum itself is revealed: an observer who knows all other numbers knows the last. Noise protects against that.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedrank.privacy import shamir
from fedrank.privacy.secure_messages import (
    BOX,
    CLIENT,
    DEALER,
    EVERYBODY,
    KEYS,
    NO_SHARE,
    OWN_MASK,
    PAIR_MASKS,
    PIECE,
    SIGNATURE,
    SIGNED_KEYS,
    Identity,
    Integers,
    Terms,
    Words,
    centred,
    check_addressee,
    check_bits,
    check_ids,
    check_keys,
    check_signature,
    parse_records,
    primitives,
    words_of,
    wrap,
)

Step = Literal["nothing", "advertise", "share", "mask"]
STEPS: tuple[Step, ...] = ("nothing", "advertise", "share", "mask")


class TooFewClients(ValueError):
    """Too few clients are left to open the sum; the round ends without one."""


class BadDealing(ValueError):
    """The secret of a client cannot be opened because of the shares it dealt; the round ends without a sum."""

    def __init__(self, dealer: int, reason: str) -> None:
        super().__init__(f"{reason}; no sum is computed")
        self.dealer = dealer


def threshold_for(count: int, colluders: int = 0, active: bool = False) -> int:
    """The smallest threshold for `count` clients of which `colluders` may collude with the server.

    Against a server that follows the protocol, one more than the colluders is enough. An active server may ask some
    clients for one secret of a client and others for the second; colluders answer twice, honest clients once. So twice
    the threshold must exceed count + colluders: above two thirds, that holds for up to a third of colluders.

    >>> threshold_for(10, 2), threshold_for(10, 2, active=True), threshold_for(10, 6, active=True)
    (3, 7, 9)
    """
    if not 0 <= colluders < count:
        raise ValueError(f"colluders must be at least 0 and below the number of clients, {count} (got {colluders})")
    if not active:
        return max(2, colluders + 1)
    return max(2 * count // 3, (count + colluders) // 2) + 1


class SumClient:
    """One client in one round of secure aggregation: advertise, share, mask, unmask, each once and in this order.

    With identity keys it signs the list of survivors before it unmasks.

    A ValueError means that a message was rejected and nothing was revealed; the client may wait for a valid one.
    """

    def __init__(
        self,
        id: int,  # 0 to 2^32 - 2
        session: bytes,
        round: int,
        threshold: int,
        size: int,
        bits: int,
        *,
        min_survivors: int = 0,  # this client opens nothing for fewer survivors, regardless of the server
        identity: Identity | None = None,  # if given, all clients must have one, and the server need not be trusted
        request: bytes = b"",  # what this client was asked for, or its digest; must be the same for all clients
        entropy: shamir.Entropy = os.urandom,  # other sources are for tests only
    ) -> None:
        primitives()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        check_ids([id])
        self.id = id
        self.terms = Terms(session, round, threshold, size, bits, identity is not None, request)
        self.min_survivors = max(threshold, min_survivors)
        self.identity = identity
        self._entropy = entropy
        self._seed = shamir.random_element(entropy)
        self._mask_secret = shamir.random_element(entropy)
        self._mask_key = X25519PrivateKey.from_private_bytes(shamir.to_bytes(self._mask_secret))
        self._post_key = X25519PrivateKey.from_private_bytes(entropy(32))
        self._done: Step = "nothing"
        self._mask_keys: dict[int, bytes] = {}  # public mask keys of all clients in the roster
        self._post_secrets: dict[int, bytes] = {}  # keys of share encryption with every other client
        self._held: dict[int, tuple[bytes, bytes] | None] = {}  # by client: the shares of its seed and of its mask key
        self._survivors: list[int] | None = None  # of the one list that was signed or answered

    def advertise(self) -> bytes:
        """The public keys of this round."""
        self._advance("nothing", "advertise")
        keys = self._public_keys()
        signature = self.identity.sign(self.terms.keys_statement(self.id, keys)) if self.identity else b""
        return self.terms.pack("advertisement", self.id, keys + signature)

    def share(self, roster: bytes) -> bytes:
        """Shares of both secrets for every client that advertised, encrypted for the addressee."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        _, _, cipher = primitives()
        self._expect("advertise", "share")
        keys = self._read_roster(roster)
        self.terms = self.terms.with_roster(roster)
        secrets = {
            other: self.terms.derive(
                self._post_key.exchange(X25519PublicKey.from_public_bytes(post)), "post", self.id, other
            )
            for other, (_, post) in keys.items()
            if other != self.id
        }
        points = [_point(client) for client in keys]
        seeds = shamir.split(self._seed, self.terms.threshold, points, self._entropy)
        mask_secrets = shamir.split(self._mask_secret, self.terms.threshold, points, self._entropy)
        boxes = []
        for other, *shares in zip(keys, map(shamir.to_bytes, seeds), map(shamir.to_bytes, mask_secrets), strict=True):
            committed = self._commitments(self.id, other, *shares)
            if other == self.id:
                own, held = committed, (shares[0], shares[1])
                continue
            closed = cipher(secrets[other]).encrypt(_nonce(self.id, other), b"".join(shares), self.terms.digest)
            boxes.append(BOX.pack(other, closed, *committed))
        self._mask_keys = {client: mask for client, (mask, _) in keys.items()}
        self._post_secrets = secrets
        self._held = {self.id: held}
        self._advance("advertise", "share")
        dealer = DEALER.pack(self.terms.seed_commitment(self._seed, self.id), *own)
        return self.terms.pack("shares", self.id, dealer + b"".join(boxes))

    def mask(self, values: Integers, post: bytes) -> bytes:
        """The masked numbers, once the shares of the others have arrived."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        self._expect("share", "mask")
        # Only once: two vectors under the same masks would reveal their difference.
        masked = words_of(values, self.terms)
        held = self._read_post(post)
        masked += self.terms.own_mask(self._seed, self.id)
        for other in held:
            public = X25519PublicKey.from_public_bytes(self._mask_keys[other])
            masked += self.terms.pair_mask(self._mask_key, public, self.id, other)
        self._held |= held
        self._advance("share", "mask")
        return self.terms.pack("masked", self.id, wrap(masked, self.terms.bits).tobytes())

    def sign(self, request: bytes) -> bytes:
        """Sign the list of survivors, as evidence that all clients got the same one; with identity keys only."""
        if self.identity is None:
            raise ValueError(f"client {self.id} has no identity key to sign with; give it one, or call unmask at once")
        survivors = self._settle(request)
        signature = self.identity.sign(self.terms.survivors_statement(survivors))
        return self.terms.pack("signature", self.id, signature)

    def unmask(self, request: bytes, consent: bytes | None = None) -> bytes:
        """One share for every client: of its self mask if it survived, of its mask key if it dropped out.

        With identity keys only after `threshold` clients signed the same list, which `consent` proves.
        """
        if (consent is None) != (self.identity is None):
            raise ValueError(
                f"client {self.id} opens nothing: a signed list of survivors requires identity keys, and identity keys "
                "require a signed list; use both or neither"
            )
        if consent is not None:
            self._check_consent(consent, self._read_request(request))
        survivors = set(self._settle(request))
        pieces = []
        for client, shares in sorted(self._held.items()):
            which = OWN_MASK if client in survivors else PAIR_MASKS
            pieces.append(PIECE.pack(client, which, shares[which - 1]) if shares else PIECE.pack(client, NO_SHARE, b""))
        return self.terms.pack("opening", self.id, b"".join(pieces))

    def _public_keys(self) -> bytes:
        return self._mask_key.public_key().public_bytes_raw() + self._post_key.public_key().public_bytes_raw()

    def _expect(self, done: Step, next_: Step) -> None:
        if self._done != done:
            raise ValueError(
                f"client {self.id} cannot {next_} now: its last step was {self._done}, and each step is done once"
            )

    def _advance(self, done: Step, next_: Step) -> None:
        self._expect(done, next_)
        self._done = next_

    def _read_roster(self, roster: bytes) -> dict[int, tuple[bytes, bytes]]:
        addressee, body = self.terms.unpack("roster", roster)
        check_addressee("roster", addressee, EVERYBODY)
        records = parse_records("roster", SIGNED_KEYS if self.identity else KEYS, body)
        keys = {client: (mask, post) for client, mask, post, *_ in records}
        check_ids(keys)
        for client, mask, post, *signature in records:
            check_keys(client, mask + post)
            if self.identity:
                check_signature(
                    self.identity.publics, client, self.terms.keys_statement(client, mask + post), *signature
                )
        if b"".join(keys.get(self.id, ())) != self._public_keys():
            raise ValueError(f"the roster lacks client {self.id} or has other keys for it; nothing is shared")
        if len({key for pair in keys.values() for key in pair}) != 2 * len(keys):
            raise ValueError("a public key is twice in the roster: one client poses as two; nothing is shared")
        self._check_enough(len(keys), "advertised")
        if self.identity:
            _check_active(self.terms.threshold, len(keys))
        return keys

    def _commitments(self, dealer: int, holder: int, seed: bytes, mask_secret: bytes) -> tuple[bytes, bytes]:
        commitment = self.terms.commitment
        return commitment(seed, dealer, holder, OWN_MASK), commitment(mask_secret, dealer, holder, PAIR_MASKS)

    def _read_post(self, post: bytes) -> dict[int, tuple[bytes, bytes] | None]:
        """By sender, both shares; None where they cannot be read or differ from the sender's commitments."""
        addressee, body = self.terms.unpack("post", post)
        check_addressee("post", addressee, self.id)
        held = {}
        for sender, box, *committed in parse_records("post", BOX, body):
            if sender not in self._post_secrets:
                raise ValueError(f"shares from client {sender}, which is not another client of the roster")
            held[sender] = self._open_box(sender, box, committed)
        # A client with unreadable shares still has pairwise masks: it must not stop the others here.
        self._check_enough(len(held) + 1, "shared their secrets")
        return held

    def _open_box(self, sender: int, box: bytes, committed: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        from cryptography.exceptions import InvalidTag

        _, _, cipher = primitives()
        try:
            plain = cipher(self._post_secrets[sender]).decrypt(_nonce(sender, self.id), box, self.terms.digest)
        except InvalidTag:
            return None
        shares = plain[:32], plain[32:]
        if self._commitments(sender, self.id, *shares) != tuple(committed) or not all(map(shamir.is_element, shares)):
            return None
        return shares

    def _read_request(self, request: bytes) -> list[int]:
        if self._done != "mask":
            raise ValueError(f"client {self.id} has sent no numbers, so it opens nothing; call mask first")
        addressee, body = self.terms.unpack("request", request)
        check_addressee("request", addressee, EVERYBODY)
        survivors = sorted(client for (client,) in parse_records("request", CLIENT, body))
        unknown = set(survivors) - set(self._held)
        if unknown:
            raise ValueError(
                f"survivors {sorted(unknown)} never shared secrets with client {self.id}; nothing is opened"
            )
        if self.id not in survivors:
            raise ValueError(
                f"client {self.id} sent its numbers but is not among the survivors; answering would help to reveal them"
            )
        self._check_enough(len(survivors), "survived")
        return survivors

    def _settle(self, request: bytes) -> list[int]:
        """The only list of survivors that this client signs and answers."""
        survivors = self._read_request(request)
        if self._survivors is None:
            self._survivors = survivors
        if self._survivors != survivors:
            raise ValueError(
                f"client {self.id} received a second list of survivors: answering both could open both secrets "
                "of a client; ask again with the first list, or start a new round"
            )
        return survivors

    def _check_consent(self, consent: bytes, survivors: list[int]) -> None:
        assert self.identity is not None
        addressee, body = self.terms.unpack("consent", consent)
        check_addressee("consent", addressee, EVERYBODY)
        statement = self.terms.survivors_statement(survivors)
        signatures = parse_records("consent", SIGNATURE, body)
        for client, signature in signatures:
            if client not in survivors:
                raise ValueError(f"client {client} signed but is not among the survivors; nothing is opened")
            check_signature(self.identity.publics, client, statement, signature)
        if len(signatures) < self.terms.threshold:
            raise TooFewClients(
                f"only {len(signatures)} clients signed the list of survivors, {self.terms.threshold} are needed: "
                f"others may have received another list; client {self.id} opens nothing"
            )

    def _check_enough(self, count: int, what: str) -> None:
        if count < self.min_survivors:
            raise TooFewClients(
                f"only {count} clients {what}, client {self.id} requires {self.min_survivors}; it stops"
            )


class SumServer:
    """The server in one round of secure aggregation; it forwards messages and learns the sum.

    `receive_...` takes the message of a client and returns whether it counts: a message after its step has closed does
    not. A ValueError means that a message was rejected. The round continues without its sender, which `left_out` names,
    unless a valid message arrives in time. Calling `roster()`, `routed()`, `request()` and `consent()` closes a step.
    """

    def __init__(
        self,
        session: bytes,
        round: int,
        ids: Iterable[int],  # the invited clients
        threshold: int,
        min_survivors: int,  # the sum of fewer survivors is never opened; includes colluding clients
        size: int,
        bits: int,
        *,
        identities: Mapping[int, bytes] | None = None,  # public keys of all clients (Ed25519), if they sign
        request: bytes = b"",  # what all clients were asked for, or its digest
    ) -> None:
        primitives()
        self.terms = Terms(session, round, threshold, size, bits, identities is not None, request)
        self.ids = sorted(ids)
        self.min_survivors = max(threshold, min_survivors)
        check_ids(self.ids)
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("a client is invited twice; name each id once")
        if self.min_survivors > len(self.ids):
            raise ValueError(
                f"threshold = {threshold} and min_survivors = {min_survivors} with {len(self.ids)} clients: no sum "
                "could ever be opened; invite more clients, or lower them"
            )
        if identities is not None:
            _check_active(threshold, len(self.ids))
        self.identities = identities
        self.left_out: dict[int, str] = {}  # clients whose message was rejected, and why
        self._keys: dict[int, bytes] = {}  # public keys of masks and of share encryption, and their signature
        self._dealt: dict[int, _Dealt] = {}
        self._masked: dict[int, Words] = {}
        self._signatures: dict[int, bytes] = {}
        self._openings: dict[int, dict[int, int | None]] = {}  # by answering client, then by dealer
        self._steps = ["advertisement", "shares", "masked", *(["signature"] if self.terms.signed else []), "opening"]
        self._closed = 0  # number of closed steps

    def receive_advertisement(self, message: bytes) -> bool:
        client, body = self._open("advertisement", message, self.ids, self._keys)
        with self._blaming(client):
            expected = 128 if self.terms.signed else 64
            if len(body) != expected:
                raise ValueError(f"advertisement of client {client} has {len(body)} bytes of keys, expected {expected}")
            check_keys(client, body[:64])
            known = {key for keys in self._keys.values() for key in (keys[:32], keys[32:64])}
            if body[:32] == body[32:64] or not known.isdisjoint((body[:32], body[32:64])):
                raise ValueError(f"a public key of client {client} occurs twice: it poses as another client")
            self._check_signed(client, self.terms.keys_statement(client, body[:64]), body[64:])
        return self._keep("advertisement", self._keys, client, body)

    def roster(self) -> bytes:
        """The public keys of all clients, for all clients."""
        self._close("advertisement", self._keys, "advertised")
        records = (CLIENT.pack(client) + keys for client, keys in sorted(self._keys.items()))
        return self.terms.pack("roster", EVERYBODY, b"".join(records))

    @cached_property
    def _bound(self) -> Terms:
        """The terms after the roster."""
        return self.terms.with_roster(self.roster())

    def receive_shares(self, message: bytes) -> bool:
        client, body = self._open("shares", message, self._keys, self._dealt)
        with self._blaming(client):
            if len(body) < DEALER.size:
                raise ValueError(f"shares message of client {client} lacks its commitments: truncated records")
            seed, *own = DEALER.unpack_from(body)
            records = parse_records("shares", BOX, body[DEALER.size :])
            if {other for other, *_ in records} != set(self._keys) - {client}:
                raise ValueError(f"client {client} must share with exactly the others in the roster; it is left out")
            boxes = {other: BOX.pack(client, *record) for other, *record in records}
            commitments = {client: own, **{other: committed for other, _, *committed in records}}
        return self._keep("shares", self._dealt, client, _Dealt(seed, boxes, commitments))

    def routed(self) -> dict[int, bytes]:
        """For every client that shared its secrets, the shares addressed to it."""
        self._close("shares", self._dealt, "shared their secrets")
        post = {}
        for to in self._dealt:
            records = (dealt.boxes[to] for sender, dealt in self._dealt.items() if sender != to)
            post[to] = self.terms.pack("post", to, b"".join(records))
        return post

    def receive_masked(self, message: bytes) -> bool:
        client, body = self._open("masked", message, self._dealt, self._masked)
        with self._blaming(client):
            if len(body) != self.terms.size * self.terms.word.itemsize:
                raise ValueError(f"client {client} sent {len(body)} bytes, expected {self.terms.size} numbers")
            words = np.frombuffer(body, dtype=self.terms.word)
            if np.any(words != wrap(words, self.terms.bits)):
                raise ValueError(
                    f"client {client} sent numbers of more than {self.terms.bits} bits; all must use the same bits"
                )
        return self._keep("masked", self._masked, client, words)

    def survivors(self) -> list[int]:
        """The clients whose numbers arrived in time."""
        return sorted(self._masked)

    def request(self) -> bytes:
        """The final list of survivors, for all of them to open shares for, or to sign."""
        self._close("masked", self._masked, "survived")
        return self.terms.pack("request", EVERYBODY, b"".join(map(CLIENT.pack, self.survivors())))

    def receive_signature(self, message: bytes) -> bool:
        client, body = self._open("signature", message, self._masked, self._signatures)
        with self._blaming(client):
            if len(body) != 64:
                raise ValueError(f"client {client} signed with {len(body)} bytes, expected 64")
            self._check_signed(client, self._bound.survivors_statement(self.survivors()), body)
        return self._keep("signature", self._signatures, client, body)

    def consent(self) -> bytes:
        """The signatures of the list of survivors, for all of them: they may open shares now."""
        self._close("signature", self._signatures, "signed the list of survivors", self.terms.threshold)
        enough = sorted(self._signatures.items())[: self.terms.threshold]
        records = (SIGNATURE.pack(*item) for item in enough)
        return self.terms.pack("consent", EVERYBODY, b"".join(records))

    def receive_opening(self, message: bytes) -> bool:
        client, body = self._open("opening", message, self._masked, self._openings)
        with self._blaming(client):
            pieces = parse_records("opening", PIECE, body)
            if {about for about, *_ in pieces} != set(self._dealt):
                raise ValueError(f"client {client} must open exactly one share of every client")
            opened = {about: self._checked_share(client, about, which, share) for about, which, share in pieces}
        return self._keep("opening", self._openings, client, opened)

    def total(self) -> Integers:
        """The sum of the survivors' numbers, from -2^(bits-1) up to 2^(bits-1) - 1."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

        if self._closed < self._step("opening"):
            raise ValueError("the list of survivors is not final, so no mask can be opened; call request first")
        if len(self._openings) < self.terms.threshold:
            raise TooFewClients(
                f"{len(self._openings)} clients opened shares, {self.terms.threshold} are needed: the sum is not opened"
                + "".join(f"; {why}" for client, why in self.left_out.items() if client in self._masked)
            )
        secrets = self._secrets()
        total = np.zeros(self.terms.size, dtype=self.terms.word)
        for words in self._masked.values():
            total += words
        for client, secret in secrets.items():
            if client in self._masked:
                total -= self._bound.own_mask(secret, client)
                continue
            key = X25519PrivateKey.from_private_bytes(shamir.to_bytes(secret))
            for other in self._masked:
                # The mask of the client that dropped out cancels the mask that the survivor added.
                total += self._bound.pair_mask(
                    key, X25519PublicKey.from_public_bytes(self._keys[other][:32]), client, other
                )
        return centred(total, self.terms.bits)

    def _checked_share(self, holder: int, dealer: int, which: int, share: bytes) -> int | None:
        if which == NO_SHARE and not any(share):
            return None
        if which != (OWN_MASK if dealer in self._masked else PAIR_MASKS):
            raise ValueError(f"client {holder} must open exactly the requested share of client {dealer}")
        committed = self._dealt[dealer].commitments[holder][which - 1]
        if self._bound.commitment(share, dealer, holder, which) != committed:
            raise ValueError(f"client {holder} opened a wrong share of client {dealer}; its answer does not count")
        return shamir.from_bytes(share)

    def _secrets(self) -> dict[int, int]:
        """By client, the opened secret: its seed, or its mask key if it dropped out."""
        weights: dict[tuple[int, ...], list[int]] = {}  # usually the same clients hold all shares
        secrets = {}
        for dealer in self._dealt:
            shares = {
                by: share for by, opened in sorted(self._openings.items()) if (share := opened[dealer]) is not None
            }
            holders = tuple(shares)[: self.terms.threshold]
            if len(holders) < self.terms.threshold:
                others = sorted(set(self._openings) - set(shares))
                raise BadDealing(
                    dealer,
                    f"clients {others} report that the shares of client {dealer} cannot be read, and {len(holders)} of "
                    f"{self.terms.threshold} needed shares are left: either it or they are dishonest; start a new "
                    "round without them",
                )
            if holders not in weights:
                weights[holders] = shamir.weights_at_zero([_point(by) for by in holders])
            secrets[dealer] = shamir.weighted([shares[by] for by in holders], weights[holders])
            self._check_secret(dealer, secrets[dealer])
        return secrets

    def _check_secret(self, dealer: int, secret: int) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if dealer in self._masked:
            right = self._bound.seed_commitment(secret, dealer) == self._dealt[dealer].seed
        else:
            key = X25519PrivateKey.from_private_bytes(shamir.to_bytes(secret))
            right = key.public_key().public_bytes_raw() == self._keys[dealer][:32]
        if not right:
            # All shares match their commitments, so the dealer is at fault.
            raise BadDealing(
                dealer,
                f"the shares of client {dealer} do not give the secret that it committed to; start a new round "
                "without it",
            )

    def _check_signed(self, client: int, statement: bytes, signature: bytes) -> None:
        if self.identities is not None:
            check_signature(self.identities, client, statement, signature)

    def _open(self, kind: str, message: bytes, allowed: Collection[int], seen: Collection[int]) -> tuple[int, bytes]:
        client, body = self.terms.unpack(kind, message)
        if self._closed < self._step(kind):
            raise ValueError(f"{kind} message of client {client} before the server asked for it: it was forged")
        if client not in allowed:
            raise ValueError(f"{kind} message of client {client}, which has no part in this step")
        if client in seen:
            raise ValueError(f"a second {kind} message of client {client}; the first one counts")
        return client, body

    @contextmanager
    def _blaming(self, client: int) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            self.left_out[client] = str(error)
            raise

    def _keep(self, kind: str, store: dict[int, Any], client: int, what: Any) -> bool:
        if self._closed > self._step(kind):
            return False
        self.left_out.pop(client, None)
        store[client] = what
        return True

    def _close(self, kind: str, store: Collection[int], what: str, min_survivors: int | None = None) -> None:
        step, min_survivors = self._step(kind), self.min_survivors if min_survivors is None else min_survivors
        if self._closed < step:
            raise ValueError(
                f"step {step + 1} cannot end before step {step}; call roster, routed, request, consent in this order"
            )
        if len(store) < min_survivors:
            raise TooFewClients(f"only {len(store)} clients {what}, {min_survivors} are needed; nothing is opened")
        self._closed = max(self._closed, step + 1)

    def _step(self, kind: str) -> int:
        if kind not in self._steps:
            raise ValueError(
                f"a round without identity keys has no {kind} step; give identity keys to all clients, or leave it out"
            )
        return self._steps.index(kind)


@dataclass(frozen=True)
class _Dealt:
    """What a client dealt: encrypted shares for the others, and commitments to its seed and to all shares."""

    seed: bytes
    boxes: Mapping[int, bytes]  # by addressee
    commitments: Mapping[int, Sequence[bytes]]  # by holder, itself included: share of the seed, of the mask key


def secure_sum(
    values: Integers,  # [clients, size]
    bits: int,
    threshold: int,
    min_survivors: int = 0,
    dropped_after: Mapping[int, Step] | None = None,  # row -> the last step it completed
    session: bytes = b"simulation",
    round: int = 0,
    signed: bool = False,  # with identity keys, generated for this call
) -> Integers:
    """The whole protocol in one process; the sum over the rows whose masked numbers were sent."""
    count, size = values.shape
    dropped = dict(dropped_after or {})
    for row, step in dropped.items():
        if step not in STEPS or not 0 <= row < count:
            raise ValueError(
                f"dropped_after must map rows below {count} to one of the steps {STEPS} (got {row}: {step!r})"
            )
    last = [STEPS.index(dropped.get(row, "mask")) for row in range(count)]
    identities = new_identities(range(count)) if signed else {}
    publics = identities[0].publics if signed else None
    server = SumServer(session, round, range(count), threshold, min_survivors, size, bits, identities=publics)
    clients = [
        SumClient(row, session, round, threshold, size, bits, min_survivors=min_survivors, identity=identities.get(row))
        for row in range(count)
    ]
    for client in clients:
        if last[client.id] >= 1:
            server.receive_advertisement(client.advertise())
    roster = server.roster()
    for client in clients:
        if last[client.id] >= 2:
            server.receive_shares(client.share(roster))
    for to, post in server.routed().items():
        if last[to] >= 3:
            server.receive_masked(clients[to].mask(values[to], post))
    request, consent = server.request(), None
    staying = [clients[survivor] for survivor in server.survivors() if survivor not in dropped]
    if signed:
        for client in staying:
            server.receive_signature(client.sign(request))
        consent = server.consent()
    for client in staying:
        server.receive_opening(client.unmask(request, consent))
    return server.total()


def new_identities(ids: Iterable[int]) -> dict[int, Identity]:
    """Identities of clients that know each other, for simulations: in a deployment, secrets never leave a client."""
    primitives()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    keys = {client: Ed25519PrivateKey.generate() for client in ids}
    publics = {client: key.public_key().public_bytes_raw() for client, key in keys.items()}
    return {client: Identity(key.private_bytes_raw(), publics) for client, key in keys.items()}


def ideal_sum(values: Integers, bits: int) -> Integers:
    """The result of secure aggregation of the rows, without the protocol: the same modular sum at no cost."""
    check_bits(bits)
    if values.dtype != np.int64:
        raise ValueError(f"values must be int64 (got {values.dtype}); round them to the grid first")
    return centred(values.astype(np.uint64).sum(axis=0, dtype=np.uint64), bits)


def finest_step(count: int, largest: float, deviation: float, bits: int) -> float:
    """The smallest power of two that is a safe grid step.

    >>> finest_step(3, 1.0, 0.0, 16) == 2.0**-13  # 3 * 2^13 < 2^15 <= 3 * 2^14
    True
    """
    _check_bounds(count, largest, deviation, bits)
    # Starts one binary order below the plain bound, so the first step is certainly too fine.
    order = math.frexp(count * largest + 12 * deviation)[1] - bits - 1
    step = math.ldexp(1.0, max(order, -1000))
    while not _reach(count, largest, step, deviation) < 2.0 ** (bits - 1):
        step *= 2
    return step


def _reach(count: int, largest: float, step: float, deviation: float) -> float:
    return count * float(np.ceil(largest / step)) + 12 * deviation / step


def _point(client: int) -> int:
    """The evaluation point of a client's shares; 0 is the secret."""
    return client + 1


def _nonce(sender: int, to: int) -> bytes:
    # Both clients of a pair encrypt once with their common key, each with its own nonce.
    return struct.pack("<III", sender, to, 0)


def _check_active(threshold: int, count: int) -> None:
    if threshold < threshold_for(count, active=True):
        raise ValueError(
            f"threshold = {threshold} of {count} clients is too low: two different lists of survivors could both get "
            f"that many signatures; use at least {threshold_for(count, active=True)}"
        )


def _check_bounds(count: int, largest: float, deviation: float, bits: int) -> None:
    check_bits(bits)
    # Above 1e100 no step is representable as a double.
    if count < 1 or not (0 < largest < 1e100 and 0 <= deviation < 1e100):
        raise ValueError(
            f"count must be at least 1, largest (the clipping bound) positive and deviation finite (got count = "
            f"{count}, largest = {largest}, deviation = {deviation})"
        )
