"""A site's decisions: in which plans it participates, and which public keys its partners have.

A plan is accepted or refused by its digest, which covers its whole content, or by the digest of its spec before a plan
exists. The user who accepts a plan also confirms the partners' keys after comparing fingerprints by telephone, because
the coordinator who delivers them could have replaced one. From then on the keys are pinned.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.deploy import protocol
from fedrank.deploy.identity import fingerprint
from fedrank.deploy.plan import LARGEST, Plan
from fedrank.deploy.records import record
from fedrank.files import now, opened, parse_json, private_folder, write_atomic
from fedrank.wire import Refused

if TYPE_CHECKING:
    from fedrank.deploy.settings import Policy

ACCEPTED, REFUSED, PROPOSED, PARTNERS = "accepted", "refused", "proposed", "partners.json"
MAX_PROPOSED = 32  # plans stored for review; further plans replace the oldest
MIN_DIGITS = 6  # minimum number of digits of a digest that a user types


@dataclass(frozen=True)
class Word:
    """A site's decision about a plan."""

    digest: str  # of the plan or of its spec
    run: str
    at: str
    because: str = ""  # reason of a refusal


def spec_digest(plan: Plan) -> str:
    """The digest by which a spec is accepted, for any set of sites."""
    return hashlib.sha256(b"spec\n" + plan.spec.encode()).hexdigest()


def accept(folder: Path, plan: Plan, compared: Collection[str] = ()) -> Word:
    """Accept a plan and pin the keys of its partners.

    A partner whose key has changed is refused by name, unless it is in `compared`.
    """
    folder = Path(folder)
    pinned = partners(folder)
    keys = {site.name: site.identity for site in plan.sites if site.identity}
    if found := [line for line in _changed(pinned, keys) if line.name not in compared]:
        raise ValueError("\n".join(map(str, found)))
    if keys:
        content = json.dumps(pinned | keys, indent=1, sort_keys=True) + "\n"
        write_atomic(folder / PARTNERS, content, private=True)  # before the acceptance: accepting implies pinned keys
    return _accepted(folder, plan, plan.digest)


def accept_spec(folder: Path, plan: Plan) -> Word:
    """Accept every plan with this spec. The keys are not known yet, so none is pinned."""
    return _accepted(Path(folder), plan, spec_digest(plan))


def refuse(folder: Path, digest: str, because: str, run: str = "") -> Word:
    """Refuse a plan from now on; messages that were sent before are not recalled."""
    if not because.strip():
        raise ValueError("a refusal needs a reason (got an empty one); give one, because it is sent to the coordinator")
    folder, word = Path(folder), Word(digest, run, now(), because.strip())
    _write(folder / REFUSED / f"{digest}.json", asdict(word))
    (folder / ACCEPTED / f"{digest}.json").unlink(missing_ok=True)
    return word


def objection(folder: Path, plan: Plan, policy: Policy) -> str | None:
    """Return why this site does not participate in a plan that fits its policy; None if it does.

    A plan that has not been reviewed yet is stored for review.
    """
    folder = Path(folder)
    for digest in (plan.digest, spec_digest(plan)):
        if (said := _read(folder / REFUSED, digest)) is not None:
            when = f" on {said.at[:10]}" if said.at else ""
            return f"{protocol.REFUSED[0]} {plan.name!r}{when}: {said.because}"
    known = any(_read(folder / ACCEPTED, digest) is not None for digest in (plan.digest, spec_digest(plan)))
    if policy.accept == "listed" and not known:
        propose(folder, plan)
        return (
            f"run {plan.name!r} (plan {plan.digest[:12]}) has not been accepted at this site; a user there must review "
            f"it with `fedrank deploy show {plan.digest[:12]}` and run `fedrank deploy accept {plan.digest[:12]}`"
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
        f"the keys of {', '.join(unknown)} have not been compared at this site; with a forged key, secure aggregation "
        "and sealed letters could be read; compare the fingerprints by telephone, then run `fedrank deploy accept "
        f"{plan.digest[:12]}`"
    )


def leave_site(folder: Path, because: str = "") -> Path:
    """Leave a federation voluntarily: the kit is moved aside, so this site can no longer connect.

    Ledger, models and sent messages stay: people were charged and may ask about it.
    """
    folder = Path(folder)
    kit, aside = folder / "kit", folder / "kit.left"
    if not kit.exists():
        raise FileNotFoundError(f"{folder} has no kit and does not belong to a federation; give the folder of a site")
    record(folder, "leave", because=because.strip())
    os.replace(kit, aside)
    return aside


def said_of(folder: Path, plan: Plan) -> str | None:
    """Return this site's decision about a plan: "accepted", "refused", or None."""
    for kind in (REFUSED, ACCEPTED):
        if any(_read(Path(folder) / kind, digest) is not None for digest in (plan.digest, spec_digest(plan))):
            return kind
    return None


def partners(folder: Path) -> dict[str, str]:
    """Compared public keys of partners by site name."""
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
    """Accepted and refused plans, latest first."""
    found = []
    for kind in (ACCEPTED, REFUSED):
        said = [_read(Path(folder) / kind, path.stem) for path in (Path(folder) / kind).glob("*.json")]
        found.append(sorted((one for one in said if one is not None), key=lambda one: one.at, reverse=True))
    return found[0], found[1]


def propose(folder: Path, plan: Plan) -> Path:
    """Store a plan for review."""
    place = private_folder(Path(folder) / PROPOSED)
    path = place / f"{plan.digest}.plan"
    if not path.exists():
        kept = sorted(place.glob("*.plan"), key=lambda one: one.stat().st_mtime)
        for old in kept[: max(0, len(kept) - MAX_PROPOSED + 1)]:
            old.unlink(missing_ok=True)
        write_atomic(path, plan.dump(), private=True)
    return path


def proposals(folder: Path) -> list[Plan]:
    """Received plans that wait for a decision or for a comparison of keys, latest first."""
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
    """Find a plan by the path of its file, the name of its run, or the first digits of its digest."""
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
        raise ValueError(f"{what!r} matches several plans ({listed}); give the first digits of one digest")
    came = ", ".join(f"{plan.digest[:12]} ({plan.name})" for plan in kept) or "none"
    raise FileNotFoundError(f"{what!r} is not a spec or a plan; plans received at this site: {came}")


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
            f"the key of {self.name!r} differs from the one compared before ({_shown(self.before)} then, "
            f"{_shown(self.now)} now), so another party may be impersonating it; call {self.name}, and only if the new "
            f"key is correct run `fedrank deploy accept PLAN --new-key {self.name}`"
        )


def _changed(pinned: Mapping[str, str], keys: Mapping[str, str]) -> Iterable[_ChangedKey]:
    for name, key in sorted(keys.items()):
        if pinned.get(name, key) != key:
            yield _ChangedKey(name, pinned[name], key)


def _shown(key: str) -> str:
    try:
        return fingerprint(key)
    except ValueError:
        return "an invalid key"


def _accepted(folder: Path, plan: Plan, digest: str) -> Word:
    word = Word(digest, plan.name, now())
    _write(folder / ACCEPTED / f"{digest}.json", asdict(word) | {"plan": plan.dump().decode()})
    (folder / REFUSED / f"{digest}.json").unlink(missing_ok=True)
    return word


def _write(path: Path, content: dict[str, Any]) -> None:
    private_folder(path.parent)
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n", private=True)


def _read(folder: Path, digest: str) -> Word | None:
    """Read the decision about a plan. A damaged record never counts as an acceptance."""
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
    """Read a stored plan; None if it was written by another version."""
    try:
        return read_plan(path)
    except (ValueError, OSError):
        return None
