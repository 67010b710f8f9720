"""An interpreter of stored graphs in numpy: `run_block` runs one whole block on one rank.

It reads only the stored form, so its results hold for the graph in the database. Sizes must be tiny; all arithmetic is
in double precision. `Interpreter` is the part shared with interpreters of many ranks.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.ir.expressions import evaluate
from stagedb.ir.key_lengths import NO_SEMANTICS, check_lengths
from stagedb.ir.layouts import MESH_AXES
from stagedb.ir.operators import QUERIES, Array, HandOver, Momentum, Operator, RankPlace, Redistribution, load
from stagedb.ir.operators.optimizer import GRADIENTS, UPDATES
from stagedb.ir.symbolic_graph import BlockSpec, SymGraph, SymOp, SymTensor
from stagedb.ir.tensors import Tensor
from stagedb.workflows import Template
from stagedb.workflows.training import FORWARD

DEGREES = (*MESH_AXES, "hsdp", "pp")


def run_block(
    graph: SymGraph,
    env: Mapping[str, int],
    block: str,
    weights: Mapping[str, Array],
    inputs: Mapping[str, Array],
    output_gradient: Array | None = None,
    before: Mapping[str, Array] = MappingProxyType({}),
    layer: int = 0,
) -> dict[str, Array]:
    """Run one block for one micro-batch; return all its tensors by name: the given ones and the results of its ops.

    env: values of symbols, B and S at least; the model's sizes are known, and all degrees are 1. SK is S unless a
    sequence has more keys than queries, which are then those of its last positions: `before` has what an earlier run
    made for the SK - S positions before them, by the names of the tensors of keys and values, in a graph of the forward
    alone. weights, inputs: whole arrays by the names of their tensors. output_gradient: the gradient of the block's
    output (or of its loss), from which the backward starts; None: run the forward alone. A loss in parts has made the
    gradients in its forward, so that its own can only be 1. layer: the number of the layer
    in the model, from 0, which decides the constants of some operators. `gradient_names` gives the
    tensors that are gradients of weights and of the block's input. Experts are chosen in turn, each equally often.
    Raises UsageError for an unknown block, a degree above 1, a symbol without a value, ops that share a sequence,
    lengths that a graph cannot have, and an array that is missing, that no op reads, or that has another shape;
    ValueError, naming the op, if the graph cannot be run.
    """
    _spec(graph, block)
    rank = _OneRank(graph, _bound(graph, env), layer)
    check_lengths(graph, rank.env)
    templates = {op.template for op in graph.ops if not op.template.once}
    ops = rank.ops(block, [each for each in templates if not each.differentiates])
    ops += [] if output_gradient is None else rank.ops(block, [each for each in templates if each.differentiates])
    needed = _needed(rank, ops)
    values = _given(rank, "weight", needed, weights) | _given(rank, "input", needed, inputs)
    if output_gradient is not None:
        values |= _start(rank, block, ops, needed, output_gradient)
    held = _held(rank, ops, before)
    for op in ops:
        read = [values[name] for name in op.reads] if not held else _with_held(rank, op, values, held)
        values.update(zip(op.writes, rank.execute(op, read), strict=True))
    return values


def _start(
    rank: "_OneRank", block: str, ops: Sequence[SymOp], needed: Mapping[str, SymOp], gradient: Array
) -> dict[str, Array]:
    """The gradient from which a block's backward starts; none where it starts from those that its forward has made."""
    names = [name for name in needed if rank.word(name) == "gradient"]
    if not names and any(op.kind == HandOver.kind for op in ops):
        if not np.all(np.asarray(gradient) == 1):
            raise UsageError(
                f"the forward of {block} makes the gradients of its loss, which is in parts: the gradient of that is 1"
            )
        return {}
    if len(names) != 1:
        starts = ", ".join(names) or "nothing"
        raise ValueError(f"the backward of {block} starts from {starts}, and must start from one gradient")
    return _given(rank, "gradient", needed, {names[0]: gradient})


