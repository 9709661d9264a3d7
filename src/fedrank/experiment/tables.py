"""The tables of a report as text, for the page, for Markdown and for the terminal alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fedrank.experiment.claims import BLOCKS, FAILS, HOLDS, OPEN, SMALL, UNTESTED
from fedrank.experiment.findings import COSTS, Findings, Threat, Variant, show
from fedrank.experiment.privacy import paid_for
from fedrank.experiment.statistics import Summary, summarise
from fedrank.experiment.store import Runs, duration
from fedrank.protect.promises import up

ABOUT_CLIENTS = ("queries", "interactions")  # columns of clients.csv that are no quality

HEADINGS = {
    "online": "online nDCG@10",
    "online_sum": "online, discounted sum",
    "interactions": "interactions",
    "bytes_up": "sent by clients",
    "bytes_down": "sent to clients",
    "seconds": "time",
    "cpu_seconds": "processor time",
}


@dataclass(frozen=True)
class Cell:
    text: str
    strong: bool = False  # the best of its column
    hint: str = ""  # more, where there is room for it
    tone: str = ""  # "better", "worse" or "quiet"
    mark: str | None = None  # ▲ or ▼, "" where there could be one, None where there cannot

    def __str__(self) -> str:
        return f"{self.text} {self.mark}" if self.mark else self.text


@dataclass(frozen=True)
class Table:
    header: list[str]
    rows: list[list[Cell]]
    words: int = 1  # leading columns that hold words; the others hold numbers
    notes: list[str] = field(default_factory=list)


def heading(column: str) -> str:
    return HEADINGS.get(column, column)


def final_table(found: Findings) -> Table:
    """Final quality of each variant; ▲ and ▼ mark significant differences from the baseline."""
    names, words = _variant_columns(found)
    best = {column: _best(found, column) for column in found.columns}
    rows = []
    for variant in found.variants:
        n = len(variant.repeats)
        short = found.expected is not None and n < found.expected
        repeats = Cell(f"{n} of {found.expected}" if short else str(n), tone="worse" if short else "")
        row = [*_variant_cells(found, variant, words), repeats]
        for column in found.columns:
            summary = variant.summary(column)
            comparison = found.comparisons.get(column, {}).get(variant.name)
            mark = {"better": "▲", "worse": "▼", "": ""}[comparison.verdict if comparison else ""]
            hint = f"95% interval {number(column, summary.low)} to {number(column, summary.high)}" if n > 1 else ""
            row.append(
                Cell(
                    spread(column, summary),
                    strong=len(found.variants) > 1 and variant.name in best[column],
                    hint=hint,
                    mark=mark if found.baseline is not None else None,
                )
            )
        rows.append(row)
    notes = []
    if len(found.variants) > 1:
        notes.append("Bold: highest mean of its column.")
    if found.baseline is not None:
        notes.append(
            f"▲ ▼: significantly above or below the baseline, {found.baseline.label} ({found.baseline_why}): paired "
            "t-test over fold and seed, Bonferroni-corrected p < 0.05."
        )
    return Table([*names, "repeats", *(heading(column) for column in found.columns)], rows, len(names), notes)


def interval_table(found: Findings, column: str) -> Table:
    """Mean with its confidence interval and range."""
    names, words = _variant_columns(found)
    rows = []
    for variant in found.variants:
        summary = variant.summary(column)
        values = (summary.mean, summary.sd, summary.low, summary.high, summary.smallest, summary.largest)
        rows.append([*_variant_cells(found, variant, words), *(Cell(number(column, value)) for value in values)])
    return Table([*names, "mean", "sd", "95% from", "to", "lowest", "highest"], rows, len(names))


def comparison_table(found: Findings, column: str) -> Table:
    """Each variant against the baseline in one column."""
    names, words = _variant_columns(found)
    by_query = column in found.measures
    rows = []
    for variant in found.variants:
        comparison = found.comparisons.get(column, {}).get(variant.name)
        if comparison is None:
            continue
        paired = comparison.paired
        row = [
            *_variant_cells(found, variant, words),
            Cell(signed(column, paired.difference), tone=comparison.verdict),
            Cell(str(paired.pairs)),
            Cell(probability(comparison.p), hint=f"uncorrected p {probability(paired.p)}", tone=comparison.verdict),
        ]
        if by_query:
            hint = f"uncorrected p {probability(comparison.p_queries)} over {comparison.queries:,} queries"
            row.append(Cell(probability(comparison.p_queries_corrected), hint=hint))
        row.append(Cell("-" if math.isnan(paired.effect) else f"{paired.effect:+.2f}"))
        rows.append(row)
    header = [*names, "difference", "pairs", "p, t-test"]
    return Table([*header, *(["p, over queries"] if by_query else []), "effect (d)"], rows, len(names))


def published_table(found: Findings) -> Table:
    """Values from papers next to ours."""
    rows = []
    for entry in found.published:
        value = number(entry.column, entry.value)
        told = value if entry.spread is None else f"{value} ± {number(entry.column, entry.spread)}"
        ours = entry.measured
        tone = "better" if entry.verdict.startswith("within") else "worse" if entry.verdict == "outside" else "quiet"
        rows.append(
            [
                Cell(entry.variant.label),
                Cell(heading(entry.column)),
                Cell(entry.source),
                Cell(told),
                Cell(spread(entry.column, ours), hint=_range(entry.column, ours)),
                Cell(str(ours.n)),
                Cell(signed(entry.column, ours.mean - entry.value)),
                Cell(entry.verdict, tone=tone),
            ]
        )
    note = (
        "Rule: a published value is within the spread of our repeats if it lies between their lowest and highest "
        "value, or at most two of their standard deviations from their mean."
    )
    header = ["variant", "measure", "source", "published", "measured", "repeats", "ours - theirs", "verdict"]
    return Table(header, rows, 3, [note])


def claims_table(found: Findings) -> Table:
    """What the paper found, and whether it holds here."""
    tones = {HOLDS: "better", FAILS: "worse", OPEN: "quiet", UNTESTED: "quiet"}
    rows = []
    for claim in found.claims:
        told = signed(claim.column, claim.difference)
        if not math.isnan(claim.low):
            told += f" ({signed(claim.column, claim.low)} to {signed(claim.column, claim.high)})"
        verdict = f"{claim.verdict}: {claim.why}" if claim.why else claim.verdict
        counted = str(claim.pairs) if claim.unit == "repeats" else f"{claim.pairs} ({claim.counted:,} {claim.unit})"
        effect = "-" if math.isnan(claim.effect) else f"{claim.effect:+.1f}"
        texts = heading(claim.column), told, effect, counted
        rows.append([Cell(claim.says), Cell(verdict, tone=tones[claim.verdict]), *map(Cell, texts)])
    note = (
        "Difference with a confidence interval at the level 0.05 that the claims of the experiment share (Holm). From "
        f"{BLOCKS} folds on a fold counts once, with the mean over its seeds; of forests that were grown once, test "
        "queries are counted, which says nothing about luck in training. The effect is Cohen's d. A claim that "
        f"something is better holds above 0, and does not hold below 0 or within ±{SMALL}; a claim that two are alike "
        "holds inside its margin."
    )
    return Table(["claim", "verdict", "measure", "difference", "effect", "repeats"], rows, 3, [note])


def clients_table(found: Findings) -> Table | None:
    """How well the final models serve clients, from the average one to the worst; None where all are alike."""
    if found.asked.get("kind") == "trees":
        return _merged_table(found)
    names, words = _variant_columns(found)
    rows = []
    for variant in found.variants:
        readings = [reading.clients for reading in variant.repeats.values() if reading.clients]
        for column in dict.fromkeys(name for reading in readings for name in reading if name not in ABOUT_CLIENTS):
            values = [reading[column][~np.isnan(reading[column])] for reading in readings if column in reading]
            values = [each for each in values if len(each)]
            if not values:
                continue
            told = (
                float(np.mean([each.mean() for each in values])),
                float(np.mean([np.percentile(each, 10) for each in values])),
                float(np.mean([each.min() for each in values])),
            )
            cells = [Cell(column), Cell(str(max(map(len, values)))), *(Cell(f"{value:.4f}") for value in told)]
            rows.append([*_variant_cells(found, variant, words), *cells])
    if not rows:
        return None
    if found.asked.get("kind") == "silo":
        note = "Each client's final model on its own test queries; means over repeats."
    else:
        note = (
            "Each client's final model on the queries that it searches with, by its own grades; means over repeats. "
            "They learned from these queries: compare variants here, not with the tables above."
        )
    return Table([*names, "measure", "clients", "mean", "10th percentile", "worst"], rows, len(names) + 1, [note])


def _merged_table(found: Findings) -> Table | None:
    """Every client before and after merging: who gains, and who loses."""
    names, words = _variant_columns(found)
    columns = [f"{where} {when}" for where in ("own", "others", "all") for when in ("before", "after")]
    rows = []
    for variant in found.variants:
        readings = [reading.clients for reading in variant.repeats.values() if reading.clients]
        for measure in found.measures if readings else ():
            tables = [np.array([reading[f"{measure} {column}"] for column in columns]) for reading in readings]
            for client in range(min(table.shape[1] for table in tables)):
                values = np.array([table[:, client] for table in tables]).T  # [columns, repeats]
                means = [float(known.mean()) if len(known := row[~np.isnan(row)]) else math.nan for row in values]
                cells = [Cell(measure), Cell(str(client + 1)), *(Cell(number(measure, mean)) for mean in means)]
                rows.append([*_variant_cells(found, variant, words), *cells])
    if not rows:
        return None
    note = (
        "Each client's model as it trained it (before) and as it became (after), on test queries of its own kind, of "
        "the other clients' kinds, and on all of them; means over repeats."
    )
    return Table([*names, "measure", "client", *columns], rows, len(names) + 2, [note])


def cost_table(found: Findings) -> Table:
    """What a run of each variant cost, on average over repeats."""
    names, words = _variant_columns(found)
    rows = []
    # Nobody searches while trees grow, and what travels is not counted.
    costs = [name for name in COSTS if found.asked.get("kind") != "trees" or name.endswith("seconds")]
    for variant in found.variants:
        cells = [Cell(amount(name, variant.cost(name))) for name in costs]
        rows.append([*_variant_cells(found, variant, words), *cells])
    note = "Means over repeats, each for a whole run. Times depend on the machine and on what else it was doing."
    return Table([*names, *(heading(name) for name in costs)], rows, len(names), [note])


def unfinished_table(runs: Runs) -> Table:
    """Runs that no table counts, each with its reason."""
    rows = [
        [
            Cell(run.variant),
            Cell(f"fold {run.fold}, seed {run.seed}"),
            Cell(run.status, tone="worse" if run.status in ("failed", "broken") else ""),
            Cell(f"{run.round:,} of {run.asked:,}" if run.asked else "-"),
            Cell(run.reason),
        ]
        for run in runs
    ]
    return Table(["variant", "repeat", "status", "rounds", "reason"], rows, 5)


def robustness_table(found: Findings) -> Table | None:
    """Quality without attack next to quality under attack, rule by rule; None where nobody attacks.

    A row is a rule and an attack, everything else being the same.
    """
    threats = [(variant, variant.threat) for variant in found.variants]
    known = [(variant, threat) for variant, threat in threats if threat is not None]
    if not any(threat.malicious for _, threat in known):
        return None
    told = _settings_that_differ([threat for _, threat in known])
    quiet: dict[tuple[str, str], float] = {}
    cells: dict[tuple[str, str, str], dict[tuple[int, int], float]] = {}
    labels: dict[tuple[str, str, str], str] = {}  # of a row's first variant
    settings: dict[str, dict[str, object]] = {}
    for variant, threat in known:
        settings[threat.rest] = variant.settings
        rule, mean = _called(threat.rule, told), variant.summary(found.main).mean
        if not threat.malicious:
            quiet[rule, threat.rest] = mean
            continue
        place = threat.rest, rule, _called(threat.attack, told | {"knowledge", "scale"})
        cells.setdefault(place, {})[threat.malicious, threat.clients] = mean
        labels.setdefault(place, variant.label)
    for rule, rest in quiet:
        if not any(place[:2] == (rest, rule) for place in cells):
            cells[rest, rule, "none"] = {}
    order = list(settings)
    shares = sorted({share for values in cells.values() for share in values})
    varied = list(dict.fromkeys(key for each in settings.values() for key in each if not _is_threat(key)))
    words = {place: [*(show(settings[place[0]].get(key, "")) for key in varied), *place[1:]] for place in cells}
    alike = len(set(map(tuple, words.values()))) < len(words)  # only the names of variants tell them apart
    rows = []
    for (rest, rule, attack), values in sorted(cells.items(), key=lambda item: order.index(item[0][0])):
        before, plain = quiet.get((rule, rest), math.nan), quiet.get(("mean", rest), math.nan)
        row = [Cell(labels.get((rest, rule, attack), ""))] if alike else []
        row += [Cell(text) for text in words[rest, rule, attack]]
        row.append(Cell(number(found.main, before)))
        row.append(Cell("" if rule == "mean" or math.isnan(before - plain) else f"{before - plain:+.4f}"))
        for share in shares:
            value = values.get(share, math.nan)
            lost = f" ({value - before:+.4f})" if not math.isnan(value - before) else ""
            row.append(Cell("" if math.isnan(value) else f"{number(found.main, value)}{lost}"))
        rows.append(row)
    header = [*(["such as"] if alike else []), *varied, "rule", "attack", "no attack", "defence alone"]
    header += [f"{malicious} of {count}" for malicious, count in shares]
    note = (
        f"Mean {heading(found.main)}; in brackets, what the attack took from the same rule without attack. "
        "“Defence alone”: the rule against the mean when nobody attacks."
    )
    return Table(header, rows, len(header) - len(shares) - 2, [note])


def unlearned_table(found: Findings) -> Table | None:
    """Quality before and after unlearning, what it cost, and how near it came; None where nobody was forgotten."""
    names, words = _variant_columns(found)
    rows, main = [], found.main
    for variant in found.variants:
        papers = [reading.receipt for reading in variant.repeats.values() if reading.receipt]
        told = [paper["quality"][main] for paper in papers if main in paper.get("quality", {})]
        if not told:
            continue
        shares = [paper["cost"]["share_of_retraining"] for paper in papers]
        near = [paper["verified"]["within_spread"] for paper in papers if "within_spread" in paper["verified"]]
        before, after = (summarise([each[when] for each in told]) for when in ("parent", "unlearned"))
        cells = [spread(main, before), spread(main, after), f"{np.mean(shares):.2f}"]
        cells.append(f"{sum(one is True for one in near)} of {len(near)}" if near else "not verified")
        rows.append([*_variant_cells(found, variant, words), Cell(str(len(told))), *map(Cell, cells)])
    if not rows:
        return None
    header = [*names, "repeats", "parent", "unlearned", "steps, of retraining", "within the spread of retrained"]
    note = f"{heading(main)} of the last models. Only retraining is exact; quality that returns proves no forgetting."
    return Table(header, rows, len(names), [note])


def promotion_table(found: Findings) -> Table | None:
    """How many of the documents that an attack promotes reach the top ten; None where nothing is promoted."""
    names, words = _variant_columns(found)
    rows = []
    for variant in found.variants:
        reached = [reading.promotion for reading in variant.repeats.values() if reading.promotion is not None]
        if reached:
            told = summarise(reached)
            rows.append([*_variant_cells(found, variant, words), Cell(str(told.n)), Cell(spread("promotion", told))])
    if not rows:
        return None
    note = "Compare with the same rule without attack: some of these documents deserve their place."
    return Table([*names, "repeats", "promoted documents in the top ten"], rows, len(names), [note])


def _is_threat(setting: str) -> bool:
    """Whether a setting is told by the rule, the attack and the share of attackers."""
    return setting.partition(".")[0] in ("variants", "attack", "aggregator") or setting == "clients.malicious"


def _settings_that_differ(threats: list[Threat]) -> set[str]:
    """Settings of rules and attacks without which two variants would have the same cell of the table."""
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for threat in threats:
        attack = threat.attack if threat.malicious else {}
        place = threat.rest, threat.malicious, threat.rule.get("name"), attack.get("name")
        groups.setdefault((*place, "rule"), []).append(threat.rule)
        groups.setdefault((*place, "attack"), []).append(attack)
    return {
        key
        for tables in groups.values()
        for key in {key for table in tables for key in table}
        if any(table.get(key) != tables[0].get(key) for table in tables)
    }


def _called(method: dict[str, object], told: set[str]) -> str:
    """A method by its name, and by settings that must be told: "fang, partial", "sign-flip, scale = 3"."""
    texts = (f"{'' if key == 'knowledge' else f'{key} = '}{show(method[key])}" for key in method if key in told)
    return ", ".join([str(method.get("name", "none")), *texts])


def privacy_table(found: Findings) -> Table | None:
    """What may be claimed for each variant's model, against whom; None where nothing was protected."""
    cards = [(variant, variant.privacy()) for variant in found.variants]
    if not any(card and card["mechanism"] for _, card in cards):
        return None
    names, words = _variant_columns(found)
    rows = []
    notes: dict[str, None] = {}
    for variant, card in cards:
        if card is None:
            continue
        first = _variant_cells(found, variant, words)
        if not card["promises"]:
            rows.append([*first, Cell("none"), Cell("everybody"), Cell("none"), Cell(""), Cell("")])
        for row in card["promises"]:
            number = row["epsilon"]
            often = paid_for(row["paid_per"], row["times"])
            told = [Cell("none"), Cell(""), Cell("")]
            if number is not None:
                told = [Cell(f"{up(number)}"), Cell(f"{row['delta']:g}"), Cell(often)]
            rows.append([*first, Cell(card["mechanism"]["name"]), Cell(row["against"]), *told])
        notes[card["summary"]] = None
    about = "What is stated is what the client that took part most often has spent. Not covered: "
    uncovered = dict.fromkeys(text for _, card in cards if card for text in card["not_covered"])
    return Table(
        [*names, "mechanism", "against", "ε", "δ", "for"],
        rows,
        len(names) + 2,
        [*notes, f"{about}{'; '.join(uncovered)}."],
    )


