"""Files of published step times: a row has a model, a cluster, a plan in a few columns, and the seconds of a step.

The columns are those of `COLUMNS`. An empty cell means 1, or the framework's default. Columns with other names are
left alone.
"""

import dataclasses
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import path_text, read_text, shown
from stagedb.files.tabular_files import csv_table
from stagedb.frameworks.profiles import FRAMEWORK_PROFILES, FrameworkProfile, find_profile, usual_profile
from stagedb.mentions import Word, call
from stagedb.models import Card, card_names, load_card
from stagedb.plans.aspects.recompute import RECOMPUTE_MODULES
from stagedb.systems import System, load_system, system_names
from stagedb.timing.framework_timing import EXPERTS, Calibration, as_used_by, calibrations

# The ends of a model that a row's framework counts as layers, so that stages share them evenly.


def counted_ends(profile: FrameworkProfile, card: Card, words: Mapping[str, Any]) -> dict[str, str]:
    """The word `counted_ends` of a row, where only with the ends counted as layers the stages share the layers evenly.

    Tables have no column for it: 70 layers of BLOOM on 12 stages are 6 on each, where the embedding and the head take
    the place of one layer of the first and of the last stage. Empty for other rows. words: of the row's plan.
    """
    stages, chunks = words.get("pp") or 1, words.get("virtual_stages") or 1
    uneven = card.layers % stages != 0 and (card.layers + 2) % stages == 0
    return {"counted_ends": "both"} if profile.counts_ends and chunks == 1 and uneven else {}


# Models of tables: a card of the library, or one with other sizes, such as `llama3-70b 12 layers`.

MODELS: Mapping[str, str] = {"bloom": "bloom-176b"}
"""Names of models in tables, and the cards that they mean. A card's own name means itself."""

_LAYERS = re.compile(r"(?P<layers>[0-9]{1,4}) layers")
_SIZES = re.compile(r"(?:h(?P<hidden>[0-9]{1,7}))?(?: ?l(?P<layers>[0-9]{1,4}))?(?: ?heads(?P<heads>[0-9]{1,5}))?")
_WORDS = "`N layers`, or `hH lL headsN`, of which each may be left out"


def named_card(word: str) -> Card:
    """The card of a table's word: a name, and perhaps sizes that it has instead of the card's own.

    Raises UsageError for an unknown name, other words, and sizes that make no model of the card's kind.
    """
    written, _, sizes = word.partition(" ")
    name = MODELS.get(written, written)
    if name not in card_names():
        raise UsageError(f"model is {shown(written)}, and the library has no such card ({call('models')})")
    card = load_card(name)
    if not sizes:
        return card
    found = _LAYERS.fullmatch(sizes) or _SIZES.fullmatch(sizes)
    if found is None:
        raise UsageError(f"model is {shown(word)}, and sizes after a name are {_WORDS}")
    numbers = {size: int(number) for size, number in found.groupdict().items() if number}
    if card.pattern or card.dense_layers:
        raise UsageError(f"model is {shown(word)}, and the layers of {name} are of several kinds")
    if numbers.keys() != {"layers"}:
        _check_of_one_width(card, word)
    return _resized(card, numbers, word)


def _check_of_one_width(card: Card, word: str) -> None:
    """Raise UsageError for a card whose other sizes do not follow from its width and its heads."""
    usual = card.heads * card.head_dim == card.hidden and card.kv_heads in (1, card.heads)
    own = [value for kind in card.kinds.values() for _, value in kind.values if type(value) is int and value]
    if not usual or card.experts or card.blocks or card.embedding_width or own or card.ffn % card.hidden:
        raise UsageError(
            f"model is {shown(word)}, and {card.name} has sizes that its width and its heads do not give: write a card "
            "of its own, and name it"
        )


