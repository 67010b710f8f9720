"""Ring attention in turns: the exchanges and the compute of each turn, once layouts are known.

PyTorch (torch.distributed.tensor.experimental): keys and values go to the next rank while the rank attends to those
that it has. There is one exchange fewer than ranks (or keys and values are gathered once). In the backward they go
around again. The sums of their gradients, in fp32, go with them and, one exchange further, home.

Transformer Engine (`cp_comm_type="p2p"`, AttnFuncWithCPAndKVP2P): the same by sends and receives, and results are
merged in the format of activations. The backward begins with the keys that came last and goes the other way around, so
that the rank's own keys come last. The first exchange has only keys and values. The middle ones also have the sums of
their gradients, in the format of keys, in a message of twice the size. The last one has only the sums. With
`all_gather` (AttnFuncWithCPAndKVAllGather) keys are gathered first, and each of a rank's two chunks is attended to in a
call of its own. Transformer Engine has only balanced chunks. For contiguous ones, as PyTorch has them, stagedb assumes
that turns without compute pass on what they receive. The `a2a+p2p` of Transformer Engine deals chunks to neighbours in
another order, with equal numbers of tokens.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stagedb.collectives import ALL_GATHER
from stagedb.ir.expressions import number, symbol
from stagedb.ir.layouts import Layout
from stagedb.ir.operators import (
    AddReceived,
    Cast,
    Exchange,
    Operator,
    PackKeys,
    PartAttention,
    Receive,
    Redistribution,
    RingAttention,
    RingAttentionGradient,
    RingStep,
    RingStepGradient,
    Rotate,
    Send,
    UnpackGradients,
    UnpackKeys,
)
from stagedb.ir.tags import Tag
from stagedb.ir.tensors import Loop, Operation, Tensor

KEY_AND_VALUE = "key_and_value"
"""The axis of a key and its value next to each other, where they have sizes of their own."""


def _packed(k: Tensor, v: Tensor) -> tuple[str, ...]:
    """The axes of keys and values in one message."""
    return (*k.axes[:3], KEY_AND_VALUE) if k.axes[-1] != v.axes[-1] else (*k.axes[:3], "two", k.axes[-1])


def spell_out(operations: Iterable[Operation], layouts: dict[str, Layout]) -> tuple[Operation, ...]:
    """The operations, with each placeholder replaced by its ring. Layouts of the new tensors are added to `layouts`."""
    rows: list[Operation] = []
    for op in operations:
        if isinstance(op.operator, RingAttention):
            rows += _Ring(op, op.operator, layouts).forward()
        elif isinstance(op.operator, RingAttentionGradient):
            rows += _Ring(op, op.operator, layouts).backward()
        elif isinstance(op.operator, PartAttention) and op.operator.balanced:
            rows.append(_two_chunks(op))
        else:
            rows.append(op)
    return tuple(rows)


def with_both_ends(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The operations, with each exchange replaced by a send and a receive."""
    rows: list[Operation] = []
    for op in operations:
        move = op.operator
        if isinstance(move, Exchange):
            loop = None if op.loop is None else replace(op.loop, previous=())
            ends = (Send(move.mesh_axis, move.back), Receive(move.mesh_axis, move.back))
            rows.append(replace(op, name=f"{op.name}.send", operator=ends[0], outputs=()))
            rows.append(replace(op, name=f"{op.name}.recv", operator=ends[1], inputs=(), loop=loop))
        else:
            rows.append(op)
    return tuple(rows)


def _two_chunks(op: Operation) -> Operation:
    """Two turns: the second adds to the results of the first."""
    carried = tuple(each.name for each in op.outputs)
    return replace(op, inputs=(*op.inputs, *op.outputs), loop=Loop(f"{op.name}.chunks", number(2), carried))


