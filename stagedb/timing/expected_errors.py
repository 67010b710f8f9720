"""The error to expect of a predicted step: that of published steps of its kind which fixed no number.

A kind is an accelerator, a framework, and whether the model has experts. `expected_errors.yaml` in this folder has the
kinds of docs/step-predictions.md.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml

from stagedb.frameworks.profiles import find_profile
from stagedb.models.kinds.experts import EXPERT_MATMULS
from stagedb.systems import System
from stagedb.systems.system_files import load_system, system_names
from stagedb.timing.framework_timing import as_used_by
from stagedb.workload.instance_columns import Workload


@dataclass(frozen=True)
class ExpectedError:
    """The absolute errors of the held-out rows of a kind: their number, their mean and the worst, as shares."""

    system: str
    framework: str
    experts: bool
    rows: int
    mean: float
    worst: float

    def __str__(self) -> str:
        model = "models with experts" if self.experts else "dense models"
        return (
            f"{self.mean:.1%} in the mean, {self.worst:.1%} at worst, as {self.rows} published steps of {model} with "
            f"{self.framework} on {self.system} that fixed no number"
        )


@lru_cache(maxsize=1)
def expected_errors() -> tuple[ExpectedError, ...]:
    """The errors of all kinds."""
    text = files("stagedb.timing").joinpath("expected_errors.yaml").read_text(encoding="utf-8")
    return tuple(ExpectedError(**row) for row in yaml.safe_load(text))


def has_experts(workload: Workload) -> bool:
    """Whether a step runs matmuls of experts."""
    return any(f"{EXPERT_MATMULS}." in name for columns in workload.classes for name in columns.ops.name)


def expected_error(system: System, experts: bool) -> ExpectedError | None:
    """The error to expect on a system as a framework uses it; None if no published step is of that kind.

    A system without measured tables, or that differs from the preset of its name, has none.
    """
    if not system.tables or not system.overlap.framework or system.name not in system_names():
        return None
    preset = as_used_by(load_system(system.name), find_profile(system.overlap.framework))
    if (preset.accelerator, preset.dimensions, preset.tables) != (system.accelerator, system.dimensions, system.tables):
        return None
    kind = (system.name, system.overlap.framework, experts)
    return next((each for each in expected_errors() if (each.system, each.framework, each.experts) == kind), None)


def no_expected_error(system: System) -> str:
    """Why no error is expected of a step on a system."""
    if not system.overlap.framework:
        return "no framework was named (--framework), and the error is known by framework"
    return f"no published step with {system.overlap.framework} on {system.name} was held out"
