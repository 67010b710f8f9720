"""Digests of results that may not change, behind scripts/freeze: traces, memory and profiles of a list of plans.

One JSON file has for each plan: each file of its trace set, without names of instances or versions; memory; the step on
a system with its lanes and its critical path; the rows of every named query. Counts, bytes and nanoseconds are in
clear, tables are digests of their sorted rows. Another run, of this checkout or another one, is compared with the
file, and each difference is named by plan and place.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PLANS = ROOT / "tests" / "frozen" / "plans.yaml"
FORMAT = 1
EXACT = "exact"
"""Digests with this name depend on ids and versions too."""


@dataclass
class Compared:
    """The differences between two files, and further remarks."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(options: argparse.Namespace, old: Mapping[str, Any] | None) -> dict[str, Any]:
    """The digests of a checkout. Its own package makes them in a process and a store of their own."""
    with tempfile.TemporaryDirectory(prefix="stagedb-freeze-") as name:
        scratch = Path(name)
        request = {
            "checkout": str(options.checkout),
            "plans": yaml.safe_load(options.plans.read_text(encoding="utf-8")),
            "only": options.only.split(",") if options.only else [],
            "columns": old["columns"] if old else {},
            "words": old["words"] if old else [],
            "rows": str(options.rows.absolute()) if options.rows else None,
        }
        unknown = [plan for plan in request["only"] if plan not in request["plans"]]
        if unknown:
            sys.exit(f"scripts/freeze: no plan {unknown[0]!r} in {options.plans}")
        (scratch / "request").write_text(json.dumps(request), encoding="utf-8")
        environment = {
            **os.environ,
            "PYTHONPATH": str(options.checkout),
            "STAGEDB_HOME": str(scratch / "home"),
            "STAGEDB_CONFIG": str(scratch / "none.toml"),
            "NEO4J_URI": options.store or "",
        }
        worker = str(Path(__file__).with_name("_freeze_plans.py"))
        command = [sys.executable, "-P", worker, str(scratch / "request"), str(scratch / "answer")]
        try:
            done = subprocess.run(command, cwd=scratch, env=environment, check=False)
        finally:
            stop = [sys.executable, "-P", "-m", "stagedb", "store", "down", "--quiet", "--store", "embedded"]
            subprocess.run(stop, cwd=scratch, env=environment, check=False)
        if done.returncode:
            sys.exit(f"scripts/freeze: the package of {options.checkout} failed (see above)")
        answer = json.loads((scratch / "answer").read_text(encoding="utf-8"))
    return {"format": FORMAT, "commit": commit(options.checkout), **answer}


def commit(checkout: Path) -> str:
    """The commit of a checkout, with `+` if its package is changed; empty without git."""
    git = ["git", "-C", str(checkout)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(
        [*git, "status", "--porcelain", "stagedb", "cypher"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() + ("+" if changed.stdout else "")


def flat(found: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its place: `export/traces/bytes`."""
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{place}{key}/")
        else:
            yield place + key, value


def compare(old: Mapping[str, Any], new: Mapping[str, Any], only: str, new_ids: bool) -> Compared:
    """The differences between an earlier file and a later one. new_ids: ignore digests of ids and versions."""
    found = Compared()
    for name, columns in new["further"].items():
        found.notes.append(f"{name} has further columns: {', '.join(columns)}")
    wanted = only.split(",") if only else sorted({*old["plans"], *new["plans"]})
    for plan in wanted:
        if plan not in old["plans"] or plan not in new["plans"]:
            found.differences.append(f"{plan}: only the {'new' if plan in new['plans'] else 'old'} one has this plan")
            continue
        failed = [str(each["plans"][plan]["error"]) for each in (old, new) if "error" in each["plans"][plan]]
        if failed:
            found.differences.append(f"{plan}: failed: {failed[-1]}")
            continue
        before, after = dict(flat(old["plans"][plan])), dict(flat(new["plans"][plan]))
        for place in sorted({*before, *after}):
            parts = place.split("/")
            if before.get(place) == after.get(place) or (new_ids and parts[-1] == EXACT):
                continue
            if "queries" in parts and (place not in before or place not in after):
                whose = "the old" if place in before else "the new"
                found.notes.append(f"only {whose} one has the query {parts[-1]}")
                continue
            found.differences.append(f"{plan}: {place}: {before.get(place)} became {after.get(place)}")
    found.notes = list(dict.fromkeys(found.notes))
    return found


def written(result: Mapping[str, Any]) -> str:
    """The file's text: a line for each part of a plan, so that a change is small."""
    head = {key: value for key, value in result.items() if key not in ("plans", "further")}
    lines = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}," for key, value in head.items()]
    plans = []
    for name, plan in result["plans"].items():
        parts = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in plan.items())
        plans.append(f" {json.dumps(name)}: {{\n{parts}\n }}")
    return "\n".join(["{", *lines, '"plans": {', ",\n".join(plans), "}", "}"]) + "\n"


def read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            sys.exit(f"scripts/freeze: {path} has format {found['format']}, and this program reads {FORMAT}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"scripts/freeze: {path} has no digests: {error}")
    return {"further": {}, **found}


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/freeze", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--checkout", type=Path, default=ROOT, help="checkout whose package is run (this one)")
    parser.add_argument("--out", type=Path, help="write the digests to this file")
    parser.add_argument("--compare", type=Path, help="compare with this file, and exit with 1 if something differs")
    parser.add_argument("--given", type=Path, help="compare this file, and run nothing")
    parser.add_argument("--only", default="", help="these plans, by name, separated by commas (all)")
    parser.add_argument("--plans", type=Path, default=PLANS, help="the list of plans (tests/frozen/plans.yaml)")
    parser.add_argument("--rows", type=Path, help="write the rows behind the digests into this directory")
    parser.add_argument("--new-ids", action="store_true", help="ignore differences that follow from ids and versions")
    parser.add_argument("--store", help="a Neo4j server's address, instead of an embedded store of its own")
    options = parser.parse_args()
    options.checkout = options.checkout.resolve()
    if not (options.checkout / "stagedb").is_dir():
        parser.error(f"{options.checkout} is not a checkout: it has no stagedb/")
    if options.given is not None and options.compare is None:
        parser.error("--given needs --compare")
    if options.compare is None and options.out is None:
        parser.error("give --out, --compare, or both")
    return options


def main() -> None:
    options = options_of()
    # An interrupted run leaves neither an engine nor its files.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = time.perf_counter()
    old = read(options.compare) if options.compare else None
    new = read(options.given) if options.given else run(options, old)
    if options.out is not None:
        options.out.write_text(written(new), encoding="utf-8")
    seconds = time.perf_counter() - began
    print(f"{len(new['plans'])} plans of {new['commit'] or options.checkout} in {seconds:.0f} s", file=sys.stderr)
    if old is None:
        sys.exit(any("error" in plan for plan in new["plans"].values()))
    found = compare(old, new, options.only, options.new_ids)
    for line in (*found.notes, *found.differences):
        print(line)
    values = sum(1 for plan in new["plans"].values() for _ in flat(plan))
    print(f"{len(found.differences)} of {values} values differ from {options.compare} ({old['commit']})")
    sys.exit(bool(found.differences))


if __name__ == "__main__":
    main()
