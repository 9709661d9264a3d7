"""Who somebody is in a federation: an Ed25519 key that is made where it stays, and what others compare.

The secret lies in `identity.key`, for its owner alone. The public key goes to the others, who compare its fingerprint
by telephone: whoever carries the keys, the coordinator among them, could otherwise exchange one.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedrank.extras import missing_extra
from fedrank.files import opened, private_folder, writing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

IDENTITY = "identity.key"  # in the folder of a site, and of a coordinator
FORMAT = "fedrank-identity-1"  # first word of the file; the key follows in hexadecimal
SIZE = 32  # bytes of either key
SIGNATURE = 64  # bytes


@dataclass(frozen=True)
class IdentityKey:
    """The key somebody signs with."""

    secret: bytes = field(repr=False)  # Ed25519, 32 bytes

    @cached_property
    def public(self) -> str:
        """What others know it by, in hexadecimal."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def sign(self, content: bytes) -> bytes:
        """64 bytes that nobody else can make. Let the content say what it is for, so that it fits nothing else."""
        return self._key.sign(content)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return _ed25519().from_private_bytes(self.secret)


def new_identity(folder: str | Path) -> str:
    """Make the key of a site, or of a coordinator, in its folder; returns the public one. A key that is there stays."""
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
    """The key of a folder; one that others can read is no secret, and is refused."""
    path = Path(folder) / IDENTITY
    try:
        with opened(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            words = file.read(200).decode("ascii", errors="replace").split()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is not there, so that nothing can be signed; restore it from a backup, or join the federation anew"
        ) from None
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise PermissionError(
            f"{path} can be read by others (mode {stat.S_IMODE(mode):o}), who could sign in its place; chmod 600 it if "
            "you trust all who could, else join the federation anew with a new key"
        )
    if len(words) != 2 or words[0] != FORMAT or not _is_key(words[1]):
        raise ValueError(f"{path} should hold {FORMAT!r} and a key, and does not; restore it from a backup")
    return IdentityKey(bytes.fromhex(words[1]))


def verify(public: str, content: bytes, signature: bytes) -> bool:
    """Whether the holder of this key signed this content; False for whatever is no key or no signature."""
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
    """What two people read to each other to see that they mean the same key.

    >>> fingerprint("00" * 32)
    'SHA256:6668-7aad-f862-bd77-6c8f-c18b-8e9f-8e20'
    """
    if not _is_key(public):
        raise ValueError(f"{public!r} is no public key: it should be {2 * SIZE} hexadecimal digits; ask for it again")
    digest = hashlib.sha256(bytes.fromhex(public)).hexdigest()[:32]  # 128 bits: nobody finds a second key for them
    return "SHA256:" + "-".join(digest[i : i + 4] for i in range(0, len(digest), 4))


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two people read the same; spaces, dashes, capitals and the name of the hash do not matter.

    >>> same_fingerprint("SHA256:6668-7aad-f862-bd77-6c8f-c18b-8e9f-8e20", "66687AAD f862bd77 6c8fc18b 8e9f8e20")
    True
    """
    return bool(_digits(one)) and _digits(one) == _digits(other)


def member_key(key: IdentityKey, client: int) -> IdentityKey:
    """The key of one client of several that a site answers for; nobody without the site's key can make it."""
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
        f"{path} exists, and whoever knows this site by its key would know it no more; keep it, or use another folder"
    )


def _ed25519() -> type[Ed25519PrivateKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise missing_extra("identities need the package cryptography", "privacy") from error
    return Ed25519PrivateKey