def privacy_lines(found: Findings) -> list[str]:
    """What each protected variant has spent, and where a budget ended a run, a line each."""
    by_text: dict[str, list[str]] = {}
    for variant in found.variants:
        card = variant.privacy()
        if not card or not card["mechanism"]:
            continue
        by_claim: dict[str, list[str]] = {}
        for row in card["promises"]:
            spent = row["epsilon"]
            claim = "nothing can be claimed" if spent is None else f"ε = {up(spent)} at δ = {row['delta']:g} is spent"
            by_claim.setdefault(claim, []).append(row["against"])
        told = [f"{claim} against {', '.join(whom)}" for claim, whom in by_claim.items()]
        by_text.setdefault("; ".join(told), []).append(variant.label)
    lines = []
    for text, labels in by_text.items():
        lines.append(f"{labels[0]}{f' and {len(labels) - 1} more' if len(labels) > 1 else ''}: {text}")
    lines += [f"{run.label}: {note}" for run in found.runs.finished for note in run.notes if "privacy budget" in note]
    return lines


def asked_rows(found: Findings) -> list[tuple[str, str]]:
    """What was asked, one line per part of the experiment."""
    asked = found.asked
    facts = next(run for run in found.runs.finished).data
    rows = []
    first = ("data", "clients", "learner", "attack", "mechanism", "aggregator", "server", "rounds")
    aside = ("kind", "title", "vary", "variants", "published", "claims", "paper", "quick", "baseline", "seeds", "name")
    for key in [*(key for key in first if key in asked), *(key for key in asked if key not in (*first, *aside))]:
        text = show(asked[key])
        if key == "data":
            text = "; ".join([text, *_data_facts(facts)])
        rows.append((key.replace("_", " "), text))
    if "data" not in asked and facts:
        rows.insert(0, ("data", "; ".join([str(facts.get("name", "")), *_data_facts(facts)])))
    vary, given = asked.get("vary"), asked.get("variants")
    varies = [f"{key}: {show(values)}" for key, values in (vary.items() if isinstance(vary, dict) else ())]
    varies += [", ".join(given)] if isinstance(given, dict) and given else []
    if varies:
        rows.append(("varies", "; ".join(varies)))
    folds = sorted({run.fold for run in found.runs})
    seeds = sorted({run.seed for run in found.runs})
    each = "" if found.expected is None else f", {found.expected} for each variant"
    rows.append(("repeats", f"{_count(len(folds), 'fold')} x {_count(len(seeds), 'seed')}{each}"))
    return rows


