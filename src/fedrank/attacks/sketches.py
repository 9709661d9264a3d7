"""Attacks on messages between silos: which words a document contains, and which words were queried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fedrank.attacks.audits import (
    Finding,
    Plan,
    PlannedAttack,
    capital,
    fewest_above,
    lower_bound,
    matching_epsilon,
    power,
    rounded_down,
    rounded_up,
    skipped,
    verdict_of,
)
from fedrank.attacks.click_audit import Share
from fedrank.attacks.membership import LEVEL, ShareDone, upper_bound
from fedrank.privacy.accounting import GaussianEvent, delta_of, epsilon
from fedrank.seeds import rng_for
from fedrank.silo.hashing import Cells
from fedrank.silo.partners import Partner
from fedrank.silo.silos import Silo
from fedrank.silo.sketch import BLOCK, Sketcher
from fedrank.silo.terms import TermCounts
from fedrank.silo.training import LocalPlus, SiloMethod
from fedrank.types import Source

TESTS = 3  # tests of one method, at most
PAIRS = 2_000  # pairs of words, or of neighbouring documents, to distinguish
MAX_PAIRS = 25_000  # of neighbouring documents: with much noise, many are needed to detect that some is missing
QUESTIONS = 300  # queries whose word an owner has to identify
CONTROL = 0.5  # fraction of the noise in a control: real words move a sketch less than the worst case
FIELD = "body"
HELD = "words of a document, from lookups"
SWAPPED = "one word of a document, all others known"
ASKED = "words of queries, by the owner of the documents"
PASSED_ON = "weights passed between silos"


@dataclass(frozen=True)
class SketchAudit:
    """The attacks on the messages between silos."""

    method: SiloMethod
    silos: Callable[[], Sequence[Silo]]  # called when they are needed
    delta: float
    seed: int
    level: float = LEVEL / TESTS  # significance level of one test
    pairs: int | None = None  # None: enough to detect that noise is missing, within bounds
    source: Source | None = None  # for tests; otherwise noise comes from the system's secure source

    def plan(self) -> Plan:
        """All attacks that apply, and why others do not."""
        method, plan = self.method, Plan()
        if isinstance(method, LocalPlus):
            plan.append(PlannedAttack(HELD, lambda on_progress: [self._contained_words(method, on_progress)]))
            if reason := _no_guarantee(method):
                plan.append(skipped(SWAPPED, reason))
            else:
                plan.append(PlannedAttack(SWAPPED, lambda on_progress: [self._swapped(method.sketcher, on_progress)]))
            plan.append(PlannedAttack(ASKED, lambda on_progress: [self._queried_words(method.sketcher, on_progress)]))
        if method.first(1).ndim == 1:
            plan.append(skipped(PASSED_ON, "no guarantee is claimed, and no attack is implemented"))
        return plan or [skipped("silos", "silos send each other nothing")]

    @cached_property
    def _all_silos(self) -> Sequence[Silo]:
        return self.silos()

    def _contained_words(self, method: LocalPlus, on_progress: ShareDone) -> Finding:
        """Given two words, of which one is in a document: which one?"""
        results = {"as it is": method}
        if method.counts == "sketch" and (method.noise or method.noise_in != "sketch"):
            results["without noise"] = replace(method, noise=0.0, noise_in="sketch")
        shares = {
            name: self._looked_up(each, lambda share, part=part: on_progress((part + share) / len(results)))  # type: ignore[misc]
            for part, (name, each) in enumerate(results.items())
        }
        found = shares["as it is"]
        needed = fewest_above(found.of, 0.5, self.level)
        sentence = (
            f"Given two words of which one is in a document, an attacker who may look up both identified it for "
            f"{found.right:,} of {found.of:,} documents {found.confidence}; guessing succeeds in half."
        )
        if "without noise" in shares:
            sentence += f" Without the noise it would be identified for {shares['without noise'].right:,}."
        sentence += f" {capital(power(needed, found.of))}."
        counts = {name: asdict(share) for name, share in shares.items()} | {"needed": needed, "level": self.level}
        shown = f"{found.right:,} of {found.of:,}"
        return Finding(HELD, "", shown, verdict_of(found, needed), sentence, counts, "half")

    def _looked_up(self, method: LocalPlus, on_progress: ShareDone) -> Share:
        """Attack documents of every silo, in proportion to its number of documents."""
        rng, key = rng_for(self.seed, "words of documents"), rng_for(self.seed, "key of the audit").bytes(32)
        sizes = np.array([silo.documents for silo in self._all_silos])
        wanted = np.minimum(sizes, np.ceil((self.pairs or PAIRS) * sizes / sizes.sum()).astype(np.int64))
        right = of = 0
        for silo, many in zip(self._all_silos, wanted, strict=True):
            partner = self._partner(method, silo, key)
            counts = silo.fields[FIELD]
            for document in rng.permutation(silo.documents)[:many]:
                inside, outside = _two_words(counts, int(document), rng)
                if inside is None or outside is None:
                    continue
                words = [counts.vocabulary[inside], counts.vocabulary[outside]]
                seen = partner.counts(words)
                index = int(np.searchsorted(seen.documents, document))
                present = index < len(seen.documents) and seen.documents[index] == document
                mine, other = seen.counts[FIELD][index] if present else (0.0, 0.0)
                right += bool(rng.random() < 0.5) if mine == other else mine > other
                of += 1
                on_progress(of / max(wanted.sum(), 1))
        return Share(int(right), of)

    def _partner(self, method: LocalPlus, silo: Silo, key: bytes) -> Partner:
        return method.partner(silo, key, max(1, *method.most(self._all_silos)), self.seed, self.source)

    def _swapped(self, sketcher: Sketcher, on_progress: ShareDone) -> Finding:
        """An attacker knows a document but for one of two words, and sees its whole sketch: which word is it?"""
        promised = epsilon(GaussianEvent(sketcher.noise), 1, self.delta)
        most = (1 + delta_of(GaussianEvent(sketcher.noise), 1, 0.0)) / 2
        pairs = self.pairs or _pairs_for(sketcher.noise)
        found = self._distinguished(sketcher, pairs, lambda share: on_progress(share / 2))
        control = None
        if CONTROL * sketcher.deviation >= 0.5:  # the smallest deviation of the integer sampler
            weaker = replace(sketcher, noise=CONTROL * sketcher.noise)
            control = self._distinguished(weaker, pairs, lambda share: on_progress((1 + share) / 2))
        lower = lower_bound(found.right, found.of, self.level)
        sentence = (
            f"For {found.right:,} of {found.of:,} documents, of which everything but one word was known, the right one "
            f"of two words was identified {found.confidence}; the noise of one document's sketch, ε = "
            f"{rounded_up(promised)}, allows {most:.1%}, and guessing succeeds in half."
        )
        if lower > most:
            verdict = "VIOLATED"
        elif control is not None and lower_bound(control.right, control.of, self.level) > most:
            verdict = "NOT SHOWN"
            sentence += f" With half of the noise the same attack is right for {control.right:,}: it is detected."
        else:
            verdict = "NO POWER"
            sentence += (
                f" With {pairs:,} documents the attack would not detect that half of the noise is missing, so the "
                "result is inconclusive."
            )
        counts = {
            "found": asdict(found),
            "control": None if control is None else asdict(control),
            "epsilon_claimed": promised,
            "delta": self.delta,
            "bound": most,
            "level": self.level,
            "epsilon_largest": matching_epsilon(lower_bound(found.of, found.of, self.level), self.delta),
        }
        shown = "" if verdict == "NO POWER" else f"ε ≥ {rounded_down(matching_epsilon(lower, self.delta))}"
        promise = f"ε = {rounded_up(promised)}"
        return Finding(SWAPPED, promise, shown, verdict, sentence, counts, "ε ≥ 0.00")

    def _distinguished(self, sketcher: Sketcher, pairs: int, on_progress: ShareDone) -> Share:
        """The best test of two neighbours, on sketches as they are released."""
        rng, bare = rng_for(self.seed, "neighbours"), replace(sketcher, noise=0.0)
        hashing = sketcher.hashing(rng.bytes(32))
        step = max(1, BLOCK // (sketcher.depth * sketcher.width))
        right = of = 0
        while of < pairs:
            first, second, owned, truth = _neighbours(self._all_silos, min(step, pairs - of), rng)
            seen = sketcher.sketch(owned, hashing, self.source).astype(np.float64)
            one, other = (bare.sketch(counts, hashing).astype(np.float64) for counts in (first, second))
            evidence = np.einsum("pzw,pzw->p", seen - (one + other) / 2, other - one)
            said = np.where(evidence == 0, rng.random(len(evidence)) < 0.5, evidence > 0)
            right += int(np.count_nonzero(said == truth))
            of += len(truth)
            on_progress(of / pairs)
        return Share(right, of)

    def _queried_words(self, sketcher: Sketcher, on_progress: ShareDone) -> Finding:
        """An owner has the key, and compares all words with the requested cells."""
        rng = rng_for(self.seed, "questions")
        queried = [term for silo in self._all_silos for query in silo.train for term in query.terms]
        known = list(dict.fromkeys([*self._all_silos[0].fields[FIELD].vocabulary, *queried]))
        index = {word: number for number, word in enumerate(known)}
        cells, signs = sketcher.locate(known, sketcher.hashing(rng.bytes(32)))
        dictionary = 2 * cells + (signs > 0)
        chosen = [queried[i] for i in rng.integers(len(queried), size=QUESTIONS)]
        right = 0
        for done, word in enumerate(chosen, start=1):
            right += bool(rng.random() < identify_by_cells(dictionary[index[word]], dictionary)[index[word]])
            on_progress(done / QUESTIONS)
        usual = max(queried, key=queried.count)
        found, guess = Share(right, QUESTIONS), Share(chosen.count(usual), QUESTIONS)
        needed = fewest_above(found.of, upper_bound(guess.right, guess.of, self.level), self.level)
        sentence = (
            f"Of {found.of} words in queries, an owner identified {found.right} {found.confidence} in a dictionary of "
            f"{len(known):,}; always choosing the most frequent word is right for {guess.right}. A silo "
            "that has a copy of the sketch sends no queries."
        )
        counts = {"found": asdict(found), "guess": asdict(guess), "dictionary": len(known), "level": self.level}
        shown = f"{found.right} of {found.of}"
        guessed = f"{guess.right} of {guess.of}"
        return Finding(ASKED, "", shown, verdict_of(found, needed), sentence, counts, guessed)


def _no_guarantee(method: LocalPlus) -> str:
    """Why a method claims no guarantee for the words of a document; empty if it does."""
    if method.counts == "exact":
        return "counts are sent without noise, so no guarantee is claimed"
    if method.noise_in == "paper":
        return "the published noise, one draw for all rows, hides nothing"
    if method.noise_in == "lookup":
        return "no sketch leaves a silo, and every answer has independent noise"
    return "" if method.noise else "sketches have no noise, so no guarantee is claimed"


def identify_by_cells(seen: Cells, dictionary: Cells) -> NDArray[np.float64]:
    """Probability [words] that each word was queried, for an owner who sees cells [z].

    The words that match most rows are equally likely.
    """
    fits = np.count_nonzero(dictionary == seen, axis=1)
    best = fits == fits.max()
    chances: NDArray[np.float64] = best / np.count_nonzero(best)
    return chances


def _pairs_for(noise: float) -> int:
    """Number of neighbours needed to detect missing noise, almost certainly; at most MAX_PAIRS.

    >>> _pairs_for(1.0), _pairs_for(4.0), _pairs_for(100.0)
    (2000, 21584, 25000)
    """
    from scipy.special import ndtr

    # Two words rarely share a cell: a word moves a sketch by √2, while the guarantee covers 2.
    allowed, caught = (ndtr(shift / noise) for shift in (0.5, sqrt(0.5) / 2 / CONTROL))
    return max(PAIRS, min(MAX_PAIRS, int((3 / (caught - allowed)) ** 2)))  # six deviations


def _two_words(counts: TermCounts, document: int, rng: np.random.Generator) -> tuple[int | None, int | None]:
    """A word of a document, and one that it does not contain, drawn from the words of all documents."""
    contained = counts.terms[counts.offsets[document] : counts.offsets[document + 1]]
    if not len(contained):
        return None, None
    return int(rng.choice(contained)), _another_word(counts, contained, rng)


def _another_word(counts: TermCounts, contained: NDArray[np.int32], rng: np.random.Generator) -> int | None:
    drawn = counts.terms[rng.integers(len(counts.terms), size=50)]
    free = drawn[~np.isin(drawn, contained)]
    return int(free[0]) if len(free) else None


def _neighbours(
    silos: Sequence[Silo], many: int, rng: np.random.Generator
) -> tuple[TermCounts, TermCounts, TermCounts, NDArray[np.bool_]]:
    """Documents, the same with one occurrence of a word replaced, one of the two, and which one."""
    counts = max((silo.fields[FIELD] for silo in silos), key=len)
    once = np.flatnonzero(counts.counts == 1)
    if not len(once):
        raise ValueError("no document contains a word exactly once, so none can be replaced; use other documents")
    whose = np.repeat(np.arange(len(counts)), np.diff(counts.offsets))
    entries = rng.choice(once, many)
    first = counts.rows(whose[entries])
    changed = first.terms.copy()
    indices = first.offsets[:-1] + entries - counts.offsets[whose[entries]]
    for document, index in enumerate(indices):
        contained = first.terms[first.offsets[document] : first.offsets[document + 1]]
        another = _another_word(counts, contained, rng)
        if another is not None:  # otherwise the two are equal, and the attacker guesses
            changed[index] = another
    truth = rng.random(many) < 0.5
    mixed = np.where(np.repeat(truth, np.diff(first.offsets)), changed, first.terms)
    second, owned = (replace(first, terms=terms) for terms in (changed, mixed))
    return first, second, owned, truth
