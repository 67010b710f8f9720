"""The benchmark behind `scripts/bench counts`: what a store has of traces, next to what a plain count finds in them.

    scripts/bench counts trace.json.gz export.sqlite
    scripts/bench counts --store bolt://localhost:7687 --store embedded FOLDER-OF-A-JOB

Each file is a run of its own, and a directory one run of all its files. A file of PyTorch's profiler is read by
Python's `json`, an export of Nsight Systems by SQL; nothing of stagedb takes part in the count. Then stagedb imports
the files into each store, and Cypher counts the same there: events of each category, kernels, kernels of NCCL and its
like, collectives and messages with their bytes, copies and fills with theirs, streams, and ops without a successor on
their stream, which is one a stream. `equal` or what is different is at the end of the row; the exit status is 1 if
anything is.

Without `--store` there are two: an embedded store of its own, which is removed afterwards, and the Neo4j of
STAGEDB_TEST_NEO4J if this is set.
"""

import argparse
import gzip
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KERNELS, LIBRARY, COLLECTIVES, MESSAGES, COPIES, COPIED, STREAMS, LAST = COUNTS = (
    *("kernels", "of NCCL", "collectives", "their bytes", "copies", "their bytes copied", "streams"),
    "without a successor",
)
EVENTS = "events of "
"""Begin of the names of the numbers of events, before their category."""

EMBEDDED = "embedded"

_OF_LIBRARY = re.compile("nccl|rccl", re.IGNORECASE)
_COMMUNICATES = re.compile(r"nccl|rccl|\bep::inter|\bep::intra|cross_device_reduce|multimem_all|nvshmem", re.IGNORECASE)
_SIZES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Int", "Float"), 4),
    **dict.fromkeys(("Long", "Double"), 8),
}
_KERNELS_OF = ("kernel", "Kernel", "mtia_ccp_events")
_COPIES_OF = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
_MARKS = ("event_wait", "event_record")
_TABLES = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
    *("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"),
)

Numbers = Counter[str]
"""The counts of `COUNTS`, and events by category."""

IMPORT = """
import json, sys
from pathlib import Path
import stagedb
from stagedb.errors import StagedbError
try:
    with stagedb.connect() as db:
        run = db.import_run(*map(Path, sys.argv[3:])).id
        found = [[*map(dict, db.query(each, run=run))] for each in sys.argv[1:3]]
except StagedbError as error:
    sys.exit(str(error))
print(json.dumps(found))
"""
RANKS = "MATCH (:Run {id: $run})-[:HAS_RANK]->(r) RETURN r.categories AS categories, r.events AS events"
STREAM_OPS = f"""
MATCH (:Run {{id: $run}})-[:HAS_LANE]->()-[:HAS_OP_TIME]->(o {{processor: 'device'}})
OPTIONAL MATCH (o)-[:NEXT]->(n)
WITH o, toLower(o.symbol) AS name, o.type <> 'copy' AS computes, o.type IN ['collective', 'send', 'recv'] AS talks,
     count(CASE WHEN n.stream = o.stream AND n.start >= o.start THEN 1 END) = 1 AND count(n) = 1 AS followed
RETURN o.lane AS lane, o.stream AS stream, o.ranks AS ranks,
       sum(CASE WHEN computes THEN 1 ELSE 0 END) AS `{KERNELS}`,
       sum(CASE WHEN computes AND (name CONTAINS 'nccl' OR name CONTAINS 'rccl') THEN 1 ELSE 0 END) AS `{LIBRARY}`,
       sum(CASE WHEN talks THEN 1 ELSE 0 END) AS `{COLLECTIVES}`,
       sum(CASE WHEN talks THEN coalesce(o.message, 0) ELSE 0 END) AS `{MESSAGES}`,
       sum(CASE WHEN computes THEN 0 ELSE 1 END) AS `{COPIES}`,
       sum(CASE WHEN computes THEN 0 ELSE coalesce(o.bytes, 0) END) AS `{COPIED}`,
       1 AS `{STREAMS}`,
       sum(CASE WHEN followed THEN 0 ELSE 1 END) AS `{LAST}`
"""


