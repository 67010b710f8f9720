"""A laid-out block run in numpy on simulated ranks, before its operations are rows of a graph."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stagedb.graphs.block import LaidOut
from stagedb.ir.layouts import Layout, Partial, Partitioned
from stagedb.ir.operators import SLICE, Array, RankPlace, Redistribution
from stagedb.ir.tensors import Operation, Tensor

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
