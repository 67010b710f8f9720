"""A system that runs a workload: accelerators, the network between them, and what may overlap.

Units: GB/s is a byte a nanosecond (10^9 bytes a second), TFLOP/s a thousand FLOPs a nanosecond. All numbers are exact
fractions of the numbers in a file; a rate may be infinite. `stagedb.systems.system_files` reads the files.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from stagedb.errors import UsageError
from stagedb.mentions import Word

# All-reduces of serving engines: kernels in which ranks read the buffers of each other, for the small messages of a
# decode. vLLM has them in csrc/custom_all_reduce.cuh; SGLang's and TensorRT-LLM's have the same two forms.

MOST_BYTES = 1 << 40
"""A limit is at most this."""


@dataclass(frozen=True)
class CustomAllReduce:
    """What these kernels take in a dimension of the network, whose accelerators read each other's memory.

    In one shot each rank reads the whole buffers of all others. In two, it reads its part of them, all ranks wait for
    each other, and it reads the sums of the other parts.

    one_shot, two_shot: ns of a kernel without bytes, the waiting of ranks for each other in it. share: of the
    dimension's bandwidth, with which a rank reads. limit: bytes; smaller messages are sent so. ranks: sizes of the
    groups that have such kernels, ascending.
    """

    one_shot: Fraction
    two_shot: Fraction
    share: Fraction
    limit: int
    ranks: tuple[int, ...]

    def runs(self, members: int, size: int) -> bool:
        """Whether there is a kernel for a message of `size` bytes in a group of `members` ranks."""
        return members in self.ranks and 0 < size < self.limit

    def time(self, members: int, size: int, pace: Fraction) -> tuple[Fraction, str, Fraction]:
        """ns of the faster kernel, its name, and the bytes that a rank reads from others.

        Others read as many from it. members: ranks of the group. size: bytes of the message. pace: ns a byte at the
        bandwidth between the ranks.
        """
        once, twice = Fraction((members - 1) * size), Fraction(2 * (members - 1) * size, members)
        shots = ((self.one_shot, "one-shot", once), (self.two_shot, "two-shot", twice))
        return min((start + read * pace / self.share, name, read) for start, name, read in shots)


# Attentions of a few queries over a cache, as in a step of decode: kernels that divide the keys among their blocks.


@dataclass(frozen=True)
class DecodeAttention:
    """What such a kernel takes on an accelerator, whichever engine has it.

    start: ns without keys, the launch and the sum over blocks in it. read_share: of the memory's bandwidth, with which
    keys are read. compute_share: of the peak, for many heads of queries over one head of keys, as in latent attention.
    """

    start: Fraction
    read_share: Fraction
    compute_share: Fraction

    def time(self, reading: Fraction, computing: Fraction) -> tuple[Fraction, str]:
        """ns of a kernel, and the rule that bounds it. reading, computing: ns at the accelerator's peaks."""
        read, computed = reading / self.read_share, computing / self.compute_share
        return self.start + max(read, computed), "roofline:memory" if read > computed else "roofline:compute"


Number = Fraction | float
"""An exact number. The only float is infinity."""

KINDS = ("ring", "switch", "fully-connected")
"""How the accelerators of a network dimension are linked."""

DTYPES = ("bf16", "fp16", "fp32", "fp8")
"""Number formats that have a rate of their own. Both formats of fp8 share one."""

STREAMS = ("axis", "one")
"""Communication streams of a rank: one for each mesh axis, which run in parallel, or one for all."""

COMPUTE_MODES = ("in-order", "out-of-order", "exclusive")
"""How a rank computes. In order: kernels run in issue order, in parallel with communication, as in a GPU stream.
Out of order: any kernel that is ready, the earliest issued first, as simulators do. Exclusive: in issue order, and
never while the rank communicates."""

CASTS = ("fused", "shards")
"""How inputs of fp8 matmuls are cast. Fused: by the kernel before. Shards: by a kernel of its own, and each rank of tp
casts its part before it is gathered."""

COPIES = ("flat", "parameters")
"""How FSDP keeps the parameters of a unit: as views of one tensor, or each as a tensor of its own."""

SUMS = ("fp32", "apart")
"""How gradients of weights are added up. fp32: by the matmul that makes them, to a sum in fp32. Apart: by a kernel of
its own, to a sum in the format of gradients."""

MERGES = ("eager", "fused")
"""How the turns of a ring of cp are merged: by eager PyTorch in fp32, or by one kernel."""

ASTRA_SIM = "astra-sim"

