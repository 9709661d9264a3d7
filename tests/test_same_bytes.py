"""The same bytes on every processor: this one is made to look like others, and nothing may change.

What a processor can do reaches results through four doors: the code that Numba compiles, the system's mathematical
library, the matrix library, and NumPy's own loops. Each is told that it runs on a lesser machine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

WIDE = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4"
FACES = {
    "a processor of 2013": {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx2,+fma,+avx,+sse4.2,+popcnt,+bmi,+bmi2,+f16c,+movbe,+lzcnt",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": WIDE,
    },
    "any processor of 64 bits": {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "OPENBLAS_CORETYPE": "Nehalem",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX,-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ",
        "NPY_DISABLE_CPU_FEATURES": f"{WIDE} AVX2 FMA3 F16C AVX XOP FMA4 X86_V3",
    },
}
# Everything that a processor could bend, and an experiment of each kind whose parts are ours.
WORK = (
    "^(learner|rule|server|attack|unlearn|data|mechanism .* OnClient)|^quickstart|^aol4foltr/fig-5 quick"
    "|few-queries quick exact-1.*=5|^live/cranfield quick federated"
)


def require(face: str) -> None:
    """Skip what this machine cannot pretend to be."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip(f"{platform.machine()} cannot look like another x86-64 processor")
    flags = Path("/proc/cpuinfo")
    if face == "a processor of 2013" and not (flags.exists() and {"avx2", "fma"} <= set(flags.read_text().split())):
        pytest.skip("this processor has no AVX2 and FMA, or does not say so")


def digests(face: dict[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"FEDRANK_DATA"}} | face
    done = subprocess.run(
        [sys.executable, "-m", "tests.digests", "--only", WORK, "--quick"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    return digests({})


@pytest.mark.parametrize("face", FACES)
def test_every_result_is_the_same_to_the_last_bit(face, here):
    require(face)
    there = digests(FACES[face])
    assert len(here) > 70
    assert [name for name in here if here[name] != there[name]] == []


RUN = ["run", "quickstart", "--workers", "1", "--set", "rounds=40", "--set", "data.folds=[1]", "--set", "seeds=[1]"]


def test_a_whole_run_leaves_the_same_files(tmp_path):
    face = "any processor of 64 bits"
    require(face)
    for name, settings in (("here", {}), ("there", FACES[face])):
        subprocess.run(
            [sys.executable, "-m", "fedrank", *RUN, "--out", str(tmp_path / name)],
            env=os.environ | settings,
            check=True,
            capture_output=True,
        )
    files = [file for kind in ("rounds.csv", "model.json") for file in (tmp_path / "here").rglob(kind)]
    assert len(files) == 8
    for file in files:
        assert file.read_bytes() == (tmp_path / "there" / file.relative_to(tmp_path / "here")).read_bytes(), file
    facts = [json.loads(next((tmp_path / name).rglob("run.json")).read_text()) for name in ("here", "there")]
    assert [one["compiled_for"].split(", ")[0] for one in facts] == [platform.machine().lower()] * 2
    assert facts[1]["compiled_for"].endswith(", generic")
