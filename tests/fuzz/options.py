"""Every numeric option of every command meets numbers that nobody should give.

`python -m tests.fuzz.options [COMMAND ...]`; `make chaos` does it. A command runs in a child process with bounded time
and memory. It may do its work, or refuse in one line; a traceback, a hang or a request for too much memory is a fault.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import pkgutil
import resource
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

import fedrank
from fedrank.cli import app, main
from fedrank.data.letor import letor_lines
from tests.made_up import made_up_data

WHOLE = ("99999999999999999999", "9223372036854775807", "2147483648", "-1", "0")
REAL = ("nan", "inf", "-inf", "1e308", "-1", "0", "1e-308")
SECONDS = 20  # of processor time; of the clock, ten times as many
MEMORY = 2 << 30  # bytes more than the parent has
ENDED = {0, 1, 2}  # exit codes of a command that did its work or refused

SPEC = """\
rounds = 2
data.name = "synthetic-mq2007"
data.folds = [1]
seeds = [1]
clients.count = 3
learner = "pdgd"
"""
NOISY = SPEC + '[mechanism]\nname = "gaussian"\nnoise = 1.0\nclip = 1.0\n'
MODEL = "runs/small/only/fold-1-seed-1"
# A line for each command with a numeric option, in the folder that `world` makes. `{}` is where the option goes if the
# end of the line is not the place.
LINES = {
    "run": "run small.toml --out fresh --workers 1",
    "bench run": "bench run fedavg --short --out benched --quiet",
    "tune": "tune small.toml --over 'learner.rate=[0.1,0.2]' --out tuned",
    "data check": "data check small.toml",
    "privacy show": "privacy show noisy.toml",
    "privacy audit": "privacy audit noisy.toml",
    "privacy plan": "privacy plan noisy.toml --epsilon 1",
    "forget client": f"forget client {MODEL}",
    "model score": f"model score {MODEL} a.txt",
    "model evaluate": f"model evaluate {MODEL} a.txt",
    "model export": f"model export {MODEL} --to onnx --out model.onnx",
    "model estimate": f"model estimate {MODEL} --log built",
    "watch": "watch runs/small",
    "data build": "data build --log synth/log.tsv --docs synth/corpus.jsonl --out again",
    "data redact": "data redact built",
    "data synth": "data synth --out other",
    "data sketch": "data sketch --docs data-a/corpus.jsonl --key shared.key --out c.sketch",
    "trees split": "trees split --data synthetic-categories --by feature:category --out split",
    "trees merge": "trees merge runs/small/only/fold-1-seed-1 runs/small/only/fold-1-seed-1 --on a.txt --out merged",
    "trees grow": "trees grow --silo a.txt --silo b.txt --trees 2 --leaves 4 --out grown",
    "papers run": "papers run quickstart",
    "search find": "search find roof --folder searches",
    "search serve": "search serve --folder searches",
    "search forget": "search forget --folder searches",
    "search status": "search status --folder searches",
    "deploy status": "deploy status --home coordinator",
    "data fetch": "data fetch http://127.0.0.1:9 --out fetched",
    "deploy invite": "deploy invite clinic-z Clinic_Z --home coordinator -- {}",
    "deploy run": "deploy run small.toml --home coordinator",
    "deploy join": "deploy join shared --name clinic-z --fingerprint SHA256:0000 --home clinic-z",
    "deploy approve": "deploy approve clinic-z --fingerprint SHA256:0000 --home coordinator",
    "engine trial plan": f"engine trial plan {MODEL} --against engine --to own --out spring",
}
# These work for hours when nothing is wrong with the number: only a refusal can be tested.
ENDLESS = {
    ("watch", "--port"), ("search serve", "--port"), ("papers run", "--workers"), ("deploy status", "--port"),
}  # fmt: skip


class Case(NamedTuple):
    """One option of one command."""

    command: str
    option: str
    values: int  # how many it takes
    numbers: tuple[str, ...]
    bounded: bool  # whether the option itself says which is the largest
    argument: bool


def numeric() -> list[Case]:
    """Every numeric option of every command."""
    found = []
    for path, command in _commands(typer.main.get_command(app)):
        for parameter in command.params:
            kind = str(getattr(getattr(parameter, "type_descriptor", None), "annotation", ""))
            if "int" in kind or "float" in kind:
                argument = not parameter.opts[0].startswith("-")
                numbers = WHOLE if "int" in kind else REAL
                found.append(
                    Case(
                        " ".join(path), parameter.opts[0], parameter.nargs, numbers, parameter.max is not None, argument
                    )
                )
    return found


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from _commands(one, (*path, name))


def world() -> None:
    """What the commands work on, in the current folder."""
    from tests.silo.test_turns import write_collection

    Path("small.toml").write_text(SPEC)
    Path("noisy.toml").write_text(NOISY)
    for name, seed in (("a", 0), ("b", 1)):
        write_collection(Path(f"data-{name}"), seed, 2)
        Path(f"{name}.txt").write_text("".join(letor_lines(made_up_data(seed=seed, features=46))))
    for line in (
        "run small.toml --workers 1",
        "data synth --out synth --users 20 --documents 400 --days 5",
        "data build --log synth/log.tsv --docs synth/corpus.jsonl --out built",
        "data sketch --docs data-a/corpus.jsonl --key shared.key --out a.sketch",
        "deploy init --folder shared --name clinics --home coordinator",
        "search index data-a --folder searches",
    ):
        outcome = in_child(lambda line=line: _call(line), Path("said.txt"))
        if outcome != "0":
            raise RuntimeError(f"fedrank {line}: {outcome}\n{Path('said.txt').read_text()}")


def _call(line: str) -> None:
    sys.argv = ["fedrank", *shlex.split(line)]
    main()


def in_child(work: Callable[[], None], said: Path) -> str:
    """How it ended: its exit code, or the fault."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException), said.open("w") as file:
            os.setpgid(0, 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10 * SECONDS)
            try:
                work()
            except SystemExit as end:
                os._exit(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(99)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # workers that it left
    if os.WIFSIGNALED(status):
        slow = os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU)
        return f"hang: over {SECONDS} s" if slow else f"signal {os.WTERMSIG(status)}"
    code = os.waitstatus_to_exitcode(status)
    return str(code) if code in ENDED else f"crash: exit code {code}"


