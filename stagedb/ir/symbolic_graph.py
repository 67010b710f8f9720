"""The symbolic tensor graph in its stored form: plain rows of names, canonical expressions and edges.

Everything that depends on a degree, a batch or a dtype is an expression (text in the canonical form of
`stagedb.ir.expressions`). Everything that depends on the strategy or the recipe is in the structure. The dataclasses
are the labels and properties of the store's symbolic half, field by field.

Positions. A stage runs a sequence of *blocks* (`embedding`, `layer` × n, `head`), numbered 0..n-1 in forward order. The
pseudo-block `cut` is at position -1 (if the stage has a predecessor) and at n (if it has a successor). It holds the
messages between stages, and the operators that gather messages received in parts. The pseudo-block `bucket` holds
collectives that instantiation multiplies: one op a bucket of parameters.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

from stagedb.ir.facts import NO_FACTS, PLAIN, OpFacts, TensorFacts
from stagedb.workflows import Template

FORMAT = 7
"""Version of the stored form; part of every digest. Graphs of other forms are refused."""


class OpType(StrEnum):
    """The type of work in a simulator: a kernel, a collective, or one end of a message."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    SEND = "send"
    RECV = "recv"


class When(StrEnum):
    """The microbatches of a task's template for which an operator runs.

    closed: those before which no backward of their chunk ran since its latest forward.
    """

    EVERY = "every"
    FIRST = "first"
    LAST = "last"
    CLOSED = "closed"


class EdgeKind(StrEnum):
    """Why one operator waits for another: it reads a value, it is issued later, or it must not run ahead."""

    DATA = "data"
    PROGRAM = "program"
    LIMIT = "limit"


class Hop(StrEnum):
    """The place of an edge's source, relative to its target at position p of the same stage."""

    SAME = "same"  # position p
    TURN = "turn"  # position p, in the turn before of the same loop
    PREVIOUS = "previous"  # position p - 1: forward dataflow between blocks
    NEXT = "next"  # position p + 1: backward dataflow between blocks
    BLOCK = "block"  # the position of the source's (unrepeated) block on the stage


@dataclass(frozen=True)
class Parameter:
    """What a weight has besides its tensor: its place among the parameters, its gradient and how both are sharded.

    `order` is the order of registration in the block, `elements` this rank's number of elements. `buckets` names the
    bucket ops that its gradient passes, in that order, and `grads` the ops whose result is (a share of) its gradient.
    `tied` names the weight that it shares values with.
    If parameters, or their gradients or states, are sharded over dp: the first `rows` axes together are the dimension
    that is dealt in equal parts, the last ones padded. `shard` is the number of elements of one rank's part, `gathers`
    are the bucket ops that put the parts together, and `readers` are the ops that read the weight. Where ranks update
    whole weights of their own, `shard` is the number of elements of one of them: of the matrix of one expert.
    """

    order: int
    elements: str
    buckets: tuple[str, ...] = ()
    grads: tuple[str, ...] = ()
    tied: str | None = None
    rows: int | None = None
    shard: str | None = None
    gathers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


@dataclass(frozen=True)
class SymTensor:
    """A tensor of one block: logical axes, global and local shape, layout.

    `layout` is one text a mesh axis: `"tp:partitioned(hidden)"`, `"dp:partial(sum)"`; replicated axes are left out.
    `bytes` is this rank's size; `dtype` is a dtype class of the plan (see `dtypes.py`).
    `repeats` names the tensor that this one recomputes. Where this one is absent, its readers read the other.
    `parameter`: weights have one, other tensors None.
    """

    name: str
    block: str
    role: str  # input, weight, activation, gradient, optimizer_state, cache
    dtype: str
    axes: tuple[str, ...]
    shape: tuple[str, ...]
    local: tuple[str, ...]
    layout: tuple[str, ...]
    bytes: str
    parameter: Parameter | None = None
    storage: str | None = None  # the tensor whose bytes it uses; None: it has its own
    kept: bool = False  # held for the block's backward, even if nothing there reads it
    present: str | None = None  # exists where this evaluates above 0; None: always
    repeats: str | None = None
    facts: TensorFacts = PLAIN


@dataclass(frozen=True)
class Compute:
    """A kernel on one rank. `dtype` is the class of the operands of one with FLOPs.

    `temporary`: bytes that it holds while it runs, in addition to its operands and results. `dims` = `[batch,] m, n, k`
    of a matmul, `batch, heads, kv_heads, q_len, kv_len, head_dim` of an attention, `batch, channels, seq, taps` of a
    convolution, or of a scan its heads in all sequences, chunks, tokens of a chunk, and the sizes of a head's state.
    """

    type: ClassVar[OpType] = OpType.COMPUTE

    flops: str = "0"
    bytes_read: str = "0"
    bytes_written: str = "0"
    temporary: str = "0"
    dims: tuple[str, ...] = ()
    dtype: str | None = None


