"""Differential privacy for the updates of any model that a site sends: clip, noise, a ledger over all jobs.

An observer of a site's update sees one vector per round. So its unit is the site, unless the trainer clipped what each
person contributes (`PersonSum`): nothing that receives only the sum can limit the influence of a person. Privacy has a
price that depends on the number of parameters: `expected_cosine` says beforehand what is left of an update.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedrank.files import read_text
from fedrank.privacy.clip import contributions
from fedrank.privacy.guarantees import Guarantee, Setting, down, noise_for, up
from fedrank.privacy.mechanisms import Gaussian
from fedrank.privacy.noise import rounded_gaussian
from fedrank.privacy.population import Population
from fedrank.toml import parse_toml
from fedrank.value_checks import at_least, at_most, checked, more_than

Arrays = Mapping[str, Any]  # by name: NumPy arrays or PyTorch tensors
T = TypeVar("T")
USEFUL = 0.1  # cosine between the update that arrives and the true one, below which training is hardly possible
LEDGER = "ledger"


class UpdateRefused(ValueError):
    """An update that must not leave, with the reason."""


@dataclass(frozen=True)
class UpdatePrivacy:
    """The settings of a site for the updates that it sends: `filter.toml`."""

    unit: Literal["site", "person"]
    parameters: Annotated[int, at_least(1), at_most(10**9)]  # of the model that is trained
    clip: Annotated[float, more_than(0)]  # maximum norm of an update, or of what one person contributes
    epsilon: Annotated[float, more_than(0), at_most(1000)]  # limit over all jobs
    rounds: Annotated[int, at_least(1), at_most(10**6)]  # number of updates that spend the limit
    delta: Annotated[float, more_than(0), at_most(0.1)] = 1e-6
    sites: Annotated[int, at_least(1), at_most(10**6)] = 1  # of a job, whose updates are averaged
    people: Annotated[int, at_least(1), at_most(10**8)] = 1  # unit "person": maximum number at this site; it is public

    def __post_init__(self) -> None:
        if self.unit == "site" and self.people > 1:
            raise ValueError(f'people: {self.people} applies only to unit = "person"; leave it out')
        if not math.isfinite(self.noise):
            raise ValueError(
                f"epsilon: no noise gives ε = {self.epsilon:g} over {self.rounds:,} rounds; use a larger ε"
            )

    @classmethod
    def read(cls, path: Path) -> UpdatePrivacy:
        """Read `filter.toml`; errors name the key and the remedy."""
        try:
            tables = parse_toml(read_text(path))
            hints = get_type_hints(cls, include_extras=True)
            if unknown := sorted(set(tables) - set(hints)):
                raise ValueError(f"unknown key {unknown[0]!r:.80}; the keys are {', '.join(hints)}")
            values = {name: checked(hints[name], value, name) for name, value in tables.items()}
            if missing := [one.name for one in fields(cls) if one.default is MISSING and one.name not in values]:
                raise ValueError(f"{missing[0]}: is missing")
            return cls(**values)
        except ValueError as problem:
            raise ValueError(f"{path}: {problem}") from None

    def mechanism(self, noise: float) -> Gaussian:
        unit: Literal["client", "person"] = "client" if self.unit == "site" else "person"
        return Gaussian(clip=self.clip, noise=noise, unit=unit, people=self.people)

    def guarantee(self, noise: float) -> Guarantee:
        """The cost of one update, against every observer."""
        nothing: Any = None
        setting = Setting(self.sites, self.parameters, 1.0, (1,), nothing, nothing)
        return self.mechanism(noise).guarantees(setting)[0]

    @cached_property
    def noise(self) -> float:
        """Standard deviation in multiples of clip with which all rounds together cost at most epsilon."""
        return noise_for(self.guarantee, self.rounds, self.delta, self.epsilon)

    @property
    def expected_cosine(self) -> float:
        """Cosine of the mean that the server computes with the true mean, at best: every site sends the same update.

        The norm of the true mean is then at most clip, or as much for the mean over people.
        """
        deviation = self.noise / (self.people * math.sqrt(self.sites))
        return 1 / math.sqrt(1 + self.parameters * deviation**2)

    def about(self) -> list[str]:
        """What these settings promise, and what they leave of an update."""
        one = self.guarantee(self.noise)
        cosine, single = self.expected_cosine, 1 / math.sqrt(1 + self.parameters * (self.noise / self.people) ** 2)
        what = "the whole site" if self.unit == "site" else "each person, if the trainer uses PersonSum"
        return [
            f"protects {what}: ε = {up(one.epsilon(1, self.delta))} per update and {up(self.epsilon)} after "
            f"{self.rounds:,} updates (δ = {self.delta:g}), over all jobs, against every observer",
            f"noise: standard deviation {self.noise * self.clip:.4g} on each of {self.parameters:,} parameters, with "
            f"updates clipped to a norm of {self.clip:g}",
            f"expected cosine with the true update: at most {single:.4f} for one site, {cosine:.4f} for the mean of "
            f"{self.sites} (signal-to-noise ratio {cosine / math.sqrt(max(1 - cosine**2, 1e-300)):.4f})",
        ]

    def check_useful(self) -> None:
        """Raise an error if noise leaves almost nothing of an update."""
        if self.expected_cosine < USEFUL:
            raise ValueError(
                f"the expected cosine with the true update is {self.expected_cosine:.4f}, below {USEFUL}: the model "
                "would learn from noise; use fewer parameters (train a part of the model), more sites or people, a "
                "larger ε, or fewer rounds"
            )


class PersonSum:
    """Adds up the updates of people, each clipped as a whole, so no person moves the sum by more than the clip.

    >>> total = PersonSum(clip=1.0, people=100)
    >>> total.add({"w": np.array([3.0, 4.0])})
    >>> total.update()["w"].round(3).tolist()
    [0.6, 0.8]
    """

    def __init__(self, clip: float, people: int) -> None:
        self.mechanism = Gaussian(clip=clip, noise=1.0, unit="person", people=people)
        self.step = self.mechanism.step(1)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._total: NDArray[np.int64] | None = None
        self._added = 0

    def add(self, update: Arrays) -> None:
        """Add the update of one person: everything that the person changes, relative to the received model."""
        arrays = {name: as_array(name, value) for name, value in update.items()}
        shapes = {name: value.shape for name, value in arrays.items()}
        if self._total is not None and shapes != self._shapes:
            raise ValueError("the updates of two people have different names or shapes; send the whole model of each")
        if self._added == self.mechanism.people:
            raise ValueError(
                f"people = {self.mechanism.people} is the maximum, and this is one more; choose a larger number, which "
                "is public, or leave people out"
            )
        flat = np.concatenate([value.ravel() for value in arrays.values()])[None].astype(np.float32)
        steps = contributions(flat, np.ones(1), self.mechanism.clip, 2, self.step)[0]
        self._total = steps if self._total is None else self._total + steps
        self._shapes, self._added = shapes, self._added + 1

    def update(self) -> dict[str, NDArray[np.float64]]:
        """The sum, by name; exact on the grid of the noise."""
        if self._total is None:
            raise ValueError("no person was added; add at least one, with an update of zeros if need be")
        return split(self._total * self.step, self._shapes)

    @property
    def mark(self) -> dict[str, float]:
        """What the update's metadata must contain under `PrivateUpdates.MARK`."""
        return {"clip": self.mechanism.clip, "people": self.mechanism.people}


