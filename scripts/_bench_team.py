"""Processes that use one store at the same time: build, instantiate, profile, query, export, rm and gc, seeded.

They share a few names, so that each removes and makes what others use. Every error must be a documented refusal, every
export must be equal to the one that is made alone, and at the end nothing is there twice, unfinished or without owner.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from scripts._bench import ROOT, Engine, embedded, own_neo4j
from stagedb.api import Stagedb, connect, model
from stagedb.errors import StagedbError
from stagedb.store import LABELS, Store
from stagedb.store.schema import OWNERS, members

MODELS = ("gpt2", "llama3.2-1b")
JOBS: Sequence[Mapping[str, Any]] = (
    {"model": "gpt2", "tp": 2, "pp": 2, "dp": 2, "seq_len": 256, "global_batch_size": 4},
    {"model": "gpt2", "dp": 8, "zero": 3, "seq_len": 256},
    {"model": "llama3.2-1b", "tp": 2, "dp": 2, "seq_len": 256},
    {"model": "llama3.2-1b", "pp": 2, "dp": 4, "seq_len": 256, "global_batch_size": 16},
)
NAMES = ("base", "next", "team/base")
RANKS = "MATCH (r:Rank {instance: $instance}) RETURN count(r) AS ranks, count(DISTINCT r.rank) AS different"

REFUSALS: Mapping[str, tuple[str, ...]] = {
    "another process has it": ("is being built or deleted by another process", "another process took over"),
    "removed while it was read": ("was removed by another process",),
    "made again while it was read": ("by other processes while it was read",),
    "what it is made from is gone": ("is gone, or is being deleted", "was removed meanwhile", "was changed meanwhile"),
    "there is none": ("in the store; `db.ls()`", "in the store: did you mean", "the store has no", "unknown model"),
    "others need it": (
        *("instances need graph", " needs graph ", "is not yours alone"),
        "to remove it with what it means",
    ),
}
"""Kinds of documented refusals, by a part of their text."""


class Worker:
    """One process of the team. It counts what it does, and what is refused."""

    def __init__(self, db: Stagedb, request: Mapping[str, Any]) -> None:
        self.db = db
        self.random = random.Random(f"{request['seed']}/{request['number']}")
        self.scratch = Path(request["scratch"])
        self.number = request["number"]
        self.expected: Mapping[str, str] = request["expected"]
        self.faults: list[str] = []

    def run(self, seconds: float) -> dict[str, Any]:
        """Random steps for so many seconds: `done` and `refused` by kind, and faults as texts."""
        steps: Mapping[Callable[[], None], int] = {
            self.build: 2,
            self.instantiate: 6,
            self.profile: 3,
            self.query: 5,
            self.ranks: 3,
            self.export: 5,
            self.remove: 4,
            self.remove_graph: 1,
            self.collect: 1,
        }
        done, refused = Counter[str](), Counter[str]()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (step,) = self.random.choices([*steps], [*steps.values()])
            try:
                step()
                done[step.__name__] += 1
            except StagedbError as error:
                refused[self._kind(step.__name__, error)] += 1
            except Exception as error:  # noqa: BLE001 - any other error is what is looked for
                self.faults.append(f"{step.__name__}: {type(error).__name__}: {error}")
        return {"done": done, "refused": refused, "faults": self.faults}

    def _kind(self, step: str, error: StagedbError) -> str:
        for kind, parts in REFUSALS.items():
            if any(part in str(error) for part in parts):
                return kind
        self.faults.append(f"{step}: {error}")
        return "not documented"

    def build(self) -> None:
        self.db.build(card(self.random.choice(MODELS), self.scratch))

    def instantiate(self) -> None:
        make(self.db, self.random.choice(JOBS), self.scratch, self.random.choice(NAMES))

    def profile(self) -> None:
        self.db.profile(self._instance(), system="h100")

    def query(self) -> None:
        self.db.query("bytes_by_axis", instance=self._instance())

    def ranks(self) -> None:
        rows = self.db.query(RANKS, instance=self._instance()).rows
        if rows not in (((8, 8),), ((4, 4),)):
            self.faults.append(f"an instance with {rows} ranks")

    def export(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.scratch) as name:
            made = self.db.export(self._instance(), out=Path(name) / "traces")
            self.compare(made.instance.id, digest(made.path))

    def compare(self, instance: str, found: str) -> None:
        """Note a fault unless an export is equal to the one that was made alone."""
        if self.expected.get(instance) != found:
            self.faults.append(f"the export of {instance} differs from the one that was made alone")

    def remove(self) -> None:
        self.db.rm(self.random.choice(NAMES), force=self.random.random() < 0.7)

    def remove_graph(self) -> None:
        graphs = self.db.graphs()
        if graphs:
            self.db.rm(self.random.choice(graphs).id, force=self.random.random() < 0.5)

    def collect(self) -> None:
        self.db.gc(dead=True, unnamed_older_than=self.random.choice([0.0, 1.0]))

    def _instance(self) -> str:
        return self.random.choice(NAMES)


def card(name: str, scratch: Path) -> str:
    """The path of a library model's card with two layers."""
    path = scratch / f"{name}.json"
    if not path.exists():
        content = {**model(name), "name": f"{name}-2", "layers": 2, "parameters": 0}
        part = scratch / f"{name}.{os.getpid()}"
        part.write_text(json.dumps(content), encoding="utf-8")
        part.rename(path)
    return str(path)


