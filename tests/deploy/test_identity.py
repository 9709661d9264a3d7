"""Keys that say who somebody is."""

from __future__ import annotations

import os

import pytest

from fedrank.deploy.identity import (
    IDENTITY,
    IdentityKey,
    fingerprint,
    member_key,
    new_identity,
    read_identity,
    same_fingerprint,
    verify,
)
from fedrank.privacy.secure_messages import Identity


def test_a_key_is_made_read_and_believed(tmp_path):
    public = new_identity(tmp_path / "site")
    key = read_identity(tmp_path / "site")
    assert key.public == public
    signature = key.sign(b"hello")
    assert verify(public, b"hello", signature)
    assert not verify(public, b"hellO", signature)
    assert not verify(IdentityKey(bytes(32)).public, b"hello", signature)


def test_the_known_answer_of_rfc_8032():
    """Test 2 of section 7.1: the vectors are everybody's, so others can check our signatures."""
    key = IdentityKey(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    assert key.public == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert key.sign(b"\x72").hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )


@pytest.mark.parametrize("public", ["", "00", "zz" * 32, "AB" * 32, "00" * 33, None, 7])
def test_what_is_no_key_verifies_nothing(public):
    assert not verify(public, b"", IdentityKey(bytes(32)).sign(b""))


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65), b"\xff" * 64])
def test_what_is_no_signature_verifies_nothing(signature):
    assert not verify(IdentityKey(bytes(32)).public, b"", signature)


def test_only_its_owner_reads_a_key(tmp_path):
    new_identity(tmp_path / "site")
    file = tmp_path / "site" / IDENTITY
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    for mode in (0o640, 0o604, 0o620):
        os.chmod(file, mode)
        with pytest.raises(PermissionError, match=f"mode {mode:o}.*chmod 600"):
            read_identity(file.parent)


def test_a_key_is_never_overwritten(tmp_path):
    public = new_identity(tmp_path)
    with pytest.raises(FileExistsError, match="keep it"):
        new_identity(tmp_path)
    assert read_identity(tmp_path).public == public


def test_a_link_to_nowhere_is_not_written_through(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / IDENTITY).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        new_identity(tmp_path / "site")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("content", [b"", b"fedrank-identity-1", b"fedrank-identity-2 " + b"00" * 32, b"\xff" * 90])
def test_a_damaged_key_is_named(tmp_path, content):
    (tmp_path / IDENTITY).write_bytes(content)
    os.chmod(tmp_path / IDENTITY, 0o600)
    with pytest.raises(ValueError, match=r"identity\.key must contain"):
        read_identity(tmp_path)


def test_a_missing_key_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="restore it from a backup"):
        read_identity(tmp_path)


def test_a_secret_is_not_shown():
    key = IdentityKey(b"s" * 32)
    assert "s" * 32 not in repr(key)
    assert key.secret.hex() not in repr(key)


def test_fingerprints_are_read_by_telephone():
    one, other = IdentityKey(bytes(32)).public, IdentityKey(b"x" * 32).public
    assert fingerprint(one) != fingerprint(other)
    assert same_fingerprint(fingerprint(one), fingerprint(one).upper().replace("-", " "))
    assert not same_fingerprint(fingerprint(one), fingerprint(other))
    assert not same_fingerprint("", "")
    assert not same_fingerprint("SHA256:", "SHA256:")
    assert not same_fingerprint(fingerprint(one)[:-1], fingerprint(one)[:-1])
    with pytest.raises(ValueError, match="not a public key"):
        fingerprint("abc")


def test_members_of_a_site_have_keys_of_their_own():
    site, another = IdentityKey(bytes(32)), IdentityKey(b"x" * 32)
    keys = [member_key(site, 0), member_key(site, 1), member_key(another, 0), site, another]
    assert len({key.public for key in keys}) == 5
    assert member_key(site, 1) == keys[1]
    signed = Identity(keys[1].secret, {1: bytes.fromhex(keys[1].public)}).sign(b"statement")
    assert verify(keys[1].public, b"statement", signed)


@pytest.mark.process
def test_a_command_fetches_the_key(tmp_path):
    public = new_identity(tmp_path)
    path = tmp_path / "identity.key"
    secret = path.read_text().split()[1]
    (tmp_path / "stored").write_text(f"{secret}\n")
    path.write_text("fedrank-identity-command cat stored\n")  # runs in the folder of the key
    assert read_identity(tmp_path).public == public


@pytest.mark.process
@pytest.mark.parametrize("command", ["false", "echo 1234", "no-such-program", "echo 'unclosed"])
def test_a_command_that_prints_no_key_is_named(tmp_path, command):
    new_identity(tmp_path)
    (tmp_path / "identity.key").write_text(f"fedrank-identity-command {command}\n")
    with pytest.raises(ValueError, match="the command in"):
        read_identity(tmp_path)
