"""The audit: attacks on what a spec would send, and what they found, next to what is promised."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank import __version__
from fedrank.attack.clicks import ClickAudit, click_audit
from fedrank.attack.infer import (
    LEVEL,
    REPEATS,
    RUNS,
    Membership,
    audit_answers,
    audit_mechanism,
    audit_paper,
    audit_round,
    upper_bound,
    weaker,
)
from fedrank.experiment.families import describe
from fedrank.experiment.federated_spec import Experiment
from fedrank.experiment.privacy import setting_of
from fedrank.experiment.run import clients_of
from fedrank.federate.aggregate import Apart, Mean
from fedrank.federate.round import Federation, simulate
from fedrank.protect.mechanisms import (
    AtServer,
    EsRandomisedResponse,
    FpdgdPaper,
    Gaussian,
    Laplace,
    OnClient,
    PricedMechanism,
)
from fedrank.protect.promises import Setting
from fedrank.rank.evolution import Evolution
from fedrank.rank.learners import Pdgd
from fedrank.types import Arrivals, Clients, Source, Weights

if TYPE_CHECKING:
    from rich.console import Console

MESSAGES = 200  # from which clicks are read
WARM_UP = 20  # rounds, without noise, after which messages are attacked
TESTS = 7  # of one variant, at most: clicks three, mechanism two, round two
HEADINGS = ("attacked", "promised", "shown", "verdict")
STYLES = {"VIOLATED": "bold red", "READ": "bold red", "NOT SHOWN": "green", "NO POWER": "yellow"}

Show = Callable[[float], None]  # share of an attack that is done


@dataclass(frozen=True)
class Finding:
    """What became of one attack."""

    variant: str
    attacked: str
    promised: str
    shown: str  # empty where the verdict is that nothing can be said
    verdict: str  # VIOLATED, NOT SHOWN, NO POWER, READ, NOT READ or SKIPPED
    sentence: str
    counts: dict[str, Any] = field(default_factory=dict)  # all that the verdict rests on


def audit_experiment(
    experiment: Experiment,
    console: Console,
    out: Path | None = None,
    *,
    messages: int = MESSAGES,
    repeats: int = REPEATS,
    runs: int = RUNS,
    source: Source | None = None,
) -> list[Finding]:
    """Attack every variant of a spec (its first fold and seed), print what was found, and write it to OUT/audit.json.

    `source` is for tests: noise comes from the system's secure source.
    """
    variants = experiment.expand()
    level = LEVEL / (TESTS * len(variants))
    found: list[Finding] = []
    for variant in variants:
        title = variant.name if len(variants) > 1 else ""
        with _progress(console, title) as begin:
            audit = _Audit(variant.experiment, variant.name, level, messages, repeats, runs, source, begin)
            some = audit.all()
        show_findings(some, variant.experiment, console, title)
        found += some
    if out is not None:
        path = out if out.suffix == ".json" else out / "audit.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = json.dumps(_facts(experiment, found), indent=1, ensure_ascii=False, allow_nan=False)
        path.write_text(facts + "\n", encoding="utf-8")
        console.print(f"All counts: {path}", markup=False, highlight=False, soft_wrap=True)
    return found


@dataclass(frozen=True)
class _Audit:
    """The attacks on one variant."""

    asked: Experiment
    variant: str
    level: float  # of one test
    messages: int
    repeats: int
    runs: int
    given: Source | None
    begin: Callable[[str], Show]  # announces an attack

    def all(self) -> list[Finding]:
        mechanism, learner = self.asked.methods.mechanism, self.asked.methods.learner
        if isinstance(self.asked.methods.aggregator, Apart):
            return [self._skipped("messages", 'nothing leaves a client with the aggregator "none"')]
        clients = clients_of(self.asked, self.asked.data.folds[0], self.asked.seeds[0])
        setting = setting_of(self.asked, clients.data.features.shape[1])
        found = self._clicks(mechanism, clients, setting)
        if mechanism is None:
            return [*found, self._skipped("membership", "nothing is promised, so there is nothing to break")]
        delta, source = self.asked.privacy.delta, self._source(mechanism)
        common: dict[str, Any] = {"delta": delta, "level": self.level, "repeats": self.repeats}
        what = "membership, by the mechanism alone"
        tell = self.begin(what)
        if isinstance(mechanism, (Gaussian, Laplace)):
            found.append(self._member(what, audit_mechanism(mechanism, setting, source, tell=tell, **common)))
        elif isinstance(mechanism, FpdgdPaper):
            cohort = setting.cohort(mechanism)
            found.append(self._member(what, audit_paper(mechanism, cohort, source, tell=tell, **common)))
        elif isinstance(mechanism, EsRandomisedResponse) and isinstance(learner, Evolution):
            found.append(self._member(what, audit_answers(learner, setting, self.asked.seeds[0], tell=tell, **common)))
            reason = "rewards are flipped by the learner itself, which was attacked already"
            return [*found, self._skipped("membership, by whole rounds", reason)]
        else:
            reason = f"no attack on {type(mechanism).__name__} is known here"
            return [*found, self._skipped("membership", reason)]
        what = "membership, by whole rounds"
        promises = mechanism.promises(setting)
        if all(promise.event is None for promise in promises):
            return [*found, self._skipped(what, f"nothing is promised: {promises[-1].because}")]
        tell = self.begin(what)
        result = audit_round(
            mechanism,
            setting,
            clients,
            source,
            delta=delta,
            level=self.level,
            runs=self.runs,
            seed=self.asked.seeds[0],
            tell=tell,
        )
        return [*found, self._member(what, result)]

    def _source(self, mechanism: PricedMechanism) -> Source:
        return mechanism.source() if self.given is None else self.given

    def _clicks(self, mechanism: PricedMechanism | None, clients: Clients, setting: Setting) -> list[Finding]:
        """Which clicks can be read from single messages, where somebody sees them."""
        what, learner = "clicks, from one message", self.asked.methods.learner
        if isinstance(mechanism, (Gaussian, Laplace)) and not isinstance(mechanism.place, OnClient):
            trusted = isinstance(mechanism.place, AtServer)
            return [
                self._skipped(
                    what,
                    "only the server sees single messages, bare ones, and it is trusted with them"
                    if trusted
                    else "nobody sees a single message, only their sum",
                )
            ]
        if (
            not isinstance(learner, Pdgd)
            or learner.ranker.hidden
            or learner.personal != "none"
            or learner.control
            or learner.lists != "drawn"
        ):
            return [self._skipped(what, "the attack knows plain PDGD with a linear ranker only")]
        weights = self._trained(clients)
        tell = self.begin(what)
        audit = self._read(learner, weights, clients, mechanism, setting, tell)
        promised = self._promised(mechanism, setting)
        found = [self._reading(what, audit, alone=promised is None)]
        if promised is None:
            return found
        epsilon, delta = promised
        what = "clicks, told which of two patterns"
        most = matching_bound(epsilon, delta)
        control = None
        if 1 - upper_bound(0, audit.matched.of, self.level) > most:
            assert mechanism is not None
            tell = self.begin("clicks, control")
            control = self._read(learner, weights, clients, weaker(mechanism), setting, tell)
        return [*found, self._matching(what, audit, control, epsilon, delta)]

    def _promised(self, mechanism: PricedMechanism | None, setting: Setting) -> tuple[float, float] | None:
        """(ε, δ) of one message against the server; for fpdgd-paper, as the paper states it."""
        if mechanism is None:
            return None
        if isinstance(mechanism, FpdgdPaper):
            return mechanism.epsilon, 0.0
        delta = self.asked.privacy.delta
        promise = next(each for each in mechanism.promises(setting) if each.against == "server")
        return None if promise.event is None else (promise.epsilon(1, delta), delta)

    def _trained(self, clients: Clients) -> Weights:
        plain = Federation(self.asked.methods.learner, Mean())
        *_, last = simulate(plain, clients, WARM_UP, self.asked.seeds[0])
        return last.weights

    def _read(
        self,
        learner: Pdgd,
        weights: Weights,
        clients: Clients,
        mechanism: PricedMechanism | None,
        setting: Setting,
        tell: Show,
    ) -> ClickAudit:
        send = expect = _as_it_is
        if mechanism is not None:
            cohort, source = setting.cohort(mechanism), self._source(mechanism)

            def send(arrived: Arrivals) -> Arrivals:
                return mechanism.protect(arrived, cohort, source)

            if isinstance(mechanism, (Gaussian, Laplace)):
                bare = replace(mechanism, place=AtServer())

                def expect(arrived: Arrivals) -> Arrivals:
                    return bare.protect(arrived, cohort, source)

        return click_audit(
            learner,
            weights,
            clients,
            send,
            self.asked.seeds[0],
            messages=self.messages,
            progress=lambda done: tell(done / self.messages),
            expect=None if expect is _as_it_is else expect,
        )

    def _reading(self, what: str, audit: ClickAudit, alone: bool) -> Finding:
        """`alone`: there is no promise that the matching game could be judged by, so that it is told here."""
        best = max(audit.read, audit.decoded, key=lambda share: share.right)
        guessed = upper_bound(audit.read_guess.right, audit.read_guess.of, self.level)
        sentence = (
            f"Of {best.of} messages, {best.right} gave away every click in them to somebody who knows the documents "
            f"that were shown, and {audit.candidates.right} to somebody who knows only the candidates; "
            f"{audit.read_guess.right} could be guessed without a message."
        )
        if alone:
            sentence += (
                f" Told two click patterns, the attacker knew the true one in {audit.matched.right} of "
                f"{audit.matched.of} messages; by chance it would be half."
            )
        shown = f"{best.right} of {best.of} messages"
        verdict = "READ" if _lower(best.right, best.of, self.level) > guessed else "NOT READ"
        return Finding(self.variant, what, "", shown, verdict, sentence, asdict(audit))

    def _matching(
        self, what: str, audit: ClickAudit, control: ClickAudit | None, epsilon: float, delta: float
    ) -> Finding:
        right, of = audit.matched.right, audit.matched.of
        most = matching_bound(epsilon, delta)
        caught = control is not None and _lower(control.matched.right, control.matched.of, self.level) > most
        lower = _lower(right, of, self.level)
        perfect = _lower(of, of, self.level)
        if lower > most:
            verdict = "VIOLATED"
            sentence = f"The attacker was right too often: ε = {_up(epsilon)} allows {most:.1%} of messages."
        elif caught:
            verdict = "NOT SHOWN"
            sentence = (
                f"ε = {_up(epsilon)} allows {most:.1%} of messages; with a quarter less noise the attacker is caught."
            )
        else:
            verdict = "NO POWER"
            sentence = (
                f"ε = {_up(epsilon)} allows an attacker to be right in {most:.1%} of messages; this one would not even "
                "notice that a quarter of the noise is missing, so that it says nothing."
            )
        counts = {
            "right": right,
            "messages": of,
            "epsilon_claimed": epsilon,
            "delta": delta,
            "bound": most,
            "level": self.level,
            "epsilon_largest": _matching_epsilon(perfect, delta),
            "control": None if control is None else asdict(control.matched),
        }
        shown = "" if verdict == "NO POWER" else f"ε ≥ {_down(_matching_epsilon(lower, delta))}"
        return Finding(self.variant, what, f"ε = {_up(epsilon)}", shown, verdict, sentence, counts)

    def _member(self, what: str, result: Membership) -> Finding:
        often = "" if result.rounds == 1 else f" in {result.rounds:,} rounds"
        whom = f"the {result.against}"
        if result.verdict == "VIOLATED":
            sentence = (
                f"Whoever sees what {whom} sees can tell a canary from none, and errs less often than is promised: "
                f"the true ε is at least {_down(result.shown)}."
            )
        elif result.verdict == "NOT SHOWN":
            sentence = (
                f"Nothing beyond the promise against {whom} was found, and the same attack finds it where a quarter of "
                "the noise is missing."
            )
        else:
            sentence = (
                "The attack would not even notice that a quarter of the noise is missing, so that it says nothing."
            )
        sentence += f" The largest ε that could have been shown is {_down(result.largest)}."
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
            "trial": _trial(result.trial),
            "control": _trial(result.control),
        }
        shown = "" if result.verdict == "NO POWER" else f"ε ≥ {_down(result.shown)}{often}"
        promised = f"ε = {_up(result.claimed)}{often}"
        return Finding(self.variant, what, promised, shown, result.verdict, sentence, counts)

    def _skipped(self, what: str, reason: str) -> Finding:
        return Finding(self.variant, what, "", "", "SKIPPED", f"{reason[0].upper()}{reason[1:]}.")


def matching_bound(epsilon: float, delta: float) -> float:
    """How often an attacker may be right who has to tell which of two equally likely inputs a message came from.

    >>> matching_bound(0.0, 0.0)
    0.5
    """
    return min(1.0, 1 / (1 + math.exp(-epsilon)) + delta)


def show_findings(found: Sequence[Finding], experiment: Experiment, console: Console, title: str = "") -> None:
    """Print a table of what was found, and below it a sentence on each."""
    from rich.table import Table
    from rich.text import Text

    if title:
        console.print(Text(title, style="bold"))
    mechanism = experiment.methods.mechanism
    console.print(
        Text(
            "No mechanism: the server sees every update as it is, and nothing is promised."
            if mechanism is None
            else f"Mechanism {describe(mechanism)['name']}: {mechanism.sees}."
        ),
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading)
    for each in found:
        table.add_row(
            Text(each.attacked), each.promised, each.shown, Text(each.verdict, style=STYLES.get(each.verdict, ""))
        )
    console.print(table)
    for each in found:
        line = f"{each.attacked[0].upper()}{each.attacked[1:]}: {each.sentence[0].lower()}{each.sentence[1:]}"
        console.print(Text(line, style="dim"), soft_wrap=True)
    console.print()


@contextmanager
def _progress(console: Console, title: str) -> Iterator[Callable[[str], Show]]:
    """Bars on a terminal, a line for every attack elsewhere."""
    name = f"{title}: " if title else ""
    if not console.is_terminal:

        def announce(what: str) -> Show:
            console.print(f"{name}attacking {what}", markup=False, highlight=False, soft_wrap=True)
            return lambda share: None

        yield announce
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=12), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True) as bars:

        def begin(what: str) -> Show:
            for old in bars.task_ids:
                bars.remove_task(old)
            bar = bars.add_task(f"{name}{what}", total=1.0)
            return lambda share: bars.update(bar, completed=share)

        yield begin


def _as_it_is(arrived: Arrivals) -> Arrivals:
    return arrived


def _facts(experiment: Experiment, found: Sequence[Finding]) -> dict[str, Any]:
    return {
        "format": 1,
        "fedrank": __version__,
        "title": experiment.title,
        "fold": experiment.data.folds[0],
        "seed": experiment.seeds[0],
        "level": LEVEL,
        "findings": [_plain(asdict(each)) for each in found],
    }


def _trial(trial: Any) -> dict[str, Any]:
    return asdict(trial) | {"alpha_upper": trial.alpha, "beta_upper": trial.beta, "violated": trial.violated}


def _lower(right: int, of: int, level: float) -> float:
    """Clopper-Pearson: the smallest share at which so many right ones still have probability `level`."""
    return 1 - upper_bound(of - right, of, level)


def _matching_epsilon(share: float, delta: float) -> float:
    """The ε below which nobody could be right so often."""
    least = share - delta
    return math.log(least / (1 - least)) if least > 0.5 else 0.0


def _plain(value: Any) -> Any:
    """For JSON, which knows no infinity: null instead."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _up(epsilon: float) -> str:
    """What is promised, rounded up."""
    return f"{math.ceil(epsilon * 100 - 1e-7) / 100:.2f}" if math.isfinite(epsilon) else "infinite"


def _down(epsilon: float) -> str:
    """What was shown, rounded down."""
    return f"{math.floor(epsilon * 100 + 1e-7) / 100:.2f}"
