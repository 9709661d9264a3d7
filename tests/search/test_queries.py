"""The query language: how it is understood, and what it finds, next to a plain search through all documents."""

from __future__ import annotations

import random
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.live_features import LIVE_1
from fedrank.data.text import stemmer, tokens
from fedrank.search.client import SearchClient
from fedrank.search.index import Engine, edits, tags_of
from fedrank.search.queries import day_of, folders_of, parse
from fedrank.search.results import Filters
from tests.search.made_up import Clock, opened
from tests.search.stored import add_documents, stored

pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")


@pytest.mark.parametrize(
    ("query", "words", "required", "excluded"),
    [
        ("night train", "night train", [], []),
        ('"night train" berlin', "night train berlin", [("exact", "night train")], []),
        ("“night train” „to it“", "night train to it", [("exact", "night train"), ("exact", "to it")], []),
        ('"a b", c', "a b c", [("exact", "a b")], []),
        ('"" x', '"" x', [], []),
        ("inv* roof", "inv roof", [("prefix", "inv")], []),
        ("in*voice", "in*voice", [], []),
        ("roof -draft -“old one”", "roof", [], [("exact", "draft"), ("exact", "old one")]),
        ("-well-known -inv* x", "x", [], [("exact", "well-known"), ("prefix", "inv")]),
        ("a - b --json", "a - b --json", [], []),
        ("title:roof TITLE:“wet roof”", "roof wet roof", [("title", "roof"), ("title", "wet roof")], []),
        ("in:~/Mail from:anna@x.org", "", [("in", "~/Mail"), ("from", "anna@x.org")], []),
        ("tag:#Garden -tag:old", "", [("tag", "garden")], [("tag", "old")]),
        ("type:.PDF type:bookmark -type:mail", "", [("type", "pdf"), ("type", "page")], [("type", "mail")]),
        ("http://a.org/b 10:30 a:b", "http://a.org/b 10:30 a:b", [], []),
    ],
)
def test_how_a_query_is_understood(query, words, required, excluded):
    found = parse(query)
    assert (found.words, list(found.required), list(found.excluded)) == (words, required, excluded)
    assert found.notes == ()
    assert bool(found) == bool(required or excluded)


@pytest.mark.parametrize(
    ("query", "words", "note"),
    [
        ("before:tomorrow", "before:tomorrow", "a date has the form 2024-12-31"),
        ("after:2026-02-30 x", "after:2026-02-30 x", "a date has the form"),
        ("after:0099", "after:0099", "a date has the form"),
        ('roof "night train', 'roof "night train', "the closing quotation mark is missing"),
        ("a* roof", "a* roof", "at least two letters"),
        ("title: roof", "title: roof", "no word after the colon"),
        ("-type:a/b", "-type:a/b", "a type is mail, page"),
        (" ".join(f"-w{n}" for n in range(33)), "-w32", "at most 32 conditions"),
    ],
)
def test_what_is_not_understood_is_searched_as_words(query, words, note):
    found = parse(query)
    assert found.words == words
    assert len(found.notes) == 1
    assert note in found.notes[0]


