"""Tenants of a rerank server: one folder each, and API keys of which only digests are stored."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import shutil
import threading
from pathlib import Path

from fedrank.files import parse_json, private_folder, read_bytes, write_atomic
from fedrank.search.rerank.reranker import Reranker
from fedrank.search.rerank.scorer import ModelScorer
from fedrank.search.rerank.store import FILE, RerankError

KEYS, TENANTS = "keys.json", "tenants"
MAX_KEYS = 10_000
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


class Tenants:
    """The folder of a server. A tenant's statistics, memory and model never touch those of another."""

    def __init__(self, folder: Path, refits: bool = True, scorer: ModelScorer | None = None) -> None:
        self.folder, self._refits, self._scorer = folder, refits, scorer
        self._open: dict[str, Reranker] = {}
        self._turn = threading.Lock()

    def close(self) -> None:
        with self._turn:
            for one in self._open.values():
                one.close()
            self._open.clear()
            if self._scorer is not None:
                self._scorer.close()

    def names(self) -> list[str]:
        """Tenants with a key or with stored data."""
        stored = {path.parent.name for path in (self.folder / TENANTS).glob(f"*/{FILE}")}
        return sorted(stored | set(self._keys().values()))

    def reranker(self, tenant: str) -> Reranker:
        """The reranker of a tenant, opened once."""
        with self._turn:
            if tenant not in self._open:
                self._open[tenant] = Reranker(
                    private_folder(private_folder(self.folder) / TENANTS) / checked(tenant),
                    refits=self._refits,
                    scorer=self._scorer,
                )
            return self._open[tenant]

    def forget(self, tenant: str) -> None:
        """Delete a tenant: its keys, and everything stored."""
        with self._turn:
            if (one := self._open.pop(tenant, None)) is not None:
                one.close()
            self._write({digest: name for digest, name in self._keys().items() if name != checked(tenant)})
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.folder / TENANTS / tenant)

    # keys

    def add_key(self, tenant: str, revoke: bool = False) -> str:
        """Create an API key of a tenant, and with `revoke` end its earlier ones. The key itself is not stored."""
        key = secrets.token_urlsafe(32)
        with self._turn:
            keys = {digest: name for digest, name in self._keys().items() if not (revoke and name == tenant)}
            if len(keys) >= MAX_KEYS:
                raise RerankError(f"there are {MAX_KEYS:,} keys; revoke some first")
            self._write({**keys, _digest(key): checked(tenant)})
        return key

    def tenant_of(self, key: str) -> str | None:
        """The tenant with this key; all digests are compared in constant time."""
        asked, found = _digest(key), None
        for digest, tenant in self._keys().items():
            if hmac.compare_digest(digest, asked):
                found = tenant
        return found

    def _keys(self) -> dict[str, str]:
        path = self.folder / KEYS
        try:
            content = parse_json(read_bytes(path, 1 << 22))
        except FileNotFoundError:
            return {}
        except ValueError as problem:
            raise RerankError(f"{path} cannot be read ({problem}); restore it from a backup") from None
        if not isinstance(content, dict) or not all(
            isinstance(name, str) and _NAME.fullmatch(name) for name in content.values()
        ):
            raise RerankError(f"{path} must contain tenants by the digest of their keys; restore it from a backup")
        return content

    def _write(self, keys: dict[str, str]) -> None:
        write_atomic(private_folder(self.folder) / KEYS, json.dumps(keys, indent=1) + "\n", private=True)


def checked(tenant: str) -> str:
    """The name, if it is one."""
    if not _NAME.fullmatch(tenant):
        raise RerankError(f"{tenant!r} cannot be the name of a tenant; use small letters, digits and '-', at most 40")
    return tenant


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()
