"""What a simulator wants beside the traces: an example system, a script, and how groups are written.

All of it but the groups follows from a set's name, its number of ranks and the degrees of its mesh, so that a packed
set need not hold it.
"""

import json
from collections.abc import Mapping, Sequence

LINK_BANDWIDTH = (450.0, 50.0)
LINK_LATENCY = (500.0, 2000.0)
"""GB/s and ns of the innermost network dimension and of the others: links inside a node, the network between nodes."""
MEMORY_BANDWIDTH, PEAK = 3350.0, 989.0
"""GB/s and TFLOP/s of an accelerator. All four are those of an H100 SXM (bf16) with a 400 Gb/s link of its own: an
example to be edited, as a workload says nothing about the system that it runs on."""


def dimensions(degrees: Sequence[int]) -> list[int]:
    """Sizes of the network's dimensions, innermost first: each has more than one member, all together are the world."""
    return [degree for degree in degrees if degree > 1] or [1]


def simulator_inputs(name: str, world: int, degrees: Sequence[int]) -> dict[str, str]:
    """Files for ASTRA-sim with the analytical network, by name. `degrees` are those of the mesh, innermost first."""
    sizes = dimensions(degrees)
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
        "run.sh": _run_script(name, world),
    }


def groups_text(groups: Mapping[str, Sequence[int]]) -> str:
    """The text of the file of communicator groups."""
    return json.dumps(groups) + "\n"


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
