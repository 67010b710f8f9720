"""Measured times a token of engines that served requests, next to those of a search of engines. Nothing is fitted.

The files are those of AIConfigurator (`silicon_sample.csv` of its package), with a row for each run of a benchmark:
model, accelerators, engine, lengths of requests, how many are at once in an engine, and the time a token.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import path_text, read_text, shown
from stagedb.files.tabular_files import csv_table
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.columns import ClassColumns
from stagedb.memory import Category, memory_of
from stagedb.mentions import Word
from stagedb.models import Card, card_names, load_card
from stagedb.plans import GraphOptions, Plan
from stagedb.search.serving import EnginePoint, Role, latencies, most_at_once
from stagedb.search.serving_engines import CHUNKS, EngineLayout, EngineSteps, ServingLoad, StepWords
from stagedb.search.trials import Trials
from stagedb.shared_work import shared
from stagedb.systems import load_system
from stagedb.timing.expected_errors import ServedErrors
from stagedb.timing.op_durations import computed_flops, unread_bytes

COLUMNS = (
    *("model_path", "system", "backend", "precision", "mode", "isl", "osl", "gemm_quant_mode", "batch_size"),
    *("tp_size", "pp_size", "attention_dp_size", "moe_ep_size", "silicon_tpot_ms"),
)
"""Columns that a file must have. Others are left alone."""

PREDICTED = "predicted_ms"
"""The column of a prediction, in the file of rows that stagedb has."""

MODELS: Mapping[str, str] = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama3.1-70b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
}
"""Names of checkpoints, and the cards with their sizes. A card's own name means itself."""

SYSTEMS: Mapping[str, str] = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200"}
"""Names of accelerators in a file, and their presets."""

SIXTEEN_BITS = ("", "bf16", "bfloat16", "fp16", "float16")

MOST = 1e7
"""A number of a row is smaller."""

_LARGEST = 64 << 20


@dataclass(frozen=True, eq=False)
class ServedRow:
    """A row of a file of measured times. line: its number in the file, the header being 1. cells: texts by column."""

    line: int
    cells: Mapping[str, str]

    @property
    def kind(self) -> tuple[str, str, str]:
        """Accelerators, engine and model."""
        return self.cells["system"], self.cells["backend"], self.cells["model_path"]

    @property
    def measured(self) -> float:
        """ms a token. UsageError for anything but a number above 0."""
        return self._number("silicon_tpot_ms")

    def count(self, column: str) -> int:
        """A whole number. An empty cell is 1.

        column: its name in the table. UsageError for anything else.
        """
        value = self._number(column) if self.cells[column] else 1.0
        if value != int(value):
            raise UsageError(f"row {self.line}: {column} is {shown(self.cells[column])}: it takes a whole number")
        return int(value)

    def _number(self, column: str) -> float:
        try:
            value = float(self.cells[column])
        except ValueError:
            value = 0.0
        if not 0 < value < MOST:
            raise UsageError(f"row {self.line}: {column} is {shown(self.cells[column])}: it takes a number above 0")
        return value


@dataclass(frozen=True)
class ServedTime:
    """A row and its prediction. ms: the predicted time of a token; None with a reason."""

    row: ServedRow
    ms: float | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """The predicted time over the measured one, less 1; None without a predicted time."""
        return None if self.ms is None else self.ms / self.row.measured - 1


def read_served(path: Path) -> list[ServedRow]:
    """The rows of a file. UsageError, with the line, for a file that is none."""
    where = path_text(path)
    table = csv_table(read_text(path, "rows", _LARGEST, str(Word("served"))), where)
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise UsageError(
            f"{where} has no column {missing[0]}: {Word('served')} takes those of AIConfigurator's silicon_sample.csv, "
            f"{', '.join(COLUMNS)}"
        )
    found = [ServedRow(line, dict(zip(table.columns, cells, strict=True))) for line, cells in table.rows]
    if not found:
        raise UsageError(f"{where} has no rows under its columns ({Word('served')})")
    return found


