"""A report as one web page that needs nothing from the network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedrank.experiment import figures
from fedrank.experiment.findings import Findings, what_final_means
from fedrank.experiment.tables import (
    Cell,
    Table,
    asked_rows,
    claims_table,
    clients_table,
    comparison_table,
    cost_table,
    final_table,
    heading,
    headline,
    interval_table,
    privacy_table,
    promotion_table,
    published_table,
    robustness_table,
    unfinished_table,
    unlearned_table,
)

STYLE = """
:root { color-scheme: light; --ink: #1f2933; --quiet: #5f6c7b; --line: #dfe4ea; --soft: #f6f8fa; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink); line-height: 1.5; font-size: 16px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
article + article { margin-top: 4rem; padding-top: 2.5rem; border-top: 2px solid var(--line); }
.over { color: var(--quiet); font-size: .85rem; margin: 0 0 .25rem; }
h1 { font-size: 1.85rem; line-height: 1.2; margin: 0 0 .75rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .75rem; }
h3 { font-size: .98rem; margin: 1.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 48rem; }
.lead { font-size: 1.08rem; margin: 0 0 1.25rem; }
.note, figcaption, .legend { color: var(--quiet); font-size: .86rem; }
.warn { border-left: 3px solid #d55e00; background: #fdf6f1; padding: .5rem .9rem; font-size: .92rem; max-width: none; }
.wide { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 40%; }
th { text-align: left; font-weight: 600; color: var(--quiet); font-size: .82rem; vertical-align: bottom;
  border-bottom: 1.5px solid #b8c1cc; padding: .35rem .9rem .35rem 0; }
td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th.n, td.n { text-align: right; white-space: nowrap; padding: .35rem 0 .35rem 1.1rem; }
td.w { overflow-wrap: break-word; max-width: 26rem; }
th.n + th.w, td.n + td.w { padding-left: 1.4rem; }
.mark { display: inline-block; width: 1.1em; text-align: right; font-size: .8em; }
tr.base td { background: var(--soft); }
td [title], td[title] { cursor: help; }
.best { font-weight: 700; }
.better { color: #00664b; } .worse { color: #a84600; } .quiet { color: var(--quiet); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.25rem; margin: 0; font-size: .92rem; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: .5rem 0 1.5rem; } figure svg { display: block; height: auto; }
figcaption { max-width: 48rem; margin-top: .25rem; }
ul { padding-left: 1.15rem; margin: .5rem 0; max-width: 50rem; font-size: .92rem; } li { margin: .25rem 0; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--accent); font-size: .92rem; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .9rem 1rem; overflow-x: auto;
  font: .82rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
nav ul { list-style: none; padding: 0; } a { color: var(--accent); }
@media (max-width: 40rem) { main { padding: 1.5rem 1rem 3rem; } dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .4rem; } }
@media print { main { max-width: none; padding: 0; } body { font-size: 10.5pt; } h2, h3 { break-after: avoid; }
  figure, tr { break-inside: avoid; } .wide { overflow: visible; } article + article { break-before: page; }
  pre { white-space: pre-wrap; } }
"""
# Nothing may be fetched, even if a name from a file should get past the escaping.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(sections: Sequence[Findings], left_out: str = "") -> str:
    """The whole report. `left_out` says what has no section of its own."""
    title = sections[0].title if len(sections) == 1 else f"{len(sections)} experiments"
    body = [article(found, f"experiment-{i}") for i, found in enumerate(sections, 1)]
    if len(sections) > 1:
        links = "".join(f'<li><a href="#experiment-{i}">{escape(f.title)}</a></li>' for i, f in enumerate(sections, 1))
        body.insert(0, f"<nav><h1>{escape(title)}</h1><ul>{links}</ul></nav>")
    if left_out:
        body.append(f'<p class="warn">{escape(left_out)}</p>')
    return shell(title, body)


def shell(title: str, parts: Sequence[str]) -> str:
    """A whole web page around its parts."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def article(found: Findings, anchor: str) -> str:
    """All that a report says about one experiment."""
    kind = found.asked.get("kind")
    over = f"{kind} experiment · {found.name}" if kind else found.name
    parts = [
        f'<article id="{anchor}">',
        f'<p class="over">{escape(over)}</p><h1>{escape(found.title)}</h1>',
        f'<p class="lead">{escape(headline(found))}</p>',
        *(f'<p class="warn">{escape(note)}</p>' for note in found.notes),
    ]
    count = len(found.unfinished)
    if count:
        runs = f"{count} of {len(found.runs)} runs {'is' if count == 1 else 'are'}"
        parts.append(f'<p class="warn">{runs} not finished and not counted; see “Unfinished runs” below.</p>')
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in asked_rows(found))
    parts.append(f"<h2>What was asked</h2><dl>{rows}</dl>")
    parts.append(f"<h2>Final quality</h2>{table_html(final_table(found))}")
    intervals = "".join(
        f"<h3>{escape(heading(column))}</h3>{table_html(interval_table(found, column))}" for column in found.columns
    )
    parts.append(f"<details><summary>Confidence intervals and ranges</summary>{intervals}</details>")
    sections = (
        *(_comparisons, _claims, _published, _curves, _robustness, _clients, _privacy, _costs, _weights),
        *(conventions_html, _unfinished, _provenance),
    )
    parts += [*(section(found) for section in sections), "</article>"]
    return "\n".join(part for part in parts if part)


def _comparisons(found: Findings) -> str:
    if found.baseline is None:
        return ""
    first, *rest = found.columns
    text = (
        f"<h2>Against the baseline</h2><p>Baseline: <strong>{escape(found.baseline.label)}</strong> "
        f"({escape(found.baseline_why)}). Both p-values are Bonferroni-corrected for "
        f"{len(found.comparisons[first])} comparison{'s' if len(found.comparisons[first]) != 1 else ''}; "
        "the difference is the variant minus the baseline, over the folds and seeds that both finished.</p>"
        f"<h3>{escape(heading(first))}</h3>{table_html(comparison_table(found, first))}"
    )
    if not rest:
        return text
    more = "".join(f"<h3>{escape(heading(c))}</h3>{table_html(comparison_table(found, c))}" for c in rest)
    names = ", ".join(heading(column) for column in rest)
    return text + f"<details><summary>The same for {escape(names)}</summary>{more}</details>"


def _claims(found: Findings) -> str:
    return f"<h2>Does it hold?</h2>{table_html(claims_table(found))}" if found.claims else ""


def _published(found: Findings) -> str:
    return f"<h2>Published and measured</h2>{table_html(published_table(found))}" if found.published else ""


def _curves(found: Findings) -> str:
    charts, trees = [], found.asked.get("kind") == "trees"
    if any(len(variant.repeats) >= figures.FEWEST for variant in found.variants):
        band = " Bands: 95% confidence interval of the mean over repeats; very wide ones are cut off."
    else:
        band = f" No bands: they need at least {figures.FEWEST} repeats."
    for column in (*found.measures, "online"):
        drawn = [curve for variant in found.variants if (curve := variant.curve(column)) is not None]
        if not drawn or (trees and all(len(curve.rounds) == 1 for curve in drawn)):  # models were merged once
            continue
        windows = {curve.window for curve in drawn}
        name = heading(column)
        text = f"{name} by {found.counted}, mean over repeats.{band}"
        if column == "online":
            widest = " or ".join(f"{window:,}" for window in sorted(windows))
            text += (
                f" Smoothed: each point is the mean of the last {widest} rounds."
                if windows != {1}
                else " Not smoothed."
            )
        elif trees:
            text += " A line ends with the smallest forest of its repeats."
        else:
            text += " Measured on the test queries, after aggregation."
        charts.append(figure_html(figures.curves(found, column, name), text))
    return "<h2>Learning curves</h2>" + "".join(charts) if charts else ""


def _clients(found: Findings) -> str:
    table = clients_table(found)
    return f"<h2>Whom it serves</h2>{table_html(table)}" if table is not None else ""


def _robustness(found: Findings) -> str:
    table = robustness_table(found)
    forgotten, promoted = unlearned_table(found), promotion_table(found)
    text = f"<h2>Under attack</h2>{table_html(table)}" if table is not None else ""
    text += f"<h2>Unlearned</h2>{table_html(forgotten)}" if forgotten is not None else ""
    return text + (f"<h2>Promoted</h2>{table_html(promoted)}" if promoted is not None else "")


def _privacy(found: Findings) -> str:
    table = privacy_table(found)
    if table is not None:
        return f"<h2>Privacy</h2>{table_html(table)}"
    cards = [card for card in (variant.privacy() for variant in found.variants) if card]
    return f"<h2>Privacy</h2><p>{escape(cards[0]['summary'])}</p>" if cards else ""


def _costs(found: Findings) -> str:
    return f"<h2>Cost</h2>{table_html(cost_table(found))}"


def _weights(found: Findings) -> str:
    wanted = [found.best] if found.baseline in (None, found.best) else [found.best, found.baseline]
    shown = [variant for variant in wanted if variant is not None and variant.weights() is not None]
    if not shown:
        return ""
    roles = []
    if len(found.variants) > 1:
        roles = [f"{v.label} ({'highest quality' if v is found.best else 'baseline'})" for v in shown]
    which = f" Shown: {'; '.join(roles)}." if roles else ""
    text = (
        "Features with the largest mean weight, whatever its sign; lines show one standard deviation over repeats."
        f"{which} Blue raises a document's score, orange lowers it."
    )
    raw = any(run.data.get("normalised") == "none" for run in found.runs.finished)
    text += " Features were not normalised by fedrank: compare weights only if they share a scale." if raw else ""
    return "<h2>What the linear model learned</h2>" + figure_html(figures.weight_bars(shown), text)


def conventions_html(found: Findings) -> str:
    """How each number was measured."""
    sentences: list[str] = []
    for name in (*found.measures, *{key: None for run in found.runs.finished for key in run.conventions}):
        told = dict.fromkeys(run.conventions[name] for run in found.runs.finished if name in run.conventions)
        for sentence in told:
            text = sentence if sentence.lower().startswith(name.lower()) else f"{name}: {sentence}"
            text += " (Not all runs used this convention: their values are not comparable.)" if len(told) > 1 else ""
            if text not in sentences:
                sentences.append(text)
    sentences += what_final_means(found)
    sentences += dict.fromkeys(note for run in found.runs.finished for note in run.notes)
    return "<h2>How it was measured</h2><ul>" + "".join(f"<li>{escape(text)}</li>" for text in sentences) + "</ul>"


def _unfinished(found: Findings) -> str:
    if not len(found.unfinished):
        return ""
    return "<h2>Unfinished runs</h2><p>These are left out of every table and chart above.</p>" + table_html(
        unfinished_table(found.unfinished)
    )


def _provenance(found: Findings) -> str:
    versions = ", ".join(sorted({run.version for run in found.runs.finished if run.version})) or "unknown"
    repeats = sum(len(variant.repeats) for variant in found.variants)
    text = f"<h2>Provenance</h2><p>fedrank {escape(versions)}, {repeats} finished run{'s' if repeats != 1 else ''}.</p>"
    if found.asked_text:
        text += f"<details><summary>The experiment in full</summary><pre>{escape(found.asked_text)}</pre></details>"
    return text


def figure_html(svg: str, caption: str) -> str:
    """A drawing with its caption."""
    drawing = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(caption)}" ', 1)
    return f'<figure><div class="wide">{drawing}</div><figcaption>{escape(caption)}</figcaption></figure>'


def table_html(table: Table) -> str:
    """A table for a web page."""
    head = "".join(f'<th{_kind(table, i)} scope="col">{escape(text)}</th>' for i, text in enumerate(table.header))
    rows = []
    for row in table.rows:
        base = ' class="base"' if any(cell.text.endswith("(baseline)") for cell in row[: table.words]) else ""
        rows.append(
            f"<tr{base}>" + "".join(f"<td{_kind(table, i)}>{_cell(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{notes}'


def _kind(table: Table, column: int) -> str:
    words = column < table.words or table.header[column] in ("verdict", "reason")
    return ' class="w"' if words else ' class="n"'


def _cell(cell: Cell) -> str:
    names = " ".join(name for name in ("best" if cell.strong else "", cell.tone) if name)
    mark = ""
    if cell.mark is not None:
        tone = {"▲": " better", "▼": " worse"}.get(cell.mark, "")
        mark = f'<span class="mark{tone}">{escape(cell.mark)}</span>'
    if not names and not cell.hint:
        return escape(cell.text) + mark
    kind = f' class="{names}"' if names else ""
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    return f"<span{kind}{hint}>{escape(cell.text)}</span>{mark}"
