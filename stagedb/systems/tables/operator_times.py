"""Times of a rank's operators from the tables of a system, for many operators at once.

Each operator becomes a row of its table: a matmul by its own m, n and k, in gradients too. A batch of matmuls is one
whose rows are those of the whole batch. An attention is the causal one with as many queries, or with as many pairs of
queries and keys where it has other keys, for the pairs that it computes. The table of experts has all three matmuls,
and each takes its share of FLOPs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagedb.systems.system import System, TableFile
from stagedb.systems.tables.grids import Bools, Floats, chosen_experts
from stagedb.systems.tables.measured_table import UNBOUNDED, MeasuredTable, matmul_work, seen_pairs
from stagedb.systems.tables.table_files import load_table

BACKWARD = 0.86
"""The speed of an attention's backward over that of its forward, in FLOPs a second. It has 2.5 times the FLOPs.

FlashAttention 2 reaches up to 63 % of an A100's peak in the backward and 73 % in the forward (arXiv 2307.08691).
"""

_FAR = 0.7
"""Experts whose sizes differ by a factor of two from all measured ones take the table of a plain matmul."""

_ATTENTION = 6
"""Dims that an attention kernel has at least. Scores of an index have fewer, and no table."""

_TILE = 128
"""Queries of a block of an attention kernel that is made for sequences (FlashAttention 2 and 3)."""

_SAME_HEAD, _NEAR_WINDOW = 0.01, 0.8
"""Differences of logarithms up to which a head is the same, and a window about as large: by a factor of two."""

_LIKE: Mapping[str, str] = {"fp16": "bf16", "int4": "int4_symmetric"}
"""Formats whose kernels have the speed of another one's: tensor cores compute both at the same rate, or weights have
about as many bytes."""


@dataclass(frozen=True)
class Shaped:
    """An operator of one rank that a table may have.

    kind: `matmul` or `attention`. dims: of a matmul `[batch,] m, n, k`, of an attention batch, heads, heads of keys,
    queries, keys, head, and the size of a value if it is another. grouped: the batch of a matmul are experts. weights:
    it makes a gradient of weights, so that its k are tokens. causal: an attention leaves out what its mask hides.
    moved: the bytes that it reads and writes. spared: those that its weight in fewer bits has less than a measured one.
    stored: the format of that weight; empty: that of the other operand. drawn: tokens choose their experts at random,
    so that some of them have none; otherwise all have as many.
    """

    kind: str
    dtype: str
    dims: tuple[int, ...]
    flops: int
    moved: int
    grouped: bool = False
    weights: bool = False
    causal: bool = True
    spared: int = 0
    stored: str = ""
    drawn: bool = False


@dataclass(frozen=True)
class Aside:
    """What a matmul takes in addition to the measured one, and less.

    pace: ns a byte of operands and results that are wider than those of the table. cast: bytes for each element of the
    first operand that the measured one moved to cast it, which is an operator of its own here. kernels: ns of that
    cast's kernels beyond these bytes. fastest: ns a FLOP at the peak, below which nothing is left.
    """

    pace: float
    cast: int = 0
    kernels: float = 0.0
    fastest: float = 0.0


@dataclass(frozen=True)
class OperatorTimes:
    """The tables of a system by operator and format, read when they are first used."""

    system: System
    _known: dict[tuple[str, str], MeasuredTable | None] = field(default_factory=dict, compare=False)

    def table(self, operator: str, dtype: str) -> MeasuredTable | None:
        """The table of an operator in a format, or in one of the same speed; None without one.

        dtype: the format of the operands.
        """
        dtype = _format(dtype)
        key = operator, dtype
        if key not in self._known:
            file = self._file(operator, dtype)
            found = None if file is None else load_table(file.file, file.operator, file.dtype, file.digest)
            self._known[key] = found
        return self._known[key]

    def _file(self, operator: str, dtype: str) -> TableFile | None:
        of = {each.dtype: each for each in self.system.tables if each.operator == operator}
        return of.get(_format(dtype)) or of.get(_LIKE.get(dtype, ""))

    def _aside(self, dtype: str) -> Aside:
        """What the table of matmuls in a format has in addition to them."""
        file, accelerator = self._file("matmul", dtype), self.system.accelerator
        peak = accelerator.peak.get(_format(dtype))
        fastest = 0.0 if peak is None else 1 / (1000 * float(peak))
        cast = 0 if file is None else file.cast
        return Aside(self._spare_pace(), cast, self._kernels(dtype) if cast else 0.0, fastest)

    def _kernels(self, dtype: str) -> float:
        """ns of the kernels of a cast that was measured with matmuls in a format: what the smallest of these takes more
        than the smallest one of 16 bits, which has no cast."""
        own, plain = self.table("matmul", dtype), self.table("matmul", "bf16")
        return 0.0 if own is None or plain is None else max(own.floor - plain.floor, 0.0)

    def ns(self, operators: Sequence[Shaped]) -> list[float | None]:
        """ns of each operator; None for those without a table."""
        found: list[float | None] = [None] * len(operators)
        rows = defaultdict[tuple[str, str], list[int]](list)
        for place, each in enumerate(operators):
            known = each.kind == "matmul" or each.kind.startswith("attention")
            if known and each.dims and all(size > 0 for size in each.dims) and each.flops > 0:
                rows[self._operator(each), each.dtype].append(place)
        for (operator, dtype), places in rows.items():
            own = [operators[place] for place in places]
            chosen = [replace(each, moved=_wide(each)) if each.spared else each for each in own]
            for place, took in zip(places, self._times(operator, dtype, chosen), strict=True):
                found[place] = None if took is None else self._narrower(operators[place], took)
        return self._with_packed_experts(operators, found)

    def _with_packed_experts(self, operators: Sequence[Shaped], ns: list[float | None]) -> list[float | None]:
        """The times `ns` of operators, with those of experts whose weights were measured in their own format."""
        found, rows = list(ns), defaultdict[str, list[int]](list)
        for place, each in enumerate(operators):
            if each.stored and ns[place] is not None and self._operator(each) == "experts":
                rows[each.stored].append(place)
        for stored, places in rows.items():
            table, chosen = self.table("experts", stored), [operators[place] for place in places]
            if table is not None:
                taken, near = expert_ns(table, chosen)
                for place, took, known in zip(places, self._kept(taken, chosen), near, strict=True):
                    found[place] = took if known else found[place]
        return found

    def _narrower(self, each: Shaped, took: float) -> float:
        """ns of a matmul whose weight has fewer bits than that of the measured one. took: ns of the measured one.

        Its bytes take less time, as far as its FLOPs, at the same rate, do not take longer: kernels with weights of 4
        bits take as much less in a decode as they read, and nothing less in a large prefill (Marlin, arXiv 2408.11743).
        """
        table = self.table("matmul", each.dtype) or self.table("experts", each.dtype)
        if not each.spared or table is None:
            return took
        measured, own = (max(each.flops / table.rate, moved / table.bandwidth) for moved in (_wide(each), each.moved))
        return min(took, table.floor) + max(took - table.floor, 0.0) * own / measured

    def _operator(self, each: Shaped) -> str:
        if each.kind.startswith("attention"):
            return "attention" if is_attention_kernel(each.kind, each.dims) else "index"
        return "experts" if each.grouped and len(each.dims) == 4 else "matmul"

    def _times(self, operator: str, dtype: str, chosen: Sequence[Shaped]) -> Sequence[float | None]:
        if operator == "index":
            return [None] * len(chosen)
        table = self.table(operator, dtype)
        if operator == "attention":
            if table is None:
                return [None] * len(chosen)
            taken = (attention_ns(table, chosen) / self._clock).tolist()
            return [None if over_cache(each.dims) else ns for each, ns in zip(chosen, taken, strict=True)]
        plain, aside = self.table("matmul", dtype), self._aside(dtype)
        dense = None if plain is None else self._kept(matmul_ns(plain, chosen, aside), chosen)
        if operator == "matmul" or table is None:
            return [None] * len(chosen) if dense is None else dense
        taken, near = expert_ns(table, chosen)
        if plain is not None:
            taken = np.minimum(taken, one_by_one_ns(plain, chosen, aside))
        kept = self._kept(taken, chosen)
        return [kept[each] if near[each] or dense is None else dense[each] for each in range(len(chosen))]

    @property
    def _clock(self) -> float:
        """The clock of the system's power, over that at which its tables were measured.

        The processor has one clock for all its units. A step mixes kernels far faster than a limit of power acts, so
        that those which would stay below it run at the clock of the others.
        """
        power = self.system.accelerator.power
        return 1.0 if power is None else float(power.clock)

    def _kept(self, ns: Floats, chosen: Sequence[Shaped]) -> list[float]:
        """In a step: at the share of their measured speed that matmuls sustain there, and at the clock of its power.

        Matmuls that wait for memory draw less power, and keep their speed.
        """
        accelerator = self.system.accelerator
        share = float(accelerator.sustained) * self._clock
        computing = [each.flops * self._aside(each.dtype).fastest >= each.moved / self._bandwidth for each in chosen]
        found: list[float] = (ns / np.where(computing, share, 1.0)).tolist()
        return found

    @property
    def _bandwidth(self) -> float:
        """Bytes of memory a ns."""
        return float(self.system.accelerator.bandwidth)

    def _spare_pace(self) -> float:
        """ns a byte of what an operator moves in addition to its table's."""
        accelerator = self.system.accelerator
        share = float(accelerator.memory.points[-1][1])
        return 0.0 if accelerator.bandwidth == float("inf") else 1 / (float(accelerator.bandwidth) * share)


