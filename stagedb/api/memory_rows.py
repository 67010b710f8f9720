"""The memory of an instance as rows, from the store or computed without a write; and how many requests fit."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from stagedb.api import system_choice
from stagedb.api.results import InstanceInfo, Memory, Rows
from stagedb.api.wanted_instances import Wanted, graph_of
from stagedb.errors import UsageError
from stagedb.memory.request_blocks import MemoryShare, RequestFit, sampling_bytes, tightest
from stagedb.mentions import Word
from stagedb.models.sizes import MOST_TOKENS
from stagedb.plans import Plan
from stagedb.plans.request_batches import one_prefix
from stagedb.plans.serving_checks import DRAFTING
from stagedb.store import Store, load, read_whole

if TYPE_CHECKING:
    from stagedb.frameworks.engines import EngineSettings
    from stagedb.lowering import Program
    from stagedb.memory import ClassMemory
    from stagedb.systems.system import Accelerator, System

TABLES = ("peaks", "levels", "tensors")


def read_memory(
    store: Store, instance: InstanceInfo, system: "System | None", analysed: Callable[[], Sequence["ClassMemory"]]
) -> Memory:
    """The memory of an instance, with what an accelerator has for it. Writes nothing.

    system: the one whose accelerator is to hold it; None: that of the newest profile. analysed: the result of `analyse`
    for the instance, for one that the store has no memory of.
    """
    tables = rows_of(store, instance, keep=False, analysed=analysed)
    has = system_choice.accelerator_of(store, instance, system)
    room, reserve = (None, {}) if has is None else (has.room, has.reserved)
    return Memory(instance, *tables, room, reserve)


def rows_of(
    store: Store, instance: InstanceInfo, keep: bool, analysed: Callable[[], Sequence["ClassMemory"]] | None = None
) -> tuple[Rows, Rows, Rows]:
    """Peaks, levels and tensors of an instance. What the store does not have is computed, and written if `keep` is set.

    Each class is written as a whole, and an interrupted run may have left some classes out. analysed: the result of
    `analyse` for the instance, where others need it too; None: computed here.
    """
    if len(store.read("memory/all_peaks", instance=instance.id)) < instance.classes:
        from stagedb.store.contents.memory import analyse, record

        found = analyse(store, instance.id) if analysed is None else tuple(analysed())
        if not keep:
            ranks = {row["number"]: row["ranks"] for row in store.read("workload/classes", instance=instance.id)}
            return _computed([_values(each, ranks) for each in found])
        record(store, instance.id, found)
    peaks, levels, tensors = read_whole(
        store, "Instance", instance.id, lambda: [_stored(store, name, instance.id) for name in TABLES]
    )
    return peaks, levels, tensors


def rows_of_program(program: "Program") -> tuple[Rows, Rows, Rows]:
    """Peaks, levels and tensors of a program, computed in memory."""
    from stagedb.memory import memory_of

    ranks = Counter(program.workload.ranks.number.tolist())
    return _computed([_values(each, ranks) for each in memory_of(program)])


def _stored(store: Store, table: str, instance: str) -> Rows:
    return _rows(table, store.read(f"memory/all_{table}", instance=instance))


def _rows(table: str, found: list[dict[str, Any]]) -> Rows:
    columns = tuple(column.name for column in load(f"memory/all_{table}").columns)
    return Rows(columns, tuple(tuple(row[name] for name in columns) for row in found))


def _values(each: "ClassMemory", ranks: Mapping[int, int]) -> Mapping[str, Any]:
    from stagedb.store.contents.memory import stored_row

    found = each.rank_class
    return {**stored_row("", "", frozenset(), each), "stages": list(found.stages), "ranks": ranks[found.number]}


def _computed(classes: list[Mapping[str, Any]]) -> tuple[Rows, Rows, Rows]:
    """The rows of the three tables, in the order of their statements."""
    classes = sorted(classes, key=lambda each: int(each["class"]))
    peaks = [{**each["values"], "stages": each["stages"], "ranks": each["ranks"]} for each in classes]
    levels = [
        {"class": each["class"], **level}
        for each in classes
        for level in sorted(each["levels"], key=lambda level: (level["moment"], level["category"]))
    ]
    return _rows("peaks", peaks), _rows("levels", levels), _rows("tensors", [*_tensors(classes)])


def _tensors(classes: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The largest first; those without a layer come last among equals, as in Cypher."""
    for each in classes:
        for row in sorted(
            each["tensors"],
            key=lambda row: (-row["bytes"], row["name"], row["layer"] is None, row["layer"] or 0, row["category"]),
        ):
            yield {"class": each["class"], **row}


# How many requests of a length fit next to the weights of a rank: the share that an engine takes, and its blocks.

