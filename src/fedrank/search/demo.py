"""A made-up person's mailbox, notes and bookmarks, and six weeks of their searches: to try the page at once.

Nobody and nothing in it is real. The same moment gives the same files.
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
from pathlib import Path

from fedrank.files import write_whole
from fedrank.progress import Progress, quiet
from fedrank.search.client import SearchClient

ME = "Robin Vale <robin@vale.example>"
DAY = 86_400
WEEKS = 6
SEARCHES = 14  # a week
HINT = "Everything here is made up. Try: roof invoice, Lisbon train, choir rehearsal, sourdough, Heron battery."
FILES = ("mail.mbox", "bookmarks.html", "snippets.jsonl")


@dataclass(frozen=True)
class Topic:
    """Something in a person's life: what it is called, who writes about it, and what is said."""

    name: str
    people: tuple[str, ...]
    titles: tuple[str, ...]
    sentences: tuple[str, ...]


TOPICS = (
    Topic(
        "roof",
        ("Mara Tiller <mara@tiller-roofing.example>", "Ivo Brand <ivo@brand.example>"),
        ("Invoice for the roof", "Quote: new tiles", "Leak above the attic", "Scaffolding next week", "Roof warranty"),
        (
            "The leak above the attic window comes from a cracked tile beside the chimney.",
            "The invoice covers forty tiles, the flashing around the chimney and two days of work.",
            "We put up the scaffolding on Monday and take it down on Friday if the weather holds.",
            "Please pay the invoice within thirty days; the account number is on the second page.",
            "The warranty covers the tiles for twenty years and our work for five.",
            "Moss in the gutter holds the water back, so have it cleaned every autumn.",
            "The insurance asks for photographs of the damage before the repair.",
            "The quote includes taking the old tiles away.",
        ),
    ),
    Topic(
        "Lisbon",
        ("Nadia Holm <nadia@holm.example>", "Casa Azul <stay@casa-azul.example>"),
        (
            "Train to Lisbon",
            "Booking at Casa Azul",
            "Lisbon: what to see",
            "Packing list for Lisbon",
            "Night train times",
        ),
        (
            "The night train leaves at nine in the evening and arrives in Lisbon before breakfast.",
            "Our booking is for four nights, with breakfast, in the room above the courtyard.",
            "Tram 28 climbs to the castle; walk down through the old town before noon.",
            "The museum of tiles is closed on Mondays.",
            "Bring light shoes: the hills are steep and the stones are smooth.",
            "The train tickets can be changed until the day before for a small fee.",
            "We meet at the station under the clock at eight.",
            "The ferry across the river is part of the day ticket.",
        ),
    ),
    Topic(
        "choir",
        ("Petra Lund <petra@lund.example>", "Anton Reed <anton@reed.example>"),
        ("Choir rehearsal moved", "Programme of the concert", "Choir: scores for altos", "Concert in the old church"),
        (
            "The rehearsal on Thursday begins at seven because the hall is needed later.",
            "The programme begins with the motet and ends with three folk songs.",
            "Altos, please bring pencils: we mark the breaths in the second movement.",
            "The concert in the old church starts at five; be there at four to sing in.",
            "The church is cold, so wear something warm under the black.",
            "We still need two people for the tickets at the door.",
            "The scores lie in the cupboard behind the piano.",
            "After the concert there is soup for everybody.",
        ),
    ),
    Topic(
        "Heron",
        ("Jonas Keel <jonas@keel-labs.example>", "Wen Ashby <wen@keel-labs.example>"),
        (
            "Heron: battery life",
            "Heron firmware 1.4",
            "Notes of the Heron meeting",
            "Heron field test",
            "Sensor calibration",
        ),
        (
            "The Heron sensor wakes every ten minutes, measures the water level and sleeps again.",
            "With firmware 1.4 the battery lasts fourteen months instead of nine.",
            "The radio is the largest part of the battery's load, so we send only what changed.",
            "Calibration drifts by two millimetres in frost; the table corrects for temperature.",
            "In the field test three of twenty sensors lost their time after a week without a signal.",
            "The housing is tight to one metre of water for a day.",
            "We decided to ship the new antenna with the next batch.",
            "The bootloader checks the signature before it starts the firmware.",
        ),
    ),
    Topic(
        "bread",
        ("Odile Marsh <odile@marsh.example>",),
        ("Sourdough for beginners", "Rye bread with caraway", "Why the crumb is dense", "Feeding the starter"),
        (
            "Feed the sourdough starter the evening before, with as much flour as water.",
            "The dough rests for four hours and is folded every thirty minutes.",
            "A dense crumb means that the dough was cold or that the starter was tired.",
            "Bake it in a closed pot for half an hour and open for twenty minutes more.",
            "Rye has little gluten, so the bread is shaped with wet hands.",
            "Salt goes in after the first rest.",
            "A starter in the refrigerator sleeps for two weeks without harm.",
            "Caraway and coriander belong into the flour, freshly ground.",
        ),
    ),
    Topic(
        "garden",
        ("Allotment Society <office@allotments.example>", "Bela Finch <bela@finch.example>"),
        ("Allotment: water turned off", "Seeds for spring", "Tomatoes and blight", "Compost in winter", "Hedge rules"),
        (
            "The water at the allotments is turned off from November until the last frost.",
            "Sow the beans when the soil is warm, and the peas as early as you can.",
            "Blight comes with warm rain; take the leaves off the tomatoes and burn them.",
            "The compost needs air: turn it once before winter.",
            "Hedges along the path are cut to one metre and twenty.",
            "We share the order of seeds again; write your wishes on the list at the gate.",
            "Slugs stay away from coffee grounds for about three days.",
            "The apple tree is pruned in February, on a dry day.",
        ),
    ),
    Topic(
        "tax",
        ("Office of Revenue <no-reply@revenue.example>", "Greta Stone <greta@stone-accounts.example>"),
        (
            "Tax return: what is missing",
            "Receipts for the tax return",
            "Your tax assessment",
            "Deadline for the return",
        ),
        (
            "For the tax return we still need the receipts of the course and of the train.",
            "The deadline is the last day of July; with an accountant it is February.",
            "The assessment says that you get two hundred and ten back.",
            "Repairs of the roof count with their wages, not with the tiles.",
            "Keep the receipts for two years after the assessment.",
            "Travel to work counts from the twenty-first kilometre with more.",
            "Please check the number of the account before we send the return.",
            "Donations below three hundred need no receipt.",
        ),
    ),
    Topic(
        "bicycle",
        ("Workshop Spoke <hello@spoke.example>",),
        ("Your bicycle is ready", "Brake pads and chain", "Route along the canal", "Panniers for the tour"),
        (
            "The chain was worn, so we put on a new one together with the cassette.",
            "Brake pads last about three thousand kilometres in the flat.",
            "The route follows the canal for forty kilometres and has one hill.",
            "The panniers hold twenty litres each and keep the rain out.",
            "Pump the tyres to four bar for gravel and to five for the road.",
            "Your bicycle is ready; the workshop is open until six.",
            "A loose spoke sings at every turn of the wheel.",
            "The lamp is fed by the hub and needs no battery.",
        ),
    ),
    Topic(
        "school",
        ("Linden School <office@linden-school.example>", "Sam Orchard <sam@orchard.example>"),
        ("Parents' evening", "Swimming lessons", "Trip to the museum", "School lunch in spring", "Reading week"),
        (
            "The parents' evening is in room twelve, beginning at half past seven.",
            "Swimming lessons begin after the holidays; a towel and goggles are enough.",
            "On the trip to the museum the children need a small lunch and no money.",
            "The plan of the school lunch hangs beside the door of the hall.",
            "In the reading week every child brings a favourite book.",
            "Please write to the office when your child is ill, before eight.",
            "The summer party needs cakes, tables and people who carry them.",
            "The new timetable is valid from Monday.",
        ),
    ),
    Topic(
        "cat",
        ("Dr. Wool <practice@wool-vet.example>",),
        ("Vaccination of the cat", "The cat's diet", "Invoice of the vet", "Flap for the kitchen door"),
        (
            "The vaccination is due in March and is valid for three years.",
            "Two small meals a day are better than one large one at her age.",
            "The invoice covers the visit, the vaccine and the tablets against worms.",
            "The flap reads the chip and opens for nobody else.",
            "Weigh her once a month and write it down.",
            "Scratches heal by themselves; come if there is a swelling.",
            "Water from a fountain makes cats drink more.",
            "She may go out again two days after the operation.",
        ),
    ),
)
BOOKMARKS = (
    ("Timetable of night trains", "https://night-trains.example/lisbon"),
    ("Casa Azul, rooms above the courtyard", "https://casa-azul.example/"),
    ("A table of hydration for sourdough", "https://bread.example/hydration"),
    ("Canal route, forty kilometres", "https://routes.example/canal?view=map"),
    ("Old church: concerts", "https://old-church.example/concerts"),
    ("Rules of the allotments", "https://allotments.example/rules"),
    ("A trick that should never run", "javascript:alert('no')"),
    ("A file on this machine", "file:///etc/hosts"),
)
# What somebody looks for, and the title of what they open.
WISHES = (
    ("roof invoice", "Invoice for the roof"), ("leak attic", "Leak above the attic"),
    ("lisbon train", "Train to Lisbon: my notes"), ("night train", "Night train times"),
    ("choir rehearsal", "Choir rehearsal moved"), ("concert programme", "Programme of the concert"),
    ("heron battery", "Heron: battery life: my notes"), ("firmware", "Heron firmware 1.4"),
    ("sourdough starter", "Feeding the starter"), ("rye bread", "Rye bread with caraway"),
    ("tomatoes", "Tomatoes and blight: my notes"), ("tax receipts", "Receipts for the tax return"),
    ("deadline tax", "Deadline for the return"), ("bicycle chain", "Brake pads and chain"),
    ("museum trip", "Trip to the museum: my notes"), ("cat vaccination", "Vaccination of the cat"),
    ("casa azul booking", "Booking at Casa Azul"), ("compost", "Compost in winter"),
)  # fmt: skip


