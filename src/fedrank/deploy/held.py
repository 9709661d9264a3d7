"""What a site holds for a run: the data of its own client, or in a trial those of all clients that it simulates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.deploy.plan import Plan, names_digest
from fedrank.deploy.settings import SiteSettings
from fedrank.run.data import clients_of, load_fold
from fedrank.types import Crowd


@dataclass(frozen=True)
class SiteHolding:
    """A site's clients, with the rows of its ledger that belong to them."""

    crowd: Crowd
    people: int  # rows of the ledger
    ledger_rows: NDArray[np.int64]  # [clients, or people of clients]
    test: RankingData | None = None  # own queries by which a model is judged

    def client(self, id: int) -> Crowd:
        """One of them, alone."""
        return self.crowd.rows(np.flatnonzero(self.crowd.ids == id))

    def rows(self, ids: list[int]) -> NDArray[np.int64]:
        """Rows of the ledger of these clients, or of all people that they have."""
        whose = self.crowd.ids if self.crowd.people is None else self.crowd.people.client
        return np.unique(self.ledger_rows[np.isin(whose, ids)])


def facts_of(settings: SiteSettings, plan: Plan) -> tuple[dict[str, Any], bytes]:
    """What must be the same at all sites, and the digest of this site's own data; none where people are simulated."""
    if plan.simulated:
        data = load_fold(plan.experiment.data, plan.fold).train
        names, features, normalised = data.feature_names, data.features.shape[1], data.normalised
        return {"features": features, "feature_names": names_digest(names), "normalised": normalised}, b""
    from fedrank.deploy.holdings import describe

    found = describe(settings.data)
    facts = {"features": found.features, "feature_names": found.names_digest, "normalised": found.normalised}
    return facts, bytes.fromhex(found.digest)


def open_held(folder: Path, settings: SiteSettings, plan: Plan) -> SiteHolding:
    """The clients of a site; in a trial from the spec, which was written on this machine."""
    if plan.simulated:
        everybody = clients_of(plan.experiment, plan.fold, plan.seed)
        own = np.isin(everybody.ids, plan.party(settings.name).clients)
        crowd = everybody.rows(np.flatnonzero(own))
        count = len(crowd if crowd.people is None else crowd.people)
        return SiteHolding(crowd, count, np.arange(count))
    from fedrank.deploy.holdings import open_holdings

    return open_holdings(folder, settings, plan)