OF_STEP = (
    *("ep", "expert_tp", "expert_load", "routing", "capacity_factor", "redundant_experts"),
    *("dispatch", "dispatch_dtype", "node_ranks", "overlap_experts", "requests", "global_batch_size"),
)
"""Words of a plan on which the cache of a request does not depend, and that not every step can have."""


@dataclass(frozen=True)
class RequestWords:
    """Settings of an engine that decide how many requests fit. None: as the engine's file has it, else the default.

    share: of the memory. block: tokens of a block. tokens: those of a request; None: those of the plan. held: bytes
    next to weights and cache. capacity: bytes of an accelerator; None: that of the system. engine: settings of a file.
    Raises UsageError for numbers out of range.
    """

    share: Fraction | None = None
    block: int | None = None
    tokens: int | None = None
    held: int | None = None
    capacity: int | None = None
    engine: "EngineSettings | None" = None

    def __post_init__(self) -> None:
        for name in ("block", "tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}: it takes 1 or more")
        for name in ("held", "capacity"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"{name} is {value}: it takes bytes, 0 or more")
        if self.share is not None and not 0 < self.share <= 1:
            raise UsageError(f"share is {float(self.share):g}: it takes a number above 0 and up to 1")

    def setting(self, name: str, default: int) -> int:
        """A number of the engine's file. name: of the setting. default: without a file, or without the setting."""
        return default if self.engine is None else self.engine.number(name, default)


@dataclass(frozen=True)
class RequestRoom:
    """The requests that a rank has room for.

    share: the memory of the rank class with the least room. fits: by tokens of a request, the plan's first. wanted: the
    requests that a rank of the plan has at once, in all of its `microbatches`.
    """

    share: MemoryShare
    fits: Mapping[int, RequestFit]
    wanted: int
    microbatches: int = 1

    @property
    def fit(self) -> RequestFit:
        """How many requests of the length that was asked for fit."""
        return next(iter(self.fits.values()))


def counted(
    store: Store, wanted: Wanted, tables: tuple[Rows, Rows], words: RequestWords, accelerator: "Accelerator | None"
) -> RequestRoom | None:
    """The requests that fit next to an instance's weights; None if neither words nor an accelerator have a capacity.

    tables: its peaks and levels. Raises UsageError for a workflow without a cache, and for words out of range.
    """
    plan = wanted.plan
    reserve: Mapping[str, int] = {}
    if words.capacity is None:
        if accelerator is None or accelerator.room is None:
            return None
        reserve = accelerator.reserved
        words = dataclasses.replace(words, capacity=accelerator.room + sum(reserve.values()))
    if not plan.workflow.caches:
        raise UsageError(
            f"{plan.workflow.name} has no cache, so that no number of requests fits: it is counted for "
            f"{Word('workflow', 'prefill')} and {Word('workflow', 'decode')}"
        )
    peaks, levels = tables
    block = words.block or words.setting("block_size", 16 if words.engine is None else words.engine.engine.block)
    if max(block, words.tokens or 1) > MOST_TOKENS:
        raise UsageError(
            f"blocks and requests have at most {MOST_TOKENS:,} tokens, not {max(block, words.tokens or 1):,}"
        )
    block *= plan.cp  # of a request, whose tokens ranks of cp share: vLLM's virtual block
    asked = words.tokens or plan.positions
    lengths = dict.fromkeys([asked, words.setting("longest", asked)])
    sizes = _Sizes(store, wanted)
    batch = plan.request_batch
    prefix = 0 if batch is None else one_prefix(batch.groups)
    shares = {row["class"]: _share(row, levels, wanted, words, reserve) for row in peaks}
    fits = {}
    for tokens in lengths:
        by_class = {
            row["class"]: sizes.fit(shares[row["class"]].cache, row["stages"][0], (block, tokens, prefix), words)
            for row in peaks
        }
        least = tightest(by_class)
        fits[tokens] = by_class[least]
        if tokens == next(iter(lengths)):
            share = shares[least]
    return RequestRoom(share, fits, plan.microbatches * _requests(plan), plan.microbatches)


def _requests(plan: Plan) -> int:
    """Number of requests of a rank in one micro-batch."""
    batch = plan.request_batch
    return plan.micro_batch_size if batch is None else batch.sums.n


