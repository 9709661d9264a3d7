"""The output of commands as sections."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrank.experiments.report.formatting import duration, signed
from fedrank.experiments.report.sections import Cell, Part, Points, Row, Section, Span, Table, Tone, paragraph
from fedrank.experiments.report.statistics import randomisation_test
from fedrank.experiments.runner.disclosures import (
    Disclosure,
    budget_line,
    cost_of_words,
    leaving,
    sketch_noise_needed,
)
from fedrank.experiments.runner.failures import alike, several
from fedrank.experiments.runner.folder import Receipt, paid_for
from fedrank.experiments.runner.privacy import (
    TARGETS,
    UNPROTECTED,
    BudgetForecast,
    Price,
    budget_forecast,
    budget_lines,
    enough,
    noise_needed,
    planned,
    prices_by_observer,
)
from fedrank.experiments.runner.privacy_rule import wasted_budget
from fedrank.experiments.runner.recorded_charges import check_populations
from fedrank.experiments.runner.runs import Run, Runs
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid, Variant
from fedrank.experiments.spec.listing import ListedMethod
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.federated.traits import from_outside
from fedrank.privacy.guarantees import down, up
from fedrank.privacy.population import Account, forgotten, ledger_folders, ledgers_below, spent_together
from fedrank.progress import Progress, quiet
from fedrank.ranking.measures import average, measure
from fedrank.ranking.propensity import IN_THE_CLEAR, SHARED, Propensities, ShownResults
from fedrank.types import has_trait
from fedrank.unlearning.verify import mean_of

if TYPE_CHECKING:
    from fedrank.attacks.audits import Finding
    from fedrank.data.catalog import DataSet
    from fedrank.data.check import FileCheck
    from fedrank.data.describe_log import LogDescription, ShownDescription
    from fedrank.data.drift import Drift
    from fedrank.experiments.runner.client_summary import ClientSummary, Group
    from fedrank.experiments.runner.privacy_plan import PrivacyPlan
    from fedrank.experiments.runner.scoring import Quality
    from fedrank.experiments.runner.tune import Tried
    from fedrank.experiments.runner.unlearning import Forgotten
    from fedrank.ranking.estimate import ClickEstimate, Interval
    from fedrank.ranking.model import Scorer
    from fedrank.trees.growing_files import GrownFile
    from fedrank.trees.merge_files import MergedFile
    from fedrank.trees.split_folder import SplitMade

ALONE = "Nothing leaves a client: each learns alone."
ADD_NOISE = (
    "every update leaves without noise. Add a mechanism, such as gaussian with clip = 0.5 and noise = 10, and "
    "check its ε with fedrank privacy show."
)
MAX_ROWS = 20  # clients in a table
STATUS: dict[str, Tone] = {
    "finished": "better",
    "running": "name",
    "interrupted": "warn",
    "failed": "worse",
    "broken": "worse",
}
VERDICTS: dict[str, Tone] = {"VIOLATED": "worse", "READ": "worse", "NOT SHOWN": "better", "NO POWER": "warn"}


def about_runs(runs: Runs) -> list[Section]:
    """One line for each run: status, quality and time."""
    if not len(runs):
        return [
            Section("").paragraph("No runs here. Start one with ", Span("fedrank run EXPERIMENT.toml", "code"), ".")
        ]
    sections = []
    for (_, name), group in runs.group("folder", "experiment").items():
        rows: list[Row] = [
            [
                run.variant,
                str(run.fold),
                str(run.seed),
                Cell(run.status, tone=STATUS[run.status]),
                f"{run.round:,} / {run.asked:,}" if run.asked else "-",
                _or_dash(_latest_quality, run),
                _or_dash(lambda run: duration(run.seconds), run),
            ]
            for run in group
        ]
        table = Table(["variant", "fold", "seed", "status", "round", "quality", "time"], rows, 4)
        reasons = [
            paragraph(f"{several(some)}: {some[0].reason}", tone="quiet")
            for some in alike(run for run in group if run.status in ("failed", "broken"))
        ]
        sections.append(Section(name, (table, *reasons)))
    return sections


def _latest_quality(run: Run) -> str:
    column, value = run.latest_value
    return "-" if np.isnan(value) else f"{column} {value:.4f}"


def _or_dash(text: Callable[[Run], str], run: Run) -> str:
    """What a run says, which may have no files yet, or broken ones."""
    try:
        return text(run)
    except (OSError, ValueError, KeyError):
        return "-"


def about_methods(methods: Sequence[ListedMethod]) -> list[Section]:
    """Methods with their settings, by family."""
    sections = []
    for family in dict.fromkeys(method.family for method in methods):
        rows: list[Row] = []
        for method in methods:
            if method.family != family:
                continue
            rows.append([Cell(method.name, tone="name"), method.meaning])
            for setting in method.settings:
                default = f" = {setting.default}" if setting.default else ""
                comment = f"  # {setting.comment}" if setting.comment else ""
                rows.append(["", Cell(f"{setting.name}: {setting.kind}{default}{comment}", tone="quiet")])
        sections.append(Section(family, (Table(["name", "meaning"], rows, 2, unbroken_column=0, bare=True),)))
    return sections


def about_privacy(
    grid: Grid[Any], targets: Sequence[float] = TARGETS, progress: Progress = quiet, home: Path = Path("runs")
) -> list[Section]:
    """What each variant would spend or disclose, and the noise that each target ε needs.

    Ledgers of populations are below `home`.
    """
    groups: dict[str, list[Variant[Any]]] = {}  # variants with the same privacy settings
    steps = len(grid.variants)
    for done, variant in enumerate(grid.variants, start=1):
        groups.setdefault(_what_matters(variant.experiment), []).append(variant)
        progress("prices", done, 2 * steps)
    sections = []
    for done, group in enumerate(groups.values(), start=1):
        names = ", ".join(variant.name for variant in (group[:3] if len(group) > 4 else group))
        more = f" and {len(group) - 3} more" if len(group) > 4 else ""
        spec = group[0].experiment
        parts = (
            _spending(spec, targets, home, len(group) * len(grid.repeats()))
            if isinstance(spec, FederatedExperiment)
            else _leaving(spec, targets)
        )
        verdict = privacy_verdict(spec)
        tone: Tone = "better" if verdict.startswith("protected") else "warn"
        advice = wasted_budget(spec) if isinstance(spec, FederatedExperiment) else None
        notes = () if advice is None else (paragraph(advice, tone="warn"),)
        sections.append(
            Section(names + more if len(groups) > 1 else "", (*parts, _verdict_line(tone, verdict), *notes))
        )
        progress("prices", steps + steps * done / len(groups), 2 * steps)
    return sections


def about_plan(plan: PrivacyPlan) -> list[Section]:
    """The proposed settings next to the alternatives, and the recommendation."""
    rows: list[Row] = []
    for arm in plan.arms:
        numbers = (arm.rounds, arm.cohort, arm.rate, arm.clip, arm.noise)
        cells = ["" if each is None else f"{each:,}" if isinstance(each, int) else f"{each:g}" for each in numbers]
        price = "" if arm.epsilon is None else _epsilon(arm.epsilon)
        away = "" if arm.difference is None else f"{arm.difference.mean:+.3f}"
        between = "" if arm.difference is None else f"{arm.difference.low:+.3f} to {arm.difference.high:+.3f}"
        quality = "not simulated" if arm.quality is None else f"{arm.quality.mean:.3f}"
        rows.append([Cell(arm.name, tone="name"), price, *cells, quality, away, between])
    header = [
        "",
        "ε",
        "rounds",
        "people per round",
        "server rate",
        "clip",
        "noise",
        "nDCG@10",
        "vs no noise",
        "90 % of runs",
    ]
    facts = (
        f"{plan.people:,} people, {plan.interactions:,} interactions each, {plan.parameters:,} parameters, "
        f"δ = {plan.delta:g}. Simulated on generated data, so nDCG@10 of your data will differ. The noise in the "
        f"proposed model has an expected norm of {plan.noise_norm:.2g}."
    )
    tone: Tone = "better" if plan.worthwhile else "warn"
    return [Section("", (Table(header, rows), paragraph(facts, tone="quiet"), _verdict_line(tone, plan.verdict)))]


def privacy_verdict(spec: Any) -> str:
    """Whether a spec protects people, against whom, and what to do; in words."""
    if not isinstance(spec, FederatedExperiment):
        return _verdict_on_disclosures(leaving(spec))
    if has_trait(spec.aggregator, "apart"):
        return "protected: nothing leaves a client."
    if spec.mechanism is None:
        return f"not protected: {ADD_NOISE}"
    parts = []
    for against, price in prices_by_observer(planned(spec)).items():
        whom = _in_words(against)
        if math.isinf(price.total):
            parts.append(f"no privacy guarantee against {whom}: {price.guarantee.because}")
            continue
        sure = 100 / (1 + math.exp(-min(price.total, 500.0)))
        about = f"ε = {up(price.total)} (δ = {price.delta:g}) against {whom}"
        claim = f"protected at {about}" if price.total <= max(TARGETS) else f"not protected in practice: {about}"
        parts.append(
            f"{claim}, which allows an observer to decide between two possible contributions of one "
            f"{price.guarantee.unit} correctly in at most {sure:.3g} % of cases (50 % by guessing)"
        )
    weak = any(max(TARGETS) < price.total < math.inf for price in planned(spec))
    advice = ""
    if weak:
        needed = [values[-1] for values in noise_needed(spec, [max(TARGETS)]).values()]
        reachable = [value for value in needed if not math.isinf(value)]
        advice = f" For ε = {max(TARGETS):g}, set mechanism.noise to {enough(max(reachable))}." if reachable else ""
    if from_outside(spec.mechanism):
        parts.insert(0, "not verified, because the mechanism is not part of fedrank; its author claims")
    return "; ".join(parts) + "." + advice


def _in_words(against: str) -> str:
    """Observers within a sentence: "the other clients and the public"."""
    return against if against == "every observer" else "the " + against.replace(", ", " and the ")


def _verdict_on_disclosures(leaves: Sequence[Disclosure]) -> str:
    if not leaves:
        return "protected: nothing leaves a client."
    bare = [each.what.partition(":")[0] for each in leaves if each.guarantee is None or each.guarantee.epsilon is None]
    held = [
        f"{each.what.partition(':')[0]} at ε = {up(each.guarantee.epsilon)} for one {each.guarantee.unit}"
        for each in leaves
        if each.guarantee is not None and each.guarantee.epsilon is not None
    ]
    if not bare:
        return f"protected: {'; '.join(held)}."
    also = f" Protected: {'; '.join(held)}." if held else ""
    return (
        f"not protected: {'; '.join(bare)} leave without noise. Share them only with organisations that may see the "
        f"data.{also}"
    )


def _what_matters(spec: Any) -> str:
    """The settings that decide what a variant spends or discloses."""
    if not isinstance(spec, FederatedExperiment):
        return repr((leaving(spec), isinstance(spec, SiloExperiment) and (cost_of_words(spec), budget_line(spec))))
    protected = None if spec.mechanism is None else (describe(spec.mechanism), planned(spec), spec.privacy.budget)
    return repr((has_trait(spec.aggregator, "apart"), protected, spec.population, spec.data.propensities == SHARED))


def _spending(spec: FederatedExperiment, targets: Sequence[float], home: Path, runs: int) -> Iterable[Part]:
    if has_trait(spec.aggregator, "apart"):
        yield paragraph(ALONE)
        return
    if spec.mechanism is None:
        yield paragraph(UNPROTECTED)
        return
    sees = spec.mechanism.sees
    prices = planned(spec)
    yield paragraph(f"{sees[0].upper()}{sees[1:]}.")
    if spec.data.propensities == SHARED:
        yield paragraph(f"Not covered: {IN_THE_CLEAR}.", tone="warn")
    yield from about_prices(prices)
    if people := budget_forecast(spec, home):
        if not home.is_dir():
            elsewhere = "if runs are stored elsewhere, pass their folder with --runs"
            yield paragraph(f"There is no folder {home}, so no earlier run is counted; {elsewhere}.", tone="warn")
        yield from _of_people(people, runs)
    else:
        yield from (paragraph(line, tone="warn") for line in budget_lines(prices, spec.privacy.budget))
    if needed := noise_needed(spec, targets):
        have = getattr(spec.mechanism, "noise", math.nan)
        yield paragraph(f"Noise for a target ε in total, in multiples of clip (this spec has {have:g}):")
        rows = [
            [against, *("none" if math.isinf(value) else enough(value) for value in values)]
            for against, values in needed.items()
        ]
        yield Table(["against", *(f"ε = {target:g}" for target in targets)], rows)


def _of_people(found: BudgetForecast, runs: int) -> Iterable[Part]:
    """What a population has spent, and what one of these runs would add."""
    had = "no run yet" if not found.runs else "1 run so far" if found.runs == 1 else f"{found.runs:,} runs so far"
    yield paragraph(
        f"Population {found.name!r}, {had}: at most ε = {found.limit:g} at δ = {found.delta:g} over all runs."
    )
    costs = (found.spent, found.alone, found.after)
    rows = [
        [against, *(_epsilon(each.get(against, 0.0)) for each in costs), down(left)]
        for against, left in found.left.items()
    ]
    yield Table(["against", "ε spent", "ε of this run", "ε after it", "ε left before it"], rows)
    each = f" This spec has {runs:,} such runs, and each adds to it." if runs > 1 else ""
    yield paragraph(f"The cost of all runs is composed, which gives less than their sum.{each}", tone="quiet")
    if found.refusal and not found.paid:
        yield paragraph(
            f"The budget does not cover one round of this run: {found.refusal}. The run will be refused.", tone="warn"
        )
    elif found.refusal:
        yield paragraph(
            f"The remaining budget covers {found.paid:,} of {found.rounds:,} rounds: the run will stop after them.",
            tone="warn",
        )


def _leaving(spec: SiloExperiment | TreesExperiment, targets: Sequence[float]) -> Iterable[Part]:
    """What leaves organisations, what that costs, and which noise would cost less."""
    leaves = leaving(spec)
    if not leaves:
        yield paragraph("No data leave the clients: each learns alone.")
        return
    rows = []
    for each in leaves:
        cells = ("none", "")
        if each.guarantee is not None and each.guarantee.epsilon is not None:
            cells = (up(each.guarantee.epsilon), f"{each.guarantee.delta:g}")
        rows.append([each.what, each.to, *cells])
    yield Table(["leaves", "to", "ε", "δ"], rows, 2)
    for each in leaves:
        if each.guarantee is None:
            yield paragraph(f"No privacy guarantee for {each.what.partition(':')[0]}: {each.because}.", tone="quiet")
        else:
            protects = f"{each.guarantee.unit}; {each.guarantee.neighbours}"
            yield paragraph(f"ε is for {protects}, paid {each.guarantee.often}: {each.because}.", tone="quiet")
    if isinstance(spec, SiloExperiment):
        yield from _of_sketches(spec, targets)


def _of_sketches(spec: SiloExperiment, targets: Sequence[float]) -> Iterable[Part]:
    if costs := cost_of_words(spec):
        header = ["a word that occurs in a document", *("once" if often == 1 else f"{often} times" for often in costs)]
        yield Table(header, [["ε", *(up(cost) for cost in costs.values())]])
        needed = ["none" if math.isinf(noise) else enough(noise) for noise in sketch_noise_needed(spec, targets)]
        have = getattr(spec.method, "noise", math.nan)
        yield paragraph(f"Noise of sketches for a target ε of one occurrence of a word (this spec has {have:g}):")
        yield Table(["noise", *(f"ε = {target:g}" for target in targets)], [["σ1", *needed]])
        yield paragraph(
            'Answers from a noised sketch cost nothing more. With noise_in = "lookup", noise is drawn for every answer '
            "and each answered term costs again.",
            tone="quiet",
        )
    if line := budget_line(spec):
        yield paragraph(line, tone="warn")


def about_ledgers(folders: Sequence[Path]) -> list[Section]:
    """The ledgers below some folders, and their composed total."""
    rows: list[Row] = []
    accounts, parts = [], []
    for folder in folders:
        check_populations(folder)
        for ledger in ledgers_below(folder):
            account = Account.read(ledger)
            if account is None:
                continue
            accounts.append(account)
            spent = spent_together([account], account.terms.delta)
            most = int(account.participations.max(initial=0))
            documents = any(one.unit == "occurrence" for one in account.terms.promises)
            people = f"{account.terms.people:,}{' documents' if documents else ''}"
            cells = (people, f"{account.rounds:,}", f"{most:,}", _dearest(spent))
            rows.append([Cell(str(ledger.parent), tone="name"), *cells])
        parts += [
            paragraph(f"{folder}: forgotten on {one['forgotten'][:10]}, because {one['because']}", tone="warn")
            for one in forgotten(folder)
        ]
        parts += [
            paragraph(f"{ledger} has no terms.json, which would say what its charges cost: see privacy.json of its run")
            for ledger in sorted({*ledger_folders(folder)} - {*ledgers_below(folder)})
        ]
    if not rows:
        return [Section("", (paragraph("No ledgers here."), *parts))]
    table = Table(["ledger of", "people", "rounds", "most often", "ε of this run"], rows)
    kinds = {(account.terms.people, one.unit) for account in accounts for one in account.terms.promises}
    if len(kinds) == 1:
        delta = min(account.terms.delta for account in accounts)
        spent = spent_together(accounts, delta)
        parts.append(paragraph(f"If all of these are the same people: {_dearest(spent)} at δ = {delta:g}."))
    return [Section("", (table, *parts))]


def _dearest(spent: Mapping[str, float]) -> str:
    """What was spent against whom."""
    costs: dict[str, list[str]] = {}
    for against, cost in spent.items():
        costs.setdefault(_epsilon(cost), []).append(against)
    return "; ".join(f"{cost} against {', '.join(whom)}" for cost, whom in costs.items()) or "no guarantee"


def _epsilon(cost: float) -> str:
    return "none" if math.isinf(cost) else up(cost)


def about_prices(prices: Sequence[Price]) -> list[Part]:
    """What is claimed, and why; without prices, that nothing is."""
    if not prices:
        return [paragraph(UNPROTECTED, tone="warn")]
    rows, reasons = [], []
    for against, price in prices_by_observer(prices).items():
        guarantee, nothing = price.guarantee, math.isinf(price.total)
        cells = ("nothing", "none", "", "none", "")
        if not nothing:
            often = paid_for(guarantee.paid, price.times)
            cells = (f"one {guarantee.unit}", up(price.each), often, up(price.total), f"{price.delta:g}")
        rows.append([against, *cells])
        verb = "No privacy guarantee" if nothing else "Holds"
        colon = "" if guarantee.because.startswith(("if ", "only if ")) else ":"
        reasons.append(paragraph(f"{verb} against {_in_words(against)}{colon} {guarantee.because}.", tone="quiet"))
    return [Table(["against", "protects", "ε each time", "for", "ε in total", "δ"], rows, 2), *reasons]


def about_audit(findings: Sequence[Finding], grid: Grid[Any]) -> list[Section]:
    """The result of each attack."""
    sections = []
    for variant in grid.variants:
        mine = [each for each in findings if each.variant == variant.name]
        section = Section(variant.name if len(grid.variants) > 1 else "")
        section = section.paragraph(_attacked(variant.experiment)).add(findings_table(mine))
        for each in mine:
            what = f"{each.attacked[0].upper()}{each.attacked[1:]}"
            section = section.paragraph(f"{what}: {each.sentence[0].lower()}{each.sentence[1:]}", tone="quiet")
        sections.append(section.add(_audit_verdict(mine)))
    return sections


def _audit_verdict(findings: Sequence[Finding]) -> Part:
    """What the attacks mean for a decision, in words."""
    by = {verdict: [each for each in findings if each.verdict == verdict] for verdict in (*VERDICTS, "NOT READ")}
    open_ = [each for each in findings if each.verdict in ("NO POWER", "SKIPPED")]
    inconclusive = f" {len(open_)} of {len(findings)} attacks gave no answer." if open_ else ""
    tone, text = "warn", "no attack was made; the reasons are above."
    if broken := by["VIOLATED"]:
        what = "; ".join(f"{each.attacked}: {each.shown}, where {each.promised} is promised" for each in broken)
        advice = "Do not run this spec; use another mechanism, or report it."
        tone, text = "worse", f"the guarantee does not hold ({what}). {advice}"
    elif read := by["READ"]:
        what = "; ".join(f"{each.attacked}: {each.shown}" for each in read)
        tone, text = "worse", f"not protected: messages were read ({what}). Add noise, or add more of it."
    elif by["NOT SHOWN"]:
        tone = "better"
        text = (
            "no attack contradicted the guarantee, although the same attacks detect a copy with a quarter less noise. "
            f"This does not prove the guarantee.{inconclusive}"
        )
    elif by["NOT READ"]:
        text = f"these attacks read nothing; better attacks may.{inconclusive}"
    elif by["NO POWER"]:
        text = f"the result is inconclusive; attack more messages with --messages.{inconclusive}"
    return _verdict_line(tone, text)


def _verdict_line(tone: Tone, text: str) -> Part:
    return paragraph(Span("Verdict: ", style="strong"), text, tone=tone)


def _attacked(spec: Any) -> str:
    """Who sees what, in one sentence."""
    if not isinstance(spec, FederatedExperiment):
        leaves = "; ".join(f"to {each.to}: {each.what.partition(':')[0]}" for each in leaving(spec))
        return f"What leaves {leaves}." if leaves else "No data leave the clients: each learns alone."
    if has_trait(spec.aggregator, "apart"):
        return ALONE
    if spec.mechanism is None:
        return "No mechanism: the server sees every update unprotected, and there is no guarantee."
    return f"Mechanism {describe(spec.mechanism)['name']}: {spec.mechanism.sees}."


def findings_table(findings: Sequence[Finding]) -> Table:
    """A table of attack results."""
    rows: list[Row] = []
    for each in findings:
        verdict = Cell(each.verdict, tone=VERDICTS.get(each.verdict, ""))
        rows.append([each.attacked, each.promised, each.shown, each.guessed, verdict])
    return Table(["attacked", "promised", "shown", "by guessing", "verdict"], rows, 5)


def about_forgotten(results: Sequence[Forgotten]) -> list[Section]:
    """Results of unlearning: cost and, if verified, quality and distances compared with retrained models."""
    return [_forgotten(result) for result in results]


def _forgotten(result: Forgotten) -> Section:
    receipt, parent = result.receipt, result.parent
    paid, retrained = receipt.cost, receipt.verified.get("retrained_cpu_seconds")
    cost = f"{paid['interactions']:,} local interactions in {paid['rounds']:,} rounds"
    if paid["share_of_retraining"] is not None:
        cost += f", {100 * paid['share_of_retraining']:.1f} % of retraining"
    cost += f"; {paid['cpu_seconds']:.2f} s of processor time"
    cost += "" if retrained is None else f", retraining took {retrained:.2f} s"
    parts: list[Part] = [paragraph(receipt.sentence), paragraph(cost), _before_and_after(receipt)]
    if receipt.is_verified:
        parts.append(paragraph(_verdict(receipt.verified)))
    parts += [paragraph("purged ", Span(line, "code"), tone="quiet") for line in receipt.purged]
    parts.append(paragraph("New run: ", Span(str(result.folder), "code")))
    title = f"{result.folder.parent.name}, fold {parent.fold}, seed {parent.seed}"
    return Section(title + (" (done before)" if result.skipped else ""), tuple(parts))


def _before_and_after(receipt: Receipt) -> Table:
    """Quality of the models before and after, and how far they are from retrained ones."""
    distances = {"weights": "weights", "cosine": "cosine", "tau": "tau", "overlap": "top-10 shared"}
    models = {"parent": "before", "unlearned": "unlearned"}
    if receipt.is_verified:
        models["retrained"] = "spread"
    rows = []
    for model, distance in models.items():
        found = [quality.get(model) for quality in receipt.quality.values()]  # of several seeds: a list
        values = [mean_of(each if isinstance(each, list) else [each]) for each in found]
        if receipt.is_verified:
            apart = receipt.verified[distance] or {}
            values += [apart.get(key) for key in distances]
        rows.append([model, *("-" if value is None else f"{value:.4f}" for value in values)])
    return Table(["model", *receipt.quality, *(distances.values() if receipt.is_verified else ())], rows)


def _verdict(verified: Mapping[str, Any]) -> str:
    count, within = verified["retrained"], verified["within_spread"]
    seeds = "were retrained with different seeds"
    text = f"Distances are to {count} models that {seeds}; those differ as the last row says."
    if within is None:
        return text
    if within:
        return f"{text} Every distance is within the spread of the retrained models."
    out = ", ".join(name for name, share in verified["as_far"].items() if share == 0)
    return f"{text} By {out} the unlearned model is farther away than all of them: not within their spread."


def about_clients(summary: ClientSummary) -> list[Section]:
    """The data of clients, and how much clients differ."""
    from fedrank.experiments.runner.client_summary import MEANINGS

    meanings = [f"{name}: {meaning}" for name, meaning in MEANINGS.items()]
    meanings.append("by chance: the same if each client's data were drawn at random from all data")
    last: list[Part] = [paragraph(line, tone="quiet") for line in meanings]
    if summary.left_out:
        more = f"{summary.left_out} more kinds of clients are not shown; use --set to describe one of them"
        last.append(paragraph(more, tone="warn"))
    first = Section("", (paragraph(f"{summary.data}, fold {summary.fold}, seed {summary.seed}"),))
    return [first, *map(_group, summary.groups), Section("", tuple(last))]


def _group(group: Group) -> Section:
    differences = group.found
    alike = len(set(differences.users)) == 1  # then one word says it, and the table fits a narrow terminal
    grades = [f"label {grade}" for grade in range(differences.grades.shape[1])]
    header = ["client", "queries", "no relevant", "documents", *grades, "searches", "from all", *["user"] * (not alike)]
    rows, before = [], -1
    for c in _first_and_last(len(differences.queries)):
        if c > before + 1:
            rows.append(["…", *[""] * (len(header) - 1)])
        held = (differences.queries[c], differences.without[c], differences.documents[c], *differences.grades[c])
        texts = [str(c), *(f"{count:,}" for count in (*held, differences.interactions[c]))]
        rows.append([*texts, f"{differences.from_all[c]:.3f}", *([] if alike else [differences.users[c]])])
        before = c
    apart = []
    for one in differences.distances:
        values = (one.mean, one.most, one.mean_by_chance, one.most_by_chance)
        apart.append([one.name, *("-" if np.isnan(value) else f"{value:.3f}" for value in values)])
    how = f"{group.how}, user {differences.users[0]}" if alike else group.how
    different = Table(["how different", "mean", "most", "by chance", "most by chance"], apart)
    return Section(group.title, (paragraph(how, tone="quiet"), Table(header, rows), Section("", (different,))))


def _first_and_last(count: int) -> Sequence[int]:
    return range(count) if count <= MAX_ROWS else (*range(MAX_ROWS - 1), count - 1)


def about_tuning(tried: Sequence[Tried], column: str) -> list[Section]:
    """All that was tried, with what was chosen."""
    rows: list[Row] = []
    for one in tried:
        setting = ", ".join(f"{key} = {value}" for key, value in one.settings.items())
        spread = "" if math.isnan(one.spread) else f" ± {one.spread:.4f}"
        quality = "failed" if one.quality == -math.inf else f"{one.quality:.4f}{spread}"
        chosen = "  <- chosen" if one.chosen else ""
        marked = [Cell(setting + chosen, strong=one.chosen), Cell(quality, strong=one.chosen)]
        rows.append([one.variant, *marked, str(one.repeats)])
    notes = ["±: standard deviation over repeats."] if any(not math.isnan(one.spread) for one in tried) else []
    table = Table(["variant", "setting", f"{column}, validation", "repeats"], rows, 2, notes)
    warnings = [paragraph(f"{one.variant}: {edge}", tone="warn") for one in tried for edge in one.edges]
    return [Section("", (table, *warnings))]


def about_quality(quality: Quality) -> list[Section]:
    """The mean of each measure, and what it means."""
    rows = []
    for text, values, mean in zip(quality.measures, quality.values, average(quality.values), strict=True):
        parsed, skipped = measure(text), int(np.isnan(values).sum())
        shown = "-" if np.isnan(mean) else f"{mean:.4f}"
        rows.append([text, shown, str(len(values) - skipped), str(skipped), parsed.about])
    return [Section("", (Table(["measure", "mean", "queries", "skipped", "meaning"], rows),))]


def about_split(made: SplitMade) -> list[Section]:
    """How much every client holds, and how different they are."""
    from fedrank.experiments.runner.client_summary import MEANINGS
    from fedrank.trees.split_folder import PARTS, sizes

    rows = []
    for number, portion in enumerate(made.portions, start=1):
        for part in PARTS:
            queries = getattr(portion, part)
            if queries is not None:
                client = f"{number}: {portion.name}" if part == PARTS[0] else ""
                rows.append([client, part, *(f"{size:,}" for size in sizes(queries).values())])
    apart = [
        [one.name, f"{one.mean:.3f}", f"{one.mean_by_chance:.3f}", MEANINGS[one.name]]
        for one in made.distances[:2]  # no query belongs to two clients, and all clients have the same relevance labels
    ]
    return [
        Section("").table(["client", "set", "queries", "documents", "relevant"], rows, 2),
        Section("").table(["how different", "mean", "by chance", "meaning"], apart).add(_written_to(made.folder)),
    ]


def _written_to(path: Path) -> Part:
    return paragraph("written to ", Span(str(path), "code"))


def about_merged(made: Sequence[MergedFile]) -> list[Section]:
    """What every merged model is made of, and who gains and who loses by it."""
    from fedrank.trees.merge_files import MEASURES as COLUMNS

    sections = []
    for one in made:
        rows = []
        for name, values in one.values.items():
            parts = values.shape[1] - 1
            compared = randomisation_test(values[0, :parts], values[0, parts])
            for position in range(parts + 1):
                label, p = "merged", ""
                if position < parts:
                    label = f"model {position + 1}{' (own)' if position == one.own else ''}"
                    p = f"{compared[position]:.4f}"
                cells = [f"{value:.4f}" for value in average(values[:, position])]
                rows.append([name if position == 0 else "", label, *cells, p])
        table = Table(["queries", "model", *COLUMNS, f"p ({COLUMNS[0]})"], rows, 2)
        title = f"{one.client or 'merged model'}: {_made_of(one.model)}"
        sections.append(Section(title, (table, _written_to(one.file))))
    last = Section("").paragraph("p: randomisation test over queries, each model against the merged one", tone="quiet")
    last = last.paragraph("on the merge set, weights and stacked models look better than they are", tone="quiet")
    return [*sections, last]


def _made_of(model: Scorer) -> str:
    from fedrank.trees.mixtures import LinearMix, Stacked

    if isinstance(model, LinearMix):
        return " + ".join(f"{weight:g} x model {number}" for number, weight in enumerate(model.weights, start=1))
    if isinstance(model, Stacked):
        inputs = "features and scores" if model.inputs == "both" else "scores"
        return f"trees on the {inputs} of {len(model.parts)} models"
    return "trees on the features of the merge set alone"


def about_grown(made: GrownFile) -> list[Section]:
    """The clients of a forest, its cost and its quality."""
    rows = [[name, f"{data.queries:,}", f"{data.documents:,}"] for name, data in made.silos.items()]
    section = Section("one forest, grown together").table(["silo", "queries", "documents"], rows, 1)
    size = len(made.forest)
    section = section.paragraph(f"{size:,} trees" + (f", the best of {made.grown:,}" if size < made.grown else ""))
    if made.finished_before:
        section = section.paragraph("already finished: nothing was done", tone="quiet")
    else:
        if made.resumed:
            section = section.paragraph(f"{made.resumed:,} of them were grown earlier", tone="quiet")
        fresh = max(made.grown - made.resumed, 1) * len(made.silos)
        section = section.paragraph(f"{made.bytes_up / fresh / 1e6:.2f} MB sent per tree and client")
    for name, value in made.test.items():
        section = section.paragraph(f"nDCG@10 {value:.4f} on ", Span(name, "code"))
    about = "histograms of few rows reveal relevance labels: growing trees is not private without noise"
    return [section.paragraph(about, tone="quiet").add(_written_to(made.file))]


def about_catalog(
    available: Sequence[tuple[DataSet, Any]], collections: Sequence[tuple[str, Path | None]] = ()
) -> list[Section]:
    """The catalog of data sets, where each is stored or available, and local text collections."""
    rows, positions = [], []
    for entry, folder in available:
        counts = (f"{count:,}" if count else "" for count in (entry.queries, entry.documents))
        built_in = entry.layout == "built-in"
        here = "built in" if built_in else "no" if folder is None else "yes"
        rows.append([entry.name, *counts, str(entry.features), f"0-{entry.grades - 1}", str(entry.folds), here])
        if not built_in:
            position = "; ".join(filter(None, (entry.publisher, entry.licence))) if folder is None else str(folder)
            # An address stays whole, so it can be copied.
            positions.append(paragraph(Span(entry.name, "strong"), ": ", Span(position, "code")))
    table = Table(["name", "queries", "documents", "features", "grades", "folds", "here"], rows, unbroken_column=0)
    where = paragraph("Location, or where to get them:", tone="quiet")
    named = [
        paragraph(Span(name, "strong"), ": ", "built in" if folder is None else Span(str(folder), "code"))
        for name, folder in collections
    ]
    over = 'for data.collection, and for kind = "silo"'
    of_texts = [Section("Text collections", tuple(named), over)] if named else []
    return [Section("", (table,)), *of_texts, Section("", (where, *positions))]


def about_checks(checks: Sequence[FileCheck]) -> list[Section]:
    """Counts of sound files, what is odd about them, and what is wrong with the others."""
    from fedrank.data.check import short_names

    names = short_names([check.path for check in checks])
    rows = []
    for check in (check for check in checks if check.sound):
        sizes = (f"{check.queries:,}", f"{check.documents:,}", f"{check.features:,}")
        lengths = f"{check.fewest} / {check.median:g} / {check.most}"
        grades = "  ".join(f"{count:,}" for count in check.grades)
        values = "0 .. 1" if check.looks_normalised else "raw"
        rows.append([names[check.path], *sizes, lengths, grades, f"{check.zeros:.0%}", values])
    header = ["file", "queries", "documents", "features", "docs per query", "documents by label 0, 1 ...", "zeros"]
    parts: list[Part] = []
    if rows:
        parts.append(Table([*header, "values"], rows, notes=["docs per query: fewest / median / most"]))
    for check in checks:
        if check.error:
            parts.append(paragraph(Span("unsound ", "strong"), Span(check.error, "code"), tone="worse"))
        elif check.oddities:
            parts.append(Section(names[check.path], tuple(paragraph(f"  - {oddity}") for oddity in check.oddities)))
    return [Section("", tuple(parts))]


def about_sketch(description: Mapping[str, str]) -> list[Section]:
    """The properties of a sketch; what is not protected is highlighted."""
    return [Section("", (_named(description.items(), lambda text: text.startswith(("none", "SECRET"))),))]


def about_log(log: LogDescription) -> list[Section]:
    """Statistics of a search log."""
    return [Section(log.name, tuple(map(paragraph, log.notes))), Section("", (_named(_log_rows(log)),))]


def _named(rows: Iterable[tuple[str, str]], is_bad: Callable[[str], bool] = lambda text: False) -> Table:
    """Names, and what each is."""
    cells = [[Cell(name, tone="name"), Cell(text, tone="worse" if is_bad(text) else "")] for name, text in rows]
    return Table(["what", "meaning"], cells, 2, unbroken_column=0, bare=True)


def _log_rows(log: LogDescription) -> list[tuple[str, str]]:
    from fedrank.data.describe_log import MIN_ENTRIES, date_of

    span = (log.last - log.first) / 86_400
    rows = [
        ("entries", f"{log.entries:,} of {log.users:,} users"),
        ("queries", f"{log.queries:,} different; {log.documents:,} different documents clicked"),
        ("time", f"{date_of(log.first)} to {date_of(log.last)}, {span:,.1f} days"),
        ("entries per user", f"most {log.clicks[0]:,}, median {np.median(log.clicks):,.0f}"),
        ("half of the entries", f"come from {log.half:,} users ({log.half / log.users:.1%})"),
    ]
    if law := log.power_law:
        tail = f"{law.users:,} users, distance {law.distance:.3f}"
        rows.append(("power law", f"exponent {law.exponent:.2f} from {law.least:,} entries on ({tail})"))
    bursts = log.burstiness[~np.isnan(log.burstiness)]
    if len(bursts):
        low, middle, high = np.quantile(bursts, (0.25, 0.5, 0.75))
        text = (
            f"median {middle:.2f}, half of the users {low:.2f} .. {high:.2f} (-1 like a clock, 0 at random, 1 in "
            f"bursts; {len(bursts):,} users with {MIN_ENTRIES} entries or more)"
        )
        rows.append(("burstiness", text))
    if len(log.compared) > 1:
        text = (
            f"{log.mean_distance:.3f} standard deviations (Wasserstein) between the {len(log.compared)} most active "
            f"users; {log.by_chance:.3f} by chance"
        )
        rows.append(("difference in clicks", text))
        rows.append(("differ most in", "; ".join(f"{name} ({value:.2f})" for name, value in log.features[:5])))
    return rows + (_shown_rows(log.shown) if log.shown else [])


def _shown_rows(shown: ShownDescription) -> list[tuple[str, str]]:
    """Statistics of lists that were shown to users."""
    low, middle, high = shown.lengths
    positions = [
        f"{clicked / often:.1%}" for clicked, often in zip(shown.clicked_at, shown.shown_at, strict=True) if often
    ]
    rows = [
        ("lists as shown", f"{low:,} to {high:,} documents, median {middle:,}; {shown.later_pages:,} of later pages"),
        ("without a click", f"{shown.unclicked:.1%} of the lists"),
        ("clicked by position", ", ".join(positions[:10]) + (", ..." if len(positions) > 10 else "")),
    ]
    if not np.isnan(shown.dwell):
        rows.append(("time on a document", f"median {shown.dwell:,.0f} s where it is known"))
    if shown.has_propensities:
        rows.append(("draws", "known: probabilities of these lists can be computed"))
    if shown.largest_before:
        after = f", {shown.largest_after[0]:.1%} after limits" if shown.largest_after else ""
        rows.append((f"busiest {shown.unit}", f"{shown.largest_before[0]:.1%} of all clicks{after}"))
    for rule, one in shown.capped.items():
        rows.append(("cut", f"{one['lists']:,} lists with {one['clicks']:,} clicks of {one['clients']:,}: {rule}"))
    rows += [("odd", f"{n:,} {reason}") for reason, n in shown.noticed.items()]
    return rows


def about_drift(found: Drift) -> list[Section]:
    """Whether a log has changed, and what changed most."""
    from fedrank.data.describe_log import date_of
    from fedrank.data.drift import CERTAIN, CHANGED, THRESHOLD

    which = "all lists" if found.since is None else f"lists after {date_of(found.since)}"
    changed = found.drifted
    text = f"Drift: {', '.join(changed[:4])}" if changed else "No drift"
    more = f", and {len(changed) - 4} more" if len(changed) > 4 else ""
    section = Section("Comparison").paragraph(
        f"{text}{more} ({found.lists:,} of {which} compared).", tone="warn" if changed else ""
    )
    section = section.table(
        ("feature", "PSI"),
        [(name, f"{psi:.3f}") for name, psi in found.features[:10]],
        notes=(f"Population stability index over ten bins; above {THRESHOLD} is drift.",),
    )
    if found.rates:
        rows = [(str(one.position), f"{one.old:.4f}", f"{one.new:.4f}", f"{one.errors:+.1f}") for one in found.rates]
        note = f"Drift is a relative change above {CHANGED:.0%} and above {CERTAIN:g} standard errors."
        section = section.table(("position", "click rate before", "now", "standard errors"), rows, notes=(note,))
    return [section]


def about_estimate(found: ClickEstimate) -> list[Section]:
    """The verdict, the estimates under both biases, and their limits."""
    rows: list[Row] = []
    for row in found.rows:
        name = Cell(row.name, tone="warn" if row.note else "")
        values = [row.logged, row.compared, row.model.value] if found.engine else [row.logged, row.model.value]
        difference = signed("", row.difference.value), _between(row.difference, "+")
        rows.append([name, row.bias or "none", row.unit, *(f"{value:.4f}" for value in values), *difference])
    engine = ["engine"] if found.engine else []
    headings = ["estimate", "bias", "unit", "as shown", *engine, "model", "difference", "95 % interval"]
    if found.engine:
        order = (
            f"the engine's order is known from the {found.engine} for {found.known:.0%} of the searches, which count"
        )
    else:
        order = (
            "the log does not reveal the engine's order, so the model is compared with the lists shown; these are "
            "usually worse than the engine's, so a model that is better than them may be worse than the engine"
        )
    trust = f"trust bias cannot be estimated from this log: {found.no_trust}" if found.no_trust else ""
    points = [
        order,
        *([trust] if trust else []),
        f"{found.searches:,} lists of {found.queries:,} queries, an effective sample size of {found.effective:,.0f} "
        f"queries; {found.clicks:,} clicks in the first {found.positions} positions; intervals are over queries, and "
        "that of the verdict covers both biases",
        f"propensities from {found.propensities.how}; {found.clipped:.1%} of clicks had their weight clipped, "
        f"{found.unseen:.1%} of the model's top results were never shown at a known position",
        f"the model moves {found.moved:.0%} of all results within their list",
        *(f"{row.name} is {row.note}" for row in found.rows if row.note),
        *found.notes,
    ]
    verdict = paragraph(f"{found.verdict[0].upper()}{found.verdict[1:]}.")
    return [Section("", (verdict, Table(headings, rows, 3), Points(tuple(points))))]


def about_positions(by: Propensities, shown: ShownResults) -> list[Section]:
    """Propensity of each position, relative to the first."""
    lists, clicks = (np.bincount(shown.position, weights=weights) for weights in (None, shown.clicked))
    trust = bool(by.extra[by.known].any())
    rows = []
    for position in range(len(by.slope)):
        known = bool(by.known[position])
        cells = [str(position + 1), f"{clicks[position] / max(lists[position], 1):.4f}"]
        cells.append(f"{by.slope[position]:.3f}" if known else "not known")
        cells.append(f"{by.low[position]:.3f} to {by.high[position]:.3f}" if known and position else "")
        rows.append([*cells, *[signed("", by.extra[position]) if known else ""] * trust])
    headings = ["position", "click rate", "compared with position 1", "95 % interval", *["clicks by trust"] * trust]
    note = (
        f"From {by.how}: {by.moved:,} pairs of a query and a document were shown in several positions. The click rate "
        "is that of the documents shown there; the comparison uses the same documents in both positions."
    )
    return [Section("", (Table(headings, rows), paragraph(note), *([Points(by.notes)] if by.notes else [])))]


def _between(one: Interval, sign: str = "") -> str:
    return f"{one.low:{sign}.4f} to {one.high:{sign}.4f}"