def predict_served(
    rows: Sequence[ServedRow], progress: Callable[[int, int], None], processes: int | None = None
) -> list[ServedTime]:
    """The time a token of each row, in their order.

    Each step computes a part of one prompt next to the tokens of decodes: at most the largest number of tokens that a
    search tries (`CHUNKS`). A row of an engine that a search does not try has no time, but the reason. processes: the
    number that time steps; None: one on each core. progress: called with the number of rows that are done, and of all.
    """
    found: dict[int, ServedTime] = {}
    work: list[tuple[int, Card, EngineLayout, ServingLoad]] = []
    cards: dict[str, Card] = {}
    for at, row in enumerate(rows):
        try:
            name = _card_name(row)
            work.append((at, cards.setdefault(name, load_card(name)), _layout(row, cards[name]), _load(row)))
        except UsageError as error:
            found[at] = ServedTime(row, None, error.message)
    work.sort(key=lambda each: (each[1].name, rows[each[0]].cells["system"], repr(each[2])))
    trials: dict[tuple[str, str], Trials] = {}

    def answer(number: int) -> dict[str, Any]:
        at, card, layout, load = work[number]
        system = SYSTEMS[rows[at].cells["system"]]
        if (card.name, system) not in trials:
            trials.clear()  # the trials of one model on one system are kept: its rows follow each other
            sizes = model_sizes(card, GraphOptions().framework)
            trials[card.name, system] = Trials(partial(build_graph, card), sizes, load_system(system))
        steps = EngineSteps(trials[card.name, system], StepWords(layout, load), card.check_tp)
        try:
            return {"ms": _time(steps, load, rows[at].measured) / 1e6}
        except UsageError as error:
            return {"reason": error.message}

    for number, each in shared(answer, [f"row {rows[at].line}" for at, *_ in work], processes):
        at = work[number][0]
        found[at] = ServedTime(rows[at], each.get("ms"), each.get("reason", ""))
        progress(len(found), len(rows))
    return [found[at] for at in range(len(rows))]


def _card_name(row: ServedRow) -> str:
    name = row.cells["model_path"]
    found = MODELS.get(name, name)
    if found not in card_names():
        raise UsageError(f"no card of the library is {shown(name)}")
    if row.cells["system"] not in SYSTEMS:
        raise UsageError(f"no preset is {shown(row.cells['system'])}")
    return found


def _layout(row: ServedRow, card: Card) -> EngineLayout:
    if row.cells["mode"] != "agg":
        raise UsageError("engines of prefill and of decode apart are measured together")
    if not row.cells["precision"]:
        raise UsageError("the format of the weights is not named")
    formats = {row.cells["precision"], row.cells["gemm_quant_mode"]} - set(SIXTEEN_BITS)
    if any(not each.startswith("fp8") for each in formats):
        raise UsageError("weights of fewer than 8 bits are not built")
    tp, pp, dp, ep = (row.count(name) for name in ("tp_size", "pp_size", "attention_dp_size", "moe_ep_size"))
    words: dict[str, Any] = {"tp": tp, "dp": dp, **({"pp": pp} if pp > 1 else {})}
    if card.experts and ep > 1:
        if ep not in (dp, tp * dp) or tp > 1 < dp < ep:
            raise UsageError("experts on ranks of tp and dp together, or spread and cut, are not built")
        words |= {"ep": ep, "dispatch": "ranks"} if ep == dp else {"ep": ep, "expert_tp": False}
    elif dp > 1:
        raise UsageError("experts that ranks of dp share by tp are not built")
    return EngineLayout({**words, **({"matmul_dtype": "fp8"} if formats else {})}, tp * dp * pp)


def _load(row: ServedRow) -> ServingLoad:
    return ServingLoad(row.count("isl"), row.count("osl"), concurrency=row.count("batch_size"))