def gradient_names(graph: SymGraph, block: str) -> dict[str, str]:
    """The names of the gradients that a block's backward makes, by the names of its weights and of its input."""
    spec = _spec(graph, block)
    names = {name: path.gradient for name, path in Interpreter(graph, {}).paths(block).items()}
    if spec.input is not None and spec.input_gradient is not None:
        names[spec.input] = spec.input_gradient
    return names


def cached_names(graph: SymGraph, block: str) -> tuple[str, ...]:
    """The tensors of keys and values that a block's forward reads over all positions: what `before` of a run has."""
    _spec(graph, block)
    rank = _OneRank(graph, {})
    ops = rank.ops(block, {op.template for op in graph.ops if op.phase == FORWARD.phase})
    return tuple(_over_keys(rank, ops))


@dataclass(frozen=True)
class GradientPath:
    """A weight's gradient on its way from the backward to the optimizer.

    gradient: the name of the tensor that the backward makes. reductions: the collectives of the step that reduce this
    gradient over ranks, in order; those of buckets, which reduce many gradients at once, are not among them.
    """

    gradient: str
    reductions: tuple[SymOp, ...]


@dataclass(frozen=True)
class Interpreter:
    """The ops of a graph, and their results on the arrays of one rank. `env` binds every symbol of the graph."""

    graph: SymGraph
    env: Mapping[str, int]

    @cached_property
    def tensors(self) -> Mapping[str, SymTensor]:
        """The graph's tensors by name."""
        return {t.name: t for t in self.graph.tensors}

    @cached_property
    def sizes(self) -> dict[str, dict[str, int]]:
        """The whole size of each tensor axis, by block: heads may differ by the kind of layer."""
        found: dict[str, dict[str, int]] = {}
        for t in self.graph.tensors:
            sizes = {axis: evaluate(expr, self.env, what=t.name) for axis, expr in zip(t.axes, t.shape, strict=True)}
            found.setdefault(t.block, {}).update(sizes)
        return found

    @cached_property
    def operators(self) -> Mapping[str, Operator]:
        """The operator of each op, by the op's name. Buckets and messages that are passed on unchanged have none."""
        return {op.name: _operator(op) for op in self.graph.ops if op.semantics != NO_SEMANTICS}

    def ops(self, block: str, templates: Collection[Template]) -> list[SymOp]:
        """The ops of a block that a task runs, in the order in which it issues them.

        block: its name in the graph. templates: those that the task runs.
        """
        chosen = [op for op in self.graph.ops if op.block == block and op.template in templates]
        return sorted(chosen, key=lambda op: op.order)

    def paths(self, block: str) -> dict[str, GradientPath]:
        """The path of each weight's gradient from a block's backward to the optimizer, by the weight's name.

        block: its name in the graph. Each path is followed from the optimizer's update back to the tensor that the
        backward makes.
        """
        step = self.ops(block, {op.template for op in self.graph.ops if op.template.once})
        writers = {name: op for op in step for name in op.writes if op.kind not in UPDATES}
        found = {}
        for op in step:
            if op.kind not in UPDATES:
                continue
            rows = [self.tensors[name] for name in op.reads]
            weights, finals = ([row.name for row in rows if row.role in roles] for roles in (("weight",), GRADIENTS))
            for weight, name in zip(weights, finals, strict=True):
                reductions: list[SymOp] = []
                while name in writers:
                    maker = writers[name]
                    operator = self.operators.get(maker.name)
                    if isinstance(operator, Momentum):
                        reductions.clear()  # the collectives after it are of Muon's update, not of the gradient
                    elif isinstance(operator, Redistribution):
                        reductions.insert(0, maker)
                    name = maker.reads[0]
                found[weight] = GradientPath(name, tuple(reductions))
        return found

    def apply(self, op: SymOp, place: RankPlace, inputs: list[Array]) -> list[Array]:
        """Run an op's operator on the arrays of one rank.

        inputs: the arrays of `op.reads`, in that order; the result has those of `op.writes`. place: which rank.
        ValueError, naming the op, if it fails.
        """
        operator = self.operators.get(op.name)
        if operator is None:
            raise ValueError(f"{op.name} ({op.kind}) has no semantics, so it cannot be run")
        try:
            made = operator.run(place, inputs)
        except (LookupError, TypeError, ValueError) as error:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(op.reads, inputs, strict=False))
            raise ValueError(f"{op.name} fails on {shapes}: {type(error).__name__}: {error}") from error
        made = [made[place] for place in operator.only] if operator.only else made
        if len(made) != len(op.writes):
            raise ValueError(f"{op.name} makes {len(made)} arrays for {', '.join(op.writes) or 'no tensors'}")
        return made


