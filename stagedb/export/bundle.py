"""What stands beside the traces: communicator groups, a simulator's inputs, and a manifest of what they are."""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stagedb.export.columns import TASK_KINDS, ClassColumns, Workload
from stagedb.export.encode import VERSION
from stagedb.export.encoded import EncodedClass
from stagedb.export.ranks import say_ranks
from stagedb.export.sequence import Sequence as Nodes
from stagedb.export.traceset import TraceSet

FORMAT = 1
"""Version of the manifest."""

LINK_BANDWIDTH = (450.0, 50.0)
LINK_LATENCY = (500.0, 2000.0)
"""GB/s and ns of the innermost network dimension and of the others: links inside a node, the network between nodes."""
MEMORY_BANDWIDTH, PEAK = 3350.0, 989.0
"""GB/s and TFLOP/s of an accelerator. All four are those of an H100 SXM (bf16) with a 400 Gb/s link of its own: an
example to be edited, as a workload says nothing about the system that it runs on."""


def groups_json(workload: Workload) -> str:
    """The groups as simulators read them: ids as text, ranks in ring order."""
    lists = np.split(workload.groups.ranks, np.cumsum(workload.groups.sizes)[:-1]) if len(workload.groups.gid) else []
    pairs = zip(workload.groups.gid.tolist(), lists, strict=True)
    return json.dumps({str(gid): members.tolist() for gid, members in pairs}) + "\n"


def dimensions(degrees: Sequence[int]) -> list[int]:
    """Sizes of the network's dimensions, innermost first: each has more than one member, all together are the world."""
    return [degree for degree in degrees if degree > 1] or [1]


def simulator_inputs(name: str, workload: Workload) -> dict[str, str]:
    """Files for ASTRA-sim with the analytical network, by name."""
    sizes = dimensions(workload.degrees)
    count = len(sizes)
    system = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        "all-reduce-implementation": ["ring"] * count,
        "all-gather-implementation": ["ring"] * count,
        "reduce-scatter-implementation": ["ring"] * count,
        "all-to-all-implementation": ["direct1"] * count,
        "collective-optimization": "localBWAware",
        "local-mem-bw": MEMORY_BANDWIDTH,
        "peak-perf": PEAK,
        "roofline-enabled": 1,
    }
    bandwidth = [LINK_BANDWIDTH[min(index, 1)] for index in range(count)]
    latency = [LINK_LATENCY[min(index, 1)] for index in range(count)]
    network = (
        "# Innermost dimension first. bandwidth in GB/s, latency in ns.\n"
        f"topology: [ {', '.join(['Ring'] * count)} ]\n"
        f"npus_count: [ {', '.join(map(str, sizes))} ]\n"
        f"bandwidth: [ {', '.join(map(str, bandwidth))} ]\n"
        f"latency: [ {', '.join(map(str, latency))} ]\n"
    )
    return {
        "system.json": json.dumps(system, indent=2) + "\n",
        "network.yml": network,
        "memory.json": json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=2) + "\n",
        "run.sh": _run_script(name, len(workload.ranks)),
    }


def _run_script(name: str, world: int) -> str:
    return f"""#!/bin/sh
# Simulate these traces: ./run.sh [ASTRASIM_BINARY] (or ASTRA_SIM=BINARY ./run.sh). The files beside it are an example
# system; edit system.json and network.yml to describe yours.
set -eu
cd "$(dirname "$0")"
simulator=${{1:-${{ASTRA_SIM:-AstraSim_Analytical_Congestion_Unaware}}}}
# The simulator keeps every rank's trace open.
ulimit -n {world + 256}
"$simulator" \\
  --workload-configuration=./{name} \\
  --comm-group-configuration=./{name}.json \\
  --system-configuration=./system.json \\
  --remote-memory-configuration=./memory.json \\
  --network-configuration=./network.yml | tee simulation.log
# The simulator's exit status says nothing about ranks that hang.
finished=$(grep -c finished simulation.log || true)
echo "$finished of {world} ranks finished"
test "$finished" -eq {world}
"""


def set_facts(name: str, workload: Workload, granularity: str) -> dict[str, Any]:
    """What the traces of an instance are and where they come from."""
    return {
        "name": name,
        "instance": workload.instance,
        "graph": workload.graph,
        "model": workload.model,
        "plan": dict(workload.plan),
        "world": len(workload.ranks),
        "granularity": granularity,
        "versions": {"stagedb": importlib.metadata.version("stagedb"), "chakra": VERSION},
    }


def class_facts(workload: Workload, columns: ClassColumns, nodes: Nodes, encoded: EncodedClass) -> dict[str, Any]:
    """What the traces of a rank class are."""
    return {
        "class": columns.number,
        "digest": columns.digest,
        "stages": list(columns.stages),
        "ranks": say_ranks(np.flatnonzero(workload.ranks.number == columns.number)),
        "nodes": nodes.nodes,
        "bytes": encoded.size,
        "encoding": encoded.digest,
        "tasks": _tasks(columns, nodes),
    }


def manifest(traces: TraceSet, format: str) -> str:
    """What the files of a set are, where they come from, and which rank is what."""
    said: dict[str, Any] = {
        "format": FORMAT,
        "what": f"Chakra execution traces of one training step, one a rank: {traces.name}.<rank>.{format}",
        **traces.facts,
        "only": None if traces.count == traces.world else say_ranks(traces.ranks),
        "traces": format,
        "classes": [dict(each.facts) for each in traces.classes],
        "files": {path: hashlib.sha256(text.encode()).hexdigest() for path, text in traces.files.items()},
    }
    return json.dumps(said, indent=1) + "\n"


def _tasks(columns: ClassColumns, nodes: Nodes) -> list[str]:
    """Each task's ids: `forward 0: 1-120` is the forward of microbatch 0."""
    ends = [*(nodes.base[1:] - 1).tolist(), nodes.nodes]
    rows = zip(columns.tasks.kind.tolist(), columns.tasks.microbatch.tolist(), nodes.base.tolist(), ends, strict=True)
    return [f"{TASK_KINDS[kind]} {microbatch}: {first}-{last}" for kind, microbatch, first, last in rows]


def write_texts(directory: Path, files: Mapping[str, str]) -> None:
    """Write small files; scripts are made executable."""
    for name, text in files.items():
        path = directory / name
        path.write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            path.chmod(path.stat().st_mode | 0o111)