def _time(steps: EngineSteps, load: ServingLoad, measured: float) -> int:
    """ns a token, with the row's requests at once on each rank of dp. measured: ms of a token."""
    count, chunk = load.concurrency or 1, min(CHUNKS[-1], load.prompt)
    if count > most_at_once(load, chunk):
        raise UsageError("requests wait for the prompts of others")
    room = steps.trials.system.accelerator.room
    held = steps.peak(steps.words.decode(count))
    if room is not None and held > room:
        raise UsageError("so many requests do not fit at once: some wait")
    if measured < _least(steps, load, held):
        raise UsageError("faster than the accelerator is: fewer requests ran, or prompts were in a cache")
    mixed, _ = steps.mixed_time(count, chunk)
    decode = steps.time(steps.words.decode(count))
    return latencies(load, EnginePoint(Role.BOTH, 0, count, chunk, mixed, decode))[1]


def _least(steps: EngineSteps, load: ServingLoad, held: int) -> float:
    """The ms of a token at the peaks of an accelerator, in which kernels of a layer run one after the other.

    Its attention reads the caches of all requests, or computes those of prompts; its matmuls read weights, without
    experts that no token chooses, or compute. Each request has its prompt computed once. held: bytes of weights and
    caches on a rank.
    """
    accelerator, layout = steps.trials.system.accelerator, steps.words.layout
    program = steps.trials.copied(Plan.from_mapping(steps.words.decode(load.concurrency or 1)))
    cached = max(each.usage.before().get(Category.CACHE, 0) for each in memory_of(program))
    unread = max(unread_bytes(each) for each in program.workload.classes)
    bandwidth = float(accelerator.bandwidth) * 1e6
    peaks = {dtype: float(rate) * 1e9 for dtype, rate in accelerator.peak.items()}
    most, of_matmuls = max(peaks.values()), peaks["fp8" if layout.words.get("matmul_dtype") == "fp8" else "bf16"]
    prompt = steps.trials.copied(Plan.from_mapping(steps.words.prefill(1))).workload
    computed = [_computed(each) for each in prompt.classes]
    prompts = (load.concurrency or 1) / load.output
    attention = max(cached / bandwidth, max(each[True] for each in computed) * prompts / most)
    matmuls = max((held - cached - unread) / bandwidth, max(each[False] for each in computed) * prompts / of_matmuls)
    return attention + matmuls


def _computed(columns: ClassColumns) -> Counter[bool]:
    """The FLOPs of a class, by whether they are of attentions."""
    found = Counter[bool]()
    for op in np.flatnonzero(columns.ops.flops > 0).tolist():
        found[columns.ops.kind[op].startswith("attention")] += computed_flops(columns, op, "")
    return found


def kinds_served(found: Sequence[ServedTime]) -> Iterator[tuple[tuple[str, str, str], list[ServedTime]]]:
    """The rows with a time, by accelerators, engine and model."""
    for kind in sorted({each.row.kind for each in found if each.ms is not None}):
        yield kind, [each for each in found if each.row.kind == kind and each.ms is not None]


def served_errors(found: Sequence[ServedTime]) -> ServedErrors | None:
    """The absolute errors of the predictions that have a time; None without one."""
    errors = [abs(each.error) for each in found if each.error is not None]
    return ServedErrors(len(errors), median(errors), sum(errors) / len(errors), max(errors)) if errors else None


def known_served() -> list[ServedTime]:
    """Rows that stagedb has read, predicted: some of each kind on H100 and H200, drawn by a seed.

    `scripts/_served_rows.py` writes them.
    """
    rows = read_served(Path(str(files("stagedb.validation").joinpath("known_served.csv"))))
    return [ServedTime(row, float(row.cells[PREDICTED])) for row in rows]


def is_of_experts(row: ServedRow) -> bool:
    """Whether the model of a row has experts."""
    return bool(load_card(_card_name(row)).experts)
