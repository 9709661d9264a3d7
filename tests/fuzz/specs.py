"""Every key of every built-in spec meets values of wrong types, ranges and nesting, in the file and by `--set`.

`python -m tests.fuzz.specs [--share 1.0] [SPEC ...]`; `make chaos` does it. A spec is only read, and nothing runs. It
is accepted, or refused by an error that names the key; any other exception, and a hang, is a fault.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.source import builtin_specs, read_spec
from fedrank.toml import flat, parse_toml, put, write_toml, write_value

SEED = 16
SECONDS = 10.0  # for one spec
VALUES: tuple[Any, ...] = (
    "", "x", "module:Class", "../x", -1, 0, 1, 99999999999999999999, -99999999999999999999, 1e308, -0.5, float("nan"),
    float("inf"), True, False, [], [[]], [1, "x"], [-1], ["x", "x"], [float("nan")], [{}], {}, {"x": 1}, {"name": 1},
    {"name": "x"}, {"name": ["mean"]}, {"name": {"name": "x"}}, {"a": {"b": {"c": [1]}}}, [[1], [1]], [[0.5] * 3] * 3,
    "1e9", "nan", "-1", "\x00", "ß" * 300, 10**400, 2026, 1979,
)  # fmt: skip
ODD_KEYS = (
    "x",
    "a.b",
    "name",
    "",
    "'",
    "1",
    "..",
    "learner.learner.name",
    "vary.x",
    "variants.x.y",
    "claims",
    "seeds.x",
)


class Mutation(NamedTuple):
    """One key of a spec with another value."""

    spec: str
    key: str
    value: Any
    by: str  # "file" or "set"

    def __str__(self) -> str:
        value = repr(self.value)
        return f"{self.spec}, {self.by}: {self.key} = {value if len(value) < 60 else value[:57] + '...'}"


class TooSlow(BaseException):
    """A spec took longer than any may."""


def spec_text(name: str) -> str:
    return builtin_specs()[name].read_text(encoding="utf-8")


def mutations(names: Sequence[str]) -> Iterator[Mutation]:
    """All of them: each key, and each table, with each value."""
    for name in names:
        tables = parse_toml(spec_text(name))
        keys = dict.fromkeys([*flat(tables), *(key for key in _tables(tables)), *ODD_KEYS])
        for key in keys:
            for value in VALUES:
                for by in ("file", "set"):
                    yield Mutation(name, key, value, by)


def _tables(tables: dict[str, Any], before: str = "") -> Iterator[str]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield f"{before}{key}"
            yield from _tables(value, f"{before}{key}.")


def _keys(value: Any) -> list[str]:
    """Keys inside a value: an error may name the innermost."""
    if isinstance(value, dict):
        return [*value, *(key for one in value.values() for key in _keys(one))]
    return [key for one in value for key in _keys(one)] if isinstance(value, list) else []


def outcome(mutation: Mutation, folder: Path) -> str:
    """`accepted`, `refused`, or what is wrong."""
    path = folder / "mutated.toml"
    try:
        if mutation.by == "set":
            source, overrides = mutation.spec, [f"{mutation.key}={write_value(mutation.value)}"]
        else:
            tables = parse_toml(spec_text(mutation.spec))
            put(tables, mutation.key.split("."), mutation.value)
            path.write_text(write_toml(tables), encoding="utf-8")
            source, overrides = str(path), []
    except ValueError:  # this mutation cannot be written
        return "refused"
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        read_spec(source, overrides, quick=mutation.key.startswith("quick."), trust=False)
    except ValueError as problem:
        said = str(problem)
        if mutation.by == "file" and not isinstance(problem, SpecError):
            return f"no SpecError: {type(problem).__name__}: {said[:200]}"
        # The mistake may be what the value does to another key of the spec.
        keys = *mutation.key.split("."), *_keys(mutation.value), *parse_toml(spec_text(mutation.spec))
        if not any(part in said for part in keys):
            return f"the key is not named: {said[:300]}"
        return "refused"
    except TooSlow:
        return f"hang: over {SECONDS:.0f} s"
    except BaseException as problem:
        return f"crash: {type(problem).__name__}: {str(problem)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "accepted"


def faults(some: Sequence[Mutation], told: dict[str, int] | None = None) -> list[str]:
    """What went wrong, a line each."""

    def too_slow(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, too_slow)
    found = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for mutation in some:
                how = outcome(mutation, Path(folder))
                if how not in ("accepted", "refused"):
                    found.append(f"{mutation}: {how}")
                if told is not None:
                    told[how.split(":")[0]] = told.get(how.split(":")[0], 0) + 1
    finally:
        signal.signal(signal.SIGALRM, before)
    return found


def drawn(share: float, names: Sequence[str] = (), seed: int = SEED) -> list[Mutation]:
    """A share of all mutations."""
    rng = np.random.default_rng(seed)
    return [mutation for mutation in mutations(names or list(builtin_specs())) if rng.random() < share]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--share", type=float, default=1.0, help="of all mutations")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("specs", nargs="*", help="names of built-in specs; all if none is named")
    chosen = options.parse_args()
    began, told = time.monotonic(), dict[str, int]()
    some = drawn(chosen.share, chosen.specs, chosen.seed)
    found = faults(some, told)
    print(f"specs: {len(found):,} of {len(some):,} went wrong ({told}); {time.monotonic() - began:.0f} s")
    for line in found[:50]:
        print(f"  {line}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
