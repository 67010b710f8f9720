"""Attention in turns spelled out: what each turn exchanges and computes, once layouts are known.

PyTorch (torch.distributed.tensor.experimental): keys and values go to the next rank while those that are there are
attended to, one exchange fewer than ranks (or they are gathered once); in the backward they go round again, and the
sums of their gradients, in fp32, go with them and one exchange further, home.

Transformer Engine (`cp_comm_type="p2p"`, AttnFuncWithCPAndKVP2P): the same by sends and receives, and results are
merged in the format of activations. The backward begins with the keys that came last and goes the other way round, so
that the rank's own come last: the first exchange has keys and values alone, the middle ones also the sums of their
gradients, in the format of keys, in a message of twice the size, the last one those alone. With `all_gather`
(AttnFuncWithCPAndKVAllGather) keys have been gathered, and each of a rank's two chunks is attended to in a call of its
own. Transformer Engine has balanced chunks alone; contiguous ones, as PyTorch has them, are taken to pass on what comes
in the turns that compute nothing. Its `a2a+p2p` deals chunks to neighbours in another order, of as many tokens.
"""

from collections.abc import Iterable
from dataclasses import replace

from stagedb.expressions import number, symbol
from stagedb.ir.layouts import Layout
from stagedb.ir.operators import (
    AddCome,
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
from stagedb.ir.tensors import Loop, Operation, Tensor

KEYS = ("batch", "seq", "kv_heads", "two", "head_dim")


def spell_out(operations: Iterable[Operation], layouts: dict[str, Layout]) -> tuple[Operation, ...]:
    """The operations, rings in the place of what stands for them. Layouts of the new tensors are added."""
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
    """The operations, a send and a receive in the place of each exchange."""
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
    """Two turns, of which the second adds to what the first has made."""
    carried = tuple(each.name for each in op.outputs)
    return replace(op, inputs=(*op.inputs, *op.outputs), loop=Loop(f"{op.name}.chunks", number(2), carried))


class _Ring:
    """One attention over a ring."""

    def __init__(self, op: Operation, kind: RingAttention | RingAttentionGradient, layouts: dict[str, Layout]) -> None:
        self.op, self.layouts = op, layouts
        self.passing, self.axis, self.balanced = kind.passing, kind.axis, kind.balanced
        self.gathered = kind.passing == "gathered"

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
            loop = Loop(f"{self.op.name}.turns", symbol(self.axis), tuple(each.name for each in previous))
        return replace(
            self.op, name=f"{self.op.name}.{word}", operator=operator, inputs=inputs, outputs=outputs, loop=loop
        )

    def keys(self, k: Tensor, v: Tensor) -> tuple[list[Operation], list[Operation], list[Tensor]]:
        """What packs keys and values, what each turn sends on, and the tensors that a turn reads."""
        packed = self.tensor("keys", KEYS, k.dtype, k)
        before = [self.emit("pack", PackKeys(), (k, v), (packed,))]
        if self.gathered:
            whole = self.tensor("keys.all_gather", KEYS, k.dtype, k)
            self.layouts[whole.name] = self.layouts[k.name].with_(self.axis, None)
            gather = Redistribution("all_gather", self.axis, source="seq")
            return [*before, self.emit("all_gather", gather, (packed,), (whole,))], [], [whole]
        came = self.tensor("keys.came", KEYS, k.dtype, k)
        move = Exchange(self.axis) if self.passing == "sent" else Rotate(self.axis, last=False)
        return before, [self.emit("exchange", move, (packed, came), (came,), (came,))], [packed, came]

    def forward(self) -> list[Operation]:
        (q, k, v), (context, lse) = self.op.inputs, self.op.outputs
        state = self.state(context)
        before, turn, held = self.keys(k, v)
        sent = self.passing == "sent"
        merged = context if sent else self.tensor("merged", context.axes, "fp32", context)
        inputs, carried = (q, *held, merged, lse), (*held[1:], merged, lse)
        step = RingStep(self.gathered, self.axis, self.balanced)
        turn.append(self.emit("turn", step, inputs, (merged, lse, state), carried))
        return [*before, *turn, *([] if sent else [self.emit("result", Cast(), (merged,), (context,))])]

    def backward(self) -> list[Operation]:
        if self.passing == "sent":
            return self.sent_back()
        (dy, q, k, v, context, lse), (dq, dk, dv) = self.op.inputs, self.op.outputs
        state = self.state(context)
        before, turn, held = self.keys(k, v)
        of_q = self.tensor("queries", dq.axes, "fp32", dq)
        of_keys, came = (self.tensor(word, KEYS, "fp32", dk) for word in ("gradients", "gradients.came"))
        # Where some turns compute nothing, what came is passed on all the same.
        own = of_keys if self.balanced else self.tensor("gradients.own", KEYS, "fp32", dk)
        adds = (came,) if self.balanced else ()
        inputs = (dy, q, *held, context, lse, state, of_q, *adds)
        step = RingStepGradient(self.gathered, self.axis, self.balanced, adds=self.balanced)
        turn.append(self.emit("turn", step, inputs, (of_q, own), (*held[1:], of_q, *adds)))
        if not self.balanced:
            turn.append(self.emit("add", AddCome(), (own, came), (of_keys,), (came,)))
        turn.append(self.emit("return", Rotate(self.axis, last=True), (of_keys,), (came,), ()))
        return [*before, *turn, self.emit("results", UnpackGradients(), (of_q, came), (dq, dk, dv))]

    def sent_back(self) -> list[Operation]:
        """The backward of a ring of sends: the other way round, from the keys that came last."""
        (dy, q, _, _, context, lse), (dq, dk, dv) = self.op.inputs, self.op.outputs
        kept = Tensor(f"{context.name}.keys.came", KEYS, dk.dtype, context.role)
        came = self.tensor("keys.came", KEYS, dk.dtype, dk)
        own, with_keys, sums = (self.tensor(f"gradients{word}", KEYS, dk.dtype, dk) for word in (".own", ".came", ""))
        step = RingStepGradient(False, self.axis, self.balanced, back=True, adds=False)
        inputs = (dy, q, kept, came, context, lse, self.state(context), dq)
        exchange = Exchange(self.axis, back=True)
        return [
            self.emit("exchange", exchange, (kept, came, sums), (came, with_keys), (came, sums)),
            self.emit("turn", step, inputs, (dq, own), (came, dq)),
            self.emit("add", AddCome(), (own, with_keys), (sums,), ()),
            self.emit("unpack", UnpackKeys(), (sums,), (dk, dv)),
        ]
