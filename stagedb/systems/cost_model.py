"""How long operators, collectives and messages take on a system. docs/systems.md explains the model.

Each duration comes with the traffic: the bytes that a rank sends into each network dimension. All values are
computed in exact fractions and rounded once, half up. `Costs` remembers the results of earlier calls.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter

import numpy as np

from stagedb.collectives import ALL_REDUCE, KINDS, CollectiveKind
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.systems.algorithms import ALGORITHMS, COLLECTIVES
from stagedb.systems.astra_sim import SimulatedCollective
from stagedb.systems.group_placement import Placement, Spread, crossed, place
from stagedb.systems.system import ASTRA_SIM, Accelerator, Dimension, Network, Number, System, inverse
from stagedb.systems.tables.grids import chosen_share
from stagedb.systems.tables.measured_table import COLLECTIVE, WIDTHS
from stagedb.systems.tables.measured_table import COLLECTIVES as COLLECTIVE_KINDS
from stagedb.systems.tables.operator_times import OperatorTimes, Shaped, is_attention_kernel, over_cache

Wires = tuple[tuple[str, int], ...]
"""Network dimensions, innermost first, and the bytes that are sent into each."""


@dataclass(frozen=True)
class Work:
    """An operator on one rank.

    kind: such as matmul. dtype: the format that it computes in, a name of `stagedb.plans.FORMAT_BYTES`. flops: 2 for a
    multiply-add. bytes: that it reads and writes. The other fields serve systems with tables
    (`stagedb.systems.tables.operator_times.Shaped`). dims: sizes of a matmul or an attention; empty: unknown. spared:
    bytes that a weight in fewer bits has less than one in the format of the others. stored: the weight's format then.
    """

    kind: str
    dtype: str
    flops: int
    bytes: int
    dims: tuple[int, ...] = ()
    grouped: bool = False
    weights: bool = False
    causal: bool = True
    spared: int = 0
    stored: str = ""


@dataclass(frozen=True)
class CollectiveWork:
    """A collective. bytes: what this rank passes in, the input shard of an all-gather, the whole input of others.

    ranks: the members, ascending.
    """

    kind: str
    bytes: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Transfer:
    """A message from one rank to another."""

    bytes: int
    source: int
    target: int


@dataclass(frozen=True)
class Timed:
    """A duration. rule: where it comes from: `roofline:compute`, `roofline:memory`, the name of a collective algorithm,
    `p2p`, `measured`, `host:link`, `host:memory`, or `table:` and the operator of a system's table. dimension: the
    slowest network dimension that it spans; None without a network.

    wires: the dimensions that it crosses, innermost first, each with the bytes that a rank sends into it (mean of the
    members). A byte counts once, in the outermost dimension between its two ends.
    """

    ns: int
    rule: str
    dimension: str | None = None
    wires: Wires = ()


class Costs:
    """The costs on one system for a job with `world` ranks. It remembers the results of earlier calls.

    engine: whether the job is a step of an engine that serves, which has all-reduces of its own. Raises UsageError if
    the network of the system has too few places for the job.
    """

    def __init__(self, system: System, world: int, *, engine: bool = False) -> None:
        self.system = system
        self.engine = engine
        self.network = system.network(world)
        self._sizes = _sizes(self.network)
        self._known: dict[Work | Transfer | tuple[str, int, Placement], Timed] = {}
        self._places: dict[tuple[int, ...], Placement] = {}
        self._tables = OperatorTimes(system)

    def work(self, work: Work) -> Timed:
        """How long an operator takes."""
        if work not in self._known:
            self.learn([work])
        return self._known[work]

    def learn(self, works: Iterable[Work]) -> None:
        """Time many operators at once, which is faster with tables.

        `work` then remembers them. works: the operators.
        """
        asked = [work for work in dict.fromkeys(works) if work not in self._known]
        several = {work: kernels for work in asked if (kernels := kernels_of(work))}
        if several:
            self.learn(kernel for kernels in several.values() for kernel, _ in kernels)
            for work, kernels in several.items():
                times = [(count * self._known[kernel].ns, self._known[kernel].rule) for kernel, count in kernels]
                self._known[work] = Timed(sum(ns for ns, _ in times), max(times, key=itemgetter(0))[1])
        on_host = [work for work in asked if work.kind in HOST_KINDS]
        self._known |= {work: time_on_host(self.system, work) for work in on_host}
        single = [work for work in asked if work not in several]
        self._known |= {work: timed for work in single if (timed := self._over_cache(work)) is not None}
        new = [work for work in single if work not in self._known]
        shaped = [
            Shaped(
                kind=each.kind,
                dtype=each.dtype,
                dims=each.dims,
                flops=each.flops,
                moved=each.bytes,
                grouped=each.grouped,
                weights=each.weights,
                causal=each.causal,
                spared=each.spared,
                stored=each.stored,
                drawn=self._draws(each),
            )
            for each in map(self._read, new)
        ]
        taken = self._tables.ns(shaped) if self.system.tables else [None] * len(new)
        for work, ns in zip(new, taken, strict=True):
            if ns is None:
                self._known[work] = time_work(self.system.accelerator, self._read(work))
                continue
            _rate_of(self.system.accelerator, work)
            operator = "attention" if work.kind.startswith("attention") else "matmul"
            self._known[work] = Timed(math.floor(ns + 0.5), f"table:{operator}")

    def _over_cache(self, work: Work) -> Timed | None:
        """How long an engine's attention over a cache takes; None for other operators, and without numbers of these."""
        accelerator = self.system.accelerator
        kernels = accelerator.decode_attention if self.engine else None
        if kernels is None or not is_attention_kernel(work.kind, work.dims) or not over_cache(work.dims):
            return None
        computing = work.flops * inverse(_rate_of(accelerator, work)) / 1000
        taken, rule = kernels.time(work.bytes * inverse(accelerator.bandwidth), computing)
        return Timed(_whole(taken), rule)

    def _draws(self, work: Work) -> bool:
        """Whether tokens choose the experts of a matmul at random. Training has so many that all experts have some."""
        return self.engine and draws_experts(work)

    def _read(self, work: Work) -> Work:
        return read_work(work) if self.engine else work

    def collective(self, collective: CollectiveWork) -> Timed:
        """How long a collective takes."""
        return self.placed(collective.kind, collective.bytes, self.placement(collective.ranks))

    def placement(self, ranks: tuple[int, ...]) -> Placement:
        """The placement of a group of ranks.

        Many groups have the same one, and take the same time. ranks: ascending.
        """
        if ranks not in self._places:
            self._places[ranks] = place(ranks, self._sizes, simulated=self.network[0].simulated)
        return self._places[ranks]

    def placed(self, kind: str, size: int, placement: Placement) -> Timed:
        """How long a collective takes in a group whose placement is known: for code that asks often.

        kind: name of the collective. size: bytes that a rank passes in.
        """
        asked = (kind, size, placement)
        if asked not in self._known:
            self._known[asked] = self._time_placed(kind, size, placement)
        return self._known[asked]

    def _time_placed(self, kind: str, size: int, placement: Placement) -> Timed:
        collectives = self.system.collectives
        if collectives.model != ASTRA_SIM or not placement.spans:
            modelled = time_placed(self.network, kind, size, placement, collectives.parts)
            library = self._measured(modelled, kind, size, placement)
            return self._of_engine(library, size, placement) if self.engine and kind == ALL_REDUCE.name else library
        memory, found = inverse(self.system.accelerator.bandwidth), _collective(kind, size)
        simulated = SimulatedCollective(self.network, memory, found, size, placement, collectives.parts)
        slowest = Spread(self.network, placement).slowest(simulated.whole)
        sent = simulated.sent()
        crosses = sorted({*sent, *(each.dimension for each in placement.spans)})
        wires = tuple((self.network[each].name, _whole(sent.get(each, Fraction(0)))) for each in crosses)
        return Timed(_whole(simulated.time()), simulated.rule, slowest, wires)

    def _measured(self, modelled: Timed, kind: str, size: int, placement: Placement) -> Timed:
        """The time of a table within the innermost dimension; beyond it, the model's after the start of a kernel.

        The same for a kind that no table has.
        """
        table = self._tables.table("collective", "bf16") if placement.spans else None
        if table is None or not size:
            return modelled
        if len(placement.spans) > 1 or placement.spans[0].dimension > 0 or kind not in COLLECTIVE_KINDS:
            return replace(modelled, ns=modelled.ns + math.floor(table.floor + 0.5))
        sizes = COLLECTIVE_KINDS.index(kind), placement.members, KINDS[kind].whole(size, placement.members)
        rows = {name: np.array([value], np.float64) for name, value in zip(COLLECTIVE.columns, sizes, strict=True)}
        return replace(modelled, ns=math.floor(float(table.ns(rows)[0]) + 0.5), rule="table:collective")

    def _of_engine(self, library: Timed, size: int, placement: Placement) -> Timed:
        """The time of an engine's own all-reduce within one dimension, if that is less than the library's."""
        if len(placement.spans) != 1:
            return library
        (span,) = placement.spans
        dimension = self.network[span.dimension]
        custom = dimension.custom_all_reduce
        if custom is None or not custom.runs(placement.members, size):
            return library
        pace = inverse(dimension.bandwidth) * Spread(self.network, placement).slower(span)
        taken, rule, sent = custom.time(placement.members, size, pace)
        if _whole(taken) >= library.ns:
            return library
        return Timed(_whole(taken), rule, dimension.name, ((dimension.name, _whole(sent)),))

    def transfer(self, transfer: Transfer) -> Timed:
        """How long a send takes."""
        if transfer not in self._known:
            self._known[transfer] = time_transfer(self.network, transfer)
        return self._known[transfer]


