"""The trial of own blocks: numpy runs each at tiny sizes, whole and on simulated ranks, before a graph has it.

A block is accepted if its forward runs, its derived backward agrees with finite differences, and every mesh computes
what one rank computes. A failure names the file, the line and the step.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from stagedb.errors import UsageError
from stagedb.frameworks import FRAMEWORKS
from stagedb.graphs.block import BlockPlan, LaidOut, lay_out
from stagedb.ir.collective_matcher import Matching
from stagedb.ir.layouts import Layout, Partial, Partitioned
from stagedb.ir.operators import SLICE, Array, RankPlace, Redistribution
from stagedb.ir.tensors import Operation, Tensor
from stagedb.mentions import Word
from stagedb.models import Card
from stagedb.models.kinds import HIDDEN, OwnBlock
from stagedb.models.kinds.own import part_of, shapes_of
from stagedb.models.shared_operations import Style
from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.strategies import rules

# A laid-out block run in numpy on simulated ranks, before its operations are rows of a graph.

MESH = ("dp", "cp", "tp")


class FailedOperation(Exception):
    """An operation that cannot be run, or whose copies differ. name: its name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


@dataclass(frozen=True)
class SimulatedRanks:
    """A laid-out block on simulated ranks. degrees: dp, cp and tp. sizes: of the axes, whole."""

    laid: LaidOut
    degrees: Mapping[str, int]
    sizes: Mapping[str, int]
    ranks: tuple[Mapping[str, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        places = itertools.product(*(range(self.degrees[axis]) for axis in MESH))
        object.__setattr__(self, "ranks", tuple(dict(zip(MESH, place, strict=True)) for place in places))

    @property
    def name(self) -> str:
        """The degrees of the mesh in words, for errors."""
        return " x ".join(f"{axis} {self.degrees[axis]}" for axis in MESH if self.degrees[axis] > 1) or "one rank"

    def run(self, given: Mapping[str, Array], backward: bool = True) -> dict[str, Array]:
        """All tensors by name, whole.

        given: whole values of the input, the weights and the arriving gradient. FailedOperation for an operation that
        numpy cannot run, and where ranks that hold copies hold different values. backward: whether the backward runs
        too.
        """
        tensors = {each.name: each for each in (*self.laid.weights, *self.laid.given)}
        values = {name: self._scatter(whole, tensors[name]) for name, whole in given.items() if name in tensors}
        whole = dict(given)
        for op in self.laid.operations:
            if op.template.once or (op.template.differentiates and not backward):
                continue
            inputs = [values[tensor.name] for tensor in op.inputs]
            for tensor, value in zip(op.outputs, self._execute(op, inputs), strict=True):
                values[tensor.name] = value
                whole[tensor.name] = self._gather(value, tensor, op)
        return whole

    def output(self, given: Mapping[str, Array]) -> Array:
        """The block's result, from a run of the forward alone.

        given: whole values of the input and the weights, by name.
        """
        values = self.run(given, backward=False)
        return values[self.laid.output.name] if self.laid.output else np.zeros(())

    def results(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The block's result and the gradients of its input and its weights, by the name of the input or weight.

        values: all tensors by name, whole, as `run` returns them.
        """
        made = {"output": self.laid.output, "input": self.laid.input_gradient, **self.laid.gradients}
        return {name: values[tensor.name] for name, tensor in made.items() if tensor is not None}

    def _execute(self, op: Operation, inputs: list[list[Array]]) -> list[list[Array]]:
        if isinstance(op.operator, Redistribution):
            return [self._moved(op.operator, inputs[0], op.inputs[0].axes)]
        try:
            made = [
                op.operator.run(self._place(op, rank), [value[at] for value in inputs])
                for at, rank in enumerate(self.ranks)
            ]
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise FailedOperation(op.name, f"{type(error).__name__}: {error}") from error
        return [list(column) for column in zip(*made, strict=True)]

    def _moved(self, move: Redistribution, value: list[Array], axes: tuple[str, ...]) -> list[Array]:
        out = []
        for at, rank in enumerate(self.ranks):
            members = [{**rank, move.mesh_axis: member} for member in range(self.degrees[move.mesh_axis])]
            shares = [value[self.ranks.index(member)] for member in members]
            if move.collective is not None:
                whole = move.collective.combine(shares, axes.index(move.source) if move.source else None)
            elif move.move == SLICE:
                whole = value[at]
            else:
                raise ValueError(f"a {move.move} over {move.mesh_axis} has no meaning for ranks that hold all of it")
            if move.target:
                whole = np.split(whole, len(members), axis=axes.index(move.target))[rank[move.mesh_axis]]
            out.append(whole)
        return out

    def _place(self, op: Operation, rank: Mapping[str, int]) -> RankPlace:
        parts: dict[str, slice] = {}
        for tensor in (*op.inputs, *op.outputs):
            layout = self.laid.layouts[tensor.name]
            for axis in tensor.axes:
                if axis not in parts or layout.cuts(axis):
                    parts[axis] = self._part(axis, layout, rank)
        partial = {mesh_axis for tensor in op.outputs for mesh_axis in self.laid.layouts[tensor.name].partials()}
        return RankPlace(
            dict(self.sizes),
            {axis: part.start for axis, part in parts.items()},
            {axis: part.stop - part.start for axis, part in parts.items()},
            leader=all(rank[mesh_axis] == 0 for mesh_axis in partial),
            member=rank,
            degrees=self.degrees,
        )

    def _part(self, axis: str, layout: Layout, rank: Mapping[str, int]) -> slice:
        index, parts = 0, 1
        for mesh_axis in layout.cuts(axis):
            index, parts = index * self.degrees[mesh_axis] + rank[mesh_axis], parts * self.degrees[mesh_axis]
        each = self.sizes[axis] // parts
        return slice(index * each, (index + 1) * each)

    def _window(self, tensor: Tensor, rank: Mapping[str, int]) -> tuple[slice, ...]:
        return tuple(self._part(axis, self.laid.layouts[tensor.name], rank) for axis in tensor.axes)

    def _scatter(self, whole: Array, tensor: Tensor) -> list[Array]:
        return [whole[self._window(tensor, rank)] for rank in self.ranks]

    def _gather(self, value: list[Array], tensor: Tensor, op: Operation) -> Array:
        """A whole tensor: parts in their places, shares of a sum added."""
        layout = self.laid.layouts[tensor.name]
        held = {axis for axis in MESH if isinstance(layout.on(axis), Partitioned | Partial)}
        whole = np.zeros([self.sizes[axis] for axis in tensor.axes])
        for rank, array in zip(self.ranks, value, strict=True):
            first = {axis: place if axis in held else 0 for axis, place in rank.items()}
            window = self._window(tensor, rank)
            if whole[window].shape != array.shape:
                raise FailedOperation(op.name, f"it makes {array.shape} in place of {whole[window].shape}")
            if rank == first:
                whole[window] += array
            elif not same(array, value[self.ranks.index(first)]):
                raise FailedOperation(op.name, "ranks that hold copies of a value hold different ones")
        return whole


def same(one: Array, other: Array) -> bool:
    """Whether two results of the same arithmetic in another order agree.

    one, other: arrays of one shape; results of numpy in float64.
    """
    return bool(np.allclose(one, other, rtol=1e-8, atol=1e-10 * (1 + float(np.max(np.abs(other), initial=0)))))


MESHES = ((2, 1, 1), (1, 1, 2), (1, 2, 1), (2, 2, 2))
"""Degrees of dp, cp and tp on which a block is tried. A block that mixes the sequence is tried without cp."""

STREAM_SIZES: Mapping[str, int] = {"batch": 2, "seq": 4, "hidden": 6}

OTHER_SIZES = (4, 6, 2)
"""Sizes of a block's own axes, in turn. Every degree divides them."""

SCALES = (0.5, 0.3, 0.2)
"""Sizes of random values. Others are tried where a difference meets the corner of a function such as relu."""

MOVED = 1e-5
"""How far finite differences move a value."""

CLOSE = 1e-6
"""The difference of a derivative, relative to its size and that of the function."""

PLAIN = Style(
    pack_qkv=False,
    pack_gate=False,
    row_bias="inside",
    linear="",
    experts="",
    embedding_dropout="embedding",
    attention="fused",
    eager=False,
    dropout=0.0,
    loss_parallel=False,
    apart=False,
    explicit_mask=False,
    core=None,
)
"""The forward as a file has it, in full precision."""


def check_blocks(card: Card, options: GraphOptions | None = None) -> None:
    """Try the own blocks of a card at tiny sizes (`BlockTrial`). Raises UsageError for a block that fails.

    options: those of the graph that is built. Raises UsageError too for a block that these do not allow; None: not
    checked.
    """
    for block in card.blocks:
        _try(block, card)
        mixes = shapes_of(block).mixes
        if mixes and options is not None and options.cp_kind != "none":
            raise block.refused(
                mixes[0].line,
                f"step {mixes[0].name} reads several tokens of a sequence, and ranks of cp hold parts of it: take "
                f"{Word('cp', 1)} (tp and dp divide the work too), or a mixer that stagedb has",
            )


@lru_cache(maxsize=64)
def _try(block: OwnBlock, card: Card) -> None:
    trial = BlockTrial(block, card, _sizes(block))
    whole = trial.on(GraphOptions(), dict.fromkeys(MESH, 1))
    try:
        with np.errstate(all="ignore"):
            given, values = trial.whole_run(whole)
            for ranks in _meshes(trial, bool(shapes_of(block).mixes)):
                trial.check_same(ranks, ranks.run(given), whole, values)
    except FailedOperation as error:
        raise trial.refused(
            error.name, f"numpy cannot run it at tiny sizes: {error}: write it in another way"
        ) from None


def _sizes(block: OwnBlock) -> dict[str, int]:
    """A tiny size for each axis. An axis of 1 or 2, such as a pair, keeps its size unless ranks cut it."""
    sizes, others = {**STREAM_SIZES}, itertools.cycle(OTHER_SIZES)
    cut = {each.tp for each in block.parameters}
    for axis, size in block.axes:
        tiny = STREAM_SIZES["seq"] if size == "seq" else next(others)
        sizes[block.in_graph(axis)] = int(size) if size in (1, 2) and axis not in cut else tiny
    return sizes


def _meshes(trial: "BlockTrial", mixes: bool) -> Iterator[SimulatedRanks]:
    for recipe, (dp, cp, tp), sp in itertools.product(FRAMEWORKS, MESHES, (False, True)):
        if not (sp and tp == 1) and not (mixes and cp > 1 and tp == 1):
            yield trial.on(GraphOptions(recipe=recipe, sp=sp), {"dp": dp, "cp": 1 if mixes else cp, "tp": tp})


@dataclass(frozen=True)
class BlockTrial:
    """A trial of an own block of a card in numpy. sizes: a tiny size for each axis of its tensors, by name."""

    block: OwnBlock
    card: Card
    sizes: Mapping[str, int]

    def on(self, options: GraphOptions, degrees: Mapping[str, int]) -> SimulatedRanks:
        """The block laid out on simulated ranks. options: of the graph. degrees: ranks by mesh axis (dp, cp, tp)."""
        part, framework = part_of(self.block), options.framework
        plan = BlockPlan(
            name="trial",
            repeat="1",
            trace=lambda t, x: part.forward(t, self.card, PLAIN, {}, x).result,
            input=True,
            loss=False,
        )
        matching = Matching(options.shared_input, framework.regather, framework.whole_backward)
        table = rules(options, parts=(part,))
        return SimulatedRanks(lay_out(plan, table, matching, HIDDEN, lambda has_bias: False), degrees, self.sizes)

    def whole_run(self, whole: SimulatedRanks) -> tuple[dict[str, Array], dict[str, Array]]:
        """Run the block on one rank until its gradients agree with finite differences, at several scales of its input.

        Returns the values that it was given, and all values of the run, by tensor. Raises UsageError if no scale
        agrees.
        """
        wrong = None
        for seed, scale in enumerate(SCALES):
            given = self.values(whole.laid, seed, scale)
            values = whole.run(given)
            self.check_finite(whole, values)
            wrong = self.wrong_gradient(whole, given, values)
            if wrong is None:
                return given, values
        name, derived, measured = wrong or ("", 0.0, 0.0)
        readers = ", ".join(step.name for step in self.block.steps if name in step.of)
        raise self.block.refused(
            next((step.line for step in self.block.steps if name in step.of), 0),
            f"the derived backward has {derived:.6g} as the gradient of {name} along a direction, and finite "
            f"differences {measured:.6g}: write the steps that read it ({readers}) with other operators",
        )

    def values(self, laid: LaidOut, seed: int, scale: float) -> dict[str, Array]:
        """Random values of the input, the weights and the arriving gradient.

        scale: the standard deviation. seed: of numpy's generator; equal seeds give equal values.
        """
        rng = np.random.default_rng(seed)
        tensors = sorted((*laid.weights, *laid.given), key=lambda tensor: tensor.name)
        return {each.name: scale * rng.normal(size=[self.sizes[axis] for axis in each.axes]) for each in tensors}

    def check_finite(self, whole: SimulatedRanks, values: Mapping[str, Array]) -> None:
        """Raise UsageError for the first operation whose results are not finite.

        whole: the run that made the values. values: each tensor's array, by name.
        """
        for op in whole.laid.operations:
            if not all(np.isfinite(values[tensor.name]).all() for tensor in op.outputs):
                made = "has gradients" if op.template.differentiates else "makes numbers"
                raise self.refused(op.origin, f"it {made} that are not finite: normalise or bound what it reads")

    def wrong_gradient(
        self, whole: SimulatedRanks, given: Mapping[str, Array], values: Mapping[str, Array]
    ) -> tuple[str, float, float] | None:
        """The first tensor whose gradient differs from finite differences along a random direction; None if all agree.

        given, values: what a run was given, and all that it computed. Returns the name, the derived and the measured
        number.
        """
        laid, rng, made = whole.laid, np.random.default_rng(1), whole.results(values)
        arriving = given[laid.output_gradient.name] if laid.output_gradient else np.zeros(())
        total = float(np.sum(made["output"] * arriving))
        for tensor in (laid.input, *laid.weights):
            if tensor is None:
                continue
            key = "input" if tensor is laid.input else tensor.name
            along, ends = rng.normal(size=given[tensor.name].shape), list[float]()
            for move in (MOVED, -MOVED):
                moved = {**given, tensor.name: given[tensor.name] + move * along}
                ends.append(float(np.sum(whole.output(moved) * arriving)))
            measured, derived = (ends[0] - ends[1]) / (2 * MOVED), float(np.sum(made[key] * along))
            if not abs(measured - derived) <= CLOSE * (1 + abs(measured) + abs(total)):
                return self.name_in_file(tensor.name), derived, measured
        return None

    def check_same(
        self, ranks: SimulatedRanks, made: Mapping[str, Array], whole: SimulatedRanks, values: Mapping[str, Array]
    ) -> None:
        """Raise UsageError for the first operation whose result on several ranks differs from that on one rank.

        made: whole tensors of the run on `ranks`. values: those of the run on one rank, `whole`.
        """
        names = {tensor.name: op for op in whole.laid.operations for tensor in op.outputs}
        for name, op in names.items():
            if name in made and not same(made[name], values[name]):
                raise self.refused(op.origin, f"on {ranks.name} it makes other values than on one rank: {NO_CUT}")
        ours, theirs = ranks.results(made), whole.results(values)
        for name, value in theirs.items():
            if not same(ours[name], value):
                raise self.refused(name, f"on {ranks.name} its gradient differs from that on one rank: {NO_CUT}")

    def refused(self, operation: str, text: str) -> UsageError:
        """The error for a step of the block's file, with the line of that step.

        operation: the name of an operation that the step made. text: what is wrong with it.
        """
        name = self.name_in_file(operation)
        lines = {each.name: each.line for each in self.block.parameters}
        lines |= {each.name: each.line for each in self.block.steps}
        return self.block.refused(lines.get(name, 0), f"step {name}: {text}")

    def name_in_file(self, name: str) -> str:
        """The name of a step or parameter in the block's file: `up` for `trial.mine.up.weight` in the graph."""
        parts = name.split(".")
        return parts[2] if len(parts) > 2 else parts[-1]


NO_CUT = "leave `tp` out of the parameters that it reads"
