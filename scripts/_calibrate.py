"""What matmuls sustain in a step on an A100 and an H100, fitted to published step times: `scripts/calibrate`.

One number each is fitted, by the least sum of squared relative errors: `accelerator.sustained`, the share of their
measured speed that matmuls with a table keep in a step. Only rows that are `calibrated` in
`stagedb/validation/step_times.yaml` are read. Everything else comes from measurements and data sheets.
"""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction

from stagedb.systems import System, load_system
from stagedb.timing import profile_job
from stagedb.timing.op_durations import time_ops
from stagedb.timing.timeline import clock
from stagedb.validation.rank_counts import lowered
from stagedb.validation.step_times import PublishedStep, published_steps

SHARES = [Fraction(share, 100) for share in range(70, 101)]
"""The shares that are tried."""


def fitted(system: System, share: Fraction) -> System:
    """A system whose matmuls sustain this share."""
    return dataclasses.replace(system, accelerator=dataclasses.replace(system.accelerator, sustained=share))


class Rows:
    """The calibrated rows, each with the order of its step, which does not depend on durations."""

    def __init__(self, rows: Sequence[PublishedStep], system: System) -> None:
        self.rows, self.runs = rows, []
        for row in rows:
            workload = lowered(row.card, row.words).workload
            self.runs.append((workload, profile_job(workload, system, blocking=row.blocking).times.timeline.order))

    def errors(self, system: System) -> list[float]:
        """The relative error of each row."""
        found = []
        for row, (workload, order) in zip(self.rows, self.runs, strict=True):
            took = order.network.lengths(time_ops(workload, order.network.lanes, system).ns)
            found.append(clock(order, took).step / 1e9 / row.seconds - 1)
        return found


def fit(name: str) -> None:
    """Fit one preset, and print its number and the errors of its rows."""
    system = load_system(name)
    rows = Rows([row for row in published_steps() if row.calibrated and row.system == name], system)

    def cost(share: Fraction) -> float:
        return math.fsum(error**2 for error in rows.errors(fitted(system, share)))

    best = min(SHARES, key=cost)
    print(f"{name}: matmuls sustain {float(best)} of their measured speed")
    for row, error in zip(rows.rows, rows.errors(fitted(system, best)), strict=True):
        print(f"    {error:+.1%}  {row.title}")


def main() -> None:
    fit("a100-80gb")
    fit("h100")


if __name__ == "__main__":
    main()
