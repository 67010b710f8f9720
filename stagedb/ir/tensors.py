"""Logical tensors and operations: the code of a model's author, before any layout is known."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from stagedb.ir.expressions import Expression
from stagedb.ir.facts import KEYS, Tag
from stagedb.ir.operators._base import QUERIES, Operator, over
from stagedb.ir.operators.serving import CacheAppend
from stagedb.workflows import Template
from stagedb.workflows.training import FORWARD

Size = Callable[[str], Expression]
"""The size of a named axis as an expression."""


@dataclass(frozen=True)
class Tensor:
    """A value with named axes. `dtype` is a dtype class (`act`, `param`, `grad`, `logits`, `fp32`, `int64`, …)."""

    name: str
    axes: tuple[str, ...]
    dtype: str
    role: str


def _over_keys(own: Tensor, read: Tensor) -> bool:
    """Whether an operation reads a tensor of the new positions over all positions of a sequence."""
    return QUERIES in own.axes and QUERIES not in read.axes


@dataclass(frozen=True)
class Loop:
    """Operations of one loop, run `times` times in turn. They read `previous` as the turn before left them."""

    name: str
    times: Expression
    previous: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operation:
    """An operator applied to tensors, in one region of the model (the key of the strategy's rules).

    `origin` is the forward operation that a gradient belongs to (itself for a forward one). `recomputed`: it runs a
    forward operation again, during the backward. `marks`: its tags in addition to those of its operator.
    """

    name: str
    operator: Operator
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    region: str
    template: Template
    origin: str
    recomputed: bool = False
    loop: Loop | None = None
    marks: frozenset[Tag] = frozenset()

    @property
    def tags(self) -> frozenset[Tag]:
        """Its tags, from its marks and its operator."""
        return self.operator.tags | self.marks


def _renamed(operator: Operator, names: Mapping[str, str]) -> Operator:
    """An operator whose fields name axes by these names, in place of the usual ones."""
    changed: dict[str, Any] = {}
    for each in fields(operator):
        value = getattr(operator, each.name)
        if isinstance(value, str) and value in names:
            changed[each.name] = names[value]
        elif isinstance(value, tuple) and any(part in names for part in value):
            changed[each.name] = tuple(names.get(part, part) for part in value)
    return replace(operator, **changed) if changed else operator


@dataclass
class Tracer:
    """Records the operations of one block in issue order.

    caches: what operations read of all positions of a sequence (keys, values, latents) is read from a cache, to which
    an operation before them adds that of the new positions. deals_keys: ranks of cp share these caches, of which each
    has the positions that are its own. cached: the caches, by the tensor that is added. cast: the
    copies in fp8 of inputs of matmuls, by the input, where several matmuls of a block may read one. adapts: whether a
    linear layer of this name in the block has an adapter. trains: whether a weight of this name has a gradient. below:
    whether something before the block is trained. kept: gradients that the forward makes, each with the tensor whose
    gradient it is. entry: the input of a block of several layers, which later ones may read again. owner: the part of
    the block whose weights several layers read; None: each layer has its own. turn: how many layers before the present
    one read such weights. axes: the names of axes in a layer whose sizes differ from those of others in its block, by
    their usual names. keys: the last keys and values of the block's layers, by what queries see; None: no later layer
    reads them. layer_input: what the present layer gets in addition to the stream.
    """

    block: str
    region: str = ""
    marks: frozenset[Tag] = frozenset()
    template: Template = FORWARD
    origin: str | None = None
    weight_gradient_first: Callable[[bool], bool] = lambda has_bias: not has_bias
    operations: list[Operation] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    narrowed: dict[str, Tensor] = field(default_factory=dict)
    part: str = ""
    caches: bool = False
    deals_keys: bool = False
    cached: dict[str, Tensor] = field(default_factory=dict)
    cast: dict[str, Tensor] = field(default_factory=dict)
    adapts: Callable[[str], bool] = lambda name: False
    trains: Callable[[str], bool] = lambda name: True
    below: bool = True
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    entry: Tensor | None = None
    owner: str | None = None
    turn: int = 0
    axes: Mapping[str, str] = field(default_factory=dict)
    keys: dict[tuple[int | float | bool | str, ...], tuple[Tensor, Tensor]] | None = None
    layer_input: Tensor | None = None

    @contextmanager
    def sharing(self, owner: str) -> Iterator[None]:
        """While the block of `with` runs, take weights from another part of this block, which shares them between
        layers.

        owner: the name of that part. A weight of a name that the part already has is the same weight.
        """
        self.owner = f"{owner}."
        yield
        self.owner = None

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Write the following tensors and operations under the name of a part of the block, as in `part.name`."""
        outer, self.part = self.part, f"{self.part}{part}."
        yield
        self.part = outer

    def enter(self, region: str, *tags: Tag) -> None:
        """Write the following operations in a region of the model, with these tags and no others."""
        self.region, self.marks = region, frozenset(tags)

    def tensor(self, name: str, axes: tuple[str, ...], dtype: str, role: str) -> Tensor:
        """A tensor of this block that no operation makes: an input, a weight, a block's port.

        name: without the block's and the part's. axes: their names. dtype: a class of formats, such as `act`. role:
        such as `activation` or `cache`.
        """
        return Tensor(f"{self.block}.{self.part}{name}", self._named(axes), dtype, role)

    def _named(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Axes by their names in the present layer."""
        return tuple(self.axes.get(axis, axis) for axis in axes) if self.axes else axes

    def weight(self, name: str, axes: tuple[str, ...], rows: int = 1, dtype: str = "param") -> Tensor:
        """A parameter; the order of calls is the order of registration.

        Its first `rows` axes are one dimension of the framework's parameter: the dimension that sharding cuts. dtype:
        its class of formats, if it is stored in another one than parameters are. name: without the block's and the
        part's. axes: their names.
        """
        owner = self.part if self.owner is None else self.owner
        weight = Tensor(f"{self.block}.{owner}{name}", self._named(axes), dtype, "weight")
        if self.owner is None or weight.name not in self.rows:
            self.weights.append(weight)
        self.rows[weight.name] = rows
        return weight

    def emit(
        self,
        name: str,
        operator: Operator,
        inputs: tuple[Tensor, ...],
        *outputs: Tensor,
        template: Template | None = None,
    ) -> None:
        """Append an operation; `name` is relative to the block's part unless it starts with the block's own name.

        inputs, outputs: operands and results, in order. template: when the operation runs; None: as the tracer is set,
        in the forward by default.
        """
        full = name if name.startswith(f"{self.block}.") else f"{self.block}.{self.part}{name}"
        operator = _renamed(operator, self.axes) if self.axes else operator
        if self.caches and not isinstance(operator, CacheAppend):
            read = operator.operands(inputs, outputs)
            inputs = tuple(
                self._kept(own) if _over_keys(own, of) else own for own, of in zip(inputs, read, strict=True)
            )
        self.operations.append(
            Operation(
                full,
                operator,
                inputs,
                outputs,
                self.region,
                template or self.template,
                self.origin or full,
                marks=self.marks,
            )
        )

    def _kept(self, tensor: Tensor) -> Tensor:
        """The cache of a tensor, which an operation fills before its first reader."""
        if tensor.name not in self.cached:
            dtype = "cache" if tensor.dtype == "act" else tensor.dtype
            cache = Tensor(f"{tensor.name}.cache", over(KEYS, tensor.axes), dtype, "cache")
            self.cached[tensor.name] = cache
            self.emit(cache.name, CacheAppend(self.deals_keys), (tensor,), cache)
        return self.cached[tensor.name]

    def activation(self, name: str, axes: tuple[str, ...], dtype: str = "act") -> Tensor:
        """Declare a tensor of this block that the forward makes; `emit` adds the operator that writes it.

        name: without the block's and the part's. axes: their names. dtype: a class of formats.
        """
        return self.tensor(name, axes, dtype, "activation")

    def gradient(self, of: Tensor, name: str) -> Tensor:
        """A gradient tensor of the shape of `of`; gradients of weights have the dtype class `grad`.

        of: what the gradient belongs to. name: the gradient's, whole.
        """
        of = self.whole(of)
        return Tensor(name, of.axes, "grad" if of.role == "weight" else of.dtype, "gradient")

    def narrow(self, name: str, of: Tensor, operator: Operator, dtype: str, template: Template | None = None) -> Tensor:
        """Cast a tensor to a narrower format; the copy's gradient is the tensor's own.

        name: of the copy. of: the tensor. operator: makes the cast. dtype: the narrower class of formats. template:
        when the cast runs; None: in the forward.
        """
        copy = self.tensor(name.removeprefix(f"{self.block}."), of.axes, dtype, "activation")
        self.narrowed[copy.name] = of
        self.emit(copy.name, operator, (of,), copy, template=template)
        return copy

    def whole(self, tensor: Tensor) -> Tensor:
        """The tensor that a narrow copy was cast from; any other tensor itself."""
        return self.narrowed.get(tensor.name, tensor)