def test_conditions_in_words():
    said = parse('"a b" co* title:d -e type:page -in:f after:2026-01 before:2026-02-03').meaning
    assert said == (
        "exactly “a b”", "words beginning with “co”", "“d” in the title", "type web page",
        "dates from 2026-01-01 on", "dates before 2026-02-03", "without “e”", "without folder “f”",
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_parsed_and_keeps_its_words(text):
    found = parse(text)
    of_conditions = " ".join(one.value for one in found.required + found.excluded)
    said = f"{found.words} {of_conditions}".casefold()
    for word in tokens(text):
        assert word in tokens(said) or re.search(r"[:“”„‟«»]", text), "no word is lost"


@pytest.mark.parametrize(
    ("text", "day"), [("2026", "2026-01-01"), ("2026-3", "2026-03-01"), ("2024-02-29", "2024-02-29")]
)
def test_days(text, day):
    assert day_of(text).isoformat() == day


def test_names_of_folders():
    assert folders_of("C:\\Users\\Anna") == ["c:", "users", "anna"]
    assert folders_of("~/Mail")[0] == ""
    assert folders_of("Reports/2024/") == ["reports", "2024"]
    assert folders_of("e\u0301te\u0301") == ["\u00e9t\u00e9"], "macOS writes accents as separate signs"


def test_tags_are_those_of_their_line_and_of_notes():
    text = "tags: [Garden, 'to do']\n\nA #roof, not a # heading, #1 or x#y.\nKeywords:\n  - one\n  - two words\n"
    assert tags_of(text, False) == ["garden", "to do", "one", "two words"]
    assert tags_of(text, True) == ["garden", "to do", "one", "two words", "roof"]
    assert len(tags_of("#x " + " ".join(f"#t{n}" for n in range(999)), True)) == 200


# what is found

WORDS = ["roof", "roofs", "roofing", "invoice", "invoices", "the", "train", "night"]
stem = stemmer("english")


def meets(text: str, field: str, value: str) -> bool:
    """Whether a document of one text, with its number as title, meets a condition."""
    words, wanted = text.split(), value.split()
    if field == "exact":
        return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))
    if field == "prefix":
        return any(word.startswith(value) for word in words)
    return stem(value) in map(stem, words)


TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
CONDITION = st.one_of(
    st.tuples(st.just("exact"), st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)),
    st.tuples(st.just("prefix"), st.sampled_from(["ro", "roofi", "inv", "trains"])),
    st.tuples(st.just("word"), st.sampled_from(WORDS)),
)
WRITTEN = {"exact": '"{}"', "prefix": "{}*", "word": "{}"}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Five hundred documents of few words, which are more than there are candidates."""
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(1, 6))) for _ in range(500)]
    rows = stored(tmp_path_factory.mktemp("many"), texts)
    yield texts, Engine(rows.store, LIVE_1)
    rows.store.close()


def search(engine, query, among=None):
    parsed = parse(query)
    terms = LIVE_1.engine_terms(parsed.words)
    return engine.candidates_for(terms, Filters(), False, among, parsed)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), CONDITION), min_size=1, max_size=4))
def test_as_a_search_through_all_documents_finds(many, conditions):
    texts, engine = many
    written = [("-" if exclude else "") + WRITTEN[field].format(value) for exclude, (field, value) in conditions]
    required = [one for exclude, one in conditions if not exclude and one[0] != "word"]
    excluded = [("exact" if field == "word" else field, value) for exclude, (field, value) in conditions if exclude]
    words = [value for exclude, (field, value) in conditions if not exclude and field == "word" and value != "the"]
    only_the = any(not exclude and one == ("word", "the") for exclude, one in conditions) and not words
    expected = {
        number
        for number, text in enumerate(texts, 1)
        if all(meets(text, *one) for one in required)
        and not any(meets(text, *one) for one in excluded)
        and (required or not (words or only_the) or any(meets(text, "word", one) for one in words or ["the"]))
    }
    found = search(engine, " ".join(written))
    assert found.found == len(expected)
    assert len(found.documents) == min(len(expected), 100)
    assert {*found.documents.tolist()} <= expected


def test_exact_words_beyond_the_first_candidates(tmp_path):
    rows = stored(tmp_path, [f"train night {n}" for n in range(300)] + ["a night train at last"])
    engine = Engine(rows.store, LIVE_1)
    assert search(engine, '"night train"').documents.tolist() == [301]
    assert search(engine, '"night train"', [1, 2]).found == 0
    assert search(engine, '"NIGHT Train" 7').documents.tolist() == [301], "other words need not occur"
    rows.store.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queries")
    files = {
        "Reports/2024/Roof invoice.md": "# Roofs of 2024\n\nThe night train arrives. #Garden/fence",
        "reports/2025/plan.txt": "Roofing plan\n\nNight trains arrive at the roof.",
        "mail.eml": "From: Anna Alba <anna@example.org>\nSubject: Roof\nDate: Mon, 5 Jan 2026 10:00:00 GMT\n\nNo plan.",
        "other.csv": "roof,plan\n1,2",
        "lines.jsonl": '{"_id": "1", "title": "One", "text": "roof\\ntags: old, new", "date": "2019-05-05"}\n',
    }
    for name, text in files.items():
        path = folder / "documents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    marks = folder / "marks.html"
    marks.write_text(
        '<!DOCTYPE NETSCAPE-Bookmark-file-1>\n<DL><DT><A HREF="https://roof.example.org/a" ADD_DATE="1500000000">'
        "Roof</A>"
    )
    with SearchClient(folder / "store", clock=Clock()) as client:
        client.index([folder / "documents"], bookmarks=[marks])
        yield client


def found(client, query, **filters):
    results = client.search(query, Filters(**filters)).results
    return sorted(one.where.rpartition("/")[2] + one.title * one.where.startswith("http") for one in results)


MD, TXT, EML, CSV, LINE, PAGE = "Roof invoice.md", "plan.txt", "mail.eml", "other.csv", "lines.jsonl", "aRoof"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("roof", [PAGE, CSV, EML, LINE, MD, TXT]),
        ('"roof"', [PAGE, CSV, EML, LINE, MD, TXT]),
        ('"roofs"', [MD]),
        ('"roof no"', []),  # exact words are not partly in the title
        ('"no plan"', [EML]),
        ("title:roof", [PAGE, EML, MD, TXT]),
        ("title:“of 2024”", [MD]),
        ("roof in:reports", [MD, TXT]),
        ("in:reports/2025", [TXT]),
        ("in:2025 in:REPORTS", [TXT]),
        ("in:/reports", []),
        ("in:roof.example.org", [PAGE]),
        ("from:anna", [EML]),
        ("from:anna@example.org", [EML]),
        ("from:“alba anna”", []),
        ("roof type:pdf", []),
        ("type:md", [MD]),
        ("type:text", [MD, TXT]),
        ("type:table", [CSV]),
        ("type:mail", [EML]),
        ("type:bookmark", [PAGE]),
        ("type:note", [LINE]),
        ("roof -type:file", [PAGE, EML, LINE]),
        ("tag:garden/fence", [MD]),
        ("tag:new", [LINE]),
        ("before:2020", [PAGE, LINE]),
        ("after:2019-05-05 before:2019-05-07", [LINE]),
        ("after:2026-01-05 before:2026-01-06", [EML]),
        ("-roof", []),
        ("plan -“no plan”", [CSV, TXT]),
        ("roo* -roofing", [PAGE, CSV, EML, LINE, MD]),
    ],
)
def test_fields(client, query, expected):
    assert found(client, query) == sorted(expected)


def test_an_absolute_folder_is_that_folder_only(client):
    documents = client.store.one("SELECT path FROM roots ORDER BY id")[0].decode() + "/"
    assert found(client, f'in:"{documents}reports"') == [MD, TXT], "names are compared without regard to case"
    assert found(client, f'in:"{documents}"') == sorted([CSV, EML, LINE, MD, TXT])


def test_filters_of_the_form_are_conditions_too(client):
    assert found(client, "roof", kind="text") == [MD, TXT]
    assert found(client, "roof", folder="2024") == [MD]
    assert found(client, "roof", sender="anna", kind="mail") == [EML]
    assert found(client, "", kind="table") == [CSV], "a filter without words lists documents"


def test_without_words_the_newest_is_first(client):
    shown = client.search("type:bookmark -in:nowhere before:2030")
    assert [one.title for one in shown.results] == ["Roof"]
    dates = [one.date for one in client.search("-nothing").results]
    assert dates == sorted(dates, reverse=True)
    assert len(dates) == 6
    assert client.search("").results == ()


def test_a_list_with_conditions_is_not_mixed_and_its_clicks_are_those_of_its_words(client):
    shown = client.search("“night train” type:md")
    assert client.rows.get(shown.impression).kind == "plain"
    client.open_document(shown.impression, 0)
    client._clock.wait(3600)
    after = client.search("night train")
    assert after.results[0].before
    assert after.results[0].where.endswith(MD)
    assert not client.search("train").results[0].before
    assert client.forget(query="night train").clicks == 1


def test_snippets_show_the_exact_words_and_beginnings(tmp_path):
    with opened(tmp_path) as client:
        text = "train " * 60 + "then a night train came. " + "words " * 60 + "The invoicing went on."
        (tmp_path / "documents" / "long.txt").write_text(text)
        client.index()
        shown = client.search('"night train"').results[0].snippet
        assert "then a night train came" in shown.text
        assert [shown.text[a:b] for a, b in shown.marked if shown.text[a:b] == "night"] == ["night"]
        shown = client.search("invoi*").results[0].snippet
        assert [shown.text[a:b] for a, b in shown.marked] == ["invoicing"]


# spelling


@pytest.mark.parametrize(
    ("query", "suggestion"),
    [
        ("rofo", "roof"),
        ("Invoyce roof", "invoice roof"),
        ("ivnoice", "invoice"),
        ("invvoises", "invoices"),  # two errors
        ("title:rofo -rofo type:pdf", "title:roof -roof type:pdf"),
        ("roof", ""),
        ("roofings", ""),  # another ending of a word that occurs
        ("x2026 rof", ""),  # digits; short
        ("zzzzzzzz", ""),
        ("", ""),
    ],
)
def test_suggestions(many, query, suggestion):
    _, engine = many
    assert engine.respelled(query) == suggestion


def test_no_suggestion_has_a_word_of_a_forgotten_document(tmp_path):
    with opened(tmp_path) as client:
        (tmp_path / "documents" / "secret.txt").write_text("leviathan")
        client.index()
        assert client.search("leviatan").suggestion == "leviathan"
        client.forget(document=client.search("leviathan").results[0].id)
        assert client.search("leviatan").suggestion == ""
        assert client.search("levia*").results == ()
        client.index()
        engine = b"".join(path.read_bytes() for path in (tmp_path / "store" / "engine").iterdir() if path.is_file())
        assert b"viathan" not in engine, "its words are not in the index any more"


@settings(max_examples=200, deadline=None)
@given(st.text("ab", max_size=5), st.text("ab", max_size=5))
def test_edits_are_as_few_as_possible(a, b):
    reached, distance = {a}, 0
    while b not in reached:
        distance += 1
        reached |= {changed for word in reached for changed in edited(word)}
    if distance <= 1:
        assert edits(a, b) == distance
    else:
        assert edits(a, b) >= distance  # a swapped pair is not edited again


def edited(word):
    for at in range(len(word) + 1):
        yield from (word[:at] + new + word[at:] for new in "ab")
        if at < len(word):
            yield word[:at] + word[at + 1 :]
            yield from (word[:at] + new + word[at + 1 :] for new in "ab")
        if at + 1 < len(word):
            yield word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def test_an_index_of_an_earlier_version_is_made_anew(tmp_path):
    tantivy = pytest.importorskip("tantivy")
    rows = stored(tmp_path, ["apple tree"])
    Engine(rows.store, LIVE_1)
    shutil.rmtree(tmp_path / "engine")
    (tmp_path / "engine").mkdir()
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("id", indexed=True, fast=True)
    builder.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
    tantivy.Index(builder.build(), path=str(tmp_path / "engine"))
    engine = Engine(rows.store, LIVE_1)
    assert search(engine, '"apple tree"').documents.tolist() == [1]
    add_documents(rows.store, ["plum tree"])
    engine.follow()
    assert search(engine, '"plum tree"').documents.tolist() == [2]
    rows.store.close()