def _resized(card: Card, numbers: Mapping[str, int], word: str) -> Card:
    """The card with other sizes: heads share its width evenly, and its feed-forward remains as many times as wide."""
    hidden, heads = numbers.get("hidden", card.hidden), numbers.get("heads", card.heads)
    changed: dict[str, int] = {"layers": numbers.get("layers", card.layers)}
    if numbers.keys() != {"layers"}:
        if heads == 0 or hidden % heads:
            raise UsageError(f"model is {shown(word)}, and {heads} heads do not share a width of {hidden} evenly")
        changed |= {"hidden": hidden, "heads": heads, "head_dim": hidden // heads}
        changed |= {"kv_heads": heads if card.kv_heads > 1 else 1, "ffn": hidden * (card.ffn // card.hidden)}
    return dataclasses.replace(card, **changed, parameters=0)  # type: ignore[arg-type]


NUMBERS = ("tp", "pp", "cp", "ep", "dp", "virtual_stages", "micro_batch_size", "global_batch_size", "seq_len", "zero")
COLUMNS = ("source", "model", "gpus", "gpu", *NUMBERS, "dtype", "matmul_dtype", "recompute", "hsdp", "seconds")
"""Columns that a file must have. `framework`, `kernels`, `capacity_factor`, `note`, `quantity` and `value` may be there
too."""

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
        if capacity := self.cells.get("capacity_factor"):
            more.append(f"capacity {capacity}")
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
            "framework, kernels and capacity_factor if they are known"
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
    texts = {**_texts(row, profile), **_capacity(row)}
    words = profile.plan_words({**given, **texts, **counted_ends(profile, card, given)})
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


def _capacity(row: StepRow) -> dict[str, float]:
    """The word of a run that drops tokens above a capacity. Raises UsageError if its column has no positive number."""
    text = row.cells.get("capacity_factor", "")
    if not text:
        return {}
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise UsageError(f"capacity_factor is {shown(text)}, and it takes a number above 0")
    return {"capacity_factor": factor}


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


# How the tokens of a row reach their experts, where its framework chooses by the network.

NODE = 8
"""The accelerators of a node of an HGX. An NVLink domain with more spans several nodes."""


def dispatch_words(profile: FrameworkProfile, words: Mapping[str, Any], system: System) -> dict[str, Any]:
    """The words of a plan for the exchange of tokens, where a framework chooses it.

    words: the plan's words. The ranks of ep are next to each other among those of tp, if these hold whole experts, else
    among those of cp and dp. An exchange that stays in a node is Megatron-Core's all-to-all of choices.
    """
    ep, tp = words.get("ep") or 1, words.get("tp") or 1
    if not profile.sends_once or ep == 1 or words.get("dispatch") or words.get("capacity_factor"):
        return {}
    domain = system.dimensions[0].use or system.dimensions[0].size or 1
    apart = 1 if words.get("expert_tp") is False else tp
    near = domain // apart
    if ep <= near:
        return {"dispatch": "ranks"} if domain > NODE else {}
    if near > 1 and ep % near == 0:
        return {"dispatch": "nodes", "node_ranks": near}
    return {"dispatch": "ranks"}


# The published steps that stagedb has read (`KNOWN_FILES` in this folder), in two parts by a seed.
#
# Half of each source at most is *calibrated on*: only these rows may fix a number. The others are *held out*. The seed
# was chosen before anything was fitted. Each file is drawn on its own, so that a later one leaves the parts of earlier
# rows as they were.

SEED = 20261123

KNOWN_FILES = ("known_steps.csv", "known_steps_2.csv")

CALIBRATED, HELD_OUT, NOT_READ = "calibrated on", "held out", "not read"

Key = tuple[str, ...]


def parts(rows: Sequence[StepRow]) -> Mapping[StepRow, str]:
    """For each row the part that it belongs to. A row that stagedb does not have is not read."""
    known = _known()
    return {row: known.get(_key(row), NOT_READ) for row in rows}


def split(rows: Sequence[StepRow], seed: int = SEED) -> Mapping[Key, str]:
    """Each row's part. From each source half of the rows, rounded down, are drawn, in the order of the sources' names.

    Rows count by what they are, so that their order in a file does not matter. seed: of Python's generator; equal seeds
    draw equal rows.
    """
    found: dict[Key, str] = {}
    draws = random.Random(seed)
    for source in sorted({row.source for row in rows}):
        keys = sorted({_key(row) for row in rows if row.source == source})
        chosen = set(draws.sample(keys, len(keys) // 2))
        found |= {key: CALIBRATED if key in chosen else HELD_OUT for key in keys}
    return found


def fixes(row: StepRow, number: Calibration) -> bool:
    """Whether a published step that may fix numbers fixes this one: the number holds for its framework and system.

    That of experts is fixed by models with some.
    """
    job = job_of(row)
    return number.holds(job.profile.name, job.system.name) and (number.operator != EXPERTS or job.card.routes)


def fitted_together() -> tuple[tuple[Calibration, ...], ...]:
    """The fitted numbers, those that share rows in one tuple."""
    fixing = fixing_rows()
    found: list[tuple[Calibration, ...]] = []
    for each in calibrations():
        near = [one for one in found if any(not set(fixing[each]).isdisjoint(fixing[other]) for other in one)]
        found = [one for one in found if one not in near]
        found.append((*itertools.chain.from_iterable(near), each))
    return tuple(found)


@lru_cache(maxsize=1)
def fixing_rows() -> Mapping[Calibration, tuple[StepRow, ...]]:
    """For each fitted number the known rows that fixed it."""
    rows = known_rows()
    part = parts(rows)
    calibrated = [row for row in rows if part[row] == CALIBRATED]
    return {each: tuple(row for row in calibrated if fixes(row, each)) for each in calibrations()}


def _key(row: StepRow) -> Key:
    """A key of a row: its plan and its published time."""
    more = ("kernels", "capacity_factor")
    return (*(row.cells[name] for name in COLUMNS), *(row.cells.get(name, "") for name in more))


def known_rows(names: Sequence[str] = KNOWN_FILES) -> tuple[StepRow, ...]:
    """The published steps of files. names: of some files in `KNOWN_FILES`."""
    read = zip(KNOWN_FILES, _read(), strict=True)
    return tuple(itertools.chain.from_iterable(rows for name, rows in read if name in names))


@lru_cache(maxsize=1)
def _read() -> tuple[tuple[StepRow, ...], ...]:
    folder = files(__package__ or "")
    return tuple(read_steps(Path(str(folder.joinpath(name)))) for name in KNOWN_FILES)


@lru_cache(maxsize=1)
def _known() -> Mapping[Key, str]:
    return {key: part for rows in _read() for key, part in split(rows).items()}