COLLECTIVE_MODELS = ("fastest", ASTRA_SIM)
"""How collectives are timed. Fastest: each takes the fastest algorithm of `stagedb.systems.algorithms`. astra-sim: by
the rules of ASTRA-sim's analytical network (`stagedb.systems.astra_sim`)."""

_DIGITS = 12
"""Decimals of an interpolated efficiency. Logarithms on two machines agree on these."""


def inverse(rate: Number) -> Fraction:
    """One over a rate; 0 for an infinite one."""
    return Fraction(0) if rate == math.inf else 1 / Fraction(rate)


@dataclass(frozen=True)
class Curve:
    """The share of a peak that an operation reaches by its size, linear over the logarithm of the size between points.

    points: (size, efficiency) with growing sizes. Below the first and above the last the efficiency is constant.
    Raises UsageError for points that are no such curve, and for one in which a larger operation would take less time.
    """

    points: tuple[tuple[Fraction, Fraction], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise UsageError("a curve has at least one point [size, efficiency]")
        for size, share in self.points:
            if size <= 0 or not 0 < share <= 1:
                raise UsageError(
                    f"the point [{float(size):g}, {float(share):g}] has a size above 0 and an efficiency from 0 to 1"
                )
        for (before, low), (size, high) in zip(self.points, self.points[1:], strict=False):
            if size <= before:
                raise UsageError(f"the sizes do not grow from {float(before):g} to {float(size):g}")
            if float(high - low) > float(low) * math.log(size / before) * (1 + 1e-9):
                raise UsageError(
                    f"the efficiency grows so fast from size {float(before):g} to {float(size):g} that a larger "
                    "operation would take less time"
                )

    @property
    def _sizes(self) -> list[Fraction]:
        return [size for size, _ in self.points]

    def at(self, size: Fraction | int) -> Fraction:
        """The efficiency at a size."""
        after = bisect_right(self._sizes, size)
        if after == 0 or after == len(self.points):
            return self.points[max(after - 1, 0)][1]
        (before, low), (behind, high) = self.points[after - 1 : after + 1]
        share = math.log(Fraction(size) / before) / math.log(behind / before)
        return Fraction(str(round(float(low) + float(high - low) * share, _DIGITS)))


FLAT = Curve(((Fraction(1), Fraction(1)),))
"""The whole peak at any size."""


@dataclass(frozen=True)
class PowerLimit:
    """The power that an accelerator may take [W], and the one with which its kernels were measured.

    Matmuls of a training step take all of it. It grows with the clock and with the square of the voltage, and the
    voltage with the clock. So the clock grows with the cube root of the power (Mudge 2001, "Power: a first-class
    architectural design constraint").
    """

    limit: Fraction
    measured: Fraction

    @property
    def clock(self) -> Fraction:
        """The clock as a share of the one in the measurements, at most 1."""
        return min(Fraction(1), Fraction(str(round(float(self.limit / self.measured) ** (1 / 3), _DIGITS))))


GRAPH_LAUNCH = Fraction(500)
"""ns of a kernel of a CUDA graph: kernels of 2.9 µs take 3.4 µs each (NVIDIA, Getting Started with CUDA Graphs)."""


@dataclass(frozen=True)
class Host:
    """What an accelerator has of its host: a link to its memory, and a share of its processors.

    link: GB/s of the accelerator's link in one direction. latency: ns that a copy takes in addition. bandwidth: GB/s
    of the share of the host's memory at which its processors read and write the states of an optimizer. efficiency: of
    the link, by the bytes of a copy.
    """

    link: Number
    latency: Fraction
    bandwidth: Number
    efficiency: Curve = FLAT

    def copied(self, size: int) -> Fraction:
        """ns of a copy of `size` bytes over the link to the host."""
        return self.latency + size / self.efficiency.at(max(size, 1)) * inverse(self.link)

    def updated(self, size: int) -> Fraction:
        """ns of an update by the host's processors that reads and writes `size` bytes."""
        return size * inverse(self.bandwidth)

    def to_dict(self) -> dict[str, Any]:
        """The fields of a file, ready for JSON."""
        numbers = {"link": plain(self.link), "latency": plain(self.latency), "bandwidth": plain(self.bandwidth)}
        return {**numbers, **({} if self.efficiency == FLAT else {"efficiency": _points(self.efficiency)})}


FP8_SCALES = ("matrix", "block")
"""What has a scale of its own in fp8."""


@dataclass(frozen=True)
class Accelerator:
    """What one rank computes on.

    peak: TFLOP/s by dtype. bandwidth: GB/s of its memory. capacity: GB of its memory, as its driver reports them to a
    process. reserve: GB of these that are not for tensors, by what holds them, such as the context of the driver and
    the buffers of a library. launch: ns that every kernel takes in addition to its work. graph_launch: the same of a
    kernel that starts from a CUDA graph, as in a step of decode; None: `GRAPH_LAUNCH`, or launch if it is less.
    matmul, attention: efficiency by FLOPs of the operation. memory: efficiency by the bytes that it reads and writes.
    sustained: the share of their measured speed that matmuls with a table keep in a training step, where power limits
    the clocks and other kernels use the caches. power: where it may take less than the accelerator on which the tables
    were measured; None: as much. decode_attention: attentions over a cache in a step of an engine; None: by the curves
    of attention and memory. issue: ns in which its host issues a matmul of one expert in bf16; None: as an x86
    processor does. fp8_scales: whether each matrix in fp8 has a scale, or each block of one, as in MXFP8:
    one of `FP8_SCALES`.
    """

    name: str
    peak: Mapping[str, Number]
    bandwidth: Number
    capacity: Number
    launch: Fraction
    graph_launch: Fraction | None = None
    matmul: Curve = FLAT
    attention: Curve = FLAT
    memory: Curve = FLAT
    sustained: Fraction = Fraction(1)
    power: PowerLimit | None = None
    reserve: tuple[tuple[str, Fraction], ...] = ()
    decode_attention: DecodeAttention | None = None
    issue: Fraction | None = None
    fp8_scales: str = FP8_SCALES[0]

    @property
    def reserved(self) -> dict[str, int]:
        """Bytes of its memory that are not for tensors, by what holds them."""
        return {name: int(size * 10**9) for name, size in self.reserve}

    @property
    def room(self) -> int | None:
        """Bytes of its memory for tensors: all without the reserve; None without a limit."""
        if self.capacity == math.inf:
            return None
        return int(self.capacity * 10**9) - sum(self.reserved.values())

    @property
    def from_graphs(self) -> "Accelerator":
        """The accelerator with the launch overhead of kernels that start from a CUDA graph."""
        return replace(self, launch=self.of_graphs)

    @property
    def of_graphs(self) -> Fraction:
        """ns that a kernel which starts from a CUDA graph takes in addition to its work."""
        return min(GRAPH_LAUNCH, self.launch) if self.graph_launch is None else self.graph_launch

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.peak.items()), self.bandwidth, self.capacity, self.launch))


