"""What kind of row a symbolic operator or tensor is, for tests that know it."""

from stagedb.ir.symbolic_graph import Collective, Compute, MessageEnd, Parameter, SymOp, SymTensor


def compute(op: SymOp) -> Compute:
    assert isinstance(op.work, Compute), op.name
    return op.work


def communication(op: SymOp) -> Collective | MessageEnd:
    assert not isinstance(op.work, Compute), op.name
    return op.work


def flops(op: SymOp) -> str:
    """FLOPs of any operator: communication has none."""
    return op.work.flops if isinstance(op.work, Compute) else "0"


def parameter(tensor: SymTensor) -> Parameter:
    assert tensor.parameter is not None, tensor.name
    return tensor.parameter


def previous(op: SymOp) -> tuple[str, ...]:
    """The tensors that it reads as the turn before left them."""
    return () if op.loop is None else op.loop.previous


def peer(op: SymOp) -> str:
    """The distance to the other end of a message inside a block."""
    assert isinstance(op.work, MessageEnd) and op.work.peer is not None, op.name
    return op.work.peer


def place_of_value(weight: SymTensor, place: int) -> tuple[str, int]:
    """Where a weight's values are: a tied one has those of the first weight at place 0."""
    tied = parameter(weight).tied
    return (weight.name, place) if tied is None else (tied, 0)
