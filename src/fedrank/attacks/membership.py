"""Membership inference: does a release reveal that a client sent something? Attacks on the mechanisms themselves.

A canary is a client with the worst-case update. An attacker sees what an observer would see, with the canary or without
it, and must decide which. Its two error rates must not be below the trade-off curve that the mechanism claims. Attack
and threshold are chosen on separate runs from those that judge them. A negative result is meaningful only if the same
attack detects a control: the mechanism with a quarter of its noise removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.federated.aggregators import Mean
from fedrank.federated.federation import Federation
from fedrank.federated.server import State
from fedrank.federated.simulation import federated_round
from fedrank.privacy.accounting import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    trade_off,
)
from fedrank.privacy.guarantees import Guarantee, Setting
from fedrank.privacy.mechanisms import (
    AtServer,
    EsRandomisedResponse,
    FpdgdPaper,
    Gaussian,
    Laplace,
    OnClient,
    PricedMechanism,
    SecureAggregation,
)
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import Pdgd
from fedrank.seeds import Chance, rng_for
from fedrank.types import AddingMechanism, Change, Messages, SimulatedClients, Source, has_trait

Vector = NDArray[np.float64]
Curve = Callable[[Vector], Vector]  # false positive rates -> the smallest false negative rates that are claimed
Seen = dict[str, Vector]  # statistic -> [repeats]: large where the canary seems to be present
Watch = Callable[[int, bool, int], Seen]  # (pair, canary present?, repeats) -> the attacker's statistics
ShareDone = Callable[[float], None]  # receives the fraction of the work that is done, from 0 to 1

LEVEL = 1e-4  # probability that an audit of a correct mechanism reports any violation, over all its tests
CONTROL = 0.75  # fraction of the noise in a control
REPEATS = 100_000  # of a mechanism, with the canary and without it each
RUNS = 10_000  # of the round function, half of them with the canary
ROUNDS = 2  # of each such run
PARAMETERS = 4  # of the updates on which a mechanism is attacked
MAX_ROUNDS = 4_000_000  # rounds drawn for one count, where single rounds reveal too little and several are combined
LONGEST = 1024  # rounds combined in one observation, at most
LONG = 8.0  # norm of an update relative to the clip: detects a mechanism that does not clip
MANY = 1000  # interactions relative to the cap: detects a mechanism that does not cap weights
FEW = 4  # clients in the sums that are attacked
NOISE_WITH_POWER = (1.0, 0.7, 0.5, 0.4)  # for attacks on whole rounds, where the noise of a spec would hide any fault
_BLOCK = 1 << 20  # numbers drawn at once
_SHARE = 4  # one in this many repeats is used to choose the attack


@dataclass(frozen=True)
class Trial:
    """The errors of an attack, on runs that were not used to choose it."""

    attack: str  # which canary, and which statistic
    threshold: float  # the statistic from which on the canary is declared present
    outside: int  # runs without the canary
    false_positives: int
    inside: int  # runs with it
    false_negatives: int
    level: float  # probability that either upper bound is wrong
    allowed: float  # smallest false negative rate that the claim allows at the upper bound of the false positive rate

    @property
    def alpha(self) -> float:
        """Upper bound on the false positive rate."""
        return upper_bound(self.false_positives, self.outside, self.level / 2)

    @property
    def beta(self) -> float:
        """Upper bound on the false negative rate."""
        return upper_bound(self.false_negatives, self.inside, self.level / 2)

    @property
    def violated(self) -> bool:
        """Whether even the upper bounds of both error rates are below what the claim allows."""
        return self.allowed > self.beta

    def epsilon(self, delta: float) -> float:
        """The ε below which no claim with this δ can be true, given the observed errors."""
        return _epsilon_of(self.alpha, self.beta, delta)

    def largest(self, delta: float) -> float:
        """The ε that would have been shown if the attack had made no errors."""
        return _epsilon_of(
            upper_bound(0, self.outside, self.level / 2), upper_bound(0, self.inside, self.level / 2), delta
        )


@dataclass(frozen=True)
class Membership:
    """The result of a membership inference audit."""

    what: str  # what was attacked
    against: str  # the observer
    rounds: int  # combined in each run
    delta: float
    claimed: float  # ε at delta, after all these rounds
    trial: Trial
    control: Trial
    note: str = ""  # differences from the spec, if any

    @property
    def verdict(self) -> str:
        """VIOLATED needs no control; NOT SHOWN requires that the control was detected."""
        if self.trial.violated:
            return "VIOLATED"
        return "NOT SHOWN" if self.control.violated else "NO POWER"

    @property
    def shown(self) -> float:
        return self.trial.epsilon(self.delta)

    @property
    def largest(self) -> float:
        """The largest ε that this audit could have shown."""
        return self.trial.largest(self.delta)


@dataclass(frozen=True)
class Pair:
    """Two updates of one client that the claim covers, and their values after clipping."""

    name: str
    outside: Vector  # [parameters]
    inside: Vector
    left_outside: Vector  # after a correct mechanism, apart from noise
    left_inside: Vector


def upper_bound(errors: int, runs: int, level: float) -> float:
    """Clopper-Pearson: the largest rate at which this few errors still have probability `level`."""
    return float(_upper_bounds(np.array([errors]), runs, level)[0])


def weaker(mechanism: PricedMechanism) -> PricedMechanism:
    """The control: the same mechanism with a quarter of its noise removed."""
    if isinstance(mechanism, FpdgdPaper):
        return replace(mechanism, epsilon=mechanism.epsilon / CONTROL)
    return replace(mechanism, noise=CONTROL * mechanism.noise)  # type: ignore[type-var,attr-defined,no-any-return]


def audit_mechanism(
    mechanism: Gaussian | Laplace,
    setting: Setting,
    source: Source,
    *,
    delta: float = 1e-5,
    level: float = LEVEL / 2,
    repeats: int = REPEATS,
    on_progress: ShareDone = lambda share: None,
    priced: Gaussian | Laplace | None = None,
) -> Membership:
    """Look for canaries in the releases of a mechanism; `level` is that of one of two tests, one of them the control.

    `priced` is the mechanism whose claim is tested, if different: with it, tests simulate a false claim.
    """
    small, honest = _small(mechanism, setting, FEW)
    claimer, _ = _small(priced or mechanism, setting, FEW)
    guarantee = _claimed(claimer.guarantees(honest))
    rounds, counted = _plan(guarantee, _claimed(weaker(claimer).guarantees(honest)), repeats, level)
    pairs = canaries(claimer, guarantee, honest)
    meter = _Meter(on_progress, 2 * (2 * len(pairs) * (counted // _SHARE) + 2 * counted))

    def attack(attacked: Gaussian | Laplace) -> Trial:
        watch = _watch_mechanism(attacked, claimer, honest, pairs, rounds, source, meter)
        return look_for(watch, [pair.name for pair in pairs], _curve(guarantee, rounds), counted, level)

    trial, control = attack(small), attack(cast("Gaussian | Laplace", weaker(small)))
    what = "messages" if isinstance(small.placement, OnClient) else "sums of updates"
    return Membership(what, guarantee.against, rounds, delta, guarantee.epsilon(rounds, delta), trial, control)


def audit_paper(
    mechanism: FpdgdPaper,
    cohort: float,
    source: Source,
    *,
    delta: float = 1e-5,
    level: float = LEVEL / 2,
    repeats: int = REPEATS,
    on_progress: ShareDone = lambda share: None,
) -> Membership:
    """Look for canaries in one message of fpdgd-paper: does the ε that the paper states hold for it?

    A large ε needs more repeats: error rates below e^-ε cannot be distinguished from 0.
    """
    guarantee = _stated(mechanism)
    repeats = max(repeats, min(MAX_ROUNDS, int(2 * math.log(4 / level) * math.exp(min(mechanism.epsilon, 50.0)))))
    block = _BLOCK // PARAMETERS
    pairs = _weights(mechanism, PARAMETERS)
    meter = _Meter(on_progress, 2 * (2 * len(pairs) * (repeats // _SHARE) + 2 * repeats))

    def attack(attacked: FpdgdPaper) -> Trial:
        def watch(index: int, inside: bool, count: int) -> Seen:
            pair, parts = pairs[index], []
            for begin in range(0, count, block):
                some = min(block, count - begin)
                rows = np.tile(pair.inside if inside else pair.outside, (some, 1))
                seen = attacked.protect(_messages(rows, 1), cohort, source).updates.astype(np.float64)
                parts.append({"nearness": _nearness(seen, pair), "projection": _projection(seen, pair)})
                meter.add(some)
            return _joined(parts)

        return look_for(watch, [pair.name for pair in pairs], _curve(guarantee, 1), repeats, level)

    trial, control = attack(mechanism), attack(cast(FpdgdPaper, weaker(mechanism)))
    return Membership("messages", "server", 1, delta, mechanism.epsilon, trial, control, "ε as the paper states it")


def audit_answers(
    learner: Evolution,
    setting: Setting,
    seed: int,
    *,
    delta: float = 1e-5,
    level: float = LEVEL / 2,
    repeats: int = REPEATS,
    on_progress: ShareDone = lambda share: None,
) -> Membership:
    """Distinguish a client whose rewards are all 1 from one whose rewards are all 0, from one message of FOLtR-ES each.

    Messages come from the learner itself, on a list that is always, or never, clicked at the top. The likelihood of a
    mean reward is learned from separate messages. Where a message has so many interactions that its ε is too large to
    measure, messages with two interactions are attacked.
    """
    control_learner = replace(learner, truth=1 - CONTROL * (1 - learner.truth))

    def promised(each: Evolution, interactions: int) -> Guarantee:
        return EsRandomisedResponse().guarantees(replace(setting, learner=each, interactions=(interactions,)))[0]

    interactions, note = max(setting.interactions), ""
    if _spare(promised(learner, interactions), promised(control_learner, interactions), 1, repeats, level) <= 0:
        note = f"with 2 interactions per message instead of {interactions}, whose ε is too large to measure"
        interactions = 2
    guarantee = promised(learner, interactions)
    lists = {inside: _one_list(repeats, interactions, clicked=inside) for inside in (False, True)}
    meter = _Meter(on_progress, 2 * (2 * 2 * (repeats // _SHARE) + 2 * repeats))
    batches = iter(range(1, 1000))

    def attack(attacked: Evolution) -> Trial:
        def means(inside: bool, count: int) -> Vector:
            chance = Chance(seed, next(batches))
            start = attacked.ranker.first(1, rng_for(seed, "first"))
            sent: Any = attacked(start, lists[inside].rows(slice(count)), chance).sent
            meter.add(count)
            return np.column_stack([sent["plus"], sent["minus"]]).astype(np.float64)

        known = repeats // _SHARE
        tables = _learned(means(False, known), means(True, known))

        def watch(index: int, inside: bool, count: int) -> Seen:
            return {"likelihood": _looked_up(tables, means(inside, count))}

        return look_for(watch, ["all rewards 1 or all 0"], _curve(guarantee, 1), repeats, level)

    trial, control = attack(learner), attack(control_learner)
    return Membership("messages", "server", 1, delta, guarantee.epsilon(1, delta), trial, control, note)


def audit_round(
    mechanism: Gaussian | Laplace | FpdgdPaper,
    setting: Setting,
    clients: SimulatedClients,
    source: Source,
    *,
    delta: float = 1e-5,
    level: float = LEVEL / 2,
    runs: int = RUNS,
    seed: int = 1,
    on_progress: ShareDone = lambda share: None,
) -> Membership:
    """Look for a canary among a few real clients, in runs of the real round function.

    The attacker knows what other clients sent, so it is taken as zero. Where the noise of the mechanism would hide
    any fault from this few runs, the same code is attacked with less noise and the corresponding claim.
    """
    few, counted = _few(clients, setting), max(runs // 2, 1)
    small, honest = _small(mechanism, setting, len(few), all_honest=True)
    # With a dealt schedule, the canary participates in one of the rounds.
    honest = replace(honest, parameters=setting.parameters, dealt=ROUNDS if setting.dealt else 0)
    times = 1 if setting.dealt else ROUNDS
    if isinstance(small, FpdgdPaper):
        rounds, times, note, guarantee = 1, 1, "ε as the paper states it", _stated(small)
        strict, pairs = guarantee, _weights(small, honest.parameters)
    else:
        small, honest, note = _with_power(small, honest, times, counted, level)
        rounds, guarantee = ROUNDS, _claimed(small.guarantees(honest))
        strict = _strict(guarantee)
        if strict is not guarantee:
            note = f"{note + ', ' if note else 'with '}the tighter claim of central Gaussian noise"
        pairs = canaries(small, guarantee, honest)[:1]  # the others were tried on the mechanism, far more often
    meter = _Meter(on_progress, 2 * (2 * len(pairs) * (counted // _SHARE) + 2 * counted))

    def attack(attacked: Gaussian | Laplace | FpdgdPaper) -> Trial:
        watch = _watch_round(attacked, small, honest, pairs, rounds, few, source, seed, meter)
        return look_for(watch, [pair.name for pair in pairs], _curve(strict, times), counted, level)

    trial, control = attack(small), attack(cast("Gaussian | Laplace | FpdgdPaper", weaker(small)))
    what = f"{rounds} rounds of {len(few)} clients{', dealt into them' if setting.dealt else ''}"
    return Membership(what, guarantee.against, rounds, delta, guarantee.epsilon(times, delta), trial, control, note)


def canaries(mechanism: Gaussian | Laplace, guarantee: Guarantee, setting: Setting) -> list[Pair]:
    """The worst case of one client or one interaction. Updates exceed the clip, which must not matter."""
    size, clip, norm = setting.parameters, mechanism.clip, mechanism.norm
    first, spread = np.eye(size)[0], np.full(size, 1 / math.sqrt(size))
    other = -1.0 if guarantee.neighbours == "replace-one" else 0.0
    if guarantee.unit == "interaction":
        learner = cast(Pdgd, setting.learner)
        longest = learner.rate * learner.clip_gradients  # L2
        aside = (1 - first) / max(math.sqrt(size - 1), 1.0)
        rows = [
            ("one interaction", other * longest * spread, longest * spread),
            ("one interaction, alone in its coordinate", other * longest * first, longest * first),
            ("one interaction across zero", -longest / 2 * spread, longest / 2 * spread),
            (
                "one interaction next to a long update",
                clip * first + other * longest * aside,
                clip * first + longest * aside,
            ),
        ]
    else:
        rows = [
            ("one long coordinate", other * LONG * clip * first, LONG * clip * first),
            ("all coordinates", other * LONG * clip * spread, LONG * clip * spread),
            ("infinite", 0 * first, np.where(first > 0, np.inf, 0.0)),
        ]
    return [Pair(name, out, into, _shorten(out, clip, norm), _shorten(into, clip, norm)) for name, out, into in rows]


def look_for(watch: Watch, pairs: Sequence[str], curve: Curve, repeats: int, level: float) -> Trial:
    """Choose the attack and its threshold on some runs, and count its errors on others."""
    best: tuple[float, int, str, float] = (-math.inf, 0, "", math.inf)
    few = max(repeats // _SHARE, 1)
    for index in range(len(pairs)):
        without, within = watch(index, False, few), watch(index, True, few)
        for statistic in without:
            margin, threshold = _best_threshold(without[statistic], within[statistic], curve, level)
            if margin > best[0]:
                best = (margin, index, statistic, threshold)
    _, index, statistic, threshold = best
    without, within = watch(index, False, repeats), watch(index, True, repeats)
    positives = int(np.count_nonzero(without[statistic] >= threshold))
    negatives = int(np.count_nonzero(within[statistic] < threshold))
    alpha = upper_bound(positives, repeats, level / 2)
    allowed = float(curve(np.array([alpha]))[0])
    return Trial(f"{pairs[index]}, by {statistic}", threshold, repeats, positives, repeats, negatives, level, allowed)


def _best_threshold(without: Vector, within: Vector, curve: Curve, level: float) -> tuple[float, float]:
    """The most promising threshold: how far errors are below the claim, in widths of their confidence bounds."""
    count = len(without)
    both = np.sort(np.concatenate([without, within]))
    ranks = np.unique(np.rint(np.linspace(0, len(both) - 1, 400)).astype(np.int64))
    thresholds = np.unique(both[ranks])
    positives = count - np.searchsorted(np.sort(without), thresholds, side="left")
    negatives = np.searchsorted(np.sort(within), thresholds, side="left")
    alphas, betas = (_upper_bounds(errors, count, level / 2) for errors in (positives, negatives))
    allowed = curve(alphas)
    widths = curve(positives / count) - allowed + betas - negatives / count
    margins = (allowed - betas) / np.maximum(widths, 1e-12)
    at = int(np.argmax(margins))
    return float(margins[at]), float(thresholds[at])


def _upper_bounds(errors: NDArray[Any], runs: int, level: float) -> Vector:
    from scipy.special import betaincinv

    bounds: Vector = np.ones(len(errors))
    some = errors < runs
    bounds[some] = betaincinv(errors[some] + 1.0, runs - errors[some], 1 - level)
    return bounds


def _epsilon_of(alpha: float, beta: float, delta: float) -> float:
    """Every (ε, δ) that holds satisfies α e^ε + β >= 1 - δ, and the same with α and β exchanged."""
    found = 0.0
    for one, other in ((alpha, beta), (beta, alpha)):
        if 1 - delta - other > one > 0:
            found = max(found, math.log((1 - delta - other) / one))
    return found


def _curve(guarantee: Guarantee, rounds: int) -> Curve:
    """The trade-off curve claimed after this many rounds, with the error of the sampler included in δ."""
    event = guarantee.event
    assert event is not None

    def curve(alphas: Vector) -> Vector:
        return np.maximum(trade_off(event, rounds, alphas) - rounds * guarantee.slack, 0.0)

    return curve


def _claimed(promises: Sequence[Guarantee]) -> Guarantee:
    """The guarantee against the strongest observer for which there is one."""
    for guarantee in promises:
        if guarantee.event is not None:
            return guarantee
    raise ValueError(f"the mechanism claims no guarantee that an audit could test: {promises[0].because}")


def _small(mechanism: Any, setting: Setting, few: int, all_honest: bool = False) -> tuple[Any, Setting]:
    """The mechanism with few clients and few parameters, the best case for an attacker.

    Under secure aggregation the minimum number of honest clients is present, and the noise of all others is known.
    `all_honest`: all of the few are honest, where no client can be left out.
    """
    placement = getattr(mechanism, "placement", None)
    sampled = isinstance(placement, AtServer)
    if isinstance(placement, SecureAggregation):
        placement = replace(placement, sum="ideal")
        if all_honest:
            placement = replace(placement, honest=1.0, colluding=0.0)
        mechanism = replace(mechanism, placement=placement)
    if has_trait(mechanism, "people"):  # updates of other people are known, too: one person per client is left
        mechanism = replace(mechanism, people=1)
    count = few if all_honest else setting.clients if sampled else min(few, setting.clients)
    participation = setting.participation if sampled else 1.0
    small = replace(setting, clients=count, parameters=PARAMETERS, participation=participation)
    return mechanism, replace(small, dealt=min(1, setting.dealt))  # a mechanism is attacked in one round


def _tight(event: Event) -> Event:
    """The actual distribution where a claim is not tight: distributed noise sums to Gaussian or Laplace noise."""
    match event:
        case ConcentratedEvent(rho):
            return GaussianEvent(1 / math.sqrt(2 * rho))
        case PureEvent(pure):
            return LaplaceEvent(1 / pure)
    return event


def _plan(guarantee: Guarantee, control: Guarantee, repeats: int, level: float) -> tuple[int, int]:
    """Number of rounds to combine so the control should be detected, and the number of repeats that this allows."""
    most = max(MAX_ROUNDS * repeats // REPEATS, repeats)
    tried = []
    rounds = 1
    while rounds <= LONGEST:
        counted = min(repeats, most // rounds)
        spare = _spare(guarantee, control, rounds, counted, level)
        if spare > 0:
            return rounds, counted
        tried.append((spare, -rounds, counted))
        rounds *= 4
    _, rounds, counted = max(tried)
    return -rounds, counted


def _spare(guarantee: Guarantee, control: Guarantee, rounds: int, counted: int, level: float) -> float:
    """The margin by which the control should violate the guarantee; negative where it would not.

    Half of the repeats should be enough, as a reserve for random variation. With sampling a sixth: the curve is that of
    the better of two tests, for presence and for absence, and one of them is tried.
    """
    from scipy.special import ndtr

    assert control.event is not None
    enough = max(counted // (6 if getattr(control.event, "sampling", 1.0) < 1 else 2), 1)
    alphas = ndtr(np.linspace(-4.5, 4.5, 91))
    betas = trade_off(_tight(control.event), rounds, alphas)
    high, low = (_upper_bounds(np.ceil(rates * enough), enough, level / 2) for rates in (alphas, betas))
    return float((_curve(guarantee, rounds)(high) - low).max())


def _with_power(
    mechanism: Gaussian | Laplace, setting: Setting, times: int, counted: int, level: float
) -> tuple[Gaussian | Laplace, Setting, str]:
    """The mechanism itself, if this few runs would detect its control; else with less noise, or more participation."""
    unit = 2.0 if isinstance(mechanism.placement, OnClient) else 1.0
    present = replace(setting, participation=max(setting.participation, 0.5))
    widths = [mechanism.noise] + [unit * each for each in NOISE_WITH_POWER if unit * each < mechanism.noise]
    tried = []
    for width in widths:
        changed = replace(mechanism, noise=width)
        guarantee, control = (_claimed(each.guarantees(present)) for each in (changed, weaker(changed)))
        tried.append((_spare(_strict(guarantee), control, times, counted, level), changed))
        if tried[-1][0] > 0:
            break
    changed = tried[-1][1] if tried[-1][0] > 0 else max(tried, key=lambda each: each[0])[1]
    notes = []
    if changed != mechanism:
        notes.append(f"noise = {changed.noise:g} instead of {mechanism.noise:g}")
    if present != setting:
        notes.append(f"participation = {present.participation:g} instead of {setting.participation:g}")
    why = ", because this few runs would not detect a fault" if notes else ""
    return changed, present, f"with {' and '.join(notes)}{why}" if notes else ""


def _strict(guarantee: Guarantee) -> Guarantee:
    """Distributed discrete Gaussian noise sums to almost Gaussian noise, and its claim is not tight."""
    event = guarantee.event
    return replace(guarantee, event=_tight(event)) if isinstance(event, ConcentratedEvent) else guarantee


def _stated(mechanism: FpdgdPaper) -> Guarantee:
    """The guarantee that the paper states, which does not distinguish observers."""
    return Guarantee("server", PureEvent(mechanism.epsilon), "as the paper states")


def _watch_mechanism(
    attacked: Gaussian | Laplace,
    claimer: Gaussian | Laplace,
    setting: Setting,
    pairs: Sequence[Pair],
    rounds: int,
    source: Source,
    meter: _Meter,
) -> Watch:
    """Many rounds at once: updates as rows of one call of `protect`, and rounds side by side as columns of one sum.

    A mechanism treats rows alike, and adds noise to every column independently; another test checks that it does so in
    the real round function.
    """
    cohort = setting.cohort(attacked)
    placement = attacked.placement
    present = placement.min_honest(cohort) if isinstance(placement, SecureAggregation) else 1
    sampled = setting.participation if isinstance(placement, AtServer) else 1.0
    size = setting.parameters
    block = max(1, _BLOCK // (present * size))

    def released(row: Vector, count: int) -> Vector:
        rows = np.zeros((present, count, size))
        rows[0] = np.where(source.bernoulli(sampled, count)[:, None], row, 0.0) if sampled < 1 else row
        arrived = attacked.protect(_messages(rows.reshape(-1, size), MANY * attacked.cap), cohort, source)
        if not has_trait(attacked, "adds up"):
            return arrived.updates.astype(np.float64)
        side_by_side = replace(arrived, updates=arrived.updates.reshape(present, count * size))
        change = cast(AddingMechanism, attacked).rule(cohort, source)(side_by_side)
        return cohort * change.reshape(count, size)

    def watch(index: int, inside: bool, count: int) -> Seen:
        pair = pairs[index]
        row = pair.inside if inside else pair.outside
        parts = []
        for begin in range(0, count, block):
            some = min(block, count - begin)
            seen = [_statistics(released(row, some), pair, claimer, sampled) for _ in range(rounds)]
            parts.append(_summed(seen))
            meter.add(some)
        return _joined(parts)

    return watch


def _watch_round(
    attacked: Gaussian | Laplace | FpdgdPaper,
    claimer: Gaussian | Laplace | FpdgdPaper,
    setting: Setting,
    pairs: Sequence[Pair],
    rounds: int,
    clients: SimulatedClients,
    source: Source,
    seed: int,
    meter: _Meter,
) -> Watch:
    """Whole runs, one after the other."""
    alone = not has_trait(attacked, "adds up")  # the server sees the canary's message separately
    cohort = 1.0 if alone else setting.cohort(attacked)
    sampled = setting.participation if has_trait(attacked, "hides cohort") else 1.0
    federation = Federation(
        setting.learner,
        _Message() if alone else Mean(),
        mechanism=attacked,
        participation=sampled,
        dealt=setting.dealt,
    )
    turn = int(federation.deal(clients, seed).round_of_each[0]) - 1 if setting.dealt else None  # of the canary

    def watch(index: int, inside: bool, count: int) -> Seen:
        pair = pairs[index]
        canary = _Canary(pair.inside if inside else pair.outside, MANY * getattr(attacked, "cap", 1))
        attacking = replace(federation, attack=canary)
        released = np.empty((rounds, count, setting.parameters))
        begin = State(0, np.zeros(setting.parameters))
        for run in range(count):
            state = begin
            for number in range(rounds):
                after = federated_round(attacking, state, clients, seed, noise=source).state
                released[number, run] = cohort * (after.weights - state.weights)
                state = after
            meter.add(1)
        if isinstance(claimer, FpdgdPaper):
            return _summed(
                [{"nearness": _nearness(each, pair), "projection": _projection(each, pair)} for each in released]
            )
        seen = [_statistics(each, pair, claimer, sampled) for each in released]
        if turn is None:
            return _summed(seen)
        # A faulty schedule would let the canary participate in other rounds, too.
        return seen[turn] | {f"{name} in all rounds": each for name, each in _summed(seen).items()}

    return watch


@dataclass(frozen=True)
class _Canary:
    """Malicious clients always send the same update, and all others send zeros."""

    row: Vector
    searches: int  # reported number of interactions

    def __call__(self, messages: Messages, malicious: NDArray[np.bool_], rng: np.random.Generator) -> Messages:
        rows = np.where(malicious[:, None], self.row, 0.0)
        sizes = np.where(malicious, self.searches, messages.sizes)
        return replace(messages, updates=rows.astype(np.float32), sizes=sizes)


@dataclass(frozen=True)
class _Message:
    """Replaces an aggregator: returns the message of the canary, which is the first client."""

    def __call__(self, messages: Messages) -> Change:
        message: Change = messages.updates[0].astype(np.float64)
        return message


def _few(clients: SimulatedClients, setting: Setting) -> SimulatedClients:
    """The first few clients, with few interactions, the first of them marked as malicious."""
    few = clients.rows(slice(min(FEW if setting.dealt else FEW - 1, len(clients))))
    searches = 2 if has_trait(setting.learner, "rewards") else 1
    return replace(
        few,
        people=None,
        malicious=np.arange(len(few)) == 0,
        interactions=np.full(len(few), searches, dtype=few.interactions.dtype),
    )


def _messages(rows: Vector, searches: int) -> Messages:
    count, size = rows.shape
    return Messages(
        rows.astype(np.float32),
        np.full(count, searches, dtype=np.int64),
        np.arange(count),
        np.zeros(size),
        1,
    )


def _statistics(seen: Vector, pair: Pair, claimer: Gaussian | Laplace, sampled: float) -> Seen:
    """[repeats]: log likelihood ratio of the observation, with the canary against without, by the claimed distribution.

    The projection is a fallback, because a likelihood assumes that the claim is true.
    """
    scale = claimer.noise * claimer.clip
    seen = np.nan_to_num(seen, nan=1e30, posinf=1e30, neginf=-1e30)
    if isinstance(claimer, Gaussian):
        shift = pair.left_inside - pair.left_outside
        ratio = (seen - (pair.left_inside + pair.left_outside) / 2) @ shift / scale**2
    else:
        ratio = (np.abs(seen - pair.left_outside) - np.abs(seen - pair.left_inside)).sum(axis=1) / scale
    if sampled < 1:
        ratio = np.logaddexp(math.log1p(-sampled), math.log(sampled) + ratio)
    return {"likelihood": ratio, "projection": _projection(seen, pair)}


def _projection(seen: Vector, pair: Pair) -> Vector:
    shift = pair.left_inside - pair.left_outside
    along: Vector = seen @ (shift if shift.any() else np.eye(len(shift))[0])
    return along


def _nearness(seen: Vector, pair: Pair) -> Vector:
    """For noise that is mostly near zero: which of the two updates is closer to a message, coordinate by coordinate?"""
    away, close = np.abs(seen - pair.left_outside), np.abs(seen - pair.left_inside)
    nearer: Vector = (np.log(away + 1e-9) - np.log(close + 1e-9)).sum(axis=1)
    return nearer


def _joined(parts: Sequence[Seen]) -> Seen:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _summed(rounds: Sequence[Seen]) -> Seen:
    return {name: np.sum([each[name] for each in rounds], axis=0) for name in rounds[0]}


def _weights(mechanism: FpdgdPaper, size: int) -> list[Pair]:
    """Models with the norm to which fpdgd-paper clips them."""
    first, spread = np.eye(size)[0], np.full(size, 1 / math.sqrt(size))
    length = mechanism.clip_weights
    rows = [
        ("all weights", -length * spread, length * spread),
        ("one weight", -length * first, length * first),
    ]
    return [Pair(name, out, into, out, into) for name, out, into in rows]


def _shorten(row: Vector, clip: float, norm: int) -> Vector:
    """Reference implementation of clipping, deliberately independent of the audited code."""
    length = float(np.linalg.norm(row, norm))
    if not math.isfinite(length):
        return np.zeros(len(row))
    return row * min(1.0, clip / length) if length else row


def _one_list(count: int, interactions: int, clicked: bool) -> SimulatedClients:
    """Clients that are shown one document, which is always or never clicked."""
    from fedrank.data.ranking import RankingData
    from fedrank.federated.clients import make_clients
    from fedrank.ranking.click_models import ClickModel

    data = RankingData(
        np.ones((1, 1), np.float32), np.ones(1, np.int8), np.array([0, 1]), np.array(["1"]), name="one", top_grade=1
    )
    always = float(clicked)
    return make_clients(
        data, count, click_model=ClickModel(click=(always, always), stop=(1.0, 1.0)), interactions=interactions
    )


def _learned(without: Vector, within: Vector) -> list[tuple[Vector, Vector]]:
    """For the two means of a message: the observed values, and the log likelihood ratio of each."""
    tables = []
    for column in (0, 1):
        values, out = np.unique(np.round(np.concatenate([without, within])[:, column], 5), return_inverse=True)
        counts = [np.bincount(part, minlength=len(values)) for part in np.split(out, [len(without)])]
        tables.append((values, np.log(counts[1] + 0.5) - np.log(counts[0] + 0.5)))
    return tables


def _looked_up(tables: Sequence[tuple[Vector, Vector]], means: Vector) -> Vector:
    total = np.zeros(len(means))
    for column, (values, ratios) in enumerate(tables):
        rounded = np.round(means[:, column], 5)
        at = np.minimum(np.searchsorted(values, rounded), len(values) - 1)
        total += np.where(values[at] == rounded, ratios[at], 0.0)
    return total


class _Meter:
    """Counts completed work."""

    def __init__(self, on_progress: ShareDone, total: int) -> None:
        self._on_progress, self._total, self._done = on_progress, max(total, 1), 0

    def add(self, some: int) -> None:
        self._done += some
        self._on_progress(min(1.0, self._done / self._total))
