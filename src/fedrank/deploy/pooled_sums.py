"""The noised sums that sites released in a run, at the coordinator: `releases.json`, written before they are used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.handshake import Handshake
from fedrank.deploy.releases import GATE, PROPENSITY, QUALITY, WORDS, release_charges, release_of, releases_of
from fedrank.files import parse_json, write_atomic
from fedrank.types import Weights
from fedrank.wire import Label, Refused

RELEASES = "releases.json"
NEVER_PASSES = "with propensities of swaps, which determine position bias alone, the gate may veto but never pass"
MEASURES = "measures"  # in the file: by site, what its sums of quality measure
TRIES = 3  # requests of a sum to a site that was just started, at the end of a run


class PooledSums:
    """The sums of all sites, by kind and site. A repeated request is answered with the same bytes."""

    def __init__(self, folder: Path, handshake: Handshake) -> None:
        self.path, self.handshake, self.plan = folder / RELEASES, handshake, handshake.calls.plan
        try:
            found = parse_json(self.path.read_bytes()) if self.path.exists() else {}
            self._sums: dict[str, dict[str, list[float]]] = {kind: dict(found.get(kind, {})) for kind in WORDS}
            self._measures: dict[str, list[str]] = dict(found.get(MEASURES, {}))
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"{self.path} is damaged; restore it from a backup") from None

    def propensities(self) -> list[str]:
        """Collect counts of swaps, and let every site correct its clicks with them; return notes for the run."""
        if release_of(self.plan, PROPENSITY) is None:
            return []
        while len(sums := self._ask(PROPENSITY, 0)) < self.plan.min_sites:
            self.handshake.calls.pause(0, self._why)
        notes = self._notes(sums)
        self.handshake.give = protocol.request("propensities", self.plan.run, sums=json.dumps(sums).encode())
        self.handshake.give_all()
        return notes

    def quality(self, weights: Weights, round: int, model: Path) -> dict[str, dict[str, Any]]:
        """By site and measure: quality from noised sums of the sites that release them."""
        found: dict[str, dict[str, Any]] = {}
        for name, sums in self._ask(QUALITY, round, weights, model).items():
            releases = releases_of(self.plan, self._measures.get(name, ()))
            release = releases.find(QUALITY) if releases is not None else None
            if releases is not None and release is not None and release.is_plausible(sums):
                found[name] = releases.quality(sums)
        return found

    def gate(self, weights: Weights, round: int, model: Path) -> dict[str, Any] | None:
        """The decision of all sites together on a model; None if the plan has no gate."""
        if release_of(self.plan, GATE) is None:
            return None
        sums = self._ask(GATE, round, weights, model)
        if not sums:
            why = "; ".join(f"{name}: {reason}" for name, reason in self._why.items())
            words = [f"no site released its sums, so nothing is known, and a trial decides ({why})"]
            return {"outcome": "inconclusive", "pooled": "inconclusive", "words": words, "released": []}
        made = self._releases.decision(sums)
        silent = [site.name for site in self.plan.sites if site.name not in sums]
        words = [
            *made.words,
            *(f"{name}: inconclusive, it released no sums ({self._why.get(name, '')})" for name in silent),
        ]
        if self.plan.experiment.data.from_swaps:
            words.append(NEVER_PASSES)
        outcome = "inconclusive" if silent and made.outcome == "pass" else made.outcome
        return {"outcome": outcome, "pooled": made.pooled.outcome, "words": words, "released": list(sums)}

    @property
    def _releases(self) -> Any:
        return releases_of(self.plan)

    @property
    def requested(self) -> list[str]:
        """The kinds of sums that sites were asked for; one that did not arrive may have left a site."""
        kinds = release_charges(self.plan, self.plan.experiment.measures)
        return [kind for kind in kinds if kind != QUALITY or self.handshake.noised or self._sums[kind]]

    def _ask(
        self, kind: str, round: int, weights: Weights | None = None, model: Path | None = None
    ) -> dict[str, list[float]]:
        """The sums of a kind: those that are known, and those of sites that answer now."""
        parts: dict[str, Any] = {}
        if weights is not None and model is not None:
            parts = {
                "weights": weights[: self.plan.sent].astype(np.float32),
                "model": hashlib.sha256(model.read_bytes()).hexdigest().encode(),
            }
        content = wire.pack(Label(kind, self.plan.run, round), parts)
        known, asking = self._sums[kind], True
        for _ in range(TRIES):
            missing = [site.name for site in self.handshake.calls.sites() if site.name not in known]
            if kind == QUALITY and missing:
                self.handshake.greet_missing()  # only a site's facts say whether it releases such sums
                missing = [name for name in missing if name in self.handshake.noised]
            if not missing or not asking:
                break
            found, why = self.handshake.ask_and_greet(
                dict.fromkeys(missing, content), round, self._reader(kind), "facts"
            )
            known |= found
            self._why = why
            if found:
                if kind == QUALITY:
                    self._measures |= {name: self.handshake.noised[name] for name in found}
                written = {**self._sums, MEASURES: self._measures}
                write_atomic(self.path, json.dumps(written, indent=1) + "\n", private=True)
            asking = any(reason in (protocol.SAY_HELLO, protocol.NOT_CONFIRMED) for reason in why.values())
        return {site.name: known[site.name] for site in self.plan.sites if site.name in known}

    _why: Mapping[str, str] = {}

    def _reader(self, kind: str) -> Any:
        def read(content: bytes, label: Label) -> list[float]:
            sums = protocol.read_facts(content, label).get("sums")
            measures = self.handshake.noised.get(self.plan.site_of[label.sender].name, ())
            release = release_of(self.plan, kind, measures)
            if release is None or not release.is_plausible(sums):
                raise Refused(f"its answer is not a sum of kind {kind!r}")
            assert isinstance(sums, list)
            return [float(one) for one in sums]

        return read

    def _notes(self, sums: dict[str, list[float]]) -> list[str]:
        """What the released swaps say; an error if noise hides the second position from all sites."""
        notes = []
        for site in self.plan.sites:
            found = self._releases.estimate(sums, site.name)
            by = found.propensities
            known = [place for place in np.flatnonzero(by.known).tolist() if place]
            if not known:
                raise ValueError(
                    "data.propensities: the noise hides the clicks in swapped pairs, so no propensity is known below "
                    "position 1; use more people or searches with logged swaps, or a smaller privacy.release_noise"
                )
            each = [f"{by.slope[k]:.2f} at {k + 1} ({by.low[k]:.2f} to {by.high[k]:.2f})" for k in known]
            alike = f"own weight {found.own_share:.0%}, homogeneity p = {found.p:.2g}"
            notes.append(f"propensities at {site.name} ({by.how}; {alike}): {', '.join(each)}")
        return notes
