"""The efficiencies of the A100's and H100's presets, fitted to published step times: `scripts/calibrate`.

Two numbers of the A100 are fitted to four rows, by the least sum of squared relative errors: the share of the peak
that large matmuls reach, and the share of the memory's bandwidth that large kernels reach. One number of the H100 is
fitted to one row: the share of large matmuls. Its memory has the A100's share. An efficiency is
`most · size / (size + half)`: an operation takes its time at the best rate, plus a constant. The sizes `half` are round
figures (about 60 us of a matmul at its best rate, 2 us of the memory; the H100 has the same constants), and so are the
efficiencies of messages. Only rows that are `calibrated` in `stagedb/validation/step_times.yaml` are read.
"""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction

import stagedb
from stagedb.systems import Curve, System, load_system
from stagedb.timing import profile_job
from stagedb.timing.op_durations import time_ops
from stagedb.timing.timeline import clock
from stagedb.validation.step_times import PublishedStep, published_steps, step_workload

MATMUL_HALF, MEMORY_HALF = Fraction(15 * 10**9), Fraction(3 * 10**6)
"""FLOPs of a matmul, and bytes, that reach half of the largest efficiency on an A100."""

MATMUL_SIZES = [Fraction(each) for each in (5e9, 1e10, 2e10, 5e10, 1e11, 2e11, 5e11, 1e12, 1e13)]
MEMORY_SIZES = [Fraction(each) for each in (1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 1e9)]
"""The sizes of the curves' points, on an A100."""

STEP, FINEST = 0.02, 0.0025
"""The first and the last step width of the search."""

Faster = tuple[Fraction, Fraction]
"""A system's peak and bandwidth as approximate multiples of an A100's."""

Shares = tuple[float, float]
"""The largest shares: of the peak by matmuls, and of the memory's bandwidth."""


def saturating(most: float, half: Fraction, sizes: Sequence[Fraction]) -> Curve:
    """`most · size / (size + half)` at some sizes, with three decimals."""
    return Curve(tuple((size, Fraction(str(round(float(most * size / (size + half)), 3)))) for size in sizes))


def fitted(system: System, shares: Shares, faster: Faster) -> System:
    """A system with these efficiencies."""
    matmul, memory = (
        saturating(most, half * times, [size * times for size in sizes])
        for most, half, sizes, times in zip(
            shares, (MATMUL_HALF, MEMORY_HALF), (MATMUL_SIZES, MEMORY_SIZES), faster, strict=True
        )
    )
    accelerator = dataclasses.replace(system.accelerator, matmul=matmul, memory=memory)
    return dataclasses.replace(system, accelerator=accelerator)


class Rows:
    """The calibrated rows, each with the order of its step, which does not depend on durations."""

    def __init__(self, rows: Sequence[PublishedStep], system: System) -> None:
        self.rows, self.runs = rows, []
        with stagedb.connect("embedded") as db:
            for row in rows:
                workload = step_workload(db, row)
                self.runs.append((workload, profile_job(workload, system, blocking=row.blocking).times.timeline.order))

    def errors(self, system: System) -> list[float]:
        """The relative error of each row."""
        found = []
        for row, (workload, order) in zip(self.rows, self.runs, strict=True):
            took = order.network.lengths(time_ops(workload, order.network.lanes, system).ns)
            found.append(clock(order, took).step / 1e9 / row.seconds - 1)
        return found


def search(rows: Rows, system: System, faster: Faster, memory: float | None = None) -> Shares:
    """The shares with the least squared errors. The search goes to a better neighbour, or halves its step.

    memory: the share of the memory, if it is not searched for.
    """
    known: dict[Shares, float] = {}

    def cost(shares: Shares) -> float:
        if shares not in known:
            known[shares] = math.fsum(error**2 for error in rows.errors(fitted(system, shares, faster)))
        return known[shares]

    best, step = (0.8, 0.8 if memory is None else memory), STEP
    ways = (0,) if memory is not None else (-1, 0, 1)
    while step >= FINEST:
        near = [(round(best[0] + a * step, 4), round(best[1] + b * step, 4)) for a in (-1, 0, 1) for b in ways]
        found = min((each for each in near if max(each) <= 1), key=cost)
        best, step = (found, step) if cost(found) < cost(best) else (best, step / 2)
    return best


def fit(name: str, faster: Faster, memory: float | None = None) -> Shares:
    """Fit one preset, and print its curves and the errors of its rows."""
    system = load_system(name)
    rows = Rows([row for row in published_steps() if row.calibrated and row.system == name], system)
    shares = search(rows, system, faster, memory)
    best = fitted(system, shares, faster)
    print(f"{name}: large matmuls reach {shares[0]:.4f} of their peak, large kernels {shares[1]:.4f} of the bandwidth")
    for row, error in zip(rows.rows, rows.errors(best), strict=True):
        print(f"    {error:+.1%}  {row.title}")
    for word, curve in (("matmul", best.accelerator.matmul), ("memory", best.accelerator.memory)):
        points = ", ".join(f"[{float(size):g}, {float(share):g}]" for size, share in curve.points)
        print(f"    {word}: [{points.replace('e+0', 'e').replace('e+', 'e')}]")
    return shares


def main() -> None:
    shares = fit("a100-80gb", (Fraction(1), Fraction(1)))
    fit("h100", (Fraction(3), Fraction(3, 2)), shares[1])


if __name__ == "__main__":
    main()
