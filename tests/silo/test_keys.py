"""Keys of silos: who can read them, who agrees with whom, and what is refused."""

from __future__ import annotations

import hmac
import re
import stat

import pytest

from fedrank.silo import keys
from tests import needs


@pytest.fixture
def two(tmp_path):
    """Secret and public key of two silos."""
    files = {}
    for name in ("a", "b"):
        public = keys.new_identity(tmp_path / f"{name}.secret")
        files[name] = keys.read_secret(tmp_path / f"{name}.secret"), keys.read_public(public)
    return files


def test_a_new_key_is_read_back_and_only_its_owner_can_read_it(tmp_path):
    path = tmp_path / "deeper" / "shared.key"
    key = keys.new_key(path)
    assert len(key) == 32
    assert keys.read_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key.hex() in path.read_text()


def test_two_new_keys_differ(tmp_path):
    assert keys.new_key(tmp_path / "one") != keys.new_key(tmp_path / "two")


def test_a_key_is_never_overwritten(tmp_path):
    path = tmp_path / "shared.key"
    key = keys.new_key(path)
    with pytest.raises(FileExistsError, match="overwriting a key loses it"):
        keys.new_key(path)
    assert keys.read_key(path) == key


@needs.posix
def test_a_secret_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "shared.key"
    keys.new_key(path)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        keys.read_key(path)


@pytest.mark.parametrize(
    "text",
    ["", "hello", "fedrank-silo-key-1 abcd", "fedrank-silo-key-2 " + "00" * 32, "fedrank-silo-key-1 " + "0G" * 32],
)
def test_a_file_that_holds_no_key_is_named(tmp_path, text):
    path = tmp_path / "shared.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        keys.read_key(path)


def test_a_public_key_in_the_place_of_a_secret_one_is_named(tmp_path):
    public = keys.new_identity(tmp_path / "a.secret")
    public.chmod(0o600)
    with pytest.raises(ValueError, match=keys.PUBLIC):
        keys.read_secret(public)
    with pytest.raises(ValueError, match="the public key would have this name"):
        keys.new_identity(tmp_path / "b.public")


def test_a_public_key_may_be_read_by_all(tmp_path):
    public = keys.new_identity(tmp_path / "a.secret")
    assert public.name == "a.public"
    public.chmod(0o644)
    assert len(keys.read_public(public)) == 32


def test_both_ends_compute_the_same_key_and_others_another(two, tmp_path):
    (a, a_public), (b, b_public) = two["a"], two["b"]
    assert keys.pair_key(a, b_public) == keys.pair_key(b, a_public)
    other = keys.new_identity(tmp_path / "c.secret")
    c = keys.read_secret(tmp_path / "c.secret")
    assert len({keys.pair_key(a, b_public), keys.pair_key(a, keys.read_public(other)), keys.pair_key(c, b_public)}) == 3


def test_a_pair_key_belongs_to_its_pair_and_its_purpose(two):
    """HKDF (RFC 5869) by hand: no salt, and both public keys in what it is bound to."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    (a, a_public), (_, b_public) = two["a"], two["b"]
    common = X25519PrivateKey.from_private_bytes(a).exchange(X25519PublicKey.from_public_bytes(b_public))
    extracted = hmac.digest(bytes(32), common, "sha256")
    bound = b"fedrank silo 1 pair" + min(a_public, b_public) + max(a_public, b_public)
    assert keys.pair_key(a, b_public) == hmac.digest(extracted, bound + b"\x01", "sha256")


def test_agreeing_with_oneself_or_with_no_key_is_refused(two):
    secret, public = two["a"]
    with pytest.raises(ValueError, match="same silo"):
        keys.pair_key(secret, public)
    with pytest.raises(ValueError, match="the public key is not valid"):
        keys.pair_key(secret, bytes(32))  # a point of small order: everybody would know the key
    with pytest.raises(ValueError, match="31 bytes"):
        keys.pair_key(secret, public[:31])


def test_a_wrapped_key_opens_for_its_addressee_only(two, tmp_path):
    (a, a_public), (b, b_public) = two["a"], two["b"]
    shared = keys.new_key(tmp_path / "shared.key")
    wrapped = keys.wrap_key(shared, a, b_public)
    assert shared not in wrapped
    assert keys.open_key(wrapped, b, a_public, tmp_path / "at-b.key") == shared
    assert keys.read_key(tmp_path / "at-b.key") == shared
    keys.new_identity(tmp_path / "c.secret")
    with pytest.raises(ValueError, match="cannot be decrypted"):
        keys.open_key(wrapped, keys.read_secret(tmp_path / "c.secret"), a_public, tmp_path / "at-c.key")
    assert not (tmp_path / "at-c.key").exists()
    with pytest.raises(ValueError, match="cannot be decrypted"):  # sent back to where it came from, as if b had made it
        keys.open_key(wrapped, a, b_public, tmp_path / "back.key")


@pytest.mark.parametrize("place", [0, 16, 28, -1])
def test_a_wrapped_key_that_was_changed_is_refused(two, tmp_path, place):
    (a, a_public), (b, b_public) = two["a"], two["b"]
    wrapped = bytearray(keys.wrap_key(bytes(range(32)), a, b_public))
    wrapped[place] ^= 1
    with pytest.raises(ValueError, match=r"cannot be decrypted|not a wrapped key"):
        keys.open_key(bytes(wrapped), b, a_public, tmp_path / "out.key")
    with pytest.raises(ValueError, match="not a wrapped key"):
        keys.open_key(bytes(wrapped[:-1]), b, a_public, tmp_path / "out.key")


def test_fingerprints_tell_keys_apart_without_showing_them():
    one, two = bytes(range(32)), bytes(range(1, 33))
    assert keys.fingerprint(one) == keys.fingerprint(one) != keys.fingerprint(two)
    assert keys.fingerprint(one).replace("-", "") not in one.hex()
    assert re.fullmatch(r"([0-9a-f]{4}-){7}[0-9a-f]{4}", keys.fingerprint(one))