@dataclass(frozen=True)
class _OneRank(Interpreter):
    """A rank that is alone on every mesh axis: collectives leave their operands unchanged. layer: of a run's block."""

    layer: int = 0

    def execute(self, op: SymOp, inputs: list[Array]) -> list[Array]:
        """Run one op. ValueError if a result does not have the stored shape."""
        if isinstance(self.operators.get(op.name), Redistribution):
            made = inputs
        else:
            axes = dict.fromkeys(axis for name in (*op.reads, *op.writes) for axis in self.tensors[name].axes)
            sizes = self.sizes[op.block]
            lengths = {axis: sizes[axis] for axis in axes}
            place = RankPlace(
                sizes,
                dict.fromkeys(axes, 0),
                lengths,
                member=dict.fromkeys(MESH_AXES, 0),
                degrees=self.env,
                before=self.env["SK"] - self.env["S"],
                layer=self.layer,
            )
            made = self.apply(op, place, inputs)
        for name, array in zip(op.writes, made, strict=True):
            if array.shape != self.shape(name):
                raise ValueError(f"{op.name} makes {self.describe(name, array)}")
        return made

    @cached_property
    def sources(self) -> dict[str, str]:
        """The tensors that collectives move, by what they make: on one rank both have the same values."""
        found: dict[str, str] = {}
        for op in self.graph.ops:
            if isinstance(self.operators.get(op.name), Redistribution):
                found[op.writes[0]] = found.get(op.reads[0], op.reads[0])
        return found

    def read(self, op: SymOp) -> list[tuple[str, int | None]]:
        """The tensors that an op reads, each with the number of its axis of positions, if it reads keys of all."""
        operator = self.operators.get(op.name)
        if operator is None:
            return [(name, None) for name in op.reads]
        rows = [[self.tensors[name] for name in names] for names in (op.reads, op.writes)]
        inputs, outputs = (tuple(Tensor(t.name, t.axes, t.dtype, t.role) for t in each) for each in rows)
        found: list[tuple[str, int | None]] = []
        for own, read in zip(inputs, operator.operands(inputs, outputs), strict=True):
            over = QUERIES in own.axes and QUERIES not in read.axes
            found.append((own.name, own.axes.index(QUERIES) if over else None))
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """The whole shape of a tensor."""
        return tuple(evaluate(expr, self.env, what=name) for expr in self.tensors[name].shape)

    def describe(self, name: str, array: Array) -> str:
        """A tensor, the shape of its array, and the shape in the graph, as a text for errors."""
        axes = ", ".join(self.tensors[name].axes)
        return f"{name} of shape {array.shape}: the graph has ({axes}) = {self.shape(name)}"

    def word(self, name: str) -> str:
        """The argument of `run_block` for a tensor that no op makes: a weight, a gradient or an input."""
        role = self.tensors[name].role
        return role if role in ("weight", "gradient") else "input"


def _spec(graph: SymGraph, block: str) -> BlockSpec:
    """The block of a name; UsageError where there is none."""
    for spec in graph.blocks:
        if spec.name == block:
            return spec
    raise UsageError(f"no block {shown(block)} in the graph: it has {', '.join(spec.name for spec in graph.blocks)}")


def _operator(op: SymOp) -> Operator:
    """The operator of an op's semantics; ValueError, naming the op, if they are of no operator."""
    try:
        return load(op.semantics)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{op.name}: {error}") from error


