"""Audits: every attack that fits what clients send, and what each of them found, next to what is promised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fedrank.attacks.clicks import ClickAudit, click_audit
from fedrank.attacks.membership import (
    LEVEL,
    REPEATS,
    RUNS,
    Membership,
    ShareDone,
    Trial,
    audit_answers,
    audit_mechanism,
    audit_paper,
    audit_round,
    upper_bound,
    weaker,
)
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
from fedrank.progress import Progress, quiet
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import Pdgd
from fedrank.types import NO_CORRECTION, LocalStep, Messages, SimulatedClients, Source, Weights, has_trait

MESSAGES = 200  # from which clicks are read, where that takes no more than SECONDS
FEWEST = 20  # from which clicks are read however long that takes: fewer could show nothing
SECONDS = 60.0  # for reading clicks
PER_SEARCH = 0.011  # seconds: a message with n searches behind it takes n^1.5 times as long
WARM_UP = 20  # rounds, without noise, after which messages are attacked
TESTS = 7  # of one federation, at most: clicks three, mechanism two, round two
READING = "clicks, from one message"
MATCHING = "clicks, told which of two patterns"
ALONE, ROUNDS = "membership, by the mechanism alone", "membership, by whole rounds"
BLIND = "not even notice that a quarter of the noise is missing, so that it says nothing."


@dataclass(frozen=True)
class Finding:
    """What became of one attack."""

    variant: str
    attacked: str
    promised: str
    shown: str  # a count, or an ε; no ε where the verdict is that nothing can be said
    verdict: str  # VIOLATED, NOT SHOWN, NO POWER, READ, NOT READ or SKIPPED
    sentence: str
    counts: dict[str, Any] = field(default_factory=dict)  # all that the verdict rests on
    guessed: str = ""  # the same without what was sent: what doing nothing would have shown


@dataclass(frozen=True)
class PlannedAttack:
    """An attack that is to be made."""

    what: str
    make: Callable[[ShareDone], list[Finding]]


Plan = list[PlannedAttack | Finding]  # attacks to be made, and what is to be said of those that are not


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The attacks on what some clients would send."""

    setting: Setting  # what is promised depends on
    clients: SimulatedClients
    mechanism: PricedMechanism | None = None
    local: LocalStep | None = None
    delta: float
    seed: int
    variant: str = ""  # what all this is called
    level: float = LEVEL / TESTS  # of one test
    messages: int | None = None  # None: as many as can be read in SECONDS
    repeats: int = REPEATS
    runs: int = RUNS
    source: Source | None = None  # for tests: noise comes from the system's secure source
    progress: Progress = quiet

    def findings(self) -> list[Finding]:
        """Make all attacks that fit."""
        return carry_out(self.plan(), self.progress)

    def plan(self) -> Plan:
        """All attacks that fit, and why others do not."""
        if has_trait(self.setting.aggregator, "apart"):
            return [self._skipped("messages", 'nothing leaves a client with the aggregator "none"')]
        if self.mechanism is None:
            return [self._clicks(), self._skipped("membership", "nothing is promised, so there is nothing to break")]
        return [self._clicks(), *self._membership(self.mechanism)]

    def _begin(self, what: str) -> ShareDone:
        """Announce an attack."""
        self.progress(what, 0, 1)
        return lambda share: self.progress(what, share, 1)

    def _noise(self, mechanism: PricedMechanism) -> Source:
        return mechanism.source() if self.source is None else self.source

    def _clicks(self) -> PlannedAttack | Finding:
        """Which clicks can be read from single messages, where somebody sees them."""
        mechanism, learner = self.mechanism, self.setting.learner
        if self.clients.people is not None:
            return self._skipped(READING, "the attack reads one person's message, and organisations send a sum of many")
        if isinstance(mechanism, (Gaussian, Laplace)) and not isinstance(mechanism.placement, OnClient):
            trusted = isinstance(mechanism.placement, AtServer)
            return self._skipped(
                READING,
                "only the server sees single messages, bare ones, and it is trusted with them"
                if trusted
                else "nobody sees a single message, only their sum",
            )
        if not isinstance(learner, Pdgd) or learner.ranker.hidden or learner.lists != "drawn" or self._keeps():
            return self._skipped(READING, "the attack knows plain PDGD with a linear ranker only")
        return PlannedAttack(READING, lambda on_progress: self._read_and_match(learner, on_progress))

    def _read_and_match(self, learner: Pdgd, on_progress: ShareDone) -> list[Finding]:
        mechanism = self.mechanism
        *_, last = simulate(Federation(learner, local=self.local), self.clients, WARM_UP, self.seed)
        audit = self._read(learner, last.weights, mechanism, on_progress)
        promised = self._promised_each_time()
        if promised is None:
            return [self._reading(audit), self._summary(audit)]
        epsilon, delta = promised
        control = None
        if 1 - upper_bound(0, audit.matched.of, self.level) > matching_bound(epsilon, delta):
            assert mechanism is not None
            control = self._read(learner, last.weights, weaker(mechanism), self._begin("clicks, control"))
        return [self._reading(audit), self._matching(audit, control, epsilon, delta)]

    def _keeps(self) -> bool:
        """Whether clients keep something between rounds, which bends what they send."""
        start = np.zeros(self.setting.parameters)
        return self.local is not None and self.local.first(self.setting.learner.ranker, start, 1) is not None

    def _promised_each_time(self) -> tuple[float, float] | None:
        """(ε, δ) of one message against the server; for fpdgd-paper, as the paper states it."""
        if self.mechanism is None:
            return None
        if isinstance(self.mechanism, FpdgdPaper):
            return self.mechanism.epsilon, 0.0
        guarantee = next(each for each in self.mechanism.guarantees(self.setting) if each.against == "server")
        return None if guarantee.event is None else (guarantee.epsilon(1, self.delta), self.delta)

    def _read(
        self, learner: Pdgd, weights: Weights, mechanism: PricedMechanism | None, on_progress: ShareDone
    ) -> ClickAudit:
        send: Callable[[Messages], Messages] = _as_it_is
        expect: Callable[[Messages], Messages] | None = None
        if mechanism is not None:
            cohort, source = self.setting.cohort(mechanism), self._noise(mechanism)
            send = lambda messages: mechanism.protect(messages, cohort, source)  # noqa: E731
            if isinstance(mechanism, (Gaussian, Laplace)):
                bare = replace(mechanism, placement=AtServer())
                expect = lambda messages: bare.protect(messages, cohort, source)  # noqa: E731
        return click_audit(
            learner,
            weights,
            self.clients,
            send,
            self.seed,
            messages=messages_for(max(self.setting.interactions)) if self.messages is None else self.messages,
            progress=on_progress,
            expect=expect,
            correction=NO_CORRECTION if self.local is None else self.local.correction(None, None),
        )

    def _reading(self, audit: ClickAudit) -> Finding:
        best = max(audit.read, audit.decoded, key=lambda share: share.right)
        guess = audit.read_guess
        needed = fewest_above(best.of, upper_bound(guess.right, guess.of, self.level), self.level)
        low, high = best.interval()
        sentence = (
            f"Of {best.of} messages, {best.right} gave away every click in them ({low:.0%} to {high:.0%} of all, at "
            f"95 %) to somebody who knows the documents that were shown, and {audit.candidates.right} to somebody who "
            f"knows only the candidates; {guess.right} could be guessed without a message."
        )
        if best.of < MESSAGES:
            sentence += (
                f" Only {best.of} messages were attacked, with {audit.interactions:g} searches behind each on average: "
                f"{power(needed, best.of)}; --messages {MESSAGES} attacks more, which takes longer."
            )
        verdict = "NO POWER" if needed is None else "READ" if best.right >= needed else "NOT READ"
        shown = f"{best.right} of {best.of} messages"
        counts = asdict(audit) | {"needed": needed, "level": self.level}
        return Finding(self.variant, READING, "", shown, verdict, sentence, counts, f"{guess.right} of {guess.of}")

    def _summary(self, audit: ClickAudit) -> Finding:
        """The matching game where nothing is promised that it could be judged by."""
        right, of = audit.matched.right, audit.matched.of
        needed = fewest_above(of, 0.5, self.level)
        low, high = audit.matched.interval()
        sentence = (
            f"Told two click patterns, of which one is true, the attacker knew which in {right} of {of} messages "
            f"({low:.0%} to {high:.0%} of all, at 95 %); by chance it would be half, and {power(needed, of)}."
        )
        verdict = "NO POWER" if needed is None else "READ" if right >= needed else "NOT READ"
        shown = f"{right} of {of} messages"
        counts = {"right": right, "messages": of, "needed": needed, "level": self.level}
        return Finding(self.variant, MATCHING, "", shown, verdict, sentence, counts, "half")

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
                f"ε = {rounded_up(epsilon)} allows {most:.1%} of messages; with a quarter less noise the attacker is "
                "caught."
            )
        else:
            verdict = "NO POWER"
            sentence = (
                f"ε = {rounded_up(epsilon)} allows an attacker to be right in {most:.1%} of messages; this one would "
                f"{BLIND}"
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
        return Finding(self.variant, MATCHING, f"ε = {rounded_up(epsilon)}", shown, verdict, sentence, counts)

    def _membership(self, mechanism: PricedMechanism) -> Plan:
        """Whether it shows that somebody sent something: in what the mechanism releases, and in whole rounds."""
        setting, learner = self.setting, self.setting.learner
        common: dict[str, Any] = {"delta": self.delta, "level": self.level}
        alone = common | {"repeats": self.repeats}
        if isinstance(mechanism, EsRandomisedResponse) and isinstance(learner, Evolution):
            answers = self._step(
                ALONE, lambda on_progress: audit_answers(learner, setting, self.seed, on_progress=on_progress, **alone)
            )
            return [
                answers,
                self._skipped(ROUNDS, "rewards are flipped by the learner itself, which was attacked already"),
            ]
        source = self._noise(mechanism)
        if isinstance(mechanism, (Gaussian, Laplace)):
            first = self._step(
                ALONE, lambda on_progress: audit_mechanism(mechanism, setting, source, on_progress=on_progress, **alone)
            )
        elif isinstance(mechanism, FpdgdPaper):
            cohort = setting.cohort(mechanism)
            first = self._step(
                ALONE, lambda on_progress: audit_paper(mechanism, cohort, source, on_progress=on_progress, **alone)
            )
        else:
            return [self._skipped("membership", f"no attack on {type(mechanism).__name__} is known here")]
        promises = mechanism.guarantees(setting)
        if all(guarantee.event is None for guarantee in promises):
            return [first, self._skipped(ROUNDS, f"nothing is promised: {promises[-1].because}")]
        whole = common | {"runs": self.runs, "seed": self.seed}
        audit = partial(audit_round, mechanism, setting, self.clients, source, **whole)
        return [first, self._step(ROUNDS, lambda on_progress: audit(on_progress=on_progress))]

    def _step(self, what: str, attack: Callable[[ShareDone], Membership]) -> PlannedAttack:
        return PlannedAttack(what, lambda on_progress: [self._member(what, attack(on_progress))])

    def _member(self, what: str, result: Membership) -> Finding:
        often = "" if result.rounds == 1 else f" in {result.rounds:,} rounds"
        whom = f"the {result.against}"
        if result.verdict == "VIOLATED":
            sentence = (
                f"Whoever sees what {whom} sees can tell a canary from none, and errs less often than is promised: "
                f"the true ε is at least {rounded_down(result.shown)}."
            )
        elif result.verdict == "NOT SHOWN":
            sentence = (
                f"Nothing beyond the promise against {whom} was found, and the same attack finds it where a quarter of "
                "the noise is missing."
            )
        else:
            sentence = f"The attack would {BLIND}"
        sentence += f" The largest ε that could have been shown is {rounded_down(result.largest)}."
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
        return Finding(self.variant, what, promised, shown, result.verdict, sentence, counts)

    def _skipped(self, what: str, reason: str) -> Finding:
        return skipped(self.variant, what, reason)


def carry_out(plan: Plan, progress: Progress) -> list[Finding]:
    """Make the attacks of a plan, one after the other."""
    found: list[Finding] = []
    for step in plan:
        if isinstance(step, Finding):
            found.append(step)
            continue
        progress(step.what, 0, 1)
        found += step.make(lambda share, what=step.what: progress(what, share, 1))  # type: ignore[misc]
        progress(step.what, 1, 1)
    return found


def skipped(variant: str, what: str, reason: str) -> Finding:
    """What is to be said of an attack that is not made."""
    return Finding(variant, what, "", "", "SKIPPED", f"{capital(reason)}.")


def messages_for(searches: int) -> int:
    """How many messages, each with so many searches behind it, can be read in SECONDS or so; at least FEWEST.

    >>> messages_for(5), messages_for(50)
    (200, 20)
    """
    return max(FEWEST, min(MESSAGES, int(SECONDS / (PER_SEARCH * searches**1.5))))


def fewest_above(of: int, share: float, level: float) -> int | None:
    """How many right ones of so many show that more than a share is right; None if not even all of them would.

    >>> fewest_above(100, 0.5, 1e-4), fewest_above(10, 0.5, 1e-4)
    (69, None)
    """
    return next((right for right in range(of + 1) if lower_bound(right, of, level) > share), None)


def capital(text: str) -> str:
    """As a sentence begins."""
    return f"{text[0].upper()}{text[1:]}"


def power(needed: int | None, of: int) -> str:
    """What so many trials could have shown."""
    if needed is None:
        return f"not even {of:,} of {of:,} would show more than guessing"
    return f"more than guessing is shown from {needed:,} of {of:,} on"


def matching_bound(epsilon: float, delta: float) -> float:
    """How often an attacker may be right who has to tell which of two equally likely inputs a message came from.

    >>> matching_bound(0.0, 0.0)
    0.5
    """
    return min(1.0, 1 / (1 + math.exp(-epsilon)) + delta)


def _as_it_is(messages: Messages) -> Messages:
    return messages


def _counts(trial: Trial) -> dict[str, Any]:
    return asdict(trial) | {"alpha_upper": trial.alpha, "beta_upper": trial.beta, "violated": trial.violated}


def lower_bound(right: int, of: int, level: float) -> float:
    """Clopper-Pearson: the smallest share at which so many right ones still have probability `level`."""
    return 1 - upper_bound(of - right, of, level)


def matching_epsilon(share: float, delta: float) -> float:
    """The ε below which nobody could be right so often."""
    least = share - delta
    return math.log(least / (1 - least)) if least > 0.5 else 0.0


def rounded_up(epsilon: float) -> str:
    """What is promised, rounded up."""
    return f"{math.ceil(epsilon * 100 - 1e-7) / 100:.2f}" if math.isfinite(epsilon) else "infinite"


def rounded_down(epsilon: float) -> str:
    """What was shown, rounded down."""
    return f"{math.floor(epsilon * 100 + 1e-7) / 100:.2f}"
