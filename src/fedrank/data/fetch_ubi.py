"""Copy User Behavior Insights from an OpenSearch cluster into files that `fedrank data build` reads.

    DIR/ubi_queries/2026-05-01.ndjson    rows of one day (UTC), each {"_id": ..., "_source": ...}
    DIR/ubi_events/2026-05-01.ndjson
    DIR/cursor.json                      how far each index was read, and the length of each file

Pages are in the order of time: the next one begins at the time of the last row and excludes the rows of that moment
that are known, so the cluster stores nothing between two requests, and any number of rows may have the same time. Rows
are on disk before the cursor says so; after a kill, files are cut to the length that the cursor knows. Every call
begins some hours before the last row, because events may be indexed late; rows that are known are skipped. Nothing in a
response is trusted: numbers, types, order and size are checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time as clock
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol
from urllib.parse import urlsplit

from fedrank.data.lines import bounded_lines
from fedrank.extras import missing_extra
from fedrank.files import for_owner, locked, parse_json, private_folder, read_bytes, read_text, sync, write_atomic
from fedrank.progress import Progress, quiet

CURSOR, LOCK = "cursor.json", ".lock"
FORMAT, VERSION = "fedrank-fetch", 1
QUERIES, EVENTS = "ubi_queries", "ubi_events"
MAX_RESPONSE = 256 << 20  # bytes of one response
MAX_SAME_TIME = 20_000  # rows with the same time, which a request excludes by name
MAX_PAGE = 10_000  # the limit of an index (index.max_result_window)
DAY = 86_400_000  # milliseconds
LOCAL = ("localhost", "127.0.0.1", "::1")
_INDEX = re.compile(r"[a-z0-9][a-z0-9_.\-]{0,254}")
_FILE = re.compile(r"\d{4,6}-\d\d-\d\d\.ndjson")


class Client(Protocol):
    """The part of `opensearchpy.OpenSearch` that is used."""

    def search(self, *, index: str, body: dict[str, Any], params: dict[str, Any]) -> Any:
        """Return the response of `_search`."""


@dataclass(frozen=True)
class FetchSettings:
    """What to copy."""

    queries: str = QUERIES  # index of searches
    events: str = EVENTS  # index of events
    since: int = 0  # milliseconds since 1970; where the first call begins
    overlap_hours: float = 24.0  # how late an event may be indexed
    page: int = 1000  # rows per request

    def __post_init__(self) -> None:
        for index in (self.queries, self.events):
            if not _INDEX.fullmatch(index):
                raise ValueError(f"{index!r} is not the name of an index; use letters, digits, - _ and .")
        if self.queries == self.events:
            raise ValueError(f"queries and events must be different indices (got {self.queries!r} twice)")
        if not 1 <= self.page <= MAX_PAGE:
            raise ValueError(f"page must be between 1 and {MAX_PAGE:,} (got {self.page:,})")
        if not 0 <= self.overlap_hours <= 24 * 366:
            raise ValueError(f"overlap_hours must be between 0 and a year (got {self.overlap_hours:g})")


@dataclass
class Position:
    """How far an index was read."""

    time: int = -1  # milliseconds since 1970 of the last row, at most the time of the call; -1: nothing was read
    sizes: dict[str, int] = field(default_factory=dict)  # bytes by file


@dataclass(frozen=True)
class Fetched:
    """The result of one call for an index."""

    folder: Path
    rows: int  # new ones
    known: int  # read before, within the overlap
    until: int  # milliseconds since 1970 of the last row; -1: the index has no rows


def fetch_ubi(
    client: Client,
    out: str | os.PathLike[str],
    settings: FetchSettings | None = None,
    *,
    now: float | None = None,
    progress: Progress = quiet,
) -> tuple[Fetched, Fetched]:
    """Copy new searches and events into a folder; a call that was killed is continued by the next one."""
    settings, folder = settings or FetchSettings(), private_folder(Path(out))
    moment = int(1000 * (clock.time() if now is None else now))
    with locked(folder / LOCK, str(folder)):
        positions = _read_cursor(folder / CURSOR)

        def fetch(index: str, name: str) -> Fetched:
            position = positions.setdefault(index, Position())
            save = _saver(folder / CURSOR, positions)
            return _Index(client, index, private_folder(folder / name), settings, position, save).fetch(
                moment, progress
            )

        # Searches first: an event whose search is missing is fetched again by the next call.
        return fetch(settings.queries, QUERIES), fetch(settings.events, EVENTS)


class _Index:
    """Copies one index."""

    def __init__(
        self,
        client: Client,
        index: str,
        folder: Path,
        settings: FetchSettings,
        position: Position,
        save: Callable[[], None],
    ) -> None:
        self.client, self.index, self.folder = client, index, folder
        self.settings, self.position, self.save = settings, position, save

    def fetch(self, now: int, progress: Progress) -> Fetched:
        """Copy the rows that are new."""
        self._cut()
        begin = self.settings.since
        if self.position.time >= 0:
            begin = max(begin, self.position.time - int(self.settings.overlap_hours * 3_600_000))
        known = set(self._known(begin))
        at, same = begin, list[str]()  # where the next page begins, and the rows of that moment that are known
        new = skipped = 0
        while True:
            page = self._page(at, same, now + DAY)
            rows = [one for one in page if _digest(one[1]) not in known]
            known.update(_digest(id) for _, id, _ in rows)
            new, skipped = new + len(rows), skipped + len(page) - len(rows)
            if page:
                last = page[-1][0]
                same = [*(same if last == at else []), *(id for time, id, _ in page if time == last)]
                at = last
                if len(same) > MAX_SAME_TIME:
                    raise ValueError(
                        f"{self.index}: more than {MAX_SAME_TIME:,} rows have the time {_iso(at)}; correct their "
                        "times, or export the index with another tool"
                    )
            self._append(rows, min(at, now) if page or self.position.time >= 0 else -1)
            progress(f"fetch {self.index}", new, new + (len(page) == self.settings.page))
            if len(page) < self.settings.page:
                return Fetched(self.folder, new, skipped, self.position.time)

    def _page(self, at: int, same: list[str], until: int) -> list[tuple[int, str, dict[str, Any]]]:
        """Time, id and content of the next rows; everything is checked."""
        times = {"gte": at, "lte": until, "format": "epoch_millis"}
        found: dict[str, Any] = {"filter": [{"range": {"timestamp": times}}]}
        if same:
            found["must_not"] = [{"ids": {"values": same}}]
        body = {
            "size": self.settings.page,
            "track_total_hits": False,
            "sort": [{"timestamp": {"order": "asc", "numeric_type": "date", "unmapped_type": "date"}}],
            "query": {"bool": found},
        }
        answer = self.client.search(index=self.index, body=body, params={"allow_partial_search_results": "false"})
        return list(self._checked(answer, at, until, set(same)))

    def _checked(self, answer: Any, at: int, until: int, same: set[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
        shards = answer.get("_shards") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or not isinstance(shards, dict) or answer.get("timed_out") is not False:
            raise self._wrong("the search timed out, or the response is not one of a search")
        if shards.get("failed") != 0:
            raise self._wrong(f"{str(shards.get('failed'))[:20]} shards failed, so rows would be missing")
        outer = answer.get("hits")
        hits = outer.get("hits") if isinstance(outer, dict) else None
        if not isinstance(hits, list) or len(hits) > self.settings.page:
            raise self._wrong(f"the response does not have at most {self.settings.page:,} hits")
        for hit in hits:
            id, source, sort = (hit.get(name) if isinstance(hit, dict) else None for name in ("_id", "_source", "sort"))
            if not isinstance(id, str) or not 0 < len(id) <= 512 or not isinstance(source, dict):
                raise self._wrong("a hit lacks its _id or its _source; the index must store _source")
            time = sort[0] if isinstance(sort, list) and len(sort) == 1 else None
            if type(time) is not int or not at <= time <= until or id in same:
                raise self._wrong("hits are not sorted by timestamp, or outside the requested time")
            at = time
            yield time, id, source

    def _wrong(self, problem: str) -> ValueError:
        return ValueError(f"{self.index}: {problem}; nothing of this response was stored. Try again later")

    def _append(self, rows: list[tuple[int, str, dict[str, Any]]], time: int) -> None:
        """Write rows to the files of their days, and then the position."""
        by_day: dict[str, list[str]] = {}
        for at, id, source in rows:
            by_day.setdefault(f"{_iso(at)[:10]}.ndjson", []).append(json.dumps({"_id": id, "_source": source}) + "\n")
        for name, lines in by_day.items():
            with open(self.folder / name, "ab", opener=for_owner) as file:
                file.write("".join(lines).encode())
                file.flush()
                os.fsync(file.fileno())
                self.position.sizes[name] = file.tell()
        if by_day:
            sync(self.folder)
        self.position.time = max(self.position.time, time)
        self.save()

    def _cut(self) -> None:
        """Remove what a killed call wrote after its last position; files that were deleted stay deleted."""
        there = {path.name: path for path in self.folder.iterdir() if _FILE.fullmatch(path.name)}
        for name in self.position.sizes.keys() - there.keys():
            del self.position.sizes[name]
        for name, path in there.items():
            size, now = self.position.sizes.get(name, 0), path.stat().st_size
            if now < size:
                raise ValueError(
                    f"{path} has {now:,} bytes, but {size:,} were written; restore it from a backup, or delete it"
                )
            if now > size:
                os.truncate(path, size)

    def _known(self, begin: int) -> Iterator[bytes]:
        """Digests of the ids of stored rows of the overlap."""
        first = f"{_iso(begin)[:10]}.ndjson"
        for name in sorted(self.position.sizes):
            if name < first:
                continue
            for number, line in bounded_lines(self.folder / name):
                row = parse_json(line) if line else None
                if not isinstance(row, dict) or not isinstance(row.get("_id"), str):
                    raise ValueError(f"{self.folder / name}, line {number}: not a row of this command; delete the file")
                yield _digest(row["_id"])


def _digest(id: str) -> bytes:
    """A short digest, because ids of many rows are in memory."""
    return hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def _iso(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{milliseconds} milliseconds is not a valid time") from None


def _saver(path: Path, positions: dict[str, Position]) -> Callable[[], None]:
    def save() -> None:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "indices": {name: vars(one) for name, one in positions.items()},
        }
        write_atomic(path, json.dumps(content, indent=1) + "\n", private=True)

    return save


def _read_cursor(path: Path) -> dict[str, Position]:
    if not path.exists():
        return {}
    try:
        content = parse_json(read_bytes(path))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"its format is {content['format']!r} version {content['version']!r}")
        found = {}
        for name, one in content["indices"].items():
            time, sizes = one["time"], one["sizes"]
            if type(time) is not int or not all(_FILE.fullmatch(file) and type(n) is int for file, n in sizes.items()):
                raise ValueError(f"the position of {name!r} is not valid")
            found[name] = Position(time, dict(sizes))
        return found
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise ValueError(
            f"{path} cannot be read ({problem!r}); restore it from a backup, or delete it together with the files"
        ) from None


def open_client(
    url: str,
    credentials: str | os.PathLike[str] | None = None,
    ca: str | os.PathLike[str] | None = None,
    timeout: float = 30.0,
) -> Client:
    """A client for a cluster. Certificates are always verified, and without TLS only this machine is reached.

    `credentials` is a file with one line `user:password` that only its owner can read; without it, the variables
    OPENSEARCH_USER and OPENSEARCH_PASSWORD count, if they are set.
    """
    try:
        from opensearchpy import OpenSearch, Urllib3HttpConnection
    except ImportError:
        raise missing_extra("reading from OpenSearch needs the package opensearch-py", "opensearch") from None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the address of a cluster; use https://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "an address must not contain a password, which other users of this machine could see; use --credentials or "
            "OPENSEARCH_USER and OPENSEARCH_PASSWORD"
        )
    if parts.scheme == "http" and parts.hostname not in LOCAL:
        raise ValueError(f"{url} has no TLS, so everything could be read on the way; use https://")

    class Bounded(Urllib3HttpConnection):  # type: ignore[misc]
        """A connection that reads at most `MAX_RESPONSE` bytes."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            urlopen = self.pool.urlopen

            def bounded(*args: Any, **more: Any) -> Any:
                response = urlopen(*args, preload_content=False, **more)
                try:
                    data = response.read(
                        MAX_RESPONSE + 1, decode_content=False
                    )  # a small file may expand to a large one
                finally:
                    response.release_conn()
                if len(data) > MAX_RESPONSE:
                    response.close()
                    raise ValueError(f"the response has more than {MAX_RESPONSE:,} bytes; use a smaller --page")
                return SimpleNamespace(data=data, status=response.status, headers=response.headers)

            self.pool.urlopen = bounded

    found: Client = OpenSearch(
        hosts=[url],
        http_auth=_credentials(credentials),
        verify_certs=True,
        ssl_show_warn=True,
        ca_certs=None if ca is None else str(ca),
        timeout=timeout,
        max_retries=3,
        retry_on_timeout=True,
        connection_class=Bounded,
    )
    return found


def _credentials(file: str | os.PathLike[str] | None) -> tuple[str, str] | None:
    if file is None:
        user, password = (os.environ.get(f"OPENSEARCH_{name}", "") for name in ("USER", "PASSWORD"))
        if bool(user) != bool(password):
            raise ValueError("set both OPENSEARCH_USER and OPENSEARCH_PASSWORD, or neither")
        return (user, password) if user else None
    if os.name == "posix" and os.stat(file).st_mode & 0o077:
        raise ValueError(f"{file} can be read by other users; run: chmod 600 {file}")
    user, colon, password = read_text(file).strip().partition(":")
    if not (user and colon and password) or "\n" in password:
        raise ValueError(f"{file} must contain one line, user:password")
    return user, password
