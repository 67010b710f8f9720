"""What a simulator wants beside the traces: a system, a script, and how groups are written.

All of it but the groups follows from a set's name, its number of ranks, the degrees of its mesh and a system, so that a
packed set need not hold it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagedb.errors import UsageError
from stagedb.systems.system import Dimension, Number, System

TOPOLOGIES: Mapping[str, str] = {"ring": "Ring", "switch": "Switch", "fully-connected": "FullyConnected"}
"""The simulator's words for how a network dimension is linked."""

SIMULATED_GB = Fraction(1 << 30, 10**9)
"""Decimal GB in what the simulator's network takes for one: 2^30 bytes."""


@dataclass(frozen=True)
class Level:
    """A dimension of the simulated network: a degree of the mesh, or a part of one, on links of the system."""

    size: int
    links: Dimension

    @property
    def bandwidth(self) -> Fraction:
        """GB/s of one link in one direction, in GB as the simulator counts them."""
        # Of a mesh of links one leads to each other accelerator, of a ring's two one goes each way.
        links = {"switch": 1, "fully-connected": max((self.links.size or 1) - 1, 1), "ring": 2}[self.links.kind]
        return Fraction(self.links.bandwidth) / links / SIMULATED_GB

    @property
    def latency(self) -> Fraction:
        """ns of one link; two lead through a switch."""
        return self.links.latency / (2 if self.links.kind == "switch" else 1)


def levels(degrees: Sequence[int], system: System) -> tuple[Level, ...]:
    """The simulated network, innermost first: each level has more than one member, all together are the world.

    A degree of the mesh that reaches beyond a network dimension is cut there; where that does not come out even, all of
    it has the links of the outer one. UsageError where the network has no place for the mesh.
    """
    network = system.network(math.prod(degrees))
    ends = [math.prod(each.size or 1 for each in network[: at + 1]) for at in range(len(network))]
    found, stride = [], 1
    for degree in degrees:
        left = degree
        for links, end in zip(network, ends, strict=True):
            if left > 1 and stride < end:
                inside, over = divmod(end, stride)
                if stride * left <= end:
                    found.append(Level(left, links))
                    stride, left = stride * left, 1
                elif over == 0 and left % inside == 0:
                    found.append(Level(inside, links))
                    stride, left = end, left // inside
    return tuple(found) or (Level(1, network[0]),)


def simulator_inputs(name: str, world: int, degrees: Sequence[int], system: System) -> dict[str, str]:
    """Files for ASTRA-sim with the analytical network, by name. `degrees` are those of the mesh, innermost first.

    UsageError for a system that has no place for the job, or that a simulator cannot take.
    """
    accelerator = system.accelerator
    peak = accelerator.peak.get("bf16", next(iter(accelerator.peak.values())))
    for what, rate in (
        ("accelerator.peak", peak),
        ("accelerator.memory.bandwidth", accelerator.bandwidth),
        *((f"the bandwidth of {each.name}", each.bandwidth) for each in system.dimensions),
    ):
        if rate == math.inf:
            raise UsageError(
                f"{system.name} has {what} .inf, which a simulator cannot take: export with another --system"
            )
    network = levels(degrees, system)
    count = len(network)
    described = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        "all-reduce-implementation": ["ring"] * count,
        "all-gather-implementation": ["ring"] * count,
        "reduce-scatter-implementation": ["ring"] * count,
        "all-to-all-implementation": ["direct1"] * count,
        "collective-optimization": "localBWAware",
        "local-mem-bw": float(accelerator.bandwidth),
        "peak-perf": float(peak),
        "roofline-enabled": 1,
    }
    return {
        "system.json": json.dumps(described, indent=2) + "\n",
        "network.yml": _network(system, network),
        "memory.json": json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=2) + "\n",
        "run.sh": _run_script(name, world),
    }


def _network(system: System, network: Sequence[Level]) -> str:
    used = list(dict.fromkeys(each.links for each in network))
    links = ", ".join(f"{each.name} {float(each.bandwidth):g} GB/s {float(each.latency):g} ns" for each in used)
    return (
        f"# System {system.name}, of one accelerator in one direction: {links}.\n"
        "# Innermost dimension first. bandwidth of a link in GB/s (2^30 bytes, as simulators count them), latency of\n"
        "# a link in ns: two lead through a switch.\n"
        f"topology: [ {', '.join(TOPOLOGIES[each.links.kind] for each in network)} ]\n"
        f"npus_count: [ {', '.join(str(each.size) for each in network)} ]\n"
        f"bandwidth: [ {', '.join(_decimal(each.bandwidth) for each in network)} ]\n"
        f"latency: [ {', '.join(_decimal(each.latency) for each in network)} ]\n"
    )


def _decimal(value: Number) -> str:
    """With as many decimals as matter, and a point: six of a rate of bytes a nanosecond."""
    return repr(round(float(value), 6))


def groups_text(groups: Mapping[str, Sequence[int]]) -> str:
    """The text of the file of communicator groups."""
    return json.dumps(groups) + "\n"


def _run_script(name: str, world: int) -> str:
    return f"""#!/bin/sh
# Simulate these traces: ./run.sh [ASTRASIM_BINARY] (or ASTRA_SIM=BINARY ./run.sh). The files beside it describe
# the system; system.json and network.yml may be edited.
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
