"""The tables of a report, for the page, for Markdown and for the terminal alike."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedrank.display import count_of, listed
from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.claims import (
    CANNOT,
    FAILS,
    HOLDS,
    OPEN,
    SMALLEST,
    SMALLEST_RECIPROCAL,
    UNTESTED,
    Verdict,
)
from fedrank.experiments.report.formatting import (
    amount,
    effect_size,
    heading,
    interval,
    mean_interval,
    number,
    probability,
    signed,
    spread,
)
from fedrank.experiments.report.published_values import OUTSIDE, WITHIN, PublishedComparison
from fedrank.experiments.report.run_values import Threat, VariantRuns
from fedrank.experiments.report.sections import BOLD, Cell, Row, Table
from fedrank.experiments.report.statistics import LEVEL, summarise
from fedrank.experiments.runner.cards import about_population
from fedrank.experiments.runner.folder import Card, Json
from fedrank.experiments.runner.privacy import together
from fedrank.experiments.runner.runs import COUNTED, TIMED, Runs
from fedrank.experiments.spec.experiment import to_tables
from fedrank.experiments.spec.families import ExternalMethod, default_of, is_required
from fedrank.experiments.spec.grid import Grid
from fedrank.privacy.guarantees import up
from fedrank.ranking.baseline_ranking import LOGGED
from fedrank.toml import TomlTable, readable

ABOUT_CLIENTS = ("queries", "interactions")  # columns of clients.csv other than quality

Rows = list[tuple[VariantRuns, Row]]


def provenance_rows(finished: Runs) -> list[tuple[str, str]]:
    """When runs were done, by which code, where, and from which files; what is the same for all stands once."""
    begun = sorted(run.begun for run in finished if run.begun)
    ended = sorted(run.ended for run in finished if run.ended)
    rows = {"begun": begun[0] if begun else "", "ended": ended[-1] if ended else ""}
    for what in dict.fromkeys(name for run in finished for name in run.commits):
        rows[f"commit of {'the ' if ' ' in what else ''}{what}"] = _each(
            run.commits.get(what, "none") for run in finished
        )
    rows["versions"] = _each(", ".join(f"{k} {v}" for k, v in run.versions.items()) for run in finished)
    rows["processor"] = _each(run.processor for run in finished)
    for file in dict.fromkeys(name for run in finished for name in run.files):
        sums = dict.fromkeys(run.files[file] for run in finished if file in run.files)
        rows[file] = " and ".join(f"SHA-256 {one}" for one in sums)
    return [(name, text) for name, text in rows.items() if text]


def _each(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, values)))


def final_table(analysis: Analysis, columns: Sequence[str] | None = None) -> Table:
    """Final quality of each variant; ▲ and ▼ mark significant differences from the baseline."""
    columns = analysis.columns if columns is None else columns
    best = {column: _best(analysis, column) for column in columns}
    several = len(analysis.rows) > 1
    rows: Rows = []
    for variant in analysis.rows:
        n, learned = len(variant.repeats), variant in analysis.variants  # the last rows are doing nothing
        short = learned and analysis.expected is not None and n < analysis.expected
        cells = [Cell(f"{n} of {analysis.expected}" if short else str(n), tone="worse" if short else "")]
        for column in columns:
            summary, strong = variant.summary(column), several and variant.name in best[column]
            hint = f"95% interval {number(column, summary.low)} to {number(column, summary.high)}"
            tone, mark = "" if learned else "quiet", mark_of(analysis, variant, column)
            cells.append(Cell(spread(column, summary), strong, hint if learned and n > 1 else "", tone, mark))
        rows.append((variant, cells))
    notes = [BOLD] if several else []
    header = ["repeats", *map(heading, columns)]
    return _variant_table(analysis, header, rows, notes=[*notes, *final_notes(analysis)])


def mark_of(analysis: Analysis, variant: VariantRuns, column: str) -> str | None:
    """▲ or ▼ for a significant difference from the baseline, empty for none, None where there is no baseline."""
    if analysis.baseline is None:
        return None
    comparison = analysis.comparisons.get(column, {}).get(variant.name)
    return {"better": "▲", "worse": "▼", "": ""}[comparison.verdict if comparison else ""]


def final_notes(analysis: Analysis) -> list[str]:
    """What doing nothing is, and what marks mean."""
    notes = []
    if analysis.nothing:
        orders = ", ".join(dict.fromkeys(nothing.order for nothing in analysis.nothing))
        notes.append(f"Do nothing: the order that users have without learning ({orders}).")
    if analysis.baseline is not None and analysis.is_tested:
        notes.append(
            f"▲ ▼: significantly above or below the baseline, {analysis.baseline.label} ({analysis.baseline_reason}): "
            f"corrected p < {LEVEL:g}, {_compared(analysis)}."
        )
    return notes


def interval_table(analysis: Analysis, column: str) -> Table:
    """Mean with its confidence interval and range."""
    rows: Rows = []
    for variant in analysis.rows:
        summary = variant.summary(column)
        values = (summary.mean, summary.sd, summary.low, summary.high, summary.smallest, summary.largest)
        rows.append((variant, [number(column, value) for value in values]))
    return _variant_table(analysis, ["mean", "sd", "95% from", "to", "lowest", "highest"], rows)


def comparison_table(analysis: Analysis, column: str) -> Table:
    """Each variant against the baseline in one column."""
    rows: Rows = []
    for variant in analysis.variants:
        comparison = analysis.comparisons.get(column, {}).get(variant.name)
        if comparison is None:
            continue
        found, tone = comparison.contrast, comparison.verdict
        cells: Row = [
            Cell(signed(column, found.difference), tone=tone, hint=found.reason),
            interval(column, *found.interval()),
            Cell(probability(comparison.p), tone=tone, hint=f"uncorrected p {probability(found.p)}"),
            effect_size(found.effect),
            str(found.repeats),
            Cell(f"{found.counted:,} {found.unit}" if found.tested else "-", hint=found.reason),
        ]
        rows.append((variant, cells))
    header = ["difference", "95% interval", "p, corrected", "effect (d)", "repeats", "tested over"]
    return _variant_table(analysis, header, rows)


def nothing_table(analysis: Analysis, column: str) -> Table:
    """Each variant against what users have without it."""
    several = len(analysis.nothing) > 1
    rows: Rows = []
    for nothing in analysis.nothing:
        for variant in analysis.variants:
            found = nothing.comparisons.get(column, {}).get(variant.name)
            if found is None:
                continue
            test, tone = found.contrast, found.verdict
            verdict = tone or ("not significant" if test.tested else f"not tested: {test.reason}")
            if nothing.order == LOGGED and tone:  # logged clicks favour the logged order
                verdict, tone = "higher by replay" if tone == "better" else "lower by replay", ""
            cells: Row = [
                *([nothing.order] if several else []),
                Cell(signed(column, test.difference), tone=tone),
                interval(column, *test.interval()),
                f"{test.counted:,} {test.unit}",
                probability(found.p),
                Cell(verdict, tone=tone or "quiet"),
            ]
            rows.append((variant, cells))
    header = [*(["order"] if several else []), "difference", "95% interval", "tested over", "p, corrected", "verdict"]
    return _variant_table(analysis, header, rows, text_columns=int(several))


def published_table(analysis: Analysis) -> Table:
    """Values from papers next to ours."""
    rows: list[Row] = []
    for entry in analysis.published:
        verdict = Cell(entry.verdict, tone=published_tone(entry.verdict), hint=entry.how)
        rows.append([entry.variant.label, heading(entry.column), entry.source, *published_cells(entry), verdict])
    header = ["variant", "measure", "source", *PUBLISHED, "verdict"]
    return Table(header, rows, 3, [PUBLISHED_RULE])


PUBLISHED = ("published", "measured", "95% of our mean", "repeats", "ours - theirs", "its 95% interval", "z")
PUBLISHED_RULE = (
    "Rule: a published value is within if the 95% interval of ours - theirs contains 0. Its standard error is that of "
    "random variation: paired by folds where their values are published, otherwise of seeds within folds. The "
    "published mean counts as one run per fold unless the paper says how many. With one seed per fold, the rule can "
    "find a value outside, but not within. z is the difference in standard errors. ± is the standard deviation over "
    "repeats and is not part of the rule."
)


def published_cells(entry: PublishedComparison) -> tuple[str, ...]:
    """Cells under the headings of PUBLISHED."""
    column, ours = entry.column, entry.measured
    value = number(column, entry.value)
    return (
        value if entry.spread is None else f"{value} ± {number(column, entry.spread)}",
        spread(column, ours),
        mean_interval(column, ours),
        str(ours.n),
        signed(column, entry.difference),
        interval(column, *entry.interval),
        "-" if math.isnan(entry.z) else f"{entry.z:+.1f}",
    )


def published_tone(verdict: str) -> str:
    return {WITHIN: "better", OUTSIDE: "worse"}.get(verdict, "quiet")


def claims_table(analysis: Analysis) -> Table:
    """What the paper found, and whether it holds here."""
    rows: list[Row] = []
    for claim in analysis.claims:
        verdict, effect = Cell(verdict_text(claim), tone=TONES[claim.verdict]), effect_size(claim.contrast.effect, 1)
        counts = tested_over(claim), str(claim.contrast.repeats), power(claim)
        rows.append([claim.says, verdict, heading(claim.column), with_interval(claim), effect, *counts])
    tested = sum(claim.contrast.tested for claim in analysis.claims)
    note = (
        f"On this data set, by the rule of all tables. Difference with a confidence interval at the level {LEVEL:g} "
        f"that {count_of(tested, 'tested claim')} of the experiment share{'s' if tested == 1 else ''} (Holm). A claim "
        "that something is better holds if the lower bound is above 0, and does not hold if the upper bound is below "
        f"the smallest difference of interest ({SMALLEST:g} of a measure that ends at 1, {SMALLEST_RECIPROCAL:g} of a "
        "reciprocal rank, or the paper's difference if that is smaller); a claim that two are alike holds inside its "
        "margin. Power: how likely the design would have shown the difference that the paper reports, or the smallest "
        "of interest."
    )
    header = ["claim", "verdict", "measure", "difference", "effect", "tested over", "repeats", "power"]
    return Table(header, rows, 3, [note])


TONES = {HOLDS: "better", FAILS: "worse", OPEN: "quiet", UNTESTED: "quiet"}


def verdict_text(claim: Verdict) -> str:
    """The verdict, and the reason where it is not clear; only the reason where the design could not decide."""
    if not claim.reason or claim.reason.startswith(CANNOT):
        return claim.reason or claim.verdict
    return f"{claim.verdict}: {claim.reason}"


def with_interval(claim: Verdict) -> str:
    """A difference and its confidence interval."""
    known = "" if math.isnan(claim.low) else f" ({interval(claim.column, claim.low, claim.high)})"
    return f"{signed(claim.column, claim.contrast.difference)}{known}"


def tested_over(claim: Verdict) -> str:
    """What was counted."""
    found = claim.contrast
    return count_of(found.counted, found.unit.removesuffix("s"), found.unit) if found.unit else "-"


def power(claim: Verdict) -> str:
    """The power of the design, and for which difference."""
    if math.isnan(claim.power):
        return "-"
    return f"{claim.power:.2f} for {number(claim.column, claim.sought)}"


def _compared(analysis: Analysis) -> str:
    """How many comparisons a table corrects for, and over what they were made."""
    tested = [
        (column, found)
        for column, comparisons in analysis.comparisons.items()
        for found in comparisons.values()
        if found.contrast.tested
    ]
    counts = sorted({found.comparisons for _, found in tested})
    made = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "0"
    columns: dict[str, list[str]] = {}  # by what they are tested over
    for column, found in tested:
        if heading(column) not in columns.setdefault(found.contrast.unit, []):
            columns[found.contrast.unit].append(heading(column))
    over = "".join(
        f"; {' and '.join(', '.join(names).rsplit(', ', 1))} {'is' if len(names) == 1 else 'are'} tested over {unit}"
        for unit, names in columns.items()
    )
    return f"{made} comparison{'' if made == '1' else 's'} in a column (Holm){over}"


def clients_table(analysis: Analysis) -> Table | None:
    """How well the final models serve clients, from the average one to the worst; None where all are alike."""
    if analysis.kind == "trees":
        return _merged_table(analysis)
    rows: Rows = []
    for variant in analysis.variants:
        readings = [reading.clients for reading in variant.repeats.values() if reading.clients]
        for column in dict.fromkeys(name for reading in readings for name in reading if name not in ABOUT_CLIENTS):
            values = [reading[column][~np.isnan(reading[column])] for reading in readings if column in reading]
            values = [each for each in values if len(each)]
            if values:
                lowest = (np.mean, lambda each: np.percentile(each, 10), np.min)
                means = [f"{np.mean([statistic(each) for each in values]):.4f}" for statistic in lowest]
                rows.append((variant, [column, str(max(map(len, values))), *means]))
    if not rows:
        return None
    note = (
        "Each client's final model on the queries that it searches with, by its own relevance labels; means over "
        "repeats. They learned from these queries: compare variants here, not with the tables above."
    )
    if analysis.kind == "silo":
        note = "Each client's final model on its own test queries; means over repeats."
    elif any(reading.by_sites for row in analysis.variants for reading in row.repeats.values()):
        note = (
            "The final model on the held-out lists of each site, as the site released it; means over repeats. “given” "
            "is the order in which users saw these lists."
        )
    return _variant_table(analysis, ["measure", "clients", "mean", "10th percentile", "worst"], rows, 1, [note])


def _merged_table(analysis: Analysis) -> Table | None:
    """The quality of each client before and after merging."""
    columns = [f"{where} {when}" for where in ("own", "others", "all") for when in ("before", "after")]
    rows: Rows = []
    for variant in analysis.variants:
        readings = [reading.clients for reading in variant.repeats.values() if reading.clients]
        for measure in analysis.measures if readings else ():
            tables = [np.array([reading[f"{measure} {column}"] for column in columns]) for reading in readings]
            for client in range(min(table.shape[1] for table in tables)):
                values = np.array([table[:, client] for table in tables]).T  # [columns, repeats]
                means = [float(known.mean()) if len(known := row[~np.isnan(row)]) else math.nan for row in values]
                rows.append((variant, [measure, str(client + 1), *(number(measure, mean) for mean in means)]))
    if not rows:
        return None
    note = (
        "Each client's model before and after merging, on its own kind of test queries, on those of "
        "the other clients' kinds, and on all of them; means over repeats."
    )
    return _variant_table(analysis, ["measure", "client", *columns], rows, 2, [note])


def cost_table(analysis: Analysis) -> Table:
    """What a run of each variant cost, on average over repeats."""
    # Trees are grown without searches, and traffic is not counted.
    costs = [name for name in (*COUNTED, *TIMED) if analysis.kind != "trees" or name.endswith("seconds")]
    rows: Rows = [(each, [amount(name, each.cost(name)) for name in costs]) for each in analysis.variants]
    note = "Means over repeats, each for a whole run. Times depend on the machine and on what else it was doing."
    return _variant_table(analysis, [*map(heading, costs)], rows, notes=[note])


def unfinished_table(runs: Runs) -> Table:
    """Runs that no table counts, each with its reason."""
    rows: list[Row] = []
    for run in runs:
        status = Cell(run.status, tone="worse" if run.status in ("failed", "broken") else "")
        rounds = f"{run.round:,} of {run.asked:,}" if run.asked else "-"
        rows.append([run.variant, f"fold {run.fold}, seed {run.seed}", status, rounds, run.reason])
    return Table(["variant", "repeat", "status", "rounds", "reason"], rows, 5)


def robustness_table(analysis: Analysis) -> Table | None:
    """Quality without attack next to quality under attack, rule by rule; None without an attack.

    A row is a rule and an attack, everything else being the same.
    """
    threats = [(variant, variant.threat) for variant in analysis.variants]
    known = [(variant, threat) for variant, threat in threats if threat is not None]
    if not any(threat.malicious for _, threat in known):
        return None
    named = _settings_that_differ([threat for _, threat in known])
    quiet: dict[tuple[str, str], float] = {}
    cells: dict[tuple[str, str, str], dict[tuple[int, int], float]] = {}
    labels: dict[tuple[str, str, str], str] = {}  # of a row's first variant
    settings: dict[str, dict[str, object]] = {}
    for variant, threat in known:
        settings[threat.rest] = variant.settings
        rule, mean = _called(threat.rule, named), variant.summary(analysis.main).mean
        if not threat.malicious:
            quiet[rule, threat.rest] = mean
            labels.setdefault((threat.rest, rule, "none"), variant.label)
            continue
        place = threat.rest, rule, _called(threat.attack, named | {"knowledge", "scale"})
        cells.setdefault(place, {})[threat.malicious, threat.clients] = mean
        labels.setdefault(place, variant.label)
    for rule, rest in quiet:
        if not any(place[:2] == (rest, rule) for place in cells):
            cells[rest, rule, "none"] = {}
    order = list(settings)
    shares = sorted({share for values in cells.values() for share in values})
    varied = list(dict.fromkeys(key for each in settings.values() for key in each if not _is_threat(key)))
    words = {place: [*(readable(settings[place[0]].get(key, "")) for key in varied), *place[1:]] for place in cells}
    alike = len(set(map(tuple, words.values()))) < len(words)  # only the names of variants distinguish them
    rows = []
    for (rest, rule, attack), values in sorted(cells.items(), key=lambda item: order.index(item[0][0])):
        before, plain = quiet.get((rule, rest), math.nan), quiet.get(("mean", rest), math.nan)
        row = [labels.get((rest, rule, attack), "")] if alike else []
        row += [*words[rest, rule, attack], number(analysis.main, before)]
        row.append("" if rule == "mean" or math.isnan(before - plain) else signed(analysis.main, before - plain))
        for share in shares:
            value = values.get(share, math.nan)
            lost = f" ({signed(analysis.main, value - before)})" if not math.isnan(value - before) else ""
            row.append("" if math.isnan(value) else f"{number(analysis.main, value)}{lost}")
        rows.append(row)
    header = [*(["such as"] if alike else []), *varied, "rule", "attack", "no attack", "defence alone"]
    header += [f"{malicious} of {count}" for malicious, count in shares]
    note = (
        f"Mean {heading(analysis.main)}; in brackets, the change from the same rule without an attack. "
        "“Defence alone”: the rule compared with the mean, without an attack."
    )
    return Table(header, rows, len(header) - len(shares) - 2, [note])


def unlearned_table(analysis: Analysis) -> Table | None:
    """Quality before and after unlearning, what it cost, and how near it came; None where no client was unlearned."""
    main = analysis.main
    rows: Rows = []
    for variant in analysis.variants:
        receipts = [reading.receipt for reading in variant.repeats.values() if reading.receipt]
        qualities = [receipt.quality[main] for receipt in receipts if main in receipt.quality]
        qualities = [one for one in qualities if None not in (one["parent"], one["unlearned"])]
        if not qualities:
            continue
        shares = [share for one in receipts if (share := one.cost["share_of_retraining"]) is not None]
        near = [receipt.verified["within_spread"] for receipt in receipts if "within_spread" in receipt.verified]
        before, after = (summarise([quality[when] for quality in qualities]) for when in ("parent", "unlearned"))
        cells = [str(len(qualities)), spread(main, before), spread(main, after), mean_interval(main, after)]
        cells.append(f"{np.mean(shares):.2f}" if shares else "unknown")
        certified = all(one.certificate for one in receipts)
        unverified = "has a certificate" if certified else "not verified"
        cells.append(f"{sum(one is True for one in near)} of {len(near)}" if near else unverified)
        rows.append((variant, cells))
    if not rows:
        return None
    header = ["repeats", "parent", "unlearned", "95% of its mean", "steps, of retraining"]
    header.append("within the spread of retrained")
    note = (
        f"{heading(main)} of the last models. Only retraining is exact: equal quality does not prove forgetting, and "
        "a wide spread of retrained models includes many others."
    )
    return _variant_table(analysis, header, rows, notes=[note])


def promotion_table(analysis: Analysis) -> Table | None:
    """How many of the documents that an attack promotes reach the top ten; None where nothing is promoted."""
    rows: Rows = []
    for variant in analysis.variants:
        reached = [reading.promotion for reading in variant.repeats.values() if reading.promotion is not None]
        if reached:
            promoted = summarise(reached)
            rows.append((variant, [str(promoted.n), spread("promotion", promoted)]))
    note = "Compare with the same rule without attack: some of these documents are relevant."
    header = ["repeats", "promoted documents in the top ten"]
    return _variant_table(analysis, header, rows, notes=[note]) if rows else None


def _is_threat(setting: str) -> bool:
    """Whether a setting belongs to the rule, the attack or the share of attackers."""
    return setting.partition(".")[0] in ("variants", "attack", "aggregator") or setting == "clients.malicious"


def _settings_that_differ(threats: list[Threat]) -> set[str]:
    """Settings of rules and attacks without which two variants would have the same cell of the table."""
    groups: dict[tuple[object, ...], list[TomlTable]] = {}
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


def _called(method: TomlTable, named: set[str]) -> str:
    """A method by its name, and by settings that must be named: "fang, partial", "sign-flip, scale = 3"."""
    texts = (f"{'' if key == 'knowledge' else f'{key} = '}{readable(method[key])}" for key in method if key in named)
    return ", ".join([str(method.get("name", "none")), *texts])


def privacy_table(analysis: Analysis) -> Table | None:
    """What may be claimed for each variant's model, against whom; None where nothing was protected."""
    if not any(variant.is_protected for variant in analysis.variants):
        return None
    rows: Rows = []
    summaries = []
    for variant in analysis.variants:
        if (card := variant.card) is None:
            continue
        summaries.append(card.summary)
        if card.mechanism is None or not card.promises:
            rows.append((variant, ["none", "every observer", "none", "", ""]))
            continue
        for row in card.promises:
            spent = ["none", "", ""] if row.epsilon is None else [up(row.epsilon), f"{row.delta:g}", row.often]
            rows.append((variant, [card.mechanism["name"], row.against, *spent]))
    about = "What is stated is what the client that took part most often has spent."
    notes = [*dict.fromkeys(summaries), about, *_together(analysis)]
    return _variant_table(analysis, ["mechanism", "against", "ε", "δ", "for"], rows, 2, notes)


