"""Files of published step times: a row has a model, a cluster, a plan in a few columns, and the seconds of a step.

The columns are those of `COLUMNS`. An empty cell means 1, or the framework's default. Columns with other names are
left alone.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import path_text, read_text, shown
from stagedb.files.tabular_files import csv_table
from stagedb.frameworks.profiles import FRAMEWORK_PROFILES, FrameworkProfile, find_profile, usual_profile
from stagedb.mentions import Word, call
from stagedb.models import Card
from stagedb.plans.aspects.recompute import RECOMPUTE_MODULES
from stagedb.systems import System, load_system, system_names
from stagedb.timing.framework_timing import as_used_by
from stagedb.validation.even_stages import counted_ends
from stagedb.validation.resized_cards import named_card

NUMBERS = ("tp", "pp", "cp", "ep", "dp", "virtual_stages", "micro_batch_size", "global_batch_size", "seq_len", "zero")
COLUMNS = ("source", "model", "gpus", "gpu", *NUMBERS, "dtype", "matmul_dtype", "recompute", "hsdp", "seconds")
"""Columns that a file must have. `framework`, `kernels`, `note`, `quantity` and `value` may be there too."""

_LARGEST = 16 << 20

GPUS: Mapping[str, str] = {
    "A100-40GB": "a100-40gb",
    "A100-80GB": "a100-80gb",
    "A100": "a100-80gb",
    "H100-80GB": "h100",
    "H100": "h100",
    "H100-96GB HBM2e 500W": "h100-hbm2e",
    "H800": "h800",
    "H800-80GB": "h800",
    "H20": "h20",
    "H20-96GB": "h20",
    "H200": "h200",
    "B200": "b200",
    "B300": "b300",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "L40S": "l40s",
    "MI300X": "mi300x",
    "v5p": "tpu-v5p",
}
"""Names of accelerators in tables, and the presets that they mean. A preset's own name means itself."""

CLUSTERS: Mapping[str, Mapping[str, str]] = {
    "Jean Zay": {"a100-80gb": "a100-80gb-400g"},
    "IBM fms-fsdp": {"a100-80gb": "a100-80gb-400g"},
}
"""Clusters that a source names, and presets with their network, where their accelerator's preset has another one."""


@dataclass(frozen=True, eq=False)
class StepRow:
    """A row of a file of published steps. line: its number in the file, the header being 1. cells: texts by column."""

    line: int
    cells: Mapping[str, str]

    @property
    def source(self) -> str:
        """The table that it comes from."""
        return self.cells["source"]

    @property
    def seconds(self) -> float:
        """The published time. Raises UsageError if it is no positive number."""
        try:
            seconds = float(self.cells["seconds"])
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise UsageError(f"seconds is {shown(self.cells['seconds'])}, and a step takes a positive number of them")
        return seconds

    @property
    def title(self) -> str:
        """The model and the words that distinguish its plan."""
        names = {"virtual_stages": "v", "micro_batch_size": "mb", "global_batch_size": "batch", "seq_len": "seq"}
        of = ("tp", "cp", "pp", "virtual_stages", "ep", "dp", "micro_batch_size", "global_batch_size", "seq_len")
        words = [f"{names.get(word, word)} {self.cells[word]}" for word in of if self.cells[word] not in ("", "1")]
        more = [self.cells[word] for word in ("matmul_dtype", "recompute", "kernels") if self.cells.get(word)]
        return " ".join([self.cells["model"], *words, *more])


@dataclass(frozen=True)
class StepJob:
    """A row in our words: its card, the words of its plan, its framework, and the system as that uses it."""

    row: StepRow
    card: Card
    words: Mapping[str, Any]
    profile: FrameworkProfile
    system: System

    @property
    def kind(self) -> tuple[str, str, str]:
        """The kind of prediction: accelerator, framework, dense or experts."""
        return (self.system.accelerator.name, self.profile.name, "experts" if self.card.routes else "dense")


