"""The output of `fedrank privacy` as sections: costs, plans, audits and ledgers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.experiments.report.sections import Cell, Part, Row, Section, Span, Table, Tone, paragraph
from fedrank.experiments.runner.disclosures import Disclosure, budget_line, cost_of_words, leaving, sketch_noise_needed
from fedrank.experiments.runner.folder import paid_for
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
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid, Variant
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.federated.compatibility import sends_nothing
from fedrank.federated.traits import from_outside
from fedrank.privacy.guarantees import down, up
from fedrank.privacy.population import RELEASES, Account, forgotten, ledger_folders, ledgers_below, spent_together
from fedrank.progress import Progress, quiet
from fedrank.ranking.propensity import IN_THE_CLEAR, SHARED
from fedrank.types import has_trait

if TYPE_CHECKING:
    from fedrank.attacks.audits import Finding
    from fedrank.experiments.runner.privacy_plan import PrivacyPlan

ALONE = "Nothing leaves a client: each learns alone."
ADD_NOISE = (
    "every update leaves without noise. Add a mechanism, such as gaussian with clip = 0.5 and noise = 10, and "
    "check its ε with fedrank privacy show."
)
VERDICTS: dict[str, Tone] = {"VIOLATED": "worse", "READ": "worse", "NOT SHOWN": "better", "NO POWER": "warn"}


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
    from fedrank.experiments.runner.privacy_plan import caution

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
    warned = (paragraph(text, tone="warn"),) if (text := caution(plan.epsilon)) else ()
    parts = (Table(header, rows), paragraph(facts, tone="quiet"), *warned, _verdict_line(tone, plan.verdict))
    return [Section("", parts)]


def privacy_verdict(spec: Any) -> str:
    """Whether a spec protects people, against whom, and what to do; in words."""
    if not isinstance(spec, FederatedExperiment):
        return _verdict_on_disclosures(leaving(spec))
    if sends_nothing(spec.aggregator):
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
    return repr((sends_nothing(spec.aggregator), protected, spec.population, spec.data.propensities == SHARED))


def _spending(spec: FederatedExperiment, targets: Sequence[float], home: Path, runs: int) -> Iterable[Part]:
    if sends_nothing(spec.aggregator):
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
            [against, *("not possible" if math.isinf(value) else enough(value) for value in values)]
            for against, values in needed.items()
        ]
        yield Table(["against", *(f"ε = {target:g}" for target in targets)], rows)
        if spec.data.at_sites and any(math.inf in values for values in needed.values()):
            yield paragraph(
                "Not possible: sums that are released besides updates cost more than this ε by themselves; increase "
                "privacy.release_noise.",
                tone="quiet",
            )


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
            units = {one.unit for one in account.terms.promises}
            people = f"{account.terms.people:,}{' documents' if 'occurrence' in units else ''}"
            if units == {"person"} and account.terms.people == 1:  # a site charges all its people alike
                people = "all of a site"
            cells = (people, f"{account.rounds:,}", f"{most:,}", _dearest(spent))
            name = f"{ledger.parent}{', sums besides updates' if ledger.name == RELEASES else ''}"
            rows.append([Cell(name, tone="name"), *cells])
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
    table = Table(["against", "protects", "ε each time", "for", "ε in total", "δ"], rows, 2)
    if any(price.total > 1.001 * price.guarantee.epsilon(price.times, price.delta) for price in prices):
        reasons.insert(0, paragraph("The total includes sums that are released besides updates, once each."))
    return [table, *reasons]


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
    if sends_nothing(spec.aggregator):
        return ALONE
    if spec.mechanism is None:
        gossip = has_trait(spec.aggregator, "gossip")
        seen = "other clients see every model" if gossip else "the server sees every update"
        return f"No mechanism: {seen} unprotected, and there is no guarantee."
    return f"Mechanism {describe(spec.mechanism)['name']}: {spec.mechanism.sees}."


def findings_table(findings: Sequence[Finding]) -> Table:
    """A table of attack results."""
    rows: list[Row] = []
    for each in findings:
        verdict = Cell(each.verdict, tone=VERDICTS.get(each.verdict, ""))
        rows.append([each.attacked, each.promised, each.shown, each.guessed, verdict])
    return Table(["attacked", "promised", "shown", "by guessing", "verdict"], rows, 5)
