"""Synthetic documents and searches for `fedrank search serve --demo`: a mailbox, notes, bookmarks, six weeks of clicks.

The same `now` gives the same files.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from html import escape
from importlib.resources import files
from pathlib import Path

from fedrank.files import write_atomic
from fedrank.progress import Progress, quiet
from fedrank.search.client import SearchClient
from fedrank.toml import parse_toml

ME = "Robin Vale <robin@vale.example>"
DAY = 86_400
WEEKS = 6
SEARCHES = 14  # per week
HINT = "All documents here are synthetic. Try: roof invoice, Lisbon train, choir rehearsal, sourdough, Heron battery."
FILES = ("mail.mbox", "bookmarks.html", "snippets.jsonl")


@dataclass(frozen=True)
class Topic:
    """A topic of the documents: its name, its authors, titles and sentences."""

    name: str
    people: list[str]
    titles: list[str]
    sentences: list[str]


_CONTENT = parse_toml(files("fedrank.search").joinpath("demo.toml").read_text("utf-8"))
TOPICS = [Topic(**topic) for topic in _CONTENT["topics"]]
WISHES = [(query, title) for query, title in _CONTENT["wishes"]]  # query, title of the clicked document


def write_documents(folder: Path, now: float) -> None:
    """Write the demo documents into a folder."""
    chance = random.Random("a made-up person")  # a seed; prose: ok
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    mails: list[bytes] = []
    lines: list[str] = []
    for topic in TOPICS:
        for number, title in enumerate(topic.titles):
            for again in range(3):
                ago = chance.randrange(2, 500) * DAY
                subject = f"Re: {title}" if again == 1 else title if again == 0 else f"{title} ({number + 1})"
                sentences = chance.sample(topic.sentences, 4)
                writer = chance.choice(topic.people)
                pair = (ME, writer) if again == 1 else (writer, ME)
                mails.append(_mail(*pair, subject, sentences, now - ago, len(mails)))
            sentences = [*chance.sample(topic.sentences, 5), *chance.sample(chance.choice(TOPICS).sentences, 1)]
            if number % 2:
                page = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in sentences)
                path, text = notes / f"{topic.name.lower()}-{number}.html", f"<title>{title}</title>\n{page}"
            else:
                lines_of = "\n\n".join(sentences)
                path, text = notes / f"{topic.name.lower()}-{number}.md", f"# {title}: my notes\n\n{lines_of}\n"
            write_atomic(path, text)
            written = now - chance.randrange(2, 400) * DAY
            os.utime(path, (written, written))
        for sentence in chance.sample(topic.sentences, 2):
            lines.append(json.dumps({"title": f"Remember: {topic.name}", "text": sentence}))
    links = "".join(f'<DT><A HREF="{escape(address)}">{escape(name)}</A>\n' for name, address in _CONTENT["bookmarks"])
    write_atomic(folder / FILES[0], b"".join(mails))
    write_atomic(folder / FILES[1], f"<!DOCTYPE NETSCAPE-Bookmark-file-1>\n<DL><p>\n{links}</DL>\n")
    write_atomic(folder / FILES[2], "\n".join(lines) + "\n")


def _mail(sender: str, receiver: str, subject: str, sentences: Sequence[str], when: float, number: int) -> bytes:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, receiver, subject
    mail["Date"] = format_datetime(datetime.fromtimestamp(when, UTC))
    mail["Message-ID"] = f"<{number}@made-up.example>"
    greeting = "Hello," if receiver == ME else "Thank you!"
    mail.set_content(f"{greeting}\n\n{' '.join(sentences)}\n\n{sender.partition(' <')[0]}\n")
    return f"From made-up {time.asctime(time.gmtime(when))}\n".encode() + mail.as_bytes() + b"\n"  # prose: ok


@dataclass
class _Clock:
    """A clock that is set by assignment."""

    now: float

    def __call__(self) -> float:
        return self.now


def make_demo(folder: Path, now: float, progress: Progress = quiet) -> Path:
    """Create documents, index and six weeks of searches, unless they exist; returns the search folder to serve."""
    store = folder / "search"
    documents = folder / "documents"
    mails, bookmarks, lines = (documents / name for name in FILES)
    if not lines.exists():  # written last
        write_documents(documents, now)
    clock = _Clock(now - WEEKS * 7 * DAY)
    with SearchClient(store, clock=clock) as client:
        client.index([documents / "notes", mails, lines], bookmarks=[bookmarks], progress=progress)
        if client.status().searches:
            return store
        chance = random.Random("what somebody looks for")  # a seed; prose: ok
        times = sorted(chance.uniform(clock.now, now - DAY) for _ in range(WEEKS * SEARCHES))
        for number, clock.now in enumerate(times):
            _search(client, *chance.choice(WISHES))
            progress("six weeks of searches", number + 1, len(times), f"{number + 1} of {len(times)} searches")
        clock.now = now
        client.status()  # learns from the last searches
    return store


def _search(client: SearchClient, query: str, wanted: str) -> None:
    """Search, and click the wanted document if it is on the first page."""
    shown = client.search(query)
    for result in shown.results:
        if result.title == wanted:
            client.open_document(shown.impression, result.position)
            return
