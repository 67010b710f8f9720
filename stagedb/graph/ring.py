"""Ring attention spelled out: what each turn exchanges and computes, once layouts are known.

torch.distributed.tensor.experimental's ring attention: keys and values go to the next rank while those that are there
are attended to, one exchange fewer than ranks (or they are gathered once); in the backward they go round again, and the
sums of their gradients, in fp32, go with them and one exchange further, home.
"""

from collections.abc import Iterable
from dataclasses import replace

from stagedb.graph.layout import Layout
from stagedb.graph.operators import (
    Cast,
    Operator,
    PackKeys,
    Redistribution,
    RingAttention,
    RingAttentionGradient,
    RingStep,
    RingStepGradient,
    Rotate,
    UnpackGradients,
)
from stagedb.graph.tensors import Loop, Operation, Tensor
from stagedb.symbols import symbol

KEYS = ("batch", "seq", "kv_heads", "two", "head_dim")


def spell_out(operations: Iterable[Operation], layouts: dict[str, Layout]) -> tuple[Operation, ...]:
    """The operations, rings in the place of what stands for them. Layouts of the new tensors are added."""
    rows: list[Operation] = []
    for op in operations:
        if isinstance(op.operator, RingAttention):
            rows += _Ring(op, layouts).forward(op.operator.gathered)
        elif isinstance(op.operator, RingAttentionGradient):
            rows += _Ring(op, layouts).backward(op.operator.gathered)
        else:
            rows.append(op)
    return tuple(rows)


class _Ring:
    """One attention over a ring."""

    def __init__(self, op: Operation, layouts: dict[str, Layout]) -> None:
        self.op, self.layouts = op, layouts

    def tensor(self, word: str, axes: tuple[str, ...], dtype: str, like: Tensor) -> Tensor:
        """A new tensor that lies as another does."""
        made = Tensor(f"{self.op.name}.{word}", axes, dtype, like.role)
        self.layouts[made.name] = self.layouts[like.name]
        return made

    def state(self, context: Tensor) -> Tensor:
        """The kernel's random state, each rank's own, which its backward asks for with or without dropout."""
        made = Tensor(f"{context.name}.random_state", ("state",), "int64", context.role)
        self.layouts[made.name] = Layout()
        return made

    def emit(
        self,
        word: str,
        operator: Operator,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        previous: tuple[Tensor, ...] | None = None,
    ) -> Operation:
        """An operation of the ring; `previous`: it runs in every turn, and reads these as the turn before left them."""
        loop = None
        if previous is not None:
            loop = Loop(f"{self.op.name}.turns", symbol("cp"), tuple(each.name for each in previous))
        return replace(
            self.op, name=f"{self.op.name}.{word}", operator=operator, inputs=inputs, outputs=outputs, loop=loop
        )

    def keys(self, k: Tensor, v: Tensor, gathered: bool) -> tuple[list[Operation], list[Operation], list[Tensor]]:
        """What packs keys and values, what each turn sends on, and the tensors that a turn reads."""
        packed = self.tensor("keys", KEYS, k.dtype, k)
        before = [self.emit("pack", PackKeys(), (k, v), (packed,))]
        if gathered:
            whole = self.tensor("keys.all_gather", KEYS, k.dtype, k)
            self.layouts[whole.name] = self.layouts[k.name].with_("cp", None)
            gather = Redistribution("all_gather", "cp", source="seq")
            return [*before, self.emit("all_gather", gather, (packed,), (whole,))], [], [whole]
        came = self.tensor("keys.came", KEYS, k.dtype, k)
        return (
            before,
            [self.emit("exchange", Rotate("cp", last=False), (packed, came), (came,), (came,))],
            [packed, came],
        )

    def forward(self, gathered: bool) -> list[Operation]:
        (q, k, v), (context, lse) = self.op.inputs, self.op.outputs
        state = self.state(context)
        before, turn, held = self.keys(k, v, gathered)
        merged = self.tensor("merged", context.axes, "fp32", context)
        inputs, carried = (q, *held, merged, lse), (*held[1:], merged, lse)
        turn.append(self.emit("turn", RingStep(gathered), inputs, (merged, lse, state), carried))
        return [*before, *turn, self.emit("result", Cast(), (merged,), (context,))]

    def backward(self, gathered: bool) -> list[Operation]:
        (dy, q, k, v, context, lse), (dq, dk, dv) = self.op.inputs, self.op.outputs
        state = self.state(context)
        before, turn, held = self.keys(k, v, gathered)
        of_q = self.tensor("queries", dq.axes, "fp32", dq)
        of_keys, came = (self.tensor(word, KEYS, "fp32", dk) for word in ("gradients", "gradients.came"))
        inputs = (dy, q, *held, context, lse, state, of_q, came)
        carried = (*held[1:], of_q, came)
        turn.append(self.emit("turn", RingStepGradient(gathered), inputs, (of_q, of_keys), carried))
        turn.append(self.emit("return", Rotate("cp", last=True), (of_keys,), (came,), ()))
        return [*before, *turn, self.emit("results", UnpackGradients(), (of_q, came), (dq, dk, dv))]