@dataclass(frozen=True)
class Dimension:
    """A level of the network. Ranks count its places like digits, the innermost dimension first.

    size: places; None: as many as the job needs (the outermost only). use: how many of them a job takes; None: all.
    bandwidth: GB/s of an accelerator in one direction, all its links of this dimension together. latency: ns from one
    accelerator to the next. efficiency: by the bytes of a message. algorithms: names of the collective algorithms that
    it has hardware for. simulated: it is one of ASTRA-sim's network, as `System.network` makes it: a message between
    two ranks takes the innermost dimension in which they differ. custom_all_reduce: the kernels of engines that serve;
    None: they have NCCL's.
    """

    name: str
    size: int | None
    kind: str
    bandwidth: Number
    latency: Fraction
    efficiency: Curve = FLAT
    algorithms: tuple[str, ...] = ()
    simulated: bool = False
    use: int | None = None
    custom_all_reduce: CustomAllReduce | None = None

    @property
    def places(self) -> int:
        """Number of places of the dimension. UsageError if its file leaves the size open."""
        if self.size is None:
            raise UsageError(f"the network dimension {self.name} has no size: `System.network(world)` gives it one")
        return self.size

    def pace(self, size: Fraction | int) -> Fraction:
        """ns a byte that an accelerator takes to send along the dimension in messages of `size` bytes."""
        return inverse(self.bandwidth) / self.efficiency.at(max(size, 1))

    def hops(self, apart: int) -> int:
        """Links between two places that are `apart` places from each other: the shorter way around a ring, else one."""
        return min(apart, (self.size or 1) - apart) if self.kind == "ring" else 1


Network = tuple[Dimension, ...]
"""Dimensions with their sizes, innermost first."""