def person_sum(
    weights: Arrays, people: Iterable[T], train: Callable[[dict[str, Any], T], Arrays], clip: float, most: int
) -> PersonSum:
    """Train from the same weights for every person alone (`train(copy of weights, person)`), and add up the changes."""
    total = PersonSum(clip, most)
    start = {name: as_array(name, value) for name, value in weights.items()}
    for person in people:
        copies = {name: value.clone() if hasattr(value, "clone") else np.copy(value) for name, value in weights.items()}
        trained = train(copies, person)
        total.add({name: as_array(name, trained[name]) - start[name] for name in start})
    return total


@dataclass(frozen=True)
class PrivateUpdates:
    """The updates of one site: each is charged to its ledger before noise is added and it leaves."""

    settings: UpdatePrivacy
    folder: Path  # of the ledger, over all jobs
    MARK: ClassVar[str] = "fedrank-person"  # metadata of a sum over people: its clip and maximum number of people

    @classmethod
    def open(cls, path: Path) -> PrivateUpdates:
        """By the settings in `filter.toml`; the ledger is in the same folder."""
        return cls(UpdatePrivacy.read(path), Path(path).absolute().parent)

    @cached_property
    def population(self) -> Population:
        return Population.open(self.folder / LEDGER, 1, self.settings.delta, self.settings.epsilon)

    @property
    def left(self) -> str:
        """ε that is left, in words."""
        spent = max(self.population.spent().values(), default=0.0)
        return (
            f"ε = {up(spent)} spent, {down(max(self.settings.epsilon - spent, 0.0))} left of {self.settings.epsilon:g}"
        )

    def protect(self, update: Arrays, job: str, mark: Any = None) -> dict[str, NDArray[np.float32]]:
        """Clip an update, charge it and add noise; `mark` is the metadata `MARK` of a sum over people."""
        settings = self.settings
        mechanism = settings.mechanism(settings.noise)
        floats = {name: value for name, value in update.items() if is_float(as_array(name, value))}
        shapes = {name: as_array(name, value).shape for name, value in update.items()}
        flat = np.concatenate([as_array(name, value).ravel() for name, value in floats.items()] or [np.zeros(0)])
        if flat.size != settings.parameters:
            raise UpdateRefused(
                f"the update has {flat.size:,} parameters, but parameters = {settings.parameters:,} in filter.toml"
            )
        step = mechanism.step(1)
        if settings.unit == "site":
            steps = contributions(flat[None].astype(np.float32), np.ones(1), settings.clip, 2, step)[0]
        else:
            steps = self._steps_of_people(flat.astype(np.float64), mark, step)
        # The charge is on disk before noise is drawn: an update that is lost on its way has been paid for.
        run, key = hashlib.sha256(job.encode()).hexdigest()[:32], secrets.token_hex(16)
        refusal = self.population.release(run, key, [settings.guarantee(settings.noise)], 1, lambda: None)
        if refusal is not None:
            raise UpdateRefused(refusal)
        drawn = rounded_gaussian(settings.noise * settings.clip / step).draw(steps.shape, mechanism.source())
        noised = ((steps + drawn) * (step / settings.people)).astype(np.float32)
        found = split(noised, {name: shapes[name] for name in floats})
        # Counters and other integers are not covered by noise, so their change is sent as 0.
        return {name: found[name] if name in found else np.zeros(shapes[name], np.float32) for name in update}

    def _steps_of_people(self, flat: NDArray[np.float64], mark: Any, step: float) -> NDArray[np.int64]:
        settings = self.settings
        if mark != {"clip": settings.clip, "people": settings.people}:
            raise UpdateRefused(
                "the update is not marked as a sum over people with the clip and the number of people of filter.toml "
                f"({mark!r:.80}); let the trainer add up its people with PersonSum"
            )
        norm = float(np.linalg.norm(flat))
        if not norm <= 1.001 * settings.people * (settings.clip + step * math.sqrt(flat.size)):
            raise UpdateRefused("the update is longer than all people together can make it, so it was not clipped")
        return np.rint(flat / step).astype(np.int64)


def as_array(name: str, value: Any) -> NDArray[Any]:
    """A NumPy array of an array or tensor."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray | np.generic | float | int) or np.asarray(value).dtype.kind not in "fiub":
        raise UpdateRefused(f"{name!r:.80} is not an array of numbers")
    return np.asarray(value)


def is_float(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f"


def split(flat: NDArray[Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """Arrays of these shapes from one vector."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(flat, ends[:-1]) if len(ends) else []
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