def is_attention_kernel(kind: str, dims: Sequence[int]) -> bool:
    """Whether an operator is an attention over queries and keys, whose sizes are known, and not scores of an index.

    kind, dims: as `Shaped` has them.
    """
    return kind.startswith("attention") and len(dims) >= _ATTENTION and min(dims) > 0


def over_cache(dims: Sequence[int]) -> bool:
    """Whether an attention has so few queries for its keys that its kernel is another one than those of the tables: one
    that divides the keys among its blocks and takes the time in which these are read, as in a step of decoding."""
    queries, keys = dims[3:5]
    return queries < min(keys, _TILE)


def _wide(each: Shaped) -> int:
    """The bytes that an operator would move with a weight in the format of its other operands."""
    return each.moved + each.spared


def _format(dtype: str) -> str:
    return "fp8" if dtype.startswith("fp8") else dtype


def _columns(chosen: Sequence[Shaped], names: Sequence[str], most: int) -> dict[str, Floats]:
    dims = np.array([(*each.dims, *(0,) * (most - len(each.dims))) for each in chosen], np.float64)
    return dict(zip(names, dims.T, strict=True))


def _batched(chosen: Sequence[Shaped]) -> Floats:
    """batch, m, n and k of matmuls. Where experts have uneven loads, their mean number of tokens, by the FLOPs."""
    dims = np.array([each.dims if len(each.dims) == 4 else (1, *each.dims) for each in chosen], np.float64)
    flops = np.array([each.flops for each in chosen], np.float64)
    tokens = np.where([each.weights for each in chosen], 3, 1)
    rows = np.arange(len(dims))
    grouped = np.array([each.grouped for each in chosen])
    dims[rows, tokens] *= np.where(grouped, flops / (2 * dims.prod(axis=1)), 1.0)
    return dims