def draws_experts(work: Work) -> bool:
    """Whether a matmul is of experts that tokens choose."""
    return work.grouped and not work.weights and len(work.dims) == GROUPED_DIMS


def read_work(work: Work) -> Work:
    """An operator of an engine without the weights that it does not read: those of experts without a token."""
    if not draws_experts(work):
        return work
    experts, _, n, k = work.dims
    unread = 1 - chosen_share(work.flops / (2 * experts * n * k))
    weights = experts * n * k * WIDTHS["fp8" if work.dtype.startswith("fp8") else work.dtype] - work.spared
    spared = work.spared - math.floor(work.spared * unread)
    return replace(work, bytes=work.bytes - math.floor(weights * unread), spared=spared)


def kernels_of(work: Work) -> tuple[tuple[Work, int], ...]:
    """The kernels of an operator that runs several, each with how often; empty for one that is a kernel."""
    if work.kind == ORTHOGONALISATION:
        return tuple(_orthogonalising(work))
    return tuple((part, 1) for part in split_attention(work)) if len(work.dims) == MIXED_DIMS else ()


ORTHOGONALISATION, STEPS = "orthogonalisation", 5
"""The kind of Muon's operator that has matmuls, and how often these run."""


def orthogonalising_matmuls(dims: Sequence[int]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The `[batch,] m, n, k` of the three matmuls of a step, for each kind of matrix of an orthogonalisation.

    dims: how many matrices, then rows and columns of each kind of them.
    """
    many, *sizes = dims
    batch = (many,) if many > 1 else ()
    pairs = (sorted(pair) for pair in zip(sizes[::2], sizes[1::2], strict=True))
    return tuple(((*batch, few, few, long), (*batch, few, few, few), (*batch, few, long, few)) for few, long in pairs)


def _orthogonalising(work: Work) -> Iterator[tuple[Work, int]]:
    """The kernels of an orthogonalisation: its matmuls, and a pass that narrows and scales before. Numbers have two
    bytes."""
    many = work.dims[0]
    for matmuls in orthogonalising_matmuls(work.dims):
        for dims in matmuls:
            m, n, k = dims[-3:]
            moved, flops = 2 * many * (m * n + n * k + m * k), 2 * many * m * n * k
            yield replace(work, kind="matmul", dims=dims, flops=flops, bytes=moved, grouped=False), STEPS
        rows, columns = matmuls[-1][-3:-1]
        yield replace(work, kind="elementwise", dims=(), flops=0, bytes=8 * many * rows * columns), 1


GROUPED_DIMS = 4
"""Dims of matmuls of experts: how many there are, then m, n and k of each."""

MIXED_DIMS = 10
"""Dims of an attention over prefills and decodes: those of the prefills with the size of a value, then the batch, the
queries and the keys of the decodes."""


def split_attention(work: Work) -> tuple[Work, Work]:
    """The attention of the prefills of a step, and that of its decodes, which engines run as two kernels.

    FLOPs are shared by pairs of queries and keys. Bytes are by what each reads and writes: a key and a value of each
    head of keys, a query and a result of each head.
    """
    *prefill, batch, queries, keys = work.dims
    kinds = (tuple(prefill), (batch, *prefill[1:3], queries, keys, *prefill[5:]))
    pairs = [dims[0] * dims[3] * dims[4] for dims in kinds]
    moved = [dims[0] * (dims[2] * dims[4] + dims[1] * dims[3]) for dims in kinds]
    flops = work.flops * pairs[0] // sum(pairs)
    read = work.bytes * moved[0] // sum(moved)
    own = ((flops, read), (work.flops - flops, work.bytes - read))
    first, second = (replace(work, dims=dims, flops=f, bytes=b) for dims, (f, b) in zip(kinds, own, strict=True))
    return first, second


HOST_COPIES, HOST_UPDATE = ("copy_to_host", "copy_from_host"), "host_optimizer"
"""The kinds of copies between an accelerator and its host, and of an optimizer on the host's processor."""

HOST_KINDS = (*HOST_COPIES, HOST_UPDATE)


def time_on_host(system: System, work: Work) -> Timed:
    """The time of a copy over the link to the host, or of an update by its processor, while the accelerator waits.

    UsageError for a system without a host.
    """
    if system.host is None:
        raise UsageError(
            f"{system.name} has no host that could keep something of a rank: add host (link, latency and bandwidth) "
            f"to its file, name another {Word('system')}, or take {Word('offload', 'none')}"
        )
    if work.kind == HOST_UPDATE:
        return Timed(_whole(system.host.updated(work.bytes)), "host:memory")
    return Timed(_whole(system.host.copied(work.bytes)), "host:link")


def time_work(accelerator: Accelerator, work: Work) -> Timed:
    """The launch, plus the longer of computing and of memory traffic. UsageError for a dtype without a rate.

    A kernel of an attention leaves out what its causal mask hides.
    """
    if work.flops < 0 or work.bytes < 0:
        raise UsageError(f"an operator with {work.flops} FLOPs and {work.bytes} bytes has no duration")
    compute, flops = Fraction(0), unmasked_flops(work)
    if flops:
        rate = _rate_of(accelerator, work)
        curve = accelerator.attention if work.kind.startswith("attention") else accelerator.matmul
        compute = flops / curve.at(flops) * inverse(rate) / 1000
    memory = work.bytes / accelerator.memory.at(max(work.bytes, 1)) * inverse(accelerator.bandwidth)
    rule = "roofline:compute" if flops and compute >= memory else "roofline:memory"
    return Timed(_whole(max(compute, memory) + accelerator.launch), rule)


def unmasked_flops(work: Work) -> int:
    """The FLOPs of an operator for the pairs of queries and keys that its causal mask leaves; all of its FLOPs where it
    has none. `flops` of an attention are for all pairs, as counters of FLOPs have them.

    The last query sees the last key. Fewer keys than queries are a window, of which the first queries see a part.
    """
    if not work.causal or not is_attention_kernel(work.kind, work.dims):
        return work.flops
    queries, keys = work.dims[3:5]
    few = min(queries, keys)
    return work.flops * (2 * queries * keys - few * (few - 1)) // (2 * queries * keys)


def _rate_of(accelerator: Accelerator, work: Work) -> Number:
    """TFLOP/s of the format of some work. UsageError for a format without a rate."""
    dtype = "fp8" if work.dtype.startswith("fp8") else work.dtype
    if dtype not in accelerator.peak:
        raise UsageError(
            f"{accelerator.name} has no rate for {work.kind} in {work.dtype}. Its file has accelerator.peak for "
            f"{', '.join(accelerator.peak)}: add {dtype} there, or choose another dtype"
        )
    return accelerator.peak[dtype]


def time_collective(network: Network, collective: CollectiveWork) -> Timed:
    """The time of the fastest algorithm for a collective. UsageError for an unknown kind."""
    return time_placed(network, collective.kind, collective.bytes, place(collective.ranks, _sizes(network)))


def time_placed(network: Network, kind: str, size: int, placement: Placement, parts: int = 1) -> Timed:
    """The time of the fastest algorithm for a collective in a group whose placement is known.

    kind: name of the collective. size: bytes that a rank passes in. parts: the most parts that a collective over
    several dimensions is cut into.
    """
    found = _collective(kind, size)
    if not placement.spans:
        return Timed(0, next(each.name for each in ALGORITHMS if found in each.kinds))
    spread = Spread(network, placement, parts)
    whole, passes = Fraction(found.whole(size, placement.members)), found.passes
    times = [(each.time(spread, whole, passes), each) for each in ALGORITHMS if each.runs(found, spread)]
    taken, fastest = min(times, key=lambda pair: pair[0])  # the first of those that are equally fast
    wires = tuple(
        (spread.dimension(each).name, _whole(passes * share * whole))
        for each, share in zip(placement.spans, fastest.shares(spread), strict=True)
    )
    return Timed(_whole(taken), fastest.name, spread.slowest(whole), wires)


def _collective(kind: str, size: int) -> CollectiveKind:
    """The kind of this name. UsageError for an unknown one, and for a size below 0."""
    if kind not in COLLECTIVES:
        raise UsageError(f"a collective {shown(kind)} has no cost; the cost model has {', '.join(COLLECTIVES)}")
    if size < 0:
        raise UsageError(f"a collective with {size} bytes has no duration")
    return KINDS[kind]


def time_transfer(network: Network, transfer: Transfer) -> Timed:
    """Latency and bytes over the link of the outermost dimension that the two ranks cross.

    In the network of a simulator it is the innermost one.
    """
    if transfer.bytes < 0:
        raise UsageError(f"a message with {transfer.bytes} bytes has no duration")
    index, apart = crossed(transfer.source, transfer.target, _sizes(network), innermost=network[0].simulated)
    dimension = network[index]
    size = dimension.places
    # A message uses one link of a fully connected dimension, and one of the two links of a ring.
    slower = {"switch": 1, "fully-connected": size - 1, "ring": 2 if size > 2 else 1}[dimension.kind]
    taken = transfer.bytes * slower * dimension.pace(transfer.bytes)
    wires = ((dimension.name, transfer.bytes),)
    return Timed(_whole(dimension.hops(apart) * dimension.latency + taken), "p2p", dimension.name, wires)


def _sizes(network: Sequence[Dimension]) -> list[int]:
    return [each.places for each in network]


def _whole(ns: Fraction) -> int:
    """Rounded, a half up."""
    return math.floor(ns + Fraction(1, 2))
