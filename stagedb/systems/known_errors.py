"""The known errors of predicted step times: `known_errors.yaml` in this folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml

from stagedb.systems.system import System
from stagedb.systems.system_files import load_system, system_names


@dataclass(frozen=True)
class KnownError:
    """Predicted step times compared with published ones on a system: the mean and the worst absolute error, as shares.

    steps: the number of published steps. fitted: those that the system's curves were fitted to. sources: their papers.
    """

    system: str
    steps: int
    fitted: int
    mean: float
    worst: float
    sources: tuple[str, ...]


@lru_cache(maxsize=1)
def known_errors() -> Mapping[str, KnownError]:
    """The known errors, by the name of a preset."""
    text = files("stagedb.systems").joinpath("known_errors.yaml").read_text(encoding="utf-8")
    rows = (KnownError(**{**row, "sources": tuple(row["sources"])}) for row in yaml.safe_load(text))
    return {row.system: row for row in rows}


def known_error(system: System) -> KnownError | None:
    """The known error of predictions on a system.

    None if no published step is known for the system, or if it differs from the preset of its name.
    """
    found = known_errors().get(system.name)
    if found is None or found.system not in system_names():
        return None
    return found if load_system(found.system) == system else None
