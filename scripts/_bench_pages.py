"""The pages of `stagedb serve` over a store of many instances and profiles: how long a reader waits for each.

Each page is asked for by the first reader of a server that started some seconds ago and has made its first pages
(cold), then again (warm, the median), then by many readers at once, each of whom reads all of them. With a browser, a
drawing of nodes is moved and zoomed, and its frames are timed.
"""

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urljoin
from urllib.request import urlopen

from scripts._bench import ROOT, Engine, embedded, own_neo4j
from scripts._bench_team import running
from stagedb.api import connect

PAGES: Mapping[str, str] = {
    "home": "/",
    "look up": "/lookup?text=copy-77",
    "instances": "/list/instances",
    "filtered": "/list/instances?plan=tp%3D2&text=copy-9&sort=step",
    "profiles": "/list/profiles",
    "find": "/find?model=gpt2&system=h100",
    "models": "/models",
    "model": "/models/gpt2",
    "instance": "/instances/{instance}",
    "memory": "/instances/{instance}/memory",
    "profile": "/profiles/{profile}",
    "queries": "/queries",
    "Cypher": "/cypher",
    "Explore": "/explore?node=Instance/{instance}",
    "log": "/log",
}
WARM = 3
"""Times that a page is asked for again."""
FORGOTTEN = 2.5
"""Seconds after which a server makes a page again, instead of showing what it just made."""

UNSHARED = 1.1
"""Seconds after which a page shares no rows with the page before it."""

STARTED = 10.0
"""Seconds after a server's start in which it makes its first pages, and nobody reads."""