@dataclass(frozen=True)
class Collective:
    """A collective of the ranks of a mesh axis. `dtype` is the class of the elements on the wire.

    `comm_bytes`: this rank's input shard of an all-gather, this rank's whole input of others. `comm_out_bytes`: its
    output. `bucket`: the bucketing rule (only in block `bucket`), see `stagedb.frameworks.bucket_policies`. The bytes
    of such an op are those that one weight adds to them, by its `elements` or by its `shard`.
    """

    type: ClassVar[OpType] = OpType.COLLECTIVE

    axis: str
    comm_bytes: str
    comm_out_bytes: str
    dtype: str
    bucket: str | None = None


@dataclass(frozen=True)
class MessageEnd:
    """One end (`type`: send or recv) of a message of `comm_bytes`. `dtype` is the class of its elements.

    Inside a block it has `peer`: the distance in ranks of cp to its other end, around the ring. Messages of the cuts
    lead to another stage.
    """

    type: Literal[OpType.SEND, OpType.RECV]
    axis: str
    comm_bytes: str
    dtype: str
    peer: str | None = None

    @property
    def comm_out_bytes(self) -> str:
        """Bytes that arrive, as an expression: as many as are sent."""
        return self.comm_bytes


@dataclass(frozen=True)
class SymLoop:
    """An operator that is unrolled `times` turns, together with the other ops of its loop.

    `first` is the order of the loop's first op. The operator reads `previous` as the turn before left them. Its
    expressions may have the turn (`step`) and the rank on cp (`cp_rank`), both counted from 1.
    """

    times: str
    first: int
    previous: tuple[str, ...] = ()


@dataclass(frozen=True)
class SymOp:
    """An operator of one block, with its costs on one rank as expressions.

    `order` is the issue order inside the block, over all templates that one task runs.
    `present`: the op exists where the expression evaluates above 0 (`tp - 1`).
    `semantics` is JSON that the numpy interpreter runs; nothing else reads it.
    """

    name: str
    block: str
    template: Template
    kind: str  # matmul, attention, norm, embedding, elementwise, softmax, loss, optimizer, cast, slice, all_gather, …
    phase: str  # forward, backward, recompute, optimizer
    when: When
    order: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    work: Compute | Collective | MessageEnd
    present: str | None = None
    loop: SymLoop | None = None
    semantics: str = "{}"
    facts: OpFacts = NO_FACTS

    @property
    def type(self) -> OpType:
        """Whether it computes, communicates in a collective, or is an end of a message."""
        return self.work.type

    @property
    def axis(self) -> str | None:
        """The mesh axis that it communicates on; None: it computes."""
        return None if isinstance(self.work, Compute) else self.work.axis

    @property
    def bucket(self) -> str | None:
        """The bucketing rule, of a collective of block `bucket`."""
        return self.work.bucket if isinstance(self.work, Collective) else None


@dataclass(frozen=True)
class SymEdge:
    """`source` before `target`. `present` as in SymOp: a bypass around a collective of one member has `2 - tp`."""

    source: str
    target: str
    kind: EdgeKind
    hop: Hop
    present: str | None = None


@dataclass(frozen=True)
class BlockSpec:
    """A block of the model and how often it repeats (an expression: `1` or `L`).

    `layers`: the numbers of its layers in the model, from 0, where kinds of layers alternate; None if its repeats
    follow each other, in the order of the graph's blocks. `input` and `output` name the tensors that come from the
    block before and go to the block after. `output_gradient` arrives from the block after and `input_gradient` goes to
    the block before. None at the ends.
    """

    name: str
    repeat: str
    input: str | None = None
    output: str | None = None
    output_gradient: str | None = None
    input_gradient: str | None = None
    layers: tuple[int, ...] | None = None

    @property
    def once(self) -> bool:
        """Whether it is no layer: the model has it once."""
        return self.layers is None and self.repeat == "1"


@dataclass(frozen=True)
class SymGraph:
    """A model under one strategy and one recipe; every degree, size and batch is still a symbol.

    `key` is the digest of its inputs (card, options, recipe, format), known before building. `sizes` binds the model's
    symbols (`H`, `L`, `V` …) to integers. `options` are the graph options as JSON.
    """

    key: str
    name: str  # the model's name
    recipe: str
    options: str
    sizes: dict[str, int]
    blocks: tuple[BlockSpec, ...]
    tensors: tuple[SymTensor, ...]
    ops: tuple[SymOp, ...]
    edges: tuple[SymEdge, ...]