def headline(found: Findings) -> str:
    """The result in one or two sentences."""
    best, column = found.best, found.main
    value = f"{heading(column)} {spread(column, best.summary(column))}"
    repeats = _count(len(best.repeats), "repeat")
    if len(found.variants) == 1:
        return f"{value} over {repeats}."
    text = f"Highest {heading(column)}: {best.label}, {spread(column, best.summary(column))} over {repeats}."
    if found.baseline is not None:
        verdicts = [comparison.verdict for comparison in found.comparisons[column].values()]
        better, worse = verdicts.count("better"), verdicts.count("worse")
        text += (
            f" Of {_count(len(verdicts), 'variant')} compared with {found.baseline.label}, {better} {_is(better)} "
            f"significantly better and {worse} significantly worse."
        )
    return text


def number(column: str, value: float) -> str:
    """A value with the digits that its column deserves."""
    if math.isnan(value):
        return "-"
    return f"{value:,.2f}" if column == "online_sum" else f"{value:.4f}"


def signed(column: str, value: float) -> str:
    return "-" if math.isnan(value) else f"{'+' if value >= 0 else '-'}{number(column, abs(value))}"


def spread(column: str, summary: Summary) -> str:
    if math.isnan(summary.sd):
        return number(column, summary.mean)
    return f"{number(column, summary.mean)} ± {number(column, summary.sd)}"


