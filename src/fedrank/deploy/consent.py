"""A site's word: which plans it takes part in, and which keys its partners have.

A plan is accepted or refused by its digest, which changes with everything that it says; or by that of its spec, before
anybody has planned it. Whoever accepts a plan also says that the keys in it are those of the partners, after comparing
them by telephone: the coordinator, who brings them, could have exchanged one. From then on they are pinned.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.deploy.identity import fingerprint
from fedrank.deploy.plan import LARGEST, Plan
from fedrank.deploy.records import record
from fedrank.files import opened, parse_json, private_folder, write_atomic
from fedrank.privacy.population import now
from fedrank.wire import Refused

if TYPE_CHECKING:
    from fedrank.deploy.settings import Policy

ACCEPTED, REFUSED, PROPOSED, PARTNERS = "accepted", "refused", "proposed", "partners.json"
MAX_PROPOSED = 32  # plans that are kept for somebody to look at; whoever sends more replaces the oldest
MIN_DIGITS = 6  # of a digest that somebody types


@dataclass(frozen=True)
class Word:
    """What a site said of a plan."""

    digest: str  # of the plan, or of its spec
    run: str
    at: str
    because: str = ""  # of a refusal


def spec_digest(plan: Plan) -> str:
    """By which a spec is accepted, whoever takes part in it."""
    return hashlib.sha256(b"spec\n" + plan.spec.encode()).hexdigest()


def accept(folder: Path, plan: Plan, compared: Collection[str] = ()) -> Word:
    """Take part in a plan, and pin the keys of its partners.

    A partner whose key is another one than before is refused by name, unless it is among those that were `compared`.
    """
    folder = Path(folder)
    pinned = partners(folder)
    keys = {site.name: site.identity for site in plan.sites if site.identity}
    if found := [line for line in _changed(pinned, keys) if line.name not in compared]:
        raise ValueError("\n".join(map(str, found)))
    if keys:
        content = json.dumps(pinned | keys, indent=1, sort_keys=True) + "\n"
        write_atomic(folder / PARTNERS, content, private=True)  # first: whoever accepts has pinned
    return _accepted(folder, plan, plan.digest)


def accept_spec(folder: Path, plan: Plan) -> Word:
    """Take part in whatever plan has this spec. No keys are known yet, so that none is pinned."""
    return _accepted(Path(folder), plan, spec_digest(plan))


def refuse(folder: Path, digest: str, because: str, run: str = "") -> Word:
    """Take no part in a plan, from now on; what was sent before was sent."""
    if not because.strip():
        raise ValueError("a plan is not refused without a reason; say why, since the coordinator is told")
    folder, word = Path(folder), Word(digest, run, now(), because.strip())
    _write(folder / REFUSED / f"{digest}.json", asdict(word))
    (folder / ACCEPTED / f"{digest}.json").unlink(missing_ok=True)
    return word


def objection(folder: Path, plan: Plan, policy: Policy) -> str | None:
    """Why this site takes no part in a plan that fits its policy; None where it does.

    A plan that nobody has looked at is kept, so that somebody can.
    """
    folder = Path(folder)
    for digest in (plan.digest, spec_digest(plan)):
        if (said := _read(folder / REFUSED, digest)) is not None:
            when = f" on {said.at[:10]}" if said.at else ""
            return f"this site refused run {plan.name!r}{when}: {said.because}"
    known = any(_read(folder / ACCEPTED, digest) is not None for digest in (plan.digest, spec_digest(plan)))
    if policy.accept == "listed" and not known:
        propose(folder, plan)
        return (
            f"run {plan.name!r} (plan {plan.digest[:12]}) is not accepted at this site; somebody there has to look at "
            f"it, with `fedrank deploy show {plan.digest[:12]}` and `fedrank deploy accept {plan.digest[:12]}`"
        )
    return None if plan.simulated else _objection_to_keys(folder, plan)


def _objection_to_keys(folder: Path, plan: Plan) -> str | None:
    pinned = partners(folder)
    keys = {site.name: site.identity for site in plan.sites if site.identity}
    for line in _changed(pinned, keys):
        return str(line)
    if not plan.summed and plan.silos is None:
        return None
    unknown = [site.name for site in plan.sites if site.name not in pinned]
    if not unknown:
        return None
    propose(folder, plan)
    return (
        f"the keys of {', '.join(unknown)} were never compared here, and whoever made them would see through a secure "
        "sum, or open letters between sites; compare the fingerprints by telephone, then `fedrank deploy accept "
        f"{plan.digest[:12]}`"
    )


def leave_site(folder: Path, because: str = "") -> Path:
    """Leave a federation of one's own will: the kit is set aside, so that nothing can connect any more.

    Ledger, models and what was sent stay: people were charged, and may ask.
    """
    folder = Path(folder)
    kit, aside = folder / "kit", folder / "kit.left"
    if not kit.exists():
        raise FileNotFoundError(f"{folder} has no kit, so that it takes part in nothing; give the folder of a site")
    record(folder, "leave", because=because.strip())
    os.replace(kit, aside)
    return aside


def said_of(folder: Path, plan: Plan) -> str | None:
    """What this site said of a plan: "accepted" or "refused"; None: nothing yet."""
    for kind in (REFUSED, ACCEPTED):
        if any(_read(Path(folder) / kind, digest) is not None for digest in (plan.digest, spec_digest(plan))):
            return kind
    return None


def partners(folder: Path) -> dict[str, str]:
    """Public keys of partners, as they were compared; by name of the site."""
    path = Path(folder) / PARTNERS
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as problem:
        raise ValueError(f"{path} cannot be read ({problem}); restore it from a backup") from None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ValueError(f"{path} does not hold the keys of partners; restore it from a backup")
    return found


def words(folder: Path) -> tuple[list[Word], list[Word]]:
    """What was accepted here, and what was refused; the latest first."""
    found = []
    for kind in (ACCEPTED, REFUSED):
        said = [_read(Path(folder) / kind, path.stem) for path in (Path(folder) / kind).glob("*.json")]
        found.append(sorted((one for one in said if one is not None), key=lambda one: one.at, reverse=True))
    return found[0], found[1]


def propose(folder: Path, plan: Plan) -> Path:
    """Keep a plan for somebody to look at."""
    place = private_folder(Path(folder) / PROPOSED)
    path = place / f"{plan.digest}.plan"
    if not path.exists():
        kept = sorted(place.glob("*.plan"), key=lambda one: one.stat().st_mtime)
        for old in kept[: max(0, len(kept) - MAX_PROPOSED + 1)]:
            old.unlink(missing_ok=True)
        write_atomic(path, plan.dump(), private=True)
    return path


def proposals(folder: Path) -> list[Plan]:
    """Plans that came here and wait for a word, or for keys to be compared; the latest first."""
    accepted, refused = ({word.digest for word in said} for said in words(folder))
    paths = sorted((Path(folder) / PROPOSED).glob("*.plan"), key=lambda one: one.stat().st_mtime, reverse=True)
    found = [plan for path in paths if (plan := _loaded(path)) is not None]
    return [
        plan
        for plan in found
        if not {plan.digest, spec_digest(plan)} & refused
        and plan.digest not in accepted
        and (spec_digest(plan) not in accepted or _objection_to_keys(folder, plan) is not None)
    ]


def find_plan(folder: Path, what: str) -> Plan:
    """A plan by the path of its file, by the name of its run, or by the first digits of its digest."""
    path = Path(what)
    if path.is_file():
        return read_plan(path)
    kept = [plan for one in (Path(folder) / PROPOSED).glob("*.plan") if (plan := _loaded(one)) is not None]
    found = [
        plan for plan in kept if plan.name == what or (len(what) >= MIN_DIGITS and plan.digest.startswith(what.lower()))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(plan.digest[:12] for plan in found)
        raise ValueError(f"{what!r} could be any of the plans {listed}; give the first digits of one")
    came = ", ".join(f"{plan.digest[:12]} ({plan.name})" for plan in kept) or "none"
    raise FileNotFoundError(f"no spec, no plan {what!r}; plans that came here: {came}")


def read_plan(path: Path) -> Plan:
    with opened(path) as file:
        content = file.read(LARGEST + 1)
    try:
        return Plan.load(content)
    except Refused as problem:
        raise ValueError(f"{path}: {problem}") from None


@dataclass(frozen=True)
class _ChangedKey:
    name: str
    before: str
    now: str

    def __str__(self) -> str:
        return (
            f"the key of {self.name!r} is another one than was compared here ({_shown(self.before)} then, "
            f"{_shown(self.now)} now), so that somebody may pass for it; call {self.name}, and only if the new one is "
            f"right: `fedrank deploy accept PLAN --new-key {self.name}`"
        )


def _changed(pinned: Mapping[str, str], keys: Mapping[str, str]) -> Iterable[_ChangedKey]:
    for name, key in sorted(keys.items()):
        if pinned.get(name, key) != key:
            yield _ChangedKey(name, pinned[name], key)


def _shown(key: str) -> str:
    try:
        return fingerprint(key)
    except ValueError:
        return "no key"


def _accepted(folder: Path, plan: Plan, digest: str) -> Word:
    word = Word(digest, plan.name, now())
    _write(folder / ACCEPTED / f"{digest}.json", asdict(word) | {"plan": plan.dump().decode()})
    (folder / REFUSED / f"{digest}.json").unlink(missing_ok=True)
    return word


def _write(path: Path, content: dict[str, Any]) -> None:
    private_folder(path.parent)
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n", private=True)


def _read(folder: Path, digest: str) -> Word | None:
    """What was said of a plan. A damaged record is never taken for a yes."""
    try:
        found = parse_json((folder / f"{digest}.json").read_text(encoding="utf-8"))
        word = Word(**{key: str(found[key]) for key in ("digest", "run", "at", "because")})
        if word.digest == digest:
            return word
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        pass
    return Word(digest, "", "", "its record cannot be read") if folder.name == REFUSED else None


def _loaded(path: Path) -> Plan | None:
    """A plan that was kept; None where it is one of another version."""
    try:
        return read_plan(path)
    except (ValueError, OSError):
        return None