@dataclass(frozen=True)
class TableFile:
    """A table of measured times that a system has for an operator in a format.

    operator: one of `stagedb.systems.tables.measured_table.SHAPES`. file: the name of one of stagedb, or a path.
    digest: of its content, so that a system is the same only with the same measurements. source: where it comes from.
    cast: bytes for each element of its first operand that a measured matmul moved to cast it; 0: it read the format.
    """

    operator: str
    dtype: str
    file: str
    digest: str
    source: str = ""
    cast: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The fields of the table for the file of a system."""
        return {name: value for name, value in asdict(self).items() if name != "cast" or value}


@dataclass(frozen=True)
class Overlap:
    """What may run in parallel. compute: one of `COMPUTE_MODES`; streams: one of `STREAMS`.

    framework: the name of the framework whose rules the others are; empty for none. chunked: mesh axes whose
    collectives run in chunks during the matmul that makes or reads them. reduced, gathered: bytes of the buckets in
    which gradients are reduced during the last backward, and updated parameters gathered during the next forward; 0:
    neither. casts: how inputs of fp8 matmuls are cast, one of `CASTS`; with any of them weights are cast once a step.
    sums: how gradients of weights are added up, one of `SUMS`. stretch: by operator, how many times its measured time a
    kernel takes in a step. taken: the share of computing that collectives of data-parallel ranks take while they run,
    in thousandths. copies: how FSDP keeps the parameters of a unit, one of `COPIES`, which decides what is copied
    around its collectives; empty: nothing is. merges: how the turns of a ring of cp are merged, one of `MERGES`; empty:
    within the attention. keys: `repeated` where they are copied to all heads. issue_share: where a host issues
    a matmul for each expert of a rank, the share of its time for one of a linear layer that it takes; 0: all experts
    are one kernel. issued: by format, ns of the host for a matmul of one expert, instead of those that follow from
    issue_share; other formats take it as long as bf16.
    """

    compute: str = "in-order"
    streams: str = "axis"
    framework: str = ""
    chunked: tuple[str, ...] = ()
    reduced: int = 0
    gathered: int = 0
    casts: str = ""
    sums: str = ""
    stretch: tuple[tuple[str, Fraction], ...] = ()
    taken: int = 0
    copies: str = ""
    merges: str = ""
    keys: str = ""
    issue_share: Fraction = Fraction(0)
    issued: tuple[tuple[str, int], ...] = ()

    @property
    def without_host(self) -> "Overlap":
        """The same where a host issues all that computes in time."""
        return replace(self, issue_share=Fraction(0), issued=())

    @property
    def of_kernels(self) -> bool:
        """Whether a framework's kernels take other times than each alone."""
        terms = (self.stretch, self.casts, self.sums, self.taken, self.copies, self.merges, self.keys)
        return any(terms)

    def to_dict(self) -> dict[str, Any]:
        """The fields of a file, ready for JSON; those of frameworks only where they are set."""
        stretch = {operator: plain(factor) for operator, factor in self.stretch}
        named = asdict(self) | {"chunked": list(self.chunked), "stretch": stretch, "issued": dict(self.issued)}
        named["issue_share"] = plain(self.issue_share)
        return {name: value for name, value in named.items() if name in ("compute", "streams") or value}


@dataclass(frozen=True)
class Collectives:
    """How collectives are timed. model: one of `COLLECTIVE_MODELS`.

    parts: the most parts that a collective over several dimensions is cut into. While one part is in an outer
    dimension, the next is in the inner one. With 1 the dimensions take strict turns. The model `astra-sim` cuts every
    collective into exactly these, as the simulator does (`preferred-dataset-splits`).
    """

    model: str = COLLECTIVE_MODELS[0]
    parts: int = 1


