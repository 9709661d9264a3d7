"""Kill the search client at random moments of indexing, searching and learning, and look what is left.

    python -m tests.search.kills --count 50

It also moves and renames files, tries, adopts and gives up models, and forgets searches. After every kill -9 the store
and the engine's index must agree, every document must have the id that it always had, every click that was answered
must be there and no forgotten one, the model in use must be one that may be, and what was learned must be what the
learned lists teach, each once. A new process works after every kill, and another one checks.

Then as many while a site answers rounds from its recorded searches, in a folder and in the open, since one person alone
cannot be asked for a sum: nothing may have left that is not in the list of what was sent, or is not in the outbox, and
no round may be charged twice or use a search that another one used.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedrank import wire
from fedrank.data.collection import SYNTHETIC
from fedrank.data.live_features import LIVE_1, ForwardRow, ForwardRows, WordStatistics
from fedrank.deploy import consent, protocol
from fedrank.deploy.folder import folder_send, read_plans, serve_once
from fedrank.deploy.folder_members import approve_in_folder, create_folder_federation, join_folder, read_home
from fedrank.deploy.make_plans import plan_runs
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.plan import Plan
from fedrank.deploy.site import Site
from fedrank.experiments.spec.grid import read_tables
from fedrank.federated.messages import Call
from fedrank.files import private_folder
from fedrank.privacy.population import Account
from fedrank.ranking.gate import Gate, Team
from fedrank.search import impressions, ingest, trial
from fedrank.search.client import SearchClient
from fedrank.search.impressions import LEARNER, OWN_RATE, first_weights, warm_up
from fedrank.search.sharing import Sharing
from tests.search.made_up import Clock, search_often, write_documents
from tests.search.reading import zipped

DOCUMENTS = 60


def check_agreement(client: SearchClient) -> None:
    """Word counts are those of the documents that are there, and the engine has exactly these."""
    rows = [ForwardRow.unpack(zlib.decompress(words)) for (words,) in client.store.rows("SELECT words FROM forward")]
    expected, found = WordStatistics.of(ForwardRows.join(rows)), client.store.statistics()
    np.testing.assert_array_equal(found.frequencies, expected.frequencies)
    counts = (expected.documents, expected.words, expected.title_words)
    assert (found.documents, found.words, found.title_words) == counts
    ids = {id for (id,) in client.store.rows("SELECT id FROM documents")}
    assert client.engine.documents == len(ids)
    if ids:
        searched = client.engine._searcher.search(client.engine._tantivy.Query.all_query(), len(ids) + 1)
        addresses = [address for _, address in searched.hits]
        assert set(client.engine._searcher.fast_field_values("id", addresses)) == ids
    assert client.store.indexed == client.store.seq


def decide_soon() -> None:
    """Let every search close the list before it, and trials begin and end after a few searches."""
    impressions.BOUNCE, impressions.FAST = 0.0, 1 << 40
    impressions.KEPT, trial.FEWEST, trial.OWN_SEARCHES = 1 << 40, 3, 4
    trial.SHARE = trial.MEMORY_SHARE = 0.6
    trial.GATE = Gate(level=0.6, stake=0.5, harm=0.6, harm_stake=0.5, most=6)


def work(store: Path, folder: Path, answered: int, turn: int) -> None:
    """Change files, index, search, click, learn, try models and forget until killed; every answered click is told."""
    ingest.BATCH = 7
    decide_soon()
    with SearchClient(store) as client:
        client.learn_setting("weights")
        while True:
            turn += 1
            client.index([folder])  # what was moved before a kill is recognised before its text changes
            for path in files_of(folder)[turn % 5 :: 5]:
                write(path, turn)
            client.index()
            for path in files_of(folder)[turn % 3 :: 3]:
                part = folder / f"part {turn % 4}"
                part.mkdir(exist_ok=True)
                path.rename(part / f"{turn}-{name_of(path)}")
            client.index()
            if turn % 2 and not client.trials.phase:
                weights = client.rows.model()[1] * (1 - turn % 3) + turn % 2
                client.trials.begin(weights, f"a friend in turn {turn}")
            for place in range(9):
                found = client.search(f"orchard turn {turn + place}")
                client.open_document(found.impression, choose(client, found.impression, place))
                os.write(answered, f"{found.impression}\n".encode())
            secret = client.search(f"orchard secret {turn}")
            client.open_document(secret.impression, 1)
            client.forget(query=secret.query)
            os.write(answered, f"-{secret.impression}\n".encode())


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("[!.]*.*") if path.is_file())


def name_of(path: Path) -> str:
    """The name of a file before it was renamed."""
    return path.name.rpartition("-")[2]


def write(path: Path, turn: int) -> None:
    """Write a file that says its name, as a whole: an empty file would be a deleted document."""
    part = path.with_name(f".{path.name}")
    text = f"the orchard in turn {turn}, {name_of(path)}"
    if path.suffix == ".docx":
        zipped(part, {"word/document.xml": f"<p>{text}</p>"})
    else:
        part.write_text(text)
    part.rename(path)


def check_ids(client: SearchClient, known: Path) -> None:
    """Every document has the id that it always had, wherever its file was moved."""
    ids = json.loads(known.read_text()) if known.exists() else {}
    rows = client.store.rows("SELECT id FROM documents")
    for (id,) in rows:
        name = client.store.text(id).rpartition(", ")[2]
        assert ids.setdefault(name, id) == id, f"{name} was document {ids[name]} and is {id}"
    assert len({client.store.text(id).rpartition(", ")[2] for (id,) in rows}) == len(rows), "a document is there twice"
    known.write_text(json.dumps(ids))


def choose(client: SearchClient, impression: int, place: int) -> int:
    """A result of the other team, so that models on trial are adopted and then given up against the engine."""
    teams = client.rows.get(impression).teams
    others = np.flatnonzero(teams == Team.NEW) if teams is not None else ()
    return int(others[0]) if len(others) else place


def look(store: Path, told: set[int]) -> None:
    """What must hold after every kill."""
    decide_soon()
    with SearchClient(store) as client:
        check_agreement(client)
        check_ids(client, store.parent / "ids.json")
        clicked = {id for (id,) in client.store.rows("SELECT impression FROM clicks")}
        known = {id for (id,) in client.store.rows("SELECT id FROM impressions")}
        lost = {id for id in told if id > 0} - clicked
        assert not lost, f"clicks that were answered and are lost: {sorted(lost)}"
        assert clicked <= known
        assert not {-id for id in told if id < 0} & known, "a forgotten search is there"
        check_models(client)


def check_models(client: SearchClient) -> None:
    store = client.store
    used, weights = client.rows.model()
    (fate,) = store.one("SELECT fate FROM models WHERE id = ?", used)
    assert fate in ("", "adopted"), f"the model in use was {fate}"
    if fate == "" and store.one("SELECT 1 FROM models WHERE fate = ?", trial.WORSE):
        np.testing.assert_array_equal(weights, client.features.start())
    if (tried := store.setting("trial")) is not None:
        (fate,) = store.one("SELECT fate FROM models WHERE id = ?", tried)
        assert bool(fate) != bool(client.trials.phase), f"a trial is in the phase {client.trials.phase!r}, but {fate!r}"
    for own, start, learned in store.rows("SELECT id, start, weights FROM models WHERE origin = 'own searches'"):
        expected = np.frombuffer(start, "<f8").copy()
        for (id,) in store.rows("SELECT id FROM impressions WHERE kind = 'pdgd' AND trial = ? ORDER BY id", own):
            recorded = client.rows.get(id)
            assert recorded.state == "learned"
            replace(LEARNER, rate=OWN_RATE / client.rows.repeats(recorded)).learn(
                expected, client.rows.as_impression(recorded)
            )
        np.testing.assert_array_equal(np.frombuffer(learned, "<f8"), expected)


def in_child(what, *arguments) -> int:
    """The id of a process that does it."""
    child = os.fork()
    if child:
        return child
    try:
        what(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def kills(folder: Path, count: int, seed: int = 1) -> int:
    """Kill so often; returns how many clicks were answered."""
    chance = random.Random(seed)
    documents, store, clicked = write_documents(folder / "documents", DOCUMENTS), folder / "store", set()
    for path in files_of(documents)[::6]:
        path.rename(path.with_suffix(".docx"))
    for path in files_of(documents):
        write(path, 0)
    with SearchClient(folder / "other") as client:  # so that children have what is compiled
        warm_up(client.rows)
    for number in range(count):
        heard, told = os.pipe()
        child = in_child(work, store, documents, told, 1_001 * number)
        os.close(told)
        if number % 3:  # otherwise while it opens, or indexes for the first time
            clicked |= {int(line) for line in os.read(heard, 1 << 16).split()}
        time.sleep(chance.uniform(0.0, 2.0))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(heard) as lines:
            clicked |= {int(line) for line in lines if line.endswith("\n")}
        finished(in_child(look, store, clicked), f"kill {number + 1} of {count} did harm; the store is in {store}")
    with SearchClient(store) as client:
        fates = client.store.rows("SELECT fate, count(*) FROM models GROUP BY fate ORDER BY fate")
        sys.stderr.write(f"models: {', '.join(f'{often} {fate or chr(45)}' for fate, often in fates)}\n")
    return len(clicked)


ANSWERED = "answered"  # a line for each round that the coordinator heard: round, bytes, digest
SEARCHES, ROUNDS = 30, 32  # of a round; for which there are searches
SITE = """
name = "anna"
id = 0
federation = "friends"
[data]
impressions = "{}"
[policy]
learners = ["pdgd"]
largest_epsilon = 100000.0
"""
SPEC = {
    "evaluate_every": ROUNDS,
    "data": {"collection": SYNTHETIC, "features": "live-1"},
    "learner": {"name": "pdgd", "rate": 0.03, "temperature": LEARNER.temperature, "keep": LEARNER.keep},
    "mechanism": {"name": "gaussian", "clip": 0.1, "noise": 1.0, "placement": "client"},
}


class Federation:
    """A folder in which one person answers and two are only names, since three is the fewest."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shared, self.home = folder, folder / "shared", folder / "home"
        self.store, self.site = folder / "anna", folder / "site"

    def begin(self) -> None:
        told = create_folder_federation(self.shared, self.home, "friends").fingerprint
        clock = Clock(time.time() - 4 * 86_400)
        for name, folder in (("anna", self.site), ("ben", self.folder / "ben"), ("cleo", self.folder / "cleo")):
            own = join_folder(self.shared, folder, name, told)
            approve_in_folder(self.shared, self.home, name, own)
        with SearchClient(self.store, clock=clock) as client:
            client.index([write_documents(self.folder / "documents")])
            lists = private_folder(private_folder(self.store / "federation") / "searches")
            (self.site / "site.toml").write_text(SITE.format(lists))
            client.sent.add_journal(self.site, str(self.shared))
            Sharing(str(self.shared), 0, 1e5, str(self.site)).write(self.store)
            search_often(client, clock, SEARCHES * ROUNDS)
        _ = self.plan

    @functools.cached_property
    def plan(self) -> Plan:
        parties = read_home(self.home).parties()
        grid = read_tables(SPEC | {"rounds": ROUNDS, "clients": {"count": len(parties), "interactions": SEARCHES}})
        [(_, plan)] = plan_runs(grid, "searches", self.folder / "runs", parties, "friends")
        return plan

    def coordinate(self) -> None:
        """Ask for one round after the other, again where it is refused, and tell what was heard."""
        plan = self.plan
        [id] = next(site.clients for site in plan.sites if site.name == "anna")
        asked = np.array([(id, -1, SEARCHES)], protocol.ASKED).tobytes()
        with folder_send(self.shared, self.home, every=0.02) as send, open(self.folder / ANSWERED, "a") as heard:
            send("anna", protocol.request("hello", plan.run, 0, plan=plan.dump()), 600.0).result()
            for round in range(1, ROUNDS + 1):
                call = Call(plan.run, round, first_weights(LIVE_1).astype(np.float32), plan.cohort).pack()
                request = protocol.request("round", plan.run, round, call=call, asked=asked)
                while wire.read_label(answer := send("anna", request, 600.0).result()).kind == "refused":
                    time.sleep(0.02)
                heard.write(f"{round} {len(answer)} {hashlib.sha256(answer).hexdigest()}\n")
                heard.flush()

    def take_part(self) -> None:
        """Answer until killed."""
        with SearchClient(self.store) as client:
            while True:
                for plan in read_plans(self.shared, self.site):
                    if consent.said_of(self.site, plan) is None:
                        consent.accept(self.site, plan)
                client.record_for_sharing()
                with Site.open(self.site) as site:
                    serve_once(self.shared, self.site, site)

    def heard(self) -> list[tuple[int, int, str]]:
        path = self.folder / ANSWERED
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(round), int(size), digest) for round, size, digest in map(str.split, lines)]

    def look(self) -> None:
        """What must hold after every kill."""
        heard = self.heard()
        there = {int(path.name.split("-")[1]) for path in self.shared.glob("from/anna/*-*-*-*-*") if path.suffix == ""}
        with SearchClient(self.store) as client:
            status = client.status()
        noted = {int(one.what.split(":")[0].split()[1]) for one in status.sent if one.what.startswith("round ")}
        whole = {one.what.split(" (")[0]: one.bytes for one in status.sent}
        assert there <= noted, f"answers that left and are not in `sent`: {sorted(there - noted)}"
        assert sum(size for _, size, _ in heard) <= status.sent_bytes
        outbox = Outbox(self.site / "outbox" / self.plan.digest[:32], self.plan.run)
        for round, size, digest in heard:
            assert whole[f"round {round}: answer to round"] >= size
            sent = outbox.get(round)
            assert sent is not None
            assert hashlib.sha256(sent.answer).hexdigest() == digest
        used = [number for sent in outbox.every() for number in sent.used]
        assert len(used) == len(set(used)) == SEARCHES * len(outbox)
        account = Account.read(self.site / "people" / self.plan.digest[:32] / "ledger")
        paid = 0 if account is None else int(account.participations.max())
        assert len(heard) <= paid <= len(outbox) <= len(heard) + 1, (len(heard), paid, len(outbox))