class _Ring:
    """One attention over a ring."""

    def __init__(self, op: Operation, kind: RingAttention | RingAttentionGradient, layouts: dict[str, Layout]) -> None:
        self.op, self.layouts = op, layouts
        self.passing, self.axis, self.balanced = kind.passing, kind.axis, kind.balanced
        self.gathered = kind.passing == "gathered"
        self.softcap, self.scale, self.value = kind.softcap, kind.scale, kind.value

    def words(self, k: Tensor) -> dict[str, Any]:
        """How a turn scores keys, and their axes."""
        own = {"value": self.value, "head": k.axes[-1], "kv_heads": k.axes[2]}
        return {"softcap": self.softcap, "scale": self.scale, **own}

    def tensor(self, word: str, axes: tuple[str, ...], dtype: str, like: Tensor) -> Tensor:
        """A new tensor with the layout of another one."""
        made = Tensor(f"{self.op.name}.{word}", axes, dtype, like.role)
        self.layouts[made.name] = self.layouts[like.name]
        return made

    def state(self, context: Tensor) -> Tensor:
        """The kernel's random state, each rank's own. Its backward needs the state with and without dropout."""
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
            loop = Loop(f"{self.op.name}.turns", symbol(self.axis), tuple(each.name for each in previous))
        return replace(
            self.op, name=f"{self.op.name}.{word}", operator=operator, inputs=inputs, outputs=outputs, loop=loop
        )

    def keys(self, k: Tensor, v: Tensor) -> tuple[list[Operation], list[Operation], list[Tensor]]:
        """Operations that pack keys and values, operations that each turn sends, and the tensors that a turn reads."""
        axes = _packed(k, v)
        packed = self.tensor("keys", axes, k.dtype, k)
        before = [self.emit("pack", PackKeys(bool(self.value)), (k, v), (packed,))]
        if self.gathered:
            whole = self.tensor(f"keys.{ALL_GATHER.name}", axes, k.dtype, k)
            self.layouts[whole.name] = self.layouts[k.name].with_(self.axis, None)
            gather = Redistribution(ALL_GATHER.name, self.axis, source=k.axes[1])
            return [*before, self.emit(gather.move, gather, (packed,), (whole,))], [], [whole]
        came = self.tensor("keys.came", axes, k.dtype, k)
        move = Exchange(self.axis) if self.passing == "sent" else Rotate(self.axis, last=False)
        return before, [self.emit("exchange", move, (packed, came), (came,), (came,))], [packed, came]

    def forward(self) -> list[Operation]:
        (q, k, v), (context, lse) = self.op.inputs, self.op.outputs
        state = self.state(context)
        before, turn, held = self.keys(k, v)
        sent = self.passing == "sent"
        merged = context if sent else self.tensor("merged", context.axes, "fp32", context)
        inputs, carried = (q, *held, merged, lse), (*held[1:], merged, lse)
        step = RingStep(self.gathered, self.axis, self.balanced, **self.words(k))
        turn.append(self.emit("turn", step, inputs, (merged, lse, state), carried))
        if sent:
            return [*before, *turn]
        # For code outside, all iterations of the ring and the cast are one call.
        result = self.emit("result", Cast(), (merged,), (context,))
        return [*before, *turn, replace(result, marks=result.marks | {Tag.SAVED})]

    def backward(self) -> list[Operation]:
        if self.passing == "sent":
            return self.sent_back()
        (dy, q, k, v, context, lse), (dq, dk, dv) = self.op.inputs, self.op.outputs
        state = self.state(context)
        before, turn, held = self.keys(k, v)
        of_q = self.tensor("queries", dq.axes, "fp32", dq)
        axes = _packed(k, v)
        of_keys, came = (self.tensor(word, axes, "fp32", dk) for word in ("gradients", "gradients.came"))
        # Where some turns compute nothing, received keys are still passed on.
        own = of_keys if self.balanced else self.tensor("gradients.own", axes, "fp32", dk)
        adds = (came,) if self.balanced else ()
        inputs = (dy, q, *held, context, lse, state, of_q, *adds)
        step = RingStepGradient(self.gathered, self.axis, self.balanced, adds=self.balanced, **self.words(k))
        turn.append(self.emit("turn", step, inputs, (of_q, own), (*held[1:], of_q, *adds)))
        if not self.balanced:
            turn.append(self.emit("add", AddReceived(), (own, came), (of_keys,), (came,)))
        turn.append(self.emit("return", Rotate(self.axis, last=True), (of_keys,), (came,), ()))
        return [*before, *turn, self.emit("results", UnpackGradients(self.value), (of_q, came), (dq, dk, dv))]

    def sent_back(self) -> list[Operation]:
        """The backward of a ring of sends: the other way around, from the keys that came last."""
        (dy, q, k, v, context, lse), (dq, dk, dv) = self.op.inputs, self.op.outputs
        axes = _packed(k, v)
        kept = Tensor(f"{context.name}.keys.came", axes, dk.dtype, context.role)
        came = self.tensor("keys.came", axes, dk.dtype, dk)
        own, with_keys, sums = (self.tensor(f"gradients{word}", axes, dk.dtype, dk) for word in (".own", ".came", ""))
        step = RingStepGradient(False, self.axis, self.balanced, back=True, adds=False, **self.words(k))
        inputs = (dy, q, kept, came, context, lse, self.state(context), dq)
        exchange = Exchange(self.axis, back=True)
        return [
            self.emit("exchange", exchange, (kept, came, sums), (came, with_keys), (came, sums)),
            self.emit("turn", step, inputs, (dq, own), (came, dq)),
            self.emit("add", AddReceived(), (own, with_keys), (sums,), ()),
            self.emit("unpack", UnpackKeys(self.value), (sums,), (dk, dv)),
        ]
