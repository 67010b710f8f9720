"""Symbolic tensor graphs: tensors with named axes and layouts, operators, derived backward, matched collectives.

A model's author writes the forward of a block with a `Tracer`. `lay_out` derives the backward and puts a collective
wherever the layout of a producer differs from that of its consumer. `assemble` makes the rows that are stored
(`SymGraph`), and `interpreter.run_block` runs one block of them in numpy.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.ir.layouts import Layout, Partial, Partitioned, parse_layout
    from stagedb.ir.symbolic_graph import (
        FORMAT,
        BlockSpec,
        Collective,
        Compute,
        EdgeKind,
        Hop,
        MessageEnd,
        OpType,
        Parameter,
        SymEdge,
        SymGraph,
        SymLoop,
        SymOp,
        SymTensor,
        When,
    )
    from stagedb.workflows import Template

__all__ = [
    "FORMAT",
    "BlockSpec",
    "Collective",
    "Compute",
    "EdgeKind",
    "Hop",
    "Layout",
    "MessageEnd",
    "OpType",
    "Parameter",
    "Partial",
    "Partitioned",
    "SymEdge",
    "SymGraph",
    "SymLoop",
    "SymOp",
    "SymTensor",
    "Template",
    "When",
    "parse_layout",
]

_MODULES = {
    "layouts": ("Layout", "Partial", "Partitioned", "parse_layout"),
    "symbolic_graph": (
        *("FORMAT", "BlockSpec", "Collective", "Compute", "EdgeKind", "Hop", "MessageEnd", "OpType", "Parameter"),
        *("SymEdge", "SymGraph", "SymLoop", "SymOp", "SymTensor", "Template", "When"),
    ),
}

# A plan needs formats of weights from this package, and no graph.
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
