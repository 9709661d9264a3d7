"""Differential privacy for the updates of any model that a site sends: clip, noise, a ledger over all jobs.

An observer of a site's update sees one vector per round. So its unit is the site, unless the trainer clipped what each
person contributes (`PersonSum`): nothing that receives only the sum can limit the influence of a person. Privacy has a
price that depends on the number of parameters: `expected_cosine` says beforehand what is left of an update.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedrank.files import parse_json, read_text, write_atomic
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
LEDGER, COUNT = "ledger", "updates.json"  # the ledger, and how many updates it must have at least
LARGEST = 10**9  # parameters


class UpdateRefused(ValueError):
    """An update that must not leave, with the reason."""


@dataclass(frozen=True)
class UpdatePrivacy:
    """The settings of a site for the updates that it sends: `filter.toml`."""

    unit: Literal["site", "person"]
    shapes: dict[str, tuple[int, ...]]  # by name: the arrays that may leave; nothing else does
    clip: Annotated[float, more_than(1e-9), at_most(1e9)]  # maximum norm of an update, or of what one person adds
    epsilon: Annotated[float, more_than(0), at_most(1000)]  # limit over all jobs
    rounds: Annotated[int, at_least(1), at_most(10**6)]  # number of updates that spend the limit
    delta: Annotated[float, more_than(0), at_most(0.1)] = 1e-6
    sites: Annotated[int, at_least(1), at_most(10**6)] = 1  # of a job, whose updates are averaged
    people: Annotated[int, at_least(1), at_most(10**8)] = 1  # unit "person": maximum number at this site; it is public

    def __post_init__(self) -> None:
        for name, shape in self.shapes.items():
            if not isinstance(shape, tuple) or not all(type(one) is int and 0 < one <= LARGEST for one in shape):
                raise ValueError(f"shapes.{name}: {shape!r:.80} cannot be used; give a list of integers above 0")
        if not 0 < self.parameters <= LARGEST:
            raise ValueError(f"shapes: they have {self.parameters:,} parameters; use between 1 and {LARGEST:,}")
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
            found = tables.pop("shapes", None)
            if not isinstance(found, dict):
                raise ValueError("shapes: is missing; write a table such as shapes = { weights = [784, 10] }")
            values: dict[str, Any] = {name: checked(hints[name], value, name) for name, value in tables.items()}
            values["shapes"] = {key: tuple(one) if isinstance(one, list) else one for key, one in found.items()}
            if missing := [one.name for one in fields(cls) if one.default is MISSING and one.name not in values]:
                raise ValueError(f"{missing[0]}: is missing")
            return cls(**values)
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text; save it with this encoding") from None
        except ValueError as problem:
            raise ValueError(f"{path}: {problem}") from None

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

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
        what = "the whole site"
        if self.unit == "person":
            what = "each person at this site, if the trainer uses PersonSum (at several sites, the costs add up)"
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
        arrays = floats_of(update)
        arrays = {name: arrays[name] for name in sorted(arrays)}
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
    """Train from the same weights for every person alone (`train(copy of weights, person)`), and add up the changes.

    `weights` may share the memory of the model that is trained, as `model.state_dict()` of PyTorch does.
    """
    total, start = PersonSum(clip, most), _copies(weights)
    before = floats_of(start)
    for person in people:
        trained = train(_copies(start), person)
        total.add({name: as_array(name, trained[name]) - before[name] for name in before})
    return total


def _copies(arrays: Arrays) -> dict[str, Any]:
    return {
        name: value.detach().clone() if hasattr(value, "detach") else np.copy(value) for name, value in arrays.items()
    }


@dataclass(frozen=True)
class PrivateUpdates:
    """The updates of one site: each is charged to its ledger before noise is added and it leaves."""

    settings: UpdatePrivacy
    folder: Path  # of the ledger, over all jobs
    MARK: ClassVar[str] = "fedrank-person"  # metadata of a sum over people: its clip and maximum number of people

    @classmethod
    def open(cls, path: Path) -> PrivateUpdates:
        """By the settings in `filter.toml`; the ledger is in the same folder."""
        return cls(UpdatePrivacy.read(path), Path(path).resolve().parent)

    @cached_property
    def population(self) -> Population:
        return Population.open(self.folder / LEDGER / "site", 1, self.settings.delta, self.settings.epsilon)

    @property
    def left(self) -> str:
        """ε that is left, in words."""
        spent, limit = max(self.population.spent().values(), default=0.0), self.settings.epsilon
        return f"ε = {up(spent)} spent, {down(max(limit - spent, 0.0))} left of {limit:g}"

    def protect(self, update: Arrays, job: str, mark: Any = None) -> dict[str, NDArray[np.float32]]:
        """Clip an update, charge it and add noise; `mark` is the metadata `MARK` of a sum over people.

        Only the arrays that the settings name leave, so names and shapes carry nothing.
        """
        settings, shapes = self.settings, self.settings.shapes
        arrays = {name: as_array(name, value) for name, value in update.items() if name in shapes}
        wrong = [name for name, shape in shapes.items() if name not in arrays or arrays[name].shape != shape]
        if wrong:
            raise UpdateRefused(f"the update has no array {wrong[0]!r:.80} of the shape in filter.toml")
        if any(value.dtype not in (np.float32, np.float64) for value in arrays.values()):
            raise UpdateRefused("the update has arrays of another type than float32 and float64; convert them")
        flat = np.concatenate([arrays[name].ravel() for name in shapes])
        mechanism = settings.mechanism(settings.noise)
        step = mechanism.step(1)
        if settings.unit == "site":
            steps = contributions(flat[None].astype(np.float32), np.ones(1), settings.clip, 2, step)[0]
        else:
            steps = self._steps_of_people(flat.astype(np.float64), mark, step)
        self._charge(job)
        drawn = rounded_gaussian(settings.noise * settings.clip / step).draw(steps.shape, mechanism.source())
        return split(((steps + drawn) * (step / settings.people)).astype(np.float32), shapes)

    def _charge(self, job: str) -> None:
        """Write the charge to disk before noise is drawn: an update that is lost on its way has been paid for."""
        run, key, count = hashlib.sha256(job.encode()).hexdigest()[:32], secrets.token_hex(16), self.folder / COUNT
        known = parse_json(read_text(count))["updates"] if count.exists() else 0
        made = sum(account.rounds for account in self.population.accounts())
        if type(known) is not int or made < known:
            raise UpdateRefused(f"{known} updates left this site, but its ledger has {made}; restore it from a copy")
        promises = [self.settings.guarantee(self.settings.noise)]
        if (refusal := self.population.release(run, key, promises, 1, lambda: None)) is not None:
            raise UpdateRefused(refusal)
        write_atomic(count, json.dumps({"updates": made + 1}) + "\n", private=True)

    def _steps_of_people(self, flat: NDArray[np.float64], mark: Any, step: float) -> NDArray[np.int64]:
        settings = self.settings
        if mark != {"clip": settings.clip, "people": settings.people}:
            raise UpdateRefused(
                "the update is not marked as a sum over people with the clip and the number of people of filter.toml "
                f"({mark!r:.80}); let the trainer add up its people with PersonSum"
            )
        steps = flat / step
        if not np.isfinite(steps).all() or (steps != np.rint(steps)).any():
            raise UpdateRefused("the update is not on the grid of PersonSum, so its parts were not clipped")
        if np.linalg.norm(flat) > 1.001 * settings.people * (settings.clip + step * math.sqrt(flat.size)):
            raise UpdateRefused("the update is longer than all people together can make it, so it was not clipped")
        return steps.astype(np.int64)


def floats_of(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays of floating-point numbers; counters and other integers of a model do not leave."""
    found = {name: as_array(name, value) for name, value in arrays.items()}
    return {name: value for name, value in found.items() if value.dtype.kind == "f"}


def as_array(name: str, value: Any) -> NDArray[Any]:
    """A NumPy array of an array or tensor."""
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu().numpy()
        except TypeError as problem:  # bfloat16, or a sparse tensor
            raise UpdateRefused(f"{name!r:.80} cannot be read: {problem!s:.200}; convert it to float32") from None
    if not isinstance(value, np.ndarray | np.generic | float | int) or np.asarray(value).dtype.kind not in "fiub":
        raise UpdateRefused(f"{name!r:.80} is not an array of numbers")
    return np.asarray(value)


def split(flat: NDArray[Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """Arrays of these shapes from one vector."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(flat, ends[:-1]) if len(ends) else []
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