def _together(analysis: Analysis) -> list[str]:
    """What the runs of an experiment would cost the same people together, where each is priced alone."""
    line = together(analysis.runs)
    return [] if line is None else [f"{line}."]


def privacy_lines(analysis: Analysis) -> list[str]:
    """What each protected variant has spent, and where a budget ended a run; one line per item."""
    by_text: dict[str, list[str]] = {}
    for variant in analysis.variants:
        card = variant.card
        if card is None or card.mechanism is None:
            continue
        by_claim: dict[str, list[str]] = {}
        for row in card.promises:
            claim = "no privacy guarantee"
            if row.epsilon is not None:
                claim = f"ε = {up(row.epsilon)} at δ = {row.delta:g} is spent"
            by_claim.setdefault(claim, []).append(row.against)
        text = "; ".join(f"{claim} against {', '.join(whom)}" for claim, whom in by_claim.items())
        by_text.setdefault(text, []).append(variant.label)
    lines = [f"{listed(labels, 1)}: {text}" for text, labels in by_text.items()]
    lines += [
        f"{run.label}: {note}" for run in analysis.runs.finished for note in run.notes if "privacy budget" in note
    ]
    populations = {card.population["name"]: card.population for card in _cards(analysis) if card.population}
    return [*lines, *map(about_population, populations.values()), *_together(analysis)]


