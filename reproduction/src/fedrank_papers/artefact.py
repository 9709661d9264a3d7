"""`make artefact`: tables and figures of fedrank's own findings as a LaTeX document, from run folders.

    python -m fedrank_papers.artefact --runs runs --out artefact

Finished runs are used as they are; missing ones are run first, in quick forms.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedrank.experiments.report.analysis import Analysis, analyse
from fedrank.experiments.report.formatting import heading, interval, signed
from fedrank.experiments.report.sections import Table
from fedrank.experiments.report.tables import tested_over
from fedrank.experiments.report.write import escaped, latex, write_figures
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from fedrank.files import read_text, write_atomic
from fedrank_papers.items import ask
from fedrank_papers.silo_noise import distinguish, make_neighbours

ENGINES = {"tectonic": ["tectonic"], "pdflatex": ["pdflatex", "-interaction=nonstopmode", "-halt-on-error"]}
# Under which another x86-64 processor is imitated, as in `make bits`.
PROCESSORS: Mapping[str, Mapping[str, str]] = {
    "this processor": {},
    "OpenBLAS for Prescott": {"OPENBLAS_CORETYPE": "Prescott"},
    "Numba for generic x86-64": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
    "one thread": {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
}
SHORT = ["rounds=50", "seeds=[1]", "data.folds=[1]"]  # of quickstart: enough for every kind of loop
RESULTS = ("rounds.csv", "queries.csv", "model.json")  # without what depends on the clock


@dataclass(frozen=True)
class Finding:
    """A finding, and the experiment that shows it."""

    key: str
    title: str
    text: str
    experiment: str


FINDINGS = (
    Finding(
        "streams",
        "One random stream",
        "The published code of FOLtR-ES draws noise, queries and clicks of a client from one stream. Rewards differ "
        "from those of independent streams, which the paper describes.",
        "thesis/mq2008-foltr-es",
    ),
    Finding(
        "features",
        "Raw against normalised features",
        "Published results compare FOLtR-ES on raw with PDGD on normalised features. Here both methods have both.",
        "thesis/foltr-es-raw-features",
    ),
    Finding(
        "few-rounds",
        "Few rounds against many under the same ε",
        "Each of 1,000 persons takes part once, so ε = 1 at δ = 1e-5 covers 4 rounds as well as 100. Privacy noise "
        "comes from the secure source of the system, so values differ from run to run.",
        "artefact/few-rounds",
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write tables and figures of fedrank's own findings as LaTeX.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="Folder of the results.")
    parser.add_argument("--out", type=Path, default=Path("artefact"), help="Folder to write to.")
    asked = parser.parse_args(arguments)
    write_artefact(asked.runs, asked.out)
    print(compile_artefact(asked.out))


def write_artefact(runs: Path, out: Path) -> Path:
    """Write artefact.tex with its tables and figures, and README.md; runs what is missing. Returns the document."""
    parts = [_bits(runs, out), _noise(runs, out), *(_experiment(finding, runs, out) for finding in FINDINGS)]
    write_atomic(out / "artefact.tex", DOCUMENT.replace("CONTENT", "\n".join(parts)))
    write_atomic(
        out / "README.md", resources.files("fedrank_papers").joinpath("artefact.md").read_text(encoding="utf-8")
    )
    return out / "artefact.tex"


def compile_artefact(out: Path) -> str:
    """Compile the document if TeX is installed; returns a sentence about the result."""
    name = next((name for name in ENGINES if shutil.which(name)), None)
    if name is None:
        return (
            f"{out / 'artefact.tex'} was written, but not compiled: neither {' nor '.join(ENGINES)} was found; install "
            "one, for example with apt-get install texlive-latex-recommended"
        )
    for _ in range(1 if name == "tectonic" else 2):  # the second run reads the labels of the first
        done = subprocess.run([*ENGINES[name], "artefact.tex"], cwd=out, capture_output=True, check=False)
        if done.returncode:
            end = done.stdout[-2000:].decode(errors="replace")
            raise RuntimeError(f"{name} could not compile {out / 'artefact.tex'}: {end}")
    return f"{out / 'artefact.pdf'} was compiled with {name}"


def _experiment(finding: Finding, runs: Path, out: Path) -> str:
    """Run an experiment if necessary, and write its claims, final values and curves."""
    if finding.experiment.startswith("artefact/"):
        grid, label = read_spec(finding.experiment), finding.experiment
    else:
        grid, label = ask(finding.experiment, [], True, runs)
    if failed := run_experiment(grid, label, runs).failed:
        raise RuntimeError(f"{len(failed)} runs of {label} failed; fedrank report {runs / label} says why")
    [analysis] = analyse(load_runs(runs / label))
    write_figures([analysis], out / finding.key)
    write_atomic(out / finding.key / "claims.tex", latex(claims(analysis), finding.title, f"{finding.key}-claims"))
    final = out / finding.key / "final.tex"
    write_atomic(final, read_text(final).replace(r"\label{tab:final}", rf"\label{{tab:{finding.key}-final}}"))
    drawn = sorted((out / finding.key).glob("curves-*.pdf"))
    picture = f"{finding.key}/{drawn[0].name}" if drawn else ""
    source = f"{finding.text} Runs: {label}, {len(analysis.runs.finished)} runs."
    return _part(finding.title, source, [f"{finding.key}/claims", f"{finding.key}/final"], picture)


def claims(analysis: Analysis) -> Table:
    """Claims with their intervals and verdicts."""
    rows = []
    for claim in analysis.claims:
        column, found = claim.column, claim.contrast
        shown = signed(column, found.difference), interval(column, claim.low, claim.high), tested_over(claim)
        rows.append([claim.says, heading(column), *shown, claim.verdict])
    note = "Intervals at the level 0.05 that the claims of the experiment share (Holm)."
    return Table(["claim", "measure", "difference", "interval", "tested over", "verdict"], rows, 2, [note])


def _bits(runs: Path, out: Path) -> str:
    """The same short experiment as on other processors, and digests of its results."""
    rows = []
    for name, settings in PROCESSORS.items():
        folder = runs / "artefact" / "bits" / name.replace(" ", "-")
        changes = [word for change in SHORT for word in ("--set", change)]
        command = [
            sys.executable,
            "-m",
            "fedrank",
            "run",
            "quickstart",
            *changes,
            "--out",
            str(folder),
            "--workers",
            "1",
        ]
        subprocess.run(command, env=os.environ | settings, check=True, capture_output=True)
        rows.append([name, *digest(folder)])
    same = len({row[-1] for row in rows}) == 1
    verdict = "All digests are equal." if same else "Digests differ: results depend on the processor."
    note = f"SHA-256 of {', '.join(RESULTS)} of all runs, first 16 digits. {verdict}"
    table = Table(["instructions", "files", "SHA-256"], rows, 1, [note])
    write_atomic(out / "bits" / "digests.tex", latex(table, "The same bits with other instructions", "bits"))
    text = f"The experiment quickstart ({', '.join(SHORT)}), while libraries are restricted as on other processors."
    return _part("The same bits everywhere", text, ["bits/digests"])


def digest(folder: Path) -> tuple[str, str]:
    """The number of result files below a folder, and the first digits of their common digest."""
    files = sorted(file for file in folder.rglob("*") if file.name in RESULTS)
    if not files:
        raise FileNotFoundError(f"{folder} has none of {', '.join(RESULTS)}; run the experiment first")
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(folder).as_posix()}\n".encode())
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return str(len(files)), whole.hexdigest()[:16]


def _noise(runs: Path, out: Path) -> str:
    """How often an attacker distinguishes two documents that differ in one word; stored beside the runs."""
    file = runs / "artefact" / "published-noise.json"
    if not file.exists():
        pairs = make_neighbours()
        found = [one for noise in ("paper", "lookup", "sketch") for one in distinguish(pairs, noise, [1])]
        write_atomic(file, json.dumps([asdict(one) for one in found], indent=1) + "\n")
    rows = [_noise_row(row) for row in json.loads(read_text(file))]
    note = "One answered query. Bound: the largest success rate that the guarantee allows; 1 where there is none."
    table = Table(["noise", "success rate", "bound", "pairs"], rows, 1, [note])
    write_atomic(out / "noise" / "noise.tex", latex(table, "Two documents that differ in one word", "noise"))
    text = (
        "CS-F-LTR adds one draw of noise to all answers of a query, so differences between rows are exact. An attacker "
        "tells two documents that differ in one word apart; noise for each answer, or in the sketch, has a guarantee."
    )
    return _part("The published noise protects nothing", text, ["noise/noise"])


def _noise_row(row: Mapping[str, Any]) -> list[str]:
    names = {"paper": "as published, ε = 0.5", "lookup": "for each answer, ε = 0.5", "sketch": "in the sketch, σ = 1"}
    return [names[row["setting"]], f"{row['right']:.3f}", f"{row['bound']:.3f}", f"{row['cases']:,}"]


def _part(title: str, text: str, tables: Sequence[str], picture: str = "") -> str:
    """A section of the document."""
    lines = [rf"\section{{{escaped(title)}}}", escaped(text), *(rf"\input{{{name}}}" for name in tables)]
    if picture:
        lines += [r"\begin{figure}[!htbp]", r"  \centering", rf"  \includegraphics[width=.5\linewidth]{{{picture}}}"]
        lines += [rf"  \caption{{{escaped(title)}}}", r"\end{figure}"]
    return "\n".join([*lines, r"\clearpage", ""])


DOCUMENT = r"""\documentclass[a4paper]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{amssymb}
\usepackage{booktabs}
\usepackage{graphicx}
\usepackage[landscape,margin=1.5cm]{geometry}
\setlength{\belowcaptionskip}{4pt}
\makeatletter
\renewcommand{\fps@table}{!htbp}
\makeatother
\let\plaintabular\tabular
\renewcommand{\tabular}{\footnotesize\plaintabular}
\title{Findings of fedrank}
\author{}
\date{}
\begin{document}
\maketitle
CONTENT
\end{document}
"""


if __name__ == "__main__":
    main()
