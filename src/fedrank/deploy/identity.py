"""Identity in a federation: an Ed25519 key that never leaves its machine, and its fingerprint.

The secret key is in `identity.key`, readable only by its owner, or this file names a command that prints the key, such
as one that decrypts it with a key management service. The public key is sent to the other parties, who compare its
fingerprint by telephone: otherwise the coordinator, who forwards the keys, could replace one.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import subprocess
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedrank.extras import missing_extra
from fedrank.files import opened, private_folder, writing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

IDENTITY = "identity.key"  # in the folder of a site or a coordinator
FORMAT = "fedrank-identity-1"  # first word of the file; the key follows in hexadecimal
COMMAND = "fedrank-identity-command"  # or this word, and a command that prints the key in hexadecimal
PATIENCE = 60.0  # seconds for that command
SIZE = 32  # bytes of either key
SIGNATURE = 64  # bytes
MAX_LENGTH = 4096  # bytes of the file


@dataclass(frozen=True)
class IdentityKey:
    """A signing key."""

    secret: bytes = field(repr=False)  # Ed25519, 32 bytes

    @cached_property
    def public(self) -> str:
        """The public key in hexadecimal."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def sign(self, content: bytes) -> bytes:
        """Sign content (64 bytes). The content should name its purpose, so the signature cannot be reused elsewhere."""
        return self._key.sign(content)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return _ed25519().from_private_bytes(self.secret)


def new_identity(folder: str | Path) -> str:
    """Create the key of a site or coordinator in its folder; return the public key. An existing key is not replaced."""
    from_system = _ed25519().generate()
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = private_folder(folder) / IDENTITY
    if os.path.lexists(path):
        raise _there(path)
    key = IdentityKey(from_system.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()))
    try:
        with writing(path, private=True, replace=False) as file:
            file.write(f"{FORMAT} {key.secret.hex()}\n".encode())
    except FileExistsError:  # another process was faster
        raise _there(path) from None
    return key.public


def read_identity(folder: str | Path) -> IdentityKey:
    """Read the key of a folder; a key that other users can read is refused."""
    path = Path(folder) / IDENTITY
    try:
        with opened(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            words = file.read(MAX_LENGTH).decode("ascii", errors="replace").split(maxsplit=1)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} does not exist, so messages cannot be signed; restore it from a backup, or join the federation "
            "again"
        ) from None
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise PermissionError(
            f"{path} can be read by other users (mode {stat.S_IMODE(mode):o}), who could sign with it; run chmod 600 "
            "if you trust them, otherwise join the federation again with a new key"
        )
    if len(words) == 2 and words[0] == COMMAND:
        return IdentityKey(bytes.fromhex(_fetched(path, words[1].strip())))
    if len(words) != 2 or words[0] != FORMAT or not _is_key(words[1].strip()):
        raise ValueError(f"{path} must contain {FORMAT!r} and a key; restore it from a backup")
    return IdentityKey(bytes.fromhex(words[1].strip()))


@cache
def _fetched(path: Path, command: str) -> str:
    """The key that a command prints, fetched once per process; its output is never part of a message."""
    try:
        done = subprocess.run(
            shlex.split(command), cwd=path.parent, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=PATIENCE
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        reason = "it takes too long" if isinstance(problem, subprocess.TimeoutExpired) else str(problem)
        raise ValueError(f"the command in {path} that fetches the key cannot run: {reason}") from None
    key = done.stdout.decode("ascii", errors="replace").strip()
    if done.returncode or not _is_key(key):
        raise ValueError(
            f"the command in {path} must print the key, {2 * SIZE} hexadecimal digits (exit code {done.returncode}, "
            f"{len(key)} characters); run it by hand as the user of this site"
        )
    return key


def verify(public: str, content: bytes, signature: bytes) -> bool:
    """Whether the holder of this key signed this content; False for an invalid key or signature."""
    _ed25519()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not _is_key(public) or len(signature) != SIGNATURE:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, content)
    except InvalidSignature:
        return False
    return True


def fingerprint(public: str) -> str:
    """The fingerprint of a key, which two people compare by reading it to each other.

    >>> fingerprint("00" * 32)
    'SHA256:6668-7aad-f862-bd77-6c8f-c18b-8e9f-8e20'
    """
    if not _is_key(public):
        raise ValueError(
            f"{public!r} is not a public key: it must have {2 * SIZE} hexadecimal digits; ask for the key again"
        )
    digest = hashlib.sha256(bytes.fromhex(public)).hexdigest()[:32]  # 128 bits: finding a second key is infeasible
    return "SHA256:" + "-".join(digest[i : i + 4] for i in range(0, len(digest), 4))


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two fingerprints are equal, ignoring spaces, dashes, case and the name of the hash.

    >>> same_fingerprint("SHA256:6668-7aad-f862-bd77-6c8f-c18b-8e9f-8e20", "66687AAD f862bd77 6c8fc18b 8e9f8e20")
    True
    """
    return bool(_digits(one)) and _digits(one) == _digits(other)


def member_key(key: IdentityKey, client: int) -> IdentityKey:
    """Derive the key of one of several clients of a site; this requires the site's key."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"fedrank identity of a member" + client.to_bytes(8, "little")
    return IdentityKey(HKDF(algorithm=SHA256(), length=SIZE, salt=None, info=info).derive(key.secret))


def _digits(text: str) -> str:
    kept = "".join(letter for letter in text.lower().removeprefix("sha256:") if letter not in " -:\t\n")
    return kept if len(kept) == 32 and not set(kept) - set("0123456789abcdef") else ""


def _is_key(text: object) -> bool:
    return isinstance(text, str) and len(text) == 2 * SIZE and not set(text) - set("0123456789abcdef")


def _there(path: Path) -> FileExistsError:
    return FileExistsError(
        f"{path} already exists, and other parties identify this site by it; keep it, or use another folder"
    )


def _ed25519() -> type[Ed25519PrivateKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise missing_extra("identities need the package cryptography", "privacy") from error
    return Ed25519PrivateKey