def main() -> None:
    """Print a row for each run. Ends with status 1 if a store has something else than the files."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench counts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="+", help="traces, each a run, or directories, each a run")
    parser.add_argument("--store", action="append", help=f"an address, or {EMBEDDED}; may be repeated")
    asked = parser.parse_args()
    stores = asked.store or [EMBEDDED, *os.environ.get("STAGEDB_TEST_NEO4J", "").split()[:1]]
    names = [EMBEDDED if each == EMBEDDED else "Neo4j" for each in stores]
    print("|", " | ".join(("run", "events", *COUNTS, *names)), "|")
    print("|---" + "|--:" * (1 + len(COUNTS)) + "|---" * len(stores) + "|", flush=True)
    with TemporaryDirectory() as home:
        results = [row(trace, [(each, Path(home)) for each in stores]) for trace in asked.traces]
        down = [sys.executable, "-m", "stagedb", "store", "down", "--quiet"]
        subprocess.run(down, env=environment(EMBEDDED, Path(home)), check=False)
    sys.exit(not all(results))


def row(trace: Path, stores: Sequence[tuple[str, Path]]) -> bool:
    """Print the row of a run. stores: address and directory of each. Returns whether all have what the files have."""
    files = sorted(each for each in trace.iterdir() if each.is_file()) if trace.is_dir() else [trace]
    numbers: Numbers = Counter()
    for file in files:
        numbers.update(counted(file))
    answers = [compared(numbers, stored(files, store, home)) for store, home in stores]
    events = sum(count for name, count in numbers.items() if name.startswith(EVENTS))
    values = [events, *(numbers[each] for each in COUNTS)]
    print("|", " | ".join((str(trace), *(f"{each:,}" for each in values), *answers)), "|", flush=True)
    return all(each == "equal" for each in answers)


def compared(numbers: Numbers, found: Numbers | str) -> str:
    """`equal`, or what is different. numbers: of the files. found: of a store, or why there are none."""
    if isinstance(found, str):
        return found
    names = sorted(name for name in numbers.keys() | found.keys() if numbers[name] != found[name])
    return ", ".join(f"{name}: {found[name]:,} and not {numbers[name]:,}" for name in names) or "equal"


def counted(file: Path) -> Numbers:
    """What a plain count finds in a file."""
    with file.open("rb") as opened:
        begin = opened.read(16)
    if begin.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            return _of_export(database)
    text = gzip.decompress(file.read_bytes()) if begin.startswith(b"\x1f\x8b") else file.read_bytes()
    document = json.loads(text.decode(errors="replace"), strict=False)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        sys.exit(
            f"scripts/bench counts: {file} is neither a trace of PyTorch's profiler nor an export of Nsight Systems"
        )
    return counted_events(events)


def counted_events(events: Sequence[dict[str, Any]]) -> Numbers:
    spans = [each for each in events if each.get("ph") == "X"]
    numbers: Numbers = Counter(f"{EVENTS}{each['cat']}" for each in spans if "cat" in each)
    calls = {}
    for each in spans:
        if each["name"] == "record_param_comms" and "Collective name" in each.get("args", {}):
            calls[each["args"].get("External id")] = each["args"]
    streams: Counter[Any] = Counter()
    for each in spans:
        args, name, category = each.get("args", {}), str(each["name"]), each.get("cat")
        if category not in (*_KERNELS_OF, *_COPIES_OF) or (category == "mtia_ccp_events" and name in _MARKS):
            continue
        streams[args.get("device", each["pid"]), args.get("stream", each["tid"])] += 1
        if category in _COPIES_OF or (category == "mtia_ccp_events" and name.startswith("dma")):
            numbers[COPIES] += 1
            numbers[COPIED] += args.get("bytes", args.get("size", 0))
            continue
        numbers[KERNELS] += 1
        numbers[LIBRARY] += bool(_OF_LIBRARY.search(name))
        if "Collective name" in args or _COMMUNICATES.search(name):
            record = args if "Collective name" in args else calls.get(args.get("External id"), {})
            elements = record.get("Out msg nelems" if record.get("Collective name") == "recv" else "In msg nelems", 0)
            numbers[COLLECTIVES] += 1
            numbers[MESSAGES] += elements * _SIZES.get(record.get("dtype", ""), 0)
    numbers[STREAMS] = numbers[LAST] = len(streams)
    return +numbers


def _of_export(database: sqlite3.Connection) -> Numbers:
    def one(statement: str) -> int:
        return int(database.execute(statement).fetchone()[0] or 0)

    there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    kernels, *copies = _TABLES[:3]
    # Names of tables are those above.
    numbers: Numbers = Counter()
    for each in there.intersection(_TABLES):
        numbers[f"{EVENTS}{each}"] = one(f"SELECT count(*) FROM {each}")  # noqa: S608
    numbers[KERNELS] = numbers[f"{EVENTS}{kernels}"]
    numbers[LIBRARY] = numbers[COLLECTIVES] = one(
        f"SELECT count(*) FROM {kernels} JOIN StringIds ON demangledName = id WHERE lower(value) LIKE '%nccl%'"  # noqa: S608
    )
    streams = {*database.execute(f"SELECT DISTINCT deviceId, streamId FROM {kernels}")}  # noqa: S608
    for each in there.intersection(copies):
        numbers[COPIES] += numbers[f"{EVENTS}{each}"]
        numbers[COPIED] += one(f"SELECT sum(bytes) FROM {each}")  # noqa: S608
        streams |= {*database.execute(f"SELECT DISTINCT deviceId, streamId FROM {each}")}  # noqa: S608
    numbers[STREAMS] = numbers[LAST] = len(streams)
    return +numbers


def stored(files: Sequence[Path], store: str, home: Path) -> Numbers | str:
    """What a store has of files once it has imported them; the error if it refuses them.

    store: its address, or `EMBEDDED`. home: the directory of that.
    """
    words = [sys.executable, "-c", IMPORT, RANKS, STREAM_OPS, *(str(each.absolute()) for each in files)]
    ran = subprocess.run(words, env=environment(store, home), capture_output=True, text=True, check=False)
    if ran.returncode:
        return (ran.stderr.strip().splitlines() or [f"it ended with {ran.returncode}"])[-1]
    ranks, streams = json.loads(ran.stdout)
    numbers: Numbers = Counter()
    # Ranks of one export have the events of its file.
    for each in ranks[:1] if "StringIds" in ranks[0]["categories"] else ranks:
        of = dict(zip(each["categories"], each["events"], strict=True))
        numbers.update({f"{EVENTS}{name}": of[name] for name in of.keys() & {*_TABLES} or of})
    for each in streams:
        numbers.update({name: each[name] * each["ranks"] for name in COUNTS})
    return +numbers


def environment(store: str, home: Path) -> dict[str, str]:
    """The environment of a command on a store."""
    own = {"STAGEDB_HOME": str(home), "NEO4J_URI": "", "STAGEDB_CONFIG": str(home / "none.toml")}
    return {**os.environ, "PYTHONPATH": str(ROOT), **(own if store == EMBEDDED else {**own, "NEO4J_URI": store})}


if __name__ == "__main__":
    main()
