"""The files that ASTRA-sim reads with its analytical networks.

Common to all of them: a system, network levels, no remote memory, and a script that runs the traces.
"""

import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagedb.collectives import SIMULATED
from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.traces.simulators.network_levels import SIMULATED_GB, Level
from stagedb.traces.simulators.simulator import MESSAGE, SimulatedJob

if TYPE_CHECKING:
    from stagedb.systems.system import Number

TOPOLOGIES: Mapping[str, str] = {"ring": "Ring", "switch": "Switch", "fully-connected": "FullyConnected"}
"""The simulator's words for the kind of links of a network dimension."""

MEMORY = json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=2) + "\n"
"""`memory.json`: no memory other than the accelerator's own."""

ENDPOINT_DELAY = 1
"""ns in addition to each step of a collective of all ranks, the least. A latency of the system has it already."""

NO_REDUCTIONS = 1e9
"""GB/s at which the simulator's reductions take no time. The cost model's own collectives have no term for them."""

SOURCE = "https://github.com/astra-sim/astra-sim"
BUILD = "astra-sim/build/astra_analytical/build.sh"
BUILT = Path("astra-sim/build/astra_analytical/build/bin")
"""Where the simulator is from, the script of its checkout that builds it, and where that puts the programs."""

ASTRA_SIM = "astra-sim"
"""The model of collectives that follows the simulator (`stagedb.systems.system`, which takes longer to import)."""


def check_rates(job: SimulatedJob) -> None:
    """Raise UsageError for a system with a rate that is infinite."""
    accelerator = job.system.accelerator
    for what, rate in (
        ("accelerator.peak", peak(job)),
        ("accelerator.memory.bandwidth", accelerator.bandwidth),
        *((f"the bandwidth of {dimension.name}", dimension.bandwidth) for dimension in job.system.dimensions),
    ):
        if rate == math.inf:
            raise UsageError(
                f"{job.system.name} has {what} .inf, which a simulator cannot take: export with another "
                f"{Word('system')}"
            )


def differences(job: SimulatedJob) -> tuple[str, ...]:
    """A rank of the simulator has one collective or message at a time, whatever its axis."""
    if not job.timed or job.system.overlap.streams == "one" or _axes(job) < 2:
        return ()
    return (
        "the profile runs collectives of different axes in parallel, and the simulator one after the other: its step "
        "may be longer. On a system with overlap: {streams: one} they agree",
    )


def _axes(job: SimulatedJob) -> int:
    """Mesh axes on which ranks communicate. The groups of one axis have the same distances between their members."""
    members = [job.groups[row.group] for row in job.traffic if row.kind != MESSAGE]
    apart = {tuple(rank - min(ranks) for rank in sorted(ranks)) for ranks in members}
    return len(apart) + any(row.kind == MESSAGE for row in job.traffic)


def peak(job: SimulatedJob) -> "Number":
    """TFLOP/s of the accelerator in bf16, or in its first format where it has no bf16."""
    rates = job.system.accelerator.peak
    return rates.get("bf16", next(iter(rates.values())))


def system_text(job: SimulatedJob, implementations: Mapping[str, Sequence[str]], splits: int = 1) -> str:
    """`system.json`. implementations: for each kind of collective, one a level. splits: chunks of a collective."""
    # Two things need the bandwidth of memory: compute under a roofline, and the reductions of the cost model
    # `astra-sim`.
    reduces = not job.timed or job.system.collectives.model == ASTRA_SIM
    memory = float(job.system.accelerator.bandwidth) if reduces else NO_REDUCTIONS
    described: dict[str, Any] = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": ENDPOINT_DELAY,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": splits,
        **{f"{kind}-implementation": list(implementations[kind]) for kind in SIMULATED},
        "collective-optimization": "localBWAware",
        "local-mem-bw": memory,
        "peak-perf": float(peak(job)),
        # Without a roofline the simulator takes the durations of the traces.
        "roofline-enabled": 0 if job.timed else 1,
    }
    return json.dumps(described, indent=2) + "\n"


def network_text(job: SimulatedJob, network: Sequence[Level], rates: Sequence[Fraction]) -> str:
    """`network.yml`. rates: GB/s of one link of each level."""
    used = list(dict.fromkeys(each.links for each in network))
    links = ", ".join(f"{each.name} {float(each.bandwidth):g} GB/s {float(each.latency):g} ns" for each in used)
    return (
        f"# System {job.system.name}, of one accelerator in one direction: {links}.\n"
        "# Innermost dimension first. bandwidth in GB/s (2^30 bytes, as simulators count them): what one message at a\n"
        "# time gets, with the efficiency of messages as large as those of this set. latency of a link in ns: a way\n"
        "# through a switch has two links.\n"
        f"topology: [ {', '.join(TOPOLOGIES[each.links.kind] for each in network)} ]\n"
        f"npus_count: [ {', '.join(str(each.size) for each in network)} ]\n"
        f"bandwidth: [ {', '.join(_decimal(each / SIMULATED_GB) for each in rates)} ]\n"
        f"latency: [ {', '.join(_decimal(each.latency) for each in network)} ]\n"
    )


def _decimal(value: Fraction) -> str:
    """A number with as many decimals as matter, and a point: six for a rate in bytes a nanosecond."""
    return repr(round(float(value), 6))


def run_text(job: SimulatedJob, binary: str) -> str:
    """`run.sh`: starts the simulator, and counts the ranks that finish.

    It finds the program as `simulate` does, and says how to build one where there is none. binary: the name of the
    program.
    """
    return f"""#!/bin/sh
# Simulate these traces: ./run.sh [ASTRASIM_BINARY] (or ASTRA_SIM=BINARY ./run.sh). The other files here describe
# the system; system.json and network.yml may be edited.
set -eu
program={binary}
built={BUILT}/$program
simulator=${{1:-${{ASTRA_SIM:-$program}}}}
if [ "$simulator" = "$program" ] && ! command -v "$simulator" >/dev/null && [ -x "$built" ]; then
  simulator=$built
fi
if ! command -v "$simulator" >/dev/null; then
  echo "$simulator, the simulator's program, is not here. Build ASTRA-sim once, with cmake and a C++ compiler:" >&2
  echo "  git clone --recurse-submodules {SOURCE}" >&2
  echo "  {BUILD}" >&2
  echo "From the same folder $0 finds it; from any other: $0 PROGRAM" >&2
  exit 127
fi
case $simulator in
/*) ;;
*/*) simulator=$PWD/$simulator ;;
esac
cd "$(dirname "$0")"
# The simulator keeps every rank's trace open.
ulimit -n {job.world + 256}
"$simulator" \\
  --workload-configuration=./{job.name} \\
  --comm-group-configuration=./{job.name}.json \\
  --system-configuration=./system.json \\
  --remote-memory-configuration=./memory.json \\
  --network-configuration=./network.yml | tee simulation.log
# The simulator's exit status says nothing about ranks that hang.
finished=$(grep -c finished simulation.log || true)
echo "$finished of {job.world} ranks finished"
test "$finished" -eq {job.world}
"""
