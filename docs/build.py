"""Generated pages of the site: one for each family of methods, one for each file of the project that a page links to.

MkDocs runs this as a hook (see mkdocs.yml); `make docs` builds the site. The other two hooks are `api_pages.py` and
`search_index.py`; the layout is in `theme/`.
"""

from __future__ import annotations

import inspect
import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prose import cell, code, prose

from fedrank.experiments.spec.families import FAMILIES
from fedrank.experiments.spec.listing import ListedMethod, methods

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
METHODS = "reference/methods"  # folder of the generated pages
GENERATED = (f"{METHODS}/", "reference/python/")
LINK = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]+)?\)")


class FamilyPage(NamedTuple):
    """The text of a family's page before its methods are listed."""

    what: str
    example: str  # TOML or a command that names one of its methods
    more: str  # the page that uses it


FAMILY_PAGES = {
    "learner": FamilyPage(
        "How a client learns from its interactions in a round.",
        'learner = { name = "pdgd", rate = 0.1 }',
        "explanation/concepts.md",
    ),
    "ranker": FamilyPage(
        "The model: it computes a score from the features of a document.",
        'learner = { name = "pdgd", ranker = { name = "mlp", hidden = 32 } }',
        "explanation/concepts.md",
    ),
    "local": FamilyPage(
        "How local steps are corrected when clients differ.",
        'local = { name = "fedprox", strength = 0.1 }',
        "how-to/compare-methods.md#clients-that-differ",
    ),
    "aggregator": FamilyPage(
        "How the server combines the updates of a round into one change.",
        'aggregator = "mean"',
        "how-to/attacks-and-unlearning.md",
    ),
    "server": FamilyPage(
        "How the server moves its model by the combined change.",
        'server = { name = "adam" }',
        "explanation/concepts.md",
    ),
    "arrival": FamilyPage(
        "How the server uses updates that arrive one by one; only for kind `async`.",
        'kind    = "async"\nrounds  = 1_000\nlearner = "pdgd"\narrival = { name = "fedbuff", size = 10 }\n\n'
        '[data]\nlog = "aol"\n\n[clients]\ncount     = 100\npartition = { name = "users" }',
        "how-to/click-logs.md#asynchronous-updates",
    ),
    "attack": FamilyPage(
        "What malicious clients send.",
        'attack = "sign-flip"\n\n[clients]\ncount     = 10\nmalicious = 2',
        "how-to/attacks-and-unlearning.md",
    ),
    "mechanism": FamilyPage(
        "How updates are protected.",
        'mechanism = { name = "gaussian", clip = 0.3, noise = 20.0, placement = "server" }',
        "how-to/privacy.md",
    ),
    "placement": FamilyPage(
        "Where a mechanism adds its noise, and therefore which party must be trusted.",
        '[mechanism]\nname      = "gaussian"\nclip      = 0.3\nnoise     = 20.0\n'
        'placement = { name = "secure-aggregation", honest = 0.7 }',
        "how-to/privacy.md",
    ),
    "partition": FamilyPage(
        "Which queries, documents and relevance labels a client has.",
        '[clients]\ncount     = 10\npartition = { name = "own" }',
        "how-to/compare-methods.md#clients-that-differ",
    ),
    "unlearner": FamilyPage(
        "How the model of a finished run forgets a client.",
        "$ fedrank forget client runs/my --client 9 --method fed-eraser --set steps=2",
        "how-to/attacks-and-unlearning.md",
    ),
    "silo-method": FamilyPage(
        "How organisations train a ranker across separate document collections; only for kind `silo`.",
        'kind   = "silo"\nrounds = 20\ndata   = { name = "synthetic-silos" }\n'
        'method = { name = "cross-silo", noise = 1.0 }',
        "how-to/document-collections.md",
    ),
    "booster": FamilyPage(
        "How a forest is grown; only for kind `trees`.",
        'kind    = "trees"\ndata    = { name = "synthetic-istella-x" }\nbooster = { name = "selgb", keep = 0.05 }',
        "how-to/trees.md",
    ),
    "split": FamilyPage(
        "Which organisation holds which queries; only for kind `trees`, together with `merge`.",
        'kind    = "trees"\ndata    = { name = "synthetic-categories" }\nbooster = "lambdamart"\n'
        'split   = { name = "topics", clients = 3 }\nmerge   = "linear"',
        "how-to/trees.md",
    ),
    "merger": FamilyPage(
        "How organisations combine their models; only for kind `trees`, together with `split`.",
        'kind    = "trees"\ndata    = { name = "synthetic-categories" }\nbooster = "lambdamart"\n'
        'split   = { name = "topics", clients = 3 }\nmerge   = "linear"',
        "how-to/trees.md",
    ),
    "click-model": FamilyPage(
        "How simulated users click.",
        '[clients]\ncount = 10\nclick_model  = "navigational"',
        "explanation/concepts.md",
    ),
    "measure": FamilyPage(
        "How a ranking is evaluated.",
        'measures = ["ndcg@10", "map"]',
        "reference/spec.md",
    ),
}


