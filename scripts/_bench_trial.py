"""The part of `scripts/bench speed` that runs inside a checkout: a plan lowered, with its memory and its step.

It is a file of its own, run with that checkout's package on the path, and prints the processor time and the wall time
[s] of the best of several trials. Names are tried in the order in which checkouts had them, the newest first.
"""

import time
from importlib import import_module
from typing import Any

TRIALS = 5
NAMES = {
    "lower": ("stagedb.lowering:lower", "stagedb.workload.copied_instances:copy_in_memory"),
    "graph": ("stagedb.lowering:IndexedGraph", "stagedb.workload.copied_instances:GraphInMemory"),
    "memory": ("stagedb.memory:memory_of", "stagedb.search.trials:memory_of"),
    "peak": ("stagedb.memory:peak_of", "stagedb.search.trials:peak_of"),
    "step": ("stagedb.timing:step_of", "stagedb.timing:timed_step"),
}


def found(names: tuple[str, ...]) -> Any:
    """The first of these that the checkout has."""
    for each in names:
        module, name = each.split(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"this checkout has none of {', '.join(names)}")


def main() -> None:
    from stagedb.graphs.model_graph import build_graph
    from stagedb.models import load_card
    from stagedb.plans import Plan
    from stagedb.systems import load_system

    has = {word: found(names) for word, names in NAMES.items()}
    words = {"tp": 8, "pp": 8, "dp": 8, "sp": True, "seq_len": 8192, "global_batch_size": 128}
    plan, system = Plan.from_mapping(words), load_system("h100")
    graph = has["graph"].of(build_graph(load_card("llama3-70b"), plan.options))
    took = []
    for _ in range(TRIALS):
        cpu, wall = time.process_time(), time.perf_counter()
        program = has["lower"](graph, plan)
        has["peak"](has["memory"](program))
        if has["step"].__name__ == "step_of":
            has["step"](program.workload, system)
        else:
            has["step"](program.workload, system, None, ())
        took.append((time.process_time() - cpu, time.perf_counter() - wall))
    print("cpu {} wall {}".format(*(min(each) for each in zip(*took, strict=True))))


if __name__ == "__main__":
    main()