def _share(
    row: Mapping[str, Any], levels: Rows, wanted: Wanted, words: RequestWords, reserve: Mapping[str, int]
) -> MemoryShare:
    at_peak = {
        each["category"]: each["bytes"] for each in levels if each["class"] == row["class"] and each["moment"] == "peak"
    }
    weights = at_peak.get("parameters", 0)
    activations = row["peak"] - weights - at_peak.get("cache", 0)
    engine = None if words.engine is None else words.engine.engine
    held: dict[str, int] = {"activations": activations}
    if engine is None:
        held |= reserve
    else:
        plan = wanted.plan
        requests = words.setting("requests", _requests(plan))
        held["sampling"] = sampling_bytes(requests, wanted.source.sizes["V"], engine.sampling)
        held["libraries"] = engine.libraries[plan.tp > 1]
    if words.held is not None:
        held = {"held": words.held}
    share = words.share
    if share is None:
        usual = "0.9" if engine is None else engine.share
        written = None if words.engine is None else words.engine.values.get("memory_share")
        share = written if isinstance(written, Fraction) else Fraction(usual) if usual else None
    if share is None:
        title = "the engine" if engine is None else engine.title
        raise UsageError(f"{title} chooses its share of memory by itself: give it with {Word('memory_share')}")
    return MemoryShare(
        words.capacity or 0,
        share,
        "total" if engine is None else engine.share_of,
        weights,
        {name: size for name, size in held.items() if size},
        {} if engine is None or engine.share_of == "total" else reserve,
        given=words.setting("cache_bytes", 0) or None,
        most=words.setting("cache_most", 0) or None,
    )


class _Sizes:
    """Bytes of the cache of one request, by its tokens and the stage of a pipeline."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self.store, self.wanted = store, wanted
        self.known: dict[int, Mapping[int, int]] = {}

    def fit(self, cache: int, stage: int, lengths: tuple[int, int, int], words: RequestWords) -> RequestFit:
        """The requests that a cache has room for.

        cache: its bytes. stage: a stage of the pipeline. lengths: the tokens of a block, those of each request, and
        those of the prefix that all of them share. words: limits of an engine.
        """
        block, tokens, prefix = lengths
        whole = -(-tokens // block) * block
        one, request = self._of(block)[stage], self._of(whole)[stage]
        blocks, most = words.setting("blocks", 0), words.setting("cache_tokens", 0)
        even = one * (whole // block) == request
        shared = min(prefix, tokens - self._least) // block * block
        once = self._prefix(shared, whole, stage, request, one * (shared // block) if even else None)
        limit = most // block if most else None
        return RequestFit(one * blocks or cache, block, one, tokens, request, even, limit, max(shared, 0), once)

    @property
    def _least(self) -> int:
        """Tokens of a request behind a shared prefix, at least: those that a step computes."""
        return self.wanted.plan.drafted + 1

    def _prefix(self, shared: int, whole: int, stage: int, request: int, even: int | None) -> int:
        """The bytes that two requests share of a prefix. shared: its tokens. whole: those of each request, and
        `request` their bytes. even: the bytes, if all layers keep all tokens."""
        if shared <= 0 or even is not None:
            return even or 0
        text = f"2x{self._least}+{whole - self._least}/{shared}"
        words: dict[str, object] = {"micro_batch_size": None, "seq_len": None, "cache_len": None, "requests": [text]}
        if DRAFTING not in self.wanted.source.sizes:
            words |= {"workflow": "decode", "draft": None, "acceptance": None}
        return 2 * request - self._caches(self._changed(words))[stage]  # ranks of cp share no prefixes

    def _of(self, tokens: int) -> Mapping[int, int]:
        """By stage: the cache of a request of its own, as its prefill leaves it."""
        if tokens not in self.known:
            self.known[tokens] = self._caches(self._plan(tokens))
        return self.known[tokens]

    def _caches(self, plan: Plan) -> Mapping[int, int]:
        """By stage: the bytes of the caches of a plan's requests on a rank, for one request on each rank of dp."""
        from stagedb.lowering import IndexedGraph, lower
        from stagedb.memory import Category, memory_of

        program = lower(IndexedGraph.of(graph_of(self.wanted.source, plan.options, self.store)), plan)
        return {
            stage: each.usage.before().get(Category.CACHE, 0) // self._together
            for each in memory_of(program)
            for stage in each.rank_class.stages
        }

    @property
    def _together(self) -> int:
        """Number of requests of a plan that is tried: as many as ranks of cp that deal them to experts, else one."""
        return self.wanted.plan.cp if "E" in self.wanted.source.sizes else 1

    def _plan(self, tokens: int) -> Plan:
        one: dict[str, object]
        if DRAFTING in self.wanted.source.sizes:
            # A model that drafts with its own layers keeps their keys too, which only a step that checks drafts has,
            # and no prefill.
            checked = self.wanted.plan.drafted + 1
            one = {"seq_len": checked, "cache_len": max(tokens - checked, 1)}
        else:
            one = {"workflow": "prefill", "seq_len": tokens, "cache_len": 0, "draft": None, "acceptance": None}
        return self._changed({**one, "micro_batch_size": self._together})

    def _changed(self, words: Mapping[str, object]) -> Plan:
        """The plan with other requests. words: those that describe them."""
        return self.wanted.plan.changed({**dict.fromkeys(OF_STEP, None), **words, "sp": False})