def _cards(analysis: Analysis) -> list[Card]:
    """Of all repeats; those of a population in the order in which they count ever more."""

    def counted(card: Card) -> tuple[int, int, float]:
        people = card.population or {"forgotten": (), "runs": 0, "epsilon": {}}
        spent = (math.inf if cost is None else cost for cost in people["epsilon"].values())
        return len(people["forgotten"]), people["runs"], max(spent, default=0.0)

    cards = [reading.card for variant in analysis.variants for reading in variant.repeats.values() if reading.card]
    return sorted(cards, key=counted)


def settings_rows(analysis: Analysis) -> list[tuple[str, str]]:
    """The settings, one line per part of the experiment; defaults are left out."""
    facts, about = analysis.runs.finished[0].data, analysis.about
    tables = {} if analysis.grid is None else _common_settings(analysis.grid)
    first = ("data", "clients", "learner", "attack", "mechanism", "aggregator", "server", "rounds")
    rows = []
    for key in [*(key for key in first if key in tables), *(key for key in tables if key not in first)]:
        more = data_facts(facts) if key == "data" else []
        rows.append((key.replace("_", " "), "; ".join([readable(tables[key]), *more])))
    if "data" not in tables and facts:
        rows.insert(0, ("data", "; ".join([str(facts.get("name", "")), *data_facts(facts)])))
    varies = [f"{key}: {readable(values)}" for key, values in about.vary.items()]
    varies += [", ".join(about.variants)] if about.variants else []
    if varies:
        rows.append(("varies", "; ".join(varies)))
    folds = sorted({run.fold for run in analysis.runs})
    seeds = sorted({run.seed for run in analysis.runs})
    each = "" if analysis.expected is None else f", {analysis.expected} for each variant"
    rows.append(("repeats", f"{count_of(len(folds), 'fold')} x {count_of(len(seeds), 'seed')}{each}"))
    return rows