def write_documents(folder: Path, now: float) -> None:
    """Write the files below a folder."""
    chance = random.Random("a made-up person")
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    mails: list[bytes] = []
    lines: list[str] = []
    for topic in TOPICS:
        for number, title in enumerate(topic.titles):
            for again in range(3):
                ago = chance.randrange(2, 500) * DAY
                subject = f"Re: {title}" if again == 1 else title if again == 0 else f"{title} ({number + 1})"
                said = chance.sample(topic.sentences, 4)
                writer = chance.choice(topic.people)
                pair = (ME, writer) if again == 1 else (writer, ME)
                mails.append(_mail(*pair, subject, said, now - ago, len(mails)))
            said = [*chance.sample(topic.sentences, 5), *chance.sample(chance.choice(TOPICS).sentences, 1)]
            if number % 2:
                page = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in said)
                path, text = notes / f"{topic.name.lower()}-{number}.html", f"<title>{title}</title>\n{page}"
            else:
                lines_of = "\n\n".join(said)
                path, text = notes / f"{topic.name.lower()}-{number}.md", f"# {title}: my notes\n\n{lines_of}\n"
            write_whole(path, text)
            written = now - chance.randrange(2, 400) * DAY
            os.utime(path, (written, written))
        for sentence in chance.sample(topic.sentences, 2):
            lines.append(json.dumps({"title": f"Remember: {topic.name}", "text": sentence}))
    links = "".join(f'<DT><A HREF="{escape(address)}">{escape(name)}</A>\n' for name, address in BOOKMARKS)
    write_whole(folder / FILES[0], b"".join(mails))
    write_whole(folder / FILES[1], f"<!DOCTYPE NETSCAPE-Bookmark-file-1>\n<DL><p>\n{links}</DL>\n")
    write_whole(folder / FILES[2], "\n".join(lines) + "\n")


