"""The trials of scripts/faults: what is broken, under which load."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts._fault_clients import Client, Trial
from scripts._fault_servers import Line, fill, limit_files
from scripts._fault_worker import STEPS, TOGETHER, state_of
from stagedb.api import Stagedb
from stagedb.errors import StagedbError


def killed_clients(trial: Trial, count: int) -> None:
    """Kill clients in the middle of a step, while another one works."""
    typical = _times(trial, 1)
    colleague = trial.client(trial.steps(0))
    names: list[str] = []
    killed = 0
    while killed < count:
        names = names or trial.random.sample([*STEPS], len(STEPS))
        name = names.pop()
        there = state_of(trial.journals, trial.jobs)[trial.jobs[1].things["Profile"]]
        first = [] if name == "rm" and there else [("profile", 1)] if name == "rm" else [("rm", 1)]
        if name == "export" and trial.random.random() < 0.5:
            first = [("instantiate", 1)]
        client = trial.client([*first, (name, 1)])
        if not client.wait("begin", len(first) + 1):
            trial.fault(f"{name} did not begin: {client.finish()}")
            return
        time.sleep(trial.random.random() * typical[name])
        client.kill()
        trial.count(client)
        if len(client.seen("done")) > len(first):
            trial.outcome.counts["ended before the kill"] += 1
            continue
        killed += 1
        trial.outcome.counts[f"killed in {name}"] += 1
        trial.examine([1])
        _next_command(trial, name, 1)
        trial.clean()
        trial.show(f"client {killed} of {count}")
    _end(trial, [colleague])
    trial.examine(range(len(trial.jobs)))


def worked_together(trial: Trial, seconds: float, clients: int = 3) -> None:
    """Clients remove, collect, dump, load, tag and export the same things at once, and are killed now and then.

    What is there at the end must be whole: the store's check finds nothing, an export is equal to the one that was
    made alone, and each dump that has its name can be loaded.
    """
    end = time.monotonic() + seconds
    working = [trial.client(_together(trial)) for _ in range(clients)]
    while time.monotonic() < end:
        time.sleep(trial.random.random() * 4)
        number = trial.random.randrange(clients)
        working[number].kill()
        trial.outcome.counts["clients killed"] += 1
        trial.count(working[number])
        _examine_dump(trial, working[number])
        working[number] = trial.client(_together(trial))
        trial.show(f"{max(0.0, end - time.monotonic()):.0f} s remain")
    _end(trial, working)
    for client in working:
        _examine_dump(trial, client)
    with trial.opened() as db:
        db.gc(dead=True)
    trial.examine_what_is_there()


def _together(trial: Trial) -> list[tuple[str, int]]:
    return [(name, 0) for name in trial.random.choices(TOGETHER, weights=(2, 1, 2, 3, 2, 3), k=2_000)]


def _examine_dump(trial: Trial, client: Client) -> None:
    """A dump that has its name is whole, however its client ended."""
    path = client.scratch / "kept.dump"
    if path.exists():
        try:
            with trial.opened() as db:
                db.load(path)
            trial.outcome.counts["dumps loaded"] += 1
        except StagedbError as error:
            if trial.kind_of(str(error)) is None:
                trial.fault(f"a dump that has its name cannot be loaded: {error}")


def _times(trial: Trial, job: int) -> dict[str, float]:
    """Seconds of each step when nobody disturbs it."""
    client = trial.client([(name, job) for name in ("rm", "build", "instantiate", "profile", "export", "rm", "load")])
    client.wait("done", 7)
    _end(trial, [client])
    begun, done = client.seen("begin"), client.seen("done")
    found = {first["step"]: last["time"] - first["time"] for first, last in zip(begun, done, strict=False)}
    trial.outcome.counts.clear()
    return {name: found.get(name, 1.0) for name in STEPS}


def _next_command(trial: Trial, name: str, job: int) -> None:
    began = time.monotonic()
    client = trial.client([(name, job)])
    if not client.wait("done"):
        trial.fault(f"the next {name} did not work: {client.journal[-1:]}")
    trial.outcome.seconds.append(time.monotonic() - began)
    _end(trial, [client])


def _end(trial: Trial, clients: Sequence[Client]) -> None:
    for client in clients:
        wrong = client.finish()
        if wrong:
            trial.fault(wrong)
        trial.count(client)


def _under_load(
    trial: Trial, fault: Callable[[], None], environment: Mapping[str, str] | None = None, pause: float = 3.0
) -> None:
    """Break something while a client for each job works; then each client must do something again."""
    clients = [trial.client(trial.steps(number), environment) for number in range(len(trial.jobs))]
    for client in clients:
        if not client.wait("done"):
            trial.fault(f"a client did not begin: {client.journal[-1:]}")
    time.sleep(trial.random.random() * pause)
    fault()
    whole = time.monotonic()
    for client in clients:
        if client.wait("done", after=whole):
            trial.outcome.seconds.append(client.seen("done", whole)[0]["time"] - whole)
        else:
            trial.fault(f"the next command did not work: {client.journal[-1:]}")
    _end(trial, clients)
    trial.examine(range(len(trial.jobs)))
    with trial.opened() as db:
        db.gc(dead=True)
    trial.clean()


def killed_servers(trial: Trial, count: int) -> None:
    """Kill the server, and start it again."""

    def fault() -> None:
        trial.server.kill()
        trial.outcome.counts["servers killed"] += 1
        time.sleep(trial.random.random())
        trial.server.start()

    for number in range(count):
        _under_load(trial, fault)
        trial.show(f"{number + 1} of {count}")


def cut_lines(trial: Trial, count: int) -> None:
    """Reset the connections of all clients, or let them fall silent."""
    uri = trial.server.environment["NEO4J_URI"]
    line = Line(int(uri.rsplit(":", 1)[1]))
    line.open()
    environment = {**trial.server.environment, "NEO4J_URI": f"bolt://127.0.0.1:{line.port}", "STAGEDB_WRITE_TIME": "10"}

    def reset() -> None:
        line.cut()
        trial.outcome.counts["connections reset"] += 1
        time.sleep(trial.random.random() * 5)
        line.open()

    def silence() -> None:
        line.stall()
        trial.outcome.counts["connections silent"] += 1

    for number in range(count):
        _under_load(trial, silence if number % 2 else reset, environment)
        trial.show(f"{number + 1} of {count}")
    line.close()


def full_disk(trial: Trial, count: int, *, quota: bool) -> None:
    """Let the server have no room, until each client was refused; then make room.

    quota: limit the size of its files instead of filling its disk.
    """

    def fault() -> None:
        number = trial.server.process()
        began, filler = time.monotonic(), None
        if quota:
            limit_files(number, _largest(trial.server.files))
        else:
            filler = fill(trial.server.files, left=256 << 10)
        _until_refused(trial, began)
        if filler is None:
            limit_files(number, None)
        else:
            filler.unlink()
        if trial.server.environment.get("NEO4J_URI"):
            # A Neo4j that could not write its log serves nothing until it is restarted.
            trial.server.stop()
            trial.server.start()
        trial.outcome.counts["disks full"] += 1

    for number in range(count):
        _under_load(trial, fault)
        trial.show(f"{number + 1} of {count}")


def _largest(directory: Path) -> int:
    return max(path.stat().st_size for path in directory.rglob("*") if path.is_file()) + (64 << 10)


def _until_refused(trial: Trial, began: float) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        latest = [client.journal for client in trial.clients[-len(trial.jobs) :]]
        if all(any(line["event"] == "failed" and line["time"] > began for line in each) for each in latest):
            return
        time.sleep(0.05)
    trial.fault("a full disk refused nothing")


def only_reads(trial: Trial) -> None:
    """Start the server read-only: all that changes nothing works, the rest is refused, and nothing has changed."""
    client = trial.client([("load", number) for number in range(len(trial.jobs) - 1)])
    client.wait("done", len(trial.jobs) - 1)
    _end(trial, [client])
    trial.server.stop()
    trial.server.start("server.databases.default_to_read_only=true")
    job, missing = trial.jobs[0], trial.jobs[-1]
    reads: Mapping[str, Callable[[Stagedb], object]] = {
        "ls": lambda db: [db.graphs(), db.instances(), db.profiles()],
        "find": lambda db: db.find(system="h100"),
        "show": lambda db: db.show(job.things["Instance"]),
        "query": lambda db: db.query("bytes_by_axis", instance=job.things["Instance"]),
        "export": lambda db: trial.compare(db, job),
        "memory": lambda db: db.memory(job.things["Instance"], keep=False),
        "report": lambda db: db.report_page(job.things["Profile"]),
        "timeline": lambda db: db.timeline(profile=job.things["Profile"], out=trial.scratch / "timeline"),
        "profile": lambda db: db.profile(job.things["Instance"], system="tpu-v5p", keep=False),
        "check": lambda db: db.check(),
        "dump": lambda db: db.dump(trial.scratch / "only-reads", job.things["Profile"], force=True),
        "build what exists": lambda db: db.build(job.card),
        "load what exists": lambda db: db.load(Path(job.dump)),
        "log": lambda db: db.log(),
    }
    writes: Mapping[str, Callable[[Stagedb], object]] = {
        "build": lambda db: db.build(missing.card),
        "load": lambda db: db.load(Path(missing.dump)),
        "profile": lambda db: db.profile(job.things["Instance"], system="tpu-v5p"),
        "rm": lambda db: db.rm(job.things["Graph"], force=True),
        "name": lambda db: db.name(job.things["Instance"], "other"),
        "tag": lambda db: db.tag(job.things["Instance"], "word"),
        "note": lambda db: db.note(job.things["Instance"], "text"),
    }
    with trial.opened() as db:
        for name, read in reads.items():
            _tried(trial, name, read, db, refused=False)
        for name, write in writes.items():
            _tried(trial, name, write, db, refused=True)
    trial.examine(range(len(trial.jobs)))
    trial.server.stop()
    trial.server.start()
    _next_command(trial, "load", len(trial.jobs) - 1)
    trial.examine(range(len(trial.jobs)))
    trial.clean()


def _tried(trial: Trial, name: str, action: Callable[[Stagedb], object], db: Stagedb, *, refused: bool) -> None:
    try:
        action(db)
    except StagedbError as error:
        if not refused or "read-only" not in str(error):
            trial.fault(f"{name} on a read-only server: {error}")
            return
    else:
        if refused:
            trial.fault(f"{name} on a read-only server was not refused")
            return
    trial.outcome.counts["refused writes" if refused else "reads that work"] += 1
