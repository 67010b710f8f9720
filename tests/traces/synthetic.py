"""Small workloads made by hand: the shape that instances have, without a store."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagedb.ir.facts import NO_FACTS
from stagedb.lowering.columns import (
    COLLECTIVE,
    COMPUTE,
    DATA,
    EVERY,
    LAST,
    RECV,
    SEND,
    TASK_KINDS,
    TEMPLATES,
    ClassColumns,
    Edges,
    Groups,
    Ops,
    RankTable,
    Tasks,
    Workload,
    steps,
    towards,
)
from stagedb.plans import GraphOptions, Mesh, Plan, groups
from stagedb.schedules import stage_orders, task_positions

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, STEP = map(
    TEMPLATES.index, ("forward", "input_gradient", "weight_gradient", "step")
)
PHASES = {FORWARD: "forward", INPUT_GRADIENT: "backward", WEIGHT_GRADIENT: "backward", STEP: "optimizer"}


@dataclass(frozen=True)
class Op:
    name: str
    template: int
    type: int = COMPUTE
    kind: str = "matmul"
    when: int = EVERY
    axis: str = ""
    size: int = 0
    peer: int = 0
    flops: int = 2 * 10**12
    bytes: int = 123456
    after: tuple[str, ...] = ()
    reason: int = DATA


def columns(
    ops: Sequence[Op], tasks: Tasks, number: int = 0, stages: tuple[int, ...] = (0,), shift: int = 0
) -> ClassColumns:
    """A class of these ops, issued in the given order."""
    at = {op.name: index for index, op in enumerate(ops)}
    edges = [(at[name], at[op.name], op.reason) for op in ops for name in op.after if name in at]
    made = np.array(edges, np.int64).reshape(-1, 3)

    def ints(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, np.int64)

    axis = tuple(op.axis for op in ops)
    template, type_, peer = (ints([getattr(op, name) for op in ops]) for name in ("template", "type", "peer"))
    direction = towards(axis, template, type_, peer)
    return ClassColumns(
        number=number,
        digest=hashlib.sha256(b"class %d" % number).hexdigest(),
        stages=stages,
        ops=Ops(
            name=tuple(op.name for op in ops),
            chunk=ints([0] * len(ops)),
            template=template,
            order=np.arange(len(ops)) + shift,
            type=type_,
            when=ints([op.when for op in ops]),
            kind=tuple(op.kind for op in ops),
            phase=tuple(PHASES[op.template] for op in ops),
            axis=axis,
            dtype=tuple("" if op.type == COMPUTE else "bf16" for op in ops),
            flops=ints([op.flops if op.type == COMPUTE else 0 for op in ops]),
            bytes=ints([op.bytes if op.type == COMPUTE else 0 for op in ops]),
            size=ints([op.size for op in ops]),
            operand=ints([op.size for op in ops]),
            result=ints([op.size for op in ops]),
            peer=peer,
            towards=direction,
            step=steps(axis, type_, peer, direction),
            dims=((),) * len(ops),
            turn=ints([-1] * len(ops)),
            facts=(NO_FACTS,) * len(ops),
        ),
        edges=Edges(*(made[:, column] for column in range(3))),
        tasks=tasks,
    )


def stage_ops(plan: Plan, stage: int, layers: int, size: int = 1 << 20) -> list[Op]:
    """A stage of a plain transformer under tp, dp and pp."""
    ops: list[Op] = []
    tp, dp = plan.tp > 1, plan.dp > 1
    before, after = stage > 0, stage < plan.pp - 1

    def add(name: str, template: int, *waits: str, **fields: object) -> str:
        ops.append(replace(Op(name, template), after=waits, **fields))  # type: ignore[arg-type]
        return name

    def gather(name: str, template: int, kind: str, wait: str) -> str:
        if not tp:
            return wait
        return add(name, template, wait, type=COLLECTIVE, kind=kind, axis="tp", size=size)

    x = "nothing"
    if before:
        x = add("cut.recv_forward", FORWARD, type=RECV, kind="recv", axis="pp", size=size, peer=-1)
    else:
        x = add("embedding", FORWARD, kind="embedding", flops=0)
    for layer in range(layers):
        x = gather(f"layer.{layer}.gather", FORWARD, "all_gather", x)
        x = add(f"layer.{layer}.mm", FORWARD, x)
        x = gather(f"layer.{layer}.scatter", FORWARD, "reduce_scatter", x)
    if after:
        add("cut.send_forward", FORWARD, x, type=SEND, kind="send", axis="pp", size=size, peer=1)
        g = add("cut.recv_backward", INPUT_GRADIENT, type=RECV, kind="recv", axis="pp", size=size, peer=1)
    else:
        x = add("loss", FORWARD, x, kind="loss", flops=0, bytes=0)
        g = add("loss.grad", INPUT_GRADIENT, x, kind="loss", flops=0)
    grads = []
    for layer in reversed(range(layers)):
        g = gather(f"layer.{layer}.gather.grad", INPUT_GRADIENT, "all_gather", g)
        mm = f"layer.{layer}.mm"
        grads.append(add(f"{mm}.grad_w", WEIGHT_GRADIENT, g, mm))
        bucket = grads[-1]
        g = add(f"{mm}.grad_x", INPUT_GRADIENT, g, mm)
        if dp:
            bucket = add(
                f"bucket.{layer}", WEIGHT_GRADIENT, bucket,
                type=COLLECTIVE, kind="all_reduce", when=LAST, axis="dp", size=2 * size,
            )  # fmt: skip
            grads.append(bucket)
        g = gather(f"layer.{layer}.scatter.grad", INPUT_GRADIENT, "reduce_scatter", g)
    if before:
        add("cut.send_backward", INPUT_GRADIENT, g, type=SEND, kind="send", axis="pp", size=size, peer=-1)
    else:
        add("embedding.grad", WEIGHT_GRADIENT, g, kind="embedding", flops=0)
    for index, grad in enumerate(grads):
        add(f"step.{index}", STEP, grad, kind="optimizer", flops=0)
    return ops


def stage_tasks(plan: Plan, stage: int) -> Tasks:
    order = stage_orders(plan.schedule, plan.pp, plan.microbatches)[stage]
    found = list(task_positions(order))
    return Tasks(
        kind=np.array([TASK_KINDS.index(task.kind.name) for task in order], np.int64),
        microbatch=np.array([task.microbatch for task in order], np.int64),
        chunk=np.array([task.chunk for task in order], np.int64),
        first=np.array([mark.first for mark in found]),
        last=np.array([mark.last for mark in found]),
    )


def workload(
    *,
    tp: int = 2,
    dp: int = 2,
    pp: int = 2,
    cp: int = 1,
    microbatches: int = 2,
    layers: int = 2,
    schedule: str = "1f1b",
    distance: int = 1,
) -> Workload:
    """A whole instance: one class a stage. distance: ranks of cp from one of a ring to the next."""
    plan = Plan(GraphOptions(), dp=dp, tp=tp, pp=pp, cp=cp, global_batch_size=dp * microbatches, schedule=schedule)
    mesh = Mesh.of(plan)
    coordinates = [mesh.coordinates(rank) for rank in range(plan.world)]
    by_axis = {axis: np.array([each[axis] for each in coordinates], np.int64) for axis in ("tp", "cp", "dp", "pp")}
    made = [(shape, index) for shape in groups(plan, 8, ("tp", "dp")) for index in range(shape.count)]
    members = [list(shape.ranks(index)) for shape, index in made]
    return Workload(
        instance="0123456789abcdef",
        name="tiny",
        graph="graph",
        model="tiny",
        plan=plan.to_dict(),
        degrees=tuple(size for _, size in mesh.axes),
        classes=tuple(
            columns(stage_ops(plan, stage, layers), stage_tasks(plan, stage), stage, (stage,)) for stage in range(pp)
        ),
        ranks=RankTable.of(by_axis, by_axis["pp"], distance),
        groups=Groups(
            gid=np.array([shape.first + index for shape, index in made], np.int64),
            axis=tuple(shape.axis for shape, _ in made),
            sizes=np.array([len(each) for each in members], np.int64),
            ranks=np.array([rank for each in members for rank in each], np.int64),
        ),
    )
