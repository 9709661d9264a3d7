"""Run a smoke with the lowest versions that pyproject.toml allows, and record that it passed: `make lowest`.

Needs nothing but Python. The lowest of everything but the tools of `dev` are put together into one environment, where
`tests/test_smoke.py` runs. The tools are not part of what is shipped: their lowest check style and types against the
newest of the rest, in a second one.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "lowest.txt"
FOLDER = ROOT / ".venv-lowest"
HEADER = "# Written by `make lowest`: the lowest versions that pyproject.toml allows, which ran on the day below.\n"


@dataclass(frozen=True)
class Dependency:
    """One requirement of pyproject.toml."""

    name: str
    text: str  # as it is written
    extra: str  # where it stands: an extra, "build", or "" for what is always needed

    @property
    def bounds(self) -> dict[str, str]:
        """Versions by what is said about them, as in {">=": "1.6", "<": "2"}."""
        return dict(re.findall(r"(>=|<=|==|!=|~=|<|>)\s*([\w.*]+)", self.text.partition(";")[0]))

    @property
    def lowest(self) -> str:
        if ">=" not in self.bounds:
            raise ValueError(f"pyproject.toml: {self.text!r} has no lowest version; write {self.name}>=VERSION")
        return self.bounds[">="]


def dependencies(text: str) -> list[Dependency]:
    """All that the text of a pyproject.toml names, without its own extras."""
    table = tomllib.loads(text)
    project = table["project"]
    places = {
        "": project["dependencies"],
        **project["optional-dependencies"],
        "build": table["build-system"]["requires"],
    }
    named = [
        Dependency(re.split(r"[^\w.-]", written, maxsplit=1)[0], written, extra)
        for extra, requirements in places.items()
        for written in requirements
    ]
    return [one for one in named if one.name != project["name"]]


def fingerprint(text: str) -> str:
    """Of all that decides which versions are installed; other changes of pyproject.toml do not count."""
    table = tomllib.loads(text)
    project = table["project"]
    said = [
        table["build-system"],
        *(project[key] for key in ("requires-python", "dependencies", "optional-dependencies")),
    ]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


def recorded() -> dict[str, str]:
    """What the last run of `make lowest` wrote: hash, date, python, and the version of every dependency."""
    lines = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
    return dict(line.split() for line in lines if not line.startswith("#"))


def python_of(project: dict[str, str]) -> str:
    """The lowest Python that is allowed: old packages have no wheels for newer ones."""
    wanted = project["requires-python"].removeprefix(">=")
    if wanted == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(f"python{wanted}")
    if found is None:
        raise SystemExit(
            f"make lowest needs Python {wanted}, the lowest allowed; name one with: make lowest PYTHON=..."
        )
    return found


def environment(folder: Path, python: str, requirements: list[str]) -> Path:
    """An environment with these and with fedrank as shipped; its Python. Made anew unless it was made for them."""
    asked, text = folder / "requirements.txt", "\n".join(requirements) + "\n"
    if not asked.exists() or asked.read_text(encoding="utf-8") != text:
        shutil.rmtree(folder, ignore_errors=True)
        call(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    install = (inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(*install, "--upgrade", "pip")
    asked.write_text(text, encoding="utf-8")
    call(*install, "--requirement", asked)
    call(*install, "--no-deps", "--no-build-isolation", "--force-reinstall", ROOT)
    call(inside, "-m", "pip", "check", "--disable-pip-version-check")
    return inside


def versions(python: Path, names: list[str]) -> dict[str, str]:
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split(), strict=True))


def call(*command: str | Path) -> None:
    print("+", *command, flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise SystemExit("make lowest: failed; raise the bound in pyproject.toml of what does not work to what does")


def main() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    now, last = fingerprint(text), recorded()
    if sys.argv[1:] == ["--recorded"]:
        if last.get("hash") != now:
            raise SystemExit("lowest versions: pyproject.toml has changed since they were run")
        print(
            f"lowest versions: run on {last['date']} with Python {last['python']}, and pyproject.toml has not changed"
        )
        return

    needed, python = dependencies(text), python_of(tomllib.loads(text)["project"])
    tools = [one for one in needed if one.extra == "dev"]
    rest = [one for one in needed if one.extra != "dev"]
    lowest = environment(FOLDER, python, [f"{one.name}=={one.lowest}" for one in rest])
    call(
        "env",
        f"FEDRANK_CACHE={FOLDER / 'cache'}",
        lowest,
        "-m",
        "pytest",
        "-n",
        "2",
        "-m",
        "smoke",
        "tests/test_smoke.py",
    )
    ran = versions(lowest, [one.name for one in rest])

    pinned = [f"{one.name}=={one.lowest}" for one in tools]
    checks = environment(FOLDER / "tools", python, [*(one.text for one in rest), *pinned])
    for check in (["ruff", "format", "--check", "."], ["ruff", "check", "."], ["mypy"]):
        call(checks, "-m", *check)
    ran |= versions(checks, [one.name for one in tools])

    used = subprocess.run([lowest, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    rows = {"hash": now, "date": datetime.now(UTC).date().isoformat(), "python": used, **ran}
    RECORD.write_text(HEADER + "".join(f"{name} {value}\n" for name, value in rows.items()), encoding="utf-8")
    print(f"lowest versions: all ran; {RECORD.relative_to(ROOT)} says so")


if __name__ == "__main__":
    main()