def make(db: Stagedb, job: Mapping[str, Any], scratch: Path, name: str | None = None) -> str:
    """The instance of a job."""
    words = {word: value for word, value in job.items() if word != "model"}
    return db.instantiate(card(job["model"], scratch), name=name, **words).id


def digest(directory: Path) -> str:
    """sha256 of all traces of a set."""
    found = hashlib.sha256()
    for path in sorted(directory.glob("*.et"), key=lambda path: path.name.split(".")[-2]):
        found.update(path.name.split(".")[-2].encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def alone(db: Stagedb, scratch: Path) -> dict[str, str]:
    """The digest of each job's export, from a store that nobody else uses."""
    expected = {}
    for number, job in enumerate(JOBS):
        instance = make(db, job, scratch)
        expected[instance] = digest(db.export(instance, out=scratch / f"alone-{number}").path)
    return expected


def faults_of(store: Store) -> Iterator[str]:
    """What a store has that no complete graph, instance or profile explains. It counts in the store, by label."""
    for row in store.read("catalog/unfinished"):
        yield f"{row['kind']} {row['id']} is unfinished"
    for label in LABELS:
        twice = _count(store, f"MATCH (n:{label.name}) WITH n.id AS id, count(*) AS n WHERE n > 1 RETURN count(id)")
        if twice:
            yield f"{twice} ids of {label.name} are there twice"
    for owner in OWNERS:
        for label, path in members(owner):
            there = _count(store, f"MATCH (n:{label.name}) RETURN count(n)")
            steps = "".join(f"-[:{edge.type}]->(:{edge.target})" for edge in path[:-1])
            pattern = (
                f"MATCH (:{owner}){steps}-[:{path[-1].type}]->(n:{label.name}) RETURN count(DISTINCT n)"
                if path
                else f"MATCH (o:{owner}) MATCH (n:{label.name} {{{label.member_by}: o.id}}) RETURN count(n)"
            )
            owned = _count(store, pattern)
            if there != owned:
                yield f"{there - owned} {label.name} nodes belong to no {owner}"


def _count(store: Store, text: str) -> int:
    return int(store.query(text, ranks=False).rows[0][0])


@contextmanager
def running(engine: Engine) -> Iterator[None]:
    """A store that this process and those it starts use."""
    before = dict(os.environ)
    try:
        if engine.start is not None:
            engine.start()
        os.environ.update(engine.environment)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        if engine.stop is not None:
            engine.stop()


def team(scratch: Path, processes: int, seconds: float, seed: int, expected: Mapping[str, str]) -> dict[str, Any]:
    """Run the processes on the store of the environment. Returns what they did, and all faults."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "scripts._bench_team", "--worker"],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "STAGEDB_USER": f"user{number % 2}",
                "STAGEDB_WORKSPACE": "team",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    about = {"seed": seed, "scratch": str(scratch), "expected": expected, "seconds": seconds}
    for number, worker in enumerate(workers):
        requests = cast("IO[str]", worker.stdin)
        requests.write(json.dumps({**about, "number": number}))
        requests.close()
    done, refused, faults = Counter[str](), Counter[str](), []
    for number, worker in enumerate(workers):
        with cast("IO[str]", worker.stdout) as answers:
            text = answers.read()
        if worker.wait() != 0:
            faults.append(f"process {number} ended with status {worker.returncode}")
            continue
        answer = json.loads(text)
        done.update(answer["done"])
        refused.update(answer["refused"])
        faults += answer["faults"]
    with connect() as db:
        last = Worker(db, {**about, "number": processes})
        for each in db.instances():
            last.compare(each.id, digest(db.export(each.id, out=scratch / f"last-{each.id}").path))
        faults += [*last.faults, *faults_of(db.store)]
    return {"done": dict(done), "refused": dict(refused), "faults": faults}


def table(result: Mapping[str, Any]) -> str:
    """The result as text."""
    rows = [
        (what, kind, count) for what in ("done", "refused") for kind, count in sorted(result[what].items(), key=_most)
    ]
    lines = [f"{what:<8} {kind:<32} {count:>6,}" for what, kind, count in rows]
    return "\n".join([*lines, *(f"fault    {each}" for each in result["faults"]), f"{len(result['faults'])} faults"])


def _most(item: tuple[str, int]) -> int:
    return -item[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench team", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--engine", choices=("embedded", "neo4j"), default="neo4j", help="of the store (neo4j)")
    parser.add_argument("--processes", type=int, default=8, help="that use it at once (default 8)")
    parser.add_argument("--seconds", type=float, default=120.0, help="for which they do so (default 120)")
    parser.add_argument("--seed", type=int, default=1, help="of their steps (default 1)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        request = json.load(sys.stdin)
        with connect() as db:
            print(json.dumps(Worker(db, request).run(request["seconds"])))
        return 0
    if options.processes < 1 or not 0 < options.seconds <= 86_400:
        parser.error("--processes must be at least 1, and --seconds above 0 and at most 86400")
    with tempfile.TemporaryDirectory(prefix="stagedb-team-") as name:
        scratch = Path(name)
        with running(embedded(scratch / "alone")), connect() as db:
            expected = alone(db, scratch)
        engine = embedded(scratch / "home") if options.engine == "embedded" else own_neo4j(scratch / "neo4j")
        with running(engine):
            result = team(scratch, options.processes, options.seconds, options.seed, expected)
    print(table(result))
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