def faults(cases: list[Case], tell: Callable[[str], None] = print) -> list[str]:
    """What went wrong, a line each; in a new folder."""
    found, new = [], itertools.count()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        world()
        for module in pkgutil.walk_packages(fedrank.__path__, "fedrank."):  # here, so that no child has to import them
            with contextlib.suppress(ImportError):
                if not module.name.endswith("__main__"):
                    importlib.import_module(module.name)
        for case in cases:
            for number in case.numbers:
                if (case.command, case.option) in ENDLESS and number != "-1":
                    continue
                values = " ".join([number] * case.values)
                text = values if case.argument else f"{case.option} {values}"
                line = LINES[case.command]
                line = line.replace("{}", text) if "{}" in line else f"{line} {text}"
                line = line.replace("--out ", f"--out made-{next(new)}-")
                said = Path("said.txt")
                outcome = in_child(lambda line=line: _call(line), said)
                words = said.read_text(errors="replace")
                last = next((one for one in reversed(words.splitlines()) if one.strip()), "")[:300]
                bad = outcome not in ("0", "1", "2") or "Traceback" in words or "MemoryError" in words
                if bad:
                    found.append(f"fedrank {line}: {outcome}: {last}")
                tell(f"{'FAULT' if bad else '     '} {outcome} fedrank {line}\n              {last}")
    return found


def run() -> None:
    chosen = sys.argv[1:]
    cases = [case for case in numeric() if not chosen or case.command in chosen]
    found = faults(cases, lambda line: print(line, flush=True))
    print(f"{len(found)} of {sum(len(case.numbers) for case in cases)} went wrong")
    for line in found:
        print(f"  {line}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    run()