def _common_settings(grid: Grid[Any]) -> TomlTable:
    """What all variants have in common, as far as it was said and is not what would have been without saying it."""
    tables: TomlTable = {}
    for key in to_tables(grid.base):
        if key in ("kind", "title", "seeds") or key not in grid.tables:
            continue
        part, given = getattr(grid.base, key), grid.tables[key]
        if _is_table(given, part):
            given = _but_defaults(part, given)
        if given != {}:
            tables[key] = given
    return tables


def _is_table(given: Any, part: Any) -> bool:
    """Whether a value of a spec is the table of this method or section."""
    return isinstance(given, dict) and dataclasses.is_dataclass(part) and not isinstance(part, (type, ExternalMethod))


def _but_defaults(part: Any, given: TomlTable) -> TomlTable:
    """A table without the settings that have their default; the name of a method stays."""
    fields = {field.name: field for field in dataclasses.fields(part)}
    changed: TomlTable = {}
    for key, value in given.items():
        field = fields.get(key)
        if field is not None and key != "name" and not is_required(field):
            now = getattr(part, key)
            if now == default_of(field):
                continue
            if _is_table(value, now):
                value = _but_defaults(now, value)
        changed[key] = value
    return changed


def headline(analysis: Analysis) -> str:
    """The conclusion in two sentences: the highest quality beside doing nothing, and how the variants compare."""
    best, column = analysis.best, analysis.main
    quality = f"{spread(column, best.summary(column))} over {count_of(len(best.repeats), 'repeat')}"
    without = ""
    if (nothing := analysis.nothing_for(best)) is not None:
        mean = number(column, nothing.values.summary(column).mean)
        without = f"; doing nothing ({nothing.order}) has {mean}"
    if len(analysis.variants) == 1:
        return f"{heading(column)} {quality}{without}."
    text = f"Highest {heading(column)}: {best.label}, {quality}{without}."
    return f"{text} {_verdicts(analysis)}" if analysis.baseline is not None else text


