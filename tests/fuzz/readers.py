"""Every reader of files, or of bytes, that may come from somebody else: a small example for it, and what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.made_up import made_up_data

DATA = made_up_data(queries=4, longest=8)
LETOR = "".join(f"{q % 3} qid:{q // 4} 1:{q / 7:.3f} 2:{q} 5:-1.5e-2 # doc{q}\n" for q in range(16))
KEY = bytes(range(32))


@dataclass(frozen=True)
class Reader:
    """How to make an example in an empty folder, and how to read it."""

    make: Callable[[Path], None]
    read: Callable[[Path], Any]  # what it says, as arrays, text and numbers; None where it says nothing
    sealed: bool = False  # whether a change must be found: by a checksum, or a key


def _save_linear(folder: Path) -> None:
    from fedrank.ranking.model import Model, save_model
    from fedrank.ranking.rankers import Linear

    ranges = np.stack([np.zeros(5, np.float32), np.ones(5, np.float32)])
    notes = {"experiment": "x", "fold": 1, "rounds": [1, 2.5, None]}
    model = Model(Linear(), np.linspace(-1, 1, 5), 5, "global", ("a", "b", "c", "d", "e é"), notes, ranges)
    save_model(model, folder / "model.json")


def _save_neural(folder: Path) -> None:
    from fedrank.ranking.model import Model, save_model
    from fedrank.ranking.rankers import Mlp

    save_model(Model(Mlp(2), np.linspace(-1, 1, 28).reshape(2, 14), 5), folder / "model.json")


def _grown() -> Any:
    from fedrank.trees.boosters import Lambdamart

    train = made_up_data(queries=30, longest=30)
    return Lambdamart(trees=3, leaves=4, min_data_in_leaf=3)(train, seed=1)


def _save_forest(folder: Path) -> None:
    from fedrank.trees.forest import save_forest

    save_forest(_grown(), folder / "model.json")


def _save_text(folder: Path) -> None:
    from fedrank.trees.forest import write_text

    write_text(_grown(), folder / "model.txt")


def _save_foreign_text(folder: Path) -> None:
    (folder / "model.txt").write_text(_grown().text)


def _save_mixture(folder: Path) -> None:
    from fedrank.ranking.model import Model
    from fedrank.ranking.rankers import Linear
    from fedrank.trees.mixtures import LinearMix, Stacked
    from fedrank.trees.model_files import save_any

    linear = Model(Linear(), np.ones(5), 5)
    both = LinearMix((linear, _grown()), (0.25, 0.75), "fixed", (1.0, 2.0))
    save_any(Stacked((both, linear), Model(Linear(), np.ones(7), 7), "both"), folder / "model.json")


def _model(path: Path) -> Any:
    from fedrank.ranking.model import Model
    from fedrank.trees.model_files import load_model

    model = load_model(path)
    own = model.weights if isinstance(model, Model) else None
    client = 0 if own is not None and own.ndim == 2 else None
    said = model.features, model.normalised, model.feature_names, model.notes, getattr(model, "ranges", None)
    scores = model.score(replace(DATA, feature_names=())) if model.features < 20 and client is None else None
    return own, *said, scores


def _save_checkpoint(folder: Path) -> None:
    from fedrank.experiments.runner.writer import _checksum, _packed

    parts = {"round": 3, "csv_bytes": 10, "quality": 0.5, "tally": {"interactions": 4}, "weights": np.arange(5.0)}
    parts |= {"rule.memory": np.ones((2, 3), np.float32).T, "excluded": {"1": [2, 3]}}
    packed: dict[str, Any] = {name: _packed(part) for name, part in parts.items()}
    np.savez(folder / "checkpoint.npz", **packed, checksum=_checksum(packed))


def _checkpoint(folder: Path) -> Any:
    from fedrank.experiments.runner.writer import _read_checkpoint

    kept = _read_checkpoint(folder)
    return None if kept is None else sorted((name, part) for name, part in kept.items() if name != "checksum")


SPEC = """\
title = "A question"
rounds = 100
measures = ["ndcg@10", "mrr@10"]
seeds = [1, 2]
[data]
name = "synthetic-mq2007"
folds = [1]
[clients]
count = 10
partition = { name = "iid" }
malicious = 1
[learner]
name = "pdgd"
ranker = { name = "mlp", hidden = 4 }
[attack]
name = "lie"
[mechanism]
name = "gaussian"
clip = 1.0
noise = 1.5
[vary]
"aggregator.name" = ["mean", "median"]
[variants.fast]
learner.rate = 0.5
[[claims]]
says = "median costs"
higher = "fast,aggregator.name=mean"
lower = "fast,aggregator.name=median"
"""


def _save_spec(folder: Path) -> None:
    (folder / "spec.toml").write_text(SPEC, encoding="utf-8")


def _spec(folder: Path) -> Any:
    from fedrank.experiments.spec.source import read_spec

    return read_spec(folder / "spec.toml", trust=False).toml()


def _save_runs(folder: Path) -> None:
    from tests.experiments.report.made_up_runs import write_run

    path = write_run(folder, rounds=6, queries=4)
    (path / "clients.csv").write_text("client,ndcg@10\n0,0.5\n1,0.25\n")
    (path / "rewards.csv").write_text("query,reward\na,0.5\nb,0.25\n")
    (path.parent.parent / "experiment.toml").write_text((path / "spec.toml").read_text())


def _runs(folder: Path) -> Any:
    from fedrank.experiments.report.analysis import analyse
    from fedrank.experiments.runner.runs import load_runs

    runs = load_runs(folder)
    for run in runs.checked().finished:
        run.spec.rounds_asked, run.card, run.receipt, run.clients  # noqa: B018
    analyse(runs)
    return runs.table()


def _save_letor(folder: Path) -> None:
    (folder / "train.txt").write_text(LETOR)


def _letor(folder: Path) -> Any:
    from fedrank.data.letor import read_letor

    data = read_letor(folder / "train.txt", cache=False)
    return data.features, data.grades, data.query_ids


def _save_letter(folder: Path) -> None:
    from fedrank.silo.letters import seal

    (folder / "letter").write_bytes(seal(b"what only b may read " * 20, "model", _parties()[0], _parties()[1].name))


def _letter(folder: Path) -> Any:
    from fedrank.silo.letters import unseal

    return unseal((folder / "letter").read_bytes(), "model", _parties()[1])


def _parties() -> Any:
    from fedrank.silo.keys import public_of
    from fedrank.silo.letters import party

    a, b = KEY, KEY[::-1]
    return party(a, [public_of(b)]), party(b, [public_of(a)])


def _save_packed_sketch(folder: Path) -> None:
    _save_sketch(folder, noise=1.0)


def _save_sketch(folder: Path, noise: float = 0.0) -> None:
    from fedrank.data.documents import Documents
    from fedrank.privacy.noise import SecureSource
    from fedrank.silo.files import sketch_collection
    from fedrank.silo.rtk import TopKRule
    from fedrank.silo.sketch import Sketcher

    some = [str(number) for number in range(4)]
    documents = Documents(some, ["flu"] * 4, [f"word{one} flu" for one in some], [""] * 4)
    sketcher, rule = Sketcher(width=20, depth=4, noise=noise), TopKRule(alpha=2, k=3)
    sketch_collection(documents, KEY, sketcher, folder / "a.sketch", rule=rule, source=SecureSource(KEY))


def _sketch(folder: Path) -> Any:
    from fedrank.silo.files import open_sketch

    file = open_sketch(folder / "a.sketch")
    cells, signs = file.sketcher.locate(["flu"], file.hashing(KEY))
    return file.sketcher, [field.query(cells[0], signs[0]) for field in file.fields.values()]


def _save_keys(folder: Path) -> None:
    from fedrank.silo.keys import new_identity, new_key

    new_key(folder / "shared.key")
    new_identity(folder / "a.secret")


def _keys(folder: Path) -> Any:
    from fedrank.silo.keys import read_key, read_public, read_secret

    return read_key(folder / "shared.key"), read_secret(folder / "a.secret"), read_public(folder / "a.public")


def _save_message(folder: Path) -> None:
    from fedrank.wire import pack

    (folder / "message").write_bytes(pack(_label(), {"weights": np.arange(5, dtype=np.float32), "note": b"bytes"}))


def _label() -> Any:
    from fedrank.wire import Label

    return Label("letter", b"a run of 16 byte", 7, 2, 31)


def _message(folder: Path) -> Any:
    from fedrank.wire import Part, unpack

    return unpack((folder / "message").read_bytes(), _label(), {"weights": Part("<f4", 5), "note": Part("|S", 40)})


def _save_history(folder: Path) -> None:
    from fedrank.unlearning.history import HistoryWriter

    with HistoryWriter(folder, 4, 3, 1) as writer:
        for number in range(1, 5):
            writer.add(number, np.arange(number), np.full((number, 3), number, np.float32), np.ones(3) * number)


def _history(folder: Path) -> Any:
    from fedrank.unlearning.history import History

    return [tuple(stored) for stored in History.open(folder)]


def _save_ledger(folder: Path) -> None:
    from fedrank.privacy.ledger import Ledger

    with Ledger.open(folder, 4) as ledger:
        ledger.reserve({1: np.array([0, 2]), 2: np.array([1, 3])})
        ledger.keep(1, np.arange(3.0))


def _ledger(folder: Path) -> Any:
    from fedrank.privacy.ledger import Ledger

    with Ledger.open(folder, 4) as ledger:
        return ledger.participations(), ledger.rounds()


def _save_split(folder: Path) -> None:
    from fedrank.trees.split_folder import FORMAT

    clients = '[{"name": "a", "folder": "client-1"}, {"name": "b", "folder": "client-2"}]'
    (folder / "split.json").write_text(f'{{"format": {FORMAT!r}, "clients": {clients}}}'.replace("'", '"'))


def _split(folder: Path) -> Any:
    from fedrank.trees.split_folder import read_split

    return read_split(folder)


def _save_collection(folder: Path) -> None:
    for name in ("corpus", "queries"):
        (folder / f"{name}.jsonl").write_text(
            "".join(f'{{"_id": "{i}", "title": "t", "text": "word {i}"}}\n' for i in range(5))
        )
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{i}\t{i}\t1\n" for i in range(5)))


def _collection(folder: Path) -> Any:
    from fedrank.data.collection import read_collection

    found = read_collection(folder)
    return found.documents.ids, found.offsets, found.grades


def _save_clicks(folder: Path) -> None:
    lines = "".join(f"{i % 3}\t2006-03-0{i % 9 + 1} 10:00:00\tquery {i % 4}\t{i % 5}\n" for i in range(12))
    (folder / "log.tsv").write_text("user\ttime\tquery\tdocument\n" + lines)


def _clicks(folder: Path) -> Any:
    from fedrank.data.click_log import read_clicks
    from fedrank.data.documents import Documents

    some = [str(number) for number in range(5)]
    clicks = read_clicks(folder / "log.tsv", Documents(some, ["t"] * 5, ["b"] * 5, ["u"] * 5))
    return vars(clicks)


def _save_log_folder(folder: Path) -> None:
    from tests.made_up import made_up_log

    made_up_log(folder / "log", [0, 1, 0, 2, 0, 1, 0, 1, 0, 2])


def _log_folder(folder: Path) -> Any:
    from fedrank.data.log_fold import log_fold

    fold = log_fold(folder / "log", test_share=0.25, how="none")
    return fold.train.features, fold.train.grades, fold.test.features, fold.test.grades


def _save_shown_folder(folder: Path) -> None:
    from tests.made_up import made_up_shown

    draws = {"temperature": 0.5, "keep": 0.5, "dwell": np.full((8, 5), np.nan), "scores": np.ones((8, 5))}
    made_up_shown(folder / "log", [0, 1, 0, 2, 0, 1, 0, 1], longest=5, documents=8, **draws)


def _shown_folder(folder: Path) -> Any:
    from fedrank.data.logs import load_log

    return *_log_folder(folder), load_log(folder / "log").drawn


def _about_shown_folder(folder: Path) -> Any:
    from fedrank.data.describe_log import describe_log, description_as_json
    from fedrank.data.logs import load_log
    from fedrank.experiments.report.data_output import about_log
    from fedrank.experiments.runner.cards import log_card

    log = load_log(folder / "log")
    found = describe_log(log)
    return description_as_json(found), about_log(found), log_card(log).not_covered


def _save_ubi(folder: Path) -> None:
    query = {"query_id": "q1", "client_id": "a", "user_query": "rain", "timestamp": "2024-05-01T10:00:00.000+0000"}
    query |= {"query_response_hit_ids": ["0", "3", "1"], "query_attributes": {"from": 10}}
    where = {"object": {"object_id": "3", "object_id_field": "id"}, "position": {"ordinal": 2}, "dwell_time": 4}
    event = {"action_name": "click", "query_id": "q1", "client_id": "a", "timestamp": 1714557601000}
    (folder / "q.ndjson").write_text(json.dumps(query) + "\n")
    (folder / "e.ndjson").write_text(json.dumps({"_source": event | {"event_attributes": where}}) + "\n")


def _ubi(folder: Path) -> Any:
    from fedrank.data.documents import Documents
    from fedrank.data.ubi import UbiRules, read_ubi

    some = [str(number) for number in range(5)]
    files = folder / "q.ndjson", folder / "e.ndjson"
    rows = read_ubi(*files, Documents(some, ["t"] * 5, ["b"] * 5, ["u"] * 5), folder / "none", UbiRules())
    return vars(rows) if len(rows) and not rows.left_out else None


def _save_shown(folder: Path) -> None:
    lines = "".join(f"{i % 3}\t2006-03-0{i + 1} 10:00:00\tquery {i % 4}\t[0, {i % 4 + 1}]\t0\n" for i in range(3))
    (folder / "log.tsv").write_text("user\ttime\tquery\tshown\tclicked\n" + lines)


def _shown(folder: Path) -> Any:
    from fedrank.data.documents import Documents
    from fedrank.data.shown import is_shown_table, read_shown

    some = [str(number) for number in range(5)]
    path = folder / "log.tsv"
    rows = read_shown(path, Documents(some, ["t"] * 5, ["b"] * 5, ["u"] * 5))
    return (is_shown_table(path), vars(rows)) if len(rows) and not rows.left_out else None


def _save_words(folder: Path) -> None:
    (folder / "words.txt").write_text("# names\nann\nbob\n")


def _words(folder: Path) -> Any:
    from fedrank.data.redaction import read_words

    return read_words(folder / "words.txt")


def _save_spending(folder: Path) -> None:
    from fedrank.silo.spending import Limits, SiloLedger

    ledger = SiloLedger(folder / "a.spending", Limits(querier=50.0))
    ledger.charge_sketches(["x", "y"], 2.0)
    ledger.charge_sketches(["x"], 4.0)


def _spending(folder: Path) -> Any:
    from fedrank.silo.spending import SiloLedger

    ledger = SiloLedger(folder / "a.spending")
    return ledger.owner, ledger.totals(), ledger.limits


def _save_people(folder: Path) -> None:
    from fedrank.privacy.accounting import GaussianEvent, ResponseEvent
    from fedrank.privacy.guarantees import Guarantee
    from fedrank.privacy.population import FORGOTTEN, LedgerTerms, Population, open_ledger

    Population.open(folder / "town", 4, 1e-5, 8.0)
    for name, event in (("a", GaussianEvent(3.0)), ("b", ResponseEvent(0.9))):
        terms = LedgerTerms(4, 1e-5, (Guarantee("server", event, "a test", slack=1e-9), Guarantee("public", None, "")))
        with open_ledger(folder / "town" / name / "ledger", terms) as ledger:
            ledger.reserve({1: np.array([0, 2]), 2: np.arange(4)})
    (folder / "town" / FORGOTTEN).write_text('{"forgotten": "2026-01-01", "because": "a test"}\n')


def _people(folder: Path) -> Any:
    from fedrank.experiments.report.privacy_output import about_ledgers
    from fedrank.privacy.population import Population

    population = Population.read(folder / "town")
    population.accounts()
    return population, about_ledgers([folder / "town"])


def _save_card(folder: Path) -> None:
    from fedrank.experiments.runner.folder import Card, Paid

    paid = Paid("server", 2.0, 1.0, 4, "participation", 1e-5, "client", "zero-out", "a test")
    town = {"name": "town", "limit": 8.0, "runs": 1, "delta": 1e-5, "epsilon": {"server": 2.0}, "forgotten": []}
    settings: Any = {"mechanism": {"name": "gaussian"}, "who_sees_what": "the server", "delta": 1e-5, "budget": 8.0}
    Card(**settings, promises=(paid,), population=town, files={"model.json": "0"}).write(folder)


def _card(folder: Path) -> Any:
    from fedrank.experiments.runner.cards import about_population, read_card
    from fedrank.experiments.runner.privacy import summary

    card = read_card(folder)
    if card is None:
        return None
    return card, card.claim, card.spent, summary(card), card.population and about_population(card.population)


def _save_documents(folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile(folder / "a.docx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", "<w:d xmlns:w='w'><w:p><w:t>one &amp; two</w:t></w:p></w:d>")
    mail = "Subject: =?utf-8?q?gr=C3=BCn?=\nFrom: A <a@b.org>\nDate: Mon, 01 Jan 2024 10:00:00 +0000\nContent-Type: "
    mail += "multipart/mixed; boundary=x\n\n--x\nContent-Type: text/plain; charset=latin-1\n\nyes\n--x--\n"
    (folder / "b.eml").write_text(mail)
    (folder / "c.mbox").write_text(f"From x\n{mail}\nFrom y\n{mail}")
    (folder / "d.jsonl").write_text('{"id": 1, "title": "t", "text": "x", "date": "2024-01-01"}\n' * 3)
    (folder / "e.html").write_text("<title>t</title><p>one<script>two</script><!-- three -->&#228;</p>")
    links = '<DT><H3>F</H3><DL><DT><A HREF="https://a.org/b" ADD_DATE="1704103200">A</A><DD>d</DL>'
    (folder / "f.html").write_text(f"<!DOCTYPE NETSCAPE-Bookmark-file-1>{links}")


def _save_sources(folder: Path) -> None:
    from tests.search.reading import zipped
    from tests.search.test_databases import CHROME, FIREFOX, ZOTERO, database
    from tests.search.test_packed import CELLS, SHARED

    zipped(folder / "a.xlsx", {"xl/sharedStrings.xml": SHARED, "xl/worksheets/sheet1.xml": CELLS})
    zipped(folder / "b.odt", {"content.xml": "<o:d xmlns:o='o'><o:h>one</o:h><o:p>two<o:s/>three</o:p></o:d>"})
    zipped(folder / "c.pptx", {"ppt/slides/slide1.xml": "<a:p xmlns:a='a'>four</a:p>"})
    zipped(folder / "d.epub", {"x.opf": "<dc:title>Five</dc:title>", "y.xhtml": "<p>six &amp; more</p>"})
    (folder / "e.md").write_text("---\ntitle: Seven\ndate: 2024-01-01\n---\n[[eight|nine]] #ten\n")
    (folder / "i.rtf").write_bytes(rb"{\rtf1\ansi\ansicpg1252{\*\x y}{\b fif}\uc1\u8364?t\'e9en\par{\info z}}")
    (folder / "f.py").write_text("def readFile(some_name): return XMLParser2\n")
    exif = b"II*\0\x08\0\0\0\x02\0\x0e\x01\x02\0\x06\0\0\0\x26\0\0\0\x69\x87\x04\0\x01\0\0\0\x08\0\0\0\0\0\0\0eleven"
    iptc = b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\x0b\x1c\x02\x05\0\x06twelve"
    xmp = b"<x:xmpmeta><dc:title><rdf:li>thirteen</rdf:li></dc:title></x:xmpmeta>"
    blocks = ((0xFFE1, b"Exif\0\0" + exif), (0xFFED, iptc), (0xFFE1, xmp))
    jpeg = b"".join(kind.to_bytes(2) + (len(block) + 2).to_bytes(2) + block for kind, block in blocks)
    (folder / "g.jpg").write_bytes(b"\xff\xd8" + jpeg + b"\xff\xda\0\2")
    text = b"tEXtDescription\0fourteen"
    (folder / "h.png").write_bytes(b"\x89PNG\r\n\x1a\n" + (len(text) - 4).to_bytes(4) + text + bytes(4))
    (folder / "firefox").mkdir()
    (folder / "firefox" / "prefs.js").touch()
    database(folder / "firefox" / "places.sqlite", FIREFOX)
    (folder / "chrome").mkdir()
    (folder / "chrome" / "Preferences").touch()
    database(folder / "chrome" / "History", CHROME)
    database(folder / "zotero" / "zotero.sqlite", ZOTERO)


MEMBERS = {
    "a.docx": "word/document.xml",
    "b.odt": "content.xml",
    "c.xlsx": "xl/worksheets/sheet1.xml",
    "d.xlsx": "xl/sharedStrings.xml",
    "e.epub": "x.opf",
    "f.epub": "x.xhtml",
    "g.docx": "docProps/core.xml",
}


def _save_members(folder: Path) -> None:
    from tests.search.test_packed import CELLS, SHARED

    (folder / "a.docx").write_text("<?xml version='1.0' encoding='utf-8'?><w:p xmlns:w='w'>one &amp; &#228; two</w:p>")
    (folder / "b.odt").write_text("<o:d xmlns:o='o'><o:h>one</o:h><o:p>two<o:s/><![CDATA[three]]></o:p></o:d>")
    (folder / "c.xlsx").write_text(CELLS)
    (folder / "d.xlsx").write_text(SHARED)
    (folder / "e.epub").write_text(
        "<package><dc:title>Five</dc:title><dc:creator id='x'>A &amp; B</dc:creator></package>"
    )
    about = "<c:coreProperties xmlns:c='c'><c:title>one</c:title><c:keywords>two</c:keywords></c:coreProperties>"
    (folder / "g.docx").write_text(about)
    (folder / "f.epub").write_text("<title>t</title><p>one<script>two</script><!-- three -->&#228;</p>")


def _members(folder: Path) -> Any:
    import io
    import zipfile

    from fedrank.search.packed import read_packed

    said = []
    for name, member in MEMBERS.items():
        if name == "d.xlsx":  # texts that the cells of the other one refer to
            continue
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(member, (folder / name).read_bytes())
            if name == "c.xlsx":
                archive.writestr(MEMBERS["d.xlsx"], (folder / "d.xlsx").read_bytes())
        said += [(name, one.title, one.text) for one in read_packed(packed.getvalue(), name)]
    return said


def _save_hostile(folder: Path) -> None:
    from tests.search.hostile import write_hostile

    write_hostile(folder)


def _hostile(folder: Path) -> Any:
    """What is read of hostile files, and why the others are refused; it is a refusal if one more is."""
    from tests.search.hostile import READABLE
    from tests.search.reading import read

    documents, reasons = read(folder)
    return None if len(documents) < len(READABLE) else (sorted(documents.items()), sorted(reasons.items()))


def _documents(folder: Path) -> Any:
    from fedrank.search.readers import Unreadable
    from fedrank.search.sources import FoundFile, walk

    said = []
    for found in walk(folder):
        if not isinstance(found, FoundFile):
            continue
        for piece in found.pieces():
            if isinstance(piece, Unreadable):
                raise piece
            said.append((found.key, *(getattr(piece, name) for name in piece.__dataclass_fields__)))
    return said


def _address() -> Any:
    from fedrank.deploy.signed_files import FileAddress

    return FileAddress("0" * 32, "answer", "anna", "", "signed")


def _save_signed(folder: Path) -> None:
    from fedrank.deploy.identity import IdentityKey
    from fedrank.deploy.signed_files import write_signed

    write_signed(folder / "signed", IdentityKey(KEY), _address(), b"noised numbers")


def _signed(folder: Path) -> Any:
    from fedrank.deploy.identity import IdentityKey
    from fedrank.deploy.signed_files import read_signed

    return read_signed(folder / "signed", _address(), IdentityKey(KEY).public, 1000)


def _save_federation(folder: Path) -> None:
    from fedrank.deploy.folder_members import FEDERATION, FolderFederation, FolderMember
    from fedrank.deploy.identity import IdentityKey

    key, site = IdentityKey(KEY), FolderMember("anna", IdentityKey(bytes(32)).public, 0)
    made = FolderFederation("0" * 32, "friends", key.public, 3, (site,))
    (folder / FEDERATION).write_bytes(made.dump(key))


def _federation(folder: Path) -> Any:
    from fedrank.deploy.folder_members import read_invitation

    return read_invitation(folder)


def _save_backup(folder: Path) -> None:
    from fedrank.deploy.backup import backup

    (folder / "site" / "outbox" / "ab").mkdir(parents=True)
    (folder / "site" / "site.toml").write_text('name = "anna"')
    (folder / "site" / "outbox" / "ab" / "00000001-0000").write_bytes(bytes(range(256)))
    backup(folder / "site", folder / "backup.tar")
    (folder / "site" / "site.toml").unlink()
    (folder / "site" / "outbox" / "ab" / "00000001-0000").unlink()


def _backup(folder: Path) -> Any:
    import tempfile

    from fedrank.deploy.archive import read_archive
    from fedrank.deploy.backup import is_known

    with open(folder / "backup.tar", "rb") as file, tempfile.TemporaryDirectory() as fresh:
        contents = read_archive(file, folder / "backup.tar", is_known)
        contents.extract(file, Path(fresh))
        return [(name, (Path(fresh) / name).read_bytes()) for name in contents.files]


def _save_trial(folder: Path) -> None:
    import json

    from fedrank.engine.team_draft import click_line, search_line, team_draft
    from fedrank.engine.trial_decision import TrialRules
    from fedrank.engine.trial_record import TrialModel, TrialPlan, write_plan

    old, new = (TrialModel(name, f"{name}.json", name * 20) for name in ("old", "new"))
    write_plan(TrialPlan("t", "own", old, new, TrialRules(), "2026", "a", "", "key", 3, "current.json"), folder)
    lines = []
    for number in range(4):
        lists = [["a", "b", "c"], ["a", "c", "b"]]
        mixed = team_draft(*lists, 3, "key", f"s{number}")
        lines.append(search_line(mixed, *lists, f"s{number}", "x", 1_800_000_000 + number, "t"))
        lines.append(click_line(f"s{number}", "x", 1_800_000_009, "b"))
    ubi = {"query_id": "s9", "timestamp": 1_800_000_000_000, "query_response_hit_ids": ["a", "b"]}
    lines.append(json.dumps(ubi | {"query_attributes": {"teams": ["old", "new"]}}))
    place = {"object": {"object_id": "a"}, "team": "old"}
    lines.append(json.dumps({"action_name": "click", "query_id": "s9", "event_attributes": place}))
    solr = [{"id": "a", "[interleaving]": "old"}, {"id": "b", "[interleaving]": "new"}]
    lines.append(json.dumps({"query_id": "s8", "timestamp": "2027-01-15T08:00:00Z", "response": {"docs": solr}}))
    hits = [{"_id": "a", "_search_configuration_id": "A"}, {"_id": "b", "_search_configuration_id": "B"}]
    lines.append(json.dumps({"query_id": "s7", "timestamp": 1_800_000_000, "response": {"hits": hits}}))
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")


def _trial(folder: Path) -> Any:
    from fedrank.engine.trial import EngineTrial

    trial = EngineTrial(folder)
    trial.read([folder / "events.jsonl"], {"A": "old", "B": "new"}, complete=True)
    return str(vars(trial.count())), trial.judged().ruling


def _save_read_trial(folder: Path) -> None:
    from fedrank.engine.adoption import roll_back
    from fedrank.engine.trial import EngineTrial

    _save_trial(folder)
    trial = EngineTrial(folder)
    trial.read([folder / "events.jsonl"], {"A": "old", "B": "new"}, complete=True)
    (folder / "events.jsonl").unlink()
    plan = (folder / "trial.json").read_text().replace(f'"{"old" * 20}"', '""')
    (folder / "trial.json").write_text(plan)  # the old one is the engine's own order, which has no file
    roll_back(EngineTrial(folder), "a test", "somebody")


def _read_trial(folder: Path) -> Any:
    from fedrank.engine.adoption import read_current
    from fedrank.engine.trial import EngineTrial
    from fedrank.engine.trial_summary import about_trial

    trial = EngineTrial(folder)
    count = trial.count()
    about_trial(trial, count, trial.judged(count))
    return str(vars(count)), str(trial.history()), str(read_current(folder / "current.json"))


def _save_engine_log(folder: Path) -> None:
    values = [{"name": "a", "value": 1.5}, {"name": "b"}, {"name": "extra_logging", "value": {}}]
    hits = [{"_id": f"d{i}", "fields": {"_ltrlog": [{"set": values}]}} for i in range(3)]
    docs = [{"id": "d1", "[features]": "a=1.5,b=-2.0E-3"}, {"id": "d2", "[features]": "b:7"}]
    rows = [
        {"query_id": "q1", "hits": {"hits": hits}},
        {"responseHeader": {"params": {"query_id": "q2"}}, "response": {"docs": docs}},
    ]
    (folder / "log.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "clicks.csv").write_text('query_id,document\nq1,d1\n"q2",d2\n')
    event = {"action_name": "click", "query_id": "q1", "event_attributes": {"object": {"object_id": "d2"}}}
    (folder / "clicks.jsonl").write_text(json.dumps(event) + "\n")
    (folder / "queries.tsv").write_text("query_id\tquery\ttime\nq1\tred shoes\t1700000000\nq2\tblue\t\n")


def _engine_log(folder: Path) -> Any:
    from fedrank.engine.compare import read_queries
    from fedrank.engine.read_log import as_letor, read_joined_clicks, read_logged

    logged = read_logged(folder / "log.ndjson", ("a", "b"))
    clicks = [read_joined_clicks(folder / name, logged).grades for name in ("clicks.csv", "clicks.jsonl")]
    asked = {key: (one.text, one.time) for key, one in read_queries(folder / "queries.tsv").items()}
    return logged.searches, logged.documents, logged.features, clicks, as_letor(logged, clicks[0]).offsets, asked


def _save_places(folder: Path) -> None:
    (folder / "propensities.json").write_text('{"slope": [1, 0.5, null], "extra": [0, 0.01, null], "how": "x"}\n')


def _places(folder: Path) -> Any:
    from fedrank.experiments.runner.position_bias import read_propensities

    found = read_propensities(folder / "propensities.json")
    return found.slope, found.extra


READERS = {
    "linear model": Reader(_save_linear, _model, sealed=True),
    "neural models of clients": Reader(_save_neural, _model, sealed=True),
    "forest": Reader(_save_forest, _model, sealed=True),
    "text of a forest": Reader(_save_text, lambda folder: _model(folder / "model.txt"), sealed=True),
    "text of LightGBM": Reader(_save_foreign_text, lambda folder: _model(folder / "model.txt")),
    "mixture": Reader(_save_mixture, _model, sealed=True),
    "checkpoint": Reader(_save_checkpoint, _checkpoint, sealed=True),
    "spec": Reader(_save_spec, _spec),
    "run folder": Reader(_save_runs, _runs),
    "LETOR": Reader(_save_letor, _letor),
    "propensities": Reader(_save_places, _places),
    "collection": Reader(_save_collection, _collection),
    "search log": Reader(_save_clicks, _clicks),
    "log folder": Reader(_save_log_folder, _log_folder),
    "folder of shown lists": Reader(_save_shown_folder, _shown_folder),
    "description of shown lists": Reader(_save_shown_folder, _about_shown_folder),
    "UBI": Reader(_save_ubi, _ubi),
    "table of shown lists": Reader(_save_shown, _shown),
    "words to redact": Reader(_save_words, _words),
    "spending of a silo": Reader(_save_spending, _spending),
    "split": Reader(_save_split, _split),
    "message": Reader(_save_message, _message, sealed=True),
    "letter": Reader(_save_letter, _letter, sealed=True),
    "sketch": Reader(_save_sketch, _sketch, sealed=True),
    "packed sketch": Reader(_save_packed_sketch, _sketch, sealed=True),
    "keys": Reader(_save_keys, _keys),
    "history": Reader(_save_history, _history, sealed=True),
    "ledger": Reader(_save_ledger, _ledger),
    "signed file": Reader(_save_signed, _signed, sealed=True),
    "federation of a folder": Reader(_save_federation, _federation, sealed=True),
    "backup": Reader(_save_backup, _backup, sealed=True),
    "population": Reader(_save_people, _people),
    "privacy card": Reader(_save_card, _card),
    "documents to search": Reader(_save_documents, _documents),
    "other sources to search": Reader(_save_sources, _documents),
    "hostile files to search": Reader(_save_hostile, _hostile),
    "members of office files": Reader(_save_members, _members),
    "trial": Reader(_save_trial, _trial),
    "trial that was read": Reader(_save_read_trial, _read_trial),
    "log of an engine": Reader(_save_engine_log, _engine_log),
}


def flat(value: Any) -> Iterator[bytes]:
    """What was read, as bytes that can be compared."""
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, dict):
        for key in value:
            yield from flat((key, value[key]))
    elif isinstance(value, (list, tuple)):
        yield b"%d" % len(value)
        for one in value:
            yield from flat(one)
    else:
        yield os.fsencode(repr(value))