def method_pages() -> dict[str, str]:
    """Markdown by path: an overview, and a page for each family with all its methods and their settings."""
    listed: dict[str, list[ListedMethod]] = {}
    for row in methods():
        listed.setdefault(row.family, []).append(row)
    overview = [
        "# Methods",
        "",
        "Every method that a spec or a command can name, as `fedrank methods` lists it. "
        "[Write your own method](../../how-to/own-method.md).",
        "",
        "| Family | What it is | Methods |",
        "|---|---|---|",
    ]
    pages = {}
    for family, rows in listed.items():
        links = ", ".join(f"[{row.name}]({family}.md#{row.name.replace('.', '')})" for row in rows)
        overview.append(f"| [{family}]({family}.md) | {FAMILY_PAGES[family].what} | {links} |")
        pages[f"{METHODS}/{family}.md"] = _family_page(family, rows)
    return {f"{METHODS}/index.md": "\n".join(overview) + "\n"} | pages


def _family_page(family: str, rows: list[ListedMethod]) -> str:
    page = FAMILY_PAGES[family]
    fence = "console" if page.example.startswith("$") else "toml"
    parts = [f"# {family}", page.what, f"```{fence}\n{page.example}\n```", f"[How to use it](../../{page.more})."]
    classes = {name: kind for each in FAMILIES.values() if each.name == family for name, kind in each.methods.items()}
    for row in rows:
        parts += [f"## {row.name}", prose(inspect.getdoc(classes[row.name]) if classes else row.meaning)]
        if row.settings:
            lines = ["| Setting | Kind | Default | Meaning |", "|---|---|---|---|"]
            for setting in row.settings:
                cells = [code(setting.name), code(setting.kind), code(setting.default), cell(setting.comment)]
                lines.append(f"| {' | '.join(cells)} |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def written_pages() -> list[Path]:
    """The pages of docs/ that are files."""
    return sorted((ROOT / "docs").rglob("*.md"))


def _outside(page: Path, link: str) -> str | None:
    """The path of a linked file within the project, if it is outside docs/."""
    path = posixpath.normpath(posixpath.join(page.relative_to(ROOT).parent.as_posix(), link))
    return None if path.startswith(("docs/", "..")) or path == "docs" else path


def linked_files(pages: list[Path]) -> dict[str, str]:
    """Markdown by path, for every file or folder outside docs/ that these pages link to."""
    links = ((page, link) for page in pages for link, _ in LINK.findall(page.read_text(encoding="utf-8")))
    asked = sorted({path for page, link in links if (path := _outside(page, link)) is not None})
    found: dict[str, str] = {}
    while asked:
        name = asked.pop().rstrip("/")
        path = ROOT / name
        if path.is_dir():
            inside = sorted(each.name for each in path.iterdir() if each.suffix == ".py")
            found[_page_of(name)] = f"# {name}\n\n" + "".join(f"- [{each}]({name}/{each}.md)\n" for each in inside)
            asked += [f"{name}/{each}" for each in inside]
        elif path.suffix == ".ipynb":
            found[_page_of(name)] = _notebook(path)
        elif path.suffix == ".md":
            up = "../" * (name.count("/") + 1)
            found[_page_of(name)] = path.read_text(encoding="utf-8").replace("](docs/", f"]({up}")
        else:
            kind = "toml" if path.suffix == ".toml" else "python"
            found[_page_of(name)] = f"# {name}\n\n```{kind}\n{path.read_text(encoding='utf-8')}```\n"
    return found


def _notebook(path: Path) -> str:
    """A notebook as a page: its text, its code and its stored output."""
    parts = []
    for part in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(part["source"])
        parts.append(source if part["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in part.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                png = data["image/png"].strip()
                parts.append(f'<img alt="the figure that this code draws" src="data:image/png;base64,{png}">')
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                text = "".join(output.get("text") or data["text/plain"]).rstrip("\n")
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _page_of(name: str) -> str:
    return f"files/{name.rstrip('/')}" + ("" if name.endswith(".md") else ".md")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the generated pages to those of docs/."""
    from mkdocs.structure.files import File

    for path, text in (method_pages() | linked_files(written_pages())).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace links to files of the project by links to their pages."""
    if page.file.src_uri.startswith((*GENERATED, "files/")):
        return markdown
    source = ROOT / "docs" / page.file.src_uri
    up = "../" * page.file.src_uri.count("/")

    def replaced(match: re.Match[str]) -> str:
        path = _outside(source, match[1])
        return match[0] if path is None else f"]({up}{_page_of(path)}{match[2] or ''})"

    return LINK.sub(replaced, markdown)