@dataclass(frozen=True)
class System:
    """A system. sources: where its numbers come from. The size of the outermost of its `dimensions` may be open.

    host: that of an accelerator; None: not known, so that no plan may keep anything there.

    tables: measured times, which replace the formulas for their operators. At most one an operator and format.
    """

    name: str
    sources: tuple[str, ...]
    accelerator: Accelerator
    dimensions: tuple[Dimension, ...]
    overlap: Overlap = Overlap()
    collectives: Collectives = Collectives()
    tables: tuple[TableFile, ...] = ()
    host: Host | None = None

    def network(self, world: int) -> Network:
        """The dimensions of the network for a job of `world` ranks, each with a size.

        UsageError if they have too few places. With the collective model `astra-sim` they have exactly as many places
        as the job has ranks: see `filled`.
        """
        places = 1
        sized = []
        for each in self.dimensions:
            size = max(1, -(-world // places)) if each.size is None else each.use or each.size
            places *= size
            sized.append(replace(each, size=size, use=None))
        if places < world:
            spelled = " x ".join(str(each.size) for each in sized)
            raise UsageError(
                f"the network of {self.name} has {spelled} = {places} places, and the job has {world} ranks: take "
                "fewer ranks, or leave out the size of the outermost dimension in the system's file "
                f"({Word('system')})"
            )
        return filled(sized, world) if self.collectives.model == ASTRA_SIM else tuple(sized)

    def to_dict(self) -> dict[str, Any]:
        """The fields of its file, ready for JSON. `parse_system(json.dumps(...))` returns the same system."""
        accelerator = self.accelerator
        return {
            "name": self.name,
            "sources": list(self.sources),
            "accelerator": {
                "name": accelerator.name,
                "peak": {dtype: plain(rate) for dtype, rate in accelerator.peak.items()},
                "memory": {
                    "bandwidth": plain(accelerator.bandwidth),
                    "capacity": plain(accelerator.capacity),
                    **({} if not accelerator.reserve else {"reserve": _sizes(accelerator.reserve)}),
                },
                "launch": plain(accelerator.launch),
                **({} if accelerator.graph_launch is None else {"graph_launch": plain(accelerator.graph_launch)}),
                **({} if accelerator.issue is None else {"issue": plain(accelerator.issue)}),
                **({} if accelerator.fp8_scales == FP8_SCALES[0] else {"fp8_scales": accelerator.fp8_scales}),
                "efficiency": {
                    "matmul": _points(accelerator.matmul),
                    "attention": _points(accelerator.attention),
                    "memory": _points(accelerator.memory),
                },
                **({} if accelerator.sustained == 1 else {"sustained": plain(accelerator.sustained)}),
                **({} if accelerator.power is None else {"power": _watts(accelerator.power)}),
                **_decode_attention(accelerator.decode_attention),
            },
            "network": [
                {
                    "name": each.name,
                    "size": each.size,
                    **({} if each.use is None else {"use": each.use}),
                    "kind": each.kind,
                    "bandwidth": plain(each.bandwidth),
                    "latency": plain(each.latency),
                    "efficiency": _points(each.efficiency),
                    **({"algorithms": list(each.algorithms)} if each.algorithms else {}),
                    **_custom(each.custom_all_reduce),
                }
                for each in self.dimensions
            ],
            **({} if self.host is None else {"host": self.host.to_dict()}),
            "overlap": self.overlap.to_dict(),
            **({} if self.collectives == Collectives() else {"collectives": asdict(self.collectives)}),
            **({"tables": [each.to_dict() for each in self.tables]} if self.tables else {}),
        }


def filled(network: Sequence[Dimension], world: int) -> Network:
    """The network of a simulator that needs a rank at every place: the product of the sizes is the world.

    A dimension that has more places than ranks are left is cut to these. One that the ranks do not fill evenly is cut
    to the largest size that divides them. The links between the remaining places keep their bandwidth.
    """
    found, left = [], world
    for each in network:
        size = left if left <= each.places or each is network[-1] else math.gcd(left, each.places)
        left //= size
        links = Fraction(max(size - 1, 1), max(each.places - 1, 1)) if each.kind == "fully-connected" else 1
        bandwidth = each.bandwidth if each.bandwidth == math.inf else each.bandwidth * links
        found.append(replace(each, size=size, bandwidth=bandwidth, simulated=True))
    return tuple(found)


def plain(value: Number) -> int | float | str:
    """A number for JSON; `.inf` for infinity, which JSON does not have."""
    if value == math.inf:
        return ".inf"
    return int(value) if value == int(value) else float(value)


def _watts(power: PowerLimit) -> dict[str, int | float | str]:
    return {"limit": plain(power.limit), "measured": plain(power.measured)}


def _decode_attention(kernels: DecodeAttention | None) -> dict[str, Any]:
    if kernels is None:
        return {}
    numbers = {name: plain(getattr(kernels, name)) for name in ("start", "read_share", "compute_share")}
    return {"decode_attention": numbers}


def _sizes(reserve: Sequence[tuple[str, Fraction]]) -> dict[str, int | float | str]:
    return {name: plain(size) for name, size in reserve}


def _custom(kernels: CustomAllReduce | None) -> dict[str, Any]:
    if kernels is None:
        return {}
    numbers = {name: plain(getattr(kernels, name)) for name in ("one_shot", "two_shot", "share")}
    return {"custom_all_reduce": {**numbers, "limit": kernels.limit, "ranks": list(kernels.ranks)}}


def _points(curve: Curve) -> list[list[int | float | str]]:
    return [[plain(size), plain(share)] for size, share in curve.points]