def join_kills(folder: Path, count: int, seed: int = 1) -> int:
    """Kill so often whoever answers; returns how many rounds were answered, and are charged once each."""
    chance, federation = random.Random(seed), Federation(folder)
    finished(in_child(federation.begin), "no federation could be begun")
    coordinator = in_child(federation.coordinate)
    try:
        for number in range(count):
            child = in_child(federation.take_part)
            before, until = len(federation.heard()), time.monotonic() + 60
            while number % 4 and len(federation.heard()) == before < ROUNDS:  # otherwise while it opens
                assert time.monotonic() < until, "nothing was answered for a minute"
                time.sleep(0.002)
            time.sleep(chance.uniform(0.0, 0.1 if number % 4 else 0.6))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            time.sleep(0.05)  # what was written is heard
            finished(in_child(federation.look), f"kill {number + 1} of {count} did harm; all of it is in {folder}")
    finally:
        os.kill(coordinator, signal.SIGKILL)
        os.waitpid(coordinator, 0)
    return len(federation.heard())


def finished(child: int, otherwise: str) -> None:
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(otherwise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("alone", "join"), help="join: while it answers a federation")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.only != "join":
            clicks = kills(Path(folder) / "alone", given.count, given.seed)
            sys.stdout.write(f"{given.count} kills: both stores agree, {clicks} answered clicks are all there\n")
        if given.only != "alone":
            rounds = join_kills(Path(folder) / "joined", given.count, given.seed)
            sys.stdout.write(f"{given.count} kills of who answers: {rounds} rounds, all in `sent`, each charged once\n")


if __name__ == "__main__":
    main()