def _mail(sender: str, receiver: str, subject: str, said: Sequence[str], when: float, number: int) -> bytes:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, receiver, subject
    mail["Date"] = format_datetime(datetime.fromtimestamp(when, UTC))
    mail["Message-ID"] = f"<{number}@made-up.example>"
    greeting = "Hello," if receiver == ME else "Thank you!"
    mail.set_content(f"{greeting}\n\n{' '.join(said)}\n\n{sender.partition(' <')[0]}\n")
    return f"From made-up {time.asctime(time.gmtime(when))}\n".encode() + mail.as_bytes() + b"\n"


@dataclass
class _Clock:
    """A time of its own."""

    now: float

    def __call__(self) -> float:
        return self.now


def make_demo(folder: Path, now: float, progress: Progress = quiet) -> Path:
    """Documents, index and six weeks of searches below a folder; returns the folder to serve. Again: as it was."""
    store = folder / "search"
    documents = folder / "documents"
    mails, bookmarks, lines = (documents / name for name in FILES)
    if not lines.exists():  # it is written last
        write_documents(documents, now)
    clock = _Clock(now - WEEKS * 7 * DAY)
    with SearchClient.open(store, clock=clock) as client:
        client.index([documents / "notes", mails, lines], bookmarks=[bookmarks], progress=progress)
        if client.status().searches:
            return store
        chance = random.Random("what somebody looks for")
        times = sorted(chance.uniform(clock.now, now - DAY) for _ in range(WEEKS * SEARCHES))
        for number, clock.now in enumerate(times):
            _search(client, *chance.choice(WISHES))
            progress("six weeks of searches", number + 1, len(times), f"{number + 1} of {len(times)} searches")
        clock.now = now
        client.status()  # what is learned by now
    return store


def _search(client: SearchClient, query: str, wanted: str) -> None:
    """Somebody opens what they want, if they see it."""
    shown = client.search(query)
    for result in shown.results:
        if result.title == wanted:
            client.open_document(shown.impression, result.place)
            return