def _verdicts(analysis: Analysis) -> str:
    """Every variant against the baseline in the main measure, grouped by verdict."""
    assert analysis.baseline is not None
    found, labels = analysis.comparisons[analysis.main], {each.name: each.label for each in analysis.variants}
    # Logged clicks favour models that resemble the logged order: a lower value is not a worse model.
    replay = any(each.order == LOGGED for each in analysis.nothing)
    higher, lower = ("higher by replay", "lower by replay") if replay else ("better", "worse")
    verdicts = {
        f"significantly {higher}": [name for name, each in found.items() if each.verdict == "better"],
        f"significantly {lower}": [name for name, each in found.items() if each.verdict == "worse"],
        "not significantly different": [n for n, each in found.items() if not each.verdict and each.contrast.tested],
        "not tested": [name for name, each in found.items() if not each.contrast.tested],
    }
    groups = []
    for verdict, names in verdicts.items():
        if names:
            which = " and ".join(labels[name] for name in names) if len(names) < 3 else f"{len(names)} variants"
            groups.append(f"{which} {'is' if len(names) == 1 else 'are'} {verdict}")
    return f"Compared with {analysis.baseline.label}, {', '.join(groups)}." if groups else ""


def _variant_table(
    analysis: Analysis, header: Sequence[str], rows: Rows, text_columns: int = 0, notes: Sequence[str] = ()
) -> Table:
    """A table whose leading columns name the variant of each row; `text_columns` more columns contain text."""
    names, keys = _variant_columns(analysis)
    cells = [[*_variant_cells(analysis, variant, keys), *row] for variant, row in rows]
    return Table([*names, *header], cells, len(names) + text_columns, notes)


