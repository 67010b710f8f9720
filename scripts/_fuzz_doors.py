"""The doors of stagedb: for each, a hostile input for its command."""

import functools
import json
import posixpath
import random
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from scripts._fuzz_hostile import changed, damaged, text, value, written
from scripts._fuzz_runs import Attempt
from scripts._fuzz_seeds import QUERIES, Seeds

Door = Callable[[random.Random, Seeds], Attempt]

_ENDINGS = (".yaml", ".yml", ".json", ".toml")
_PLAN = ("--tp", "2", "--pp", "2", "--global-batch-size", "4")


@functools.lru_cache(maxsize=64)
def _content(data: bytes) -> Any:
    return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def _document(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """A hostile document: changed in its structure, or in its bytes."""
    if rng.random() < 0.65:
        return written(rng, changed(rng, _content(data)), "json")
    return damaged(rng, data, other)


def _file(door: str, seed: str, ending: tuple[str, ...], *commands: tuple[str, ...]) -> Door:
    """A door of documents: one of the commands on a file, which is `{}` in it."""

    def attempt(rng: random.Random, seeds: Seeds) -> Attempt:
        name = f"given{rng.choice(ending)}"
        data = _document(rng, seeds.files[seed], rng.choice([seeds.files["plan.yaml"], seeds.files["set.packed"]]))
        files = {"card.yaml": seeds.files["card.yaml"], "moe.yaml": seeds.files["moe.yaml"], name: data}
        arguments = _filled(rng.choice(commands), name, seeds)
        if rng.random() < 0.04:
            files.pop(name)
            kind = rng.choice(["fifo", "directory", "link:/dev/zero", f"link:{name}", "link:card.yaml"])
            return Attempt(door, arguments, {**files, name: kind})
        return Attempt(door, arguments, files)

    return attempt


def _filled(command: tuple[str, ...], name: str, seeds: Seeds) -> tuple[str, ...]:
    own = {"{}": name, "{instance}": seeds.instance, "{profile}": seeds.profile}
    return tuple(own.get(each, each) for each in command)


def _run(rng: random.Random, seeds: Seeds) -> Attempt:
    """A trace of a profiler, imported."""
    name = rng.choice(["rank0.json", "rank0.json", "rank0.et.json", "job.sqlite"])
    data = seeds.files[name]
    data = damaged(rng, data) if name.endswith("sqlite") else _document(rng, data, seeds.files["rank1.json"])
    files: dict[str, bytes | str] = {"rank1.json": seeds.files["rank1.json"], name: data}
    return Attempt("runs", ("import", name, *rng.choice([(), (), ("rank1.json",)]), "--keep-names"), files)


def _durations(rng: random.Random, seeds: Seeds) -> Attempt:
    kind = rng.choice(["csv", "parquet", "et", "gz", "directory"])
    arguments = ("profile", seeds.instance, "--durations")
    if kind in ("csv", "parquet"):
        data = damaged(rng, seeds.files[f"durations.{kind}"], seeds.files["durations.csv"])
        return Attempt("durations", (*arguments, f"given.{kind}"), {f"given.{kind}": data})
    traces = seeds.under("gz" if kind == "gz" else "timed")
    names = [name for name in traces if name.endswith(".et")]
    chosen, other = rng.choice(names), rng.choice(names)
    data = damaged(rng, traces[chosen], traces[other])
    if rng.random() < 0.03:
        data = seeds.files["bomb.et"]
    if kind == "directory":
        return Attempt("durations", (*arguments, "timed"), {**traces, chosen: data})
    return Attempt("durations", (*arguments, "given.et"), {"given.et": data})


def _trace_set(rng: random.Random, seeds: Seeds, door: str, chosen: Callable[[str], bool]) -> Attempt:
    """A trace set with a damaged file; it is validated, written again, or written over."""
    folder = rng.choice(["set", "set", "json", "gz", "tables", "timed"])
    files: dict[str, bytes | str] = {**seeds.under(folder)}
    names = [name for name in files if chosen(name)]
    name, other = rng.choice(names), rng.choice(names)
    data = seeds.files[name]
    files[name] = _document(rng, data) if name.endswith("manifest.json") else damaged(rng, data, seeds.files[other])
    if name.endswith(".et") and rng.random() < 0.02:
        files[name] = seeds.files["bomb.et"]
    if rng.random() < 0.05:
        files[name] = rng.choice(["fifo", "directory", "link:/dev/zero", "link:../outside"])
    if rng.random() < 0.5 and door == "traces":
        del files[f"{folder}/checksums.sfv"]  # the rules are behind the checksums
    form = {"json": ("--format", "json"), "gz": ("--compress",), "tables": ("--format", "parquet")}.get(folder, ())
    whole = ("export", "--profile", seeds.profile) if folder == "timed" else ("export", seeds.instance)
    command = rng.choice(
        [("validate", folder)] * 6
        + [("validate", folder, "--no-replay"), ("validate", folder, "-f", "json")]
        + [(*whole, *form, "-o", folder, "--force"), (*whole, *form, "-o", folder, "--resume")]
    )
    writes = frozenset({folder}) if command[0] == "export" else frozenset()
    return Attempt(door, command, files, writes)


def _packed(rng: random.Random, seeds: Seeds) -> Attempt:
    name = rng.choice(["set.packed", "timed.packed"])
    data = damaged(rng, seeds.files[name], seeds.files["timed.packed"])
    more = rng.choice([(), (), ("--only", "0-1"), ("--format", "json"), ("--compress",), ("--resume",), ("--force",)])
    files: dict[str, bytes | str] = {"given.packed": data}
    if "--force" in more:
        files |= {name.replace("set/", "out/", 1): data for name, data in seeds.under("set").items()}
    return Attempt("packed", ("unpack", "given.packed", "-o", "out", *more), files, frozenset({"out"}))


def _configuration(rng: random.Random, seeds: Seeds) -> Attempt:
    data = damaged(rng, seeds.files["config.toml"], seeds.files["plan.yaml"])
    store = rng.choice(["mine", "mine", "other", "embedded", text(rng), ""])
    return Attempt(
        "configuration", ("ls", "--store", store), {"c.toml": data}, environment={"STAGEDB_CONFIG": "c.toml"}
    )


def _parameters(rng: random.Random, seeds: Seeds) -> Attempt:
    del seeds
    value_ = rng.choice([text(rng), _json(value(rng)), "[" * 3000, _json([1] * 50_000)])
    name = rng.choice(["p", "p", "instance", "other", text(rng)])
    query = rng.choice(["RETURN $p AS p", "MATCH (i:Instance) WHERE i.id = $p RETURN i.name AS n", *QUERIES])
    form = rng.choice([(), ("-f", "csv"), ("-f", "json")])
    return Attempt("parameters", ("query", query, "-p", f"{name}={value_}", *form))


def _json(content: Any) -> str:
    return json.dumps(content)


def _query(rng: random.Random, seeds: Seeds) -> Attempt:
    del seeds
    data = damaged(rng, rng.choice(QUERIES).encode(), rng.choice(QUERIES).encode())
    query = data[:20_000].decode("utf-8", "surrogateescape")
    timeout = rng.choice(["5", "5", "5", "5", "0", "-1", "nan", "inf", "1e300"])
    return Attempt("queries", ("query", query, "-p", "p=1", "--timeout", timeout))


_VALUES: tuple[tuple[str, ...], ...] = (
    *(("models", "{}"), ("systems", "{}"), ("build", "{}"), ("instantiate", "{}"), ("show", "{}"), ("rm", "{}")),
    *(("ls", "{}"), ("ls", "-f", "{}"), ("{}",), ("query", "{}"), ("query", "RETURN 1 AS x", "--instance", "{}")),
    *(("query", "hotspots", "--profile", "{}"), ("query", "RETURN 1 AS x", "--timeout", "{}"), ("diff", "{}", "{}")),
    *(("validate", "{}"), ("validate", "--records", "{}"), ("validate", "--reference", "--only", "{}")),
    *(("unpack", "{}"), ("unpack", "set.packed", "-o", "{}", "--only", "9"), ("unpack", "set.packed", "--only", "{}")),
    *(("profile", "{instance}", "--system", "{}"), ("profile", "{instance}", "--durations", "{}")),
    *(("profile", "{instance}", "--scale", "{}"), ("profile", "{instance}", "--blocking", "{}")),
    *(("profile", "{instance}", "--show", "{}"), ("memory", "{instance}", "--capacity", "{}")),
    *(("memory", "{instance}", "--class", "{}"), ("memory", "{}"), ("export", "{}"), ("report", "{}")),
    *(("export", "{instance}", "--only", "{}", "-o", "out"), ("export", "{instance}", "--shard", "{}", "-o", "out")),
    *(("export", "{instance}", "--format", "{}", "-o", "out"), ("export", "{instance}", "--system", "{}", "-o", "out")),
    *(("export", "{instance}", "--simulator", "{}", "-o", "out"), ("export", "--model", "{}", "-o", "out")),
    *(("export", "{instance}", "--granularity", "{}", "-o", "out"), ("export", "--profile", "{}", "-o", "out")),
    *(("timeline", "{instance}", "--only", "{}", "-o", "out"), ("timeline", "{instance}", "--width", "{}", "--format",
        "text"), ("instantiate", "card.yaml", "--strategy", "{}"), ("instantiate", "card.yaml", "--plan", "{}")),
    *(("instantiate", "card.yaml", "--schedule", "{}"), ("instantiate", "moe.yaml", "--expert-load", "{}")),
    *(("instantiate", "card.yaml", f"--{word}", "{}") for word in (
        *("ranks", "tp", "pp", "dp", "cp", "ep", "rank-order", "micro-batch-size", "global-batch-size", "seq-len"),
        *("virtual-stages", "layers-per-stage", "ulysses", "cp-kind", "cp-chunks", "capacity-factor", "hsdp", "zero"),
        *("recompute", "recompute-every", "recompute-first", "recompute-operators", "dtype", "workflow", "recipe"),
        *("dropout", "kernels"),
        *("recompute-modules", "dispatch", "dispatch-dtype", "node-ranks", "routing"),
    )),
    *(("ls", "--store", "{}"), ("store", "status", "--store", "{}"), ("store", "{}")),
)  # fmt: skip


def _command_line(rng: random.Random, seeds: Seeds) -> Attempt:
    own = text(rng)
    arguments = _filled(rng.choice(_VALUES), own, seeds)
    if rng.random() < 0.08:
        arguments = (*arguments, text(rng))
    files = {name: seeds.files[name] for name in ("card.yaml", "moe.yaml", "set.packed")}
    # A value may be a name to write to, in its own directory.
    made = frozenset({"out", "set", own.split("/", 1)[0], ".".join(own.split(".")[:-1])} - {"card.yaml"})
    return Attempt("values", arguments, files, made)


_TARGETS: Mapping[str, dict[str, bytes | str]] = {
    "a device": {"given": "link:/dev/null"},
    "a pipe": {"given": "fifo"},
    "a link": {"given": "link:other", "other": b"old"},
    "a link to nothing": {"given": "link:other"},
    "a link to itself": {"given": "link:given"},
    "a directory": {"given": "directory", "given/notes.txt": b"mine"},
    "a file": {"given": b"old"},
}


def _outputs(rng: random.Random, seeds: Seeds) -> Attempt:
    commands = [
        *(("ls", "-f", form, "-o", "{}") for form in ("table", "csv", "json", "ndjson", "parquet")),
        *(("query", "bytes_by_axis", "-o", "{}"), ("memory", "{instance}", "--show", "peaks", "-o", "{}")),
        *(("export", "{instance}", "-o", "{}"), ("export", "{instance}", "--packed", "-o", "{}")),
        *(("report", "{instance}", "-o", "{}"), ("timeline", "{instance}", "-o", "{}"), ("models", "-o", "{}")),
        *(("unpack", "set.packed", "-o", "{}"), ("queries", "-f", "csv", "-o", "{}")),
    ]
    command = rng.choice(commands)
    kind = rng.choice(["a name", *_TARGETS])
    force = ("--force",) if command[0] in ("export", "report", "timeline", "unpack") and rng.random() < 0.5 else ()
    name = text(rng) if kind == "a name" else rng.choice(["given", "given", "./given", "../here/given"])
    files = {"set.packed": seeds.files["set.packed"], **_TARGETS.get(kind, {})}
    if kind == "a directory" and rng.random() < 0.5:
        files |= {each.replace("set/", "given/", 1): data for each, data in seeds.under("set").items()}
    asked = {"a file": {"given"}, "a link": {"other"}, "a link to nothing": {"other"}}.get(kind, set())
    if kind == "a name":
        # A directory that is not there may be left again: `a/../b` is `b`.
        asked = {each.split("/", 1)[0] for each in (name, posixpath.normpath(name))}
    if command[0] in ("export", "unpack", "report", "timeline") and kind != "a name":
        asked = set()  # these replace only what they wrote themselves
    return Attempt("outputs", (*_filled(command, name, seeds), *force), files, frozenset(asked))


def _stored_names(rng: random.Random, seeds: Seeds) -> Attempt:
    """A hostile name goes into the store; commands that print it, or make a file's name of it, follow."""
    name = text(rng)
    card = {**_content(seeds.files["card.yaml"]), "name": name, "source": text(rng)}
    files = {"card.yaml": seeds.files["card.yaml"], "named.json": _json(card).encode()}
    commands = (
        *(("tag", seeds.instance, name), ("tag", seeds.profile, name), ("profile", seeds.instance, "--name", name)),
        *(("instantiate", "card.yaml", "--name", name), ("ls",), ("ls", "profiles"), ("ls", "graphs"), ("show", name)),
        *(("build", "named.json"), ("models", "named.json"), ("instantiate", "named.json"), ("memory", name)),
        *(("export", "--model", "named.json"), ("export", "--model", "named.json", "--packed"), ("ls", "-f", "csv")),
        *(("report", "--model", "named.json"), ("timeline", "--model", "named.json"), ("diff", name, seeds.instance)),
    )
    command = rng.choice(commands)
    made = {"export", "report", "timeline"} & {command[0]}
    return Attempt("stored names", command, files, frozenset(_default_names(name)) if made else frozenset())


def _own_block(rng: random.Random, seeds: Seeds) -> Attempt:
    """A card with a block of its own, whose file or card is hostile."""
    files = {name: seeds.files[name] for name in ("own.yaml", "block.yaml")}
    name = rng.choice(["block.yaml", "block.yaml", "block.yaml", "own.yaml"])
    files[name] = _document(rng, files[name], seeds.files["plan.yaml"])
    return Attempt("blocks", rng.choice([("models", "own.yaml"), ("models", "own.yaml"), ("build", "own.yaml")]), files)


def _default_names(name: str) -> set[str]:
    from stagedb.files import file_name

    return {f"{file_name(name)}-1{ending}" for ending in ("", ".packed", ".html", ".pftrace")}


DOORS: Mapping[str, Door] = {
    "cards": _file("cards", "card.yaml", _ENDINGS, *[("models", "{}")] * 6, ("build", "{}"), ("export", "--model", "{}",
        "--only", "0", "-o", "/dev/null/x")),
    "configs": lambda rng, seeds: _file("configs", rng.choice(["config.json", "mixtral.json"]), (".json",),
        ("models", "{}"))(rng, seeds),
    "blocks": _own_block,
    "plans": _file("plans", "plan.yaml", _ENDINGS, ("instantiate", "card.yaml", "--plan", "{}")),
    "strategies": _file("strategies", "strategy.yaml", (".yaml", ".json"), ("instantiate", "card.yaml", *_PLAN,
        "--strategy", "{}")),
    "systems": _file("systems", "system.yaml", (".yaml", ".json"), ("systems", "{}"), ("profile", "{instance}",
        "--system", "{}"), ("export", "{instance}", "--system", "{}", "-o", "/dev/null/x")),
    "schedules": _file("schedules", "schedule.yaml", (".yaml", ".json"), ("instantiate", "card.yaml", "--pp", "2",
        "--global-batch-size", "2", "--schedule", "{}")),
    "loads": _file("loads", "load.yaml", (".yaml", ".json"), ("instantiate", "moe.yaml", "--dp", "2", "--ep", "2",
        "--expert-load", "{}")),
    "routings": _file("routings", "routing.json", (".yaml", ".json"), ("instantiate", "moe.yaml", "--dp", "2", "--ep",
        "2", "--dispatch", "ranks", "--routing", "{}")),
    "records": _file("records", "records.json", (".json",), ("validate", "--records", "{}")),
    "runs": _run,
    "durations": _durations,
    "configuration": _configuration,
    "parameters": _parameters,
    "queries": _query,
    "manifests": lambda rng, seeds: _trace_set(rng, seeds, "manifests", lambda name: name.endswith("manifest.json")),
    "checksums": lambda rng, seeds: _trace_set(rng, seeds, "checksums", lambda name: name.endswith(".sfv")),
    "traces": lambda rng, seeds: _trace_set(rng, seeds, "traces", lambda name: not name.endswith((".sfv", "t.json"))),
    "packed": _packed,
    "values": _command_line,
    "outputs": _outputs,
    "stored names": _stored_names,
}  # fmt: skip
"""What comes in by each door, by its name."""