def _bound(graph: SymGraph, env: Mapping[str, int]) -> dict[str, int]:
    """The values of a graph's symbols on a rank that is alone; UsageError if env has more ranks."""
    for name in DEGREES:
        if env.get(name, 1) != 1:
            raise UsageError(f"a block is run whole, on one rank: {name} is {env[name]} and must be 1")
    ones = dict.fromkeys((*DEGREES, "capacity", "per", "load_most"), 1)
    sizes = {**ones, "load_all": graph.sizes.get("E", 1), **graph.sizes, **env}
    return {"SK": evaluate("S", sizes, what="the keys of a sequence"), **sizes}


def _held(rank: _OneRank, ops: Sequence[SymOp], before: Mapping[str, Array]) -> dict[str, Array]:
    """The values of positions before the queries, by the tensors of keys and values that ops read over all positions.

    UsageError for an array that is missing, that no op reads so, or that has another shape.
    """
    length = rank.env["SK"] - rank.env["S"]
    wanted = _over_keys(rank, ops) if length else {}
    for name in before:
        if name not in wanted:
            raise UsageError(
                f"no op reads {shown(name)} of positions before: those read are {', '.join(wanted) or 'none'}"
            )
    found = {}
    for name, (axis, op) in wanted.items():
        if name not in before:
            raise UsageError(f"the positions before of {name} are missing: {op.name} reads {length} of them")
        shape = list(rank.shape(name))
        shape[axis] = length
        array = np.asarray(before[name])
        if array.shape != tuple(shape):
            raise UsageError(f"the positions before of {name} have shape {array.shape}, and must have {tuple(shape)}")
        found[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
    return found


def _over_keys(rank: _OneRank, ops: Sequence[SymOp]) -> dict[str, tuple[int, SymOp]]:
    """The tensors that ops read over the keys of all positions, each with its axis of positions and an op."""
    read = ((name, axis, op) for op in ops for name, axis in rank.read(op))
    return {rank.sources.get(name, name): (axis, op) for name, axis, op in read if axis is not None}


def _with_held(rank: _OneRank, op: SymOp, values: Mapping[str, Array], held: Mapping[str, Array]) -> list[Array]:
    """What an op reads: of keys over all positions the held ones of positions before, then their own."""
    found = []
    for name, axis in rank.read(op):
        parts = [values[name]] if axis is None else [held[rank.sources.get(name, name)], values[name]]
        found.append(parts[0] if axis is None else np.concatenate(parts, axis=axis))
    return found


def _needed(rank: _OneRank, ops: Sequence[SymOp]) -> dict[str, SymOp]:
    """The tensors that ops read and none makes, each with the first op that reads it.

    UsageError for an op that runs in turns. ValueError for one that reads or makes a tensor that the graph does not
    have, or reads one that is made later.
    """
    makers = {name for op in ops for name in op.writes}
    made: set[str] = set()
    needed: dict[str, SymOp] = {}
    for op in ops:
        if op.loop is not None:
            raise UsageError(
                f"{op.name} runs in turns, for ranks that share a sequence, and a block is run on one rank: "
                "build the graph with cp_kind none"
            )
        for name in (*op.reads, *op.writes):
            if name not in rank.tensors:
                raise ValueError(f"{op.name} names the tensor {name}, which the graph does not have")
        for name in op.reads:
            if name not in makers:
                needed.setdefault(name, op)
            elif name not in made:
                raise ValueError(f"{op.name} reads {name} before an op makes it")
        made.update(op.writes)
    return needed


def _given(rank: _OneRank, word: str, needed: Mapping[str, SymOp], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays for the needed tensors of one kind, floats in double precision.

    UsageError for an array that is missing, that no op reads, or that has another shape.
    """
    wanted = {name: reader for name, reader in needed.items() if rank.word(name) == word}
    for name in arrays:
        if name not in wanted:
            raise UsageError(
                f"no op reads {shown(name)} as a given {word}: those read are {', '.join(wanted) or 'none'}"
            )
    found = {}
    for name, reader in wanted.items():
        if name not in arrays:
            raise UsageError(f"the {word} {name} is missing: {reader.name} reads it")
        array = np.asarray(arrays[name])
        if array.shape != rank.shape(name):
            raise UsageError(f"the {word} {rank.describe(name, array)}")
        found[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
    return found