def read_steps(path: Path) -> tuple[StepRow, ...]:
    """The rows of a file. UsageError, with the missing column, if it is no such file."""
    where = path_text(path)
    table = csv_table(read_text(path, "steps", _LARGEST, str(Word("steps"))), where)
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise UsageError(
            f"{where} has no column {missing[0]}: {Word('steps')} takes the columns {', '.join(COLUMNS)}, and "
            "framework and kernels if they are known"
        )
    rows = tuple(StepRow(line, dict(zip(table.columns, cells, strict=True))) for line, cells in table.rows)
    if not rows:
        raise UsageError(f"{where} has no rows under its columns ({Word('steps')})")
    return rows


def job_of(row: StepRow) -> StepJob:
    """The card, plan, framework and system that a row describes. Raises UsageError, with the reason, for one that no
    plan, card or preset can express.
    """
    given = {name: _number(row, name) for name in NUMBERS}
    given["dp"] = _copies(row, given)
    zero = given["zero"] or 0
    if zero and (given["dp"] or 1) * (given["cp"] or 1) == 1 and given["dp"]:
        given["zero"] = zero = 0  # one rank has nothing to share
    named = row.cells.get("framework", "")
    profile = _profile_of(row.source, named) if named else usual_profile(zero, "")
    card = _with_positions(named_card(row.cells["model"]), given["seq_len"] or 0)
    words = profile.plan_words({**given, **_texts(row, profile), **counted_ends(profile, card, given)})
    system = as_used_by(_system(row), profile, row.cells.get("kernels", ""))
    return StepJob(row, card, words, profile, system)


def _profile_of(source: str, named: str) -> FrameworkProfile:
    """The framework of a row. A source that begins with a name of what configures it had its options."""
    of = (each for each in FRAMEWORK_PROFILES.values() if each.configures == named)
    return next((each for each in of if source.lower().startswith(each.name)), find_profile(named))


def _number(row: StepRow, name: str) -> int | None:
    text = row.cells[name]
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(f"{name} is {shown(text)}, and it takes a whole number")
    return int(text)


def _texts(row: StepRow, profile: FrameworkProfile) -> dict[str, Any]:
    """The words of the columns that hold words."""
    found: dict[str, Any] = {}
    for name, known in (("recompute", profile.recompute), ("kernels", profile.kernels)):
        text = row.cells.get(name, "")
        modules = text.split("+")
        if name == "recompute" and set(modules) <= set(RECOMPUTE_MODULES):
            found |= {"recompute": "modules", "recompute_modules": modules}
            continue
        if text in ("", "none"):
            continue
        if text not in known:
            takes = f"its profile has {', '.join(known)}" if known else "its profile has none"
            raise UsageError(f"{name} is {shown(text)}, which {profile.name} does not have: {takes}")
        found |= known[text]
    found |= {name: row.cells[name] for name in ("dtype", "matmul_dtype") if row.cells[name]}
    if row.cells["hsdp"]:
        found["hsdp"] = _number(row, "hsdp")
    return found


def _copies(row: StepRow, given: Mapping[str, int | None]) -> int | None:
    """The dp of a row: where it is empty, as many as the other degrees leave of its accelerators.

    Raises UsageError if the degrees do not make the accelerators of the row.
    """
    ranks, dp = _number(row, "gpus"), given["dp"]
    made = (given["tp"] or 1) * (given["pp"] or 1) * (given["cp"] or 1)
    if ranks is None or ranks == made * (-1 if dp is None else dp):
        return dp
    if dp is None and ranks and made and ranks % made == 0:
        return ranks // made
    raise UsageError(f"gpus is {ranks}, and dp x tp x pp x cp is {made * (1 if dp is None else dp)}")


def _with_positions(card: Card, tokens: int) -> Card:
    """The card with a table of learned positions that is as long as the sequences of the run; cards without one stay
    the same.
    """
    if card.positions != "learned" or tokens <= card.max_positions:
        return card
    return dataclasses.replace(card, max_positions=tokens, parameters=0)


def _system(row: StepRow) -> System:
    """The preset of a row's accelerator, with the network of the cluster that its source names."""
    gpu = row.cells["gpu"]
    name = GPUS.get(gpu, gpu)
    if name not in system_names():
        raise UsageError(f"gpu is {shown(gpu)}, and no preset is of this accelerator ({call('systems')})")
    known = (presets[name] for cluster, presets in CLUSTERS.items() if cluster in row.source and name in presets)
    return load_system(next(known, name))