def _variant_columns(analysis: Analysis) -> tuple[list[str], list[str]]:
    """Headings, and the settings behind them: one column per setting where all variants have the same few."""
    keys = list(analysis.variants[0].settings)
    regular = all(list(variant.settings) == keys and "=" in variant.name for variant in analysis.variants)
    names, words = (keys, keys) if regular and 1 <= len(keys) <= 4 else (["variant"], [])
    return (["experiment", *names], words) if analysis.parts else (names, words)


def _variant_cells(analysis: Analysis, variant: VariantRuns, keys: list[str]) -> list[Cell]:
    width = max(len(keys), 1) + bool(analysis.parts)
    if variant in (nothing.values for nothing in analysis.nothing):
        texts = [variant.label, *[""] * (width - 1)]
    else:
        texts = [readable(variant.settings[key]) for key in keys] or [variant.own_label]
        texts = [variant.experiment, *texts] if analysis.parts else texts
    hint = "" if variant.label == variant.name else variant.name
    cells = [Cell(text, hint=hint) for text in texts]
    if variant is analysis.baseline:
        place = max(i for i, text in enumerate(texts) if text or i == 0)
        cells[place] = Cell(f"{texts[place]} (baseline)", hint=hint)
    return cells


def _best(analysis: Analysis, column: str) -> set[str]:
    means = {variant.name: variant.summary(column).mean for variant in analysis.rows}
    known = [mean for mean in means.values() if not math.isnan(mean)]
    return {name for name, mean in means.items() if known and mean == max(known)}


def data_facts(facts: Json) -> list[str]:
    """Numbers of queries, features and relevance labels, as far as they are known."""
    sentences = []
    if "train_queries" in facts and "test_queries" in facts:
        train, test = (readable(facts[f"{part}_queries"]) for part in ("train", "test"))
        sentences.append(f"{train} training and {test} test queries in one fold")
    if "features" in facts:
        sentences.append(f"{readable(facts['features'])} features, normalised: {facts.get('normalised', 'unknown')}")
    if "top_grade" in facts:
        sentences.append(f"relevance labels 0 to {facts['top_grade']}")
    return sentences
