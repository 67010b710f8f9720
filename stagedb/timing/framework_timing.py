"""A system as a framework uses it: what runs during what, in which pieces."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files

import yaml

from stagedb.errors import UsageError
from stagedb.frameworks.profiles import EACH, FrameworkProfile
from stagedb.mentions import Word
from stagedb.systems import System
from stagedb.systems.system import FP8_SCALES
from stagedb.systems.system_files import STRETCHED


@dataclass(frozen=True)
class Calibration:
    """A fitted number: how many times its measured time an operator takes in a step; of `EXPERTS` another share.

    frameworks: those that run it with the same kernel; empty: all. systems: the presets with the accelerator that it
    was fitted on, or one of its kind; empty: all. reason: what makes the operator slower. rows: the number
    of published steps that it was fitted to.
    """

    operator: str
    frameworks: tuple[str, ...]
    systems: tuple[str, ...]
    factor: Fraction
    rows: int
    reason: str

    def holds(self, framework: str, system: str) -> bool:
        """Whether the fitted number applies to steps of a framework on a system. framework, system: names."""
        return framework in (self.frameworks or (framework,)) and system in (self.systems or (system,))


@lru_cache(maxsize=1)
def calibrations() -> tuple[Calibration, ...]:
    """The fitted numbers: `calibrations.yaml` in this folder."""
    text = files("stagedb.timing").joinpath("calibrations.yaml").read_text(encoding="utf-8")
    return tuple(
        Calibration(
            operator=row["operator"],
            frameworks=tuple(row.get("frameworks", ())),
            systems=tuple(row.get("systems", ())),
            factor=Fraction(str(row["factor"])),
            rows=row["rows"],
            reason=row["reason"],
        )
        for row in yaml.safe_load(text)
    )


def stretch_of(
    system: System, profile: FrameworkProfile, numbers: Sequence[Calibration] | None = None
) -> tuple[tuple[str, Fraction], ...]:
    """By operator, its factor in the steps of a framework on a system whose table has its time alone.

    numbers: the fitted ones that are known; None: all of `calibrations`.

    Several numbers of an operator multiply: each has a cause of its own. One of matmuls holds in all formats. Their
    measured time is that of an accelerator that computes nothing else. So on a system without a number of its own they
    take the mean of the others. A system without tables has such shares in its curves.
    """
    known = calibrations() if numbers is None else numbers
    factors = []
    for operator in STRETCHED:
        dtype = "fp8" if operator.endswith("fp8") else "bf16"
        measured = operator.partition("-")[0]
        if not any((table.operator, table.dtype) == (measured, dtype) for table in system.tables):
            continue
        own = [calibration for calibration in known if calibration.operator == measured]
        chosen = [calibration.factor for calibration in own if calibration.holds(profile.name, system.name)]
        if measured == "matmul" and not chosen and own:
            chosen = [sum((calibration.factor for calibration in own), Fraction(0)) / len(own)]
        if chosen:
            factors.append((operator, math.prod(chosen, start=Fraction(1))))
    return tuple(factors)


_, BLOCK = FP8_SCALES

EXPERTS = "experts"
"""The operator of the number that is the share of `LINEAR_LAYER` in which a host issues a matmul of one expert."""

LINEAR_LAYER: Mapping[str, int] = {"bf16": 191_278, "fp8": 690_735}
"""ns in which an x86 host issues a matmul of a linear layer of Transformer Engine, by format.

A third of a forward and backward of 1,024 x 1,024 with 1,024 tokens on an H100, which take 0.573835 ms and 2.072206 ms
(issue 445 of NVIDIA/TransformerEngine). In fp8 each matrix is cast with a scale of its own.
"""


def issued_by(system: System, numbers: Sequence[Calibration] | None = None) -> tuple[tuple[str, int], ...]:
    """By format, ns in which the host of a system issues a matmul of one expert, where it issues each on its own.

    numbers: as in `stretch_of`. Without the fitted one of `EXPERTS` no host is known but those that were measured.
    Where blocks of a matrix have scales, all experts are cast in one call (pull request 1793 of
    NVIDIA/TransformerEngine), so that fp8 takes as long as bf16. A system's own `issued` comes first.
    """
    if system.overlap.issued:
        return system.overlap.issued
    known, chip = calibrations() if numbers is None else numbers, system.accelerator
    factor = next((each.factor for each in known if each.operator == EXPERTS), Fraction(0))
    bf16 = round(LINEAR_LAYER["bf16"] * factor if chip.issue is None else chip.issue)
    fp8 = bf16 if chip.fp8_scales == BLOCK else round(LINEAR_LAYER["fp8"] * factor)
    return (("bf16", bf16), ("fp8", fp8)) if bf16 or fp8 else ()


def as_used_by(
    system: System, profile: FrameworkProfile, kernels: str = "", numbers: Sequence[Calibration] | None = None
) -> System:
    """The system with the overlap of a framework. UsageError if its own file names another one.

    numbers: as in `stretch_of`. kernels: the value of the plan's `kernels`; empty: the usual one.
    """
    if system.overlap.framework not in ("", profile.name):
        raise UsageError(
            f"the system {system.name} has overlap.framework {system.overlap.framework}: leave "
            f"{Word('framework', profile.name)} out, or the key in the system's file"
        )
    hiding = profile.hides(kernels)
    overlap = replace(
        system.overlap,
        framework=profile.name,
        chunked=hiding.chunked,
        reduced=hiding.reduced,
        gathered=hiding.gathered,
        casts=hiding.casts,
        sums=hiding.sums,
        stretch=stretch_of(system, profile, numbers),
        taken=hiding.taken,
        copies=hiding.copies,
        merges=hiding.merges,
        keys=hiding.keys,
        issued=issued_by(system, numbers) if hiding.issues == EACH else (),
    )
    if not overlap.stretch:
        return replace(system, overlap=overlap)
    # Where fitted numbers of the framework are known, they replace the share that the system has for all frameworks.
    return replace(system, overlap=overlap, accelerator=replace(system.accelerator, sustained=Fraction(1)))
