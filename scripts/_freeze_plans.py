"""The part of scripts/freeze that runs inside a checkout: its package makes every plan, and the results are digested.

It is a file of its own, run with that checkout's package on the path: `_freeze_plans.py REQUEST ANSWER`, both JSON. It
uses only the public Python API, so that it runs in any checkout that has the same verbs.
"""

import hashlib
import json
import re
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import stagedb
import stagedb.api
from stagedb.errors import StagedbError

SYSTEM = "h100"
WHAT_IF: Mapping[str, Any] = {"scale": ("collective:tp=0.5", "compute=0.8"), "blocking": "tp,pp"}
MANIFEST, INDEX = "manifest.json", "packed.json"
IDS = ("instance", "graph", "versions")
"""Keys of a manifest that are ids or change with the version."""

DIGESTS = ("digest", "encoding")
"""Keys of a manifest's classes that are digests of ids too."""

OTHERS = ("block", "packed", "timed", "whatif")
"""Words of a plan's `also` that are not systems."""

ASKED = {"instance", "profile", "other"}
"""Parameters of named queries that this program can give."""

DIGITS = 16
"""Hexadecimal digits of a digest that are kept."""

Digests = dict[str, Any]


@dataclass
class Reading:
    """The tables to read: `columns` by table, and the plan's `words`; empty: all, which are then recorded.

    For a comparison they come from the earlier file, so that a new column changes no digest. `further` are the new
    columns. `rows`: a directory that gets the rows behind the digests.
    """

    columns: dict[str, list[str]]
    words: list[str]
    rows: Path | None
    further: dict[str, list[str]] = field(default_factory=dict)
    plan: str = ""

    def table(self, place: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
        """The digest of rows, in any order of rows and columns. `place`: the name of the table."""
        name = place.rsplit("/", 1)[-1]
        wanted = self.columns.setdefault(name, sorted(columns))
        more = sorted(set(columns) - set(wanted))
        if more:
            self.further[name] = more
        at = [columns.index(column) for column in wanted if column in columns]
        lines = sorted(json.dumps([plain(row[i]) for i in at], separators=(",", ":")) for row in rows)
        return self.text(place, [json.dumps([columns[i] for i in at]), *lines])

    def text(self, place: str, lines: Sequence[str]) -> str:
        """The digest of lines."""
        whole = "\n".join(lines)
        if self.rows is not None:
            file = self.rows / self.plan / f"{place.replace('/', '.')}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(whole + "\n", encoding="utf-8")
        return digest(whole.encode())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def plain(value: Any) -> Any:
    """A value of a row. Floating-point numbers have twelve digits, because sums may be taken in another order."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def json_text(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"))


def folded(files: Sequence[tuple[str, bytes]], ids: Sequence[str]) -> Digests:
    """Digests of files: as they are (`exact`), and with ids replaced, which a later version may change."""
    exact, lines = [], []
    for name, data in sorted(files):
        exact.append(f"{name} {digest(data)}")
        for each in ids:
            data = data.replace(each.encode(), b"-" * len(each))
        lines.append(f"{name} {digest(data)}")
    return {
        "files": len(files),
        "bytes": sum(len(data) for _, data in files),
        "digest": digest("\n".join(lines).encode()),
        "exact": digest("\n".join(exact).encode()),
    }


def trace_set(reading: Reading, place: str, directory: Path, ids: Sequence[str]) -> Digests:
    """Every file of a set: the traces together, the files next to them one by one, the manifest by its keys."""
    manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    traces, found = [], {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = str(path.relative_to(directory))
        if re.fullmatch(rf"{re.escape(manifest['name'])}\.[0-9]+\.et", name):
            traces.append((name, path.read_bytes()))
        elif name != MANIFEST:
            data = path.read_bytes()
            called = "groups" if name == f"{manifest['name']}.json" else name
            found[called] = {"bytes": len(data), "digest": digest(data)}
    return {**found, "traces": folded(traces, ids), "manifest": manifest_keys(reading, place, manifest)}


def manifest_keys(reading: Reading, place: str, manifest: Mapping[str, Any]) -> Digests:
    """The digest of each key of a manifest, and of each key of its classes."""
    found: Digests = {}
    reading.words = reading.words or sorted(manifest["plan"])
    for key, value in manifest.items():
        if key in IDS or key == "classes":
            continue
        if key == "plan":
            value = {word: value.get(word) for word in reading.words}
        if key == "profile":
            value = {word: each for word, each in value.items() if word != "id"}
        found[key] = reading.text(f"{place}/manifest/{key}", [json_text(value)])
    for key in sorted({key for row in manifest["classes"] for key in row}):
        lines = [json_text(row.get(key)) for row in manifest["classes"]]
        called = f"{key}/exact" if key in DIGESTS else key
        found[f"classes/{called}"] = reading.text(f"{place}/manifest/classes.{key}", lines)
    return found


class Plans:
    """The plans on one store. The first is kept until the end, because queries compare the others with it."""

    def __init__(self, db: Any, reading: Reading, scratch: Path) -> None:
        self.db = db
        self.reading = reading
        self.scratch = scratch
        self.queries = {info.name.rsplit("/", 1)[-1].replace("-", "_"): info for info in db.queries()}
        self.other: tuple[str, str] | None = None

    def make(self, name: str, words: Mapping[str, Any]) -> Digests:
        """The digests of a plan."""
        self.reading.plan = name
        plan = {word: value for word, value in words.items() if word not in ("model", "layers", "also")}
        also = list(words.get("also", ()))
        instance = self.db.instantiate(self.model(words), **plan)
        found: Digests = {
            "ranks": instance.ranks,
            "classes": instance.classes,
            "export": self.exported("export", instance),
            "memory": self.memory(instance),
            SYSTEM: self.profiled(SYSTEM, instance, {}, kept=self.other is None, timed="timed" in also),
        }
        for system in also:
            if system not in OTHERS:
                found[system] = self.profiled(system, instance, {"system": system})
        if "whatif" in also:
            found["whatif"] = self.profiled("whatif", instance, WHAT_IF)
        if "block" in also:
            found["block"] = self.exported("block", instance, granularity="block")
        if "packed" in also:
            found["packed"] = self.packed(instance)
        found["queries"] = self.asked("instance", instance.id, None)
        if self.other is not None and self.other[0] != instance.id:
            self.db.rm(instance.id)
        return found

    def model(self, words: Mapping[str, Any]) -> str:
        """The plan's model: one of the library, or the path of its card with fewer layers."""
        if "layers" not in words:
            return str(words["model"])
        name = f"{words['model']}-{words['layers']}"
        card = {**stagedb.api.model(words["model"]), "name": name, "layers": words["layers"], "parameters": 0}
        path = self.scratch / f"{name}.yaml"
        path.write_text(yaml.safe_dump(card), encoding="utf-8")
        return str(path)

    def exported(self, place: str, instance: Any, profile: str | None = None, **more: Any) -> Digests:
        """The traces of an instance, written and digested."""
        out = self.scratch / "traces"
        shutil.rmtree(out, ignore_errors=True)
        done = self.db.export(instance.id, out=out, replay=False, profile=profile, **more)
        ids = (instance.id, instance.graph, *((profile,) if profile else ()))
        found = trace_set(self.reading, place, out, ids)
        return {"nodes": done.nodes, **found}

    def packed(self, instance: Any) -> Digests:
        """A packed set: its members except the index, and the files that it unpacks to."""
        file, out = self.scratch / "set.packed", self.scratch / "traces"
        ids = (instance.id, instance.graph)
        self.db.export(instance.id, out=file, packed=True, force=True)
        with zipfile.ZipFile(file) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist() if name != INDEX]
        shutil.rmtree(out, ignore_errors=True)
        stagedb.unpack(file, out=out, replay=False)
        unpacked = trace_set(self.reading, "packed", out, ids)
        return {"members": folded(members, ids), "exact": digest(file.read_bytes()), "unpacked": unpacked}

    def memory(self, instance: Any) -> Digests:
        """The memory of ranks: the peaks in clear, all tables digested."""
        held = self.db.memory(instance.id)
        peaks = [row["peak"] for row in held.peaks]
        tables = {"peaks": held.peaks, "levels": held.levels, "tensors": held.tensors}
        rows = {
            name: self.reading.table(f"memory/memory.{name}", table.columns, table.rows)
            for name, table in tables.items()
        }
        return {"bytes": peaks, **rows}

    def profiled(
        self, place: str, instance: Any, asked: Mapping[str, Any], kept: bool = False, timed: bool = False
    ) -> Digests:
        """A step on a system: its length in clear, its tables digested; and every query about it."""
        profile = self.db.profile(instance.id, **{"system": SYSTEM, **asked})
        info = profile.info
        merit = (info.tokens_per_second, info.mfu, info.hfu, info.measured_time)
        found: Digests = {
            "step": info.step,
            "unscaled": info.unscaled,
            "merit": [plain(each) for each in merit],
            "lanes": self.reading.table(f"{place}/profile.lanes", profile.lanes.columns, profile.lanes.rows),
            "path": self.reading.table(f"{place}/profile.path", profile.path.columns, profile.path.rows),
            "chart": self.reading.text(f"{place}/chart", self.db.chart(profile=info.id).split("\n")),
        }
        if kept:
            self.other = (instance.id, info.id)
        if timed:
            found["timed"] = self.exported(f"{place}-timed", instance, profile=info.id)
        return {**found, "queries": self.asked(place, instance.id, info.id)}

    def asked(self, place: str, instance: str, profile: str | None) -> dict[str, str]:
        """Every named query about an instance or a profile: the digest of its rows, or its failure."""
        found = {}
        for name, info in sorted(self.queries.items()):
            takes = set(info.parameters)
            if takes - ASKED or ("profile" in takes) != (profile is not None) or not takes:
                continue
            options = {"instance": instance, "profile": profile}
            chosen = {word: value for word, value in options.items() if word in takes}
            other = {"other": self.other[0 if profile is None else 1]} if "other" in takes and self.other else {}
            try:
                answer = self.db.query(info.name.rsplit("/", 1)[-1], other, **chosen)
            except StagedbError as error:
                found[name] = f"failed: {error}"
                continue
            found[name] = self.reading.table(f"{place}/queries/{name}", answer.columns, answer.rows)
        return found


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if not Path(stagedb.__file__).resolve().is_relative_to(Path(request["checkout"]).resolve()):
        sys.exit(f"scripts/freeze: the package is {stagedb.__file__}, which is not in {request['checkout']}")
    rows = None if request["rows"] is None else Path(request["rows"])
    reading = Reading(request["columns"], request["words"], rows)
    found = {}
    with tempfile.TemporaryDirectory() as scratch, stagedb.connect() as db:
        plans = Plans(db, reading, Path(scratch))
        for number, (name, words) in enumerate(request["plans"].items()):
            began = time.perf_counter()
            # The others are compared with the first, so that it is always made.
            if number and request["only"] and name not in request["only"]:
                continue
            try:
                made = plans.make(name, words)
            except StagedbError as error:
                made = {"error": str(error)}
            if not request["only"] or name in request["only"]:
                found[name] = made
            failed = f", {made['error']}" if "error" in made else ""
            print(f"{name}: {time.perf_counter() - began:.1f} s{failed}", file=sys.stderr)
        if plans.other is not None:
            db.rm(plans.other[0])
    answer = {"columns": reading.columns, "further": reading.further, "words": reading.words, "plans": found}
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