MOVE = """new Promise((done) => {
  const box = document.querySelector("canvas").getBoundingClientRect();
  const target = document.querySelector("canvas").parentElement.parentElement;
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  const send = (kind, dx, dy, wheel = 0) => document.elementFromPoint(x, y).dispatchEvent(
    wheel ? new WheelEvent("wheel", {clientX: x, clientY: y, deltaY: wheel, bubbles: true, cancelable: true})
          : new MouseEvent(kind, {clientX: x + dx, clientY: y + dy, button: 0, buttons: 1, bubbles: true}));
  const frames = [];
  let last, count = 0;
  const step = (now) => {
    if (last !== undefined) frames.push(now - last);
    last = now;
    if (count === 240) { send("mouseup", 0, 0); done(JSON.stringify(frames)); return; }
    if (count % 60 === 0) send("mousedown", 0, 0);
    if (count % 60 < 30) send("mousemove", 4 * (count % 60), 2 * (count % 60));
    else send("wheel", 0, 0, count % 4 < 2 ? 60 : -60);
    count += 1;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""
"""Four times half a second of moving and half a second of zooming, in frames of the browser."""


DRAWN = "graph.nodes().length"


@dataclass(frozen=True)
class Waits:
    """Seconds for the whole answer of a page. readers: the longest wait of many. scripts: bytes, each compressed."""

    page: str
    cold: float
    warm: float
    readers: float
    scripts: int


def stock(count: int) -> tuple[str, str]:
    """An instance with a profile, and copies of both. The ids of the first."""
    from tests.store.many import copies

    with connect() as db:
        made = db.instantiate("gpt2", tp=2, pp=2, dp=2, global_batch_size=16, name="first")
        profile = db.profile(made.id, system="h100")
        copies(db.store, made.id, count)
        return made.id, profile.info.id


@contextmanager
def served() -> Iterator[str]:
    """The address of a server that just started."""
    command = [sys.executable, "-m", "stagedb", "serve", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        found = re.search(r"http://\S+", line)
        if found is None:
            sys.exit("stagedb serve did not start")
        yield found[0].rstrip("/")
    finally:
        process.terminate()
        process.wait()


def seconds(address: str, pause: float = 0.0) -> float:
    """The time until the whole answer is there. pause: seconds before it is asked for."""
    time.sleep(pause)
    began = time.perf_counter()
    with urlopen(address) as answer:  # noqa: S310 - an address of this machine
        answer.read()
    return time.perf_counter() - began


def scripts_of(address: str) -> int:
    """The bytes of the scripts that a page loads before it is ready, each compressed."""
    with urlopen(address) as answer:  # noqa: S310 - an address of this machine
        text = answer.read().decode()
    total = 0
    for path in re.findall(r'<script[^>]* src="([^"]+)"', text):
        with urlopen(urljoin(address, path)) as answer:  # noqa: S310 - an address of this machine
            total += len(gzip.compress(answer.read()))
    return total


def measure(address: str, pages: Mapping[str, str], readers: int) -> list[Waits]:
    """What a reader waits for, alone and among many."""
    addresses = {name: address + path for name, path in pages.items()}
    time.sleep(STARTED)
    cold = {name: seconds(each, UNSHARED) for name, each in addresses.items()}
    rounds = []
    for _ in range(WARM):
        time.sleep(FORGOTTEN)
        rounds.append({name: seconds(each, UNSHARED) for name, each in addresses.items()})
    warm = {name: statistics.median(each[name] for each in rounds) for name in addresses}
    time.sleep(FORGOTTEN)
    names = [*addresses]

    def read(reader: int) -> dict[str, float]:
        turn = reader % len(names)
        return {name: seconds(addresses[name]) for name in (*names[turn:], *names[:turn])}

    with ThreadPoolExecutor(readers) as pool:
        together = list(pool.map(read, range(readers)))
    return [
        Waits(name, cold[name], warm[name], max(each[name] for each in together), scripts_of(addresses[name]))
        for name in names
    ]


def frames(address: str, nodes: int) -> tuple[int, list[float]]:
    """How many nodes are drawn, and milliseconds of each frame while the drawing moves."""
    from tests.browsing import browsing

    query = f"MATCH (a:Op) WITH a ORDER BY a.id LIMIT {nodes} RETURN a"
    # Processes of a browser that ends still write a moment later.
    with (
        tempfile.TemporaryDirectory(prefix="stagedb-browser-", ignore_cleanup_errors=True) as profile,
        browsing(Path(profile)) as browser,
    ):
        browser.visit(f"{address}/explore?{urlencode({'query': query})}", 1280)
        time.sleep(3)  # layouts come after the page
        drawn = int(browser.run(DRAWN))
        return drawn, json.loads(browser.run(MOVE))


def spread(found: Sequence[float]) -> str:
    """Times of frames as text."""
    late = sum(each > 33.4 for each in found) / len(found)
    slow = sorted(found)[int(0.95 * len(found))]
    return f"{len(found)} frames, 95 % within {slow:.1f} ms, {late:.1%} above 33 ms"


def table(engine: str, count: int, readers: int, rows: Sequence[Waits]) -> str:
    """The figures, as text."""
    lines = [
        f"{engine}: {count:,} instances and profiles; seconds",
        f"{'page':<12}{'cold':>7}{'warm':>7}{f'{readers} readers':>13}{'scripts KB':>12}",
    ]
    lines += [f"{e.page:<12}{e.cold:>7.2f}{e.warm:>7.2f}{e.readers:>13.2f}{e.scripts / 1e3:>12.1f}" for e in rows]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench pages", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--engine", choices=("embedded", "neo4j"), help="of the store (both)")
    parser.add_argument("--instances", type=int, default=1_000, help="in the store, each with a profile (1,000)")
    parser.add_argument("--readers", type=int, default=50, help="that read all pages at once (50)")
    parser.add_argument("--nodes", type=int, default=200, help="of the drawing that moves, at most (200)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stagedb-pages-") as name:
        scratch = Path(name)
        makers: Mapping[str, Callable[[], Engine]] = {
            "embedded": lambda: embedded(scratch / "home"),
            "neo4j": lambda: own_neo4j(scratch / "neo4j"),
        }
        for key, make in makers.items():
            if options.engine in (None, key):
                engine = make()
                with running(engine):
                    os.environ.update(engine.environment)
                    instance, profile = stock(options.instances)
                    pages = {page: path.format(instance=instance, profile=profile) for page, path in PAGES.items()}
                    with served() as address:
                        rows = measure(address, pages, options.readers)
                        print(table(engine.name, options.instances, options.readers, rows))
                        drawn, found = frames(address, options.nodes)
                        print(f"{drawn} nodes moved and zoomed: {spread(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
