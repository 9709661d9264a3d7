"""Sections as Markdown, without drawings, for a repository or a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fedrank.experiments.report import sections as content

# An underscore within a word marks nothing, nor do brackets unless something follows that makes them a link.
MARKS = re.compile(r"[\\`*~]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])")
BESIDE_LINKS = re.compile(rf"{MARKS.pattern}|[\[\]]")  # where there are links, any bracket could be of one
BEGINS = re.compile(r"^(\d*)(>|[#+=.)-](?=[\s#=-]|$))")
ENTITIES = re.compile(r"&(?=#?\w+;)")
TICKS = re.compile("`+")


def markdown(parts: Sequence[content.Part]) -> str:
    return "\n\n".join(_blocks(parts, 1)) + "\n"


def _blocks(parts: Sequence[content.Part], level: int) -> Iterator[str]:
    for part in parts:
        match part:
            case content.Section():
                if part.parts and all(map(_is_drawn, part.parts)):
                    continue
                if part.heading:
                    yield f"{'#' * level} {_plain(part.heading)}"
                if part.over:
                    yield _block(part.over)
                yield from _blocks(part.parts, level + 1)
            case content.Paragraph():
                yield f"> {_paragraph(part)}" if part.tone == "warn" else _paragraph(part)
            case content.Points():
                yield "\n".join(f"- {_block(point)}" for point in part.points)
            case content.Pairs():
                yield "\n".join(f"- {_block(name)}: {_plain(text)}" for name, text in part.pairs)
            case content.Table():
                yield _table(part)
                yield from map(_block, part.notes)
            case content.Interactive():
                yield from _blocks(part.still, level)
            case content.Listing():
                fence = "`" * max(4, 1 + max(map(len, TICKS.findall(part.text)), default=0))
                yield f"{fence}{part.language}\n{part.text.strip()}\n{fence}"


def _is_drawn(part: content.Part) -> bool:
    """Whether nothing of a part can be said in words."""
    if isinstance(part, content.Interactive):
        return all(map(_is_drawn, part.still))
    return isinstance(part, content.Drawing)


def _table(table: content.Table) -> str:
    lines = [
        list(map(_cell, table.header)),
        [":---" if i < table.text_columns else "---:" for i in range(len(table.header))],
    ]
    lines += [[f"**{_cell(str(cell))}**" if cell.strong else _cell(str(cell)) for cell in row] for row in table.cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _paragraph(part: content.Paragraph) -> str:
    """Words, some of which may lead somewhere."""
    if not any(span.link for span in part.spans):
        return _block(part.text)
    texts = []
    for span in part.spans:
        shown = _plain(span.text, BESIDE_LINKS)
        around = " " * span.text[:1].isspace(), " " * span.text[-1:].isspace()
        texts.append(f"[{shown}]({span.link})" if span.link else shown.join(around))
    return _begun("".join(texts).strip())


def _block(text: str) -> str:
    """Text at the beginning of a line, where some words would begin a heading, a list or a quote."""
    return _begun(_plain(text))


def _begun(line: str) -> str:
    return BEGINS.sub(lambda found: f"{found[1]}\\{found[2]}", line)


def _plain(text: str, marks: re.Pattern[str] = MARKS) -> str:
    """Text that shows as it is: one line, without emphasis, code, links, pictures, tags or entities."""
    return ENTITIES.sub("&amp;", marks.sub(r"\\\g<0>", " ".join(text.split()))).replace("<", "&lt;")