def matmul_ns(table: MeasuredTable, chosen: Sequence[Shaped], aside: Aside) -> Floats:
    """ns of matmuls, with what is wider than in the table, and without the cast that was measured with them.

    table: of matmuls. chosen: the matmuls. aside: the work around a measured kernel.
    """
    batch, m, n, k = _batched(chosen).T
    rows = {"m": batch * m, "n": n, "k": k}
    moved = np.array([each.moved for each in chosen], np.float64)
    more = moved - batch * matmul_work({"m": m, "n": n, "k": k}, table.wide)[1]
    measured = table.ns(rows)
    cast = aside.kernels + aside.cast * batch * m * k * aside.pace
    alone = np.maximum(measured - cast, 2 * batch * m * n * k * aside.fastest)
    found: Floats = np.minimum(alone, measured) + np.maximum(more, 0.0) * aside.pace
    return found


def one_by_one_ns(table: MeasuredTable, chosen: Sequence[Shaped], aside: Aside) -> Floats:
    """ns of matmuls of experts that run one expert after the other, which a framework does where that is faster.

    Megatron's experts are a loop over matmuls without --moe-grouped-gemm. The table of grouped ones has what an engine
    of inference reaches, on an A100 by a kernel that is not made for many tokens. chosen: the matmuls.
    """
    experts = _with_tokens(_batched(chosen), chosen)
    ones = [
        replace(each, dims=each.dims[1:], flops=each.flops // each.dims[0], moved=each.moved // each.dims[0])
        for each in chosen
    ]
    return matmul_ns(table, ones, aside) * experts


def _with_tokens(dims: Floats, chosen: Sequence[Shaped]) -> Floats:
    """How many experts of each matmul have a token, in the mean. dims: as `_batched` has them."""
    experts, tokens = dims[:, 0], dims[:, 1]
    return np.where([each.drawn for each in chosen], chosen_experts(experts, tokens), experts)


def attention_ns(table: MeasuredTable, chosen: Sequence[Shaped]) -> Floats:
    """ns of attentions, forward or backward, with any mask.

    chosen: the attentions.
    """
    names = ("batch", "heads", "kv_heads", "queries", "keys", "head", "value")
    dims = _columns(chosen, names, len(names))
    queries, keys, head = dims["queries"], dims["keys"], dims["head"]
    value = np.where(dims["value"] > 0, dims["value"], head)
    causal = np.array([each.causal for each in chosen])
    window = np.where(causal & (keys < queries) & _windowed(table, head, keys), keys, UNBOUNDED)
    pairs = np.where(causal, seen_pairs(queries, keys), queries * keys)
    # An attention without a mask, or with keys before its first query, is timed as a causal one with as many pairs of
    # queries and keys, which has sqrt(2 pairs) queries: few queries of many keys would have the times of a launch.
    rows = np.where(causal & (keys <= queries), queries, np.sqrt(2.0 * pairs))
    sizes = {**dims, "seq": rows, "window": window}
    own = seen_pairs(rows, np.minimum(window, rows))
    forward = 2 * dims["batch"] * dims["heads"] * queries * keys * (head + value)
    backward = np.array([each.flops for each in chosen], np.float64) / forward
    # An attention with more FLOPs than a forward has is a backward.
    speed = np.where(backward > 1.01, BACKWARD, 1.0)
    found: Floats = table.ns(sizes) * (pairs / own) * ((head + value) / (2 * head)) * backward / speed
    return found


def _windowed(table: MeasuredTable, head: Floats, window: Floats) -> Bools:
    """Whether heads of this size were measured with about this window. Another head's kernel may be another one."""
    heads, windows = np.log(table.families).T
    alike = np.abs(np.log(head)[:, None] - heads) < _SAME_HEAD
    near = np.abs(np.log(window)[:, None] - windows) < _NEAR_WINDOW
    found: Bools = (alike & near).any(axis=1)
    return found


def expert_ns(table: MeasuredTable, chosen: Sequence[Shaped]) -> tuple[Floats, list[bool]]:
    """ns of matmuls of experts, and whether the table has experts of such sizes.

    One side of the weights is the hidden size, the other the inner one; gate and up may be packed in one matrix. The
    reading that is nearest to a measured model is taken. chosen: the matmuls.
    """
    dims = _batched(chosen)
    weights = np.array([each.weights for each in chosen])
    experts, tokens = dims[:, 0], np.where(weights, dims[:, 3], dims[:, 1])
    sides = np.where(weights, dims[:, 1], dims[:, 3]), dims[:, 2]
    readings = [(sides[0], sides[1]), (sides[1], sides[0]), (sides[0], sides[1] / 2), (sides[1], sides[0] / 2)]
    apart = np.stack([table.nearest_experts(hidden, ffn, experts) for hidden, ffn in readings])
    best = apart.argmin(axis=0)
    hidden, ffn = (np.choose(best, [reading[each] for reading in readings]) for each in (0, 1))
    choices = experts * tokens
    whole = table.local_experts(choices, hidden, ffn, experts)
    drawn = np.array([each.drawn for each in chosen])
    if drawn.any():
        # Experts without a token are not read. More than a token for each cost what they cost with equal loads.
        few = table.local_experts(chosen_experts(experts, tokens), hidden, ffn, experts)
        even = table.local_experts(np.minimum(choices, experts), hidden, ffn, experts)
        whole = np.where(drawn, few + np.maximum(whole - even, 0.0), whole)
    share = 2 * dims.prod(axis=1) / (6 * experts * tokens * hidden * ffn)
    return whole * share, (apart.min(axis=0) < _FAR).tolist()
