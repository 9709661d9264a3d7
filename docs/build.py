"""Pages of the site that nobody writes by hand: one for each family of methods, one for each file that a page links to.

MkDocs runs this as a hook (see mkdocs.yml); `make docs` builds the site. The other two hooks are `api_pages.py` and
`search_index.py`; how pages look is in `theme/`.
"""

from __future__ import annotations

import inspect
import json
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
OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)(#[^)\s]+)?\)")  # a link to a file of the project that is no page


class Told(NamedTuple):
    """What is said about a family before its methods are listed."""

    what: str
    example: str  # how one of its methods is named: TOML, or a command
    more: str  # the page that uses it


FAMILY_PAGES = {
    "learner": Told(
        "What a client does with its searches in a round.",
        'learner = { name = "pdgd", rate = 0.1 }',
        "concepts.md#pdgd",
    ),
    "ranker": Told(
        "What turns the features of a document into a score.",
        'learner = { name = "pdgd", ranker = { name = "mlp", hidden = 32 } }',
        "concepts.md#queries-documents-grades",
    ),
    "local": Told(
        "What corrects the local steps of clients that differ.",
        'local = { name = "fedprox", strength = 0.1 }',
        "how-to-learn-from-clients-that-differ.md",
    ),
    "aggregator": Told(
        "How the server combines the updates of a round into one change.",
        'aggregator = "mean"',
        "how-to-attack-and-defend.md",
    ),
    "server": Told(
        "How the server moves its model by the combined change.",
        'server = { name = "adam" }',
        "concepts.md#fpdgd-many-learn-together",
    ),
    "arrival": Told(
        "What the server does with updates that arrive one by one; only of kind `async`.",
        'kind    = "async"\nrounds  = 1_000\nlearner = "pdgd"\narrival = { name = "fedbuff", size = 10 }\n\n'
        '[data]\nlog = "aol"\n\n[clients]\ncount     = 100\npartition = { name = "users" }',
        "how-to-federate-a-search-log.md",
    ),
    "attack": Told(
        "What malicious clients do.",
        'attack = "sign-flip"\n\n[clients]\ncount     = 10\nmalicious = 2',
        "how-to-attack-and-defend.md",
    ),
    "mechanism": Told(
        "What protects updates.",
        'mechanism = { name = "gaussian", clip = 0.3, noise = 20.0, placement = "server" }',
        "how-to-protect-updates.md",
    ),
    "placement": Told(
        "Where a mechanism adds its noise, and so who has to be trusted.",
        '[mechanism]\nname      = "gaussian"\nclip      = 0.3\nnoise     = 20.0\n'
        'placement = { name = "secure-aggregation", honest = 0.7 }',
        "how-to-protect-updates.md#choose-who-has-to-be-trusted",
    ),
    "partition": Told(
        "Which queries, documents and grades a client has.",
        '[clients]\ncount     = 10\npartition = { name = "own" }',
        "how-to-make-clients-differ.md",
    ),
    "unlearner": Told(
        "How a finished run forgets a client.",
        "$ fedrank unlearn runs/my --client 9 --method fed-eraser --set steps=2",
        "how-to-unlearn-a-client.md",
    ),
    "silo-method": Told(
        "How organisations that keep their documents train a ranker; only of kind `silo`.",
        'kind   = "silo"\nrounds = 20\ndata   = { name = "synthetic-silos" }\n'
        'method = { name = "cross-silo", noise = 1.0 }',
        "how-to-train-across-organisations.md",
    ),
    "booster": Told(
        "How a forest is grown; only of kind `trees`.",
        'kind    = "trees"\ndata    = { name = "synthetic-istella-x" }\nbooster = { name = "selgb", keep = 0.05 }',
        "how-to-train-trees.md",
    ),
    "split": Told(
        "Which organisation holds which queries; only of kind `trees`, together with `merge`.",
        'kind    = "trees"\ndata    = { name = "synthetic-categories" }\nbooster = "lambdamart"\n'
        'split   = { name = "topics", clients = 3 }\nmerge   = "linear"',
        "how-to-merge-tree-models.md",
    ),
    "merger": Told(
        "How organisations come from their models to one for each; only of kind `trees`, together with `split`.",
        'kind    = "trees"\ndata    = { name = "synthetic-categories" }\nbooster = "lambdamart"\n'
        'split   = { name = "topics", clients = 3 }\nmerge   = "linear"',
        "how-to-merge-tree-models.md",
    ),
    "click-model": Told(
        "How simulated people click.",
        '[clients]\ncount = 10\nclick_model  = "navigational"',
        "concepts.md#users-who-click",
    ),
    "measure": Told(
        "How a ranking is judged.",
        'measures = ["ndcg@10", "map"]',
        "spec.md#measures",
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
        "Everything that a spec or a command can name, as `fedrank methods` lists it. "
        "[How to add one of your own](../how-to-add-a-method.md).",
        "",
        "| Family | What it is | Methods |",
        "|---|---|---|",
    ]
    pages = {}
    for family, rows in listed.items():
        links = ", ".join(f"[{row.name}]({family}.md#{row.name.replace('.', '')})" for row in rows)
        overview.append(f"| [{family}]({family}.md) | {FAMILY_PAGES[family].what} | {links} |")
        pages[f"methods/{family}.md"] = _family_page(family, rows)
    return {"methods/index.md": "\n".join(overview) + "\n"} | pages


def _family_page(family: str, rows: list[ListedMethod]) -> str:
    told = FAMILY_PAGES[family]
    fence = "console" if told.example.startswith("$") else "toml"
    parts = [f"# {family}", told.what, f"```{fence}\n{told.example}\n```", f"[More about it](../{told.more})."]
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


def linked_files(pages: list[Path]) -> dict[str, str]:
    """Markdown by path, for every file or folder outside docs/ that these pages link to."""
    asked = sorted({found for page in pages for found, _ in OUTSIDE.findall(page.read_text(encoding="utf-8"))})
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
            found[_page_of(name)] = path.read_text(encoding="utf-8")
        else:
            found[_page_of(name)] = f"# {name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
    return found


def _notebook(path: Path) -> str:
    """A notebook as a page: its words, its code, and what it showed."""
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

    for path, text in (method_pages() | linked_files(sorted((ROOT / "docs").glob("*.md")))).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to files of the project to their pages."""
    if page.file.src_uri.startswith(("api/", "files/", "methods/")):
        return markdown
    return OUTSIDE.sub(lambda match: f"]({_page_of(match[1])}{match[2] or ''})", markdown)