def probability(p: float) -> str:
    if math.isnan(p):
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def amount(name: str, value: float) -> str:
    """Bytes, seconds and counts for people.

    >>> amount("bytes_up", 73_600.0)
    '73.6 kB'
    """
    if math.isnan(value):
        return "-"
    if name.endswith("seconds"):
        return duration(value)
    if not name.startswith("bytes"):
        return f"{value:,.0f}"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def _variant_columns(found: Findings) -> tuple[list[str], list[str]]:
    """Headings, and the settings behind them: one column a setting where every variant has the same few."""
    keys = list(found.variants[0].settings)
    regular = all(list(variant.settings) == keys and "=" in variant.name for variant in found.variants)
    return (keys, keys) if regular and 1 <= len(keys) <= 4 else (["variant"], [])


def _variant_cells(found: Findings, variant: Variant, keys: list[str]) -> list[Cell]:
    texts = [show(variant.settings[key]) for key in keys] or [variant.label]
    hint = "" if variant.label == variant.name else variant.name
    cells = [Cell(text, hint=hint) for text in texts]
    if variant is found.baseline:
        cells[-1] = Cell(f"{texts[-1]} (baseline)", hint=hint)
    return cells


def _best(found: Findings, column: str) -> set[str]:
    means = {variant.name: variant.summary(column).mean for variant in found.variants}
    known = [mean for mean in means.values() if not math.isnan(mean)]
    return {name for name, mean in means.items() if known and mean == max(known)}


def _range(column: str, summary: Summary) -> str:
    return f"{number(column, summary.smallest)} to {number(column, summary.largest)}" if summary.n else ""


def _data_facts(facts: dict[str, object]) -> list[str]:
    told = []
    if "train_queries" in facts and "test_queries" in facts:
        told.append(
            f"{show(facts['train_queries'])} training and {show(facts['test_queries'])} test queries in one fold"
        )
    if "features" in facts:
        told.append(f"{show(facts['features'])} features, normalised: {facts.get('normalised', 'unknown')}")
    if "top_grade" in facts:
        told.append(f"grades 0 to {facts['top_grade']}")
    return told


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _is(n: int) -> str:
    return "is" if n == 1 else "are"
