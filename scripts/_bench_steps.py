"""The part of scripts/bench compare that runs inside a checkout: one process that runs steps on request.

It is a file of its own, run with that checkout's package on the path. It reads one request a line and answers with one
line, both JSON: `{"step": "memory"}` gives `{"seconds": 0.2, "fact": 1234, "hits": 0, "statements": 0}`. `fact` is a
figure that all checkouts must have in common. `hits` and `statements` are 0 before `{"step": "count"}`.
"""

import gc
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import neo4j

import stagedb

SYSTEM = "h100"


class Steps:
    """A job's steps in order: each leaves in the store what the next one needs."""

    def __init__(self, db: Any, model: str, words: dict[str, Any], scratch: Path) -> None:
        self.db = db
        self.model = model
        self.words = words
        self.out = scratch / "traces"
        self.instance = ""

    def clear(self) -> None:
        """Empty the store, and the directory."""
        for graph in self.db.graphs():
            self.db.rm(graph.id, force=True)
        self.tidy()

    def tidy(self) -> None:
        """Remove what an export has written."""
        if self.out.is_dir():
            shutil.rmtree(self.out)
        self.out.unlink(missing_ok=True)

    def build(self) -> int:
        self.db.build(self.model)
        return 0

    def instantiate(self) -> int:
        made = self.db.instantiate(self.model, **self.words)
        self.instance = made.id
        return int(made.classes)

    def memory(self) -> int:
        return max(int(row["peak"]) for row in self.db.memory(self.instance).peaks)

    def profile(self) -> int:
        return int(self.db.profile(self.instance, system=SYSTEM).step)

    def packed(self) -> int:
        return int(self.db.export(self.instance, packed=True, out=self.out).nodes)

    def export(self) -> int:
        return int(self.db.export(self.instance, out=self.out).bytes)

    def rm(self) -> int:
        return len(self.db.rm(self.instance))


class Counted:
    """The statements that the driver sends, and the server's database hits for them."""

    def __init__(self) -> None:
        self.hits = 0
        self.statements = 0

    def watch(self) -> None:
        """Make the server count from now on. Answers are read at once, because the count comes after them."""
        for kind in (neo4j.ManagedTransaction, neo4j.Session):
            kind.run = self._counting(kind.run)  # type: ignore[method-assign]  # the driver has no hook

    def _counting(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def counting(asked: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
            self.statements += 1
            if _defines(str(query)):
                return run(asked, query, *args, **kwargs)
            answer = Answer(run(asked, f"PROFILE {query}", *args, **kwargs))
            self.hits += _hits(answer.summary.profile)
            return answer

        return counting


class Answer:
    """The driver's result, read to its end."""

    def __init__(self, result: Any) -> None:
        self._keys = result.keys()
        self._records = list(result)
        self.summary = result.consume()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._records)

    def keys(self) -> Any:
        return self._keys

    def consume(self) -> Any:
        return self.summary

    def single(self) -> Any:
        return self._records[0] if self._records else None

    def data(self) -> list[dict[str, Any]]:
        return [record.data() for record in self._records]

    def values(self) -> list[list[Any]]:
        return [record.values() for record in self._records]


def _defines(query: str) -> bool:
    """Whether a statement makes a constraint or an index, or waits for one: such a statement is not profiled."""
    words = query.upper()
    return any(word in words for word in ("CONSTRAINT", " INDEX", "CALL DB."))


def _hits(plan: Any) -> int:
    """The database hits of all operators of a plan together."""
    if not plan:
        return 0
    own = plan.get("dbHits") or plan.get("args", {}).get("DbHits") or 0
    return int(own) + sum(_hits(child) for child in plan.get("children", ()))


def main() -> None:
    request = json.loads(sys.stdin.readline())
    if not Path(stagedb.__file__).resolve().is_relative_to(Path(request["checkout"]).resolve()):
        sys.exit(f"scripts/bench: the package is {stagedb.__file__}, which is not in {request['checkout']}")
    counted = Counted()
    with stagedb.connect() as db:
        steps = Steps(db, request["model"], request["words"], Path(request["scratch"]))
        for line in sys.stdin:
            asked = json.loads(line)["step"]
            if asked == "count":
                counted.watch()
            gc.collect()
            before = (counted.hits, counted.statements)
            began = time.perf_counter()
            fact = getattr(steps, asked)() if asked != "count" else None
            seconds = time.perf_counter() - began
            hits, statements = (
                now - then for now, then in zip((counted.hits, counted.statements), before, strict=True)
            )
            print(json.dumps({"seconds": seconds, "fact": fact, "hits": hits, "statements": statements}), flush=True)


if __name__ == "__main__":
    main()
