"""Keys of silos: the shared key that words are hashed with, and key pairs for encrypted letters.

The shared key determines the cells of a word. With it, words can be looked up in a sketch, so the coordinator must not
have it. One silo makes it and sends it to every other silo, encrypted under a key that only the two can compute
(X25519).

Public keys must be authentic: compare their fingerprints by telephone.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.extras import missing_extra
from fedrank.files import read_bytes, writing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEY = "fedrank-silo-key-1"  # first word of a file; the key follows in hexadecimal
SECRET = "fedrank-silo-secret-1"
PUBLIC = "fedrank-silo-public-1"
WRAPPED = b"fedrank-wrapped1"  # 16 bytes: format and version
SIZE = 32  # bytes of every key
NONCE = 12  # bytes
_HEAD = struct.Struct(f"<16s{NONCE}s")


def new_key(path: str | os.PathLike[str]) -> bytes:
    """Create the shared key of all silos, in a file that only its owner can read."""
    key = os.urandom(SIZE)
    _write(Path(path), KEY, key, private=True)
    return key


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Read the shared key."""
    return _read(Path(path), KEY, private=True)


def new_identity(path: str | os.PathLike[str]) -> Path:
    """Create the key pair of a silo: the secret key in `path`, the public key beside it."""
    x25519 = _x25519()
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = Path(path)
    public = path.with_suffix(".public")
    if public == path:
        raise ValueError(f"{path}: the public key would have this name; choose another, such as a.secret")
    secret = x25519.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    _refuse_existing(public)
    _write(path, SECRET, secret, private=True)
    _write(public, PUBLIC, public_of(secret), private=False)
    return public


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """Read the secret key of a silo."""
    return _read(Path(path), SECRET, private=True)


def read_public(path: str | os.PathLike[str]) -> bytes:
    """Read the public key of a silo."""
    return _read(Path(path), PUBLIC, private=False)


def public_of(secret: bytes) -> bytes:
    """The public key that belongs to a secret one."""
    made = _x25519().from_private_bytes(_checked(secret, "the secret key"))
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return made.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def fingerprint(key: bytes) -> str:
    """A short text by which two people compare keys; it does not reveal the key.

    >>> fingerprint(bytes(32))
    '5992-63b1-7e29-80dd-9593-d66b-0986-5722'
    """
    digest = hashlib.blake2b(key, digest_size=16, person=b"fedrank finger").hexdigest()
    return "-".join(digest[i : i + 4] for i in range(0, 32, 4))


def pair_key(secret: bytes, public: bytes) -> bytes:
    """The key that two silos share, equal on both sides (X25519, then HKDF-SHA256)."""
    return _derive(secret, public, b"pair")


def wrap_key(key: bytes, secret: bytes, public: bytes) -> bytes:
    """The shared key, encrypted and authenticated for the holder of one other secret key."""
    outer = _derive(secret, public, b"wrap")  # the same in both directions; the sender's public key distinguishes them
    nonce = os.urandom(NONCE)
    closed = aead(outer).encrypt(nonce, _checked(key, "the shared key"), WRAPPED + public_of(secret))
    return _HEAD.pack(WRAPPED, nonce) + closed


def open_key(wrapped: bytes, secret: bytes, public: bytes, out: str | os.PathLike[str]) -> bytes:
    """Decrypt a key that another silo wrapped for this one, and write it to a file."""
    _x25519()
    from cryptography.exceptions import InvalidTag

    if len(wrapped) != _HEAD.size + SIZE + 16 or not wrapped.startswith(WRAPPED):
        raise ValueError(f"{len(wrapped)} bytes are not a wrapped key of this version; ask for it again")
    _, nonce = _HEAD.unpack_from(wrapped)
    try:
        key = aead(_derive(secret, public, b"wrap")).decrypt(nonce, wrapped[_HEAD.size :], WRAPPED + public)
    except InvalidTag:
        raise ValueError(
            "the wrapped key cannot be decrypted: it is damaged, for another silo, or from another one than the public "
            "key; compare fingerprints"
        ) from None
    _write(Path(out), KEY, key, private=True)
    return key


def aead(key: bytes) -> ChaCha20Poly1305:
    """The authenticated cipher for contents."""
    _x25519()
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key)


def _derive(secret: bytes, public: bytes, purpose: bytes) -> bytes:
    made = _x25519().from_private_bytes(_checked(secret, "the secret key"))
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    mine = public_of(secret)
    if mine == public:
        raise ValueError("both keys are of the same silo; give the public key of the other silo")
    try:
        common = made.exchange(X25519PublicKey.from_public_bytes(_checked(public, "the public key")))
    except ValueError as error:
        raise ValueError(f"the public key is not valid ({error}); ask for it again") from None
    # Both public keys are included, in one order for both sides, so a key belongs to this pair only.
    info = b"fedrank silo 1 " + purpose + b"".join(sorted((mine, public)))
    return HKDF(algorithm=SHA256(), length=SIZE, salt=None, info=info).derive(common)


def _x25519() -> type[X25519PrivateKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError as error:
        raise missing_extra("keys between silos need the package cryptography", "privacy") from error
    return X25519PrivateKey


def _checked(key: bytes, what: str) -> bytes:
    if len(key) != SIZE:
        raise ValueError(f"{what} has {len(key)} bytes and must have {SIZE}; create or ask for a new one")
    return key


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise FileExistsError(f"{path} exists, and overwriting a key loses it; choose another name")


def _write(path: Path, kind: str, key: bytes, private: bool) -> None:
    _refuse_existing(path)
    with writing(path, private, replace=False) as file:
        file.write(f"{kind} {key.hex()}\n".encode())


def _read(path: Path, kind: str, private: bool) -> bytes:
    if private and os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise PermissionError(f"{path} can be read by other users; run chmod 600, or create a new key")
    words: list[Any] = read_bytes(path)[:200].decode("ascii", errors="replace").split()
    if len(words) != 2 or words[0] != kind or len(words[1]) != 2 * SIZE or set(words[1]) - set("0123456789abcdef"):
        started = words[0] if words and words[0] in (KEY, SECRET, PUBLIC) else "something else"
        raise ValueError(f"{path} must contain {kind!r} and a key (got {started}); give the right file")
    return bytes.fromhex(words[1])
