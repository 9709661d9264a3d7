"""Audits: run every attack that applies to what clients send, and compare the results with the privacy guarantees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from fedrank.attacks.click_audit import ClickAudit, Share, click_audit
from fedrank.attacks.clicks import KnownTraining
from fedrank.attacks.membership import (
    LEVEL,
    REPEATS,
    RUNS,
    Membership,
    Scope,
    ShareDone,
    Trial,
    audit_answers,
    audit_mechanism,
    audit_paper,
    audit_round,
    upper_bound,
    weaker,
)
from fedrank.federated.compatibility import sends_nothing
from fedrank.federated.federation import Federation
from fedrank.federated.simulation import simulate
from fedrank.privacy.guarantees import Setting
from fedrank.privacy.mechanisms import (
    AtServer,
    EsRandomisedResponse,
    FpdgdPaper,
    Gaussian,
    Laplace,
    OnClient,
    PricedMechanism,
)
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import Pdgd
from fedrank.types import NO_CORRECTION, LocalStep, Messages, SimulatedClients, Source

MESSAGES = 200  # messages attacked to reconstruct clicks, where that takes no more than SECONDS
FEWEST = 20  # messages attacked in any case: fewer could show nothing
SECONDS = 30.0  # for reconstructing clicks, and again for the control
PER_SEARCH = 0.011  # seconds: a message of n interactions takes n^1.5 times as long
WARM_UP = 20  # rounds without noise before messages are attacked
TESTS = 7  # tests of one federation, at most: three on clicks, two on the mechanism, two on rounds
READING = "clicks, from one message"
MATCHING = "clicks, one of two patterns"
ALONE, ROUNDS = "membership, mechanism alone", "membership, whole rounds"
NO_POWER = "would not detect that a quarter of the noise is missing, so the result is inconclusive."


@dataclass(frozen=True)
class Finding:
    """The result of one attack."""

    variant: str = field(default="", kw_only=True)  # name of the variant in the report
    attacked: str
    promised: str
    shown: str  # a count, or a lower bound on ε; empty for the verdict NO POWER
    verdict: str  # VIOLATED, NOT SHOWN, NO POWER, READ, NOT READ or SKIPPED
    sentence: str
    counts: dict[str, Any] = field(default_factory=dict)  # the data behind the verdict
    guessed: str = ""  # the result of guessing without the messages


@dataclass(frozen=True)
class PlannedAttack:
    """An attack to run."""

    what: str
    make: Callable[[ShareDone], list[Finding]]
    seconds: float = 10.0  # expected duration on one core


Plan = list[PlannedAttack | Finding]  # attacks to run, and the findings for attacks that do not apply


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The attacks on the messages of some clients."""

    setting: Setting  # what the guarantees depend on
    clients: SimulatedClients
    mechanism: PricedMechanism | None = None
    local: LocalStep | None = None
    delta: float
    seed: int
    level: float = LEVEL / TESTS  # significance level of one test
    messages: int = MESSAGES  # attacked to reconstruct clicks
    repeats: int = REPEATS
    runs: int = RUNS
    source: Source | None = None  # for tests; otherwise noise comes from the system's secure source

    def plan(self) -> Plan:
        """All attacks that apply, and why others do not."""
        if sends_nothing(self.setting.aggregator):
            return [skipped("messages", 'with the aggregator "none" nothing leaves a client')]
        if self.mechanism is None:
            return [self._clicks(), skipped("membership", "without a mechanism no guarantee can be violated")]
        return [self._clicks(), *self._membership(self.mechanism)]

    def _noise(self, mechanism: PricedMechanism) -> Source:
        return mechanism.source() if self.source is None else self.source

    def _clicks(self) -> PlannedAttack | Finding:
        """Reconstruct clicks from single messages, where an observer sees them."""
        mechanism, learner = self.mechanism, self.setting.learner
        if self.clients.people is not None:
            return skipped(READING, "the attack needs one person's message, and organisations send sums of many")
        if isinstance(mechanism, (Gaussian, Laplace)) and not isinstance(mechanism.placement, OnClient):
            if isinstance(mechanism.placement, AtServer):
                reason = "only the server sees single messages, without noise, and it is trusted with them"
                return skipped(READING, reason)
            return skipped(READING, "no party sees a single message, only the sum")
        if not isinstance(learner, Pdgd) or learner.ranker.hidden or learner.lists != "drawn" or self._keeps():
            return skipped(READING, "the attack applies only to plain PDGD with a linear ranker")
        tries = 2 if self._has_control(self.messages) else 1
        return PlannedAttack(
            READING,
            lambda on_progress: self._read_and_match(learner, on_progress),
            tries * self.messages * PER_SEARCH * max(self.setting.interactions) ** 1.5,
        )

    def _read_and_match(self, learner: Pdgd, on_progress: ShareDone) -> list[Finding]:
        mechanism, promised = self.mechanism, self._promised_each_time()
        *_, last = simulate(Federation(learner, local=self.local), self.clients, WARM_UP, self.seed)
        correction = NO_CORRECTION if self.local is None else self.local.correction(None, None)
        training = KnownTraining(learner, last.weights, self.clients.data, correction)
        tries = 2 if self._has_control(self.messages) else 1
        audit = self._read(training, mechanism, lambda share: on_progress(share / tries))
        if promised is None:
            return [self._reading(audit), self._summary(audit)]
        control = None
        if self._has_control(audit.matched.of):
            assert mechanism is not None
            control = self._read(training, weaker(mechanism), lambda share: on_progress((1 + share) / 2))
        return [self._reading(audit), self._matching(audit, control, *promised)]

    def _has_control(self, messages: int) -> bool:
        """Whether this many messages could violate the guarantee; then they are attacked again with less noise."""
        promised = self._promised_each_time()
        return promised is not None and 1 - upper_bound(0, messages, self.level) > matching_bound(*promised)

    def _keeps(self) -> bool:
        """Whether clients keep state between rounds that changes what they send."""
        start = np.zeros(self.setting.parameters)
        return self.local is not None and self.local.first(self.setting.learner.ranker, start, 1) is not None

    def _promised_each_time(self) -> tuple[float, float] | None:
        """(ε, δ) of one message against the server; for fpdgd-paper, the ε that the paper states."""
        if self.mechanism is None:
            return None
        if isinstance(self.mechanism, FpdgdPaper):
            return self.mechanism.epsilon, 0.0
        guarantee = next(each for each in self.mechanism.guarantees(self.setting) if each.against == "server")
        return None if guarantee.event is None else (guarantee.epsilon(1, self.delta), self.delta)

    def _read(self, training: KnownTraining, mechanism: PricedMechanism | None, on_progress: ShareDone) -> ClickAudit:
        send: Callable[[Messages], Messages] = lambda messages: messages  # noqa: E731
        expect: Callable[[Messages], Messages] | None = None
        if mechanism is not None:
            cohort, source = self.setting.cohort(mechanism), self._noise(mechanism)
            send = lambda messages: mechanism.protect(messages, cohort, source)  # noqa: E731
            if isinstance(mechanism, (Gaussian, Laplace)):
                bare = replace(mechanism, placement=AtServer())
                expect = lambda messages: bare.protect(messages, cohort, source)  # noqa: E731
        return click_audit(training, self.clients, send, self.seed, self.messages, expect, on_progress)

    def _reading(self, audit: ClickAudit) -> Finding:
        best = max(audit.read, audit.decoded, key=lambda share: share.right)
        guess = audit.read_guess
        needed = fewest_above(best.of, upper_bound(guess.right, guess.of, self.level), self.level)
        sentence = (
            f"In {best.right} of {best.of} messages all clicks were reconstructed {best.confidence} by an attacker who "
            f"knows the documents that were shown, and in {audit.candidates.right} by one who knows only the "
            f"candidates; guessing without a message succeeds in {guess.right}."
        )
        if best.of < MESSAGES:
            sentence += (
                f" Only {best.of} messages were attacked, with {audit.interactions:g} interactions each on average: "
                f"{power(needed, best.of)}; --messages {MESSAGES} attacks more and takes longer."
            )
        counts = asdict(audit) | {"needed": needed, "level": self.level}
        shown = f"{best.right} of {best.of} messages"
        guessed = f"{guess.right} of {guess.of}"
        return Finding(READING, "", shown, verdict_of(best, needed), sentence, counts, guessed)

    def _summary(self, audit: ClickAudit) -> Finding:
        """The matching game without a guarantee to compare it with."""
        found = audit.matched
        needed = fewest_above(found.of, 0.5, self.level)
        sentence = (
            f"Given two click patterns, one of them true, the attacker chose the true one in {found.right} of "
            f"{found.of} messages {found.confidence}; guessing succeeds in half, and {power(needed, found.of)}."
        )
        counts = {"right": found.right, "messages": found.of, "needed": needed, "level": self.level}
        shown = f"{found.right} of {found.of} messages"
        return Finding(MATCHING, "", shown, verdict_of(found, needed), sentence, counts, "half")

    def _matching(self, audit: ClickAudit, control: ClickAudit | None, epsilon: float, delta: float) -> Finding:
        right, of = audit.matched.right, audit.matched.of
        most = matching_bound(epsilon, delta)
        caught = control is not None and lower_bound(control.matched.right, control.matched.of, self.level) > most
        lower = lower_bound(right, of, self.level)
        if lower > most:
            verdict = "VIOLATED"
            sentence = f"The attacker was right too often: ε = {rounded_up(epsilon)} allows {most:.1%} of messages."
        elif caught:
            verdict = "NOT SHOWN"
            sentence = (
                f"ε = {rounded_up(epsilon)} allows {most:.1%} of messages, which the attacker does not exceed "
                "significantly; with a quarter less noise the attack detects a violation."
            )
        else:
            verdict = "NO POWER"
            sentence = (
                f"ε = {rounded_up(epsilon)} allows an attacker to be right in {most:.1%} of messages; this attack "
                f"{NO_POWER}"
            )
        counts = {
            "right": right,
            "messages": of,
            "epsilon_claimed": epsilon,
            "delta": delta,
            "bound": most,
            "level": self.level,
            "epsilon_largest": matching_epsilon(lower_bound(of, of, self.level), delta),
            "control": None if control is None else asdict(control.matched),
        }
        shown = "" if verdict == "NO POWER" else f"ε ≥ {rounded_down(matching_epsilon(lower, delta))}"
        return Finding(MATCHING, f"ε = {rounded_up(epsilon)}", shown, verdict, sentence, counts)

    def _membership(self, mechanism: PricedMechanism) -> Plan:
        """Whether a client's participation is detectable: from the mechanism's release, and from whole rounds."""
        setting, learner = self.setting, self.setting.learner
        alone = Scope(self.delta, self.level, self.repeats)
        if isinstance(mechanism, EsRandomisedResponse) and isinstance(learner, Evolution):
            return [
                self._step(ALONE, alone, lambda scope: audit_answers(learner, setting, self.seed, scope)),
                skipped(ROUNDS, "the learner itself flips the rewards, and it was attacked already"),
            ]
        source = self._noise(mechanism)
        if isinstance(mechanism, (Gaussian, Laplace)):
            first = self._step(ALONE, alone, lambda scope: audit_mechanism(mechanism, setting, source, scope))
        elif isinstance(mechanism, FpdgdPaper):
            cohort = setting.cohort(mechanism)
            first = self._step(ALONE, alone, lambda scope: audit_paper(mechanism, cohort, source, scope))
        else:
            return [skipped("membership", f"no attack on {type(mechanism).__name__} is implemented")]
        promises = mechanism.guarantees(setting)
        if all(guarantee.event is None for guarantee in promises):
            return [first, skipped(ROUNDS, f"no guarantee is claimed: {promises[-1].because}")]

        def whole(scope: Scope) -> Membership:
            return audit_round(mechanism, setting, self.clients, source, self.seed, scope)

        return [first, self._step(ROUNDS, alone._replace(repeats=max(self.runs // 2, 1)), whole, 15.0)]

    def _step(
        self, what: str, scope: Scope, attack: Callable[[Scope], Membership], seconds: float = 4.0
    ) -> PlannedAttack:
        def make(on_progress: ShareDone) -> list[Finding]:
            return [self._member(what, attack(scope._replace(on_progress=on_progress)))]

        return PlannedAttack(what, make, seconds)

    def _member(self, what: str, result: Membership) -> Finding:
        often = "" if result.rounds == 1 else f" in {result.rounds:,} rounds"
        whom = f"the {result.against}"
        if result.verdict == "VIOLATED":
            sentence = (
                f"An observer with the view of {whom} can distinguish a run with a canary from one without, with "
                f"fewer errors than the guarantee allows: the true ε is at least {rounded_down(result.shown)}."
            )
        elif result.verdict == "NOT SHOWN":
            sentence = (
                f"No violation of the guarantee against {whom} was found; the same attack finds one when a quarter of "
                "the noise is removed."
            )
        else:
            sentence = f"The attack {NO_POWER}"
        sentence += f" The largest ε that this audit could have shown is {rounded_down(result.largest)}."
        if result.note:
            sentence += f" Attacked {result.note}." if result.note.startswith("with") else f" Tested: {result.note}."
        counts = {
            "what": result.what,
            "against": result.against,
            "rounds": result.rounds,
            "delta": result.delta,
            "epsilon_claimed": result.claimed,
            "epsilon_shown": result.shown,
            "epsilon_largest": result.largest,
            "note": result.note,
            "trial": _counts(result.trial),
            "control": _counts(result.control),
        }
        shown = "" if result.verdict == "NO POWER" else f"ε ≥ {rounded_down(result.shown)}{often}"
        promised = f"ε = {rounded_up(result.claimed)}{often}"
        return Finding(what, promised, shown, result.verdict, sentence, counts)


def skipped(what: str, reason: str) -> Finding:
    """The finding for an attack that does not apply."""
    return Finding(what, "", "", "SKIPPED", f"{capital(reason)}.")


def verdict_of(found: Share, needed: int | None) -> str:
    """The verdict on an attack that is compared with guessing; `needed` successes are significantly better."""
    if needed is None:
        return "NO POWER"
    return "READ" if found.right >= needed else "NOT READ"


def messages_for(searches: int, seconds: float) -> int:
    """Number of messages of this many interactions that can be attacked in about this many seconds; at least FEWEST.

    >>> messages_for(5, SECONDS), messages_for(50, SECONDS)
    (200, 20)
    """
    return max(FEWEST, min(MESSAGES, int(seconds / (PER_SEARCH * searches**1.5))))


def fewest_above(of: int, share: float, level: float) -> int | None:
    """The smallest number of successes significantly above a proportion; None if not even all would be.

    >>> fewest_above(100, 0.5, 1e-4), fewest_above(10, 0.5, 1e-4)
    (69, None)
    """
    return next((right for right in range(of + 1) if lower_bound(right, of, level) > share), None)


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return f"{text[0].upper()}{text[1:]}"


def power(needed: int | None, of: int) -> str:
    """The power of a test, as a clause."""
    if needed is None:
        return f"not even {of:,} of {of:,} would be significantly better than guessing"
    return f"{needed:,} or more of {of:,} are significantly better than guessing"


def matching_bound(epsilon: float, delta: float) -> float:
    """The largest success rate that the guarantee allows for telling which of two inputs a message came from.

    >>> matching_bound(0.0, 0.0)
    0.5
    """
    return min(1.0, 1 / (1 + math.exp(-epsilon)) + delta)


def _counts(trial: Trial) -> dict[str, Any]:
    return asdict(trial) | {"alpha_upper": trial.alpha, "beta_upper": trial.beta, "violated": trial.violated}


def lower_bound(right: int, of: int, level: float) -> float:
    """Clopper-Pearson: the smallest success rate at which this many successes still have probability `level`."""
    return 1 - upper_bound(of - right, of, level)


def matching_epsilon(share: float, delta: float) -> float:
    """The smallest ε that allows this success rate."""
    least = share - delta
    return math.log(least / (1 - least)) if least > 0.5 else 0.0


def rounded_up(epsilon: float) -> str:
    """A claimed ε, rounded up."""
    return f"{math.ceil(epsilon * 100 - 1e-7) / 100:.2f}" if math.isfinite(epsilon) else "infinite"


def rounded_down(epsilon: float) -> str:
    """An ε that was shown, rounded down."""
    return f"{math.floor(epsilon * 100 + 1e-7) / 100:.2f}"
