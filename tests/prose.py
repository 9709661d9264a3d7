"""Prose linter: phrases that standard technical English does not use, in code, documentation and messages.

    python -m tests.prose                        check everything; part of `make check`
    python -m tests.prose src/fedrank/data       check one folder or file
    python -m tests.prose --list src/fedrank     list every message, docstring and comment, for a reviewer

A line that must keep a phrase (a quotation, a frozen name) ends with `prose: ok`.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ["src", "reproduction/src", "examples", "benchmarks", "docs", "README.md", "CONTRIBUTING.md", "Makefile"]
EXEMPT = "prose: ok"

# (pattern, what to write instead)
RULES = [
    (
        r"(?<!there )(?<!there can )\b(?:is|are|was|were|be) no "
        r"(?!longer|more|less|fewer|better|worse|larger|smaller|higher|lower|later)",
        "say what it must be, or 'is not a'",
    ),
    (r"\b(?:that|which|what|who) (?:is|are|was|were) none\b", "say what it must be"),
    (
        r"\b(?:nobody|somebody|anybody|everybody|whoever|whomever|whatever|no one|someone|anyone)\b",
        "name the role: the client, the coordinator, the user",
    ),
    (r"\bso that\b", "'so', 'to', or a new sentence"),
    (r"\bof (?:its|their|your|his|our|one's) own\b", "'own' before the noun, or 'separate'"),
    (
        r"\bcannot be told\b|\bnot told\b|\btold (?:apart|from|by)\b|\bbe told\b",
        "name the statistic: 'is not significantly different from'",
    ),
    (r"\btold\b", "reported, shown, informed"),
    (r"\btells? (?:of|apart)\b", "reveals, distinguishes"),
    (r"\bmade[- ]up\b", "synthetic, generated"),
    (r"\bluck\b", "random variation"),
    (r"\bmend(?:s|ed|ing)?\b", "fix"),
    (r"\banew\b", "again"),
    (r"\bat home\b", "locally, at the site"),
    (r"\b(?:goes|go|went|going) on\b", "continue"),
    (r"\bone an? (?:line|query|client|round|person|row|document|site|tree|feature)\b", "one per line"),
    (r"\blies? (?:in|at|on|beside|there|here|under|next)\b", "is in"),
    (r"\bgrades?\b(?! school)", "relevance label"),
    (r"\bgraphics cards?\b|\bon a card\b|\bon the card\b", "GPU"),
    (r"\bsecure sums?\b", "secure aggregation"),
    (r"\bnoise shares\b|\bshares of noise\b", "distributed noise"),
    (r"\b(?:crowd|errand|deed|sapling|glance|twin|twins|house rules?)\b", "the word of the glossary"),
    (r"\bwhole numbers?\b", "integer"),
    (r"\bby hand-|\bhand over\b", "pass"),
    (r"\bin the same breath\b|\bword of honour\b|\btakes? for granted\b", "plain words"),
    (r"\bdo(?:es)? not know of\b|\bknows of\b", "has no record of"),
    (r"\bas well as none\b|\bnone at all\b", "plain words"),
    (r"\bnothing (?:can be|is) claimed\b", "no privacy guarantee"),
    (r"(?<!in )\bso many\b(?! [\w ]+ that\b)", "this many"),
    (r", and (?!who)\S+ (?:was|were) (?:asked|expected|wanted)\b", "must be ... (got ...), or 'expected ...'"),
    (r"\bin vain\b|\bis of no use\b|\ba line each\b", "plain words"),
    (r"\bthan (?:they|it) says?\b|\bthan the settings say\b", "does not match"),
]
PATTERNS = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in RULES]


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Every comment and every string with a space in it, with the line where it begins."""
    lines = text.splitlines()
    skipped = _doctest_lines(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")
        elif token.type == tokenize.STRING or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            for offset, line in enumerate(token.string.splitlines()):
                place = token.start[0] + offset
                if " " in line.strip() and place not in skipped and EXEMPT not in lines[place - 1]:
                    yield place, re.sub(r"\{[^{}]*\}", "{}", line.strip().strip("\"'"))


def _doctest_lines(text: str) -> set[int]:
    return {number for number, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith((">>>", "..."))}


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside blocks of code; code within a line is left out."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    ") and EXEMPT not in line:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)


def prose_of_template(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a page without tags and expressions, or of a script without quotes."""
    for number, line in enumerate(text.splitlines(), 1):
        if EXEMPT not in line:
            yield number, re.sub(r"<[^>]*>|\{[{%].*?[%}]\}", " ", line).strip()


def prose_of_notebook(text: str) -> Iterator[tuple[int, str]]:
    """Lines of the Markdown cells, with the number of the cell."""
    for number, cell in enumerate(json.loads(text)["cells"]):
        if cell["cell_type"] == "markdown":
            yield from ((number, line) for _, line in prose_of_markdown("".join(cell["source"])))


READERS = {
    ".py": prose_of_python,
    ".html": prose_of_template,
    ".sh": prose_of_template,
    ".ipynb": prose_of_notebook,
    ".md": prose_of_markdown,
}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The sentences of a file by line."""
    return READERS.get(path.suffix, prose_of_markdown)(path.read_text(encoding="utf-8"))


def files(places: list[str]) -> Iterator[Path]:
    for place in map(Path, places):
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (file for file in found if file.suffix in READERS or file.name == "Makefile")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("places", nargs="*", default=[str(ROOT / place) for place in CHECKED])
    parser.add_argument("--list", action="store_true", help="list all prose instead of checking it")
    given = parser.parse_args()
    found = 0
    for file in files(given.places):
        for line, text in prose(file):
            if given.list:
                print(f"{file}:{line}: {text}")
                continue
            for pattern, instead in PATTERNS:
                if match := pattern.search(text):
                    found += 1
                    print(f"{file}:{line}: {match.group(0)!r} ({instead}): {text[:140]}")
    if found:
        print(f"{found} phrases; see Language in CONTRIBUTING.md")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
